//! The few URLs a configuration holds: bases, origins and outbound proxies. Pure text.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use http::Uri;

use super::value::number;
use crate::secret::Secret;

/// `scheme://host[:port]`, nothing after it. Scheme and host are lower case, and the port that
/// `http` and `https` have anyway is left out, so that equal origins are equal text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin(String);

impl Origin {
    /// Reads an `http` or `https` origin.
    ///
    /// # Errors
    /// When it is none, or something follows it.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let parts = Parts::of(text)?;
        parts.require_http()?;
        parts.into_lone_origin()
    }

    /// Reads the origin of any scheme, as a browser or an app may send it
    /// (`chrome-extension://…`, `app://obsidian.md`).
    pub(super) fn parse_any_scheme(text: &str) -> Result<Self, UrlError> {
        Parts::of(text)?.into_lone_origin()
    }

    /// The host: a name, an IPv4 address, or an IPv6 address in its brackets.
    pub(super) fn host(&self) -> &str {
        let authority = self.0.split_once("://").map_or("", |(_, authority)| authority);
        match authority.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
            _ => authority,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The part of an upstream URL that is configured: origin and path, without a slash at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseUrl {
    origin: Origin,
    path: String,
}

impl BaseUrl {
    /// Reads an absolute `http` or `https` URL.
    ///
    /// # Errors
    /// When it is none, or holds a user, a query or a fragment.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let parts = Parts::of(text)?;
        parts.require_http()?;
        if parts.rest.contains('#') {
            return Err(UrlError::Fragment);
        }
        if parts.rest.contains('?') {
            return Err(UrlError::Query);
        }
        let base =
            Self { origin: parts.origin(), path: parts.rest.trim_end_matches('/').to_owned() };
        let url = base.to_string();
        if !url.bytes().all(|byte| byte.is_ascii_graphic()) || url.parse::<Uri>().is_err() {
            return Err(UrlError::Path);
        }
        Ok(base)
    }

    /// The URL of `path_and_query` (which begins with `/`) under this base, at `origin` if given.
    #[must_use]
    pub fn join(&self, path_and_query: &str, origin: Option<&Origin>) -> String {
        format!("{}{}{path_and_query}", origin.unwrap_or(&self.origin), self.path)
    }

    /// The scheme, host and port.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.origin
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin, self.path)
    }
}

/// The proxy through which upstream is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboundProxy {
    /// As configured; it may hold a user and a password.
    pub url: Secret,
    /// Hosts that are reached without it, in the notation of `NO_PROXY`.
    pub no_proxy: Vec<String>,
    shown: String,
}

impl OutboundProxy {
    /// Reads `[scheme://][user[:password]@]host[:port]`, as ureq does: no scheme means `http`.
    ///
    /// # Errors
    /// When it has another form, or a scheme that ureq does not speak.
    pub fn parse(url: &str, no_proxy: Vec<String>) -> Result<Self, UrlError> {
        let (scheme, after) = url.split_once("://").unwrap_or(("http", url));
        let (authority, rest) = split_authority(after);
        if rest.contains('@') {
            return Err(UrlError::UserInfo);
        }
        if !matches!(rest, "" | "/") {
            return Err(UrlError::AfterOrigin);
        }
        let host = authority.rsplit('@').next().unwrap_or_default();
        let scheme = scheme.to_ascii_lowercase();
        let default_port = match scheme.as_str() {
            "http" => 80,
            "https" => 443,
            "socks" | "socks4" | "socks4a" | "socks5" | "socks5h" => 1080,
            _ => return Err(UrlError::ProxyScheme),
        };
        let (host, port) = host_and_port(host)?;
        // What ureq will parse; a user or a password with a character that is not allowed in a
        // URL shows here.
        url.parse::<Uri>().map_err(|_| UrlError::UserInfo)?;
        let shown = format!("{scheme}://{host}:{}", port.unwrap_or(default_port));
        Ok(Self { url: Secret::new(url), no_proxy, shown })
    }

    /// `scheme://host:port`, without user and password: what a log may show.
    #[must_use]
    pub fn shown(&self) -> String {
        self.shown.clone()
    }
}

