//! Calls to DashScope: the only user of ureq.
//!
//! One agent, whose connections are reused; every wait has a limit; statuses are answers and
//! not errors; redirects are handed on. A call says how far it got, so that the caller knows
//! whether it may be repeated.

mod exchange;
mod resolver;
mod transport;

use std::error::Error as _;
use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::header::{AUTHORIZATION, CONTENT_LENGTH};
use http::{HeaderMap, HeaderValue, Request};
use ureq::config::AutoHeaderValue;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::{Agent, AsSendBody, Proxy, SendBody, Timeout};

use crate::config::{AuthMode, Config, ConfigError, OutboundProxy, Problem};
use crate::error::StartupError;
use crate::policy::body::Edited;
use crate::secret::Secret;
use exchange::Stage;
pub(crate) use exchange::{ClientWatch, Step, watch_client};
pub(crate) use resolver::CachingResolver;

/// An answer's head may be this long, in bytes; DashScope's are about 1 KB.
const MAX_HEAD: usize = 64 * 1024;

/// The buffers of one connection, each way, in bytes: ureq's own size of 128 KiB would make 500
/// streams cost 128 MB.
const BUFFER: usize = 16 * 1024;

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

/// The body of an answer. Dropped before its end, it closes the connection.
pub(crate) struct AnswerBody {
    reader: Box<dyn Read>,
}

/// Why there is no answer, or no rest of one.
#[derive(Debug)]
pub(crate) struct CallError {
    /// What it was, in words, without addresses of ours or secrets.
    pub cause: String,
    /// What kind of failure it was.
    pub kind: FailureKind,
    /// What failed.
    pub step: Step,
    /// Whether upstream cannot have worked on the request, so that it may be sent once more.
    pub repeatable: bool,
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

/// The kinds of failure that are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// A limit ran out.
    TimedOut,
    /// The client left, and the call was given up.
    ClientLeft,
    /// We interrupted it, because the process ends.
    Stopping,
    /// Everything else: DNS, connect, TLS, reset.
    Broken,
}

impl Upstream {
    /// Builds the agent.
    ///
    /// # Errors
    /// When the outbound proxy cannot be used.
    pub(crate) fn new(config: &Config) -> Result<Self, StartupError> {
        let roots = match config.ca_certificates.as_slice() {
            [] => RootCerts::WebPki,
            own => roots_with(own),
        };
        let proxy = config.outbound.as_ref().map(outbound).transpose()?;
        let agent_config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(proxy)
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .user_agent(AutoHeaderValue::None)
            .accept(AutoHeaderValue::None)
            .accept_encoding(AutoHeaderValue::None)
            .max_response_header_size(MAX_HEAD)
            .input_buffer_size(BUFFER)
            .output_buffer_size(BUFFER)
            .max_idle_connections(config.workers)
            .max_idle_connections_per_host(config.workers)
            .max_idle_age(MAX_IDLE)
            .timeout_resolve(Some(config.connect_timeout))
            .timeout_connect(Some(config.connect_timeout))
            .timeout_send_request(Some(config.upstream_timeout))
            .timeout_send_body(Some(config.upstream_timeout))
            .timeout_recv_response(Some(config.upstream_timeout))
            .build();
        let resolver = CachingResolver::new(DefaultResolver::default());
        let chain = transport::chain(config.connect_timeout);
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
        exchange::begin(self.head_limit);
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
                let mut reader = bytes.reader();
                let body = SendBody::from_reader(&mut reader);
                self.run(request(method, url, headers, body)?, over)
            }
            Payload::Stream { reader, length } => {
                if let Some(length) = length {
                    headers.insert(CONTENT_LENGTH, length.into());
                }
                let body = SendBody::from_reader(reader);
                self.run(request(method, url, headers, body)?, over)
            }
        };
        let response = outcome.map_err(|error| self.failure(&error))?;
        exchange::head_arrived(self.idle_limit);
        let (parts, body) = response.into_parts();
        let reader = body.into_with_config().limit(u64::MAX).reader();
        Ok(Answer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: AnswerBody { reader: Box::new(reader) },
        })
    }

    /// Interrupts every call in flight and refuses new ones.
    pub(crate) fn shut_down(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        self.agent.clone().shutdown();
    }

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

impl CallError {
    fn broken(cause: String) -> Self {
        Self { cause, kind: FailureKind::Broken, step: Step::Answer, repeatable: false }
    }

    /// The client left while no call was in flight.
    #[must_use]
    pub(crate) fn client_left() -> Self {
        Self {
            cause: "the client left".to_owned(),
            kind: FailureKind::ClientLeft,
            step: Step::Answer,
            repeatable: false,
        }
    }

    fn of(error: &ureq::Error) -> Self {
        let (stage, reused) = exchange::progress();
        let kind = match error {
            _ if exchange::ended_by_client() => FailureKind::ClientLeft,
            ureq::Error::Timeout(_) => FailureKind::TimedOut,
            _ => FailureKind::Broken,
        };
        let unprocessed = match stage {
            Stage::Connecting | Stage::Sending => true,
            Stage::Waiting => reused,
            Stage::Receiving => false,
        };
        Self {
            cause: in_words(error, stage),
            kind,
            step: exchange::failing_step(),
            repeatable: kind == FailureKind::Broken && unprocessed,
        }
    }
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

/// What went wrong and when, without a URL (its host may be a workspace id).
fn in_words(error: &ureq::Error, stage: Stage) -> String {
    let when = match stage {
        Stage::Connecting => "while connecting",
        Stage::Sending => "while sending the request",
        Stage::Waiting => "before its answer",
        Stage::Receiving => "during its answer",
    };
    let what = match error {
        ureq::Error::HostNotFound => "the host name is not known".to_owned(),
        ureq::Error::Timeout(Timeout::Resolve) => "name resolution took too long".to_owned(),
        ureq::Error::Timeout(Timeout::Connect) => "connecting took too long".to_owned(),
        ureq::Error::Timeout(Timeout::RecvBody) => "it stayed silent for too long".to_owned(),
        ureq::Error::Timeout(_) => "it took too long".to_owned(),
        ureq::Error::Rustls(error) => format!("TLS: {error}"),
        ureq::Error::ConnectProxyFailed(status) => format!("the outbound proxy refused: {status}"),
        ureq::Error::Io(error) => io_in_words(error),
        ureq::Error::Other(error) => error.to_string(),
        error => error.to_string(),
    };
    format!("{what} {when}")
}

fn io_in_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "the connection was refused".to_owned(),
        io::ErrorKind::ConnectionReset => "the connection was reset".to_owned(),
        io::ErrorKind::UnexpectedEof => "the connection was closed".to_owned(),
        io::ErrorKind::BrokenPipe => "the connection was closed".to_owned(),
        _ => match error.source() {
            Some(source) => source.to_string(),
            None => error.to_string(),
        },
    }
}

/// The bundled roots and these.
fn roots_with(own: &[Vec<u8>]) -> RootCerts {
    let bundled = webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().map(|root| root.as_ref());
    let all = bundled.chain(own.iter().map(Vec::as_slice));
    all.map(|der| Certificate::from_der(der).to_owned()).collect::<Vec<_>>().into()
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
