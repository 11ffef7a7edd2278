//! Which headers travel, in both directions.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

use super::retry_after;
use super::route::Protocol;
use crate::clock::Timestamp;

/// Headers of one hop (RFC 9110, section 7.6.1), besides those that `Connection` names.
const HOP_BY_HOP: [&str; 10] = [
    "connection",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What a client sends to us and not to DashScope: its credentials, what describes its own
/// connection or browser, what a proxy in front of us adds, and what ureq writes itself.
const NOT_UP: [&str; 25] = [
    "accept-encoding",
    "authorization",
    "cdn-loop",
    "client-ip",
    "content-length",
    "cookie",
    "expect",
    "fastly-client-ip",
    "forwarded",
    "host",
    "origin",
    "referer",
    "true-client-ip",
    "via",
    "x-api-key",
    "x-arr-log-id",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-forwarded",
    "x-host",
    "x-original-forwarded-for",
    "x-original-url",
    "x-real-ip",
    "x-remote-ip",
    "x-rewrite-url",
];

/// How the names begin of what browsers, and proxies in front of us, add.
const NOT_UP_PREFIXES: [&str; 10] = [
    "cf-",
    "fly-",
    "sec-",
    "tailscale-",
    "x-amzn-trace-",
    "x-appengine-",
    "x-azure-",
    "x-envoy-",
    "x-forwarded-",
    "x-vercel-",
];

/// What DashScope sends to us and not to a client: its length may change, its cookies are for
/// its own load balancer, its CORS is not ours, it may name the account behind the key, and where
/// it sends us a client must not go with the proxy's key.
const NOT_DOWN: [&str; 6] = [
    "content-length",
    "location",
    "refresh",
    "set-cookie",
    "x-dashscope-apikeyid",
    "x-dashscope-uid",
];

/// The headers of a request upstream, without the key.
///
/// A header that HTTP does not allow is left out: it cannot have a meaning upstream. So is one that
/// holds a key of ours, whatever its name: `is_secret` says whether a value does.
pub(crate) fn upward<'a>(
    client: impl Iterator<Item = (&'a str, &'a str)> + Clone,
    protocol: Protocol,
    content: Content,
    is_secret: impl Fn(&str) -> bool,
) -> HeaderMap {
    let named = named_by_connection(client.clone());
    let mut headers = HeaderMap::with_capacity(16);
    for (name, value) in client {
        let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else { continue };
        let Ok(value) = HeaderValue::from_str(value) else { continue };
        let is_hop = named.iter().any(|hop| name == hop.as_str());
        if goes_up(name.as_str(), protocol) && !is_hop && !is_secret(value.to_str().unwrap_or("")) {
            headers.append(name, value);
        }
    }
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if content == Content::Json {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    headers
}

/// What a request's body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// JSON, whatever the client calls it: `curl -d` calls it a form.
    Json,
    /// What the client says.
    Clients,
}

/// The headers of upstream's answer that the client gets.
pub(crate) fn downward(
    upstream: &HeaderMap,
    now: Timestamp,
) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
    let values = upstream.get_all(header::CONNECTION).into_iter();
    let named = tokens(values.filter_map(|value| value.to_str().ok()));
    upstream.iter().filter(move |(name, value)| {
        goes_down(name.as_str())
            && !named.iter().any(|hop| *name == hop.as_str())
            && retry_after::travels(name, value, now)
    })
}

/// The client's key: `Authorization: Bearer k`, `bearer k` or the bare key, or `x-api-key`.
pub(crate) fn credentials<'a>(
    client: impl Iterator<Item = (&'a str, &'a str)>,
) -> impl Iterator<Item = &'a str> {
    client.filter_map(|(name, value)| {
        if name.eq_ignore_ascii_case("x-api-key") {
            Some(value.trim())
        } else if name.eq_ignore_ascii_case("authorization") {
            Some(without_scheme(value.trim()))
        } else {
            None
        }
    })
}

fn without_scheme(value: &str) -> &str {
    match value.split_once(' ') {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer") => key.trim(),
        _ => value,
    }
}

fn goes_up(name: &str, protocol: Protocol) -> bool {
    let hidden = HOP_BY_HOP.contains(&name)
        || NOT_UP.contains(&name)
        || NOT_UP_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    !hidden && (protocol == Protocol::Anthropic || !name.starts_with("anthropic-"))
}

fn goes_down(name: &str) -> bool {
    let hidden = HOP_BY_HOP.contains(&name)
        || NOT_DOWN.contains(&name)
        || name.starts_with("access-control-")
        || name.starts_with("x-dashscope-inner-")
        || name.starts_with("x-proxy-");
    !hidden
}

fn named_by_connection<'a>(client: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let values = client.filter(|(name, _)| name.eq_ignore_ascii_case("connection"));
    tokens(values.map(|(_, value)| value))
}

