//! With the guard on, no slot gets a request once its counted and estimated tokens have reached
//! the limit, whatever happens, unless a person has lifted it.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::Config;

use super::*;
use crate::clock::{self, Moment};
use crate::policy::charge::Charge;
use crate::policy::guard::Quotas;
use crate::policy::pool::KeyIndex;
use crate::policy::route::Protocol;
use crate::policy::scheduler::{Ask, Next, Pick, Scope, Tried, Wanted};
use crate::policy::usage::Usage;

const START: Timestamp = Timestamp(1_700_000_000_000);
const KEYS: usize = 2;
const MODELS: [&str; 3] = ["m1", "m2", "m3"];
/// Of `m1` and `m2`; that of `m3` is unknown.
const QUOTA: u64 = 100;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A request begins.
    Begin {
        anthropic: bool,
        own_model: Option<usize>,
    },
    /// The oldest of those that are under way ends, and used so much.
    End {
        said: u64,
        estimated: u64,
        pictures: bool,
    },
    /// It is refused instead.
    Refuse,
    /// A person resets one slot, or all.
    Reset {
        slot: Option<(usize, usize)>,
        usage: bool,
    },
    Wait {
        millis: u64,
    },
    Restart {
        percent: Option<u8>,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let slot = || (0..KEYS, 0..MODELS.len());
    prop_oneof![
        8 => (any::<bool>(), prop::option::weighted(0.2, 0..MODELS.len()))
            .prop_map(|(anthropic, own_model)| Step::Begin { anthropic, own_model }),
        8 => (0..40_u64, prop_oneof![Just(0), 0..40_u64], prop::bool::weighted(0.02))
            .prop_map(|(said, estimated, pictures)| Step::End { said, estimated, pictures }),
        1 => Just(Step::Refuse),
        1 => (prop::option::of(slot()), any::<bool>())
            .prop_map(|(slot, usage)| Step::Reset { slot, usage }),
        1 => (0..70_000_u64).prop_map(|millis| Step::Wait { millis }),
        1 => prop::option::weighted(0.9, 1..=100_u8).prop_map(|percent| Step::Restart { percent }),
    ]
}

/// What is known of a slot by a second account.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    tokens: u64,
    pictures: bool,
    lifted: bool,
}

struct World {
    scheduler: Scheduler,
    pool: Arc<Pool>,
    percent: Option<u8>,
    now: Timestamp,
    known: HashMap<Slot, Known>,
    under_way: Vec<Pick>,
}

impl World {
    fn new(percent: u8) -> Self {
        let keys = (1..=KEYS).map(|n| format!("k{n}")).collect();
        let pool = Arc::new(Pool::new(keys, MODELS.map(str::to_owned).to_vec()));
        let scheduler = started(&pool, StateFile::default(), Some(percent), START);
        let (known, under_way) = (HashMap::new(), Vec::new());
        Self { scheduler, pool, percent: Some(percent), now: START, known, under_way }
    }

    /// Whether the guard must keep requests away from a slot.
    fn is_forbidden(&self, slot: &Slot) -> bool {
        let known = self.known.get(slot).copied().unwrap_or_default();
        let share = self.percent.map(|percent| QUOTA * u64::from(percent));
        let is_over = share.is_some_and(|share| known.tokens * 100 >= share);
        is_over && &*slot.model != "m3" && !known.pictures && !known.lifted
    }

    fn begin(&mut self, anthropic: bool, own_model: Option<usize>) {
        let tried = &Tried::default();
        let base = if anthropic { Protocol::Anthropic } else { Protocol::OpenAi };
        let wanted = own_model.map_or(Wanted::Pool, |model| Wanted::Model(MODELS[model]));
        let ask = Ask::plain(tried, wanted, base);
        let moment = Moment { calendar: self.now, monotonic: clock::instant() };
        if let Next::Slot(pick) = self.scheduler.next_slot(&ask, moment) {
            assert!(!self.is_forbidden(&pick.slot), "{:?} {:?}", pick.slot, self.known);
            self.under_way.push(pick);
        }
    }

    fn end(&mut self, said: u64, estimated: u64, pictures: bool) {
        let Some(pick) = self.take() else { return };
        let usage = Usage { output: said, in_other_units: pictures, ..Usage::default() };
        let charge = Charge { said: Some(usage), estimated };
        self.scheduler.report_success(&pick, Protocol::OpenAi, self.now);
        self.scheduler.count(&pick.slot, 1, &charge, self.now);
        let known = self.known.entry(pick.slot).or_default();
        known.tokens += said + estimated;
        known.pictures |= pictures;
    }

    fn take(&mut self) -> Option<Pick> {
        (!self.under_way.is_empty()).then(|| self.under_way.remove(0))
    }

    fn reset(&mut self, slot: Option<(usize, usize)>, usage: bool) {
        let scope = slot.map_or_else(Scope::default, |(key, model)| Scope {
            key: Some(KeyIndex(key)),
            model: Some(MODELS[model].into()),
        });
        for slot in self.pool.slots().filter(|slot| scope.covers(slot)) {
            let lifted = !usage && self.is_forbidden(&slot);
            let known = self.known.entry(slot).or_default();
            if usage {
                *known = Known::default();
            }
            known.lifted |= lifted;
        }
        self.scheduler.reset(&scope, usage, self.now);
    }

    fn restart(&mut self, percent: Option<u8>) {
        let written = self.scheduler.snapshot().to_file().to_bytes();
        let file = StateFile::parse(&written).expect("the file is readable");
        self.percent = percent;
        self.scheduler = started(&self.pool, file, percent, self.now);
        self.under_way.clear();
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Begin { anthropic, own_model } => self.begin(anthropic, own_model),
            Step::End { said, estimated, pictures } => self.end(said, estimated, pictures),
            Step::Refuse => {
                if let Some(pick) = self.take() {
                    self.scheduler.report_exhausted(&pick, "used up", self.now);
                }
            }
            Step::Reset { slot, usage } => self.reset(slot, usage),
            Step::Wait { millis } => self.now = self.now.plus(Duration::from_millis(millis)),
            Step::Restart { percent } => self.restart(percent),
        }
    }

    fn check(&self) {
        for slot in self.pool.slots() {
            let known = self.known.get(&slot).copied().unwrap_or_default();
            assert_eq!(self.scheduler.tally(&slot).tokens(), known.tokens, "{slot:?}");
            let shown = self.scheduler.guarding(&slot);
            let may_watch = self.is_forbidden(&slot);
            assert!(!may_watch || matches!(shown, Guarding::Left | Guarding::On), "{shown:?}");
            assert_eq!(shown == Guarding::Off, self.percent.is_none());
        }
    }
}

fn started(pool: &Arc<Pool>, file: StateFile, percent: Option<u8>, now: Timestamp) -> Scheduler {
    let mut scheduler = Scheduler::new(Arc::clone(pool), Duration::from_secs(60), file, now);
    let exceptions = [("m3".to_owned(), 0)].to_vec();
    scheduler.set_guard(Guard { quotas: Quotas { usual: QUOTA, exceptions }, percent }, now);
    scheduler
}

proptest! {
    #![proptest_config(Config { cases: 400, failure_persistence: None, ..Config::default() })]

    #[test]
    fn no_slot_gets_a_request_once_its_tokens_have_reached_the_limit(
        percent in 1..=100_u8,
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut world = World::new(percent);
        for step in steps {
            world.step(step);
            world.check();
        }
    }
}
