//! The library's server, and its successor when it dies.
//!
//! Any error of `accept` ends the library's accept thread, and running out of descriptors or
//! threads makes it panic: the port then refuses while the process lives. Connections that stand
//! are not affected. So another server is started on the same socket, and the old one is asked
//! for requests until the last of its connections is gone.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use log::{Level, error, info, log};
use parking_lot::Mutex;
use tiny_http::Server;

use super::Once;
use super::fd::Descriptors;
use super::intake::Front;
use super::listener::Listening;
use crate::panics::{self, Alarm};

/// How long a self-connection may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// How often an intake looks whether its server is still needed.
const POLL: Duration = Duration::from_millis(500);

/// How often it is looked whether a self-connection has been accepted, and how many times: looks
/// and not time, because a process that was stopped meanwhile has not looked.
const KNOCK_STEP: Duration = Duration::from_millis(5);
const KNOCK_LOOKS: u32 = 400;

/// The way in.
#[derive(Debug)]
pub(super) struct Gate {
    listening: Listening,
    alarm: Alarm,
    state: Mutex<State>,
    /// Somebody has reason to believe that nothing is accepted any more.
    suspected: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    current: Option<Arc<Generation>>,
    old: Vec<Arc<Generation>>,
    /// A handle of the listener for the day on which there is no descriptor to make one.
    spare: Option<TcpListener>,
    /// How many servers have been replaced, and how often there was no successor.
    count: u64,
    failures: u64,
}

/// One server of the library, with one intake.
struct Generation {
    server: Server,
    /// The library has said that it accepts nothing any more.
    is_dead: Once,
    is_old: Once,
    /// An old one is let go when these are gone.
    peers: Mutex<HashSet<SocketAddr>>,
    is_empty: Once,
}

impl Gate {
    pub(super) fn new(listening: Listening, alarm: Alarm) -> Self {
        Self { listening, alarm, state: Mutex::default(), suspected: AtomicBool::default() }
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

    /// Closes every handle of the listener; with `keeps` but one.
    pub(super) fn close(&self, keeps: bool) {
        self.state.lock().spare = None;
        self.listening.close(keeps);
    }

    /// Closes the listener that was kept.
    pub(super) fn let_go(&self) {
        self.listening.let_go();
    }

    /// Hands the closed listener over to the program that this process executes next.
    pub(super) fn hand_over(&self) -> io::Result<()> {
        self.listening.hand_over()
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
        if front.is_draining() {
            return;
        }
        let Some(current) = state.current.clone() else { return };
        if panics::accept_panicked() {
            current.is_dead.set();
        }
        if suspected && !current.is_dead.is_set() {
            match self.accepts(&front.descriptors) {
                Ok(true) => {}
                Ok(false) => current.is_dead.set(),
                // Not a word about the accept thread: we could not even knock.
                Err(_) => self.suspect(),
            }
        }
        if current.is_dead.is_set() {
            self.replace(front, &mut state);
        }
    }

    /// Puts another server in the place of one that is dead, now or at a later look.
    fn replace(&self, front: &Arc<Front>, state: &mut State) {
        let Some(listener) = self.listening.share().ok().or_else(|| state.spare.take()) else {
            return;
        };
        // A panic of the one that goes says nothing of the next.
        panics::accept_panicked();
        // Before the next one has any, and after the last one has got its last.
        let census = front.descriptors.census();
        let peers = census.connections.iter().map(|connection| connection.peer);
        match self.start(front, listener) {
            Ok(generation) => {
                state.count += 1;
                // While threads are lacking, each successor dies of the next client: few lines.
                let level = if state.count.is_power_of_two() { Level::Warn } else { Level::Debug };
                log!(
                    level,
                    "accept replaced={} reason=\"the library stopped accepting\"",
                    state.count
                );
                let last = state.current.replace(generation);
                if let Some(last) = last {
                    let earlier =
                        |peer: &_| state.old.iter().any(|old| old.peers.lock().contains(peer));
                    last.retire(peers.filter(|peer| !earlier(peer)));
                    state.old.push(last);
                }
            }
            Err(error) => {
                state.failures += 1;
                if state.failures.is_power_of_two() {
                    error!("accept replaced=false error=\"{error}\"");
                }
            }
        }
        if state.spare.is_none() {
            state.spare = self.listening.share().ok();
        }
    }

    fn start(&self, front: &Arc<Front>, listener: TcpListener) -> io::Result<Arc<Generation>> {
        let (give, given) = crossbeam_channel::bounded::<Arc<Generation>>(1);
        let front = Arc::clone(front);
        // First: a server without an intake would go on accepting, and its clients be lost.
        self.alarm.essential("intake", move || {
            given.iter().for_each(|generation| generation.run(&front));
        })?;
        // The library starts threads with a call that panics when there are none.
        let server = panic::catch_unwind(|| Server::from_listener(listener, None))
            .map_err(|_| io::Error::other("no thread for the accept loop"))?
            .map_err(io::Error::other)?;
        let generation = Arc::new(Generation {
            server,
            is_dead: Once::default(),
            is_old: Once::default(),
            peers: Mutex::default(),
            is_empty: Once::default(),
        });
        let _ = give.send(Arc::clone(&generation));
        Ok(generation)
    }

    /// Whether a connection to ourselves is accepted: then its other end is among our descriptors.
    /// (When it is read is another matter: it may have to wait for a thread of the library.)
    fn accepts(&self, descriptors: &Descriptors) -> io::Result<bool> {
        let socket = TcpStream::connect_timeout(&self.reachable(), CONNECT_LIMIT)?;
        let own = socket.local_addr()?;
        socket.set_nonblocking(true)?;
        for _ in 0..KNOCK_LOOKS {
            // Accepted and closed again: the panic that did it is looked into next.
            let is_closed = match socket.peek(&mut [0]) {
                Ok(count) => count == 0,
                Err(error) => error.kind() != io::ErrorKind::WouldBlock,
            };
            if is_closed || descriptors.find(own).is_some() {
                return Ok(true);
            }
            let _ = crossbeam_channel::never::<()>().recv_timeout(KNOCK_STEP);
        }
        Ok(false)
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
    /// The intake's life: until this server is old and its last connection gone. It waits for
    /// tiny_http and for nothing else.
    fn run(&self, front: &Arc<Front>) {
        while !self.is_empty.is_set() {
            match self.server.recv_timeout(POLL) {
                Ok(Some(request)) => front.take(request),
                Ok(None) => {}
                Err(_) if front.is_draining() || self.is_old.is_set() => {}
                Err(error) => {
                    info!("accept error=\"{error}\"");
                    // It never comes back from one.
                    self.is_dead.set();
                }
            }
        }
    }

    fn retire(&self, peers: impl Iterator<Item = SocketAddr>) {
        self.peers.lock().extend(peers);
        self.is_old.set();
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

impl std::fmt::Debug for Generation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Generation").field("is_old", &self.is_old).finish_non_exhaustive()
    }
}
