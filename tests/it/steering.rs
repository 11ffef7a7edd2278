//! Reset, disable and enable over HTTP: effective for the next request, on disk with the answer,
//! and nothing for a typing error or a foreign page.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]

use dashscope_proxy::standin::{Reply, Shape, StandIn};
use serde_json::{Value, json};

use crate::envelope::{CHAT, openai_message};
use crate::failover::{BODY, served_by, shown, throttled};
use crate::harness::{AUTH, Answer, LIMIT, Proxy, get, key_hash, post, record, request};

const ALL: &str = r#"{"all":true}"#;

/// Asks, and returns the slots that the answer says have changed, as `key/model`.
#[track_caller]
fn steer(proxy: &Proxy<'_>, action: &str, body: &str) -> Vec<String> {
    let answer = post(proxy, &format!("/models/{action}"), body);
    assert_eq!(answer.status, 200, "{answer:?}");
    let value = answer.json();
    assert_eq!((&value["ok"], &value["stateWritten"]), (&json!(true), &json!(true)));
    let name = |slot: &Value| {
        let of = |key: &&str| slot["key"] == key_hash(key)[..12];
        let key = ["k1", "k2"].into_iter().find(of).expect("a label of ours");
        format!("{key}/{}", slot["model"].as_str().unwrap())
    };
    value["changed"].as_array().unwrap().iter().map(name).collect()
}

fn label(key: &str) -> String {
    key_hash(key)[..12].to_owned()
}

fn state_of(proxy: &Proxy<'_>, key: &str, model: &str) -> String {
    proxy.slot(key, model)["state"].as_str().unwrap().to_owned()
}

#[track_caller]
fn exhaust_first(standin: &StandIn, proxy: &Proxy<'_>) {
    standin.reply_once("k1", "m1", Reply::Exhausted(Shape::Nested));
    assert_eq!(served_by(&post(proxy, CHAT, BODY)), shown("k1", "m2"));
    assert!(proxy.wait_log(" request id=1 ", LIMIT), "what it taught is on disk");
    assert_eq!(state_of(proxy, "k1", "m1"), "cooling");
}