/// What is wrong with a URL. It never holds the URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrlError {
    /// There is no `scheme://` in front.
    NotAbsolute,
    /// The scheme is neither `http` nor `https`.
    Scheme,
    /// The scheme of an outbound proxy is none that is spoken.
    ProxyScheme,
    /// There is a user or a password where none may be, or one that needs percent-encoding.
    UserInfo,
    /// The host is missing, or is neither a name nor an address.
    Host,
    /// The port is not one of 1 to 65535.
    Port,
    /// The path holds a character that a URL cannot.
    Path,
    /// There is a query.
    Query,
    /// There is a fragment.
    Fragment,
    /// Something follows an origin.
    AfterOrigin,
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAbsolute => "must be of the form scheme://host[:port]",
            Self::Scheme => "must begin with http:// or https://",
            Self::ProxyScheme => {
                "must begin with http://, https://, socks4://, socks4a://, socks5:// or socks5h://"
            }
            Self::UserInfo => {
                "holds a user or a password that does not belong there or is not percent-encoded"
            }
            Self::Host => "has no valid host",
            Self::Port => "has a port that is not one of 1 to 65535",
            Self::Path => "has a path with a character that a URL cannot hold",
            Self::Query => "must not have a query (?)",
            Self::Fragment => "must not have a fragment (#)",
            Self::AfterOrigin => "must end after scheme://host[:port], without a slash or a path",
        })
    }
}

impl std::error::Error for UrlError {}

/// `scheme://host[:port]rest`, checked but for the rest.
struct Parts<'a> {
    scheme: String,
    host: String,
    port: Option<u16>,
    rest: &'a str,
}

impl<'a> Parts<'a> {
    fn of(text: &'a str) -> Result<Self, UrlError> {
        let (scheme, after) = text.split_once("://").ok_or(UrlError::NotAbsolute)?;
        let is_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        if !scheme.starts_with(|c: char| c.is_ascii_alphabetic()) || !scheme.chars().all(is_scheme)
        {
            return Err(UrlError::NotAbsolute);
        }
        let (authority, rest) = split_authority(after);
        if authority.contains('@') {
            return Err(UrlError::UserInfo);
        }
        let (host, port) = host_and_port(authority)?;
        Ok(Self { scheme: scheme.to_ascii_lowercase(), host, port, rest })
    }

    fn require_http(&self) -> Result<(), UrlError> {
        match self.scheme.as_str() {
            "http" | "https" => Ok(()),
            _ => Err(UrlError::Scheme),
        }
    }

    fn origin(&self) -> Origin {
        let Self { scheme, host, .. } = self;
        Origin(match (scheme.as_str(), self.port) {
            (_, None) | ("http", Some(80)) | ("https", Some(443)) => format!("{scheme}://{host}"),
            (_, Some(port)) => format!("{scheme}://{host}:{port}"),
        })
    }

    fn into_lone_origin(self) -> Result<Origin, UrlError> {
        if self.rest.is_empty() { Ok(self.origin()) } else { Err(UrlError::AfterOrigin) }
    }
}

/// Splits what follows `://` where a path, a query or a fragment begins.
fn split_authority(text: &str) -> (&str, &str) {
    text.split_at(text.find(['/', '?', '#']).unwrap_or(text.len()))
}

/// Splits `host[:port]`; an IPv6 address stands in brackets and keeps them.
fn host_and_port(authority: &str) -> Result<(String, Option<u16>), UrlError> {
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let valid = match bracketed {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => is_host_name(host),
    };
    if !valid {
        return Err(UrlError::Host);
    }
    let port = port.map(|port| number(port, &(1..=u16::MAX)).map_err(|_| UrlError::Port));
    Ok((host.to_ascii_lowercase(), port.transpose()?))
}

