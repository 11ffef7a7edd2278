//! More than the workers, their queue, or the memory for bodies can take.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use super::*;
use dashscope_proxy::standin::Reply;

#[test]
fn when_workers_and_queue_are_full_the_next_is_told_so_and_pages_are_still_served() {
    let standin = StandIn::start().unwrap();
    let gate = standin.gate();
    standin.reply("*", "*", Reply::Held { gate: gate.clone(), then: Box::new(Reply::Normal) });
    let proxy = quiet(&standin).env("WORKERS", "1").env("QUEUE_SIZE", "1").start();
    let mut first = proxy.connect();
    send_chat(&mut first);
    assert!(standin.wait_calls(1, LIMIT));
    // Of these two, one waits and the other is refused.
    let (sender, answers) = mpsc::channel();
    for _ in 0..2 {
        let (sender, mut client) = (sender.clone(), proxy.connect());
        thread::spawn(move || sender.send(chat(&mut client)));
    }
    let refusal = answers.recv_timeout(LIMIT).expect("one is refused").unwrap();
    assert_eq!((refusal.status, refusal.header("retry-after")), (503, Some("1")));
    assert_eq!(refusal.json()["error"]["code"], "overloaded");
    for body in [BODY.to_vec(), [BODY, &vec![b' '; 5_000]].concat(), vec![b' '; 3_000_000]] {
        let refusal = request(proxy.address(), "POST", MESSAGES, &[AUTH], body);
        assert_eq!((refusal.status, refusal.header("retry-after")), (503, Some("1")));
        assert_eq!(refusal.json()["error"]["type"], "overloaded_error");
    }
    for path in ["/health", "/models/status"] {
        // The quickest of some, because the machine may be busy with other things.
        let times = (0..20).map(|_| {
            let begun = clock::instant();
            assert_eq!(request(proxy.address(), "GET", path, &[AUTH], b"").status, 200);
            begun.elapsed()
        });
        let quickest = times.min().unwrap();
        assert!(quickest < Duration::from_millis(100), "{path} took {quickest:?}");
    }
    gate.open();
    assert_eq!(first.read_answer().map(|answer| answer.status), Ok(200));
    let second = answers.recv_timeout(LIMIT).expect("the one that waited is served");
    assert_eq!(second.map(|answer| answer.status), Ok(200));
    assert_eq!(standin.call_count(), 2);
}

#[test]
fn forty_bodies_of_twenty_megabytes_take_no_more_memory_than_four_of_them() {
    const SIZE: usize = 20 << 20;
    let standin = StandIn::start().unwrap();
    let gate = standin.gate();
    standin.reply("*", "*", Reply::Held { gate: gate.clone(), then: Box::new(Reply::Normal) });
    let proxy = quiet(&standin).env("MAX_BODY_BYTES", SIZE.to_string()).start();
    standin.keep_calls(false);
    let mut body = BODY.to_vec();
    body.resize(SIZE, b' ');
    let (refused, served) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for number in 0..40 {
            let (proxy, body, gate, refused, served) = (&proxy, &body, &gate, &refused, &served);
            scope.spawn(move || {
                let mut client = proxy.connect();
                client.set_limit(LIMIT * 6);
                client.socket().set_write_timeout(Some(LIMIT * 6)).unwrap();
                if number % 2 == 0 {
                    client.send("POST", CHAT, &[AUTH], body);
                } else {
                    client.send("POST", CHAT, &[AUTH, ("transfer-encoding", "chunked")], b"");
                    let _ = client.socket().write_all(format!("{SIZE:x}\r\n").as_bytes());
                    let _ = client.socket().write_all(body);
                    let _ = client.socket().write_all(b"\r\n0\r\n\r\n");
                }
                let answer = client.read_answer();
                let answer = answer.unwrap_or_else(|cut| panic!("{number} was cut: {cut:?}"));
                match answer.status {
                    200 => served.fetch_add(1, Ordering::Relaxed),
                    503 => {
                        assert_eq!(answer.header("retry-after"), Some("1"));
                        let count = refused.fetch_add(1, Ordering::Relaxed);
                        if count == 30 {
                            gate.open();
                        }
                        count
                    }
                    other => panic!("{number} got {other}"),
                };
            });
        }
    });
    let (refused, served) = (refused.into_inner(), served.into_inner());
    assert!(served >= 1 && refused >= 31, "{served} served, {refused} refused");
    // The process itself, and what the allocator keeps.
    let most = ((4 * SIZE as u64) >> 20) + 100;
    assert!(peak(&proxy) < most, "{} MiB", peak(&proxy));
    assert_serves(&proxy);
}
