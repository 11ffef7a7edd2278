//! What holds after any sequence of requests, verdicts and clock steps, against a second, slower
//! account of the rules of design section 4.

use std::collections::HashMap;

use proptest::prelude::*;
use proptest::test_runner::Config;

use super::*;
use crate::clock;
use crate::policy::bench::LONG_BACKOFF;
use crate::policy::limits::{Limit, Needs};

const START: Timestamp = Timestamp(1_700_000_000_000);
const COOLDOWN: Duration = Duration::from_secs(60);

/// A model that is not the pool's, named by a client.
const FOREIGN: &str = "other";

const PATH: &str = "/chat/completions";

/// How many requests are under way at the same time.
const REQUESTS: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Report {
    Exhausted,
    Success,
    BenchSlot { seconds: u64 },
    BenchSlotLonger,
    BenchKey { seconds: u64 },
    Denied,
    StreamsOnly,
    Nothing,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A fresh request takes the place of this one.
    Begin { request: usize, foreign: bool, streamed: bool, anthropic: bool },
    /// It asks for its next slot.
    Next { request: usize },
    /// It reports on the slot that it got last, at once or much later.
    Report { request: usize, report: Report },
    /// Both clocks go on.
    Wait { millis: u64 },
    /// Somebody sets the calendar.
    SetCalendar { by: i64 },
    /// The process ends and another one reads its file.
    Restart,
}

fn report() -> impl Strategy<Value = Report> {
    prop_oneof![
        4 => Just(Report::Exhausted),
        3 => Just(Report::Success),
        1 => (1..90_u64).prop_map(|seconds| Report::BenchSlot { seconds }),
        1 => Just(Report::BenchSlotLonger),
        1 => (1..90_u64).prop_map(|seconds| Report::BenchKey { seconds }),
        2 => Just(Report::Denied),
        1 => Just(Report::StreamsOnly),
        1 => Just(Report::Nothing),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let request = || 0..REQUESTS;
    prop_oneof![
        3 => (request(), prop::bool::weighted(0.2), any::<bool>(), any::<bool>()).prop_map(
            |(request, foreign, streamed, anthropic)| Step::Begin {
                request, foreign, streamed, anthropic
            }
        ),
        8 => request().prop_map(|request| Step::Next { request }),
        8 => (request(), report()).prop_map(|(request, report)| Step::Report { request, report }),
        2 => (0..70_000_u64).prop_map(|millis| Step::Wait { millis }),
        1 => (600_000..700_000_u64).prop_map(|millis| Step::Wait { millis }),
        1 => (-90_000..90_000_i64).prop_map(|by| Step::SetCalendar { by }),
        1 => Just(Step::Restart),
    ]
}

/// What is known of a slot by the second account.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    until: Timestamp,
    failures: u64,
    /// The count of events at its last exhaustion.
    exhausted: u64,
}

#[derive(Debug, Default)]
struct Request {
    tried: Vec<Slot>,
    tried_keys: Vec<KeyIndex>,
    denied: Vec<Slot>,
    foreign: bool,
    streamed: bool,
    anthropic: bool,
    /// The last slot with what the second account noted when it was given.
    given: Option<(Pick, u64, bool)>,
}

impl Request {
    fn base(&self) -> Protocol {
        if self.anthropic { Protocol::Anthropic } else { Protocol::OpenAi }
    }

    fn needs(&self) -> Needs {
        Needs { is_streamed: self.streamed, ..Needs::default() }
    }

    fn has_tried(&self, slot: &Slot) -> bool {
        self.tried.contains(slot) || self.tried_keys.contains(&slot.key)
    }
}

struct World {
    scheduler: Scheduler,
    pool: Arc<Pool>,
    now: Timestamp,
    at: Instant,
    events: u64,
    known: HashMap<Slot, Known>,
    benched: HashMap<(Slot, Protocol), Instant>,
    benched_keys: HashMap<KeyIndex, Instant>,
    denied: HashMap<(Slot, Protocol), Instant>,
    /// Models that only stream, as last heard.
    streams_only: HashMap<Arc<str>, Instant>,
    requests: [Request; REQUESTS],
}

type Cursors = (usize, Vec<usize>);

impl World {
    fn new(keys: usize, models: usize) -> Self {
        let keys = (1..=keys).map(|n| format!("k{n}")).collect();
        let models = (1..=models).map(|n| format!("m{n}")).collect();
        let pool = Arc::new(Pool::new(keys, models));
        Self {
            scheduler: Scheduler::new(Arc::clone(&pool), COOLDOWN, StateFile::default(), START),
            pool,
            now: START,
            at: clock::instant(),
            events: 0,
            known: HashMap::new(),
            benched: HashMap::new(),
            benched_keys: HashMap::new(),
            denied: HashMap::new(),
            streams_only: HashMap::new(),
            requests: Default::default(),
        }
    }

