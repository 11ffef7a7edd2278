//! How much of each slot's quota has been used: as far as upstream tells, and beyond that by
//! estimate.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{KeyIndex, Left, Pool, RuntimeRecord, Scheduler, Scope, Slot, StateFile};
use super::{Timestamp, state};
use crate::policy::charge::Charge;

/// What the runtime record of a tally begins with; a slot's name follows.
const PREFIX: &str = "usage:";

/// What one slot has served. The text of its record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Tally {
    /// Answers, and calls that were sent whole and got none.
    pub requests: u64,
    /// Those of them that did not say what they used.
    pub unknown_requests: u64,
    /// Tokens that went in.
    pub input_tokens: u64,
    /// Tokens that came out.
    pub output_tokens: u64,
    /// Pictures that came out.
    pub images: u64,
    /// Tokens of answers that did not say what they used, or not to their end: an upper bound.
    pub estimated_tokens: u64,
    /// Answers that were counted in images, seconds or characters.
    pub other_unit_requests: u64,
}

impl Tally {
    /// Tokens that answers said they used.
    #[must_use]
    pub(crate) fn counted_tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    /// The most tokens that can have been used: those that were said, and the estimate.
    #[must_use]
    pub(crate) fn tokens(&self) -> u64 {
        self.counted_tokens().saturating_add(self.estimated_tokens)
    }

    /// Whether tokens say nothing of its quota. (Images were counted before there was a guard.)
    #[must_use]
    pub(crate) fn is_in_other_units(&self) -> bool {
        self.other_unit_requests > 0 || self.images > 0
    }

    /// `requests` answers more were counted as `charge` (0: what was counted of one is more now).
    fn add(&mut self, requests: u64, charge: &Charge) {
        let said = charge.said.unwrap_or_default();
        self.requests += requests;
        self.unknown_requests += if charge.said.is_none() { requests } else { 0 };
        self.other_unit_requests += u64::from(charge.is_in_other_units());
        self.input_tokens = self.input_tokens.saturating_add(said.input);
        self.output_tokens = self.output_tokens.saturating_add(said.output);
        self.images = self.images.saturating_add(said.images);
        self.estimated_tokens = self.estimated_tokens.saturating_add(charge.estimated);
    }
}

/// What counting an answer did.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Whether there is something to write.
    pub changed: bool,
    /// The slot, if the guard has left it now.
    pub left: Option<Left>,
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
    /// An answer of this slot is counted: for the first time (`requests` is 1), or for what it
    /// turned out to be above that (0). Only slots that have a record are counted: others are not
    /// ours to know.
    pub(crate) fn count(
        &mut self,
        slot: &Slot,
        requests: u64,
        charge: &Charge,
        now: Timestamp,
    ) -> Counted {
        if !self.slots.contains_key(slot) {
            return Counted::default();
        }
        let (tally, since) = self.tallies.0.entry(slot.clone()).or_default();
        tally.add(requests, charge);
        *since = now;
        self.revision += 1;
        if self.guard.limit(&slot.model).is_some() {
            // What a guard goes by would be missed.
            self.lasting = self.revision;
        }
        if charge.is_in_other_units() {
            self.release(slot, now);
        }
        Counted { changed: true, left: self.guard_slot(slot, now) }
    }

    /// Sets the counts of a part of the pool to 0.
    pub(super) fn forget_usage(&mut self, scope: &Scope) {
        self.tallies.0.retain(|slot, _| !scope.covers(slot));
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
