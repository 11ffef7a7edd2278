//! The way back to the client: every byte as it comes, a cut as a cut, an end as an end.

use std::io::Read;
use std::net::Shutdown;

use dashscope_proxy::clock;
use dashscope_proxy::standin::{End, Framing, Gate, Part, Reply, StandIn};
use serde_json::Value;

use crate::envelope::{CHAT, MESSAGES};
use crate::harness::{AUTH, Client, How, LIMIT, PROXY_KEY, Proxy, post, record};

const BODY: &[u8] = br#"{"model":"any","messages":[]}"#;
const STREAMED: &[u8] = br#"{"model":"any","stream":true,"messages":[]}"#;

const SSE: &str = "text/event-stream;charset=UTF-8";
const JSON: &str = "application/json";

fn typed(content_type: &str) -> Vec<(String, String)> {
    vec![("content-type".to_owned(), content_type.to_owned())]
}

fn gated(gate: &Gate, content_type: &str, parts: &[&str], framing: Framing, end: End) -> Reply {
    let parts = parts.iter().map(|part| part.as_bytes().to_vec()).collect();
    Reply::Gated { gate: gate.clone(), headers: typed(content_type), parts, framing, end }
}

/// A connection on which a request was sent.
fn ask(proxy: &Proxy<'_>, path: &str) -> Client {
    let mut client = proxy.connect();
    client.send("POST", path, &[AUTH], STREAMED);
    client
}

/// The same from a client that knows no chunks.
fn ask_http10(proxy: &Proxy<'_>) -> Client {
    let mut client = proxy.connect();
    let head = format!(
        "POST {CHAT} HTTP/1.0\r\nauthorization: Bearer {PROXY_KEY}\r\ncontent-length: {}\r\n\r\n",
        STREAMED.len()
    );
    client.send_raw(&[head.as_bytes(), STREAMED].concat()).expect("a request sent");
    client
}

/// Reads exactly this many bytes of the body, in however many reads.
fn receive(client: &mut Client, count: usize) -> String {
    let mut bytes = Vec::new();
    while bytes.len() < count {
        bytes.extend(client.read_chunk().expect("no cut yet").expect("no end yet"));
    }
    assert_eq!(bytes.len(), count, "{}", String::from_utf8_lossy(&bytes));
    String::from_utf8(bytes).expect("text")
}

#[test]
fn each_event_reaches_the_client_before_the_next_one_is_sent() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let streams: [(&str, [&str; 4]); 3] = [
        (
            CHAT,
            [
                "data: {\"choices\":[{\"delta\":{\"content\":\"\"}}]}\n\n",
                "data: {\"choices\":[{\"delta\":{\"content\":\"汉\"}}]}\n\n",
                "data: {\"choices\":[],\"usage\":{}}\n\n",
                "data: [DONE]\n\n",
            ],
        ),
        (
            MESSAGES,
            [
                "event:message_start\ndata:{\"type\":\"message_start\"}\n\n",
                "event:ping\ndata:{\"type\":\"ping\"}\n\n",
                "event:content_block_delta\ndata:{\"type\":\"content_block_delta\"}\n\n",
                "event:message_stop\ndata:{\"type\":\"message_stop\"}\n\n",
            ],
        ),
        (
            CHAT,
            [
                "id:1\nevent:result\n:HTTP_STATUS/200\ndata:{\"output\":{\"text\":\"a\"}}\n\n",
                "id:2\nevent:result\n:HTTP_STATUS/200\ndata:{\"output\":{\"text\":\"b\"}}\n\n",
                ": a comment\n\n",
                "id:3\r\nevent:result\r\ndata:{}\r\n\r\n",
            ],
        ),
    ];
    for (path, events) in streams {
        for framing in [Framing::Chunked, Framing::Length, Framing::UntilClose] {
            let gate = standin.gate();
            standin.reply("*", "*", gated(&gate, SSE, &events, framing, End::Clean));
            let mut client = ask(&proxy, path);
            for (index, event) in events.into_iter().enumerate() {
                gate.release();
                if index == 0 {
                    let head = client.read_head().unwrap();
                    assert_eq!((head.status, head.header("content-type")), (200, Some(SSE)));
                    assert_eq!(head.header("x-accel-buffering"), Some("no"));
                }
                assert_eq!(receive(&mut client, event.len()), event, "{framing:?}");
            }
            assert_eq!(client.read_body().unwrap(), b"");
        }
    }
    assert_eq!(standin.call_count(), 9);
}

