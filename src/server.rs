//! The front: everything about connections, and the only user of tiny_http.
//!
//! One intake thread takes requests from the library and hands each to whoever may wait for its
//! client: a responder (our own pages and refusals), a receiver (a body that is still to come)
//! or a worker (everything else). The intake itself never reads a body, never writes and never
//! drops a request, because in this library each of these may wait for a client.
//!
//! - `listener`: the socket, and the options that accepted sockets inherit
//! - `intake`: heads are judged, errands handed out
//! - `connections`: one request of a connection at a time
//! - `head`: what a request's head says, and whether it can be believed
//! - `bodies`: receiving them, and the memory that they may take
//! - `workers`: the fixed pool, and who may enter it
//! - `answer`: writing an answer past the library's own encoder
//! - `crew`: small pools of threads that come and go
//! - `fd`: acting on a connection that the library does not show

mod answer;
mod bodies;
mod connections;
mod crew;
mod fd;
mod head;
mod intake;
mod listener;
mod workers;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::admin::Admin;
use crate::config::Config;
use crate::proxy::Proxy;
use intake::Front;
pub use listener::{Listening, bind};

/// A front that serves, until the process ends.
#[derive(Debug)]
pub struct Server {
    front: Arc<Front>,
    listening: Listening,
    workers: Vec<JoinHandle<()>>,
}

impl Server {
    /// Starts every thread of the front on this listener.
    ///
    /// # Errors
    /// When the system gives no thread, or the library does not take the listener.
    pub fn start(
        listening: Listening,
        config: Arc<Config>,
        proxy: Arc<Proxy>,
        admin: Arc<Admin>,
    ) -> io::Result<Self> {
        let address = listening.address();
        let (front, jobs) = Front::new(config, proxy, admin, address)?;
        let front = Arc::new(front);
        let workers = workers::spawn(&front, &jobs)?;
        intake::spawn(Arc::clone(&front), listening.share()?)?;
        Ok(Self { front, listening, workers })
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listening.address()
    }

    /// Closes the listener. Connections that stand go on being served, and every answer tells
    /// its client that it is the last one.
    pub fn stop_listening(&self) {
        self.front.start_draining();
        self.listening.close();
    }

    /// How many requests have arrived and have not been answered whole.
    #[must_use]
    pub fn requests_in_flight(&self) -> usize {
        self.front.requests_in_flight()
    }

    /// Whether every worker is still there.
    #[must_use]
    pub fn workers_alive(&self) -> bool {
        self.workers.iter().all(|worker| !worker.is_finished())
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
