//! What an upstream answer means.
//!
//! The code decides; the words count only where a code is shared. DashScope has changed the
//! sentence three times in a year and the code never (facts, section 2.1).

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::sse;

/// How much of an error body is looked at, in bytes.
pub(crate) const MAX_ERROR_PREFIX: usize = 64 * 1024;

/// The error code of DashScope for a used up free quota, at 403 in every capture.
const FREE_TIER_ONLY: [&str; 1] = ["AllocationQuota.FreeTierOnly"];

/// Statuses at which that code is believed; 400 and 429 come from gateways in between.
const EXHAUSTION_STATUSES: [u16; 3] = [403, 400, 429];

/// Codes that mean other things as well: here the message has to speak of a free quota.
const SHARED_CODES: [&str; 3] = ["AccessDenied", "access_denied", "insufficient_quota"];

/// The account does not pay its bills, or has not bought the service.
const ACCOUNT_CODES: [&str; 4] =
    ["Arrearage", "PrepaidBillOverdue", "PostpaidBillOverdue", "CommodityNotPurchased"];

const KEY_CODES: [&str; 2] = ["InvalidApiKey", "invalid_api_key"];

/// What the hosts of the coding plans say of a key that is not theirs, at 403.
const KEY_WORDS: [&str; 2] = ["invalid api-key", "invalid access token"];

/// This account may not use this model, or there is no such model here.
const MODEL_CODES: [&str; 7] = [
    "AccessDenied.Unpurchased",
    "Model.AccessDenied",
    "Workspace.AccessDenied",
    "App.AccessDenied",
    "model_not_found",
    "ModelNotFound",
    "model_not_supported",
];

/// The code that says of a model that it does not exist, and of a hundred other things.
const PARAMETER_CODES: [&str; 1] = ["InvalidParameter"];
const MODEL_WORDS: [&str; 1] = ["model not exist"];

/// What a per-minute limit and a used up quota of a model that cannot be paid for both say.
const FREE_ALLOCATION_WORDS: [&str; 1] = ["free allocated quota exceeded"];

/// A rest when upstream does not say how long, and the shortest and longest that it may ask for.
const THROTTLE_REST: Duration = Duration::from_secs(30);
const THROTTLE_RANGE: (u64, u64) = (1, 300);

/// A rest from what no minute of waiting cures.
const LONG_REST: Duration = Duration::from_secs(600);

/// What an answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The free quota of this slot is used up.
    QuotaExhausted,
    /// Nothing of this account is served.
    AccountBlocked,
    /// The key is not accepted.
    KeyRejected,
    /// This key may not use this model.
    ModelDenied,
    /// This model cannot take the request; another may. Only [`limits`](super::limits) tells it
    /// from the caller's own mistake.
    ModelLimit,
    /// Too much at once; the slot should rest for this long.
    Throttled(Duration),
    /// Upstream is in trouble.
    Unavailable,
    /// Upstream failed, perhaps over this very request.
    InternalError,
    /// The request was served.
    Success,
    /// Anything else: it goes to the client as it is and teaches nothing.
    CallerError,
}

impl Verdict {
    /// The verdict's name in the log.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::QuotaExhausted => "quota_exhausted",
            Self::AccountBlocked => "account_blocked",
            Self::KeyRejected => "key_rejected",
            Self::ModelDenied => "model_denied",
            Self::ModelLimit => "model_limit",
            Self::Throttled(_) => "throttled",
            Self::Unavailable => "unavailable",
            Self::InternalError => "internal_error",
            Self::Success => "success",
            Self::CallerError => "caller_error",
        }
    }
}

/// A verdict with what upstream said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// Upstream's error code, if it gave one.
    pub code: Option<String>,
    /// Upstream's message, if it gave one.
    pub message: Option<String>,
}

impl Judgement {
    /// A success, of which nothing more is known.
    #[must_use]
    pub(crate) fn success() -> Self {
        Self { verdict: Verdict::Success, code: None, message: None }
    }

