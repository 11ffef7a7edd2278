//! Benches: short rests in memory, for what is nobody's quota.
//!
//! A benched slot is tried last and never refused. Time is monotonic, and nothing of this is
//! ever written to disk.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::pool::{KeyIndex, Slot};
use super::route::Protocol;
use super::scheduler::Scope;

/// The first rest of a slot whose upstream is in trouble, and the longest.
const FIRST_REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(60);

/// The backoff from what no minute of waiting cures: a key that is not accepted, a model that is
/// not to be had.
pub(crate) const LONG_BACKOFF: Duration = Duration::from_secs(600);

/// The backoff from a plan's used up hour, week or month: the shortest of these.
pub(crate) const PLAN_BACKOFF: Duration = Duration::from_secs(3_600);

/// With so many benches those that are over are forgotten: clients can make up models.
const MOST: usize = 1000;

/// How long something rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// As long as this.
    For(Duration),
    /// A second, and twice as long at each repetition without a success in between, up to a
    /// minute.
    Growing,
}

#[derive(Clone, Copy, Debug)]
struct Bench {
    until: Instant,
    /// The last rest that grew.
    grown: Duration,
    /// Until when it is known that its account may not use this model.
    denied_until: Option<Instant>,
}

/// Who rests. A slot rests at one base URL only: trouble on one protocol says little about
/// another.
#[derive(Clone, Debug, Default)]
pub(super) struct Benches {
    slots: HashMap<(Slot, Protocol), Bench>,
    keys: HashMap<KeyIndex, Instant>,
}

impl Benches {
    /// Benches a slot; says for how long.
    pub(super) fn bench_slot(
        &mut self,
        slot: &Slot,
        base: Protocol,
        rest: Rest,
        at: Instant,
    ) -> Duration {
        if self.slots.len() >= MOST {
            self.slots.retain(|_, bench| bench.until > at);
        }
        let fresh = Bench { until: at, grown: Duration::ZERO, denied_until: None };
        let bench = self.slots.entry((slot.clone(), base)).or_insert(fresh);
        let length = match rest {
            Rest::For(length) => length,
            Rest::Growing => {
                // Requests that failed together are one repetition.
                if bench.until <= at {
                    bench.grown = (bench.grown * 2).clamp(FIRST_REST, LONGEST_REST);
                }
                bench.grown.max(FIRST_REST)
            }
        };
        bench.until = bench.until.max(at + length);
        length
    }

    /// The account may not use this model: the slot backs off, and with a second model that it may
    /// not use the key does, which is said.
    pub(super) fn deny_slot(&mut self, slot: &Slot, base: Protocol, at: Instant) -> bool {
        let is_second = self.slots.iter().any(|((other, _), bench)| {
            other.key == slot.key
                && other.model != slot.model
                && bench.denied_until.is_some_and(|until| until > at)
        });
        self.bench_slot(slot, base, Rest::For(LONG_BACKOFF), at);
        if let Some(bench) = self.slots.get_mut(&(slot.clone(), base)) {
            bench.denied_until = Some(at + LONG_BACKOFF);
        }
        if is_second {
            self.bench_key(slot.key, LONG_BACKOFF, at);
        }
        is_second
    }

    /// Benches all slots of a key.
    pub(super) fn bench_key(&mut self, key: KeyIndex, length: Duration, at: Instant) {
        let until = self.keys.entry(key).or_insert(at);
        *until = (*until).max(at + length);
    }

    /// A success lifts what rests on its way.
    pub(super) fn lift(&mut self, slot: &Slot, base: Protocol) {
        if !self.slots.is_empty() {
            self.slots.remove(&(slot.clone(), base));
        }
        self.keys.remove(&slot.key);
    }

    /// Lifts every rest in a part of the pool.
    pub(super) fn lift_all(&mut self, scope: &Scope) {
        self.slots.retain(|(slot, _), _| !scope.covers(slot));
        if scope.model.is_none() {
            self.keys.retain(|key, _| scope.key.is_some_and(|only| only != *key));
        }
    }

    /// How long a slot still rests, at whatever base URL or with its key.
    pub(super) fn rest_of(&self, slot: &Slot, at: Instant) -> Option<Duration> {
        let own = self.slots.iter().filter(|((other, _), _)| other == slot);
        let own = own.map(|(_, bench)| bench.until);
        let until = own.chain(self.keys.get(&slot.key).copied()).max()?;
        Some(until.saturating_duration_since(at)).filter(|left| !left.is_zero())
    }

