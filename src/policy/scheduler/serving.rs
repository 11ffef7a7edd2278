//! What holds for requests over pools of models with limits of their own, with cooldowns and
//! backoffs (design section 11): what can be served is, and nobody is asked for nothing.

use proptest::prelude::*;
use proptest::test_runner::Config;

use super::*;
use crate::clock;
use crate::policy::limits::{Effect, Limit, Media, ModelLimits, Needs, Thinking, UpperBound};

const START: Timestamp = Timestamp(1_700_000_000_000);
const PATH: &str = "/chat/completions";
const BASE: Protocol = Protocol::OpenAi;

/// How often one model may be asked for one request: whole, and with each bound lowered.
const MOST_FORMS: usize = 3;

/// What a model of the simulated DashScope refuses.
#[derive(Clone, Copy, Debug)]
enum Refuses {
    OutputOver(u64),
    BudgetOver(u64),
    /// It thinks with this budget where none is said.
    DefaultBudget(u64),
    NoStream,
    Tools,
    Image,
    ThinkingWithoutStream,
}

impl Refuses {
    fn limit(self, needs: &Needs) -> Limit {
        match self {
            Self::OutputOver(bound) => Limit::MaxOutput { bound, thinking: needs.thinking },
            Self::BudgetOver(bound) => Limit::ThinkingBudget { bound },
            Self::DefaultBudget(bound) => Limit::DefaultBudget { bound, thinking: needs.thinking },
            Self::NoStream => Limit::StreamsOnly,
            Self::Tools => Limit::Tools,
            Self::Image => Limit::Media(Media::IMAGE),
            Self::ThinkingWithoutStream => Limit::ThinkingOnlyStreamed { thinking: needs.thinking },
        }
    }
}

fn refuses() -> impl Strategy<Value = Refuses> {
    prop_oneof![
        4 => prop::sample::select(vec![4_096, 8_192, 16_384, 65_536]).prop_map(Refuses::OutputOver),
        2 => prop::sample::select(vec![2_000, 8_000]).prop_map(Refuses::BudgetOver),
        2 => prop::sample::select(vec![4_096, 32_768]).prop_map(Refuses::DefaultBudget),
        1 => Just(Refuses::NoStream),
        1 => Just(Refuses::Tools),
        1 => Just(Refuses::Image),
        1 => Just(Refuses::ThinkingWithoutStream),
    ]
}

fn needs() -> impl Strategy<Value = Needs> {
    let bound = |name: &'static str, values: &[u64]| {
        let values: Vec<Option<u64>> = values.iter().copied().map(Some).chain([None]).collect();
        let bound = move |value| UpperBound { name, value, span: 0..0 };
        prop::sample::select(values).prop_map(move |value| value.map(bound).into_iter().collect())
    };
    let thinking = prop::sample::select(vec![Thinking::Unsaid, Thinking::On, Thinking::Off]);
    let outputs = bound("max_tokens", &[1_000, 8_192, 32_000, 64_000]);
    let budgets = bound("thinking_budget", &[1_000, 4_000, 31_999]);
    (outputs, budgets, thinking, any::<[bool; 3]>()).prop_map(
        |(outputs, budgets, thinking, flags)| {
            let [is_streamed, has_tools, has_image] = flags;
            let media = if has_image { Media::IMAGE } else { Media::default() };
            Needs { outputs, budgets, thinking, is_streamed, has_tools, media, ..Needs::default() }
        },
    )
}

/// Whether a model with these limits takes a request, as it is or as it may be lowered.
fn takes(limits: &[Limit], needs: &Needs, mode: ModelLimits) -> bool {
    let overs = limits.iter().filter_map(|limit| match limit.effect(needs) {
        Effect::Over(bounds) if mode == ModelLimits::Adapt => Some(bounds),
        _ => None,
    });
    let sent = needs.as_sent(overs.fold(Bounds::default(), Bounds::and));
    limits.iter().all(|limit| limit.effect(&sent) == Effect::None)
}

struct World {
    scheduler: Scheduler,
    models: Vec<Vec<Refuses>>,
    mode: ModelLimits,
    at: Moment,
}

impl World {
    fn place_of(&self, slot: &Slot) -> usize {
        self.scheduler.pool.place_of(&slot.model).unwrap()
    }

    /// The first thing that a model refuses in a request.
    fn refusal(&self, model: usize, needs: &Needs) -> Option<Limit> {
        let limits = self.models[model].iter().map(|refuses| refuses.limit(needs));
        limits.into_iter().find(|limit| limit.effect(needs) != Effect::None)
    }

    /// Whether a model takes a request, as it is or as it may be lowered.
    fn takes(&self, model: usize, needs: &Needs) -> bool {
        let limits: Vec<_> = self.models[model].iter().map(|it| it.limit(needs)).collect();
        takes(&limits, needs, self.mode)
    }

