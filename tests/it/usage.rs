//! What each slot has used, as far as DashScope says it; and that nobody's answer changes or is
//! kept waiting for it.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]

use dashscope_proxy::standin::{End, Part, Reply, Shape, StandIn};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::envelope::{CHAT, MESSAGES};
use crate::harness::{AUTH, Answer, Client, LIMIT, Proxy, key_hash, post, request};

const NATIVE: &str = "/api/v1/services/aigc/text-generation/generation";
const PICTURES: &str = "/api/v1/services/aigc/multimodal-generation/generation";

#[derive(Deserialize)]
struct Row {
    name: String,
    content_type: String,
    body: String,
}

/// A real answer of DashScope.
fn captured(name: &str) -> Row {
    let rows = include_str!("../data/upstream-corpus.jsonl").lines();
    let rows = rows.map(|line| serde_json::from_str::<Row>(line).unwrap());
    rows.into_iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no {name}"))
}

/// Posts, and waits until what the answer taught is on disk.
#[track_caller]
fn post_and_learn(proxy: &Proxy<'_>, path: &str, body: &str) -> Answer {
    let ends = |proxy: &Proxy<'_>| proxy.log().matches(" request id=").count();
    let before = ends(proxy);
    let answer = post(proxy, path, body);
    assert!(proxy.wait_log(&format!(" request id={} ", before + 1), LIMIT), "{answer:?}");
    answer
}

/// Requests, unknown ones, tokens in and out, pictures.
fn counts(proxy: &Proxy<'_>, key: &str, model: &str) -> [u64; 5] {
    let slot = proxy.slot(key, model);
    ["requests", "unknownRequests", "inputTokens", "outputTokens", "images"]
        .map(|name| slot[name].as_u64().unwrap_or_else(|| panic!("{name} in {slot:#}")))
}

