//! The fixed pool of workers, and who may enter it.

use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use log::error;

use super::bodies::Received;
use super::intake::{Front, Pending};
use crate::panics::Alarm;
use crate::policy::route::Endpoint;

/// A request that has been let in.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) pending: Pending,
    pub(super) endpoint: Endpoint,
    /// The body, if it had to be waited for; else it is in the request.
    pub(super) body: Option<Received>,
    pub(super) ticket: Ticket,
}

/// Counts who is in work or waits.
#[derive(Debug)]
pub(super) struct Admission {
    capacity: usize,
    inside: AtomicUsize,
}

/// The right to be inside, given back when dropped.
#[derive(Debug)]
pub(super) struct Ticket(Arc<Admission>);

impl Admission {
    /// Room for `capacity` requests.
    pub(super) fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self { capacity, inside: AtomicUsize::new(0) })
    }

    /// How many are inside.
    pub(super) fn inside(&self) -> usize {
        self.inside.load(Ordering::Relaxed)
    }

    /// Whether nobody can be let in at this moment.
    pub(super) fn is_full(&self) -> bool {
        self.inside.load(Ordering::Relaxed) >= self.capacity
    }

    /// Lets one in, if there is room.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Ticket> {
        let entered = self.inside.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |inside| {
            (inside < self.capacity).then_some(inside + 1)
        });
        entered.ok().map(|_| Ticket(Arc::clone(self)))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Starts the workers.
pub(super) fn spawn(front: &Arc<Front>, alarm: &Alarm) -> io::Result<()> {
    for number in 1..=front.worker_count() {
        let front = Arc::clone(front);
        alarm.essential(format!("worker-{number}"), move || work(&front))?;
    }
    Ok(())
}

fn work(front: &Arc<Front>) {
    let sleeper = Arc::default();
    loop {
        let (job, waited) = front.queue.next(&sleeper);
        // A panic costs this request only: the library answers 500 when the request is dropped
        // unanswered, and a half-written answer is cut.
        if panic::catch_unwind(AssertUnwindSafe(|| front.serve(job, waited))).is_err() {
            error!("panic in=request: it was answered with 500 or cut");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_let_in_as_there_is_room_for() {
        let admission = Admission::new(2);
        let first = admission.enter().unwrap();
        let _second = admission.enter().unwrap();
        assert!(admission.is_full() && admission.enter().is_none());
        drop(first);
        assert!(!admission.is_full() && admission.enter().is_some());
    }
}