    /// One request, from slot to slot. Says whether it was served.
    fn serve(&mut self, needs: &Needs) -> bool {
        let pool = Arc::clone(&self.scheduler.pool);
        let (mut tried, mut has_answer) = (Tried::default(), false);
        let mut asked: Vec<(Slot, Bounds)> = Vec::new();
        let mut refused: Vec<(Arc<str>, Bounds)> = Vec::new();
        loop {
            let (wanted, base, path) = (Wanted::Pool, BASE, PATH);
            let is_asked = self.scheduler.asks_for_needs(PATH, self.at.monotonic);
            let seen = is_asked.then_some(needs);
            let ask = Ask {
                tried: &tried,
                wanted,
                key: None,
                first: None,
                base,
                path,
                needs: seen,
                has_answer,
            };
            let known = pool.slots().any(|slot| {
                // Whether a model is left that is not known to refuse, and was not asked.
                self.scheduler.is_available(&slot, self.at.calendar)
                    && !asked.iter().any(|(other, _)| *other == slot)
                    && !refused.iter().any(|(model, _)| *model == slot.model)
                    && !self.is_known_to_refuse(&slot, needs)
            });
            let before = (self.scheduler.key_cursor.at, self.cursors());
            let Next::Slot(pick) = self.scheduler.next_slot(&ask, self.at) else {
                return false;
            };
            assert!(!asked.contains(&(pick.slot.clone(), pick.bounds)), "{pick:?} twice");
            let forms = refused.iter().filter(|(model, _)| *model == pick.slot.model).count();
            assert!(forms < MOST_FORMS, "{pick:?}");
            if known && pick.bounds.is_none() {
                assert!(!self.is_known_to_refuse(&pick.slot, needs), "others are left: {pick:?}");
            }
            asked.push((pick.slot.clone(), pick.bounds));
            tried.add(pick.slot.clone(), pick.bounds);
            let sent = needs.as_sent(pick.bounds);
            let Some(limit) = self.refusal(self.place_of(&pick.slot), &sent) else {
                self.scheduler.note_served(&pick, PATH, needs);
                return true;
            };
            let revision = self.scheduler.revision();
            self.scheduler.learn_limit(&pick.slot, PATH, limit.clone(), "no", self.at);
            tried.add_refusal(self.scheduler.place(&pick.slot), pick.bounds, &limit);
            refused.push((Arc::clone(&pick.slot.model), pick.bounds));
            has_answer = true;
            assert_eq!(before, (self.scheduler.key_cursor.at, self.cursors()), "no cursor moves");
            assert_eq!(revision, self.scheduler.revision(), "nothing is persisted");
        }
    }

    fn is_known_to_refuse(&self, slot: &Slot, needs: &Needs) -> bool {
        let facts = self.scheduler.limits_of(slot, self.at.monotonic);
        let limits: Vec<_> = facts.map(|fact| fact.limit.clone()).collect();
        !takes(&limits, needs, self.mode)
    }

    fn cursors(&self) -> Vec<usize> {
        self.scheduler.model_cursors.iter().map(|cursor| cursor.at).collect()
    }
}

proptest! {
    #![proptest_config(Config { cases: 600, failure_persistence: None, ..Config::default() })]

    #[test]
    fn a_request_that_some_slot_would_serve_is_served_and_nobody_is_asked_for_nothing(
        keys in 1..=3_usize,
        models in prop::collection::vec(prop::collection::vec(refuses(), 0..3), 1..5),
        exhausted in prop::collection::vec(any::<bool>(), 12),
        backing_off in prop::collection::vec(any::<bool>(), 12),
        requests in prop::collection::vec(needs(), 1..8),
        may_lower in any::<bool>(),
    ) {
        let mode = if may_lower { ModelLimits::Adapt } else { ModelLimits::Move };
        let hashes = (0..keys).map(|n| format!("k{n}")).collect();
        let names = (0..models.len()).map(|n| format!("m{n}")).collect();
        let pool = Arc::new(Pool::new(hashes, names));
        let month = Duration::from_secs(2_592_000);
        let scheduler = Scheduler::new(Arc::clone(&pool), month, StateFile::default(), START)
            .with_limits(mode, &[]);
        let at = Moment { calendar: START, monotonic: clock::instant() };
        let mut world = World { scheduler, models, mode, at };
        for (slot, (is_exhausted, backs_off)) in pool.slots().zip(exhausted.into_iter().zip(backing_off)) {
            if is_exhausted {
                let (bounds, began) = (Bounds::default(), Tick(u64::MAX));
                let pick = Pick { slot: slot.clone(), bounds, began, direct: false };
                world.scheduler.report_exhausted(&pick, "used up", START);
            }
            if backs_off {
                world.scheduler.bench_slot(&slot, BASE, Rest::Growing, at.monotonic);
            }
        }
        for needs in &requests {
            let could = pool.slots().any(|slot| {
                world.scheduler.is_available(&slot, START)
                    && world.takes(world.place_of(&slot), needs)
            });
            prop_assert_eq!(world.serve(needs), could, "{:?}", needs);
        }
    }
}
