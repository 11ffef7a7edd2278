//! Which slot a request gets, and what its answer teaches.
//!
//! The scheduler is plain state with no lock and no clock: the moment is an argument. It lives
//! behind one mutex, and its callers hold that for a few comparisons only.

mod ask;
mod control;
mod guarding;
mod limits;
mod pins;
mod slots;
mod tallies;
mod twins;
mod view;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bench::{Benches, Rest};
use super::guard::Guard;
use super::limits::{Book, Bounds};
use super::pool::{KeyIndex, Pool, Slot};
use super::route::Protocol;
use super::state::{self, RuntimeRecord, SlotRecord, StateFile};
use super::verdict::Verdict;
use crate::clock::{Moment, Timestamp};
pub(crate) use ask::{Ask, Next, Tried, Wanted};
use control::Disabled;
pub(crate) use control::Scope;
use guarding::Marks;
pub(crate) use guarding::{Guarded, Guarding, Left};
use limits::{Chance, Choice, Refusal};
use pins::Pins;
pub(crate) use slots::Snapshot;
use slots::{Cursor, SlotState};
use tallies::Tallies;
pub(crate) use tallies::Tally;
pub(crate) use view::{SlotView, Standing};

/// The order of events inside this process. Unlike the clock it never stands still or goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Tick(u64);

/// A slot given to one attempt. It is handed back with the report on that attempt.
#[derive(Clone, Debug)]
pub(crate) struct Pick {
    /// The slot to try.
    pub slot: Slot,
    /// What has to be lowered in the request for this slot's model.
    pub bounds: Bounds,
    began: Tick,
    /// Whether the walk passed over cooling slots alone, so that a success may move the cursors.
    direct: bool,
}

/// What an exhaustion did, for the log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Exhausted {
    /// When the slot's cooldown ends.
    pub until: Timestamp,
    /// How many exhaustion answers the slot has had, ever.
    pub failures: u64,
    /// The key that looks like another key of the same account, when this shows it for the first
    /// time.
    pub twin: Option<KeyIndex>,
}

/// What a success did, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamped {
    /// Whether there is something to write.
    pub changed: bool,
    /// Whether the slot's cooldown had ended before: this pair may now be billed.
    pub revived: bool,
}

/// The pool's state and the rules by which it changes.
#[derive(Debug)]
pub(crate) struct Scheduler {
    pool: Arc<Pool>,
    cooldown: Duration,
    /// Every slot of the pool, and every other one of our keys that was ever exhausted.
    slots: HashMap<Slot, SlotState>,
    key_cursor: Cursor,
    model_cursors: Vec<Cursor>,
    benches: Benches,
    /// What models cannot take.
    book: Book,
    /// Keys that look like one account, each pair once.
    twins: Vec<(KeyIndex, KeyIndex)>,
    /// Which key made which identifier.
    pins: Pins,
    tallies: Tallies,
    disabled: Disabled,
    guard: Guard,
    /// What the guard has left, and for what it was lifted.
    marks: Marks,
    /// What the last answer of a slot meant, for the status page.
    last_verdicts: HashMap<Slot, Verdict>,
    /// The file as it was read: strangers' records and fields are written back from here.
    base: Arc<StateFile>,
    tick: Tick,
    revision: u64,
    /// The revision of the last change that is more than a stamp of time or a tally.
    lasting: u64,
    /// The revision of the last exhaustion or identifier; 0 = there was none.
    cooled: u64,
}

impl Scheduler {
    /// Continues from a state file. Slots it does not know start without a cooldown.
    #[must_use]
    pub(crate) fn new(
        pool: Arc<Pool>,
        cooldown: Duration,
        mut file: StateFile,
        now: Timestamp,
    ) -> Self {
        file.name_by_content(|hash| pool.key_with_hash(hash).is_some());
        let pins = Pins::take(&mut file);
        let tallies = Tallies::take(&mut file, &pool);
        let disabled = Disabled::take(&mut file, &pool);
        let marks = Marks::take(&mut file, &pool);
        let fresh = |slot| (slot, SlotState { updated_at: now, ..SlotState::default() });
        let mut slots: HashMap<Slot, SlotState> = pool.slots().map(fresh).collect();
        for record in file.model_state.values() {
            if let Some(key) = pool.key_with_hash(&record.key_hash) {
                let slot = Slot { key, model: record.model_id.as_str().into() };
                slots.insert(slot, SlotState::of(record));
            }
        }
        let key_cursor = Cursor::read(&file, state::KEY_CURSOR, pool.key_count(), now);
        let model_cursors = pool
            .keys()
            .map(|key| state::model_cursor_name(pool.key_hash(key)))
            .map(|name| Cursor::read(&file, &name, pool.model_count(), now))
            .collect();
        Self {
            pool,
            cooldown,
            slots,
            key_cursor,
            model_cursors,
            benches: Benches::default(),
            book: Book::default(),
            twins: Vec::new(),
            pins,
            tallies,
            disabled,
            guard: Guard::default(),
            marks,
            last_verdicts: HashMap::new(),
            base: Arc::new(file),
            tick: Tick::default(),
            revision: 1,
            lasting: 1,
            cooled: 0,
        }
    }

