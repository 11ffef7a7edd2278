//! What is decided about each request, before anybody waits for its client.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use http::{HeaderMap, HeaderValue};
use log::{debug, error, info};
use tiny_http::Request;

use super::Once;
use super::answer::{self, Answer};
use super::bodies::{self, Budget, ReceiveError, Received};
use super::connections::{Activity, Arrival, Connections, Rest};
use super::crew::Crew;
use super::fd::Descriptors;
use super::gate::Gate;
use super::head::{self, Head};
use super::refusals;
use super::workers::{Admission, Job};
use crate::admin::Admin;
use crate::clock;
use crate::config::Config;
use crate::error::ProxyError;
use crate::log_text::{Quoted, millis};
use crate::panics::{Alarm, fault_point};
use crate::policy::route::{self, Endpoint, Local, Route};
use crate::proxy::{ClientRequest, Proxy};
use crate::relay;

/// Threads that write our own pages.
const RESPONDERS: usize = 16;

/// Threads that refuse, and may have to wait for the rest of a body.
const REFUSERS: usize = 64;

/// Threads that wait for bodies.
const RECEIVERS: usize = 256;

/// Pokes that may be outstanding: more would tell the library nothing new.
const POKES: usize = 256;

/// How long a poke waits to be accepted.
const POKE_LIMIT: Duration = Duration::from_secs(1);

/// Everything that the front's threads share.
pub(super) struct Front {
    config: Arc<Config>,
    proxy: Arc<Proxy>,
    admin: Arc<Admin>,
    pub(super) gate: Gate,
    pub(super) descriptors: Arc<Descriptors>,
    pub(super) connections: Connections,
    responders: Arc<Crew>,
    refusers: Arc<Crew>,
    receivers: Arc<Crew>,
    /// Drops what may not be dropped anywhere else, in order.
    undertakers: Arc<Crew>,
    jobs: Sender<Job>,
    admission: Arc<Admission>,
    budget: Arc<Budget>,
    pokes: Sender<()>,
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

impl Turn {
    /// Whether this is the connection's last turn, because the process stops.
    pub(super) fn is_draining(&self) -> bool {
        self.front.is_draining()
    }

    fn turn_to(&self, activity: Activity) {
        self.front.connections.turn_to(self.peer, activity, clock::instant());
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        match self.front.connections.finish(self.peer, clock::instant()) {
            Rest::Nothing => {}
            Rest::Next(request) => self.front.dispatch(self.peer, request),
            Rest::Dead(line) => line.into_iter().for_each(|request| self.front.bury(request)),
        }
    }
}

impl Front {
    /// The shared part, and the workers' end of the queue.
    pub(super) fn new(
        config: Arc<Config>,
        proxy: Arc<Proxy>,
        admin: Arc<Admin>,
        gate: Gate,
        alarm: &Alarm,
    ) -> io::Result<(Self, Receiver<Job>)> {
        let (jobs, queue) = crossbeam_channel::unbounded();
        let (pokes, wanted) = crossbeam_channel::bounded(POKES);
        let reachable = gate.reachable();
        alarm.essential("poker", move || wanted.iter().for_each(|()| poke(reachable)))?;
        let front = Self {
            admission: Admission::new(config.workers + config.queue_size),
            budget: Budget::new(config.max_body_bytes),
            descriptors: Arc::new(Descriptors::open(gate.address().port())),
            config,
            proxy,
            admin,
            gate,
            connections: Connections::default(),
            responders: Crew::new("responder", RESPONDERS)?,
            refusers: Crew::new("refuser", REFUSERS)?,
            receivers: Crew::new("receiver", RECEIVERS)?,
            undertakers: Crew::new("undertaker", 1)?,
            jobs,
            pokes,
            draining: Once::default(),
            next_id: AtomicU64::new(1),
        };
        Ok((front, queue))
    }

    pub(super) fn worker_count(&self) -> usize {
        self.config.workers
    }

    pub(super) fn client_timeout(&self) -> Duration {
        self.config.client_timeout
    }

    pub(super) fn body_memory(&self) -> usize {
        self.budget.used()
    }

    pub(super) fn start_draining(&self) {
        self.draining.set();
        self.admin.start_draining();
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.is_set()
    }

    /// Wakes connections that the library has left lying.
    ///
    /// Its pool queues a new connection whenever a thread *looks* idle; of a burst, more are
    /// queued than threads wake, and the surplus is not read until some other connection closes.
    /// So each connection's first request is followed by a connection of our own that closes at
    /// once, and frees a thread for one that waits.
    pub(super) fn poke(&self, count: usize) {
        for _ in 0..count {
            let _ = self.pokes.try_send(());
        }
    }

