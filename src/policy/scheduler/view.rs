//! The pool as a person may see it.

use super::{Scheduler, Slot, Timestamp};

/// One slot as the status page shows it.
#[derive(Debug)]
pub struct SlotView<'a> {
    /// The slot.
    pub slot: Slot,
    /// Whether a request may use it now.
    pub available: bool,
    /// When its cooldown ends; `None` = it does not cool.
    pub cooldown_until: Option<Timestamp>,
    /// How many exhaustion answers it has had, ever.
    pub failure_count: u64,
    /// Upstream's message of the last exhaustion.
    pub last_error: Option<&'a str>,
    /// The last success.
    pub last_used_at: Option<Timestamp>,
    /// Whether the next request starts with this key.
    pub current_key: bool,
    /// Whether a request on this key starts with this model.
    pub current_model: bool,
}

impl Scheduler {
    /// Every slot as a person may see it.
    #[must_use]
    pub fn view(&self, now: Timestamp) -> Vec<SlotView<'_>> {
        let current_key = self.current_key(now);
        let starts: Vec<usize> = self
            .pool
            .keys()
            .map(|key| self.next_model(key, now).unwrap_or(self.model_cursors[key.0].at))
            .collect();
        self.pool
            .slots()
            .filter_map(|slot| {
                let state = self.slots.get(&slot)?;
                let end = state.cooldown_until;
                Some(SlotView {
                    available: end <= now,
                    cooldown_until: Some(end).filter(|end| *end != Timestamp(0)),
                    failure_count: state.failure_count,
                    last_error: state.last_error.as_deref(),
                    last_used_at: state.last_used_at,
                    current_key: slot.key == current_key,
                    current_model: self.pool.place_of(&slot.model) == Some(starts[slot.key.0]),
                    slot,
                })
            })
            .collect()
    }
}
