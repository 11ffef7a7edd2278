//! Event streams that start together.

use std::sync::Arc;
use std::time::Duration;

use crate::candidate::{Candidate, Conditions, with_all};
use crate::client::{Caller, Listener};
use crate::crowd::{Further, watch};
use crate::report::{Report, Unit, plural};
use crate::rounds::interleaved;
use crate::stats::{micros, p50_p99};
use crate::target::{Kind, ModelPlace, Target};
use crate::{Failure, Run, latency};

/// So many streams at a time, and how they are paced: the more there are the slower each is, so
/// that a candidate is asked for some thousand events in a second at most and not for more than
/// the machine can do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) streams: usize,
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

/// The most, only until they are all there.
pub(crate) const MOST: Load =
    Load { streams: 500, times: 1, events: 3, pause: Duration::from_millis(100) };

/// A worker of this proxy is busy with a stream until it ends.
pub(crate) const WORKERS: usize = 512;

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
                let cpu_before = candidate.cpu_micros();
                let [first_bytes, delays] = turn(&mut listeners, load.times, look)?;
                let streams = (load.streams * load.times) as f64;
                let cpu = (candidate.cpu_micros() - cpu_before) / (streams * load.events as f64);
                Ok([&p50_p99(first_bytes)[..], &p50_p99(delays), &[cpu, memory]].concat())
            })?;
            let figures = [
                (format!("first byte p50, {shown}"), Unit::Microseconds),
                (format!("first byte p99, {shown}"), Unit::Microseconds),
                (format!("event delay p50, {shown}"), Unit::Microseconds),
                (format!("event delay p99, {shown}"), Unit::Microseconds),
                (format!("CPU per event, {shown}"), Unit::Microseconds),
                (format!("memory at {shown}"), Unit::Mebibytes),
            ];
            // That of one stream is that of none.
            let count = if load.streams > 1 { 6 } else { 5 };
            report.add(&figures[..count], candidates, found);
        }
        Ok(())
    })
}

fn open(target: &Target, load: Load) -> Result<Vec<Listener>, Failure> {
    let callers = latency::open(target, load.streams, Kind::Small)?;
    let kind = Kind::Stream { events: load.events, pause: load.pause };
    let request: Arc<[u8]> = target.request(kind, ModelPlace::First).into();
    let listener =
        |caller: Caller| Listener::new(caller.connection, Arc::clone(&request), load.events);
    Ok(callers.into_iter().map(listener).collect())
}

/// The memory of a candidate while it has such a load.
pub(crate) fn memory_of(candidate: &Candidate, load: Load) -> Result<f64, Failure> {
    let mut memory = f64::NAN;
    turn(&mut open(&candidate.target, load)?, load.times, || memory = candidate.memory().0)?;
    Ok(memory)
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
