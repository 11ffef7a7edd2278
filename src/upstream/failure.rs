//! Why a call failed: its kind, how far it got, and the words for it.

use std::error::Error as _;
use std::io;
use std::time::Duration;

use ureq::Timeout;

use super::exchange::{self, Stage, Step};

/// A reused connection that had died before its request says so within this time. One that closes
/// later may have been worked on: an idle cut of a balancer, say, in the middle of a long call.
const UNSEEN_DEATH: Duration = Duration::from_secs(1);

/// Why there is no answer, or no rest of one.
#[derive(Debug)]
pub(crate) struct CallError {
    /// What it was, in words, without addresses of ours or secrets.
    pub cause: String,
    /// What kind of failure it was.
    pub kind: FailureKind,
    /// What failed.
    pub step: Step,
    /// Whether upstream cannot have worked on the request, so that it may be sent once more.
    pub repeatable: bool,
    /// Whether it had all of the request, so that it may have worked on it and charge for that.
    pub sent: bool,
}

/// The kinds of failure that are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// A limit ran out.
    TimedOut,
    /// The client left, and the call was given up.
    ClientLeft,
    /// We interrupted it, because the process ends.
    Stopping,
    /// The chunks of an upload are not what they should be.
    Unreadable,
    /// An upload is longer than one may be.
    TooLarge,
    /// Everything else: DNS, connect, TLS, reset.
    Broken,
}

impl CallError {
    pub(super) fn broken(cause: String) -> Self {
        Self {
            cause,
            kind: FailureKind::Broken,
            step: Step::Answer,
            repeatable: false,
            sent: false,
        }
    }

    /// What a client sends cannot be sent on.
    #[must_use]
    pub(crate) fn of_upload(kind: FailureKind) -> Self {
        Self { kind, ..Self::broken("the upload cannot be sent on".to_owned()) }
    }

    /// The client left while no call was in flight.
    #[must_use]
    pub(crate) fn client_left() -> Self {
        Self {
            cause: "the client left".to_owned(),
            kind: FailureKind::ClientLeft,
            step: Step::Answer,
            repeatable: false,
            sent: false,
        }
    }

    pub(super) fn of(error: &ureq::Error) -> Self {
        let (stage, reused) = exchange::progress();
        let kind = match error {
            _ if exchange::ended_by_client() => FailureKind::ClientLeft,
            ureq::Error::Timeout(_) => FailureKind::TimedOut,
            _ => FailureKind::Broken,
        };
        let unprocessed = match stage {
            Stage::Connecting | Stage::Sending => true,
            Stage::Waiting => {
                let died_unseen = exchange::time_since_sent() <= UNSEEN_DEATH;
                reused && (died_unseen || exchange::is_not_received())
            }
            Stage::Receiving => false,
        };
        let repeatable = kind == FailureKind::Broken && unprocessed;
        Self {
            cause: in_words(error, stage),
            kind,
            step: exchange::failing_step(),
            repeatable,
            sent: stage >= Stage::Waiting && !repeatable && !exchange::is_not_received(),
        }
    }
}

/// What went wrong and when, without a URL (its host may be a workspace id).
fn in_words(error: &ureq::Error, stage: Stage) -> String {
    let when = match stage {
        Stage::Connecting => "while connecting",
        Stage::Sending => "while sending the request",
        Stage::Waiting => "before its answer",
        Stage::Receiving => "during its answer",
    };
    let what = match error {
        ureq::Error::HostNotFound => "the host name is not known".to_owned(),
        ureq::Error::Timeout(Timeout::Resolve) => "name resolution took too long".to_owned(),
        ureq::Error::Timeout(Timeout::Connect) => "connecting took too long".to_owned(),
        ureq::Error::Timeout(Timeout::RecvBody) => "it stayed silent for too long".to_owned(),
        ureq::Error::Timeout(_) => "it took too long".to_owned(),
        ureq::Error::Rustls(error) => format!("TLS: {error}"),
        ureq::Error::ConnectProxyFailed(status) => format!("the outbound proxy refused: {status}"),
        ureq::Error::Io(error) => io_in_words(error),
        ureq::Error::Other(error) => error.to_string(),
        error => error.to_string(),
    };
    format!("{what} {when}")
}

fn io_in_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "the connection was refused".to_owned(),
        io::ErrorKind::ConnectionReset => "the connection was reset".to_owned(),
        io::ErrorKind::UnexpectedEof => "the connection was closed".to_owned(),
        io::ErrorKind::BrokenPipe => "the connection was closed".to_owned(),
        io::ErrorKind::TimedOut => "the other end answers no more".to_owned(),
        _ => match error.source() {
            Some(source) => source.to_string(),
            None => error.to_string(),
        },
    }
}