    /// A request from the library. Waits for nothing.
    pub(super) fn take(self: &Arc<Self>, request: Request) {
        let Some(peer) = request.remote_addr().copied() else {
            // The connection was reset before its first byte: nobody can be answered.
            return self.bury(request);
        };
        match self.connections.arrive(peer, request, clock::instant()) {
            Arrival::Now { request, first } => {
                if first {
                    self.poke(1);
                }
                self.dispatch(peer, request);
            }
            Arrival::Later => {}
            Arrival::Dead(request) => self.bury(request),
            Arrival::Condemned => {
                debug!("condemned client={} in=pipeline", peer.ip());
                self.descriptors.silence(peer);
            }
        }
    }

    /// Drops a request of a connection that is shut. In one thread and in order, because a drop
    /// waits for the answers before it.
    fn bury(&self, request: Request) {
        self.undertakers.give(move || {
            refusals::dispose(request);
        });
    }

    /// Hands a request whose turn it is to whoever may wait for its client.
    fn dispatch(self: &Arc<Self>, peer: SocketAddr, request: Request) {
        let arrived = clock::instant();
        let turn = Turn { front: Arc::clone(self), peer };
        let head = Head::of(&request, peer);
        fault_point("intake", head.query.as_deref());
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
            Err(error) => self.give_refusal(pending, error),
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
            Err(ReceiveError::Refused(error)) => self.give_refusal(pending, error),
            Err(ReceiveError::Broken) => self.abandon(pending),
        }
    }

    /// The client broke off in its body: there is nobody to answer.
    fn abandon(&self, pending: Pending) {
        debug!("broken client={} in=body", pending.head.peer.ip());
        self.connections.condemn(pending.head.peer);
        self.descriptors.shut(pending.head.peer);
        self.bury(pending.request);
    }

    fn read_body(&self, pending: &mut Pending) -> Result<Received, ReceiveError> {
        let Pending { request, head, turn, .. } = pending;
        let begun = clock::instant();
        let progress = |bytes| turn.turn_to(Activity::Sending { begun, bytes });
        bodies::receive(request, head.length, self.config.max_body_bytes, &self.budget, progress)
    }

    /// Lets a request in to the workers, or refuses it when they and their queue are full.
    fn enter(self: &Arc<Self>, pending: Pending, endpoint: Endpoint, body: Option<Received>) {
        let Some(ticket) = self.admission.enter() else {
            return self.give_refusal(pending, ProxyError::Overloaded);
        };
        pending.turn.turn_to(Activity::Served);
        let job = Job { pending, endpoint, body, ticket };
        if self.jobs.send(job).is_err() {
            error!("workers gone=true: a request was dropped");
        }
    }

    /// Serves a request, on a worker.
    pub(super) fn serve(self: &Arc<Self>, job: Job) {
        let Job { mut pending, endpoint, body, ticket: _ticket } = job;
        let body = match body {
            Some(body) => body,
            None => match self.read_body(&mut pending) {
                Ok(body) => body,
                Err(ReceiveError::Refused(error)) => return self.give_refusal(pending, error),
                Err(ReceiveError::Broken) => return self.abandon(pending),
            },
        };
        pending.turn.turn_to(Activity::Served);
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
        let descriptors = Arc::clone(&self.descriptors);
        Answer::new(request, &head, descriptors, turn)
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

    /// Hands a refusal to whoever may wait for its client.
    fn give_refusal(self: &Arc<Self>, pending: Pending, error: ProxyError) {
        let front = Arc::clone(self);
        if pending.body_is_here() {
            self.responders.give(move || front.refuse(pending, &error));
        } else {
            self.refusers.give(move || front.refuse(pending, &error));
        }
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
        if refusals::is_harmless(&pending.head, &pending.request) {
            return self.respond(pending, &head, &body);
        }
        let Pending { request, head: asked, turn, .. } = pending;
        turn.turn_to(Activity::Lingering);
        // What the client sends from here on would be taken for another request.
        self.connections.condemn(asked.peer);
        let answer = answer::whole(&head, &body);
        refusals::refuse_past_library(
            &self.descriptors,
            &self.undertakers,
            &asked,
            request,
            &answer,
        );
    }

    fn respond(&self, pending: Pending, head: &relay::Head, body: &[u8]) {
        debug!(
            "local client={} method={} path={} status={}",
            pending.head.peer.ip(),
            Quoted(&pending.head.method),
            Quoted(&pending.head.path),
            head.status
        );
        if !pending.body_is_here() {
            // The library reads the rest of the body away first.
            pending.turn.turn_to(Activity::Sending { begun: pending.arrived, bytes: 0 });
        }
        self.answer_to(pending).respond(head, body);
    }
}

impl Pending {
    fn body_is_here(&self) -> bool {
        self.head.body_is_here(&self.request)
    }
}

fn poke(address: SocketAddr) {
    if let Ok(socket) = TcpStream::connect_timeout(&address, POKE_LIMIT) {
        // A reset instead of a farewell: no socket of ours stays behind in TIME_WAIT.
        let at_once = nix::libc::linger { l_onoff: 1, l_linger: 0 };
        let _ = nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::Linger, &at_once);
    }
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front").field("gate", &self.gate).finish_non_exhaustive()
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("peer", &self.peer).finish_non_exhaustive()
    }
}
