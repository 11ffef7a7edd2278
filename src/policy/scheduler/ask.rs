//! What a request asks the scheduler, and what it gets.

use super::{Pick, Protocol, Slot, Timestamp};
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
    /// Whether its answer is a stream.
    pub streamed: bool,
}

/// Whose model a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted<'a> {
    /// Any of the pool's.
    Pool,
    /// This one and no other; only keys rotate.
    Model(&'a str),
}

/// What a request has tried: it never gets the same twice.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tried {
    slots: Vec<Slot>,
    keys: Vec<KeyIndex>,
    denied: Vec<Slot>,
}

impl Tried {
    /// This slot was tried.
    pub(crate) fn add(&mut self, slot: Slot) {
        self.slots.push(slot);
    }

    /// Nothing of this key is worth trying.
    pub(crate) fn add_key(&mut self, key: KeyIndex) {
        self.keys.push(key);
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

    pub(super) fn contains(&self, slot: &Slot) -> bool {
        self.keys.contains(&slot.key) || self.slots.contains(slot)
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
}
