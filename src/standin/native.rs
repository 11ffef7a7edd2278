//! The answers of DashScope's own protocol, `/api/v1/services/**` (`dashscope.md` section 3).

use serde_json::Value;

use super::answers::{Question, gateway_headers, pieces, prompt_tokens, quoted, streamed};
use super::output::Output;
use super::script::Framing;

/// The answer of text generation, whatever the service: nothing here looks at more of it.
pub(super) fn generation(question: &Question<'_>, model: &str) -> Output {
    let pieces = pieces(model);
    if is_streamed(question) {
        return streamed(question, "text/event-stream;charset=UTF-8", frames(question, &pieces));
    }
    let body = body(question, &pieces.concat(), "stop", pieces.len());
    let headers = gateway_headers(question, "application/json", true);
    Output::whole(200, headers, body.into_bytes(), Framing::Chunked)
}

/// A header decides, not the body (facts, section 1.3).
fn is_streamed(question: &Question<'_>) -> bool {
    let header = |name| question.request.header(name).unwrap_or_default();
    header("x-dashscope-sse").eq_ignore_ascii_case("enable")
        || header("accept").contains("text/event-stream")
}

/// A frame for each piece and one for the end. Each holds the whole text so far, unless the
/// request wants increments; its usage is that of the whole text always.
fn frames(question: &Question<'_>, pieces: &[String]) -> Vec<String> {
    let increments = question.wanted.parameters["incremental_output"] == Value::Bool(true);
    let frame = |number: usize, text: &str, finish_reason: &str, output: usize| {
        let body = body(question, text, finish_reason, output);
        format!("id:{number}\nevent:result\n:HTTP_STATUS/200\ndata:{body}\n\n")
    };
    let mut frames: Vec<String> = (1..=pieces.len())
        .map(|count| {
            let from = if increments { count - 1 } else { 0 };
            frame(count, &pieces[from..count].concat(), "null", count)
        })
        .collect();
    let last = if increments { String::new() } else { pieces.concat() };
    frames.push(frame(pieces.len() + 1, &last, "stop", pieces.len()));
    frames
}

/// `finish_reason` is a text even while there is none: `"null"`.
fn body(question: &Question<'_>, text: &str, finish_reason: &str, output: usize) -> String {
    let input = prompt_tokens(question);
    let total = input + output;
    let text = quoted(text);
    let answer = if question.wanted.parameters["result_format"] == "message" {
        format!(
            r#"{{"choices":[{{"message":{{"content":{text},"role":"assistant"}},"finish_reason":"{finish_reason}"}}]}}"#
        )
    } else {
        format!(r#"{{"finish_reason":"{finish_reason}","text":{text}}}"#)
    };
    format!(
        r#"{{"output":{answer},"usage":{{"total_tokens":{total},"output_tokens":{output},"input_tokens":{input}}},"request_id":"{}"}}"#,
        question.id
    )
}
