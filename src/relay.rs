//! The way back: upstream's bytes to the client, as they come.
//!
//! Nothing is re-framed and nothing invented: a clean end is a clean end, and a cut stays a cut.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use http::HeaderMap;

use crate::clock;
use crate::policy::sse::{self, Event};
use crate::policy::verdict;
use crate::redact::Redactor;
use crate::upstream::{AnswerBody, CallError, ClientWatch, FailureKind};

/// How much is read from upstream at once, in bytes: the events of a stream fit into the first,
/// a long body is read with the second.
const BUFFER: usize = 2 * 1024;
const LARGEST_BUFFER: usize = 16 * 1024;

/// How much of a stream is held while its first telling event is incomplete, in bytes.
const MAX_HELD: usize = 64 * 1024;

/// How long it is held once its first byte has come.
const LONGEST_HOLD: Duration = Duration::from_secs(1);

/// An upload may be this long, in bytes: DashScope takes files of up to 500 MB.
pub(crate) const LARGEST_UPLOAD: u64 = 512 << 20;

/// The head of an answer to the client.
#[derive(Debug)]
pub(crate) struct Head {
    /// The HTTP status.
    pub status: u16,
    /// The headers, without any framing of the body.
    pub headers: HeaderMap,
    /// How long the body is, in bytes, if that is known.
    pub length: Option<u64>,
}

/// The client's side of one request.
pub(crate) trait Client {
    /// How long the body is that is still to be read, if that is known; only for an upload.
    fn upload_length(&self) -> Option<u64>;

    /// Reads from a body that was not read before the request was handed over; 0 at its end.
    ///
    /// # Errors
    /// When the client breaks off, or sends more than an upload may have.
    fn read_upload(&mut self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Begins the answer. The head leaves with the first bytes of the body, or with its end.
    fn start(&mut self, head: &Head);

    /// Sends a part of the body at once.
    ///
    /// # Errors
    /// When the client does not take it.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Ends the answer cleanly.
    ///
    /// # Errors
    /// When the client does not take it.
    fn finish(&mut self) -> io::Result<()>;

    /// Ends the answer so that the client can tell that it is not whole.
    fn cut(&mut self);

    /// Something that can be asked, also while this answer is being written, whether the client
    /// has left.
    fn watch(&self) -> ClientWatch;
}

/// How a relayed answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Both sides saw all of it.
    Clean,
    /// Upstream broke off; the cause in words.
    UpstreamCut(String),
    /// The client did not take all of it.
    ClientLeft,
}

/// What was relayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Relayed {
    /// How it ended.
    pub end: End,
    /// How many bytes of the body the client was sent.
    pub bytes: u64,
    /// When the first of them left.
    pub first_byte: Option<Instant>,
}

/// An upload, as a reader.
pub(crate) struct Upload<'a> {
    client: &'a mut dyn Client,
    failure: Option<io::ErrorKind>,
}

impl<'a> Upload<'a> {
    /// What `client` sends.
    pub(crate) fn new(client: &'a mut dyn Client) -> Self {
        Self { client, failure: None }
    }

    /// Why what was sent on is not all of it, if it is not.
    #[must_use]
    pub(crate) fn failure(&self) -> Option<CallError> {
        Some(match self.failure? {
            io::ErrorKind::InvalidInput => CallError::of_upload(FailureKind::Unreadable),
            io::ErrorKind::FileTooLarge => CallError::of_upload(FailureKind::TooLarge),
            _ => CallError::client_left(),
        })
    }
}

impl Read for Upload<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let outcome = self.client.read_upload(buffer);
        if let Err(error) = &outcome {
            self.failure = Some(error.kind());
        }
        outcome
    }
}

/// The beginning of a body that was read before its head could go out.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// The bytes, in order.
    pub bytes: Vec<u8>,
    /// Whether they are events.
    is_stream: bool,
    /// Whether the body ended, or broke, behind them.
    rest: Rest,
}

#[derive(Debug, Default)]
enum Rest {
    #[default]
    ToCome,
    Ended,
    Broken(CallError),
}

/// Reads a body's first `limit` bytes.
pub(crate) fn hold_prefix(body: &mut AnswerBody, limit: usize) -> Held {
    let mut held = Held::default();
    let mut buffer = vec![0; BUFFER];
    while held.bytes.len() < limit && matches!(held.rest, Rest::ToCome) {
        let read = body.read(&mut buffer);
        held.take(read, &buffer);
    }
    held
}

/// Reads a stream until the first event that carries anything is complete, and returns that. The
/// wait ends without one when the stream ends, or when too much has been held for too long.
pub(crate) fn hold_opening(body: &mut AnswerBody) -> (Held, Option<Event>) {
    let mut held = Held { is_stream: true, ..Held::default() };
    let mut buffer = vec![0; BUFFER];
    let mut give_up_at = None;
    loop {
        let read = match give_up_at {
            None => body.read(&mut buffer).map(Some),
            Some(at) => body.read_until(&mut buffer, at),
        };
        match read.transpose() {
            None => return (held, None),
            Some(read) => held.take(read, &buffer),
        }
        let opening = match held.rest {
            Rest::Ended => verdict::opening_at_end(&held.bytes),
            _ => verdict::opening(&held.bytes),
        };
        let is_over = !matches!(held.rest, Rest::ToCome) || held.bytes.len() >= MAX_HELD;
        if opening.is_some() || is_over {
            return (held, opening);
        }
        give_up_at.get_or_insert_with(|| clock::instant() + LONGEST_HOLD);
    }
}

