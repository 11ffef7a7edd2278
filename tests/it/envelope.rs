//! The error envelopes of both protocols, as the SDKs of either parse them.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]

use crate::harness::Answer;

/// A path of each protocol.
pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const MESSAGES: &str = "/v1/messages";

/// The error types that Anthropic's SDKs know.
const ANTHROPIC_TYPES: [&str; 8] = [
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "api_error",
    "overloaded_error",
];

/// Checks that an answer is a whole error of its own in OpenAI's words; returns its message.
#[track_caller]
pub(crate) fn openai_message(answer: &Answer) -> String {
    let body = answer.json();
    let error = &body["error"];
    assert_eq!(body.as_object().unwrap().len(), 1, "{answer:?}");
    assert_eq!(error.as_object().unwrap().len(), 4, "{answer:?}");
    assert!(error["param"].is_null() && error.get("param").is_some(), "{answer:?}");
    for field in ["type", "code"] {
        assert!(error[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {answer:?}");
    }
    checked(answer, error["message"].as_str())
}

/// Checks that an answer is a whole error of its own in Anthropic's words; returns its message.
#[track_caller]
pub(crate) fn anthropic_message(answer: &Answer) -> String {
    let body = answer.json();
    assert_eq!(body["type"], "error", "{answer:?}");
    let kind = anthropic_type(answer);
    assert!(ANTHROPIC_TYPES.contains(&kind.as_str()), "{answer:?}");
    checked(answer, body["error"]["message"].as_str())
}

/// The type of an error in Anthropic's words.
#[track_caller]
pub(crate) fn anthropic_type(answer: &Answer) -> String {
    answer.json()["error"]["type"].as_str().unwrap_or_else(|| panic!("{answer:?}")).to_owned()
}

/// The message of an error on this path, whose protocol decides the envelope.
#[track_caller]
pub(crate) fn message_on(path: &str, answer: &Answer) -> String {
    match path.starts_with(MESSAGES) {
        true => anthropic_message(answer),
        false => openai_message(answer),
    }
}

#[track_caller]
fn checked(answer: &Answer, message: Option<&str>) -> String {
    assert_eq!(answer.header("content-type"), Some("application/json"), "{answer:?}");
    assert_eq!(answer.header("access-control-allow-origin"), Some("*"), "{answer:?}");
    let message = message.unwrap_or_else(|| panic!("no message: {answer:?}"));
    assert!(!message.is_empty(), "{answer:?}");
    message.to_owned()
}