    /// Whether a slot rests at this base URL, by itself or with its key.
    pub(super) fn is_benched(&self, slot: &Slot, base: Protocol, at: Instant) -> bool {
        self.keys.get(&slot.key).is_some_and(|until| *until > at)
            || !self.slots.is_empty()
                && self.slots.get(&(slot.clone(), base)).is_some_and(|bench| bench.until > at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Protocol = Protocol::OpenAi;

    fn slot(key: usize, model: &str) -> Slot {
        Slot { key: KeyIndex(key), model: model.into() }
    }

    fn start() -> Instant {
        crate::clock::instant()
    }

    #[test]
    fn a_rest_ends_by_itself() {
        let (mut benches, at) = (Benches::default(), start());
        let ten = Duration::from_secs(10);
        benches.bench_slot(&slot(0, "m"), BASE, Rest::For(ten), at);
        assert!(benches.is_benched(&slot(0, "m"), BASE, at));
        assert!(!benches.is_benched(&slot(0, "m"), BASE, at + ten));
    }

    #[test]
    fn a_slot_rests_alone_and_at_one_base_url_only() {
        let (mut benches, at) = (Benches::default(), start());
        benches.bench_slot(&slot(0, "m"), BASE, Rest::Growing, at);
        assert!(!benches.is_benched(&slot(0, "n"), BASE, at));
        assert!(!benches.is_benched(&slot(1, "m"), BASE, at));
        assert!(!benches.is_benched(&slot(0, "m"), Protocol::Anthropic, at));
    }

    #[test]
    fn a_key_rests_with_all_its_slots_at_every_base_url() {
        let (mut benches, at) = (Benches::default(), start());
        benches.bench_key(KeyIndex(0), Duration::from_secs(600), at);
        assert!(benches.is_benched(&slot(0, "m"), BASE, at));
        assert!(benches.is_benched(&slot(0, "n"), Protocol::Anthropic, at));
        assert!(!benches.is_benched(&slot(1, "m"), BASE, at));
    }

    #[test]
    fn a_second_model_that_an_account_may_not_use_benches_its_key() {
        let (mut benches, at) = (Benches::default(), start());
        assert!(!benches.deny_slot(&slot(0, "m"), BASE, at));
        // The same again, by another request or at another base URL, is no second one.
        assert!(!benches.deny_slot(&slot(0, "m"), BASE, at));
        assert!(!benches.deny_slot(&slot(0, "m"), Protocol::Anthropic, at));
        assert!(!benches.deny_slot(&slot(1, "n"), BASE, at));
        assert!(!benches.is_benched(&slot(0, "o"), BASE, at));
        assert!(benches.deny_slot(&slot(0, "n"), Protocol::Anthropic, at));
        assert!(benches.is_benched(&slot(0, "o"), BASE, at));
        assert!(!benches.is_benched(&slot(0, "o"), BASE, at + LONG_BACKOFF));
        assert!(!benches.deny_slot(&slot(0, "o"), BASE, at + LONG_BACKOFF));
    }

    #[test]
    fn trouble_of_another_kind_is_no_denial() {
        let (mut benches, at) = (Benches::default(), start());
        benches.bench_slot(&slot(0, "m"), BASE, Rest::For(LONG_BACKOFF), at);
        assert!(!benches.deny_slot(&slot(0, "n"), BASE, at));
    }

    #[test]
    fn a_growing_rest_doubles_up_to_a_minute_and_starts_again_after_a_success() {
        let (mut benches, mut at) = (Benches::default(), start());
        let mut seconds = Vec::new();
        for _ in 0..8 {
            let rest = benches.bench_slot(&slot(0, "m"), BASE, Rest::Growing, at);
            seconds.push(rest.as_secs());
            at += rest;
        }
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60]);
        benches.lift(&slot(0, "m"), BASE);
        let rest = benches.bench_slot(&slot(0, "m"), BASE, Rest::Growing, at);
        assert_eq!(rest.as_secs(), 1);
    }

    #[test]
    fn requests_that_fail_together_are_one_repetition() {
        let (mut benches, at) = (Benches::default(), start());
        for _ in 0..50 {
            let rest = benches.bench_slot(&slot(0, "m"), BASE, Rest::Growing, at);
            assert_eq!(rest, FIRST_REST);
        }
    }

    #[test]
    fn a_success_lifts_the_slots_rest_and_its_keys() {
        let (mut benches, at) = (Benches::default(), start());
        benches.bench_slot(&slot(0, "m"), BASE, Rest::For(FIRST_REST), at);
        benches.bench_key(KeyIndex(0), FIRST_REST, at);
        benches.lift(&slot(0, "m"), BASE);
        assert!(!benches.is_benched(&slot(0, "m"), BASE, at));
    }
}
