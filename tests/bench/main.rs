//! The benchmark: the real binary, and others beside it, in front of an upstream that costs next
//! to nothing.
//!
//! `cargo bench`, `cargo bench -- --quick`, `--help` for the rest. It measures and never judges a
//! time; it fails when a request fails or an answer is not, byte for byte, the one the upstream
//! sent.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command that prints its findings")]

mod candidate;
mod client;
mod crowd;
mod decode;
mod haproxy;
mod latency;
mod nginx;
mod options;
mod ours;
mod pacer;
mod plan;
mod process;
mod report;
mod rounds;
mod stats;
mod streams;
mod target;
mod upstream;

use std::process::ExitCode;
use std::time::Duration;

use candidate::{Candidate, Entrant, with_all};
use options::{Measurement, Options};
use plan::Plan;
use report::{Report, Unit};
use rounds::{Turns, interleaved};

/// Why a run is worth nothing, as a sentence.
type Failure = String;

fn main() -> ExitCode {
    let outcome = Options::from_command_line().and_then(|options| match options {
        Some(options) => run(&options),
        None => {
            println!("{}", options::USAGE);
            Ok(())
        }
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Failure> {
    let entrants = candidate::entrants(options)?;
    let plan = Plan::of(options);
    let mut report = Report::default();
    if options.wants(Measurement::Latency) {
        measure_latency(&entrants, options, &plan, &mut report)?;
    }
    if options.wants(Measurement::Streams) {
        measure_streams(&entrants, options, &plan, &mut report)?;
    }
    print!("{}", if options.json { report.json_lines() } else { report.table() });
    Ok(())
}

fn measure_latency(
    entrants: &[Entrant],
    options: &Options,
    plan: &Plan,
    report: &mut Report,
) -> Result<(), Failure> {
    with_all(entrants, None, |candidates| {
        for count in options.counts(&latency::COUNTS) {
            eprintln!("measuring: {count} connections …");
            let open = |candidate: &Candidate| latency::open(&candidate.target, count);
            let mut all: Vec<_> = candidates.iter().map(open).collect::<Result<_, _>>()?;
            let found = interleaved(plan.rounds, &mut all, |callers| {
                latency::turn(callers, plan.latency_time)
            })?;
            let figures = [
                (format!("latency p50 at {count}"), Unit::Microseconds),
                (format!("latency p99 at {count}"), Unit::Microseconds),
                (format!("throughput at {count}"), Unit::PerSecond),
            ];
            report.add(&figures, &named(candidates, found));
        }
        let connections = candidates.iter().map(|candidate| {
            let name = candidate.target.name.clone();
            (name, vec![vec![candidate.upstream.most_connections() as f64]])
        });
        let figure = ("upstream connections".to_owned(), Unit::Count);
        report.add(&[figure], &connections.collect::<Vec<_>>());
        Ok(())
    })
}

fn measure_streams(
    entrants: &[Entrant],
    options: &Options,
    plan: &Plan,
    report: &mut Report,
) -> Result<(), Failure> {
    with_all(entrants, Some(streams::WORKERS), |candidates| {
        let loads = streams::LOADS.map(|load| load.streams);
        let wanted: Vec<_> = options.counts(&loads).collect();
        for load in streams::LOADS.into_iter().filter(|load| wanted.contains(&load.streams)) {
            let count = load.streams;
            eprintln!("measuring: {count} streams …");
            let mut all: Vec<_> = candidates.iter().collect();
            // Opened for each turn: all of them together would need thousands of descriptors.
            let found = interleaved(plan.rounds, &mut all, |candidate| {
                let mut listeners = streams::open(&candidate.target, load)?;
                streams::turn(&mut listeners, || {})
            })?;
            let figures = [
                (format!("first byte p50, {count} streams"), Unit::Microseconds),
                (format!("first byte p99, {count} streams"), Unit::Microseconds),
                (format!("event delay p50, {count} streams"), Unit::Microseconds),
                (format!("event delay p99, {count} streams"), Unit::Microseconds),
            ];
            report.add(&figures, &named(candidates, found));
        }
        Ok(())
    })
}

fn named(candidates: &[Candidate], found: Vec<Turns>) -> Vec<(String, Turns)> {
    candidates.iter().map(|candidate| candidate.target.name.clone()).zip(found).collect()
}

/// The limit of every wait: a connect, a read, a write, a start.
const LIMIT: Duration = Duration::from_secs(10);
