//! Who rests after an answer of DashScope, for how long, and what ends a rest; and two keys that
//! look like one account.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]

use dashscope_proxy::clock;
use dashscope_proxy::standin::{Reply, StandIn};
use serde_json::{Value, json};

use crate::envelope::{CHAT, MESSAGES};
use crate::failover::{
    BODY, attempts, error, error_with, exhausted, lines, rejected, served_by, shown, throttled,
    unavailable,
};
use crate::harness::{LIMIT, Proxy, get, key_hash, post, record};

/// Asks until the first slot is asked again, whatever it answers then.
#[track_caller]
fn ask_until_first(standin: &StandIn, proxy: &Proxy<'_>) {
    let calls = |standin: &StandIn| standin.slots().iter().filter(|slot| *slot == "k1/m1").count();
    let (before, deadline) = (calls(standin), clock::instant() + LIMIT);
    while calls(standin) == before {
        assert!(clock::instant() < deadline, "the bench does not end");
        assert_eq!(post(proxy, CHAT, BODY).status, 200);
    }
}

fn seconds(proxy: &Proxy<'_>) -> Vec<u64> {
    let length = |line: &String| {
        line.split_once("for_s=").unwrap().1.split(' ').next().unwrap().parse().unwrap()
    };
    lines(proxy, "bench").iter().map(length).collect()
}

#[test]
fn a_throttled_slot_rests_as_long_as_it_asks_and_then_is_the_first_again() {
    let standin = StandIn::start().unwrap();
    let reply = error_with(429, "Throttling", "x", &[("retry-after", "1")]);
    standin.reply_once("k1", "m1", reply);
    let proxy = Proxy::start(&standin);
    let answer = post(&proxy, CHAT, BODY);
    assert_eq!((served_by(&answer), attempts(&answer)), (shown("k1", "m2"), Some("2")));
    assert_eq!(seconds(&proxy), [1]);
    ask_until_first(&standin, &proxy);
    assert_eq!(served_by(&post(&proxy, CHAT, BODY)), shown("k1", "m1"));
    let state = proxy.final_state();
    let cursor = |name: &str| state["runtimeState"][name]["value"].clone();
    assert_eq!(cursor("key_cursor"), "0");
    assert_eq!(cursor(&format!("model_cursor:{}", key_hash("k1"))), "0");
    let slot = record(&state, "k1", "m1");
    assert_eq!((&slot["failureCount"], &slot["cooldownUntil"]), (&0.into(), &0.into()));
    assert_eq!(slot["lastError"], Value::Null);
}

#[test]
fn a_throttle_without_a_time_rests_thirty_seconds_and_no_free_allocation_ten_minutes() {
    let standin = StandIn::start().unwrap();
    let allocation = error(429, "Throttling.AllocationQuota", "Free allocated quota exceeded.");
    let billing = "You exceeded your current quota, please check your plan and billing details.";
    for (model, reply) in [
        ("m1", error(429, "insufficient_quota", billing)),
        ("m2", allocation),
        ("m3", error_with(429, "Throttling", "x", &[("retry-after", "86400")])),
    ] {
        standin.reply_once("k1", model, reply);
    }
    let proxy = Proxy::start(&standin);
    assert_eq!(post(&proxy, CHAT, BODY).status, 429);
    assert_eq!(seconds(&proxy), [30, 600, 300]);
    assert_eq!(post(&proxy, CHAT, BODY).status, 200);
    assert_eq!(standin.slots().last().unwrap(), "k2/m1");
}

#[test]
fn a_slot_in_trouble_rests_a_second_then_twice_as_long_and_a_success_begins_anew() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    for expected in [&[1][..], &[1, 2]] {
        standin.reply_once("k1", "m1", unavailable());
        ask_until_first(&standin, &proxy);
        assert_eq!(seconds(&proxy), expected);
    }
    ask_until_first(&standin, &proxy);
    assert_eq!(seconds(&proxy), [1, 2]);
    assert_eq!(standin.slots().last().unwrap(), "k1/m1");
    standin.reply_once("k1", "m1", unavailable());
    assert_eq!(served_by(&post(&proxy, CHAT, BODY)), shown("k1", "m2"));
    assert_eq!(seconds(&proxy), [1, 2, 1]);
    assert_eq!(record(&proxy.final_state(), "k1", "m1")["failureCount"], 0);
}

