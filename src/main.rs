//! The command: reads what was typed, sets up signals and the log, and prints the final error.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{Receiver, Sender};
use dashscope_proxy::cli::{self, Command, UsageError};
use dashscope_proxy::commands::{self, CommandError, Report};
use dashscope_proxy::config::{self, ConfigError, Environment};
use dashscope_proxy::error::StartupError;
use dashscope_proxy::panics::{self, Event};
use dashscope_proxy::service::{Broken, Ended, Service};
use dashscope_proxy::{demo, logging};

/// EX_USAGE of sysexits.h.
const USAGE_EXIT: u8 = 64;

/// EX_SOFTWARE of sysexits.h.
const BROKEN_EXIT: u8 = 70;

/// EX_TEMPFAIL of sysexits.h: the supervisor is to start it again.
const RENEW_EXIT: u8 = 75;

/// The exit code of a process that a signal ended, as shells count it (128 + SIGINT).
const INTERRUPTED_EXIT: i32 = 130;

/// Why the process ends with something other than 0.
enum Failure {
    Usage(UsageError),
    Startup(StartupError),
    Broken(Broken),
    Command(CommandError),
    /// The program could not be executed anew.
    Renew(std::io::Error),
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => ExitCode::from(code),
        Err(failure) => complain(&failure),
    }
}

#[expect(clippy::print_stderr, reason = "the one place that prints the final error")]
fn complain(failure: &Failure) -> ExitCode {
    match failure {
        Failure::Usage(error) => {
            eprintln!("dashscope-proxy: {error}\n\n{}", cli::USAGE);
            ExitCode::from(USAGE_EXIT)
        }
        Failure::Startup(error) => {
            eprintln!("dashscope-proxy: {error}");
            ExitCode::from(error.exit_code())
        }
        Failure::Command(error) => {
            eprintln!("dashscope-proxy: {error}");
            ExitCode::from(error.exit_code())
        }
        Failure::Renew(error) => {
            eprintln!("dashscope-proxy: failed to begin anew: {error}");
            ExitCode::from(RENEW_EXIT)
        }
        Failure::Broken(broken) => {
            eprintln!("dashscope-proxy: {broken}");
            ExitCode::from(BROKEN_EXIT)
        }
    }
}

#[expect(clippy::print_stdout, reason = "the answer to --help and --version")]
fn run() -> Result<u8, Failure> {
    let command = cli::parse(std::env::args_os().skip(1)).map_err(Failure::Usage)?;
    match command {
        Command::Help => print!("{}", cli::USAGE),
        Command::Version => println!("dashscope-proxy {}", env!("CARGO_PKG_VERSION")),
        Command::Serve { env_file } => {
            let environment = Environment::read(env_file.as_deref())?;
            let loaded = config::load(&environment)?;
            logging::start(&loaded.config.log_filter);
            panics::watch();
            let (sender, events) = on_signal()?;
            return end(Service::start(loaded, sender)?.run(&events)?, &events);
        }
        Command::Status(options) => return report(commands::status(&options), options.json),
        Command::Steer(steer, target, options) => {
            return report(commands::steer(steer, &target, &options), options.json);
        }
        Command::Check { probe, options } => {
            return report(commands::check(probe, &options), options.json);
        }
        Command::Demo => {
            logging::start("info");
            panics::watch();
            let (sender, events) = on_signal()?;
            return end(demo::start(sender)?.run(&events)?, &events);
        }
    }
    Ok(0)
}

/// Ends the process, or begins it anew under the same number: the listener is handed over the way
/// systemd does it, and everything else is let go of.
fn end(ended: Ended, events: &Receiver<Event>) -> Result<u8, Failure> {
    // A signal may have come since the last look.
    if ended == Ended::Stopped || events.try_iter().any(|event| event == Event::Stop) {
        return Ok(0);
    }
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
            print(&text);
            Ok(exit_code)
        }
        Err(error) => {
            if json {
                print(&error.to_json());
            }
            Err(Failure::Command(error))
        }
    }
}

/// Who reads it may have seen enough (`| head`): that is no failure.
fn print(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

/// SIGINT, SIGTERM or SIGHUP asks for a stop (ctrlc cannot tell them apart); a second one does
/// not wait for it.
#[expect(clippy::disallowed_methods, reason = "a second signal must not wait for main")]
fn on_signal() -> Result<(Sender<Event>, Receiver<Event>), Failure> {
    let (sender, events) = crossbeam_channel::unbounded();
    let asked = AtomicBool::new(false);
    let stop = sender.clone();
    let handler = move || {
        if asked.swap(true, Ordering::Relaxed) {
            std::process::exit(INTERRUPTED_EXIT);
        }
        let _ = stop.send(Event::Stop);
    };
    ctrlc::set_handler(handler).map_err(|error| {
        Failure::Startup(StartupError::System(format!("failed to listen to signals: {error}")))
    })?;
    Ok((sender, events))
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
