//! One request, from its head to its last byte: body → slot → upstream → verdict → relay →
//! commit.
//!
//! Runs on a worker and may block on upstream and on the client, both with limits. It holds the
//! scheduler's lock for single questions only.

mod attempt;
pub(crate) mod counting;
mod heads;
mod limits;
mod story;
mod walk;

use std::cell::OnceCell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use serde_json::json;

use crate::clock;
use crate::config::{Config, ModelSelection};
use crate::error::ProxyError;
use crate::metrics::Metrics;
use crate::panics::fault_point;
use crate::policy::body::RequestBody;
use crate::policy::estimate;
use crate::policy::ids::{self, Makes};
use crate::policy::limits::{Lowered, Needs};
use crate::policy::pool::{KeyIndex, Pool, Slot, is_model_id};
use crate::policy::route::{Endpoint, Protocol, Rule};
use crate::policy::scheduler::{Pick, Scheduler, Wanted};
use crate::redact::{self, Redactor};
use crate::relay::{self, Client, End, Held, LARGEST_UPLOAD, Relayed};
use crate::store::Store;
use crate::upstream::{self, CallError, FailureKind, Over, Upstream};
use story::Story;
use walk::Walk;

/// Stands for the model of a request that names none and gets none.
const NO_MODEL: &str = "-";

/// A request as it came from a client, authenticated and with all of its body.
#[derive(Debug)]
pub(crate) struct ClientRequest {
    /// Counts up from the start of the process.
    pub id: u64,
    /// Who asks.
    pub peer: SocketAddr,
    /// The method.
    pub method: String,
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
    /// Whether it had to wait for a worker or for its turn, so that its client may have given up.
    pub waited: bool,
}

/// Everything that serving takes.
#[derive(Debug)]
pub(crate) struct Proxy {
    config: Arc<Config>,
    pool: Arc<Pool>,
    scheduler: Arc<Mutex<Scheduler>>,
    store: Arc<Store>,
    upstream: Upstream,
    metrics: Arc<Metrics>,
    redactor: Arc<Redactor>,
}

/// A request whose body has been understood.
struct Task<'a> {
    request: &'a ClientRequest,
    /// `None` for a request without one, and for an upload, which is read while it is sent.
    body: Option<&'a RequestBody<'a>>,
    wanted: Wanted<'a>,
    /// The only key that may serve it.
    key: Option<KeyIndex>,
    /// The client's choice of model, if that counts.
    first: Option<&'a str>,
    /// Which identifiers the answer may make.
    makes: Makes,
    /// What it needs of a model, once somebody had to look.
    needs: OnceCell<Needs>,
    story: &'a mut Story,
}

impl Proxy {
    /// Puts the parts together.
    #[must_use]
    pub(crate) fn new(
        config: Arc<Config>,
        scheduler: Arc<Mutex<Scheduler>>,
        store: Arc<Store>,
        upstream: Upstream,
        metrics: Arc<Metrics>,
    ) -> Self {
        let pool = Arc::clone(scheduler.lock().pool());
        let keys = config.keys.iter().map(|key| &key.secret);
        let redactor = Arc::new(Redactor::new(keys.chain([&config.proxy_key])));
        redact::in_log(Arc::clone(&redactor));
        Self { config, pool, scheduler, store, upstream, metrics, redactor }
    }

    /// Serves one request. When it returns, the client has everything it will get, and what was
    /// learned is on disk.
    pub(crate) fn serve(&self, request: ClientRequest, mut client: Box<dyn Client>) {
        fault_point("request", request.query.as_deref());
        let mut story = Story::default();
        if let Err(error) = self.understand(&request, client.as_mut(), &mut story) {
            story.status = error.status();
            self.keep_cooldowns();
            self.refuse(&error, &request.endpoint, client.as_mut());
            story.refusal = Some(error);
        }
        // The connection is free for its next request while the disk works.
        drop(client);
        if story.learned {
            self.store.settle(&self.scheduler);
        }
        self.log(&request, &story);
    }

    /// Body → whose model, and whose key.
    fn understand(
        &self,
        request: &ClientRequest,
        client: &mut dyn Client,
        story: &mut Story,
    ) -> Result<(), ProxyError> {
        let endpoint = &request.endpoint;
        let body = match &endpoint.rule {
            Rule::Pinned { .. } if request.body.is_empty() => None,
            _ => Some(RequestBody::parse(&request.body).map_err(ProxyError::Body)?),
        };
        story.asked = body.as_ref().and_then(RequestBody::model);
        let asked = story.asked.clone();
        let wanted = self.wanted(&endpoint.rule, asked.as_deref())?;
        let first = asked.as_deref().filter(|_| {
            self.config.model_selection == ModelSelection::Prefer && wanted == Wanted::Pool
        });
        let key = self.only_key(&endpoint.rule, body.as_ref());
        let makes = ids::made_by(endpoint, body.as_ref().is_none_or(RequestBody::is_stored));
        let (body, needs) = (body.as_ref(), OnceCell::new());
        let task = Task { request, body, wanted, key, first, makes, needs, story };
        match endpoint.rule {
            Rule::Count => self.count(task, client),
            _ => self.walk(task, client),
        }
    }

