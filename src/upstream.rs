//! Calls to DashScope: the only user of ureq.
//!
//! One agent, whose connections are reused; every wait has a limit; statuses are answers and
//! not errors; redirects are handed on. A call says how far it got, so that the caller knows
//! whether it may be repeated.

mod buffers;
mod connect;
mod exchange;
mod failure;
mod resolver;
mod tcp;
mod tls;
mod transport;

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flate2::bufread::MultiGzDecoder;
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH};
use http::{HeaderMap, HeaderValue, Request};
use ureq::config::AutoHeaderValue;
use ureq::unversioned::resolver::DefaultResolver;
use ureq::{Agent, AsSendBody, Proxy, SendBody, Timeout};

use crate::config::{AuthMode, Config, ConfigError, OutboundProxy, Problem};
use crate::error::StartupError;
use crate::policy::body::Edited;
use crate::secret::Secret;
pub(crate) use exchange::{ClientWatch, Step, watch_client};
pub(crate) use failure::{CallError, FailureKind};
use resolver::{CachingResolver, Memory};

/// An answer's head may be this long, in bytes; DashScope's are about 1 KB.
const MAX_HEAD: usize = 64 * 1024;

/// A pooled connection is not reused after this long: no idle limit of DashScope is known, and a
/// new connection is cheaper than one that died unseen.
const MAX_IDLE: Duration = Duration::from_secs(30);

/// Hosts that are never reached through an outbound proxy (ureq's `NO_PROXY` patterns).
const LOOPBACK: [&str; 7] =
    ["localhost", "localhost.", "*.localhost", "ip6-localhost", "127.*", "[::1]", "[::ffff:127.*"];

/// The way to DashScope.
#[derive(Debug, Clone)]
pub(crate) struct Upstream {
    agent: Agent,
    head_limit: Duration,
    idle_limit: Duration,
    is_stopping: Arc<AtomicBool>,
}

/// What a request carries.
pub(crate) enum Payload<'a> {
    /// No body.
    Nothing,
    /// A body in memory.
    Bytes(&'a Edited<'a>),
    /// A body that is read while it is sent; without a length it is sent in chunks.
    Stream {
        /// Where it comes from.
        reader: &'a mut dyn Read,
        /// How long it is, in bytes.
        length: Option<u64>,
    },
}

/// An answer whose body is still to be read.
pub(crate) struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The headers, as upstream sent them.
    pub headers: HeaderMap,
    /// The body.
    pub body: AnswerBody,
}

impl Answer {
    /// Whether its status is one of success.
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// The body of an answer. Dropped before its end, it closes the connection.
pub(crate) struct AnswerBody {
    reader: Box<dyn Read>,
}

/// Which connection a call goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// One from the pool, if there is one.
    Any,
    /// A new one. What lies in the pool for the same host is closed: it is as old as the one that
    /// just turned out to be dead.
    Fresh,
}

impl Upstream {
    /// Builds the agent.
    ///
    /// # Errors
    /// When the outbound proxy cannot be used.
    pub(crate) fn new(config: &Config) -> Result<Self, StartupError> {
        let proxy = config.outbound.as_ref().map(outbound).transpose()?;
        let agent_config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(proxy)
            .tls_config(tls::config(&config.ca_certificates))
            .user_agent(AutoHeaderValue::None)
            .accept(AutoHeaderValue::None)
            .accept_encoding(AutoHeaderValue::None)
            .max_response_header_size(MAX_HEAD)
            // TLS has buffers of its own: ureq's size of 128 KiB would make 500 streams cost 128 MB.
            .input_buffer_size(buffers::SIZE)
            .output_buffer_size(buffers::SIZE)
            .max_idle_connections(config.workers)
            .max_idle_connections_per_host(config.workers)
            .max_idle_age(MAX_IDLE)
            .timeout_resolve(Some(config.connect_timeout))
            .timeout_connect(Some(config.connect_timeout))
            .timeout_send_request(Some(config.upstream_timeout))
            .timeout_send_body(Some(config.upstream_timeout))
            .timeout_recv_response(Some(config.upstream_timeout))
            .build();
        let memory = Arc::<Memory>::default();
        let resolver = CachingResolver::new(DefaultResolver::default(), Arc::clone(&memory));
        let chain = transport::chain(config.connect_timeout, memory);
        Ok(Self {
            agent: Agent::with_parts(agent_config, chain, resolver),
            head_limit: config.upstream_timeout,
            idle_limit: config.stream_idle_timeout,
            is_stopping: Arc::default(),
        })
    }

