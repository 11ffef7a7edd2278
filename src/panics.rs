//! What a panic costs.
//!
//! Inside one request: that request. Inside the server library's threads, which have no name and
//! which any client can make panic: nothing. Anywhere else in a thread of ours: the process,
//! after the state has been flushed, because a proxy with a missing thread only looks alive.

use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use crossbeam_channel::Sender;
use log::{debug, error};

/// What wakes the main thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A signal asked for the end.
    Stop,
    /// A thread that the process cannot do without has panicked.
    Broken(String),
    /// The process had better begin anew.
    Renew,
}

/// Tells the main thread of a panic.
#[derive(Clone, Debug)]
pub struct Alarm(Sender<Event>);

/// Set when a thread without a name panics: the library's accept thread may be gone.
static LIBRARY_PANICKED: AtomicBool = AtomicBool::new(false);

/// Set when it panics because there was no thread or no descriptor: only the accept thread starts
/// threads and duplicates sockets. (Should the two marks ever fail, it is found dead by knocking,
/// which takes seconds.)
static ACCEPT_PANICKED: AtomicBool = AtomicBool::new(false);

/// How std's text of that panic begins, and where the library duplicates sockets.
const NO_THREAD: &str = "failed to spawn thread";
const NO_DESCRIPTOR: &str = "refined_tcp_stream.rs";

/// From now on panics are logged, by thread and place; their text may hold a client's and is not.
pub fn watch() {
    panic::set_hook(Box::new(|info| {
        let place = info.location().map_or_else(|| "-".to_owned(), ToString::to_string);
        match thread::current().name() {
            Some(name) => error!("panic thread={name} at={place}"),
            None => {
                let is_accept = place.contains(NO_DESCRIPTOR)
                    || info.payload_as_str().is_some_and(|text| text.starts_with(NO_THREAD));
                debug!("panic thread=library at={place} accept={is_accept}");
                ACCEPT_PANICKED.fetch_or(is_accept, Ordering::Relaxed);
                LIBRARY_PANICKED.store(true, Ordering::Relaxed);
            }
        }
    }));
}

/// Whether a thread of the library has panicked since this was last asked.
pub(crate) fn library_panicked() -> bool {
    LIBRARY_PANICKED.swap(false, Ordering::Relaxed)
}

/// Whether the library's accept thread has panicked for sure since this was last asked; asking
/// forgets it.
pub(crate) fn accept_panicked() -> bool {
    ACCEPT_PANICKED.swap(false, Ordering::Relaxed)
}

impl Alarm {
    /// An alarm that is heard at the other end of this channel.
    #[must_use]
    pub fn new(events: Sender<Event>) -> Self {
        Self(events)
    }

    /// Says that the process had better begin anew.
    pub(crate) fn renew(&self) {
        let _ = self.0.send(Event::Renew);
    }

    /// Starts a thread that the process cannot do without.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn essential(
        &self,
        name: impl Into<String>,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let (alarm, name) = (self.clone(), name.into());
        thread::Builder::new().name(name.clone()).spawn(move || {
            if panic::catch_unwind(AssertUnwindSafe(work)).is_err() {
                let _ = alarm.0.send(Event::Broken(name));
            }
        })
    }
}

/// In debug builds, panics when a request asks for it with the query `fault=<point>`: tests need
/// a panic to happen. A release build has nothing of this.
pub(crate) fn fault_point(point: &str, query: Option<&str>) {
    if cfg!(debug_assertions) && query.and_then(|query| query.strip_prefix("fault=")) == Some(point)
    {
        panic!("asked for by a test");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_an_essential_thread_is_told() {
        let (events, heard) = crossbeam_channel::unbounded();
        let alarm = Alarm::new(events);
        alarm.essential("fine", || {}).unwrap().join().unwrap();
        alarm.essential("broken", || panic!("on purpose")).unwrap().join().unwrap();
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), [Event::Broken("broken".to_owned())]);
    }
}
