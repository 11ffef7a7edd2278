//! Keys that look like two keys of one account, which share its free quota.

use std::collections::HashSet;
use std::sync::Arc;

use super::{KeyIndex, Scheduler, Timestamp};

/// After how many exhausted models without a success two keys may be one account.
const TWIN_MODELS: usize = 2;

impl Scheduler {
    /// Keys that look like one account.
    #[must_use]
    pub(crate) fn twins(&self) -> &[(KeyIndex, KeyIndex)] {
        &self.twins
    }

    /// Another key of what looks like the same account: two models of `key` are exhausted and it
    /// never had a success, while the other key has the same models cooling. Each pair is told
    /// once.
    pub(super) fn find_twin(&mut self, key: KeyIndex, now: Timestamp) -> Option<KeyIndex> {
        let cooling = |key: KeyIndex| {
            let slots = self.slots.iter().filter(move |(slot, _)| slot.key == key);
            // What the guard has left, DashScope has not refused.
            let refused = slots.filter(|(slot, _)| !self.is_left(slot));
            let cooling = refused.filter(|(_, state)| state.cooldown_until > now);
            cooling.map(|(slot, _)| Arc::clone(&slot.model)).collect::<HashSet<_>>()
        };
        let own = cooling(key);
        let has_served =
            self.slots.iter().any(|(slot, state)| slot.key == key && state.last_used_at.is_some());
        if own.len() != TWIN_MODELS || has_served {
            return None;
        }
        let twin =
            self.pool.keys().find(|other| *other != key && own.is_subset(&cooling(*other)))?;
        let pair = (key.min(twin), key.max(twin));
        if self.twins.contains(&pair) {
            return None;
        }
        self.twins.push(pair);
        Some(twin)
    }
}
