//! How a request to a candidate looks.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use crate::{Failure, prompt};

/// What the clients of the proxy send.
pub(crate) const PROXY_KEY: &str = "bench-key-0123456789";
/// The keys the proxy owns. The first is the one that plain proxies and the direct client use.
pub(crate) const UPSTREAM_KEYS: [&str; 2] = ["sk-bench-1", "sk-bench-2"];
/// The models of the pool.
pub(crate) const MODELS: [&str; 2] = ["m1", "m2"];

/// Where upstream serves; a candidate may say the same more shortly.
pub(crate) const UPSTREAM_PATH: &str = "/compatible-mode/v1/chat/completions";
pub(crate) const PROXY_PATH: &str = "/v1/chat/completions";

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A question of a sentence, and one JSON answer of some hundred bytes: the floor.
    Small,
    /// One JSON answer of that many bytes.
    Answer(usize),
    /// A small answer; the request is a conversation of about so many bytes.
    Prompt(usize),
    /// An SSE stream, and a conversation of `STREAM_PROMPT` bytes that asks for it. Without a
    /// pause its events carry no times, and come as fast as upstream can write them.
    Stream { events: u64, pause: Duration },
}

/// The size of a request for a stream.
const STREAM_PROMPT: usize = 2 << 10;

/// Where a body names its model. Clients do it either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelPlace {
    First,
    Last,
}

#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    pub(crate) path: String,
    /// Where streams are asked for: a plain proxy has to be told not to buffer them.
    pub(crate) stream_path: String,
    pub(crate) key: &'static str,
    /// One of the pool where nobody on the way puts it in.
    pub(crate) model: &'static str,
}

impl Target {
    /// A proxy of the pool: ours, or one with the same endpoints.
    pub(crate) fn pool(name: &str, address: SocketAddr) -> Self {
        Self {
            name: name.to_owned(),
            address,
            path: PROXY_PATH.to_owned(),
            stream_path: PROXY_PATH.to_owned(),
            key: PROXY_KEY,
            model: "chosen-by-the-proxy",
        }
    }

    /// A proxy of the pool that someone else started, `http://host:port` with or without a path
    /// before `/v1`.
    pub(crate) fn running(name: &str, url: &str) -> Result<Self, Failure> {
        let wrong =
            |cause: &dyn std::fmt::Display| format!("failed to use --beside `{url}`: {cause}");
        let uri: http::Uri = url.parse().map_err(|cause: http::uri::InvalidUri| wrong(&cause))?;
        let Some(host) = uri.host().filter(|_| uri.scheme_str() == Some("http")) else {
            return Err(wrong(&"it is no http:// URL"));
        };
        let address = (host.trim_matches(['[', ']']), uri.port_u16().unwrap_or(80))
            .to_socket_addrs()
            .map_err(|cause| wrong(&cause))?
            .next()
            .ok_or_else(|| wrong(&"its name has no address"))?;
        let path = format!("{}{PROXY_PATH}", uri.path().trim_end_matches('/'));
        Ok(Self { path: path.clone(), stream_path: path, ..Self::pool(name, address) })
    }

    /// What is sent in turn: the requests of a prompt name their model first, then last.
    pub(crate) fn requests(&self, kind: Kind) -> Arc<[Vec<u8>]> {
        let places = match kind {
            Kind::Prompt(_) => &[ModelPlace::First, ModelPlace::Last][..],
            Kind::Small | Kind::Answer(_) | Kind::Stream { .. } => &[ModelPlace::First],
        };
        places.iter().map(|place| self.request(kind, *place)).collect()
    }

    /// Head and body of a request as they go onto the wire.
    pub(crate) fn request(&self, kind: Kind, place: ModelPlace) -> Vec<u8> {
        let body = self.body(kind, place);
        let path = if matches!(kind, Kind::Stream { .. }) { &self.stream_path } else { &self.path };
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.address,
            self.key,
            body.len()
        );
        [head, body].concat().into_bytes()
    }

    /// Makes every slot of the pool available again.
    pub(crate) fn reset_request(&self) -> Vec<u8> {
        self.own("POST", "/models/reset", r#"{"all":true}"#)
    }

    /// Asks a proxy of the pool for what it counts.
    pub(crate) fn metrics_request(&self) -> Vec<u8> {
        self.own("GET", "/metrics", "")
    }

    fn own(&self, method: &str, path: &str, body: &str) -> Vec<u8> {
        format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\n\
             content-length: {}\r\n\r\n{body}",
            self.address,
            self.key,
            body.len()
        )
        .into_bytes()
    }

    fn body(&self, kind: Kind, place: ModelPlace) -> String {
        // Upstream looks for these; anybody else passes on what it does not know.
        let wish = match kind {
            Kind::Small | Kind::Prompt(_) => r#""stream":false"#.to_owned(),
            Kind::Answer(size) => format!(r#""stream":false,"answer":{size}"#),
            Kind::Stream { events, pause } => format!(
                r#""stream":true,"stream_options":{{"include_usage":true}},"events":{events},"pause":{}"#,
                pause.as_micros()
            ),
        };
        let conversation = match kind {
            Kind::Prompt(size) => prompt::conversation(size),
            Kind::Stream { .. } => prompt::conversation(STREAM_PROMPT),
            Kind::Small | Kind::Answer(_) => QUESTION.into(),
        };
        let model = format!(r#""model":"{}""#, self.model);
        match place {
            ModelPlace::First => {
                format!(r#"{{{model},{wish},"temperature":0.7,{conversation}}}"#)
            }
            ModelPlace::Last => format!(r#"{{{conversation},"temperature":0.7,{wish},{model}}}"#),
        }
    }
}

const QUESTION: &str = concat!(
    r#""messages":[{"role":"system","content":"Answer in a word."},{"role":"user","content":"#,
    r#""Which three rivers meet at Passau, and which of them gives its name?"}]"#
);
