//! A long life among strangers.

use std::thread;

use super::*;
use crate::harness::post;

const THREADS: usize = 8;
const EACH: usize = 125;

/// A thousand requests of every kind: served, refused, broken off, and large ones.
fn live(proxy: &Proxy<'_>) {
    thread::scope(|scope| {
        for number in 0..THREADS {
            scope.spawn(move || (0..EACH).for_each(|turn| meet(proxy, number + turn)));
        }
    });
}

fn meet(proxy: &Proxy<'_>, number: usize) {
    let mut client = proxy.connect();
    client.set_limit(LIMIT * 3);
    match number % 25 {
        0 => {
            let mut body = BODY.to_vec();
            body.resize((1 + number % 5) << 20, b' ');
            client.send("POST", CHAT, &[AUTH], &body);
            assert_eq!(client.read_answer().map(|answer| answer.status), Ok(200));
        }
        1 => {
            client.send("POST", CHAT, &[WRONG], &vec![b' '; 1 << 20]);
            assert_eq!(client.read_answer().map(|answer| answer.status), Ok(401));
        }
        2 => {
            client.send("POST", CHAT, &[AUTH], br#"{"stream":true,"messages":[]}"#);
            assert_eq!(client.read_head().map(|head| head.status), Ok(200));
            assert!(client.read_chunk().is_ok());
        }
        3..6 => client.send("POST", CHAT, &[AUTH, ("content-length", "500000")], b"begun"),
        6..9 => send_chat(&mut client),
        9 => {
            client.send("POST", CHAT, &[("content-length", "30000000000")], b"");
            assert_eq!(client.read_head().map(|head| head.status), Ok(401));
        }
        10..13 => client.send_raw(b"GET /health HTTP/1.1\r\nx").expect("it is taken"),
        13..18 => assert_eq!(health(&mut client).map(|answer| answer.status), Ok(200)),
        _ => {
            let _ = chat(&mut client);
        }
    }
}

#[test]
fn memory_does_not_grow_with_the_number_of_requests() {
    let standin = StandIn::start().unwrap();
    let proxy = silent(&standin).env("CLIENT_TIMEOUT_SECONDS", "2").start();
    standin.keep_calls(false);
    live(&proxy);
    assert_serves(&proxy);
    let after_half = resident(&proxy);
    live(&proxy);
    assert_serves(&proxy);
    let after_all = resident(&proxy);
    let bound = after_half + after_half / 10 + 8;
    assert!(after_all <= bound, "{after_half} MiB after the first half, {after_all} after all");
}

#[test]
fn the_memory_of_large_bodies_is_given_back() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    standin.keep_calls(false);
    let mut body = BODY.to_vec();
    body.resize(5 << 20, b' ');
    let send_all = || {
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| assert_eq!(post(&proxy, CHAT, &body).status, 200));
            }
        });
    };
    assert_eq!(post(&proxy, CHAT, BODY).status, 200);
    let before = resident(&proxy);
    (0..4).for_each(|_| send_all());
    // A client has its answer a moment before its body is let go.
    let deadline = clock::instant() + LIMIT;
    while resident(&proxy) > before + 20 {
        let after = resident(&proxy);
        assert!(clock::instant() < deadline, "{before} MiB before 160 MB of bodies, {after} after");
        assert_serves(&proxy);
    }
}
