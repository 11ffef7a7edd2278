//! Clients that are slow, silent, or never come to an end.

use std::io::Write;

use super::*;
use dashscope_proxy::standin::{End, Part, Reply};

/// The shortest time after which a client is let go, and a single worker to be held.
fn strict(standin: &StandIn) -> Builder<'_> {
    quiet(standin).env("CLIENT_TIMEOUT_SECONDS", "1").env("WORKERS", "1")
}

fn post_head(path: &str, key: bool, framing: &str) -> String {
    let (name, value) = AUTH;
    let auth = if key { format!("{name}: {value}\r\n") } else { String::new() };
    format!("POST {path} HTTP/1.1\r\nhost: a\r\n{auth}{framing}\r\n\r\n")
}

/// Beginnings of requests that never end.
fn beginnings() -> Vec<String> {
    let mut beginnings = vec![
        String::new(),
        "GET /hea".to_owned(),
        "GET /health HTTP/1.1\r\nhost: a\r\nx-half: ".to_owned(),
        "GET /health HTTP/1.1\r\nhost: a\r\ncontent-length: 5000\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n".to_owned(),
        "OPTIONS / HTTP/1.1\r\nhost: a\r\ncontent-length: 5000\r\n\r\n".to_owned(),
        post_head("/nowhere", false, "content-length: 30000") + "begun",
        post_head("/health", false, "content-length: 30000") + "begun",
    ];
    for key in [true, false] {
        for framing in ["content-length: 100", "content-length: 5000", "content-length: 1000000"] {
            beginnings.push(post_head(CHAT, key, framing) + "begun");
        }
        beginnings.push(post_head(CHAT, key, "transfer-encoding: chunked") + "ff\r\nbegun");
    }
    beginnings
}

fn begin(proxy: &Proxy<'_>, beginning: &str) -> Client {
    let mut client = proxy.connect();
    client.send_raw(beginning.as_bytes()).expect("it is taken");
    client
}

#[test]
fn whoever_never_finishes_a_head_or_a_body_is_let_go_and_holds_nobody_up() {
    let standin = StandIn::start().unwrap();
    let proxy = strict(&standin).start();
    let mut stalled: Vec<Client> =
        beginnings().iter().map(|beginning| begin(&proxy, beginning)).collect();
    assert_serves(&proxy);
    let left = still_open(&mut stalled, LIMIT);
    assert_eq!(left, 0, "connections that stay open");
    assert_serves(&proxy);
}

#[test]
fn whoever_dribbles_a_head_or_a_body_is_let_go_and_holds_nobody_up() {
    let standin = StandIn::start().unwrap();
    let proxy = strict(&standin).start();
    let mut dribbling: Vec<Client> = beginnings()
        .iter()
        // One that is refused may go on for half a minute, because it may yet read its refusal.
        .filter(|beginning| !beginning.contains("\r\n\r\n") || beginning.contains(AUTH.1))
        .map(|beginning| begin(&proxy, beginning))
        .collect();
    assert!(dribbling.len() >= 6);
    assert_serves(&proxy);
    let all_let_go = eventually(LIMIT, || {
        dribbling.retain_mut(|client| client.send_raw(b"x").is_ok() && !is_over(client));
        dribbling.is_empty()
    });
    assert!(all_let_go, "{} stay open", dribbling.len());
    assert_serves(&proxy);
}

#[test]
fn an_idle_connection_is_let_go_whether_or_not_it_dribbles_another_head() {
    let standin = StandIn::start().unwrap();
    let proxy = strict(&standin).start();
    let mut idle: Vec<Client> = (0..2).map(|_| proxy.connect()).collect();
    for client in &mut idle {
        assert_eq!(chat(client).map(|answer| answer.status), Ok(200));
    }
    let all_let_go = eventually(Duration::from_secs(16) + LIMIT, || {
        let _ = idle.last_mut().map(|client| client.send_raw(b"x"));
        idle.retain(|client| !is_over(client));
        idle.is_empty()
    });
    assert!(all_let_go, "{} stay open", idle.len());
}

#[test]
fn a_head_without_an_end_is_cut_off_before_it_takes_much_memory() {
    let standin = StandIn::start().unwrap();
    // Nobody is let go for being slow here.
    let proxy = quiet(&standin).start();
    // Upstream's idle connections are among them.
    assert_serves(&proxy);
    let before = descriptors(&proxy);
    for piece in ["x".repeat(64 << 10), "x: y\r\n".repeat(10 << 10)] {
        let client = begin(&proxy, "GET /health HTTP/1.1\r\nx: y\r\nx: ");
        let mut socket = client.socket();
        // It is cut off without a word, and may only see that nothing is taken any more.
        socket.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
        let mut sent = 0;
        while let Ok(count) = socket.write(piece.as_bytes()) {
            sent += count;
            let most = resident(&proxy);
            assert!(most < 2 * MODEST, "{most} MiB for {sent} bytes of {}", &piece[..3]);
        }
        let let_go = eventually(LIMIT, || descriptors(&proxy) <= before);
        assert!(let_go, "{sent} bytes of {} were taken, and it is still there", &piece[..3]);
        assert_serves(&proxy);
    }
}

