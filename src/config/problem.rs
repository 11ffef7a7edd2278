//! What is wrong with a configuration, for the operator.

use std::fmt;

/// Everything that is wrong with the configuration, found in one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// In the order in which the variables are read; never empty.
    pub problems: Vec<Problem>,
}

/// One problem per line.
impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// One thing that is wrong. It never holds the value of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The variable, or the file.
    pub subject: String,
    /// What is wrong with it, as the rest of a sentence.
    pub text: String,
}

impl Problem {
    /// A problem with `subject`.
    #[must_use]
    pub fn new(subject: impl Into<String>, text: impl Into<String>) -> Self {
        Self { subject: subject.into(), text: text.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.subject, self.text)
    }
}
