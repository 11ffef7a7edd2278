//! Receiving request bodies, and the memory that they may take together.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::de::IgnoredAny;
use tiny_http::Request;

use super::head::BodyLength;
use crate::error::ProxyError;
use crate::policy::body;

/// How much of a chunked body is read at once, in bytes.
const STEP: usize = 16 * 1024;

/// How much of a body of known length is read at once, in bytes: what has come is taken with few
/// calls.
const LARGE_STEP: usize = 1024 * 1024;

/// How many bodies of the largest size may be in memory at the same time.
const BODIES: usize = 4;

/// The memory of all bodies together.
#[derive(Debug)]
pub(super) struct Budget {
    limit: usize,
    used: AtomicUsize,
}

/// A part of the budget, given back when dropped.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

/// A body in memory.
#[derive(Debug, Default)]
pub(super) struct Received {
    pub(super) bytes: Vec<u8>,
    /// Its part of the budget; none for no body.
    pub(super) share: Option<Share>,
    /// Whether what follows it on its connection cannot be read.
    pub(super) is_last: bool,
}

/// Why there is no body.
#[derive(Debug)]
pub(super) enum ReceiveError {
    /// The client is told.
    Refused(ProxyError),
    /// Its chunks are not what they should be.
    Unreadable,
    /// The client broke off: there is nobody to tell.
    Broken,
}

impl Budget {
    /// A budget for bodies of up to `largest` bytes.
    pub(super) fn new(largest: usize) -> Arc<Self> {
        Arc::new(Self { limit: largest.saturating_mul(BODIES), used: AtomicUsize::new(0) })
    }

    /// How much of it is taken, in bytes.
    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn share(self: &Arc<Self>) -> Share {
        Share { budget: Arc::clone(self), bytes: 0 }
    }
}

impl Share {
    /// Takes more of the budget.
    fn grow(&mut self, bytes: usize) -> Result<(), ReceiveError> {
        let used = self.budget.used.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        if used.saturating_add(bytes) > self.budget.limit {
            return Err(ReceiveError::Refused(ProxyError::Overloaded));
        }
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Reads a whole body of at most `largest` bytes, and tells `progress` how many have come. May
/// wait for the client.
pub(super) fn receive(
    request: &mut Request,
    length: BodyLength,
    largest: usize,
    budget: &Arc<Budget>,
    progress: impl Fn(u64),
) -> Result<Received, ReceiveError> {
    let mut share = budget.share();
    let mut is_last = false;
    let bytes = match length {
        BodyLength::None | BodyLength::Unclear | BodyLength::Exact(0) => Vec::new(),
        BodyLength::Exact(length) => {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            share.grow(length)?;
            exact(request.as_reader(), length, progress)?
        }
        BodyLength::Chunked => {
            let reader = request.as_reader();
            let (bytes, has_trailer) = chunked(reader, largest, &mut share, progress)?;
            is_last = has_trailer;
            bytes
        }
    };
    Ok(Received { bytes, share: Some(share), is_last })
}

/// Exactly `length` bytes and not one read more: the library would read ahead into the next
/// request.
fn exact(
    reader: &mut dyn Read,
    length: usize,
    progress: impl Fn(u64),
) -> Result<Vec<u8>, ReceiveError> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| ReceiveError::Refused(ProxyError::Overloaded))?;
    let mut filled = 0;
    while filled < length {
        progress(filled as u64);
        if filled == bytes.len() {
            bytes.resize(length.min(filled + LARGE_STEP), 0);
        }
        match reader.read(&mut bytes[filled..]) {
            Ok(0) | Err(_) => return Err(ReceiveError::Broken),
            Ok(count) => filled += count,
        }
    }
    Ok(bytes)
}

/// Also says whether a trailer follows. The library takes that for a broken chunk and reads no
/// further; it is one if the body is a whole document without it. (What stands in a trailer is
/// dropped.)
fn chunked(
    reader: &mut dyn Read,
    largest: usize,
    share: &mut Share,
    progress: impl Fn(u64),
) -> Result<(Vec<u8>, bool), ReceiveError> {
    let mut bytes = Vec::new();
    loop {
        progress(bytes.len() as u64);
        if bytes.capacity() < bytes.len() + STEP {
            let more = bytes.capacity().max(STEP);
            share.grow(more)?;
            bytes
                .try_reserve_exact(more)
                .map_err(|_| ReceiveError::Refused(ProxyError::Overloaded))?;
        }
        match step(reader, &mut bytes, STEP) {
            Ok(0) => return Ok((bytes, false)),
            Ok(_) => {}
            Err(ReceiveError::Unreadable) if is_document(&bytes) => return Ok((bytes, true)),
            Err(error) => return Err(error),
        }
        if bytes.len() > largest {
            return Err(ReceiveError::Refused(ProxyError::TooLarge { limit: largest as u64 }));
        }
    }
}

/// Reads once, at most `limit` bytes, onto the end of `bytes`.
fn step(reader: &mut dyn Read, bytes: &mut Vec<u8>, limit: usize) -> Result<usize, ReceiveError> {
    let start = bytes.len();
    bytes.resize(start + limit, 0);
    let outcome = reader.read(&mut bytes[start..]);
    bytes.truncate(start + *outcome.as_ref().unwrap_or(&0));
    outcome.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => ReceiveError::Unreadable,
        _ => ReceiveError::Broken,
    })
}

/// Whether these bytes are one whole JSON document.
fn is_document(bytes: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(body::without_mark(bytes)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget() -> Arc<Budget> {
        Budget::new(STEP * 2)
    }

    #[test]
    fn a_body_of_known_length_is_read_to_the_byte() {
        let mut source: &[u8] = b"bodyGET /next";
        assert_eq!(exact(&mut source, 4, |_| {}).unwrap(), b"body");
        assert_eq!(source, b"GET /next");
    }

    #[test]
    fn a_body_that_ends_early_is_broken() {
        assert!(matches!(exact(&mut &b"bo"[..], 4, |_| {}), Err(ReceiveError::Broken)));
    }

    #[test]
    fn a_chunked_body_may_have_the_largest_size_and_no_byte_more() {
        let body = vec![7; STEP * 2];
        let mut share = budget().share();
        let outcome = chunked(&mut &body[..], body.len(), &mut share, |_| {}).unwrap();
        assert_eq!(outcome, (body.clone(), false));
        let mut share = budget().share();
        let outcome = chunked(&mut &body[..], body.len() - 1, &mut share, |_| {});
        assert!(matches!(outcome, Err(ReceiveError::Refused(ProxyError::TooLarge { .. }))));
    }

    #[test]
    fn the_budget_is_shared_and_given_back() {
        let budget = budget();
        let mut first = budget.share();
        first.grow(STEP * 8).unwrap();
        let mut second = budget.share();
        let refused = second.grow(1).unwrap_err();
        assert!(matches!(refused, ReceiveError::Refused(ProxyError::Overloaded)));
        drop(second);
        drop(first);
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
        budget.share().grow(STEP * 8).unwrap();
    }
}
