//! Where the values come from: the environment of the process, and a `.env` file for what that
//! lacks. The only reader of either.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsString;
use std::path::Path;
use std::{env, fmt, fs, io};

use super::dotenv::{self, Assignment, Doubt, Parsed};
use super::problem::{ConfigError, Problem};
use super::variables::{is_known, probably_meant};

/// The file that is read when none is named, if it is there.
const DEFAULT_FILE: &str = ".env";

/// The variables and their values. Its `Debug` shows names only.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment {
    values: HashMap<String, String>,
    misspellings: Vec<Misspelling>,
    /// The file that was read, and what comes from it.
    file: Option<String>,
    from_file: HashSet<String>,
    /// Names in the file that mean nothing to us.
    unknown: BTreeSet<String>,
    /// What is wrong with the sources, to be reported together with what is wrong with values.
    pub(super) problems: Vec<Problem>,
    /// What an operator may want to know about the file.
    pub(super) notes: Vec<String>,
}

#[derive(Clone, PartialEq, Eq)]
struct Misspelling {
    written: String,
    meant: &'static str,
}

impl Environment {
    /// Reads the environment of the process, then `env_file` or, if it exists, `./.env`.
    ///
    /// # Errors
    /// When the file cannot be read or is not UTF-8. What is wrong with single lines is reported
    /// by [`load`](super::load), with all other problems.
    pub fn read(env_file: Option<&Path>) -> Result<Self, ConfigError> {
        let mut environment = Self::default();
        environment.take_process(env::vars_os());
        let path = env_file.unwrap_or(Path::new(DEFAULT_FILE));
        let fail =
            |text| ConfigError { problems: vec![Problem::new(path.display().to_string(), text)] };
        match fs::read(path) {
            Ok(bytes) => {
                let text = dotenv::decode(&bytes).map_err(fail)?;
                environment.take_file(&path.display().to_string(), dotenv::parse(text));
            }
            Err(error) if env_file.is_none() && error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(fail(format!("failed to read the file: {error}"))),
        }
        Ok(environment)
    }

    /// An environment of exactly these variables; of two with the same name the later one counts.
    pub fn from_pairs(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        Self { values: pairs.into_iter().collect(), ..Self::default() }
    }

    /// What [`Environment::read`] makes of a file with these bytes and an empty environment.
    #[cfg(fuzzing)]
    pub(crate) fn of_file(bytes: &[u8]) -> Result<Self, String> {
        let mut environment = Self::default();
        environment.take_file(".env", dotenv::parse(dotenv::decode(bytes)?));
        // It would be opened.
        environment.values.remove("UPSTREAM_CA_FILE");
        Ok(environment)
    }

    /// The value of a variable without the blanks around it. A blank one counts as unset.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// The file that `name` comes from, if it comes from one.
    pub(super) fn file_of(&self, name: &str) -> Option<&str> {
        self.file.as_deref().filter(|_| self.from_file.contains(name))
    }

    /// The names in the file that mean nothing to us: typing errors, or other programs'.
    pub fn unknown_names(&self) -> impl Iterator<Item = &str> {
        self.unknown.iter().map(String::as_str)
    }

    /// The file that was read besides the environment of the process.
    #[must_use]
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// An unknown variable of the file that was probably meant to be `name`.
    pub(super) fn misspelling_of(&self, name: &str) -> Option<&str> {
        self.misspellings.iter().find(|it| it.meant == name).map(|it| it.written.as_str())
    }

    /// Values that are not Unicode can only be passed over if they are not ours.
    fn take_process(&mut self, variables: impl Iterator<Item = (OsString, OsString)>) {
        for (name, value) in variables {
            let Ok(name) = name.into_string() else { continue };
            match value.into_string() {
                Ok(value) => {
                    self.values.insert(name, value);
                }
                Err(_) if is_known(&name) => self.problems.push(Problem::new(name, "is not UTF-8")),
                Err(_) => {}
            }
        }
    }

    fn take_file(&mut self, path: &str, parsed: Parsed) {
        for line in parsed.ignored {
            self.notes.push(format!("{path}:{line} is not an assignment and is ignored"));
        }
        self.file = Some(path.to_owned());
        let mut from_file = HashMap::new();
        for Assignment { line, name, value, doubt } in parsed.assignments {
            if is_known(&name) {
                self.judge(path, line, &name, doubt);
            } else if self.unknown.insert(name.clone())
                && let Some(meant) = probably_meant(&name)
            {
                self.notes.push(format!("unknown variable {name} in {path}, did you mean {meant}"));
                self.misspellings.push(Misspelling { written: name.clone(), meant });
            }
            from_file.insert(name, value);
        }
        for (name, value) in from_file {
            if self.get(&name).is_none() {
                self.from_file.insert(name.clone());
                self.values.insert(name, value);
            }
        }
    }

