//! How texts and times look in the log.

use std::fmt;
use std::time::Duration;

/// How much of somebody else's text a log line shows, in characters.
const LONGEST: usize = 500;

/// Text of a client or of upstream: quoted where it has to be, escaped, cut.
#[derive(Debug)]
pub(crate) struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '=');
        if !self.0.is_empty() && self.0.len() <= LONGEST && self.0.chars().all(plain) {
            return f.write_str(self.0);
        }
        let mut chars = self.0.chars();
        let shown: String = chars.by_ref().take(LONGEST).collect();
        let rest = if chars.next().is_some() { "…" } else { "" };
        write!(f, "\"{}{rest}\"", shown.escape_debug())
    }
}

/// A duration in milliseconds with one decimal.
#[must_use]
pub(crate) fn millis(duration: Duration) -> String {
    format!("{:.1}", duration.as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_words_stay_and_everything_else_is_quoted_and_escaped() {
        assert_eq!(Quoted("/v1/messages").to_string(), "/v1/messages");
        assert_eq!(Quoted("").to_string(), "\"\"");
        assert_eq!(Quoted("two words").to_string(), "\"two words\"");
        assert_eq!(Quoted("a\nrequest id=1").to_string(), "\"a\\nrequest id=1\"");
        assert_eq!(Quoted("\u{1b}[31m").to_string(), "\"\\u{1b}[31m\"");
        assert_eq!(Quoted("a=b").to_string(), "\"a=b\"");
    }

    #[test]
    fn long_text_is_cut() {
        let long = "x".repeat(10_000);
        assert!(Quoted(&long).to_string().chars().count() < LONGEST + 10);
    }

    #[test]
    fn times_are_shown_in_milliseconds() {
        assert_eq!(millis(Duration::from_micros(1_250)), "1.2");
    }
}
