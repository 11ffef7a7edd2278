//! What the stand-in is told to answer: replies, quotas, known keys and models.
//!
//! Pure memory: no socket, no clock, no lock.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::Call;
use super::gate::Gate;
use super::limits::Limit;
use super::refusals::{Refusal, Told};

/// What to answer to a request.
#[derive(Clone, Debug, Default)]
pub enum Reply {
    /// As DashScope would: 401, 404 and quotas included.
    #[default]
    Normal,
    /// The free quota of this slot is used up, in one of the shapes this has been seen in.
    Exhausted(Shape),
    /// The request is refused for another reason.
    Refused(Refusal, Told),
    /// A complete answer with exactly these headers (plus those of the framing), in one write.
    Answer {
        /// The status code.
        status: u16,
        /// The headers, in order.
        headers: Vec<(String, String)>,
        /// The body, before framing.
        body: Vec<u8>,
        /// How the body is delimited.
        framing: Framing,
    },
    /// A 200 whose body comes in parts, each written and flushed by itself.
    Stream {
        /// The headers, in order.
        headers: Vec<(String, String)>,
        /// The body.
        parts: Vec<Part>,
        /// How the body is delimited.
        framing: Framing,
        /// What happens after the last part.
        end: End,
    },
    /// A 200 whose head goes out at once and whose part `n` waits until [`Gate::release`] was
    /// called more than `n` times; the end waits for nothing.
    Gated {
        /// Who lets the parts out, from [`StandIn::gate`](super::StandIn::gate).
        gate: Gate,
        /// The headers, in order.
        headers: Vec<(String, String)>,
        /// The body.
        parts: Vec<Vec<u8>>,
        /// How the body is delimited.
        framing: Framing,
        /// What happens after the last part.
        end: End,
    },
    /// Sends nothing until the gate was released once, then goes on with `then`.
    Held {
        /// Who lets the answer out.
        gate: Gate,
        /// What is answered then.
        then: Box<Reply>,
    },
    /// Sends nothing for a while, then goes on with `then`.
    Delay {
        /// How long.
        before_head: Duration,
        /// What is answered then.
        then: Box<Reply>,
    },
    /// Plays the reply without a word about the connection, then closes it (FIN): an idle
    /// keep-alive connection that went stale.
    CloseAfterAnswer(Box<Reply>),
    /// This on a connection that has served a request before, a normal answer on a fresh one.
    OnUsed(Box<Reply>),
    /// Reads the request, then stays silent with the connection open.
    HangBeforeHead,
    /// Reads the request, then closes the connection (FIN).
    CloseBeforeHead,
    /// Reads the request, then resets the connection (RST).
    ResetBeforeHead,
}

impl Reply {
    /// A complete answer with one header, `content-type`, and a content length.
    #[must_use]
    pub fn body(status: u16, content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        let headers = vec![("content-type".to_owned(), content_type.to_owned())];
        Self::Answer { status, headers, body: body.into(), framing: Framing::Length }
    }

    /// A complete JSON answer.
    #[must_use]
    pub fn json(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self::body(status, "application/json", body)
    }

    /// A chunked event stream.
    #[must_use]
    pub fn sse(parts: Vec<Part>, end: End) -> Self {
        Self::Stream { headers: event_stream(), parts, framing: Framing::Chunked, end }
    }

    /// A chunked event stream whose parts the test lets out one by one.
    #[must_use]
    pub fn gated_sse<B: Into<Vec<u8>>>(gate: &Gate, parts: Vec<B>, end: End) -> Self {
        Self::Gated {
            gate: gate.clone(),
            headers: event_stream(),
            parts: parts.into_iter().map(Into::into).collect(),
            framing: Framing::Chunked,
            end,
        }
    }
}

fn event_stream() -> Vec<(String, String)> {
    vec![("content-type".to_owned(), "text/event-stream;charset=UTF-8".to_owned())]
}

/// A piece of a streamed body.
#[derive(Clone, Debug)]
pub struct Part {
    /// The wait before it.
    pub after: Duration,
    /// Its bytes, written and flushed by themselves (one chunk, if chunked).
    pub bytes: Vec<u8>,
}

impl Part {
    /// A part that follows at once.
    #[must_use]
    pub fn now(bytes: impl Into<Vec<u8>>) -> Self {
        Self::after(Duration::ZERO, bytes)
    }

    /// A part that follows after a wait.
    #[must_use]
    pub fn after(after: Duration, bytes: impl Into<Vec<u8>>) -> Self {
        Self { after, bytes: bytes.into() }
    }
}

/// How a body is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// `content-length`. With an [`End`] other than clean it promises more than is sent.
    Length,
    /// `transfer-encoding: chunked`, a chunk for each part.
    Chunked,
    /// `connection: close`: the body ends with the connection, so [`End::Fin`] is no cut here.
    UntilClose,
}

