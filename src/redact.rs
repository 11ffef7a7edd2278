//! Takes keys out of text that leaves: log lines, the state file, and whatever upstream echoes to a
//! client. Done at the place where text leaves, once, for everything that leaves there.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use memchr::memmem::Finder;

use crate::secret::{Secret, label};

/// A key shorter than this could be any word; DashScope's have 35 characters and more.
const SHORTEST_TELLTALE: usize = 8;

/// What takes the place of each byte of a key where the length has to stay.
const MASK: u8 = b'*';

/// The keys that must not be seen.
pub(crate) struct Redactor {
    keys: Vec<(Finder<'static>, String)>,
}

/// What log lines are redacted with, once the keys are known.
static LOG: OnceLock<Arc<Redactor>> = OnceLock::new();

impl Redactor {
    /// Redacts these keys.
    pub(crate) fn new<'a>(keys: impl Iterator<Item = &'a Secret>) -> Self {
        let keys = keys.filter(|key| key.expose().len() >= SHORTEST_TELLTALE);
        let finder = |key: &Secret| Finder::new(key.expose().as_bytes()).into_owned();
        let keys = keys.map(|key| (finder(key), label(&key.hash()).to_owned()));
        Self { keys: keys.collect() }
    }

    /// The text with the label of each key in its place.
    #[must_use]
    pub(crate) fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut redacted = Cow::Borrowed(text);
        for (finder, label) in &self.keys {
            if finder.find(redacted.as_bytes()).is_some() {
                let key = std::str::from_utf8(finder.needle()).unwrap_or_default();
                redacted = Cow::Owned(redacted.replace(key, label));
            }
        }
        redacted
    }

    /// Masks keys byte for byte, so that the length stays.
    pub(crate) fn bytes(&self, bytes: &mut [u8]) {
        let found: Vec<_> = self.places(bytes).collect();
        found.into_iter().for_each(|place| bytes[place].fill(MASK));
    }

    /// Whether a key stands in `bytes`.
    #[must_use]
    pub(crate) fn finds(&self, bytes: &[u8]) -> bool {
        self.places(bytes).next().is_some()
    }

    /// Redacts a body that leaves piece by piece.
    #[must_use]
    pub(crate) fn body(&self) -> BodyRedactor<'_> {
        BodyRedactor { redactor: self, held: Vec::new() }
    }

    fn places<'a>(&'a self, bytes: &'a [u8]) -> impl Iterator<Item = Range<usize>> + 'a {
        self.keys.iter().flat_map(move |(finder, _)| {
            finder.find_iter(bytes).map(|at| at..at + finder.needle().len())
        })
    }

    /// How many bytes at the end may be the beginning of a key.
    fn begun(&self, bytes: &[u8]) -> usize {
        let begun = |key: &[u8]| {
            let longest = bytes.len().min(key.len() - 1);
            (1..=longest).rev().find(|length| bytes.ends_with(&key[..*length]))
        };
        self.keys.iter().filter_map(|(finder, _)| begun(finder.needle())).max().unwrap_or(0)
    }
}

/// Finds keys also where two pieces meet: what may be a key's beginning waits for the next piece.
pub(crate) struct BodyRedactor<'a> {
    redactor: &'a Redactor,
    held: Vec<u8>,
}

impl BodyRedactor<'_> {
    /// What of the body may leave now.
    pub(crate) fn pass<'a>(&mut self, piece: &'a [u8]) -> Cow<'a, [u8]> {
        let mut joined = std::mem::take(&mut self.held);
        let bytes = if joined.is_empty() {
            Cow::Borrowed(piece)
        } else {
            joined.extend_from_slice(piece);
            Cow::Owned(joined)
        };
        let begun = self.redactor.begun(&bytes);
        if begun == 0 && !self.redactor.finds(&bytes) {
            return bytes;
        }
        let mut bytes = bytes.into_owned();
        self.redactor.bytes(&mut bytes);
        // Of a key that was whole nothing is left to begin another.
        let begun = self.redactor.begun(&bytes);
        self.held = bytes.split_off(bytes.len() - begun);
        Cow::Owned(bytes)
    }

    /// The rest, at the end of the body.
    pub(crate) fn rest(self) -> Vec<u8> {
        self.held
    }
}

/// From now on log lines are redacted with this.
pub(crate) fn in_log(redactor: Arc<Redactor>) {
    let _ = LOG.set(redactor);
}

/// A line as it may be logged.
#[must_use]
pub(crate) fn log_line(line: &str) -> Cow<'_, str> {
    LOG.get().map_or(Cow::Borrowed(line), |redactor| redactor.text(line))
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redactor").field("keys", &self.keys.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 3] = ["sk-aaaaaaaaaaaab", "sk-other-other", "short"];

    fn redactor() -> Redactor {
        let keys = KEYS.map(Secret::new);
        Redactor::new(keys.iter())
    }

    #[test]
    fn every_long_key_is_replaced_by_its_label_in_text() {
        let key = Secret::new(KEYS[0]);
        let (hash, text) = (key.hash(), format!("a {0} b {0} short", KEYS[0]));
        let label = label(&hash);
        assert_eq!(redactor().text(&text), format!("a {label} b {label} short"));
        assert!(matches!(redactor().text("nothing"), Cow::Borrowed(_)));
    }

    #[test]
    fn bytes_keep_their_length() {
        let mut bytes = format!("x{}{}y", KEYS[1], KEYS[0]).into_bytes();
        let length = bytes.len();
        redactor().bytes(&mut bytes);
        assert_eq!(bytes, format!("x{}y", "*".repeat(length - 2)).into_bytes());
    }

    #[test]
    fn a_key_is_found_wherever_a_body_is_divided() {
        // The second has a false beginning before the real one.
        for body in
            ["{\"m\":\"sk-aaaaaaaaaaaab sk-\"}", "sk-aaaaask-aaaaaaaaaaaab", "sk-other-othe"]
        {
            let masked = body.replace(KEYS[0], &"*".repeat(KEYS[0].len()));
            for first in 0..=body.len() {
                for second in first..=body.len() {
                    let (redactor, mut out) = (redactor(), Vec::new());
                    let mut redaction = redactor.body();
                    for piece in [&body[..first], &body[first..second], &body[second..]] {
                        out.extend_from_slice(&redaction.pass(piece.as_bytes()));
                    }
                    out.extend(redaction.rest());
                    assert_eq!(String::from_utf8(out).unwrap(), masked, "{first} {second}");
                }
            }
        }
    }

    #[test]
    fn nothing_is_held_that_cannot_become_a_key() {
        let redactor = redactor();
        let mut redaction = redactor.body();
        assert!(matches!(redaction.pass(b"data: {\"sk\":1}\n\n"), Cow::Borrowed(_)));
        assert!(redaction.held.is_empty());
    }

    #[test]
    fn debug_shows_no_key() {
        assert!(!format!("{:?}", redactor()).contains("sk-"));
    }
}
