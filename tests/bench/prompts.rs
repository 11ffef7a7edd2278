//! Requests of the sizes that clients send, made like real prompts, with small answers.
//!
//! On each connection the model is named first and last in turn, and half of the connections
//! begin with the one.

use crate::candidate::{Candidate, Conditions, with_all};
use crate::client::Caller;
use crate::cores::Places;
use crate::latency::{self, Busy};
use crate::options::Options;
use crate::report::{Report, Unit, plural};
use crate::rounds::interleaved;
use crate::stats::median;
use crate::target::Kind;
use crate::{Failure, Run};

/// Of a short question, and of the first turn, the middle and the 99th percentile of coding
/// clients.
const SIZES: [(&str, usize); 4] =
    [("2 KB", 2 << 10), ("32 KB", 32 << 10), ("560 KB", 560 << 10), ("3.5 MB", 7 << 19)];
const COUNTS: [usize; 3] = [1, 16, 64];
/// Below this what a megabyte costs is what a request costs.
const LEAST_FOR_MEGABYTES: usize = 32 << 10;

pub(crate) fn measure(run: &Run, report: &mut Report) -> Result<(), Failure> {
    let (one, many): (Vec<_>, Vec<_>) = run.options.counts(&COUNTS).partition(|count| *count == 1);
    for places in Places::for_one().into_iter().filter(|_| !one.is_empty()) {
        with_all(&run.entrants, Conditions { places, ..Conditions::default() }, |candidates| {
            for (shown, size) in sizes(&run.options) {
                let what = format!("prompt of {shown}, 1 connection{}", places.suffix());
                compare(run, report, candidates, (1, size), &what)?;
            }
            Ok(())
        })?;
    }
    if many.is_empty() {
        return Ok(());
    }
    with_all(&run.entrants, Conditions::default(), |candidates| {
        for (shown, size) in sizes(&run.options) {
            for count in &many {
                let what = format!("prompt of {shown}, {}", plural(*count, "connection"));
                compare(run, report, candidates, (*count, size), &what)?;
            }
            // The sizes grow: what has ever been resident is what this one needed.
            let memory = candidates.iter().map(|candidate| {
                let (resident, peak) = candidate.memory();
                vec![vec![resident, peak]]
            });
            let figures = [
                (format!("memory after prompts of {shown}"), Unit::Mebibytes),
                (format!("memory, most so far, {shown}"), Unit::Mebibytes),
            ];
            report.add(&figures, candidates, memory.collect());
        }
        Ok(())
    })
}

fn sizes(options: &Options) -> impl Iterator<Item = (&'static str, usize)> {
    SIZES.into_iter().filter(|(shown, _)| options.wants_size(shown))
}

/// All of them with so many connections and such prompts.
fn compare(
    run: &Run,
    report: &mut Report,
    candidates: &[Candidate],
    (count, size): (usize, usize),
    what: &str,
) -> Result<(), Failure> {
    eprintln!("measuring: {what} …");
    let mut all = latency::open_all(candidates, count, Kind::Prompt(size))?;
    let found = interleaved(run.plan.rounds, &mut all, |(candidate, callers)| {
        let first = callers.first().map_or(0, Caller::next);
        let busy = latency::busy(candidate, callers, run.plan.prompt_time)?;
        let per_megabyte = busy.cpu / (size as f64 / f64::from(1 << 20));
        let second = if count == 1 { model_last(&busy, first) } else { busy.per_second };
        Ok(vec![median(busy.times), second, busy.cpu, per_megabyte])
    })?;
    let figures = [
        (format!("{what}, p50"), Unit::Microseconds),
        match count {
            // The rate of one is its latency once more.
            1 => (format!("{what}, model last, p50"), Unit::Microseconds),
            _ => (format!("{what}, rate"), Unit::PerSecond),
        },
        (format!("{what}, CPU per request"), Unit::Microseconds),
        (format!("{what}, CPU per MB"), Unit::Microseconds),
    ];
    let shown = 3 + usize::from(size >= LEAST_FOR_MEGABYTES);
    report.add(&figures[..shown], candidates, found);
    Ok(())
}

/// The p50 of the requests whose model stands at the end: every other one, and the first of them
/// all when `first` is 1.
fn model_last(busy: &Busy, first: usize) -> f64 {
    median(busy.times.iter().skip(1 - first).step_by(2).copied().collect())
}
