//! A request goes to a model that can take it (design section 11).
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]

mod corpus;
mod routes;

use dashscope_proxy::standin::{Limit, Reply, StandIn};
use serde_json::{Value, json};

use super::harness::{Answer, Builder, LIMIT, Proxy, get, key_hash, post};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";

const SMALL: &str = "qwen-max";
const LARGE: &str = "qwen3-coder-plus";

fn pool<'a>(standin: &'a StandIn, models: &str) -> Builder<'a> {
    Proxy::builder(standin).keys("k1,k2").models(models)
}

fn standin(limits: &[(&str, Limit)]) -> StandIn {
    let standin = StandIn::start().unwrap();
    for (model, limit) in limits {
        standin.set_limits(model, std::slice::from_ref(limit));
    }
    standin
}

fn body(more: Value) -> String {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body.to_string()
}

fn allowing(tokens: u64) -> String {
    format!(
        r#"{{"model": "any","max_tokens" : {tokens}, "messages":[{{"role":"user","content":"hi"}}] }}"#
    )
}

fn picture() -> String {
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}});
    let content = json!([{"type": "text", "text": "what is this?"}, image]);
    json!({"messages": [{"role": "user", "content": content}]}).to_string()
}

fn model(answer: &Answer) -> &str {
    answer.header("x-proxy-model").unwrap_or("-")
}

/// Status, model and how many calls it took.
fn told(answer: &Answer) -> (u16, &str, &str) {
    (answer.status, model(answer), answer.header("x-proxy-attempts").unwrap_or("-"))
}

fn limits(proxy: &Proxy<'_>, model: &str) -> Vec<Value> {
    proxy.slot("k1", model)["limits"].as_array().unwrap().clone()
}

fn cursors(state: &Value) -> Vec<Value> {
    let names = ["k1", "k2"].map(|key| format!("model_cursor:{}", key_hash(key)));
    let names = names.into_iter().chain(["key_cursor".to_owned()]);
    names.map(|name| state["runtimeState"][name]["value"].clone()).collect()
}

fn reset(proxy: &Proxy<'_>, what: &str) {
    assert_eq!(post(proxy, "/models/reset", what).status, 200);
}

#[test]
fn what_one_model_cannot_write_another_does_after_one_refusal_and_then_without() {
    let standin = standin(&[(SMALL, Limit::MaxOutput(8_192)), (LARGE, Limit::MaxOutput(65_536))]);
    let proxy = pool(&standin, &format!("{SMALL},{LARGE}")).start();
    for path in [CHAT, MESSAGES] {
        assert_eq!(told(&post(&proxy, path, allowing(64_000))), (200, LARGE, "2"));
        let answer = post(&proxy, path, allowing(64_000));
        assert_eq!(told(&answer), (200, LARGE, "1"));
        assert_eq!(answer.header("x-proxy-adjusted"), None);
        assert_eq!(told(&post(&proxy, path, allowing(4_096))), (200, SMALL, "1"));
        assert_eq!(told(&post(&proxy, path, body(json!({})))), (200, SMALL, "1"));
    }
    assert!(standin.calls().iter().all(|call| call.key.as_deref() == Some("k1")));
    assert!(!proxy.log().contains(" bench "), "nobody backs off");
    assert_eq!(cursors(&proxy.final_state()), ["0", "0", "0"]);
}

#[test]
fn where_no_model_takes_it_whole_the_largest_gets_its_own_bound_and_nothing_else_changes() {
    let standin = standin(&[(SMALL, Limit::MaxOutput(8_192)), (LARGE, Limit::MaxOutput(16_384))]);
    let proxy = pool(&standin, &format!("{SMALL},{LARGE}")).start();
    for calls in ["3", "1", "1"] {
        let answer = post(&proxy, CHAT, allowing(64_000));
        assert_eq!(told(&answer), (200, LARGE, calls));
        assert_eq!(answer.header("x-proxy-adjusted"), Some("max_tokens=16384"));
        let sent = standin.calls().pop().unwrap().body;
        let expected = allowing(16_384).replace("\"any\"", &format!("\"{LARGE}\""));
        assert_eq!(String::from_utf8(sent).unwrap(), expected);
    }
    // Its bounds are known, and this is below one of them.
    let answer = post(&proxy, CHAT, allowing(16_384));
    assert_eq!((told(&answer), answer.header("x-proxy-adjusted")), ((200, LARGE, "1"), None));
    assert!(proxy.wait_log("adjusted=\"max_tokens=16384\"", LIMIT), "{}", proxy.log());
    assert_eq!(proxy.log().lines().filter(|line| line.contains(" limit ")).count(), 2);
    assert_eq!(cursors(&proxy.final_state()), ["0", "0", "0"]);
}

