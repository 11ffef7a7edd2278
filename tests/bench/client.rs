//! The client: one connection, one prebuilt request in one write, and the whole answer back.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use dashscope_proxy::clock;
use httparse::Status;

use crate::target::Kind;
use crate::upstream::{self, ANSWER, DONE, EVENTS};
use crate::{Failure, LIMIT};

/// A kept-alive connection to a target. One request at a time: nothing is pipelined.
#[derive(Debug)]
pub(crate) struct Connection {
    target: &'static str,
    kind: Kind,
    stream: TcpStream,
    request: Vec<u8>,
    buffer: Vec<u8>,
    /// What has been read and not yet used is `buffer[start..end]`.
    start: usize,
    end: usize,
    /// When the last bytes came.
    read_at: Instant,
    body: Vec<u8>,
}

/// How long the parts of a stream took.
#[derive(Debug)]
pub(crate) struct StreamTimes {
    /// From the request to the first byte of the body.
    pub(crate) first_byte: Duration,
    /// From the moment upstream stamped an event until its last byte is here.
    pub(crate) events: Vec<Duration>,
}

enum Framing {
    Length(usize),
    Chunked,
}

impl Connection {
    pub(crate) fn open(
        target: &'static str,
        address: SocketAddr,
        kind: Kind,
        request: Vec<u8>,
    ) -> Result<Self, Failure> {
        let stream = TcpStream::connect_timeout(&address, LIMIT)
            .and_then(|stream| {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(LIMIT))?;
                stream.set_write_timeout(Some(LIMIT))?;
                Ok(stream)
            })
            .map_err(|cause| format!("failed to connect to `{target}` at {address}: {cause}"))?;
        Ok(Self {
            target,
            kind,
            stream,
            request,
            buffer: vec![0; 16 * 1024],
            start: 0,
            end: 0,
            read_at: clock::instant(),
            body: Vec::new(),
        })
    }

    /// One request and its checked answer.
    pub(crate) fn exchange(&mut self) -> Result<(), Failure> {
        self.send()?;
        self.receive()
    }

    /// Writes the request.
    pub(crate) fn send(&mut self) -> Result<(), Failure> {
        debug_assert!(self.kind == Kind::Small, "a stream is read by `stream`");
        self.write()
    }

    /// Reads the answer to `send` to its end and compares it with what upstream sends.
    pub(crate) fn receive(&mut self) -> Result<(), Failure> {
        let mut body = std::mem::take(&mut self.body);
        body.clear();
        self.read_answer(|data, _| body.extend_from_slice(data))?;
        if body != ANSWER.as_bytes() {
            return Err(self.wrong(&format!("the body is {}", excerpt(&body))));
        }
        self.body = body;
        Ok(())
    }

    /// One streamed request: every event has to come, whole and in order.
    pub(crate) fn stream(&mut self) -> Result<StreamTimes, Failure> {
        let mut text = Vec::new();
        // Where the text stood after each read, and when that was.
        let mut reads: Vec<(usize, Instant)> = Vec::new();
        let sent_at = clock::instant();
        self.write()?;
        self.read_answer(|data, at| {
            text.extend_from_slice(data);
            reads.push((text.len(), at));
        })?;
        let events = event_delays(&text, &reads)
            .ok_or_else(|| self.wrong(&format!("the stream is {}", excerpt(&text))))?;
        Ok(StreamTimes { first_byte: reads[0].1 - sent_at, events })
    }

    fn write(&mut self) -> Result<(), Failure> {
        self.stream
            .write_all(&self.request)
            .map_err(|cause| format!("failed to send a request to `{}`: {cause}", self.target))
    }

    /// Gives the body of a 200 answer piece by piece, each with the time it was read.
    fn read_answer(&mut self, mut on_data: impl FnMut(&[u8], Instant)) -> Result<(), Failure> {
        match self.read_head()? {
            Framing::Length(length) => self.pass_on(length, &mut on_data)?,
            Framing::Chunked => loop {
                let size = self.read_chunk_size()?;
                self.pass_on(size, &mut on_data)?;
                // After data, and (no trailers here) after the last chunk.
                self.expect_line_end()?;
                if size == 0 {
                    break;
                }
            },
        }
        if self.start != self.end {
            return Err(self.wrong("there are bytes after its end"));
        }
        Ok(())
    }

    fn read_head(&mut self) -> Result<Framing, Failure> {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; 64];
            let mut head = httparse::Response::new(&mut headers);
            let unread = &self.buffer[self.start..self.end];
            match head.parse(unread) {
                Ok(Status::Complete(length)) => {
                    if head.code != Some(200) {
                        return Err(self.wrong(&excerpt(unread)));
                    }
                    let framing = framing(head.headers);
                    self.start += length;
                    return framing.ok_or_else(|| self.wrong("it has no length and no chunks"));
                }
                Ok(Status::Partial) => self.fill()?,
                Err(cause) => return Err(self.wrong(&cause.to_string())),
            }
        }
    }

    fn read_chunk_size(&mut self) -> Result<usize, Failure> {
        loop {
            match httparse::parse_chunk_size(&self.buffer[self.start..self.end]) {
                Ok(Status::Complete((length, size))) => {
                    self.start += length;
                    return usize::try_from(size).map_err(|_| self.wrong("a chunk is too large"));
                }
                Ok(Status::Partial) => self.fill()?,
                Err(_) => return Err(self.wrong("a chunk size is malformed")),
            }
        }
    }

    fn expect_line_end(&mut self) -> Result<(), Failure> {
        while self.end - self.start < 2 {
            self.fill()?;
        }
        if !self.buffer[self.start..].starts_with(b"\r\n") {
            return Err(self.wrong("a chunk does not end where it should"));
        }
        self.start += 2;
        Ok(())
    }

    fn pass_on(
        &mut self,
        mut left: usize,
        on_data: &mut impl FnMut(&[u8], Instant),
    ) -> Result<(), Failure> {
        while left > 0 {
            if self.start == self.end {
                self.fill()?;
            }
            let length = left.min(self.end - self.start);
            on_data(&self.buffer[self.start..self.start + length], self.read_at);
            self.start += length;
            left -= length;
        }
        Ok(())
    }

    fn fill(&mut self) -> Result<(), Failure> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.end == self.buffer.len() {
            return Err(self.wrong("its head is too large"));
        }
        match self.stream.read(&mut self.buffer[self.end..]) {
            Ok(0) => Err(self.wrong("the connection was closed before its end")),
            Ok(count) => {
                self.read_at = clock::instant();
                self.end += count;
                Ok(())
            }
            // The limit of the socket shows as either of the two.
            Err(cause) if matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Err(self.wrong(&format!("nothing came for {LIMIT:?}")))
            }
            Err(cause) => Err(self.wrong(&cause.to_string())),
        }
    }

    fn wrong(&self, what: &str) -> Failure {
        format!("an answer of `{}` is wrong: {what}", self.target)
    }
}

