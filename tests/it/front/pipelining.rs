//! Requests behind requests on one connection.

use std::io::Write;
use std::net::Shutdown;
use std::thread;

use super::*;
use dashscope_proxy::standin::Reply;

#[test]
fn what_waits_behind_a_slow_request_delays_no_other_client() {
    let standin = StandIn::start().unwrap();
    let gate = standin.gate();
    standin.reply("*", "*", Reply::Held { gate: gate.clone(), then: Box::new(Reply::Normal) });
    let proxy = quiet(&standin).start();
    let mut slow: Vec<Client> = (0..40).map(|_| proxy.connect()).collect();
    for client in &mut slow {
        send_chat(client);
        client.send("GET", "/health", &[], b"");
        client.send("GET", "/nowhere", &[], b"");
        client.send("POST", CHAT, &[WRONG], BODY);
    }
    assert!(standin.wait_calls(slow.len(), LIMIT));
    for _ in 0..20 {
        assert_eq!(health(&mut proxy.connect()).map(|answer| answer.status), Ok(200));
    }
    gate.open();
    for client in &mut slow {
        for status in [200, 200, 404, 401] {
            assert_eq!(client.read_answer().map(|answer| answer.status), Ok(status));
        }
    }
}

#[test]
fn one_worker_answers_five_pipelining_clients_each_in_order() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).env("WORKERS", "1").start();
    for _ in 0..5 {
        let mut clients: Vec<Client> = (0..5).map(|_| proxy.connect()).collect();
        for client in &mut clients {
            send_chat(client);
            client.send("GET", "/v1/models", &[AUTH], b"");
            client.send("POST", MESSAGES, &[AUTH], BODY);
            send_chat(client);
        }
        for client in &mut clients {
            for object in ["chat.completion", "list", "message", "chat.completion"] {
                let answer = client.read_answer().unwrap();
                let json = answer.json();
                let seen = json["object"].as_str().or(json["type"].as_str());
                assert_eq!((answer.status, seen), (200, Some(object)));
            }
        }
    }
}

#[test]
fn requests_of_one_packet_are_answered_in_their_order() {
    let standin = StandIn::start().unwrap();
    let proxy = silent(&standin).start();
    let (name, value) = AUTH;
    let packet = format!(
        "GET /health HTTP/1.1\r\nhost: a\r\n\r\n\
         GET /v1/models HTTP/1.1\r\nhost: a\r\n{name}: {value}\r\n\r\n"
    );
    // Whoever takes the second must not be ahead of whoever takes the first.
    for _ in 0..2000 {
        let mut client = proxy.connect();
        client.send_raw(packet.as_bytes()).unwrap();
        for (member, kind) in [("ok", true), ("object", false)] {
            let answer = client.read_answer().expect("an answer");
            assert_eq!((answer.status, answer.json()[member].is_boolean()), (200, kind));
        }
    }
}

/// Sends the same request again and again without reading, until it is ended, or the server
/// takes no more.
fn pipeline_endlessly(address: SocketAddr, request: &str) {
    let client = Client::connect(address);
    let mut socket = client.socket();
    socket.set_write_timeout(Some(Duration::from_secs(2))).expect("a socket option");
    let packet = request.repeat(500);
    let mut sent = 0;
    while sent < 64 << 20 {
        match socket.write(packet.as_bytes()) {
            Ok(count) => sent += count,
            Err(_) => break,
        }
    }
    let _ = socket.shutdown(Shutdown::Both);
}

#[test]
fn endless_pipelining_without_reading_costs_neither_memory_nor_the_intake() {
    let standin = StandIn::start().unwrap();
    let proxy = silent(&standin).start();
    let address = proxy.address();
    let (name, value) = AUTH;
    let requests = [
        "GET /health HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
        "GET /models/status HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
        format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{{}}"),
        "OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
        format!("GET /models/status HTTP/1.1\r\nhost: a\r\n{name}: {value}\r\n\r\n"),
    ];
    thread::scope(|scope| {
        let floods: Vec<_> = requests
            .iter()
            .map(|request| scope.spawn(move || pipeline_endlessly(address, request)))
            .collect();
        while !floods.iter().all(thread::ScopedJoinHandle::is_finished) {
            assert_serves(&proxy);
            pause(STEP);
        }
    });
    assert_serves(&proxy);
    assert!(peak(&proxy) < MODEST, "{} MiB", peak(&proxy));
}
