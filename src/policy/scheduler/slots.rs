//! What is remembered of slots and cursors, and how it gets into the state file and out of it.

use std::collections::HashMap;
use std::sync::Arc;

use super::control::Disabled;
use super::guarding::Marks;
use super::pins::Pins;
use super::tallies::Tallies;
use super::{KeyIndex, Pool, RuntimeRecord, Slot, SlotRecord, StateFile, Tick, Timestamp, state};

#[derive(Clone, Debug, Default)]
pub(super) struct SlotState {
    pub(super) cooldown_until: Timestamp,
    pub(super) failure_count: u64,
    pub(super) last_error: Option<Arc<str>>,
    pub(super) last_used_at: Option<Timestamp>,
    pub(super) updated_at: Timestamp,
    /// The last exhaustion: a success that began before it says nothing about the quota now.
    pub(super) exhausted: Tick,
    /// The last reset: an exhaustion that began before it does not cool.
    pub(super) reset: Tick,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    pub(super) at: usize,
    pub(super) updated_at: Timestamp,
}

impl SlotState {
    pub(super) fn of(record: &SlotRecord) -> Self {
        Self {
            cooldown_until: record.cooldown_until,
            failure_count: record.failure_count,
            last_error: record.last_error.as_deref().map(Into::into),
            last_used_at: record.last_used_at,
            updated_at: record.updated_at,
            exhausted: Tick::default(),
            reset: Tick::default(),
        }
    }

    /// Whether a success now is the first since the cooldown ended. A cooldown that is over stays
    /// as it was written, so it is the time of the last success that tells.
    pub(super) fn is_revived_by_success(&self, now: Timestamp) -> bool {
        let end = self.cooldown_until;
        let is_over = end != Timestamp(0) && end <= now;
        is_over && self.last_used_at.is_none_or(|last| last < end)
    }

    fn write(&self, record: &mut SlotRecord) {
        record.cooldown_until = self.cooldown_until;
        record.failure_count = self.failure_count;
        record.last_error = self.last_error.as_deref().map(str::to_owned);
        record.last_used_at = self.last_used_at;
        record.updated_at = self.updated_at;
    }
}

impl Cursor {
    pub(super) fn read(file: &StateFile, name: &str, length: usize, now: Timestamp) -> Self {
        let Some(record) = file.runtime_state.get(name) else {
            return Self { at: 0, updated_at: now };
        };
        let at = state::cursor_of(&record.value) % length.max(1);
        Self { at, updated_at: record.updated_at }
    }

    /// Says whether it stood somewhere else.
    pub(super) fn move_to(&mut self, at: usize, now: Timestamp) -> bool {
        let moves = self.at != at;
        if moves {
            *self = Self { at, updated_at: now };
        }
        moves
    }
}

/// The scheduler's state at one revision.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// The revision that this is.
    pub revision: u64,
    pub(super) pool: Arc<Pool>,
    pub(super) slots: HashMap<Slot, SlotState>,
    pub(super) key_cursor: Cursor,
    pub(super) model_cursors: Vec<Cursor>,
    pub(super) pins: Pins,
    pub(super) tallies: Tallies,
    pub(super) disabled: Disabled,
    pub(super) marks: Marks,
    pub(super) base: Arc<StateFile>,
}

impl Snapshot {
    /// The state file at this revision.
    #[must_use]
    pub(crate) fn to_file(&self) -> StateFile {
        let mut file = StateFile::clone(&self.base);
        for (slot, state) in &self.slots {
            let (key_hash, model) = (self.pool.key_hash(slot.key), &*slot.model);
            let record = file
                .model_state
                .entry(state::slot_name(key_hash, model))
                .or_insert_with(|| SlotRecord::new(key_hash, model, state.updated_at));
            state.write(record);
        }
        self.pins.put(&mut file);
        self.tallies.put(&mut file, &self.pool);
        self.disabled.put(&mut file, &self.pool);
        self.marks.put(&mut file, &self.pool);
        write_cursor(&mut file, state::KEY_CURSOR.to_owned(), self.key_cursor);
        for (key, cursor) in self.model_cursors.iter().enumerate() {
            let name = state::model_cursor_name(self.pool.key_hash(KeyIndex(key)));
            write_cursor(&mut file, name, *cursor);
        }
        file
    }
}

fn write_cursor(file: &mut StateFile, name: String, cursor: Cursor) {
    let fresh = || RuntimeRecord::new(String::new(), cursor.updated_at);
    let record = file.runtime_state.entry(name).or_insert_with(fresh);
    record.value = cursor.at.to_string();
    record.updated_at = cursor.updated_at;
}
