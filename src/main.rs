//! The command: reads what was typed, sets up signals and the log, and prints the final error.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::ExitCode;
use std::time::Duration;

use crossbeam_channel::Receiver;
use dashscope_proxy::cli::{self, Command, UsageError};
use dashscope_proxy::commands::{self, CommandError, Report};
use dashscope_proxy::config::{self, ConfigError, Environment};
use dashscope_proxy::error::StartupError;
use dashscope_proxy::panics::{self, Event};
use dashscope_proxy::service::{Broken, Ended, Service};
use dashscope_proxy::{demo, logging, signals};
use nix::sys::resource::{Resource, setrlimit};

/// EX_USAGE of sysexits.h.
const USAGE_EXIT: u8 = 64;

/// EX_SOFTWARE of sysexits.h.
const BROKEN_EXIT: u8 = 70;

/// EX_TEMPFAIL of sysexits.h: the supervisor is to start it again.
const RENEW_EXIT: u8 = 75;

/// EX_IOERR of sysexits.h.
const OUTPUT_EXIT: u8 = 74;

/// How long the end waits for a reader of the log who takes nothing.
const PATIENCE: Duration = Duration::from_secs(1);

/// Why the process ends with something other than 0.
enum Failure {
    Usage(UsageError),
    Startup(StartupError),
    Broken(Broken),
    Command(CommandError),
    /// The program could not be executed anew.
    Renew(io::Error),
    /// Standard output took not all of it.
    Output(io::Error),
}

fn main() -> ExitCode {
    // A core would hold every key.
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    let code = run().unwrap_or_else(|failure| complain(&failure));
    logging::finish(PATIENCE);
    ExitCode::from(code)
}

/// The one place that says the final error; the code with which the process is to end.
fn complain(failure: &Failure) -> u8 {
    let (text, code) = match failure {
        Failure::Usage(error) => (format!("{error}\n\n{}", cli::USAGE), USAGE_EXIT),
        Failure::Startup(error) => (error.to_string(), error.exit_code()),
        Failure::Command(error) => (error.to_string(), error.exit_code()),
        Failure::Renew(error) => (format!("failed to begin anew: {error}"), RENEW_EXIT),
        Failure::Output(error) => {
            (format!("failed to write to standard output: {error}"), OUTPUT_EXIT)
        }
        Failure::Broken(broken) => (broken.to_string(), BROKEN_EXIT),
    };
    logging::say(&format!("dashscope-proxy: {text}"));
    code
}

fn run() -> Result<u8, Failure> {
    let command = cli::parse(std::env::args_os().skip(1)).map_err(Failure::Usage)?;
    match command {
        Command::Help => print(cli::USAGE)?,
        Command::Version => print(&format!("dashscope-proxy {}\n", env!("CARGO_PKG_VERSION")))?,
        Command::Serve { env_file } => {
            signals::keep_ignored();
            let environment = Environment::read(env_file.as_deref())?;
            let loaded = config::load(&environment)?;
            logging::start(&loaded.config.log_filter);
            panics::watch();
            let (sender, events) = crossbeam_channel::unbounded();
            signals::ask_for_stop(sender.clone())?;
            return end(Service::start(loaded, sender)?.run(&events)?, &events);
        }
        Command::Status(options) => return report(commands::status(&options), options.json),
        Command::Steer(steer, target, options) => {
            return report(commands::steer(steer, &target, &options), options.json);
        }
        Command::Check { probe, options } => {
            return report(commands::check(probe, &options), options.json);
        }
        Command::Demo => return demonstrate(),
    }
    Ok(0)
}

fn demonstrate() -> Result<u8, Failure> {
    signals::keep_ignored();
    logging::start("info");
    panics::watch();
    let (sender, events) = crossbeam_channel::unbounded();
    signals::ask_for_stop(sender.clone())?;
    let demo = demo::start(sender)?;
    print(&demo.introduction())?;
    end(demo.run(&events)?, &events)
}

/// Ends the process, or begins it anew under the same number: the listener is handed over the way
/// systemd does it, and everything else is let go of.
fn end(ended: Ended, events: &Receiver<Event>) -> Result<u8, Failure> {
    // A signal may have come since the last look.
    if ended == Ended::Stopped || events.try_iter().any(|event| event == Event::Stop) {
        return Ok(0);
    }
    logging::finish(PATIENCE);
    let error = std::process::Command::new("/proc/self/exe")
        .args(std::env::args_os().skip(1))
        .env("LISTEN_PID", std::process::id().to_string())
        .env("LISTEN_FDS", "1")
        .exec();
    Err(Failure::Renew(error))
}

/// Prints what a command has to say; with `json` also why it has not done what was asked.
fn report(outcome: Result<Report, CommandError>, json: bool) -> Result<u8, Failure> {
    match outcome {
        Ok(Report { text, exit_code }) => {
            print(&text)?;
            Ok(exit_code)
        }
        Err(error) => {
            // That it was not done counts for more than that it was not said.
            let _ = if json { print(&error.to_json()) } else { Ok(()) };
            Err(Failure::Command(error))
        }
    }
}

/// Who reads it may have seen enough (`| head`): that is no failure. Anything else is.
fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::Output(error)),
        _ => Ok(()),
    }
}

impl From<Broken> for Failure {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

impl From<StartupError> for Failure {
    fn from(error: StartupError) -> Self {
        Self::Startup(error)
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Startup(error.into())
    }
}
