//! What is measured: an address, and how a request to it looks.
//!
//! A further candidate (nginx, HAProxy) is one more constructor and one more entry in the list
//! of `main.rs`.

use std::net::{SocketAddr, ToSocketAddrs};

use crate::Failure;
use crate::client::Connection;

/// What the clients of the proxy send.
pub(crate) const PROXY_KEY: &str = "bench-key-0123456789";
/// The keys the proxy owns, and the first of which the direct client uses.
pub(crate) const UPSTREAM_KEYS: [&str; 2] = ["sk-bench-1", "sk-bench-2"];
/// The models of the pool.
pub(crate) const MODELS: [&str; 2] = ["m1", "m2"];

const PROXY_PATH: &str = "/v1/chat/completions";
const UPSTREAM_PATH: &str = "/compatible-mode/v1/chat/completions";

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One JSON answer with a length.
    Small,
    /// A paced SSE stream.
    Stream,
}

#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) name: &'static str,
    address: SocketAddr,
    path: String,
    headers: Vec<(&'static str, String)>,
    model: &'static str,
}

impl Target {
    /// The upstream itself: what all others are compared with.
    pub(crate) fn direct(address: SocketAddr) -> Self {
        Self {
            name: "direct",
            address,
            path: UPSTREAM_PATH.to_owned(),
            headers: vec![("authorization", format!("Bearer {}", UPSTREAM_KEYS[0]))],
            model: MODELS[0],
        }
    }

    /// The proxy at `address`.
    pub(crate) fn proxied(address: SocketAddr) -> Self {
        Self {
            name: "proxied",
            address,
            path: PROXY_PATH.to_owned(),
            headers: vec![("authorization", format!("Bearer {PROXY_KEY}"))],
            model: "chosen-by-the-proxy",
        }
    }

    /// A proxy that someone else started, `http://host:port` with or without a path before `/v1`.
    pub(crate) fn running(url: &str) -> Result<Self, Failure> {
        let wrong =
            |cause: &dyn std::fmt::Display| format!("failed to use --proxy `{url}`: {cause}");
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
        Ok(Self { path, ..Self::proxied(address) })
    }

    /// A new connection that sends requests of this kind.
    pub(crate) fn connect(&self, kind: Kind) -> Result<Connection, Failure> {
        Connection::open(self.name, self.address, kind, self.request(kind))
    }

    /// Head and body of a request as they go onto the wire.
    fn request(&self, kind: Kind) -> Vec<u8> {
        let stream = if kind == Kind::Stream { "true" } else { "false" };
        let body = format!(
            concat!(
                r#"{{"model":"{}","messages":[{{"role":"system","content":"Answer in a word."}},"#,
                r#"{{"role":"user","content":"Which three rivers meet at Passau, and which of "#,
                r#"them gives its name?"}}],"temperature":0.7,"stream":{}}}"#
            ),
            self.model, stream
        );
        let mut head = format!(
            "POST {} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n",
            self.path,
            self.address,
            body.len()
        );
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        format!("{head}\r\n{body}").into_bytes()
    }
}
