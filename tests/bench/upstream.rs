//! The upstream that stands behind every candidate: a thread per connection, prebuilt answers,
//! one write each, and one pacer for all streams.
//!
//! It must cost as little as possible, and still refuse what a working proxy would not send.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use dashscope_proxy::clock;
use memchr::memmem;

use crate::pacer::{Paced, Pacer};
use crate::target::{MODELS, UPSTREAM_KEYS};
use crate::{Failure, LIMIT};

const ANSWER: &str = concat!(
    r#"{"id":"chatcmpl-bench","object":"chat.completion","created":1700000000,"model":"m1","#,
    r#""choices":[{"index":0,"message":{"role":"assistant","content":"Danube, Inn and Ilz meet "#,
    r#"there; the town is named after a Roman cohort and not after any of them."},"#,
    r#""finish_reason":"stop"}],"usage":{"prompt_tokens":31,"completion_tokens":23,"#,
    r#""total_tokens":54}}"#
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
pub(crate) fn answer() -> Arc<[u8]> {
    ANSWER.as_bytes().into()
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
}

impl Upstream {
    /// Listens on loopback; port 0 is any free one.
    pub(crate) fn start(port: u16, check: Check) -> Result<Self, Failure> {
        LazyLock::force(&START);
        let failed = |cause| format!("failed to listen on port `{port}` as upstream: {cause}");
        let listener = TcpListener::bind(("127.0.0.1", port)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let shared = Arc::new(Shared {
            check,
            pacer: Pacer::start(),
            open: AtomicU64::new(0),
            most: AtomicU64::new(0),
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
}

fn serve(stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    // No read limit: a kept-alive connection may rest through the other targets' rounds.
    stream.set_write_timeout(Some(LIMIT))?;
    let stream = Arc::new(stream);
    let small = whole_answer("200 OK", ANSWER.as_bytes());
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
            Wish::Answer => (&*stream).write_all(&small)?,
            Wish::Stream { events, pause } => {
                shared.pacer.begin(Paced::new(Arc::clone(&stream), events, pause))?;
            }
        }
        buffer.copy_within(request.length..filled, 0);
        filled -= request.length;
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
    Answer,
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
        Wish::Answer
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
