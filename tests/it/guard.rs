//! `QUOTA_GUARD`: a slot is left before DashScope could bill it, by what its answers say and by
//! estimate where they do not, and only a person brings it back.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]

use std::time::Duration;

use dashscope_proxy::standin::{Call, End, Framing, Part, Reply, Shape, StandIn};
use serde_json::{Value, json};

use crate::commands::{stderr, stdout};
use crate::envelope::{CHAT, MESSAGES, message_on};
use crate::failover::{BODY, STREAMED, served_by, shown};
use crate::harness::{
    AUTH, Answer, Builder, Client, LIMIT, Proxy, get, key_hash, post, record, request,
};
use crate::upstream::ClosedPort;

const NATIVE: &str = "/api/v1/services/aigc/text-generation/generation";
const EMBEDDINGS: &str = "/v1/embeddings";

/// An answer that says it used twelve tokens.
const TWELVE: &str =
    r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12}}"#;

/// Two keys with two models of 100 tokens each, left at 90.
fn small(standin: &StandIn) -> Builder<'_> {
    let builder = Proxy::builder(standin).models("m1,m2").env("FREE_QUOTA_TOKENS", "100");
    builder.env("QUOTA_GUARD", "90")
}

fn sse(events: &[&str]) -> Reply {
    Reply::sse(events.iter().map(|event| Part::now(*event)).collect(), End::Clean)
}

fn framed(framing: Framing) -> Reply {
    let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
    Reply::Answer { status: 200, headers, body: TWELVE.into(), framing }
}

/// `[inputTokens + outputTokens, estimatedTokens]` of a slot.
fn used(proxy: &Proxy<'_>, key: &str, model: &str) -> [u64; 2] {
    let slot = proxy.slot(key, model);
    let number = |name: &str| slot[name].as_u64().unwrap_or_else(|| panic!("{name}: {slot:#}"));
    [number("inputTokens") + number("outputTokens"), number("estimatedTokens")]
}

fn state_of(proxy: &Proxy<'_>, key: &str, model: &str) -> (String, String) {
    let slot = proxy.slot(key, model);
    ["state", "guard"].map(|name| slot[name].as_str().unwrap().to_owned()).into()
}

fn is(state: &str, guard: &str) -> (String, String) {
    (state.to_owned(), guard.to_owned())
}

/// Asks, and waits until the answer is on disk.
#[track_caller]
fn ask(proxy: &Proxy<'_>, path: &str, body: &str) -> Answer {
    let before = proxy.log().matches(" request id=").count();
    let answer = post(proxy, path, body);
    assert!(proxy.wait_log(&format!(" request id={} ", before + 1), LIMIT), "{answer:?}");
    answer
}

