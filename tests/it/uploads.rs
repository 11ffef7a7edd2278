//! Uploads: streamed through byte for byte, not held in memory, sent once.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use dashscope_proxy::standin::{Reply, Shape, StandIn};

use crate::harness::{AUTH, Answer, Client, LIMIT, Proxy, get, request};

const FILES: &str = "/v1/files";
const FORM: (&str, &str) = ("content-type", "multipart/form-data; boundary=XyZ");

/// How long an answer to an upload may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A form with a file of about `length` bytes that repeat nowhere for long.
fn form(length: usize) -> Vec<u8> {
    let mut body = b"--XyZ\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--XyZ\r\ncontent-disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n".to_vec();
    let numbers =
        (0..length as u32 / 4).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes());
    body.extend(numbers);
    body.extend(b"\r\n--XyZ--\r\n");
    body
}

fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let mut framed = Vec::with_capacity(body.len() + body.len() / 8);
    for piece in body.chunks(size) {
        framed.extend(format!("{:x}\r\n", piece.len()).into_bytes());
        framed.extend(piece);
        framed.extend(b"\r\n");
    }
    framed.extend(b"0\r\n\r\n");
    framed
}

fn send(client: &mut Client, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let headers: Vec<_> = [AUTH, FORM].iter().chain(headers).copied().collect();
    client.set_limit(PATIENCE);
    client.send("POST", FILES, &headers, body);
    client.read_answer().unwrap()
}

/// The most memory that the process has ever had, in MB.
fn peak_memory(proxy: &Proxy<'_>) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", proxy.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_ascii_whitespace().next().unwrap().parse::<u64>().unwrap() >> 10
}

const CHUNKED: (&str, &str) = ("transfer-encoding", "chunked");

#[test]
fn a_large_upload_arrives_as_it_was_sent_and_is_never_held_in_memory() {
    let standin = StandIn::start().unwrap();
    // Larger than what any other body may be.
    let proxy = Proxy::builder(&standin).env("MAX_BODY_BYTES", "1000000").start();
    let body = form(40 << 20);
    let mut client = proxy.connect();
    let framed = chunked(&body, 1 << 20);
    for (headers, sent) in [(&[][..], &body), (&[CHUNKED], &framed)] {
        let answer = send(&mut client, headers, sent);
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.json()["bytes"], body.len());
        let call = standin.calls().pop().unwrap();
        assert!(call.body == body, "{} bytes of {} arrived", call.body.len(), body.len());
        assert_eq!(call.header("content-type"), Some(FORM.1));
        let length = body.len().to_string();
        let expected = headers.is_empty().then_some(length.as_str());
        assert_eq!(call.header("content-length"), expected);
    }
    let peak = peak_memory(&proxy);
    assert!(peak < 60, "{peak} MB");
}

#[test]
fn a_connection_stays_in_step_after_uploads_of_every_size_and_framing() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let mut client = proxy.connect();
    for length in [0, 100, 1000, 20_000, 300_000] {
        let body = form(length);
        let framed = [1000, 16 * 1024].map(|size| chunked(&body, size));
        let all = [(&[][..], &body), (&[CHUNKED][..], &framed[0]), (&[CHUNKED][..], &framed[1])];
        for (headers, sent) in all {
            assert_eq!(send(&mut client, headers, sent).status, 200, "{length} {headers:?}");
            assert!(standin.calls().pop().unwrap().body == body, "{length} {headers:?}");
        }
        client.send("GET", "/health", &[], b"");
        assert_eq!(client.read_answer().unwrap().status, 200);
    }
}

