//! Answers that upstream does not give whole, or frames in two ways at once.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]

use std::io::{Read, Write};
use std::time::Duration;

use dashscope_proxy::clock;
use dashscope_proxy::standin::{End, Framing, Part, Reply, StandIn};

use crate::envelope::{CHAT, MESSAGES};
use crate::failover::BODY;
use crate::harness::{LIMIT, Proxy, RawUpstream, post};

/// A proxy before this upstream.
fn before<'a>(standin: &'a StandIn, upstream: &RawUpstream) -> Proxy<'a> {
    let origin = upstream.origin();
    Proxy::builder(standin)
        .env("OPENAI_UPSTREAM_BASE_URL", format!("{origin}/compatible-mode/v1"))
        .env("UPSTREAM_BASE_URL", format!("{origin}/apps/anthropic"))
        .env("NATIVE_UPSTREAM_BASE_URL", format!("{origin}/api/v1"))
        .start()
}

#[test]
fn an_answer_that_breaks_off_before_its_first_byte_is_a_502_and_is_not_repeated() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    // The second time the connection is a reused one.
    for warm in [false, true] {
        for content_type in ["application/json", "text/event-stream"] {
            for framing in [Framing::Chunked, Framing::Length] {
                for (end, after) in [(End::Fin, 0), (End::Reset, 0), (End::Reset, 300)] {
                    if warm {
                        assert_eq!(post(&proxy, CHAT, BODY).status, 200);
                    }
                    let calls = standin.call_count();
                    standin.reply_once(
                        "*",
                        "*",
                        Reply::Stream {
                            headers: vec![("content-type".to_owned(), content_type.to_owned())],
                            parts: vec![Part::after(Duration::from_millis(after), "")],
                            framing,
                            end,
                        },
                    );
                    let answer = post(&proxy, CHAT, BODY);
                    assert_eq!(answer.status, 502, "{content_type} {end:?} {after} {answer:?}");
                    assert_eq!(standin.call_count(), calls + 1, "asked again");
                }
            }
        }
    }
}

#[test]
fn a_length_of_which_nothing_comes_is_a_502_too() {
    for head in [
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 5\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 5\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 5\r\n\r\n",
        "HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\n\r\n",
        "HTTP/1.1 429 Too Many\r\ntransfer-encoding: chunked\r\n\r\n",
    ] {
        let (standin, upstream) = (StandIn::start().unwrap(), RawUpstream::saying(head));
        let proxy = before(&standin, &upstream);
        let answer = post(&proxy, CHAT, BODY);
        assert_eq!(answer.status, 502, "{head} {answer:?}");
    }
}

#[test]
fn where_there_is_no_body_nothing_is_unpacked() {
    for (head, status) in [
        ("HTTP/1.1 204 No Content\r\ncontent-encoding: gzip\r\n\r\n", 204),
        ("HTTP/1.1 304 Not Modified\r\ncontent-encoding: gzip\r\n\r\n", 304),
        ("HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 0\r\n\r\n", 200),
        (
            "HTTP/1.1 200 OK\r\nContent-Encoding: GZIP\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            200,
        ),
        ("HTTP/1.1 400 Bad\r\ncontent-encoding: gzip\r\ncontent-length: 0\r\n\r\n", 400),
        (
            "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-type: text/event-stream\r\ncontent-length: 0\r\n\r\n",
            200,
        ),
    ] {
        let (standin, upstream) = (StandIn::start().unwrap(), RawUpstream::saying(head));
        let proxy = before(&standin, &upstream);
        let answer = post(&proxy, MESSAGES, BODY);
        assert_eq!((answer.status, answer.body.len()), (status, 0), "{head}");
    }
}

#[test]
fn of_two_framings_chunked_counts() {
    for length in ["5", "0", "500"] {
        let bytes = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
             transfer-encoding: chunked\r\n\r\n7\r\n{{\"a\":1}}\r\n0\r\n\r\n"
        );
        let (standin, upstream) = (StandIn::start().unwrap(), RawUpstream::saying(bytes));
        let proxy = before(&standin, &upstream);
        let answer = post(&proxy, CHAT, BODY);
        assert_eq!((answer.status, answer.text().as_str()), (200, "{\"a\":1}"), "{length}");
    }
}

#[test]
fn another_protocol_and_a_line_without_end_are_a_502() {
    let upgrade =
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\nx";
    let upstream = RawUpstream::saying(upgrade);
    let standin = StandIn::start().unwrap();
    assert_eq!(post(&before(&standin, &upstream), CHAT, BODY).status, 502);

    let line = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;x=".to_owned();
    let endless = RawUpstream::start(move |stream, _| {
        let _ = stream.write_all(line.as_bytes());
        let piece = vec![b'0'; 1 << 20];
        while stream.write_all(&piece).is_ok() {}
    });
    let proxy = before(&standin, &endless);
    assert_eq!(post(&proxy, CHAT, BODY).status, 502);
    let status = std::fs::read_to_string(format!("/proc/{}/status", proxy.pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 60 << 10, "{peak} kB");
}

#[test]
fn a_connection_that_closes_while_its_request_may_be_worked_on_is_not_replaced() {
    let upstream = RawUpstream::start(|stream, call| {
        let answer =
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
        if call == 1 {
            stream.write_all(answer.as_bytes()).unwrap();
            // The next request on this connection, and two seconds of work.
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            let mut bytes = [0; 4096];
            assert!(stream.read(&mut bytes).unwrap() > 0);
            let since = clock::instant();
            while since.elapsed() < Duration::from_secs(2) {
                stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
                let _ = stream.read(&mut bytes);
            }
        } else {
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    let standin = StandIn::start().unwrap();
    let proxy = before(&standin, &upstream);
    assert_eq!(post(&proxy, CHAT, BODY).status, 200);
    let answer = post(&proxy, CHAT, BODY);
    assert_eq!((answer.status, upstream.calls()), (502, 1), "{answer:?}");
}
