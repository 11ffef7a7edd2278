//! Answering a request whose body has not been read: a refusal, mostly.
//!
//! The library reads an unread body away before an answer can be written, whatever its length,
//! and allocates that length at once. So the answer goes past the library: first the answer, then
//! the end of our side, then whatever the client still sends is thrown away for a while (a reset
//! would take the answer with it), and only then is the request dropped. One thread lingers for
//! all of them, or a few strangers could hold up everybody's refusals.

use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::panic::{self, AssertUnwindSafe};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use tiny_http::Request;

use super::fd::{Discarded, Kept};
use crate::clock;
use crate::panics::Alarm;

/// How long a refused client may go on sending, and how long it may be silent (as nginx's
/// `lingering_time` and `lingering_timeout`).
const LONGEST_LINGER: Duration = Duration::from_secs(30);
const LINGER_SILENCE: Duration = Duration::from_secs(5);

/// A body of this length is always granted, in bytes.
const SURELY_GRANTED: usize = 1 << 20;

/// How often a lingering connection is looked at.
const LINGER_STEP: Duration = Duration::from_millis(20);

/// How long the two descriptors of a request that cannot be dropped are left alone.
const BURIAL_DELAY: Duration = Duration::from_secs(1);

/// The way to the one thread that lingers.
#[derive(Debug)]
pub(super) struct Lingerer(Sender<Wait>);

/// What that thread waits for.
enum Wait {
    /// The end of what a client still sends.
    Input { connection: Kept, last: Instant, until: Instant, acknowledged: u64, then: Then },
    /// The time at which the descriptors of a forgotten request may be closed.
    Burial { at: Instant, then: Then },
}

type Then = Box<dyn FnOnce() + Send>;

impl Lingerer {
    /// Starts the thread.
    pub(super) fn start(alarm: &Alarm) -> io::Result<Self> {
        let (sender, arrivals) = crossbeam_channel::unbounded();
        alarm.essential("lingerer", move || linger(&arrivals))?;
        Ok(Self(sender))
    }

    /// Throws away what the client still sends, so that it can read what it was sent; then ends
    /// the connection and calls `then`, which must not wait.
    pub(super) fn linger(&self, connection: Kept, then: impl FnOnce() + Send + 'static) {
        let now = clock::instant();
        let until = now + LONGEST_LINGER;
        let then = Box::new(then);
        let _ = self.0.send(Wait::Input { connection, last: now, until, acknowledged: 0, then });
    }

    /// Calls `then` when the descriptors of something forgotten may be closed.
    pub(super) fn bury(&self, then: impl FnOnce() + Send + 'static) {
        let at = clock::instant() + BURIAL_DELAY;
        let _ = self.0.send(Wait::Burial { at, then: Box::new(then) });
    }
}

fn linger(arrivals: &Receiver<Wait>) {
    let mut waiting: Vec<Wait> = Vec::new();
    loop {
        if waiting.is_empty() {
            match arrivals.recv() {
                Ok(wait) => waiting.push(wait),
                Err(_) => return,
            }
        }
        waiting.extend(arrivals.try_iter());
        let now = clock::instant();
        let over = waiting.extract_if(.., |wait| wait.is_over(now));
        over.for_each(Wait::end);
        let _ = crossbeam_channel::never::<()>().recv_timeout(LINGER_STEP);
    }
}

impl Wait {
    fn is_over(&mut self, now: Instant) -> bool {
        match self {
            Self::Burial { at, .. } => now >= *at,
            Self::Input { connection, last, until, acknowledged, .. } => {
                if !connection.is_still_there() {
                    return true;
                }
                let (discarded, info) = (connection.discard(), connection.info());
                match discarded {
                    // tiny_http ends its reading by itself; the kernel knows better.
                    Discarded::TheEnd if info.is_none_or(|info| !info.open) => return true,
                    Discarded::Something => *last = now,
                    Discarded::TheEnd | Discarded::Nothing => {}
                }
                if let Some(info) = info {
                    // tiny_http may have taken what came.
                    *last = (*last).max(now.checked_sub(info.last_received).unwrap_or(*last));
                    // Who still reads its answer gets all of it, however slowly.
                    if std::mem::replace(acknowledged, info.acknowledged) < info.acknowledged {
                        *last = now;
                        *until = (*until).max(now + LINGER_SILENCE);
                    }
                }
                now >= *until || now - *last >= LINGER_SILENCE
            }
        }
    }

    fn end(self) {
        match self {
            Self::Burial { then, .. } => then(),
            Self::Input { connection, then, .. } => {
                if connection.is_still_there() {
                    connection.shut();
                }
                then();
            }
        }
    }
}

impl fmt::Debug for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Input { .. } => "Input",
            Self::Burial { .. } => "Burial",
        })
    }
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disposal {
    Dropped,
    /// The library's thread waits for it for good.
    Forgotten,
}

/// A connection's descriptors, as they are before it is shut; after that they are not found.
pub(super) type Numbers = Vec<(RawFd, Option<String>)>;

/// Whether dropping a request is safe. It makes the library allocate what is left of the body. That is
/// address space only, and the read ends at once; but an allocation that the system refuses ends
/// the process, so the system is asked first. (What is too large for any allocation panics, which
/// is caught.)
pub(super) fn is_droppable(request: &Request) -> bool {
    let length = request.body_length().unwrap_or(0);
    length <= SURELY_GRANTED
        || Vec::<u8>::new().try_reserve_exact(length).is_ok()
        || isize::try_from(length).is_err()
}

/// Gets rid of a request whose connection is shut.
pub(super) fn dispose(request: Request) -> Disposal {
    if is_droppable(&request) {
        let _ = panic::catch_unwind(AssertUnwindSafe(|| drop(request)));
        return Disposal::Dropped;
    }
    std::mem::forget(request);
    Disposal::Forgotten
}
