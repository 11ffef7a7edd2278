//! Writing an answer past the library's own encoder, which holds a stream back in two buffers.

use std::fmt;
use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use http::StatusCode;
use httpdate::HttpDate;
use tiny_http::Request;

use super::connections::Activity;
use super::head::BodyLength;
use super::head::Head as RequestHead;
use super::turn::Turn;
use crate::clock;
use crate::relay::{Client, Head, LARGEST_UPLOAD};
use crate::upstream::ClientWatch;

/// The memory with which an answer begins, and the most that is kept for what comes next, in bytes.
const USUAL_HEAD: usize = 1024;
const LARGEST_KEPT: usize = 4 * 1024;

/// The most that is written at once, in bytes: who takes this much in time does not stall.
const PIECE: usize = 16 * 1024;

/// What a chunked body never contains: the client sees at once that the answer is broken.
const NO_CHUNK_SIZE: &[u8] = b"!\r\n";

/// The answer to one request. Dropped without one, the library answers 500.
pub(super) struct Answer {
    // Order matters when this is dropped: first the library may go on, then it is the turn of
    // the connection's next request.
    output: Output,
    /// What is still to be read of an upload.
    upload: Upload,
    /// Bytes that go out with the next write.
    pending: Vec<u8>,
    framing: Framing,
    version: (u8, u8),
    is_head: bool,
    /// The client said that this is its last request: the library closes by itself.
    client_closes: bool,
    /// This is the last answer because we say so.
    last: bool,
    /// What the client is doing while it is written to.
    writing: Activity,
    turn: Turn,
}

/// A body that is read while it is sent on.
struct Upload {
    /// How many bytes are to come; `None` = it says itself when it ends.
    left: Option<u64>,
    /// How long the reads so far have taken: only for these the client answers.
    reading: Duration,
    bytes: u64,
    is_over: bool,
}

enum Output {
    /// Nothing has been written.
    Unused(Request),
    Writing(Box<dyn Write + Send>),
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// No head yet, or an answer that has no body.
    None,
    /// This many bytes are still to come.
    Length(u64),
    Chunked,
    UntilClose,
}

impl Answer {
    /// The answer to `request`. Its body has been read, or is an upload. `last`: nothing more of the
    /// connection can be read.
    pub(super) fn new(request: Request, head: &RequestHead, turn: Turn, last: bool) -> Self {
        Self {
            output: Output::Unused(request),
            upload: Upload::of(head.length),
            pending: Vec::new(),
            framing: Framing::None,
            version: head.version,
            is_head: head.method == "HEAD",
            client_closes: head.closes,
            last: (last || head.says_close || head.version < (1, 1)) && !head.closes,
            writing: Activity::Taking,
            turn,
        }
    }

    /// A whole answer of our own at once. It fits in any socket's buffer, unless the client has not
    /// read what it was sent before.
    pub(super) fn respond(&mut self, head: &Head, body: &[u8]) {
        self.writing = Activity::Answered;
        self.start(head);
        let _ = self.send(body).and_then(|()| self.finish());
    }

    /// The body has been read, and what is left to the library is nothing.
    pub(super) fn body_was_read(mut self) -> Self {
        self.upload.is_over = true;
        self
    }

    /// Reads the rest of an upload that was not wanted: the library would do it with an allocation
    /// of that size. (Not inlined, or every answer would have its buffer on the stack.)
    #[inline(never)]
    fn finish_upload(&mut self) {
        let mut nowhere = [0; 16 * 1024];
        while matches!(self.read_upload(&mut nowhere), Ok(1..)) {}
    }

    fn writer(&mut self) -> &mut dyn Write {
        if !self.upload.is_over {
            self.finish_upload();
        }
        if let Output::Unused(_) = self.output
            && let Output::Unused(request) = std::mem::replace(&mut self.output, Output::Gone)
        {
            self.output = Output::Writing(request.into_writer());
        }
        match &mut self.output {
            Output::Writing(writer) => writer,
            Output::Unused(_) | Output::Gone => unreachable!("an unused request became a writer"),
        }
    }

    fn write_pending(&mut self) -> io::Result<()> {
        let pending = std::mem::take(&mut self.pending);
        self.writer();
        let outcome = pending.chunks(PIECE).try_for_each(|piece| {
            self.turn.turn_to(self.writing);
            let writer = self.writer();
            writer.write_all(piece).and_then(|()| writer.flush())
        });
        self.turn.turn_to(Activity::Served);
        // The next event goes where this one was.
        if pending.capacity() <= LARGEST_KEPT {
            self.pending = pending;
            self.pending.clear();
        }
        outcome
    }

    fn framing_of(&self, head: &Head) -> Framing {
        if matches!(head.status, 204 | 304) {
            return Framing::None;
        }
        match head.length {
            Some(length) => Framing::Length(length),
            None if self.version < (1, 1) => Framing::UntilClose,
            None => Framing::Chunked,
        }
    }
}

/// A whole answer that ends its connection, as bytes. `is_head`: to a HEAD, without the body.
pub(super) fn whole(head: &Head, body: &[u8], is_head: bool) -> Vec<u8> {
    let framing = match head.status {
        204 | 304 => Framing::None,
        _ => Framing::Length(body.len() as u64),
    };
    let mut bytes = Vec::new();
    push_head(&mut bytes, head, framing, true);
    if !is_head {
        bytes.extend_from_slice(body);
    }
    bytes
}

