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
    reluctance: Reluctance,
    doubt: Doubt,
    is_lowered: bool,
    /// For a request with a picture.
    blindness: u8,
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
    /// Its model takes no such request, and is not asked again; with what DashScope said.
    Never(Arc<str>),
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
            Fit::Refused { is_final: true, said, .. } => return Chance::Never(said),
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
            reluctance,
            doubt: ask.tried.doubt(&slot),
            is_lowered: !bounds.is_none(),
            blindness: ask.needs.map_or(0, |needs| self.book.blindness(&place, needs)),
            output: Reverse(bound.unwrap_or(u64::MAX)),
            budget: Reverse(bounds.budget.unwrap_or(u64::MAX)),
            since: refused.map(|(_, since)| since),
        };
        Chance::Yes(Choice { order, slot, bounds })
    }

    fn fit(&self, place: &Place, ask: &Ask<'_>, at: Instant) -> Fit {
        let Some(needs) = ask.needs else { return Fit::Whole };
        let fit = self.book.fit(place, ask.path, needs, at);
        // What is too long for one model is too long for those that take no more.
        let most = self.book.max_input(place, ask.path, at);
        let is_too_long = most.is_some() && most <= ask.tried.refused_input();
        match fit {
            Fit::Whole | Fit::Lowered(_) if is_too_long => {
                Fit::Refused { is_final: false, bound: most, since: at, said: "".into() }
            }
            fit => fit,
        }
    }
}
