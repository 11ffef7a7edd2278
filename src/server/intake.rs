//! What is decided about each request, before anybody waits for its client.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use log::debug;
use parking_lot::Mutex;
use tiny_http::Request;

use super::Once;
use super::bodies::{Budget, Received};
use super::connections::{Activity, Arrival, Connections};
use super::crew::Crew;
use super::fd::{Connection, Descriptors, Kept};
use super::gate::Gate;
use super::head::{self, Head, LARGEST_COMMAND};
use super::lost::LostThreads;
use super::poker::Poker;
use super::queue::Queue;
use super::refusals::{self, Lingerer, Numbers};
use super::turn::Turn;
use super::workers::{Admission, Job};
use crate::admin::Admin;
use crate::clock;
use crate::config::Config;
use crate::error::ProxyError;
use crate::metrics::Load;
use crate::panics::{Alarm, fault_point};
use crate::policy::route::{self, Endpoint, Local, Route, Steer};
use crate::proxy::Proxy;
use crate::relay::LARGEST_UPLOAD;

/// Threads that write our own pages.
const RESPONDERS: usize = 16;

/// Threads that wait for bodies.
const RECEIVERS: usize = 256;

/// Everything that the front's threads share.
pub(super) struct Front {
    pub(super) config: Arc<Config>,
    pub(super) proxy: Arc<Proxy>,
    pub(super) admin: Arc<Admin>,
    pub(super) gate: Gate,
    pub(super) descriptors: Arc<Descriptors>,
    pub(super) connections: Connections,
    responders: Arc<Crew>,
    receivers: Arc<Crew>,
    /// Drops what may not be dropped anywhere else, in order.
    pub(super) undertakers: Arc<Crew>,
    pub(super) lingerer: Lingerer,
    pub(super) lost: LostThreads,
    /// The descriptors of connections with a request that cannot be dropped.
    pub(super) undroppable: Mutex<HashMap<SocketAddr, Numbers>>,
    pub(super) queue: Queue<Job>,
    admission: Arc<Admission>,
    pub(super) budget: Arc<Budget>,
    pub(super) poker: Poker,
    draining: Once,
    pub(super) next_id: AtomicU64,
}

/// A request whose turn it is, with what its head says.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) request: Request,
    pub(super) head: Head,
    pub(super) arrived: Instant,
    /// Whether it had to wait for its turn.
    pub(super) waited: bool,
    pub(super) turn: Turn,
    /// Whether its body has been read.
    pub(super) is_read: bool,
    /// Whether what follows its body cannot be read, so that its answer is the connection's last.
    pub(super) is_last: bool,
}

/// What a request is for.
enum Errand {
    Page(Local),
    Steer(Steer),
    Preflight,
    Serve(Endpoint),
}

