//! The static upstream: a thread per connection, prebuilt answers, one write each.
//!
//! It must cost as little as possible, and still refuse what a working proxy would not send.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use dashscope_proxy::clock;

use crate::target::{MODELS, UPSTREAM_KEYS};
use crate::{Failure, LIMIT};

/// How many events a stream has.
pub(crate) const EVENTS: u64 = 200;
const PAUSE: Duration = Duration::from_millis(1);

/// The body of every answer that is no stream.
pub(crate) const ANSWER: &str = concat!(
    r#"{"id":"chatcmpl-bench","object":"chat.completion","created":1700000000,"model":"m1","#,
    r#""choices":[{"index":0,"message":{"role":"assistant","content":"Danube, Inn and Ilz meet "#,
    r#"there; the town is named after a Roman cohort and not after any of them."},"#,
    r#""finish_reason":"stop"}],"usage":{"prompt_tokens":31,"completion_tokens":23,"#,
    r#""total_tokens":54}}"#
);

const STREAM_HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                           cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";

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
#[derive(Debug)]
pub(crate) struct Upstream {
    address: SocketAddr,
    connections: Arc<AtomicU64>,
}

impl Upstream {
    /// Listens on loopback; port 0 is any free one.
    pub(crate) fn start(port: u16, check: Check) -> Result<Self, Failure> {
        LazyLock::force(&START);
        let failed = |cause| format!("failed to listen on port `{port}` as upstream: {cause}");
        let listener = TcpListener::bind(("127.0.0.1", port)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let connections = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&connections);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                counter.fetch_add(1, Ordering::Relaxed);
                // A connection that breaks shows as a failed request at its client.
                thread::spawn(move || serve(stream, check));
            }
        });
        Ok(Self { address, connections })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections were opened to it so far.
    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }
}

fn serve(mut stream: TcpStream, check: Check) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    // No read limit: a kept-alive connection may rest through the other target's rounds.
    stream.set_write_timeout(Some(LIMIT))?;
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{ANSWER}",
        ANSWER.len()
    );
    let mut buffer = vec![0; 64 * 1024];
    let mut filled = 0;
    loop {
        let request = loop {
            match read_request(&buffer[..filled], check) {
                Some(request) => break request,
                None if filled == buffer.len() => return Err(ErrorKind::InvalidData.into()),
                None => match stream.read(&mut buffer[filled..])? {
                    0 => return Ok(()),
                    count => filled += count,
                },
            }
        };
        match request.wish {
            Wish::Answer => stream.write_all(answer.as_bytes())?,
            Wish::Stream => write_stream(&mut stream)?,
            Wish::Refusal(cause) => {
                let length = cause.len();
                let head = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length:";
                return stream.write_all(format!("{head} {length}\r\n\r\n{cause}").as_bytes());
            }
        }
        buffer.copy_within(request.length..filled, 0);
        filled -= request.length;
    }
}

struct Request {
    length: usize,
    wish: Wish,
}

enum Wish {
    Answer,
    Stream,
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
    let body = bytes.get(body_start..end)?;

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
        if !MODELS.iter().any(|model| contains(body, &format!(r#""model":"{model}""#))) {
            return refusal("the request has no model of the pool");
        }
    }
    let wish = if contains(body, r#""stream":true"#) { Wish::Stream } else { Wish::Answer };
    Some(Request { length: end, wish })
}

fn contains(body: &[u8], text: &str) -> bool {
    body.windows(text.len()).any(|window| window == text.as_bytes())
}

/// Head, events and end, each in its own write; the events at fixed times, so that a late one
/// does not delay the following.
fn write_stream(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(STREAM_HEAD.as_bytes())?;
    let mut due = clock::instant();
    for number in 0..EVENTS {
        wait_until(due);
        due += PAUSE;
        let event = event(number, stamp(clock::instant()));
        stream.write_all(format!("{:x}\r\n{event}\n\n\r\n", event.len() + 2).as_bytes())?;
    }
    stream.write_all(format!("{:x}\r\n{DONE}\n\n\r\n0\r\n\r\n", DONE.len() + 2).as_bytes())
}

fn wait_until(due: Instant) {
    loop {
        let left = due.saturating_duration_since(clock::instant());
        if left.is_zero() {
            return;
        }
        thread::park_timeout(left);
    }
}
