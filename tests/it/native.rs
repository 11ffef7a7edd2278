//! DashScope's own protocol, `POST /api/v1/services/**`.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]

use dashscope_proxy::standin::{Reply, Shape, StandIn};
use serde_json::Value;

use crate::failover::{
    REQUEST_ID, attempts, denied, error, exhausted, lines, rejected, served_by, shown, state_text,
    throttled,
};
use crate::harness::{AUTH, Answer, LIMIT, Proxy, get, key_hash, post, record, request};

const GENERATION: &str = "/api/v1/services/aigc/text-generation/generation";
const OURS: &str = r#"{ "model":"m2","input":{"prompt":"hi"}, "n":12345678901234567890}"#;
const FOREIGN: &str = r#"{ "model":"qwen-vl","input":{"prompt":"hi"}, "n":12345678901234567890}"#;
const NAMELESS: &str = r#"{"input":{"text":"hi"}}"#;

fn stream(proxy: &Proxy<'_>, header: (&str, &str), body: &str) -> Answer {
    request(proxy.address(), "POST", GENERATION, &[AUTH, header], body)
}

/// Checks that an answer is an error of the proxy's own in the flat envelope.
#[track_caller]
fn assert_native_error(answer: &Answer, status: u16, code: &str) {
    assert_eq!(answer.status, status, "{answer:?}");
    let body = answer.json();
    assert_eq!(body["code"], code, "{answer:?}");
    assert!(!body["message"].as_str().unwrap().is_empty(), "{answer:?}");
    assert!(body["request_id"].is_string() && body.as_object().unwrap().len() == 3, "{answer:?}");
}

