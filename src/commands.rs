//! What a person or a script asks from the command line: how the pool stands, changes to it, and
//! what is wrong.
//!
//! A command asks the running proxy; when none runs, it goes to the state file. It never changes
//! that behind a proxy's back. Commands print nothing: they return what is to be printed.

mod check;
mod client;
mod status;
mod steer;
mod table;

use std::fmt;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::cli::{Options, Target};
use crate::config::{self, ConfigError, Environment, Loaded};
use crate::error::{ProxyError, StartupError};
use crate::logging;
use crate::policy::route::Steer;

/// What is to be printed, and how the process ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// For standard output.
    pub text: String,
    /// 0, or 1 when a check failed.
    pub exit_code: u8,
}

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub enum CommandError {
    /// It cannot even begin: configuration, or state file.
    Startup(StartupError),
    /// The proxy, or the rules that it would follow, refused it.
    Refused {
        /// The HTTP status.
        status: u16,
        /// The name of the error.
        code: String,
        /// What is wrong.
        message: String,
    },
    /// Something answers at the proxy's address, and not as the proxy would.
    Unavailable(String),
}

impl CommandError {
    /// The exit code of the process, as sysexits.h has them.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Startup(error) => error.exit_code(),
            Self::Refused { status: 400 | 404, .. } => 64, // EX_USAGE
            Self::Refused { .. } | Self::Unavailable(_) => 69, // EX_UNAVAILABLE
        }
    }

    /// The same for a program.
    #[must_use]
    pub fn to_json(&self) -> String {
        let code = match self {
            Self::Startup(StartupError::Config(_)) => "configuration",
            Self::Startup(StartupError::State(_)) => "state_file",
            Self::Startup(_) => "system",
            Self::Refused { code, .. } => code,
            Self::Unavailable(_) => "unavailable",
        };
        let mut error = json!({"code": code, "message": self.to_string()});
        if let Self::Startup(StartupError::Config(ConfigError { problems })) = self {
            let problem = |it: &config::Problem| json!({"name": it.subject, "problem": it.text});
            error["problems"] = problems.iter().map(problem).collect();
        }
        pretty(&json!({"ok": false, "error": error}))
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Startup(error) => error.fmt(f),
            Self::Refused { message, .. } | Self::Unavailable(message) => f.write_str(message),
        }
    }
}

impl From<StartupError> for CommandError {
    fn from(error: StartupError) -> Self {
        Self::Startup(error)
    }
}

impl From<ConfigError> for CommandError {
    fn from(error: ConfigError) -> Self {
        Self::Startup(error.into())
    }
}

impl From<ProxyError> for CommandError {
    fn from(error: ProxyError) -> Self {
        let (status, code) = (error.status(), error.code().to_owned());
        Self::Refused { status, code, message: error.to_string() }
    }
}

/// Whom a command has asked.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    /// The running proxy.
    Proxy(SocketAddr),
    /// The state file, because no proxy runs.
    File(PathBuf),
    /// The state file, although another process has it: no proxy answers at this address.
    Taken { file: PathBuf, asked: String },
}

impl Source {
    fn to_json(&self) -> Value {
        match self {
            Self::Proxy(address) => json!({"kind": "proxy", "address": address.to_string()}),
            Self::File(path) => json!({"kind": "file", "path": path.display().to_string()}),
            Self::Taken { file, .. } => {
                json!({"kind": "file", "path": file.display().to_string(), "inUse": true})
            }
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Proxy(address) => write!(f, "the proxy at {address}"),
            Self::File(path) => write!(f, "no proxy runs: the state file {}", path.display()),
            Self::Taken { file, asked } => write!(
                f,
                "no proxy answers at {asked} (HOST, PORT), and another process uses the state file {}; as it was written last",
                file.display()
            ),
        }
    }
}

/// `status`.
///
/// # Errors
/// When neither the proxy nor the state file can say.
pub fn status(options: &Options) -> Result<Report, CommandError> {
    let (environment, loaded) = load(options)?;
    // Set to anything it means no (no-color.org).
    let is_plain = environment.get("NO_COLOR").is_some() || !std::io::stdout().is_terminal();
    status::run(&loaded.config, options.json, !is_plain)
}

/// `reset`, `disable`, `enable`.
///
/// # Errors
/// When nothing was changed.
pub fn steer(steer: Steer, target: &Target, options: &Options) -> Result<Report, CommandError> {
    let (_, loaded) = load(options)?;
    steer::run(&loaded.config, steer, target, options.json)
}

/// `check`.
///
/// # Errors
/// When the configuration has problems: nothing else can be looked at then.
pub fn check(probe: bool, options: &Options) -> Result<Report, CommandError> {
    let (environment, loaded) = load(options)?;
    check::run(&environment, &loaded, probe, options.json)
}

fn load(options: &Options) -> Result<(Environment, Loaded), CommandError> {
    let environment = Environment::read(options.env_file.as_deref())?;
    let loaded = config::load(&environment)?;
    logging::start("warn");
    Ok((environment, loaded))
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}
