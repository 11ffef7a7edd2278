//! Every refusal of the corpus, behind the first of two models.

use dashscope_proxy::standin::{Reply, StandIn};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{CHAT, MESSAGES, pool, reset, told};
use crate::harness::{AUTH, request};

const RESPONSES: &str = "/v1/responses";
const NATIVE: &str = "/api/v1/services/aigc/text-generation/generation";

#[derive(Debug, Deserialize)]
struct Row {
    kind: String,
    status: u16,
    protocol: String,
    framing: String,
    body: String,
    scope: String,
    bound: Option<u64>,
    retry: Option<bool>,
}

fn rows() -> Vec<Row> {
    let text = include_str!("../../data/limits.jsonl");
    text.lines().map(|line| serde_json::from_str(line).expect("a row")).collect()
}

impl Row {
    fn path(&self) -> &'static str {
        match self.protocol.as_str() {
            "anthropic" => MESSAGES,
            "responses" => RESPONSES,
            "native" => NATIVE,
            _ => CHAT,
        }
    }

    fn says(&self, words: &str) -> bool {
        self.body.contains(words)
    }

    /// Whether the sentence is about requests that are not streamed.
    fn is_about_no_stream(&self) -> bool {
        ["non-streaming", "only support stream", "流式", "http call", "stream=true"]
            .iter()
            .any(|words| self.says(words))
    }

    /// A request that holds all that any sentence is about, as far as it goes together.
    fn request(&self) -> Value {
        let over = self.bound.unwrap_or(1_000).saturating_add(1);
        let part = match self.path() {
            MESSAGES => {
                json!({"type": "image", "source": {"type": "url", "url": "https://h/a.png"}})
            }
            NATIVE => json!({"image": "https://h/a.png"}),
            RESPONSES => json!({"type": "input_image", "image_url": "https://h/a.png"}),
            _ => json!({"type": "image_url", "image_url": {"url": "https://h/a.png"}}),
        };
        let messages =
            json!([{"role": "system", "content": "x"}, {"role": "user", "content": [part]}]);
        let mut parameters = json!({
            "max_tokens": over, "tools": [{"type": "code_interpreter"}],
            "tool_choice": "required", "response_format": {"type": "json_object"},
            "enable_search": true, "logprobs": true, "n": 9, "reasoning_effort": "medium",
            "modalities": ["text", "audio"],
        });
        if self.says("thinking_budget parameter") || self.kind == "caller" {
            parameters["thinking_budget"] = over.into();
        }
        if self.says("restricted to True") {
            parameters["enable_thinking"] = false.into();
            parameters["reasoning_effort"] = Value::Null;
        }
        let parameters = parameters.as_object().expect("an object").clone();
        if self.path() == NATIVE {
            let messages = json!({"messages": messages});
            return json!({"model": "m1", "input": messages, "parameters": parameters});
        }
        let mut body = if self.path() == RESPONSES {
            json!({"input": messages})
        } else {
            json!({"messages": messages})
        };
        body.as_object_mut().expect("an object").extend(parameters);
        if self.framing == "sse" && !self.is_about_no_stream() {
            body["stream"] = true.into();
        }
        body
    }

    /// The whole body: a row may have the message alone.
    fn answer(&self) -> Reply {
        let body = match self.scope.as_str() {
            "message" if matches!(self.path(), CHAT | RESPONSES) => {
                json!({"error": {"message": self.body, "code": "invalid_parameter_error"}})
                    .to_string()
            }
            "message" => json!({"code": "InvalidParameter", "message": self.body}).to_string(),
            _ => self.body.clone(),
        };
        let kind = if self.framing == "sse" { "text/event-stream" } else { "application/json" };
        Reply::body(self.status, kind, body)
    }
}

/// Sends the rows one after the other; says which were moved.
fn moved(rows: &[&Row]) -> Vec<bool> {
    let standin = StandIn::start().unwrap();
    let proxy = pool(&standin, "m1,m2").env("MODEL_LIMITS", "move").start();
    let one = |row: &&Row| {
        standin.reply_once("*", "m1", row.answer());
        let sse = [("x-dashscope-sse", "enable")];
        let is_streamed = row.framing == "sse" && !row.is_about_no_stream();
        let headers = [&[AUTH][..], if is_streamed { &sse[..] } else { &[] }].concat();
        let body = row.request().to_string();
        let answer = request(proxy.address(), "POST", row.path(), &headers, body);
        reset(&proxy, r#"{"all":true}"#);
        match told(&answer) {
            (200, "m2", "2") => true,
            (status, "m1", "1") if status == row.status => {
                let Reply::Answer { body, .. } = row.answer() else { unreachable!() };
                assert_eq!(answer.body, body, "byte for byte");
                false
            }
            other => panic!("{other:?} {row:?} {answer:?}"),
        }
    };
    rows.iter().map(one).collect()
}

#[test]
fn every_row_is_moved_or_passed_on_as_it_says() {
    let rows = rows();
    let rows: Vec<&Row> = rows.iter().filter(|row| row.retry.is_some()).collect();
    let count = |retry| rows.iter().filter(|row| row.retry == Some(retry)).count();
    assert!(count(true) >= 19 && count(false) >= 8, "{} and {}", count(true), count(false));
    for (row, moved) in rows.iter().zip(moved(&rows)) {
        assert_eq!(Some(moved), row.retry, "{row:?}");
    }
}

#[test]
fn no_mistake_of_a_caller_is_moved_whatever_the_request_holds() {
    let rows = rows();
    let rows: Vec<&Row> = rows.iter().filter(|row| row.kind == "caller").collect();
    for (row, moved) in rows.iter().zip(moved(&rows)) {
        // `Model not exist` is about the pool's models, and has a verdict of its own.
        assert!(!moved || row.says("ot exist"), "{row:?}");
    }
}

/// What a client has put around a sentence, or the manual's placeholder in it, is no sentence.
const DECORATED: [&str; 12] = [
    "OpenAI API error",
    "400: ",
    "400 ",
    "HTTP 400: ",
    "InvalidParameter: ",
    "litellm.",
    "Error code: ",
    "error, status code",
    "[InvalidParameter]",
    "[API Error",
    "xxx",
    " / ",
];

/// Sentences that are no limit by their words, or not by this request.
const AMBIGUOUS: [&str; 14] = [
    "参数非法",
    "pre-process",
    "data-uri",
    "sequence images",
    "format is not supported",
    "Multiple tool_calls",
    "not allowed to be [search]",
    "simultaneously",
    "result_format",
    "Range of n ",
    "Range of seed",
    "top_logprobs",
    "Temperature",
    "developer is not",
];

#[test]
fn the_sentences_that_were_seen_alone_are_moved_too() {
    let rows = rows();
    let rows: Vec<&Row> = rows
        .iter()
        .filter(|row| row.kind != "caller" && row.scope == "message")
        .filter(|row| !DECORATED.iter().any(|words| row.says(words)))
        .filter(|row| !AMBIGUOUS.iter().any(|words| row.says(words)))
        .filter(|row| row.status == 400)
        .collect();
    assert!(rows.len() > 25, "{}", rows.len());
    for (row, moved) in rows.iter().zip(moved(&rows)) {
        assert!(moved, "{row:?}");
    }
}
