//! The upstream that stands behind every candidate: a thread per connection, which takes another
//! when one is over, prebuilt answers, one write each, and one pacer for all streams.
//!
//! It must cost as little as possible, and still refuse what a working proxy would not send.

use std::collections::HashMap;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nix::sys::socket::{Backlog, listen};

use crate::inbox::{Inbox, Wish};
use crate::pacer::{Paced, Pacer};
use crate::target::Kind;
use crate::{Failure, LIMIT, events};

/// Before and after the words of an answer.
const ANSWER: [&str; 2] = [
    concat!(
        r#"{"id":"chatcmpl-bench","object":"chat.completion","created":1700000000,"model":"m1","#,
        r#""choices":[{"index":0,"message":{"role":"assistant","content":""#
    ),
    concat!(
        r#""},"finish_reason":"stop"}],"usage":{"prompt_tokens":31,"completion_tokens":23,"#,
        r#""total_tokens":54}}"#
    ),
];
const WORDS: &str = "Danube, Inn and Ilz meet there; the town is named after a Roman cohort. ";
/// The size of an answer when the request does not care.
pub(crate) const SMALL_ANSWER: usize = 350;

/// How many threads wait for connections at most.
const IDLE_THREADS: u64 = 64;

/// What DashScope says when a slot's free quota is used up.
const EXHAUSTED: &str = concat!(
    r#"{"error":{"message":"The free tier of the model has been exhausted.","type":"#,
    r#""AllocationQuota.FreeTierOnly","code":"AllocationQuota.FreeTierOnly"}}"#
);

/// The body of the answer, where it is the same each time.
pub(crate) fn answer_to(kind: Kind) -> Arc<[u8]> {
    match kind {
        Kind::Answer(size) => answer(size),
        Kind::Small | Kind::Prompt(_) => answer(SMALL_ANSWER),
        Kind::Stream { events, .. } => events::unstamped(events),
    }
}

/// An answer of `size` bytes, or a little more where that is too few; each is made once.
fn answer(size: usize) -> Arc<[u8]> {
    static MADE: LazyLock<Mutex<HashMap<usize, Arc<[u8]>>>> = LazyLock::new(Mutex::default);
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let make = || {
        let [before, after] = ANSWER;
        let words = WORDS.bytes().cycle().take(size.saturating_sub(before.len() + after.len()));
        before.bytes().chain(words).chain(after.bytes()).collect()
    };
    Arc::clone(made.entry(size).or_insert_with(make))
}

/// What a request must have for a good answer, besides its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// A key and a model of the pool: the proxy did its work.
    KeyAndModel,
    /// Anything: a plain proxy is measured.
    Nothing,
}

/// A listening upstream. Its threads end with the process: closing early would be a failure to
/// those who are being measured.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    check: Check,
    pacer: Pacer,
    /// Connections open now, and the most there were at once.
    open: AtomicU64,
    most: AtomicU64,
    /// Threads that wait for a connection.
    idle: AtomicU64,
    /// How many of the next requests find an exhausted slot.
    refusals: AtomicU64,
}

impl Upstream {
    /// Listens on loopback; port 0 is any free one.
    pub(crate) fn start(port: u16, check: Check) -> Result<Self, Failure> {
        events::begin();
        let failed = |cause: std::io::Error| {
            format!("failed to listen on port `{port}` as upstream: {cause}")
        };
        let listener = TcpListener::bind(("127.0.0.1", port)).map_err(failed)?;
        // std's 128 are too few for 500 that connect at once: some would wait a second.
        Backlog::new(1024)
            .and_then(|backlog| listen(&listener, backlog))
            .map_err(|cause| failed(cause.into()))?;
        let address = listener.local_addr().map_err(failed)?;
        let shared = Arc::new(Shared {
            check,
            pacer: Pacer::start(),
            open: AtomicU64::new(0),
            most: AtomicU64::new(0),
            idle: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
        });
        let upstream = Self { address, shared: Arc::clone(&shared) };
        let listener = Arc::new(listener);
        thread::spawn(move || accept(&listener, &shared));
        Ok(upstream)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The most connections that were open to it at one time.
    pub(crate) fn most_connections(&self) -> u64 {
        self.shared.most.load(Ordering::Relaxed)
    }

    /// Lets the next `count` requests find an exhausted slot, whichever it is.
    pub(crate) fn refuse(&self, count: u64) {
        self.shared.refusals.store(count, Ordering::Relaxed);
    }
}

/// Takes one connection after another. Starting a thread costs as much as some requests: who is
/// measured may keep its connections, and the direct client, which cannot, shall not pay for that.
fn accept(listener: &Arc<TcpListener>, shared: &Arc<Shared>) {
    while shared.idle.fetch_add(1, Ordering::Relaxed) < IDLE_THREADS {
        let accepted = listener.accept();
        if shared.idle.fetch_sub(1, Ordering::Relaxed) == 1 {
            let (listener, shared) = (Arc::clone(listener), Arc::clone(shared));
            thread::spawn(move || accept(&listener, &shared));
        }
        let Ok((stream, _)) = accepted else { continue };
        let open = shared.open.fetch_add(1, Ordering::Relaxed) + 1;
        shared.most.fetch_max(open, Ordering::Relaxed);
        // A connection that breaks shows as a failed request at its client.
        let _ = serve(stream, shared);
        shared.open.fetch_sub(1, Ordering::Relaxed);
    }
    shared.idle.fetch_sub(1, Ordering::Relaxed);
}

fn serve(stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    // No read limit: a kept-alive connection may rest through the other targets' rounds.
    stream.set_write_timeout(Some(LIMIT))?;
    let stream = Arc::new(stream);
    let small = whole_answer("200 OK", &answer(SMALL_ANSWER));
    let mut large = (SMALL_ANSWER, Vec::new());
    let mut flat_out = (0, Vec::new());
    let mut inbox = Inbox::new();
    while let Some(wish) = inbox.next(&stream, shared.check)? {
        match wish {
            Wish::Refusal(cause) => {
                let answer = whole_answer("400 Bad Request\r\nconnection: close", cause.as_bytes());
                return (&*stream).write_all(&answer);
            }
            _ if shared.refuses() => {
                let answer = whole_answer("403 Forbidden", EXHAUSTED.as_bytes());
                (&*stream).write_all(&answer)?;
            }
            Wish::Answer(SMALL_ANSWER) => (&*stream).write_all(&small)?,
            Wish::Answer(size) => {
                if large.0 != size {
                    large = (size, whole_answer("200 OK", &answer(size)));
                }
                (&*stream).write_all(&large.1)?;
            }
            Wish::Stream { events, pause: Duration::ZERO } => {
                if flat_out.0 != events {
                    flat_out = (events, events::unstamped_writes(events));
                }
                for write in &flat_out.1 {
                    (&*stream).write_all(write)?;
                }
            }
            Wish::Stream { events, pause } => {
                shared.pacer.begin(Paced::new(Arc::clone(&stream), events, pause))?;
            }
        }
    }
    Ok(())
}

impl Shared {
    fn refuses(&self) -> bool {
        let count = |count: u64| count.checked_sub(1);
        self.refusals.load(Ordering::Relaxed) > 0
            && self.refusals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count).is_ok()
    }
}

fn whole_answer(status: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}
