//! Clients and front proxies as they are: what they send besides a plain request, and what must not
//! get through.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use dashscope_proxy::standin::{End, Framing, Part, Reply, StandIn};

use crate::envelope::{CHAT, MESSAGES};
use crate::failover::BODY;
use crate::harness::{AUTH, Client, LIMIT, PROXY_KEY, Proxy, get, post, request};

/// A key as long as DashScope's.
const KEY: &str = "sk-0123456789abcdef0123456789abcdef";

fn chunked(client: &mut Client, path: &str, body: &str) {
    let headers = [AUTH, ("transfer-encoding", "chunked")];
    client.send("POST", path, &headers, body.as_bytes());
}

fn in_chunks(body: &str, end: &str) -> String {
    let (first, second) = body.split_at(body.len() / 2);
    format!("{:x}\r\n{first}\r\n{:x};x=y\r\n{second}\r\n{end}", first.len(), second.len())
}

#[test]
fn a_trailer_is_dropped_and_its_request_served_as_the_last() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    for trailer in ["x-checksum: 1\r\n", "a: b\r\nc: d\r\n", "\u{e9}: 1\r\n"] {
        for path in [CHAT, MESSAGES, "/models/reset"] {
            let body = if path == "/models/reset" { "{\"all\":true}" } else { BODY };
            let mut client = proxy.connect();
            chunked(&mut client, path, &in_chunks(body, &format!("0\r\n{trailer}\r\n")));
            let answer = client.read_answer().unwrap();
            assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
            assert!(client.wait_closed(LIMIT), "something follows");
        }
    }
    assert_eq!(standin.call_count(), 6);
    assert_eq!(standin.calls()[0].body, standin.calls()[2].body);
}

#[test]
fn chunks_that_cannot_be_read_are_told() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    for (path, body) in [
        (CHAT, in_chunks("{\"model\":\"any\"", "zz\r\n")),
        (CHAT, "zz\r\n{}\r\n0\r\n\r\n".to_owned()),
        (CHAT, "-1\r\n{}\r\n0\r\n\r\n".to_owned()),
        (MESSAGES, "2\r\n{}x\r\n0\r\n\r\n".to_owned()),
        ("/models/reset", "zz\r\n".to_owned()),
        ("/v1/files", in_chunks("--x\r\n", "zz\r\n")),
    ] {
        let mut client = proxy.connect();
        chunked(&mut client, path, &body);
        let answer = client.read_answer();
        assert_eq!(answer.map(|answer| answer.status), Ok(400), "{path} {body:?}");
    }
}

#[test]
fn a_byte_order_mark_before_a_body_is_skipped() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let answer = post(&proxy, CHAT, format!("\u{feff}{BODY}"));
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(standin.calls()[0].body.starts_with(b"{\"model\":\"m1\""));
    assert_eq!(post(&proxy, CHAT, "\u{feff}").status, 400);
    assert_eq!(post(&proxy, CHAT, format!("\u{feff}\u{feff}{BODY}")).status, 400);
}

#[test]
fn a_private_network_is_open_to_one_named_origin_only() {
    let standin = StandIn::start().unwrap();
    let asked = ("access-control-request-private-network", "true");
    let told = |origin: &str, headers: &[(&str, &str)]| {
        let proxy = Proxy::builder(&standin).env("CORS_ORIGIN", origin).start();
        let answer = request(proxy.address(), "OPTIONS", CHAT, headers, b"");
        answer.header("access-control-allow-private-network").map(str::to_owned)
    };
    assert_eq!(told("https://app.example", &[asked]).as_deref(), Some("true"));
    assert_eq!(told("https://app.example", &[]), None);
    assert_eq!(told("*", &[asked]), None);
    assert_eq!(told("false", &[asked]), None);
    let proxy = Proxy::start(&standin);
    let answer = post(&proxy, CHAT, BODY);
    let exposed = answer.header("access-control-expose-headers").unwrap();
    for name in ["retry-after", "x-should-retry", "x-request-id", "x-proxy-model"] {
        assert!(exposed.split(", ").any(|exposed| exposed == name), "{name}: {exposed}");
    }
}

#[test]
fn a_page_behind_a_proxy_may_leave_out_the_port_that_its_scheme_implies() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    for (origin, host, status) in [
        ("https://proxy.example", "proxy.example:443", 200),
        ("https://proxy.example", "proxy.example", 200),
        ("http://proxy.example:80", "proxy.example", 200),
        ("https://proxy.example", "127.0.0.1:3300", 403),
        ("http://proxy.example", "proxy.example:443", 403),
    ] {
        let headers = [AUTH, ("origin", origin), ("host", host)];
        let answer = request(proxy.address(), "POST", "/models/reset", &headers, "{\"all\":true}");
        assert_eq!(answer.status, status, "{origin} {host}");
    }
}