    /// The slot with which to go on: the current key first, inside it the current model first,
    /// and only what is available. Slots whose model takes the request as it is come before those
    /// for which it has to be lowered, then come those that are benched, and last those whose
    /// model is known to refuse it. For a request with a picture this is the order among the models
    /// that see, then among those that have served one, then among the rest. Among equals, where one
    /// was denied to the request, others' keys come first. Nothing that was tried is given again.
    pub(crate) fn next_slot(&mut self, ask: &Ask<'_>, moment: Moment) -> Next {
        if let Some(slot) = self.preferred(ask, moment) {
            let (bounds, began) = (Bounds::default(), self.advance());
            return Next::Slot(Pick { slot, bounds, began, direct: false });
        }
        let (mut first, mut refusal, mut passed_disabled) = (None, None::<Refusal>, false);
        let mut best: Option<Choice> = None;
        for slot in self.walk(ask.wanted, ask.key) {
            if !self.is_available(&slot, moment.calendar) {
                passed_disabled |= first.is_none() && self.is_disabled(&slot);
                continue;
            }
            first.get_or_insert_with(|| slot.clone());
            match self.chance(slot, ask, moment.monotonic) {
                Chance::No => {}
                Chance::Never(known) => refusal = Some(known.older(refusal)),
                Chance::Yes(choice) => {
                    if best.as_ref().is_none_or(|best| choice.order < best.order) {
                        best = Some(choice);
                    }
                }
            }
            if best.as_ref().is_some_and(|best| best.order.is_best()) {
                break;
            }
        }
        match (best, refusal) {
            (Some(Choice { slot, bounds, .. }), _) => {
                let is_free = ask.wanted == Wanted::Pool && ask.key.is_none();
                let direct = is_free && !passed_disabled && first.as_ref() == Some(&slot);
                Next::Slot(Pick { slot, bounds, began: self.advance(), direct })
            }
            (None, Some(refusal)) if !ask.has_answer => {
                match self.last_resort(&refusal, ask, moment.monotonic) {
                    Some((slot, bounds)) => {
                        let began = self.advance();
                        Next::Slot(Pick { slot, bounds, began, direct: false })
                    }
                    None => Next::NoneTakes { said: refusal.said },
                }
            }
            (None, _) if first.is_some() => Next::NoneLeft,
            (None, _) => self.none_available(ask),
        }
    }

    /// The slot's free quota is used up: it cools alone, and the cursors leave it.
    pub(crate) fn report_exhausted(
        &mut self,
        pick: &Pick,
        message: &str,
        now: Timestamp,
    ) -> Exhausted {
        let tick = self.advance();
        let until = now.plus(self.cooldown);
        let slot = self.slots.entry(pick.slot.clone()).or_default();
        slot.failure_count += 1;
        let failures = slot.failure_count;
        slot.updated_at = now;
        // What began before a reset says nothing about the quota after it.
        if pick.began >= slot.reset {
            slot.cooldown_until = until;
            slot.last_error = Some(message.into());
            slot.exhausted = tick;
            self.forget_left(&pick.slot);
        }
        self.leave_cooling(pick.slot.key, now);
        self.change();
        self.cooled = self.revision;
        Exhausted { until, failures, twin: self.find_twin(pick.slot.key, now) }
    }