    /// Sends a request and waits for the answer's head.
    ///
    /// # Errors
    /// When no answer came; [`CallError`] says why.
    pub(crate) fn send(
        &self,
        method: &str,
        url: &str,
        mut headers: HeaderMap,
        payload: Payload<'_>,
        over: Over,
    ) -> Result<Answer, CallError> {
        let at_hand = match &payload {
            Payload::Bytes(bytes) => Some(bytes.len()),
            Payload::Nothing | Payload::Stream { .. } => None,
        };
        exchange::begin(self.head_limit, at_hand);
        let outcome = match payload {
            Payload::Nothing => {
                if method == "POST" {
                    // Without it ureq announces chunks.
                    headers.insert(CONTENT_LENGTH, 0.into());
                }
                self.run(request(method, url, headers, ())?, over)
            }
            Payload::Bytes(bytes) => {
                headers.insert(CONTENT_LENGTH, bytes.len().into());
                self.run(with_body(method, url, headers, &mut bytes.reader())?, over)
            }
            Payload::Stream { reader, length } => {
                if let Some(length) = length {
                    headers.insert(CONTENT_LENGTH, length.into());
                }
                self.run(with_body(method, url, headers, reader)?, over)
            }
        };
        let response = outcome.map_err(|error| self.failure(&error))?;
        exchange::head_arrived(self.idle_limit);
        let (mut parts, body) = response.into_parts();
        let status = parts.status.as_u16();
        if parts.status.is_informational() {
            // Nobody has asked for another protocol.
            return Err(CallError::broken(format!("it answered with status {status}")));
        }
        let has_body = method != "HEAD" && !matches!(status, 204 | 304);
        let mut reader: Box<dyn Read> = Box::new(body.into_with_config().limit(u64::MAX).reader());
        let coding = parts.headers.get(CONTENT_ENCODING);
        if has_body && coding.is_some_and(|coding| coding.as_bytes().eq_ignore_ascii_case(b"gzip"))
        {
            parts.headers.remove(CONTENT_ENCODING);
            parts.headers.remove(CONTENT_LENGTH);
            reader = unpacked(reader);
        }
        Ok(Answer { status, headers: parts.headers, body: AnswerBody { reader } })
    }

    /// Interrupts every call in flight and refuses new ones.
    pub(crate) fn shut_down(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        self.agent.clone().shutdown();
    }

    /// (Not inlined: each kind of body has its own, with some kilobytes of stack.)
    #[inline(never)]
    fn run(
        &self,
        mut request: Request<impl AsSendBody>,
        over: Over,
    ) -> Result<http::Response<ureq::Body>, ureq::Error> {
        if over == Over::Fresh {
            request = self.agent.configure_request(request).max_idle_age(Duration::ZERO).build();
        }
        self.agent.run(request)
    }

    fn failure(&self, error: &ureq::Error) -> CallError {
        let mut failure = CallError::of(error);
        if self.is_stopping.load(Ordering::Relaxed) {
            failure.kind = FailureKind::Stopping;
            failure.repeatable = false;
        }
        failure
    }
}

