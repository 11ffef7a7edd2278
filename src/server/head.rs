//! What a request's head says, and whether it can be believed.

use std::net::SocketAddr;

use http::uri::{Authority, PathAndQuery};
use tiny_http::Request;

use crate::error::ProxyError;
use crate::policy::headers;
use crate::policy::route::{self, Protocol};
use crate::secret::Secret;

/// The parts of a head that decide what happens to the request.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: Option<String>,
    pub(super) peer: SocketAddr,
    pub(super) version: (u8, u8),
    pub(super) protocol: Protocol,
    pub(super) length: BodyLength,
    /// Whether the library ends the connection by itself after this request.
    pub(super) closes: bool,
    /// Whether the client says that this is its last request.
    pub(super) says_close: bool,
    /// Whether the client offers another protocol (h2c): we stay with this one, but the library
    /// hands out the body unframed.
    upgrades: bool,
    /// Whether the client waits for `100 Continue` before it sends its body.
    expects: bool,
}

/// How the body is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyLength {
    None,
    /// `Content-Length`, in bytes.
    Exact(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// Neither one thing nor the other: where the body ends, and the next request begins, is
    /// anybody's guess (RFC 9112, section 6.3).
    Unclear,
}

/// A command to the pool is never longer, in bytes.
pub(super) const LARGEST_COMMAND: u64 = 16 * 1024;

/// The library copies bodies of up to this many bytes before it hands the request out, unless
/// the client waits for `100 Continue` or offers another protocol.
const READ_AHEAD: u64 = 1024;

impl Head {
    /// Reads a head.
    pub(super) fn of(request: &Request, peer: SocketAddr) -> Self {
        let target = origin_form(request.url());
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query.to_owned())),
            None => (target, None),
        };
        let version = (request.http_version().0, request.http_version().1);
        let lines: Vec<String> =
            values(request, "connection").map(str::to_ascii_lowercase).collect();
        // tiny_http looks at the first line only.
        let connection = lines.first().map_or("", String::as_str);
        let says_close =
            lines.iter().flat_map(|line| line.split(',')).any(|it| it.trim() == "close");
        let upgrades = connection.contains("upgrade");
        let keeps = version != (1, 0) || connection.contains("keep-alive");
        let closes = connection.contains("close") || upgrades || !keeps;
        Self {
            method: request.method().as_str().to_owned(),
            path: path.to_owned(),
            query,
            peer,
            version,
            protocol: route::protocol_of(path, header(request, "anthropic-version").is_some()),
            length: body_length(request),
            closes,
            says_close,
            upgrades,
            expects: header(request, "expect").is_some(),
        }
    }

    /// Whether the body is here already, so that reading it waits for nobody.
    pub(super) fn body_is_here(&self) -> bool {
        match self.length {
            BodyLength::None => true,
            BodyLength::Exact(length) => {
                let is_copied = length == 0 || !self.upgrades;
                length <= READ_AHEAD && is_copied && !self.expects
            }
            BodyLength::Chunked | BodyLength::Unclear => false,
        }
    }

    /// Refuses a request whose end is not clear.
    pub(super) fn check_framing(&self) -> Result<(), ProxyError> {
        match self.length {
            // The library hands out the bare stream, chunk sizes and all.
            BodyLength::Chunked if self.upgrades => {
                Err(ProxyError::Malformed("a chunked body cannot be upgraded"))
            }
            // The library would answer with an interim response, which HTTP/1.0 does not know.
            _ if self.version < (1, 1) && self.expects => {
                Err(ProxyError::Malformed("a client of HTTP/1.0 cannot expect `100-continue`"))
            }
            BodyLength::Unclear => Err(ProxyError::Malformed(
                "the request needs exactly one plain Content-Length, or `Transfer-Encoding: chunked`",
            )),
            _ => Ok(()),
        }
    }

    /// Refuses a request that does not say once and plainly which host it is for; only before HTTP/1.1
    /// it may say nothing (RFC 9112, section 3.2).
    pub(super) fn check_host(&self, request: &Request) -> Result<(), ProxyError> {
        let mut hosts = values(request, "host");
        let is_plain = match (hosts.next(), hosts.next()) {
            (None, _) => self.version < (1, 1),
            (Some(host), None) => is_host(host),
            (Some(_), Some(_)) => false,
        };
        if is_plain {
            Ok(())
        } else {
            Err(ProxyError::Malformed("the request needs one plain Host"))
        }
    }

    /// Refuses a body that cannot be used, before a byte of it is read.
    pub(super) fn check_body(&self, request: &Request, limit: u64) -> Result<(), ProxyError> {
        let query = self.query.as_deref().unwrap_or_default();
        if format!("/?{query}").parse::<PathAndQuery>().is_err() {
            return Err(ProxyError::Malformed("the query holds characters that no URL may hold"));
        }
        if let Some(coding) = header(request, "content-encoding")
            && !coding.trim().eq_ignore_ascii_case("identity")
        {
            return Err(ProxyError::Encoded { coding: coding.chars().take(40).collect() });
        }
        match self.length {
            BodyLength::Exact(length) if length > limit => Err(ProxyError::TooLarge { limit }),
            _ => Ok(()),
        }
    }
}

