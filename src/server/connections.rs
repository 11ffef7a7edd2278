//! Every connection that is known: whose turn it is, what it is doing, and since when.
//!
//! tiny_http hands out a pipelined request while the one before it is still being answered, and
//! lets whoever answers it first wait. So here only the oldest request of a connection is in
//! work; later ones wait in that connection's line, where they hold no thread.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tiny_http::Request;

use super::fd::Connection;
use super::head::header;

/// How many requests may wait behind the one in work, to be answered; with one more, that answer is
/// the last.
const LONGEST_LINE: usize = 8;

/// How many may be held, to be dropped when that is safe.
const MOST_HELD: usize = 64;

/// How long a connection is known after its socket is gone. It may be younger than the reaper's
/// last look.
const REMEMBER: Duration = Duration::from_millis(500);

/// The same for one that is condemned.
const REMEMBER_CONDEMNED: Duration = Duration::from_secs(2);

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activity {
    /// It has never asked for anything.
    Mute,
    /// It has had its answer and may ask again.
    Idle,
    /// Its request waits for a thread of ours.
    Waiting,
    /// Its body is being read: for how long, apart from this read, and how much has come. (The time
    /// of this activity is that of its last bytes.)
    Sending { before: Duration, bytes: u64 },
    /// A worker has its request.
    Served,
    /// It is to take a part of an answer. (The time of this activity is that of the last part.)
    Taking,
    /// It is to take a page or a refusal of ours.
    Answered,
    /// It has had its last answer, and whatever it still sends is thrown away.
    Lingering,
}

/// Which connection of an address is meant: another one may have taken its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id(u64);

/// One connection.
#[derive(Debug)]
struct Known {
    id: Id,
    activity: Activity,
    /// When it began to do that.
    since: Instant,
    /// Requests that came while another one was in work.
    line: VecDeque<Request>,
    /// Nothing that it still sends is answered.
    condemned: bool,
    /// One of its requests is in work, or has not been disposed of.
    has_turn: bool,
    /// One of its descriptors, as the last census saw it.
    fd: Option<RawFd>,
    /// Since when its socket has not been among the descriptors.
    missing_since: Option<Instant>,
}

/// What the reaper sees of a connection.
#[derive(Clone, Debug)]
pub(super) struct Sight {
    pub(super) peer: SocketAddr,
    pub(super) activity: Activity,
    pub(super) age: Duration,
}

/// The connections.
#[derive(Debug, Default)]
pub(super) struct Connections {
    known: Mutex<HashMap<SocketAddr, Known>>,
    /// How many there have been.
    count: AtomicU64,
    in_flight: AtomicUsize,
}

/// What becomes of a request that has just arrived.
#[derive(Debug)]
pub(super) enum Arrival {
    /// It is its turn. `first`: the connection had never asked before.
    Now { request: Request, id: Id, first: bool },
    /// It waits.
    Later,
    /// Its connection is condemned, and nothing of it is in work: the request is to be dropped.
    Dead(Request),
    /// So many wait that the connection is to be shut at once.
    Flood,
}

/// What is left of a connection whose request is done.
#[derive(Debug)]
pub(super) enum Rest {
    /// Nothing waits.
    Nothing,
    /// It is this one's turn.
    Next(Request),
    /// That was its last answer. What waits is taken with [`Connections::take_line`], when it can be
    /// dropped.
    Close,
    /// The same, and the connection has lingered and is shut already.
    Shut,
}

impl Connections {
    /// A request arrives. One whose turn it is must be followed by [`Connections::finish`].
    pub(super) fn arrive(&self, peer: SocketAddr, request: Request, now: Instant) -> Arrival {
        let mut known = self.known.lock();
        let connection = known.entry(peer).or_insert_with(|| self.begin(now));
        match connection.activity {
            Activity::Mute | Activity::Idle if connection.condemned => Arrival::Dead(request),
            Activity::Mute | Activity::Idle => {
                let first = matches!(connection.activity, Activity::Mute);
                connection.has_turn = true;
                self.set(connection, Activity::Waiting, now);
                Arrival::Now { request, id: connection.id, first }
            }
            // The answers before it are over, and there is no body to read: it can be dropped.
            Activity::Lingering if connection.can_drop(&request) => Arrival::Dead(request),
            _ => {
                connection.line.push_back(request);
                connection.condemned |= connection.line.len() > LONGEST_LINE;
                if connection.line.len() == MOST_HELD { Arrival::Flood } else { Arrival::Later }
            }
        }
    }

    /// The request in work does something else now.
    pub(super) fn turn_to(&self, peer: SocketAddr, activity: Activity, now: Instant) {
        if let Some(connection) = self.known.lock().get_mut(&peer) {
            self.set(connection, activity, now);
        }
    }

    /// Nothing that this connection still sends is answered.
    pub(super) fn condemn(&self, peer: SocketAddr) {
        if let Some(connection) = self.known.lock().get_mut(&peer) {
            connection.condemned = true;
        }
    }

    /// Whether nothing more is answered on this connection.
    pub(super) fn is_condemned(&self, peer: SocketAddr) -> bool {
        self.known.lock().get(&peer).is_some_and(|connection| connection.condemned)
    }