fn push_head(out: &mut Vec<u8>, head: &Head, framing: Framing, closes: bool) {
    out.reserve(USUAL_HEAD);
    let status = StatusCode::from_u16(head.status).unwrap_or(StatusCode::BAD_GATEWAY);
    let reason = status.canonical_reason().unwrap_or("");
    push(out, format_args!("HTTP/1.1 {} {reason}\r\n", status.as_u16()));
    for (name, value) in &head.headers {
        push_header(out, name.as_str(), value.as_bytes());
    }
    if !head.headers.contains_key("date") {
        let date = HttpDate::from(SystemTime::from(clock::now()));
        push(out, format_args!("date: {date}\r\n"));
    }
    match framing {
        Framing::Length(length) => push(out, format_args!("content-length: {length}\r\n")),
        Framing::Chunked => push_header(out, "transfer-encoding", b"chunked"),
        Framing::None | Framing::UntilClose => {}
    }
    if closes {
        push_header(out, "connection", b"close");
    }
    out.extend_from_slice(b"\r\n");
}

fn push(out: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    // Memory takes everything.
    let _ = out.write_fmt(text);
}

fn push_header(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

impl Upload {
    fn of(length: BodyLength) -> Self {
        let left = match length {
            BodyLength::Exact(length) => Some(length),
            BodyLength::None => Some(0),
            BodyLength::Chunked | BodyLength::Unclear => None,
        };
        Self { left, reading: Duration::ZERO, bytes: 0, is_over: left == Some(0) }
    }

    /// Reads once, not beyond the end: the library would read ahead into the next request.
    fn read(&mut self, request: &mut Request, buffer: &mut [u8]) -> io::Result<usize> {
        let most = self.left.map_or(buffer.len(), |left| {
            usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len())
        });
        let count = request.as_reader().read(&mut buffer[..most])?;
        self.bytes += count as u64;
        self.left = self.left.map(|left| left - count as u64);
        if count == 0 && self.left.is_some() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if self.bytes > LARGEST_UPLOAD {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.is_over = count == 0 || self.left == Some(0);
        Ok(count)
    }
}

impl Client for Answer {
    fn upload_length(&self) -> Option<u64> {
        self.upload.left
    }

    fn read_upload(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Output::Unused(request) = &mut self.output else { return Ok(0) };
        if self.upload.is_over {
            return Ok(0);
        }
        let Upload { reading: before, bytes, .. } = self.upload;
        self.turn.turn_to(Activity::Sending { before, bytes });
        let started = clock::instant();
        let mut outcome = self.upload.read(request, buffer);
        self.upload.reading += started.elapsed();
        // What comes next is upstream's doing.
        self.turn.turn_to(Activity::Served);
        // The library takes a connection that closes in the middle of a chunk for the body's end, or
        // for a broken chunk.
        if matches!(outcome, Ok(0) | Err(_)) && self.turn.client_has_left() {
            outcome = Err(io::ErrorKind::UnexpectedEof.into());
        }
        if outcome.is_err() {
            self.upload.is_over = true;
            // Where the next request would begin is not known.
            self.last = !self.client_closes;
        }
        outcome
    }

    fn start(&mut self, head: &Head) {
        // A stop may have begun since the request came.
        self.last |= self.turn.is_last() && !self.client_closes;
        if self.last {
            // Who is told that the connection closes gets nothing more (RFC 9112, section 9.6).
            self.turn.condemn();
        }
        self.framing = self.framing_of(head);
        push_head(&mut self.pending, head, self.framing, self.last || self.client_closes);
        if self.is_head {
            self.framing = Framing::None;
        }
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.framing {
            Framing::None => return Ok(()),
            _ if bytes.is_empty() => return Ok(()),
            Framing::Length(left) => {
                let length = bytes.len() as u64;
                *left = left.checked_sub(length).ok_or(io::ErrorKind::InvalidData)?;
                self.pending.extend_from_slice(bytes);
            }
            Framing::Chunked => {
                push(&mut self.pending, format_args!("{:x}\r\n", bytes.len()));
                self.pending.extend_from_slice(bytes);
                self.pending.extend_from_slice(b"\r\n");
            }
            Framing::UntilClose => self.pending.extend_from_slice(bytes),
        }
        self.write_pending()
    }

    fn finish(&mut self) -> io::Result<()> {
        match self.framing {
            Framing::Length(1..) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Framing::Chunked => self.pending.extend_from_slice(b"0\r\n\r\n"),
            _ => {}
        }
        if !self.pending.is_empty() {
            self.write_pending()?;
        }
        if self.last || self.turn.is_last() && !self.client_closes {
            // Before the library may write: it answers by itself what it cannot read.
            self.turn.end_output();
        }
        Ok(())
    }

    fn cut(&mut self) {
        self.turn.condemn();
        let Some(connection) = self.turn.connection() else { return };
        match self.framing {
            // Past the library, because nothing may wait here: the client may be stuck.
            Framing::Chunked => {
                connection.send(NO_CHUNK_SIZE);
                connection.shut();
            }
            // Here a farewell is how a whole body ends.
            Framing::UntilClose => connection.abort(),
            Framing::Length(_) | Framing::None => connection.shut(),
        }
    }

    fn watch(&self) -> ClientWatch {
        self.turn.watch()
    }
}
