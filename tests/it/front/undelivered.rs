//! Nobody pays for an answer that nobody gets: calls upstream against answers delivered.

use std::io::{Read, Write};
use std::net::Shutdown;

use super::*;
use dashscope_proxy::standin::{End, Framing, Part, Reply};
use nix::sys::signal::Signal;

/// Bodies that tiny_http reads ahead, and that it leaves unread.
fn sizes() -> [Vec<u8>; 2] {
    [1_000, 5_000].map(|size| {
        let mut body = BODY.to_vec();
        body.resize(size, b' ');
        body
    })
}

fn chat_packet(version: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let (name, value) = AUTH;
    let head = format!(
        "POST {CHAT} HTTP/{version}\r\nhost: a\r\n{name}: {value}\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    let mut packet = head.into_bytes();
    packet.extend(body);
    packet
}

fn held(gate: &dashscope_proxy::standin::Gate) -> Reply {
    Reply::Held { gate: gate.clone(), then: Box::new(Reply::Normal) }
}

/// Waits for the end of everything under way, and gives how many calls there were.
fn calls_in_the_end(standin: &StandIn, proxy: &mut Proxy<'_>) -> usize {
    assert_eq!(chat(&mut proxy.connect()).map(|answer| answer.status), Ok(200));
    proxy.signal(Signal::SIGTERM);
    assert!(proxy.wait_exit(LIMIT).is_some_and(|status| status.success()));
    standin.call_count() - 1
}

#[test]
fn what_is_sent_behind_a_last_answer_is_not_run() {
    for body in sizes() {
        for headers in ["connection: keep-alive\r\n", "connection: close\r\n", ""] {
            let standin = StandIn::start().unwrap();
            let mut proxy = quiet(&standin).start();
            let mut client = proxy.connect();
            let packet = chat_packet("1.0", headers, &body);
            client.send_raw(&packet.repeat(3)).unwrap();
            let all = read_to_end(&client).expect("an end");
            assert_eq!(statuses(&all), [200], "{headers:?}");
            assert_eq!(calls_in_the_end(&standin, &mut proxy), 1, "{headers:?} {}", body.len());
        }
    }
}

#[test]
fn what_is_sent_behind_an_answer_that_is_cut_is_not_run() {
    let half = |framing| Reply::Stream {
        headers: vec![("content-type".to_owned(), "application/json".to_owned())],
        parts: vec![Part::now("{\"choices\":")],
        framing,
        end: End::Reset,
    };
    for body in sizes() {
        for framing in [Framing::Chunked, Framing::Length] {
            let standin = StandIn::start().unwrap();
            standin.reply_once("*", "*", half(framing));
            let mut proxy = quiet(&standin).start();
            let mut client = proxy.connect();
            client.send_raw(&chat_packet("1.1", "", &body).repeat(3)).unwrap();
            assert_eq!(client.read_head().map(|head| head.status), Ok(200));
            assert!(client.read_body().is_err(), "half an answer looks whole");
            assert_eq!(calls_in_the_end(&standin, &mut proxy), 1, "{framing:?} {}", body.len());
        }
    }
}

#[test]
fn a_request_after_the_word_that_the_connection_closes_is_not_run() {
    for body in sizes() {
        let standin = StandIn::start().unwrap();
        let gate = standin.gate();
        standin.reply("*", "*", held(&gate));
        let mut proxy = quiet(&standin).start();
        // Two answers are under way; the second keeps the drain open.
        let (mut client, mut other) = (proxy.connect(), proxy.connect());
        send_chat(&mut client);
        assert!(standin.wait_calls(1, LIMIT));
        send_chat(&mut other);
        assert!(standin.wait_calls(2, LIMIT));
        proxy.terminate();
        assert!(proxy.wait_log("drain in_flight=", LIMIT));
        gate.release();
        let answer = client.read_answer().unwrap();
        assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
        let _ = client.send_raw(&chat_packet("1.1", "", &body).repeat(2));
        assert!(client.wait_closed(LIMIT));
        gate.open();
        assert_eq!(other.read_answer().map(|answer| answer.status), Ok(200));
        assert!(proxy.wait_exit(LIMIT).is_some_and(|status| status.success()));
        assert_eq!(standin.call_count(), 2);
    }
}

#[test]
fn of_what_a_leaving_client_has_pipelined_only_the_first_is_run() {
    for body in sizes() {
        let standin = StandIn::start().unwrap();
        let gate = standin.gate();
        standin.reply_once("*", "*", held(&gate));
        let mut proxy = quiet(&standin).start();
        let mut client = proxy.connect();
        client.send_raw(&chat_packet("1.1", "", &body).repeat(6)).unwrap();
        assert!(standin.wait_calls(1, LIMIT));
        drop(client);
        gate.open();
        assert_eq!(calls_in_the_end(&standin, &mut proxy), 1, "{}", body.len());
    }
}

#[test]
fn who_gave_up_in_the_queue_is_not_served() {
    const WORKERS: usize = 2;
    for headers in ["", "connection: close\r\n"] {
        let standin = StandIn::start().unwrap();
        let gate = standin.gate();
        standin.reply("*", "*", held(&gate));
        let mut proxy = quiet(&standin).env("WORKERS", WORKERS.to_string()).start();
        let ask = |body: &[u8]| {
            let mut client = proxy.connect();
            client.send_raw(&chat_packet("1.1", headers, body)).unwrap();
            client
        };
        let served: Vec<Client> = (0..WORKERS).map(|_| ask(BODY)).collect();
        assert!(standin.wait_calls(WORKERS, LIMIT));
        let crowd: Vec<Client> = (0..24).map(|number| ask(&sizes()[number % 2])).collect();
        let is_queued = eventually(LIMIT, || {
            let metrics = request(proxy.address(), "GET", "/metrics", &[AUTH], b"").text();
            metrics.lines().any(|line| line.contains("queued_requests ") && line.ends_with(" 24"))
        });
        assert!(is_queued, "they do not wait");
        drop(crowd);
        gate.open();
        for mut client in served {
            assert_eq!(client.read_answer().map(|answer| answer.status), Ok(200));
        }
        assert_eq!(calls_in_the_end(&standin, &mut proxy), WORKERS, "{headers:?}");
    }
}

/// Answers that come after the proxy has looked for its client, twice.
fn late(reply: Reply) -> Reply {
    Reply::Delay { before_head: Duration::from_millis(2500), then: Box::new(reply) }
}

#[test]
fn a_living_client_is_not_taken_for_one_that_left() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).start();
    let early = [
        // What tiny_http refuses by itself ends its reading, not the client's waiting.
        "GET /health HTTP/1.1\r\nhost: a\r\nexpect: foo\r\n\r\n".as_bytes(),
        "GET /health HTTP/1.1\r\nhost: a\r\nx: \u{e9}\r\n\r\n".as_bytes(),
        b"no request at all\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n",
        b"",
    ];
    let mut clients: Vec<Client> = Vec::new();
    for version in ["1.0", "1.1"] {
        for headers in ["", "connection: close\r\n", "connection: keep-alive\r\n"] {
            for early in early {
                standin.reply("*", "*", late(Reply::Normal));
                let mut client = proxy.connect();
                client.send_raw(&chat_packet(version, headers, BODY)).unwrap();
                client.send_raw(early).unwrap();
                clients.push(client);
            }
        }
    }
    for mut client in clients {
        let mut status = client.read_answer().map(|answer| answer.status);
        if status == Ok(417) {
            // It comes out of order: tiny_http's own.
            status = client.read_answer().map(|answer| answer.status);
        }
        assert_eq!(status, Ok(200));
    }
}

