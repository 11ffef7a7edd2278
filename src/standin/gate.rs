//! What lets a test decide when the stand-in goes on, instead of waiting for a clock.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::shared::Shared;

/// Counts releases; a reply that waits at a gate goes on when enough of them were made.
///
/// Clones are the same gate. A gate counts for every reply that uses it, so a later reply with
/// the same gate finds it released already. Made by [`StandIn::gate`](super::StandIn::gate).
#[derive(Clone)]
pub struct Gate {
    released: Arc<AtomicU64>,
    shared: Weak<Shared>,
}

impl Gate {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self { released: Arc::default(), shared: Arc::downgrade(shared) }
    }

    /// Lets one more part out.
    pub fn release(&self) {
        self.add(1);
    }

    /// Lets everything out.
    pub fn open(&self) {
        self.add(u64::from(u32::MAX));
    }

    pub(super) fn released(&self) -> u64 {
        self.released.load(Ordering::Acquire)
    }

    /// Under the stand-in's lock, so that no waiter looks before and sleeps after it.
    fn add(&self, count: u64) {
        match self.shared.upgrade() {
            Some(shared) => {
                let state = shared.state.lock();
                self.released.fetch_add(count, Ordering::AcqRel);
                drop(state);
                shared.changed.notify_all();
            }
            None => {
                self.released.fetch_add(count, Ordering::AcqRel);
            }
        }
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gate({} released)", self.released())
    }
}
