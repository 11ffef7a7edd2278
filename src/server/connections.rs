//! One request of a connection at a time.
//!
//! tiny_http hands out a pipelined request while the one before it is still being answered, and
//! lets whoever answers it first wait. So here only the oldest request of a connection is in
//! work; later ones wait in that connection's line, where they hold no thread.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tiny_http::Request;

/// How many requests may wait behind the one in work.
const LONGEST_LINE: usize = 8;

/// The connections that have a request in work.
#[derive(Debug, Default)]
pub(super) struct Connections {
    lines: Mutex<HashMap<SocketAddr, VecDeque<Request>>>,
    in_flight: AtomicUsize,
}

/// What becomes of a request that has just arrived.
#[derive(Debug)]
pub(super) enum Arrival {
    /// It is its turn.
    Now(Request),
    /// It waits.
    Later,
    /// Too many wait already.
    TooMany(Request),
}

impl Connections {
    /// A request arrives. One whose turn it is must be followed by [`Connections::finish`].
    pub(super) fn arrive(&self, peer: SocketAddr, request: Request) -> Arrival {
        let mut lines = self.lines.lock();
        match lines.get_mut(&peer) {
            None => {
                lines.insert(peer, VecDeque::new());
                self.in_flight.fetch_add(1, Ordering::Relaxed);
                Arrival::Now(request)
            }
            Some(line) if line.len() < LONGEST_LINE => {
                line.push_back(request);
                self.in_flight.fetch_add(1, Ordering::Relaxed);
                Arrival::Later
            }
            Some(_) => Arrival::TooMany(request),
        }
    }

    /// The request in work is done; whose turn is it now?
    pub(super) fn finish(&self, peer: SocketAddr) -> Option<Request> {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        let mut lines = self.lines.lock();
        let next = lines.get_mut(&peer).and_then(VecDeque::pop_front);
        if next.is_none() {
            lines.remove(&peer);
        }
        next
    }

    /// How many requests are in work or wait in a line.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }
}
