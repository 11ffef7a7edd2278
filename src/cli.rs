//! What was typed.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use lexopt::ValueExt;
use lexopt::prelude::{Long, Short, Value};

use crate::policy::route::Steer;

/// The usage text.
pub const USAGE: &str = "\
Usage: dashscope-proxy [OPTIONS] [COMMAND]

Without a command it serves, configured by the environment and ./.env
(.env.example shows every variable).

Commands:
  status            show every slot, as the running proxy or the file has it
  reset             end cooldowns and backoffs: slots are used again at once;
                    lifts QUOTA_GUARD from slots that have reached it
  disable           switch slots off until they are enabled
  enable            switch slots on again; all, if none is named
  check             look for what is wrong with configuration, state and network
  demo              serve a built-in DashScope stand-in: no account needed

Options:
      --env-file PATH  read PATH instead of ./.env
      --json           status, reset, disable, enable, check: answer in JSON
      --key KEY        reset, disable, enable: of this key, by its label or its
                       place in DASHSCOPE_API_KEYS, counted from 0
      --model MODEL    reset, disable, enable: of this model
      --all            reset, disable, enable: of every key and model
      --usage          reset: set the counted tokens to 0 as well, so that
                       QUOTA_GUARD counts anew instead of being lifted
      --probe          check: ask DashScope about every key (GET /models)
  -h, --help           print this text
  -V, --version        print the version

reset, disable and enable go through the running proxy; when none runs, they
change the state file.

Exit codes: 0 done, or stopped as asked; 1 check found something wrong;
64 usage, also a key or a model that is not in the pool; 69 address not
available, or what answers there does not do what it should; 70 a bug;
71 system; 74 state file unusable, or taken by another process;
78 configuration; 130 stopped by a second signal
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
    /// Show the pool.
    Status(Options),
    /// Change the pool.
    Steer(Steer, Target, Options),
    /// Look for what is wrong.
    Check {
        /// `--probe`.
        probe: bool,
        /// What every command takes.
        options: Options,
    },
    /// Print the usage.
    Help,
    /// Print the version.
    Version,
}

/// What every command about a proxy takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `--env-file`.
    pub env_file: Option<PathBuf>,
    /// `--json`.
    pub json: bool,
}

/// The part of the pool that is named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// `--key`.
    pub key: Option<String>,
    /// `--model`.
    pub model: Option<String>,
    /// `--all`.
    pub all: bool,
    /// `--usage`.
    pub usage: bool,
}

impl Target {
    /// The proxy's own rules, in the words of the command line: a typing error changes nothing.
    fn check(&self, steer: Steer) -> Result<(), UsageError> {
        let names = self.key.is_some() || self.model.is_some();
        match (self.all, names) {
            (true, true) => {
                Err(UsageError("name a --key or a --model, or --all, not both".to_owned()))
            }
            (false, false) if steer != Steer::Enable => {
                Err(UsageError(format!("{} takes a --key, a --model or --all", steer.name())))
            }
            _ => Ok(()),
        }
    }
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

/// A word of [`USAGE`]'s commands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    Serve,
    Demo,
    Status,
    Steer(Steer),
    Check,
}

impl Word {
    fn of(text: &str) -> Option<Self> {
        Some(match text {
            "demo" => Self::Demo,
            "status" => Self::Status,
            "reset" => Self::Steer(Steer::Reset),
            "disable" => Self::Steer(Steer::Disable),
            "enable" => Self::Steer(Steer::Enable),
            "check" => Self::Check,
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Serve => "serving",
            Self::Demo => "demo",
            Self::Status => "status",
            Self::Steer(steer) => steer.name(),
            Self::Check => "check",
        }
    }
}

/// Everything on a command line, before it is known whether it fits together.
#[derive(Default)]
struct Typed {
    word: Option<Word>,
    options: Options,
    target: Target,
    probe: bool,
}

/// Understands the arguments after the program's name.
///
/// # Errors
/// When there is something in them that has no meaning.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, UsageError> {
    let mut parser = lexopt::Parser::from_args(arguments);
    let mut typed = Typed::default();
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(Command::Help),
            Short('V') | Long("version") => return Ok(Command::Version),
            Long("env-file") => typed.options.env_file = Some(parser.value()?.into()),
            Long("json") => typed.options.json = true,
            Long("key") => once(&mut typed.target.key, "--key", parser.value()?.string()?)?,
            Long("model") => once(&mut typed.target.model, "--model", parser.value()?.string()?)?,
            Long("all") => typed.target.all = true,
            Long("usage") => typed.target.usage = true,
            Long("probe") => typed.probe = true,
            Value(text) => match text.to_str().and_then(Word::of) {
                Some(word) if typed.word.is_none() => typed.word = Some(word),
                _ => return Err(Value(text).unexpected().into()),
            },
            other => return Err(other.unexpected().into()),
        }
    }
    typed.command()
}

