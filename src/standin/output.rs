//! An answer down to the bytes: what every reply comes to.

use super::gate::Gate;
use super::script::{End, Framing, Part};

/// An answer with everything decided but when.
pub(super) struct Output {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) parts: Vec<Part>,
    /// Part `n` waits for more than `n` releases.
    pub(super) gate: Option<Gate>,
    pub(super) framing: Framing,
    pub(super) end: End,
    /// Head and body leave in one write.
    pub(super) at_once: bool,
}

/// How much more than it sends an answer promises that is to be cut.
const MISSING_BYTES: usize = 1024;

impl Output {
    pub(super) fn whole(
        status: u16,
        headers: Vec<(String, String)>,
        body: Vec<u8>,
        framing: Framing,
    ) -> Self {
        let parts = vec![Part::now(body)];
        Self { status, headers, parts, gate: None, framing, end: End::Clean, at_once: true }
    }

    pub(super) fn stream(
        headers: Vec<(String, String)>,
        parts: Vec<Part>,
        framing: Framing,
        end: End,
    ) -> Self {
        Self { status: 200, headers, parts, gate: None, framing, end, at_once: false }
    }

    /// Whether the status forbids a body (RFC 9110 section 6.4.1).
    pub(super) fn is_bodiless(&self) -> bool {
        matches!(self.status, 100..=199 | 204 | 304)
    }

    /// Status line, headers and the empty line.
    pub(super) fn head(&self) -> Vec<u8> {
        let reason = http::StatusCode::from_u16(self.status)
            .ok()
            .and_then(|status| status.canonical_reason())
            .unwrap_or_default();
        let mut head = format!("HTTP/1.1 {} {reason}\r\n", self.status);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !self.is_bodiless() {
            head.push_str(&self.framing_header());
        }
        head.push_str("\r\n");
        head.into_bytes()
    }

    fn framing_header(&self) -> String {
        match self.framing {
            Framing::Chunked => "transfer-encoding: chunked\r\n".to_owned(),
            Framing::UntilClose => "connection: close\r\n".to_owned(),
            Framing::Length => {
                let sent: usize = self.parts.iter().map(|part| part.bytes.len()).sum();
                let missing = if self.end == End::Clean { 0 } else { MISSING_BYTES };
                format!("content-length: {}\r\n", sent + missing)
            }
        }
    }

    /// A part as it goes over the wire. An empty part is no chunk: that would end the body.
    pub(super) fn framed(&self, bytes: &[u8]) -> Vec<u8> {
        if self.framing != Framing::Chunked || bytes.is_empty() {
            return bytes.to_vec();
        }
        let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
        chunk.extend(bytes);
        chunk.extend(b"\r\n");
        chunk
    }

    /// What completes the body.
    pub(super) fn terminator(&self) -> &'static [u8] {
        if self.framing == Framing::Chunked { b"0\r\n\r\n" } else { b"" }
    }
}