impl Held {
    /// What `look` finds first in the payloads of its events, or in all that is held.
    #[must_use]
    pub(crate) fn find<T>(&self, look: impl Fn(&[u8]) -> Vec<T>) -> Vec<T> {
        if !self.is_stream {
            return look(&self.bytes);
        }
        let found = sse::events(&self.bytes).map(|event| look(&event.data));
        found.into_iter().find(|found| !found.is_empty()).unwrap_or_default()
    }

    /// Whether the client left before there was anything to send it.
    #[must_use]
    pub(crate) fn ended_by_client(&self) -> bool {
        matches!(&self.rest, Rest::Broken(error) if error.kind == FailureKind::ClientLeft)
    }

    /// Takes the first bytes of a body of which nothing has been read.
    fn take_first(&mut self, body: &mut AnswerBody) -> Result<(), CallError> {
        if let Rest::ToCome = self.rest {
            let mut buffer = vec![0; BUFFER];
            let read = body.read(&mut buffer);
            self.take(read, &buffer);
        }
        match std::mem::take(&mut self.rest) {
            Rest::Broken(error) if self.bytes.is_empty() => Err(error),
            rest => {
                self.rest = rest;
                Ok(())
            }
        }
    }

    fn take(&mut self, read: Result<usize, CallError>, buffer: &[u8]) {
        match read {
            Ok(0) => self.rest = Rest::Ended,
            Ok(count) => self.bytes.extend_from_slice(&buffer[..count]),
            Err(error) => self.rest = Rest::Broken(error),
        }
    }
}

/// Sends the head, what was held, and the rest of the body as it comes. `see` is shown every part
/// before it is sent, and an empty one before a clean end: who reads the end may rely on what it
/// taught. The head waits for the first bytes of the body: an answer that breaks off before them
/// can still be told from one that was cut.
///
/// # Errors
/// When the body breaks off before its first byte: the client has been sent nothing.
pub(crate) fn relay(
    head: &Head,
    mut held: Held,
    body: &mut AnswerBody,
    client: &mut dyn Client,
    redactor: &Redactor,
    mut see: impl FnMut(&[u8]),
) -> Result<Relayed, CallError> {
    if held.bytes.is_empty() {
        held.take_first(body)?;
    }
    let mut relayed = Relayed { end: End::Clean, bytes: 0, first_byte: None };
    client.start(head);
    relayed.end = match copy(held, body, client, &mut relayed, redactor, &mut see) {
        Ok(()) => {
            see(&[]);
            match client.finish() {
                Ok(()) => End::Clean,
                Err(_) => End::ClientLeft,
            }
        }
        Err(end) => end,
    };
    if relayed.end != End::Clean {
        client.cut();
    }
    Ok(relayed)
}

fn copy(
    held: Held,
    body: &mut AnswerBody,
    client: &mut dyn Client,
    relayed: &mut Relayed,
    redactor: &Redactor,
    see: &mut dyn FnMut(&[u8]),
) -> Result<(), End> {
    let mut redaction = redactor.body();
    let outcome = copy_pieces(held, body, |bytes| {
        see(bytes);
        send(client, &redaction.pass(bytes), relayed)
    });
    // It only looked like the beginning of a key.
    let rest = redaction.rest();
    if !rest.is_empty() && !matches!(outcome, Err(End::ClientLeft)) {
        send(client, &rest, relayed)?;
    }
    outcome
}

fn copy_pieces(
    held: Held,
    body: &mut AnswerBody,
    mut send: impl FnMut(&[u8]) -> Result<(), End>,
) -> Result<(), End> {
    if !held.bytes.is_empty() {
        send(&held.bytes)?;
    }
    drop(held.bytes);
    match held.rest {
        Rest::Ended => return Ok(()),
        Rest::Broken(error) => return Err(End::of(error)),
        Rest::ToCome => {}
    }
    let mut buffer = vec![0; BUFFER];
    loop {
        let count = body.read(&mut buffer).map_err(End::of)?;
        if count == 0 {
            return Ok(());
        }
        send(&buffer[..count])?;
        if count == buffer.len() && count < LARGEST_BUFFER {
            buffer.resize(2 * count, 0);
        }
    }
}

fn send(client: &mut dyn Client, bytes: &[u8], relayed: &mut Relayed) -> Result<(), End> {
    if bytes.is_empty() {
        return Ok(());
    }
    client.send(bytes).map_err(|_| End::ClientLeft)?;
    relayed.first_byte.get_or_insert_with(clock::instant);
    relayed.bytes += bytes.len() as u64;
    Ok(())
}

impl End {
    fn of(error: CallError) -> Self {
        match error.kind {
            FailureKind::ClientLeft => Self::ClientLeft,
            _ => Self::UpstreamCut(error.cause),
        }
    }
}