/// Of two keys one would be passed over.
fn once(place: &mut Option<String>, name: &str, value: String) -> Result<(), UsageError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(UsageError(format!("{name} is given twice"))),
    }
}

impl Typed {
    fn command(self) -> Result<Command, UsageError> {
        let Self { word, options, target, probe } = self;
        let word = word.unwrap_or(Word::Serve);
        let steers = matches!(word, Word::Steer(_));
        let given = [
            ("--env-file", options.env_file.is_some(), word != Word::Demo),
            ("--json", options.json, !matches!(word, Word::Serve | Word::Demo)),
            ("--key", target.key.is_some(), steers),
            ("--model", target.model.is_some(), steers),
            ("--all", target.all, steers),
            ("--usage", target.usage, word == Word::Steer(Steer::Reset)),
            ("--probe", probe, word == Word::Check),
        ];
        if let Some((name, ..)) = given.iter().find(|(_, given, fits)| *given && !fits) {
            return Err(UsageError(format!("{} takes no {name}", word.name())));
        }
        if let Word::Steer(steer) = word {
            target.check(steer)?;
        }
        Ok(match word {
            Word::Serve => Command::Serve { env_file: options.env_file },
            Word::Demo => Command::Demo,
            Word::Status => Command::Status(options),
            Word::Steer(steer) => Command::Steer(steer, target, options),
            Word::Check => Command::Check { probe, options },
        })
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
    fn commands_take_their_options_before_and_after_them() {
        let options = Options { env_file: Some("x.env".into()), json: true };
        for arguments in
            [["--json", "status", "--env-file=x.env"], ["status", "--json", "--env-file=x.env"]]
        {
            assert_eq!(parsed(&arguments), Ok(Command::Status(options.clone())));
        }
        let target =
            Target { key: Some("0".into()), model: Some("m1".into()), ..Target::default() };
        assert_eq!(
            parsed(&["reset", "--key", "0", "--model=m1"]),
            Ok(Command::Steer(Steer::Reset, target, Options::default()))
        );
        let target = Target { key: Some("0".into()), usage: true, ..Target::default() };
        assert_eq!(
            parsed(&["reset", "--usage", "--key", "0"]),
            Ok(Command::Steer(Steer::Reset, target, Options::default()))
        );
        let target = Target { all: true, ..Target::default() };
        assert_eq!(
            parsed(&["disable", "--all"]),
            Ok(Command::Steer(Steer::Disable, target, Options::default()))
        );
        assert_eq!(
            parsed(&["check", "--probe", "--json", "--env-file=x.env"]),
            Ok(Command::Check { probe: true, options })
        );
    }

    #[test]
    fn what_has_no_meaning_is_refused() {
        for arguments in [
            &["--port", "1"][..],
            &["-x"],
            &["serve"],
            &["demo", "demo"],
            &["status", "reset"],
            &["--env-file"],
            &["demo", "--env-file", "x"],
            &["demo", "--json"],
            &["--json"],
            &["--all"],
            &["status", "--key", "0"],
            &["status", "--probe"],
            &["check", "--all"],
            &["reset", "--probe"],
            &["reset", "--key"],
            &["reset", "--key", "0", "--key", "1"],
            &["reset", "m1"],
            &["reset", "--usage"],
            &["disable", "--usage", "--all"],
            &["enable", "--usage"],
            &["status", "--usage"],
            &["reset"],
            &["disable", "--json"],
            &["enable", "--all", "--key", "0"],
        ] {
            assert!(parsed(arguments).is_err(), "{arguments:?}");
        }
    }
}
