//! An error as any of DashScope's envelopes carries it, and what it says of itself.
//!
//! Nested under `error` or flat, in JSON or framed as an event, with member names in any case
//! (Alibaba's older gateways write `Code` and `Message`), `error` as an object, as a text or as a
//! text of JSON. Whether it matters, and what it means, is decided in `verdict`.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::MAX_ERROR_PREFIX;
use crate::policy::sse::{self, Event};

/// How deep errors are unwrapped: `{"response":{"error":"{\"error\":{…}}"}}`.
const DEEPEST: u32 = 3;

/// What gateways that always send a code send with a success.
const NO_ERROR: [&str; 3] = ["success", "ok", ""];

/// Members that are there and say nothing.
const EMPTY: [&str; 5] = ["null", "false", "\"\"", "{}", "[]"];

/// The types of events that say that a request failed. Of those that begin like OpenAI's no other
/// does: a tool's own error may stand in them.
const FAILED: [&str; 2] = ["error", "response.failed"];
const TYPED: &str = "response.";

/// The codes and types that stand for a status where none is told, as beginnings in lower case:
/// DashScope's own, OpenAI's and Anthropic's.
const STATUS_OF_CODE: &[(&str, u16)] = &[
    ("allocationquota.", 403),
    ("invalidapikey", 401),
    ("invalid_api_key", 401),
    ("throttling", 429),
    ("limitrequests", 429),
    ("limit_", 429),
    ("rate_limit", 429),
    ("ratelimit", 429),
    ("too_many_requests", 429),
    ("toomanyrequests", 429),
    ("insufficient_quota", 429),
    ("quotaexhausted", 429),
    ("overloaded", 503),
    ("modelservingerror", 503),
    ("modelunavailable", 503),
    ("service_unavailable", 503),
    ("serviceunavailable", 503),
    ("invalid", 400),
    ("badrequest", 400),
    ("bad_request", 400),
    ("datainspection", 400),
    ("data_inspection", 400),
    ("context_length", 400),
    ("internalerror.algo.invalidparameter", 400),
    ("internal", 500),
    ("systemerror", 500),
    ("modelservicefailed", 500),
    ("requesttimeout", 500),
    ("timeout_error", 500),
    ("api_error", 500),
    ("server_error", 500),
    ("authentication_error", 401),
    ("permission", 403),
    ("accessdenied", 403),
    ("access_denied", 403),
    ("forbidden", 403),
    ("not_found", 404),
    ("request_too_large", 413),
];

/// An error: what it is called and what it says.
#[derive(Debug, Default)]
pub(super) struct Fault {
    /// Its codes and types, the innermost first.
    pub codes: Vec<String>,
    /// Its messages likewise.
    pub messages: Vec<String>,
    /// The status that it tells of itself.
    pub status: Option<u16>,
}

impl Fault {
    /// The error in the body of an answer that is no success: JSON, else the first event that is.
    pub(super) fn of_body(body: &[u8]) -> Option<Self> {
        let is_cut = body.len() >= MAX_ERROR_PREFIX;
        let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
        let whole = Envelope::read(body, is_cut, false);
        let framed = || sse::data_lines(body).find_map(|line| Envelope::read(line, is_cut, true));
        let joined = || {
            let finished = [body, b"\n\n"].concat();
            sse::events(&finished)
                .find_map(|event| Envelope::read(&event.data, is_cut, false).map(Self::of))
        };
        whole.or_else(framed).map(Self::of).or_else(joined)
    }

    /// The error that an event is, if it is one. Text that a model wrote is never one: it stands
    /// inside of a member, and no member's text is looked at but an error's.
    pub(super) fn of_event(event: &Event) -> Option<Self> {
        let is_named = FAILED.iter().any(|name| event.name.eq_ignore_ascii_case(name.as_bytes()))
            || event.status.is_some_and(|status| status >= 400);
        let Some(envelope) = Envelope::read(&event.data, false, false) else {
            let said = String::from_utf8_lossy(&event.data).trim().to_owned();
            let (messages, status) = (vec![said], event.status);
            return is_named.then(|| Self { messages, status, ..Self::default() });
        };
        if !is_named && !envelope.is_error() {
            return None;
        }
        let mut fault = Self::of(envelope);
        fault.status = event.status.filter(|status| *status >= 400).or(fault.status);
        Some(fault)
    }

    fn of(envelope: Envelope<'_>) -> Self {
        let mut fault = Self::default();
        fault.take(&envelope, DEEPEST);
        fault
    }

    /// Adds what an envelope says, what it holds first.
    fn take(&mut self, envelope: &Envelope<'_>, deepest: u32) {
        let inner = [envelope.response, envelope.error].into_iter().flatten();
        let spoken: Vec<String> =
            inner.filter_map(|inner| self.take_inner(inner.get(), deepest)).collect();
        for code in [&envelope.code, &envelope.r#type].into_iter().flatten() {
            match number(code) {
                Some(status) => self.status = self.status.or(Some(status)),
                None => self.codes.extend(text(code)),
            }
        }
        self.status = self.status.or_else(|| envelope.status.as_ref().and_then(number));
        self.messages.extend(envelope.message.as_ref().and_then(text));
        self.messages.extend(spoken);
    }

