//! Slots that the guard has left, and slots for which a person has lifted it.

use std::collections::HashMap;

use super::tallies::slot_named;
use super::{Guard, Pool, RuntimeRecord, Scheduler, Slot, SlotState, StateFile, Timestamp, state};

/// What the runtime record of a slot begins with that the guard has left, or that is free of it.
const PREFIX: &str = "guard:";

/// How the guard stands to one slot, if it is not simply on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// It has left the slot.
    Left,
    /// A person has lifted it, until the slot's count is reset.
    Lifted,
}

impl Mark {
    /// The record's text.
    fn name(self) -> &'static str {
        match self {
            Self::Left => "left",
            Self::Lifted => "lifted",
        }
    }

    fn of(text: &str) -> Option<Self> {
        [Self::Left, Self::Lifted].into_iter().find(|mark| mark.name() == text)
    }
}

/// The marks, and when each was set.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks(HashMap<Slot, (Mark, Timestamp)>);

impl Marks {
    /// Takes the marks of configured keys out of a file; what cannot be read stays in it.
    pub(super) fn take(file: &mut StateFile, pool: &Pool) -> Self {
        let mut marks = HashMap::new();
        file.runtime_state.retain(|name, record| {
            let slot = name.strip_prefix(PREFIX).and_then(|name| slot_named(name, pool));
            let Some((slot, mark)) = slot.zip(Mark::of(&record.value)) else { return true };
            marks.insert(slot, (mark, record.updated_at));
            false
        });
        Self(marks)
    }

    /// Puts them back.
    pub(super) fn put(&self, file: &mut StateFile, pool: &Pool) {
        for (slot, (mark, since)) in &self.0 {
            let name = state::slot_name(pool.key_hash(slot.key), &slot.model);
            let record = RuntimeRecord::new(mark.name().to_owned(), *since);
            file.runtime_state.insert(format!("{PREFIX}{name}"), record);
        }
    }

    fn has(&self, slot: &Slot, mark: Mark) -> bool {
        self.0.get(slot).is_some_and(|(known, _)| *known == mark)
    }

    /// Says whether the slot had this mark.
    fn remove(&mut self, slot: &Slot, mark: Mark) -> bool {
        let had = self.has(slot, mark);
        if had {
            self.0.remove(slot);
        }
        had
    }
}

/// How the guard stands to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guarding {
    /// `QUOTA_GUARD` is off.
    Off,
    /// The slot's free quota is not known.
    UnknownQuota,
    /// Its answers count images, seconds or characters.
    OtherUnits,
    /// A person has lifted it, until the slot's count is reset.
    Lifted,
    /// It watches.
    On,
    /// It has left the slot.
    Left,
}

impl Guarding {
    /// Its name in the status.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::UnknownQuota => "unknown_quota",
            Self::OtherUnits => "other_units",
            Self::Lifted => "lifted",
            Self::On => "on",
            Self::Left => "left",
        }
    }
}

/// A slot that the guard has just left, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    /// The slot.
    pub slot: Slot,
    /// Tokens that its answers said they used.
    pub counted: u64,
    /// Tokens that are estimated.
    pub estimated: u64,
    /// With how many it is left.
    pub limit: u64,
    /// When its cooldown ends; what is left then is not tried again by itself.
    pub until: Timestamp,
}

/// What the guard changed at the start.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Guarded {
    /// Slots that it left.
    pub left: Vec<Left>,
    /// Slots that it had left, and that are below the limit of today.
    pub released: Vec<Slot>,
}

impl Scheduler {
    /// From now on this guard watches. What has already reached its limit is left at once, and
    /// what was left by another one and has not is free again.
    pub(crate) fn set_guard(&mut self, guard: Guard, now: Timestamp) -> Guarded {
        self.guard = guard;
        let mut guarded = Guarded::default();
        let slots: Vec<Slot> = self.pool.slots().collect();
        for slot in slots {
            if !self.has_reached_limit(&slot) && self.release(&slot, now) {
                guarded.released.push(slot);
            } else {
                guarded.left.extend(self.guard_slot(&slot, now));
            }
        }
        guarded
    }

