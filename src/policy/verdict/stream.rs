//! What the events of a stream say that began with a success.
//!
//! The first one that carries anything is judged like an answer, because the client has nothing
//! yet. Later ones are for the client; of them only an exhaustion is learned.

use serde::Deserialize;
use serde_json::Value;

use super::{Judgement, MAX_ERROR_PREFIX, Verdict, classify_event, fault::Fault};
use crate::policy::sse::{self, Blocks, Event};

/// The types of events that only say that something may come. Anthropic's `message_start` is one
/// of them: DashScope sends it with made-up counts before the model has begun.
const CARRY_NOTHING: [&str; 5] =
    ["ping", "response.created", "response.queued", "response.in_progress", "message_start"];

/// What the native frames of slow models say while nothing happens (facts, section 3).
const KEEP_ALIVE: &str = "KeepAlive";

/// What every exhaustion holds: `FreeTierOnly`, `free tier`, `free quota`.
const MARKS: [&[u8]; 2] = [b"ree", b"REE"];

/// The first event of a stream that carries anything.
#[must_use]
pub(crate) fn opening(stream: &[u8]) -> Option<Event> {
    sse::events(stream).find(|event| Fault::of_event(event).is_some() || !carries_nothing(event))
}

/// The same of a stream that has ended, where the last blank line may be missing, or where there
/// is no event but an error in plain JSON.
#[must_use]
pub(crate) fn opening_at_end(stream: &[u8]) -> Option<Event> {
    opening(&[stream, b"\n\n"].concat()).or_else(|| {
        let plain = Event { data: stream.to_vec(), ..Event::default() };
        Fault::of_event(&plain).is_some().then_some(plain)
    })
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Told {
    r#type: String,
    output: Output,
    /// Those of a chunk of OpenAI's chat.
    choices: Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Output {
    message: Message,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Message {
    phase: String,
}

fn carries_nothing(event: &Event) -> bool {
    let is_one = |name: &[u8]| CARRY_NOTHING.iter().any(|one| one.as_bytes() == name);
    if event.data.is_empty() || is_one(&event.name) {
        return true;
    }
    // What cannot be read so is something: the members of an answer have other types.
    serde_json::from_slice(&event.data).is_ok_and(|Told { r#type, output, choices }| {
        is_one(r#type.as_bytes())
            || output.message.phase == KEEP_ALIVE
            || choices.as_array().is_some_and(|choices| say_who_speaks(choices))
    })
}

/// Whether choices only say who speaks: models send that before they have begun.
fn say_who_speaks(choices: &[Value]) -> bool {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    };
    let says_nothing = |choice: &Value| {
        let (Some(members), Some(delta)) = (choice.as_object(), choice["delta"].as_object()) else {
            return false;
        };
        let of_choice = members.iter().filter(|(name, _)| !matches!(&***name, "delta" | "index"));
        let of_delta = delta.iter().filter(|(name, _)| *name != "role");
        of_choice.chain(of_delta).all(|(_, value)| is_empty(value))
    };
    !choices.is_empty() && choices.iter().all(says_nothing)
}

/// Watches a stream go by for an exhaustion that comes too late to rotate. It keeps at most one
/// event, and none that is longer than an error could be.
#[derive(Debug, Default)]
pub(crate) struct LateScan {
    pending: Vec<u8>,
    /// Whether the event that is under way is too long to be looked at.
    is_passing: bool,
    is_done: bool,
}

impl LateScan {
    /// The next bytes of the stream. Says so once if an exhaustion is in them.
    pub(crate) fn see(&mut self, bytes: &[u8]) -> Option<Judgement> {
        if self.is_done {
            return None;
        }
        // Only the end of a line can end an event.
        if memchr::memchr2(b'\n', b'\r', bytes).is_none() {
            self.keep(bytes);
            return None;
        }
        let mut joined = std::mem::take(&mut self.pending);
        let part = if joined.is_empty() {
            bytes
        } else {
            joined.extend_from_slice(bytes);
            &joined
        };
        let mut blocks = Blocks::of(part);
        for block in blocks.by_ref() {
            let is_passed = std::mem::take(&mut self.is_passing);
            if !is_passed && let Some(found) = exhaustion_in(block) {
                self.is_done = true;
                return Some(found);
            }
        }
        let rest = blocks.rest().to_vec();
        self.keep(&rest);
        None
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
        self.is_passing |= self.pending.len() > MAX_ERROR_PREFIX;
        if self.is_passing {
            self.pending = last_byte_with_line_end(&self.pending).to_vec();
        }
    }

    /// The end of the stream: its last event may lack the blank line.
    pub(crate) fn end(&mut self) -> Option<Judgement> {
        self.see(b"\n\n")
    }
}

/// What has to be known of an event that is passed over, to see where it ends.
fn last_byte_with_line_end(event: &[u8]) -> &[u8] {
    let line_ends = event.iter().rev().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
    &event[event.len().saturating_sub(line_ends + 1)..]
}

fn exhaustion_in(block: &[u8]) -> Option<Judgement> {
    if !MARKS.iter().any(|mark| memchr::memmem::find(block, mark).is_some()) {
        return None;
    }
    let judgement = classify_event(&sse::read(block)?, false);
    (judgement.verdict == Verdict::QuotaExhausted).then_some(judgement)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ERROR: &str = r#"{"code":"AllocationQuota.FreeTierOnly","message":"m","request_id":"r"}"#;
    const WORDS: &str = "The free tier of the model has been exhausted. \
        AllocationQuota.FreeTierOnly {\"code\":\"AllocationQuota.FreeTierOnly\"}";

    fn judged(stream: &str) -> Judgement {
        let event = opening_at_end(stream.as_bytes()).unwrap();
        classify_event(&event, false)
    }

    fn data(json: &str) -> String {
        format!("data:{json}\n\n")
    }

    /// What models say, in every frame that carries their words.
    fn talk() -> Vec<String> {
        let text = serde_json::to_string(WORDS).unwrap();
        [
            format!(r#"{{"choices":[{{"delta":{{"content":{text}}},"index":0}}],"error":null}}"#),
            format!(r#"{{"choices":[{{"text":{text}}}],"code":"x","message":{text}}}"#),
            format!(r#"{{"choices":[{{"delta":{{"tool_calls":[{{"function":{{"arguments":{text}}}}}]}}}}]}}"#),
            format!(r#"{{"output":{{"text":{text},"finish_reason":"null"}},"request_id":"r"}}"#),
            format!(r#"{{"output":{{"choices":[{{"message":{{"content":{text}}}}}]}},"code":"","message":""}}"#),
            format!(r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":{text}}}}}"#),
            format!(r#"{{"type":"response.output_text.delta","delta":{text}}}"#),
            format!(r#"{{"type":"response.mcp_call.failed","error":{{"message":{text}}}}}"#),
            format!(r#"{{"type":"response.completed","response":{{"error":null,"output":[{{"content":{text}}}]}}}}"#),
            "[DONE]".to_owned(),
        ]
        .map(|json| data(&json))
        .into()
    }

    #[test]
    fn an_error_in_the_first_event_is_judged_like_an_answer() {
        let throttled = Verdict::Throttled(Duration::from_secs(30));
        for (stream, verdict, status) in [
            (format!("id:1\nevent:error\n:HTTP_STATUS/403\n{}", data(ERROR)), Verdict::QuotaExhausted, 403),
            (data(ERROR), Verdict::QuotaExhausted, 403),
            (data(r#"{"error":{"message":"Free quota exhausted.","code":"insufficient_quota"}}"#), Verdict::QuotaExhausted, 429),
            ("event:error\n:HTTP_STATUS/429\ndata:{\"code\":\"Throttling.AllocationQuota\",\"message\":\"Free allocated quota exceeded.\"}".to_owned(), Verdict::Throttled(Duration::from_secs(600)), 429),
            ("event:error\n:HTTP_STATUS/429\ndata:{\"code\":\"x\",\"message\":\"Free quota exhausted.\"}".to_owned(), throttled, 429),
            (data(r#"{"code":"Throttling.RateQuota","message":"slow down"}"#), throttled, 429),
            (data(r#"{"type":"error","error":{"type":"rate_limit_error","message":"x"}}"#), throttled, 429),
            (data(r#"{"type":"error","error":{"type":"overloaded_error","message":"x"}}"#), Verdict::Unavailable, 503),
            (data(r#"{"error":{"code":503,"message":"x"}}"#), Verdict::Unavailable, 503),
            ("event:error\n:HTTP_STATUS/401\ndata:{\"code\":\"x\"}".to_owned(), Verdict::KeyRejected, 401),
            (data(r#"{"code":"InvalidApiKey","message":"x"}"#), Verdict::KeyRejected, 401),
            (data(r#"{"type":"error","error":{"type":"authentication_error"}}"#), Verdict::KeyRejected, 401),
            ("event:error\n:HTTP_STATUS/400\ndata:{\"code\":\"Arrearage\"}".to_owned(), Verdict::AccountBlocked, 400),
            (data(r#"{"code":"AccessDenied.Unpurchased","message":"x"}"#), Verdict::ModelDenied, 403),
            (data(r#"{"type":"response.failed","response":{"status":"failed","error":{"code":"server_error","message":"x"}}}"#), Verdict::Unavailable, 500),
            (data(r#"{"type":"error","code":"InternalError.Algo","message":"x"}"#), Verdict::InternalError, 500),
            (data(r#"{"error":{"type":"invalid_request_error","message":"x"}}"#), Verdict::CallerError, 400),
            (data(r#"{"error":{"code":"data_inspection_failed","type":"server_error"}}"#), Verdict::CallerError, 400),
            (data(r#"{"error":"something unheard of"}"#), Verdict::CallerError, 400),
            ("event: error\ndata: upstream connect error\n\n".to_owned(), Verdict::CallerError, 400),
        ] {
            let judgement = judged(&stream);
            assert_eq!((judgement.verdict, judgement.status), (verdict, status), "{stream}");
        }
    }

    #[test]
    fn events_that_carry_nothing_are_passed_and_the_error_behind_them_is_judged() {
        let nothing = [
            ": keep-alive\n\n".to_owned(),
            "event:ping\ndata:{\"type\":\"ping\"}\n\n".to_owned(),
            data(r#"{"type": "ping"}"#),
            "id:1\nevent:response.created\n:HTTP_STATUS/200\ndata:{\"response\":{\"id\":\"r\",\"error\":null}}\n\n".to_owned(),
            data(r#"{"type":"response.in_progress","response":{"id":"r"}}"#),
            data(r#"{"type":"message_start","message":{"id":"msg_1","usage":{"input_tokens":2}}}"#),
            data(r#"{"output":{"message":{"phase":"KeepAlive","content":"","extra":{}}},"request_id":"r"}"#),
            "data:\n\n".to_owned(),
            data(r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#),
            data(r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":null,"reasoning_content":"","tool_calls":[]},"logprobs":null,"finish_reason":null}],"usage":null}"#),
        ];
        for passed in &nothing {
            assert_eq!(opening(passed.as_bytes()), None, "{passed}");
        }
        let before = nothing.concat();
        let failed = r#"{"type":"response.failed","response":{"error":{"code":"AllocationQuota.FreeTierOnly"}}}"#;
        assert_eq!(judged(&(before.clone() + &data(failed))).verdict, Verdict::QuotaExhausted);
        for talk in talk() {
            let stream = before.clone() + &talk + &data(ERROR);
            assert_eq!(judged(&stream), Judgement::success(), "{talk}");
        }
        // A failure among them is one: what it is called does not hide it.
        let created = r#"{"type":"response.created","response":{"status":"in_progress"}}"#;
        let refused = format!("event:response.created\n:HTTP_STATUS/403\n{}", data(created));
        assert_eq!(judged(&refused).status, 403);
    }

    #[test]
    fn a_chunk_that_says_a_word_calls_a_tool_or_ends_is_the_first_that_carries_something() {
        for choices in [
            r#"{"delta":{"role":"assistant","content":"a"}}"#,
            r#"{"delta":{"role":"assistant","content":"","reasoning_content":"a"}}"#,
            r#"{"delta":{"content":"","tool_calls":[{"index":0}]}}"#,
            r#"{"delta":{"content":""},"finish_reason":"stop"}"#,
            r#"{"delta":{"content":""}},{"delta":{"content":"a"}}"#,
            r#"{"text":"a"}"#,
            "",
        ] {
            let chunk = data(&format!(r#"{{"choices":[{choices}]}}"#));
            assert!(opening(chunk.as_bytes()).is_some(), "{choices}");
        }
    }

    #[test]
    fn a_failure_is_one_by_its_name_its_response_or_without_any_frame() {
        let error = r#"{"code":"rate_limit_exceeded","message":"x"}"#;
        for stream in [
            format!("event:response.failed\ndata:{{\"response\":{{\"error\":{error}}}}}\n\n"),
            data(&format!(r#"{{"type":"response.created","response":{{"error":{error}}}}}"#)),
            format!(r#"{{"error":{error}}}"#),
            format!("{error}\n"),
        ] {
            assert_eq!(judged(&stream).status, 429, "{stream}");
        }
    }

    fn late(stream: &str, step: usize) -> Option<Judgement> {
        let mut scan = LateScan::default();
        let found: Vec<_> =
            stream.as_bytes().chunks(step).filter_map(|part| scan.see(part)).collect();
        assert!(found.len() <= 1);
        found.into_iter().next().or_else(|| scan.end())
    }

    #[test]
    fn a_late_exhaustion_is_learned_however_the_stream_is_cut() {
        let before = talk().concat() + &data(r#"{"error":{"code":"limit_requests"}}"#);
        let long = data(&format!("{{\"delta\":\"{}\"}}", "free ".repeat(40_000)));
        for end in
            [data(ERROR), format!("data: {ERROR}"), format!("event:error\r\ndata: {ERROR}\r\n\r\n")]
        {
            for stream in [format!("{before}{end}"), format!("{before}{long}{end}\n\n{before}")] {
                for step in [1, 2, 7, 4096, usize::MAX] {
                    if step > 2 || stream.len() < 10_000 {
                        let found = late(&stream, step).map(|found| found.verdict);
                        assert_eq!(found, Some(Verdict::QuotaExhausted), "{step} {end}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_a_model_says_is_no_exhaustion_however_the_stream_is_cut() {
        let long = data(&format!("{{\"delta\":\"{}\"}}", WORDS.replace('"', "'").repeat(2_000)));
        let stream = talk().concat() + &long + &talk().concat();
        for step in [7, 4096, usize::MAX] {
            assert_eq!(late(&stream, step), None, "{step}");
        }
    }

    #[test]
    fn a_scan_keeps_no_more_than_an_error_may_have() {
        let mut scan = LateScan::default();
        for _ in 0..1000 {
            assert_eq!(scan.see(&[b'x'; 1000]), None);
            assert!(scan.pending.len() <= MAX_ERROR_PREFIX);
        }
        assert_eq!(scan.pending.len(), 1);
    }
}