    /// The slot answered with a success.
    pub(crate) fn report_success(
        &mut self,
        pick: &Pick,
        base: Protocol,
        now: Timestamp,
    ) -> Stamped {
        self.benches.lift(&pick.slot, base);
        // A model that is not the pool's has a record only if it was exhausted once.
        let Some(slot) = self.slots.get_mut(&pick.slot) else {
            return Stamped { changed: false, revived: false };
        };
        self.revision += 1;
        let revived = slot.is_revived_by_success(now);
        slot.last_used_at = Some(now);
        slot.updated_at = now;
        if pick.began < slot.exhausted {
            return Stamped { changed: true, revived: false };
        }
        let mut is_more = slot.last_error.take().is_some();
        if pick.direct
            && let Some(model) = self.pool.place_of(&pick.slot.model)
        {
            is_more |= self.model_cursors[pick.slot.key.0].move_to(model, now);
            is_more |= self.key_cursor.move_to(pick.slot.key.0, now);
        }
        if is_more {
            self.lasting = self.revision;
        }
        Stamped { changed: true, revived }
    }

    /// Benches a slot at one base URL; says for how long. Nothing of this is written to disk.
    pub(crate) fn bench_slot(
        &mut self,
        slot: &Slot,
        base: Protocol,
        rest: Rest,
        at: Instant,
    ) -> Duration {
        self.benches.bench_slot(slot, base, rest, at)
    }

    /// The account may not use this model: benches the slot, and with a second one of its key the
    /// key, which is said.
    pub(crate) fn deny_slot(&mut self, slot: &Slot, base: Protocol, at: Instant) -> bool {
        self.benches.deny_slot(slot, base, at)
    }

    /// Benches all slots of a key.
    pub(crate) fn bench_key(&mut self, key: KeyIndex, length: Duration, at: Instant) {
        self.benches.bench_key(key, length, at);
    }

    /// What an answer of a slot meant.
    pub(crate) fn note_verdict(&mut self, slot: &Slot, verdict: Verdict) {
        if self.slots.contains_key(slot) {
            self.last_verdicts.insert(slot.clone(), verdict);
        }
    }

    /// How many slots a request may use now.
    #[must_use]
    pub(crate) fn available_count(&self, now: Timestamp) -> usize {
        self.pool.slots().filter(|slot| self.is_available(slot, now)).count()
    }

    /// The pool this works on.
    #[must_use]
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Grows with every change that belongs on disk.
    #[must_use]
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// The revision of the last change that would be missed if a crash undid it: any but when a
    /// slot was used last, and what it has used.
    #[must_use]
    pub(crate) fn lasting_revision(&self) -> u64 {
        self.lasting
    }

    /// The revision that has to be on disk before a client may notice any cooldown, or have any
    /// identifier, so far.
    #[must_use]
    pub(crate) fn cooled_revision(&self) -> u64 {
        self.cooled
    }

    /// The latest end of a cooldown, for the check against a wrong clock.
    #[must_use]
    pub(crate) fn latest_end(&self) -> Timestamp {
        self.slots.values().map(|slot| slot.cooldown_until).max().unwrap_or_default()
    }

