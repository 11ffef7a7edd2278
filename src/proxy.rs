//! One request, from its head to its last byte: body → slot → upstream → verdict → relay →
//! commit.
//!
//! Runs on a worker and may block on upstream and on the client, both with limits. It holds the
//! scheduler's lock for single questions only.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue};
use log::{debug, info, warn};
use parking_lot::Mutex;

use crate::clock;
use crate::config::{AuthMode, Config};
use crate::error::ProxyError;
use crate::log_text::{Quoted, millis};
use crate::policy::body::RequestBody;
use crate::policy::headers;
use crate::policy::pool::{KeyIndex, Pool, Slot};
use crate::policy::route::{Endpoint, Protocol};
use crate::policy::scheduler::{Next, Pick, Scheduler};
use crate::policy::verdict::{self, Verdict};
use crate::relay::{self, Client, End, Head, Held, Relayed};
use crate::store::Store;
use crate::upstream::{self, Answer, CallError, FailureKind, Upstream};

/// `x-proxy-key-hash`, `x-proxy-model`, `x-proxy-attempts`: who served the answer.
const KEY_HEADER: HeaderName = HeaderName::from_static("x-proxy-key-hash");
const MODEL_HEADER: HeaderName = HeaderName::from_static("x-proxy-model");
const ATTEMPTS_HEADER: HeaderName = HeaderName::from_static("x-proxy-attempts");

/// nginx's sign not to hold a stream back.
const BUFFERING_HEADER: HeaderName = HeaderName::from_static("x-accel-buffering");

/// The headers of ours that a browser's script may read.
pub const EXPOSED_HEADERS: &str = "x-proxy-key-hash, x-proxy-model, x-proxy-attempts";

/// A key shorter than this could be any word; DashScope's have 35 characters and more.
const SHORTEST_TELLTALE: usize = 8;

/// How much of upstream's error message is kept in the state file, in characters.
const LONGEST_MESSAGE: usize = 1000;

/// A request as it came from a client, authenticated and with all of its body.
#[derive(Debug)]
pub struct ClientRequest {
    /// Counts up from the start of the process.
    pub id: u64,
    /// Who asks.
    pub peer: SocketAddr,
    /// The path as the client wrote it, without the query.
    pub path: String,
    /// The query, if any, without its question mark.
    pub query: Option<String>,
    /// The headers in their order.
    pub headers: Vec<(String, String)>,
    /// The body, its framing removed.
    pub body: Vec<u8>,
    /// Where it goes.
    pub endpoint: Endpoint,
    /// When its head had been read.
    pub arrived: Instant,
}

/// Everything that serving takes.
#[derive(Debug)]
pub struct Proxy {
    config: Arc<Config>,
    pool: Arc<Pool>,
    scheduler: Arc<Mutex<Scheduler>>,
    store: Arc<Store>,
    upstream: Upstream,
}

/// How a request went, for the log.
#[derive(Debug, Default)]
struct Story {
    asked: Option<String>,
    attempts: u32,
    slot: Option<Slot>,
    status: u16,
    relayed: Option<Relayed>,
    refusal: Option<ProxyError>,
    /// Whether something was learned that belongs on disk.
    learned: bool,
}

/// How an attempt went.
enum Attempt {
    /// This answer goes to the client.
    Answered(Answer, Held),
    /// The slot is exhausted; on with the next one.
    Exhausted,
    /// There was no answer.
    Failed(CallError),
}

impl Proxy {
    /// Puts the parts together.
    #[must_use]
    pub fn new(
        config: Arc<Config>,
        scheduler: Arc<Mutex<Scheduler>>,
        store: Arc<Store>,
        upstream: Upstream,
    ) -> Self {
        let pool = Arc::clone(scheduler.lock().pool());
        Self { config, pool, scheduler, store, upstream }
    }

    /// Serves one request. When it returns, the client has everything it will get, and what was
    /// learned is on disk.
    pub fn serve(&self, request: ClientRequest, mut client: Box<dyn Client>) {
        let mut story = Story::default();
        if let Err(error) = self.walk(&request, client.as_mut(), &mut story) {
            story.status = error.status();
            self.keep_cooldowns();
            self.refuse(&error, request.endpoint.protocol, client.as_mut());
            story.refusal = Some(error);
        }
        // The connection is free for its next request while the disk works.
        drop(client);
        if story.learned {
            self.store.commit(&self.scheduler);
        }
        self.log(&request, &story);
    }

