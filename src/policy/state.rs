//! The state file's schema, version 1, shared with the TypeScript proxy this one replaces.
//!
//! Unknown fields and records are kept as they are: a reader of version 1 must not lose what a
//! later version wrote.

mod whole;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::clock::Timestamp;

/// The only version there is.
const VERSION: u64 = 1;

/// The runtime record that holds the key with which the next request starts.
pub(crate) const KEY_CURSOR: &str = "key_cursor";

/// The runtime record that holds the model with which a key's next request starts.
#[must_use]
pub(crate) fn model_cursor_name(key_hash: &str) -> String {
    format!("model_cursor:{key_hash}")
}

/// The name of a slot's record.
#[must_use]
pub(crate) fn slot_name(key_hash: &str, model_id: &str) -> String {
    format!("{key_hash}:{model_id}")
}

/// The place in a list that a cursor's text names; text that is no number counts as 0.
#[must_use]
pub(crate) fn cursor_of(text: &str) -> usize {
    let text = text.trim();
    let spelt_otherwise = || usize::try_from(whole::of_float(text.parse().ok()?)?).ok();
    text.parse().ok().or_else(spelt_otherwise).unwrap_or(0)
}

/// The whole file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StateFile {
    #[serde(deserialize_with = "whole::number")]
    version: u64,
    /// One record a slot, by [`slot_name`].
    pub model_state: BTreeMap<String, SlotRecord>,
    /// Cursors and whatever else is worth keeping, as text.
    pub runtime_state: BTreeMap<String, RuntimeRecord>,
    /// Fields of a later version.
    #[serde(flatten)]
    extra: Map<String, Value>,
}

/// What is known of one slot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SlotRecord {
    /// SHA-256 of the key, in hex.
    pub key_hash: String,
    /// The model's id.
    pub model_id: String,
    /// When the slot's cooldown ends; 0 = it does not cool.
    pub cooldown_until: Timestamp,
    /// How many exhaustion answers it has had, ever.
    #[serde(deserialize_with = "whole::number")]
    pub failure_count: u64,
    /// Upstream's message of the last exhaustion; null after a success.
    pub last_error: Option<String>,
    /// The last success.
    pub last_used_at: Option<Timestamp>,
    /// The last change of this record.
    pub updated_at: Timestamp,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A named text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RuntimeRecord {
    /// The text.
    pub value: String,
    /// The last change.
    pub updated_at: Timestamp,
    /// Fields of a later version.
    #[serde(flatten)]
    extra: Map<String, Value>,
}

impl SlotRecord {
    /// The record of a slot that nothing has happened to yet.
    #[must_use]
    pub(crate) fn new(key_hash: &str, model_id: &str, now: Timestamp) -> Self {
        Self {
            key_hash: key_hash.to_owned(),
            model_id: model_id.to_owned(),
            cooldown_until: Timestamp(0),
            failure_count: 0,
            last_error: None,
            last_used_at: None,
            updated_at: now,
            extra: Map::new(),
        }
    }
}

impl RuntimeRecord {
    /// A text that was set `now`.
    #[must_use]
    pub(crate) fn new(value: String, now: Timestamp) -> Self {
        Self { value, updated_at: now, extra: Map::new() }
    }
}

impl Default for StateFile {
    fn default() -> Self {
        Self {
            version: VERSION,
            model_state: BTreeMap::new(),
            runtime_state: BTreeMap::new(),
            extra: Map::new(),
        }
    }
}

