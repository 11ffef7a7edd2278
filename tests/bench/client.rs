//! The client: a kept-alive connection, a prebuilt request in one write, and the whole answer
//! back, compared with what upstream sends.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dashscope_proxy::clock;

use crate::decode::{Decoder, excerpt};
use crate::target::{Kind, Target};
use crate::upstream;
use crate::{Failure, LIMIT};

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

/// A connection that sends the same request again and again, and knows the answer.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) connection: Connection,
    request: Arc<[u8]>,
    sent_at: Instant,
    expected: Arc<[u8]>,
    /// How much of the expected body has come.
    seen: usize,
}

impl Caller {
    pub(crate) fn open(target: &Target, kind: Kind) -> Result<Self, Failure> {
        let mut connection = Connection::open(target)?;
        if let Kind::Answer(size) | Kind::Body(size) = kind
            && size > connection.buffer.len()
        {
            connection.buffer = vec![0; 256 * 1024];
        }
        let request = target.request(kind).into();
        let expected = upstream::answer_to(kind);
        Ok(Self { connection, request, sent_at: clock::instant(), expected, seen: 0 })
    }

    pub(crate) fn send(&mut self) -> Result<(), Failure> {
        self.seen = 0;
        self.sent_at = clock::instant();
        self.connection.send(&self.request)
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
        self.send()?;
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
    /// From the moment upstream stamped an event until its last byte is here. Without the first
    /// event: of many streams that start together all come at once, which is the first byte's
    /// business.
    pub(crate) events: Vec<Duration>,
}

impl Listener {
    /// Uses a connection that has already served a request.
    pub(crate) fn new(caller: Caller, target: &Target, events: u64, pause: Duration) -> Self {
        Self {
            connection: caller.connection,
            request: target.request(Kind::Stream { events, pause }).into(),
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
            .map(|events| StreamTimes { first_byte: self.reads[0].1 - self.sent_at, events })
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
            if event != upstream::event(number, sent) {
                return None;
            }
            length += event.len() + 2;
            while read.0 < length {
                read = reads.next()?;
            }
            if number > 0 {
                let delay = upstream::stamp(read.1).saturating_sub(sent);
                delays.push(Duration::from_nanos(delay));
            }
        }
        let is_over = events.next()?.strip_suffix("\n\n")? == upstream::DONE;
        (is_over && events.next().is_none()).then_some(delays)
    }
}