impl AnswerBody {
    /// Reads what comes next; 0 at the end.
    ///
    /// # Errors
    /// When the body breaks off, stays silent for too long, or the client has left.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, CallError> {
        loop {
            match self.reader.read(buffer) {
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(CallError::of(&ureq::Error::from(error))),
            }
        }
    }

    /// Reads what comes next until `at`; `None` when nothing has come by then. The body can be
    /// read on.
    ///
    /// # Errors
    /// As [`AnswerBody::read`].
    pub(crate) fn read_until(
        &mut self,
        buffer: &mut [u8],
        at: Instant,
    ) -> Result<Option<usize>, CallError> {
        exchange::pause_at(Some(at));
        let outcome = self.reader.read(buffer).map_err(ureq::Error::from);
        exchange::pause_at(None);
        match outcome {
            Ok(count) => Ok(Some(count)),
            Err(ureq::Error::Timeout(Timeout::PerRead)) => Ok(None),
            Err(error) => Err(CallError::of(&error)),
        }
    }
}

/// A gzip body as it was before. (ureq does it as well, with the 43 KB of a decoder's tables on the
/// stack of every answer, packed or not. Hence not inlined either.)
#[cold]
#[inline(never)]
fn unpacked(reader: Box<dyn Read>) -> Box<dyn Read> {
    Box::new(Unpacked::Unread(BufReader::new(reader)))
}

/// A gzip body. Of an empty one there is nothing to unpack.
enum Unpacked {
    Unread(BufReader<Box<dyn Read>>),
    Read(MultiGzDecoder<BufReader<Box<dyn Read>>>),
    Empty,
}

impl Read for Unpacked {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Self::Unread(reader) = self {
            let is_empty = reader.fill_buf()?.is_empty();
            *self = match mem::replace(self, Self::Empty) {
                Self::Unread(reader) if !is_empty => Self::Read(MultiGzDecoder::new(reader)),
                empty => empty,
            };
        }
        match self {
            Self::Read(decoder) => decoder.read(buffer),
            Self::Unread(_) | Self::Empty => Ok(0),
        }
    }
}

fn with_body<'a>(
    method: &str,
    url: &str,
    headers: HeaderMap,
    reader: &'a mut dyn Read,
) -> Result<Request<SendBody<'a>>, CallError> {
    request(method, url, headers, SendBody::from_reader(reader))
}

fn request<B>(
    method: &str,
    url: &str,
    headers: HeaderMap,
    body: B,
) -> Result<Request<B>, CallError> {
    let mut request = Request::builder()
        .method(method)
        .uri(url)
        .body(body)
        .map_err(|error| CallError::broken(format!("unusable URL: {error}")))?;
    *request.headers_mut() = headers;
    Ok(request)
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("status", &self.status).finish_non_exhaustive()
    }
}

/// ureq's proxy, with loopback kept out of it.
fn outbound(settings: &OutboundProxy) -> Result<Proxy, StartupError> {
    let unusable = |error: ureq::Error| {
        let text = format!("{} is unusable: {error}", settings.shown());
        let problems = vec![Problem::new("the outbound proxy", text)];
        StartupError::Config(ConfigError { problems })
    };
    let parsed = Proxy::new(settings.url.expose()).map_err(unusable)?;
    let mut builder = Proxy::builder(parsed.protocol()).host(parsed.host()).port(parsed.port());
    if let Some(name) = parsed.username() {
        builder = builder.username(name);
    }
    if let Some(password) = parsed.password() {
        builder = builder.password(password);
    }
    for pattern in LOOPBACK.iter().copied().chain(settings.no_proxy.iter().map(String::as_str)) {
        builder = builder.no_proxy(pattern);
    }
    builder.build().map_err(unusable)
}

/// Puts the key where DashScope looks for it.
pub(crate) fn authorize(headers: &mut HeaderMap, mode: AuthMode, key: &Secret) {
    let key = key.expose();
    if mode != AuthMode::XApiKey {
        headers.insert(AUTHORIZATION, sensitive(&format!("Bearer {key}")));
    }
    if mode != AuthMode::Authorization {
        headers.insert("x-api-key", sensitive(key));
    }
}

/// The header value of a key. Marked, so that no `Debug` shows it.
fn sensitive(value: &str) -> HeaderValue {
    let mut value = HeaderValue::from_str(value)
        .expect("the configuration admits only keys that a header can carry");
    value.set_sensitive(true);
    value
}
