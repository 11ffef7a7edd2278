//! The library's server, and its successor when it dies.
//!
//! Any error of `accept` ends the library's accept thread, and running out of descriptors or
//! threads makes it panic: the port then refuses while the process lives. Connections that stand
//! are not affected. So another server is started on the same socket, and the old one is asked
//! for requests until the last of its connections is gone.

use std::collections::HashSet;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use log::{error, info, warn};
use parking_lot::Mutex;
use tiny_http::Server;

use super::Once;
use super::intake::Front;
use super::listener::Listening;
use crate::panics::{self, Alarm};

/// How long a self-connection may take before the accept thread counts as dead.
const ACCEPT_LIMIT: Duration = Duration::from_secs(2);

/// How often an old server is asked whether it still has a request.
const OLD_POLL: Duration = Duration::from_millis(500);

/// The way in.
#[derive(Debug)]
pub(super) struct Gate {
    listening: Listening,
    alarm: Alarm,
    state: Mutex<State>,
    /// Somebody has reason to believe that nothing is accepted any more.
    suspected: AtomicBool,
}

#[derive(Default)]
struct State {
    current: Option<Arc<Generation>>,
    old: Vec<Arc<Generation>>,
    /// A handle of the listener for the day on which there is no descriptor to make one.
    spare: Option<TcpListener>,
    count: u64,
}

/// One server of the library, with one intake.
struct Generation {
    server: Server,
    is_old: Once,
    /// An old one is let go when these are gone.
    peers: Mutex<HashSet<SocketAddr>>,
    is_empty: Once,
}

impl Gate {
    pub(super) fn new(listening: Listening, alarm: Alarm) -> Self {
        Self { listening, alarm, state: Mutex::default(), suspected: AtomicBool::new(false) }
    }

    /// Where clients connect.
    pub(super) fn address(&self) -> SocketAddr {
        self.listening.address()
    }

    /// Starts the first server.
    pub(super) fn open(&self, front: &Arc<Front>) -> io::Result<()> {
        let listener = self.listening.share()?;
        let generation = self.start(front, listener)?;
        let mut state = self.state.lock();
        state.current = Some(generation);
        state.spare = self.listening.share().ok();
        Ok(())
    }

    /// Closes every handle of the listener.
    pub(super) fn close(&self) {
        self.state.lock().spare = None;
        self.listening.close();
    }

    /// Makes the next look ask whether connections are still accepted.
    pub(super) fn suspect(&self) {
        self.suspected.store(true, Ordering::Relaxed);
    }

    /// The reaper's look: lets old servers go, and replaces one that accepts no more. `peers`:
    /// the connections that there are.
    pub(super) fn look(&self, front: &Arc<Front>, peers: &[SocketAddr]) {
        let mut state = self.state.lock();
        state.old.retain(|old| !old.forget_all_but(peers));
        let suspected = self.suspected.swap(false, Ordering::Relaxed) | panics::library_panicked();
        if !suspected || front.is_draining() {
            return;
        }
        match self.accepts() {
            Ok(true) => {}
            Ok(false) => self.replace(front, &mut state, peers),
            // Not a word about the accept thread: we could not even knock.
            Err(_) => self.suspect(),
        }
    }

    fn replace(&self, front: &Arc<Front>, state: &mut State, peers: &[SocketAddr]) {
        let Some(listener) = self.listening.share().ok().or_else(|| state.spare.take()) else {
            return self.suspect();
        };
        match self.start(front, listener) {
            Ok(generation) => {
                state.count += 1;
                warn!("accept replaced={} reason=\"the library stopped accepting\"", state.count);
                if let Some(old) = state.current.replace(generation) {
                    old.retire(peers);
                    state.old.push(old);
                }
            }
            Err(error) => {
                error!("accept replaced=false error=\"{error}\"");
                self.suspect();
            }
        }
        if state.spare.is_none() {
            state.spare = self.listening.share().ok();
        }
    }

    fn start(&self, front: &Arc<Front>, listener: TcpListener) -> io::Result<Arc<Generation>> {
        // The library starts threads with a call that panics when there are none.
        let server = panic::catch_unwind(|| Server::from_listener(listener, None))
            .map_err(|_| io::Error::other("no thread for the accept loop"))?
            .map_err(io::Error::other)?;
        let generation = Arc::new(Generation {
            server,
            is_old: Once::default(),
            peers: Mutex::default(),
            is_empty: Once::default(),
        });
        let (front, intake) = (Arc::clone(front), Arc::clone(&generation));
        self.alarm.essential("intake", move || intake.run(&front))?;
        Ok(generation)
    }

    /// Whether a connection to ourselves is accepted and, once we say that nothing will come,
    /// closed.
    fn accepts(&self) -> io::Result<bool> {
        let mut socket = TcpStream::connect_timeout(&self.reachable(), ACCEPT_LIMIT)?;
        socket.set_read_timeout(Some(ACCEPT_LIMIT))?;
        socket.shutdown(Shutdown::Write)?;
        match socket.read_to_end(&mut Vec::new()) {
            Ok(_) => Ok(true),
            Err(error) => Ok(error.kind() == io::ErrorKind::ConnectionReset),
        }
    }

    /// The address under which this process reaches itself.
    pub(super) fn reachable(&self) -> SocketAddr {
        let address = self.address();
        let host = match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        SocketAddr::new(host, address.port())
    }
}

impl Generation {
    /// The intake's life. It waits for the library and for nothing else.
    fn run(&self, front: &Arc<Front>) {
        while !self.is_empty.is_set() {
            let received = if self.is_old.is_set() {
                self.server.recv_timeout(OLD_POLL).transpose()
            } else {
                Some(self.server.recv())
            };
            match received {
                Some(Ok(request)) => front.take(request),
                Some(Err(error)) if !front.is_draining() && !self.is_old.is_set() => {
                    info!("accept error=\"{error}\"");
                    front.gate.suspect();
                }
                Some(Err(_)) | None => {}
            }
        }
    }

    fn retire(&self, peers: &[SocketAddr]) {
        self.peers.lock().extend(peers);
        self.is_old.set();
        self.server.unblock();
    }

    /// Forgets connections that are gone; whether none is left.
    fn forget_all_but(&self, peers: &[SocketAddr]) -> bool {
        let mut own = self.peers.lock();
        own.retain(|peer| peers.contains(peer));
        if own.is_empty() {
            self.is_empty.set();
        }
        own.is_empty()
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("count", &self.count)
            .field("old", &self.old.len())
            .finish_non_exhaustive()
    }
}
