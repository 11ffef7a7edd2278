//! The one pass over a body in which everything is found that a limit may hang on.
//!
//! A place in the body is an [`At`]; what is not of interest there is skipped. Numbers are found
//! as raw text, so that their digits can be replaced where they stand.

mod members;

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::needs::{Needs, Thinking};
use super::parts::{Part, Wire};
use super::value::{Name, decodable, skip};

/// Looks through a body that has been read as JSON before.
pub(super) fn over(text: &str, wire: Wire, needs: &mut Needs) {
    let before = needs.clone();
    let said = once(text, text, wire, needs).unwrap_or_else(|said| match decodable(text) {
        Some(copy) => {
            *needs = before;
            once(text, &copy, wire, needs).unwrap_or_else(|said| said)
        }
        // It is nested beyond all reason. What was found before that counts.
        None => said,
    });
    let by_effort = needs.effort.as_deref().map(|effort| effort != "none");
    let by_budget = needs.most_budget().is_some_and(|budget| budget > 0).then_some(true);
    needs.thinking = match said.switch.or(said.kind).or(by_effort).or(by_budget) {
        None => Thinking::Unsaid,
        Some(true) => Thinking::On,
        Some(false) => Thinking::Off,
    };
}

/// One pass over `copy`, which is `sent` or has what can be decoded where that has something else.
/// `Err`: it had to end early.
fn once(sent: &str, copy: &str, wire: Wire, needs: &mut Needs) -> Result<Said, Said> {
    let mut found = Found { needs, sent, text: copy, wire, said: Said::default() };
    let mut deserializer = serde_json::Deserializer::from_str(copy);
    let ended = Look { found: &mut found, at: At::Top }.deserialize(&mut deserializer);
    let said = found.said;
    if ended.is_ok() { Ok(said) } else { Err(said) }
}

/// What was found so far, and in what.
struct Found<'n, 'text> {
    needs: &'n mut Needs,
    /// As the client wrote it, byte for byte as long as `text`.
    sent: &'n str,
    text: &'text str,
    wire: Wire,
    said: Said,
}

/// What a request says of thinking, in each way in which it may.
#[derive(Default)]
struct Said {
    /// `enable_thinking`.
    switch: Option<bool>,
    /// The type of `thinking`.
    kind: Option<bool>,
}

/// A place in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// The top level, and what DashScope's own protocol has in `parameters`.
    Top,
    /// `thinking`, `reasoning`, `output_config`, `text`.
    Thinking,
    Reasoning,
    OutputConfig,
    Text,
    /// `response_format` and its like.
    Format,
    Tools,
    Tool,
    ToolChoice,
    /// `modalities`.
    Modalities,
    /// A list of messages, or the object that has it in DashScope's own protocol.
    Messages,
    Message,
    /// A message's content, or what a tool gave.
    Content,
    /// An item of a content that is a list.
    Part,
}

/// Looks through the value at a place.
struct Look<'f, 'n, 'text> {
    found: &'f mut Found<'n, 'text>,
    at: At,
}

impl<'de> DeserializeSeed<'de> for Look<'_, '_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Look<'_, '_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { found, at } = self;
        let mut part = Part::default();
        while let Some(Name(name)) = map.next_key()? {
            match at {
                At::Top => found.parameter(&name, &mut map)?,
                At::Thinking => found.thinking(&name, &mut map)?,
                At::Reasoning => found.reasoning(&name, &mut map)?,
                At::OutputConfig => found.output_config(&name, &mut map)?,
                At::Text => match &*name {
                    "format" => found.look(At::Format, &mut map)?,
                    _ => skip(&mut map)?,
                },
                At::Format => {
                    let kind = found.text_of("type", &name, &mut map)?;
                    found.needs.wants_json |= kind.is_some_and(|kind| kind.starts_with("json"));
                }
                At::Tool => {
                    let kind = found.text_of("type", &name, &mut map)?;
                    found.tool(kind.as_deref());
                }
                At::ToolChoice => found.tool_choice(&name, &mut map)?,
                At::Messages => match &*name {
                    "messages" => found.look(At::Messages, &mut map)?,
                    _ => skip(&mut map)?,
                },
                At::Message => found.message(&name, &mut map)?,
                At::Content | At::Part => found.part(&name, &mut map, &mut part)?,
                At::Tools | At::Modalities => skip(&mut map)?,
            }
        }
        if at == At::Part {
            found.end_of_part(&part);
        }
        found.needs.has_odd_parts |= at == At::Content;
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Self { found, at } = self;
        found.needs.has_parts |= at == At::Content;
        let each = match at {
            At::Messages => At::Message,
            At::Tools => At::Tool,
            At::Content => At::Part,
            _ => at,
        };
        // A list in a list is neither a message nor a part.
        found.needs.has_odd_parts |= matches!(at, At::Message | At::Part);
        let mut is_empty = true;
        while list.next_element_seed(Look { found: &mut *found, at: each })?.is_some() {
            is_empty = false;
        }
        found.needs.has_tools |= at == At::Tools && !is_empty;
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        let Self { found, at } = self;
        match at {
            At::ToolChoice => found.needs.forces_tool |= matches!(text, "required" | "any"),
            At::Modalities => found.needs.wants_speech |= text == "audio",
            at => found.scalar(at),
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        self.found.scalar(self.at);
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        self.found.scalar(self.at);
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        self.found.scalar(self.at);
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        self.found.scalar(self.at);
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.found.scalar(self.at);
        Ok(())
    }
}