    fn of(verdict: Verdict, fault: Fault) -> Self {
        Self { verdict, code: fault.codes.into_iter().next(), message: fault.message }
    }
}

/// What is judged: an answer that is not a success.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure<'a> {
    /// The HTTP status.
    pub status: u16,
    /// `Retry-After` in seconds, if upstream sent it.
    pub retry_after: Option<u64>,
    /// The body's first bytes, at most [`MAX_ERROR_PREFIX`].
    pub prefix: &'a [u8],
    /// Whether the client named the model, so that a wrong one is its own mistake.
    pub names_model: bool,
}

/// Judges an answer. The first rule that fits counts; codes come before statuses.
///
/// The content type is no guide: DashScope frames errors as events under `application/json`,
/// and the other way round (facts, section 2.2). So it is JSON first, then the first event.
#[must_use]
pub(crate) fn classify(failure: Failure<'_>) -> Judgement {
    if (200..300).contains(&failure.status) {
        return Judgement::success();
    }
    let fault = Fault::of_body(failure.prefix).unwrap_or_default();
    let verdict = judge(failure, &fault);
    Judgement::of(verdict, fault)
}

fn judge(failure: Failure<'_>, fault: &Fault) -> Verdict {
    let Failure { status, retry_after, names_model, .. } = failure;
    let is_denied = fault.has_code(&MODEL_CODES)
        || status == 400 && fault.has_code(&PARAMETER_CODES) && fault.says(&MODEL_WORDS);
    if EXHAUSTION_STATUSES.contains(&status) && fault.has_code(&FREE_TIER_ONLY)
        || status == 403 && fault.speaks_of_free_quota()
    {
        Verdict::QuotaExhausted
    } else if fault.has_code(&ACCOUNT_CODES) {
        Verdict::AccountBlocked
    } else if status == 401 || fault.has_code(&KEY_CODES) || status == 403 && fault.says(&KEY_WORDS)
    {
        Verdict::KeyRejected
    } else if is_denied {
        if names_model { Verdict::CallerError } else { Verdict::ModelDenied }
    } else {
        match status {
            429 if fault.says(&FREE_ALLOCATION_WORDS) => Verdict::Throttled(LONG_REST),
            429 => Verdict::Throttled(throttle_rest(retry_after)),
            500 | 502 | 503 | 504 if fault.is_internal() => Verdict::InternalError,
            500 | 502 | 503 | 504 => Verdict::Unavailable,
            _ => Verdict::CallerError,
        }
    }
}

fn throttle_rest(retry_after: Option<u64>) -> Duration {
    let (shortest, longest) = THROTTLE_RANGE;
    let asked = retry_after.map(|seconds| Duration::from_secs(seconds.clamp(shortest, longest)));
    asked.unwrap_or(THROTTLE_REST)
}

/// Judges a success by the first event of its stream. Its answer text is never looked at:
/// people ask models about DashScope errors.
#[must_use]
pub(crate) fn classify_first_event(payload: &[u8]) -> Judgement {
    match Fault::of_json(payload, false) {
        Some(fault) if fault.has_code(&FREE_TIER_ONLY) || fault.speaks_of_free_quota() => {
            Judgement::of(Verdict::QuotaExhausted, fault)
        }
        _ => Judgement::success(),
    }
}

/// What an event says if it is an error.
#[must_use]
pub(crate) fn message_of_error(payload: &[u8]) -> Option<String> {
    Fault::of_json(payload, false).filter(|fault| !fault.codes.is_empty())?.message
}

/// An error as any of DashScope's envelopes carries it: nested under `error`, or flat.
#[derive(Debug, Default)]
struct Fault {
    codes: Vec<String>,
    message: Option<String>,
}

/// The members that may tell, as far as they have been read.
#[derive(Default)]
struct Envelope {
    error: Option<Value>,
    code: Option<Value>,
    r#type: Option<Value>,
    message: Option<Value>,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum Member {
    Error,
    Code,
    Type,
    Message,
    #[serde(other)]
    Other,
}

/// Fills an envelope member by member, so that what was read before an end counts.
struct Filling<'a>(&'a mut Envelope);