    fn moment(&self) -> Moment {
        Moment { calendar: self.now, monotonic: self.at }
    }

    fn cursors(&self) -> Cursors {
        let models = self.scheduler.model_cursors.iter().map(|cursor| cursor.at).collect();
        (self.scheduler.key_cursor.at, models)
    }

    fn is_available(&self, slot: &Slot) -> bool {
        self.known.get(slot).is_none_or(|known| known.until <= self.now)
    }

    /// Every slot in the order of the cursors: rules 1 and 2.
    fn order(&self, foreign: bool) -> Vec<Slot> {
        let (key_cursor, model_cursors) = self.cursors();
        let (keys, models) = (self.pool.key_count(), self.pool.model_count());
        let mut order = Vec::new();
        for key in (0..keys).map(|n| (key_cursor + n) % keys) {
            if foreign {
                order.push(Slot { key: KeyIndex(key), model: FOREIGN.into() });
                continue;
            }
            for model in (0..models).map(|n| (model_cursors[key] + n) % models) {
                let model = Arc::clone(&self.pool.models()[model]);
                order.push(Slot { key: KeyIndex(key), model });
            }
        }
        order
    }

    /// 0 = willingly, 1 = benched, 2 = only streams: the one that was heard longest ago first.
    fn reluctance(&self, slot: &Slot, request: &Request) -> (u8, Option<Instant>) {
        let rests = |until: Option<&Instant>| until.is_some_and(|until| *until > self.at);
        match self.streams_only.get(&slot.model) {
            Some(heard) if !request.streamed => (2, Some(*heard)),
            _ => {
                let own = self.benched.get(&(slot.clone(), request.base()));
                (u8::from(rests(own) || rests(self.benched_keys.get(&slot.key))), None)
            }
        }
    }

    /// 0 = nothing speaks against it, 1 = two keys do not have its model, 2 = its key denied
    /// another, 3 = both.
    fn doubt(slot: &Slot, request: &Request) -> u8 {
        let of = |fits: &dyn Fn(&Slot) -> bool| request.denied.iter().filter(|it| fits(it)).count();
        let of_key = of(&|denied| denied.key == slot.key);
        let of_model = of(&|denied| denied.model == slot.model);
        2 * u8::from(of_key > 0) + u8::from(of_model > 1)
    }

    fn ask(&mut self, request: &Request) -> Next {
        let mut tried = Tried::default();
        request.tried.iter().cloned().for_each(|slot| tried.add(slot, Bounds::default()));
        request.tried_keys.iter().for_each(|key| tried.add_key(*key));
        request.denied.iter().cloned().for_each(|slot| tried.deny(slot));
        let ask = Ask {
            tried: &tried,
            wanted: if request.foreign { Wanted::Model(FOREIGN) } else { Wanted::Pool },
            key: None,
            first: None,
            base: request.base(),
            path: PATH,
            needs: Some(&request.needs()),
            has_answer: false,
        };
        self.scheduler.next_slot(&ask, self.moment())
    }

    fn next(&mut self, index: usize) {
        let mut request = std::mem::take(&mut self.requests[index]);
        let order = self.order(request.foreign);
        let available: Vec<_> = order.iter().filter(|slot| self.is_available(slot)).collect();
        let left = available.iter().filter(|slot| !request.has_tried(slot));
        // The first of those that are given least unwillingly.
        let rank = |slot: &&&Slot| {
            let (reluctance, heard) = self.reluctance(slot, &request);
            (reluctance, Self::doubt(slot, &request), heard)
        };
        let expected = left.min_by_key(rank).copied();
        match self.ask(&request) {
            Next::Slot(pick) => {
                assert!(self.is_available(&pick.slot), "{:?} is not available", pick.slot);
                assert!(!request.has_tried(&pick.slot), "{:?} is given twice", pick.slot);
                assert_eq!(Some(&pick.slot), expected);
                // Rule 4: over cooling slots alone.
                let direct = !request.foreign && available[0] == &pick.slot;
                self.events += 1;
                request.tried.push(pick.slot.clone());
                request.given = Some((pick, self.events, direct));
            }
            Next::NoneLeft => {
                assert!(expected.is_none() && !available.is_empty(), "{expected:?} is left");
                request.given = None;
            }
            Next::NoneTakes { said } => panic!("only pictures are never asked for: {said}"),
            Next::NoneAvailable { until, cooling, guarded, disabled } => {
                assert!(available.is_empty(), "{available:?}");
                let ends = order.iter().map(|slot| self.known[slot].until);
                assert_eq!((until, cooling, disabled), (ends.min(), order.len(), 0));
                assert_eq!(guarded, 0);
                assert!(until > Some(self.now));
                request.given = None;
            }
        }
        self.requests[index] = request;
    }