/// What happens after the last part of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The body is completed and the connection kept.
    Clean,
    /// Cut: the connection is closed (FIN) before the body is complete.
    Fin,
    /// Cut: the connection is reset (RST).
    Reset,
    /// Nothing more is sent and the connection stays open.
    Hang,
}

/// The shapes in which DashScope (or a gateway before it) says that a free quota is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// 403, OpenAI's nested error with code and type.
    Nested,
    /// 403, `{request_id, code, message}`: native and `/apps/anthropic`.
    Flat,
    /// 403, nested, with `code` alone.
    CodeOnly,
    /// 403, nested, with `type` alone.
    TypeOnly,
    /// 403, flat `AccessDenied` whose message says that the free tier has been exhausted.
    AccessDeniedWords,
    /// 403, nested `insufficient_quota` whose message says that the free quota is exhausted.
    InsufficientQuotaWords,
    /// 403, `text/event-stream`, one `data: {…}` event.
    SseFramed,
    /// 403, one `data: {…}` event that calls itself `application/json`.
    SseFramedAsJson,
    /// 403, `text/event-stream`, one native `event:error` frame.
    SseFramedNative,
    /// 403, nested, gzip.
    Gzip,
    /// 403, nested, in many small chunks.
    Chunked,
    /// 200, `text/event-stream`, the first event is OpenAI's nested error.
    FirstEventOf200,
    /// 200, `text/event-stream`, the first event is a native `event:error` with
    /// `:HTTP_STATUS/403`.
    FirstEventOf200Native,
    /// [`Shape::Nested`] with status 400.
    Status400,
    /// [`Shape::Nested`] with status 429.
    Status429,
    /// [`Shape::Nested`], pretty-printed.
    Pretty,
    /// [`Shape::Nested`] with code and type in lower case.
    LowerCase,
    /// 403, nested `permission_error` whose message says that the free tier has been exhausted.
    PermissionWords,
    /// 403, a message and no code.
    MessageOnly,
    /// 403, flat `Forbidden` whose message begins with the code.
    CodeInMessage,
    /// 403, `Code`, `Message` and `RequestId`, as Alibaba's older gateways write them.
    Capitalised,
    /// 403, `error` as a text of JSON.
    ErrorAsText,
    /// 403, `error` as a sentence.
    ErrorAsSentence,
    /// 403, `data: {…}` and `data: [DONE]` in one event.
    DataLines,
    /// 200, `text/event-stream`, behind events that carry nothing.
    BehindKeepAlives,
    /// 200, `text/event-stream`, as a `response.failed`.
    ResponseFailed,
    /// 200, `text/event-stream`, OpenAI's `insufficient_quota` with the words.
    FirstEventOf200Words,
}

impl Shape {
    /// Every shape.
    pub const ALL: [Shape; 27] = [
        Shape::Nested,
        Shape::Flat,
        Shape::CodeOnly,
        Shape::TypeOnly,
        Shape::AccessDeniedWords,
        Shape::InsufficientQuotaWords,
        Shape::SseFramed,
        Shape::SseFramedAsJson,
        Shape::SseFramedNative,
        Shape::Gzip,
        Shape::Chunked,
        Shape::FirstEventOf200,
        Shape::FirstEventOf200Native,
        Shape::Status400,
        Shape::Status429,
        Shape::Pretty,
        Shape::LowerCase,
        Shape::PermissionWords,
        Shape::MessageOnly,
        Shape::CodeInMessage,
        Shape::Capitalised,
        Shape::ErrorAsText,
        Shape::ErrorAsSentence,
        Shape::DataLines,
        Shape::BehindKeepAlives,
        Shape::ResponseFailed,
        Shape::FirstEventOf200Words,
    ];
}

type Pair = (String, String);

/// Looks at a request and says what to answer; `None` leaves that to the rest of the script.
pub(super) type Decide = Arc<dyn Fn(&Call) -> Option<Reply> + Send + Sync>;

/// Everything a test can set, and how much of each quota is spent.
#[derive(Default)]
pub(super) struct Script {
    decide: Option<Decide>,
    once: VecDeque<(Pair, Reply)>,
    always: HashMap<Pair, Reply>,
    limits: HashMap<Pair, u64>,
    default_limit: Option<u64>,
    spent: HashMap<Pair, u64>,
    keys: Option<HashSet<String>>,
    models: Option<HashSet<String>>,
    refused: HashMap<String, Vec<Limit>>,
}

impl Script {
    pub(super) fn set_decide(&mut self, decide: Decide) {
        self.decide = Some(decide);
    }

    /// Who is asked before [`Script::next_reply`], and without the lock.
    pub(super) fn decide(&self) -> Option<Decide> {
        self.decide.clone()
    }

    pub(super) fn set_reply(&mut self, key: &str, model: &str, reply: Reply) {
        self.always.insert(pair(key, model), reply);
    }

