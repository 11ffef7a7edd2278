//! The stand-in and the harness's client, each tested with the other.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use dashscope_proxy::standin::{End, Framing, Part, Reply, Shape, StandIn};

use crate::harness::{Client, How, LIMIT, request};

const CHAT: &str = "/compatible-mode/v1/chat/completions";
const KEY: (&str, &str) = ("x-api-key", "k1");

fn ask(client: &mut Client) {
    client.send("POST", CHAT, &[KEY], br#"{"model":"m1"}"#);
}

#[test]
fn a_connection_is_reused_for_answers_of_every_framing() {
    let standin = StandIn::start().unwrap();
    let headers = vec![("content-type".to_owned(), "text/plain".to_owned())];
    for framing in [Framing::Length, Framing::Chunked, Framing::UntilClose] {
        let body = b"text".to_vec();
        let answer = Reply::Answer { status: 418, headers: headers.clone(), body, framing };
        standin.reply_once("k1", "m1", answer);
    }
    let mut client = Client::connect(standin.address());
    for _ in 0..3 {
        ask(&mut client);
        let answer = client.read_answer().unwrap();
        assert_eq!((answer.status, answer.text().as_str()), (418, "text"));
        assert_eq!(answer.header("Content-Type"), Some("text/plain"));
    }
    assert!(client.wait_closed(LIMIT));
    assert_eq!(standin.connections(), 1);
}

#[test]
fn a_cut_is_told_from_a_clean_end() {
    let standin = StandIn::start().unwrap();
    let ends = [(End::Fin, How::Closed), (End::Reset, How::Reset), (End::Hang, How::TimedOut)];
    for framing in [Framing::Length, Framing::Chunked] {
        for (end, how) in ends.clone() {
            let parts = vec![Part::now("one"), Part::now("two")];
            standin.reply("*", "*", Reply::Stream { headers: Vec::new(), parts, framing, end });
            let mut client = Client::connect(standin.address());
            ask(&mut client);
            client.read_head().unwrap();
            let mut received = Vec::new();
            while received != b"onetwo" {
                received.extend(client.read_chunk().unwrap().unwrap());
            }
            client.set_limit(Duration::from_millis(50));
            let cut = client.read_body().unwrap_err();
            assert_eq!(cut.how, how, "{framing:?} {end:?}");
        }
    }
}

#[test]
fn half_a_chunk_is_part_of_what_was_received() {
    let standin = StandIn::start().unwrap();
    let headers = vec![("transfer-encoding".to_owned(), "chunked".to_owned())];
    let parts = vec![Part::now("3\r\none\r\n5\r\ntw")];
    let framing = Framing::UntilClose;
    standin.reply("*", "*", Reply::Stream { headers, parts, framing, end: End::Fin });
    let mut client = Client::connect(standin.address());
    ask(&mut client);
    client.read_head().unwrap();
    let cut = client.read_body().unwrap_err();
    assert_eq!((cut.how, cut.received.as_slice()), (How::Closed, b"onetw".as_slice()));
}

#[test]
fn chunks_come_one_by_one_as_the_gate_lets_them() {
    let standin = StandIn::start().unwrap();
    let gate = standin.gate();
    standin.reply(
        "*",
        "*",
        Reply::gated_sse(&gate, vec!["data: 1\n\n", "data: 2\n\n"], End::Clean),
    );
    let mut client = Client::connect(standin.address());
    ask(&mut client);
    assert_eq!(client.read_head().unwrap().status, 200);
    gate.release();
    assert_eq!(client.read_chunk().unwrap().unwrap(), b"data: 1\n\n");
    client.set_limit(Duration::from_millis(20));
    assert_eq!(client.read_chunk().unwrap_err().how, How::TimedOut);
    client.set_limit(LIMIT);
    gate.release();
    assert_eq!(client.read_body().unwrap(), b"data: 2\n\n");
}

#[test]
fn a_held_answer_waits_and_a_caller_that_leaves_is_seen() {
    let standin = StandIn::start().unwrap();
    let gate = standin.gate();
    standin.reply("*", "*", Reply::Held { gate: gate.clone(), then: Box::new(Reply::Normal) });
    let mut stays = Client::connect(standin.address());
    ask(&mut stays);
    assert!(standin.wait_calls(1, LIMIT));
    let mut leaves = Client::connect(standin.address());
    ask(&mut leaves);
    assert!(standin.wait_calls(2, LIMIT));
    leaves.socket().shutdown(Shutdown::Both).unwrap();
    assert!(standin.wait_closed(1, LIMIT));
    gate.open();
    assert_eq!(stays.read_answer().unwrap().status, 200);
    assert!(!standin.calls()[0].closed);
    drop(stays);
    assert!(standin.wait_open(0, LIMIT));
}

#[test]
fn idle_connections_can_be_closed_from_this_side() {
    let standin = StandIn::start().unwrap();
    let mut client = Client::connect(standin.address());
    ask(&mut client);
    client.read_answer().unwrap();
    // The answer is complete a moment before the connection counts as idle.
    while !client.wait_closed(Duration::from_millis(10)) {
        standin.close_idle();
    }
    assert!(standin.wait_open(0, LIMIT));
    assert!(!standin.calls()[0].closed);
}

#[test]
fn every_shape_of_exhaustion_arrives_whole() {
    let standin = StandIn::start().unwrap();
    for shape in Shape::ALL {
        standin.reply("k1", "m1", Reply::Exhausted(shape));
        let answer = request(standin.address(), "POST", CHAT, &[KEY], r#"{"model":"m1"}"#);
        let mut text = answer.text();
        if answer.header("content-encoding") == Some("gzip") {
            text.clear();
            let mut packed = flate2::read::GzDecoder::new(answer.body.as_slice());
            packed.read_to_string(&mut text).unwrap();
        }
        let text = text.to_lowercase();
        assert!(text.contains("free tier") || text.contains("free quota"), "{shape:?}: {text}");
    }
}

#[test]
fn a_chunked_request_body_is_put_together() {
    let standin = StandIn::start().unwrap();
    let mut client = Client::connect(standin.address());
    let headers = [KEY, ("transfer-encoding", "chunked"), ("expect", "100-continue")];
    client.send(
        "POST",
        &format!("{CHAT}?a=b"),
        &headers,
        b"7\r\n{\"model\r\n7;x=y\r\n\":\"m9\"}\r\n0\r\n\r\n",
    );
    assert!(client.read_answer().unwrap().text().contains("comes from m9"));
    let call = standin.calls().remove(0);
    assert_eq!(call.body, br#"{"model":"m9"}"#);
    assert_eq!((call.path(), call.target.ends_with("?a=b")), (CHAT, true));
    assert_eq!(call.header("EXPECT"), Some("100-continue"));
}

#[test]
fn it_speaks_through_whatever_wraps_its_connections() {
    /// Upper case, standing for TLS.
    struct Loud<S>(S);
    impl<S: Read> Read for Loud<S> {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            self.0.read(bytes)
        }
    }
    impl<S: Write> Write for Loud<S> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(&bytes.to_ascii_uppercase())
        }
        fn flush(&mut self) -> io::Result<()> {
            self.0.flush()
        }
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let standin =
        StandIn::start_on(listener, Arc::new(|socket| Ok(Box::new(Loud(socket))))).unwrap();
    standin.reply("*", "*", Reply::json(200, "loud"));
    let answer = request(standin.address(), "POST", CHAT, &[KEY], "{}");
    assert_eq!(answer.text(), "LOUD");
}

#[test]
fn a_stopped_stand_in_frees_its_port() {
    let standin = StandIn::start().unwrap();
    let address = standin.address();
    let mut client = Client::connect(address);
    ask(&mut client);
    client.read_answer().unwrap();
    drop(standin);
    assert!(client.wait_closed(LIMIT));
    let again =
        StandIn::start_on(TcpListener::bind(address).unwrap(), dashscope_proxy::standin::plain());
    assert_eq!(again.unwrap().address(), address);
}
