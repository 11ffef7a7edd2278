//! Streamed answers of realistic length, as fast as they come: each event is a write of upstream's
//! and the next answer is asked for when one is over.

use std::time::Duration;

use crate::candidate::{Candidate, Conditions, with_all};
use crate::cores::Places;
use crate::latency;
use crate::report::{Report, Unit, plural};
use crate::rounds::interleaved;
use crate::stats::median;
use crate::target::Kind;
use crate::{Failure, Run, events};

const EVENTS: u64 = 300;
const COUNTS: [usize; 3] = [1, 16, 64];

pub(crate) fn measure(run: &Run, report: &mut Report) -> Result<(), Failure> {
    let (one, many): (Vec<_>, Vec<_>) = run.options.counts(&COUNTS).partition(|count| *count == 1);
    // With one at a time who is measured has a core of its own.
    for (counts, places) in [(one, Places::TwoCores), (many, Places::Any)] {
        if counts.is_empty() {
            continue;
        }
        with_all(&run.entrants, Conditions { places, ..Conditions::default() }, |candidates| {
            counts.iter().try_for_each(|count| compare(run, report, candidates, *count))
        })?;
    }
    Ok(())
}

/// All of them with so many connections.
fn compare(
    run: &Run,
    report: &mut Report,
    candidates: &[Candidate],
    count: usize,
) -> Result<(), Failure> {
    let what = format!("{EVENTS} events, {}", plural(count, "connection"));
    eprintln!("measuring: answers of {what} …");
    let kind = Kind::Stream { events: EVENTS, pause: Duration::ZERO };
    let megabytes = events::unstamped(EVENTS).len() as f64 / f64::from(1 << 20);
    let mut all = latency::open_all(candidates, count, kind)?;
    let found = interleaved(run.plan.rounds, &mut all, |(candidate, callers)| {
        let busy = latency::busy(candidate, callers, run.plan.answer_time)?;
        Ok(vec![median(busy.times), busy.cpu, busy.cpu / megabytes, busy.per_second])
    })?;
    let figures = [
        (format!("answer of {what}, p50"), Unit::Microseconds),
        (format!("answer of {what}, CPU per request"), Unit::Microseconds),
        (format!("answer of {what}, CPU per MB"), Unit::Microseconds),
        (format!("answer of {what}, rate"), Unit::PerSecond),
    ];
    // The rate of one is its latency once more.
    report.add(&figures[..3 + usize::from(count > 1)], candidates, found);
    Ok(())
}