impl Front {
    /// The shared part.
    pub(super) fn new(
        config: Arc<Config>,
        proxy: Arc<Proxy>,
        admin: Arc<Admin>,
        gate: Gate,
        alarm: &Alarm,
    ) -> io::Result<Self> {
        let poker = Poker::start(alarm, gate.reachable())?;
        let descriptors = Arc::new(Descriptors::open(gate.address().port()));
        let front = Self {
            lost: LostThreads::new(alarm, descriptors.limit),
            queue: Queue::new(),
            admission: Admission::new(config.workers + config.queue_size),
            budget: Budget::new(config.max_body_bytes),
            descriptors,
            config,
            proxy,
            admin,
            gate,
            connections: Connections::default(),
            responders: Crew::new("responder", RESPONDERS)?,
            receivers: Crew::new("receiver", RECEIVERS)?,
            undertakers: Crew::new("undertaker", 1)?,
            lingerer: Lingerer::start(alarm)?,
            undroppable: Mutex::default(),
            poker,
            draining: Once::default(),
            next_id: AtomicU64::new(1),
        };
        Ok(front)
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

    /// Tells the status page where to ask.
    pub(super) fn attach_load(&self, load: impl Fn() -> Load + Send + Sync + 'static) {
        self.admin.attach_load(load);
    }

    pub(super) fn load(&self) -> Load {
        let (workers, inside) = (self.config.workers, self.admission.inside());
        Load {
            workers,
            busy: inside.min(workers),
            queued: inside.saturating_sub(workers),
            connections: self.connections.count(),
        }
    }

    pub(super) fn start_draining(&self) {
        self.draining.set();
        self.admin.start_draining();
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.is_set()
    }

    /// A client's connection, unless it is gone.
    pub(super) fn connection(&self, peer: SocketAddr) -> Option<Kept> {
        self.descriptors.keep(peer, self.connections.descriptor(peer))
    }

    pub(super) fn client_has_left(&self, peer: SocketAddr) -> bool {
        self.descriptors.has_left(peer, self.connections.descriptor(peer))
    }

    /// A request from the library. Waits for nothing.
    pub(super) fn take(self: &Arc<Self>, request: Request) {
        let Some(peer) = request.remote_addr().copied() else {
            // The connection was reset before its first byte: nobody can be answered.
            return self.bury(request);
        };
        if !refusals::is_droppable(&request) {
            // While they can be found: later the connection is shut.
            self.undroppable.lock().insert(peer, self.descriptors.numbered(peer));
        }
        // Of a connection that had its last answer our side has ended: one that stands is another, from
        // the same port.
        let is_reborn = self.connections.is_over(peer)
            && self.descriptors.find(peer).is_some_and(Connection::is_established);
        if is_reborn {
            self.connections.forget(peer).into_iter().for_each(|request| self.bury(request));
        }
        match self.connections.arrive(peer, request, clock::instant()) {
            Arrival::Now { request, id, first } => {
                if first {
                    self.poker.poke(1);
                }
                self.dispatch(Turn::new(self, peer, id), request, is_reborn);
            }
            Arrival::Later => {}
            Arrival::Dead(request) => self.bury(request),
            Arrival::Flood => {
                debug!("condemned client={} in=pipeline", peer.ip());
                if let Some(connection) = self.connection(peer) {
                    // Before the library reads it.
                    connection.discard();
                    connection.shut();
                }
            }
        }
    }

    /// Hands a request whose turn it is to whoever may wait for its client. `waited`: it came while
    /// another one of its connection was in work.
    pub(super) fn dispatch(self: &Arc<Self>, turn: Turn, request: Request, waited: bool) {
        let arrived = clock::instant();
        let head = Head::of(&request, turn.peer());
        fault_point("intake", head.query.as_deref());
        let pending =
            Pending { request, head, arrived, waited, turn, is_read: false, is_last: false };
        let front = Arc::clone(self);
        match self.judge(&pending) {
            Ok(Errand::Serve(endpoint)) if endpoint.is_upload() || pending.body_is_here() => {
                self.admit(pending, endpoint, None);
            }
            Ok(Errand::Serve(endpoint)) => {
                self.receivers.give(move || front.receive(pending, endpoint));
            }
            Ok(Errand::Page(local)) => self.responders.give(move || front.page(pending, local)),
            Ok(Errand::Steer(steer)) => self.receivers.give(move || front.steer(pending, steer)),
            Ok(Errand::Preflight) => self.responders.give(move || front.preflight(pending)),
            Err(error) => self.give_refusal(pending, error),
        }
    }

    /// Head → auth → route.
    fn judge(&self, pending: &Pending) -> Result<Errand, ProxyError> {
        let Pending { request, head, .. } = pending;
        head.check_framing()?;
        head.check_host(request)?;
        let authorized = || match head::is_authorized(request, &self.config.proxy_key) {
            true => Ok(()),
            false => Err(ProxyError::Unauthorized),
        };
        match route::resolve(&head.method, &head.path) {
            Route::Preflight => Ok(Errand::Preflight),
            Route::NotFound => Err(ProxyError::NotFound),
            Route::WrongMethod { allow } => Err(ProxyError::WrongMethod { allow }),
            Route::Local(Local::Index) if head::accepts_html(request) => {
                Ok(Errand::Page(Local::Page))
            }
            Route::Local(local) if local.is_open() => Ok(Errand::Page(local)),
            Route::Local(local) => {
                authorized()?;
                if local.is_private() {
                    head::check_origin(request)?;
                }
                Ok(Errand::Page(local))
            }
            Route::Steer(steer) => {
                authorized()?;
                head::check_origin(request)?;
                head.check_body(request, LARGEST_COMMAND)?;
                Ok(Errand::Steer(steer))
            }
            Route::Upstream(endpoint) => {
                authorized()?;
                let limit = match endpoint.is_upload() {
                    true => LARGEST_UPLOAD,
                    false => self.config.max_body_bytes as u64,
                };
                head.check_body(request, limit)?;
                if self.admission.is_full() {
                    return Err(ProxyError::Overloaded);
                }
                Ok(Errand::Serve(endpoint))
            }
        }
    }

    /// Lets a request in to the workers, or refuses it when they and their queue are full.
    pub(super) fn admit(
        self: &Arc<Self>,
        pending: Pending,
        endpoint: Endpoint,
        body: Option<Received>,
    ) {
        match self.admission.enter() {
            None => self.give_refusal(pending, ProxyError::Overloaded),
            Some(ticket) => {
                pending.turn.turn_to(Activity::Served);
                self.queue.push(Job { pending, endpoint, body, ticket });
            }
        }
    }

    /// Hands a refusal to whoever may write to its client.
    pub(super) fn give_refusal(self: &Arc<Self>, pending: Pending, error: ProxyError) {
        let front = Arc::clone(self);
        self.responders.give(move || front.refuse(pending, &error));
    }
}

impl Pending {
    pub(super) fn body_is_here(&self) -> bool {
        self.is_read || self.head.body_is_here()
    }
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front").field("gate", &self.gate).finish_non_exhaustive()
    }
}