#[test]
fn what_rests_is_tried_last_and_never_refused() {
    let standin = StandIn::start().unwrap();
    standin.reply_once("k1", "m1", throttled());
    standin.reply_once("k1", "m2", throttled());
    let proxy = Proxy::builder(&standin).keys("k1").models("m1,m2").start();
    assert_eq!(post(&proxy, CHAT, BODY).status, 429);
    // Both rest, and the first is asked all the same; its success ends its rest.
    let answer = post(&proxy, CHAT, BODY);
    assert_eq!((answer.status, served_by(&answer)), (200, shown("k1", "m1")));
    assert_eq!(get(&proxy, "/health").json()["availableSlots"], 2);
    standin.reply_once("k1", "m1", exhausted());
    assert_eq!(served_by(&post(&proxy, CHAT, BODY)), shown("k1", "m2"));
    assert_eq!(standin.call_count(), 5);
}

#[test]
fn a_success_ends_the_rest_of_its_key() {
    let standin = StandIn::start().unwrap();
    standin.reply_once("k1", "*", rejected());
    let proxy = Proxy::builder(&standin).env("MODEL_COOLDOWN_SECONDS", "1").start();
    assert_eq!(served_by(&post(&proxy, CHAT, BODY)), shown("k2", "m1"));
    // Nothing is left but the key that rests.
    for model in ["m1", "m2", "m3"] {
        standin.reply_once("k2", model, exhausted());
    }
    let answer = post(&proxy, CHAT, BODY);
    assert_eq!((served_by(&answer), attempts(&answer)), (shown("k1", "m1"), Some("4")));
    // Once there is a choice again, it is the first one, for both protocols.
    let deadline = clock::instant() + LIMIT;
    while get(&proxy, "/health").json()["availableSlots"] != 6 {
        assert!(clock::instant() < deadline, "the cooldowns do not end");
    }
    for path in [MESSAGES, CHAT] {
        assert_eq!(served_by(&post(&proxy, path, BODY)), shown("k1", "m1"));
    }
}

#[test]
fn a_rest_is_over_after_a_restart() {
    let standin = StandIn::start().unwrap();
    standin.reply_once("k1", "*", rejected());
    let mut proxy = Proxy::start(&standin);
    assert_eq!(served_by(&post(&proxy, CHAT, BODY)), shown("k2", "m1"));
    proxy.restart();
    assert_eq!(served_by(&post(&proxy, CHAT, BODY)), shown("k1", "m1"));
}

#[test]
fn two_keys_that_run_out_of_the_same_models_are_said_once_to_look_like_one_account() {
    let standin = StandIn::start().unwrap();
    standin.reply("k1", "*", exhausted());
    standin.reply("k2", "*", exhausted());
    let proxy = Proxy::builder(&standin).keys("k1,k2,k3").models("m1,m2,m3").start();
    assert_eq!(get(&proxy, "/models/status").json()["sameAccount"], json!([]));
    assert_eq!(served_by(&post(&proxy, CHAT, BODY)), shown("k3", "m1"));
    let (one, two) = (&key_hash("k1")[..12], &key_hash("k2")[..12]);
    assert_eq!(get(&proxy, "/models/status").json()["sameAccount"], json!([[one, two]]));
    let said = lines(&proxy, "twins");
    assert_eq!(said.len(), 1, "{said:#?}");
    assert!(said[0].contains("WARN") && said[0].contains(one) && said[0].contains(two));
    assert_eq!(post(&proxy, MESSAGES, BODY).status, 200);
    assert_eq!(lines(&proxy, "twins").len(), 1);
}

#[test]
fn a_key_that_served_before_or_ran_out_of_other_models_is_no_twin() {
    let standin = StandIn::start().unwrap();
    let mut proxy = Proxy::builder(&standin).keys("k2").start();
    assert_eq!(post(&proxy, CHAT, BODY).status, 200);
    proxy.set_env("DASHSCOPE_API_KEYS", "k1,k2");
    proxy.restart();
    standin.reply("*", "*", exhausted());
    standin.reply("k2", "m3", Reply::Normal);
    let answer = post(&proxy, CHAT, BODY);
    assert_eq!((served_by(&answer), attempts(&answer)), (shown("k2", "m3"), Some("6")));
    assert!(lines(&proxy, "twins").is_empty(), "{}", proxy.log());
    drop(proxy);

    let standin = StandIn::start().unwrap();
    for slot in [("k1", "m1"), ("k2", "m1"), ("k2", "m3")] {
        standin.reply(slot.0, slot.1, exhausted());
    }
    standin.reply("k1", "m3", rejected());
    let proxy = Proxy::builder(&standin).keys("k1,k2").models("m1,m3,m2").start();
    assert_eq!(attempts(&post(&proxy, CHAT, BODY)), Some("5"));
    assert_eq!(get(&proxy, "/models/status").json()["sameAccount"], json!([]));
    assert!(lines(&proxy, "twins").is_empty(), "{}", proxy.log());
}