#[test]
fn an_http_1_0_client_gets_each_event_too_and_the_end_of_the_connection_as_the_end() {
    let standin = StandIn::start().unwrap();
    let gate = standin.gate();
    let events = ["data: 1\n\n", "data: 2\n\n"];
    standin.reply("*", "*", gated(&gate, SSE, &events, Framing::Chunked, End::Clean));
    let proxy = Proxy::start(&standin);
    let mut client = ask_http10(&proxy);
    gate.release();
    let head = client.read_head().unwrap();
    assert_eq!((head.status, head.header("transfer-encoding")), (200, None));
    assert_eq!(head.header("content-length"), None);
    assert_eq!(receive(&mut client, events[0].len()), events[0]);
    gate.release();
    assert_eq!(client.read_body().unwrap(), events[1].as_bytes());
}

#[test]
fn a_body_that_is_no_stream_passes_as_it_comes_too() {
    let standin = StandIn::start().unwrap();
    let gate = standin.gate();
    standin.reply("*", "*", gated(&gate, JSON, &["{\"a\":", "1}"], Framing::Chunked, End::Clean));
    let proxy = Proxy::start(&standin);
    let mut client = ask(&proxy, CHAT);
    gate.release();
    let head = client.read_head().unwrap();
    assert_eq!((head.status, head.header("x-accel-buffering")), (200, None));
    assert_eq!(receive(&mut client, 5), "{\"a\":");
    gate.release();
    assert_eq!(client.read_body().unwrap(), b"1}");
}

#[test]
fn bytes_that_come_one_by_one_pass_untouched() {
    const TEXT: &str = "\u{feff}: c\r\nid: 1\r\ndata: {\"t\":\"汉字😀\"}\r\n\r\ndata:naïve\rdata: x\n\n\
        event: end\ndata: [DONE]\n\ndata: no blank line";
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let mut client = proxy.connect();
    for content_type in [SSE, JSON, "application/octet-stream"] {
        for framing in [Framing::Chunked, Framing::Length, Framing::UntilClose] {
            let parts = TEXT.as_bytes().chunks(1).map(Part::now).collect();
            let headers = typed(content_type);
            standin.reply("*", "*", Reply::Stream { headers, parts, framing, end: End::Clean });
            client.send("POST", MESSAGES, &[AUTH], STREAMED);
            let answer = client.read_answer().unwrap();
            assert_eq!(answer.text(), TEXT, "{content_type} {framing:?}");
        }
    }
}

#[test]
fn bytes_that_are_no_text_pass_untouched_in_a_stream() {
    let standin = StandIn::start().unwrap();
    let mut body = b"data: \xff\xfe\x00\x80\n\n".to_vec();
    body.extend((0..=255).cycle().take(200_000));
    let parts = body.chunks(7_001).map(Part::now).collect();
    standin.reply("*", "*", Reply::sse(parts, End::Clean));
    let proxy = Proxy::start(&standin);
    assert!(post(&proxy, CHAT, STREAMED).body == body);
}

#[test]
fn a_cut_stream_looks_cut_whatever_its_framing_and_whoever_reads_it() {
    const FIRST: &str = "data: {\"choices\":[]}\n\n";
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let cuts = [
        (Framing::Chunked, End::Fin),
        (Framing::Chunked, End::Reset),
        (Framing::Length, End::Fin),
        (Framing::Length, End::Reset),
        (Framing::UntilClose, End::Reset),
    ];
    let mut calls = 0;
    for (framing, end) in cuts {
        for content_type in [SSE, JSON] {
            for is_http10 in [false, true] {
                let case = format!("{framing:?} {end:?} {content_type} HTTP/1.0={is_http10}");
                let gate = standin.gate();
                standin.reply("*", "*", gated(&gate, content_type, &[FIRST, ""], framing, end));
                let mut client = if is_http10 { ask_http10(&proxy) } else { ask(&proxy, MESSAGES) };
                calls += 1;
                gate.release();
                assert_eq!(client.read_head().unwrap().status, 200, "{case}");
                assert_eq!(receive(&mut client, FIRST.len()), FIRST, "{case}");
                gate.release();
                match client.read_body() {
                    Ok(rest) => panic!("{case} looks whole: {:?}", String::from_utf8_lossy(&rest)),
                    Err(cut) => {
                        assert_ne!(cut.how, How::TimedOut, "{case}");
                        assert_eq!(cut.received, b"", "{case}");
                    }
                }
                // Once the client has bytes, there is no second try.
                assert_eq!(standin.call_count(), calls, "{case}");
            }
        }
    }
    assert!(proxy.wait_log("end=cut", LIMIT));
}

