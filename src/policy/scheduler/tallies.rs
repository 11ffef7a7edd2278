//! How much of each slot's quota has been used, as far as upstream tells.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{KeyIndex, Pool, RuntimeRecord, Scheduler, Slot, StateFile, Timestamp, state};
use crate::policy::usage::Usage;

/// What the runtime record of a tally begins with; a slot's name follows.
const PREFIX: &str = "usage:";

/// What one slot has served. The text of its record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Tally {
    /// Answers.
    pub requests: u64,
    /// Answers that did not say what they used.
    pub unknown_requests: u64,
    /// Tokens that went in.
    pub input_tokens: u64,
    /// Tokens that came out.
    pub output_tokens: u64,
    /// Pictures that came out.
    pub images: u64,
}

/// The tallies, and when each changed last.
#[derive(Clone, Debug, Default)]
pub(super) struct Tallies(HashMap<Slot, (Tally, Timestamp)>);

impl Tallies {
    /// Takes the tallies of configured keys out of a file; what cannot be read stays in it.
    pub(super) fn take(file: &mut StateFile, pool: &Pool) -> Self {
        let mut tallies = HashMap::new();
        file.runtime_state.retain(|name, record| {
            let slot = name.strip_prefix(PREFIX).and_then(|name| slot_named(name, pool));
            let Some((slot, tally)) = slot.zip(serde_json::from_str(&record.value).ok()) else {
                return true;
            };
            tallies.insert(slot, (tally, record.updated_at));
            false
        });
        Self(tallies)
    }

    /// Puts them back.
    pub(super) fn put(&self, file: &mut StateFile, pool: &Pool) {
        for (slot, (tally, since)) in &self.0 {
            let name = state::slot_name(pool.key_hash(slot.key), &slot.model);
            let text = serde_json::to_string(tally).expect("numbers serialise");
            file.runtime_state.insert(format!("{PREFIX}{name}"), RuntimeRecord::new(text, *since));
        }
    }
}

impl Scheduler {
    /// An answer of this slot has ended; `usage` is what it said of itself. Only slots that have
    /// a record are counted: others are not ours to know. Says whether there is something to
    /// write.
    pub(crate) fn count(&mut self, slot: &Slot, usage: Option<Usage>, now: Timestamp) -> bool {
        if !self.slots.contains_key(slot) {
            return false;
        }
        let (tally, since) = self.tallies.0.entry(slot.clone()).or_default();
        tally.requests += 1;
        match usage {
            Some(usage) => {
                tally.input_tokens = tally.input_tokens.saturating_add(usage.input);
                tally.output_tokens = tally.output_tokens.saturating_add(usage.output);
                tally.images = tally.images.saturating_add(usage.images);
            }
            None => tally.unknown_requests += 1,
        }
        *since = now;
        self.revision += 1;
        true
    }

    /// What a slot has served.
    #[must_use]
    pub(crate) fn tally(&self, slot: &Slot) -> Tally {
        self.tallies.0.get(slot).map(|(tally, _)| *tally).unwrap_or_default()
    }
}

/// The slot of a configured key that is named `<key hash>:<model>`.
pub(super) fn slot_named(name: &str, pool: &Pool) -> Option<Slot> {
    let (hash, model) = name.split_once(':')?;
    let key: KeyIndex = pool.key_with_hash(hash)?;
    Some(Slot { key, model: model.into() })
}
