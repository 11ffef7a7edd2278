//! `count_tokens`: upstream's number or an estimate, and never more than that.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]

use dashscope_proxy::standin::{Reply, Shape, StandIn};

use crate::envelope::{CHAT, anthropic_message};
use crate::harness::{AUTH, Answer, LIMIT, Proxy, get, post, request};

const COUNT: &str = "/v1/messages/count_tokens";
const QUESTION: &str =
    r#"{"model":"claude-opus","messages":[{"role":"user","content":"how many?"}]}"#;

#[track_caller]
fn tokens(answer: &Answer) -> u64 {
    assert_eq!(answer.status, 200, "{answer:?}");
    let body = answer.json();
    assert_eq!(body.as_object().unwrap().len(), 1, "{answer:?}");
    body["input_tokens"].as_u64().unwrap_or_else(|| panic!("{answer:?}"))
}

#[test]
fn upstreams_number_is_handed_on_and_nothing_is_stamped() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let before = proxy.state();
    for (path, body) in [
        (COUNT, r#"{"input_tokens":123456}"#),
        ("/v1/messages/count_tokens?beta=true", r#"{"input_tokens":123457}"#),
        ("/apps/anthropic/v1/messages/count_tokens", r#"{"input_tokens":123458}"#),
    ] {
        standin.reply("*", "*", Reply::json(200, body));
        let answer = post(&proxy, path, QUESTION);
        assert_eq!((answer.status, answer.text().as_str()), (200, body), "{path}");
        assert_eq!(answer.header("x-proxy-model"), Some("m1"));
        let call = standin.calls().pop().unwrap();
        let query = path.split_once('?').map_or(String::new(), |(_, query)| format!("?{query}"));
        assert_eq!(call.target, format!("/apps/anthropic/v1/messages/count_tokens{query}"));
        assert_eq!((call.key.as_deref(), call.model.as_deref()), (Some("k1"), Some("m1")));
    }
    assert_eq!(proxy.final_state(), before);
}

#[test]
fn whatever_upstream_says_but_a_number_is_estimated_after_one_call_that_teaches_nothing() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let before = proxy.state();
    let denied = r#"{"code":"AccessDenied.Unpurchased","message":"Access to model denied."}"#;
    let mut replies: Vec<_> =
        [301, 400, 401, 404, 429, 500, 503].map(|status| Reply::json(status, "{}")).into();
    replies.extend([
        Reply::json(403, denied),
        Reply::Exhausted(Shape::Flat),
        Reply::ResetBeforeHead,
        Reply::CloseBeforeHead,
    ]);
    for reply in replies {
        let calls = standin.call_count();
        let shown = format!("{reply:?}");
        standin.reply("*", "*", reply);
        let answer = post(&proxy, &format!("{COUNT}?beta=true"), QUESTION);
        assert!((1..100).contains(&tokens(&answer)), "{shown}: {answer:?}");
        assert_eq!(answer.header("access-control-allow-origin"), Some("*"), "{shown}");
        assert_eq!(standin.call_count(), calls + 1, "{shown}");
    }
    assert_eq!(proxy.state(), before);
    // No bench either: the next request starts where it would have.
    standin.clear();
    assert_eq!(post(&proxy, "/v1/messages", QUESTION).status, 200);
    assert_eq!(standin.slots().last().unwrap(), "k1/m1");
    assert_eq!(get(&proxy, "/health").json()["availableSlots"], 6);
}

#[test]
fn an_upstream_that_cannot_be_reached_is_made_up_for() {
    let standin = StandIn::start().unwrap();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", nobody.local_addr().unwrap());
    drop(nobody);
    let proxy = Proxy::builder(&standin).env("UPSTREAM_BASE_URL", base).start();
    assert!(tokens(&post(&proxy, COUNT, QUESTION)) > 0);
}

#[test]
fn when_everything_is_cooling_the_estimate_takes_no_call() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    standin.set_default_quota(Some(0));
    assert_eq!(post(&proxy, CHAT, "{}").status, 503);
    let calls = standin.call_count();
    assert!(tokens(&post(&proxy, COUNT, QUESTION)) > 0);
    assert_eq!(standin.call_count(), calls);
}

#[test]
fn a_client_that_leaves_while_it_is_counted_stops_the_call() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    standin.reply("*", "*", Reply::HangBeforeHead);
    let mut client = proxy.connect();
    client.send("POST", COUNT, &[AUTH], QUESTION.as_bytes());
    assert!(standin.wait_calls(1, LIMIT));
    drop(client);
    assert!(standin.wait_closed(0, LIMIT), "the call goes on without its client");
    assert!(proxy.wait_log("end=client_left", LIMIT), "{}", proxy.log());
}

#[test]
fn an_estimate_grows_with_what_is_asked() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    standin.reply("*", "*", Reply::json(404, "{}"));
    let of = |content: &str, more: &str| {
        let body = format!(r#"{{"messages":[{{"role":"user","content":{content}}}]{more}}}"#);
        tokens(&post(&proxy, COUNT, body))
    };
    let small = of("\"hi\"", "");
    assert!(of("\"hi, how are you today, and what is new?\"", "") > small);
    assert!(of("\"hi\"", r#","system":[{"type":"text","text":"be kind to everybody"}]"#) > small);
    assert!(of("\"hi\"", r#","tools":[{"name":"find","input_schema":{"type":"object"}}]"#) > small);
    let picture = r#"[{"type":"image","source":{"type":"base64","data":"AAAA"}}]"#;
    assert!(of(picture, "") > small);
}

#[test]
fn counting_takes_the_key_and_an_object() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let answer = request(proxy.address(), "POST", COUNT, &[], QUESTION);
    assert_eq!(answer.status, 401, "{answer:?}");
    anthropic_message(&answer);
    let answer = post(&proxy, COUNT, "[]");
    assert_eq!(answer.status, 400, "{answer:?}");
    anthropic_message(&answer);
    assert_eq!(standin.call_count(), 0);
}
