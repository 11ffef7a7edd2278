//! What has been learned of models, and for how long it counts.
//!
//! A limit is one of a model at an origin on a path, never of a key. It ends by itself, with a
//! success that disproves it, or with a reset.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Bounds, Effect, Limit, Media, ModelLimits, Needs};
use crate::clock::{Moment, Timestamp};

/// How long a limit is believed. DashScope changes its models' limits once in months, and a
/// refusal that teaches it anew costs one call; but nothing that one odd request has taught should
/// outlive a working day.
pub(crate) const LIFE: Duration = Duration::from_secs(6 * 3_600);

/// How many limits of one model are kept, on all paths: clients can make up parameters. The oldest
/// goes first.
const MOST: usize = 64;

/// Where a limit holds: the origin (by its number in the pool) and the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    /// The origin's number.
    pub origin: usize,
    /// The model.
    pub model: Arc<str>,
}

/// A limit that was learned.
#[derive(Clone, Debug)]
pub(crate) struct Fact {
    /// The limit.
    pub limit: Limit,
    /// The path on which it was met.
    pub path: Arc<str>,
    /// What DashScope said.
    pub said: Arc<str>,
    /// When it said so last.
    pub learned: Moment,
}

impl Fact {
    /// When it ends.
    #[must_use]
    pub(crate) fn until(&self) -> Timestamp {
        self.learned.calendar.plus(LIFE)
    }

    fn counts(&self, at: Instant) -> bool {
        at.saturating_duration_since(self.learned.monotonic) < LIFE
    }
}

/// How a request fits a model, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// As it is.
    Whole,
    /// With these numbers lowered.
    Lowered(Bounds),
    /// Not at all.
    Refused {
        /// Whether the model is not even to be asked again.
        is_final: bool,
        /// What it takes at most, if that is a number.
        bound: Option<u64>,
        /// What has to be lowered if it is asked all the same.
        bounds: Bounds,
        /// When this was last heard.
        since: Instant,
        /// What DashScope said.
        said: Arc<str>,
    },
}

/// Everything that has been learned.
#[derive(Clone, Debug, Default)]
pub(crate) struct Book {
    facts: HashMap<Place, Vec<Fact>>,
    /// Models that have answered to a picture, at an origin.
    seers: HashSet<Place>,
    mode: ModelLimits,
    /// The models that see pictures, as the configuration says.
    vision: Vec<Arc<str>>,
}

impl Book {
    /// An empty book. `vision`: the models that see pictures.
    #[must_use]
    pub(crate) fn new(mode: ModelLimits, vision: Vec<Arc<str>>) -> Self {
        Self { mode, vision, ..Self::default() }
    }

    /// Whether anything of it may matter to a request on this path: else nobody needs to look at
    /// what the request needs.
    #[must_use]
    pub(crate) fn matters(&self, path: &str, at: Instant) -> bool {
        let mut facts = self.facts.values().flatten();
        !self.vision.is_empty() || facts.any(|fact| &*fact.path == path && fact.counts(at))
    }

    /// How a request fits a model.
    #[must_use]
    pub(crate) fn fit(&self, place: &Place, path: &str, needs: &Needs, at: Instant) -> Fit {
        let facts = self.facts.get(place).into_iter().flatten();
        let facts = facts.filter(|fact| &*fact.path == path && fact.counts(at));
        let mut bounds = Bounds::default();
        for fact in facts.clone() {
            if let Effect::Over(over) = fact.limit.effect(needs)
                && self.mode == ModelLimits::Adapt
            {
                bounds = bounds.and(over);
            }
        }
        // A number that is lowered may be too low for what the model does by itself.
        let sent = needs.as_sent(bounds);
        let refusals = facts.filter(|fact| fact.limit.effect(&sent) != Effect::None);
        // What is final tells more than what is not.
        let refused = refusals.reduce(|one, next| if one.limit.is_final() { one } else { next });
        match refused {
            Some(fact) => Fit::Refused {
                is_final: fact.limit.is_final(),
                bound: fact.limit.bound(),
                bounds,
                since: fact.learned.monotonic,
                said: Arc::clone(&fact.said),
            },
            None if bounds.is_none() => Fit::Whole,
            None => Fit::Lowered(bounds),
        }
    }