    /// Where rule 3 puts the cursors once a slot of this key cools.
    fn after_exhaustion(&self, (key_cursor, mut models): Cursors, key: KeyIndex) -> Cursors {
        let first = |key: usize, from: usize| {
            let count = self.pool.model_count();
            (0..count).map(|n| (from + n) % count).find(|model| {
                let model = Arc::clone(&self.pool.models()[*model]);
                self.is_available(&Slot { key: KeyIndex(key), model })
            })
        };
        if let Some(model) = first(key.0, models[key.0]) {
            models[key.0] = model;
        }
        let count = self.pool.key_count();
        let mut keys = (0..count).map(|n| (key_cursor + n) % count);
        let next = keys.find(|key| first(*key, 0).is_some());
        (next.unwrap_or(key_cursor), models)
    }

    fn report(&mut self, index: usize, report: Report) {
        let Some((pick, given, direct)) = self.requests[index].given.take() else { return };
        let base = self.requests[index].base();
        let before = (self.cursors(), self.scheduler.revision(), self.file());
        let (slot, now, at) = (pick.slot.clone(), self.now, self.at);
        self.events += 1;
        match report {
            Report::Exhausted => {
                let outcome = self.scheduler.report_exhausted(&pick, "used up", now);
                let known = self.known.entry(slot.clone()).or_default();
                let until = now.plus(COOLDOWN);
                let failures = known.failures + 1;
                *known = Known { until, failures, exhausted: self.events };
                assert_eq!((outcome.until, outcome.failures), (until, failures));
                assert_eq!(self.cursors(), self.after_exhaustion(before.0.clone(), slot.key));
            }
            Report::Success => {
                self.scheduler.report_success(&pick, base, now);
                self.scheduler.note_served(&pick, PATH, &self.requests[index].needs());
                if !self.requests[index].streamed {
                    self.streams_only.remove(&slot.model);
                }
                self.benched.remove(&(slot.clone(), base));
                self.denied.remove(&(slot.clone(), base));
                self.benched_keys.remove(&slot.key);
                let is_late = self.known.get(&slot).is_some_and(|known| given < known.exhausted);
                let mut expected = before.0.clone();
                if direct && !is_late {
                    let model = self.pool.place_of(&slot.model).unwrap();
                    expected.0 = slot.key.0;
                    expected.1[slot.key.0] = model;
                }
                assert_eq!(self.cursors(), expected, "direct={direct} late={is_late}");
            }
            Report::BenchSlot { seconds } => {
                let length = Duration::from_secs(seconds);
                self.scheduler.bench_slot(&slot, base, Rest::For(length), at);
                self.note_bench(slot, base, length);
            }
            Report::BenchSlotLonger => {
                let length = self.scheduler.bench_slot(&slot, base, Rest::Growing, at);
                assert!((1..=60).contains(&length.as_secs()), "{length:?}");
                self.note_bench(slot, base, length);
            }
            Report::BenchKey { seconds } => {
                let length = Duration::from_secs(seconds);
                self.scheduler.bench_key(slot.key, length, at);
                let until = self.benched_keys.entry(slot.key).or_insert(at);
                *until = (*until).max(at + length);
                self.requests[index].tried_keys.push(slot.key);
            }
            Report::Denied => {
                let denied = |other: &Slot| other.key == slot.key && other.model != slot.model;
                let until = at + LONG_BACKOFF;
                let is_second =
                    self.denied.iter().any(|((other, _), until)| denied(other) && *until > at);
                assert_eq!(self.scheduler.deny_slot(&slot, base, at), is_second);
                self.note_bench(slot.clone(), base, LONG_BACKOFF);
                self.denied.insert((slot.clone(), base), until);
                if is_second {
                    let known = self.benched_keys.entry(slot.key).or_insert(at);
                    *known = (*known).max(until);
                }
                self.requests[index].denied.push(slot);
            }
            Report::StreamsOnly => {
                let (limit, moment) = (Limit::StreamsOnly, self.moment());
                let is_news = self.scheduler.learn_limit(&slot, PATH, limit, "so", moment);
                // Of models that are not the pool's nothing is remembered.
                if self.pool.place_of(&slot.model).is_some() {
                    let before = self.streams_only.insert(slot.model, at);
                    assert_eq!(is_news, before.is_none());
                }
            }
            Report::Nothing => {}
        }
        if !matches!(report, Report::Exhausted | Report::Success) {
            let after = (self.cursors(), self.scheduler.revision(), self.file());
            assert!(after == before, "{report:?} left a trace in what is persisted");
        }
    }

