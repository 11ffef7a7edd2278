//! A DashScope stand-in on loopback, for the `demo` command and for tests.
//!
//! It answers as DashScope does, down to field order and framing, and can be told while it runs
//! to answer otherwise, slowly, half or not at all. It remembers what it was asked. It knows
//! nothing of the proxy and shares no code with it, so that a mistake of one is no mistake of
//! the other. A thread for each connection; waits end at once when it is dropped.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::clock::Timestamp;
use connection::Connection;
use shared::Shared;

mod answers;
mod connection;
mod gate;
mod limits;
mod native;
mod output;
mod refusals;
mod routes;
mod script;
mod shapes;
mod shared;
mod wire;

pub use gate::Gate;
pub use limits::Limit;
pub use refusals::{Refusal, Told};
pub use script::{End, Framing, Part, Reply, Shape};

/// How long a drop waits for the stand-in's threads.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// After a failed `accept` (no descriptors left, say) the next one waits this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// What the stand-in reads requests from and writes answers to.
pub trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

/// Turns an accepted connection into what is spoken over it; [`plain`] unless a test wants TLS.
pub type Wrap = Arc<dyn Fn(TcpStream) -> io::Result<Box<dyn Stream>> + Send + Sync>;

/// No wrapping: HTTP over the bare connection.
#[must_use]
pub fn plain() -> Wrap {
    Arc::new(|socket| Ok(Box::new(socket)))
}

/// A request the stand-in was sent.
#[derive(Clone, Debug)]
pub struct Call {
    /// The method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// The DashScope key: the bearer token, else `x-api-key`.
    pub key: Option<String>,
    /// The top-level `model` of a JSON body.
    pub model: Option<String>,
    /// The headers in the order and case they came in.
    pub headers: Vec<(String, String)>,
    /// The body without its framing.
    pub body: Vec<u8>,
    /// Which connection it came over, counted from 0.
    pub connection: usize,
    /// When it had been read.
    pub arrived: Timestamp,
    /// Whether the caller has closed (or reset) that connection since.
    pub closed: bool,
}

impl Call {
    /// The first header of this name, in any case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        wire::header(&self.headers, name)
    }

    /// The target without its query.
    #[must_use]
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// The body as JSON, or null.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// The running stand-in. Dropping it closes its sockets and waits for its threads (at most 5 s).
pub struct StandIn {
    shared: Arc<Shared>,
    address: SocketAddr,
}