fn framing(headers: &[httparse::Header<'_>]) -> Option<Framing> {
    for header in headers {
        if header.name.eq_ignore_ascii_case("content-length") {
            let length = std::str::from_utf8(header.value).ok()?.trim().parse().ok()?;
            return Some(Framing::Length(length));
        }
        if header.name.eq_ignore_ascii_case("transfer-encoding") {
            return header.value.eq_ignore_ascii_case(b"chunked").then_some(Framing::Chunked);
        }
    }
    None
}

/// How late each event was; `None` unless the text is upstream's stream to the byte.
fn event_delays(text: &[u8], reads: &[(usize, Instant)]) -> Option<Vec<Duration>> {
    let text = std::str::from_utf8(text).ok()?;
    let mut events = text.split_inclusive("\n\n");
    let mut reads = reads.iter();
    let mut read = reads.next()?;
    let mut length = 0;
    let mut delays = Vec::new();
    for number in 0..EVENTS {
        let event = events.next()?.strip_suffix("\n\n")?;
        let sent = event.strip_prefix(r#"data: {"at":"#)?.split_once(',')?.0.parse().ok()?;
        if event != upstream::event(number, sent) {
            return None;
        }
        length += event.len() + 2;
        while read.0 < length {
            read = reads.next()?;
        }
        delays.push(Duration::from_nanos(upstream::stamp(read.1).saturating_sub(sent)));
    }
    (events.next()?.strip_suffix("\n\n")? == DONE && events.next().is_none()).then_some(delays)
}

fn excerpt(bytes: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(600)]))
}
