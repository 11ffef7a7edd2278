//! What was typed.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use lexopt::prelude::{Long, Short, Value};

/// The usage text.
pub const USAGE: &str = "\
Usage: dashscope-proxy [OPTIONS] [COMMAND]

Without a command it serves, configured by the environment and ./.env
(.env.example shows every variable).

Commands:
  demo              serve a built-in DashScope stand-in: no account needed

Options:
      --env-file PATH  read PATH instead of ./.env
  -h, --help           print this text
  -V, --version        print the version

Exit codes: 0 stopped as asked, 64 usage, 69 address not available, 70 a bug,
71 system, 74 state file, 78 configuration, 130 stopped by a second signal
";

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Serve.
    Serve {
        /// `--env-file`.
        env_file: Option<PathBuf>,
    },
    /// Serve the stand-in.
    Demo,
    /// Print the usage.
    Help,
    /// Print the version.
    Version,
}

/// A command line that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageError(String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<lexopt::Error> for UsageError {
    fn from(error: lexopt::Error) -> Self {
        Self(error.to_string())
    }
}

/// Understands the arguments after the program's name.
///
/// # Errors
/// When there is something in them that has no meaning.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, UsageError> {
    let mut parser = lexopt::Parser::from_args(arguments);
    let mut env_file = None;
    let mut is_demo = false;
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(Command::Help),
            Short('V') | Long("version") => return Ok(Command::Version),
            Long("env-file") => env_file = Some(parser.value()?.into()),
            Value(word) if word == "demo" && !is_demo => is_demo = true,
            other => return Err(other.unexpected().into()),
        }
    }
    match (is_demo, env_file) {
        (true, None) => Ok(Command::Demo),
        (true, Some(_)) => Err(UsageError("demo takes no --env-file".to_owned())),
        (false, env_file) => Ok(Command::Serve { env_file }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Command, UsageError> {
        parse(arguments.iter().map(OsString::from))
    }

    #[test]
    fn without_arguments_it_serves() {
        assert_eq!(parsed(&[]), Ok(Command::Serve { env_file: None }));
        let env_file = Some(PathBuf::from("x.env"));
        assert_eq!(
            parsed(&["--env-file", "x.env"]),
            Ok(Command::Serve { env_file: env_file.clone() })
        );
        assert_eq!(parsed(&["--env-file=x.env"]), Ok(Command::Serve { env_file }));
    }

    #[test]
    fn help_version_and_demo_are_known() {
        assert_eq!(parsed(&["--help"]), Ok(Command::Help));
        assert_eq!(parsed(&["-h"]), Ok(Command::Help));
        assert_eq!(parsed(&["-V"]), Ok(Command::Version));
        assert_eq!(parsed(&["--version"]), Ok(Command::Version));
        assert_eq!(parsed(&["demo"]), Ok(Command::Demo));
    }

    #[test]
    fn what_has_no_meaning_is_refused() {
        for arguments in [
            &["--port", "1"][..],
            &["-x"],
            &["serve"],
            &["demo", "demo"],
            &["--env-file"],
            &["demo", "--env-file", "x"],
        ] {
            assert!(parsed(arguments).is_err(), "{arguments:?}");
        }
    }
}