    fn walk(
        &self,
        request: &ClientRequest,
        client: &mut dyn Client,
        story: &mut Story,
    ) -> Result<(), ProxyError> {
        let body = RequestBody::parse(&request.body).map_err(ProxyError::Body)?;
        story.asked = body.model();
        let _watching = upstream::watch_client(client.watch());
        let mut tried = Vec::new();
        loop {
            let pick = self.next_slot(&tried)?;
            tried.push(pick.slot);
            story.slot = Some(pick.slot);
            match self.attempt(request, &body, &pick, story) {
                Attempt::Answered(answer, held) => {
                    self.answer(answer, held, &pick, client, story);
                    return Ok(());
                }
                Attempt::Exhausted => {}
                Attempt::Failed(error) => return self.give_up(error, client, story),
            }
        }
    }

    fn next_slot(&self, tried: &[Slot]) -> Result<Pick, ProxyError> {
        let now = clock::now();
        let next = self.scheduler.lock().next_slot(tried, now);
        match next {
            Next::Slot(pick) => Ok(pick),
            Next::AllCooling { until } => {
                Err(ProxyError::AllCooling { until, now, slots: self.pool.slot_count() })
            }
            Next::NoneLeft => Err(ProxyError::Overloaded),
        }
    }

    /// One slot: the call, once more if the first cannot have been worked on, and the verdict.
    fn attempt(
        &self,
        request: &ClientRequest,
        body: &RequestBody<'_>,
        pick: &Pick,
        story: &mut Story,
    ) -> Attempt {
        story.attempts += 1;
        let mut outcome = self.call(request, body, pick.slot);
        if let Err(error) = &outcome
            && error.repeatable
        {
            debug!("repeat id={} cause={}", request.id, Quoted(&error.cause));
            story.attempts += 1;
            outcome = self.call(request, body, pick.slot);
        }
        match outcome {
            Ok(answer) => self.judge(answer, request, pick, story),
            Err(error) => Attempt::Failed(error),
        }
    }

    fn call(
        &self,
        request: &ClientRequest,
        body: &RequestBody<'_>,
        slot: Slot,
    ) -> Result<Answer, CallError> {
        let protocol = request.endpoint.protocol;
        let key = &self.config.keys[slot.key.0];
        let base = match protocol {
            Protocol::OpenAi => &self.config.openai_base,
            Protocol::Anthropic => &self.config.anthropic_base,
        };
        let mut target = request.endpoint.path.to_owned();
        if let Some(query) = &request.query {
            target.push('?');
            target.push_str(query);
        }
        let client_headers = request.headers.iter().map(|(name, value)| (&**name, &**value));
        let mut headers = headers::upward(client_headers, protocol);
        self.authorize(&mut headers, slot.key);
        let edited = body.with_model(self.pool.model_id(slot.model));
        self.upstream.post(&base.join(&target, key.origin.as_ref()), headers, &edited)
    }

    fn authorize(&self, headers: &mut HeaderMap, key: KeyIndex) {
        let key = self.config.keys[key.0].secret.expose();
        if self.config.auth_mode != AuthMode::XApiKey {
            headers.insert(AUTHORIZATION, upstream::sensitive(&format!("Bearer {key}")));
        }
        if self.config.auth_mode != AuthMode::Authorization {
            headers.insert("x-api-key", upstream::sensitive(key));
        }
    }

