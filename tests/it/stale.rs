//! Connections that upstream gave up while they lay in the pool, and answers that break off.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]

use std::thread;
use std::time::Duration;

use dashscope_proxy::standin::{End, Framing, Part, Reply, StandIn};

use crate::envelope::{CHAT, MESSAGES};
use crate::failover::{BODY, STREAMED, attempts, lines, served_by, shown, throttled};
use crate::harness::{AUTH, How, LIMIT, Proxy, post};

const POOLED: usize = 4;

/// Leaves connections in the proxy's pool: as many requests at once as there are to be.
fn fill_pool(standin: &StandIn, proxy: &Proxy<'_>) {
    let (before, gate) = (standin.call_count(), standin.gate());
    for _ in 0..POOLED {
        let held = Reply::Held { gate: gate.clone(), then: Box::new(Reply::Normal) };
        standin.reply_once("*", "*", held);
    }
    thread::scope(|scope| {
        for _ in 0..POOLED {
            scope.spawn(|| assert_eq!(post(proxy, CHAT, BODY).status, 200));
        }
        assert!(standin.wait_calls(before + POOLED, LIMIT));
        gate.open();
    });
    for id in 1..=POOLED {
        assert!(proxy.wait_log(&format!(" request id={id} "), LIMIT));
    }
    assert_eq!(standin.open_connections(), POOLED);
}

#[test]
fn pooled_connections_that_were_closed_or_reset_are_not_noticed_by_the_client() {
    for close in [StandIn::close_idle, StandIn::reset_idle] {
        let standin = StandIn::start().unwrap();
        let proxy = Proxy::start(&standin);
        fill_pool(&standin, &proxy);
        let calls = standin.call_count();
        while !standin.wait_open(0, Duration::from_millis(10)) {
            close(&standin);
        }
        for round in 0..=POOLED {
            let answer = post(&proxy, [CHAT, MESSAGES][round % 2], [BODY, STREAMED][round % 2]);
            assert_eq!((answer.status, served_by(&answer)), (200, shown("k1", "m1")), "{answer:?}");
        }
        assert_eq!(standin.call_count(), calls + POOLED + 1);
        assert!(lines(&proxy, "bench").is_empty() && lines(&proxy, "rotate").is_empty());
    }
}

#[test]
fn connections_that_all_die_under_their_next_request_are_not_noticed_either() {
    for reply in [Reply::CloseBeforeHead, Reply::ResetBeforeHead] {
        let standin = StandIn::start().unwrap();
        let proxy = Proxy::start(&standin);
        fill_pool(&standin, &proxy);
        let calls = standin.call_count();
        // Upstream gave all of them up, and the news has not come yet: or, behind a firewall that
        // forgot them, only comes with the next request.
        standin.reply("*", "*", Reply::OnUsed(Box::new(reply.clone())));
        let answer = post(&proxy, CHAT, BODY);
        assert_eq!((answer.status, attempts(&answer)), (200, Some("2")), "{reply:?}: {answer:?}");
        assert_eq!(standin.call_count(), calls + 2);
        assert!(lines(&proxy, "bench").is_empty() && lines(&proxy, "rotate").is_empty());
    }
}

#[test]
fn a_stale_connection_in_the_middle_of_a_walk_blames_nobody() {
    for reply in [Reply::CloseBeforeHead, Reply::ResetBeforeHead] {
        let standin = StandIn::start().unwrap();
        standin.reply_once("k1", "m1", throttled());
        standin.reply_once("k1", "m2", reply.clone());
        let proxy = Proxy::start(&standin);
        let answer = post(&proxy, CHAT, BODY);
        assert_eq!((answer.status, attempts(&answer)), (200, Some("3")), "{reply:?}: {answer:?}");
        assert_eq!(standin.slots(), ["k1/m1", "k1/m2", "k1/m2"], "{reply:?}");
        assert_eq!(lines(&proxy, "bench").len(), 1, "only the throttled one rests");
    }
}

#[test]
fn after_a_byte_of_an_answer_there_is_no_second_call_on_any_slot() {
    let parts = [
        ("text/event-stream", "data: {\"choices\":[]}\n\n"),
        // Half an event: nothing of it has reached the client yet, and still it is an answer.
        ("text/event-stream", "data: {\"cho"),
        ("application/json", "{\"choices\":["),
    ];
    for (content_type, part) in parts {
        for end in [End::Fin, End::Reset] {
            let standin = StandIn::start().unwrap();
            let proxy = Proxy::start(&standin);
            assert_eq!(post(&proxy, CHAT, BODY).status, 200);
            assert!(proxy.wait_log(" request id=1 ", LIMIT));
            standin.reply_once(
                "*",
                "*",
                Reply::Stream {
                    headers: vec![("content-type".to_owned(), content_type.to_owned())],
                    parts: vec![Part::now(part)],
                    framing: Framing::Chunked,
                    end,
                },
            );
            let mut client = proxy.connect();
            client.send("POST", CHAT, &[AUTH], STREAMED.as_bytes());
            let cut = client.read_answer().unwrap_err();
            assert_ne!(cut.how, How::TimedOut, "{part} {end:?}");
            assert!(proxy.wait_log(" request id=2 ", LIMIT));
            assert_eq!(standin.slots(), ["k1/m1", "k1/m1"], "{part} {end:?}");
            assert_eq!(standin.connections(), 1, "the connection was not reused");
            assert!(lines(&proxy, "bench").is_empty(), "{part} {end:?}");
        }
    }
}