    pub(super) fn queue_reply(&mut self, key: &str, model: &str, reply: Reply) {
        self.once.push_back((pair(key, model), reply));
    }

    pub(super) fn set_keys(&mut self, keys: Option<HashSet<String>>) {
        self.keys = keys;
    }

    pub(super) fn set_models(&mut self, models: Option<HashSet<String>>) {
        self.models = models;
    }

    pub(super) fn set_limits(&mut self, model: &str, limits: Vec<Limit>) {
        self.refused.insert(model.to_owned(), limits);
    }

    /// What a model refuses.
    pub(super) fn limits_of(&self, model: &str) -> &[Limit] {
        self.refused.get(model).map_or(&[], Vec::as_slice)
    }

    /// Counting starts again for the slots it is about.
    pub(super) fn set_quota(&mut self, key: &str, model: &str, successes: u64) {
        let about = pair(key, model);
        self.spent.retain(|slot, _| !matches(&about, Some(&slot.0), Some(&slot.1)));
        self.limits.insert(about, successes);
    }

    /// Counting starts again for the slots that have no quota of their own.
    pub(super) fn set_default_quota(&mut self, successes: Option<u64>) {
        let limits = &self.limits;
        self.spent.retain(|slot, _| best(limits, Some(&slot.0), Some(&slot.1)).is_some());
        self.default_limit = successes;
    }

    pub(super) fn clear(&mut self) {
        let (keys, models) = (self.keys.take(), self.models.take());
        let refused = std::mem::take(&mut self.refused);
        *self = Self { keys, models, refused, ..Self::default() };
    }

    /// The reply for this request: the first queued one that fits, else the fixed one that fits
    /// most closely, else a normal answer.
    pub(super) fn next_reply(&mut self, key: Option<&str>, model: Option<&str>) -> Reply {
        if let Some(index) = self.once.iter().position(|(about, _)| matches(about, key, model))
            && let Some((_, reply)) = self.once.remove(index)
        {
            return reply;
        }
        best(&self.always, key, model).cloned().unwrap_or_default()
    }

    pub(super) fn knows_key(&self, key: &str) -> bool {
        self.keys.as_ref().is_none_or(|keys| keys.contains(key))
    }

    pub(super) fn knows_model(&self, model: &str) -> bool {
        self.models.as_ref().is_none_or(|models| models.contains(model))
    }

    /// Takes one success from the slot's quota; false when there is none left.
    pub(super) fn spend(&mut self, key: &str, model: &str) -> bool {
        let limit = best(&self.limits, Some(key), Some(model)).copied().or(self.default_limit);
        let Some(limit) = limit else { return true };
        let spent = self.spent.entry(pair(key, model)).or_default();
        if *spent >= limit {
            return false;
        }
        *spent += 1;
        true
    }
}

fn pair(key: &str, model: &str) -> Pair {
    (key.to_owned(), model.to_owned())
}

/// Whether a setting for this pair (`*` is any) is about this request.
fn matches(about: &Pair, key: Option<&str>, model: Option<&str>) -> bool {
    let fits = |wanted: &str, value: Option<&str>| wanted == "*" || value == Some(wanted);
    fits(&about.0, key) && fits(&about.1, model)
}

/// The closest setting: the pair itself, then the key with any model, the model with any key, any.
fn best<'a, T>(
    settings: &'a HashMap<Pair, T>,
    key: Option<&str>,
    model: Option<&str>,
) -> Option<&'a T> {
    let (key, model) = (key.unwrap_or("*"), model.unwrap_or("*"));
    [(key, model), (key, "*"), ("*", model), ("*", "*")]
        .iter()
        .find_map(|(key, model)| settings.get(&pair(key, model)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_spent_per_slot() {
        let mut script = Script::default();
        script.set_quota("k1", "*", 1);
        assert!(script.spend("k1", "m1"));
        assert!(!script.spend("k1", "m1"));
        assert!(script.spend("k1", "m2"));
        assert!(script.spend("k2", "m1"));
        script.set_quota("k1", "m1", 1);
        assert!(script.spend("k1", "m1"));
        assert!(!script.spend("k1", "m2"));
    }

    #[test]
    fn the_closest_reply_wins_and_a_queued_one_goes_first() {
        let mut script = Script::default();
        script.set_reply("*", "*", Reply::HangBeforeHead);
        script.set_reply("k1", "m1", Reply::CloseBeforeHead);
        script.queue_reply("k1", "*", Reply::ResetBeforeHead);
        let mut next = |key, model| script.next_reply(Some(key), Some(model));
        assert!(matches!(next("k2", "m1"), Reply::HangBeforeHead));
        assert!(matches!(next("k1", "m1"), Reply::ResetBeforeHead));
        assert!(matches!(next("k1", "m1"), Reply::CloseBeforeHead));
        assert!(matches!(script.next_reply(None, None), Reply::HangBeforeHead));
    }
}
