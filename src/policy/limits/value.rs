//! Single values of a body, taken as they are written.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

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

/// Tells whether a value is a medium or says where one is: a text with something in it, a list of
/// such, or an object that has one in a member of which that is known.
pub(super) struct Source;

impl<'de> DeserializeSeed<'de> for Source {
    type Value = bool;

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
        Ok(!text.is_empty())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        let mut is_source = false;
        while let Some(Name(name)) = map.next_key()? {
            let value = raw(&mut map)?;
            let is_text = value.starts_with('"') && value.len() > 2;
            let is_place = matches!(&*name, "url" | "data" | "file_id" | "file_data" | "file_url");
            is_source |= is_place && is_text;
        }
        Ok(is_source)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<bool, A::Error> {
        let mut is_source = false;
        while let Some(value) = list.next_element::<&RawValue>()? {
            is_source |= value.get().starts_with('"') && value.get().len() > 2;
        }
        Ok(is_source)
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
