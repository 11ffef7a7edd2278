//! Sides that stop taking or sending in the middle: whose fault it is, and who waits for it.

use std::io::{Read, Write};

use super::*;
use crate::harness::RawUpstream;
use dashscope_proxy::standin::{End, Part, Reply};
use nix::sys::signal::Signal;

/// More than the buffers of both ends of a connection hold.
fn long_stream() -> Reply {
    let event = format!("data: {}\n\n", "x".repeat(1 << 20));
    Reply::sse((0..64).map(|_| Part::now(event.clone())).collect(), End::Clean)
}

fn before<'a>(standin: &'a StandIn, upstream: &RawUpstream) -> Builder<'a> {
    let origin = upstream.origin();
    quiet(standin).env("OPENAI_UPSTREAM_BASE_URL", format!("{origin}/compatible-mode/v1"))
}

#[test]
fn clients_that_do_not_read_hold_every_worker_no_longer_than_one_limit() {
    const LIMIT_SECONDS: u64 = 2;
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin)
        .env("WORKERS", "8")
        .env("CLIENT_TIMEOUT_SECONDS", LIMIT_SECONDS.to_string())
        .start();
    let mut left = 0;
    for headers in ["", "connection: close\r\n"] {
        for version in ["1.1", "1.0"] {
            let calls = standin.call_count();
            standin.reply("*", "*", long_stream());
            let (name, value) = AUTH;
            let stuck: Vec<Client> = (0..8)
                .map(|_| {
                    let mut client = proxy.connect();
                    let request = format!(
                        "POST {CHAT} HTTP/{version}\r\nhost: a\r\n{headers}{name}: {value}\r\ncontent-length: 2\r\n\r\n{{}}"
                    );
                    client.send_raw(request.as_bytes()).unwrap();
                    client
                })
                .collect();
            assert!(standin.wait_calls(calls + 8, LIMIT));
            standin.clear();
            let asked = clock::instant();
            let mut client = proxy.connect();
            client.set_limit(LIMIT * 3);
            assert_eq!(chat(&mut client).map(|answer| answer.status), Ok(200));
            let waited = asked.elapsed().as_secs();
            // One limit and a slow machine; it was four of them and more.
            assert!(waited < 2 * LIMIT_SECONDS + 3, "{waited} s {version} {headers:?}");
            left += stuck.len();
            let all_let_go =
                eventually(LIMIT, || proxy.log().matches("end=client_left").count() == left);
            assert!(all_let_go, "{version} {headers:?}");
            for client in stuck {
                assert!(!read_to_end(&client).unwrap().ends_with(b"0\r\n\r\n"), "it looks whole");
            }
        }
    }
}

#[test]
fn an_upload_whose_upstream_stalls_is_upstreams_fault() {
    // Takes the head, and what fits into its buffer.
    let upstream =
        RawUpstream::start(|stream, _| drop(stream.read(&mut [0; 0]).map(|_| pause(LIMIT * 3))));
    let standin = StandIn::start().unwrap();
    let proxy = before(&standin, &upstream)
        .env("CLIENT_TIMEOUT_SECONDS", "1")
        .env("UPSTREAM_TIMEOUT_SECONDS", "3")
        .start();
    let mut client = proxy.connect();
    client.set_limit(LIMIT * 2);
    let body = vec![b'x'; 48 << 20];
    client.send(
        "POST",
        "/v1/files",
        &[AUTH, ("content-type", "multipart/form-data; boundary=x")],
        &body,
    );
    assert_eq!(client.read_answer().map(|answer| answer.status), Ok(504));
}

#[test]
fn a_client_that_leaves_while_its_request_is_being_sent_is_missed() {
    let upstream = RawUpstream::start(|stream, _| {
        let mut taken = [0; 1];
        // Nothing more is taken until the proxy gives up; then the end is found.
        pause(Duration::from_secs(4));
        while stream.read(&mut taken).is_ok_and(|count| count > 0) {}
    });
    let standin = StandIn::start().unwrap();
    let proxy = before(&standin, &upstream).env("WORKERS", "1").start();
    for path in [CHAT, "/v1/files"] {
        let mut client = proxy.connect();
        let mut body = BODY.to_vec();
        body.resize(32 << 20, b' ');
        client.send("POST", path, &[AUTH, ("connection", "close")], &body);
        assert!(eventually(LIMIT, || upstream.calls() > 0));
        drop(client);
        assert!(proxy.wait_log("end=client_left", LIMIT), "{path}");
    }
}

