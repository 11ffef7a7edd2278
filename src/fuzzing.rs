//! What the fuzz targets of `tests/fuzz` reach of the pure parsers. It is there only under
//! `--cfg fuzzing`, and it speaks in plain bytes and texts, so that nothing else has to be public
//! for it.

use std::io::Read;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue};

use crate::clock::Timestamp;
use crate::config::{self, ConfigError, Environment};
use crate::policy::body::RequestBody;
use crate::policy::ids::{self, Makes};
use crate::policy::limits::{self, Bounds, Effect, Needs, Refusal, Wire};
use crate::policy::retry_after;
use crate::policy::route::{self, Endpoint, Route, Rule};
use crate::policy::sse;
use crate::policy::state::StateFile;
use crate::policy::usage::UsageScan;
use crate::policy::verdict::{self, Failure, LateScan, Verdict};

/// How much of an error body is looked at, in bytes.
pub const MAX_ERROR_PREFIX: usize = verdict::MAX_ERROR_PREFIX;

/// A request body as it would be sent.
#[derive(Debug)]
pub struct Sent {
    /// Its bytes with another model.
    pub edited: Vec<u8>,
    /// How long it says that it is.
    pub length: usize,
    /// Its bytes without an edit.
    pub untouched: Vec<u8>,
    /// The model that the client named.
    pub model: Option<String>,
    /// Whether the client asked for a stream.
    pub is_stream: bool,
    /// Whether upstream may store the answer.
    pub is_stored: bool,
    /// What the request goes on from.
    pub refers_to: Option<String>,
}

/// Looks through a request body and puts `model` into it.
#[must_use]
pub fn edit_body(body: &[u8], model: &str) -> Option<Sent> {
    let body = RequestBody::parse(body).ok()?;
    let read = |mut reader: Box<dyn Read + '_>| {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).expect("memory can be read");
        bytes
    };
    let (edited, as_sent) = (body.with_model(model, &[]), body.as_sent());
    Some(Sent {
        edited: read(Box::new(edited.reader())),
        length: edited.len(),
        untouched: read(Box::new(as_sent.reader())),
        model: body.model(),
        is_stream: body.is_stream(),
        is_stored: body.is_stored(),
        refers_to: body.refers_to(),
    })
}

/// Judges an answer: the verdict's name, and the rest of a throttled slot in seconds.
#[must_use]
pub fn judge(
    status: u16,
    retry_after: Option<u64>,
    prefix: &[u8],
    names_model: bool,
) -> (&'static str, Option<u64>) {
    told(verdict::classify(Failure { status, retry_after, prefix, names_model }).verdict)
}

/// Judges the first telling event of a stream that began with a success, and says whether an
/// exhaustion is found in the stream when it goes by in these parts.
#[must_use]
pub fn judge_stream<'a>(
    stream: &[u8],
    parts: impl Iterator<Item = &'a [u8]>,
) -> (&'static str, bool) {
    let opening = verdict::opening_at_end(stream);
    let judged = opening.map(|event| verdict::classify_event(&event, false).verdict);
    let mut scan = LateScan::default();
    let found = parts.filter(|part| scan.see(part).is_some()).count();
    (told(judged.unwrap_or(Verdict::Success)).0, found > 0 || scan.end().is_some())
}

/// How long an answer with this header asks to wait, in seconds, and whether a client hears of it.
#[must_use]
pub fn retry_after(value: &[u8], now_millis: u64) -> (Option<u64>, bool) {
    let Ok(value) = HeaderValue::from_bytes(value) else { return (None, false) };
    let now = Timestamp(now_millis);
    let travels = retry_after::travels(&RETRY_AFTER, &value, now);
    (retry_after::asked(&HeaderMap::from_iter([(RETRY_AFTER, value)]), now), travels)
}

fn told(verdict: Verdict) -> (&'static str, Option<u64>) {
    match verdict {
        Verdict::Throttled(rest) => (verdict.name(), Some(rest.as_secs())),
        _ => (verdict.name(), None),
    }
}

/// What a refusal tells of, and the request's body with what it names lowered.
#[must_use]
pub fn limit(
    status: u16,
    message: &str,
    body: &[u8],
    is_streamed: bool,
) -> Option<(&'static str, Vec<u8>)> {
    let parsed = RequestBody::parse(body).ok()?;
    let needs = Needs::of(body, Wire::Chat, is_streamed);
    let refusal = Refusal { status, message, model: "qwen-max", is_native: false };
    let limit = limits::recognise(refusal, || &needs)?;
    let bounds = match limit.effect(&needs) {
        Effect::Over(bounds) => bounds,
        Effect::Refused => Bounds::default(),
        Effect::None => panic!("{limit:?} has nothing to do with the request"),
    };
    let (mut sent, lowered) = (Vec::new(), needs.lowered(bounds));
    let edited = parsed.with_model("qwen-max", &lowered);
    edited.reader().read_to_end(&mut sent).expect("memory can be read");
    let after = Needs::of(&sent, Wire::Chat, is_streamed);
    assert!(bounds.is_none() || limit.effect(&after) == Effect::None, "{limit:?} {after:?}");
    Some((limit.kind(), sent))
}