    /// Reads as much of an answer as its verdict needs, and learns from it.
    fn judge(
        &self,
        mut answer: Answer,
        request: &ClientRequest,
        pick: &Pick,
        story: &mut Story,
    ) -> Attempt {
        let is_success = (200..300).contains(&answer.status);
        let (held, verdict) = if !is_success {
            let mut held = relay::hold_prefix(&mut answer.body, verdict::MAX_ERROR_PREFIX);
            let verdict = verdict::classify(answer.status, &held.bytes);
            self.scrub(&mut held.bytes);
            (held, verdict)
        } else if is_event_stream(&answer.headers) {
            let (held, event) = relay::hold_first_event(&mut answer.body);
            let verdict = match event {
                Some(event) => verdict::classify_first_event(&event),
                // A client that left teaches nothing.
                None if held.ended_by_client() => Verdict::PassThrough,
                None => Verdict::Success,
            };
            (held, verdict)
        } else {
            (Held::default(), Verdict::Success)
        };
        match verdict {
            Verdict::QuotaExhausted { message } => {
                self.learn_exhaustion(message, &answer, request, pick, story);
                Attempt::Exhausted
            }
            Verdict::Success => {
                self.learn_success(pick, story);
                Attempt::Answered(answer, held)
            }
            Verdict::PassThrough => Attempt::Answered(answer, held),
        }
    }

    fn learn_exhaustion(
        &self,
        message: Option<String>,
        answer: &Answer,
        request: &ClientRequest,
        pick: &Pick,
        story: &mut Story,
    ) {
        let message = message.unwrap_or_else(|| "DashScope free tier exhausted".to_owned());
        let message: String = self.masked(&message).chars().take(LONGEST_MESSAGE).collect();
        let (outcome, revision) = {
            let mut scheduler = self.scheduler.lock();
            let outcome = scheduler.report_exhausted(pick, &message, clock::now());
            (outcome, scheduler.revision())
        };
        story.learned = true;
        // It is written while the next slot is asked; the answer waits for both.
        self.store.request(revision);
        info!(
            "cooldown id={} slot={} until={} failures={} status={} request_id={} error={}",
            request.id,
            self.pool.show(pick.slot),
            outcome.until,
            outcome.failures,
            answer.status,
            Quoted(request_id(&answer.headers)),
            Quoted(&message)
        );
    }

    fn learn_success(&self, pick: &Pick, story: &mut Story) {
        let revived = self.scheduler.lock().report_success(pick, clock::now());
        story.learned = true;
        if revived {
            warn!(
                "revived slot={} cooldown=ended: this pair answers again and may now be billed, unless \"free quota only\" is on",
                self.pool.show(pick.slot)
            );
        }
    }

    /// Waits until every cooldown so far is on disk, also one that another request met: an answer
    /// that comes from beyond a slot tells its client that the slot is used up.
    fn keep_cooldowns(&self) {
        let revision = self.scheduler.lock().cooled_revision();
        self.store.wait(revision);
    }

    /// Hands an answer on, once the cooldowns before it are on disk.
    fn answer(
        &self,
        mut answer: Answer,
        held: Held,
        pick: &Pick,
        client: &mut dyn Client,
        story: &mut Story,
    ) {
        self.keep_cooldowns();
        let head = self.head(&answer, pick.slot, story.attempts);
        story.status = head.status;
        story.relayed = Some(relay::relay(&head, held, &mut answer.body, client));
    }

    fn head(&self, answer: &Answer, slot: Slot, attempts: u32) -> Head {
        let mut headers: HeaderMap = headers::downward(&answer.headers)
            .filter(|(_, value)| !self.tells_a_key(value.as_bytes()))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        headers.insert(KEY_HEADER, text_value(self.pool.label(slot.key)));
        headers.insert(MODEL_HEADER, text_value(self.pool.model_id(slot.model)));
        headers.insert(ATTEMPTS_HEADER, attempts.into());
        self.allow_origin(&mut headers);
        if is_event_stream(&answer.headers) {
            headers.insert(BUFFERING_HEADER, HeaderValue::from_static("no"));
        }
        Head { status: answer.status, headers, length: length_of(&answer.headers) }
    }

    /// Upstream gave no answer: the client is told why, or has left.
    fn give_up(
        &self,
        error: CallError,
        client: &mut dyn Client,
        story: &mut Story,
    ) -> Result<(), ProxyError> {
        match error.kind {
            FailureKind::ClientLeft => {
                client.cut();
                let end = End::ClientLeft;
                story.relayed = Some(Relayed { end, bytes: 0, first_byte: None });
                Ok(())
            }
            FailureKind::TimedOut => Err(ProxyError::TimedOut { cause: error.cause }),
            FailureKind::Broken => Err(ProxyError::Unreachable { cause: error.cause }),
        }
    }