#[test]
fn every_family_is_counted_plain_and_streamed_and_no_byte_changes() {
    let pictures = json!({"output": {"choices": []}, "usage": {"image_count": 2}}).to_string();
    let responses = r#"{"id":"resp_1","object":"response","status":"completed","output":[],"usage":{"input_tokens":7,"output_tokens":3,"total_tokens":10}}"#;
    let own = |content_type: &str, body: &str| Row {
        name: body.to_owned(),
        content_type: content_type.to_owned(),
        body: body.to_owned(),
    };
    for (path, row, [unknown, input, output, images]) in [
        (CHAT, captured("ok_openai_chat"), [0, 22, 1, 0]),
        (CHAT, captured("ok_openai_chat_stream_with_usage"), [0, 22, 2, 0]),
        (MESSAGES, captured("ok_anthropic_message"), [0, 62, 34, 0]),
        (MESSAGES, captured("ok_anthropic_stream"), [0, 63, 23, 0]),
        (NATIVE, captured("ok_native_text"), [0, 8, 39, 0]),
        (NATIVE, captured("ok_native_stream"), [0, 8, 3, 0]),
        ("/v1/responses", own("application/json", responses), [0, 7, 3, 0]),
        ("/v1/responses", captured("ok_responses_stream_dashscope_style"), [0, 5, 2, 0]),
        ("/v1/embeddings", captured("ok_openai_embeddings"), [0, 23, 0, 0]),
        (PICTURES, own("application/json", &pictures), [0, 0, 0, 2]),
        (CHAT, own("application/json", r#"{"id":"x","choices":[]}"#), [1, 0, 0, 0]),
        (CHAT, own("application/json", "not even JSON"), [1, 0, 0, 0]),
    ] {
        let standin = StandIn::start().unwrap();
        standin.reply("k1", "m1", Reply::body(200, &row.content_type, row.body.as_str()));
        let proxy = Proxy::start(&standin);
        for requests in 1..=2 {
            let answer = post_and_learn(&proxy, path, r#"{"model":"m1","stream":true}"#);
            assert_eq!(answer.text(), row.body, "{path}");
            let expected = [1, unknown, input, output, images].map(|count| count * requests);
            assert_eq!(counts(&proxy, "k1", "m1"), expected, "{path} {}", row.name);
        }
        assert_eq!(counts(&proxy, "k1", "m2"), [0; 5], "{path}");
    }
}

#[test]
fn a_chat_stream_tells_its_usage_only_when_it_is_asked_to() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let body = r#"{"model":"any","stream":true,"messages":[]}"#;
    assert!(!post_and_learn(&proxy, CHAT, body).text().contains("prompt_tokens"));
    assert_eq!(counts(&proxy, "k1", "m1"), [1, 1, 0, 0, 0]);
    let slot = proxy.slot("k1", "m1");
    let (estimated, left) = (&slot["estimatedTokens"], &slot["estimatedTokensLeft"]);
    let (estimated, left) = (estimated.as_u64().unwrap(), left.as_u64().unwrap());
    assert!(estimated >= body.len() as u64, "a byte may be a token: {estimated}");
    assert_eq!(left, 1_000_000 - estimated);
    let body =
        r#"{"model":"any","stream":true,"stream_options":{"include_usage":true},"messages":[]}"#;
    let text = post_and_learn(&proxy, CHAT, body).text();
    assert!(text.contains("prompt_tokens"), "{text}");
    let [requests, unknown, input, output, _] = counts(&proxy, "k1", "m1");
    assert!((requests, unknown) == (2, 1) && input > 0 && output > 0);
    assert_eq!(proxy.slot("k1", "m1")["estimatedTokens"], estimated, "it says what it used");
}

#[test]
fn a_stream_is_not_kept_waiting_for_its_count() {
    let standin = StandIn::start().unwrap();
    let gate = standin.gate();
    let parts = [
        "data: {\"n\":1}\n\n",
        "data: {\"n\":2,\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":5}}\n\n",
    ];
    standin.reply("k1", "m1", Reply::gated_sse(&gate, parts.to_vec(), End::Clean));
    let proxy = Proxy::start(&standin);
    let mut client: Client = proxy.connect();
    client.send("POST", CHAT, &[AUTH], br#"{"stream":true}"#);
    for part in parts {
        gate.release();
        if part == parts[0] {
            assert_eq!(client.read_head().unwrap().status, 200);
        }
        assert_eq!(client.read_chunk().unwrap().unwrap(), part.as_bytes());
    }
    assert_eq!(client.read_chunk().unwrap(), None);
    assert!(proxy.wait_log(" request id=1 ", LIMIT));
    assert_eq!(counts(&proxy, "k1", "m1"), [1, 0, 4, 5, 0]);
}

#[test]
fn a_stream_that_is_cut_counts_for_what_it_had_told() {
    let standin = StandIn::start().unwrap();
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":9,\"output_tokens\":1}}}\n\n";
    standin.reply_once("k1", "m1", Reply::sse(vec![Part::now(start)], End::Reset));
    standin.reply_once("k1", "m1", Reply::sse(vec![Part::now("data: {}\n\n")], End::Fin));
    let proxy = Proxy::start(&standin);
    for (id, path) in [(1, MESSAGES), (2, CHAT)] {
        let mut client = proxy.connect();
        client.send("POST", path, &[AUTH], br#"{"stream":true}"#);
        client.read_answer().expect_err("a cut stream looks cut");
        assert!(proxy.wait_log(&format!(" request id={id} "), LIMIT));
    }
    assert_eq!(counts(&proxy, "k1", "m1"), [2, 1, 9, 1, 0]);
    let estimated = proxy.slot("k1", "m1")["estimatedTokens"].as_u64().unwrap();
    assert!(estimated > 0, "they used more than they had said");
}

#[test]
fn counts_survive_a_restart_and_a_power_cut_as_records_of_version_1() {
    let standin = StandIn::start().unwrap();
    let mut proxy = Proxy::start(&standin);
    post_and_learn(&proxy, CHAT, "{}");
    let before = counts(&proxy, "k1", "m1");
    assert!(before[0] == 1 && before[2] > 0, "{before:?}");
    proxy.kill9();
    let state = proxy.state();
    let record = &state["runtimeState"][format!("usage:{}:m1", key_hash("k1"))];
    assert_eq!(state["version"], 1);
    assert!(record["value"].is_string() && record["updatedAt"].is_u64(), "{record}");
    for _ in 0..2 {
        proxy.restart();
        assert_eq!(counts(&proxy, "k1", "m1"), before);
    }
    post_and_learn(&proxy, CHAT, "{}");
    assert_eq!(counts(&proxy, "k1", "m1"), before.map(|count| 2 * count));
}

#[test]
fn what_is_left_follows_from_the_free_quota_and_is_nothing_while_a_slot_cools() {
    let standin = StandIn::start().unwrap();
    let row = captured("ok_openai_chat");
    standin.reply_once("k1", "m1", Reply::json(200, row.body));
    let mut proxy = Proxy::builder(&standin).env("FREE_QUOTA_TOKENS", "100").start();
    let left =
        |proxy: &Proxy<'_>, model: &str| proxy.slot("k1", model)["estimatedTokensLeft"].clone();
    post_and_learn(&proxy, CHAT, "{}");
    assert_eq!((left(&proxy, "m1"), left(&proxy, "m2")), (77.into(), 100.into()));
    standin.reply_once("k1", "m1", Reply::Exhausted(Shape::Nested));
    post_and_learn(&proxy, CHAT, "{}");
    assert_eq!(left(&proxy, "m1"), 0);
    assert_eq!(proxy.pool()["freeQuotaTokens"], 100);
    proxy.set_env("FREE_QUOTA_TOKENS", "0");
    proxy.restart();
    assert_eq!(
        (left(&proxy, "m2"), proxy.pool()["freeQuotaTokens"].clone()),
        (Value::Null, Value::Null)
    );
}

#[test]
fn only_answers_that_served_are_counted() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    standin.reply_once(
        "k1",
        "m1",
        Reply::json(400, r#"{"error":{"message":"no"},"usage":{"prompt_tokens":5}}"#),
    );
    post_and_learn(&proxy, CHAT, "{}");
    standin.reply_once("k1", "m1", Reply::Exhausted(Shape::Nested));
    post_and_learn(&proxy, CHAT, "{}");
    assert_eq!(counts(&proxy, "k1", "m1"), [0; 5]);
    assert_eq!(counts(&proxy, "k1", "m2")[0], 1);
    let counted = request(proxy.address(), "POST", "/v1/messages/count_tokens", &[AUTH], "{}");
    assert_eq!(counted.status, 200);
    assert_eq!(counts(&proxy, "k1", "m2")[0], 1, "counting serves nothing");
}

#[test]
fn absurd_numbers_break_nothing() {
    let standin = StandIn::start().unwrap();
    let body = format!(
        r#"{{"usage":{{"input_tokens":{0},"cache_read_input_tokens":{0},"output_tokens":{0}}}}}"#,
        u64::MAX
    );
    standin.reply("k1", "m1", Reply::json(200, body.as_str()));
    let proxy = Proxy::start(&standin);
    for _ in 0..2 {
        assert_eq!(post_and_learn(&proxy, MESSAGES, "{}").text(), body);
    }
    assert_eq!(counts(&proxy, "k1", "m1"), [2, 0, u64::MAX, u64::MAX, 0]);
    assert_eq!(proxy.slot("k1", "m1")["estimatedTokensLeft"], 0);
}
