//! The one thread that takes requests from the library, and what is decided about each.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use http::{HeaderMap, HeaderValue};
use log::{debug, error, info};
use tiny_http::Request;

use super::Once;
use super::answer::Answer;
use super::bodies::{self, Budget, ReceiveError, Received};
use super::connections::{Arrival, Connections};
use super::crew::Crew;
use super::fd;
use super::head::{self, Head};
use super::workers::{Admission, Job};
use crate::admin::Admin;
use crate::clock;
use crate::config::Config;
use crate::error::ProxyError;
use crate::log_text::{Quoted, millis};
use crate::policy::route::{self, Endpoint, Local, Route};
use crate::proxy::{ClientRequest, Proxy};
use crate::relay;

/// Threads that write our own pages and refusals.
const RESPONDERS: usize = 16;

/// Threads that wait for bodies.
const RECEIVERS: usize = 128;

/// Everything that the front's threads share.
pub(super) struct Front {
    config: Arc<Config>,
    proxy: Arc<Proxy>,
    admin: Arc<Admin>,
    address: SocketAddr,
    connections: Connections,
    responders: Arc<Crew>,
    receivers: Arc<Crew>,
    jobs: Sender<Job>,
    admission: Arc<Admission>,
    budget: Arc<Budget>,
    draining: Once,
    next_id: AtomicU64,
}

/// A request whose turn it is, with what its head says.
#[derive(Debug)]
pub(super) struct Pending {
    request: Request,
    head: Head,
    arrived: Instant,
    turn: Turn,
}

/// What a request is for.
enum Errand {
    Page(Local),
    Preflight,
    Serve(Endpoint),
}

/// A connection's turn. Given back, the connection's next request is handed out.
pub(super) struct Turn {
    front: Arc<Front>,
    peer: SocketAddr,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(next) = self.front.connections.finish(self.peer) {
            self.front.dispatch(self.peer, next);
        }
    }
}

impl Front {
    /// The shared part, and the workers' end of the queue.
    pub(super) fn new(
        config: Arc<Config>,
        proxy: Arc<Proxy>,
        admin: Arc<Admin>,
        address: SocketAddr,
    ) -> io::Result<(Self, Receiver<Job>)> {
        let (jobs, queue) = crossbeam_channel::unbounded();
        let front = Self {
            admission: Admission::new(config.workers + config.queue_size),
            budget: Budget::new(config.max_body_bytes),
            config,
            proxy,
            admin,
            address,
            connections: Connections::default(),
            responders: Crew::new("responder", RESPONDERS)?,
            receivers: Crew::new("receiver", RECEIVERS)?,
            jobs,
            draining: Once::default(),
            next_id: AtomicU64::new(1),
        };
        Ok((front, queue))
    }

    pub(super) fn worker_count(&self) -> usize {
        self.config.workers
    }

    pub(super) fn start_draining(&self) {
        self.draining.set();
        self.admin.start_draining();
    }

    pub(super) fn requests_in_flight(&self) -> usize {
        self.connections.in_flight()
    }

    /// A request from the library. Waits for nothing.
    fn take(self: &Arc<Self>, request: Request) {
        let Some(peer) = request.remote_addr().copied() else {
            // The connection was reset before its first byte: nobody can be answered.
            return self.responders.give(move || drop(request));
        };
        match self.connections.arrive(peer, request) {
            Arrival::Now(request) => self.dispatch(peer, request),
            Arrival::Later => {}
            Arrival::TooMany(request) => {
                let port = self.address.port();
                self.responders.give(move || {
                    fd::shut(peer, port);
                    drop(request);
                });
            }
        }
    }

    /// Hands a request whose turn it is to whoever may wait for its client.
    fn dispatch(self: &Arc<Self>, peer: SocketAddr, request: Request) {
        let arrived = clock::instant();
        let turn = Turn { front: Arc::clone(self), peer };
        let head = Head::of(&request, peer);
        let pending = Pending { request, head, arrived, turn };
        let front = Arc::clone(self);
        match self.judge(&pending) {
            Ok(Errand::Serve(endpoint)) if pending.body_is_here() => {
                self.enter(pending, endpoint, None);
            }
            Ok(Errand::Serve(endpoint)) => {
                self.receivers.give(move || front.receive(pending, endpoint));
            }
            Ok(Errand::Page(local)) => self.responders.give(move || front.page(pending, local)),
            Ok(Errand::Preflight) => self.responders.give(move || front.preflight(pending)),
            Err(error) => self.responders.give(move || front.refuse(pending, &error)),
        }
    }

