//! The errors that are born here: to the operator at start, and to a client.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use crate::clock::Timestamp;
use crate::config::ConfigError;
use crate::policy::body::BodyError;
use crate::policy::retry_after;
use crate::policy::route::Protocol;

/// Why the proxy does not start. Exit codes are those of sysexits.h.
#[derive(Debug)]
pub enum StartupError {
    /// The configuration has problems; all of them are listed.
    Config(ConfigError),
    /// The state file cannot be used, or belongs to another process.
    State(String),
    /// The listen address cannot be had.
    Listen(String),
    /// The system refuses something else that is needed.
    System(String),
}

impl StartupError {
    /// The exit code of the process.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) => 78, // EX_CONFIG
            Self::State(_) => 74,  // EX_IOERR
            Self::Listen(_) => 69, // EX_UNAVAILABLE
            Self::System(_) => 71, // EX_OSERR
        }
    }
}

impl fmt::Display for StartupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => write!(f, "the configuration has problems:\n{error}"),
            Self::State(text) | Self::Listen(text) | Self::System(text) => f.write_str(text),
        }
    }
}

impl From<ConfigError> for StartupError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

/// Why a client gets an answer of our own instead of upstream's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxyError {
    /// The proxy key is missing or wrong.
    Unauthorized,
    /// No such path.
    NotFound,
    /// The pool has no such model.
    NoSuchModel(String),
    /// A page of another origin wants to read or change what is only ours.
    ForeignOrigin,
    /// A command that cannot be understood.
    Command(String),
    /// A command about something that is not in the pool: a key or a model.
    NotInPool(String),
    /// The path is known, the method is not.
    WrongMethod {
        /// The methods that are.
        allow: &'static str,
    },
    /// The body cannot be used.
    Body(BodyError),
    /// The body is compressed.
    Encoded {
        /// The coding's name.
        coding: String,
    },
    /// The body is larger than `MAX_BODY_BYTES`, or an upload larger than DashScope takes.
    TooLarge {
        /// That limit, in bytes.
        limit: u64,
    },
    /// The request itself is broken.
    Malformed(&'static str),
    /// Every worker is busy and the queue is full, or the bodies in memory reach their limit.
    Overloaded,
    /// The process ends, and waits for answers no longer.
    Stopping,
    /// No slot is available.
    NoSlot {
        /// When the first slot is tried again, if any is without a person.
        until: Option<Timestamp>,
        /// The time of the refusal.
        now: Timestamp,
        /// How many slots cool.
        cooling: usize,
        /// How many the guard has left.
        guarded: usize,
        /// How many are switched off.
        disabled: usize,
    },
    /// No model of the pool takes the request, and it is known that none would.
    NoneTakes {
        /// What DashScope said of one, before.
        said: String,
    },
    /// A model name that cannot be one.
    Model,
    /// DashScope does not accept a key of ours. (The client would take its 401 for one about the
    /// client's own key.)
    KeyRejected {
        /// The key's label.
        label: String,
    },
    /// Upstream wants to send the client elsewhere, where the proxy key would go with it.
    Redirected {
        /// The status of that.
        status: u16,
        /// The host it names, if that may be told.
        host: Option<String>,
    },
    /// Upstream could not be reached or broke off before its answer.
    Unreachable {
        /// The cause, in words.
        cause: String,
    },
    /// Upstream did not answer in time.
    TimedOut {
        /// What took too long, in words.
        cause: String,
    },
}

