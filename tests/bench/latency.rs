//! Latency and throughput: every connection always has one request in flight.
//!
//! With one connection the latency is the time of a request on a machine that has nothing else
//! to do, measured at fixed places (`cores`). With more it is what a request takes while the
//! machine is as busy as it can be, shared as it is by client, candidate and upstream: most of it
//! is waiting for the others, and its mean is the number of connections divided by the throughput.

use std::time::Duration;

use dashscope_proxy::clock;

use crate::candidate::{Candidate, Conditions, with_all};
use crate::client::Caller;
use crate::cores::Places;
use crate::crowd::{Further, watch};
use crate::report::{Report, Unit, plural};
use crate::rounds::interleaved;
use crate::stats::{micros, p50_p99};
use crate::target::{Kind, Target};
use crate::{Failure, Run};

pub(crate) const COUNTS: [usize; 4] = [1, 16, 64, 256];

pub(crate) fn measure(run: &Run, report: &mut Report) -> Result<(), Failure> {
    let (one, many): (Vec<_>, Vec<_>) = run.options.counts(&COUNTS).partition(|count| *count == 1);
    for places in Places::for_one().into_iter().filter(|_| !one.is_empty()) {
        with_all(&run.entrants, Conditions { places, ..Conditions::default() }, |candidates| {
            compare(run, report, candidates, 1, places.suffix())
        })?;
    }
    if many.is_empty() {
        return Ok(());
    }
    with_all(&run.entrants, Conditions::default(), |candidates| {
        for count in many {
            compare(run, report, candidates, count, "")?;
        }
        let standing = candidates.iter().map(|candidate| {
            let (resident, peak) = candidate.memory();
            vec![vec![resident, peak, candidate.upstream.most_connections() as f64]]
        });
        let figures = [
            ("memory after these".to_owned(), Unit::Mebibytes),
            ("memory, most so far".to_owned(), Unit::Mebibytes),
            ("upstream connections".to_owned(), Unit::Count),
        ];
        report.add(&figures, candidates, standing.collect());
        Ok(())
    })
}

/// All of them with so many connections.
fn compare(
    run: &Run,
    report: &mut Report,
    candidates: &[Candidate],
    count: usize,
    suffix: &str,
) -> Result<(), Failure> {
    let shown = format!("{}{suffix}", plural(count, "connection"));
    eprintln!("measuring: {shown} …");
    let mut all = open_all(candidates, count, Kind::Small)?;
    let found = interleaved(run.plan.rounds, &mut all, |(candidate, callers)| {
        let Busy { times, cpu, per_second } = busy(candidate, callers, run.plan.latency_time)?;
        let [p50, p99] = p50_p99(times);
        Ok(vec![p50, p99, cpu, per_second])
    })?;
    let figures = [
        (format!("latency p50, {shown}"), Unit::Microseconds),
        (format!("latency p99, {shown}"), Unit::Microseconds),
        (format!("CPU per request, {shown}"), Unit::Microseconds),
        (format!("throughput, {shown}"), Unit::PerSecond),
    ];
    // The throughput of one is its latency once more.
    report.add(&figures[..3 + usize::from(count > 1)], candidates, found);
    Ok(())
}

/// Each candidate with its connections.
pub(crate) fn open_all(
    candidates: &[Candidate],
    count: usize,
    kind: Kind,
) -> Result<Vec<(&Candidate, Vec<Caller>)>, Failure> {
    let mut all = Vec::new();
    for candidate in candidates {
        all.push((candidate, open(&candidate.target, count, kind)?));
    }
    Ok(all)
}

/// Opens the connections one after another, each with a finished small request on it before the
/// next: how a candidate takes a burst of new ones is not measured here.
pub(crate) fn open(target: &Target, count: usize, kind: Kind) -> Result<Vec<Caller>, Failure> {
    let requests = target.requests(kind);
    let open = |at| {
        let mut caller = Caller::open(target, Kind::Small)?;
        caller.exchange()?;
        Ok(caller.turned_to(kind, &requests, at))
    };
    (0..count).map(open).collect()
}

/// What busy connections found.
#[derive(Debug)]
pub(crate) struct Busy {
    /// Of each request, in microseconds; of a single connection in the order of its requests.
    pub(crate) times: Vec<f64>,
    /// The microseconds of processor time that the candidate needed for a request.
    pub(crate) cpu: f64,
    /// Requests per second.
    pub(crate) per_second: f64,
}

/// Keeps the callers busy for `time`.
pub(crate) fn busy(
    candidate: &Candidate,
    callers: &mut [Caller],
    time: Duration,
) -> Result<Busy, Failure> {
    let cpu_before = candidate.cpu_micros();
    let start = clock::instant();
    let times = match callers {
        [one] => alone(one, time)?,
        many => together(many, time)?,
    };
    let requests = times.len() as f64;
    let per_second = requests / start.elapsed().as_secs_f64();
    let cpu = (candidate.cpu_micros() - cpu_before) / requests;
    Ok(Busy { times, cpu, per_second })
}

/// One request after another, without a poll before each read.
fn alone(caller: &mut Caller, time: Duration) -> Result<Vec<f64>, Failure> {
    let end = clock::instant() + time;
    let mut found = Vec::new();
    while clock::instant() < end {
        found.push(micros(caller.exchange()?));
    }
    Ok(found)
}

/// The next request as soon as an answer is there, on every connection.
fn together(callers: &mut [Caller], time: Duration) -> Result<Vec<f64>, Failure> {
    let end = clock::instant() + time;
    let mut found = Vec::new();
    for caller in callers.iter_mut() {
        caller.send()?;
    }
    watch(callers, |caller| {
        let Some(took) = caller.read()? else { return Ok(Further::Waiting) };
        found.push(micros(took));
        if clock::instant() >= end {
            return Ok(Further::Through);
        }
        caller.send()?;
        Ok(Further::Waiting)
    })?;
    Ok(found)
}
