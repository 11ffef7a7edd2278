//! What comes back to the harness's client, whole or cut.

use std::fmt;

use serde_json::Value;

/// The head of an answer.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
}

impl Head {
    /// The first header of this name, in any case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }
}

/// A complete answer.
#[derive(Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The first header of this name, in any case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in {}", self.text()))
    }
}

fn find<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers
        .iter()
        .find(|(given, _)| given.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.as_str())
}

/// Shows the body as text.
impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}\n{}", self.status, self.headers, self.text())
    }
}

/// An answer that did not end as it should.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) how: How,
    /// What had come of the body (without framing).
    pub(crate) received: Vec<u8>,
}

/// Shows what was received as text.
impl fmt::Debug for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} after {:?}", self.how, String::from_utf8_lossy(&self.received))
    }
}

/// What ended an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// The connection was closed (FIN) too early.
    Closed,
    /// The connection was reset (RST).
    Reset,
    /// Nothing more came within the limit.
    TimedOut,
    /// What came is not HTTP.
    Malformed(String),
}

impl From<How> for Cut {
    fn from(how: How) -> Self {
        Self { how, received: Vec::new() }
    }
}