fn tokens<'a>(values: impl Iterator<Item = &'a str>) -> Vec<String> {
    values
        .flat_map(|value| value.split(','))
        .map(|token| token.trim().to_ascii_lowercase())
        .filter(|token| !token.is_empty() && token != "keep-alive" && token != "close")
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up(headers: &[(&str, &str)], protocol: Protocol) -> Vec<(String, String)> {
        let map = upward(headers.iter().copied(), protocol, Content::Json, |_| false);
        let mut sent: Vec<(String, String)> = map
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect();
        sent.sort();
        sent
    }

    #[test]
    fn a_client_header_goes_up_and_what_is_between_us_does_not() {
        let sent = up(
            &[
                ("Host", "127.0.0.1:3300"),
                ("Authorization", "Bearer proxy-key"),
                ("X-Api-Key", "proxy-key"),
                ("Content-Type", "application/x-www-form-urlencoded"),
                ("Content-Length", "12"),
                ("Connection", "keep-alive, X-Hop"),
                ("X-Hop", "1"),
                ("Keep-Alive", "timeout=5"),
                ("TE", "trailers"),
                ("Transfer-Encoding", "chunked"),
                ("Upgrade", "h2c"),
                ("Proxy-Authorization", "Basic x"),
                ("Expect", "100-continue"),
                ("Cookie", "a=b"),
                ("Origin", "http://evil.example"),
                ("Referer", "http://evil.example/"),
                ("Sec-Fetch-Mode", "cors"),
                ("Forwarded", "for=10.0.0.1"),
                ("X-Forwarded-For", "10.0.0.1"),
                ("X-Real-IP", "10.0.0.1"),
                ("Accept-Encoding", "br, gzip"),
                ("User-Agent", "claude-cli/2.1"),
                ("X-DashScope-WorkSpace", "ws-1"),
                ("X-Stainless-Lang", "js"),
                ("Bad Name", "x"),
                ("X-Bad-Value", "a\u{7f}b"),
            ],
            Protocol::OpenAi,
        );
        let expected = [
            ("accept-encoding", "identity"),
            ("content-type", "application/json"),
            ("user-agent", "claude-cli/2.1"),
            ("x-dashscope-workspace", "ws-1"),
            ("x-stainless-lang", "js"),
        ];
        let expected: Vec<_> = expected.map(|(n, v)| (n.to_owned(), v.to_owned())).into();
        assert_eq!(sent, expected);
    }

    #[test]
    fn anthropic_headers_go_to_the_anthropic_base_only() {
        let headers = [("anthropic-version", "2023-06-01"), ("Anthropic-Beta", "a")];
        assert_eq!(up(&headers, Protocol::OpenAi).len(), 2);
        assert_eq!(up(&headers, Protocol::Anthropic).len(), 4);
    }

    #[test]
    fn an_uploads_content_type_stays_the_clients() {
        let headers = [("content-type", "multipart/form-data; boundary=x")];
        let map = upward(headers.iter().copied(), Protocol::OpenAi, Content::Clients, |_| false);
        assert_eq!(map["content-type"], "multipart/form-data; boundary=x");
        let map = upward([].into_iter(), Protocol::OpenAi, Content::Clients, |_| false);
        assert!(!map.contains_key("content-type"));
    }

    #[test]
    fn a_repeated_header_keeps_all_its_values() {
        let sent = up(&[("X-A", "1"), ("x-a", "2")], Protocol::OpenAi);
        assert_eq!(sent.iter().filter(|(name, _)| name == "x-a").count(), 2);
    }

    #[test]
    fn what_names_the_account_or_our_own_hop_does_not_come_down() {
        let mut upstream = HeaderMap::new();
        for (name, value) in [
            ("content-type", "application/json"),
            ("content-length", "12"),
            ("connection", "close, x-hop"),
            ("x-hop", "1"),
            ("transfer-encoding", "chunked"),
            ("set-cookie", "acw_tc=1"),
            ("location", "https://elsewhere.example/"),
            ("refresh", "0; url=https://elsewhere.example/"),
            ("retry-after-ms", "86400000"),
            ("access-control-allow-origin", "*"),
            ("x-dashscope-uid", "1234"),
            ("x-dashscope-apikeyid", "5"),
            ("x-dashscope-inner-flow-control-meta", "{}"),
            ("x-dashscope-call-gateway", "true"),
            ("x-proxy-model", "someone-else"),
            ("x-request-id", "r-1"),
            ("retry-after", "7"),
        ] {
            let name = HeaderName::from_static(name);
            upstream.append(name, HeaderValue::from_static(value));
        }
        let names: Vec<&str> =
            downward(&upstream, Timestamp(0)).map(|(name, _)| name.as_str()).collect();
        let expected = ["content-type", "x-dashscope-call-gateway", "x-request-id", "retry-after"];
        assert_eq!(names.len(), expected.len(), "{names:?}");
        assert!(expected.iter().all(|name| names.contains(name)), "{names:?}");
    }

    #[test]
    fn a_key_is_found_in_either_header_and_every_form() {
        let found = |headers: &[(&str, &str)]| {
            let keys: Vec<String> =
                credentials(headers.iter().copied()).map(str::to_owned).collect();
            keys
        };
        for form in ["Bearer k", "bearer k", "BEARER  k ", "k", " k "] {
            assert_eq!(found(&[("Authorization", form)]), ["k"], "{form}");
        }
        assert_eq!(found(&[("X-API-Key", "k")]), ["k"]);
        assert_eq!(found(&[("x-api-key", "a"), ("authorization", "Bearer b")]), ["a", "b"]);
        assert_eq!(found(&[("Cookie", "k")]), [""; 0]);
    }
}