    /// Whose model a request gets.
    fn wanted<'a>(&self, rule: &Rule, asked: Option<&'a str>) -> Result<Wanted<'a>, ProxyError> {
        match (rule, asked) {
            (Rule::Pool | Rule::Count, _) => Ok(Wanted::Pool),
            (Rule::Pinned { .. }, _) | (_, None) => Ok(Wanted::Model(NO_MODEL)),
            (Rule::PoolIfNamed, Some(model)) if self.pool.place_of(model).is_some() => {
                Ok(Wanted::Pool)
            }
            (_, Some(model)) if is_model_id(model) => Ok(Wanted::Model(model)),
            (_, Some(_)) => Err(ProxyError::Model),
        }
    }

    /// The key that made what a request goes on from; `None` where any key will do.
    fn only_key(&self, rule: &Rule, body: Option<&RequestBody<'_>>) -> Option<KeyIndex> {
        let (id, is_pinned) = match rule {
            Rule::Pinned { id, .. } => (id.clone(), true),
            _ => (None, false),
        };
        let id = id.or_else(|| body.and_then(RequestBody::refers_to));
        let now = clock::now();
        if is_pinned || id.is_some() {
            let scheduler = self.scheduler.lock();
            let made_by = id.and_then(|id| scheduler.pinned_key(&id, now));
            return Some(made_by.unwrap_or_else(|| scheduler.current_key(now)));
        }
        // A prompt may mention the URL of a file, too: only one that is known counts. Where none
        // is known, no body is looked through.
        if !self.scheduler.lock().has_pins() {
            return None;
        }
        let files = body.map(RequestBody::names_files)?;
        let scheduler = self.scheduler.lock();
        files.iter().find_map(|file| scheduler.pinned_key(file, now))
    }

    /// Asks upstream how many tokens a message has. That serves nothing: it neither rotates nor
    /// teaches, and where upstream does not say, an estimate does.
    fn count(&self, task: Task<'_>, client: &mut dyn Client) -> Result<(), ProxyError> {
        let _watching = upstream::watch_client(client.watch());
        if task.request.waited && (client.watch())() {
            return self.give_up(CallError::client_left(), client, task.story);
        }
        let told = self.next_slot(&task, &Walk::default()).map(|pick| {
            task.story.attempts = 1;
            task.story.slot = Some(pick.slot.clone());
            (self.call(&task, &pick, client, Over::Any), pick.slot)
        });
        if let Ok((Err(error), _)) = &told
            && error.kind == FailureKind::ClientLeft
        {
            return self.give_up(CallError::client_left(), client, task.story);
        }
        if let Ok((Ok(mut answer), slot)) = told
            && answer.is_success()
        {
            let head = self.head(&answer, &slot, 1);
            task.story.status = head.status;
            let (held, body) = (Held::default(), &mut answer.body);
            if let Ok(relayed) = relay::relay(&head, held, body, client, &self.redactor, |_| {}) {
                task.story.relayed = Some(relayed);
                return Ok(());
            }
        }
        let tokens = estimate::input_tokens(&task.request.body);
        let count = match task.request.endpoint.protocol {
            Protocol::OpenAi => json!({"object": "response.input_tokens", "input_tokens": tokens}),
            Protocol::Anthropic | Protocol::Native => json!({"input_tokens": tokens}),
        };
        let (head, body) = self.json_answer(200, &count);
        task.story.status = head.status;
        client.start(&head);
        let _ = client.send(&body).and_then(|()| client.finish());
        Ok(())
    }

    /// A model's name where no client's text may stand.
    fn model_name<'a>(&self, slot: &'a Slot) -> &'a str {
        if self.pool.place_of(&slot.model).is_some() { &slot.model } else { "other" }
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
            FailureKind::Stopping => Err(ProxyError::Stopping),
            FailureKind::Unreadable => {
                Err(ProxyError::Malformed("the chunks of the body cannot be read"))
            }
            FailureKind::TooLarge => Err(ProxyError::TooLarge { limit: LARGEST_UPLOAD }),
            FailureKind::TimedOut => Err(ProxyError::TimedOut { cause: error.cause }),
            FailureKind::Broken => Err(ProxyError::Unreachable { cause: error.cause }),
        }
    }

    fn refuse(&self, error: &ProxyError, endpoint: &Endpoint, client: &mut dyn Client) {
        let (head, body) = self.error_answer(error, endpoint.protocol);
        client.start(&head);
        let _ = client.send(&body).and_then(|()| client.finish());
    }

    /// Waits until every cooldown so far is on disk, also one that another request met: an answer
    /// that comes from beyond a slot tells its client that the slot is used up. So is every
    /// identifier: a client that has one may rely on it.
    fn keep_cooldowns(&self) {
        let revision = self.scheduler.lock().cooled_revision();
        self.store.wait(revision);
    }
}

impl Task<'_> {
    /// What it needs of a model. The first who asks pays for a pass over the body.
    fn needs(&self) -> &Needs {
        self.needs.get_or_init(|| {
            let body = self.body.map_or(&[][..], RequestBody::bytes);
            Needs::of(body, self.request.endpoint.wire(), self.is_streamed())
        })
    }

    /// What has to be lowered in its body for the slot of `pick`.
    fn lowered(&self, pick: &Pick) -> Vec<Lowered> {
        if pick.bounds.is_none() { Vec::new() } else { self.needs().lowered(pick.bounds) }
    }

    /// Whether the client named the model that it gets, so that a wrong one is its own mistake.
    fn names_model(&self) -> bool {
        self.wanted != Wanted::Pool
    }

    /// Whether the client asked for a stream: in the body, or on DashScope's own protocol in a
    /// header (facts, section 1.3).
    fn is_streamed(&self) -> bool {
        let header = |name: &str| {
            let mut headers = self.request.headers.iter();
            headers.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| &**value)
        };
        match self.request.endpoint.protocol {
            Protocol::OpenAi | Protocol::Anthropic => self.body.is_some_and(RequestBody::is_stream),
            Protocol::Native => {
                header("x-dashscope-sse").is_some_and(|value| value.eq_ignore_ascii_case("enable"))
                    || header("accept").is_some_and(|value| value.contains("text/event-stream"))
            }
        }
    }
}
