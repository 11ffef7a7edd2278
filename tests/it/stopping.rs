//! How the proxy stops: what is in flight ends whole, what is new is refused.

use std::net::TcpStream;

use dashscope_proxy::clock;
use dashscope_proxy::standin::{End, Gate, Reply, Shape, StandIn};
use nix::sys::signal::Signal;

use crate::envelope::CHAT;
use crate::harness::{AUTH, Client, How, LIMIT, Proxy, post, record};

const BODY: &[u8] = br#"{"model":"any","messages":[]}"#;
const STREAMED: &[u8] = br#"{"model":"any","stream":true,"messages":[]}"#;
const FIRST: &[u8] = b"data: 1\n\n";

/// A stream of which the client has the first event and the gate holds the rest.
pub(crate) fn stream_in_flight(proxy: &Proxy<'_>, standin: &StandIn, end: End) -> (Client, Gate) {
    let gate = standin.gate();
    let events = vec![FIRST, b"data: 2\n\n", b"data: [DONE]\n\n"];
    standin.reply_once("*", "*", Reply::gated_sse(&gate, events, end));
    let mut client = proxy.connect();
    client.send("POST", CHAT, &[AUTH], STREAMED);
    gate.release();
    assert_eq!(client.read_head().expect("a head").status, 200);
    assert_eq!(client.read_chunk(), Ok(Some(FIRST.to_vec())));
    (client, gate)
}

/// A keep-alive connection that has served a request.
pub(crate) fn idle_connection(proxy: &Proxy<'_>) -> Client {
    let mut client = proxy.connect();
    client.send("GET", "/health", &[], b"");
    let answer = client.read_answer().expect("an answer");
    assert_eq!((answer.status, answer.header("connection")), (200, None));
    client
}

fn wait_refused(proxy: &Proxy<'_>) {
    let deadline = clock::instant() + LIMIT;
    while TcpStream::connect(proxy.address()).is_ok() {
        assert!(clock::instant() < deadline, "new connections are still taken");
    }
}

#[test]
fn an_idle_proxy_ends_at_once_and_with_0_on_every_stop_signal() {
    let standin = StandIn::start().unwrap();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let mut proxy = Proxy::start(&standin);
        assert_eq!(post(&proxy, CHAT, BODY).status, 200);
        // An open connection without a request is nobody to wait for.
        let mut idle = idle_connection(&proxy);
        proxy.signal(signal);
        // The grace is a minute: who waited for it would not be done within the limit.
        let status = proxy.wait_exit(LIMIT);
        assert_eq!(status.and_then(|status| status.code()), Some(0), "{signal}");
        assert!(idle.wait_closed(LIMIT));
    }
}

#[test]
fn a_stream_in_flight_ends_whole_while_new_connections_are_refused() {
    let standin = StandIn::start().unwrap();
    let mut proxy = Proxy::start(&standin);
    let mut health = idle_connection(&proxy);
    let (mut stream, gate) = stream_in_flight(&proxy, &standin, End::Clean);
    proxy.terminate();
    wait_refused(&proxy);

    health.send("GET", "/health", &[], b"");
    let answer = health.read_answer().unwrap();
    let json = answer.json();
    assert_eq!((answer.status, &json["ok"]), (503, &false.into()));
    assert!(answer.text().contains("draining"), "{answer:?}");
    assert_eq!(answer.header("connection"), Some("close"));

    gate.open();
    assert_eq!(stream.read_body().unwrap(), b"data: 2\n\ndata: [DONE]\n\n");
    assert_eq!(proxy.wait_exit(LIMIT).and_then(|status| status.code()), Some(0));
}

#[test]
fn a_keep_alive_client_is_served_once_more_and_told_that_it_was_the_last_time() {
    let standin = StandIn::start().unwrap();
    let mut proxy = Proxy::start(&standin);
    let mut client = idle_connection(&proxy);
    let (mut stream, gate) = stream_in_flight(&proxy, &standin, End::Clean);
    proxy.terminate();
    wait_refused(&proxy);

    client.send("POST", CHAT, &[AUTH], BODY);
    let answer = client.read_answer().unwrap();
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    assert!(client.wait_closed(LIMIT));

    gate.open();
    assert!(stream.read_body().is_ok());
    assert_eq!(proxy.wait_exit(LIMIT).and_then(|status| status.code()), Some(0));
}

#[test]
fn a_request_that_still_waits_for_upstream_is_answered() {
    let standin = StandIn::start().unwrap();
    let gate = standin.gate();
    standin.reply("*", "*", Reply::Held { gate: gate.clone(), then: Box::new(Reply::Normal) });
    let mut proxy = Proxy::start(&standin);
    let mut client = proxy.connect();
    client.send("POST", CHAT, &[AUTH], BODY);
    assert!(standin.wait_calls(1, LIMIT));
    proxy.terminate();
    wait_refused(&proxy);
    gate.open();
    let answer = client.read_answer().unwrap();
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    assert_eq!(proxy.wait_exit(LIMIT).and_then(|status| status.code()), Some(0));
}

#[test]
fn the_end_of_the_grace_cuts_what_never_ends() {
    let standin = StandIn::start().unwrap();
    let mut proxy = Proxy::builder(&standin).env("SHUTDOWN_GRACE_SECONDS", "1").start();
    let (mut stream, _gate) = stream_in_flight(&proxy, &standin, End::Clean);
    proxy.terminate();
    let cut = stream.read_body().unwrap_err();
    assert_ne!(cut.how, How::TimedOut);
    assert_eq!(proxy.wait_exit(LIMIT).and_then(|status| status.code()), Some(0));
    assert!(standin.wait_closed(0, LIMIT));
}

#[test]
fn a_second_signal_does_not_wait() {
    let standin = StandIn::start().unwrap();
    for second in [Signal::SIGTERM, Signal::SIGINT] {
        let mut proxy = Proxy::start(&standin);
        let (mut stream, _gate) = stream_in_flight(&proxy, &standin, End::Clean);
        proxy.terminate();
        wait_refused(&proxy);
        proxy.signal(second);
        assert_eq!(proxy.wait_exit(LIMIT).and_then(|status| status.code()), Some(130));
        assert!(stream.read_body().is_err());
    }
}

#[test]
fn what_was_learned_while_stopping_is_in_the_file() {
    let standin = StandIn::start().unwrap();
    let mut proxy = Proxy::start(&standin);
    let mut client = idle_connection(&proxy);
    let (mut stream, gate) = stream_in_flight(&proxy, &standin, End::Clean);
    standin.reply("k1", "m1", Reply::Exhausted(Shape::Flat));
    proxy.terminate();
    wait_refused(&proxy);
    client.send("POST", CHAT, &[AUTH], BODY);
    assert_eq!(client.read_answer().unwrap().header("x-proxy-model"), Some("m2"));
    gate.open();
    assert!(stream.read_body().is_ok());
    assert_eq!(proxy.wait_exit(LIMIT).and_then(|status| status.code()), Some(0));

    let state = proxy.state();
    let first = record(&state, "k1", "m1");
    assert!(first["cooldownUntil"].as_u64().unwrap() > clock::now().0, "{first}");
    assert!(first["lastUsedAt"].is_u64() && first["failureCount"] == 1, "{first}");
    assert!(record(&state, "k1", "m2")["lastUsedAt"].is_u64());
}
