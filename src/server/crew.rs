//! Small pools of threads that come when there is work and go when there is none.
//!
//! For errands that may wait for a client. One thread stays, so that an errand is never stuck
//! when the system gives no more threads.

use std::collections::VecDeque;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use log::error;
use parking_lot::{Condvar, Mutex};

/// How long a thread waits for its next errand before it goes.
const IDLE_LIMIT: Duration = Duration::from_secs(10);

/// An errand's stack is shallow: answers and bodies live on the heap.
const STACK: usize = 256 * 1024;

type Errand = Box<dyn FnOnce() + Send>;

/// A pool of up to `limit` threads.
pub(super) struct Crew {
    name: &'static str,
    limit: usize,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    errands: VecDeque<Errand>,
    threads: usize,
    idle: usize,
}

impl Crew {
    /// A pool with its first thread.
    pub(super) fn new(name: &'static str, limit: usize) -> io::Result<Arc<Self>> {
        let state = Mutex::new(State { threads: 1, ..State::default() });
        let crew = Arc::new(Self { name, limit, state, work: Condvar::new() });
        crew.hire()?;
        Ok(crew)
    }

    /// Hands an errand over. It is never refused: a connection has one errand at a time, so their
    /// number is bounded by that of the connections.
    pub(super) fn give(self: &Arc<Self>, errand: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        state.errands.push_back(Box::new(errand));
        if state.idle >= state.errands.len() {
            self.work.notify_one();
        } else if state.threads < self.limit {
            state.threads += 1;
            drop(state);
            if self.hire().is_err() {
                self.state.lock().threads -= 1;
            }
        }
    }

    fn hire(self: &Arc<Self>) -> io::Result<()> {
        let crew = Arc::clone(self);
        let builder = thread::Builder::new().name(self.name.to_owned()).stack_size(STACK);
        builder.spawn(move || crew.run())?;
        Ok(())
    }

    fn run(&self) {
        while let Some(errand) = self.next() {
            if panic::catch_unwind(AssertUnwindSafe(errand)).is_err() {
                error!("panic thread={}: one request was lost", self.name);
            }
        }
    }

    /// The next errand; `None` when this thread is one too many.
    fn next(&self) -> Option<Errand> {
        let mut state = self.state.lock();
        loop {
            if let Some(errand) = state.errands.pop_front() {
                return Some(errand);
            }
            state.idle += 1;
            let timed_out = self.work.wait_for(&mut state, IDLE_LIMIT).timed_out();
            state.idle -= 1;
            if timed_out && state.errands.is_empty() && state.threads > 1 {
                state.threads -= 1;
                return None;
            }
        }
    }
}

impl std::fmt::Debug for Crew {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Crew").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn errands_that_wait_do_not_hold_others_up_to_the_limit() {
        let crew = Crew::new("test-crew", 3).unwrap();
        let (release, gate) = crossbeam_channel::bounded::<()>(0);
        let (done, finished) = mpsc::channel();
        for _ in 0..2 {
            let gate = gate.clone();
            crew.give(move || {
                let _ = gate.recv();
            });
        }
        let sender = done.clone();
        crew.give(move || sender.send(()).unwrap());
        finished.recv_timeout(LIMIT).unwrap();
        drop(release);
    }

    #[test]
    fn a_panic_costs_one_errand_only() {
        let crew = Crew::new("test-crew", 1).unwrap();
        let (done, finished) = mpsc::channel();
        crew.give(|| panic!("on purpose"));
        crew.give(move || done.send(()).unwrap());
        finished.recv_timeout(LIMIT).unwrap();
    }
}