impl StandIn {
    /// Starts on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// The port cannot be opened or no thread started.
    pub fn start() -> io::Result<StandIn> {
        Self::start_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?, plain())
    }

    /// Starts on this listener.
    ///
    /// # Errors
    /// The listener has no address or no thread can be started.
    pub fn start_on(listener: TcpListener, wrap: Wrap) -> io::Result<StandIn> {
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let acceptor = Arc::clone(&shared);
        spawn(&shared, "standin-accept", move || accept(&acceptor, &listener, &wrap))?;
        Ok(StandIn { shared, address })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://127.0.0.1:port`.
    #[must_use]
    pub fn origin(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on this slot (`*` is any) has this many normal successes, then it is exhausted.
    /// Scripted answers cost nothing.
    pub fn set_quota(&self, key: &str, model: &str, successes: u64) {
        self.shared.state.lock().script.set_quota(key, model, successes);
    }

    /// The quota of every slot that has none of its own; none is unlimited.
    pub fn set_default_quota(&self, successes: Option<u64>) {
        self.shared.state.lock().script.set_default_quota(successes);
    }

    /// Only these keys are accepted, others get 401.
    pub fn set_keys(&self, keys: &[&str]) {
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        self.shared.state.lock().script.set_keys(Some(keys));
    }

    /// Only these models exist; others get 404 `model_not_found`, or on `/apps/anthropic` the
    /// `400 Model not exist.` that was captured there.
    pub fn set_models(&self, models: &[&str]) {
        let models = models.iter().map(|model| (*model).to_owned()).collect();
        self.shared.state.lock().script.set_models(Some(models));
    }

    /// What this model refuses, as DashScope would: before it looks at the quota.
    pub fn set_limits(&self, model: &str, limits: &[Limit]) {
        self.shared.state.lock().script.set_limits(model, limits.to_vec());
    }

    /// What this slot (`*` is any, also requests without key or model) answers until [`clear`].
    ///
    /// [`clear`]: StandIn::clear
    pub fn reply(&self, key: &str, model: &str, reply: Reply) {
        self.shared.state.lock().script.set_reply(key, model, reply);
    }

    /// What this slot answers once; queued, and consumed before [`StandIn::reply`].
    pub fn reply_once(&self, key: &str, model: &str, reply: Reply) {
        self.shared.state.lock().script.queue_reply(key, model, reply);
    }

    /// Asks `decide` about each request first, for answers that depend on what was asked; where it
    /// says nothing, replies and quotas count.
    pub fn decide(&self, decide: impl Fn(&Call) -> Option<Reply> + Send + Sync + 'static) {
        self.shared.state.lock().script.set_decide(Arc::new(decide));
    }

    /// Forgets replies and quotas; known keys, known models, limits and calls stay.
    pub fn clear(&self) {
        self.shared.state.lock().script.clear();
    }

    /// A gate for [`Reply::Gated`] and [`Reply::Held`].
    #[must_use]
    pub fn gate(&self) -> Gate {
        Gate::new(&self.shared)
    }

    /// Whether calls are kept for [`StandIn::calls`] (as at the start) or only counted, which
    /// spares their memory.
    pub fn keep_calls(&self, keep: bool) {
        self.shared.state.lock().forgetful = !keep;
    }

    /// Every request so far, in the order they were read.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.shared.state.lock().calls.clone()
    }

    /// The calls' slots, as `key/model`.
    #[must_use]
    pub fn slots(&self) -> Vec<String> {
        let slot = |call: &Call| {
            let (key, model) = (call.key.as_deref(), call.model.as_deref());
            format!("{}/{}", key.unwrap_or("-"), model.unwrap_or("-"))
        };
        self.shared.state.lock().calls.iter().map(slot).collect()
    }

    /// How many requests there were.
    #[must_use]
    pub fn call_count(&self) -> usize {
        self.shared.state.lock().call_count
    }

    /// How many connections were accepted.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.state.lock().accepted
    }

    /// How many connections are open.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        self.shared.state.lock().open.len()
    }

    /// Closes (FIN) the connections that have no request in work.
    pub fn close_idle(&self) {
        self.shared.close(|open| !open.busy);
    }

    /// Resets (RST) the connections that have no request in work.
    pub fn reset_idle(&self) {
        self.shared.reset(|open| !open.busy);
    }

    /// Waits until `count` requests have been read; false if they were not within `limit`.
    #[must_use]
    pub fn wait_calls(&self, count: usize, limit: Duration) -> bool {
        self.shared.wait(limit, |state| state.call_count >= count)
    }

    /// Waits until the caller has closed the connection of call number `index` (from 0).
    ///
    /// Over TLS a farewell message hides the close from a stand-in that waits; plain TCP has
    /// no such limit.
    #[must_use]
    pub fn wait_closed(&self, index: usize, limit: Duration) -> bool {
        self.shared.wait(limit, |state| state.calls.get(index).is_some_and(|call| call.closed))
    }

    /// Waits until at most `count` connections are open.
    #[must_use]
    pub fn wait_open(&self, count: usize, limit: Duration) -> bool {
        self.shared.wait(limit, |state| state.open.len() <= count)
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.shared.state.lock().stopping = true;
        self.shared.close(|_| true);
        // `accept` cannot be interrupted, but it returns for a connection.
        let _ = TcpStream::connect_timeout(&self.address, STOP_LIMIT);
        self.shared.wait(STOP_LIMIT, |state| state.threads == 0);
    }
}

/// Starts a thread that counts as one of the stand-in's until it ends, even by a panic.
fn spawn(shared: &Arc<Shared>, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    struct Counted(Arc<Shared>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.state.lock().threads -= 1;
            self.0.changed.notify_all();
        }
    }
    shared.state.lock().threads += 1;
    let counted = Counted(Arc::clone(shared));
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let _counted = counted;
        work();
    })?;
    Ok(())
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener, wrap: &Wrap) {
    while !shared.state.lock().stopping {
        let Ok((socket, _)) = listener.accept() else {
            shared.wait(ACCEPT_PAUSE, |state| state.stopping);
            continue;
        };
        if let Ok(connection) = Connection::open(shared, socket, wrap) {
            // Without a thread the connection is dropped, and thereby closed.
            let _ = spawn(shared, "standin-connection", move || connection.run());
        }
    }
}

#[cfg(test)]
mod tests;
