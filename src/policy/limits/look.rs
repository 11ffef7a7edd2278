//! The one pass over a body in which everything is found that a limit may hang on.
//!
//! A place in the body is an [`At`]; what is not of interest there is skipped. Numbers are found
//! as raw text, so that their digits can be replaced where they stand.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::needs::{Needs, Thinking, UpperBound};
use super::parts::{Part, SOURCES, Wire};
use super::value::{Name, Source, raw, skip, truth};

/// A parameter's name is kept up to this length, and so many of them: what a client makes up must
/// not fill the memory.
const LONGEST_NAME: usize = 64;
const MOST_NAMES: usize = 64;

/// Looks through a body.
pub(super) fn over(text: &str, wire: Wire, needs: &mut Needs) {
    let mut found = Found { needs, text, wire, said: Said::default() };
    // What was found before an error counts. There is none in JSON that has been read before,
    // but for parts that are nested beyond all reason.
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let _ = Look { found: &mut found, at: At::Top }.deserialize(&mut deserializer);
    let said = found.said;
    let by_effort = needs.effort.as_deref().map(|effort| effort != "none");
    let by_budget = needs.most_budget().is_some_and(|budget| budget > 0).then_some(true);
    needs.thinking = match said.switch.or(said.kind).or(by_effort).or(by_budget) {
        None => Thinking::Unsaid,
        Some(true) => Thinking::On,
        Some(false) => Thinking::Off,
    };
}