/// Every identifier that an answer may make.
#[must_use]
pub fn ids_in(answer: &[u8]) -> Vec<String> {
    let makes = [Makes::Nothing, Makes::Task, Makes::Id, Makes::Upload];
    makes.into_iter().flat_map(|makes| ids::found_in(makes, answer)).collect()
}

/// The payload of the first complete event.
#[must_use]
pub fn first_event(bytes: &[u8]) -> Option<Vec<u8>> {
    sse::first_event(bytes)
}

/// The payload of the first event of a finished body.
#[must_use]
pub fn first_payload(body: &[u8]) -> Option<Vec<u8>> {
    sse::first_payload(body)
}

/// What was used (input, output, images) by an answer that came in these parts, and the most
/// that was kept of it, in bytes.
pub fn usage<'a>(parts: impl Iterator<Item = &'a [u8]>) -> (Option<[u64; 3]>, usize) {
    let mut scan = UsageScan::default();
    let mut most = 0;
    for part in parts {
        scan.see(part);
        most = most.max(scan.kept());
    }
    (scan.usage().map(|usage| [usage.input, usage.output, usage.images]), most)
}

/// Reads a state file and writes it again.
///
/// # Errors
/// When it is refused.
pub fn rewrite_state(content: &[u8]) -> Result<Vec<u8>, String> {
    StateFile::parse(content).map(|file| {
        let _ = file.newest_change();
        file.to_bytes()
    })
}

/// Where a request would go upstream.
#[derive(Debug)]
pub struct Forwarded {
    /// What is appended to the base URL.
    pub path: String,
    /// The identifier that pins it to a key.
    pub id: Option<String>,
}

/// Where a request goes, if it goes upstream.
#[must_use]
pub fn forwarded(method: &str, path: &str) -> Option<Forwarded> {
    let _ = route::protocol_of(path, false);
    match route::resolve(method, path) {
        Route::Upstream(Endpoint { path, rule, .. }) => {
            let id = match rule {
                Rule::Pinned { id, .. } => id,
                _ => None,
            };
            Some(Forwarded { path, id })
        }
        _ => None,
    }
}

/// A configuration, or what is wrong with it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Configured {
    /// The DashScope keys in plain text, with their origins.
    pub keys: Vec<(String, Option<String>)>,
    /// The proxy key in plain text.
    pub proxy_key: Option<String>,
    /// The model ids.
    pub models: Vec<String>,
    /// The base URLs and the allowed origin: what ends up in a URL or a header.
    pub urls: Vec<String>,
    /// Everything that the operator is told, in order.
    pub messages: Vec<String>,
    /// The `Debug` of the keys or of the errors.
    pub debug: String,
}

/// The configuration of a `.env` file with these bytes, and nothing in the environment.
#[must_use]
pub fn configure_by_file(bytes: &[u8]) -> Configured {
    match Environment::of_file(bytes) {
        Ok(environment) => configure(&environment),
        Err(message) => Configured { messages: vec![message], ..Configured::default() },
    }
}

/// The configuration of these variables.
#[must_use]
pub fn configure_by_pairs(pairs: &[(&str, &str)]) -> Configured {
    let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    configure(&Environment::from_pairs(pairs))
}

fn configure(environment: &Environment) -> Configured {
    match config::load(environment) {
        Ok(loaded) => {
            let config = loaded.config;
            let secrets: Vec<_> = config.keys.iter().map(|key| &key.secret).collect();
            let debug = format!("{:?} {secrets:?}", config.proxy_key);
            let origin = |key: &config::KeyConfig| key.origin.as_ref().map(ToString::to_string);
            let bases = [&config.anthropic_base, &config.openai_base, &config.native_base];
            Configured {
                keys: config
                    .keys
                    .iter()
                    .map(|key| (key.secret.expose().to_owned(), origin(key)))
                    .collect(),
                proxy_key: Some(config.proxy_key.expose().to_owned()),
                models: config.models,
                urls: bases
                    .into_iter()
                    .map(ToString::to_string)
                    .chain(config.cors_origin)
                    .chain(config.outbound.map(|proxy| proxy.url.expose().to_owned()))
                    .collect(),
                messages: loaded.notes,
                debug,
            }
        }
        Err(error) => {
            let ConfigError { problems } = &error;
            Configured {
                messages: problems.iter().map(ToString::to_string).collect(),
                debug: format!("{error:?}"),
                ..Configured::default()
            }
        }
    }
}