impl ProxyError {
    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::Unauthorized => 401,
            Self::ForeignOrigin => 403,
            Self::NotFound | Self::NoSuchModel(_) | Self::NotInPool(_) => 404,
            Self::WrongMethod { .. } => 405,
            Self::Body(_)
            | Self::Malformed(_)
            | Self::Model
            | Self::Command(_)
            | Self::NoneTakes { .. } => 400,
            Self::Encoded { .. } => 415,
            Self::TooLarge { .. } => 413,
            Self::Overloaded | Self::Stopping | Self::NoSlot { .. } => 503,
            Self::Unreachable { .. } | Self::Redirected { .. } | Self::KeyRejected { .. } => 502,
            Self::TimedOut { .. } => 504,
        }
    }

    /// The headers that go with it.
    #[must_use]
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::WrongMethod { allow } => vec![("allow", (*allow).to_owned())],
            Self::Overloaded | Self::Stopping => vec![("retry-after", "1".to_owned())],
            // The SDKs would otherwise wait and ask again while their user looks at a spinner, and
            // others wait for as long as they are told.
            Self::NoSlot { until, now, .. } => {
                let seconds = until.map(|until| seconds_until(until, *now));
                match seconds.filter(|seconds| *seconds <= retry_after::LONGEST_TOLD) {
                    Some(seconds) => vec![("retry-after", seconds.to_string())],
                    None => vec![("x-should-retry", "false".to_owned())],
                }
            }
            _ => Vec::new(),
        }
    }

    /// The body, in the caller's protocol.
    #[must_use]
    pub fn body(&self, protocol: Protocol) -> Value {
        let message = self.to_string();
        match protocol {
            Protocol::OpenAi => json!({"error": {
                "message": message, "type": self.openai_type(), "param": null, "code": self.code(),
            }}),
            Protocol::Anthropic => json!({"type": "error", "error": {
                "type": self.anthropic_type(), "message": message,
            }}),
            Protocol::Native => json!({"code": self.code(), "message": message, "request_id": ""}),
        }
    }

    /// The stable name of the error, for programs and for the log.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unauthorized => "invalid_api_key",
            Self::NotFound => "not_found",
            Self::ForeignOrigin => "foreign_origin",
            Self::Command(_) => "invalid_command",
            Self::NotInPool(_) => "not_in_pool",
            Self::NoSuchModel(_) => "model_not_found",
            Self::WrongMethod { .. } => "method_not_allowed",
            Self::Body(_) => "invalid_body",
            Self::Malformed(_) => "malformed_request",
            Self::Model => "invalid_model",
            Self::NoneTakes { .. } => "model_limit",
            Self::KeyRejected { .. } => "upstream_key_rejected",
            Self::Encoded { .. } => "unsupported_content_encoding",
            Self::TooLarge { .. } => "request_too_large",
            Self::Overloaded => "overloaded",
            Self::Stopping => "stopping",
            Self::NoSlot { cooling: 0, guarded: 0, .. } => "pool_disabled",
            Self::NoSlot { .. } => "free_quota_exhausted",
            Self::Redirected { .. } => "upstream_redirect",
            Self::Unreachable { .. } => "upstream_unreachable",
            Self::TimedOut { .. } => "upstream_timeout",
        }
    }

    fn openai_type(&self) -> &'static str {
        match self.status() {
            400..=499 => "invalid_request_error",
            _ => "server_error",
        }
    }

    /// The types of Anthropic's own API, which its SDKs know.
    fn anthropic_type(&self) -> &'static str {
        match self {
            Self::Unauthorized => "authentication_error",
            Self::ForeignOrigin => "permission_error",
            Self::NotFound | Self::NoSuchModel(_) | Self::NotInPool(_) => "not_found_error",
            Self::TooLarge { .. } => "request_too_large",
            Self::Overloaded | Self::Stopping => "overloaded_error",
            // Claude Code takes an overload for passing: it asks again and hides the reason.
            Self::NoSlot { .. }
            | Self::Unreachable { .. }
            | Self::Redirected { .. }
            | Self::KeyRejected { .. }
            | Self::TimedOut { .. } => "api_error",
            _ => "invalid_request_error",
        }
    }
}

