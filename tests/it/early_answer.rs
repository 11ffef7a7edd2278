//! Upstream may answer before it has read the whole request, and close.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use dashscope_proxy::standin::StandIn;

use crate::harness::{AUTH, Proxy, request};

const REFUSAL: &[u8] = b"HTTP/1.1 413 Payload Too Large\r\ncontent-length: 9\r\n\r\ntoo large";

/// Reads a head, refuses, and closes with most of the body unread: that resets the connection.
fn refuse(mut socket: TcpStream) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && matches!(socket.read(&mut byte), Ok(1)) {
        head.push(byte[0]);
    }
    socket.write_all(REFUSAL).expect("the answer is sent");
}

#[test]
fn an_answer_that_comes_before_the_request_was_sent_whole_is_handed_on() {
    let standin = StandIn::start().unwrap();
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", upstream.local_addr().unwrap());
    let calls = std::thread::spawn(move || {
        let (socket, _) = upstream.accept().unwrap();
        refuse(socket);
        upstream.set_nonblocking(true).unwrap();
        upstream.accept().is_ok()
    });
    let proxy = Proxy::builder(&standin).env("OPENAI_UPSTREAM_BASE_URL", base).start();
    let body = format!("{{\"padding\":\"{}\"}}", "x".repeat(8 << 20));
    let answer = request(proxy.address(), "POST", "/v1/chat/completions", &[AUTH], body.as_bytes());
    assert_eq!((answer.status, answer.text().as_str()), (413, "too large"));
    assert_eq!(answer.header("x-proxy-attempts"), Some("1"));
    assert!(!calls.join().unwrap(), "it is not asked twice");
}
