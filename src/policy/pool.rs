//! The keys and models of the configuration, and the slots they make.

use crate::secret;

/// A key by its place in `DASHSCOPE_API_KEYS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyIndex(pub usize);

/// A model by its place in `MODEL_IDS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelIndex(pub usize);

/// One key with one model: what has a free quota of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// The key.
    pub key: KeyIndex,
    /// The model.
    pub model: ModelIndex,
}

/// Every slot of the configuration. Keys are known by their hash only.
#[derive(Clone, Debug)]
pub struct Pool {
    key_hashes: Vec<String>,
    models: Vec<String>,
}

impl Pool {
    /// A pool of these keys (by SHA-256 in hex) and models, in their configured order.
    ///
    /// The configuration refuses empty lists; a pool without slots has nothing to give and
    /// every request on it ends in a 503.
    #[must_use]
    pub fn new(key_hashes: Vec<String>, models: Vec<String>) -> Self {
        Self { key_hashes, models }
    }

    /// How many keys there are.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.key_hashes.len()
    }

    /// How many models each key has.
    #[must_use]
    pub fn model_count(&self) -> usize {
        self.models.len()
    }

    /// How many slots there are.
    #[must_use]
    pub fn slot_count(&self) -> usize {
        self.key_count() * self.model_count()
    }

    /// Every slot, key by key, in the configured order.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + use<> {
        let models = self.model_count();
        (0..self.slot_count()).map(move |place| Slot {
            key: KeyIndex(place / models),
            model: ModelIndex(place % models),
        })
    }

    /// Where a slot stands in [`Pool::slots`].
    pub(crate) fn place(&self, slot: Slot) -> usize {
        slot.key.0 * self.model_count() + slot.model.0
    }

    /// The SHA-256 of a key, in hex.
    #[must_use]
    pub fn key_hash(&self, key: KeyIndex) -> &str {
        &self.key_hashes[key.0]
    }

    /// The first 12 hex digits of a key's hash, which name it to people.
    #[must_use]
    pub fn label(&self, key: KeyIndex) -> &str {
        secret::label(self.key_hash(key))
    }

    /// A model's id.
    #[must_use]
    pub fn model_id(&self, model: ModelIndex) -> &str {
        &self.models[model.0]
    }

    /// All model ids, in the configured order.
    #[must_use]
    pub fn model_ids(&self) -> &[String] {
        &self.models
    }

    /// A slot as the log shows it: `<key label>:<model>`.
    #[must_use]
    pub fn show(&self, slot: Slot) -> String {
        format!("{}:{}", self.label(slot.key), self.model_id(slot.model))
    }
}