    /// Head → auth → route.
    fn judge(&self, pending: &Pending) -> Result<Errand, ProxyError> {
        let Pending { request, head, .. } = pending;
        head.check_framing()?;
        let authorized = || match head::is_authorized(request, &self.config.proxy_key) {
            true => Ok(()),
            false => Err(ProxyError::Unauthorized),
        };
        match route::resolve(&head.method, &head.path) {
            Route::Preflight => Ok(Errand::Preflight),
            Route::NotFound => Err(ProxyError::NotFound),
            Route::WrongMethod { allow } => Err(ProxyError::WrongMethod { allow }),
            Route::Local(local) if local.is_open() => Ok(Errand::Page(local)),
            Route::Local(local) => authorized().map(|()| Errand::Page(local)),
            Route::Upstream(endpoint) => {
                authorized()?;
                head.check_body(request, self.config.max_body_bytes)?;
                if self.admission.is_full() {
                    return Err(ProxyError::Overloaded);
                }
                Ok(Errand::Serve(endpoint))
            }
        }
    }

    /// Waits for a body, on a receiver.
    fn receive(self: &Arc<Self>, mut pending: Pending, endpoint: Endpoint) {
        match self.read_body(&mut pending) {
            Ok(body) => self.enter(pending, endpoint, Some(body)),
            Err(ReceiveError::Refused(error)) => self.refuse(pending, &error),
            Err(ReceiveError::Broken) => {
                debug!("broken client={} in=body", pending.head.peer.ip());
                fd::shut(pending.head.peer, self.address.port());
            }
        }
    }

    fn read_body(&self, pending: &mut Pending) -> Result<Received, ReceiveError> {
        let length = pending.head.length;
        let largest = self.config.max_body_bytes;
        bodies::receive(&mut pending.request, length, largest, &self.budget)
    }

    /// Lets a request in to the workers, or refuses it when they and their queue are full.
    fn enter(self: &Arc<Self>, pending: Pending, endpoint: Endpoint, body: Option<Received>) {
        let Some(ticket) = self.admission.enter() else {
            let front = Arc::clone(self);
            return self.responders.give(move || front.refuse(pending, &ProxyError::Overloaded));
        };
        let job = Job { pending, endpoint, body, ticket };
        if self.jobs.send(job).is_err() {
            error!("workers gone=true: a request was dropped");
        }
    }

    /// Serves a request, on a worker.
    pub(super) fn serve(&self, job: Job) {
        let Job { mut pending, endpoint, body, ticket: _ticket } = job;
        let body = match body {
            Some(body) => body,
            None => match self.read_body(&mut pending) {
                Ok(body) => body,
                Err(ReceiveError::Refused(error)) => return self.refuse(pending, &error),
                Err(ReceiveError::Broken) => return,
            },
        };
        let Received { bytes, share: _share } = body;
        let headers = head::header_pairs(&pending.request)
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let request = ClientRequest {
            id: self.next_id.fetch_add(1, Ordering::Relaxed),
            peer: pending.head.peer,
            path: pending.head.path.clone(),
            query: pending.head.query.clone(),
            headers,
            body: bytes,
            endpoint,
            arrived: pending.arrived,
        };
        self.proxy.serve(request, Box::new(self.answer_to(pending)));
    }

    fn answer_to(&self, pending: Pending) -> Answer {
        let Pending { request, head, turn, .. } = pending;
        Answer::new(request, &head, self.address.port(), self.draining.is_set(), turn)
    }

    fn page(&self, pending: Pending, local: Local) {
        let (mut page, body) = self.admin.page(local, pending.head.protocol);
        self.proxy.allow_origin(&mut page.headers);
        self.respond(pending, &page, &body);
    }

