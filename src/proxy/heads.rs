//! The heads of answers, and the keys that must not be in them.

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use super::{NO_MODEL, Proxy};
use crate::clock;
use crate::error::ProxyError;
use crate::policy::headers;
use crate::policy::pool::Slot;
use crate::policy::redirect;
use crate::policy::route::Protocol;
use crate::relay::Head;
use crate::upstream::Answer;

/// `x-proxy-key-hash`, `x-proxy-model`, `x-proxy-attempts`: who served the answer.
const KEY_HEADER: HeaderName = HeaderName::from_static("x-proxy-key-hash");
const MODEL_HEADER: HeaderName = HeaderName::from_static("x-proxy-model");
const ATTEMPTS_HEADER: HeaderName = HeaderName::from_static("x-proxy-attempts");

/// `x-proxy-adjusted`: what was lowered in the request for the model that answered.
pub(super) const ADJUSTED_HEADER: HeaderName = HeaderName::from_static("x-proxy-adjusted");

/// nginx's sign not to hold a stream back.
const BUFFERING_HEADER: HeaderName = HeaderName::from_static("x-accel-buffering");

/// The headers that a browser's script may read besides those that it always may.
const EXPOSED_HEADERS: &str = "retry-after, x-should-retry, x-request-id, x-proxy-key-hash, x-proxy-model, x-proxy-attempts, x-proxy-adjusted";

impl Proxy {
    /// The head of upstream's answer as the client gets it.
    pub(super) fn head(&self, answer: &Answer, slot: &Slot, attempts: u32) -> Head {
        let mut headers: HeaderMap = headers::downward(&answer.headers, clock::now())
            .filter(|(_, value)| !self.redactor.finds(value.as_bytes()))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        headers.insert(KEY_HEADER, text_value(self.pool.label(slot.key)));
        if &*slot.model != NO_MODEL {
            headers.insert(MODEL_HEADER, text_value(&slot.model));
        }
        headers.insert(ATTEMPTS_HEADER, attempts.into());
        self.allow_origin(&mut headers);
        if is_event_stream(&answer.headers) {
            headers.insert(BUFFERING_HEADER, HeaderValue::from_static("no"));
        }
        Head { status: answer.status, headers, length: length_of(&answer.headers) }
    }

    /// The error that stands for a redirect of upstream's.
    pub(super) fn redirect(&self, answer: &Answer) -> Option<ProxyError> {
        let status = Some(answer.status).filter(|status| redirect::is_redirect(*status))?;
        let is_open = |host: &&str| !self.redactor.finds(host.as_bytes());
        let host = redirect::target(&answer.headers).filter(is_open).map(str::to_owned);
        Some(ProxyError::Redirected { status, host })
    }

    /// Whether a header's value holds a key of ours: the proxy's, in whatever form, or one of
    /// DashScope's. (A short one has to be all of it.)
    pub(super) fn is_secret(&self, value: &str) -> bool {
        self.redactor.finds(value.as_bytes())
            || value.split([' ', ',', ';', '=']).any(|part| part == self.config.proxy_key.expose())
    }

    /// The whole answer that tells a client of an error.
    #[must_use]
    pub(crate) fn error_answer(&self, error: &ProxyError, protocol: Protocol) -> (Head, Vec<u8>) {
        let (mut head, body) = self.json_answer(error.status(), &error.body(protocol));
        for (name, value) in error.headers() {
            head.headers.insert(name, text_value(&value));
        }
        (head, body)
    }

    /// A whole answer of our own.
    pub(crate) fn json_answer(&self, status: u16, value: &Value) -> (Head, Vec<u8>) {
        let body = self.redactor.text(&value.to_string()).into_owned().into_bytes();
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.allow_origin(&mut headers);
        let length = Some(body.len() as u64);
        (Head { status, headers, length }, body)
    }

    /// CORS, on every answer of an API path: a browser hides even an error from its script
    /// without it.
    pub(crate) fn allow_origin(&self, headers: &mut HeaderMap) {
        if let Some(origin) = &self.config.cors_origin {
            headers.insert("access-control-allow-origin", text_value(origin));
            let exposed = HeaderValue::from_static(EXPOSED_HEADERS);
            headers.insert("access-control-expose-headers", exposed);
        }
    }

    /// Takes CORS away again, from an answer that is only for pages of our own origin.
    pub(crate) fn hide_from_origins(&self, headers: &mut HeaderMap) {
        headers.remove("access-control-allow-origin");
        headers.remove("access-control-expose-headers");
    }
}

pub(super) fn is_event_stream(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type.is_some_and(|text| {
        let kind = text.split(';').next().unwrap_or_default().trim();
        kind.eq_ignore_ascii_case("text/event-stream")
    })
}

/// The value of a header that is a whole number.
fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

/// `Transfer-Encoding` wins over a length beside it (RFC 9112, section 6.3).
fn length_of(headers: &HeaderMap) -> Option<u64> {
    if headers.contains_key(TRANSFER_ENCODING) {
        return None;
    }
    number(headers, CONTENT_LENGTH.as_str())
}

/// A header value of a text that was checked when it was configured or made.
pub(super) fn text_value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static("-"))
}
