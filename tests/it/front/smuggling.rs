//! Requests whose end is not clear: what comes behind them must not be taken for a request.

use super::*;

/// Each with where its body would end for one reader and not for another.
const SHAPES: [(&str, &str); 17] = [
    ("content-length: 5\r\ntransfer-encoding: chunked", "0\r\n\r\n"),
    ("transfer-encoding: chunked\r\ncontent-length: 5", "0\r\n\r\n"),
    ("content-length: 5\r\ncontent-length: 5", "hello"),
    ("content-length: 0\r\ncontent-length: 5", "hello"),
    ("content-length: 5\r\ncontent-length: 0", "hello"),
    ("content-length: 5, 5", "hello"),
    ("content-length: 5 5", "hello"),
    ("content-length: +5", "hello"),
    ("content-length: 0x5", "hello"),
    ("content-length:", "hello"),
    ("transfer-encoding: gzip, chunked", "0\r\n\r\n"),
    ("transfer-encoding: chunked, gzip", "0\r\n\r\n"),
    ("transfer-encoding: identity", "hello"),
    ("transfer-encoding: xchunked", "0\r\n\r\n"),
    ("transfer-encoding: chunked;q=1", "0\r\n\r\n"),
    ("transfer-encoding: chunked\r\ntransfer-encoding: chunked", "0\r\n\r\n"),
    ("transfer-encoding:\r\n chunked", "0\r\n\r\n"),
];

/// An unclear request, and two that are beyond doubt behind it in the same packet.
fn packet(target: &str, key: bool, framing: &str, body: &str) -> String {
    let (name, value) = AUTH;
    let auth = format!("{name}: {value}\r\n");
    let length = BODY.len();
    let honest = String::from_utf8_lossy(BODY);
    format!(
        "POST {target} HTTP/1.1\r\nhost: a\r\n{}{framing}\r\n\r\n{body}\
         POST {CHAT} HTTP/1.1\r\nhost: a\r\n{auth}content-length: {length}\r\n\r\n{honest}\
         GET /health HTTP/1.1\r\nhost: a\r\n\r\n",
        if key { &auth } else { "" }
    )
}

#[test]
fn a_request_whose_end_is_unclear_is_400_and_nothing_behind_it_is_served() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).start();
    for (framing, body) in SHAPES {
        for target in [CHAT, MESSAGES, "/health", "/nowhere"] {
            for key in [true, false] {
                let mut client = proxy.connect();
                client.send_raw(packet(target, key, framing, body).as_bytes()).unwrap();
                let shown = format!("{target} key={key} {framing:?}");
                let answers = read_to_end(&client);
                let answers = answers.unwrap_or_else(|| panic!("{shown}: it stays open"));
                let statuses = statuses(&answers);
                assert!(
                    matches!(statuses[..], [400 | 501]),
                    "{shown}: {}",
                    String::from_utf8_lossy(&answers)
                );
            }
        }
    }
    // Had anything been handed on, it would be upstream before this.
    assert_serves(&proxy);
    assert_eq!(standin.slots(), ["k1/m1"]);
}

#[test]
fn what_follows_the_refusal_in_later_packets_is_not_served_either() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).start();
    let (framing, body) = SHAPES[0];
    for _ in 0..20 {
        let mut client = proxy.connect();
        let packet = packet(CHAT, true, framing, body);
        let (first, rest) = packet.split_at(packet.len() / 2);
        client.send_raw(first.as_bytes()).unwrap();
        let refusal = client.read_head();
        assert_eq!(refusal.map(|head| head.status), Ok(400));
        client.read_body().unwrap();
        for byte in rest.bytes() {
            if client.send_raw(&[byte]).is_err() {
                break;
            }
        }
        assert_eq!(statuses(&read_to_end(&client).expect("it ends")), [0; 0]);
    }
    assert_serves(&proxy);
    assert_eq!(standin.slots(), ["k1/m1"]);
}
