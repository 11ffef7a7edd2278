//! What an upstream answer means for its slot.
//!
//! The code decides; the words count only where a code is shared. DashScope has changed the
//! sentence three times in a year and the code never (facts, section 2.1).

use serde::Deserialize;
use serde_json::Value;

use super::sse;

/// How much of an error body is looked at, in bytes.
pub const MAX_ERROR_PREFIX: usize = 64 * 1024;

/// The error code of DashScope for a used up free quota, at 403 in every capture.
const FREE_TIER_ONLY: &str = "AllocationQuota.FreeTierOnly";

/// Statuses at which that code is believed; 400 and 429 come from gateways in between.
const EXHAUSTION_STATUSES: [u16; 3] = [403, 400, 429];

/// Codes that mean other things as well: here the message has to speak of a free quota.
const SHARED_CODES: [&str; 3] = ["AccessDenied", "access_denied", "insufficient_quota"];

/// What an answer means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The free quota of this slot is used up; with upstream's message, if it had one.
    QuotaExhausted {
        /// Upstream's own words.
        message: Option<String>,
    },
    /// The request was served.
    Success,
    /// Anything else: it goes to the client as it is and teaches nothing.
    PassThrough,
}

/// Judges an answer that is not a success by its status and the first bytes of its body.
///
/// The content type is no guide: DashScope frames errors as events under `application/json`,
/// and the other way round (facts, section 2.2). So it is JSON first, then the first event.
#[must_use]
pub fn classify(status: u16, prefix: &[u8]) -> Verdict {
    if (200..300).contains(&status) {
        return Verdict::Success;
    }
    let Some(fault) = Fault::of_body(prefix) else { return Verdict::PassThrough };
    let by_code = EXHAUSTION_STATUSES.contains(&status) && fault.has_code(&[FREE_TIER_ONLY]);
    let by_words = status == 403 && fault.speaks_of_free_quota();
    if by_code || by_words {
        return Verdict::QuotaExhausted { message: fault.message };
    }
    Verdict::PassThrough
}

/// Judges a success by the first event of its stream. Its answer text is never looked at:
/// people ask models about DashScope errors.
#[must_use]
pub fn classify_first_event(payload: &[u8]) -> Verdict {
    match Fault::of_json(payload) {
        Some(fault) if fault.has_code(&[FREE_TIER_ONLY]) || fault.speaks_of_free_quota() => {
            Verdict::QuotaExhausted { message: fault.message }
        }
        _ => Verdict::Success,
    }
}

/// An error as any of DashScope's envelopes carries it: nested under `error`, or flat.
#[derive(Debug, Default)]
struct Fault {
    codes: Vec<String>,
    message: Option<String>,
}

#[derive(Deserialize)]
struct Envelope {
    error: Option<Value>,
    code: Option<Value>,
    r#type: Option<Value>,
    message: Option<Value>,
}

impl Fault {
    fn of_body(body: &[u8]) -> Option<Self> {
        let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
        Self::of_json(body).or_else(|| Self::of_json(&sse::first_payload(body)?))
    }