#[test]
fn a_model_of_the_pool_is_replaced_and_nothing_else() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let answer = post(&proxy, &format!("{GENERATION}?a=b"), OURS);
    assert_eq!((answer.status, attempts(&answer)), (200, Some("1")));
    assert_eq!(served_by(&answer), shown("k1", "m1"));
    assert!(answer.text().starts_with(r#"{"output":{"finish_reason":"stop","text":"This answer comes from m1."},"usage":{"total_tokens":"#), "{answer:?}");
    let call = &standin.calls()[0];
    assert_eq!(call.target, format!("{GENERATION}?a=b"));
    assert_eq!(String::from_utf8_lossy(&call.body), OURS.replace("m2", "m1"));
    assert_eq!(call.header("authorization"), Some("Bearer k1"));
}

#[test]
fn frames_pass_as_they_are_whichever_header_asks_for_them() {
    for header in [("X-DashScope-SSE", "enable"), ("Accept", "text/event-stream")] {
        let standin = StandIn::start().unwrap();
        let proxy = Proxy::start(&standin);
        let answer = stream(&proxy, header, OURS);
        let text = answer.text();
        assert_eq!(answer.header("content-type"), Some("text/event-stream;charset=UTF-8"));
        assert!(text.starts_with("id:1\nevent:result\n:HTTP_STATUS/200\ndata:{\"output\":{\"finish_reason\":\"null\",\"text\":\"This \"}"), "{text}");
        assert!(
            text.contains("\"finish_reason\":\"stop\",\"text\":\"This answer comes from m1.\"")
        );
        assert!(text.ends_with("}\n\n"), "{text}");
        assert_eq!(standin.calls()[0].header(header.0), Some(header.1));
    }
}

#[test]
fn a_used_up_quota_rotates_in_every_form_it_has_here() {
    for shape in [Shape::Flat, Shape::SseFramedNative, Shape::FirstEventOf200Native] {
        let standin = StandIn::start().unwrap();
        standin.reply("k1", "m1", Reply::Exhausted(shape));
        let proxy = Proxy::start(&standin);
        let answer = stream(&proxy, ("x-dashscope-sse", "enable"), OURS);
        assert_eq!((answer.status, attempts(&answer)), (200, Some("2")), "{shape:?}");
        assert_eq!(served_by(&answer), shown("k1", "m2"), "{shape:?}");
        assert!(answer.text().starts_with("id:1\nevent:result\n"), "{shape:?}: {answer:?}");
        assert_eq!(record(&proxy.final_state(), "k1", "m1")["failureCount"], 1);
    }
}

#[test]
fn a_model_that_only_streams_is_known_by_the_header_and_not_by_the_body() {
    let standin = StandIn::start().unwrap();
    let message = "This model only support stream mode, please enable the stream parameter.";
    standin.reply_once("k1", "m1", error(400, "InvalidParameter", message));
    let proxy = Proxy::start(&standin);
    // The body's `stream` means nothing in this protocol.
    let body = r#"{"model":"m1","stream":true,"input":{}}"#;
    assert_eq!(served_by(&post(&proxy, GENERATION, body)), shown("k1", "m2"));
    assert_eq!(served_by(&post(&proxy, GENERATION, body)), shown("k1", "m2"));
    for header in [("accept", "text/event-stream"), ("x-dashscope-sse", "Enable")] {
        assert_eq!(served_by(&stream(&proxy, header, OURS)), shown("k1", "m1"), "{header:?}");
    }
}

#[test]
fn a_foreign_model_stays_and_only_keys_rotate() {
    let standin = StandIn::start().unwrap();
    standin.reply_once("k1", "qwen-vl", throttled());
    let proxy = Proxy::builder(&standin).keys("k1,k2,k3").start();
    let state = state_text(&proxy);
    let answer = post(&proxy, GENERATION, FOREIGN);
    assert_eq!((served_by(&answer), attempts(&answer)), (shown("k2", "qwen-vl"), Some("2")));
    assert_eq!(standin.slots(), ["k1/qwen-vl", "k2/qwen-vl"]);
    for call in standin.calls() {
        assert_eq!(String::from_utf8_lossy(&call.body), FOREIGN);
    }
    // Only this slot rests, and a success of it leaves nothing behind.
    assert_eq!(served_by(&post(&proxy, GENERATION, OURS)), shown("k1", "m1"));
    assert_eq!(served_by(&post(&proxy, GENERATION, FOREIGN)), shown("k2", "qwen-vl"));
    let after = proxy.final_state();
    let before: Value = serde_json::from_str(&state).unwrap();
    let cursors = |state: &Value| {
        let runtime = state["runtimeState"].as_object().unwrap().clone();
        runtime.into_iter().filter(|(name, _)| name.contains("cursor")).collect::<Vec<_>>()
    };
    assert_eq!(cursors(&after), cursors(&before), "no cursor moves for it");
    let names = |state: &Value| {
        state["modelState"].as_object().unwrap().keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!(names(&after), names(&before));
}

#[test]
fn a_foreign_models_exhaustion_is_remembered_as_that_of_any_slot() {
    let standin = StandIn::start().unwrap();
    standin.reply("k1", "qwen-vl", exhausted());
    let mut proxy = Proxy::start(&standin);
    let name = format!("{}:qwen-vl", key_hash("k1"));
    assert_eq!(proxy.state()["modelState"].get(&name), None);
    let answer = post(&proxy, GENERATION, FOREIGN);
    assert_eq!((served_by(&answer), attempts(&answer)), (shown("k2", "qwen-vl"), Some("2")));
    let slot = record(&proxy.state(), "k1", "qwen-vl");
    assert_eq!((&slot["failureCount"], &slot["modelId"]), (&1.into(), &"qwen-vl".into()));
    assert_eq!(proxy.state()["modelState"].get(format!("{}:qwen-vl", key_hash("k2"))), None);
    assert_eq!(proxy.state()["runtimeState"]["key_cursor"]["value"], "0");
    // The pool has not lost anything, and a restart does not ask again.
    assert_eq!(get(&proxy, "/health").json()["availableSlots"], 6);
    proxy.restart();
    assert_eq!(attempts(&post(&proxy, GENERATION, FOREIGN)), Some("1"));
    assert_eq!(served_by(&post(&proxy, GENERATION, OURS)), shown("k1", "m1"));
}

#[test]
fn a_foreign_model_without_quota_on_any_key_is_503_in_the_flat_envelope() {
    let standin = StandIn::start().unwrap();
    standin.reply("*", "qwen-vl", exhausted());
    let proxy = Proxy::start(&standin);
    for _ in 0..2 {
        let answer = post(&proxy, GENERATION, FOREIGN);
        assert_native_error(&answer, 503, "free_quota_exhausted");
        assert!(answer.text().contains("free quota of all 2 slots is exhausted"), "{answer:?}");
        assert_eq!(answer.header("x-should-retry"), Some("false"));
    }
    assert_eq!(standin.call_count(), 2);
    assert_eq!(post(&proxy, GENERATION, OURS).status, 200);
}

#[test]
fn a_foreign_model_that_does_not_exist_is_the_clients_mistake() {
    let missing = error(404, "ModelNotFound", "Model can not be found.");
    let unknown = error(400, "InvalidParameter", "Model not exist.");
    for reply in [missing, unknown, denied()] {
        let standin = StandIn::start().unwrap();
        standin.reply("*", "*", reply.clone());
        let proxy = Proxy::start(&standin);
        let answer = post(&proxy, GENERATION, FOREIGN);
        assert!([400, 403, 404].contains(&answer.status), "{answer:?}");
        assert!(answer.text().contains(REQUEST_ID), "{answer:?}");
        assert_eq!(attempts(&answer), Some("1"), "{reply:?}");
        assert_eq!(standin.call_count(), 1, "{reply:?}");
        assert!(lines(&proxy, "bench").is_empty());
    }
}

#[test]
fn a_body_without_a_model_goes_up_as_it_is_and_keys_rotate() {
    let standin = StandIn::start().unwrap();
    standin.reply("k1", "*", rejected());
    standin.reply("k2", "*", Reply::json(200, r#"{"output":{}}"#));
    let proxy = Proxy::start(&standin);
    for body in [NAMELESS, r#"{"model":null,"input":{}}"#] {
        let answer = post(&proxy, "/api/v1/services/audio/asr", body);
        assert_eq!((answer.status, answer.text().as_str()), (200, r#"{"output":{}}"#));
        assert_eq!(standin.calls().last().unwrap().body, body.as_bytes());
    }
    assert_eq!(standin.slots(), ["k1/-", "k2/-", "k2/-"]);
}

#[test]
fn a_name_that_no_model_can_have_is_400_and_no_call() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let long = "m".repeat(129);
    for name in ["", "a b", "a\\nb", "模型", "a,b", &long] {
        let answer = post(&proxy, GENERATION, format!(r#"{{"model":"{name}"}}"#));
        assert_native_error(&answer, 400, "invalid_model");
    }
    assert_eq!(standin.call_count(), 0);
    let longest = "m".repeat(128);
    assert_eq!(post(&proxy, GENERATION, format!(r#"{{"model":"{longest}"}}"#)).status, 200);
}

#[test]
fn errors_born_here_are_told_in_the_flat_envelope() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let bare = request(proxy.address(), "POST", GENERATION, &[], OURS);
    assert_native_error(&bare, 401, "invalid_api_key");
    assert_native_error(&post(&proxy, GENERATION, "[]"), 400, "invalid_body");
    assert_native_error(&post(&proxy, "/api/v1/services/../x", OURS), 404, "not_found");
    let get = get(&proxy, GENERATION);
    assert_native_error(&get, 405, "method_not_allowed");
    assert_eq!(get.header("allow"), Some("POST, OPTIONS"));
    standin.reply("*", "*", Reply::ResetBeforeHead);
    assert_native_error(&post(&proxy, GENERATION, OURS), 502, "upstream_unreachable");
}

#[test]
fn the_stand_ins_own_errors_pass_in_their_flat_envelope() {
    let standin = StandIn::start().unwrap();
    standin.set_models(&["m1"]);
    standin.set_keys(&["k1"]);
    let proxy = Proxy::builder(&standin).keys("k2,k1").start();
    let answer = post(&proxy, GENERATION, FOREIGN);
    assert_eq!((answer.status, attempts(&answer)), (400, Some("2")), "{answer:?}");
    assert!(answer.text().starts_with(r#"{"code":"InvalidParameter","message":"#), "{answer:?}");
    assert!(proxy.wait_log(" request id=1 ", LIMIT));
}

#[test]
fn a_key_of_another_region_keeps_the_path_of_the_native_base() {
    let (standin, region) = (StandIn::start().unwrap(), StandIn::start().unwrap());
    let keys = format!("k1@{},k2", region.origin());
    let proxy = Proxy::builder(&standin).keys(&keys).start();
    assert_eq!(post(&proxy, GENERATION, OURS).status, 200);
    assert_eq!(region.calls()[0].target, GENERATION);
    assert_eq!(standin.call_count(), 0);
}
