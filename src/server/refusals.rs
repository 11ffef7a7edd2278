//! Refusing a request whose body has not been read.
//!
//! The library reads an unread body away before an answer can be written, whatever its length,
//! and allocates that length at once. So a small body is waited for, and a large or doubtful one
//! is answered past the library: the answer first, then the end of our side, then whatever the
//! client still sends is thrown away for a while (a reset would take the answer with it), and
//! only then is the request dropped.

use std::os::fd::RawFd;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use log::debug;
use tiny_http::Request;

use super::crew::Crew;
use super::fd::{Connection, Descriptors, Discarded};
use super::head::{BodyLength, Head};
use crate::clock;

/// A body up to this length is waited for, in bytes.
const SMALL: u64 = 64 * 1024;

/// How long a refused client may go on sending, and how long it may be silent (as nginx's
/// `lingering_time` and `lingering_timeout`).
const LONGEST_LINGER: Duration = Duration::from_secs(30);
const LINGER_SILENCE: Duration = Duration::from_secs(5);

/// How often a lingering connection is looked at.
const LINGER_STEP: Duration = Duration::from_millis(20);

/// How long the two descriptors of a request that cannot be dropped are left alone.
const BURIAL_DELAY: Duration = Duration::from_secs(1);

/// Whether an answer may go the ordinary way: then the library reads what is left of the body,
/// which is nothing or a little.
pub(super) fn is_harmless(head: &Head, request: &Request) -> bool {
    match head.length {
        BodyLength::None => true,
        BodyLength::Exact(length) => {
            length <= SMALL && (length == 0 || !head.expects_continue(request))
        }
        BodyLength::Chunked | BodyLength::Unclear => false,
    }
}

/// Sends `answer` past the library, ends the connection, and gets rid of the request. May take
/// as long as [`LONGEST_LINGER`].
pub(super) fn refuse_past_library(
    descriptors: &Arc<Descriptors>,
    undertakers: &Arc<Crew>,
    head: &Head,
    request: Request,
    answer: &[u8],
) {
    let numbers = descriptors.numbers(head.peer);
    let sockets: Vec<(RawFd, Option<String>)> =
        numbers.iter().map(|fd| (*fd, descriptors.identity(*fd))).collect();
    if let Some(connection) = descriptors.find(head.peer) {
        connection.send(answer);
        connection.end_output();
        linger(connection);
        if connection.is_still_there() {
            connection.shut();
        }
    }
    if dispose(request) == Disposal::Forgotten {
        debug!("forgotten client={}", head.peer.ip());
        let descriptors = Arc::clone(descriptors);
        undertakers.give(move || {
            let _ = crossbeam_channel::never::<()>().recv_timeout(BURIAL_DELAY);
            descriptors.close(&sockets);
        });
    }
}

/// Throws away what the client still sends, so that it can read what it was sent.
fn linger(connection: Connection) {
    let pause = crossbeam_channel::never::<()>();
    let deadline = clock::instant() + LONGEST_LINGER;
    let mut last_input = clock::instant();
    while connection.is_still_there() {
        let now = clock::instant();
        match connection.discard() {
            Discarded::Something => last_input = now,
            Discarded::Nothing if now - last_input < LINGER_SILENCE => {}
            Discarded::Nothing | Discarded::TheEnd => return,
        }
        if now > deadline {
            return;
        }
        let _ = pause.recv_timeout(LINGER_STEP);
    }
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disposal {
    Dropped,
    /// The library's thread waits for it for good.
    Forgotten,
}

/// Gets rid of a request whose connection is shut.
///
/// Dropping it makes the library allocate what is left of the body. That is address space only,
/// and the read ends at once; but an allocation that the system refuses ends the process, so the
/// system is asked first. (What is too large for any allocation panics, which is caught.)
pub(super) fn dispose(request: Request) -> Disposal {
    let length = request.body_length().unwrap_or(0);
    let is_granted = Vec::<u8>::new().try_reserve_exact(length).is_ok();
    if is_granted || isize::try_from(length).is_err() {
        let _ = panic::catch_unwind(AssertUnwindSafe(|| drop(request)));
        return Disposal::Dropped;
    }
    std::mem::forget(request);
    Disposal::Forgotten
}