#[test]
fn a_complete_request_waits_for_a_receiver_without_being_blamed() {
    let standin = StandIn::start().unwrap();
    let proxy = silent(&standin).env("CLIENT_TIMEOUT_SECONDS", "8").start();
    let (name, value) = AUTH;
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: a\r\n{name}: {value}\r\ncontent-length: 2000\r\n\r\n"
    );
    let slow: Vec<Client> = (0..256)
        .map(|_| {
            let mut client = proxy.connect();
            client.send_raw(head.as_bytes()).unwrap();
            client
        })
        .collect();
    assert!(eventually(LIMIT, || threads(&proxy) > 256));
    let mut client = proxy.connect();
    client.set_limit(LIMIT * 2);
    let mut body = BODY.to_vec();
    body.resize(2000, b' ');
    client.send("POST", CHAT, &[AUTH], &body);
    assert_eq!(client.read_answer().map(|answer| answer.status), Ok(200));
    drop(slow);
}

/// Refused clients that go on sending a byte from time to time.
fn refused(proxy: &Proxy<'_>, count: usize) -> Vec<Client> {
    let refused = |_| {
        let mut client = proxy.connect();
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n");
        client.send_raw(head.as_bytes()).expect("it is taken");
        assert_eq!(client.read_answer().map(|answer| answer.status), Ok(401));
        client
    };
    (0..count).map(refused).collect()
}

#[test]
fn a_stop_does_not_wait_for_refused_clients() {
    let standin = StandIn::start().unwrap();
    let mut proxy = quiet(&standin).start();
    let mut refused = refused(&proxy, 3);
    proxy.signal(Signal::SIGTERM);
    let is_over = eventually(LIMIT, || {
        refused.iter_mut().for_each(|client| drop(client.send_raw(b"x")));
        proxy.wait_exit(STEP).is_some()
    });
    assert!(is_over);
}

#[test]
fn refused_clients_are_the_first_to_go_when_descriptors_are_scarce() {
    let standin = StandIn::start().unwrap();
    let proxy = silent(&standin).under(&["prlimit", "--nofile=256:256"]).start();
    let mut crowd = Vec::new();
    for _ in 0..6 {
        crowd.extend(refused(&proxy, 30));
        crowd.iter_mut().for_each(|client| drop(client.send_raw(b"x")));
        assert_serves(&proxy);
    }
}

#[test]
fn threads_that_are_lost_renew_the_process_and_refuse_nobody() {
    let standin = StandIn::start().unwrap();
    let gate = standin.gate();
    standin.reply_once("*", "*", Reply::Held { gate: gate.clone(), then: Box::new(Reply::Normal) });
    let proxy = quiet(&standin).under(&["prlimit", "--nproc=400:400"]).start();
    let mut waiting = proxy.connect();
    send_chat(&mut waiting);
    assert!(standin.wait_calls(1, LIMIT));
    let (pid, mut sent) = (proxy.pid(), 0);
    let is_full = eventually(LIMIT * 2, || {
        for _ in 0..10 {
            let Ok(mut socket) = TcpStream::connect(proxy.address()) else { continue };
            let absurd = "POST /v1/messages HTTP/1.1\r\nhost: a\r\ncontent-length: 4611686018427387904\r\n\r\n";
            sent += usize::from(socket.write_all(absurd.as_bytes()).is_ok());
        }
        proxy.log().contains("the process is renewed")
    });
    assert!(is_full, "{sent} were sent");
    // What is under way ends well; who comes meanwhile waits for the new program.
    let mut early = proxy.connect();
    early.send("GET", "/health", &[], b"");
    gate.open();
    assert_eq!(waiting.read_answer().map(|answer| answer.status), Ok(200));
    early.set_limit(LIMIT * 2);
    assert!(early.read_answer().is_ok(), "refused");
    assert!(serves_within(proxy.address(), LIMIT));
    assert_serves(&proxy);
    assert_eq!(proxy.pid(), pid);
    assert!(threads(&proxy) < 200, "{}", threads(&proxy));
}
