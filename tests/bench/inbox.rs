//! Requests as they reach upstream: a key and a model are looked for, and the rest of a body,
//! however large, is counted and forgotten.

use std::io::{self, Read};
use std::net::TcpStream;
use std::time::Duration;

use memchr::memmem;

use crate::target::{MODELS, UPSTREAM_KEYS};
use crate::upstream::{Check, SMALL_ANSWER};

/// What a body asks for stands in as many of its first or last bytes.
const END: usize = 256;
/// Read at once: many times a packet, and still small enough for the processor's cache.
const PIECE: usize = 64 * 1024;

/// What a request asks for.
#[derive(Debug)]
pub(crate) enum Wish {
    Answer(usize),
    Stream { events: u64, pause: Duration },
    Refusal(&'static str),
}

/// What has been read from a connection and not yet used.
#[derive(Debug)]
pub(crate) struct Inbox {
    buffer: Vec<u8>,
    filled: usize,
}

/// What a head tells.
enum Head {
    Body { start: usize, length: usize },
    Refusal(&'static str),
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self { buffer: vec![0; PIECE], filled: 0 }
    }

    /// Waits for the next request until all of it is there; `None` when there is no more.
    pub(crate) fn next(&mut self, stream: &TcpStream, check: Check) -> io::Result<Option<Wish>> {
        let (start, length) = loop {
            match read_head(&self.buffer[..self.filled], check) {
                Some(Head::Body { start, length }) => break (start, length),
                Some(Head::Refusal(cause)) => return Ok(Some(Wish::Refusal(cause))),
                None if self.filled == PIECE => {
                    return Ok(Some(Wish::Refusal("the request head is too large")));
                }
                None if self.read(stream, PIECE)? == 0 => return Ok(None),
                None => {}
            }
        };
        self.forget(start);
        while self.filled < length.min(PIECE) {
            if self.read(stream, length - self.filled)? == 0 {
                return Ok(None);
            }
        }
        let mut ends = self.buffer[..length.min(END)].to_vec();
        let mut left = length.saturating_sub(self.filled);
        while left > 0 {
            // The last bytes of one piece may be needed with the next.
            self.forget(self.filled - END);
            match self.read(stream, left)? {
                0 => return Ok(None),
                count => left -= count,
            }
        }
        let end = length.min(self.filled);
        ends.extend_from_slice(&self.buffer[end.saturating_sub(END)..end]);
        self.forget(end);
        Ok(Some(wish(&ends, check)))
    }

    /// Reads once, `most` bytes at most.
    fn read(&mut self, mut stream: &TcpStream, most: usize) -> io::Result<usize> {
        let end = PIECE.min(self.filled + most);
        let count = stream.read(&mut self.buffer[self.filled..end])?;
        self.filled += count;
        Ok(count)
    }

    fn forget(&mut self, count: usize) {
        self.buffer.copy_within(count..self.filled, 0);
        self.filled -= count;
    }
}

/// The head at the start of `bytes`, once all of it is there.
fn read_head(bytes: &[u8], check: Check) -> Option<Head> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut head = httparse::Request::new(&mut headers);
    let start = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return None,
        Err(_) => return Some(Head::Refusal("the request head is malformed")),
    };
    let header = |name: &str| {
        let found = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(found.value).ok()
    };
    let key = header("authorization").and_then(|value| value.strip_prefix("Bearer "));
    let has_key = key.is_some_and(|key| UPSTREAM_KEYS.contains(&key));
    let is_chat = head.path.is_some_and(|path| path.ends_with("/chat/completions"));
    Some(match header("content-length").and_then(|value| value.parse().ok()) {
        None => Head::Refusal("the request has no content-length"),
        Some(_) if head.method != Some("POST") || !is_chat => {
            Head::Refusal("the request is not for chat completions")
        }
        Some(_) if check == Check::KeyAndModel && !has_key => {
            Head::Refusal("the request has no key of the pool")
        }
        Some(length) => Head::Body { start, length },
    })
}

/// What a body with these ends asks for.
fn wish(ends: &[u8], check: Check) -> Wish {
    let has_model = || MODELS.iter().any(|model| contains(ends, &format!(r#""model":"{model}""#)));
    if check == Check::KeyAndModel && !has_model() {
        return Wish::Refusal("the request has no model of the pool");
    }
    if contains(ends, r#""stream":true"#) {
        return match (number(ends, "events"), number(ends, "pause")) {
            (Some(events), Some(pause)) => {
                Wish::Stream { events, pause: Duration::from_micros(pause) }
            }
            _ => Wish::Refusal("the stream has no events or no pause"),
        };
    }
    let size = number(ends, "answer").and_then(|size| usize::try_from(size).ok());
    Wish::Answer(size.unwrap_or(SMALL_ANSWER))
}

fn contains(body: &[u8], text: &str) -> bool {
    memmem::find(body, text.as_bytes()).is_some()
}

/// The number that is called `name` in the body.
fn number(body: &[u8], name: &str) -> Option<u64> {
    let name = format!(r#""{name}":"#);
    let start = memmem::find(body, name.as_bytes())? + name.len();
    let digits = body[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&body[start..start + digits]).ok()?.parse().ok()
}