impl fmt::Display for ProxyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unauthorized => f.write_str(
                "the proxy key is missing or wrong; send PROXY_API_KEY as `Authorization: Bearer` or `x-api-key`",
            ),
            Self::NotFound => f.write_str("this proxy has no such path; `GET /` lists what it has"),
            Self::ForeignOrigin => {
                f.write_str("a page of another origin may not do this; open the proxy's own page")
            }
            Self::Command(what) => f.write_str(what),
            Self::NotInPool(what) => write!(f, "the pool has no such {what}"),
            Self::NoSuchModel(id) => write!(f, "the pool has no model `{id}`"),
            Self::WrongMethod { allow } => write!(f, "this path takes {allow}"),
            Self::Body(error) => error.fmt(f),
            Self::Malformed(what) => f.write_str(what),
            Self::Model => f.write_str(
                "the model name may hold letters, digits and ._:/@+- only, at most 128 of them",
            ),
            Self::NoneTakes { said } => write!(
                f,
                "{said} (said before: no available model of the pool takes this request)"
            ),
            Self::KeyRejected { label } => {
                write!(f, "DashScope does not accept the key {label} of this proxy")
            }
            Self::Encoded { coding } => write!(
                f,
                "the request body is compressed ({coding}); send it without content-encoding"
            ),
            Self::TooLarge { limit } => {
                write!(f, "the request body is larger than the {limit} bytes that are allowed here")
            }
            Self::Overloaded => f.write_str("the proxy is busy; try again in a second"),
            Self::Stopping => f.write_str("the proxy is stopping; try again when it is back"),
            Self::NoSlot { until: Some(until), now, cooling, disabled, .. } => {
                // Qwen Code gives up at once on `quota`, `exhausted` and `will reset`, and else
                // asks again and again.
                match disabled {
                    0 if *cooling == 1 => f.write_str("the free quota of the only slot is exhausted")?,
                    0 => write!(f, "the free quota of all {cooling} slots is exhausted")?,
                    _ => write!(
                        f,
                        "the free quota of {cooling} slots is exhausted and {disabled} are disabled"
                    )?,
                }
                let wait = in_words(until.since(*now));
                write!(f, "; it will reset at {until}, in {wait}")
            }
            Self::NoSlot { until: None, cooling, guarded, disabled, .. } if cooling + guarded > 0 => {
                write_guarded(f, *cooling, *guarded, *disabled)
            }
            Self::NoSlot { until: None, disabled, .. } => {
                write!(f, "no slot is available: all {disabled} are disabled; `enable` ends that")
            }
            Self::Redirected { status, host } => {
                let host = host.as_deref().unwrap_or("a place that is not named here");
                write!(f, "DashScope answered with a redirect ({status}) to {host}; it is not followed: check the base URLs")
            }
            Self::Unreachable { cause } => write!(f, "DashScope could not be reached: {cause}"),
            Self::TimedOut { cause } => write!(f, "DashScope did not answer in time: {cause}"),
        }
    }
}

/// Why a guarded pool has nothing left, and how to go on.
fn write_guarded(
    f: &mut fmt::Formatter<'_>,
    cooling: usize,
    guarded: usize,
    disabled: usize,
) -> fmt::Result {
    // In words that Qwen Code gives up on, as above.
    let left = format!("QUOTA_GUARD has left {guarded} before DashScope could bill them");
    let used_up = format!("the free quota of {cooling} is exhausted");
    let off = format!("{disabled} are disabled");
    let parts = [(left, guarded), (used_up, cooling), (off, disabled)].into_iter();
    let parts: Vec<String> = parts.filter(|(_, count)| *count > 0).map(|(part, _)| part).collect();
    write!(
        f,
        "the free quota of this pool counts as exhausted: {}; none of it will reset by itself. To \
         go on: reset a slot (its calls may then be billed), set QUOTA_GUARD to a higher \
         percentage, or switch \"free quota only\" on in the Model Studio console and QUOTA_GUARD \
         off",
        parts.join(", ")
    )
}

/// Whole seconds until `until`, at least 1.
fn seconds_until(until: Timestamp, now: Timestamp) -> u64 {
    until.since(now).as_millis().div_ceil(1000).max(1).try_into().unwrap_or(u64::MAX)
}

