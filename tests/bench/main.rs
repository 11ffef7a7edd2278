//! The benchmark: the real binary, and others beside it, in front of an upstream that costs next
//! to nothing.
//!
//! `cargo bench`, `cargo bench -- --quick`, `--help` for the rest. It measures and never judges a
//! time; it fails when a request fails or an answer is not, byte for byte, the one the upstream
//! sent.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command that prints its findings")]

mod answers;
mod bare;
mod bodies;
mod burst;
mod candidate;
mod client;
mod cores;
mod crowd;
mod decode;
mod events;
mod goals;
mod haproxy;
mod inbox;
mod latency;
mod machine;
mod nginx;
mod options;
mod original;
mod ours;
mod pacer;
mod plan;
mod process;
mod prompt;
mod prompts;
mod readme;
mod report;
mod rotation;
mod rounds;
mod start;
mod stats;
mod streams;
mod target;
mod upstream;
mod usage;
mod writes;

use std::process::ExitCode;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use candidate::Entrant;
use machine::Machine;
use options::{Measurement, Options};
use plan::Plan;
use report::Report;

/// Why a run is worth nothing, as a sentence.
type Failure = String;

/// The limit of every wait: a connect, a read, a write, a start.
const LIMIT: Duration = Duration::from_secs(10);

/// Who is measured, and how.
#[derive(Debug)]
struct Run {
    entrants: Vec<Entrant>,
    options: Options,
    plan: Plan,
}

type Measure = fn(&Run, &mut Report) -> Result<(), Failure>;

const MEASUREMENTS: [(Measurement, Measure); 10] = [
    (Measurement::Start, start::measure),
    (Measurement::Latency, latency::measure),
    (Measurement::Prompts, prompts::measure),
    (Measurement::Answers, answers::measure),
    (Measurement::Streams, streams::measure),
    (Measurement::Burst, burst::measure),
    (Measurement::Bare, bare::measure),
    (Measurement::Bodies, bodies::measure),
    (Measurement::Rotation, rotation::measure),
    (Measurement::Writes, writes::measure),
];

fn main() -> ExitCode {
    let outcome = Options::from_command_line().and_then(|options| match options {
        Some(options) => run(options),
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

fn run(options: Options) -> Result<(), Failure> {
    ctrlc::set_handler(|| {
        process::clear_away();
        #[expect(clippy::disallowed_methods, reason = "main is busy measuring")]
        std::process::exit(130)
    })
    .map_err(|cause| format!("failed to watch for signals: {cause}"))?;
    raise_descriptor_limit();
    let run = Run { entrants: candidate::entrants(&options)?, plan: Plan::of(&options), options };
    let mut report = Report::new(Machine::look(), run.plan.rounds);
    for (name, measure) in MEASUREMENTS {
        if run.options.wants(name) {
            measure(&run, &mut report)?;
        }
    }
    if run.options.write_readme {
        readme::write(&report)?;
    }
    print!("{}", if run.options.json { report.json_lines() } else { report.text() });
    Ok(())
}

/// Client and upstream are in this process: 500 streams have a thousand ends in it.
fn raise_descriptor_limit() {
    // Where this fails a connection will, and say why.
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}
