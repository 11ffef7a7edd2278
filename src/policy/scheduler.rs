//! Which slot a request gets, and what its answer teaches.
//!
//! The scheduler is plain state with no lock and no clock: `now` is an argument. It lives behind
//! one mutex, and its callers hold that for a few comparisons only.

use std::sync::Arc;
use std::time::Duration;

use super::pool::{KeyIndex, ModelIndex, Pool, Slot};
use super::state::{self, RuntimeRecord, SlotRecord, StateFile};
use crate::clock::Timestamp;

/// The order of events inside this process. Unlike the clock it never stands still or goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Tick(u64);

/// A slot given to one attempt. It is handed back with the report on that attempt.
#[derive(Clone, Debug)]
pub struct Pick {
    /// The slot to try.
    pub slot: Slot,
    began: Tick,
    /// Whether the walk passed over cooling slots alone, so that a success may move the cursors.
    direct: bool,
}

/// What a request that asks for a slot gets.
#[derive(Debug)]
pub enum Next {
    /// Try this one.
    Slot(Pick),
    /// Nothing is available to anybody.
    AllCooling {
        /// When the first cooldown ends.
        until: Timestamp,
    },
    /// What is available, this request has tried already.
    NoneLeft,
}

/// What an exhaustion did, for the log.
#[derive(Debug, PartialEq, Eq)]
pub struct Exhausted {
    /// When the slot's cooldown ends.
    pub until: Timestamp,
    /// How many exhaustion answers the slot has had, ever.
    pub failures: u64,
}

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

#[derive(Clone, Debug)]
struct SlotState {
    cooldown_until: Timestamp,
    failure_count: u64,
    last_error: Option<Arc<str>>,
    last_used_at: Option<Timestamp>,
    updated_at: Timestamp,
    /// The last exhaustion: a success that began before it says nothing about the quota now.
    exhausted: Tick,
}

#[derive(Clone, Copy, Debug)]
struct Cursor {
    at: usize,
    updated_at: Timestamp,
}

/// The pool's state and the rules by which it changes.
#[derive(Debug)]
pub struct Scheduler {
    pool: Arc<Pool>,
    cooldown: Duration,
    slots: Vec<SlotState>,
    key_cursor: Cursor,
    model_cursors: Vec<Cursor>,
    /// The file as it was read: strangers' records and fields are written back from here.
    base: Arc<StateFile>,
    tick: Tick,
    revision: u64,
    /// The revision of the last exhaustion; 0 = there was none.
    cooled: u64,
}

impl Scheduler {
    /// Continues from a state file. Slots it does not know start without a cooldown.
    #[must_use]
    pub fn new(pool: Arc<Pool>, cooldown: Duration, file: StateFile, now: Timestamp) -> Self {
        let slots = pool.slots().map(|slot| SlotState::read(&pool, slot, &file, now)).collect();
        let key_cursor = Cursor::read(&file, state::KEY_CURSOR, pool.key_count(), now);
        let model_cursors = (0..pool.key_count())
            .map(|key| state::model_cursor_name(pool.key_hash(KeyIndex(key))))
            .map(|name| Cursor::read(&file, &name, pool.model_count(), now))
            .collect();
        Self {
            pool,
            cooldown,
            slots,
            key_cursor,
            model_cursors,
            base: Arc::new(file),
            tick: Tick::default(),
            revision: 1,
            cooled: 0,
        }
    }

    /// The slot with which to go on: the current key first, inside it the current model first,
    /// and only what is available. Nothing in `tried` is given again.
    pub fn next_slot(&mut self, tried: &[Slot], now: Timestamp) -> Next {
        let mut direct = true;
        let mut found = None;
        let mut any_available = false;
        for slot in self.walk() {
            if !self.is_available(slot, now) {
                continue;
            }
            any_available = true;
            if !tried.contains(&slot) {
                found = Some(slot);
                break;
            }
            direct = false;
        }
        match found {
            Some(slot) => Next::Slot(Pick { slot, began: self.advance(), direct }),
            None if any_available => Next::NoneLeft,
            None => Next::AllCooling { until: self.soonest_end() },
        }
    }

