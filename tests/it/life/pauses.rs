//! The whole process stands still for a while (SIGSTOP) and goes on.
//!
//! A suspended machine is like that, but for the clock: CLOCK_MONOTONIC, by which all limits are
//! measured, does not count a suspend, and runs on while a process is stopped. So this is the
//! harder of the two: every limit that is shorter than the pause is over when the process wakes,
//! all at once, and what came meanwhile lies unread in the kernel.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use dashscope_proxy::clock;
use dashscope_proxy::standin::{End, Gate, Reply, Shape, StandIn};

use super::{mortal, rest, setting};
use crate::envelope::{CHAT, MESSAGES};
use crate::harness::{AUTH, Client, How, LIMIT, Proxy, post, record};
use crate::stopping::{idle_connection, stream_in_flight};

const BODY: &[u8] = br#"{"model":"any","messages":[]}"#;

/// Clients that come while nobody is there.
const EARLY: usize = 8;

/// More than all socket buffers on the way hold.
const LARGE: usize = 20 << 20;

fn pause() -> Duration {
    Duration::from_secs(setting("LIFE_PAUSE", 5))
}

fn seconds(duration: Duration) -> String {
    duration.as_secs().max(1).to_string()
}

/// A client whose request waits for its upstream's head, until the gate opens.
fn held(proxy: &Proxy<'_>, standin: &StandIn, then: Reply) -> (Client, Gate) {
    let (gate, calls) = (standin.gate(), standin.call_count());
    standin.reply_once("*", "*", Reply::Held { gate: gate.clone(), then: Box::new(then) });
    let mut client = proxy.connect();
    client.send("POST", CHAT, &[AUTH], BODY);
    assert!(standin.wait_calls(calls + 1, LIMIT));
    (client, gate)
}

/// A client that has sent half of its body.
fn half_sent(proxy: &Proxy<'_>) -> Client {
    let mut client = proxy.connect();
    let length = BODY.len();
    let (name, key) = AUTH;
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\n{name}: {key}\r\ncontent-length: {length}\r\n\r\n"
    );
    client.send_raw(head.as_bytes()).unwrap();
    client.send_raw(&BODY[..length / 2]).unwrap();
    client
}

/// Does `meanwhile` in a pause of the proxy.
fn stopped(proxy: &Proxy<'_>, meanwhile: impl FnOnce()) {
    proxy.freeze();
    let until = clock::instant() + pause();
    meanwhile();
    rest(until.saturating_duration_since(clock::instant()));
    proxy.thaw();
}

/// Waits for a sign of life; false if none comes within `limit`.
fn is_fed(supervisor: &UnixDatagram, limit: Duration) -> bool {
    let mut message = [0; 1024];
    let deadline = clock::instant() + limit;
    loop {
        let left = deadline.saturating_duration_since(clock::instant());
        if left.is_zero() {
            return false;
        }
        supervisor.set_read_timeout(Some(left)).unwrap();
        let Ok(count) = supervisor.recv(&mut message) else { return false };
        if String::from_utf8_lossy(&message[..count]).lines().any(|line| line == "WATCHDOG=1") {
            return true;
        }
    }
}

