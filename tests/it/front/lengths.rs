//! `Content-Length` of any size: the library would allocate it.

use std::thread;

use super::*;

const ABSURD: [&str; 19] = [
    "1000000000",
    "4294967296",
    "30000000000",
    "1099511627776",
    "140737488355327",
    "9007199254740993",
    "4611686018427387904",
    "9223372036854775806",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "340282366920938463463374607431768211456",
    "-1",
    "+5",
    "5, 5",
    "5\r\ncontent-length: 9223372036854775807",
    "9223372036854775807\r\ncontent-length: 9223372036854775807",
    "0x7fffffffffffffff",
];

const TARGETS: [(&str, &str); 9] = [
    ("POST", CHAT),
    ("POST", MESSAGES),
    ("GET", "/health"),
    ("POST", "/health"),
    ("GET", "/models/status"),
    ("GET", "/"),
    ("HEAD", "/health"),
    ("OPTIONS", CHAT),
    ("POST", "/nowhere"),
];

fn head(method: &str, target: &str, key: Option<(&str, &str)>, length: &str) -> String {
    let key = key.map_or_else(String::new, |(name, value)| format!("{name}: {value}\r\n"));
    format!("{method} {target} HTTP/1.1\r\nhost: a\r\n{key}content-length: {length}\r\n\r\n")
}

/// Sends such a head and a little of the body, and leaves once there is an answer.
fn ask_absurdly(proxy: &Proxy<'_>, request: &str) -> Result<u16, Cut> {
    let mut client = proxy.connect();
    client.send_raw(request.as_bytes()).expect("the head is taken");
    client.send_raw(b"a little").ok();
    client.read_head().map(|head| head.status)
}

#[test]
fn an_absurd_length_costs_neither_memory_nor_the_process_on_any_path() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).start();
    for key in [None, Some(WRONG), Some(AUTH)] {
        thread::scope(|scope| {
            for (method, target) in TARGETS {
                let proxy = &proxy;
                scope.spawn(move || {
                    for length in ABSURD {
                        let status = ask_absurdly(proxy, &head(method, target, key, length));
                        let shown = format!("{method} {target} {length} {key:?}: {status:?}");
                        let status = status.expect(&shown);
                        if method == "POST" {
                            assert!((400..500).contains(&status), "{shown}");
                        }
                    }
                });
            }
            scope.spawn(|| assert_serves(&proxy));
        });
    }
    assert_serves(&proxy);
    let served = standin.calls().iter().filter(|call| call.body.len() > 20).count();
    assert_eq!(standin.call_count(), served, "only honest requests went upstream");
    assert!(peak(&proxy) < MODEST, "{} MiB", peak(&proxy));
}

#[test]
fn two_hundred_absurd_lengths_in_a_row_do_no_harm_to_honest_requests_beside_them() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).start();
    let mut open = Vec::new();
    for number in 0..200 {
        let mut client = proxy.connect();
        let length = ABSURD[number % ABSURD.len()];
        let key = [None, Some(AUTH)][number / 7 % 2];
        let (method, target) = TARGETS[number % TARGETS.len()];
        client.send_raw(head(method, target, key, length).as_bytes()).unwrap();
        // They stay, and so do those that never get a body.
        open.push(client);
        if number % 20 == 19 {
            assert_serves(&proxy);
        }
    }
    assert!(peak(&proxy) < MODEST, "{} MiB", peak(&proxy));
    drop(open);
    assert_serves(&proxy);
}

/// Sends a body of 3 MB as a whole before it looks for the answer.
fn refused_body(proxy: &Proxy<'_>, path: &str, framing: &str, body: &[u8]) -> Answer {
    let mut client = proxy.connect();
    let (name, value) = AUTH;
    let head = format!("POST {path} HTTP/1.1\r\nhost: a\r\n{name}: {value}\r\n{framing}\r\n\r\n");
    client.send_raw(head.as_bytes()).expect("the head is taken");
    client.send_raw(body).expect("the body is taken to its end");
    let answer = client.read_answer().expect("an answer that can be read");
    assert!(client.wait_closed(LIMIT), "the connection ends");
    answer
}

#[test]
fn a_client_that_sends_all_of_a_body_that_is_too_large_can_read_the_413() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).env("MAX_BODY_BYTES", "1048576").start();
    let plain = vec![b' '; 3_000_000];
    let mut chunked = Vec::new();
    for part in plain.chunks(100_000) {
        chunked.extend(format!("{:x}\r\n", part.len()).into_bytes());
        chunked.extend(part);
        chunked.extend(b"\r\n");
    }
    chunked.extend(b"0\r\n\r\n");
    for (framing, body) in
        [("content-length: 3000000", &plain), ("transfer-encoding: chunked", &chunked)]
    {
        let answer = refused_body(&proxy, CHAT, framing, body);
        assert_eq!(answer.status, 413);
        assert_eq!(answer.json()["error"]["code"], "request_too_large");
        let answer = refused_body(&proxy, MESSAGES, framing, body);
        assert_eq!(answer.status, 413);
        assert_eq!(answer.json()["error"]["type"], "request_too_large");
    }
    assert_eq!(standin.call_count(), 0);
    assert_serves(&proxy);
}

