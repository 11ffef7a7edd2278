//! Event streams that start together.

use std::time::Duration;

use crate::Failure;
use crate::client::Listener;
use crate::crowd::{Further, watch};
use crate::latency;
use crate::stats::{micros, p50_p99};
use crate::target::Target;

/// So many streams at a time, and how they are paced: the more there are the slower each is, so
/// that a candidate is asked for some thousand events in a second at most and not for more than
/// the machine can do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) streams: usize,
    events: u64,
    pause: Duration,
}

pub(crate) const LOADS: [Load; 3] = [
    Load { streams: 1, events: 400, pause: Duration::from_millis(1) },
    Load { streams: 64, events: 30, pause: Duration::from_millis(20) },
    Load { streams: 500, events: 12, pause: Duration::from_millis(100) },
];

/// A worker of this proxy is busy with a stream until it ends.
pub(crate) const WORKERS: usize = 512;

pub(crate) fn open(target: &Target, load: Load) -> Result<Vec<Listener>, Failure> {
    let callers = latency::open(target, load.streams)?;
    let listener = |caller| Listener::new(caller, target, load.events, load.pause);
    Ok(callers.into_iter().map(listener).collect())
}

/// All of them once: p50 and p99 of the time to the first byte, over the streams, and of how late
/// the events were, over all events, in microseconds. `when_open` is called when each has begun.
pub(crate) fn turn(
    listeners: &mut [Listener],
    when_open: impl FnOnce(),
) -> Result<Vec<f64>, Failure> {
    let mut silent = listeners.len();
    let mut when_open = Some(when_open);
    for listener in listeners.iter_mut() {
        listener.send()?;
    }
    watch(listeners, |listener| {
        let was_silent = !listener.has_begun();
        let is_over = listener.read()?;
        if was_silent && listener.has_begun() {
            silent -= 1;
        }
        if silent == 0
            && let Some(when_open) = when_open.take()
        {
            when_open();
        }
        Ok(if is_over { Further::Through } else { Further::Waiting })
    })?;
    // Looked at only now: while streams are read nothing else should keep the client busy.
    let mut first_bytes = Vec::new();
    let mut delays = Vec::new();
    for listener in listeners.iter() {
        let times = listener.times()?;
        first_bytes.push(micros(times.first_byte));
        delays.extend(times.events.into_iter().map(micros));
    }
    Ok([p50_p99(first_bytes), p50_p99(delays)].concat())
}
