//! `MODEL_SELECTION=prefer`: the client's model first, key by key, moving nothing.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]

use dashscope_proxy::standin::{Reply, Shape, StandIn};

use crate::envelope::{CHAT, MESSAGES};
use crate::harness::{LIMIT, Proxy, post, record};

fn prefer(standin: &StandIn) -> Proxy<'_> {
    Proxy::builder(standin).env("MODEL_SELECTION", "prefer").start()
}

fn ask(proxy: &Proxy<'_>, path: &str, model: &str) -> String {
    let answer = post(proxy, path, format!(r#"{{"model":"{model}"}}"#));
    assert_eq!(answer.status, 200, "{path} {model}: {answer:?}");
    answer.header("x-proxy-model").unwrap().to_owned()
}

#[test]
fn the_clients_model_serves_if_the_pool_has_it_and_no_cursor_moves() {
    let standin = StandIn::start().unwrap();
    let proxy = prefer(&standin);
    for path in [CHAT, MESSAGES, "/v1/completions", "/v1/responses"] {
        let before = standin.call_count();
        assert_eq!(ask(&proxy, path, "m3"), "m3");
        assert_eq!(ask(&proxy, path, "m2"), "m2");
        // Not in the pool, and none at all: as if nothing had been preferred.
        assert_eq!(ask(&proxy, path, "gpt-5"), "m1");
        assert_eq!(post(&proxy, path, "{}").header("x-proxy-model"), Some("m1"));
        assert_eq!(standin.slots()[before..], ["k1/m3", "k1/m2", "k1/m1", "k1/m1"], "{path}");
    }
    let state = proxy.final_state();
    for (name, cursor) in state["runtimeState"].as_object().unwrap() {
        if name.contains("cursor") {
            assert_eq!(cursor["value"], "0", "{state:#}");
        }
    }
    assert!(record(&state, "k1", "m3")["lastUsedAt"].is_u64(), "{state:#}");
}

#[test]
fn in_pool_mode_the_clients_model_does_not_count() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    assert_eq!(ask(&proxy, CHAT, "m3"), "m1");
    assert_eq!(standin.slots(), ["k1/m1"]);
}

#[test]
fn after_the_clients_model_come_the_others_in_the_cursors_order() {
    let standin = StandIn::start().unwrap();
    let proxy = prefer(&standin);
    standin.reply("k1", "m1", Reply::Exhausted(Shape::Nested));
    standin.reply("*", "m2", Reply::Exhausted(Shape::Nested));
    assert_eq!(ask(&proxy, CHAT, "m2"), "m3");
    assert_eq!(standin.slots(), ["k1/m2", "k2/m2", "k1/m1", "k1/m3"]);
    assert_eq!(ask(&proxy, CHAT, "gpt-5"), "m3");
    assert_eq!(standin.slots()[4..], ["k1/m3"]);
}

#[test]
fn a_choice_that_cools_or_rests_on_one_key_is_had_from_the_next_on_every_route() {
    let standin = StandIn::start().unwrap();
    standin.reply_once("k1", "m2", Reply::Exhausted(Shape::Nested));
    standin.reply_once("k1", "m3", Reply::json(429, r#"{"error":{"code":"limit_requests"}}"#));
    let proxy = prefer(&standin);
    let generation = "/api/v1/services/aigc/text-generation/generation";
    assert_eq!(ask(&proxy, generation, "m2"), "m2");
    assert_eq!(ask(&proxy, CHAT, "m3"), "m3");
    assert_eq!(standin.slots(), ["k1/m2", "k2/m2", "k1/m3", "k2/m3"]);
    for path in [CHAT, MESSAGES, generation, "/v1/messages/count_tokens"] {
        let before = standin.call_count();
        assert_eq!(ask(&proxy, path, "m2"), "m2");
        assert_eq!(standin.slots()[before..], ["k2/m2"], "{path}");
    }
    assert_eq!(ask(&proxy, "/v1/responses/compact", "m3"), "m3");
    assert_eq!(standin.slots().last().unwrap(), "k2/m3");
    let state = proxy.final_state();
    for (name, cursor) in state["runtimeState"].as_object().unwrap() {
        assert!(!name.contains("cursor") || cursor["value"] == "0", "{state:#}");
    }
}

#[test]
fn a_choice_on_a_key_that_rests_is_had_from_another() {
    let standin = StandIn::start().unwrap();
    standin.reply_once("k1", "*", Reply::json(401, r#"{"code":"InvalidApiKey"}"#));
    let proxy = prefer(&standin);
    assert_eq!(ask(&proxy, CHAT, "m3"), "m3");
    assert_eq!(ask(&proxy, CHAT, "m3"), "m3");
    assert_eq!(standin.slots(), ["k1/m3", "k2/m3", "k2/m3"]);
}

#[test]
fn an_exhausted_choice_cools_and_leaves_the_cursor_where_it_is() {
    let standin = StandIn::start().unwrap();
    let proxy = prefer(&standin);
    standin.set_quota("*", "m3", 0);
    assert_eq!(ask(&proxy, CHAT, "m3"), "m1");
    assert_eq!(ask(&proxy, CHAT, "m3"), "m1");
    assert_eq!(standin.slots(), ["k1/m3", "k2/m3", "k1/m1", "k1/m1"]);
    let state = proxy.final_state();
    assert_eq!(record(&state, "k1", "m3")["failureCount"], 1);
    assert_eq!(state["runtimeState"]["key_cursor"]["value"], "0");
}

#[test]
fn a_benched_choice_comes_last() {
    let standin = StandIn::start().unwrap();
    let proxy = prefer(&standin);
    standin.reply("*", "m3", Reply::json(429, r#"{"error":{"code":"limit_requests"}}"#));
    assert_eq!(ask(&proxy, CHAT, "m3"), "m1");
    assert_eq!(ask(&proxy, CHAT, "m3"), "m1");
    assert_eq!(standin.slots(), ["k1/m3", "k2/m3", "k1/m1", "k1/m1"]);
}

#[test]
fn the_answer_and_the_log_say_what_was_asked_for_and_what_served() {
    let standin = StandIn::start().unwrap();
    let proxy = prefer(&standin);
    standin.set_quota("k1", "m3", 1);
    standin.set_quota("k2", "m3", 0);
    for (asked, served) in [("m3", "m3"), ("m3", "m1"), ("gpt-5", "m1")] {
        assert_eq!(ask(&proxy, CHAT, asked), served);
        let line = format!("asked={asked} slot=6ab9f1eb8f7d:{served} ");
        assert!(proxy.wait_log(&line, LIMIT), "{line}: {}", proxy.log());
    }
}
