//! `GET /v1/models` and `/v1/models/{id}`, as the typed SDKs of both protocols read them.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]

use dashscope_proxy::standin::StandIn;
use serde_json::Value;

use crate::envelope::{anthropic_message, anthropic_type, openai_message};
use crate::harness::{AUTH, Answer, PROXY_KEY, Proxy, get, request};

const ANTHROPIC: [(&str, &str); 2] =
    [("x-api-key", PROXY_KEY), ("anthropic-version", "2023-06-01")];

fn ask(proxy: &Proxy<'_>, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    request(proxy.address(), method, path, headers, "")
}

#[track_caller]
fn check_openai(model: &Value, id: &str) {
    assert_eq!((&model["id"], &model["object"]), (&id.into(), &"model".into()));
    assert!(model["created"].as_u64().is_some_and(|at| at > 1_700_000_000), "{model}");
    assert!(model["owned_by"].is_string(), "{model}");
}

#[track_caller]
fn check_anthropic(model: &Value, id: &str) {
    assert_eq!((&model["id"], &model["type"]), (&id.into(), &"model".into()));
    assert_eq!(model["display_name"], id);
    assert!(humantime::parse_rfc3339(model["created_at"].as_str().unwrap()).is_ok());
    // Unknown is null; missing would fail a typed client.
    for limit in ["max_input_tokens", "max_tokens"] {
        assert!(model.as_object().unwrap().get(limit).is_some_and(Value::is_null), "{model}");
    }
}

#[test]
fn a_model_is_retrieved_as_it_is_listed_in_the_callers_shape() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin).models("qwen3.7-plus,vendor/deep-v3.2,a:b@c+d").start();
    let list = get(&proxy, "/v1/models").json()["data"].clone();
    let theirs = ask(&proxy, "GET", "/v1/models?limit=20", &ANTHROPIC).json()["data"].clone();
    for (place, id) in ["qwen3.7-plus", "vendor/deep-v3.2", "a:b@c+d"].into_iter().enumerate() {
        let path = format!("/v1/models/{id}");
        let model = get(&proxy, &path).json();
        check_openai(&model, id);
        assert_eq!(model, list[place]);
        let model = ask(&proxy, "GET", &path, &ANTHROPIC).json();
        check_anthropic(&model, id);
        assert_eq!(model, theirs[place]);
    }
    assert_eq!(standin.call_count(), 0);
}

#[test]
fn a_model_is_found_by_its_encoded_name_too() {
    // The SDKs encode what they put into a path: the slash of `vendor/model` becomes %2F.
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin).models("vendor/deep-v3.2,a:b@c+d").start();
    for (name, id) in [
        ("vendor%2Fdeep-v3.2", "vendor/deep-v3.2"),
        ("vendor%2fdeep%2Dv3.2", "vendor/deep-v3.2"),
        ("a%3Ab%40c%2Bd", "a:b@c+d"),
    ] {
        let answer = get(&proxy, &format!("/v1/models/{name}"));
        assert_eq!(answer.status, 200, "{name}: {answer:?}");
        check_openai(&answer.json(), id);
    }
    for name in ["vendor%2", "vendor%zz", "vendor%252Fdeep-v3.2", "%00", "%ff"] {
        assert_eq!(get(&proxy, &format!("/v1/models/{name}")).status, 404, "{name}");
    }
}

#[test]
fn dashscopes_own_prefixes_have_the_list_too() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let list = get(&proxy, "/compatible-mode/v1/models").json();
    assert_eq!(list, get(&proxy, "/v1/models").json());
    let list = get(&proxy, "/apps/anthropic/v1/models").json();
    assert_eq!(list, ask(&proxy, "GET", "/v1/models", &ANTHROPIC).json());
    check_openai(&get(&proxy, "/compatible-mode/v1/models/m2").json(), "m2");
    check_anthropic(&get(&proxy, "/apps/anthropic/v1/models/m2").json(), "m2");
}

#[test]
fn a_model_that_the_pool_has_not_is_404_in_the_callers_words() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    for name in ["m4", "M1", "m1x", "vendor/m1"] {
        let path = format!("/v1/models/{name}");
        let answer = get(&proxy, &path);
        assert_eq!(answer.status, 404, "{answer:?}");
        assert!(openai_message(&answer).contains(name), "{answer:?}");
        assert_eq!(answer.json()["error"]["code"], "model_not_found");
        let answer = ask(&proxy, "GET", &path, &ANTHROPIC);
        assert_eq!(answer.status, 404, "{answer:?}");
        assert!(anthropic_message(&answer).contains(name), "{answer:?}");
        assert_eq!(anthropic_type(&answer), "not_found_error");
    }
}

#[test]
fn head_of_a_model_has_no_body_and_a_model_takes_nothing_but_reading() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    for (path, status) in [("/v1/models", 200), ("/v1/models/m1", 200), ("/v1/models/m9", 404)] {
        let answer = ask(&proxy, "HEAD", path, &[AUTH]);
        assert_eq!((answer.status, answer.body.len()), (status, 0), "{path}: {answer:?}");
        assert_eq!(ask(&proxy, "GET", path, &[]).status, 401, "{path}");
        for method in ["POST", "DELETE"] {
            assert_eq!(ask(&proxy, method, path, &[AUTH]).status, 405, "{method} {path}");
        }
    }
}