#[test]
fn our_key_travels_under_no_name_and_neither_does_what_a_front_proxy_adds() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin).keys(&format!("{KEY},k2")).start();
    let bearer = format!("Bearer {PROXY_KEY}");
    let pairs = [
        ("api-key", PROXY_KEY),
        ("x-goog-api-key", PROXY_KEY),
        ("x-auth-token", &bearer),
        ("x-anything", &format!("key={PROXY_KEY}; x")),
        ("x-other", KEY),
        ("via", "1.1 front"),
        ("x-client-ip", "192.0.2.1"),
        ("true-client-ip", "192.0.2.1"),
        ("cf-connecting-ip", "192.0.2.1"),
        ("cf-ray", "1"),
        ("cdn-loop", "cloudflare"),
        ("x-envoy-external-address", "192.0.2.1"),
        ("x-dashscope-plugin", "kept"),
        ("x-title", "kept"),
    ];
    let headers: Vec<_> = pairs.into_iter().chain([AUTH]).collect();
    let path = format!("{CHAT}?key={PROXY_KEY}&beta=true");
    assert_eq!(request(proxy.address(), "POST", &path, &headers, BODY).status, 200);
    let call = &standin.calls()[0];
    for (name, value) in pairs {
        let sent = call.header(name);
        assert_eq!(sent, (value == "kept").then_some(value), "{name}");
    }
    assert!(call.target.ends_with("?beta=true"), "{}", call.target);
}

#[test]
fn a_key_that_upstream_echoes_is_seen_by_nobody() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin).keys(KEY).start();
    let long = format!("{{\"error\":{{\"message\":\"{}{KEY}\"}}}}", "x".repeat(100_000));
    let parts = |text: &str, size: usize| -> Vec<Part> {
        text.as_bytes().chunks(size).map(Part::now).collect()
    };
    let event = format!("data: {{\"choices\":[],\"key\":\"{KEY}\"}}\n\ndata: [DONE]\n\n");
    for size in [1, 7, 10_000] {
        for (status, text) in [(200, &event), (400, &long), (200, &long)] {
            if status != 200 && size == 1 {
                continue;
            }
            let reply = if status == 200 {
                Reply::sse(parts(text, size.max(text.len() / 200)), End::Clean)
            } else {
                Reply::json(status, text.as_bytes())
            };
            standin.reply_once("*", "*", reply);
            let answer = post(&proxy, CHAT, BODY);
            let expected = text.replace(KEY, &"*".repeat(KEY.len()));
            assert_eq!((answer.status, answer.text()), (status, expected), "{size}");
        }
    }
    // Nor in the log, where it names itself as a code and an id.
    let headers = vec![("x-request-id".to_owned(), format!("id-{KEY}"))];
    let body = format!("{{\"error\":{{\"code\":\"{KEY}\",\"message\":\"{KEY}\"}}}}").into_bytes();
    standin.reply_once(
        "*",
        "*",
        Reply::Answer { status: 400, headers, body, framing: Framing::Length },
    );
    let answer = post(&proxy, CHAT, BODY);
    assert!(answer.header("x-request-id").is_none(), "{answer:?}");
    assert!(proxy.wait_log(" status=400 ", LIMIT));
    assert!(!proxy.log().contains(KEY), "{}", proxy.log());
}

#[test]
fn what_upstream_refused_has_its_code_and_its_id_in_the_log() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let headers = vec![("x-request-id".to_owned(), "req-7".to_owned())];
    let body = br#"{"error":{"code":"data_inspection_failed","message":"no"}}"#.to_vec();
    standin.reply_once(
        "*",
        "*",
        Reply::Answer { status: 400, headers, body, framing: Framing::Length },
    );
    assert_eq!(post(&proxy, CHAT, BODY).status, 400);
    assert!(proxy.wait_log("code=data_inspection_failed request_id=req-7 end=clean", LIMIT));
    assert_eq!(post(&proxy, CHAT, BODY).status, 200);
    assert!(proxy.wait_log(" request id=2 ", LIMIT));
    let line = proxy.log().lines().find(|line| line.contains(" request id=2 ")).unwrap().to_owned();
    assert!(!line.contains("code="), "{line}");
}

#[test]
fn another_protocol_on_this_port_is_ended_and_told() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let mut hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec();
    hello.resize(517, 7);
    let openings: [&[u8]; 3] =
        [&hello, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0", b"\x05\x01\x00"];
    let mut sockets: Vec<TcpStream> = openings
        .iter()
        .map(|opening| {
            let mut socket = TcpStream::connect(proxy.address()).unwrap();
            socket.write_all(opening).unwrap();
            socket
        })
        .collect();
    // One that only takes its time is no such thing.
    let quiet = TcpStream::connect(proxy.address()).unwrap();
    for socket in &mut sockets {
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        assert!(answer.starts_with(b"HTTP/1.1 400"), "{}", String::from_utf8_lossy(&answer));
    }
    assert!(proxy.wait_log("half_head client=127.0.0.1", LIMIT));
    quiet.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let silent = (&quiet).read(&mut [0]).unwrap_err();
    assert_eq!(silent.kind(), std::io::ErrorKind::WouldBlock);
    assert_eq!(get(&proxy, "/v1/models").status, 200);
}

#[test]
fn a_client_of_http_1_0_gets_no_interim_response() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let mut client = proxy.connect();
    let (name, value) = AUTH;
    let head = format!(
        "POST {CHAT} HTTP/1.0\r\n{name}: {value}\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        BODY.len()
    );
    client.send_raw(head.as_bytes()).unwrap();
    let mut answer = [0; 12];
    client.socket().set_read_timeout(Some(LIMIT)).unwrap();
    client.socket().read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 400");
}
