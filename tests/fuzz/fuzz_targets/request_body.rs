//! The request body's edit, against a second reader: whatever is an object is read, and only the
//! model's value changes.

#![no_main]

use std::fmt;

use dashscope_proxy::fuzzing::edit_body;
use libfuzzer_sys::fuzz_target;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The second reader's members: unescaped names, and values to the byte.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Members<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

impl<'a> Members<'a> {
    fn of(json: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(json).ok()
    }

    fn named(&self, wanted: &str) -> impl DoubleEndedIterator<Item = &'a RawValue> {
        self.0.iter().filter(move |(name, _)| name == wanted).map(|(_, value)| *value)
    }

    fn others(&self) -> Vec<(&str, &str)> {
        let others = self.0.iter().filter(|(name, _)| name != "model");
        others.map(|(name, value)| (name.as_str(), value.get())).collect()
    }
}

const MODELS: [&str; 3] = ["qwen-plus", "deepseek/v3.1@2025:free+x_1", "a\"b\\c\u{7}é"];

fuzz_target!(|body: &[u8]| {
    let model = MODELS[body.len() % MODELS.len()];
    // What is malformed below the top level may be left to upstream.
    let Some(before) = Members::of(body) else { return drop(edit_body(body, model)) };
    let sent = edit_body(body, model);
    if before.named("model").count() > 1 {
        return assert!(sent.is_none(), "readers would disagree on the model");
    }
    let sent = sent.expect("an object is read");
    assert_eq!(sent.untouched, body);
    assert_eq!(sent.length, sent.edited.len());

    let after = Members::of(&sent.edited).expect("an edited object is one");
    assert_eq!(before.others(), after.others());
    let written: Vec<String> =
        after.named("model").map(|value| serde_json::from_str(value.get()).unwrap()).collect();
    assert_eq!(written, [model]);

    let named = before.named("model").next();
    if let Some(value) = named {
        let start = value.get().as_ptr() as usize - body.as_ptr() as usize;
        let after = &body[start + value.get().len()..];
        assert!(sent.edited.starts_with(&body[..start]) && sent.edited.ends_with(after));
    } else {
        assert_eq!(after.0[0].0, "model");
    }
    let text = |value: &RawValue| serde_json::from_str::<String>(value.get()).ok();
    assert_eq!(sent.model, named.and_then(text));
    let last = |name: &str| before.named(name).next_back().map(RawValue::get);
    assert_eq!(sent.is_stream, last("stream") == Some("true"));
    assert_eq!(sent.is_stored, last("store") != Some("false"));
});
