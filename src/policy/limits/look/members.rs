//! What the members of a body say, by the place at which they stand.

use std::borrow::Cow;

use serde::de::{IgnoredAny, MapAccess};

use super::super::needs::UpperBound;
use super::super::parts::{Part, Wire, source};
use super::super::value::{Name, raw, skip, truth};
use super::{At, Found, Look};

/// A parameter's name is kept up to this length, and so many of them: what a client makes up must
/// not fill the memory.
const LONGEST_NAME: usize = 64;
const MOST_NAMES: usize = 64;

/// The types of a choice of a tool that do not force one. The last says in its `mode` whether one
/// of the allowed tools is required.
const NOT_FORCING: [&str; 3] = ["auto", "none", "allowed_tools"];

impl<'text> Found<'_, 'text> {
    pub(super) fn look<A: MapAccess<'text>>(
        &mut self,
        at: At,
        map: &mut A,
    ) -> Result<(), A::Error> {
        map.next_value_seed(Look { found: self, at })
    }

    pub(super) fn parameter<A: MapAccess<'text>>(
        &mut self,
        name: &str,
        map: &mut A,
    ) -> Result<(), A::Error> {
        match name {
            "max_tokens" => self.output("max_tokens", map)?,
            "max_completion_tokens" => self.output("max_completion_tokens", map)?,
            "max_output_tokens" => self.output("max_output_tokens", map)?,
            "thinking_budget" => self.budget("thinking_budget", map)?,
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

    pub(super) fn thinking<A: MapAccess<'text>>(
        &mut self,
        name: &str,
        map: &mut A,
    ) -> Result<(), A::Error> {
        match name {
            "type" => {
                let kind = Name::of(raw(map)?);
                self.said.kind = kind.map(|kind| kind != "disabled");
                Ok(())
            }
            "budget_tokens" => self.budget("budget_tokens", map),
            _ => skip(map),
        }
    }

    pub(super) fn reasoning<A: MapAccess<'text>>(
        &mut self,
        name: &str,
        map: &mut A,
    ) -> Result<(), A::Error> {
        match name {
            "effort" => self.effort(map),
            "budget_tokens" => self.budget("budget_tokens", map),
            "max_tokens" => self.budget("max_tokens", map),
            _ => skip(map),
        }
    }

    pub(super) fn output_config<A: MapAccess<'text>>(
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

    pub(super) fn message<A: MapAccess<'text>>(
        &mut self,
        name: &str,
        map: &mut A,
    ) -> Result<(), A::Error> {
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

    pub(super) fn part<A: MapAccess<'text>>(
        &mut self,
        name: &str,
        map: &mut A,
        part: &mut Part,
    ) -> Result<(), A::Error> {
        if let Some(source) = source(self.wire, name) {
            let is_whole = map.next_value_seed(source)?;
            let members = if is_whole { &mut part.sources } else { &mut part.broken };
            members.push(source.member);
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

    /// A text, a number or the like where a message or a part should be.
    pub(super) fn scalar(&mut self, at: At) {
        self.needs.has_odd_parts |= matches!(at, At::Message | At::Part);
    }

    pub(super) fn end_of_part(&mut self, part: &Part) {
        match part.media(self.wire) {
            Some(media) => self.needs.media = self.needs.media.and(media),
            None => self.needs.has_odd_parts = true,
        }
    }

    pub(super) fn tool(&mut self, kind: Option<&str>) {
        let kind = kind.filter(|kind| *kind != "function" && kind.len() <= LONGEST_NAME);
        if let Some(kind) = kind
            && self.needs.built_in_tools.len() < MOST_NAMES
        {
            self.needs.built_in_tools.insert(kind.to_owned());
        }
    }

    pub(super) fn tool_choice<A: MapAccess<'text>>(
        &mut self,
        name: &str,
        map: &mut A,
    ) -> Result<(), A::Error> {
        match name {
            "type" => {
                let kind = Name::of(raw(map)?);
                self.needs.forces_tool |= kind.is_some_and(|kind| !NOT_FORCING.contains(&&*kind));
                Ok(())
            }
            "mode" | "allowed_tools" => self.look(At::ToolChoice, map),
            _ => skip(map),
        }
    }

    pub(super) fn effort<A: MapAccess<'text>>(&mut self, map: &mut A) -> Result<(), A::Error> {
        let effort = Name::of(raw(map)?).filter(|effort| effort.len() <= LONGEST_NAME);
        self.needs.effort = effort.map(Cow::into_owned);
        Ok(())
    }

    fn output<A: MapAccess<'text>>(
        &mut self,
        name: &'static str,
        map: &mut A,
    ) -> Result<(), A::Error> {
        self.needs.outputs.extend(self.bound(name, raw(map)?));
        Ok(())
    }

    fn budget<A: MapAccess<'text>>(
        &mut self,
        name: &'static str,
        map: &mut A,
    ) -> Result<(), A::Error> {
        self.needs.budgets.extend(self.bound(name, raw(map)?));
        Ok(())
    }

    /// The number that is written there, if it is one above zero.
    fn bound(&self, name: &'static str, written: &str) -> Option<UpperBound> {
        let start = written.as_ptr() as usize - self.text.as_ptr() as usize;
        let span = start..start + written.len();
        let written = self.sent.get(span.clone())?;
        let whole = written.parse::<u64>().ok();
        // 64e3 is a number, too; one beyond all bounds is as large as there is.
        let value = whole.or_else(|| written.parse::<f64>().ok().map(|value| value as u64))?;
        (value > 0).then_some(UpperBound { name, value, span })
    }

    /// The text of this member, if it is the wanted one.
    pub(super) fn text_of<A: MapAccess<'text>>(
        &self,
        wanted: &str,
        name: &str,
        map: &mut A,
    ) -> Result<Option<Cow<'text, str>>, A::Error> {
        let value = raw(map)?;
        Ok(if name == wanted { Name::of(value) } else { None })
    }
}