    /// Whether this address had its last answer: whatever it sends now is either too late, or comes
    /// over another connection.
    pub(super) fn is_over(&self, peer: SocketAddr) -> bool {
        self.known.lock().get(&peer).is_some_and(|connection| {
            connection.condemned
                && (connection.is_at_rest() || connection.activity == Activity::Lingering)
        })
    }

    /// What is known of this address does not hold for the connection that it has now. Gives what
    /// waited, to be dropped.
    pub(super) fn forget(&self, peer: SocketAddr) -> VecDeque<Request> {
        let mut known = self.known.lock();
        let Some(mut connection) = known.remove(&peer) else { return VecDeque::new() };
        // For the count.
        let since = connection.since;
        self.set(&mut connection, Activity::Idle, since);
        connection.line
    }

    /// The request in work is done.
    pub(super) fn finish(&self, peer: SocketAddr, id: Id, now: Instant) -> Rest {
        let mut known = self.known.lock();
        let Some(connection) = known.get_mut(&peer).filter(|connection| connection.id == id) else {
            return Rest::Nothing;
        };
        if connection.condemned {
            connection.has_turn = false;
            let has_lingered = connection.activity == Activity::Lingering;
            self.set(connection, Activity::Lingering, now);
            return if has_lingered { Rest::Shut } else { Rest::Close };
        }
        match connection.line.pop_front() {
            Some(request) => {
                self.set(connection, Activity::Waiting, now);
                Rest::Next(request)
            }
            None => {
                connection.has_turn = false;
                self.set(connection, Activity::Idle, now);
                Rest::Nothing
            }
        }
    }

    /// A connection that lingered is shut: what waits, to be dropped in this order.
    pub(super) fn take_line(&self, peer: SocketAddr, id: Id, now: Instant) -> VecDeque<Request> {
        let mut known = self.known.lock();
        let Some(connection) = known.get_mut(&peer).filter(|connection| connection.id == id) else {
            return VecDeque::new();
        };
        self.set(connection, Activity::Idle, now);
        std::mem::take(&mut connection.line)
    }

    /// One of a connection's descriptors, to be verified by its peer.
    pub(super) fn descriptor(&self, peer: SocketAddr) -> Option<RawFd> {
        self.known.lock().get(&peer)?.fd
    }

    /// How many connections are known.
    pub(super) fn count(&self) -> usize {
        self.known.lock().len()
    }

    /// Whether this connection has a request in work.
    pub(super) fn is_in_work(&self, peer: SocketAddr) -> bool {
        self.known.lock().get(&peer).is_some_and(|connection| !connection.is_at_rest())
    }

    /// How many connections have a request in work. Who lingers has none.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Takes note of the sockets that there are, forgets the connections whose socket is gone,
    /// and tells of all others.
    pub(super) fn take_stock(&self, sockets: &[Connection], now: Instant) -> Vec<Sight> {
        let mut known = self.known.lock();
        for connection in known.values_mut() {
            connection.missing_since.get_or_insert(now);
        }
        for socket in sockets {
            let connection = known.entry(socket.peer).or_insert_with(|| self.begin(now));
            connection.missing_since = None;
            connection.fd = Some(socket.fd);
        }
        known.retain(|_, connection| !connection.is_gone(now));
        known
            .iter()
            .map(|(peer, connection)| Sight {
                peer: *peer,
                activity: connection.activity,
                age: now.saturating_duration_since(connection.since),
            })
            .collect()
    }

    fn begin(&self, now: Instant) -> Known {
        Known::new(Id(self.count.fetch_add(1, Ordering::Relaxed)), now)
    }

    fn set(&self, connection: &mut Known, activity: Activity, now: Instant) {
        let (before, after) = (connection.activity.is_in_flight(), activity.is_in_flight());
        if after && !before {
            self.in_flight.fetch_add(1, Ordering::Relaxed);
        } else if before && !after {
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
        }
        connection.activity = activity;
        connection.since = now;
    }
}

impl Activity {
    /// Whether somebody waits for an answer.
    fn is_in_flight(self) -> bool {
        !matches!(self, Self::Mute | Self::Idle | Self::Lingering)
    }
}

impl Known {
    fn new(id: Id, now: Instant) -> Self {
        Self {
            id,
            activity: Activity::Mute,
            since: now,
            line: VecDeque::new(),
            condemned: false,
            has_turn: false,
            fd: None,
            missing_since: None,
        }
    }

    fn is_at_rest(&self) -> bool {
        matches!(self.activity, Activity::Mute | Activity::Idle)
    }

    /// Whether to drop this request waits for nobody, although the connection is not shut.
    fn can_drop(&self, request: &Request) -> bool {
        let is_chunked = header(request, "transfer-encoding").is_some();
        let has_no_body = request.body_length().unwrap_or(0) == 0 && !is_chunked;
        !self.has_turn && self.line.is_empty() && has_no_body
    }

    /// A socket that was shut is no longer found, and the library may still hold some of what it
    /// sent; so a condemned connection is remembered for longer.
    fn is_gone(&self, now: Instant) -> bool {
        let memory = if self.condemned { REMEMBER_CONDEMNED } else { REMEMBER };
        self.is_at_rest() && self.missing_since.is_some_and(|since| now - since >= memory)
    }
}
