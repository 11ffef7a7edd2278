//! Clients that leave before they have their answer.

use super::*;
use dashscope_proxy::standin::{End, Framing, Part, Reply, Shape};
use serde_json::Value;

/// How long the proxy may take to see it: about a second, on a loaded machine.
const SOON: Duration = Duration::from_secs(5);

/// With and without a promise of the client that this is its last request.
const CLOSES: [&[(&str, &str)]; 2] = [&[AUTH], &[AUTH, ("connection", "close")]];

fn one_worker(standin: &StandIn) -> Proxy<'_> {
    quiet(standin).env("WORKERS", "1").start()
}

/// The next client passes: the worker is free.
fn assert_free(proxy: &Proxy<'_>) {
    assert_eq!(chat(&mut proxy.connect()).map(|answer| answer.status), Ok(200));
}

/// What the pool looks like to the next request, read before it asks.
fn pool(proxy: &Proxy<'_>) -> Value {
    request(proxy.address(), "GET", "/models/status", &[AUTH], b"").json()["models"].clone()
}

#[test]
fn a_client_that_leaves_before_the_first_byte_stops_the_call_and_teaches_nothing() {
    let standin = StandIn::start().unwrap();
    let proxy = one_worker(&standin);
    let (pool_before, state_before) = (pool(&proxy), proxy.state());
    for (number, headers) in CLOSES.into_iter().enumerate() {
        standin.reply_once("*", "*", Reply::HangBeforeHead);
        let mut client = proxy.connect();
        client.send("POST", CHAT, headers, BODY);
        assert!(standin.wait_calls(number + 1, LIMIT));
        drop(client);
        assert!(standin.wait_closed(number, SOON), "{headers:?}");
        let end = format!("request id={} ", number + 1);
        assert!(proxy.wait_log(&end, LIMIT), "the request does not end");
    }
    assert_eq!(standin.call_count(), CLOSES.len(), "the walk went on");
    assert_eq!(pool(&proxy), pool_before);
    assert_eq!(proxy.state(), state_before);
    assert_free(&proxy);
}

#[test]
fn a_client_that_leaves_in_mid_stream_stops_the_call_and_cools_nothing() {
    let standin = StandIn::start().unwrap();
    let proxy = one_worker(&standin);
    let event = vec![Part::now("data: {\"choices\":[]}\n\n")];
    let json = vec![("content-type".to_owned(), "application/json".to_owned())];
    let half = || vec![Part::now("{\"choices\":")];
    let replies = [
        Reply::sse(event, End::Hang),
        Reply::Stream {
            headers: json.clone(),
            parts: half(),
            framing: Framing::Length,
            end: End::Hang,
        },
        Reply::Stream { headers: json, parts: half(), framing: Framing::Chunked, end: End::Hang },
    ];
    for reply in replies {
        for headers in CLOSES {
            let number = standin.call_count();
            standin.reply_once("*", "*", reply.clone());
            let mut client = proxy.connect();
            client.send("POST", CHAT, headers, BODY);
            client.read_head().unwrap();
            assert!(!client.read_chunk().unwrap().unwrap().is_empty());
            drop(client);
            assert!(standin.wait_closed(number, SOON), "{headers:?} {reply:?}");
            assert_free(&proxy);
        }
    }
    assert_eq!(standin.slots(), vec!["k1/m1"; 12]);
    let pool = pool(&proxy);
    for slot in pool.as_array().unwrap() {
        assert_eq!((&slot["available"], &slot["failureCount"]), (&true.into(), &0.into()));
    }
}

#[test]
fn a_client_that_leaves_while_rotating_stops_the_walk() {
    let standin = StandIn::start().unwrap();
    for headers in CLOSES {
        standin.clear();
        let first = standin.call_count();
        let proxy = one_worker(&standin);
        standin.reply("k1", "m1", Reply::Exhausted(Shape::ALL[0]));
        standin.reply_once("k1", "m2", Reply::HangBeforeHead);
        let mut client = proxy.connect();
        client.send("POST", CHAT, headers, BODY);
        assert!(standin.wait_calls(first + 2, LIMIT));
        drop(client);
        assert!(standin.wait_closed(first + 1, SOON), "{headers:?}");
        assert_free(&proxy);
        assert_eq!(standin.slots()[first..], ["k1/m1", "k1/m2", "k1/m2"]);
    }
}

#[test]
fn when_every_client_of_full_workers_leaves_the_next_one_passes() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).env("WORKERS", "4").env("QUEUE_SIZE", "4").start();
    standin.reply("*", "*", Reply::HangBeforeHead);
    // Some are in work, some wait in the queue.
    let crowd: Vec<Client> = (0..8)
        .map(|number| {
            let mut client = proxy.connect();
            client.send("POST", CHAT, CLOSES[number % 2], BODY);
            client
        })
        .collect();
    assert!(standin.wait_calls(4, LIMIT));
    drop(crowd);
    for number in 0..4 {
        assert!(standin.wait_closed(number, SOON));
    }
    standin.clear();
    let passes =
        eventually(LIMIT, || chat(&mut proxy.connect()).is_ok_and(|answer| answer.status == 200));
    assert!(passes);
}