    /// The largest input that a model is known to take at most, whatever the request's size.
    #[must_use]
    pub(crate) fn max_input(&self, place: &Place, path: &str, at: Instant) -> Option<u64> {
        let facts = self.facts.get(place).into_iter().flatten();
        let facts = facts.filter(|fact| &*fact.path == path && fact.counts(at));
        let inputs = facts.filter(|fact| matches!(fact.limit, Limit::MaxInput { .. }));
        inputs.filter_map(|fact| fact.limit.bound()).min()
    }

    /// How much a model is to be preferred for a request that holds a picture: 0 is best. Those of
    /// `VISION_MODELS` come before those that have served one, for some say 200 to a picture that
    /// they never saw.
    #[must_use]
    pub(crate) fn blindness(&self, place: &Place, needs: &Needs) -> u8 {
        if !needs.media.holds(Media::IMAGE) || self.vision.contains(&place.model) {
            0
        } else {
            1 + u8::from(!self.seers.contains(place))
        }
    }

    /// A model has refused. Says whether that is news: heard for the first time, or with another
    /// number.
    pub(crate) fn learn(&mut self, place: Place, mut fact: Fact) -> bool {
        let facts = self.facts.entry(place).or_default();
        facts.retain(|old| old.counts(fact.learned.monotonic));
        let before =
            facts.iter().position(|old| old.path == fact.path && old.limit.is_like(&fact.limit));
        let before = before.map(|at| facts.remove(at));
        if let Some(Fact { limit: Limit::MaxInput { smallest: before, .. }, .. }) = &before
            && let Limit::MaxInput { smallest, .. } = &mut fact.limit
        {
            *smallest = (*smallest).min(*before);
        }
        let is_news = before.is_none_or(|old| old.limit.bound() != fact.limit.bound());
        if facts.len() >= MOST {
            facts.remove(0);
        }
        facts.push(fact);
        is_news
    }

    /// A model has served a request with these numbers lowered: what that disproves is forgotten.
    pub(crate) fn note_success(
        &mut self,
        place: &Place,
        path: &str,
        needs: &Needs,
        bounds: Bounds,
    ) {
        if needs.media.holds(Media::IMAGE) {
            self.seers.insert(place.clone());
        }
        let Some(facts) = self.facts.get_mut(place) else { return };
        let sent = needs.as_sent(bounds);
        facts.retain_mut(|fact| {
            if &*fact.path != path || fact.limit.effect(&sent) == Effect::None {
                return true;
            }
            match &mut fact.limit {
                // Bytes are no tokens: this only moves where it begins.
                Limit::MaxInput { smallest, .. } => {
                    *smallest = needs.size.saturating_add(1);
                    true
                }
                _ => false,
            }
        });
        if facts.is_empty() {
            self.facts.remove(place);
        }
    }

    /// Forgets what is known of a model, or of all.
    pub(crate) fn forget(&mut self, model: Option<&str>) {
        let stays = |place: &Place| model.is_some_and(|model| *place.model != *model);
        self.facts.retain(|place, _| stays(place));
        self.seers.retain(stays);
    }

    /// Everything that is known, and of which model.
    pub(crate) fn all(&self, at: Instant) -> impl Iterator<Item = (&str, &Limit)> {
        self.facts.iter().flat_map(move |(place, facts)| {
            let facts = facts.iter().filter(move |fact| fact.counts(at));
            facts.map(|fact| (&*place.model, &fact.limit))
        })
    }

    /// What is known of a model at an origin, in the order in which it was learned.
    pub(crate) fn facts(
        &self,
        place: &Place,
        at: Instant,
    ) -> impl Iterator<Item = &Fact> + use<'_> {
        let facts = self.facts.get(place).into_iter().flatten();
        facts.filter(move |fact| fact.counts(at))
    }
}

#[cfg(test)]
mod tests;
