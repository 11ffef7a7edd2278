//! What each answer of DashScope does to a request: where it goes on, how often, and what its
//! client gets when nothing helped. Who rests afterwards is in `benches`.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]

use std::sync::atomic::{AtomicUsize, Ordering};

use dashscope_proxy::standin::{Framing, Reply, Shape, StandIn};
use serde_json::Value;

use crate::envelope::{CHAT, MESSAGES, message_on};
use crate::harness::{AUTH, Answer, LIMIT, Proxy, get, key_hash, post};

pub(crate) const BODY: &str = r#"{"model":"any","messages":[{"role":"user","content":"hi"}]}"#;
pub(crate) const STREAMED: &str =
    r#"{"model":"any","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;

/// Upstream's id of a scripted error.
pub(crate) const REQUEST_ID: &str = "6f0c2a1e-0000-4000-8000-00000000abcd";

/// An error of DashScope in the flat envelope, with its request id and these headers.
pub(crate) fn error_with(
    status: u16,
    code: &str,
    message: &str,
    headers: &[(&str, &str)],
) -> Reply {
    let body = format!(r#"{{"code":"{code}","message":"{message}","request_id":"{REQUEST_ID}"}}"#);
    let fixed = [("content-type", "application/json"), ("x-request-id", REQUEST_ID)];
    let headers = fixed.iter().chain(headers);
    let headers = headers.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Reply::Answer { status, headers, body: body.into_bytes(), framing: Framing::Length }
}

pub(crate) fn error(status: u16, code: &str, message: &str) -> Reply {
    error_with(status, code, message, &[])
}

pub(crate) fn throttled() -> Reply {
    error(429, "Throttling.RateQuota", "Requests rate limit exceeded, please try again later.")
}

pub(crate) fn unavailable() -> Reply {
    error(503, "ModelUnavailable", "Model is unavailable, please try again later.")
}

pub(crate) fn rejected() -> Reply {
    error(401, "InvalidApiKey", "Invalid API-key provided.")
}

pub(crate) fn arrears() -> Reply {
    error(400, "Arrearage", "Access denied, please make sure your account is in good standing.")
}

pub(crate) fn denied() -> Reply {
    error(403, "AccessDenied.Unpurchased", "Access to model denied.")
}

pub(crate) fn exhausted() -> Reply {
    Reply::Exhausted(Shape::Nested)
}

pub(crate) fn attempts(answer: &Answer) -> Option<&str> {
    answer.header("x-proxy-attempts")
}

/// `key label:model` of whoever answered.
pub(crate) fn served_by(answer: &Answer) -> String {
    let header = |name| answer.header(name).unwrap_or("-");
    format!("{}:{}", header("x-proxy-key-hash"), header("x-proxy-model"))
}

pub(crate) fn shown(key: &str, model: &str) -> String {
    format!("{}:{model}", &key_hash(key)[..12])
}

/// The lines of the log about this event, of everything that was answered so far: the log comes
/// through a pipe, so something of its own is put behind it and waited for.
#[track_caller]
pub(crate) fn lines(proxy: &Proxy<'_>, event: &str) -> Vec<String> {
    static MARKS: AtomicUsize = AtomicUsize::new(0);
    let mark = format!("/mark-{}-", MARKS.fetch_add(1, Ordering::Relaxed));
    assert_eq!(get(proxy, &mark).status, 404);
    assert!(proxy.wait_log(&mark, LIMIT), "the log stands still");
    let event = format!(" {event} ");
    proxy.log().lines().filter(|line| line.contains(&event)).map(str::to_owned).collect()
}

/// What may not change when nothing is learned that lasts.
pub(crate) fn state_text(proxy: &Proxy<'_>) -> String {
    std::fs::read_to_string(proxy.state_path()).expect("a state file")
}

#[test]
fn a_key_that_is_rejected_or_in_arrears_costs_one_call_and_the_next_key_serves() {
    let plan = error(403, "x", "invalid api-key");
    let unpaid = error(429, "PrepaidBillOverdue", "The prepaid bill is overdue.");
    for reply in [rejected(), arrears(), plan, unpaid] {
        let standin = StandIn::start().unwrap();
        standin.reply("k1", "*", reply.clone());
        let proxy = Proxy::start(&standin);
        let answer = post(&proxy, CHAT, BODY);
        assert_eq!((answer.status, attempts(&answer)), (200, Some("2")), "{reply:?}");
        assert_eq!(served_by(&answer), shown("k2", "m1"));
        // From now on it rests, for both protocols.
        for path in [MESSAGES, CHAT] {
            assert_eq!(attempts(&post(&proxy, path, STREAMED)), Some("1"), "{reply:?}");
        }
        assert_eq!(standin.slots(), ["k1/m1", "k2/m1", "k2/m1", "k2/m1"], "{reply:?}");
        let state = proxy.final_state();
        assert_eq!(state["runtimeState"]["key_cursor"]["value"], "0", "a bench moves no cursor");
    }
}

#[test]
fn a_model_that_is_denied_hands_over_to_another_key_on_its_own_protocol_only() {
    let unknown = error(404, "model_not_found", "The model does not exist.");
    let missing = error(400, "InvalidParameter", "Model not exist.");
    for reply in [denied(), unknown, missing] {
        let standin = StandIn::start().unwrap();
        standin.reply_once("k1", "m1", reply.clone());
        let proxy = Proxy::start(&standin);
        let answer = post(&proxy, CHAT, BODY);
        assert_eq!((answer.status, attempts(&answer)), (200, Some("2")), "{reply:?}");
        assert_eq!(served_by(&answer), shown("k2", "m1"));
        assert_eq!(served_by(&post(&proxy, CHAT, BODY)), shown("k1", "m2"));
        assert_eq!(served_by(&post(&proxy, MESSAGES, BODY)), shown("k1", "m1"));
    }
}

#[test]
fn models_that_only_stream_cost_no_budget_and_are_avoided_where_nothing_streams() {
    let standin = StandIn::start().unwrap();
    let message = "This model only support stream mode, please enable the stream parameter to access the model. ";
    for model in ["m1", "m2", "m3", "m4"] {
        standin.reply_once("*", model, error(400, "invalid_parameter_error", message));
    }
    let proxy = Proxy::builder(&standin).models("m1,m2,m3,m4,m5").start();
    let answer = post(&proxy, CHAT, BODY);
    assert_eq!((answer.status, attempts(&answer)), (200, Some("5")), "{answer:?}");
    let answer = post(&proxy, CHAT, BODY);
    assert_eq!((served_by(&answer), attempts(&answer)), (shown("k1", "m5"), Some("1")));
    // They stream, so streams go there, and take nobody else along.
    let answer = post(&proxy, CHAT, STREAMED);
    assert_eq!((served_by(&answer), attempts(&answer)), (shown("k1", "m1"), Some("1")));
    // Nothing was said of another path.
    assert_eq!(served_by(&post(&proxy, MESSAGES, BODY)), shown("k1", "m1"));
    assert!(lines(&proxy, "bench").is_empty());
    let state = proxy.final_state();
    let cursor = format!("model_cursor:{}", key_hash("k1"));
    assert_eq!(state["runtimeState"][cursor]["value"], "0");
}

#[test]
fn where_every_model_only_streams_the_client_is_told_so() {
    let standin = StandIn::start().unwrap();
    let message = "current user api does not support http call";
    standin.reply("*", "*", error(400, "InvalidParameter", message));
    let proxy = Proxy::start(&standin);
    let answer = post(&proxy, CHAT, BODY);
    assert_eq!((answer.status, attempts(&answer)), (400, Some("3")), "one call for each model");
    assert!(answer.text().contains(message), "{answer:?}");
    let answer = post(&proxy, CHAT, BODY);
    assert_eq!((answer.status, attempts(&answer)), (400, Some("1")), "it is known already");
}

#[test]
fn two_further_slots_are_tried_and_exhaustion_does_not_count() {
    let standin = StandIn::start().unwrap();
    standin.reply("*", "*", throttled());
    let proxy = Proxy::start(&standin);
    let answer = post(&proxy, CHAT, BODY);
    assert_eq!((answer.status, attempts(&answer)), (429, Some("3")));
    assert_eq!(standin.slots(), ["k1/m1", "k1/m2", "k1/m3"]);

    let standin = StandIn::start().unwrap();
    standin.reply("*", "*", throttled());
    for (key, model) in [("k1", "m1"), ("k1", "m3"), ("k2", "m2")] {
        standin.reply(key, model, exhausted());
    }
    let proxy = Proxy::start(&standin);
    let answer = post(&proxy, CHAT, BODY);
    assert_eq!((answer.status, attempts(&answer)), (429, Some("6")));
    let walk = ["k1/m1", "k1/m2", "k1/m3", "k2/m1", "k2/m2", "k2/m3"];
    assert_eq!(standin.slots(), walk);
}

#[test]
fn different_failures_share_one_budget() {
    let standin = StandIn::start().unwrap();
    standin.reply("k1", "*", rejected());
    standin.reply("k2", "m1", unavailable());
    standin.reply("k2", "m2", denied());
    let proxy = Proxy::start(&standin);
    let answer = post(&proxy, CHAT, BODY);
    assert_eq!((answer.status, attempts(&answer)), (503, Some("3")));
    assert_eq!(standin.slots(), ["k1/m1", "k2/m1", "k2/m2"]);
}

#[test]
fn an_internal_error_is_tried_once_more_and_benches_nobody() {
    let standin = StandIn::start().unwrap();
    let first = error(500, "InternalError.Algo", "list index out of range");
    let second = error(500, "internal_server_error", "<500> InternalError.Algo: again");
    standin.reply("k1", "m1", first);
    standin.reply("*", "*", second);
    let proxy = Proxy::start(&standin);
    for round in 1..=3 {
        let answer = post(&proxy, CHAT, BODY);
        assert_eq!((answer.status, attempts(&answer)), (500, Some("2")));
        assert!(answer.text().contains("again"), "the last one is handed on: {answer:?}");
        assert_eq!(standin.slots().len(), 2 * round);
        assert_eq!(standin.slots()[2 * round - 2..], ["k1/m1", "k1/m2"]);
    }
    assert!(lines(&proxy, "bench").is_empty());
}

/// What three slots answer, by name, and which of them the client gets.
#[test]
fn the_client_gets_the_most_hopeful_answer_else_the_last_byte_for_byte() {
    let named = |name: &str| match name {
        "denied" => (403, "Model.AccessDenied", "Model access denied."),
        "missing" => (404, "ModelNotFound", "Model can not be found."),
        "throttled" => (429, "Throttling", "Requests throttling triggered."),
        "unavailable" => (503, "ModelUnavailable", "Model is unavailable."),
        _ => panic!("{name}"),
    };
    for (walk, served) in [
        (["throttled", "denied", "missing"], 0),
        (["denied", "unavailable", "missing"], 1),
        (["throttled", "unavailable", "denied"], 1),
        (["unavailable", "throttled", "denied"], 1),
        (["denied", "missing", "denied"], 2),
        (["missing", "denied", "missing"], 2),
    ] {
        let standin = StandIn::start().unwrap();
        let mut bodies = Vec::new();
        for (name, model) in walk.iter().zip(["m1", "m2", "m3"]) {
            let (status, code, message) = named(name);
            // Odd spacing, and more than is looked at where the status alone decides, so that
            // nothing short of all of its bytes will do.
            let padding = "é ".repeat(if status < 429 { 15_000 } else { 70_000 });
            let body = format!(
                " {{ \"message\" :\"{message}\", \"code\":\"{code}\",\"{model}\":\"{padding}\"}}\n"
            );
            let headers = [
                ("content-type", "application/json;charset=UTF-8"),
                ("x-request-id", model),
                ("x-odd", name),
                ("retry-after", "7"),
            ];
            let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
            bodies.push((status, body.clone()));
            standin.reply(
                "*",
                model,
                Reply::Answer {
                    status,
                    headers: headers.to_vec(),
                    body: body.into_bytes(),
                    framing: Framing::Chunked,
                },
            );
        }
        let proxy = Proxy::builder(&standin).keys("k1").start();
        let answer = post(&proxy, CHAT, BODY);
        let model = ["m1", "m2", "m3"][served];
        let (status, body) = &bodies[served];
        assert_eq!(answer.status, *status, "{walk:?}");
        assert!(answer.text() == *body, "{walk:?}: not the body of {model}");
        assert_eq!(answer.header("x-request-id"), Some(model), "{walk:?}");
        assert_eq!(answer.header("retry-after"), Some("7"), "{walk:?}");
        assert_eq!(answer.header("x-odd"), Some(walk[served]));
        assert_eq!(served_by(&answer), shown("k1", model), "{walk:?}");
        assert_eq!(attempts(&answer), Some("3"), "{walk:?}");
    }
}

#[test]
fn an_exhaustion_is_never_handed_on_while_there_is_another_answer() {
    for other in [throttled(), denied()] {
        let standin = StandIn::start().unwrap();
        standin.reply("*", "*", exhausted());
        standin.reply("k1", "m2", other.clone());
        let proxy = Proxy::start(&standin);
        for path in [CHAT, MESSAGES] {
            let answer = post(&proxy, path, BODY);
            assert!([429, 403].contains(&answer.status), "{answer:?}");
            assert!(answer.text().contains(REQUEST_ID), "{other:?}: {answer:?}");
            assert!(!answer.text().contains("FreeTierOnly"), "{answer:?}");
            assert_eq!(served_by(&answer), shown("k1", "m2"));
        }
        assert_eq!(standin.call_count(), 7, "{other:?}");
    }
}

#[test]
fn a_rejected_key_that_survives_is_502_with_its_label_in_the_callers_words() {
    const KEY: &str = "sk-alpha-0123456789abcdef";
    let standin = StandIn::start().unwrap();
    standin.reply("*", "*", rejected());
    let proxy = Proxy::builder(&standin).keys(KEY).start();
    for path in [CHAT, MESSAGES] {
        let answer = post(&proxy, path, BODY);
        assert_eq!(answer.status, 502, "{answer:?}");
        let message = message_on(path, &answer);
        assert!(message.contains(&key_hash(KEY)[..12]), "{message}");
        assert!(!format!("{answer:?}").contains(KEY));
        if path == CHAT {
            assert_eq!(answer.json()["error"]["code"], "upstream_key_rejected");
        } else {
            assert_eq!(answer.json()["error"]["type"], "api_error");
        }
    }
    assert_eq!(standin.call_count(), 2, "one call on the key for each request");
    let native = post(&proxy, "/api/v1/services/aigc/x/y", r#"{"model":"m1"}"#).json();
    assert_eq!(native["code"], "upstream_key_rejected", "{native}");
    assert!(native["message"].as_str().unwrap().contains(&key_hash(KEY)[..12]), "{native}");
}

#[test]
fn of_several_rejected_keys_the_last_is_named_and_anything_hopeful_goes_before() {
    let standin = StandIn::start().unwrap();
    standin.reply("*", "*", rejected());
    let proxy = Proxy::start(&standin);
    let answer = post(&proxy, CHAT, BODY);
    assert_eq!(answer.status, 502);
    assert!(message_on(CHAT, &answer).contains(&key_hash("k2")[..12]), "{answer:?}");
    assert_eq!(standin.slots(), ["k1/m1", "k2/m1"]);
    drop(proxy);

    let standin = StandIn::start().unwrap();
    standin.reply("k1", "m1", throttled());
    standin.reply("*", "*", rejected());
    let proxy = Proxy::start(&standin);
    let answer = post(&proxy, CHAT, BODY);
    assert_eq!((answer.status, served_by(&answer)), (429, shown("k1", "m1")));
    assert_eq!(standin.slots(), ["k1/m1", "k1/m2", "k2/m1"]);
}

#[test]
fn fifty_of_each_of_a_callers_mistakes_make_one_call_each_and_leave_the_status_as_it_is() {
    let page = || Reply::body(403, "text/html", "<html>blocked by the firewall</html>");
    let mistakes = [
        // The bodies name no number of tokens.
        error(400, "InvalidParameter", "Range of max_tokens should be [1, 8192]"),
        error(400, "DataInspectionFailed", "Input data may contain inappropriate content."),
        error(403, "AccessDenied", "current user api does not support asynchronous calls."),
        error(404, "NotFound", "no such path"),
        error(413, "RequestTooLarge", "too large"),
        error(422, "Unprocessable", "no"),
        page(),
    ];
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    // A success and an exhaustion before it, so that there is something to be changed.
    standin.reply_once("k1", "m1", exhausted());
    assert_eq!(post(&proxy, CHAT, BODY).status, 200);
    assert!(proxy.wait_log(" request id=1 ", LIMIT));
    let (status, state) = (proxy.pool(), state_text(&proxy));
    let mut calls = standin.call_count();
    for mistake in mistakes {
        standin.reply("*", "*", mistake.clone());
        let mut client = proxy.connect();
        for round in 0..50 {
            let path = [CHAT, MESSAGES][round % 2];
            client.send("POST", path, &[AUTH], [BODY, STREAMED][round / 2 % 2].as_bytes());
            let answer = client.read_answer().unwrap();
            assert!((400..=422).contains(&answer.status), "{answer:?}");
            assert_eq!(attempts(&answer), Some("1"), "{answer:?}");
        }
        calls += 50;
        assert_eq!(standin.call_count(), calls, "{mistake:?}");
        assert_eq!(proxy.pool(), status, "{mistake:?}");
    }
    assert_eq!(state_text(&proxy), state);
    assert!(lines(&proxy, "bench").is_empty() && lines(&proxy, "rotate").len() == 1);
    standin.clear();
    assert_eq!(served_by(&post(&proxy, CHAT, BODY)), shown("k1", "m2"));
}

#[test]
fn a_network_failure_walks_nowhere_and_benches_nobody() {
    for reply in [Reply::ResetBeforeHead, Reply::CloseBeforeHead] {
        let standin = StandIn::start().unwrap();
        standin.reply_once("*", "*", reply);
        let proxy = Proxy::start(&standin);
        let answer = post(&proxy, CHAT, BODY);
        assert_eq!(answer.status, 502, "{answer:?}");
        assert_eq!(standin.slots(), ["k1/m1"]);
        assert_eq!(served_by(&post(&proxy, CHAT, BODY)), shown("k1", "m1"));
        assert!(lines(&proxy, "bench").is_empty() && lines(&proxy, "rotate").is_empty());
    }
}

#[test]
fn a_network_failure_on_the_way_ends_the_walk_with_what_there_is() {
    let standin = StandIn::start().unwrap();
    standin.reply("k1", "m1", throttled());
    standin.reply("k1", "m2", Reply::ResetBeforeHead);
    let proxy = Proxy::start(&standin);
    let answer = post(&proxy, CHAT, BODY);
    assert_eq!((answer.status, served_by(&answer)), (429, shown("k1", "m1")));
    assert!(standin.slots().iter().all(|slot| slot != "k1/m3"), "{:?}", standin.slots());
    // Every call is counted, also one that was repeated because its connection had died.
    assert_eq!(attempts(&answer), Some(&*standin.call_count().to_string()));
}

#[test]
fn every_call_upstream_is_counted_whatever_it_was_for() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    assert_eq!(attempts(&post(&proxy, CHAT, BODY)), Some("1"));
    assert!(proxy.wait_log(" request id=1 ", LIMIT));
    standin.reply_once("k1", "m1", Reply::CloseBeforeHead);
    standin.reply_once("k1", "m1", exhausted());
    standin.reply_once("k1", "m2", throttled());
    standin.reply_once("k1", "m3", rejected());
    let answer = post(&proxy, CHAT, BODY);
    let slots = ["k1/m1", "k1/m1", "k1/m2", "k1/m3", "k2/m1"];
    assert_eq!(standin.slots()[1..], slots);
    assert_eq!((answer.status, attempts(&answer)), (200, Some("5")));
    assert!(proxy.wait_log(" request id=2 ", LIMIT));
    assert!(lines(&proxy, "request")[1].contains(" attempts=5 "), "{}", proxy.log());
}

#[test]
fn the_log_says_from_where_to_where_why_and_upstreams_request_id() {
    let standin = StandIn::start().unwrap();
    standin.reply("k1", "m1", throttled());
    standin.reply("k1", "m2", rejected());
    standin.reply("k2", "m1", exhausted());
    let proxy = Proxy::start(&standin);
    assert_eq!(post(&proxy, CHAT, BODY).status, 200);
    let (one, two) = (&key_hash("k1")[..12], &key_hash("k2")[..12]);
    let wanted = [
        format!(
            "rotate id=1 from={one}:m1 to={one}:m2 verdict=throttled code=Throttling.RateQuota request_id={REQUEST_ID}"
        ),
        // The first answer is the better one to hand on; the line is about the second.
        format!(
            "rotate id=1 from={one}:m2 to={two}:m1 verdict=key_rejected code=InvalidApiKey request_id={REQUEST_ID}"
        ),
        format!(
            "rotate id=1 from={two}:m1 to={two}:m2 verdict=quota_exhausted code=AllocationQuota.FreeTierOnly request_id=00000000-"
        ),
    ];
    let rotations = lines(&proxy, "rotate");
    assert_eq!(rotations.len(), wanted.len(), "{rotations:#?}");
    for (line, wanted) in rotations.iter().zip(wanted) {
        assert!(line.replace('"', "").contains(&wanted), "{wanted}\n{rotations:#?}");
    }
    let wanted = [
        format!(
            "bench id=1 who={one}:m1 verdict=throttled for_s=30 status=429 code=Throttling.RateQuota request_id={REQUEST_ID}"
        ),
        format!(
            "bench id=1 who={one} verdict=key_rejected for_s=600 status=401 code=InvalidApiKey request_id={REQUEST_ID}"
        ),
    ];
    let benches = lines(&proxy, "bench");
    assert_eq!(benches.len(), wanted.len(), "{benches:#?}");
    for (line, wanted) in benches.iter().zip(wanted) {
        assert!(line.replace('"', "").contains(&wanted), "{wanted}\n{benches:#?}");
    }
}

#[test]
fn nothing_but_exhaustion_leaves_a_trace_in_the_state_file() {
    for reply in [throttled(), unavailable(), denied(), rejected(), arrears()] {
        let standin = StandIn::start().unwrap();
        standin.reply("*", "*", reply.clone());
        let proxy = Proxy::start(&standin);
        // How a slot stands may change for a while; what is counted and where requests start not.
        let kept = |proxy: &Proxy<'_>| {
            let pool = proxy.pool();
            let slots = pool["models"].as_array().unwrap().clone();
            let names =
                ["available", "cooldownUntil", "failureCount", "currentKey", "currentModel"];
            slots.iter().map(|slot| names.map(|name| slot[name].clone())).collect::<Vec<_>>()
        };
        let (state, status) = (state_text(&proxy), kept(&proxy));
        for path in [CHAT, MESSAGES] {
            assert!(post(&proxy, path, BODY).status >= 400);
        }
        assert!(!lines(&proxy, "bench").is_empty(), "{reply:?}");
        assert_eq!(state_text(&proxy), state, "{reply:?}");
        assert_eq!(kept(&proxy), status, "{reply:?}");
        assert_eq!(proxy.final_state(), serde_json::from_str::<Value>(&state).unwrap());
    }
}