impl StateFile {
    /// Reads a file's content. Nothing at all (`touch`, a fresh bind mount) is an empty state.
    ///
    /// # Errors
    /// When the content is no JSON or does not fit version 1; the text says where.
    pub(crate) fn parse(content: &[u8]) -> Result<Self, String> {
        if content.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self::default());
        }
        let file: Self = serde_json::from_slice(content).map_err(|error| error.to_string())?;
        if file.version != VERSION {
            return Err(format!("version {} is not version {VERSION}", file.version));
        }
        // A name that serde_json keeps for itself is only a name until it is written first.
        match serde_json::from_slice(&file.to_bytes()) {
            Ok(again) if file == again => Ok(file),
            _ => Err("it holds what would not be read again".to_owned()),
        }
    }

    /// The file's content: two blanks of indent and a final newline.
    #[must_use]
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes =
            serde_json::to_vec_pretty(self).expect("a state of texts and numbers serialises");
        bytes.push(b'\n');
        bytes
    }

    /// Gives the records of our keys the names of their slots, whatever they were called: what
    /// counts is their content. Of two for one slot the newer counts, and of two that are as new
    /// the one that cools longer.
    pub(crate) fn name_by_content(&mut self, is_ours: impl Fn(&str) -> bool) {
        let is_at_home = |name: &str, record: &SlotRecord| {
            name == slot_name(&record.key_hash, &record.model_id)
                // A stranger's is left where it is, unless it has the name of one of ours.
                || !is_ours(&record.key_hash) && !is_ours(name.split(':').next().unwrap_or(name))
        };
        let records = std::mem::take(&mut self.model_state).into_iter();
        let (at_home, misnamed): (BTreeMap<_, _>, BTreeMap<_, _>) =
            records.partition(|(name, record)| is_at_home(name, record));
        self.model_state = at_home;
        for record in misnamed.into_values() {
            let age = |record: &SlotRecord| (record.updated_at, record.cooldown_until);
            match self.model_state.entry(slot_name(&record.key_hash, &record.model_id)) {
                Entry::Vacant(place) => {
                    place.insert(record);
                }
                Entry::Occupied(mut other) if age(other.get()) < age(&record) => {
                    other.insert(record);
                }
                Entry::Occupied(_) => {}
            }
        }
    }

    /// The newest change that the file knows of: a clock behind it is wrong.
    #[must_use]
    pub(crate) fn newest_change(&self) -> Timestamp {
        let slots = self.model_state.values().map(|record| record.updated_at);
        let runtime = self.runtime_state.values().map(|record| record.updated_at);
        slots.chain(runtime).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGINAL: &str = r#"{
  "version": 1,
  "modelState": {
    "aa:qwen-plus": {
      "keyHash": "aa",
      "modelId": "qwen-plus",
      "cooldownUntil": 1702592000000,
      "failureCount": 1,
      "lastError": "Free quota exhausted.",
      "lastUsedAt": null,
      "updatedAt": 1700000000000
    }
  },
  "runtimeState": {
    "key_cursor": {
      "value": "0",
      "updatedAt": 1700000000000
    }
  }
}
"#;

    #[test]
    fn a_file_of_the_original_survives_to_the_byte() {
        let file = StateFile::parse(ORIGINAL.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(file.to_bytes()).unwrap(), ORIGINAL);
        assert_eq!(file.newest_change(), Timestamp(1_700_000_000_000));
    }

    #[test]
    fn fields_of_a_later_version_are_kept() {
        let text = r#"{"version":1,"modelState":{"a:m":{"keyHash":"a","modelId":"m","cooldownUntil":0,
            "failureCount":0,"lastError":null,"lastUsedAt":5,"updatedAt":7,"note":{"x":1}}},
            "runtimeState":{"r":{"value":"v","updatedAt":1,"by":"you"}},"future":[1,2]}"#;
        let file = StateFile::parse(text.as_bytes()).unwrap();
        let again: Value = serde_json::from_slice(&file.to_bytes()).unwrap();
        assert_eq!(again, serde_json::from_str::<Value>(text).unwrap());
    }

    #[test]
    fn a_number_of_a_later_version_does_not_drift() {
        let text = r#"{"version":1,"modelState":{},"runtimeState":{},"x":184.46744073796054}"#;
        let mut content = StateFile::parse(text.as_bytes()).unwrap().to_bytes();
        for _ in 0..3 {
            assert!(String::from_utf8_lossy(&content).contains("184.46744073796054"));
            content = StateFile::parse(&content).unwrap().to_bytes();
        }
    }

    #[test]
    fn whole_numbers_are_read_however_they_are_spelt() {
        for (spelt, meant) in [
            ("1.7e12", 1_700_000_000_000),
            ("1700000000000.0", 1_700_000_000_000),
            ("17E+11", 1_700_000_000_000),
            ("0.0", 0),
            ("-0", 0),
            ("18446744073709551615", u64::MAX),
        ] {
            let text = ORIGINAL.replace("1700000000000", spelt).replace(": 1,", ": 1.0,");
            let file = StateFile::parse(text.as_bytes()).unwrap();
            let record = &file.model_state["aa:qwen-plus"];
            assert_eq!((record.updated_at, record.failure_count), (Timestamp(meant), 1), "{spelt}");
            assert_eq!(file.runtime_state[KEY_CURSOR].updated_at, Timestamp(meant), "{spelt}");
            let written = String::from_utf8(file.to_bytes()).unwrap();
            assert_eq!(written, ORIGINAL.replace("1700000000000", &meant.to_string()), "{spelt}");
        }
        for spelt in ["1.5", "-1", "-1.0", "1e20", "18446744073709551616", "1e-3", "\"1\"", "true"]
        {
            for number in ["1700000000000", "1702592000000", "null,\n      \"updatedAt\""] {
                let text = match number.starts_with("null") {
                    false => ORIGINAL.replacen(number, spelt, 1),
                    true => ORIGINAL.replacen(number, &format!("{spelt}, \"updatedAt\""), 1),
                };
                assert_ne!(text, ORIGINAL);
                assert!(StateFile::parse(text.as_bytes()).is_err(), "{text}");
            }
        }
    }

    #[test]
    fn a_cursor_is_a_whole_number_in_a_text() {
        for (text, place) in [
            ("2", 2),
            (" 2\n", 2),
            ("2.0", 2),
            ("2e0", 2),
            ("", 0),
            ("two", 0),
            ("1.5", 0),
            ("-1", 0),
            ("inf", 0),
        ] {
            assert_eq!(cursor_of(text), place, "{text}");
        }
    }

    /// A file with these records of `keyHash`, `modelId`, `updatedAt` and `cooldownUntil`.
    fn file_of(records: &[(&str, &str, &str, u64, u64)]) -> StateFile {
        let mut file = StateFile::default();
        for (name, key, model, updated, until) in records {
            let mut record = SlotRecord::new(key, model, Timestamp(*updated));
            record.cooldown_until = Timestamp(*until);
            file.model_state.insert((*name).to_owned(), record);
        }
        file
    }

    #[test]
    fn records_are_named_by_their_content_and_the_newer_of_two_counts() {
        let mut file = file_of(&[
            ("aa:m1", "aa", "m1", 5, 0),
            ("aa|m1", "aa", "m1", 6, 50),
            ("old", "aa", "m1", 4, 90),
            ("k1-m2", "aa", "m2", 1, 10),
            ("k1/m2", "aa", "m2", 1, 20),
            ("aa:m3", "aa", "m4", 1, 30),
            ("aa:m:5", "aa", "m:5", 1, 40),
            ("zz", "aa", "m:5", 0, 70),
        ]);
        file.name_by_content(|key| key == "aa");
        let expected = [
            ("aa:m1", "aa", "m1", 6, 50),
            ("aa:m2", "aa", "m2", 1, 20),
            ("aa:m4", "aa", "m4", 1, 30),
            ("aa:m:5", "aa", "m:5", 1, 40),
        ];
        assert_eq!(file, file_of(&expected));
    }

    #[test]
    fn a_strangers_record_stays_unless_it_has_the_name_of_one_of_ours() {
        let mut file = file_of(&[
            ("theirs", "bb", "m1", 1, 2),
            ("bb|m1", "bb", "m1", 3, 4),
            ("aa:m1", "bb", "m2", 5, 6),
        ]);
        file.name_by_content(|key| key == "aa");
        let expected = [
            ("theirs", "bb", "m1", 1, 2),
            ("bb|m1", "bb", "m1", 3, 4),
            ("bb:m2", "bb", "m2", 5, 6),
        ];
        assert_eq!(file, file_of(&expected));
    }

    #[test]
    fn nothing_at_all_is_an_empty_state() {
        for content in ["", "\n", "  \r\n"] {
            assert_eq!(StateFile::parse(content.as_bytes()), Ok(StateFile::default()));
        }
    }

    #[test]
    fn what_does_not_fit_version_1_is_refused() {
        let misfits = [
            "{",
            "null",
            "[]",
            "{}",
            "\0\0\0\0",
            r#"{"version":2,"modelState":{},"runtimeState":{}}"#,
            r#"{"version":"1","modelState":{},"runtimeState":{}}"#,
            r#"{"version":1,"modelState":[],"runtimeState":{}}"#,
            r#"{"version":1,"modelState":{}}"#,
            r#"{"version":1,"modelState":{},"runtimeState":{"key_cursor":{"value":0,"updatedAt":1}}}"#,
            r#"{"version":1,"modelState":{},"runtimeState":{"key_cursor":{"value":"0","updatedAt":1e300}}}"#,
            r#"{"version":1,"modelState":{"a:b":{"keyHash":"a"}},"runtimeState":{}}"#,
            r#"{"version":1,"modelState":{},"runtimeState":{},"x":{"a":1,"$serde_json::private::RawValue":2}}"#,
        ];
        for content in misfits {
            assert!(StateFile::parse(content.as_bytes()).is_err(), "{content}");
        }
    }

    #[test]
    fn a_file_cut_at_any_byte_is_refused_or_empty() {
        for length in 1..ORIGINAL.trim_end().len() {
            let cut = &ORIGINAL.as_bytes()[..length];
            assert!(StateFile::parse(cut).is_err(), "cut at {length}");
        }
    }
}
