//! The client: a kept-alive connection, a prebuilt request in one write, and the whole answer
//! back, compared with what upstream sends.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dashscope_proxy::clock;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send};

use crate::decode::{Decoder, excerpt};
use crate::target::{Kind, Target};
use crate::{Failure, LIMIT, events, upstream};

/// A connection to a target. One request at a time: nothing is pipelined.
#[derive(Debug)]
pub(crate) struct Connection {
    target: String,
    /// Shared, so that it can be polled while the connection is changed.
    stream: Arc<TcpStream>,
    buffer: Vec<u8>,
    /// What has been read and not yet used is `buffer[..filled]`.
    filled: usize,
    decoder: Decoder,
}

impl Connection {
    pub(crate) fn open(target: &Target) -> Result<Self, Failure> {
        let stream = TcpStream::connect_timeout(&target.address, LIMIT)
            .and_then(|stream| {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(LIMIT))?;
                stream.set_write_timeout(Some(LIMIT))?;
                Ok(stream)
            })
            .map_err(|cause| format!("failed to connect to `{}`: {cause}", target.name))?;
        Ok(Self {
            target: target.name.clone(),
            stream: Arc::new(stream),
            buffer: vec![0; 16 * 1024],
            filled: 0,
            decoder: Decoder::new(),
        })
    }

    pub(crate) fn socket(&self) -> Arc<TcpStream> {
        Arc::clone(&self.stream)
    }

    pub(crate) fn send(&mut self, request: &[u8]) -> Result<(), Failure> {
        self.decoder = Decoder::new();
        (&*self.stream)
            .write_all(request)
            .map_err(|cause| format!("failed to send a request to `{}`: {cause}", self.target))
    }

    /// Sends as much of `rest` as there is room for, without waiting, and tells how much.
    fn push(&self, rest: &[u8]) -> Result<usize, Failure> {
        match send(self.stream.as_raw_fd(), rest, MsgFlags::MSG_DONTWAIT) {
            Ok(count) => Ok(count),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(0),
            Err(cause) => Err(format!("failed to send a request to `{}`: {cause}", self.target)),
        }
    }

    /// Reads once, which waits unless the socket is known to be readable, and gives what came of
    /// the body. Tells whether the answer is complete.
    pub(crate) fn read(&mut self, on_body: impl FnMut(&[u8])) -> Result<bool, Failure> {
        if self.filled == self.buffer.len() {
            return Err(self.wrong("its head is too large"));
        }
        match (&*self.stream).read(&mut self.buffer[self.filled..]) {
            Ok(0) => return Err(self.wrong("the connection was closed before its end")),
            Ok(count) => self.filled += count,
            // The limit of the socket shows as either of the two.
            Err(cause) if matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(self.wrong(&format!("nothing came for {LIMIT:?}")));
            }
            Err(cause) => return Err(self.wrong(&cause.to_string())),
        }
        let taken = self.decoder.take(&self.buffer[..self.filled], on_body);
        let taken = taken.map_err(|cause| self.wrong(&cause))?;
        self.buffer.copy_within(taken..self.filled, 0);
        self.filled -= taken;
        Ok(self.decoder.is_done())
    }

    pub(crate) fn wrong(&self, what: &str) -> Failure {
        format!("an answer of `{}` is wrong: {what}", self.target)
    }
}

/// A connection that sends the same requests in turn, and knows the answer.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) connection: Connection,
    requests: Arc<[Vec<u8>]>,
    /// The request that is next, or being sent.
    at: usize,
    /// How much of it has been sent, while it is.
    pushed: Option<usize>,
    sent_at: Instant,
    expected: Arc<[u8]>,
    /// How much of the expected body has come.
    seen: usize,
}

impl Caller {
    pub(crate) fn open(target: &Target, kind: Kind) -> Result<Self, Failure> {
        let caller = Self {
            connection: Connection::open(target)?,
            requests: Arc::default(),
            at: 0,
            pushed: None,
            sent_at: clock::instant(),
            expected: Arc::default(),
            seen: 0,
        };
        Ok(caller.turned_to(kind, &target.requests(kind), 0))
    }

    /// From now on with these requests, the first of which is number `at`. They are shared:
    /// those of many connections would be memory that no cache holds.
    pub(crate) fn turned_to(mut self, kind: Kind, requests: &Arc<[Vec<u8>]>, at: usize) -> Self {
        if let Kind::Answer(size) = kind
            && size > self.connection.buffer.len()
        {
            self.connection.buffer = vec![0; 256 * 1024];
        }
        self.at = at % requests.len();
        self.requests = Arc::clone(requests);
        self.expected = upstream::answer_to(kind);
        self
    }

    /// Which of its requests is next.
    pub(crate) fn next(&self) -> usize {
        self.at
    }

    /// Sends the next request, or what there is room for: `push` goes on with it.
    pub(crate) fn send(&mut self) -> Result<(), Failure> {
        self.seen = 0;
        self.sent_at = clock::instant();
        self.connection.decoder = Decoder::new();
        self.pushed = Some(0);
        self.push()
    }