impl<'de> DeserializeSeed<'de> for Filling<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Filling<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self(envelope) = self;
        while let Some(member) = map.next_key()? {
            match member {
                Member::Error => envelope.error = map.next_value()?,
                Member::Code => envelope.code = map.next_value()?,
                Member::Type => envelope.r#type = map.next_value()?,
                Member::Message => envelope.message = map.next_value()?,
                Member::Other => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

impl Fault {
    fn of_body(body: &[u8]) -> Option<Self> {
        let is_cut = body.len() >= MAX_ERROR_PREFIX;
        let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
        Self::of_json(body, is_cut).or_else(|| Self::of_json(&sse::first_payload(body)?, is_cut))
    }

    /// `is_cut`: it may go on beyond what is looked at, and then what was read of it counts.
    fn of_json(json: &[u8], is_cut: bool) -> Option<Self> {
        let mut flat = Envelope::default();
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        let read = Filling(&mut flat).deserialize(&mut deserializer);
        match read.and_then(|()| deserializer.end()) {
            Ok(()) => {}
            Err(error) if error.is_eof() && is_cut => {}
            Err(_) => return None,
        }
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

    /// Whether the message holds one of these, which are in lower case.
    fn says(&self, words: &[&str]) -> bool {
        let message = self.message.as_deref().unwrap_or_default().to_ascii_lowercase();
        words.iter().any(|word| message.contains(word))
    }

    fn speaks_of_free_quota(&self) -> bool {
        self.has_code(&SHARED_CODES)
            && self.says(&["free tier", "free quota"])
            && self.says(&["exhausted"])
    }

    /// `InternalError`, `InternalError.Algo` and so on; on the OpenAI protocol
    /// `internal_server_error`.
    fn is_internal(&self) -> bool {
        self.codes.iter().any(|code| {
            let code = code.to_ascii_lowercase();
            code.starts_with("internalerror") || code == "internal_server_error"
        })
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

#[cfg(test)]
mod readme;

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: &str = "The free tier of the model has been exhausted. If you wish to continue \
        access the model on a paid basis, please disable the \\\"use free tier only\\\" mode.";

    fn failure(status: u16, body: &str) -> Failure<'_> {
        Failure { status, retry_after: None, prefix: body.as_bytes(), names_model: false }
    }

    fn judged(status: u16, body: &str) -> Verdict {
        classify(failure(status, body)).verdict
    }

    fn exhausted(status: u16, body: &str) -> bool {
        judged(status, body) == Verdict::QuotaExhausted
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
    fn judge_row(row: &Row) -> Judgement {
        let stream = row.content_type.starts_with("text/event-stream");
        match sse::first_event(row.body.as_bytes()) {
            Some(event) if row.status == 200 && stream => classify_first_event(&event),
            _ => classify(failure(row.status, &row.body)),
        }
    }

    #[test]
    fn every_exhaustion_of_the_corpus_is_known_and_nothing_else_is() {
        for row in corpus() {
            let judgement = judge_row(&row);
            let found = judgement.verdict == Verdict::QuotaExhausted;
            assert_eq!(found, row.free_quota_exhausted, "{}", row.name);
            if found {
                let message = judgement.message.unwrap();
                assert!(message.contains("exhausted"), "{}", row.name);
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
            r#"[null,"AllocationQuota.FreeTierOnly",null,null]"#,
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
        assert_eq!(judged(200, &body), Verdict::Success);
        assert_eq!(judged(204, ""), Verdict::Success);
    }

    #[test]
    fn the_first_event_of_a_stream_may_be_an_exhaustion_but_not_talk_about_one() {
        let error = flat("AllocationQuota.FreeTierOnly", WORDS);
        let judgement = classify_first_event(error.as_bytes());
        assert_eq!(judgement.verdict, Verdict::QuotaExhausted);
        assert!(judgement.message.unwrap().starts_with("The free tier"));
        let talk =
            r#"{"choices":[{"delta":{"content":"{\"code\":\"AllocationQuota.FreeTierOnly\"}"}}]}"#;
        assert_eq!(classify_first_event(talk.as_bytes()), Judgement::success());
        assert_eq!(classify_first_event(b"[DONE]"), Judgement::success());
    }

    /// The verdict of every row of the corpus that is no exhaustion and no success.
    #[test]
    fn every_failure_of_the_corpus_has_its_verdict() {
        let rest = Verdict::Throttled(THROTTLE_REST);
        let expected = [
            ("native_429_free_allocated_quota_exceeded", Verdict::Throttled(LONG_REST)),
            ("openai_429_free_allocated_quota_exceeded", Verdict::Throttled(LONG_REST)),
            ("openai_403_access_denied_unpurchased", Verdict::ModelDenied),
            ("native_403_access_denied_unpurchased", Verdict::ModelDenied),
            ("anthropic_count_tokens_403_unpurchased", Verdict::ModelDenied),
            ("native_403_model_access_denied", Verdict::ModelDenied),
            ("gateway_403_empty_body", Verdict::CallerError),
            ("openai_400_arrearage", Verdict::AccountBlocked),
            ("native_400_arrearage", Verdict::AccountBlocked),
            ("openai_400_data_inspection_failed", Verdict::CallerError),
            ("openai_stream_400_data_inspection_sse_framed", Verdict::CallerError),
            ("native_400_invalid_parameter_json", Verdict::CallerError),
            ("anthropic_400_model_not_exist", Verdict::ModelDenied),
            ("openai_401_incorrect_key_intl", Verdict::KeyRejected),
            ("native_401_invalid_api_key", Verdict::KeyRejected),
            ("anthropic_401_invalid_api_key", Verdict::KeyRejected),
            ("openai_404_model_not_found", Verdict::ModelDenied),
            ("gateway_413_request_too_large", Verdict::CallerError),
            ("openai_429_limit_requests", rest),
            ("openai_429_insufficient_quota_tpm", rest),
            ("openai_429_limit_burst_rate", rest),
            ("native_429_throttling_ratequota", rest),
            ("native_429_throttling_allocationquota", rest),
            ("token_plan_429_quota_exhausted", rest),
            ("openai_500_internal_server_error", Verdict::InternalError),
            ("native_500_request_timeout", Verdict::Unavailable),
            ("native_503_model_serving_error", Verdict::Unavailable),
            ("native_503_model_unavailable", Verdict::Unavailable),
            ("gateway_502_html", Verdict::Unavailable),
        ];
        let rows = corpus();
        let failures = rows.iter().filter(|row| row.status != 200 && !row.free_quota_exhausted);
        assert_eq!(failures.count(), expected.len(), "every failure is in the list");
        for (name, verdict) in expected {
            let row = rows.iter().find(|row| row.name == name).unwrap();
            assert_eq!(judge_row(row).verdict, verdict, "{name}");
        }
    }

    #[test]
    fn a_code_decides_at_any_status_and_in_any_envelope() {
        for (code, verdict) in [
            ("Arrearage", Verdict::AccountBlocked),
            ("postpaidbilloverdue", Verdict::AccountBlocked),
            ("CommodityNotPurchased", Verdict::AccountBlocked),
            ("invalid_api_key", Verdict::KeyRejected),
            ("AccessDenied.Unpurchased", Verdict::ModelDenied),
            ("ModelNotFound", Verdict::ModelDenied),
        ] {
            for status in [400, 403, 404, 429, 500] {
                let nested = format!(r#"{{"error":{{"message":"x","type":"{code}"}}}}"#);
                let padded = format!(r#"{{"padding":"{}","code":"{code}"}}"#, "x".repeat(60_000));
                let framed = format!("event:error\ndata:{{\"code\":\"{code}\"}}\n\n");
                for body in [flat(code, "x"), nested, padded, framed] {
                    assert_eq!(judged(status, &body), verdict, "{status} {code}");
                }
            }
        }
    }

    #[test]
    fn a_code_before_64_kib_of_padding_counts_and_one_behind_them_does_not() {
        let padding = "x".repeat(MAX_ERROR_PREFIX);
        let cut = |text: String| text[..MAX_ERROR_PREFIX].to_owned();
        let before = cut(format!(r#"{{"code":"Arrearage","padding":"{padding}"}}"#));
        assert_eq!(judged(400, &before), Verdict::AccountBlocked);
        let nested = cut(format!(r#"{{"error":{{"code":"Arrearage"}},"padding":"{padding}"}}"#));
        assert_eq!(judged(400, &nested), Verdict::AccountBlocked);
        for start in ["\u{feff}", "data: ", "id:1\nevent:error\ndata:"] {
            let framed = cut(format!("{start}{before}"));
            assert_eq!(judged(400, &framed), Verdict::AccountBlocked, "{start:?}");
        }
        let behind = cut(format!(r#"{{"padding":"{padding}","code":"Arrearage"}}"#));
        assert_eq!(judged(400, &behind), Verdict::CallerError);
    }

    #[test]
    fn look_alikes_of_each_verdict_are_none() {
        for (status, code, message) in [
            (
                400,
                "ArrearageX",
                "Access denied, please make sure your account is in good standing.",
            ),
            (400, "x", "Arrearage"),
            (403, "AccessDenied", "Access denied."),
            (403, "AccessDenied", "current user api does not support synchronous calls."),
            (400, "InvalidParameter", "url error, please check url!"),
            (404, "InvalidParameter", "Model not exist."),
            (400, "invalid_parameter_error", "stream must be a boolean"),
            (403, "x", "This model only support stream mode"),
            (418, "Throttling", "Requests throttling triggered."),
            (400, "InternalError.Algo.InvalidParameter", "Range of input length"),
        ] {
            let verdict = judged(status, &flat(code, message));
            assert_eq!(verdict, Verdict::CallerError, "{status} {code} {message}");
        }
    }

    #[test]
    fn a_model_that_the_client_named_is_its_own_mistake() {
        let body = flat("ModelNotFound", "Model can not be found.");
        let named = Failure { names_model: true, ..failure(404, &body) };
        assert_eq!(classify(named).verdict, Verdict::CallerError);
        assert_eq!(judged(404, &body), Verdict::ModelDenied);
    }

    #[test]
    fn only_an_error_has_a_message_of_one() {
        let of = |payload: &str| message_of_error(payload.as_bytes());
        assert_eq!(of(&flat("InvalidParameter", "x")).as_deref(), Some("x"));
        assert_eq!(of(r#"{"error":{"code":"c","message":"x"}}"#).as_deref(), Some("x"));
        assert_eq!(of(r#"{"message":"x"}"#), None);
        assert_eq!(of(r#"{"type":"message_start","message":{"content":[]}}"#), None);
        assert_eq!(of("[DONE]"), None);
    }

    #[test]
    fn plan_hosts_reject_a_key_in_words() {
        assert_eq!(judged(403, &flat("x", "invalid api-key")), Verdict::KeyRejected);
        let message = "invalid access token or token expired";
        assert_eq!(judged(401, &flat("x", message)), Verdict::KeyRejected);
        assert_eq!(judged(400, &flat("x", "invalid api-key")), Verdict::CallerError);
    }

    #[test]
    fn retry_after_is_believed_between_a_second_and_five_minutes() {
        for (asked, seconds) in [(None, 30), (Some(0), 1), (Some(7), 7), (Some(86_400), 300)] {
            let judged = classify(Failure { retry_after: asked, ..failure(429, "") });
            assert_eq!(judged.verdict, Verdict::Throttled(Duration::from_secs(seconds)));
        }
    }

    #[test]
    fn what_upstream_said_is_kept_for_the_log() {
        let judgement = classify(failure(429, &flat("Throttling.RateQuota", "slow down")));
        assert_eq!(judgement.code.as_deref(), Some("Throttling.RateQuota"));
        assert_eq!(judgement.message.as_deref(), Some("slow down"));
    }
}
