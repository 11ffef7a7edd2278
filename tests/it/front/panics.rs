//! What a panic costs, depending on where it happens. (Debug builds panic on request.)

use std::os::fd::AsFd;

use super::*;
use dashscope_proxy::standin::{End, Reply};
use nix::sys::socket::{setsockopt, sockopt};

#[test]
fn a_panic_in_a_request_is_a_500_for_it_alone() {
    let standin = StandIn::start().unwrap();
    let gate = standin.gate();
    let proxy = quiet(&standin).env("WORKERS", "2").start();
    let events = vec!["data: 1\n\n", "data: 2\n\n"];
    standin.reply_once("*", "*", Reply::gated_sse(&gate, events, End::Clean));
    let mut stream = proxy.connect();
    send_chat(&mut stream);
    gate.release();
    stream.read_head().unwrap();
    for size in [BODY.len(), 5_000] {
        // More often than there are workers.
        for _ in 0..5 {
            let mut body = BODY.to_vec();
            body.resize(size, b' ');
            let target = format!("{CHAT}?fault=request");
            let answer = request(proxy.address(), "POST", &target, &[AUTH], body);
            assert_eq!(answer.status, 500);
        }
    }
    assert_serves(&proxy);
    gate.release();
    assert_eq!(stream.read_body().unwrap(), b"data: 1\n\ndata: 2\n\n");
    assert_eq!(standin.call_count(), 2);
}

#[test]
fn a_panic_in_a_thread_of_ours_outside_a_request_flushes_the_state_and_ends_with_70() {
    let standin = StandIn::start().unwrap();
    let mut proxy = quiet(&standin).start();
    // A success in mid-stream is known, but not on disk before the stream ends.
    let parts = vec![dashscope_proxy::standin::Part::now("data: {\"choices\":[]}\n\n")];
    standin.reply_once("*", "*", Reply::sse(parts, End::Hang));
    let mut stream = proxy.connect();
    send_chat(&mut stream);
    stream.read_head().unwrap();
    stream.read_chunk().unwrap();
    let is_stamped = |proxy: &Proxy<'_>| {
        let state = proxy.state();
        let records = state["modelState"].as_object().expect("records");
        records.values().any(|record| record["lastUsedAt"].is_u64())
    };
    assert!(!is_stamped(&proxy), "there is nothing to flush");
    let mut client = proxy.connect();
    client.send("GET", "/health?fault=intake", &[], b"");
    let status = proxy.wait_exit(LIMIT).expect("the process ends");
    assert_eq!(status.code(), Some(70));
    assert!(is_stamped(&proxy), "the state was not flushed");
    assert!(proxy.log().contains("stopped state_written=true"));
}

#[test]
fn clients_that_ask_and_reset_at_once_end_nothing() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).start();
    let linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };
    for number in 0..600 {
        let mut client = proxy.connect();
        setsockopt(&client.socket().as_fd(), sockopt::Linger, &linger).unwrap();
        match number % 3 {
            0 => client.send("GET", "/health", &[], b""),
            1 => send_chat(&mut client),
            _ => {}
        }
        drop(client);
        if number % 100 == 99 {
            assert_serves(&proxy);
        }
    }
    assert!(eventually(LIMIT, || descriptors(&proxy) < 60), "{} open", descriptors(&proxy));
}
