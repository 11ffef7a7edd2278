//! Event streams that start together.

use std::time::Duration;

use crate::candidate::{Conditions, with_all};
use crate::client::Listener;
use crate::crowd::{Further, watch};
use crate::report::{Report, Unit, plural};
use crate::rounds::interleaved;
use crate::stats::{micros, p50_p99};
use crate::target::Target;
use crate::{Failure, Run, latency};

/// So many streams at a time, and how they are paced: the more there are the slower each is, so
/// that a candidate is asked for some thousand events in a second at most and not for more than
/// the machine can do.
#[derive(Clone, Copy, Debug)]
struct Load {
    streams: usize,
    /// How often in a turn.
    times: usize,
    events: u64,
    pause: Duration,
}

const LOADS: [Load; 3] = [
    Load { streams: 1, times: 5, events: 40, pause: Duration::from_millis(1) },
    Load { streams: 64, times: 1, events: 24, pause: Duration::from_millis(20) },
    Load { streams: 500, times: 1, events: 10, pause: Duration::from_millis(100) },
];

/// A worker of this proxy is busy with a stream until it ends.
const WORKERS: usize = 512;

pub(crate) fn measure(run: &Run, report: &mut Report) -> Result<(), Failure> {
    let wanted: Vec<_> = run.options.counts(&LOADS.map(|load| load.streams)).collect();
    let conditions = Conditions { workers: Some(WORKERS), ..Conditions::default() };
    with_all(&run.entrants, conditions, |candidates| {
        for mut load in LOADS.into_iter().filter(|load| wanted.contains(&load.streams)) {
            load.events /= run.plan.fewer_events;
            let shown = plural(load.streams, "stream");
            eprintln!("measuring: {shown} …");
            let mut all: Vec<_> = candidates.iter().collect();
            // Opened for each turn: those of all candidates need thousands of descriptors.
            let found = interleaved(run.plan.rounds, &mut all, |candidate| {
                let mut listeners = open(&candidate.target, load)?;
                let mut memory = f64::NAN;
                let look = || memory = candidate.memory().0;
                let [first_bytes, delays] = turn(&mut listeners, load.times, look)?;
                Ok([&p50_p99(first_bytes)[..], &p50_p99(delays), &[memory]].concat())
            })?;
            let figures = [
                (format!("first byte p50, {shown}"), Unit::Microseconds),
                (format!("first byte p99, {shown}"), Unit::Microseconds),
                (format!("event delay p50, {shown}"), Unit::Microseconds),
                (format!("event delay p99, {shown}"), Unit::Microseconds),
                (format!("memory at {shown}"), Unit::Mebibytes),
            ];
            // That of one stream is that of none.
            let count = if load.streams > 1 { 5 } else { 4 };
            report.add(&figures[..count], candidates, found);
        }
        Ok(())
    })
}

fn open(target: &Target, load: Load) -> Result<Vec<Listener>, Failure> {
    let callers = latency::open(target, load.streams)?;
    let listener = |caller| Listener::new(caller, target, load.events, load.pause);
    Ok(callers.into_iter().map(listener).collect())
}

/// All of them together, `times` times: the times to the first byte, and how late the events
/// were, in microseconds. `when_open` is called when each has begun.
fn turn(
    listeners: &mut [Listener],
    times: usize,
    when_open: impl FnOnce(),
) -> Result<[Vec<f64>; 2], Failure> {
    let mut when_open = Some(when_open);
    let (mut first_bytes, mut delays) = (Vec::new(), Vec::new());
    for _ in 0..times {
        let mut silent = listeners.len();
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
        for listener in listeners.iter() {
            let found = listener.times()?;
            first_bytes.push(micros(found.first_byte));
            delays.extend(found.events.into_iter().map(micros));
        }
    }
    Ok([first_bytes, delays])
}
