//! The state file as a document of its own: what others wrote is read by its content, and what
//! happens to a slot changes what the format says and nothing else.

use dashscope_proxy::standin::StandIn;
use serde_json::{Value, json};

use crate::envelope::CHAT;
use crate::failover::{BODY, served_by, shown};
use crate::harness::{LIMIT, Proxy, get, key_hash, post, record};

const OLD: u64 = 1_700_000_000_000;
const FAR: u64 = 4_102_444_800_000;

fn slot(key: &str, model: &str, cooldown_until: u64, updated_at: u64) -> Value {
    json!({
        "keyHash": key_hash(key), "modelId": model, "cooldownUntil": cooldown_until,
        "failureCount": 1, "lastError": "used up", "lastUsedAt": null, "updatedAt": updated_at,
    })
}

#[test]
fn a_record_counts_by_its_content_and_a_reset_of_it_lasts() {
    let standin = StandIn::start().unwrap();
    let hash = key_hash("k1");
    let slots = json!({
        format!("{hash}|m1"): slot("k1", "m1", FAR, OLD),
        "k1-m2": slot("k1", "m2", FAR, OLD + 5),
        format!("{hash}:m2"): slot("k1", "m2", 0, OLD + 4),
        "zz": slot("k1", "m3", FAR, OLD),
        "zzz": slot("k1", "m3", 0, OLD + 1),
    });
    let state = json!({"version": 1, "modelState": slots, "runtimeState": {}}).to_string();
    let mut proxy = Proxy::builder(&standin).state(&state).start();
    assert_eq!(served_by(&post(&proxy, CHAT, BODY)), shown("k1", "m3"));
    let state = proxy.state();
    let mut names: Vec<&String> = state["modelState"].as_object().unwrap().keys().collect();
    names.retain(|name| name.contains(&hash) || name.len() < 20);
    assert_eq!(names, ["m1", "m2", "m3"].map(|model| format!("{hash}:{model}")).each_ref());
    post(&proxy, "/models/reset", r#"{"all":true}"#);
    proxy.restart();
    assert_eq!(proxy.pool()["availableSlots"], 6, "the reset came undone");
}

#[test]
fn a_whole_number_is_read_however_it_is_spelt_and_nothing_is_set_aside() {
    let standin = StandIn::start().unwrap();
    let state = json!({
        "version": 1,
        "modelState": {"x": slot("k1", "m1", FAR, OLD)},
        "runtimeState": {"key_cursor": {"value": "1", "updatedAt": OLD}},
    });
    let state = state
        .to_string()
        .replace(&FAR.to_string(), "4.1024448e12")
        .replace(&OLD.to_string(), "1700000000000.0");
    let proxy = Proxy::builder(&standin).state(&state).start();
    assert_eq!(proxy.pool()["availableSlots"], 5);
    let kept = proxy.state();
    assert_eq!(kept["runtimeState"]["key_cursor"], json!({"value": "1", "updatedAt": OLD}));
    assert_eq!(record(&kept, "k1", "m1"), slot("k1", "m1", FAR, OLD));
    assert!(!proxy.log().contains("misfit"), "{}", proxy.log());
    // Half a millisecond is no time.
    let broken = state.replacen("1700000000000.0", "1700000000000.5", 1);
    let proxy = Proxy::builder(&standin).state(&broken).start();
    assert!(proxy.wait_log("state misfit=", LIMIT));
}

#[test]
fn a_success_after_a_cooldown_leaves_it_as_written_and_is_said_once() {
    let standin = StandIn::start().unwrap();
    let slots = json!({"x": slot("k1", "m1", OLD, OLD)});
    let state = json!({"version": 1, "modelState": slots, "runtimeState": {}}).to_string();
    let mut proxy = Proxy::builder(&standin).state(&state).start();
    assert_eq!(proxy.slot("k1", "m1")["cooldownUntil"], Value::Null, "it is over");
    for _ in 0..2 {
        assert_eq!(served_by(&post(&proxy, CHAT, BODY)), shown("k1", "m1"));
    }
    proxy.stop();
    let said = |proxy: &Proxy<'_>| proxy.log().matches(" revived slot=").count();
    assert_eq!(said(&proxy), 1);
    let mut kept = record(&proxy.state(), "k1", "m1");
    for time in ["lastUsedAt", "updatedAt"] {
        assert!(kept[time].as_u64().unwrap() > OLD);
        kept[time] = Value::Null;
    }
    let mut expected = slot("k1", "m1", OLD, OLD);
    expected["updatedAt"] = Value::Null;
    expected["lastError"] = Value::Null;
    assert_eq!(kept, expected);
    proxy.restart();
    assert_eq!(post(&proxy, CHAT, BODY).status, 200);
    proxy.stop();
    assert_eq!(said(&proxy), 0, "the first success since the cooldown was long before");
}

#[test]
fn what_is_disabled_for_a_while_is_where_requests_start_afterwards() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    for (body, meanwhile) in [
        (r#"{"key":0,"model":"m1"}"#, shown("k1", "m2")),
        (r#"{"key":0}"#, shown("k2", "m1")),
        (r#"{"model":"m1"}"#, shown("k1", "m2")),
    ] {
        post(&proxy, "/models/disable", body);
        for _ in 0..2 {
            assert_eq!(served_by(&post(&proxy, CHAT, BODY)), meanwhile);
        }
        post(&proxy, "/models/enable", body);
        assert_eq!(served_by(&post(&proxy, CHAT, BODY)), shown("k1", "m1"), "{body}");
    }
}

#[test]
fn one_slot_is_current_and_every_keys_cursor_is_shown() {
    let standin = StandIn::start().unwrap();
    let runtime = json!({
        "key_cursor": {"value": "1", "updatedAt": OLD},
        format!("model_cursor:{}", key_hash("k1")): {"value": "2", "updatedAt": OLD},
    });
    let state = json!({"version": 1, "modelState": {}, "runtimeState": runtime}).to_string();
    let proxy = Proxy::builder(&standin).state(&state).start();
    let status = get(&proxy, "/models/status").json();
    let marked = |name: &str| -> Vec<String> {
        let slots = status["models"].as_array().unwrap().iter();
        let slots = slots.filter(|slot| slot[name] == true);
        slots.map(|slot| format!("{}/{}", slot["keyIndex"], slot["id"].as_str().unwrap())).collect()
    };
    assert_eq!(marked("currentModel"), ["1/m1"]);
    assert_eq!(marked("currentKey"), ["1/m1", "1/m2", "1/m3"]);
    assert_eq!(marked("modelCursor"), ["0/m3", "1/m1"]);
}