#[test]
fn what_is_disabled_serves_no_request_until_it_is_enabled_also_after_a_restart() {
    let standin = StandIn::start().unwrap();
    let mut proxy = Proxy::start(&standin);
    let body = json!({"key": label("k1"), "model": "m1"}).to_string();
    assert_eq!(steer(&proxy, "disable", &body), ["k1/m1"]);
    assert!(steer(&proxy, "disable", &body).is_empty(), "it is no news");
    assert_eq!(served_by(&post(&proxy, CHAT, BODY)), shown("k1", "m2"));
    assert_eq!(steer(&proxy, "disable", r#"{"key":0}"#), ["k1/m2", "k1/m3"]);
    proxy.kill9();
    proxy.restart();
    assert_eq!(served_by(&post(&proxy, CHAT, BODY)), shown("k2", "m1"));
    let slot = proxy.slot("k1", "m1");
    assert_eq!((&slot["state"], &slot["reason"]), (&json!("disabled"), &json!("manual")));
    assert_eq!((&slot["available"], &slot["secondsLeft"]), (&json!(false), &Value::Null));
    assert_eq!(proxy.pool()["availableSlots"], 3);
    assert_eq!(steer(&proxy, "enable", r#"{"model":"m1"}"#), ["k1/m1"]);
    assert_eq!(steer(&proxy, "enable", "{}"), ["k1/m2", "k1/m3"]);
    proxy.restart();
    assert_eq!(proxy.pool()["availableSlots"], 6);
}

#[test]
fn a_model_is_disabled_on_every_key_and_a_pool_without_slots_says_why() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    assert_eq!(steer(&proxy, "disable", r#"{"model":"m1"}"#), ["k1/m1", "k2/m1"]);
    assert_eq!(served_by(&post(&proxy, CHAT, BODY)), shown("k1", "m2"));
    assert_eq!(steer(&proxy, "disable", ALL).len(), 4);
    let calls = standin.call_count();
    let refused = post(&proxy, CHAT, BODY);
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("pool_disabled")));
    assert!(openai_message(&refused).contains("all 6 are disabled"), "{refused:?}");
    assert_eq!(refused.header("retry-after"), None, "only a person ends this wait");
    assert_eq!(refused.header("x-should-retry"), Some("false"));
    assert_eq!(standin.call_count(), calls);
    assert_eq!(get(&proxy, "/health").json()["availableSlots"], 0);
    assert_eq!(steer(&proxy, "enable", "").len(), 6);
    assert_eq!(post(&proxy, CHAT, BODY).status, 200);
}

#[test]
fn a_reset_slot_serves_the_next_request_and_keeps_its_count() {
    let standin = StandIn::start().unwrap();
    let mut proxy = Proxy::start(&standin);
    exhaust_first(&standin, &proxy);
    let body = json!({"key": label("k1"), "model": "m1"}).to_string();
    assert_eq!(steer(&proxy, "reset", &body), ["k1/m1"]);
    let slot = record(&proxy.state(), "k1", "m1");
    assert_eq!(slot["cooldownUntil"], 0, "the answer came before the disk");
    assert_eq!((&slot["lastError"], &slot["failureCount"]), (&Value::Null, &json!(1)));
    assert!(steer(&proxy, "reset", ALL).is_empty(), "nothing cools any more");
    steer(&proxy, "disable", r#"{"model":"m2"}"#);
    steer(&proxy, "disable", r#"{"model":"m3"}"#);
    assert_eq!(served_by(&post(&proxy, CHAT, BODY)), shown("k1", "m1"));
    proxy.restart();
    let slot = proxy.slot("k1", "m1");
    assert_eq!((&slot["state"], &slot["failureCount"]), (&json!("available"), &json!(1)));
}

#[test]
fn a_reset_by_key_or_model_leaves_the_others_cooling() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    standin.reply("*", "*", Reply::Exhausted(Shape::Nested));
    assert_eq!(post(&proxy, CHAT, BODY).status, 503);
    assert_eq!(steer(&proxy, "reset", r#"{"model":"m2"}"#), ["k1/m2", "k2/m2"]);
    assert_eq!(state_of(&proxy, "k2", "m1"), "cooling");
    assert_eq!(steer(&proxy, "reset", r#"{"key":"1"}"#), ["k2/m1", "k2/m3"]);
    standin.clear();
    assert_eq!(post(&proxy, CHAT, BODY).status, 200);
    for (key, model, state) in
        [("k1", "m1", "cooling"), ("k1", "m2", "available"), ("k2", "m3", "available")]
    {
        assert_eq!(state_of(&proxy, key, model), state, "{key}/{model}");
    }
    let answer = post(&proxy, "/models/reset", ALL).json();
    assert_eq!(answer["changed"].as_array().unwrap().len(), 2, "{answer}");
}

#[test]
fn a_reset_lifts_rests() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    standin.reply("k1", "*", throttled());
    assert_eq!(post(&proxy, CHAT, BODY).status, 429);
    standin.clear();
    assert_eq!(state_of(&proxy, "k1", "m1"), "benched");
    let slot = proxy.slot("k1", "m1");
    assert_eq!(slot["reason"], "throttled");
    assert!(slot["secondsLeft"].as_u64().is_some_and(|left| (1..=30).contains(&left)), "{slot}");
    steer(&proxy, "reset", r#"{"key":0}"#);
    assert_eq!(state_of(&proxy, "k1", "m1"), "available");
    assert_eq!(served_by(&post(&proxy, CHAT, BODY)), shown("k1", "m1"));
}

#[test]
fn an_exhaustion_that_began_before_a_reset_does_not_cool_again() {
    let standin = StandIn::start().unwrap();
    let gate = standin.gate();
    let then = Box::new(Reply::Exhausted(Shape::Nested));
    standin.reply_once("k1", "m1", Reply::Held { gate: gate.clone(), then });
    let mut proxy = Proxy::start(&standin);
    let mut late = proxy.connect();
    late.send("POST", CHAT, &[AUTH], BODY.as_bytes());
    assert!(standin.wait_calls(1, LIMIT));
    steer(&proxy, "reset", ALL);
    gate.release();
    assert_eq!(served_by(&late.read_answer().unwrap()), shown("k1", "m2"));
    let slot = proxy.slot("k1", "m1");
    assert_eq!((&slot["state"], &slot["failureCount"]), (&json!("available"), &json!(1)));
    proxy.restart();
    assert_eq!(state_of(&proxy, "k1", "m1"), "available");
    // What begins after the reset is believed.
    standin.reply("*", "m1", Reply::Exhausted(Shape::Nested));
    steer(&proxy, "disable", r#"{"model":"m2"}"#);
    steer(&proxy, "disable", r#"{"model":"m3"}"#);
    assert_eq!(post(&proxy, CHAT, BODY).status, 503);
    assert_eq!(state_of(&proxy, "k1", "m1"), "cooling");
}

#[test]
fn a_typing_error_a_stranger_and_a_foreign_page_change_nothing() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    exhaust_first(&standin, &proxy);
    let before = proxy.state();
    let host = proxy.address().to_string();
    let foreign = ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost"];
    let mut refusals: Vec<(Answer, u16, &str)> = Vec::new();
    for action in ["reset", "disable"] {
        let path = format!("/models/{action}");
        let with = |headers: &[(&str, &str)], body: &str| {
            request(proxy.address(), "POST", &path, headers, body)
        };
        for body in [
            "",
            "{}",
            "[]",
            "null",
            "nonsense",
            r#"{"all":false}"#,
            r#"{"modle":"m1"}"#,
            r#"{"key":0,"Model":"m1"}"#,
            r#"{"key":0,"models":["m1"]}"#,
            r#"{"all":true,"key":0}"#,
            r#"{"all":true}}"#,
            r#"{"all":1}"#,
            r#"{"key":-1}"#,
            r#"{"key":null,"model":null}"#,
        ] {
            refusals.push((with(&[AUTH], body), 400, "invalid_command"));
        }
        for body in [
            r#"{"key":2}"#,
            r#"{"key":"cccccccccccc"}"#,
            r#"{"model":"M1"}"#,
            r#"{"key":0,"model":""}"#,
        ] {
            refusals.push((with(&[AUTH], body), 404, "not_in_pool"));
        }
        for origin in foreign {
            let headers = [AUTH, ("host", host.as_str()), ("origin", origin)];
            refusals.push((with(&headers, ALL), 403, "foreign_origin"));
        }
        refusals.push((with(&[], ALL), 401, "invalid_api_key"));
        let wrong = ("authorization", "Bearer k1");
        refusals.push((with(&[wrong], ALL), 401, "invalid_api_key"));
        refusals.push((get(&proxy, &path), 405, "method_not_allowed"));
    }
    for (answer, status, code) in &refusals {
        assert_eq!(answer.status, *status, "{answer:?}");
        assert_eq!(answer.json()["error"]["code"], *code, "{answer:?}");
        let text = answer.text();
        assert!(!text.contains("cccccccccccc") && !text.contains("nonsense"), "{text}");
    }
    assert_eq!(proxy.state(), before);
    assert_eq!(state_of(&proxy, "k1", "m1"), "cooling");
    assert_eq!(proxy.pool()["availableSlots"], 5);
    assert!(!proxy.log().contains(" steer "), "{}", proxy.log());
}

#[test]
fn a_page_of_the_proxys_own_may_steer() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let host = proxy.address().to_string();
    for origin in [format!("http://{host}"), format!("https://{host}")] {
        let headers = [AUTH, ("host", host.as_str()), ("origin", origin.as_str())];
        let answer = request(proxy.address(), "POST", "/models/enable", &headers, "{}");
        assert_eq!(answer.status, 200, "{origin}: {answer:?}");
    }
}

#[test]
fn no_page_of_another_origin_may_read_or_is_invited() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let origin = ("origin", "https://evil.example");
    let asked = ("access-control-request-method", "POST");
    for path in ["/models/reset", "/models/disable", "/models/enable", "/metrics"] {
        let method = if path == "/metrics" { "GET" } else { "POST" };
        for (method, headers, body) in [
            (method, vec![AUTH], ALL),
            (method, vec![AUTH], "nonsense"),
            (method, vec![AUTH, origin], ALL),
            (method, vec![origin], ALL),
            ("PUT", vec![AUTH], ALL),
            ("OPTIONS", vec![origin, asked], ""),
        ] {
            let body = if method == "GET" { "" } else { body };
            let answer = request(proxy.address(), method, path, &headers, body);
            let cors = answer.headers.iter().find(|(name, _)| name.starts_with("access-control"));
            assert_eq!(cors, None, "{method} {path} {headers:?}: {answer:?}");
        }
    }
}

#[test]
fn what_a_person_did_is_in_the_log_and_no_key_is() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin).keys("sk-steered,k2").start();
    steer_raw(&proxy, "disable", r#"{"key":0,"model":"m1"}"#);
    steer_raw(&proxy, "reset", ALL);
    assert!(proxy.wait_log(" steer action=reset ", LIMIT));
    let log = proxy.log();
    let expected = format!("steer action=disable key={} model=m1 changed=1", label("sk-steered"));
    assert!(log.contains(&expected), "{log}");
    assert!(log.contains("steer action=reset key=* model=* changed=0 state_written=true"), "{log}");
    assert!(!log.contains("sk-steered"), "{log}");
}

fn steer_raw(proxy: &Proxy<'_>, action: &str, body: &str) {
    assert_eq!(post(proxy, &format!("/models/{action}"), body).status, 200);
}