    /// A copy that is cheap to take under the lock and is made into a file outside of it.
    #[must_use]
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot {
            revision: self.revision,
            pool: Arc::clone(&self.pool),
            slots: self.slots.clone(),
            key_cursor: self.key_cursor,
            model_cursors: self.model_cursors.clone(),
            pins: self.pins.clone(),
            tallies: self.tallies.clone(),
            disabled: self.disabled.clone(),
            marks: self.marks.clone(),
            base: Arc::clone(&self.base),
        }
    }

    /// The client's own choice, on the first key on which it can be had at once.
    fn preferred(&self, ask: &Ask<'_>, moment: Moment) -> Option<Slot> {
        let place = self.pool.place_of(ask.first?)?;
        let model = &self.pool.models()[place];
        let slots = self.walk(Wanted::Model(model), ask.key);
        let slots = slots.filter(|slot| self.is_available(slot, moment.calendar));
        let chances = slots.map(|slot| self.chance(slot, ask, moment.monotonic));
        chances.into_iter().find_map(|chance| match chance {
            Chance::Yes(choice) if choice.order.is_willing() => Some(choice.slot),
            _ => None,
        })
    }

    /// The key with which the next request starts.
    #[must_use]
    pub(crate) fn current_key(&self, now: Timestamp) -> KeyIndex {
        self.current_slot(now).map_or(KeyIndex(self.key_cursor.at), |slot| slot.key)
    }

    /// The slot with which the next request starts; where none is available, the one on which the
    /// cursors stand. What rests is one too: a rest does not change where requests start.
    fn current_slot(&self, now: Timestamp) -> Option<Slot> {
        let mut walk = self.walk(Wanted::Pool, None);
        walk.find(|slot| self.is_available(slot, now))
            .or_else(|| self.walk(Wanted::Pool, None).next())
    }

    /// Every slot for a request, in the order in which it asks for them. `only`: of this key.
    fn walk<'a>(
        &'a self,
        wanted: Wanted<'a>,
        only: Option<KeyIndex>,
    ) -> impl Iterator<Item = Slot> + 'a {
        let keys = wrapping(self.key_cursor.at, self.pool.key_count()).map(KeyIndex);
        let keys = keys.filter(move |key| only.is_none_or(|only| only == *key));
        keys.flat_map(move |key| {
            let (models, own) = match wanted {
                Wanted::Pool => (self.models_of(key), None),
                Wanted::Model(model) => (wrapping(0, 0), Some(Arc::from(model))),
            };
            let pool = models.map(|place| Arc::clone(&self.pool.models()[place]));
            pool.chain(own).map(move |model| Slot { key, model })
        })
    }

    /// The places of a key's models, its current one first.
    fn models_of(&self, key: KeyIndex) -> Wrapping {
        wrapping(self.model_cursors[key.0].at, self.pool.model_count())
    }

    /// The place of the first model of a key that does not cool.
    fn next_model(&self, key: KeyIndex, now: Timestamp) -> Option<usize> {
        self.models_of(key).find(|place| {
            let model = Arc::clone(&self.pool.models()[*place]);
            !self.is_cooling(&Slot { key, model }, now)
        })
    }

    /// Moves the key's model cursor on if it stands on a slot that cools, and the key cursor if
    /// all slots of its key do. A cursor that stands well stays: the exhausted slot may have been
    /// reached past one that only could not serve this request, or is switched off for a while.
    fn leave_cooling(&mut self, key: KeyIndex, now: Timestamp) {
        if let Some(model) = self.next_model(key, now) {
            self.model_cursors[key.0].move_to(model, now);
        }
        let mut keys = wrapping(self.key_cursor.at, self.pool.key_count()).map(KeyIndex);
        if let Some(key) = keys.find(|key| self.next_model(*key, now).is_some()) {
            self.key_cursor.move_to(key.0, now);
        }
    }

    fn is_available(&self, slot: &Slot, now: Timestamp) -> bool {
        !self.is_cooling(slot, now) && !self.is_disabled(slot)
    }

    /// Whether a slot cools. A guarded pool does not try it again when that is over: the quota
    /// never comes back, so a call would be refused or billed.
    fn is_cooling(&self, slot: &Slot, now: Timestamp) -> bool {
        let is_for_good = |state: &SlotState| self.guard.is_on() && state.has_cooldown();
        self.slots.get(slot).is_some_and(|state| state.cooldown_until > now || is_for_good(state))
    }

    fn none_available(&self, ask: &Ask<'_>) -> Next {
        let slots: Vec<Slot> = self.walk(ask.wanted, ask.key).collect();
        let enabled = slots.iter().filter(|slot| !self.is_disabled(slot));
        let enabled: Vec<&Slot> = enabled.filter(|slot| self.slots.contains_key(slot)).collect();
        let ends = enabled.iter().map(|slot| self.slots[*slot].cooldown_until);
        let guarded = enabled.iter().filter(|slot| self.is_left(slot)).count();
        Next::NoneAvailable {
            until: ends.min().filter(|_| !self.guard.is_on()),
            cooling: enabled.len() - guarded,
            guarded,
            disabled: slots.len() - enabled.len(),
        }
    }

    /// Something has changed that would be missed.
    fn change(&mut self) {
        self.revision += 1;
        self.lasting = self.revision;
    }

    fn advance(&mut self) -> Tick {
        self.tick.0 += 1;
        self.tick
    }
}

/// The numbers below a length, from one of them on and around.
type Wrapping = std::iter::Chain<std::ops::Range<usize>, std::ops::Range<usize>>;

fn wrapping(start: usize, length: usize) -> Wrapping {
    (start..length).chain(0..start)
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod serving;
#[cfg(test)]
mod tests;