#[test]
fn a_single_model_gets_its_bound_in_the_same_request() {
    let standin = standin(&[(SMALL, Limit::MaxOutput(8_192))]);
    let proxy = pool(&standin, SMALL).start();
    let request = json!({"max_tokens": 32_000, "stream": true,
        "thinking": {"type": "enabled", "budget_tokens": 31_999}});
    for calls in ["2", "1"] {
        let answer = post(&proxy, MESSAGES, body(request.clone()));
        assert_eq!(told(&answer), (200, SMALL, calls));
        let adjusted = answer.header("x-proxy-adjusted");
        assert_eq!(adjusted, Some("max_tokens=8192, budget_tokens=4096"));
        let sent = standin.calls().pop().unwrap().json();
        assert_eq!(
            (&sent["max_tokens"], &sent["thinking"]["budget_tokens"]),
            (&json!(8_192), &json!(4_096))
        );
    }
}

#[test]
fn two_bounds_of_one_model_are_found_one_after_the_other() {
    let standin = StandIn::start().unwrap();
    standin.set_limits(SMALL, &[Limit::MaxOutput(8_192), Limit::ThinkingBudget(2_000)]);
    let proxy = pool(&standin, SMALL).start();
    let request =
        body(json!({"max_tokens": 9_000, "enable_thinking": true, "thinking_budget": 3_000}));
    for calls in ["3", "1"] {
        let answer = post(&proxy, CHAT, &request);
        assert_eq!(told(&answer), (200, SMALL, calls));
        let adjusted = answer.header("x-proxy-adjusted");
        assert_eq!(adjusted, Some("max_tokens=8192, thinking_budget=2000"));
    }
}

#[test]
fn a_bound_that_is_named_lower_and_lower_is_not_followed_for_ever() {
    let standin = StandIn::start().unwrap();
    standin.decide(|call| {
        let asked = call.json()["max_tokens"].as_u64()?;
        let message = format!("Range of max_tokens should be [1, {}]", asked - 1);
        Some(Reply::json(400, json!({"code": "InvalidParameter", "message": message}).to_string()))
    });
    let proxy = pool(&standin, "m1,m2").start();
    let answer = post(&proxy, CHAT, allowing(64_000));
    assert_eq!(answer.status, 400);
    assert!(standin.call_count() <= 6, "{:?}", standin.slots());
}

#[test]
fn move_changes_no_request_and_hands_on_the_most_generous_refusal() {
    let bounds = [("m1", 8_192), ("m2", 16_384), ("m3", 4_096)];
    let standin = standin(&bounds.map(|(model, bound)| (model, Limit::MaxOutput(bound))));
    let proxy = pool(&standin, "m1,m2,m3").env("MODEL_LIMITS", "move").start();
    for calls in ["3", "1", "1"] {
        let answer = post(&proxy, CHAT, allowing(64_000));
        assert_eq!(told(&answer), (400, "m2", calls));
        assert!(answer.text().contains("[1, 16384]"), "{answer:?}");
        assert_eq!(answer.header("x-proxy-adjusted"), None);
    }
    assert!(standin.calls().iter().all(|call| call.json()["max_tokens"] == 64_000));
    assert_eq!(told(&post(&proxy, CHAT, allowing(10_000))), (200, "m2", "1"));
}

#[test]
fn off_hands_every_refusal_on_and_learns_nothing() {
    let standin = standin(&[("m1", Limit::MaxOutput(8_192))]);
    for setting in [("MODEL_LIMITS", "off"), ("FAILOVER", "quota-only")] {
        let proxy = pool(&standin, "m1,m2").env(setting.0, setting.1).start();
        assert_eq!(told(&post(&proxy, CHAT, allowing(64_000))), (400, "m1", "1"));
        assert!(limits(&proxy, "m1").is_empty() && !proxy.log().contains(" limit "));
    }
}

