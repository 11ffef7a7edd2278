//! Every limit of the mock on every route of the pool, streamed or not: in each framing.

use dashscope_proxy::standin::{End, Limit, Part, Reply, StandIn};
use serde_json::{Value, json};

use super::{CHAT, LIMIT, MESSAGES, limits, pool, reset, told};
use crate::harness::{AUTH, Answer, Proxy, post, request};

const RESPONSES: &str = "/v1/responses";
const COMPLETIONS: &str = "/v1/completions";
const NATIVE: &str = "/api/v1/services/aigc/multimodal-generation/generation";

const ROUTES: [&str; 5] = [CHAT, COMPLETIONS, RESPONSES, MESSAGES, NATIVE];

/// A request to a route with these parameters, and with a picture if that is wanted.
pub(super) fn ask(
    proxy: &Proxy<'_>,
    path: &str,
    is_streamed: bool,
    parameters: &Value,
    has_picture: bool,
) -> Answer {
    let body = body(path, is_streamed, parameters, has_picture);
    let sse = [("x-dashscope-sse", "enable")];
    let headers = [&[AUTH][..], if is_streamed { &sse[..] } else { &[] }].concat();
    request(proxy.address(), "POST", path, &headers, body.to_string())
}

fn body(path: &str, is_streamed: bool, parameters: &Value, has_picture: bool) -> Value {
    let url = "data:image/png;base64,aGk=";
    let part = match path {
        MESSAGES => {
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}})
        }
        RESPONSES => json!({"type": "input_image", "image_url": url}),
        NATIVE => json!({"image": url}),
        _ => json!({"type": "image_url", "image_url": {"url": url}}),
    };
    let content = if has_picture { json!([part]) } else { json!("hi") };
    let messages = json!([{"role": "user", "content": content}]);
    let mut body = match path {
        NATIVE => {
            let messages = json!({"messages": messages});
            return json!({"model": "m1", "input": messages, "parameters": parameters});
        }
        RESPONSES => json!({"input": messages}),
        COMPLETIONS => json!({"prompt": "hi"}),
        _ => json!({"messages": messages}),
    };
    body.as_object_mut().unwrap().extend(parameters.as_object().unwrap().clone());
    if is_streamed {
        body["stream"] = true.into();
    }
    body
}

/// Limits, requests that hold what they are about, and whether with a picture.
fn cases() -> Vec<(Limit, Value, bool)> {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
    let forced = json!({"tools": [tool], "tool_choice": "required"});
    let json_mode = json!({"response_format": {"type": "json_object"}});
    vec![
        (Limit::MaxOutput(8_192), json!({"max_tokens": 64_000}), false),
        (Limit::MaxOutput(8_192), json!({"max_completion_tokens": 64_000}), false),
        (Limit::MaxOutput(8_192), json!({"max_output_tokens": 64_000}), false),
        (
            Limit::MaxOutputThinking(8_192),
            json!({"max_tokens": 64_000, "enable_thinking": true}),
            false,
        ),
        (Limit::ThinkingBudget(4_096), json!({"thinking_budget": 8_192}), false),
        (Limit::ThinkingBudget(0), json!({"enable_thinking": true}), false),
        (Limit::DefaultBudget(32_768), json!({"max_completion_tokens": 8_192}), false),
        (Limit::MaxInput(0), json!({}), false),
        (Limit::TextOnly, json!({}), true),
        (Limit::OnlyStrings, json!({}), true),
        (Limit::NoTools, json!({"tools": [tool]}), false),
        (Limit::NoForcedTool, forced.clone(), false),
        (Limit::NoForcedToolInThinking, forced, false),
        (
            Limit::NoBuiltInTool("code_interpreter"),
            json!({"tools": [{"type": "code_interpreter"}]}),
            false,
        ),
        (Limit::ThinkingNeedsStream, json!({}), false),
        (Limit::OnlyThinks, json!({"enable_thinking": false}), false),
        (Limit::NeverThinks, json!({"enable_thinking": true}), false),
        (Limit::Efforts(&["low", "high"]), json!({"reasoning_effort": "medium"}), false),
        (Limit::ThinkingNeedsIncrements, json!({}), false),
        (Limit::OnlyIncrements, json!({"incremental_output": false}), false),
        (Limit::NoJsonInThinking, json_mode, false),
        (Limit::NoSearch, json!({"enable_search": true}), false),
        (Limit::NoParameter("logprobs"), json!({"logprobs": true}), false),
        (Limit::OnlyStreams, json!({}), false),
        (Limit::SpeechNeedsStream, json!({"modalities": ["text", "audio"]}), false),
        (Limit::NotServed(""), json!({}), false),
    ]
}

/// Whether the limit has anything to do with such a request at all.
fn is_met(limit: &Limit, path: &str, is_streamed: bool) -> bool {
    let needs_no_stream =
        matches!(limit, Limit::OnlyStreams | Limit::ThinkingNeedsStream | Limit::SpeechNeedsStream);
    let needs_messages = matches!(limit, Limit::TextOnly | Limit::OnlyStrings);
    !(needs_no_stream && is_streamed || needs_messages && path == COMPLETIONS)
}