    /// The slot's free quota is used up: it cools alone, and the cursors leave it.
    pub fn report_exhausted(&mut self, pick: &Pick, message: &str, now: Timestamp) -> Exhausted {
        let tick = self.advance();
        let until = now.plus(self.cooldown);
        let slot = self.slot_mut(pick.slot);
        slot.failure_count += 1;
        slot.cooldown_until = until;
        slot.last_error = Some(message.into());
        slot.updated_at = now;
        slot.exhausted = tick;
        let failures = slot.failure_count;
        self.leave_cooling(pick.slot.key, now);
        self.revision += 1;
        self.cooled = self.revision;
        Exhausted { until, failures }
    }

    /// The slot answered with a success. Says whether its cooldown had ended before, which means
    /// that this pair may now be billed.
    pub fn report_success(&mut self, pick: &Pick, now: Timestamp) -> bool {
        self.revision += 1;
        let slot = self.slot_mut(pick.slot);
        slot.last_used_at = Some(now);
        slot.updated_at = now;
        if pick.began < slot.exhausted {
            return false;
        }
        slot.last_error = None;
        let revived = slot.cooldown_until != Timestamp(0) && slot.cooldown_until <= now;
        if revived {
            slot.cooldown_until = Timestamp(0);
        }
        if pick.direct {
            self.model_cursors[pick.slot.key.0].move_to(pick.slot.model.0, now);
            self.key_cursor.move_to(pick.slot.key.0, now);
        }
        revived
    }

    /// How many slots a request may use now.
    #[must_use]
    pub fn available_count(&self, now: Timestamp) -> usize {
        self.slots.iter().filter(|slot| slot.cooldown_until <= now).count()
    }

    /// The pool this works on.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Grows with every change that belongs on disk.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The revision that has to be on disk before a client may notice any cooldown so far.
    #[must_use]
    pub fn cooled_revision(&self) -> u64 {
        self.cooled
    }

    /// The latest end of a cooldown, for the check against a wrong clock.
    #[must_use]
    pub fn latest_end(&self) -> Timestamp {
        self.slots.iter().map(|slot| slot.cooldown_until).max().unwrap_or_default()
    }

    /// Every slot as a person may see it.
    #[must_use]
    pub fn view(&self, now: Timestamp) -> Vec<SlotView<'_>> {
        let first = self.walk().find(|slot| self.is_available(*slot, now));
        let current_key = first.map_or(KeyIndex(self.key_cursor.at), |slot| slot.key);
        let starts: Vec<ModelIndex> = (0..self.pool.key_count())
            .map(|key| {
                let key = KeyIndex(key);
                self.next_available_model(key, now)
                    .unwrap_or(ModelIndex(self.model_cursors[key.0].at))
            })
            .collect();
        self.pool
            .slots()
            .zip(&self.slots)
            .map(|(slot, state)| SlotView {
                slot,
                available: state.cooldown_until <= now,
                cooldown_until: Some(state.cooldown_until).filter(|end| *end != Timestamp(0)),
                failure_count: state.failure_count,
                last_error: state.last_error.as_deref(),
                last_used_at: state.last_used_at,
                current_key: slot.key == current_key,
                current_model: slot.model == starts[slot.key.0],
            })
            .collect()
    }

    /// A copy that is cheap to take under the lock and is made into a file outside of it.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            revision: self.revision,
            pool: Arc::clone(&self.pool),
            slots: self.slots.clone(),
            key_cursor: self.key_cursor,
            model_cursors: self.model_cursors.clone(),
            base: Arc::clone(&self.base),
        }
    }

    /// Every slot, in the order in which a request asks for them.
    fn walk(&self) -> impl Iterator<Item = Slot> + '_ {
        wrapping(self.key_cursor.at, self.pool.key_count())
            .map(KeyIndex)
            .flat_map(|key| self.models_of(key).map(move |model| Slot { key, model }))
    }

    fn models_of(&self, key: KeyIndex) -> impl Iterator<Item = ModelIndex> + use<> {
        wrapping(self.model_cursors[key.0].at, self.pool.model_count()).map(ModelIndex)
    }

    fn next_available_model(&self, key: KeyIndex, now: Timestamp) -> Option<ModelIndex> {
        self.models_of(key).find(|&model| self.is_available(Slot { key, model }, now))
    }

    /// Moves the key's model cursor on if it stands on a slot that is not available, and the key
    /// cursor if its key has nothing left. A cursor that stands well stays: the exhausted slot
    /// may have been reached past one that only could not serve this request.
    fn leave_cooling(&mut self, key: KeyIndex, now: Timestamp) {
        if let Some(model) = self.next_available_model(key, now) {
            self.model_cursors[key.0].move_to(model.0, now);
        }
        let keys = wrapping(self.key_cursor.at, self.pool.key_count()).map(KeyIndex);
        let next = keys.into_iter().find(|key| self.next_available_model(*key, now).is_some());
        if let Some(key) = next {
            self.key_cursor.move_to(key.0, now);
        }
    }

    fn is_available(&self, slot: Slot, now: Timestamp) -> bool {
        self.slots[self.pool.place(slot)].cooldown_until <= now
    }

    fn soonest_end(&self) -> Timestamp {
        self.slots.iter().map(|slot| slot.cooldown_until).min().unwrap_or_default()
    }

    fn slot_mut(&mut self, slot: Slot) -> &mut SlotState {
        &mut self.slots[self.pool.place(slot)]
    }

    fn advance(&mut self) -> Tick {
        self.tick.0 += 1;
        self.tick
    }
}