#[test]
fn a_client_that_stops_reading_in_mid_stream_is_let_go() {
    let standin = StandIn::start().unwrap();
    let proxy = strict(&standin).start();
    let event = format!("data: {}\n\n", "x".repeat(1 << 20));
    let parts = (0..32).map(|_| Part::now(event.clone())).collect();
    standin.reply_once("*", "*", Reply::sse(parts, End::Hang));
    let mut client = proxy.connect();
    send_chat(&mut client);
    assert_eq!(client.read_head().map(|head| head.status), Ok(200));
    assert!(standin.wait_closed(0, LIMIT), "upstream is still asked");
    // Its worker was the only one.
    assert_serves(&proxy);
    assert!(client.read_body().is_err(), "half a stream looks whole");
}

#[test]
fn five_hundred_slow_and_silent_connections_leave_the_service_normal() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).env("WORKERS", "2").start();
    let beginnings = beginnings();
    let crowd: Vec<Client> =
        beginnings.iter().cycle().take(500).map(|beginning| begin(&proxy, beginning)).collect();
    for _ in 0..5 {
        assert_serves(&proxy);
    }
    assert!(peak(&proxy) < MODEST, "{} MiB", peak(&proxy));
    drop(crowd);
    assert_serves(&proxy);
}

#[test]
fn no_page_and_no_refusal_waits_for_strangers_that_never_finish_their_bodies() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).env("MAX_BODY_BYTES", "1048576").start();
    let crowd: Vec<Client> = beginnings()
        .iter()
        .filter(|beginning| beginning.contains("\r\n\r\n") && !beginning.contains(AUTH.1))
        .cycle()
        .take(400)
        .map(|beginning| begin(&proxy, beginning))
        .collect();
    for size in [0, 100, 5_000, 100_000, 3_000_000] {
        let mut client = proxy.connect();
        client.send("POST", CHAT, &[WRONG], &vec![b' '; size]);
        assert_eq!(client.read_answer().map(|answer| answer.status), Ok(401), "{size} bytes");
    }
    let mut client = proxy.connect();
    client.send("POST", CHAT, &[AUTH], &vec![b' '; 3_000_000]);
    assert_eq!(client.read_answer().map(|answer| answer.status), Ok(413));
    assert_serves(&proxy);
    drop(crowd);
}

/// Reads one head as it comes, interim or not, and returns its status.
fn next_status(client: &Client) -> u16 {
    let mut socket = client.socket();
    socket.set_read_timeout(Some(LIMIT)).expect("a socket option");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).expect("a head");
        head.extend(byte);
    }
    statuses(&head)[0]
}

#[test]
fn a_client_that_waits_for_100_continue_gets_it_and_is_served() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).start();
    for size in [BODY.len(), 1_000, 1_100, 200_000] {
        let mut body = BODY.to_vec();
        body.resize(size, b' ');
        let chunk = format!("{size:x}\r\n{}\r\n0\r\n\r\n", String::from_utf8_lossy(&body));
        for (framing, body) in [
            (format!("content-length: {size}"), body),
            ("transfer-encoding: chunked".to_owned(), chunk.into_bytes()),
        ] {
            let framing = framing + "\r\nexpect: 100-continue";
            let mut client = begin(&proxy, &post_head(CHAT, true, &framing));
            assert_eq!(next_status(&client), 100, "{framing}");
            client.send_raw(&body).unwrap();
            assert_eq!(next_status(&client), 200, "{framing}");
        }
    }
    assert_eq!(standin.call_count(), 8);
}

#[test]
fn a_client_that_waits_for_100_continue_and_is_refused_is_not_asked_for_its_body() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).env("MAX_BODY_BYTES", "1048576").start();
    for (path, key, framing, status) in [
        (CHAT, false, "content-length: 100", 401),
        (CHAT, false, "content-length: 5000", 401),
        (MESSAGES, false, "content-length: 100000", 401),
        (CHAT, false, "transfer-encoding: chunked", 401),
        (CHAT, true, "content-length: 3000000", 413),
        (CHAT, true, "content-length: 5\r\ntransfer-encoding: chunked", 400),
        ("/nowhere", true, "content-length: 100", 404),
        ("/health", true, "content-length: 100", 405),
    ] {
        let framing = format!("{framing}\r\nexpect: 100-continue");
        let client = begin(&proxy, &post_head(path, key, &framing));
        assert_eq!(next_status(&client), status, "{path} {framing}");
    }
    let get =
        "GET /health HTTP/1.1\r\nhost: a\r\ncontent-length: 50\r\nexpect: 100-continue\r\n\r\n";
    assert_eq!(next_status(&begin(&proxy, get)), 200, "a page");
    assert_eq!(standin.call_count(), 0);
}

#[test]
fn a_request_that_comes_while_the_process_stands_still_has_come_in_time() {
    let standin = StandIn::start().unwrap();
    let proxy = silent(&standin).env("CLIENT_TIMEOUT_SECONDS", "1").start();
    let mut silent: Vec<Client> = (0..20).map(|_| proxy.connect()).collect();
    let mut uploads: Vec<Client> = (0..20).map(|_| proxy.connect()).collect();
    for client in &mut uploads {
        client.send("POST", CHAT, &[AUTH, ("content-length", "20")], &[b' '; 10]);
    }
    assert_serves(&proxy);

    proxy.freeze();
    for client in &mut silent {
        client.send("GET", "/health", &[], b"");
    }
    for client in &mut uploads {
        client.send_raw(b"        {}").unwrap();
    }
    // The limit passes.
    assert!(!silent[0].wait_closed(Duration::from_millis(1500)));
    proxy.thaw();
    for client in silent.iter_mut().chain(&mut uploads) {
        assert_eq!(client.read_answer().map(|answer| answer.status), Ok(200));
    }
}