#[test]
fn whatever_one_model_refuses_in_whatever_framing_the_next_one_serves() {
    let standin = StandIn::start().unwrap();
    let proxy = pool(&standin, "m1,m2").start();
    for (limit, parameters, has_picture) in cases() {
        standin.set_limits("m1", std::slice::from_ref(&limit));
        for path in ROUTES {
            for is_streamed in [false, true] {
                if !is_met(&limit, path, is_streamed) {
                    continue;
                }
                let case = format!("{limit:?} {path} streamed={is_streamed}");
                let answer = ask(&proxy, path, is_streamed, &parameters, has_picture);
                assert_eq!(told(&answer), (200, "m2", "2"), "{case} {answer:?}");
                let again = ask(&proxy, path, is_streamed, &parameters, has_picture);
                assert_eq!(told(&again), (200, "m2", "1"), "{case} {again:?}");
                assert_eq!(limits(&proxy, "m1").len(), 1, "{case}");
                reset(&proxy, r#"{"all":true}"#);
            }
        }
    }
}

#[test]
fn roles_that_a_model_does_not_know_are_no_mistake() {
    let standin = super::standin(&[("m1", Limit::OnlyTwoRoles)]);
    let proxy = pool(&standin, "m1,m2").start();
    let system = json!([{"role": "system", "content": "x"}, {"role": "user", "content": "hi"}]);
    let system = json!({"messages": system}).to_string();
    assert_eq!(told(&post(&proxy, CHAT, &system)), (200, "m2", "2"));
    let anthropic = ask(&proxy, MESSAGES, false, &json!({"system": "x"}), false);
    assert_eq!(told(&anthropic), (200, "m2", "2"));
    assert_eq!(told(&ask(&proxy, CHAT, false, &json!({}), false)), (200, "m1", "1"));
}

#[test]
fn the_first_event_of_a_stream_that_began_well_may_be_a_refusal() {
    let said = "<400> InternalError.Algo.InvalidParameter: Range of max_tokens should be [1, 8192]";
    let nested = json!({"error": {"code": "invalid_parameter_error", "message": said}});
    let flat = json!({"code": "InvalidParameter", "message": said, "request_id": "r"});
    let enveloped =
        json!({"type": "error", "error": {"type": "invalid_request_error", "message": said}});
    for (path, event) in [
        (CHAT, format!("data: {nested}\n\n")),
        (RESPONSES, format!("id:1\nevent:error\n:HTTP_STATUS/400\ndata:{flat}\n\n")),
        (MESSAGES, format!(":c\n\nevent:error\ndata:{flat}\n\n")),
        (MESSAGES, format!("event: error\ndata: {enveloped}\n\n")),
        (NATIVE, format!("id:1\nevent:error\n:HTTP_STATUS/400\ndata:{flat}\n\n")),
    ] {
        let standin = StandIn::start().unwrap();
        standin.reply_once("*", "m1", Reply::sse(vec![Part::now(event.clone())], End::Clean));
        let proxy = pool(&standin, "m1,m2").start();
        let allowing = json!({"max_tokens": 64_000});
        let answer = ask(&proxy, path, true, &allowing, false);
        assert_eq!(told(&answer), (200, "m2", "2"), "{event} {answer:?}");
        assert_eq!(limits(&proxy, "m1")[0]["bound"], 8_192, "{event}");
    }
}

#[test]
fn talk_of_a_limit_in_an_answer_is_none() {
    let said = "Range of max_tokens should be [1, 8192]";
    let delta = json!({"choices": [{"delta": {"content": said}}], "message": said});
    let parts = vec![Part::now(format!("data: {delta}\n\n")), Part::now("data: [DONE]\n\n")];
    let standin = StandIn::start().unwrap();
    standin.reply_once("*", "m1", Reply::sse(parts, End::Clean));
    let proxy = pool(&standin, "m1,m2").start();
    let answer = ask(&proxy, CHAT, true, &json!({"max_tokens": 64_000}), false);
    assert_eq!(told(&answer), (200, "m1", "1"));
    standin.reply_once(
        "*",
        "m1",
        Reply::json(200, json!({"code": "x", "message": said}).to_string()),
    );
    let answer = ask(&proxy, CHAT, false, &json!({"max_tokens": 64_000}), false);
    assert_eq!(told(&answer), (200, "m1", "1"));
}

#[test]
fn where_the_client_named_the_model_a_limit_is_its_own_mistake() {
    let standin = super::standin(&[("foreign", Limit::MaxOutput(8_192))]);
    let proxy = pool(&standin, "m1,m2").start();
    let mut request = body(NATIVE, false, &json!({"max_tokens": 64_000}), false);
    request["model"] = "foreign".into();
    assert_eq!(told(&post(&proxy, NATIVE, request.to_string())), (400, "foreign", "1"));
    assert!(!proxy.log().contains(" limit "));
}

#[test]
fn a_wrong_model_for_a_native_url_is_the_pools_choice_and_is_changed() {
    let standin = StandIn::start().unwrap();
    for said in [
        "url error, please check url！",
        "url error, please check url！ For details, see: https://help.aliyun.com/zh/model-studio/error-code#error-url",
        "url error, check url!",
    ] {
        let error = json!({"code": "InvalidParameter", "message": said, "request_id": "r"});
        standin.reply_once("*", "m1", Reply::json(400, error.to_string()));
        let proxy = pool(&standin, "m1,m2").start();
        assert_eq!(
            told(&ask(&proxy, NATIVE, false, &json!({}), false)),
            (200, "m2", "2"),
            "{said}"
        );
        standin.reply_once("*", "m1", Reply::json(400, error.to_string()));
        assert_eq!(told(&ask(&proxy, CHAT, false, &json!({}), false)), (400, "m1", "1"), "{said}");
        assert!(proxy.wait_log(" limit ", LIMIT));
    }
}