#[test]
fn a_client_that_left_ends_the_walk() {
    let standin = StandIn::start().unwrap();
    let gate = standin.gate();
    let held = Reply::Held { gate: gate.clone(), then: Box::new(throttled()) };
    standin.reply("k1", "m1", held);
    let proxy = Proxy::start(&standin);
    let mut client = proxy.connect();
    client.send("POST", CHAT, &[AUTH], BODY.as_bytes());
    assert!(standin.wait_calls(1, LIMIT));
    drop(client);
    gate.open();
    assert!(proxy.wait_log(" request id=1 ", LIMIT));
    assert_eq!(standin.slots(), ["k1/m1"]);
    assert!(lines(&proxy, "request")[0].contains("end=client_left"), "{}", proxy.log());
}

#[test]
fn quota_only_hands_on_every_answer_but_an_exhaustion_and_learns_nothing() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin).env("FAILOVER", "quota-only").start();
    let state = state_text(&proxy);
    let only_streams = error(400, "x", "This model only support stream mode");
    let internal = error(500, "InternalError", "x");
    let replies =
        [rejected(), arrears(), denied(), throttled(), unavailable(), only_streams, internal];
    for (round, reply) in replies.into_iter().enumerate() {
        standin.reply("*", "*", reply.clone());
        let answer = post(&proxy, [CHAT, MESSAGES][round % 2], BODY);
        let Reply::Answer { status, body, .. } = reply else { unreachable!() };
        assert_eq!((answer.status, &answer.body), (status, &body));
        assert_eq!(attempts(&answer), Some("1"));
        assert_eq!(standin.slots()[round..], ["k1/m1"]);
    }
    assert_eq!(state_text(&proxy), state);
    assert!(lines(&proxy, "bench").is_empty() && lines(&proxy, "rotate").is_empty());
    standin.clear();
    standin.reply("k1", "m1", exhausted());
    let answer = post(&proxy, CHAT, BODY);
    assert_eq!((served_by(&answer), attempts(&answer)), (shown("k1", "m2"), Some("2")));
}