    /// Answers a browser's question with whatever it asks for: the key is checked later.
    fn preflight(&self, pending: Pending) {
        let mut headers = HeaderMap::new();
        self.proxy.allow_origin(&mut headers);
        if self.config.cors_origin.is_some() {
            let asked = head::header(&pending.request, "access-control-request-headers");
            let asked = asked.and_then(|value| HeaderValue::from_str(value).ok());
            let allowed = asked.unwrap_or(HeaderValue::from_static("*"));
            headers.insert("access-control-allow-headers", allowed);
            let methods = HeaderValue::from_static("GET, HEAD, POST, OPTIONS");
            headers.insert("access-control-allow-methods", methods);
            headers.insert("access-control-max-age", HeaderValue::from_static("86400"));
        }
        let head = relay::Head { status: 204, headers, length: None };
        self.respond(pending, &head, b"");
    }

    fn refuse(&self, pending: Pending, error: &ProxyError) {
        let (head, body) = self.proxy.error_answer(error, pending.head.protocol);
        info!(
            "refused client={} method={} path={} status={} error={} total_ms={}",
            pending.head.peer.ip(),
            Quoted(&pending.head.method),
            Quoted(&pending.head.path),
            head.status,
            error.code(),
            millis(pending.arrived.elapsed()),
        );
        self.respond(pending, &head, &body);
    }

    fn respond(&self, pending: Pending, head: &relay::Head, body: &[u8]) {
        debug!(
            "local client={} method={} path={} status={}",
            pending.head.peer.ip(),
            Quoted(&pending.head.method),
            Quoted(&pending.head.path),
            head.status
        );
        self.answer_to(pending).respond(head, body);
    }
}

impl Pending {
    fn body_is_here(&self) -> bool {
        self.head.body_is_here(&self.request)
    }
}

/// Starts the intake on this listener.
///
/// # Errors
/// When the system gives no thread, or the library does not take the listener.
pub(super) fn spawn(front: Arc<Front>, listener: TcpListener) -> io::Result<()> {
    let server = tiny_http::Server::from_listener(listener, None).map_err(io::Error::other)?;
    let poker = Poker::start(front.address)?;
    thread::Builder::new().name("intake".into()).spawn(move || run(&front, &server, poker))?;
    Ok(())
}

fn run(front: &Arc<Front>, server: &tiny_http::Server, mut poker: Poker) {
    loop {
        match server.recv() {
            Ok(request) => {
                if let Some(peer) = request.remote_addr() {
                    poker.greet(*peer);
                }
                front.take(request);
            }
            // The accept thread has ended, as it should.
            Err(_) if front.draining.is_set() => {}
            Err(error) => error!("accept error=\"{error}\": no new connection is taken any more"),
        }
    }
}

/// Wakes connections that the library has left lying.
///
/// Its pool queues a new connection whenever a thread *looks* idle; of a burst, more are queued
/// than threads wake, and the surplus is not read until some other connection closes. So each
/// connection's first request is followed by one that closes at once.
struct Poker {
    greeted: HashSet<SocketAddr>,
    since: Instant,
    pokes: Sender<()>,
}

/// How long a connection counts as greeted: peers' ports come back.
const GREETING_LASTS: Duration = Duration::from_secs(1);

impl Poker {
    fn start(address: SocketAddr) -> io::Result<Self> {
        let (pokes, wanted) = crossbeam_channel::bounded(64);
        let thread = thread::Builder::new().name("poker".into()).stack_size(128 * 1024);
        thread.spawn(move || wanted.iter().for_each(|()| poke(reachable(address))))?;
        Ok(Self { greeted: HashSet::new(), since: clock::instant(), pokes })
    }

    fn greet(&mut self, peer: SocketAddr) {
        if self.since.elapsed() > GREETING_LASTS {
            self.greeted.clear();
            self.since = clock::instant();
        }
        if self.greeted.insert(peer) {
            let _ = self.pokes.try_send(());
        }
    }
}

fn poke(address: SocketAddr) {
    if let Ok(socket) = TcpStream::connect_timeout(&address, Duration::from_secs(1)) {
        // A reset instead of a farewell: no socket of ours stays behind in TIME_WAIT.
        let at_once = nix::libc::linger { l_onoff: 1, l_linger: 0 };
        let _ = nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::Linger, &at_once);
    }
}

/// The address under which this process reaches itself.
fn reachable(address: SocketAddr) -> SocketAddr {
    let host = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(host, address.port())
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front").field("address", &self.address).finish_non_exhaustive()
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("peer", &self.peer).finish_non_exhaustive()
    }
}