    /// The guard.
    #[must_use]
    pub(crate) fn guard(&self) -> &Guard {
        &self.guard
    }

    /// How the guard stands to a slot.
    #[must_use]
    pub(crate) fn guarding(&self, slot: &Slot) -> Guarding {
        if !self.guard.is_on() {
            Guarding::Off
        } else if self.marks.has(slot, Mark::Left) {
            Guarding::Left
        } else if self.tally(slot).is_in_other_units() {
            Guarding::OtherUnits
        } else if self.guard.limit(&slot.model).is_none() {
            Guarding::UnknownQuota
        } else if self.marks.has(slot, Mark::Lifted) {
            Guarding::Lifted
        } else {
            Guarding::On
        }
    }

    /// Whether the guard has left a slot.
    pub(super) fn is_left(&self, slot: &Slot) -> bool {
        self.marks.has(slot, Mark::Left)
    }

    /// Leaves a slot of the pool that has reached its limit. One that cools already is left
    /// already, and by DashScope's own word.
    pub(super) fn guard_slot(&mut self, slot: &Slot, now: Timestamp) -> Option<Left> {
        let limit = self.guard.limit(&slot.model)?;
        let is_ours = self.pool.place_of(&slot.model).is_some();
        if !is_ours || !self.has_reached_limit(slot) || self.marks.has(slot, Mark::Lifted) {
            return None;
        }
        let (until, reason) = (now.plus(self.cooldown), self.guard.reason(&slot.model));
        let tick = self.advance();
        let state = self.slots.get_mut(slot).filter(|state| !state.has_cooldown())?;
        state.cooldown_until = until;
        state.last_error = Some(reason.into());
        state.updated_at = now;
        state.exhausted = tick;
        self.marks.0.insert(slot.clone(), (Mark::Left, now));
        self.leave_cooling(slot.key, now);
        self.change();
        self.cooled = self.revision;
        let tally = self.tally(slot);
        let (counted, estimated) = (tally.counted_tokens(), tally.estimated_tokens);
        Some(Left { slot: slot.clone(), counted, estimated, limit, until })
    }

    /// What DashScope itself says of a slot goes before what the guard made of it.
    pub(super) fn forget_left(&mut self, slot: &Slot) {
        self.marks.remove(slot, Mark::Left);
    }

    /// Ends a cooldown that the guard began; says whether there was one.
    pub(super) fn release(&mut self, slot: &Slot, now: Timestamp) -> bool {
        let was_left = self.marks.remove(slot, Mark::Left);
        if was_left {
            if let Some(state) = self.slots.get_mut(slot) {
                state.end_cooldown(now);
            }
            self.change();
        }
        was_left
    }

    /// A person wants a slot used although it has reached its limit.
    pub(super) fn lift(&mut self, slot: &Slot, now: Timestamp) {
        if self.has_reached_limit(slot) {
            self.marks.0.insert(slot.clone(), (Mark::Lifted, now));
        } else {
            self.marks.remove(slot, Mark::Left);
        }
    }

    /// A person has set a slot's count to 0: the guard watches it again.
    pub(super) fn rearm(&mut self, slot: &Slot) {
        self.marks.0.remove(slot);
    }

    fn has_reached_limit(&self, slot: &Slot) -> bool {
        let (limit, tally) = (self.guard.limit(&slot.model), self.tally(slot));
        limit.is_some_and(|limit| tally.tokens() >= limit) && !tally.is_in_other_units()
    }
}

impl SlotState {
    /// Whether it cools, or has cooled and was not tried since.
    pub(super) fn has_cooldown(&self) -> bool {
        self.cooldown_until != Timestamp(0)
    }

    /// Forgets the cooldown and its error.
    pub(super) fn end_cooldown(&mut self, now: Timestamp) {
        if self.has_cooldown() || self.last_error.is_some() {
            self.cooldown_until = Timestamp(0);
            self.last_error = None;
            self.updated_at = now;
        }
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
