//! Refusals that are about an account or a model, and refusals in a stream that began with 200:
//! where each sends the request, and who backs off.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]

use dashscope_proxy::standin::{End, Part, Refusal, Reply, StandIn, Told};

use crate::envelope::{CHAT, MESSAGES};
use crate::failover::{BODY, STREAMED, attempts, error, lines, served_by, shown};
use crate::harness::{LIMIT, Proxy, get, key_hash, post, record, request};

const GENERATION: &str = "/api/v1/services/aigc/text-generation/generation";
const RESPONSES: &str = "/v1/responses";

/// A pool of eighteen models, as Alibaba's plans have them.
fn many() -> String {
    (1..=18).map(|model| format!("m{model}")).collect::<Vec<_>>().join(",")
}

#[test]
fn a_plans_used_up_quota_benches_the_key_for_an_hour_and_other_keys_serve() {
    for refusal in [Refusal::PlanWeek, Refusal::TokenPlan] {
        for told in [Told::Answer, Told::DataLines, Told::FirstEvent] {
            let standin = StandIn::start().unwrap();
            standin.reply("k1", "*", Reply::Refused(refusal, told));
            let proxy = Proxy::start(&standin);
            for (path, calls) in [(CHAT, "2"), (MESSAGES, "1"), (GENERATION, "1")] {
                let answer = post(&proxy, path, r#"{"model":"m1","stream":true}"#);
                assert_eq!((answer.status, attempts(&answer)), (200, Some(calls)), "{answer:?}");
                assert_eq!(served_by(&answer), shown("k2", "m1"), "{refusal:?} {told:?}");
            }
            let benches = lines(&proxy, "bench");
            assert_eq!(benches.len(), 1, "{benches:#?}");
            let who =
                format!("who={} verdict=throttled for_s=3600 status=429", &key_hash("k1")[..12]);
            assert!(benches[0].contains(&who), "{benches:#?}");
        }
    }
}

#[test]
fn with_every_plan_used_up_each_key_is_asked_once_and_the_client_is_told() {
    let standin = StandIn::start().unwrap();
    standin.reply("*", "*", Reply::Refused(Refusal::PlanWeek, Told::Answer));
    let proxy = Proxy::start(&standin);
    let answer = post(&proxy, CHAT, BODY);
    assert_eq!((answer.status, attempts(&answer)), (429, Some("2")));
    assert_eq!(standin.slots(), ["k1/m1", "k2/m1"]);
}

#[test]
fn too_many_requests_of_a_plan_at_once_are_an_ordinary_throttle() {
    let standin = StandIn::start().unwrap();
    standin.reply_once("k1", "m1", Reply::Refused(Refusal::Concurrency, Told::Answer));
    let proxy = Proxy::start(&standin);
    assert_eq!(served_by(&post(&proxy, CHAT, BODY)), shown("k1", "m2"));
    assert!(lines(&proxy, "bench")[0].contains(":m1 verdict=throttled for_s=30 "));
}

#[test]
fn an_account_without_any_model_costs_two_calls_and_then_rests() {
    let standin = StandIn::start().unwrap();
    standin.reply("k1", "*", Reply::Refused(Refusal::Unpurchased, Told::Answer));
    let proxy = Proxy::builder(&standin).models(&many()).start();
    for calls in ["2", "2", "1", "1"] {
        let answer = post(&proxy, CHAT, BODY);
        assert_eq!((answer.status, attempts(&answer)), (200, Some(calls)), "{answer:?}");
        assert_eq!(served_by(&answer), shown("k2", "m1"));
    }
    assert_eq!(standin.slots(), ["k1/m1", "k2/m1", "k1/m2", "k2/m1", "k2/m1", "k2/m1"]);
    let label = &key_hash("k1")[..12];
    let benches = lines(&proxy, "bench");
    let who: Vec<&str> = benches
        .iter()
        .map(|line| line.split_once("who=").unwrap().1.split(' ').next().unwrap())
        .collect();
    assert_eq!(who, [&*format!("{label}:m1"), &*format!("{label}:m2"), label]);
    assert!(benches[2].contains("verdict=model_denied for_s=600 status=403"), "{benches:#?}");
    let state = proxy.final_state();
    assert_eq!(state["runtimeState"]["key_cursor"]["value"], "0", "a backoff moves no cursor");
}

#[test]
fn a_model_that_two_keys_have_refused_is_left_for_another() {
    for reply in [
        Reply::Refused(Refusal::Unpurchased, Told::Answer),
        error(404, "model_not_found", "The model does not exist."),
    ] {
        let standin = StandIn::start().unwrap();
        standin.reply("*", "m1", reply);
        let proxy = Proxy::builder(&standin).keys("k1,k2,k3").start();
        let answer = post(&proxy, CHAT, BODY);
        assert_eq!(served_by(&answer), shown("k3", "m2"), "{answer:?}");
        assert_eq!(standin.slots(), ["k1/m1", "k2/m1", "k3/m2"]);
        // That model is not to be had on any of two keys; they themselves are fine.
        assert_eq!(served_by(&post(&proxy, CHAT, BODY)), shown("k1", "m2"));
    }
}

#[test]
fn with_one_key_its_other_models_are_asked() {
    let standin = StandIn::start().unwrap();
    standin.reply("*", "m1", Reply::Refused(Refusal::Unpurchased, Told::Answer));
    standin.reply("*", "m2", Reply::Refused(Refusal::Unpurchased, Told::FirstEvent));
    let proxy = Proxy::builder(&standin).keys("k1").start();
    let answer = post(&proxy, CHAT, STREAMED);
    assert_eq!((served_by(&answer), attempts(&answer)), (shown("k1", "m3"), Some("3")));
    assert_eq!(attempts(&post(&proxy, CHAT, STREAMED)), Some("1"));
}

/// Where a request goes on after the first slot, and whose backoff is told.
fn expected(refusal: Refusal) -> (Option<&'static str>, &'static str) {
    match refusal {
        Refusal::Inspection => (None, ""),
        Refusal::Internal => (Some("k1/m2"), ""),
        Refusal::Requests | Refusal::Concurrency => {
            (Some("k1/m2"), ":m1 verdict=throttled for_s=30")
        }
        Refusal::FreeAllocation => (Some("k1/m2"), ":m1 verdict=throttled for_s=600"),
        Refusal::Capacity => (Some("k1/m2"), ":m1 verdict=unavailable for_s=1"),
        Refusal::Unpurchased => (Some("k2/m1"), ":m1 verdict=model_denied for_s=600"),
        Refusal::PlanWeek | Refusal::TokenPlan => (Some("k2/m1"), " verdict=throttled for_s=3600"),
        Refusal::Arrears => (Some("k2/m1"), " verdict=account_blocked for_s=600"),
        Refusal::Key => (Some("k2/m1"), " verdict=key_rejected for_s=600"),
    }
}

#[test]
fn an_error_in_the_first_event_that_tells_anything_is_judged_like_an_answer() {
    for (path, told) in [
        (CHAT, Told::FirstEvent),
        (CHAT, Told::BehindKeepAlives),
        (MESSAGES, Told::FirstEvent),
        (MESSAGES, Told::BehindKeepAlives),
        (GENERATION, Told::FirstEvent),
        (GENERATION, Told::BehindKeepAlives),
        (RESPONSES, Told::ResponseFailed),
        (RESPONSES, Told::Answer),
    ] {
        let standin = StandIn::start().unwrap();
        for refusal in Refusal::ALL {
            let proxy = Proxy::start(&standin);
            let before = standin.call_count();
            standin.reply_once("k1", "m1", Reply::Refused(refusal, told));
            let answer = post(&proxy, path, r#"{"model":"m1","stream":true}"#);
            let case = format!("{path} {told:?} {refusal:?}: {answer:?}");
            let (next, bench) = expected(refusal);
            let slots: Vec<_> = std::iter::once("k1/m1").chain(next).collect();
            assert_eq!(standin.slots()[before..], slots, "{case}");
            match next {
                Some(_) => assert!(answer.text().contains("answer"), "{case}"),
                None => assert!(answer.text().contains("inappropriate content"), "{case}"),
            }
            let benches = lines(&proxy, "bench");
            assert_eq!(benches.len(), usize::from(!bench.is_empty()), "{case} {benches:#?}");
            assert!(benches.iter().all(|line| line.contains(bench)), "{case} {benches:#?}");
            let state = proxy.final_state();
            // An error is no use of the slot.
            assert!(record(&state, "k1", "m1")["lastUsedAt"].is_null(), "{case}");
        }
    }
}

#[test]
fn of_errors_in_streams_the_most_hopeful_is_handed_on_byte_for_byte() {
    let standin = StandIn::start().unwrap();
    let event = |json: &str, rest: &str| {
        let parts = vec![Part::now(format!("event: error\ndata:  {json}\n\n")), Part::now(rest)];
        Reply::sse(parts, End::Clean)
    };
    let throttled = r#"{"error":{"type":"rate_limit_error","message":"é"}}"#;
    standin.reply("k1", "m1", event(throttled, "data: [DONE]\n\n"));
    standin.reply("k1", "m2", event(r#"{"code":"AccessDenied.Unpurchased"}"#, ""));
    standin.reply("k2", "*", event(r#"{"code":"Arrearage","message":"x"}"#, ""));
    let proxy = Proxy::start(&standin);
    let answer = post(&proxy, CHAT, STREAMED);
    assert_eq!((answer.status, attempts(&answer)), (200, Some("3")));
    assert_eq!(answer.text(), format!("event: error\ndata:  {throttled}\n\ndata: [DONE]\n\n"));
    assert_eq!(served_by(&answer), shown("k1", "m1"));
    assert_eq!(standin.slots(), ["k1/m1", "k1/m2", "k2/m1"]);

    // A key of ours that is not accepted is not the client's.
    let standin = StandIn::start().unwrap();
    standin.reply("*", "*", event(r#"{"code":"InvalidApiKey","message":"x"}"#, ""));
    let proxy = Proxy::start(&standin);
    let answer = post(&proxy, CHAT, STREAMED);
    assert_eq!((answer.status, standin.call_count()), (502, 2), "{answer:?}");
}

#[test]
fn what_models_say_of_errors_is_an_answer_wherever_it_stands_in_a_stream() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let talk = r#"{\"error\":{\"code\":\"AllocationQuota.FreeTierOnly\",\"message\":\"The free tier has been exhausted.\"}}\n\nevent:error\ndata:{\"code\":\"InvalidApiKey\"}"#;
    let frames = [
        format!(
            "data: {{\"choices\":[{{\"delta\":{{\"content\":\"{talk}\"}}}}],\"error\":null}}\n\n"
        ),
        format!(
            "id:1\nevent:result\n:HTTP_STATUS/200\ndata:{{\"output\":{{\"text\":\"{talk}\"}},\"code\":\"\"}}\n\n"
        ),
        format!(
            "event:content_block_delta\ndata:{{\"type\":\"content_block_delta\",\"delta\":{{\"text\":\"{talk}\"}}}}\n\n"
        ),
        format!("data:{{\"type\":\"response.output_text.delta\",\"delta\":\"{talk}\"}}\n\n"),
    ];
    for step in [usize::MAX, 7] {
        for frame in &frames {
            let stream = frame.repeat(3);
            let parts = stream.as_bytes().chunks(step).map(Part::now).collect();
            standin.reply("*", "*", Reply::sse(parts, End::Clean));
            let answer = post(&proxy, CHAT, STREAMED);
            assert_eq!((answer.text(), attempts(&answer)), (stream, Some("1")));
        }
    }
    assert!(standin.slots().iter().all(|slot| slot == "k1/m1"));
    assert!(lines(&proxy, "bench").is_empty() && lines(&proxy, "cooldown").is_empty());
}

#[test]
fn the_words_below_responses_get_their_model_from_the_pool_and_others_are_identifiers() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    for prefix in ["", "/compatible-mode"] {
        let path = format!("{prefix}/v1/responses/compact");
        let answer = post(&proxy, &path, r#"{"model":"gpt-5","input":"x"}"#);
        assert_eq!((answer.status, served_by(&answer)), (200, shown("k1", "m1")), "{answer:?}");
        let call = standin.calls().pop().unwrap();
        assert_eq!(call.target, "/compatible-mode/v1/responses/compact");
        assert_eq!(call.model.as_deref(), Some("m1"));
    }
    standin.set_quota("k1", "m1", 0);
    let answer = post(&proxy, "/v1/responses/compact", r#"{"model":"gpt-5","input":"x"}"#);
    assert_eq!((served_by(&answer), attempts(&answer)), (shown("k1", "m2"), Some("2")));
    assert_eq!(get(&proxy, "/v1/responses/compact").status, 405);
    assert_eq!(get(&proxy, "/v1/responses/resp_1").status, 404);
    assert_eq!(standin.calls().pop().unwrap().target, "/compatible-mode/v1/responses/resp_1");
}

#[test]
fn input_tokens_counts_as_messages_do_and_stamps_nothing() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let before = proxy.state();
    let ask = || post(&proxy, "/v1/responses/input_tokens", r#"{"model":"gpt-5","input":"hi"}"#);
    let told = ask();
    assert_eq!((told.status, served_by(&told)), (200, shown("k1", "m1")), "{told:?}");
    assert_eq!(standin.calls().pop().unwrap().model.as_deref(), Some("m1"));
    standin.reply("*", "*", error(404, "NotFound", "no such path"));
    let guessed = ask();
    for answer in [told, guessed] {
        let json = answer.json();
        assert_eq!(json["object"], "response.input_tokens");
        assert!((1..100).contains(&json["input_tokens"].as_u64().unwrap()), "{json}");
    }
    assert_eq!(standin.call_count(), 2);
    assert!(proxy.wait_log(" request id=2 ", LIMIT));
    assert_eq!(proxy.final_state(), before);
}

#[test]
fn a_response_is_pinned_though_its_first_events_carry_nothing_else() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    standin.reply_once("k1", "*", Reply::Refused(Refusal::Key, Told::Answer));
    let answer = post(&proxy, RESPONSES, r#"{"input":"hi","stream":true}"#);
    assert_eq!(served_by(&answer), shown("k2", "m1"));
    let text = answer.text();
    let id = text.split_once("\"id\":\"resp_").unwrap().1.split('"').next().unwrap();
    let path = format!("{RESPONSES}/resp_{id}");
    let read = request(proxy.address(), "GET", &path, &[crate::harness::AUTH], "");
    assert_eq!((read.status, standin.calls().pop().unwrap().key.as_deref()), (200, Some("k2")));
}
