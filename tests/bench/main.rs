//! The benchmark: the real binary in front of a static upstream, against that upstream alone.
//!
//! `cargo bench` (about 45 s), `cargo bench -- --quick` (about 10 s), `--json` for a line per
//! figure, `--help` for the rest. It measures and never judges a time; it fails when a request
//! fails or an answer is not, byte for byte, the one the upstream sent.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command that prints its findings")]

mod client;
mod measure;
mod options;
mod process;
mod report;
mod target;
mod upstream;

use std::process::ExitCode;
use std::time::Duration;

use measure::{Crowd, Plan, interleaved, median};
use options::Options;
use process::Proxy;
use report::{Fact, Figure, Report, Unit};
use target::{Kind, Target};
use upstream::{Check, Upstream};

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
    // Two upstreams of the same kind, so that the second one's connections are the proxy's alone.
    let direct = Upstream::start(0, Check::KeyAndModel)?;
    let check = if options.proxy.is_some() { Check::Nothing } else { Check::KeyAndModel };
    let behind = Upstream::start(options.upstream_port, check)?;
    let plan = if options.quick { Plan::QUICK } else { Plan::FULL };
    let mut report = Report::new(plan.rounds);

    match &options.proxy {
        Some(url) => {
            let targets = [Target::direct(direct.address()), Target::running(url)?];
            measure_all(&targets, &plan, &mut report)?;
        }
        None => {
            let (proxy, starts) = start_several(plan.starts, &behind)?;
            let idle = proxy.resident_mib();
            let targets = [Target::direct(direct.address()), Target::proxied(proxy.address())];
            measure_all(&targets, &plan, &mut report)
                .map_err(|failure| format!("{failure}\nthe end of its log:\n{}", proxy.log()))?;
            report.facts = vec![
                Fact::new("start_to_listening", Unit::Milliseconds, Some(median(starts))),
                Fact::new("resident_after_start", Unit::Mebibytes, idle),
                Fact::new("resident_after_runs", Unit::Mebibytes, proxy.resident_mib()),
                Fact::new("binary_size", Unit::Mebibytes, Some(process::binary_mib()?)),
                Fact::new("upstream_connections", Unit::Count, Some(behind.connections() as f64)),
            ];
        }
    }
    print!("{}", if options.json { report.json_lines() } else { report.table() });
    Ok(())
}

/// Starts the binary `times` times, each on a new state folder, and keeps the last one.
/// Gives the milliseconds each took until it said that it listens.
fn start_several(times: usize, upstream: &Upstream) -> Result<(Proxy, Vec<f64>), Failure> {
    let mut proxy = Proxy::start(upstream.address())?;
    let mut starts = vec![proxy.start_millis()];
    for _ in 1..times {
        drop(proxy);
        proxy = Proxy::start(upstream.address())?;
        starts.push(proxy.start_millis());
    }
    Ok((proxy, starts))
}

/// Every measurement over every target; the first target is what the others are compared with.
fn measure_all(targets: &[Target], plan: &Plan, report: &mut Report) -> Result<(), Failure> {
    report.targets = targets.iter().map(|target| target.name.to_owned()).collect();

    eprintln!("measuring: one connection …");
    let mut single = open_all(targets, |target| target.connect(Kind::Small))?;
    let found = interleaved(plan.rounds, &mut single, |connection| {
        measure::latency(connection, plan.latency_time)
    })?;
    report.add(Figure::new("latency_p50", Unit::Microseconds), &found, 0);
    report.add(Figure::new("latency_p99", Unit::Microseconds), &found, 1);
    drop(single);

    eprintln!("measuring: {} connections …", measure::CONNECTIONS);
    let mut crowds = open_all(targets, Crowd::open)?;
    let found = interleaved(plan.rounds, &mut crowds, |crowd| {
        measure::throughput(crowd, plan.throughput_time)
    })?;
    report.add(Figure::new("throughput", Unit::PerSecond), &found, 0);
    drop(crowds);

    eprintln!("measuring: a stream …");
    let mut streams = open_all(targets, |target| target.connect(Kind::Stream))?;
    let found = interleaved(plan.rounds, &mut streams, |connection| {
        measure::streaming(connection, plan.streams)
    })?;
    report.add(Figure::new("stream_first_byte", Unit::Microseconds), &found, 0);
    report.add(Figure::new("stream_event_p50", Unit::Microseconds), &found, 1);
    report.add(Figure::new("stream_event_p99", Unit::Microseconds), &found, 2);
    Ok(())
}

fn open_all<T>(
    targets: &[Target],
    open: impl Fn(&Target) -> Result<T, Failure>,
) -> Result<Vec<T>, Failure> {
    targets.iter().map(open).collect()
}

/// The limit of every wait: a connect, a read, a write, a start.
const LIMIT: Duration = Duration::from_secs(10);