/// A duration for people: the two largest units.
fn in_words(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{} s", seconds.max(1)),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cooling(millis: u64) -> ProxyError {
        let now = Timestamp(1_700_000_000_000);
        let until = Some(Timestamp(now.0 + millis));
        ProxyError::NoSlot { until, now, cooling: 6, guarded: 0, disabled: 0 }
    }

    #[test]
    fn openai_clients_get_openais_envelope_with_a_text_code() {
        let body = ProxyError::Unauthorized.body(Protocol::OpenAi);
        assert_eq!(body["error"]["code"], "invalid_api_key");
        assert_eq!(body["error"]["type"], "invalid_request_error");
        assert_eq!(body["error"]["param"], Value::Null);
        assert!(body["error"]["message"].is_string());
    }

    #[test]
    fn anthropic_clients_get_anthropics_envelope_and_types() {
        for (error, name) in [
            (ProxyError::Unauthorized, "authentication_error"),
            (ProxyError::NotFound, "not_found_error"),
            (ProxyError::TooLarge { limit: 1 }, "request_too_large"),
            (ProxyError::Overloaded, "overloaded_error"),
            (ProxyError::Unreachable { cause: "x".into() }, "api_error"),
            (ProxyError::Body(BodyError::RepeatedModel), "invalid_request_error"),
        ] {
            let body = error.body(Protocol::Anthropic);
            assert_eq!(body["type"], "error");
            assert_eq!(body["error"]["type"], name);
        }
    }

    #[test]
    fn retry_after_is_whole_seconds_rounded_up_and_at_least_one() {
        let header = |error: &ProxyError| error.headers()[0].1.clone();
        assert_eq!(header(&cooling(0)), "1");
        assert_eq!(header(&cooling(1)), "1");
        assert_eq!(header(&cooling(1_001)), "2");
    }

    #[test]
    fn a_wait_of_over_a_minute_is_not_told_and_clients_are_asked_not_to_retry() {
        assert_eq!(cooling(60_000).headers(), [("retry-after", "60".to_owned())]);
        let disabled = ProxyError::NoSlot {
            until: None,
            now: Timestamp(0),
            cooling: 0,
            guarded: 0,
            disabled: 4,
        };
        for error in [cooling(60_001), cooling(2_592_000_000), disabled] {
            assert_eq!(error.headers(), [("x-should-retry", "false".to_owned())]);
        }
    }

    #[test]
    fn a_used_up_pool_says_so_in_words_that_clients_know() {
        let text = cooling(2_592_000_000).to_string();
        let start =
            "the free quota of all 6 slots is exhausted; it will reset at 2023-12-14T22:13:20";
        assert!(text.starts_with(start), "{text}");
        let now = Timestamp(0);
        let some = ProxyError::NoSlot {
            until: Some(Timestamp(1)),
            now,
            cooling: 2,
            guarded: 0,
            disabled: 4,
        };
        let text = some.to_string();
        let start = "the free quota of 2 slots is exhausted and 4 are disabled; it will reset at ";
        assert!(text.starts_with(start), "{text}");
        let none = ProxyError::NoSlot { until: None, now, cooling: 0, guarded: 0, disabled: 6 }
            .to_string();
        assert!(none.contains("all 6 are disabled") && !none.contains("quota"), "{none}");
    }

    #[test]
    fn a_guarded_pool_says_how_to_go_on_and_names_no_time() {
        let now = Timestamp(1_700_000_000_000);
        let error = ProxyError::NoSlot { until: None, now, cooling: 1, guarded: 3, disabled: 2 };
        assert_eq!((error.status(), error.code()), (503, "free_quota_exhausted"));
        assert_eq!(error.headers(), [("x-should-retry", "false".to_owned())]);
        let text = error.to_string();
        for part in
            ["left 3", "of 1 is exhausted", "2 are disabled", "will reset", "higher", "console"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_long_wait_is_told_in_days() {
        assert!(cooling(2_592_000_000).to_string().contains("in 30 d 0 h"));
        assert!(cooling(61_000).to_string().contains("in 1 min 1 s"));
    }
}
