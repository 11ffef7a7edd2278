//! What models cannot take, where slots are chosen (design sections 4.7 and 11).

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Instant;

use super::ask::Doubt;
use super::{Ask, Pick, Scheduler, Slot};
use crate::clock::Moment;
use crate::policy::limits::{Book, Bounds, Fact, Fit, Limit, ModelLimits, Needs, Place};

/// How unwillingly a slot is given: the smallest first. Slots that are equal come in the order of
/// the cursors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Order {
    refuses: bool,
    /// For a request with a picture. It comes before what else speaks against a slot: a bound that
    /// is lowered takes nothing away, but a model that says 200 to a picture that it never saw
    /// answers to something else.
    blindness: u8,
    reluctance: Reluctance,
    doubt: Doubt,
    is_lowered: bool,
    /// What it takes at most: the most generous model first.
    output: Reverse<u64>,
    budget: Reverse<u64>,
    /// Of models that refuse, the one that has not been heard for longest.
    since: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reluctance {
    None,
    Lowered,
    Benched,
    Refuses,
}

/// A slot that a request may be given.
pub(super) struct Choice {
    pub(super) order: Order,
    pub(super) slot: Slot,
    pub(super) bounds: Bounds,
}

/// Whether a request may be given a slot.
pub(super) enum Chance {
    Yes(Choice),
    No,
    /// Its model takes no such request, and is not asked again.
    Never(Refusal),
}

/// What is known of a model that takes no such request.
pub(super) struct Refusal {
    /// When that was heard last.
    since: Instant,
    slot: Slot,
    bounds: Bounds,
    /// What DashScope said.
    pub(super) said: Arc<str>,
}

impl Refusal {
    /// The one that was heard longest ago; of equals, the first.
    pub(super) fn older(self, other: Option<Self>) -> Self {
        match other {
            Some(other) if other.since <= self.since => other,
            _ => self,
        }
    }
}

impl Order {
    /// Whether the model takes the request as it is, and the slot is not benched.
    pub(super) fn is_willing(self) -> bool {
        self.reluctance == Reluctance::None
    }

    /// Whether no slot can come before one of this order.
    pub(super) fn is_best(self) -> bool {
        self.is_willing() && self.blindness == 0 && self.doubt == Doubt::default()
    }
}

impl Scheduler {
    /// The same with these rules on limits. `vision`: the models that see pictures.
    #[must_use]
    pub(crate) fn with_limits(mut self, mode: ModelLimits, vision: &[String]) -> Self {
        let vision = vision.iter().map(|model| model.as_str().into()).collect();
        self.book = Book::new(mode, vision);
        self
    }

    /// Whether it matters what a request to this path needs. Where it does not, nobody has to look
    /// through its body.
    #[must_use]
    pub(crate) fn asks_for_needs(&self, path: &str, at: Instant) -> bool {
        self.book.matters(path, at)
    }

    /// A slot's model has refused what it cannot take. Says whether that is news. Only of the
    /// pool's models: clients could make up others without end.
    pub(crate) fn learn_limit(
        &mut self,
        slot: &Slot,
        path: &str,
        limit: Limit,
        said: &str,
        learned: Moment,
    ) -> bool {
        let fact = Fact { limit, path: path.into(), said: said.into(), learned };
        self.pool.place_of(&slot.model).is_some() && self.book.learn(self.place(slot), fact)
    }

    /// A slot has served a request that needs this.
    pub(crate) fn note_served(&mut self, pick: &Pick, path: &str, needs: &Needs) {
        if self.pool.place_of(&pick.slot.model).is_some() {
            let place = self.place(&pick.slot);
            self.book.note_success(&place, path, needs, pick.bounds);
        }
    }

    /// Where a slot's model is.
    #[must_use]
    pub(crate) fn place(&self, slot: &Slot) -> Place {
        Place { origin: self.pool.origin_of(slot.key), model: Arc::clone(&slot.model) }
    }

    /// What is known of the limits of a slot's model.
    pub(crate) fn limits_of(&self, slot: &Slot, at: Instant) -> impl Iterator<Item = &Fact> {
        self.book.facts(&self.place(slot), at)
    }

    /// Everything that is known, and of which model.
    pub(crate) fn limits(&self, at: Instant) -> impl Iterator<Item = (&str, &Limit)> {
        self.book.all(at)
    }

    /// Whether a request may be given an available slot, and how unwillingly.
    pub(super) fn chance(&self, slot: Slot, ask: &Ask<'_>, at: Instant) -> Chance {
        let place = self.place(&slot);
        let (bounds, refused) = match self.fit(&place, ask, at) {
            Fit::Whole => (Bounds::default(), None),
            Fit::Lowered(bounds) => (bounds, None),
            Fit::Refused { is_final: true, said, since, bounds, .. } => {
                return Chance::Never(Refusal { since, slot, bounds, said });
            }
            // Who has an answer already does not ask for a refusal.
            Fit::Refused { .. } if ask.has_answer => return Chance::No,
            Fit::Refused { bound, since, .. } => (Bounds::default(), Some((bound, since))),
        };
        if !ask.tried.allows(&slot, &place, bounds) {
            return Chance::No;
        }
        let reluctance = if refused.is_some() {
            Reluctance::Refuses
        } else if self.benches.is_benched(&slot, ask.base, at) {
            Reluctance::Benched
        } else if bounds.is_none() {
            Reluctance::None
        } else {
            Reluctance::Lowered
        };
        let bound = refused.and_then(|(bound, _)| bound).or(bounds.output);
        let order = Order {
            refuses: refused.is_some(),
            blindness: ask.needs.map_or(0, |needs| self.book.blindness(&place, needs)),
            reluctance,
            doubt: ask.tried.doubt(&slot),
            is_lowered: !bounds.is_none(),
            output: Reverse(bound.unwrap_or(u64::MAX)),
            budget: Reverse(bounds.budget.unwrap_or(u64::MAX)),
            since: refused.map(|(_, since)| since),
        };
        Chance::Yes(Choice { order, slot, bounds })
    }

    /// Whom to ask although it is known to refuse, if that is known of every model of the pool, and
    /// not only of those that are available: then it was something about a request that they
    /// refused, which must not keep such requests from all of them. It is one call for a request,
    /// and a success lifts what was learned.
    pub(super) fn last_resort(
        &self,
        refusal: &Refusal,
        ask: &Ask<'_>,
        at: Instant,
    ) -> Option<(Slot, Bounds)> {
        let place = self.place(&refusal.slot);
        let refuses = |slot: &Slot| {
            matches!(self.fit(&self.place(slot), ask, at), Fit::Refused { is_final: true, .. })
        };
        let is_suspect = !ask.has_answer
            && ask.tried.allows(&refusal.slot, &place, refusal.bounds)
            && self.pool.slots().all(|slot| refuses(&slot));
        is_suspect.then(|| (refusal.slot.clone(), refusal.bounds))
    }

    fn fit(&self, place: &Place, ask: &Ask<'_>, at: Instant) -> Fit {
        let Some(needs) = ask.needs else { return Fit::Whole };
        let fit = self.book.fit(place, ask.path, needs, at);
        // What is too long for one model is too long for those that take no more.
        let most = self.book.max_input(place, ask.path, at);
        let is_too_long = most.is_some() && most <= ask.tried.refused_input();
        match fit {
            Fit::Whole | Fit::Lowered(_) if is_too_long => {
                let (bounds, said) = (Bounds::default(), "".into());
                Fit::Refused { is_final: false, bound: most, bounds, since: at, said }
            }
            fit => fit,
        }
    }
}
