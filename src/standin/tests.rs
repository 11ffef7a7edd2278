//! The stand-in as a bare socket sees it.

use std::io::ErrorKind;

use super::*;

const LIMIT: Duration = Duration::from_secs(10);

fn connect(standin: &StandIn) -> TcpStream {
    let socket = TcpStream::connect(standin.address()).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket
}

fn ask(socket: &mut TcpStream, path: &str, headers: &str, body: &str) {
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    socket.write_all(request.as_bytes()).unwrap();
}

/// Sends one request that ends its connection, and reads all that comes.
fn answer(standin: &StandIn, path: &str, body: &str) -> String {
    let mut socket = connect(standin);
    ask(&mut socket, path, "Authorization: Bearer k1\r\nconnection: close", body);
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    text
}

fn read_some(socket: &mut TcpStream, until: &str) -> String {
    let mut bytes = Vec::new();
    while !String::from_utf8_lossy(&bytes).ends_with(until) {
        let mut byte = [0];
        assert_eq!(socket.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&bytes));
        bytes.push(byte[0]);
    }
    String::from_utf8(bytes).unwrap()
}

const CHAT: &str = "/compatible-mode/v1/chat/completions";
const MESSAGES: &str = "/apps/anthropic/v1/messages";
const NATIVE: &str = "/api/v1/services/aigc/text-generation/generation";

