//! What the log may never hold, at whatever level: keys, what clients say, and what DashScope
//! answers, but for the beginning of an error.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]

use dashscope_proxy::standin::{End, Part, Reply, StandIn};

use crate::envelope::{CHAT, MESSAGES};
use crate::harness::{AUTH, Client, LIMIT, PROXY_KEY, Proxy, request};

const KEYS: [&str; 3] =
    ["sk-logged-one-0123456789", "sk-logged-two-0123456789", "sk-logged-three-01234"];

/// What clients say, wherever they can say something, and what DashScope answers.
const CLIENT: &str = "clienttext";
const ANSWER: &str = "answertext";

/// A word of an error; the log may show 500 characters of it.
const ERROR: &str = "errortext ";

/// Method, target, headers and body.
type Kind = (&'static str, String, Vec<(&'static str, String)>, String);

/// Requests of every kind, all of which say [`CLIENT`] somewhere.
fn kinds() -> Vec<Kind> {
    let chat = format!(r#"{{"model":"any","messages":[{{"role":"user","content":"{CLIENT}"}}]}}"#);
    let streamed = chat.replacen('{', r#"{"stream":true,"#, 1);
    let input = format!(r#"{{"model":"m1","input":"{CLIENT}","texts":["{CLIENT}"]}}"#);
    let query = |path: &str| format!("{path}?secret={CLIENT}");
    let mut kinds = Vec::new();
    let mut post = |path: String, body: &str| {
        let headers = vec![
            ("content-type", "application/json".to_owned()),
            ("user-agent", CLIENT.to_owned()),
            ("cookie", format!("session={CLIENT}")),
            ("x-custom", CLIENT.to_owned()),
        ];
        kinds.push(("POST", path, headers, body.to_owned()));
    };
    for path in
        [CHAT, MESSAGES, "/v1/completions", "/v1/responses", "/compatible-mode/v1/chat/completions"]
    {
        post(query(path), &chat);
        post(path.to_owned(), &streamed);
    }
    post(query("/v1/messages/count_tokens"), &chat);
    for path in [
        "/v1/embeddings",
        "/v1/reranks",
        "/api/v1/services/aigc/text-generation/generation",
        "/api/v1/apps/app-1/completion",
        "/api/v1/tokenizer",
        "/v1/responses/resp_1/cancel",
    ] {
        post(query(path), &input);
    }
    post(
        "/v1/responses".to_owned(),
        &format!(r#"{{"previous_response_id":"resp_1","input":"{CLIENT}"}}"#),
    );
    post("/v1/files".to_owned(), CLIENT);
    post(CHAT.to_owned(), &format!("not JSON: {CLIENT}"));
    post(CHAT.to_owned(), &format!(r#"{{"model":"a","model":"b","x":"{CLIENT}"}}"#));
    post("/v1/embeddings".to_owned(), &format!(r#"{{"model":"{CLIENT} with blanks"}}"#));
    post(query("/v1/nothing"), &chat);
    for action in ["reset", "disable", "enable"] {
        post(query(&format!("/models/{action}")), &format!(r#"{{"{CLIENT}":"{CLIENT}"}}"#));
        post(format!("/models/{action}"), &format!(r#"{{"model":"{CLIENT}"}}"#));
    }
    for path in [
        "/",
        "/health",
        "/v1/models",
        "/models/status",
        "/metrics",
        "/api/v1/tasks/task-1",
        "/v1/files",
    ] {
        kinds.push((
            "GET",
            query(path),
            vec![("origin", format!("https://{CLIENT}.example"))],
            String::new(),
        ));
    }
    kinds.push((
        "OPTIONS",
        query(CHAT),
        vec![("access-control-request-headers", CLIENT.to_owned())],
        String::new(),
    ));
    kinds.push(("DELETE", query("/v1/files/file-1"), Vec::new(), String::new()));
    kinds.push(("POST", query(CHAT), vec![("content-encoding", CLIENT.to_owned())], chat));
    kinds
}

/// What DashScope may answer; errors echo a key and go on for long.
fn answers() -> Vec<Reply> {
    let error = |status: u16, code: &str| {
        let message = format!("{} {}", KEYS.join(" "), ERROR.repeat(500));
        let message = message.trim_end();
        Reply::json(status, format!(r#"{{"error":{{"code":"{code}","message":"{message}"}}}}"#))
    };
    let event = format!("data: {{\"text\":\"{ANSWER}\"}}\n\n");
    vec![
        Reply::Normal,
        Reply::json(
            200,
            format!(r#"{{"id":"resp_1","text":"{ANSWER}","usage":{{"prompt_tokens":1}}}}"#),
        ),
        Reply::sse(vec![Part::now(event.as_str()), Part::now(event.as_str())], End::Clean),
        Reply::sse(vec![Part::now(event)], End::Reset),
        error(403, "AllocationQuota.FreeTierOnly"),
        error(401, "invalid_api_key"),
        error(400, "invalid_parameter_error"),
        error(503, "ModelUnavailable"),
        Reply::body(500, "text/html", ERROR.repeat(500)),
        Reply::CloseBeforeHead,
    ]
}

#[test]
fn hundreds_of_requests_at_trace_leave_no_key_no_clients_text_and_no_answer_in_the_log() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin).keys(&KEYS.join(",")).env("RUST_LOG", "trace").start();
    let mut count = 0;
    for answer in answers() {
        request(proxy.address(), "POST", "/models/reset", &[AUTH], r#"{"all":true}"#);
        standin.reply("*", "*", answer);
        for (method, target, headers, body) in kinds() {
            let mut all = vec![AUTH];
            all.extend(headers.iter().map(|(name, value)| (*name, value.as_str())));
            let mut client = proxy.connect();
            client.send(method, &target, &all, body.as_bytes());
            // Whole or cut: that is for other tests.
            let _ = client.read_answer();
            count += 1;
        }
        standin.clear();
    }
    count += strangers(&proxy);
    assert!(count >= 200, "{count} requests");
    let served = proxy.log().matches(" request id=").count();
    assert!(proxy.wait_log(&format!(" request id={served} "), LIMIT));
    let log = proxy.log();
    assert!(
        log.contains(" cooldown ") && log.contains(" bench ") && log.contains(" DEBUG "),
        "{log}"
    );
    for secret in KEYS.iter().chain(&[PROXY_KEY, "wrong-key", ANSWER]) {
        let line = log.lines().find(|line| line.contains(secret));
        assert_eq!(line, None, "{secret}");
    }
    for line in log.lines() {
        assert!(line.matches(ERROR).count() <= 500 / ERROR.len(), "{line}");
        // The model that a client names is the one text of it that is told.
        let told = line.replace(&format!("asked=\"{CLIENT} with blanks\""), "");
        assert!(!told.contains(CLIENT), "{line}");
    }
}

/// Requests without the key, and bytes that are no request; how many.
fn strangers(proxy: &Proxy<'_>) -> usize {
    for (name, value) in [("authorization", "Bearer wrong-key"), ("x-api-key", "wrong-key")] {
        let body = format!(r#"{{"x":"{CLIENT}"}}"#);
        request(proxy.address(), "POST", CHAT, &[(name, value)], body);
    }
    for bytes in [
        format!("{CLIENT}\r\n\r\n"),
        format!("POST {CHAT} HTTP/1.1\r\n{CLIENT}\r\n\r\n"),
        format!(
            "POST {CHAT} HTTP/1.1\r\nhost: x\r\n{}: {}\r\ncontent-length: 99\r\n\r\n{CLIENT}",
            AUTH.0, AUTH.1
        ),
        format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {CLIENT}\r\n\r\n{CLIENT}"),
    ] {
        let mut client: Client = proxy.connect();
        client.send_raw(bytes.as_bytes()).unwrap();
        let _ = client.socket().shutdown(std::net::Shutdown::Write);
        let _ = client.read_answer();
    }
    6
}