    fn note_bench(&mut self, slot: Slot, base: Protocol, length: Duration) {
        let until = self.benched.entry((slot, base)).or_insert(self.at);
        *until = (*until).max(self.at + length);
    }

    fn file(&self) -> StateFile {
        self.scheduler.snapshot().to_file()
    }

    fn restart(&mut self) {
        let file = self.file();
        let read = StateFile::parse(&file.to_bytes()).expect("the file is readable");
        assert_eq!(read, file);
        let before = self.cursors();
        self.scheduler = Scheduler::new(Arc::clone(&self.pool), COOLDOWN, read, self.now);
        assert_eq!(self.cursors(), before);
        assert_eq!(self.file(), file, "the state does not survive its file");
        self.benched.clear();
        self.benched_keys.clear();
        self.denied.clear();
        self.streams_only.clear();
        self.requests = Default::default();
        self.events = 0;
        self.known.values_mut().for_each(|known| known.exhausted = 0);
    }

    fn take(&mut self, step: Step) {
        let before = self.cursors();
        match step {
            Step::Begin { request, foreign, streamed, anthropic } => {
                self.requests[request] =
                    Request { foreign, streamed, anthropic, ..Request::default() };
            }
            Step::Next { request } => self.next(request),
            Step::Report { request, report } => return self.report(request, report),
            Step::Wait { millis } => {
                self.now = self.now.plus(Duration::from_millis(millis));
                self.at += Duration::from_millis(millis);
            }
            Step::SetCalendar { by } => self.now = Timestamp(self.now.0.saturating_add_signed(by)),
            Step::Restart => self.restart(),
        }
        assert_eq!(self.cursors(), before, "{step:?} moved a cursor");
    }

    fn check(&mut self) {
        let (key, models) = self.cursors();
        assert!(key < self.pool.key_count(), "{key}");
        assert!(models.iter().all(|model| *model < self.pool.model_count()), "{models:?}");
        let view: HashMap<Slot, (bool, u64)> = self
            .scheduler
            .view(self.moment())
            .into_iter()
            .map(|view| (view.slot.clone(), (view.is_available(), view.failure_count)))
            .collect();
        assert_eq!(view.len(), self.pool.slot_count());
        for (slot, shown) in view {
            let failures = self.known.get(&slot).map_or(0, |known| known.failures);
            assert_eq!(shown, (self.is_available(&slot), failures), "{slot:?}");
        }
    }

    /// A request that never gives up sees every available slot, each once.
    fn check_reach(&mut self, foreign: bool, streamed: bool) {
        let mut request = Request { foreign, streamed, ..Request::default() };
        let mut reached = 0;
        while let Next::Slot(pick) = self.ask(&request) {
            assert!(!request.has_tried(&pick.slot) && self.is_available(&pick.slot));
            request.tried.push(pick.slot);
            reached += 1;
        }
        let order = self.order(foreign);
        assert_eq!(reached, order.iter().filter(|slot| self.is_available(slot)).count());
    }
}

proptest! {
    // Nothing is written beside the sources: a failure prints the shortest case it found.
    #![proptest_config(Config { cases: 400, failure_persistence: None, ..Config::default() })]

    #[test]
    fn any_sequence_of_requests_verdicts_and_clock_steps_keeps_the_rules(
        keys in 1..=3_usize,
        models in 1..=3_usize,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new(keys, models);
        for step in steps {
            world.take(step);
            world.check();
        }
        for (foreign, streamed) in [(false, false), (false, true), (true, false)] {
            world.check_reach(foreign, streamed);
        }
        world.restart();
        world.check();
    }

    #[test]
    fn a_cursor_of_any_text_is_in_range(key in ".{0,12}", model in "[0-9 +-]{0,24}") {
        let mut file = StateFile::default();
        for (name, value) in [("key_cursor", &key), ("model_cursor:k1", &model)] {
            let record = RuntimeRecord::new(value.clone(), START);
            file.runtime_state.insert(name.to_owned(), record);
        }
        let pool = Arc::new(Pool::new(vec!["k1".into(), "k2".into()], vec!["m1".into()]));
        let scheduler = Scheduler::new(pool, COOLDOWN, file, START);
        prop_assert!(scheduler.key_cursor.at < 2);
        prop_assert_eq!(scheduler.model_cursors[0].at, 0);
    }
}