/// Whether `text` is a host name or an IPv4 address. What consists of digits and dots alone must
/// be an address: a resolver would take it for one, or for nothing.
pub(super) fn is_host_name(text: &str) -> bool {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_address = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    if text.bytes().all(is_address) {
        return text.parse::<Ipv4Addr>().is_ok();
    }
    // 253: the longest name DNS can carry.
    text.len() <= 253 && text.bytes().all(is_name) && !text.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_loses_the_slash_at_its_end() {
        for (text, shown) in [
            ("https://dashscope.aliyuncs.com/api/v1", "https://dashscope.aliyuncs.com/api/v1"),
            ("https://dashscope.aliyuncs.com/api/v1/", "https://dashscope.aliyuncs.com/api/v1"),
            ("HTTPS://Host.Example:443/", "https://host.example"),
            ("http://127.0.0.1:80", "http://127.0.0.1"),
            ("http://127.0.0.1:443", "http://127.0.0.1:443"),
            ("http://[::1]:8080/Path", "http://[::1]:8080/Path"),
            ("http://[::1]", "http://[::1]"),
        ] {
            assert_eq!(BaseUrl::parse(text).map(|base| base.to_string()), Ok(shown.to_owned()));
        }
    }

    #[test]
    fn a_base_is_an_absolute_http_url_and_no_more() {
        for (text, error) in [
            ("dashscope.aliyuncs.com", UrlError::NotAbsolute),
            ("//dashscope.aliyuncs.com", UrlError::NotAbsolute),
            ("1http://h", UrlError::NotAbsolute),
            ("ftp://h", UrlError::Scheme),
            ("https://u:p@h/", UrlError::UserInfo),
            ("https://", UrlError::Host),
            ("https:///v1", UrlError::Host),
            ("https://:80", UrlError::Host),
            ("https://a b/", UrlError::Host),
            ("https://1.2.3.999/", UrlError::Host),
            ("https://[::1/", UrlError::Host),
            ("https://::1/", UrlError::Host),
            ("https://h:/", UrlError::Port),
            ("https://h:0/", UrlError::Port),
            ("https://h:65536/", UrlError::Port),
            ("https://h:+80/", UrlError::Port),
            ("https://h/a b", UrlError::Path),
            ("https://h/а", UrlError::Path),
            ("https://h/v1?a=b", UrlError::Query),
            ("https://h/v1#a", UrlError::Fragment),
        ] {
            assert_eq!(BaseUrl::parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn joining_keeps_the_path_and_may_replace_the_origin() {
        let base = BaseUrl::parse("https://dashscope.aliyuncs.com/compatible-mode/v1").unwrap();
        let other = Origin::parse("http://127.0.0.1:9").unwrap();
        assert_eq!(
            base.join("/chat/completions?a=b", None),
            "https://dashscope.aliyuncs.com/compatible-mode/v1/chat/completions?a=b"
        );
        assert_eq!(base.join("/x", Some(&other)), "http://127.0.0.1:9/compatible-mode/v1/x");
        assert_eq!(base.origin().to_string(), "https://dashscope.aliyuncs.com");
    }

    #[test]
    fn nothing_follows_an_origin() {
        for text in ["https://h/", "https://h/v1", "https://h?a", "https://h:1#a"] {
            assert_eq!(Origin::parse(text), Err(UrlError::AfterOrigin), "{text}");
        }
    }

    #[test]
    fn an_origin_knows_its_host() {
        for (text, host) in [
            ("https://H.example", "h.example"),
            ("http://h.example:8080", "h.example"),
            ("http://[::1]:80", "[::1]"),
            ("http://[::1]:8080", "[::1]"),
            ("http://127.0.0.1:9", "127.0.0.1"),
        ] {
            assert_eq!(Origin::parse(text).unwrap().host(), host);
        }
    }

    #[test]
    fn equal_origins_are_equal() {
        assert_eq!(Origin::parse("https://H.example"), Origin::parse("HTTPS://h.example:443"));
    }

    #[test]
    fn an_outbound_proxy_is_shown_without_its_credentials() {
        for (url, shown) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("http://user:p%40ss@proxy.example:3128/", "http://proxy.example:3128"),
            ("socks5h://user:pass@[::1]", "socks5h://[::1]:1080"),
            ("https://proxy.example", "https://proxy.example:443"),
            ("user:pass@proxy.example:8000", "http://proxy.example:8000"),
            ("localhost", "http://localhost:80"),
        ] {
            let proxy = OutboundProxy::parse(url, Vec::new()).unwrap();
            assert_eq!(proxy.shown(), shown);
            assert!(!format!("{proxy:?}").contains("pass"));
        }
    }

    #[test]
    fn an_outbound_proxy_that_ureq_cannot_use_is_refused() {
        for (url, error) in [
            ("ftp://proxy.example", UrlError::ProxyScheme),
            ("http://", UrlError::Host),
            ("http://us er:pass@proxy.example", UrlError::UserInfo),
            ("http://user:12/34@proxy.example", UrlError::UserInfo),
            ("http://user:1#2@proxy.example", UrlError::UserInfo),
            ("http://proxy.example/path", UrlError::AfterOrigin),
            ("http://proxy.example:99999", UrlError::Port),
        ] {
            assert_eq!(OutboundProxy::parse(url, Vec::new()), Err(error), "{url}");
        }
    }
}