    /// Whether a part of the request is still here.
    pub(crate) fn is_sending(&self) -> bool {
        self.pushed.is_some()
    }

    /// Sends more of the request, without waiting for room.
    pub(crate) fn push(&mut self) -> Result<(), Failure> {
        let Some(pushed) = self.pushed else { return Ok(()) };
        let request = &self.requests[self.at];
        let pushed = pushed + self.connection.push(&request[pushed..])?;
        self.pushed = (pushed < request.len()).then_some(pushed);
        if self.pushed.is_none() {
            self.at = (self.at + 1) % self.requests.len();
        }
        Ok(())
    }

    /// Reads once; when the answer is complete it tells how long it took.
    pub(crate) fn read(&mut self) -> Result<Option<Duration>, Failure> {
        let Self { connection, expected, seen, .. } = self;
        let mut is_right = true;
        let is_done = connection.read(|data| {
            is_right &= expected[*seen..].starts_with(data);
            *seen = (*seen + data.len()).min(expected.len());
        })?;
        if !is_right || (is_done && *seen < expected.len()) {
            return Err(connection.wrong(&format!("the body differs near byte {seen}")));
        }
        Ok(is_done.then(|| self.sent_at.elapsed()))
    }

    /// One request and its checked answer, and how long it took.
    pub(crate) fn exchange(&mut self) -> Result<Duration, Failure> {
        self.seen = 0;
        self.sent_at = clock::instant();
        self.connection.send(&self.requests[self.at])?;
        self.at = (self.at + 1) % self.requests.len();
        loop {
            if let Some(took) = self.read()? {
                return Ok(took);
            }
        }
    }
}

/// A connection that asks for a stream and notes when its parts came.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) connection: Connection,
    request: Arc<[u8]>,
    events: u64,
    sent_at: Instant,
    text: Vec<u8>,
    /// Where the text stood after each read, and when that was.
    reads: Vec<(usize, Instant)>,
}

/// How long the parts of a stream took.
#[derive(Debug)]
pub(crate) struct StreamTimes {
    /// From the request to the first byte of the body.
    pub(crate) first_byte: Duration,
    /// When that was.
    pub(crate) first_byte_at: Instant,
    /// From the moment upstream stamped an event until its last byte is here. Without the first
    /// event: of many streams that start together all come at once, which is the first byte's
    /// business.
    pub(crate) events: Vec<Duration>,
}

impl Listener {
    /// Sends `request`, for a stream of so many events.
    pub(crate) fn new(connection: Connection, request: Arc<[u8]>, events: u64) -> Self {
        Self {
            connection,
            request,
            events,
            sent_at: clock::instant(),
            text: Vec::new(),
            reads: Vec::new(),
        }
    }

    pub(crate) fn send(&mut self) -> Result<(), Failure> {
        self.text.clear();
        self.reads.clear();
        self.sent_at = clock::instant();
        self.connection.send(&self.request)
    }

    /// Reads once; tells whether the stream is complete.
    pub(crate) fn read(&mut self) -> Result<bool, Failure> {
        let Self { connection, text, reads, .. } = self;
        let before = text.len();
        let is_done = connection.read(|data| text.extend_from_slice(data))?;
        if text.len() > before {
            reads.push((text.len(), clock::instant()));
        }
        Ok(is_done)
    }

    pub(crate) fn has_begun(&self) -> bool {
        !self.reads.is_empty()
    }

    /// The times of a complete stream; every event has to be there, whole and in order.
    pub(crate) fn times(&self) -> Result<StreamTimes, Failure> {
        self.delays()
            .map(|events| StreamTimes {
                first_byte: self.reads[0].1.saturating_duration_since(self.sent_at),
                first_byte_at: self.reads[0].1,
                events,
            })
            .ok_or_else(|| self.connection.wrong(&format!("the stream is {}", excerpt(&self.text))))
    }

    /// How late each event after the first was; `None` unless the text is upstream's stream to
    /// the byte.
    fn delays(&self) -> Option<Vec<Duration>> {
        let text = std::str::from_utf8(&self.text).ok()?;
        let mut events = text.split_inclusive("\n\n");
        let mut reads = self.reads.iter();
        let mut read = reads.next()?;
        let mut length = 0;
        let mut delays = Vec::new();
        for number in 0..self.events {
            let event = events.next()?.strip_suffix("\n\n")?;
            let sent = event.strip_prefix(r#"data: {"at":"#)?.split_once(',')?.0.parse().ok()?;
            if event != events::event(number, sent) {
                return None;
            }
            length += event.len() + 2;
            while read.0 < length {
                read = reads.next()?;
            }
            if number > 0 {
                let delay = events::stamp(read.1).saturating_sub(sent);
                delays.push(Duration::from_nanos(delay));
            }
        }
        (text[length..] == *events::END).then_some(delays)
    }
}