#[test]
fn a_cut_inside_an_event_or_a_character_hands_on_what_came_and_looks_cut() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let text = "data: 1\n\ndata: {\"text\":\"汉".as_bytes();
    let text = &text[..text.len() - 1];
    standin.reply("*", "*", Reply::sse(vec![Part::now(text)], End::Fin));
    let mut client = ask(&proxy, CHAT);
    client.read_head().unwrap();
    let cut = client.read_body().unwrap_err();
    assert_ne!(cut.how, How::TimedOut);
    assert_eq!(cut.received, text);
    assert_eq!(standin.call_count(), 1);
}

#[test]
fn a_clean_end_is_a_clean_end_with_or_without_done() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let mut client = proxy.connect();
    let ends = [
        (Framing::Chunked, End::Clean),
        (Framing::Length, End::Clean),
        (Framing::UntilClose, End::Clean),
        (Framing::UntilClose, End::Fin),
    ];
    for text in ["data: 1\n\ndata: [DONE]\n\n", "data: 1\n\n", "data: 1", ""] {
        for (framing, end) in ends {
            let (headers, parts) = (typed(SSE), vec![Part::now(text)]);
            standin.reply("*", "*", Reply::Stream { headers, parts, framing, end });
            // All on one connection: it goes on being of use.
            client.send("POST", CHAT, &[AUTH], STREAMED);
            let answer = client.read_answer().unwrap();
            assert_eq!((answer.status, answer.text().as_str()), (200, text), "{framing:?} {end:?}");
        }
    }
}

#[test]
fn a_keep_alive_or_half_an_event_is_not_held_for_ever() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    for (first, second) in [(": keep-alive\n\n", "data: 1\n\n"), ("data: {\"ha", "lf\":1}\n\n")] {
        let gate = standin.gate();
        standin.reply("*", "*", gated(&gate, SSE, &[first, second], Framing::Chunked, End::Clean));
        let mut client = ask(&proxy, CHAT);
        gate.release();
        assert_eq!(client.read_head().unwrap().status, 200);
        assert_eq!(receive(&mut client, first.len()), first);
        gate.release();
        assert_eq!(client.read_body().unwrap(), second.as_bytes());
    }
}

#[test]
fn a_first_event_larger_than_what_is_held_passes_whole() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let text = format!("data: {}\n\ndata: [DONE]\n\n", "汉".repeat(700_000));
    standin.reply("*", "*", Reply::sse(vec![Part::now(&*text)], End::Clean));
    assert!(post(&proxy, CHAT, STREAMED).text() == text);
}

/// Lets an endless stream go on until the stand-in sees that call's connection closed.
fn closes_while_streaming(standin: &StandIn, gate: &Gate, call: usize) -> bool {
    let deadline = clock::instant() + LIMIT;
    while clock::instant() < deadline {
        gate.release();
        if standin.wait_closed(call, std::time::Duration::from_millis(20)) {
            return true;
        }
    }
    false
}

fn endless(gate: &Gate) -> Reply {
    Reply::gated_sse(gate, vec!["data: {\"choices\":[]}\n\n"; 10_000], End::Hang)
}

#[test]
fn a_client_that_leaves_in_mid_stream_ends_the_call_and_teaches_nothing() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin).env("WORKERS", "1").start();
    for (call, (goes_on, resets)) in
        [(true, false), (true, true), (false, false), (false, true)].into_iter().enumerate()
    {
        let gate = standin.gate();
        standin.reply_once("*", "*", endless(&gate));
        let mut client = ask(&proxy, CHAT);
        gate.release();
        client.read_head().unwrap();
        client.read_chunk().unwrap().unwrap();
        gate.release();
        client.read_chunk().unwrap().unwrap();
        if resets {
            let at_once = nix::libc::linger { l_onoff: 1, l_linger: 0 };
            let linger = nix::sys::socket::sockopt::Linger;
            nix::sys::socket::setsockopt(client.socket(), linger, &at_once).unwrap();
        } else {
            client.socket().shutdown(Shutdown::Both).unwrap();
        }
        drop(client);
        let closed = match goes_on {
            true => closes_while_streaming(&standin, &gate, call),
            false => standin.wait_closed(call, LIMIT),
        };
        assert!(closed, "goes_on={goes_on} resets={resets}");
    }
    // The only worker is free.
    let answer = post(&proxy, MESSAGES, BODY);
    assert_eq!((answer.status, answer.header("x-proxy-model")), (200, Some("m1")));
    assert!(proxy.log().contains("end=client_left"));
    let slot = record(&proxy.final_state(), "k1", "m1");
    let learned = (&slot["cooldownUntil"], &slot["failureCount"], &slot["lastError"]);
    assert_eq!(learned, (&0.into(), &0.into(), &Value::Null));
}

