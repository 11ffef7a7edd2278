//! The keys and models of the configuration, and the slots they make.

use std::sync::Arc;

use crate::secret;

/// The longest model id, in characters: it goes into headers and into the state file.
pub(crate) const LONGEST_MODEL_ID: usize = 128;

/// Whether a model id may hold `c`.
#[must_use]
pub(crate) fn is_model_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._:/@+-".contains(c)
}

/// Whether `text` can be a model id.
#[must_use]
pub(crate) fn is_model_id(text: &str) -> bool {
    (1..=LONGEST_MODEL_ID).contains(&text.len()) && text.chars().all(is_model_character)
}

/// A key by its place in `DASHSCOPE_API_KEYS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyIndex(pub usize);

/// One key with one model: what has a free quota of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Slot {
    /// The key.
    pub key: KeyIndex,
    /// The model's id.
    pub model: Arc<str>,
}

/// Every slot of the configuration. Keys are known by their hash only.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    key_hashes: Vec<String>,
    models: Vec<Arc<str>>,
    /// The number of each key's origin; empty where all have the same.
    origins: Vec<usize>,
}

impl Pool {
    /// A pool of these keys (by SHA-256 in hex) and models, in their configured order.
    ///
    /// The configuration refuses empty lists; a pool without slots has nothing to give and
    /// every request on it ends in a 503.
    #[must_use]
    pub(crate) fn new(key_hashes: Vec<String>, models: Vec<String>) -> Self {
        let models = models.into_iter().map(Into::into).collect();
        Self { key_hashes, models, origins: Vec::new() }
    }

    /// The same with the number of each key's origin: a model may differ from one to another.
    #[must_use]
    pub(crate) fn with_origins(self, origins: Vec<usize>) -> Self {
        Self { origins, ..self }
    }

    /// The number of a key's origin.
    #[must_use]
    pub(crate) fn origin_of(&self, key: KeyIndex) -> usize {
        self.origins.get(key.0).copied().unwrap_or(0)
    }

    /// How many keys there are.
    #[must_use]
    pub(crate) fn key_count(&self) -> usize {
        self.key_hashes.len()
    }

    /// How many models each key has.
    #[must_use]
    pub(crate) fn model_count(&self) -> usize {
        self.models.len()
    }

    /// How many slots there are.
    #[must_use]
    pub(crate) fn slot_count(&self) -> usize {
        self.key_count() * self.model_count()
    }

    /// The keys, in the configured order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = KeyIndex> + use<> {
        (0..self.key_count()).map(KeyIndex)
    }

    /// Every slot, key by key, in the configured order.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.keys().flat_map(|key| {
            self.models.iter().map(move |model| Slot { key, model: Arc::clone(model) })
        })
    }

    /// The SHA-256 of a key, in hex.
    #[must_use]
    pub(crate) fn key_hash(&self, key: KeyIndex) -> &str {
        &self.key_hashes[key.0]
    }

    /// The key with this SHA-256.
    #[must_use]
    pub(crate) fn key_with_hash(&self, hash: &str) -> Option<KeyIndex> {
        self.key_hashes.iter().position(|known| known == hash).map(KeyIndex)
    }

    /// The first 12 hex digits of a key's hash, which name it to people.
    #[must_use]
    pub(crate) fn label(&self, key: KeyIndex) -> &str {
        secret::label(self.key_hash(key))
    }

    /// All model ids, in the configured order.
    #[must_use]
    pub(crate) fn models(&self) -> &[Arc<str>] {
        &self.models
    }

    /// Where a model stands among the pool's, if it is one of them.
    #[must_use]
    pub(crate) fn place_of(&self, model: &str) -> Option<usize> {
        self.models.iter().position(|known| **known == *model)
    }

    /// A slot as the log shows it: `<key label>:<model>`.
    #[must_use]
    pub(crate) fn show(&self, slot: &Slot) -> String {
        format!("{}:{}", self.label(slot.key), slot.model)
    }
}
