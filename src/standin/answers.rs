//! The bodies and headers of DashScope, field by field as captured (`dashscope.md` sections 2
//! to 4 and the corpus in `tests/data`). Field order and spacing are part of the facts, so the
//! JSON is spelled out and not serialised.

use serde::Deserialize;
use serde_json::Value;

use super::native;
use super::output::Output;
use super::refusals::{self, Refusal, Told};
use super::script::{End, Framing, Part, Script, Shape};
use super::shapes;
use super::wire::Request;
use crate::clock::{self, Timestamp};

/// An API of DashScope, with its own bodies and error envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Surface {
    Chat,
    Messages,
    Native,
    /// No path of ours.
    Unknown,
}

impl Surface {
    pub(super) fn of(method: &str, path: &str) -> Self {
        match (method, path) {
            ("POST", "/compatible-mode/v1/chat/completions") => Self::Chat,
            ("POST", "/apps/anthropic/v1/messages") => Self::Messages,
            ("POST", path) if path.starts_with("/api/v1/services/") => Self::Native,
            _ => Self::Unknown,
        }
    }
}

/// The fields of a request body that matter here; the rest of a large body is skipped.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Wanted {
    pub(super) model: Value,
    stream: Value,
    stream_options: Value,
    pub(super) parameters: Value,
}

/// What an answer depends on.
pub(super) struct Question<'a> {
    pub(super) request: &'a Request,
    pub(super) wanted: &'a Wanted,
    pub(super) model: Option<&'a str>,
    pub(super) key: Option<&'a str>,
    /// The request id, in the form of a UUID.
    pub(super) id: &'a str,
    pub(super) arrived: Timestamp,
}

/// What DashScope would answer.
pub(super) fn normal(question: &Question<'_>, script: &mut Script) -> Output {
    let surface = Surface::of(&question.request.method, question.request.path());
    if surface == Surface::Unknown {
        return error(question, surface, 404, "NotFound", "", "no such path in the stand-in");
    }
    let Some(key) = question.key.filter(|key| script.knows_key(key)) else {
        return match surface {
            Surface::Chat => {
                let message = "Incorrect API key provided. For details, see: https://www.alibabacloud.com/help/en/model-studio/error-code#apikey-error";
                error(question, surface, 401, "invalid_api_key", "invalid_request_error", message)
            }
            _ => {
                let message = "Invalid API-key provided. For details, see: https://www.alibabacloud.com/help/en/model-studio/error-code#apikey-error";
                error(question, surface, 401, "InvalidApiKey", "", message)
            }
        };
    };
    let Some(model) = question.model else {
        let code = "invalid_parameter_error";
        return match surface {
            Surface::Chat => {
                error(question, surface, 400, code, code, "you must provide a model parameter")
            }
            _ => error(question, surface, 400, "InvalidParameter", "", "Model not exist."),
        };
    };
    if !script.knows_model(model) {
        return match surface {
            Surface::Chat => {
                let message =
                    format!("The model `{model}` does not exist or you do not have access to it.");
                error(question, surface, 404, "model_not_found", "invalid_request_error", &message)
            }
            _ => error(question, surface, 400, "InvalidParameter", "", "Model not exist."),
        };
    }
    if !script.spend(key, model) {
        let code = shapes::CODE;
        return error(question, surface, 403, code, code, shapes::MESSAGE);
    }
    match surface {
        Surface::Chat => chat(question, model),
        Surface::Native => native::generation(question, model),
        _ => messages(question, model),
    }
}

