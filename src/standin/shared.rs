//! What the stand-in's threads share: one lock, one condition variable for everything that
//! anybody waits for.

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::Call;
use super::routes::Made;
use super::script::Script;
use crate::clock;

#[derive(Default)]
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) stopping: bool,
    /// Threads that have not ended: the acceptor and one for each connection.
    pub(super) threads: usize,
    pub(super) accepted: usize,
    pub(super) open: HashMap<usize, Open>,
    pub(super) calls: Vec<Call>,
    /// All calls, also those that were not kept.
    pub(super) call_count: usize,
    pub(super) forgetful: bool,
    pub(super) script: Script,
    pub(super) made: Made,
}

/// An open connection, as others see it.
pub(super) struct Open {
    /// For closing it from outside; its own thread reads and writes through another handle.
    pub(super) control: Arc<TcpStream>,
    /// Requests read so far.
    pub(super) served: u64,
    /// A request is being answered.
    pub(super) busy: bool,
    /// The stand-in itself is ending it: what is seen on it from now on is not the peer's doing.
    pub(super) ending: bool,
    /// It ends it by a reset.
    pub(super) resetting: bool,
    /// The peer closed it.
    pub(super) gone: bool,
}

impl State {
    fn is_over(&self, connection: usize) -> bool {
        self.stopping || self.open.get(&connection).is_none_or(|open| open.gone || open.ending)
    }
}

impl Shared {
    /// Waits until `ready` or `deadline`.
    ///
    /// # Errors
    /// The stand-in stops or the connection is over: there is nobody to answer any more.
    pub(super) fn pause(
        &self,
        connection: usize,
        deadline: Option<Instant>,
        ready: impl Fn() -> bool,
    ) -> io::Result<()> {
        let mut state = self.state.lock();
        loop {
            if state.is_over(connection) {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            if ready() {
                return Ok(());
            }
            match deadline {
                None => self.changed.wait(&mut state),
                Some(deadline) => {
                    if self.changed.wait_until(&mut state, deadline).timed_out() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Waits at most `limit` until the state is as wanted; says whether it is.
    pub(super) fn wait(&self, limit: Duration, wanted: impl Fn(&State) -> bool) -> bool {
        let deadline = clock::instant() + limit;
        let mut state = self.state.lock();
        while !wanted(&state) {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return wanted(&state);
            }
        }
        true
    }

    /// Notes that the peer closed this connection, unless the stand-in did.
    pub(super) fn mark_gone(&self, connection: usize) {
        let mut state = self.state.lock();
        let stopping = state.stopping;
        if let Some(open) = state.open.get_mut(&connection)
            && !open.ending
            && !stopping
        {
            open.gone = true;
            for call in state.calls.iter_mut().filter(|call| call.connection == connection) {
                call.closed = true;
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Notes that what happens to this connection from now on is the stand-in's own doing.
    pub(super) fn mark_ending(&self, connection: usize) {
        if let Some(open) = self.state.lock().open.get_mut(&connection) {
            open.ending = true;
        }
        self.changed.notify_all();
    }

    /// Looks out for the peer's close while the connection's thread waits for something else.
    ///
    /// It peeks, so it takes nothing from the connection's own reads. Bytes that wait to be read
    /// hide a close behind them (a pipelined request, a TLS farewell): then it looks again after
    /// the next request.
    pub(super) fn watch(&self, connection: usize, control: &TcpStream) {
        loop {
            let served = match self.state.lock().open.get(&connection) {
                Some(open) if !open.ending => open.served,
                _ => return,
            };
            match control.peek(&mut [0]) {
                Ok(0) => return self.mark_gone(connection),
                Ok(_) => {
                    if !self.served_more(connection, served) {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return self.mark_gone(connection),
            }
        }
    }

    /// Waits for the connection's next request; false if there will be none.
    fn served_more(&self, connection: usize, served: u64) -> bool {
        let mut state = self.state.lock();
        loop {
            match state.open.get(&connection) {
                Some(open) if !open.ending && !open.gone && !state.stopping => {
                    if open.served != served {
                        return true;
                    }
                }
                _ => return false,
            }
            self.changed.wait(&mut state);
        }
    }

    /// Resets (RST) the connections that are picked: their threads wake and do it.
    pub(super) fn reset(&self, picked: impl Fn(&Open) -> bool) {
        for open in self.state.lock().open.values_mut().filter(|open| picked(open)) {
            (open.ending, open.resetting) = (true, true);
            // Wakes the reader without sending a FIN.
            let _ = open.control.shutdown(Shutdown::Read);
        }
        self.changed.notify_all();
    }

    /// Whether this connection is to end by a reset.
    pub(super) fn is_resetting(&self, connection: usize) -> bool {
        self.state.lock().open.get(&connection).is_some_and(|open| open.resetting)
    }

    /// Closes (FIN) the connections that are picked.
    pub(super) fn close(&self, picked: impl Fn(&Open) -> bool) {
        for open in self.state.lock().open.values_mut().filter(|open| picked(open)) {
            open.ending = true;
            // It may have been closed by the peer already.
            let _ = open.control.shutdown(Shutdown::Both);
        }
        self.changed.notify_all();
    }
}