/// A target without the origin that a client of a forward proxy puts before it (RFC 9112,
/// section 3.2.2).
fn origin_form(target: &str) -> &str {
    let after = target.strip_prefix("http://").or_else(|| target.strip_prefix("https://"));
    after.map_or(target, |rest| rest.find('/').map_or("/", |slash| &rest[slash..]))
}

/// Whether the request carries the proxy key, in whatever form.
pub(super) fn is_authorized(request: &Request, key: &Secret) -> bool {
    headers::credentials(header_pairs(request)).any(|presented| key.matches(presented))
}

/// Refuses a request that a page of another origin sends: such a page has no business with what is
/// only ours, whatever key it has got hold of.
pub(super) fn check_origin(request: &Request) -> Result<(), ProxyError> {
    let Some(origin) = header(request, "origin") else { return Ok(()) };
    match header(request, "host") {
        Some(own) if is_same_origin(origin, own) => Ok(()),
        _ => Err(ProxyError::ForeignOrigin),
    }
}

/// Whether a page of `origin` came from `host`. A port that its scheme implies may be said or not.
fn is_same_origin(origin: &str, host: &str) -> bool {
    let (scheme, theirs) = origin.split_once("://").unwrap_or(("", origin));
    let implied = match scheme.to_ascii_lowercase().as_str() {
        "http" => ":80",
        "https" => ":443",
        _ => "",
    };
    let without = |text: &'_ str| text.strip_suffix(implied).unwrap_or(text).to_ascii_lowercase();
    without(theirs) == without(host.trim())
}

/// Whether a browser asks: nobody else wants HTML.
pub(super) fn accepts_html(request: &Request) -> bool {
    header_pairs(request)
        .filter(|(field, _)| field.eq_ignore_ascii_case("accept"))
        .any(|(_, value)| names_html(value))
}

/// The headers, in their order.
pub(super) fn header_pairs(request: &Request) -> impl Iterator<Item = (&str, &str)> + Clone {
    let headers = request.headers().iter();
    headers.map(|header| (header.field.as_str().as_str(), header.value.as_str()))
}

/// The first header of this name.
pub(super) fn header<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    header_pairs(request)
        .find(|(field, _)| field.eq_ignore_ascii_case(name))
        .map(|(_, value)| value)
}

fn names_html(accept: &str) -> bool {
    accept.split(',').any(|range| {
        let name = range.split(';').next().unwrap_or_default();
        name.trim().eq_ignore_ascii_case("text/html")
    })
}

/// The values of every header of this name.
fn values<'a>(request: &'a Request, name: &'static str) -> impl Iterator<Item = &'a str> {
    let named = header_pairs(request).filter(move |(field, _)| field.eq_ignore_ascii_case(name));
    named.map(|(_, value)| value)
}

/// Whether this may stand in `Host`: a host and a port at most, or nothing.
fn is_host(text: &str) -> bool {
    let text = text.trim();
    text.is_empty() || !text.contains('@') && text.parse::<Authority>().is_ok()
}

fn body_length(request: &Request) -> BodyLength {
    framing(values(request, "content-length"), values(request, "transfer-encoding"))
}

