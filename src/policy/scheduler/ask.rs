//! What a request asks the scheduler, and what it gets.

use std::sync::Arc;

use super::{Pick, Protocol, Slot, Timestamp};
use crate::policy::limits::{Bounds, Limit, Needs, Place};
use crate::policy::pool::KeyIndex;

/// Whether a slot's key was denied a model, and its model to two keys.
pub(super) type Doubt = (bool, bool);

/// What a request asks for.
#[derive(Debug)]
pub(crate) struct Ask<'a> {
    /// What it has tried already.
    pub tried: &'a Tried,
    /// Whose model it gets.
    pub wanted: Wanted<'a>,
    /// The only key that may serve it, if there is one.
    pub key: Option<KeyIndex>,
    /// The client's choice among the pool's models, if that counts.
    pub first: Option<&'a str>,
    /// The base URL it goes to.
    pub base: Protocol,
    /// The path below it.
    pub path: &'a str,
    /// What it needs of a model, if that matters.
    pub needs: Option<&'a Needs>,
    /// Whether there is an answer already that can be handed on.
    pub has_answer: bool,
}

#[cfg(test)]
impl<'a> Ask<'a> {
    /// A request of which nothing more matters.
    pub(super) fn plain(tried: &'a Tried, wanted: Wanted<'a>, base: Protocol) -> Self {
        let (path, needs) = ("/chat/completions", None);
        Self { tried, wanted, key: None, first: None, base, path, needs, has_answer: false }
    }
}

/// Whose model a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted<'a> {
    /// Any of the pool's.
    Pool,
    /// This one and no other; only keys rotate.
    Model(&'a str),
}

/// How often a model is asked for one request whose bounds are lowered step by step: as it was
/// sent, and once for each of the two bounds.
const MOST_FORMS: usize = 3;

/// What a request has tried: it never gets the same twice.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tried {
    slots: Vec<(Slot, Bounds)>,
    keys: Vec<KeyIndex>,
    /// Models that have refused it, with the bounds with which they did.
    refused: Vec<(Place, Bounds)>,
    /// The largest bound among those that found its input too long.
    refused_input: Option<u64>,
    denied: Vec<Slot>,
}

impl Tried {
    /// This slot was tried with these bounds.
    pub(crate) fn add(&mut self, slot: Slot, bounds: Bounds) {
        self.slots.push((slot, bounds));
    }

    /// Nothing of this key is worth trying.
    pub(crate) fn add_key(&mut self, key: KeyIndex) {
        self.keys.push(key);
    }

    /// This model cannot take the request with these bounds, with whatever key.
    pub(crate) fn add_refusal(&mut self, place: Place, bounds: Bounds, limit: &Limit) {
        self.refused.push((place, bounds));
        if let Limit::MaxInput { bound, .. } = limit {
            self.refused_input = self.refused_input.max(Some(*bound));
        }
    }

    /// The largest bound among those that found its input too long.
    pub(super) fn refused_input(&self) -> Option<u64> {
        self.refused_input
    }

    /// Whether a slot may be tried with these bounds. A model that has refused the request is
    /// asked once more for a lower one.
    pub(super) fn allows(&self, slot: &Slot, place: &Place, bounds: Bounds) -> bool {
        if self.keys.contains(&slot.key) {
            return false;
        }
        let mut forms = self.refused.iter().filter(|(refused, _)| refused == place).peekable();
        if forms.peek().is_none() {
            return !self.slots.iter().any(|(tried, _)| tried == slot);
        }
        let (count, is_known) = forms
            .fold((0, false), |(count, known), (_, form)| (count + 1, known || *form == bounds));
        let was_tried = self.slots.iter().any(|(tried, form)| tried == slot && *form == bounds);
        !bounds.is_none() && !is_known && !was_tried && count < MOST_FORMS
    }

    /// This slot is not to be had: a slot of another key comes first, and of another model once two
    /// keys have said so of this one.
    pub(crate) fn deny(&mut self, slot: Slot) {
        self.denied.push(slot);
    }

    /// How little hope there is for a slot after what was denied: of its key, then of its model.
    pub(super) fn doubt(&self, slot: &Slot) -> Doubt {
        let key = self.denied.iter().any(|denied| denied.key == slot.key);
        let of_model = self.denied.iter().filter(|denied| denied.model == slot.model);
        (key, of_model.count() > 1)
    }
}

/// What a request that asks for a slot gets.
#[derive(Debug)]
pub(crate) enum Next {
    /// Try this one.
    Slot(Pick),
    /// Nothing is available to anybody.
    NoneAvailable {
        /// When the first slot is tried again, if any is without a person.
        until: Option<Timestamp>,
        /// How many of the slots for this request cool.
        cooling: usize,
        /// How many the guard has left.
        guarded: usize,
        /// How many are switched off.
        disabled: usize,
    },
    /// What is available, this request has tried already.
    NoneLeft,
    /// No model that is available takes the request, and it is known that none would; with what
    /// DashScope said of one.
    NoneTakes {
        /// DashScope's sentence.
        said: Arc<str>,
    },
}