/// The quota of this request's slot is used up, in that shape.
pub(super) fn exhausted(question: &Question<'_>, shape: Shape) -> Output {
    let (status, content_type, encoded, body) = shapes::render(shape, question.id);
    let mut headers = gateway_headers(question, content_type, false);
    if encoded {
        headers.push(("content-encoding".to_owned(), "gzip".to_owned()));
    }
    match shape {
        _ if status == 200 => {
            Output::stream(headers, vec![Part::now(body)], Framing::Chunked, End::Clean)
        }
        Shape::Chunked => {
            let parts = body.chunks(16).map(Part::now).collect();
            Output { status, ..Output::stream(headers, parts, Framing::Chunked, End::Clean) }
        }
        _ => Output::whole(status, headers, body, Framing::Length),
    }
}

/// The request is refused, in the words of its protocol.
pub(super) fn refused(question: &Question<'_>, refusal: Refusal, told: Told) -> Output {
    let surface = Surface::of(&question.request.method, question.request.path());
    let (status, content_type, body) = refusals::render(refusal, told, surface, question.id);
    let headers = gateway_headers(question, content_type, false);
    let parts = vec![Part::now(body)];
    Output { status, ..Output::stream(headers, parts, Framing::Chunked, End::Clean) }
}

fn error(
    question: &Question<'_>,
    surface: Surface,
    status: u16,
    code: &str,
    kind: &str,
    message: &str,
) -> Output {
    let id = question.id;
    let body = match surface {
        Surface::Chat => shapes::nested(code, kind, message, id),
        Surface::Native => shapes::native(code, message, id),
        _ => shapes::flat(code, message, id),
    };
    let headers = gateway_headers(question, "application/json", false);
    Output::whole(status, headers, body.into_bytes(), Framing::Chunked)
}

/// The answer's text in the pieces in which it is streamed. It names the model that serves.
pub(super) fn pieces(model: &str) -> Vec<String> {
    ["This ", "answer ", "comes ", "from ", model, "."].map(str::to_owned).to_vec()
}

/// A guess like any other: four bytes of request to a token.
pub(super) fn prompt_tokens(question: &Question<'_>) -> usize {
    question.request.body.len() / 4 + 1
}

fn is_streamed(question: &Question<'_>) -> bool {
    question.wanted.stream == Value::Bool(true)
}

fn chat(question: &Question<'_>, model: &str) -> Output {
    let pieces = pieces(model);
    let prompt = prompt_tokens(question);
    let completion = pieces.len();
    let total = prompt + completion;
    let rest = format!(
        r#""created":{},"system_fingerprint":null,"model":{},"id":"chatcmpl-{}""#,
        question.arrived.0 / 1000,
        quoted(model),
        question.id
    );
    if !is_streamed(question) {
        let text = quoted(&pieces.concat());
        let body = format!(
            r#"{{"choices":[{{"message":{{"role":"assistant","content":{text}}},"finish_reason":"stop","index":0,"logprobs":null}}],"object":"chat.completion","usage":{{"prompt_tokens":{prompt},"completion_tokens":{completion},"total_tokens":{total},"prompt_tokens_details":{{"cached_tokens":0}}}},{rest}}}"#
        );
        let headers = gateway_headers(question, "application/json", true);
        return Output::whole(200, headers, body.into_bytes(), Framing::Chunked);
    }
    let event = |choices: &str, usage: &str| {
        format!(
            r#"data: {{"choices":[{choices}],"object":"chat.completion.chunk","usage":{usage},{rest}}}"#
        ) + "\n\n"
    };
    let mut events = vec![event(
        r#"{"delta":{"content":"","role":"assistant"},"index":0,"logprobs":null,"finish_reason":null}"#,
        "null",
    )];
    for piece in &pieces {
        let choice = format!(
            r#"{{"finish_reason":null,"delta":{{"content":{}}},"index":0,"logprobs":null}}"#,
            quoted(piece)
        );
        events.push(event(&choice, "null"));
    }
    events.push(event(
        r#"{"finish_reason":"stop","delta":{"content":""},"index":0,"logprobs":null}"#,
        "null",
    ));
    if question.wanted.stream_options["include_usage"] == Value::Bool(true) {
        let usage = format!(
            r#"{{"prompt_tokens":{prompt},"completion_tokens":{completion},"total_tokens":{total}}}"#
        );
        events.push(event("", &usage));
    }
    events.push("data: [DONE]\n\n".to_owned());
    streamed(question, "text/event-stream;charset=UTF-8", events)
}