#[test]
fn an_upload_is_sent_once_whatever_comes_of_it() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let body = form(200_000);
    let mut replies: Vec<_> = [400, 403, 404, 413, 429, 500, 503]
        .map(|status| (Reply::json(status, "{}"), status))
        .into();
    replies.push((Reply::Exhausted(Shape::Nested), 403));
    replies.push((Reply::json(401, r#"{"error":{"code":"invalid_api_key"}}"#), 502));
    replies.push((Reply::ResetBeforeHead, 502));
    replies.push((Reply::CloseBeforeHead, 502));
    for (reply, status) in replies {
        let shown = format!("{reply:?}");
        // A connection that is used again: another request would be repeated on a new one.
        standin.clear();
        assert_eq!(get(&proxy, "/v1/files").status, 200);
        let calls = standin.call_count();
        standin.reply("*", "*", reply);
        let answer = send(&mut proxy.connect(), &[], &body);
        assert_eq!(answer.status, status, "{shown}: {answer:?}");
        assert_eq!(standin.call_count(), calls + 1, "{shown}");
        assert!(standin.calls().pop().unwrap().body == body, "{shown}");
    }
    assert_eq!(get(&proxy, "/health").json()["availableSlots"], 6);
}

fn read_head(socket: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && matches!(socket.read(&mut byte), Ok(1)) {
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

/// An upstream of one's own for one call.
fn upstream<T: Send + 'static>(
    serve: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (String, std::thread::JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    (base, std::thread::spawn(move || serve(listener.accept().unwrap().0)))
}

#[test]
fn an_upstream_that_refuses_an_upload_early_is_heard() {
    let standin = StandIn::start().unwrap();
    for headers in [&[][..], &[CHUNKED]] {
        let (base, served) = upstream(|mut socket| {
            read_head(&mut socket);
            let refusal = b"HTTP/1.1 413 Payload Too Large\r\ncontent-length: 9\r\n\r\ntoo large";
            socket.write_all(refusal).unwrap();
        });
        let proxy = Proxy::builder(&standin).env("OPENAI_UPSTREAM_BASE_URL", base).start();
        let body = form(8 << 20);
        let sent = if headers.is_empty() { body } else { chunked(&body, 100_000) };
        let mut client = proxy.connect();
        let answer = send(&mut client, headers, &sent);
        assert_eq!((answer.status, answer.text().as_str()), (413, "too large"));
        served.join().unwrap();
        client.send("GET", "/health", &[], b"");
        assert_eq!(client.read_answer().unwrap().status, 200);
    }
}

#[test]
fn an_upstream_that_breaks_in_an_upload_is_502_and_asked_once() {
    let standin = StandIn::start().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let served = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        read_head(&mut socket);
        socket.read_exact(&mut [0; 100_000]).unwrap();
        drop(socket);
        listener.set_nonblocking(true).unwrap();
        listener
    });
    let proxy = Proxy::builder(&standin).env("OPENAI_UPSTREAM_BASE_URL", base).start();
    let answer = send(&mut proxy.connect(), &[], &form(8 << 20));
    assert_eq!(answer.status, 502, "{answer:?}");
    assert_eq!(answer.json()["error"]["code"], "upstream_unreachable");
    assert!(served.join().unwrap().accept().is_err(), "it is not sent twice");
    assert_eq!(get(&proxy, "/health").status, 200);
}

#[test]
fn a_client_that_breaks_off_in_an_upload_is_told_as_such_and_nothing_arrives_whole() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let body = form(2 << 20);
    let half = body.len() / 2;
    let framed = chunked(&body, 100_000);
    let length = body.len().to_string();
    let known = ("content-length", length.as_str());
    // In the middle, in the middle of a chunk, between two chunks, before the last one.
    let between = 15 * (100_000 + "186a0\r\n\r\n".len());
    for (number, (header, sent)) in [
        (known, &body[..half]),
        (known, &body[..body.len() - 1]),
        (CHUNKED, &framed[..half]),
        (CHUNKED, &framed[..between]),
        (CHUNKED, &framed[..framed.len() - b"0\r\n\r\n".len()]),
    ]
    .into_iter()
    .enumerate()
    {
        for (how, shutdown) in [Shutdown::Write, Shutdown::Both].into_iter().enumerate() {
            let mut client = proxy.connect();
            client.send("POST", FILES, &[AUTH, FORM, header], sent);
            client.socket().shutdown(shutdown).unwrap();
            let line = format!("request id={} ", number * 2 + how + 1);
            assert!(proxy.wait_log(&line, LIMIT), "{header:?} {line} {}", proxy.log());
            let log = proxy.log();
            let line = log.lines().find(|shown| shown.contains(&line)).unwrap();
            assert!(line.contains("end=client_left"), "{header:?} {shutdown:?}: {line}");
        }
    }
    assert_eq!(standin.call_count(), 0, "{:?}", standin.calls().iter().map(|call| call.body.len()));
    assert_eq!(get(&proxy, "/health").status, 200);
}

#[test]
fn an_upload_beyond_the_largest_is_413_before_its_body_and_without_a_call() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    for length in [(512 << 20) + 1, 10_u64 << 30] {
        let mut client = proxy.connect();
        let length = length.to_string();
        client.send("POST", FILES, &[AUTH, FORM, ("content-length", &length)], b"--XyZ");
        let answer = client.read_answer().unwrap();
        assert_eq!(answer.status, 413, "{answer:?}");
        assert_eq!(answer.json()["error"]["code"], "request_too_large");
    }
    assert_eq!(standin.call_count(), 0);
}

#[test]
fn a_refused_upload_needs_no_body_and_makes_no_call() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let body = form(1 << 20);
    for (headers, status) in
        [(&[FORM][..], 401), (&[AUTH, FORM, ("content-encoding", "gzip")], 415)]
    {
        let answer = request(proxy.address(), "POST", FILES, headers, &body);
        assert_eq!(answer.status, status, "{answer:?}");
    }
    assert_eq!(standin.call_count(), 0);
}

#[test]
fn the_first_part_of_a_slow_upload_is_upstream_before_the_second_is_sent() {
    let standin = StandIn::start().unwrap();
    let (first, rest) = (vec![b'a'; 100_000], vec![b'b'; 50]);
    let (arrived, seen) = mpsc::channel();
    let (length, first_length) = (first.len() + rest.len(), first.len());
    let (base, served) = upstream(move |mut socket| {
        let head = read_head(&mut socket);
        let mut body = vec![0; length];
        socket.read_exact(&mut body[..first_length]).unwrap();
        arrived.send(()).unwrap();
        socket.read_exact(&mut body[first_length..]).unwrap();
        socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
        (head, body)
    });
    let proxy = Proxy::builder(&standin).env("OPENAI_UPSTREAM_BASE_URL", base).start();
    let mut client = proxy.connect();
    let length = length.to_string();
    let headers = [AUTH, FORM, ("content-length", &length), ("expect", "100-continue")];
    client.send("POST", FILES, &headers, b"");
    // The client waits for leave.
    let mut socket = client.socket().try_clone().unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    assert!(read_head(&mut socket).starts_with("HTTP/1.1 100 "), "it may go on");
    client.send_raw(&first).unwrap();
    seen.recv_timeout(LIMIT).expect("the first part is upstream");
    client.send_raw(&rest).unwrap();
    assert_eq!(client.read_answer().unwrap().status, 200);
    let (head, body) = served.join().unwrap();
    assert!(!head.to_ascii_lowercase().contains("expect"), "{head}");
    assert!(body == [first, rest].concat());
}
