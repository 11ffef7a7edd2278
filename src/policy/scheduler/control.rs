//! What a person may change: end cooldowns, and switch keys and models off and on.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{KeyIndex, Pool, RuntimeRecord, Scheduler, Slot, StateFile, Timestamp};

/// What the runtime record of something that is switched off begins with; its scope follows.
const PREFIX: &str = "disabled:";

/// Stands for every key or every model in a record's name.
const ANY: &str = "*";

/// The record's text.
const MANUAL: &str = "manual";

/// A part of the pool: `None` = every.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Scope {
    /// The key.
    pub key: Option<KeyIndex>,
    /// The model.
    pub model: Option<Arc<str>>,
}

impl Scope {
    /// Whether this is part of it.
    #[must_use]
    pub(crate) fn covers(&self, slot: &Slot) -> bool {
        self.key.is_none_or(|key| key == slot.key)
            && self.model.as_ref().is_none_or(|model| *model == slot.model)
    }

    fn of(slot: &Slot) -> Self {
        Self { key: Some(slot.key), model: Some(Arc::clone(&slot.model)) }
    }
}

/// What is switched off.
#[derive(Clone, Debug, Default)]
pub(super) struct Disabled {
    scopes: BTreeSet<Scope>,
    since: Timestamp,
}

impl Disabled {
    /// Takes what concerns configured keys out of a file.
    pub(super) fn take(file: &mut StateFile, pool: &Pool) -> Self {
        let mut disabled = Self::default();
        file.runtime_state.retain(|name, record| {
            let Some(scope) = name.strip_prefix(PREFIX).and_then(|name| named(name, pool)) else {
                return true;
            };
            disabled.scopes.insert(scope);
            disabled.since = disabled.since.max(record.updated_at);
            false
        });
        disabled
    }

    /// Puts it back.
    pub(super) fn put(&self, file: &mut StateFile, pool: &Pool) {
        for scope in &self.scopes {
            let key = scope.key.map_or(ANY, |key| pool.key_hash(key));
            let model = scope.model.as_deref().unwrap_or(ANY);
            let record = RuntimeRecord::new(MANUAL.to_owned(), self.since);
            file.runtime_state.insert(format!("{PREFIX}{key}:{model}"), record);
        }
    }

    pub(super) fn covers(&self, slot: &Slot) -> bool {
        self.scopes.iter().any(|scope| scope.covers(slot))
    }
}

impl Scheduler {
    /// Ends cooldowns, forgets their errors and models' limits, and lifts backoffs. An exhaustion of an
    /// attempt that began before is counted and does not cool again. Of slots that have reached the
    /// guard's limit it lifts the guard; with `usage` it sets the counts to 0 instead, and the guard
    /// watches on. Returns the slots that were not to be had.
    pub(crate) fn reset(&mut self, scope: &Scope, usage: bool, now: Timestamp) -> Vec<Slot> {
        let tick = self.advance();
        let mut changed = Vec::new();
        let slots: Vec<Slot> = self.slots.keys().filter(|it| scope.covers(it)).cloned().collect();
        if usage {
            self.forget_usage(scope);
        }
        for slot in slots {
            if self.is_cooling(&slot, now) {
                changed.push(slot.clone());
            }
            if let Some(state) = self.slots.get_mut(&slot) {
                state.end_cooldown(now);
                state.reset = tick;
            }
            if usage { self.rearm(&slot) } else { self.lift(&slot, now) }
        }
        self.benches.lift_all(scope);
        // A limit is a model's, whatever the key.
        if scope.model.is_some() || scope.key.is_none() {
            self.book.forget(scope.model.as_deref());
        }
        self.change();
        changed.sort();
        changed
    }

    /// Switches a part of the pool off. Returns the slots for which that is news.
    pub(crate) fn disable(&mut self, scope: Scope, now: Timestamp) -> Vec<Slot> {
        let changed =
            self.pool.slots().filter(|slot| scope.covers(slot) && !self.is_disabled(slot));
        let changed = changed.collect();
        self.disabled.scopes.insert(scope);
        self.disabled.since = now;
        self.change();
        changed
    }

    /// Switches a part of the pool on again, and nothing else. Returns the slots for which that is
    /// news.
    pub(crate) fn enable(&mut self, scope: &Scope, now: Timestamp) -> Vec<Slot> {
        let off: Vec<Slot> = self.pool.slots().filter(|slot| self.is_disabled(slot)).collect();
        let (on, still_off): (Vec<Slot>, Vec<Slot>) =
            off.into_iter().partition(|slot| scope.covers(slot));
        // A wider scope that was switched off falls apart into what remains of it.
        let touched = |other: &Scope| {
            on.iter().any(|slot| other.covers(slot)) || scope == &Scope::default() || other == scope
        };
        let (gone, kept): (BTreeSet<Scope>, BTreeSet<Scope>) =
            std::mem::take(&mut self.disabled.scopes).into_iter().partition(touched);
        self.disabled.scopes = kept;
        let rest = still_off.iter().filter(|slot| gone.iter().any(|scope| scope.covers(slot)));
        self.disabled.scopes.extend(rest.map(Scope::of));
        self.disabled.since = now;
        self.change();
        on
    }

    /// Whether a slot is switched off.
    #[must_use]
    pub(crate) fn is_disabled(&self, slot: &Slot) -> bool {
        self.disabled.covers(slot)
    }
}