/// What was found so far, and in what.
struct Found<'n, 'text> {
    needs: &'n mut Needs,
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
                At::ToolChoice => {
                    let kind = found.text_of("type", &name, &mut map)?;
                    found.needs.forces_tool |=
                        kind.is_some_and(|kind| kind != "auto" && kind != "none");
                }
                At::Messages => match &*name {
                    "messages" => found.look(At::Messages, &mut map)?,
                    _ => skip(&mut map)?,
                },
                At::Message => found.message(&name, &mut map)?,
                At::Content => found.part(&name, &mut map, &mut part)?,
                At::Tools | At::Modalities => skip(&mut map)?,
            }
        }
        if at == At::Content {
            found.end_of_part(&part);
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Self { found, at } = self;
        found.needs.has_parts |= at == At::Content;
        let each = match at {
            At::Messages => At::Message,
            At::Tools => At::Tool,
            _ => at,
        };
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
            _ => {}
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

impl<'text> Found<'_, 'text> {
    fn look<A: MapAccess<'text>>(&mut self, at: At, map: &mut A) -> Result<(), A::Error> {
        map.next_value_seed(Look { found: self, at })
    }

    fn parameter<A: MapAccess<'text>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "max_tokens" => self.needs.outputs.extend(self.bound("max_tokens", raw(map)?)),
            "max_completion_tokens" => {
                self.needs.outputs.extend(self.bound("max_completion_tokens", raw(map)?))
            }
            "max_output_tokens" => {
                self.needs.outputs.extend(self.bound("max_output_tokens", raw(map)?))
            }
            "thinking_budget" => {
                self.needs.budgets.extend(self.bound("thinking_budget", raw(map)?))
            }
            "enable_thinking" => self.said.switch = truth(raw(map)?),
            "incremental_output" => self.needs.increments = truth(raw(map)?),
            "enable_search" => self.needs.searches |= raw(map)? == "true",
            "reasoning_effort" => self.effort(map)?,
            "thinking" => self.look(At::Thinking, map)?,
            "reasoning" => self.look(At::Reasoning, map)?,
            "output_config" => self.look(At::OutputConfig, map)?,
            "text" => self.look(At::Text, map)?,
            "response_format" | "output_format" => self.look(At::Format, map)?,
            "tools" | "functions" => self.look(At::Tools, map)?,
            "tool_choice" => self.look(At::ToolChoice, map)?,
            "modalities" => self.look(At::Modalities, map)?,
            "messages" | "input" => self.look(At::Messages, map)?,
            "parameters" if self.wire == Wire::Native => return self.look(At::Top, map),
            "system" | "instructions" => {
                self.needs.has_other_roles |= !matches!(raw(map)?, "null" | "\"\"" | "[]");
            }
            _ if map.next_value::<Option<IgnoredAny>>()?.is_none() => return Ok(()),
            _ => {}
        }
        if name.len() <= LONGEST_NAME && self.needs.parameters.len() < MOST_NAMES {
            self.needs.parameters.insert(name.to_owned());
        }
        Ok(())
    }

    fn thinking<A: MapAccess<'text>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "type" => {
                let kind = Name::of(raw(map)?);
                self.said.kind = kind.map(|kind| kind != "disabled");
                Ok(())
            }
            "budget_tokens" => {
                self.needs.budgets.extend(self.bound("budget_tokens", raw(map)?));
                Ok(())
            }
            _ => skip(map),
        }
    }

    fn reasoning<A: MapAccess<'text>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "effort" => self.effort(map),
            "budget_tokens" => {
                self.needs.budgets.extend(self.bound("budget_tokens", raw(map)?));
                Ok(())
            }
            "max_tokens" => {
                self.needs.budgets.extend(self.bound("max_tokens", raw(map)?));
                Ok(())
            }
            _ => skip(map),
        }
    }

    fn output_config<A: MapAccess<'text>>(
        &mut self,
        name: &str,
        map: &mut A,
    ) -> Result<(), A::Error> {
        match name {
            "effort" => self.effort(map),
            "format" => self.look(At::Format, map),
            _ => skip(map),
        }
    }

    fn message<A: MapAccess<'text>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "role" => {
                let role = raw(map)?;
                self.needs.has_other_roles |= !matches!(role, "\"user\"" | "\"assistant\"");
                Ok(())
            }
            "content" => self.look(At::Content, map),
            "output" if self.wire == Wire::Responses => self.look(At::Content, map),
            _ => skip(map),
        }
    }

    fn part<A: MapAccess<'text>>(
        &mut self,
        name: &str,
        map: &mut A,
        part: &mut Part,
    ) -> Result<(), A::Error> {
        if let Some(source) = SOURCES.into_iter().find(|source| *source == name) {
            if map.next_value_seed(Source)? {
                part.sources.push(source);
            }
            return Ok(());
        }
        match name {
            "type" => part.kind = Name::of(raw(map)?).map(Cow::into_owned),
            // What a tool gave may hold pictures.
            "content" if self.wire == Wire::Messages => self.look(At::Content, map)?,
            _ => skip(map)?,
        }
        Ok(())
    }

    fn end_of_part(&mut self, part: &Part) {
        match part.media(self.wire) {
            Some(media) => self.needs.media = self.needs.media.and(media),
            None => self.needs.has_odd_parts = true,
        }
    }

    fn tool(&mut self, kind: Option<&str>) {
        let kind = kind.filter(|kind| *kind != "function" && kind.len() <= LONGEST_NAME);
        if let Some(kind) = kind
            && self.needs.built_in_tools.len() < MOST_NAMES
        {
            self.needs.built_in_tools.insert(kind.to_owned());
        }
    }

    fn effort<A: MapAccess<'text>>(&mut self, map: &mut A) -> Result<(), A::Error> {
        let effort = Name::of(raw(map)?).filter(|effort| effort.len() <= LONGEST_NAME);
        self.needs.effort = effort.map(Cow::into_owned);
        Ok(())
    }

    /// The number that is written there, if it is one above zero.
    fn bound(&self, name: &'static str, written: &str) -> Option<UpperBound> {
        let start = written.as_ptr() as usize - self.text.as_ptr() as usize;
        let span = start..start + written.len();
        let whole = written.parse::<u64>().ok();
        // 64e3 is a number, too; one beyond all bounds is as large as there is.
        let value = whole.or_else(|| written.parse::<f64>().ok().map(|value| value as u64))?;
        (value > 0).then_some(UpperBound { name, value, span })
    }

    /// The text of this member, if it is the wanted one.
    fn text_of<A: MapAccess<'text>>(
        &self,
        wanted: &str,
        name: &str,
        map: &mut A,
    ) -> Result<Option<Cow<'text, str>>, A::Error> {
        let value = raw(map)?;
        Ok(if name == wanted { Name::of(value) } else { None })
    }
}