    /// Other programs' variables in the same file are none of our business.
    fn judge(&mut self, path: &str, line: usize, name: &str, doubt: Option<Doubt>) {
        match doubt {
            Some(Doubt::OpenQuote) => self.problems.push(Problem::new(
                name,
                format!("begins with a quote that is never closed ({path}:{line})"),
            )),
            Some(Doubt::HashInside) => self.notes.push(format!(
                "{name} holds a # that no blank precedes ({path}:{line}): it is part of the value"
            )),
            None => {}
        }
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.values.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(process: &[(&str, &str)], file: &str) -> Environment {
        let mut environment = Environment::default();
        let process = process.iter().map(|(name, value)| (name.into(), value.into()));
        environment.take_process(process);
        environment.take_file(".env", dotenv::parse(file));
        environment
    }

    #[test]
    fn the_file_fills_what_the_process_lacks() {
        let environment = merged(&[("PORT", "1"), ("HOST", " ")], "PORT=2\nHOST=h\nWORKERS=3\n");
        assert_eq!(environment.get("PORT"), Some("1"));
        assert_eq!(environment.get("HOST"), Some("h"));
        assert_eq!(environment.get("WORKERS"), Some("3"));
        assert_eq!(environment.get("QUEUE_SIZE"), None);
    }

    #[test]
    fn the_later_of_two_lines_wins() {
        assert_eq!(merged(&[], "PORT=1\nPORT=2").get("PORT"), Some("2"));
    }

    #[test]
    fn blank_is_unset_and_blanks_around_a_value_are_not_part_of_it() {
        let environment = merged(&[("A", " \t\u{a0}\r\n"), ("B", " b \r")], "");
        assert_eq!(environment.get("A"), None);
        assert_eq!(environment.get("B"), Some("b"));
    }

    #[test]
    fn a_typing_error_in_the_file_is_noted_once_without_its_value() {
        let file = "MODEL_COOLDOWN_SECOND=77\nMODEL_COOLDOWN_SECOND=88\nNODE_ENV=x\n";
        let environment = merged(&[("MODEL_ID", "not from the file")], file);
        assert_eq!(
            environment.notes,
            ["unknown variable MODEL_COOLDOWN_SECOND in .env, did you mean MODEL_COOLDOWN_SECONDS"]
        );
        let misspelling = environment.misspelling_of("MODEL_COOLDOWN_SECONDS");
        assert_eq!(misspelling, Some("MODEL_COOLDOWN_SECOND"));
    }

    #[test]
    fn a_required_variable_that_is_missing_points_at_its_misspelling() {
        let error = crate::config::load(&merged(&[], "MODEL_ID=m")).unwrap_err();
        let problem = Problem::new("MODEL_IDS", "is required; was it meant by MODEL_ID?");
        assert!(error.problems.contains(&problem), "{error}");
    }

    #[test]
    fn a_line_that_is_ignored_is_noted_without_its_content() {
        let environment = merged(&[], "PORT=1\nsk-secret\n");
        assert_eq!(environment.notes, [".env:2 is not an assignment and is ignored"]);
    }

    #[test]
    fn an_open_quote_is_a_problem_where_the_variable_is_ours() {
        let environment = merged(&[], "GREETING='tis\n\nMODEL_IDS=\"a,\n");
        let problems: Vec<_> = environment.problems.iter().map(ToString::to_string).collect();
        assert_eq!(problems, ["MODEL_IDS: begins with a quote that is never closed (.env:3)"]);
    }

    #[test]
    fn a_hash_inside_one_of_our_values_is_noted() {
        let environment = merged(&[], "OTHER=a#b\nPROXY_API_KEY=sk#secret");
        assert_eq!(environment.get("PROXY_API_KEY"), Some("sk#secret"));
        assert_eq!(
            environment.notes,
            ["PROXY_API_KEY holds a # that no blank precedes (.env:2): it is part of the value"]
        );
    }

    #[cfg(unix)]
    #[test]
    fn only_our_own_variables_must_be_unicode() {
        use std::os::unix::ffi::OsStringExt;

        let latin1 = || OsString::from_vec(vec![0xe9]);
        let mut environment = Environment::default();
        let variables = [("OTHER".into(), latin1()), ("HOST".into(), latin1())];
        environment.take_process(variables.into_iter());
        assert_eq!(environment.problems, [Problem::new("HOST", "is not UTF-8")]);
    }

    #[test]
    fn a_named_file_must_be_readable_text() {
        let missing = Environment::read(Some(Path::new("no/such/file"))).unwrap_err();
        assert!(missing.to_string().starts_with("no/such/file: failed to read the file: "));

        let path = env::temp_dir().join(format!("dashscope-proxy-env-{}", std::process::id()));
        fs::write(&path, b"\xff\xfeP\0").unwrap();
        let utf16 = Environment::read(Some(&path));
        fs::write(&path, "\u{feff}ENVIRONMENT_TEST='a b'\r\n").unwrap();
        let utf8 = Environment::read(Some(&path));
        fs::remove_file(&path).unwrap();
        assert!(
            utf16.unwrap_err().to_string().ends_with("it is UTF-16 or binary; save it as UTF-8")
        );
        assert_eq!(utf8.unwrap().get("ENVIRONMENT_TEST"), Some("a b"));
    }

    #[test]
    fn debug_shows_no_value() {
        let environment = merged(&[("PROXY_API_KEY", "sk-secret")], "");
        assert_eq!(format!("{environment:?}"), "{\"PROXY_API_KEY\"}");
    }
}