#[test]
fn eight_answers_of_twelve_tokens_come_from_a_slot_of_a_hundred_and_then_it_is_the_next() {
    let message = r#"{"type":"message","usage":{"input_tokens":7,"output_tokens":5}}"#;
    let native = r#"{"output":{},"usage":{"input_tokens":7,"output_tokens":5}}"#;
    let chat_stream = [
        "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}],\"usage\":null}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":5}}\n\n",
        "data: [DONE]\n\n",
    ];
    let message_stream = [
        "event:message_start\ndata:{\"message\":{\"usage\":{\"input_tokens\":2,\"output_tokens\":0}}}\n\n",
        "event:content_block_delta\ndata:{\"delta\":{\"text\":\"hi\"}}\n\n",
        "event:message_delta\ndata:{\"usage\":{\"input_tokens\":7,\"output_tokens\":5}}\n\n",
        "event:message_stop\ndata:{\"type\":\"message_stop\"}\n\n",
    ];
    let native_stream = [
        "id:1\nevent:result\ndata:{\"output\":{\"text\":\"h\"},\"usage\":{\"input_tokens\":7,\"output_tokens\":1}}\n\n",
        "id:2\nevent:result\ndata:{\"output\":{\"text\":\"hi\"},\"usage\":{\"input_tokens\":7,\"output_tokens\":5}}\n\n",
    ];
    for (path, body, reply) in [
        (CHAT, BODY, framed(Framing::Length)),
        (CHAT, BODY, framed(Framing::Chunked)),
        (CHAT, BODY, framed(Framing::UntilClose)),
        (CHAT, STREAMED, sse(&chat_stream)),
        (MESSAGES, BODY, Reply::json(200, message)),
        (MESSAGES, STREAMED, sse(&message_stream)),
        (NATIVE, r#"{"model":"m1"}"#, Reply::json(200, native)),
        (NATIVE, r#"{"model":"m1"}"#, sse(&native_stream)),
        ("/v1/responses", BODY, Reply::json(200, message)),
    ] {
        let standin = StandIn::start().unwrap();
        standin.reply("*", "*", reply);
        let proxy = small(&standin).start();
        for slot in ["k1/m1", "k1/m2", "k2/m1", "k2/m2"] {
            for _ in 0..8 {
                assert_eq!(post(&proxy, path, body).status, 200);
                assert_eq!(standin.slots().last().unwrap(), slot, "{path} {body}");
            }
        }
        let refused = post(&proxy, path, body);
        assert_eq!(refused.status, 503, "{refused:?}");
        assert_eq!(standin.call_count(), 32);
        for (key, model) in [("k1", "m1"), ("k1", "m2"), ("k2", "m1"), ("k2", "m2")] {
            assert_eq!(used(&proxy, key, model), [96, 0], "{path}");
            assert_eq!(state_of(&proxy, key, model), is("guarded", "left"));
        }
    }
}

#[test]
fn a_guarded_pool_says_who_left_the_slots_and_how_to_go_on() {
    let standin = StandIn::start().unwrap();
    standin.reply("*", "*", Reply::json(200, TWELVE));
    let proxy = small(&standin).env("QUOTA_GUARD", "1").start();
    for _ in 0..3 {
        post(&proxy, CHAT, BODY);
    }
    standin.reply("k2", "m2", Reply::Exhausted(Shape::Nested));
    for path in [CHAT, MESSAGES] {
        let refused = post(&proxy, path, BODY);
        assert_eq!(refused.status, 503, "{refused:?}");
        let told = message_on(path, &refused);
        for part in
            ["QUOTA_GUARD has left 3", "of 1 is exhausted", "will reset", "higher", "console"]
        {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert_eq!(refused.header("retry-after"), None);
        assert_eq!(refused.header("x-should-retry"), Some("false"));
        if path == CHAT {
            assert_eq!(refused.json()["error"]["code"], "free_quota_exhausted");
        }
    }
    assert_eq!(get(&proxy, "/health").json()["availableSlots"], 0);
}

#[test]
fn without_the_guard_nothing_is_left() {
    let standin = StandIn::start().unwrap();
    standin.reply("*", "*", Reply::json(200, TWELVE));
    let proxy = small(&standin).without("QUOTA_GUARD").start();
    for _ in 0..20 {
        assert_eq!(served_by(&post(&proxy, CHAT, BODY)), shown("k1", "m1"));
    }
    assert!(proxy.wait_log(" request id=20 ", LIMIT));
    let slot = proxy.slot("k1", "m1");
    assert_eq!((&slot["state"], &slot["guard"]), (&json!("available"), &json!("off")));
    assert_eq!((&slot["estimatedTokensLeft"], &slot["cooldownUntil"]), (&json!(0), &Value::Null));
    assert_eq!(proxy.pool()["quotaGuard"], Value::Null);
    assert!(!proxy.log().contains(" guard slot="), "{}", proxy.log());
}

#[test]
fn a_guarded_slot_shows_everywhere_and_counts_no_refusal() {
    let standin = StandIn::start().unwrap();
    standin.reply("*", "*", Reply::json(200, TWELVE));
    let proxy = small(&standin).env("FREE_QUOTA_TOKENS", "1234567,m1=13").start();
    ask(&proxy, CHAT, BODY);
    let reason = "left at 90 % of 13 tokens, by QUOTA_GUARD";
    let slot = proxy.slot("k1", "m1");
    for (name, value) in [
        ("state", json!("guarded")),
        ("reason", json!("quota_guard")),
        ("available", json!(false)),
        ("secondsLeft", Value::Null),
        ("failureCount", json!(0)),
        ("lastError", json!(reason)),
        ("freeQuotaTokens", json!(13)),
        ("estimatedTokensLeft", json!(1)),
        ("guard", json!("left")),
    ] {
        assert_eq!(slot[name], value, "{name}");
    }
    assert!(slot["cooldownUntil"].is_string() && slot["lastUsedAt"].is_string(), "{slot:#}");
    let status = proxy.pool();
    assert_eq!(
        (&status["quotaGuard"], &status["freeQuotaTokens"]),
        (&json!(90), &json!(1_234_567))
    );
    let text = stdout(&proxy.run(&["status"]));
    assert!(text.contains(" guarded ") && text.contains("left at 90 "), "{text}");
    let metrics = get(&proxy, "/metrics").text();
    assert!(metrics.contains(r#"dashscope_proxy_slots{state="guarded"} 1"#), "{metrics}");
    let line = proxy.log().lines().find(|line| line.contains(" guard id=1 ")).unwrap().to_owned();
    let name = format!("slot={}:m1", &key_hash("k1")[..12]);
    for part in [&name, "counted=12", "estimated=0", "limit=12", "until="] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let state = proxy.state();
    let written = record(&state, "k1", "m1");
    assert_eq!((&written["lastError"], &written["failureCount"]), (&json!(reason), &json!(0)));
    assert!(written["cooldownUntil"].as_u64().unwrap() > 0);
    let mark = &state["runtimeState"][format!("guard:{}:m1", key_hash("k1"))];
    assert_eq!(mark["value"], "left");
    assert_eq!(mark.as_object().unwrap().len(), 2, "{mark}");
    assert_eq!(state["runtimeState"][format!("model_cursor:{}", key_hash("k1"))]["value"], "1");
}

#[test]
fn counts_survive_a_power_cut_and_what_was_left_is_on_disk_before_anything_later_is_heard() {
    let standin = StandIn::start().unwrap();
    standin.reply("*", "*", Reply::json(200, TWELVE));
    let mut proxy = small(&standin).start();
    for _ in 0..4 {
        ask(&proxy, CHAT, BODY);
    }
    proxy.kill9();
    proxy.restart();
    assert_eq!(used(&proxy, "k1", "m1"), [48, 0]);
    for _ in 0..4 {
        assert_eq!(served_by(&post(&proxy, CHAT, BODY)), shown("k1", "m1"));
    }
    assert_eq!(served_by(&post(&proxy, CHAT, BODY)), shown("k1", "m2"));
    proxy.kill9();
    assert!(record(&proxy.state(), "k1", "m1")["cooldownUntil"].as_u64().unwrap() > 0);
    proxy.restart();
    assert_eq!(state_of(&proxy, "k1", "m1"), is("guarded", "left"));
    assert_eq!(served_by(&post(&proxy, CHAT, BODY)), shown("k1", "m2"));
}

#[test]
fn answers_that_do_not_say_are_estimated_and_never_too_low() {
    let text = "eins zwei drei 1234567890 你好".repeat(3);
    let said = format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n");
    let silent: [&str; 2] = [&said, "data: [DONE]\n\n"];
    let start = "event:message_start\ndata:{\"message\":{\"usage\":{\"input_tokens\":2,\"output_tokens\":1}}}\n\n";
    let native = "data:{\"output\":{\"text\":\"abc\"},\"usage\":{\"input_tokens\":900,\"output_tokens\":3}}\n\n";
    let cut = |parts: &[&str]| {
        Reply::sse(parts.iter().map(|part| Part::now(*part)).collect(), End::Reset)
    };
    let middle = format!(
        r#"{{"a":"{0}","usage":{{"prompt_tokens":3,"completion_tokens":4}},"b":"{0}"}}"#,
        "x".repeat(60_000)
    );
    let length = text.len() as u64;
    for (path, body, reply, counted, least) in [
        (CHAT, STREAMED, sse(&silent), 0, length),
        (CHAT, STREAMED, cut(&silent[..1]), 0, length),
        (MESSAGES, STREAMED, cut(&[start, &said]), 3, length),
        (MESSAGES, STREAMED, sse(&[start, &said]), 3, length),
        (NATIVE, r#"{"model":"m1"}"#, cut(&[native]), 903, 0),
        (CHAT, BODY, Reply::json(200, middle), 0, 120_000),
        (CHAT, BODY, Reply::json(200, r#"{"choices":[]}"#), 0, 0),
        (EMBEDDINGS, r#"{"model":"m1","input":"hello"}"#, Reply::json(200, r#"{"data":[]}"#), 0, 0),
    ] {
        let standin = StandIn::start().unwrap();
        standin.reply("*", "*", reply);
        let proxy = Proxy::start(&standin);
        let mut client: Client = proxy.connect();
        client.send("POST", path, &[AUTH], body.as_bytes());
        let _ = client.read_answer();
        assert!(proxy.wait_log(" request id=1 ", LIMIT));
        let [said, estimated] = used(&proxy, "k1", "m1");
        assert_eq!(said, counted, "{path} {body}");
        let least = if counted == 903 { 903 } else { least + body.len() as u64 };
        assert!(said + estimated >= least, "{path}: {said} + {estimated} of {least}");
    }
}

#[test]
fn a_client_that_leaves_in_the_middle_is_counted_for_what_had_come() {
    let standin = StandIn::start().unwrap();
    let gate = standin.gate();
    let event = "data: {\"choices\":[{\"delta\":{\"content\":\"some words\"}}]}\n\n";
    let parts = vec![event; 3];
    standin.reply("k1", "m1", Reply::gated_sse(&gate, parts, End::Hang));
    let proxy = small(&standin).env("FREE_QUOTA_TOKENS", "200").start();
    let mut client = proxy.connect();
    client.send("POST", CHAT, &[AUTH], STREAMED.as_bytes());
    gate.release();
    assert_eq!(client.read_head().unwrap().status, 200);
    assert_eq!(client.read_chunk().unwrap().unwrap(), event.as_bytes());
    drop(client);
    assert!(proxy.wait_log(" request id=1 ", LIMIT));
    let [said, estimated] = used(&proxy, "k1", "m1");
    assert!(said == 0 && estimated >= STREAMED.len() as u64 + 10, "{estimated}");
    assert_eq!(state_of(&proxy, "k1", "m1"), is("available", "on"));
    standin.reply("k1", "m1", Reply::json(200, TWELVE));
    post(&proxy, CHAT, "{}");
    assert_eq!(standin.slots().last().unwrap(), "k1/m1", "it was not left too early");
}

#[test]
fn a_call_that_was_sent_and_got_no_answer_counts_at_its_most() {
    let bounded = r#"{"model":"any","messages":[],"max_tokens":500}"#;
    let hello = r#"{"model":"m1","input":"hello"}"#;
    for (path, body, output) in [(CHAT, bounded, 500), (CHAT, BODY, 65_536), (EMBEDDINGS, hello, 0)]
    {
        let standin = StandIn::start().unwrap();
        standin.reply("*", "*", Reply::HangBeforeHead);
        let proxy = Proxy::builder(&standin)
            .env("UPSTREAM_TIMEOUT_SECONDS", "1")
            .env("QUOTA_GUARD", "100")
            .start();
        assert_eq!(ask(&proxy, path, body).status, 504);
        assert_eq!(used(&proxy, "k1", "m1"), [0, body.len() as u64 + output], "{path} {body}");
    }
    let standin = StandIn::start().unwrap();
    standin.reply("*", "*", Reply::CloseBeforeHead);
    // Where nothing goes by it, the most that it can have been says too little.
    for (guard, counted) in [("100", bounded.len() as u64 + 500), ("off", 0)] {
        let proxy = Proxy::builder(&standin).env("QUOTA_GUARD", guard).start();
        assert_eq!(ask(&proxy, CHAT, bounded).status, 502);
        assert_eq!(used(&proxy, "k1", "m1"), [0, counted], "{guard}");
    }
}

#[test]
fn a_client_that_leaves_before_the_answer_is_counted_for_it() {
    let bounded = r#"{"model":"any","messages":[],"max_tokens":500,"stream":true}"#;
    let opening = Part::now("data: {\"choices\":[");
    for (reply, least) in [
        (Reply::HangBeforeHead, bounded.len() as u64 + 500),
        (Reply::sse(vec![opening], End::Hang), bounded.len() as u64),
    ] {
        let standin = StandIn::start().unwrap();
        standin.reply("k1", "m1", reply);
        let proxy = small(&standin).start();
        let mut client = proxy.connect();
        client.send("POST", CHAT, &[AUTH], bounded.as_bytes());
        assert!(standin.wait_calls(1, LIMIT));
        drop(client);
        assert!(proxy.wait_log(" request id=1 ", LIMIT));
        let [said, estimated] = used(&proxy, "k1", "m1");
        assert!(said == 0 && estimated >= least, "{estimated} of {least}");
    }
}

#[test]
fn a_call_that_cannot_have_been_worked_on_counts_nothing() {
    let standin = StandIn::start().unwrap();
    let proxy = small(&standin)
        .env("OPENAI_UPSTREAM_BASE_URL", format!("{}/v1", ClosedPort::new().origin()))
        .start();
    assert_eq!(ask(&proxy, CHAT, BODY).status, 502);
    assert_eq!(used(&proxy, "k1", "m1"), [0, 0], "nothing was sent");
    let proxy = small(&standin).start();
    standin.reply("k1", "m1", Reply::json(200, TWELVE));
    ask(&proxy, CHAT, BODY);
    standin.reply("k1", "m1", Reply::OnUsed(Box::new(Reply::CloseBeforeHead)));
    assert_eq!(ask(&proxy, CHAT, BODY).header("x-proxy-attempts"), Some("2"));
    assert_eq!(proxy.slot("k1", "m1")["requests"], 2, "the repeated one counts once");
}

#[test]
fn a_slot_that_counts_pictures_seconds_or_characters_is_never_left() {
    for usage in [
        r#"{"image_count":1,"width":1024,"height":1024}"#,
        r#"{"seconds":1.5,"prompt_tokens":50,"completion_tokens":50}"#,
        r#"{"characters":195}"#,
        r#"{"video_duration":5,"video_count":1}"#,
    ] {
        let standin = StandIn::start().unwrap();
        standin.reply("*", "*", Reply::json(200, format!(r#"{{"usage":{usage}}}"#)));
        let proxy = small(&standin).start();
        for _ in 0..12 {
            assert_eq!(served_by(&ask(&proxy, NATIVE, r#"{"model":"m1"}"#)), shown("k1", "m1"));
        }
        assert_eq!(state_of(&proxy, "k1", "m1"), is("available", "other_units"), "{usage}");
        assert_eq!(proxy.slot("k1", "m1")["estimatedTokensLeft"], Value::Null);
    }
}

#[test]
fn a_model_with_its_own_quota_is_left_by_that_and_one_without_is_never() {
    let standin = StandIn::start().unwrap();
    standin.reply("*", "*", Reply::json(200, TWELVE));
    let proxy = small(&standin).keys("k1").env("FREE_QUOTA_TOKENS", "0, m1=24").start();
    for model in ["m1", "m1", "m2", "m2", "m2"] {
        assert_eq!(served_by(&post(&proxy, CHAT, BODY)), shown("k1", model));
    }
    assert!(proxy.wait_log(" request id=5 ", LIMIT));
    let slot = proxy.slot("k1", "m2");
    assert_eq!((&slot["guard"], &slot["freeQuotaTokens"]), (&json!("unknown_quota"), &Value::Null));
}

#[test]
fn an_exception_for_a_model_that_is_not_there_stops_the_start() {
    let standin = StandIn::start().unwrap();
    let builder = small(&standin).env("FREE_QUOTA_TOKENS", "100,m3=0").env("QUOTA_GUARD", "90%");
    let output = builder.run_to_exit();
    assert_eq!(output.status.code(), Some(78));
    let told = stderr(&output);
    assert!(told.contains("FREE_QUOTA_TOKENS: item 2") && !told.contains("m3"), "{told}");
    assert!(told.contains("QUOTA_GUARD: must be off, or a whole number from 1 to 100"), "{told}");
}

#[test]
fn what_is_past_the_limit_when_the_guard_is_switched_on_is_left_before_the_next_request() {
    let standin = StandIn::start().unwrap();
    standin.reply("*", "*", Reply::json(200, TWELVE));
    let mut proxy = small(&standin).env("QUOTA_GUARD", "off").start();
    for _ in 0..5 {
        ask(&proxy, CHAT, BODY);
    }
    proxy.set_env("QUOTA_GUARD", "60");
    proxy.restart();
    let line = format!(" guard slot={}:m1 counted=60 estimated=0 limit=60", &key_hash("k1")[..12]);
    assert!(proxy.wait_log(&line, LIMIT));
    assert!(record(&proxy.state(), "k1", "m1")["cooldownUntil"].as_u64().unwrap() > 0);
    assert_eq!(served_by(&ask(&proxy, CHAT, BODY)), shown("k1", "m2"));
    proxy.set_env("QUOTA_GUARD", "61");
    proxy.restart();
    assert_eq!(state_of(&proxy, "k1", "m1"), is("available", "on"), "a higher percentage helps");
    assert_eq!(proxy.slot("k1", "m1")["lastError"], Value::Null);
    assert!(proxy.wait_log("m1 released=true", LIMIT));
}

#[test]
fn the_end_of_a_cooldown_brings_nothing_back_and_a_reset_does() {
    let standin = StandIn::start().unwrap();
    standin.reply("*", "*", Reply::json(200, TWELVE));
    let mut proxy = small(&standin)
        .keys("k1")
        .env("MODEL_COOLDOWN_SECONDS", "1")
        .env("QUOTA_GUARD", "10")
        .start();
    assert_eq!(served_by(&ask(&proxy, CHAT, BODY)), shown("k1", "m1"));
    standin.reply("k1", "m2", Reply::Exhausted(Shape::Nested));
    assert_eq!(post(&proxy, CHAT, BODY).status, 503);
    let calls = standin.call_count();
    let is_over = |proxy: &Proxy<'_>| proxy.slot("k1", "m2")["state"] == "guarded";
    let deadline = dashscope_proxy::clock::instant() + LIMIT;
    while !is_over(&proxy) {
        assert!(dashscope_proxy::clock::instant() < deadline);
    }
    for _ in 0..2 {
        let refused = post(&proxy, CHAT, BODY);
        assert_eq!((refused.status, refused.header("retry-after")), (503, None), "{refused:?}");
        assert_eq!(state_of(&proxy, "k1", "m1"), is("guarded", "left"));
        let refused = proxy.slot("k1", "m2");
        assert_eq!(refused["reason"], "free_quota_exhausted");
        proxy.restart();
    }
    assert_eq!(standin.call_count(), calls, "nobody was asked");
    let done = post(&proxy, "/models/reset", r#"{"model":"m2"}"#).json();
    assert_eq!(done["changed"].as_array().unwrap().len(), 1);
    standin.reply("k1", "m2", Reply::json(200, TWELVE));
    assert_eq!(served_by(&ask(&proxy, CHAT, BODY)), shown("k1", "m2"));
}

#[test]
fn a_reset_lifts_the_guard_until_the_count_is_reset() {
    let standin = StandIn::start().unwrap();
    standin.reply("*", "*", Reply::json(200, TWELVE));
    let mut proxy = small(&standin).keys("k1").models("m1").start();
    for _ in 0..8 {
        ask(&proxy, CHAT, BODY);
    }
    assert_eq!(post(&proxy, CHAT, BODY).status, 503);
    let label = &key_hash("k1")[..12];
    let body = json!({"key": label, "model": "m1"}).to_string();
    let done = post(&proxy, "/models/reset", &body).json();
    let slot = json!([{"key": label, "model": "m1"}]);
    assert_eq!((&done["changed"], &done["guardLifted"]), (&slot, &slot));
    proxy.kill9();
    proxy.restart();
    assert_eq!(state_of(&proxy, "k1", "m1"), is("available", "lifted"));
    for _ in 0..3 {
        assert_eq!(ask(&proxy, CHAT, BODY).status, 200);
    }
    assert_eq!(used(&proxy, "k1", "m1"), [132, 0]);
    let body = json!({"key": label, "model": "m1", "usage": true}).to_string();
    let done = post(&proxy, "/models/reset", &body).json();
    assert_eq!((&done["changed"], &done["guardLifted"]), (&json!([]), &Value::Null));
    assert_eq!(
        (used(&proxy, "k1", "m1"), state_of(&proxy, "k1", "m1")),
        ([0, 0], is("available", "on"))
    );
    proxy.kill9();
    proxy.restart();
    for _ in 0..8 {
        assert_eq!(post(&proxy, CHAT, BODY).status, 200);
    }
    assert_eq!(post(&proxy, CHAT, BODY).status, 503);
    for (action, body) in [("disable", r#"{"key":0,"usage":true}"#), ("reset", r#"{"usage":true}"#)]
    {
        assert_eq!(post(&proxy, &format!("/models/{action}"), body).status, 400, "{body}");
    }
}

#[test]
fn the_command_says_what_a_reset_does_through_the_proxy_and_on_the_file() {
    let standin = StandIn::start().unwrap();
    standin.reply("*", "*", Reply::json(200, TWELVE));
    let mut proxy = small(&standin).env("QUOTA_GUARD", "10").start();
    for running in [true, false] {
        if !running {
            proxy.restart();
        }
        for _ in 0..2 {
            ask(&proxy, CHAT, BODY);
        }
        if !running {
            proxy.stop();
        }
        let told = stdout(&proxy.run(&["reset", "--all"]));
        assert!(told.contains("2 slots are no longer cooling or guarded"), "{told}");
        assert!(told.contains("QUOTA_GUARD does NOT watch these any more"), "{told}");
        let told = stdout(&proxy.run(&["reset", "--all", "--usage"]));
        assert!(told.contains("QUOTA_GUARD counts anew") && !told.contains("NOT"), "{told}");
        let told = stdout(&proxy.run(&["status", "--json"]));
        let told: Value = serde_json::from_str(&told).unwrap();
        for slot in told["models"].as_array().unwrap() {
            assert_eq!((&slot["requests"], &slot["guard"]), (&json!(0), &json!("on")), "{slot:#}");
        }
    }
    let output = proxy.run(&["disable", "--all", "--usage"]);
    assert_eq!(output.status.code(), Some(64), "{}", stderr(&output));
}

#[test]
fn check_tells_slot_by_slot_what_is_known() {
    let standin = StandIn::start().unwrap();
    standin.reply("*", "*", Reply::json(200, TWELVE));
    let findings = |proxy: &Proxy<'_>, check: &str| {
        let told: Value = serde_json::from_str(&stdout(&proxy.run(&["check", "--json"]))).unwrap();
        let checks = told["checks"].as_array().unwrap().clone();
        let of = |it: &Value| format!("{} {} {}", it["outcome"], it["subject"], it["detail"]);
        let found = checks.iter().filter(|it| it["check"] == check).map(of);
        found.collect::<Vec<_>>()
    };
    let mut proxy = small(&standin).keys("k1").env("FREE_QUOTA_TOKENS", "100,m2=0").start();
    ask(&proxy, CHAT, BODY);
    for running in [true, false] {
        if !running {
            proxy.stop();
        }
        let guard = findings(&proxy, "guard");
        assert!(guard[0].contains("90 %") && guard[0].contains("beside the proxy"), "{guard:?}");
        let quotas = findings(&proxy, "quota");
        assert_eq!(quotas.len(), 2);
        let known = "guard on; tokens counted 12, estimated 0, left 88 of 100";
        assert!(quotas[0].contains(":m1") && quotas[0].contains(known), "{quotas:?}");
        assert!(quotas[1].contains("FREE_QUOTA_TOKENS is 0"), "{quotas:?}");
    }
    proxy.set_env("QUOTA_GUARD", "off");
    let guard = findings(&proxy, "guard");
    assert!(guard[0].contains("note") && guard[0].contains("free quota only"), "{guard:?}");
    let text = stdout(&proxy.run(&["check"]));
    assert!(
        text.contains("All is well.") && text.contains("guard off; tokens counted 12"),
        "{text}"
    );
}

#[test]
fn the_reminder_names_the_guard() {
    let standin = StandIn::start().unwrap();
    let mut proxy = small(&standin).start();
    let reminder = |proxy: &Proxy<'_>| {
        let log = proxy.log();
        log.lines().find(|line| line.contains(" reminder ")).unwrap().to_owned()
    };
    assert!(reminder(&proxy).contains("guard=90%"), "{}", reminder(&proxy));
    proxy.set_env("QUOTA_GUARD", "off");
    proxy.restart();
    assert!(reminder(&proxy).contains("guard=off"), "{}", reminder(&proxy));
}

#[test]
fn many_at_once_overshoot_by_what_was_in_flight_and_no_more() {
    const AT_ONCE: usize = 64;
    let standin = StandIn::start().unwrap();
    let gate = standin.gate();
    for _ in 0..7 {
        standin.reply_once("k1", "m1", Reply::json(200, TWELVE));
    }
    let then = Box::new(Reply::json(200, TWELVE));
    standin.reply("k1", "m1", Reply::Held { gate: gate.clone(), then });
    standin.reply("k1", "m2", Reply::json(200, TWELVE));
    let proxy = small(&standin).start();
    for _ in 0..7 {
        ask(&proxy, CHAT, BODY);
    }
    let address = proxy.address();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(move || {
                assert_eq!(request(address, "POST", CHAT, &[AUTH], BODY).status, 200);
            });
        }
        assert!(standin.wait_calls(7 + AT_ONCE, LIMIT), "they are all in flight");
        gate.open();
    });
    let on_first =
        |call: &Call| call.key.as_deref() == Some("k1") && call.model.as_deref() == Some("m1");
    assert_eq!(served_by(&ask(&proxy, CHAT, BODY)), shown("k1", "m2"));
    assert_eq!(standin.calls().iter().filter(|call| on_first(call)).count(), 7 + AT_ONCE);
    assert_eq!(used(&proxy, "k1", "m1"), [12 * (7 + AT_ONCE as u64), 0]);
    assert_eq!(proxy.log().matches(" guard id=").count(), 1, "it is left once");
}

#[test]
fn under_load_no_request_begins_on_a_slot_after_its_limit_was_heard_of() {
    let standin = StandIn::start().unwrap();
    standin.reply("*", "*", Reply::json(200, TWELVE));
    let proxy = small(&standin).env("FREE_QUOTA_TOKENS", "1200").env("QUOTA_GUARD", "100").start();
    let address = proxy.address();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(move || {
                for _ in 0..40 {
                    let answer = request(address, "POST", CHAT, &[AUTH], BODY);
                    assert_eq!(answer.status, 200);
                }
            });
        }
    });
    // A hundred answers reach the limit; seven others may have been in flight.
    for slot in ["k1/m1", "k1/m2", "k2/m1"] {
        let calls = standin.slots().iter().filter(|served| *served == slot).count();
        assert!((100..=107).contains(&calls), "{slot}: {calls}");
    }
}

#[test]
fn a_count_of_tokens_costs_nothing_and_a_clients_own_model_is_not_the_pools() {
    let standin = StandIn::start().unwrap();
    standin.reply("*", "*", Reply::json(200, TWELVE));
    let proxy = small(&standin).start();
    for _ in 0..10 {
        ask(&proxy, "/v1/messages/count_tokens", BODY);
        ask(&proxy, EMBEDDINGS, r#"{"model":"text-embedding-v4","input":"x"}"#);
    }
    assert_eq!(used(&proxy, "k1", "m1"), [0, 0]);
    for _ in 0..8 {
        ask(&proxy, EMBEDDINGS, r#"{"model":"m1","input":"x"}"#);
    }
    assert_eq!(state_of(&proxy, "k1", "m1"), is("guarded", "left"));
    ask(&proxy, EMBEDDINGS, r#"{"model":"m1","input":"x"}"#);
    assert_eq!(standin.slots().last().unwrap(), "k2/m1", "its model stays, its key rotates");
}

#[test]
fn what_an_application_used_counts_for_the_models_that_it_names() {
    let standin = StandIn::start().unwrap();
    let used_by = r#"{"output":{},"usage":{"models":[{"model_id":"m1","input_tokens":80,"output_tokens":12},{"model_id":"other","input_tokens":5,"output_tokens":5}]}}"#;
    standin.reply("k1", "*", Reply::json(200, used_by));
    let proxy = small(&standin).start();
    ask(&proxy, "/api/v1/apps/a1/completion", r#"{"input":{"prompt":"x"}}"#);
    assert_eq!(used(&proxy, "k1", "m1"), [92, 0]);
    assert_eq!(state_of(&proxy, "k1", "m1"), is("guarded", "left"));
}

#[test]
fn a_task_that_has_only_begun_counts_nothing() {
    let standin = StandIn::start().unwrap();
    let task = r#"{"output":{"task_status":"PENDING","task_id":"t1"},"request_id":"r"}"#;
    standin.reply("*", "*", Reply::json(200, task));
    let proxy = small(&standin).start();
    ask(&proxy, "/api/v1/services/aigc/text2image/image-synthesis", r#"{"model":"m1"}"#);
    assert_eq!(used(&proxy, "k1", "m1"), [0, 0]);
}

#[test]
fn an_answer_is_not_kept_waiting_for_its_count() {
    let standin = StandIn::start().unwrap();
    let gate = standin.gate();
    let parts = ["data: {\"n\":1}\n\n", "data: [DONE]\n\n"];
    standin.reply("k1", "m1", Reply::gated_sse(&gate, parts.to_vec(), End::Hang));
    let proxy = small(&standin).start();
    let mut client = proxy.connect();
    client.set_limit(Duration::from_secs(5));
    client.send("POST", CHAT, &[AUTH], STREAMED.as_bytes());
    gate.release();
    assert_eq!(client.read_head().unwrap().status, 200);
    assert_eq!(client.read_chunk().unwrap().unwrap(), parts[0].as_bytes());
    gate.release();
    assert_eq!(client.read_chunk().unwrap().unwrap(), parts[1].as_bytes());
    // The stream said that it is over, so it is counted although it has not ended.
    assert!(used(&proxy, "k1", "m1")[1] > 0);
}