#[test]
fn a_request_that_came_early_does_not_hide_that_its_client_left() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).start();
    for (number, body) in sizes().into_iter().enumerate() {
        standin.reply_once("*", "*", Reply::HangBeforeHead);
        let mut client = proxy.connect();
        send_chat(&mut client);
        assert!(standin.wait_calls(number + 1, LIMIT));
        client.send_raw(&chat_packet("1.1", "", &body)).unwrap();
        client.socket().shutdown(Shutdown::Both).unwrap();
        assert!(standin.wait_closed(number, Duration::from_secs(5)), "{}", body.len());
        assert!(proxy.wait_log("end=client_left", LIMIT));
    }
    assert_eq!(standin.call_count(), 2);
}

#[test]
fn a_condemned_connection_is_not_taken_for_a_new_one() {
    let standin = StandIn::start().unwrap();
    let mut proxy = quiet(&standin).start();
    let client = proxy.connect();
    // The body of the second is in tiny_http's buffer, with the third behind it.
    let packet = [
        chat_packet("1.0", "connection: keep-alive\r\n", BODY),
        chat_packet("1.1", "expect: 100-continue\r\n", BODY),
        chat_packet("1.1", "", BODY),
    ];
    (&mut client.socket()).write_all(&packet.concat()).unwrap();
    let mut answer = [0; 12];
    client.socket().set_read_timeout(Some(LIMIT)).unwrap();
    client.socket().read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    // It stays open for longer than it may linger.
    pause(Duration::from_secs(7));
    assert_eq!(calls_in_the_end(&standin, &mut proxy), 1);
}

#[test]
fn counting_tokens_is_not_done_for_who_gave_up_either() {
    let standin = StandIn::start().unwrap();
    let gate = standin.gate();
    standin.reply("*", "*", held(&gate));
    let mut proxy = quiet(&standin).env("WORKERS", "1").start();
    let mut served = proxy.connect();
    send_chat(&mut served);
    assert!(standin.wait_calls(1, LIMIT));
    let crowd: Vec<Client> = (0..6)
        .map(|_| {
            let mut client = proxy.connect();
            client.send("POST", "/v1/messages/count_tokens", &[AUTH], BODY);
            client
        })
        .collect();
    let is_queued = eventually(LIMIT, || {
        let metrics = request(proxy.address(), "GET", "/metrics", &[AUTH], b"").text();
        metrics.lines().any(|line| line.contains("queued_requests ") && line.ends_with(" 6"))
    });
    assert!(is_queued, "they do not wait");
    drop(crowd);
    gate.open();
    assert_eq!(served.read_answer().map(|answer| answer.status), Ok(200));
    assert_eq!(calls_in_the_end(&standin, &mut proxy), 1);
}

#[test]
fn a_last_answer_is_read_to_its_end_however_slowly_and_whatever_is_sent_behind_it() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).start();
    let text = format!("{{\"a\":\"{}\"}}", "x".repeat(6 << 20));
    for behind in ["", "x", "GET /health HTTP/1.1\r\nhost: a\r\n\r\n"] {
        standin.reply_once("*", "*", Reply::json(200, text.as_bytes()));
        let client = proxy.connect();
        let mut socket = client.socket();
        let first = chat_packet("1.0", "connection: keep-alive\r\n", BODY);
        socket.write_all(&first).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        let (mut read, mut buffer, started) = (0, vec![0; 256 << 10], clock::instant());
        loop {
            match socket.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => read += count,
                Err(error) => panic!("{error} after {read} bytes, {behind:?}"),
            }
            // Slowly in the beginning, for longer than silence is borne.
            if started.elapsed() < Duration::from_secs(7) {
                pause(Duration::from_millis(400));
                let _ = socket.write_all(behind.as_bytes());
            }
        }
        assert!(read > text.len(), "{read} bytes, {behind:?}");
    }
}