#[test]
fn a_model_is_asked_once_whatever_the_number_of_keys() {
    let models = ["m1", "m2", "m3", "m4", "m5"];
    let standin = standin(&models.map(|model| (model, Limit::OnlyStreams)));
    let keys = "k1,k2,k3,k4,k5,k6,k7,k8,k9,k10";
    let proxy = pool(&standin, &models.join(",")).keys(keys).start();
    let answer = post(&proxy, CHAT, body(json!({})));
    assert_eq!((answer.status, standin.call_count()), (400, 5), "{answer:?}");
    // It is known of all of them now: one is asked, and says so in its own words.
    let answer = post(&proxy, CHAT, body(json!({})));
    assert_eq!((answer.status, standin.call_count()), (400, 6), "{answer:?}");
    assert!(answer.text().contains("only support stream mode"), "{answer:?}");
    standin.set_limits("m4", &[]);
    reset(&proxy, r#"{"model":"m4"}"#);
    assert_eq!(told(&post(&proxy, CHAT, body(json!({})))), (200, "m4", "1"));
}

#[test]
fn models_of_two_origins_are_asked_each() {
    let (here, there) = (standin(&[("m1", Limit::NoSearch)]), StandIn::start().unwrap());
    let keys = format!("k1,k2,k3@{}", there.origin());
    let proxy = pool(&here, "m1").keys(&keys).start();
    let request = body(json!({"enable_search": true}));
    for calls in ["2", "1"] {
        assert_eq!(told(&post(&proxy, CHAT, &request)), (200, "m1", calls));
    }
    assert_eq!((here.slots(), there.call_count()), (vec!["k1/m1".to_owned()], 2));
    assert_eq!(limits(&proxy, "m1").len(), 1);
    assert_eq!(proxy.slot("k3", "m1")["limits"], json!([]));
}

#[test]
fn what_was_learned_hangs_on_what_the_request_asked() {
    let standin = standin(&[("m1", Limit::ThinkingNeedsStream)]);
    let proxy = pool(&standin, "m1,m2").start();
    let thinking = body(json!({"enable_thinking": true}));
    assert_eq!(told(&post(&proxy, CHAT, &thinking)), (200, "m2", "2"));
    assert_eq!(told(&post(&proxy, CHAT, &thinking)), (200, "m2", "1"));
    let off = body(json!({"enable_thinking": false}));
    assert_eq!(told(&post(&proxy, CHAT, off)), (200, "m1", "1"));
    let streamed = body(json!({"enable_thinking": true, "stream": true}));
    assert_eq!(told(&post(&proxy, CHAT, streamed)), (200, "m1", "1"));
    let [fact] = &limits(&proxy, "m1")[..] else { panic!("one limit") };
    assert_eq!(fact["kind"], "thinking_only_streamed");
    assert_eq!((&fact["on"], &fact["path"]), (&json!("thinking:on"), &json!("/chat/completions")));
    assert!(fact["until"].as_str() > fact["learnedAt"].as_str(), "{fact}");
    assert_eq!(limits(&proxy, "m1"), proxy.slot("k2", "m1")["limits"].as_array().unwrap()[..]);
}

#[test]
fn a_success_that_disproves_a_limit_lifts_it_and_so_does_a_reset() {
    let standin = standin(&[("m1", Limit::OnlyStreams), ("m2", Limit::OnlyStreams)]);
    let proxy = pool(&standin, "m1,m2").keys("k1").start();
    assert_eq!(post(&proxy, CHAT, body(json!({}))).status, 400);
    standin.set_limits("m1", &[]);
    assert_eq!(told(&post(&proxy, CHAT, body(json!({})))), (200, "m1", "1"), "asked again");
    assert!(limits(&proxy, "m1").is_empty());
    assert_eq!(limits(&proxy, "m2").len(), 1);
    let metrics = get(&proxy, "/metrics").text();
    assert!(
        metrics.contains(r#"dashscope_proxy_limits{model="m2",kind="streams_only"} 1"#),
        "{metrics}"
    );
    reset(&proxy, r#"{"key":0}"#);
    assert_eq!(limits(&proxy, "m2").len(), 1, "a limit is no key's");
    reset(&proxy, r#"{"all":true}"#);
    assert!(limits(&proxy, "m2").is_empty());
    assert!(!get(&proxy, "/metrics").text().contains("streams_only"));
}

#[test]
fn a_picture_goes_to_a_model_that_sees() {
    let standin = standin(&[("blind", Limit::TextOnly)]);
    let proxy = pool(&standin, "blind,m2,sees").keys("k1").env("VISION_MODELS", "sees").start();
    assert_eq!(told(&post(&proxy, CHAT, picture())), (200, "sees", "1"));
    assert_eq!(told(&post(&proxy, CHAT, body(json!({})))), (200, "blind", "1"));
    // It backs off: the others are asked, and one that has served a picture is remembered.
    standin.reply_once("*", "sees", Reply::json(503, "{}"));
    assert_eq!(told(&post(&proxy, CHAT, picture())), (200, "m2", "3"));
    assert_eq!(limits(&proxy, "blind")[0]["on"], "image");
}

#[test]
fn a_model_that_has_refused_a_picture_gets_none_again() {
    let standin = standin(&[("blind", Limit::TextOnly), ("m2", Limit::OnlyStrings)]);
    let proxy = pool(&standin, "blind,m2").start();
    let answer = post(&proxy, CHAT, picture());
    assert_eq!(told(&answer), (400, "m2", "2"), "{answer:?}");
    // Of all the pool's models that is suspect: one is asked, and its refusal is the answer.
    for model in ["blind", "m2"] {
        assert_eq!(told(&post(&proxy, CHAT, picture())), (400, model, "1"));
    }
    assert_eq!(told(&post(&proxy, CHAT, body(json!({})))), (200, "blind", "1"));
    standin.set_limits("m2", &[]);
    reset(&proxy, r#"{"model":"m2"}"#);
    for _ in 0..2 {
        assert_eq!(told(&post(&proxy, CHAT, picture())), (200, "m2", "1"));
    }
}

#[test]
fn where_only_models_without_eyes_are_left_a_picture_is_refused_without_a_call() {
    let standin = standin(&[("blind", Limit::TextOnly)]);
    let proxy = pool(&standin, "blind,sees").keys("k1").start();
    assert_eq!(told(&post(&proxy, CHAT, picture())), (200, "sees", "2"));
    assert_eq!(post(&proxy, "/models/disable", r#"{"model":"sees"}"#).status, 200);
    for _ in 0..2 {
        let answer = post(&proxy, CHAT, picture());
        assert_eq!((answer.status, standin.call_count()), (400, 2), "{answer:?}");
        assert_eq!(answer.json()["error"]["code"], "model_limit");
        assert_eq!(answer.header("x-proxy-attempts"), None);
    }
}

#[test]
fn an_odd_part_beside_a_picture_keeps_no_picture_from_the_models() {
    let standin = standin(&[]);
    let proxy = pool(&standin, "m1,m2").start();
    let message = "The provided messages input is invalid. The error info is [Unexpected item type in content.]";
    let refusal = json!({"error": {"code": "invalid_parameter_error", "message": message}});
    let image = json!({"type": "image_url", "image_url": {"url": "https://h/a.png"}});
    for odd in [json!("hi"), json!(7), json!(null), json!([]), json!({"type": "text"})] {
        standin.reply_once("*", "m1", Reply::json(400, refusal.to_string()));
        let request = json!({"messages": [{"role": "user", "content": [odd, image]}]});
        let answer = post(&proxy, CHAT, request.to_string());
        assert_eq!(told(&answer), (400, "m1", "1"), "{odd}");
    }
    assert_eq!(told(&post(&proxy, CHAT, picture())), (200, "m1", "1"));
}

#[test]
fn a_lowered_request_that_leaves_no_room_for_a_models_own_thinking_goes_to_the_next() {
    let standin = standin(&[("m1", Limit::MaxOutput(16_384)), ("m2", Limit::MaxOutput(8_192))]);
    let proxy = pool(&standin, "m1,m2").keys("k1").start();
    let message = "max_completion_tokens [16384] must be greater than thinking_budget [32768]";
    let refusal = json!({"error": {"code": "invalid_parameter_error", "message": message}});
    assert_eq!(told(&post(&proxy, CHAT, allowing(64_000))), (200, "m1", "3"));
    standin.reply_once("*", "m1", Reply::json(400, refusal.to_string()));
    for calls in ["2", "1"] {
        let answer = post(&proxy, CHAT, allowing(64_000));
        assert_eq!(told(&answer), (200, "m2", calls));
        assert_eq!(answer.header("x-proxy-adjusted"), Some("max_tokens=8192"));
    }
    assert_eq!(limits(&proxy, "m1")[1]["kind"], "default_thinking_budget");
}

#[test]
fn a_malformed_picture_is_the_callers_mistake() {
    let standin = standin(&[("m1", Limit::TextOnly)]);
    let proxy = pool(&standin, "m1,m2").start();
    let image = json!({"type": "image_url"});
    let request = json!({"messages": [{"role": "user", "content": [image]}]}).to_string();
    assert_eq!(told(&post(&proxy, CHAT, request)), (400, "m1", "1"));
    assert!(limits(&proxy, "m1").is_empty());
}

#[test]
fn a_long_input_goes_to_models_that_take_more_and_shorter_ones_stay() {
    let standin = standin(&[
        ("m1", Limit::MaxInput(1_000)),
        ("m2", Limit::MaxInput(500)),
        ("m3", Limit::MaxInput(100_000)),
    ]);
    let proxy = pool(&standin, "m1,m2,m3").start();
    let long = |bytes: usize| body(json!({"user": "x".repeat(bytes)}));
    assert_eq!(told(&post(&proxy, CHAT, long(3_000))), (200, "m1", "1"));
    assert_eq!(told(&post(&proxy, CHAT, long(8_000))), (200, "m3", "3"));
    assert_eq!(told(&post(&proxy, CHAT, long(8_000))), (200, "m3", "1"));
    assert_eq!(told(&post(&proxy, CHAT, long(9_000))), (200, "m3", "1"));
    assert_eq!(told(&post(&proxy, CHAT, long(3_000))), (200, "m1", "1"), "shorter than refused");
    // m1 refuses 5,000 bytes: m2, which takes less, need not be asked.
    assert_eq!(told(&post(&proxy, CHAT, long(5_000))), (200, "m3", "2"));
    // Nobody takes this: the most generous says so.
    let answer = post(&proxy, CHAT, long(500_000));
    assert_eq!(told(&answer), (400, "m3", "1"));
    assert!(answer.text().contains("[1, 100000]"), "{answer:?}");
    assert_eq!(told(&post(&proxy, CHAT, long(500_000))), (400, "m3", "1"));
}

#[test]
fn a_429_before_a_limit_is_the_more_hopeful_answer() {
    let standin = standin(&[("m2", Limit::OnlyStreams)]);
    standin.reply("*", "m1", Reply::json(429, r#"{"code":"Throttling","message":"slow down"}"#));
    let proxy = pool(&standin, "m1,m2").keys("k1").start();
    assert_eq!(told(&post(&proxy, CHAT, body(json!({})))), (429, "m1", "2"));
}

#[test]
fn a_clients_preference_gives_way_to_what_is_known() {
    let standin = standin(&[("m2", Limit::MaxOutput(8_192))]);
    let proxy = pool(&standin, "m1,m2").env("MODEL_SELECTION", "prefer").start();
    let request = allowing(64_000).replace("any", "m2");
    assert_eq!(told(&post(&proxy, CHAT, &request)), (200, "m1", "2"));
    assert_eq!(told(&post(&proxy, CHAT, &request)), (200, "m1", "1"));
    let small = allowing(100).replace("any", "m2");
    assert_eq!(told(&post(&proxy, CHAT, &small)), (200, "m2", "1"));
}

#[test]
fn an_exhaustion_on_the_way_moves_the_cursor_and_a_limit_does_not() {
    let standin = standin(&[("m2", Limit::MaxOutput(8_192))]);
    standin.set_quota("*", "m1", 0);
    let proxy = pool(&standin, "m1,m2,m3").keys("k1").start();
    assert_eq!(told(&post(&proxy, CHAT, allowing(64_000))), (200, "m3", "3"));
    let state = proxy.final_state();
    assert_eq!(cursors(&state)[0], "1", "at m2: it is only passed over by such requests");
}