/// The scope of `<key hash or *>:<model or *>`, if its key is configured.
fn named(name: &str, pool: &Pool) -> Option<Scope> {
    let (hash, model) = name.split_once(':')?;
    let key = match hash {
        ANY => None,
        hash => Some(pool.key_with_hash(hash)?),
    };
    Some(Scope { key, model: (model != ANY).then(|| model.into()) })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::Moment;
    use crate::policy::route::Protocol;
    use crate::policy::scheduler::{Ask, Next, Pick, Tried, Wanted};

    const NOW: Timestamp = Timestamp(1_700_000_000_000);

    fn scheduler_from(file: StateFile) -> Scheduler {
        let keys = vec!["k1".into(), "k2".into()];
        let pool = Arc::new(Pool::new(keys, vec!["m1".into(), "m2".into()]));
        Scheduler::new(pool, Duration::from_secs(3_600), file, NOW)
    }

    fn scheduler() -> Scheduler {
        scheduler_from(StateFile::default())
    }

    fn take(scheduler: &mut Scheduler, wanted: Wanted<'_>) -> Option<Pick> {
        let (tried, base) = (&Tried::default(), Protocol::OpenAi);
        let (needs, path) = (None, "/chat/completions");
        let ask =
            Ask { tried, wanted, key: None, first: None, base, path, needs, has_answer: false };
        match scheduler.next_slot(&ask, moment()) {
            Next::Slot(pick) => Some(pick),
            _ => None,
        }
    }

    fn moment() -> Moment {
        Moment { calendar: NOW, monotonic: crate::clock::instant() }
    }

    fn next(scheduler: &mut Scheduler) -> Option<String> {
        let pick = take(scheduler, Wanted::Pool)?;
        Some(format!("{}/{}", pick.slot.key.0 + 1, pick.slot.model))
    }

    fn scope(key: Option<usize>, model: Option<&str>) -> Scope {
        Scope { key: key.map(|key| KeyIndex(key - 1)), model: model.map(Into::into) }
    }

    fn names(slots: &[Slot]) -> Vec<String> {
        slots.iter().map(|slot| format!("{}/{}", slot.key.0 + 1, slot.model)).collect()
    }

    #[test]
    fn a_reset_slot_is_used_again_at_once_and_keeps_its_count() {
        let mut scheduler = scheduler();
        let pick = take(&mut scheduler, Wanted::Pool).unwrap();
        scheduler.report_exhausted(&pick, "used up", NOW);
        assert_eq!(names(&scheduler.reset(&scope(Some(1), Some("m1")), false, NOW)), ["1/m1"]);
        let view = &scheduler.view(moment())[0];
        assert!(view.is_available() && view.last_error.is_none() && view.failure_count == 1);
        assert!(scheduler.reset(&Scope::default(), false, NOW).is_empty(), "nothing cools");
    }

    #[test]
    fn an_exhaustion_that_began_before_a_reset_is_counted_and_does_not_cool() {
        let mut scheduler = scheduler();
        let late = take(&mut scheduler, Wanted::Pool).unwrap();
        scheduler.reset(&Scope::default(), false, NOW);
        scheduler.report_exhausted(&late, "used up", NOW);
        let view = &scheduler.view(moment())[0];
        assert!(view.is_available() && view.failure_count == 1);
        let fresh = take(&mut scheduler, Wanted::Pool).unwrap();
        scheduler.report_exhausted(&fresh, "used up", NOW);
        assert!(!scheduler.view(moment())[0].is_available());
    }

    #[test]
    fn what_is_switched_off_is_not_used_also_after_a_restart() {
        let mut before = scheduler();
        assert_eq!(names(&before.disable(scope(Some(1), None), NOW)), ["1/m1", "1/m2"]);
        assert!(before.disable(scope(Some(1), Some("m1")), NOW).is_empty());
        let mut after = scheduler_from(before.snapshot().to_file());
        for scheduler in [&mut before, &mut after] {
            assert_eq!(next(scheduler).as_deref(), Some("2/m1"));
            let foreign = take(scheduler, Wanted::Model("text-embedding-v4")).unwrap();
            assert_eq!(foreign.slot.key, KeyIndex(1), "its other models are off too");
        }
    }

    #[test]
    fn a_model_is_switched_off_on_every_key() {
        let mut scheduler = scheduler();
        scheduler.disable(scope(None, Some("m1")), NOW);
        assert_eq!(next(&mut scheduler).as_deref(), Some("1/m2"));
        scheduler.disable(scope(None, Some("m2")), NOW);
        assert_eq!(next(&mut scheduler), None);
    }

    #[test]
    fn switching_on_touches_nothing_else() {
        let mut scheduler = scheduler();
        scheduler.disable(scope(Some(1), None), NOW);
        assert_eq!(names(&scheduler.enable(&scope(Some(1), Some("m2")), NOW)), ["1/m2"]);
        assert_eq!(next(&mut scheduler).as_deref(), Some("1/m2"));
        let off: Vec<Slot> =
            scheduler.pool.slots().filter(|slot| scheduler.is_disabled(slot)).collect();
        assert_eq!(names(&off), ["1/m1"]);
        assert_eq!(names(&scheduler.enable(&Scope::default(), NOW)), ["1/m1"]);
        let file = scheduler.snapshot().to_file();
        assert!(!file.runtime_state.keys().any(|name| name.starts_with(PREFIX)));
    }
}
