//! Single values of a body, taken as they are written.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::parts::Source;

/// Passes a value over.
pub(super) fn skip<'de, A: MapAccess<'de>>(map: &mut A) -> Result<(), A::Error> {
    map.next_value::<IgnoredAny>().map(drop)
}

/// A value as it is written.
pub(super) fn raw<'de, A: MapAccess<'de>>(map: &mut A) -> Result<&'de str, A::Error> {
    map.next_value::<&RawValue>().map(RawValue::get)
}

/// The truth value that is written there, if it is one.
pub(super) fn truth(written: &str) -> Option<bool> {
    match written {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

/// A text without its escapes; copied only if it has any.
#[derive(Deserialize)]
#[serde(transparent)]
pub(super) struct Name<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

impl<'a> Name<'a> {
    /// The text that is written there, if it is one.
    pub(super) fn of(written: &'a str) -> Option<Cow<'a, str>> {
        serde_json::from_str(written).ok().map(|Self(text)| text)
    }
}

/// A copy of a JSON text in which everything can be decoded, byte for byte as long; `None` if all of
/// it can be as it is. Half of a surrogate pair, which clients leave that cut a text, becomes the
/// sign for what cannot be shown, and a number that is too large for a float becomes zero.
pub(super) fn decodable(json: &str) -> Option<String> {
    let mut bytes = json.as_bytes().to_vec();
    let (mut at, mut is_in_text) = (0, false);
    while let Some(byte) = bytes.get(at) {
        at += match byte {
            b'"' => {
                is_in_text = !is_in_text;
                1
            }
            b'\\' if is_in_text => {
                let escape = bytes.get_mut(at + 1..at + 6).filter(|it| is_surrogate(it));
                escape.into_iter().for_each(|escape| escape.copy_from_slice(b"ufffd"));
                2
            }
            b'-' | b'0'..=b'9' if !is_in_text => without_infinity(&mut bytes[at..]),
            _ => 1,
        };
    }
    String::from_utf8(bytes).ok().filter(|copy| copy != json)
}

/// Whether these five bytes are the escape of one half of a pair, behind its backslash.
fn is_surrogate(escape: &[u8]) -> bool {
    matches!(escape, [b'u', b'd' | b'D', b'8'..=b'9' | b'a'..=b'f' | b'A'..=b'F', ..])
}

/// Makes the number at the start zero if it is too large, and says how long it is.
fn without_infinity(json: &mut [u8]) -> usize {
    let is_of_number = |byte: &u8| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-');
    let length = json.iter().take_while(|byte| is_of_number(byte)).count();
    let number = &mut json[..length];
    let value = std::str::from_utf8(number).ok().and_then(|number| number.parse::<f64>().ok());
    if value.is_some_and(f64::is_infinite) {
        number.fill(b'0');
        number[1] = b'.';
    }
    length
}

impl<'de> DeserializeSeed<'de> for Source {
    type Value = bool;

    /// Whether a part has its text or its medium there, or says where that is.
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Source {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_str<E>(self, text: &str) -> Result<bool, E> {
        // A text may be empty, a medium cannot be.
        Ok(self.is_text && (self.member == "text" || !text.is_empty()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        let mut is_whole = false;
        while let Some(Name(name)) = map.next_key()? {
            let value = raw(&mut map)?;
            is_whole |= self.places.contains(&&*name) && is_text(value);
        }
        Ok(is_whole)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<bool, A::Error> {
        let (mut count, mut texts) = (0, 0);
        while let Some(value) = list.next_element::<&RawValue>()? {
            count += 1;
            texts += usize::from(is_text(value.get()));
        }
        Ok(self.is_list && count > 0 && texts == count)
    }

    fn visit_bool<E>(self, _: bool) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_i64<E>(self, _: i64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_u64<E>(self, _: u64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_f64<E>(self, _: f64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(false)
    }
}

/// Whether a value as it is written is a text with something in it.
fn is_text(written: &str) -> bool {
    written.starts_with('"') && written.len() > 2
}