fn messages(question: &Question<'_>, model: &str) -> Output {
    let pieces = pieces(model);
    let input = prompt_tokens(question);
    let output = pieces.len();
    let start = format!(
        r#""id":"msg_{}","type":"message","role":"assistant","model":{}"#,
        question.id,
        quoted(model)
    );
    let usage = format!(
        r#"{{"input_tokens":{input},"output_tokens":{output},"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"prompt_tokens_details":{{"cached_tokens":0}}}}"#
    );
    if !is_streamed(question) {
        let text = quoted(&pieces.concat());
        let body = format!(
            r#"{{{start},"content":[{{"type":"text","text":{text}}}],"stop_reason":"end_turn","stop_sequence":null,"usage":{usage}}}"#
        );
        let headers = gateway_headers(question, "application/json; charset=utf-8", true);
        return Output::whole(200, headers, body.into_bytes(), Framing::Chunked);
    }
    let event = |name: &str, fields: &str| {
        format!("event:{name}\ndata:{{\"type\":\"{name}\"{fields}}}\n\n")
    };
    // The counts of message_start are provisional; message_delta has the final ones.
    let message = format!(
        r#","message":{{{start},"content":[],"stop_reason":null,"stop_sequence":null,"usage":{{"input_tokens":2,"output_tokens":0}}}}"#
    );
    let mut events = vec![
        event("ping", ""),
        event("message_start", &message),
        event("content_block_start", r#","index":0,"content_block":{"type":"text","text":""}"#),
    ];
    for piece in &pieces {
        let text = quoted(piece);
        events.push(event(
            "content_block_delta",
            &format!(r#","index":0,"delta":{{"type":"text_delta","text":{text}}}"#),
        ));
    }
    events.push(event("content_block_stop", r#","index":0"#));
    events.push(event(
        "message_delta",
        &format!(r#","delta":{{"stop_reason":"end_turn","stop_sequence":null}},"usage":{usage}"#),
    ));
    events.push(event("message_stop", ""));
    streamed(question, "text/event-stream; charset=utf-8", events)
}

pub(super) fn streamed(question: &Question<'_>, content_type: &str, events: Vec<String>) -> Output {
    let parts = events.into_iter().map(Part::now).collect();
    let headers = gateway_headers(question, content_type, true);
    Output::stream(headers, parts, Framing::Chunked, End::Clean)
}

/// The headers of DashScope's gateway. Two of them come with successes only.
pub(super) fn gateway_headers(
    question: &Question<'_>,
    content_type: &str,
    success: bool,
) -> Vec<(String, String)> {
    let now = clock::now();
    let cost = now.since(question.arrived).as_millis();
    let mut headers = vec![
        ("content-type", content_type.to_owned()),
        ("vary", "Origin,Access-Control-Request-Method,Access-Control-Request-Headers".to_owned()),
        ("x-request-id", question.id.to_owned()),
    ];
    if success {
        headers.push(("x-dashscope-call-gateway", "true".to_owned()));
        headers.push(("x-dashscope-finished", "true".to_owned()));
    }
    headers.extend([
        ("x-dashscope-timeout", "600".to_owned()),
        ("req-cost-time", cost.to_string()),
        ("req-arrive-time", question.arrived.0.to_string()),
        ("resp-start-time", now.0.to_string()),
        ("x-envoy-upstream-service-time", cost.to_string()),
        ("set-cookie", format!("acw_tc={};path=/;HttpOnly;Max-Age=1800", question.id)),
        ("date", httpdate::fmt_http_date(now.into())),
        ("server", "istio-envoy".to_owned()),
    ]);
    headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
