//! Text that must never be shown: the proxy key and the DashScope keys.

use std::fmt;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// How many hex digits of a key's hash name it in logs, headers and status.
const LABEL_LENGTH: usize = 12;

/// A key. Its `Debug` shows nothing of it and it has no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes the key in.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The plain key, for the one header that carries it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether `presented` is this key, in a time that does not depend on where they differ.
    ///
    /// Both sides are hashed first, so that the length stays hidden as well.
    #[must_use]
    pub fn matches(&self, presented: &str) -> bool {
        let ours = Sha256::digest(self.0.as_bytes());
        let theirs = Sha256::digest(presented.as_bytes());
        ours.as_slice().ct_eq(theirs.as_slice()).into()
    }

    /// The SHA-256 of the key as 64 hex digits: its identity in the state file.
    #[must_use]
    pub fn hash(&self) -> String {
        hex(&Sha256::digest(self.0.as_bytes()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The label of a key: the first 12 hex digits of its hash.
#[must_use]
pub(crate) fn label(hash: &str) -> &str {
    hash.get(..LABEL_LENGTH).unwrap_or(hash)
}

fn hex(bytes: &[u8]) -> String {
    use fmt::Write;

    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_nothing_of_the_key() {
        assert_eq!(format!("{:?}", Secret::new("sk-very-secret")), "Secret(…)");
    }

    #[test]
    fn only_the_same_text_matches() {
        let secret = Secret::new("sk-1");
        assert!(secret.matches("sk-1"));
        assert!(!secret.matches("sk-2"));
        assert!(!secret.matches("sk-11"));
        assert!(!secret.matches(""));
    }

    #[test]
    fn the_hash_is_sha256_in_hex() {
        let hash = Secret::new("abc").hash();
        assert_eq!(hash, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(label(&hash), "ba7816bf8f01");
    }
}
