//! Clients that come all at once: each connects and starts a stream in the same moment.

use std::sync::Arc;
use std::time::Duration;

use dashscope_proxy::clock;

use crate::candidate::{Candidate, Conditions, with_all};
use crate::client::{Connection, Listener};
use crate::crowd::{Further, watch};
use crate::report::{Report, Unit, plural};
use crate::rounds::interleaved;
use crate::stats::{micros, p50_p99};
use crate::target::{Kind, ModelPlace};
use crate::{Failure, Run};

const STREAMS: usize = 64;
/// Short streams: what matters is over with the first byte.
const EVENTS: u64 = 3;
const PAUSE: Duration = Duration::from_millis(2);

pub(crate) fn measure(run: &Run, report: &mut Report) -> Result<(), Failure> {
    with_all(&run.entrants, Conditions::default(), |candidates| {
        let what = format!("{} over new connections", plural(STREAMS, "stream"));
        eprintln!("measuring: {what} …");
        let mut all: Vec<_> = candidates.iter().collect();
        let found = interleaved(run.plan.rounds, &mut all, |candidate| {
            let cpu_before = candidate.cpu_micros();
            let mut first_bytes = Vec::new();
            for _ in 0..run.plan.bursts {
                first_bytes.extend(burst(candidate)?);
            }
            let streams = first_bytes.len() as f64;
            let cpu = (candidate.cpu_micros() - cpu_before) / streams;
            Ok([&p50_p99(first_bytes)[..], &[cpu]].concat())
        })?;
        let figures = [
            (format!("first byte p50, {what}"), Unit::Microseconds),
            (format!("first byte p99, {what}"), Unit::Microseconds),
            (format!("CPU per request, {what}"), Unit::Microseconds),
        ];
        report.add(&figures, candidates, found);
        Ok(())
    })
}

/// Microseconds from the moment in which the first of them begins to connect until each has its
/// first byte.
fn burst(candidate: &Candidate) -> Result<Vec<f64>, Failure> {
    let kind = Kind::Stream { events: EVENTS, pause: PAUSE };
    let request: Arc<[u8]> = candidate.target.request(kind, ModelPlace::First).into();
    let mut listeners = Vec::with_capacity(STREAMS);
    let start = clock::instant();
    for _ in 0..STREAMS {
        let connection = Connection::open(&candidate.target)?;
        let mut listener = Listener::new(connection, Arc::clone(&request), EVENTS);
        listener.send()?;
        listeners.push(listener);
    }
    watch(&mut listeners, |listener| {
        Ok(if listener.read()? { Further::Through } else { Further::Waiting })
    })?;
    let first_byte = |listener: &Listener| {
        let at = listener.times()?.first_byte_at;
        Ok(micros(at.saturating_duration_since(start)))
    };
    listeners.iter().map(first_byte).collect()
}
