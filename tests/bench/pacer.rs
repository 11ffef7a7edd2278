//! The streams of an upstream: one thread writes the events of all of them when they are due.
//!
//! A sleeping thread for each of 500 streams would compete with the candidate for the machine
//! whenever events are due.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use dashscope_proxy::clock;

use crate::events::{HEAD, chunk, end, stamp};

/// Where new streams go.
#[derive(Debug)]
pub(crate) struct Pacer {
    streams: Sender<Paced>,
    begun: AtomicU64,
}

/// A stream that is being written.
#[derive(Debug)]
pub(crate) struct Paced {
    socket: Arc<TcpStream>,
    events: u64,
    pause: Duration,
    /// The next event, and when it is to be written.
    number: u64,
    due: Instant,
}

impl Paced {
    pub(crate) fn new(socket: Arc<TcpStream>, events: u64, pause: Duration) -> Self {
        Self { socket, events, pause, number: 0, due: clock::instant() }
    }

    /// Writes the next event, or the end; tells whether there is more.
    fn write_next(&mut self) -> io::Result<bool> {
        if self.number == self.events {
            return (&*self.socket).write_all(end().as_bytes()).map(|()| false);
        }
        let chunk = chunk(self.number, stamp(clock::instant()));
        self.number += 1;
        (&*self.socket).write_all(chunk.as_bytes()).map(|()| true)
    }
}

impl Pacer {
    pub(crate) fn start() -> Self {
        let (streams, new) = mpsc::channel();
        thread::spawn(move || pace(&new));
        Self { streams, begun: AtomicU64::new(0) }
    }

    /// Writes head and first event here and now, each in its own write, and leaves the rest to
    /// the pacer. Streams that begin together go different ways after that: their second event
    /// comes after a part of the pause.
    pub(crate) fn begin(&self, mut stream: Paced) -> io::Result<()> {
        (&*stream.socket).write_all(HEAD.as_bytes())?;
        stream.write_next()?;
        // The fractions of the golden ratio's multiples lie evenly, however many there are.
        let begun = self.begun.fetch_add(1, Ordering::Relaxed) as f64;
        stream.due += stream.pause.mul_f64((begun * 0.618_033_988_75).fract());
        // The pacer's thread lives as long as the process.
        self.streams.send(stream).map_err(io::Error::other)
    }
}

fn pace(new: &Receiver<Paced>) {
    let mut waiting = BTreeMap::new();
    let mut serial = 0_u64;
    loop {
        let arrived = match waiting.first_key_value() {
            None => new.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(((due, _), _)) => {
                let due: &Instant = due;
                new.recv_timeout(due.saturating_duration_since(clock::instant()))
            }
        };
        match arrived {
            Ok(stream) => {
                serial += 1;
                waiting.insert((stream.due, serial), stream);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        while let Some(first) = waiting.first_entry()
            && first.key().0 <= clock::instant()
        {
            let ((due, serial), mut stream) = first.remove_entry();
            // Fixed times, so that a late event does not delay the following; a stream whose
            // reader has gone is forgotten.
            if stream.write_next().unwrap_or(false) {
                let due = due + stream.pause;
                waiting.insert((due, serial), stream);
            }
        }
    }
}