/// Exactly one of: no length, one plain decimal length, `chunked` alone.
fn framing<'a>(
    mut lengths: impl Iterator<Item = &'a str>,
    mut encodings: impl Iterator<Item = &'a str>,
) -> BodyLength {
    match (lengths.next(), lengths.next(), encodings.next(), encodings.next()) {
        (None, None, None, None) => BodyLength::None,
        (Some(length), None, None, None) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
            length.parse().map_or(BodyLength::Unclear, BodyLength::Exact)
        }
        (None, None, Some(coding), None) if coding.eq_ignore_ascii_case("chunked") => {
            BodyLength::Chunked
        }
        _ => BodyLength::Unclear,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(lengths: &[&str], encodings: &[&str]) -> BodyLength {
        framing(lengths.iter().copied(), encodings.iter().copied())
    }

    #[test]
    fn a_body_has_one_clear_length_or_none() {
        assert_eq!(framed(&[], &[]), BodyLength::None);
        assert_eq!(framed(&["0"], &[]), BodyLength::Exact(0));
        assert_eq!(framed(&["18446744073709551615"], &[]), BodyLength::Exact(u64::MAX));
        assert_eq!(framed(&[], &["Chunked"]), BodyLength::Chunked);
    }

    #[test]
    fn a_host_is_a_name_or_an_address_and_perhaps_a_port() {
        for host in ["", "self", "127.0.0.1:3300", "[::1]:3300", " proxy.example:80 ", "[fe80::1]"]
        {
            assert!(is_host(host), "{host}");
        }
        for host in ["a b", "a/b", "me@host", "http://a", "a?b", "a#b", "a:b:c"] {
            assert!(!is_host(host), "{host}");
        }
    }

    #[test]
    fn an_origin_is_the_same_with_and_without_the_port_that_its_scheme_implies() {
        for (origin, host) in [
            ("http://127.0.0.1:3300", "127.0.0.1:3300"),
            ("https://Proxy.example", "proxy.example:443"),
            ("https://proxy.example:443", "proxy.example"),
            ("http://proxy.example", "proxy.example:80"),
            ("http://[::1]", "[::1]:80"),
        ] {
            assert!(is_same_origin(origin, host), "{origin} {host}");
        }
        for (origin, host) in [
            ("http://proxy.example", "proxy.example:443"),
            ("https://proxy.example", "proxy.example:80"),
            ("http://proxy.example:3300", "proxy.example"),
            ("https://evil.example", "proxy.example"),
            ("null", "proxy.example"),
            ("file://", "proxy.example"),
        ] {
            assert!(!is_same_origin(origin, host), "{origin} {host}");
        }
    }

    #[test]
    fn only_who_names_html_gets_it() {
        for accept in ["text/html", "application/xml, Text/HTML;q=0.9", "*/*,text/html ; level=1"] {
            assert!(names_html(accept), "{accept}");
        }
        for accept in ["", "*/*", "text/*", "application/json", "application/xhtml+xml"] {
            assert!(!names_html(accept), "{accept}");
        }
    }

    #[test]
    fn an_absolute_target_counts_as_its_path() {
        assert_eq!(origin_form("/v1/messages?a=b"), "/v1/messages?a=b");
        assert_eq!(origin_form("http://127.0.0.1:3300/v1/messages?a"), "/v1/messages?a");
        assert_eq!(origin_form("http://host"), "/");
        assert_eq!(origin_form("*"), "*");
    }

    #[test]
    fn every_other_framing_is_unclear() {
        for length in ["", "-1", "+1", "1,1", "1 1", "0x10", "1.0", "18446744073709551616"] {
            assert_eq!(framed(&[length], &[]), BodyLength::Unclear, "{length}");
        }
        assert_eq!(framed(&["5", "5"], &[]), BodyLength::Unclear);
        assert_eq!(framed(&["5"], &["chunked"]), BodyLength::Unclear);
        assert_eq!(framed(&[], &["chunked", "chunked"]), BodyLength::Unclear);
        for coding in ["gzip", "gzip, chunked", "identity", "chunked, identity", ""] {
            assert_eq!(framed(&[], &[coding]), BodyLength::Unclear, "{coding}");
        }
    }
}