#[test]
fn a_body_of_exactly_the_largest_size_is_served() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).env("MAX_BODY_BYTES", "100000").start();
    let mut body = BODY.to_vec();
    body.resize(100_000, b' ');
    let framed = format!("{:x}\r\n{}\r\n0\r\n\r\n", body.len(), String::from_utf8_lossy(&body));
    let chunked = [AUTH, ("transfer-encoding", "chunked")];
    assert_eq!(request(proxy.address(), "POST", CHAT, &[AUTH], &body).status, 200);
    assert_eq!(request(proxy.address(), "POST", CHAT, &chunked, framed).status, 200);
    assert_eq!(standin.calls()[1].body.len(), standin.calls()[0].body.len());
}

#[test]
fn a_body_announced_beside_an_offer_of_another_protocol_is_waited_for_like_any_other() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).env("WORKERS", "1").start();
    let (name, value) = AUTH;
    let begin = |line: &str, length: usize| {
        let mut client = proxy.connect();
        let head = format!(
            "{line} HTTP/1.1\r\nhost: a\r\n{name}: {value}\r\nconnection: upgrade\r\n\
             upgrade: h2c\r\ncontent-length: {length}\r\n\r\n"
        );
        client.send_raw(head.as_bytes()).unwrap();
        client
    };
    // The library reads nothing ahead of such a request, however short it is.
    let mut pages: Vec<Client> = (0..20).map(|_| begin("GET /health", 10)).collect();
    let mut chats: Vec<Client> =
        (0..3).map(|_| begin(&format!("POST {CHAT}"), BODY.len())).collect();
    for client in &mut pages {
        assert_eq!(client.read_answer().map(|answer| answer.status), Ok(200));
    }
    // Nobody waits for their bodies who has anything else to do.
    assert_serves(&proxy);
    for client in &mut chats {
        client.send_raw(BODY).unwrap();
        assert_eq!(client.read_answer().map(|answer| answer.status), Ok(200));
    }
}

#[test]
fn an_answer_of_ours_to_a_short_body_keeps_the_connection() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).start();
    let (name, value) = AUTH;
    let mut client = proxy.connect();
    for (path, body, status) in [
        ("/models/reset", "{\"all\":true}", 200),
        ("/models/reset", "{}", 400),
        ("/models/disable", "not json", 400),
        ("/nowhere", "{}", 404),
        ("/health", "{}", 405),
    ] {
        let length = body.len();
        let packet = format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\n{name}: {value}\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        client.send_raw(packet.as_bytes()).unwrap();
        let answer = client.read_answer().unwrap();
        assert_eq!((answer.status, answer.header("connection")), (status, None), "{path} {body}");
        // Whoever is not told that it closes may send its next request at once.
        send_chat(&mut client);
        assert_eq!(client.read_answer().map(|answer| answer.status), Ok(200), "{path} {body}");
    }
}

#[test]
fn an_absurd_length_behind_a_last_answer_leaves_nothing_behind_either() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).start();
    assert_serves(&proxy);
    let before = descriptors(&proxy);
    let absurd = "POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 4611686018427387904\r\n\r\n";
    let firsts = [
        "GET /health HTTP/1.0\r\nhost: a\r\nconnection: keep-alive\r\n\r\n",
        "POST /x HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 20\r\n\r\n",
        "GET /nowhere HTTP/1.0\r\nhost: a\r\nconnection: keep-alive\r\n\r\n",
    ];
    let mut clients = Vec::new();
    for first in firsts.iter().cycle().take(15) {
        let mut client = proxy.connect();
        client.send_raw(format!("{first}{absurd}").as_bytes()).unwrap();
        assert!(client.read_answer().is_ok());
        clients.push(client);
    }
    assert_eq!(still_open(&mut clients, LIMIT), 0);
    drop(clients);
    let all_taken_back = eventually(LIMIT * 2, || descriptors(&proxy) <= before);
    assert!(all_taken_back, "{before} descriptors before, {} after", descriptors(&proxy));
    assert!(proxy.log().contains("threads lost=8"), "they are not counted");
}

#[test]
fn many_refused_clients_that_leave_cost_no_look_at_everybody() {
    let standin = StandIn::start().unwrap();
    let proxy = silent(&standin).start();
    assert_serves(&proxy);
    let before = descriptors(&proxy);
    let crowd: Vec<Client> = (0..800)
        .map(|_| {
            let mut client = proxy.connect();
            let head = "POST /nope HTTP/1.1\r\nhost: a\r\ncontent-length: 6000\r\n\r\nxx";
            client.send_raw(head.as_bytes()).unwrap();
            client
        })
        .collect();
    assert_serves(&proxy);
    drop(crowd);
    assert_serves(&proxy);
    assert!(eventually(LIMIT, || descriptors(&proxy) <= before + 8), "{}", descriptors(&proxy));
}