#[test]
fn a_client_that_leaves_before_the_first_byte_ends_the_call_and_teaches_nothing() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin).env("WORKERS", "1").start();
    let gate = standin.gate();
    let silent = gated(&gate, SSE, &["data: 1\n\n"], Framing::Chunked, End::Clean);
    for (call, reply) in [Reply::HangBeforeHead, silent].into_iter().enumerate() {
        standin.reply_once("*", "*", reply);
        let client = ask(&proxy, CHAT);
        assert!(standin.wait_calls(call + 1, LIMIT));
        drop(client);
        assert!(standin.wait_closed(call, LIMIT), "call {call}");
        // What is learned from a request is on disk before it is logged.
        assert!(proxy.wait_log(&format!("request id={} ", call + 1), LIMIT));
    }
    assert_eq!(record(&proxy.state(), "k1", "m1")["lastUsedAt"], Value::Null);
    assert_eq!(post(&proxy, MESSAGES, BODY).status, 200);
    assert_eq!(standin.slots(), vec!["k1/m1"; 3]);
    let slot = record(&proxy.final_state(), "k1", "m1");
    assert_eq!((&slot["cooldownUntil"], &slot["failureCount"]), (&0.into(), &0.into()));
}

#[test]
fn a_large_answer_arrives_exactly() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let body: Vec<u8> =
        (0..5_000_000_u32).map(|index| (index.wrapping_mul(index) >> 7) as u8).collect();
    for framing in [Framing::Length, Framing::Chunked, Framing::UntilClose] {
        let headers = typed("application/octet-stream");
        standin.reply(
            "*",
            "*",
            Reply::Answer { status: 200, headers, body: body.clone(), framing },
        );
        let answer = post(&proxy, CHAT, BODY);
        assert!(answer.body == body, "{framing:?}: {} bytes", answer.body.len());
        let length = (framing == Framing::Length).then_some("5000000");
        assert_eq!(answer.header("content-length"), length, "{framing:?}");
    }
    let headers = typed("application/octet-stream");
    let framing = Framing::Chunked;
    standin.reply("*", "*", Reply::Answer { status: 200, headers, body: body.clone(), framing });
    assert!(ask_http10(&proxy).read_answer().unwrap().body == body);
}

#[test]
fn a_stream_that_falls_silent_ends_as_a_cut() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin).env("STREAM_IDLE_TIMEOUT_SECONDS", "1").start();
    for (call, content_type) in [SSE, JSON].into_iter().enumerate() {
        let (headers, parts) = (typed(content_type), vec![Part::now("data: 1\n\n")]);
        let framing = Framing::Chunked;
        standin.reply("*", "*", Reply::Stream { headers, parts, framing, end: End::Hang });
        let mut client = ask(&proxy, CHAT);
        client.read_head().unwrap();
        let cut = client.read_body().unwrap_err();
        assert_ne!(cut.how, How::TimedOut);
        assert_eq!(cut.received, b"data: 1\n\n");
        assert!(standin.wait_closed(call, LIMIT));
        assert_eq!(standin.call_count(), call + 1);
    }
}

#[test]
fn a_stream_may_last_longer_than_its_silences() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin).env("STREAM_IDLE_TIMEOUT_SECONDS", "2").start();
    let event = Part::after(std::time::Duration::from_millis(300), "data: 1\n\n");
    standin.reply("*", "*", Reply::sse(vec![event; 10], End::Clean));
    assert_eq!(post(&proxy, CHAT, STREAMED).text(), "data: 1\n\n".repeat(10));
}

#[test]
fn a_cut_connection_is_of_no_further_use_to_its_client() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    standin.reply("*", "*", Reply::sse(vec![Part::now("data: 1\n\n")], End::Fin));
    let client = ask(&proxy, CHAT);
    let mut rest = Vec::new();
    client.socket().set_read_timeout(Some(LIMIT)).unwrap();
    // It ends although the client asked for keep-alive; by which kind of packet is no matter.
    let end = client.socket().read_to_end(&mut rest);
    assert!(end.is_ok() || end.is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock));
    assert!(!rest.ends_with(b"0\r\n\r\n"), "{}", String::from_utf8_lossy(&rest));
}