#[test]
#[ignore = "takes minutes: tests/life/run"]
fn what_has_time_goes_on_after_a_pause_as_if_there_had_been_none() {
    let standin = StandIn::start().unwrap();
    let longer = seconds(pause() + Duration::from_secs(60));
    let builder = mortal(Proxy::builder(&standin));
    let notify = builder.folder().join("notify");
    let supervisor = UnixDatagram::bind(&notify).unwrap();
    let mut proxy = builder
        .env("CLIENT_TIMEOUT_SECONDS", &longer)
        .env("UPSTREAM_TIMEOUT_SECONDS", &longer)
        .env("STREAM_IDLE_TIMEOUT_SECONDS", &longer)
        .env("NOTIFY_SOCKET", notify.to_str().unwrap())
        .env("WATCHDOG_USEC", "3000000")
        .start();
    assert!(is_fed(&supervisor, LIMIT));

    let mut idle = idle_connection(&proxy);
    let mut asks_again = idle_connection(&proxy);
    let (mut stream, events) = stream_in_flight(&proxy, &standin, End::Clean);
    let (mut waits, answer) = held(&proxy, &standin, Reply::Normal);
    let (mut rotates, exhaustion) = held(&proxy, &standin, Reply::Exhausted(Shape::Nested));
    let mut uploads = half_sent(&proxy);
    standin.reply_once("*", "*", Reply::body(200, "text/plain", vec![b'x'; LARGE]));
    let mut reads_late = proxy.connect();
    reads_late.send("POST", CHAT, &[AUTH], BODY);
    assert_eq!(reads_late.read_head().unwrap().status, 200);
    assert_eq!(post(&proxy, CHAT, BODY).status, 200);

    let mut early = Vec::new();
    stopped(&proxy, || {
        while is_fed(&supervisor, Duration::from_millis(10)) {}
        events.open();
        answer.open();
        exhaustion.open();
        uploads.send_raw(&BODY[BODY.len() / 2..]).unwrap();
        asks_again.send("POST", MESSAGES, &[AUTH], BODY);
        for _ in 0..EARLY {
            let mut client = proxy.connect();
            client.send("POST", CHAT, &[AUTH], BODY);
            early.push(client);
        }
        standin.close_idle();
        assert!(!is_fed(&supervisor, Duration::from_millis(1500)), "nobody is there to feed it");
    });

    assert_eq!(stream.read_body().unwrap(), b"data: 2\n\ndata: [DONE]\n\n");
    assert_eq!(waits.read_answer().unwrap().status, 200);
    let rotated = rotates.read_answer().unwrap();
    assert_eq!((rotated.status, rotated.header("x-proxy-attempts")), (200, Some("2")));
    assert_eq!(uploads.read_answer().unwrap().status, 200);
    assert_eq!(asks_again.read_answer().unwrap().status, 200);
    for client in &mut early {
        assert_eq!(client.read_answer().unwrap().status, 200);
    }
    let received = reads_late.read_body().unwrap();
    assert!(received.len() == LARGE && received.iter().all(|byte| *byte == b'x'));
    idle.send("GET", "/models/status", &[AUTH], b"");
    assert_eq!(idle.read_answer().unwrap().json()["availableSlots"], 5);
    assert_eq!(post(&proxy, CHAT, BODY).status, 200);
    assert!(is_fed(&supervisor, LIMIT), "the watchdog starves after the pause");

    proxy.stop();
    let first = record(&proxy.state(), "k1", "m1");
    assert!(first["cooldownUntil"].as_u64().unwrap() > clock::now().0, "{first}");
}

#[test]
#[ignore = "takes minutes: tests/life/run"]
fn what_has_run_out_of_time_in_a_pause_is_told_so_and_the_rest_is_served() {
    let standin = StandIn::start().unwrap();
    let shorter = seconds(pause() / 3);
    let mut proxy = mortal(Proxy::builder(&standin))
        .env("CLIENT_TIMEOUT_SECONDS", &shorter)
        .env("UPSTREAM_TIMEOUT_SECONDS", &shorter)
        .env("STREAM_IDLE_TIMEOUT_SECONDS", &shorter)
        .start();

    let mut asks_again = idle_connection(&proxy);
    let mut says_nothing = proxy.connect();
    let mut stays_half = half_sent(&proxy);
    let (mut silenced, _gate) = stream_in_flight(&proxy, &standin, End::Clean);
    let (mut stream, events) = stream_in_flight(&proxy, &standin, End::Clean);
    let (mut waits_in_vain, _never) = held(&proxy, &standin, Reply::Normal);
    let (mut waits, answer) = held(&proxy, &standin, Reply::Normal);
    let mut early = proxy.connect();

    stopped(&proxy, || {
        events.open();
        answer.open();
        asks_again.send("POST", MESSAGES, &[AUTH], BODY);
        early.send("POST", CHAT, &[AUTH], BODY);
    });

    // What had come in time is not lost because nobody was there to take it.
    assert_eq!(stream.read_body().unwrap(), b"data: 2\n\ndata: [DONE]\n\n");
    assert_eq!(waits.read_answer().unwrap().status, 200);
    assert_eq!(asks_again.read_answer().unwrap().status, 200);
    assert_eq!(early.read_answer().unwrap().status, 200);
    // What had not come is over.
    assert_eq!(waits_in_vain.read_answer().unwrap().status, 504);
    assert_ne!(silenced.read_body().unwrap_err().how, How::TimedOut);
    // It may have come too shortly before the pause to be noticed before its end.
    assert!(says_nothing.wait_closed(pause() / 3 + LIMIT));
    assert!(stays_half.wait_closed(LIMIT));
    assert_eq!(post(&proxy, CHAT, BODY).status, 200);
    proxy.stop();
}
