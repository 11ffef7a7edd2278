//! The front: everything about connections, and the only user of tiny_http.
//!
//! One intake takes requests from tiny_http, decides what each is for, and hands it to a thread that
//! may wait for its client: a responder (our own pages and refusals), a receiver (a body that is
//! still to come) or, by way of the queue, a worker. It reads no body, writes to no request and drops
//! none, because in this library each of these may wait for a client.
//!
//! - `listener`: the socket, and the options that accepted sockets inherit
//! - `gate`: the library's server, and its successor when it dies
//! - `intake`: what is decided about each request
//! - `errands`: what is then done for it, by those who may wait for its client
//! - `connections`: one request of a connection at a time, and what each is doing
//! - `turn`: what the request in work may do to its connection
//! - `closing`: the end of a connection, and of the requests that nobody answers
//! - `head`: what a request's head says, and whether it can be believed
//! - `bodies`: receiving them, and the memory that they may take
//! - `queue`: the jobs that wait for a worker
//! - `workers`: the fixed pool, and who may enter it
//! - `answer`: writing an answer past the library's own encoder
//! - `refusals`: answering a request whose body nobody wants
//! - `reaper`: ends connections past their limits, finds those left lying
//! - `lost`: threads of the library that wait for good
//! - `poker`: wakes those
//! - `crew`: small pools of threads that come and go
//! - `fd`: acting on a connection that the library does not show

mod answer;
mod bodies;
mod closing;
mod connections;
mod crew;
mod errands;
mod fd;
mod gate;
mod head;
mod intake;
mod listener;
mod lost;
mod poker;
mod queue;
mod reaper;
mod refusals;
mod turn;
mod workers;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::admin::Admin;
use crate::config::Config;
use crate::panics::Alarm;
use crate::proxy::Proxy;
use gate::Gate;
use intake::Front;
pub(crate) use listener::{Listening, bind};
use reaper::Reaper;

/// How long our own `/health` may take.
const CHECK_LIMIT: Duration = Duration::from_secs(5);

/// A front that serves, until the process ends.
#[derive(Debug)]
pub(crate) struct Server {
    front: Arc<Front>,
}

impl Server {
    /// Starts every thread of the front on this listener.
    ///
    /// # Errors
    /// When the system gives no thread, or the library does not take the listener.
    pub(crate) fn start(
        listening: Listening,
        config: Arc<Config>,
        proxy: Arc<Proxy>,
        admin: Arc<Admin>,
        alarm: &Alarm,
    ) -> io::Result<Self> {
        let gate = Gate::new(listening, alarm.clone());
        let front = Arc::new(Front::new(config, proxy, admin, gate, alarm)?);
        let teller = Arc::clone(&front);
        front.attach_load(move || teller.load());
        front.gate.open(&front)?;
        workers::spawn(&front, alarm)?;
        let reaper = Reaper::new(Arc::clone(&front));
        alarm.essential("reaper", move || reaper.run())?;
        Ok(Self { front })
    }

    /// Where clients connect.
    #[must_use]
    pub(crate) fn address(&self) -> SocketAddr {
        self.front.gate.address()
    }

    /// Asks our own `/health` through the socket. A failure makes the front look whether
    /// connections are still accepted; it ends nothing, because a stranger may be its cause.
    ///
    /// # Errors
    /// When there is no answer in time, or it is no success.
    pub(crate) fn check(&self) -> io::Result<()> {
        let outcome = ask_health(self.front.gate.reachable());
        if outcome.is_err() {
            self.front.gate.suspect();
        }
        outcome
    }

    /// Closes the listener. Connections that stand go on being served, and every answer tells
    /// its client that it is the last one. With `keeps` new clients are not refused but wait for
    /// the program that this process executes next.
    pub(crate) fn stop_listening(&self, keeps: bool) {
        self.front.start_draining();
        self.front.gate.close(keeps);
        self.front.poker.poke(1);
    }

    /// Closes the listener that was kept: there will be no next program.
    pub(crate) fn let_go(&self) {
        self.front.gate.let_go();
    }

    /// Hands the listener over to the program that this process executes next. The last thing that
    /// it does before.
    ///
    /// # Errors
    /// When the listener was not kept, or the system refuses.
    pub(crate) fn hand_over(&self) -> io::Result<()> {
        self.front.gate.hand_over()
    }

    /// How many connections have a request in work.
    #[must_use]
    pub(crate) fn requests_in_flight(&self) -> usize {
        self.front.connections.in_flight()
    }
}

fn ask_health(address: SocketAddr) -> io::Result<()> {
    let mut socket = TcpStream::connect_timeout(&address, CHECK_LIMIT)?;
    socket.set_read_timeout(Some(CHECK_LIMIT))?;
    socket.set_write_timeout(Some(CHECK_LIMIT))?;
    socket.write_all(b"GET /health HTTP/1.1\r\nhost: self\r\nconnection: close\r\n\r\n")?;
    let mut status = [0; 12];
    socket.read_exact(&mut status)?;
    // Read on, or closing would reset the connection under the answer.
    socket.read_to_end(&mut Vec::new())?;
    match &status {
        b"HTTP/1.1 200" => Ok(()),
        other => Err(io::Error::other(String::from_utf8_lossy(other).into_owned())),
    }
}

/// A flag that is set once.
#[derive(Debug, Default)]
struct Once(AtomicBool);

impl Once {
    fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
