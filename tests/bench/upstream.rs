//! The upstream that stands behind every candidate: a thread per connection, prebuilt answers,
//! one write each, and one pacer for all streams.
//!
//! It must cost as little as possible, and still refuse what a working proxy would not send.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use dashscope_proxy::clock;
use memchr::memmem;
use nix::sys::socket::{Backlog, listen};

use crate::pacer::{Paced, Pacer};
use crate::target::{Kind, MODELS, UPSTREAM_KEYS};
use crate::{Failure, LIMIT};

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
const SMALL_ANSWER: usize = 350;

/// What DashScope says when a slot's free quota is used up.
const EXHAUSTED: &str = concat!(
    r#"{"error":{"message":"The free tier of the model has been exhausted.","type":"#,
    r#""AllocationQuota.FreeTierOnly","code":"AllocationQuota.FreeTierOnly"}}"#
);

/// The last event of a stream.
pub(crate) const DONE: &str = "data: [DONE]";

/// Upstream and client share a process and so this moment: stamps of one mean something to the
/// other.
static START: LazyLock<Instant> = LazyLock::new(clock::instant);

/// The moment as an event's stamp: nanoseconds since the process began to measure.
pub(crate) fn stamp(at: Instant) -> u64 {
    u64::try_from(at.saturating_duration_since(*START).as_nanos()).unwrap_or(u64::MAX)
}

/// Event `number`, sent at `stamp`, without the blank line that ends it.
pub(crate) fn event(number: u64, stamp: u64) -> String {
    format!(
        r#"data: {{"at":{stamp},"n":{number},"object":"chat.completion.chunk","model":"m1","choices":[{{"index":0,"delta":{{"content":"a word"}}}}]}}"#
    )
}

/// The body of the answer to a request that asks for no stream.
pub(crate) fn answer_to(kind: Kind) -> Arc<[u8]> {
    answer(match kind {
        Kind::Answer(size) => size,
        Kind::Small | Kind::Body(_) | Kind::Stream { .. } => SMALL_ANSWER,
    })
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
    /// How many of the next requests find an exhausted slot.
    refusals: AtomicU64,
}

impl Upstream {
    /// Listens on loopback; port 0 is any free one.
    pub(crate) fn start(port: u16, check: Check) -> Result<Self, Failure> {
        LazyLock::force(&START);
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
            refusals: AtomicU64::new(0),
        });
        let upstream = Self { address, shared: Arc::clone(&shared) };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let open = shared.open.fetch_add(1, Ordering::Relaxed) + 1;
                shared.most.fetch_max(open, Ordering::Relaxed);
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    // A connection that breaks shows as a failed request at its client.
                    let _ = serve(stream, &shared);
                    shared.open.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
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

fn serve(stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    // No read limit: a kept-alive connection may rest through the other targets' rounds.
    stream.set_write_timeout(Some(LIMIT))?;
    let stream = Arc::new(stream);
    let small = whole_answer("200 OK", &answer(SMALL_ANSWER));
    let mut large = (SMALL_ANSWER, Vec::new());
    let mut buffer = vec![0; 8 * 1024];
    let mut filled = 0;
    loop {
        let request = loop {
            match read_request(&buffer[..filled], shared.check) {
                Some(request) => break request,
                None => {
                    if filled == buffer.len() {
                        buffer.resize(buffer.len() * 4, 0);
                    }
                    match (&*stream).read(&mut buffer[filled..])? {
                        0 => return Ok(()),
                        count => filled += count,
                    }
                }
            }
        };
        match request.wish {
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
            Wish::Stream { events, pause } => {
                shared.pacer.begin(Paced::new(Arc::clone(&stream), events, pause))?;
            }
        }
        buffer.copy_within(request.length..filled, 0);
        filled -= request.length;
    }
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

struct Request {
    length: usize,
    wish: Wish,
}

enum Wish {
    Answer(usize),
    Stream { events: u64, pause: Duration },
    Refusal(&'static str),
}

/// The request at the start of `bytes`, once all of it is there.
fn read_request(bytes: &[u8], check: Check) -> Option<Request> {
    let refusal = |cause| Some(Request { length: bytes.len(), wish: Wish::Refusal(cause) });
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut head = httparse::Request::new(&mut headers);
    let body_start = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return None,
        Err(_) => return refusal("the request head is malformed"),
    };
    let header = |name: &str| {
        let found = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(found.value).ok()
    };
    let Some(length) = header("content-length").and_then(|value| value.parse::<usize>().ok())
    else {
        return refusal("the request has no content-length");
    };
    let end = body_start.saturating_add(length);
    // What it asks for stands in its first bytes; the rest of a large one is only counted.
    let wishes = bytes.get(body_start..end)?;
    let wishes = &wishes[..wishes.len().min(256)];

    if head.method != Some("POST")
        || !head.path.is_some_and(|path| path.ends_with("/chat/completions"))
    {
        return refusal("the request is not for chat completions");
    }
    if check == Check::KeyAndModel {
        let key = header("authorization").and_then(|value| value.strip_prefix("Bearer "));
        if !key.is_some_and(|key| UPSTREAM_KEYS.contains(&key)) {
            return refusal("the request has no key of the pool");
        }
        if !MODELS.iter().any(|model| contains(wishes, &format!(r#""model":"{model}""#))) {
            return refusal("the request has no model of the pool");
        }
    }
    let wish = if contains(wishes, r#""stream":true"#) {
        match (number(wishes, "events"), number(wishes, "pause")) {
            (Some(events), Some(pause)) => {
                Wish::Stream { events, pause: Duration::from_micros(pause) }
            }
            _ => return refusal("the stream has no events or no pause"),
        }
    } else {
        let size = number(wishes, "answer").and_then(|size| usize::try_from(size).ok());
        Wish::Answer(size.unwrap_or(SMALL_ANSWER))
    };
    Some(Request { length: end, wish })
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
