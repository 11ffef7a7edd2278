//! Every route: where it goes, whose model it has, what rotates, and in whose words it refuses.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]

use dashscope_proxy::standin::{End, Framing, Part, Reply, Shape, StandIn};

use crate::envelope::{CHAT, MESSAGES, message_on};
use crate::harness::{AUTH, Answer, PROXY_KEY, Proxy, get, key_hash, post, record, request};

const EMBEDDINGS: &str = "/v1/embeddings";
const NATIVE_TEXT: &str = "/api/v1/services/aigc/text-generation/generation";

/// Path, body, where it arrives, the model it arrives with.
#[rustfmt::skip]
const POSTS: [(&str, &str, &str, Option<&str>); 20] = [
    ("/v1/chat/completions", r#"{"model":"x"}"#, "/compatible-mode/v1/chat/completions", Some("m1")),
    ("/v1/completions", r#"{"model":"x","prompt":"p"}"#, "/compatible-mode/v1/completions", Some("m1")),
    ("/v1/responses", r#"{"input":"i"}"#, "/compatible-mode/v1/responses", Some("m1")),
    ("/v1/messages", r#"{"model":"m2"}"#, "/apps/anthropic/v1/messages", Some("m1")),
    ("/v1/messages/count_tokens", r#"{"model":"x"}"#, "/apps/anthropic/v1/messages/count_tokens", Some("m1")),
    ("/v1/embeddings", r#"{"model":"text-embedding-v4","input":"i"}"#, "/compatible-mode/v1/embeddings", Some("text-embedding-v4")),
    ("/v1/embeddings", r#"{"model":"m2"}"#, "/compatible-mode/v1/embeddings", Some("m2")),
    ("/v1/embeddings", r#"{"input":"i"}"#, "/compatible-mode/v1/embeddings", None),
    ("/v1/reranks", r#"{"model":"rr"}"#, "/compatible-api/v1/reranks", Some("rr")),
    ("/compatible-api/v1/reranks", r#"{"model":"rr"}"#, "/compatible-api/v1/reranks", Some("rr")),
    (NATIVE_TEXT, r#"{"model":"m2","input":{}}"#, NATIVE_TEXT, Some("m1")),
    (NATIVE_TEXT, r#"{"model":"other","input":{}}"#, NATIVE_TEXT, Some("other")),
    ("/api/v1/services/background-generation/generation/", r#"{"model":"wanx"}"#, "/api/v1/services/background-generation/generation/", Some("wanx")),
    ("/api/v1/apps/a1b2/completion", r#"{"input":{"prompt":"p"}}"#, "/api/v1/apps/a1b2/completion", None),
    ("/api/v1/tokenizer", r#"{"model":"m3"}"#, "/api/v1/tokenizer", Some("m1")),
    ("/compatible-mode/v1/chat/completions", "{}", "/compatible-mode/v1/chat/completions", Some("m1")),
    ("/compatible-mode/v1/responses", "{}", "/compatible-mode/v1/responses", Some("m1")),
    ("/compatible-mode/v1/embeddings", r#"{"model":"e"}"#, "/compatible-mode/v1/embeddings", Some("e")),
    ("/apps/anthropic/v1/messages", "{}", "/apps/anthropic/v1/messages", Some("m1")),
    ("/apps/anthropic/v1/messages/count_tokens", "{}", "/apps/anthropic/v1/messages/count_tokens", Some("m1")),
];

/// What has no body to speak of.
const OTHERS: [(&str, &str, &str); 19] = [
    ("GET", "/api/v1/tasks", "/api/v1/tasks"),
    ("GET", "/api/v1/tasks/t-1", "/api/v1/tasks/t-1"),
    ("POST", "/api/v1/tasks/t-1/cancel", "/api/v1/tasks/t-1/cancel"),
    ("POST", "/api/v1/files", "/api/v1/files"),
    ("GET", "/api/v1/files/f-1", "/api/v1/files/f-1"),
    ("DELETE", "/api/v1/files/f-1", "/api/v1/files/f-1"),
    ("GET", "/api/v1/uploads", "/api/v1/uploads"),
    ("POST", "/v1/files", "/compatible-mode/v1/files"),
    ("GET", "/v1/files", "/compatible-mode/v1/files"),
    ("GET", "/v1/files/f-1/content", "/compatible-mode/v1/files/f-1/content"),
    ("DELETE", "/v1/files/f-1", "/compatible-mode/v1/files/f-1"),
    ("GET", "/v1/batches/b_1", "/compatible-mode/v1/batches/b_1"),
    ("POST", "/v1/batches/b_1/cancel", "/compatible-mode/v1/batches/b_1/cancel"),
    ("GET", "/v1/responses/resp_1", "/compatible-mode/v1/responses/resp_1"),
    ("GET", "/v1/responses/resp_1/input_items", "/compatible-mode/v1/responses/resp_1/input_items"),
    ("DELETE", "/v1/responses/resp_1", "/compatible-mode/v1/responses/resp_1"),
    ("GET", "/compatible-mode/v1/files/f-1", "/compatible-mode/v1/files/f-1"),
    ("GET", "/compatible-mode/v1/batches", "/compatible-mode/v1/batches"),
    ("DELETE", "/compatible-mode/v1/responses/r_1", "/compatible-mode/v1/responses/r_1"),
];

/// The message of an error of ours in DashScope's own words.
#[track_caller]
fn native_message(answer: &Answer) -> String {
    let body = answer.json();
    assert_eq!(body.as_object().unwrap().len(), 3, "{answer:?}");
    assert!(body["request_id"].is_string() && body["code"].is_string(), "{answer:?}");
    assert_eq!(answer.header("access-control-allow-origin"), Some("*"), "{answer:?}");
    body["message"].as_str().unwrap().to_owned()
}

/// The message of an error of ours in the words that belong to the path.
#[track_caller]
fn message_of(path: &str, answer: &Answer) -> String {
    match path.strip_prefix("/apps/anthropic").unwrap_or(path) {
        path if path.starts_with("/api/v1/") => native_message(answer),
        path => message_on(path, answer),
    }
}

#[test]
fn every_post_arrives_at_its_upstream_path_with_the_model_of_its_rule() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    standin.reply("*", "*", Reply::json(200, r#"{"from":"upstream"}"#));
    for (path, body, there, model) in POSTS {
        for query in ["", "?a=%2F&b"] {
            let answer = post(&proxy, &format!("{path}{query}"), body);
            assert_eq!(answer.status, 200, "{path}: {answer:?}");
            assert_eq!(answer.text(), r#"{"from":"upstream"}"#, "{path}");
            assert_eq!(answer.header("x-proxy-model"), model, "{path} {body}");
            let call = standin.calls().pop().unwrap();
            assert_eq!((&*call.method, call.target.clone()), ("POST", format!("{there}{query}")));
            assert_eq!((call.key.as_deref(), call.model.as_deref()), (Some("k1"), model), "{path}");
            if model.is_none() || body.contains(&format!("\"{}\"", model.unwrap())) {
                assert_eq!(call.body, body.as_bytes(), "{path}: the client's body stays as it is");
            }
        }
    }
    assert_eq!(standin.call_count(), POSTS.len() * 2);
}

#[test]
fn every_other_request_arrives_with_its_method_path_and_query_and_names_no_model() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    standin.reply("*", "*", Reply::json(200, "{}"));
    for (method, path, there) in OTHERS {
        let target = format!("{path}?limit=2&after=x");
        let answer = request(proxy.address(), method, &target, &[AUTH], "");
        assert_eq!(answer.status, 200, "{method} {path}: {answer:?}");
        assert_eq!(answer.header("x-proxy-model"), None, "{method} {path}");
        assert_eq!(answer.header("x-proxy-key-hash"), Some(&key_hash("k1")[..12]));
        let call = standin.calls().pop().unwrap();
        assert_eq!(
            (&*call.method, call.target.clone()),
            (method, format!("{there}?limit=2&after=x"))
        );
        assert_eq!((call.key.as_deref(), call.body.len()), (Some("k1"), 0), "{method} {path}");
        if method == "POST" {
            assert_eq!(call.header("content-length"), Some("0"), "{path}: {:?}", call.headers);
        }
    }
    assert_eq!(standin.call_count(), OTHERS.len());
}

#[test]
fn the_real_answers_of_every_route_come_through() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    for (path, body, sign) in [
        ("/v1/completions", r#"{"prompt":"p"}"#, "This answer comes from m1."),
        ("/v1/completions", r#"{"prompt":"p","stream":true}"#, "data: [DONE]"),
        ("/v1/responses", r#"{"input":"i"}"#, "This answer comes from m1."),
        ("/v1/responses", r#"{"input":"i","stream":true}"#, "event:response.completed"),
        (EMBEDDINGS, r#"{"model":"e1","input":"i"}"#, r#""model":"e1""#),
        ("/v1/reranks", r#"{"model":"rr"}"#, "relevance_score"),
        ("/api/v1/apps/a/completion", "{}", r#""model_id":"qwen-plus""#),
        ("/api/v1/tokenizer", r#"{"model":"m1"}"#, "token_ids"),
    ] {
        let answer = post(&proxy, path, body);
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        assert!(answer.text().contains(sign), "{path}: {answer:?}");
        let is_stream = body.contains("stream");
        assert_eq!(answer.header("x-accel-buffering").is_some(), is_stream, "{path}");
    }
}

#[test]
fn an_exhausted_embedding_pair_rests_and_only_keys_rotate() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    standin.set_quota("k1", "e1", 1);
    let ask = || post(&proxy, EMBEDDINGS, r#"{"model":"e1","input":"i"}"#);
    assert_eq!(ask().status, 200);
    let answer = ask();
    assert_eq!((answer.status, answer.header("x-proxy-model")), (200, Some("e1")));
    assert_eq!(answer.header("x-proxy-attempts"), Some("2"));
    assert_eq!(ask().status, 200);
    assert_eq!(standin.slots(), ["k1/e1", "k1/e1", "k2/e1", "k2/e1"]);
    // The pool does not notice: chat goes on where it was, and so do other models.
    assert_eq!(post(&proxy, CHAT, "{}").status, 200);
    assert_eq!(post(&proxy, EMBEDDINGS, r#"{"model":"e2"}"#).status, 200);
    assert_eq!(standin.slots()[4..], ["k1/m1", "k1/e2"]);
    assert_eq!(get(&proxy, "/health").json()["availableSlots"], 6);

    standin.set_quota("k2", "e1", 0);
    for calls in [1, 0] {
        let before = standin.call_count();
        let answer = ask();
        assert_eq!(answer.status, 503, "{answer:?}");
        assert_eq!(answer.json()["error"]["code"], "free_quota_exhausted");
        assert_eq!(answer.header("x-should-retry"), Some("false"));
        assert_eq!(standin.call_count(), before + calls);
    }
    let state = proxy.final_state();
    for key in ["k1", "k2"] {
        let record = record(&state, key, "e1");
        assert_eq!(record["failureCount"], 1);
        assert!(record["cooldownUntil"].as_u64().unwrap() > 0, "{record}");
    }
    assert_eq!(state["modelState"].as_object().unwrap().len(), 8, "{state:#}");
    assert_eq!(state["runtimeState"]["key_cursor"]["value"], "0");
}

#[test]
fn an_exhausted_embedding_pair_rests_over_a_restart() {
    let standin = StandIn::start().unwrap();
    let mut proxy = Proxy::start(&standin);
    standin.set_quota("k1", "e1", 0);
    assert_eq!(post(&proxy, EMBEDDINGS, r#"{"model":"e1"}"#).status, 200);
    proxy.kill9();
    proxy.restart();
    assert_eq!(post(&proxy, EMBEDDINGS, r#"{"model":"e1"}"#).status, 200);
    assert_eq!(standin.slots(), ["k1/e1", "k2/e1", "k2/e1"]);
}

#[test]
fn nothing_but_exhaustion_makes_a_record_of_a_clients_model() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    for path in [EMBEDDINGS, "/v1/reranks", NATIVE_TEXT] {
        for status in [200, 400, 401, 404, 429, 500, 503] {
            standin.reply("*", "*", Reply::json(status, "{}"));
            post(&proxy, path, format!(r#"{{"model":"model-of-{status}"}}"#));
        }
    }
    // An application has no model that could be exhausted.
    standin.reply("*", "*", Reply::Exhausted(Shape::Flat));
    assert_eq!(post(&proxy, "/api/v1/apps/a/completion", "{}").status, 503);
    let state = proxy.final_state();
    assert_eq!(state["modelState"].as_object().unwrap().len(), 6, "{state:#}");
}

#[test]
fn a_model_that_the_client_named_wrongly_costs_one_call() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    standin.set_models(&["m1"]);
    let answer = post(&proxy, EMBEDDINGS, r#"{"model":"no-such"}"#);
    assert_eq!((answer.status, standin.call_count()), (404, 1), "{answer:?}");
}

#[test]
fn a_model_name_that_cannot_be_one_is_400_where_the_clients_counts() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let long = "x".repeat(129);
    for path in [EMBEDDINGS, "/v1/reranks", NATIVE_TEXT] {
        for name in ["a b", "模型", "a\\r\\nx-evil: 1", "", &long] {
            let answer = post(&proxy, path, format!(r#"{{"model":"{name}"}}"#));
            assert_eq!(answer.status, 400, "{path} {name}: {answer:?}");
            message_of(path, &answer);
            assert!(answer.text().contains("invalid_model"), "{answer:?}");
        }
    }
    assert_eq!(standin.call_count(), 0);
    assert_eq!(post(&proxy, CHAT, r#"{"model":"a b"}"#).status, 200);
}

#[test]
fn a_rejected_key_is_passed_over_and_never_shown_to_an_embeddings_client() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    standin.set_keys(&["k2"]);
    let answer = post(&proxy, EMBEDDINGS, r#"{"model":"e1"}"#);
    assert_eq!((answer.status, standin.slots()), (200, vec!["k1/e1".into(), "k2/e1".into()]));
    standin.set_keys(&[]);
    for (path, body) in [(EMBEDDINGS, r#"{"model":"e1"}"#), ("/api/v1/apps/a/completion", "{}")] {
        let answer = post(&proxy, path, body);
        assert_eq!(answer.status, 502, "{answer:?}");
        assert!(answer.text().contains("upstream_key_rejected"), "{answer:?}");
    }
}

#[test]
fn a_key_of_another_region_takes_reranks_and_native_calls_there() {
    let (standin, other) = (StandIn::start().unwrap(), StandIn::start().unwrap());
    let proxy = Proxy::builder(&standin).keys(&format!("k1@{},k2", other.origin())).start();
    for standin in [&standin, &other] {
        standin.reply("*", "*", Reply::json(200, "{}"));
    }
    for (path, there) in [
        ("/v1/reranks", "/compatible-api/v1/reranks"),
        (EMBEDDINGS, "/compatible-mode/v1/embeddings"),
        ("/api/v1/tokenizer", "/api/v1/tokenizer"),
        ("/v1/messages", "/apps/anthropic/v1/messages"),
    ] {
        assert_eq!(post(&proxy, path, r#"{"model":"x"}"#).status, 200);
        assert_eq!(other.calls().pop().unwrap().target, there);
    }
    assert_eq!(standin.call_count(), 0);
}

#[test]
fn a_native_call_goes_from_slot_to_slot_and_a_clients_own_model_from_key_to_key() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    standin.reply("*", "*", Reply::json(200, r#"{"output":{"text":"hi"}}"#));
    standin.reply("k1", "m1", Reply::Exhausted(Shape::Flat));
    standin.reply("k1", "own", Reply::Exhausted(Shape::Flat));
    let answer = post(&proxy, NATIVE_TEXT, r#"{"model":"m3","input":{}}"#);
    assert_eq!((answer.status, answer.header("x-proxy-model")), (200, Some("m2")));
    let answer = post(&proxy, NATIVE_TEXT, r#"{"model":"own","input":{}}"#);
    assert_eq!((answer.status, answer.header("x-proxy-model")), (200, Some("own")));
    assert_eq!(standin.slots(), ["k1/m1", "k1/m2", "k1/own", "k2/own"]);
    standin.reply("*", "*", Reply::Exhausted(Shape::Flat));
    standin.reply("k1", "*", Reply::Exhausted(Shape::Flat));
    let answer = post(&proxy, NATIVE_TEXT, r#"{"model":"m1"}"#);
    assert_eq!(answer.status, 503);
    native_message(&answer);
    assert_eq!(answer.json()["code"], "free_quota_exhausted");
}

#[test]
fn a_native_stream_passes_byte_for_byte_and_one_that_begins_exhausted_rotates() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let frames = ["1", "2"].map(|n| {
        format!(
            "id:{n}\nevent:result\n:HTTP_STATUS/200\ndata:{{\"output\":{{\"text\":\"{n}\"}}}}\n\n"
        )
    });
    let parts = frames.iter().map(|frame| Part::now(frame.as_bytes())).collect();
    standin.reply("*", "*", Reply::sse(parts, End::Clean));
    standin.reply("k1", "m1", Reply::Exhausted(Shape::FirstEventOf200Native));
    let headers = [AUTH, ("x-dashscope-sse", "enable"), ("x-dashscope-workspace", "ws-1")];
    let answer = request(proxy.address(), "POST", NATIVE_TEXT, &headers, r#"{"model":"m1"}"#);
    assert_eq!((answer.status, answer.text()), (200, frames.concat()));
    assert_eq!(answer.header("x-accel-buffering"), Some("no"));
    assert_eq!(standin.slots(), ["k1/m1", "k1/m2"]);
    let call = standin.calls().pop().unwrap();
    assert_eq!(call.header("x-dashscope-sse"), Some("enable"));
    assert_eq!(call.header("x-dashscope-workspace"), Some("ws-1"));
}

#[test]
fn whether_a_request_is_streamed_is_read_from_its_body_and_on_native_paths_from_its_headers() {
    let sse = ("accept", "text/event-stream");
    let enable = ("X-DashScope-SSE", "enable");
    let native = |headers: &[_], streamed| (NATIVE_TEXT, headers.to_vec(), "{}", streamed);
    let stream = r#"{"stream":true}"#;
    for (path, headers, body, streamed) in [
        (CHAT, vec![], "{}", false),
        (CHAT, vec![sse, enable], "{}", false),
        (CHAT, vec![("accept", "application/json")], stream, true),
        (MESSAGES, vec![sse], "{}", false),
        (MESSAGES, vec![], stream, true),
        ("/v1/responses", vec![sse], "{}", false),
        ("/v1/responses", vec![], stream, true),
        native(&[], false),
        native(&[enable], true),
        native(&[sse], true),
        native(&[("accept", "application/json; charset=utf-8")], false),
        (NATIVE_TEXT, vec![], stream, false),
    ] {
        let standin = StandIn::start().unwrap();
        let proxy = Proxy::start(&standin);
        let body = match path {
            NATIVE_TEXT => body.replacen('{', r#"{"model":"m1","#, 1).replace(",}", "}"),
            _ => body.to_owned(),
        };
        // m1 says once that it only streams: from then on only streams go there, on this path.
        let message =
            r#"{"code":"InvalidParameter","message":"This model only support stream mode"}"#;
        standin.reply("*", "*", Reply::json(200, "{}"));
        standin.reply_once("k1", "m1", Reply::json(400, message));
        let plain = r#"{"model":"m1"}"#;
        assert_eq!(post(&proxy, path, plain).status, 200);
        assert_eq!(standin.slots(), ["k1/m1", "k1/m2"]);
        let headers: Vec<_> = [AUTH].into_iter().chain(headers).collect();
        assert_eq!(request(proxy.address(), "POST", path, &headers, &body).status, 200);
        let model = if streamed { "k1/m1" } else { "k1/m2" };
        assert_eq!(standin.slots()[2..], [model], "{path} {headers:?} {body}");
    }
}

#[test]
fn new_paths_refuse_in_the_words_of_their_protocol() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    for (path, _, _, _) in POSTS {
        let send = |method: &str, headers: &[(&str, &str)], body: &str| {
            request(proxy.address(), method, path, headers, body)
        };
        let gzip = [AUTH, ("content-encoding", "gzip")];
        let refusals = [
            (send("POST", &[], "{}"), 401),
            (send("POST", &[AUTH], "[]"), 400),
            (send("POST", &[AUTH], r#"{"model":"a","model":"b"}"#), 400),
            (send("POST", &gzip, "{}"), 415),
            (send("PUT", &[AUTH], "{}"), 405),
            (send("GET", &[AUTH], ""), 405),
        ];
        for (answer, status) in &refusals {
            assert_eq!(answer.status, *status, "{path}: {answer:?}");
            let message = message_of(path, answer);
            assert_eq!(*status == 415, message.contains("gzip"), "{path}: {message}");
            assert_eq!(*status == 405, answer.header("allow").is_some(), "{path}");
        }
    }
    for (method, path, _) in OTHERS {
        let answer = request(proxy.address(), method, path, &[], "");
        assert_eq!(answer.status, 401, "{method} {path}: {answer:?}");
        message_of(path, &answer);
        let answer = request(proxy.address(), "PATCH", path, &[AUTH], "");
        assert_eq!(answer.status, 405, "{path}: {answer:?}");
        assert!(answer.header("allow").unwrap().contains("DELETE"), "{answer:?}");
    }
    for path in
        ["/api/v1/nothing", "/v1/audio/speech", "/v1/images/generations", "/api/v1/services/a/../b"]
    {
        let answer = post(&proxy, path, "{}");
        assert_eq!(answer.status, 404, "{path}: {answer:?}");
        message_of(path, &answer);
    }
    assert_eq!(standin.call_count(), 0);
}

#[test]
fn a_browser_may_ask_for_every_path_and_for_delete() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    standin.reply("*", "*", Reply::json(404, "{}"));
    let paths = POSTS.iter().map(|post| post.0).chain(OTHERS.iter().map(|other| other.1));
    let origin = ("origin", "https://app.example");
    for path in paths.chain(["/v1/models/m1", "/api/hello"]) {
        let asked = [
            origin,
            ("access-control-request-method", "DELETE"),
            ("access-control-request-headers", "authorization,x-dashscope-async"),
        ];
        let answer = request(proxy.address(), "OPTIONS", path, &asked, "");
        assert_eq!(answer.status, 204, "{path}: {answer:?}");
        assert_eq!(answer.header("access-control-allow-origin"), Some("*"), "{path}");
        let headers = answer.header("access-control-allow-headers");
        assert_eq!(headers, Some("authorization,x-dashscope-async"));
        assert!(answer.header("access-control-allow-methods").unwrap().contains("DELETE"));
    }
    assert_eq!(standin.call_count(), 0);
    // Upstream's own errors may be read too, and our headers with them.
    for (method, path, _) in OTHERS {
        let answer = request(proxy.address(), method, path, &[AUTH, origin], "");
        assert_eq!(answer.status, 404, "{path}");
        assert_eq!(answer.header("access-control-allow-origin"), Some("*"), "{path}");
        let exposed = answer.header("access-control-expose-headers").unwrap();
        assert!(exposed.contains("x-proxy-key-hash") && exposed.contains("x-proxy-attempts"));
    }
}

#[test]
fn claude_codes_first_knocks_are_answered_here_without_a_key() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    for path in ["/", "/api/hello"] {
        for method in ["HEAD", "GET"] {
            let answer = request(proxy.address(), method, path, &[("user-agent", "Bun/1.4.0")], "");
            assert_eq!(answer.status, 200, "{method} {path}: {answer:?}");
            assert_eq!(answer.body.is_empty(), method == "HEAD", "{method} {path}");
        }
    }
    assert_eq!(standin.call_count(), 0);
}

#[test]
fn json_routes_send_json_and_files_keep_their_type() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    standin.reply("*", "*", Reply::json(200, "{}"));
    let form = ("content-type", "application/x-www-form-urlencoded");
    let parts = ("content-type", "multipart/form-data; boundary=AbC");
    for (path, kind, arrives) in [
        (EMBEDDINGS, form, "application/json"),
        (NATIVE_TEXT, form, "application/json"),
        ("/v1/batches", form, "application/json"),
        ("/v1/files", parts, parts.1),
        ("/api/v1/files", parts, parts.1),
    ] {
        let headers = [AUTH, kind, ("anthropic-version", "2023-06-01"), ("x-api-key", PROXY_KEY)];
        assert_eq!(request(proxy.address(), "POST", path, &headers, "{}").status, 200, "{path}");
        let call = standin.calls().pop().unwrap();
        assert_eq!(call.header("content-type"), Some(arrives), "{path}");
        assert_eq!(call.header("anthropic-version"), None, "{path}");
        assert_eq!(call.header("x-api-key"), None, "{path}");
    }
}

#[test]
fn an_answer_that_makes_an_identifier_passes_byte_for_byte_however_it_is_framed_or_cut() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let large = format!(r#"{{"padding":"{}","id":"resp_late"}}"#, "p".repeat(5 << 20));
    for body in [r#"{"id":"resp_1"}"#, "not json at all", "", &large] {
        for framing in [Framing::Length, Framing::Chunked, Framing::UntilClose] {
            let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
            let body = body.as_bytes().to_vec();
            standin.reply(
                "*",
                "*",
                Reply::Answer { status: 200, headers, body: body.clone(), framing },
            );
            let answer = post(&proxy, "/v1/responses", "{}");
            assert!(answer.body == body, "{framing:?}: {} of {}", answer.body.len(), body.len());
        }
    }
    let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
    let parts = vec![Part::now(r#"{"id":"resp_cut","#)];
    let framing = Framing::Chunked;
    standin.reply("*", "*", Reply::Stream { headers, parts, framing, end: End::Fin });
    let mut client = proxy.connect();
    client.send("POST", "/v1/responses", &[AUTH], b"{}");
    let cut = client.read_answer().unwrap_err();
    assert_eq!(cut.received, br#"{"id":"resp_cut","#, "{cut:?}");
}