    fn refuse(&self, error: &ProxyError, protocol: Protocol, client: &mut dyn Client) {
        let (head, body) = self.error_answer(error, protocol);
        client.start(&head);
        let _ = client.send(&body).and_then(|()| client.finish());
    }

    /// The whole answer that tells a client of an error.
    #[must_use]
    pub fn error_answer(&self, error: &ProxyError, protocol: Protocol) -> (Head, Vec<u8>) {
        let body = error.body(protocol);
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, value) in error.headers() {
            headers.insert(name, text_value(&value));
        }
        self.allow_origin(&mut headers);
        let length = Some(body.len() as u64);
        (Head { status: error.status(), headers, length }, body)
    }

    /// CORS, on every answer of an API path: a browser hides even an error from its script
    /// without it.
    pub fn allow_origin(&self, headers: &mut HeaderMap) {
        if let Some(origin) = &self.config.cors_origin {
            headers.insert("access-control-allow-origin", text_value(origin));
            let exposed = HeaderValue::from_static(EXPOSED_HEADERS);
            headers.insert("access-control-expose-headers", exposed);
        }
    }

    /// A text in which every configured key is replaced by its label.
    fn masked(&self, text: &str) -> String {
        self.config.keys.iter().enumerate().fold(text.to_owned(), |text, (index, key)| {
            text.replace(key.secret.expose(), self.pool.label(KeyIndex(index)))
        })
    }

    /// Blots out a key that an error body echoes, byte for byte, so that the length stays.
    fn scrub(&self, bytes: &mut [u8]) {
        for key in &self.config.keys {
            let key = key.secret.expose().as_bytes();
            if key.len() < SHORTEST_TELLTALE {
                continue;
            }
            let mut from = 0;
            while let Some(found) = bytes[from..].windows(key.len()).position(|part| part == key) {
                let start = from + found;
                bytes[start..start + key.len()].fill(b'*');
                from = start + key.len();
            }
        }
    }

    fn tells_a_key(&self, value: &[u8]) -> bool {
        self.config.keys.iter().any(|key| {
            let key = key.secret.expose().as_bytes();
            key.len() >= SHORTEST_TELLTALE && value.windows(key.len()).any(|part| part == key)
        })
    }

    fn log(&self, request: &ClientRequest, story: &Story) {
        let first_byte = story.relayed.as_ref().and_then(|relayed| relayed.first_byte);
        let first_byte = first_byte.map(|at| millis(at - request.arrived));
        let end = match (&story.refusal, story.relayed.as_ref().map(|relayed| &relayed.end)) {
            (Some(error), _) => {
                format!("refused error={} reason={}", error.code(), Quoted(&error.to_string()))
            }
            (None, Some(End::ClientLeft)) => "client_left".to_owned(),
            (None, Some(End::UpstreamCut(cause))) => format!("cut cause={}", Quoted(cause)),
            (None, _) => "clean".to_owned(),
        };
        info!(
            "request id={} client={} method=POST path={} asked={} slot={} attempts={} status={} first_byte_ms={} total_ms={} bytes={} end={end}",
            request.id,
            request.peer.ip(),
            Quoted(&request.path),
            Quoted(story.asked.as_deref().unwrap_or("-")),
            story.slot.map_or_else(|| "-".to_owned(), |slot| self.pool.show(slot)),
            story.attempts,
            story.status,
            first_byte.unwrap_or_else(|| "-".to_owned()),
            millis(request.arrived.elapsed()),
            story.relayed.as_ref().map_or(0, |relayed| relayed.bytes),
        );
    }
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type.is_some_and(|text| {
        let kind = text.split(';').next().unwrap_or_default().trim();
        kind.eq_ignore_ascii_case("text/event-stream")
    })
}

fn length_of(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.trim().parse().ok()
}

fn request_id(headers: &HeaderMap) -> &str {
    headers.get("x-request-id").and_then(|value| value.to_str().ok()).unwrap_or("-")
}

/// A header value of a text that was checked when it was configured or made.
fn text_value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static("-"))
}