#[test]
fn a_chat_is_answered_with_the_fields_of_dashscope() {
    let standin = StandIn::start().unwrap();
    let text = answer(&standin, CHAT, r#"{"model":"m1"}"#);
    assert!(text.starts_with("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"), "{text}");
    for header in ["server: istio-envoy", "set-cookie: acw_tc=", "transfer-encoding: chunked"] {
        assert!(text.contains(&format!("\r\n{header}")), "{text}");
    }
    assert!(text.contains(r#"{"choices":[{"message":{"role":"assistant","content":"This answer comes from m1."},"finish_reason":"stop","index":0,"logprobs":null}],"object":"chat.completion","usage":{"prompt_tokens":4,"#), "{text}");
    let calls = standin.calls();
    assert_eq!(calls[0].target, CHAT);
    assert_eq!(calls[0].headers[1], ("Authorization".to_owned(), "Bearer k1".to_owned()));
    assert_eq!(standin.slots(), ["k1/m1"]);
}

#[test]
fn a_chat_stream_ends_with_usage_if_asked_for_and_done() {
    let standin = StandIn::start().unwrap();
    let plain = answer(&standin, CHAT, r#"{"model":"m1","stream":true}"#);
    assert!(plain.contains("content-type: text/event-stream;charset=UTF-8\r\n"), "{plain}");
    assert!(plain.ends_with("e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"), "{plain}");
    assert!(!plain.contains(r#""choices":[],"#), "{plain}");
    let body = r#"{"model":"m1","stream":true,"stream_options":{"include_usage":true}}"#;
    let with_usage = answer(&standin, CHAT, body);
    let chunk = r#"data: {"choices":[],"object":"chat.completion.chunk","usage":{"prompt_tokens":"#;
    assert!(with_usage.contains(chunk), "{with_usage}");
}

#[test]
fn a_message_stream_has_no_blanks_after_its_colons() {
    let standin = StandIn::start().unwrap();
    let text = answer(&standin, MESSAGES, r#"{"model":"m1","stream":true}"#);
    let body = text.split_once("\r\n\r\n").unwrap().1;
    assert!(body.starts_with("21\r\nevent:ping\ndata:{\"type\":\"ping\"}\n\n\r\n"), "{body}");
    assert!(!body.contains("event: ") && !body.contains("data: "), "{body}");
    let end = "event:message_stop\ndata:{\"type\":\"message_stop\"}\n\n\r\n0\r\n\r\n";
    assert!(body.ends_with(end), "{body}");
    let events = body.lines().filter(|line| line.starts_with("data:"));
    for event in events {
        serde_json::from_str::<Value>(event.strip_prefix("data:").unwrap()).unwrap();
    }
}

#[test]
fn a_native_answer_is_whole_or_in_frames_as_a_header_says() {
    let standin = StandIn::start().unwrap();
    let whole = answer(&standin, NATIVE, r#"{"model":"m1"}"#);
    let body = r#"{"output":{"finish_reason":"stop","text":"This answer comes from m1."},"usage":{"total_tokens":10,"output_tokens":6,"input_tokens":4},"request_id":"#;
    assert!(whole.contains(body), "{whole}");
    for header in ["X-DashScope-SSE: enable", "Accept: text/event-stream"] {
        let mut socket = connect(&standin);
        let headers = format!("{header}\r\nAuthorization: Bearer k1\r\nconnection: close");
        let parameters = r#"{"incremental_output":true,"result_format":"message"}"#;
        let body = format!(r#"{{"model":"m1","parameters":{parameters}}}"#);
        ask(&mut socket, NATIVE, &headers, &body);
        let mut text = String::new();
        socket.read_to_string(&mut text).unwrap();
        assert!(text.contains("content-type: text/event-stream;charset=UTF-8\r\n"), "{text}");
        let first = "id:1\nevent:result\n:HTTP_STATUS/200\ndata:{\"output\":{\"choices\":[{\"message\":{\"content\":\"This \",\"role\":\"assistant\"},\"finish_reason\":\"null\"}]}";
        assert!(text.contains(first), "{text}");
        let last = text.rsplit("data:").next().unwrap();
        assert!(last.contains(r#""finish_reason":"stop""#), "{text}");
        assert!(last.contains(r#""output_tokens":6"#), "{text}");
        assert!(!text.contains("[DONE]") && !text.contains("data: "), "{text}");
    }
}

#[test]
fn a_used_up_quota_is_told_in_each_envelope() {
    let standin = StandIn::start().unwrap();
    standin.set_quota("k1", "m1", 1);
    assert!(answer(&standin, CHAT, r#"{"model":"m1"}"#).starts_with("HTTP/1.1 200 OK\r\n"));
    let nested = answer(&standin, CHAT, r#"{"model":"m1"}"#);
    assert!(nested.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{nested}");
    assert!(nested.contains(r#"{"error":{"message":"Free quota exhausted."#), "{nested}");
    let flat = answer(&standin, MESSAGES, r#"{"model":"m1"}"#);
    assert!(flat.contains(r#"","code":"AllocationQuota.FreeTierOnly","message":""#), "{flat}");
    let native = answer(&standin, NATIVE, r#"{"model":"m1"}"#);
    assert!(native.contains(r#"{"code":"AllocationQuota.FreeTierOnly","message":""#), "{native}");
    assert!(answer(&standin, CHAT, r#"{"model":"m2"}"#).starts_with("HTTP/1.1 200 OK\r\n"));
}

#[test]
fn unknown_keys_and_models_are_refused() {
    let standin = StandIn::start().unwrap();
    standin.set_models(&["m1"]);
    assert!(answer(&standin, CHAT, r#"{"model":"M1"}"#).contains(r#""code":"model_not_found""#));
    standin.set_keys(&["k2"]);
    let text = answer(&standin, CHAT, r#"{"model":"m1"}"#);
    assert!(text.starts_with("HTTP/1.1 401 Unauthorized\r\n"), "{text}");
}

#[test]
fn a_connection_serves_many_requests_and_can_go_stale() {
    let standin = StandIn::start().unwrap();
    let stale = Reply::CloseAfterAnswer(Box::new(Reply::json(200, "{}")));
    standin.reply_once("k1", "m2", stale);
    let mut socket = connect(&standin);
    for model in ["m1", "m2"] {
        let body = format!(r#"{{"model":"{model}"}}"#);
        ask(&mut socket, CHAT, "x-api-key: k1", &body);
        let end = if model == "m1" { "\r\n0\r\n\r\n" } else { "{}" };
        read_some(&mut socket, end);
    }
    assert_eq!(socket.read(&mut [0]).unwrap(), 0);
    assert_eq!(standin.connections(), 1);
    assert!(standin.wait_open(0, LIMIT));
}

#[test]
fn idle_connections_can_be_reset() {
    let standin = StandIn::start().unwrap();
    standin.reply("*", "*", Reply::json(200, "{}"));
    let mut socket = connect(&standin);
    ask(&mut socket, CHAT, "x-api-key: k1", "{}");
    read_some(&mut socket, "{}");
    // The thread has to be back at its read: until then the connection counts as busy.
    while !standin.wait_open(0, Duration::from_millis(10)) {
        standin.reset_idle();
    }
    assert_eq!(socket.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_gate_lets_parts_out_one_by_one() {
    let standin = StandIn::start().unwrap();
    let gate = standin.gate();
    standin.reply("*", "*", Reply::gated_sse(&gate, vec!["data: 1\n\n", "data: 2\n\n"], End::Fin));
    let mut socket = connect(&standin);
    ask(&mut socket, CHAT, "x-api-key: k1", "{}");
    read_some(&mut socket, "\r\n\r\n");
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert_eq!(socket.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    gate.release();
    assert_eq!(read_some(&mut socket, "1\n\n\r\n"), "9\r\ndata: 1\n\n\r\n");
    gate.release();
    let mut rest = String::new();
    socket.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "9\r\ndata: 2\n\n\r\n");
}

#[test]
fn a_reset_is_a_reset_with_and_without_a_wait_before_it() {
    let standin = StandIn::start().unwrap();
    let delayed = Reply::Delay {
        before_head: Duration::from_millis(1),
        then: Box::new(Reply::ResetBeforeHead),
    };
    standin.reply_once("*", "*", Reply::ResetBeforeHead);
    standin.reply_once("*", "*", delayed);
    standin.reply_once("*", "*", Reply::sse(vec![Part::now("data: 1\n\n")], End::Reset));
    for _ in 0..3 {
        let mut socket = connect(&standin);
        ask(&mut socket, CHAT, "x-api-key: k1", "{}");
        let error = socket.read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}

#[test]
fn a_caller_that_leaves_is_noticed_while_waiting() {
    let standin = StandIn::start().unwrap();
    standin.reply("*", "*", Reply::HangBeforeHead);
    let mut socket = connect(&standin);
    ask(&mut socket, CHAT, "x-api-key: k1", "{}");
    assert!(standin.wait_calls(1, LIMIT));
    assert!(!standin.wait_closed(0, Duration::from_millis(20)));
    drop(socket);
    assert!(standin.wait_closed(0, LIMIT));
    assert!(standin.wait_open(0, LIMIT));
}

#[test]
fn dropping_it_ends_waits_at_once() {
    let standin = StandIn::start().unwrap();
    standin.reply("*", "*", Reply::HangBeforeHead);
    let mut socket = connect(&standin);
    ask(&mut socket, CHAT, "x-api-key: k1", "{}");
    assert!(standin.wait_calls(1, LIMIT));
    let shared = Arc::clone(&standin.shared);
    let address = standin.address();
    drop(standin);
    assert_eq!(shared.state.lock().threads, 0);
    assert_eq!(socket.read(&mut [0]).unwrap_or(0), 0);
    assert!(TcpStream::connect(address).is_err());
}