    /// Adds what the member of an envelope says; what it says in mere words is handed back.
    fn take_inner(&mut self, json: &str, deepest: u32) -> Option<String> {
        let deepest = deepest.checked_sub(1)?;
        if let Some(envelope) = Envelope::read(json.as_bytes(), false, false) {
            self.take(&envelope, deepest);
            return None;
        }
        let said = serde_json::from_str::<String>(json).ok()?;
        if let Some(envelope) = Envelope::read(said.as_bytes(), false, false) {
            self.take(&envelope, deepest);
            return None;
        }
        // A single word is a code, as OAuth's servers have it.
        if !said.contains(char::is_whitespace) {
            self.codes.push(said);
            return None;
        }
        Some(said)
    }

    /// Whether it has one of these codes.
    pub(super) fn has_code(&self, wanted: &[&str]) -> bool {
        self.codes.iter().any(|code| wanted.iter().any(|wanted| code.eq_ignore_ascii_case(wanted)))
    }

    /// Whether a message holds one of these, which are in lower case.
    pub(super) fn says(&self, words: &[&str]) -> bool {
        self.messages.iter().any(|message| says(message, words))
    }

    /// `InternalError`, `InternalError.Algo` and so on; on the OpenAI protocol
    /// `internal_server_error`.
    pub(super) fn is_internal(&self) -> bool {
        self.codes.iter().any(|code| {
            let code = code.to_ascii_lowercase();
            code.starts_with("internalerror") || code == "internal_server_error"
        })
    }

    /// The status that its first telling code stands for.
    pub(super) fn status_of_codes(&self) -> Option<u16> {
        self.codes.iter().find_map(|code| {
            let code = code.to_ascii_lowercase();
            let known = STATUS_OF_CODE.iter().find(|(start, _)| code.starts_with(start));
            known.map(|(_, status)| *status)
        })
    }
}

/// The members that may tell, as far as they have been read.
#[derive(Default)]
struct Envelope<'de> {
    error: Option<&'de RawValue>,
    /// The events of a response carry their error in it.
    response: Option<&'de RawValue>,
    code: Option<Value>,
    r#type: Option<Value>,
    message: Option<Value>,
    status: Option<Value>,
    /// Whether there is something that only an answer has.
    is_answer: bool,
}

impl<'de> Envelope<'de> {
    /// `is_cut`: it may go on beyond what is looked at, and then what was read of it counts.
    /// `goes_on`: something else may follow it.
    fn read(json: &'de [u8], is_cut: bool, goes_on: bool) -> Option<Self> {
        let mut envelope = Self::default();
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        let read = Filling(&mut envelope).deserialize(&mut deserializer);
        let ended = read.and_then(|()| if goes_on { Ok(()) } else { deserializer.end() });
        match ended {
            Ok(()) => Some(envelope),
            Err(error) if error.is_eof() && is_cut => Some(envelope),
            Err(_) => None,
        }
    }

    fn has_error(&self) -> bool {
        self.error.is_some_and(|error| !EMPTY.contains(&error.get()))
    }

    /// Whether an event with this payload says that something failed.
    fn is_error(&self) -> bool {
        let kind = self.r#type.as_ref().and_then(Value::as_str).unwrap_or_default();
        let has_failed = FAILED.iter().any(|failed| kind.eq_ignore_ascii_case(failed));
        if has_failed || kind.starts_with(TYPED) {
            let response = self.response.map(|response| response.get().as_bytes());
            let response = response.and_then(|json| Self::read(json, false, false));
            return has_failed || response.is_some_and(|response| response.has_error());
        }
        if self.has_error() {
            return true;
        }
        let code = self.code.as_ref().filter(|_| !self.is_answer);
        code.is_some_and(|code| match code {
            Value::String(text) => {
                !NO_ERROR.iter().any(|fine| text.eq_ignore_ascii_case(fine))
                    && text.parse::<u16>().map_or(true, |status| status >= 400)
            }
            code => number(code).is_some(),
        })
    }
}

/// Fills an envelope member by member, so that what was read before an end counts.
struct Filling<'a, 'de>(&'a mut Envelope<'de>);

impl<'de> DeserializeSeed<'de> for Filling<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Filling<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self(envelope) = self;
        while let Some(member) = map.next_key::<String>()? {
            match member.to_ascii_lowercase().as_str() {
                "error" => envelope.error = map.next_value()?,
                "response" => envelope.response = map.next_value()?,
                "code" => envelope.code = map.next_value()?,
                "type" => envelope.r#type = map.next_value()?,
                "message" => envelope.message = map.next_value()?,
                "status" | "status_code" | "statuscode" | "http_status" => {
                    envelope.status = map.next_value()?;
                }
                "choices" | "output" | "delta" | "content" => {
                    let told: &RawValue = map.next_value()?;
                    envelope.is_answer |= !EMPTY.contains(&told.get());
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// Whether a text holds one of these, which are in lower case.
pub(super) fn says(text: &str, words: &[&str]) -> bool {
    let text = text.to_ascii_lowercase();
    words.iter().any(|word| text.contains(word))
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// A status that tells of an error, as a number or in digits.
fn number(value: &Value) -> Option<u16> {
    let number = match value {
        Value::Number(number) => number.as_u64()?.try_into().ok()?,
        Value::String(digits) => digits.parse().ok()?,
        _ => return None,
    };
    (400..600).contains(&number).then_some(number)
}