    fn of_json(json: &[u8]) -> Option<Self> {
        let flat: Envelope = serde_json::from_slice(json).ok()?;
        let nested = flat.error.unwrap_or_default();
        let codes =
            [nested.get("code"), nested.get("type"), flat.code.as_ref(), flat.r#type.as_ref()];
        let messages = [nested.get("message"), flat.message.as_ref()];
        Some(Self {
            codes: codes.into_iter().flatten().filter_map(text).collect(),
            message: messages.into_iter().flatten().find_map(text),
        })
    }

    fn has_code(&self, wanted: &[&str]) -> bool {
        self.codes.iter().any(|code| wanted.iter().any(|wanted| code.eq_ignore_ascii_case(wanted)))
    }

    fn speaks_of_free_quota(&self) -> bool {
        let message = self.message.as_deref().unwrap_or_default().to_ascii_lowercase();
        self.has_code(&SHARED_CODES)
            && (message.contains("free tier") || message.contains("free quota"))
            && message.contains("exhausted")
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: &str = "The free tier of the model has been exhausted. If you wish to continue \
        access the model on a paid basis, please disable the \\\"use free tier only\\\" mode.";

    fn exhausted(status: u16, body: &str) -> bool {
        matches!(classify(status, body.as_bytes()), Verdict::QuotaExhausted { .. })
    }

    fn flat(code: &str, message: &str) -> String {
        format!(r#"{{"code":"{code}","message":"{message}","request_id":"r"}}"#)
    }

    #[derive(Deserialize)]
    struct Row {
        name: String,
        status: u16,
        content_type: String,
        body: String,
        free_quota_exhausted: bool,
    }

    fn corpus() -> Vec<Row> {
        let text = include_str!("../../tests/data/upstream-corpus.jsonl");
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// As the relay judges: the first event of a stream that succeeded, else the body.
    fn judge(row: &Row) -> Verdict {
        let stream = row.content_type.starts_with("text/event-stream");
        match sse::first_event(row.body.as_bytes()) {
            Some(event) if row.status == 200 && stream => classify_first_event(&event),
            _ => classify(row.status, row.body.as_bytes()),
        }
    }

    #[test]
    fn every_exhaustion_of_the_corpus_is_known_and_nothing_else_is() {
        for row in corpus() {
            let verdict = judge(&row);
            let found = matches!(verdict, Verdict::QuotaExhausted { .. });
            assert_eq!(found, row.free_quota_exhausted, "{}", row.name);
            if let Verdict::QuotaExhausted { message } = verdict {
                assert!(message.is_some_and(|text| text.contains("exhausted")), "{}", row.name);
            }
        }
    }

    #[test]
    fn the_code_or_the_type_is_enough_nested_or_flat_in_any_case() {
        for body in [
            r#"{"error":{"code":"AllocationQuota.FreeTierOnly"}}"#,
            r#"{"error":{"type":"AllocationQuota.FreeTierOnly","code":null}}"#,
            r#"{"code":"allocationquota.freetieronly"}"#,
            r#"{"type":"ALLOCATIONQUOTA.FREETIERONLY"}"#,
            "\u{feff}{\"code\":\"AllocationQuota.FreeTierOnly\"}",
            "data: {\"code\":\"AllocationQuota.FreeTierOnly\"}\n\n",
            "id:1\nevent:error\n:HTTP_STATUS/403\ndata:{\"code\":\"AllocationQuota.FreeTierOnly\"}",
        ] {
            for status in [403, 400, 429] {
                assert!(exhausted(status, body), "{status} {body}");
            }
            for status in [401, 404, 500, 503] {
                assert!(!exhausted(status, body), "{status} {body}");
            }
        }
    }

    #[test]
    fn shared_codes_need_the_words_and_a_403() {
        for code in ["AccessDenied", "insufficient_quota"] {
            assert!(exhausted(403, &flat(code, WORDS)));
            assert!(exhausted(403, &flat(code, "Free quota exhausted. Add funds.")));
            assert!(!exhausted(403, &flat(code, "Access denied.")));
            assert!(!exhausted(403, &flat(code, "The free tier is not for you.")));
            assert!(!exhausted(403, &flat(code, "Your quota is exhausted.")));
            assert!(!exhausted(429, &flat(code, WORDS)));
            assert!(!exhausted(400, &flat(code, WORDS)));
        }
    }

    #[test]
    fn look_alikes_are_not_exhaustion() {
        let page = format!("<html><body>AllocationQuota.FreeTierOnly: {WORDS}</body></html>");
        for body in [
            "",
            "null",
            "[]",
            "\"AllocationQuota.FreeTierOnly\"",
            &page,
            &flat("Throttling.AllocationQuota", "Free allocated quota exceeded."),
            &flat("AllocationQuota", WORDS),
            &flat("AccessDenied.Unpurchased", WORDS),
            r#"{"error":"AllocationQuota.FreeTierOnly"}"#,
            r#"{"message":"AllocationQuota.FreeTierOnly"}"#,
            r#"{"choices":[{"code":"AllocationQuota.FreeTierOnly"}]}"#,
        ] {
            for status in [400, 403, 429, 500] {
                assert!(!exhausted(status, body), "{status} {body}");
            }
        }
    }

    #[test]
    fn a_success_is_not_searched() {
        let body = flat("AllocationQuota.FreeTierOnly", WORDS);
        assert_eq!(classify(200, body.as_bytes()), Verdict::Success);
        assert_eq!(classify(204, b""), Verdict::Success);
    }

    #[test]
    fn the_first_event_of_a_stream_may_be_an_exhaustion_but_not_talk_about_one() {
        let error = flat("AllocationQuota.FreeTierOnly", WORDS);
        assert!(matches!(
            classify_first_event(error.as_bytes()),
            Verdict::QuotaExhausted { message: Some(text) } if text.starts_with("The free tier")
        ));
        let talk =
            r#"{"choices":[{"delta":{"content":"{\"code\":\"AllocationQuota.FreeTierOnly\"}"}}]}"#;
        assert_eq!(classify_first_event(talk.as_bytes()), Verdict::Success);
        assert_eq!(classify_first_event(b"[DONE]"), Verdict::Success);
    }
}