impl SlotState {
    fn read(pool: &Pool, slot: Slot, file: &StateFile, now: Timestamp) -> Self {
        let (key_hash, model_id) = (pool.key_hash(slot.key), pool.model_id(slot.model));
        let record = file.model_state.get(&state::slot_name(key_hash, model_id)).cloned();
        let record = record.unwrap_or_else(|| SlotRecord::new(key_hash, model_id, now));
        Self {
            cooldown_until: record.cooldown_until,
            failure_count: record.failure_count,
            last_error: record.last_error.map(Into::into),
            last_used_at: record.last_used_at,
            updated_at: record.updated_at,
            exhausted: Tick::default(),
        }
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
    fn read(file: &StateFile, name: &str, length: usize, now: Timestamp) -> Self {
        let Some(record) = file.runtime_state.get(name) else {
            return Self { at: 0, updated_at: now };
        };
        let at = record.value.trim().parse::<usize>().unwrap_or(0) % length.max(1);
        Self { at, updated_at: record.updated_at }
    }

    fn move_to(&mut self, at: usize, now: Timestamp) {
        if self.at != at {
            *self = Self { at, updated_at: now };
        }
    }
}

/// The scheduler's state at one revision.
#[derive(Debug)]
pub struct Snapshot {
    /// The revision that this is.
    pub revision: u64,
    pool: Arc<Pool>,
    slots: Vec<SlotState>,
    key_cursor: Cursor,
    model_cursors: Vec<Cursor>,
    base: Arc<StateFile>,
}

impl Snapshot {
    /// The state file at this revision.
    #[must_use]
    pub fn to_file(&self) -> StateFile {
        let mut file = StateFile::clone(&self.base);
        for (slot, state) in self.pool.slots().zip(&self.slots) {
            let (key_hash, model_id) =
                (self.pool.key_hash(slot.key), self.pool.model_id(slot.model));
            let record = file
                .model_state
                .entry(state::slot_name(key_hash, model_id))
                .or_insert_with(|| SlotRecord::new(key_hash, model_id, state.updated_at));
            state.write(record);
        }
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

/// The numbers below `length`, from `start` on and around.
fn wrapping(start: usize, length: usize) -> impl Iterator<Item = usize> {
    (0..length).map(move |step| (start + step) % length)
}

#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
