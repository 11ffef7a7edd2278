//! What an upstream answer means.
//!
//! The code decides; DashScope has changed the sentence of a used up free quota three times in a
//! year and the code never (facts, section 2.1). At 403 the sentence is enough as well: an
//! exhaustion that is missed is a dead pool, a false one costs one slot until a reset.

mod fault;
mod stream;

use std::time::Duration;

use super::bench::LONG_BACKOFF;
use super::sse::Event;
use fault::Fault;
pub(crate) use stream::{LateScan, opening, opening_at_end};

/// How much of an error body is looked at, in bytes.
pub(crate) const MAX_ERROR_PREFIX: usize = 64 * 1024;

/// The error code of DashScope for a used up free quota, at 403 in every capture.
const FREE_TIER_ONLY: [&str; 1] = ["AllocationQuota.FreeTierOnly"];

/// Statuses at which that code is believed; 400 and 429 come from gateways in between.
const EXHAUSTION_STATUSES: [u16; 3] = [403, 400, 429];

/// The words for it, whatever the code, at 403: one of each. And the code inside of a message.
const FREE_QUOTA_WORDS: [&str; 2] = ["free tier", "free quota"];
const USED_UP_WORDS: [&str; 2] = ["exhausted", "used up"];
const FREE_TIER_ONLY_WORDS: [&str; 1] = ["allocationquota.freetieronly"];

/// Where only words may decide.
const FORBIDDEN: u16 = 403;

/// What the status of an error is that does not tell one, in an event: the caller's.
const UNTOLD: u16 = 400;

/// The account does not pay its bills, or has not bought the service.
const ACCOUNT_CODES: [&str; 4] =
    ["Arrearage", "PrepaidBillOverdue", "PostpaidBillOverdue", "CommodityNotPurchased"];

const KEY_CODES: [&str; 2] = ["InvalidApiKey", "invalid_api_key"];

/// What the hosts of the coding plans say of a key that is not theirs, at 403.
const KEY_WORDS: [&str; 2] = ["invalid api-key", "invalid access token"];

/// This account may not use this model.
const ELIGIBILITY_CODES: [&str; 4] = [
    "AccessDenied.Unpurchased",
    "Model.AccessDenied",
    "Workspace.AccessDenied",
    "App.AccessDenied",
];

/// There is no such model here.
const MODEL_CODES: [&str; 3] = ["model_not_found", "ModelNotFound", "model_not_supported"];

/// The code that says of a model that it does not exist, and of a hundred other things.
const PARAMETER_CODES: [&str; 1] = ["InvalidParameter"];
const MODEL_WORDS: [&str; 1] = ["model not exist"];

/// What a per-minute limit and a used up quota of a model that cannot be paid for both say.
const FREE_ALLOCATION_WORDS: [&str; 1] = ["free allocated quota exceeded"];

/// The quota of a plan, which all models of an account share: the token plan's code, and what the
/// coding plan and the token plan say, one of each with a blank between them.
const PLAN_CODES: [&str; 1] = ["QuotaExhausted"];
const PLAN_WINDOWS: [&str; 9] =
    ["hour", "hours", "hourly", "day", "daily", "week", "weekly", "month", "monthly"];
const PLAN_WORDS: [&str; 2] = ["allocated quota exceeded", "quota has been exhausted"];

/// A rest when upstream does not say how long, and the shortest and longest that it may ask for.
const THROTTLE_REST: Duration = Duration::from_secs(30);
const THROTTLE_RANGE: (u64, u64) = (1, 300);

/// What an answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The free quota of this slot is used up.
    QuotaExhausted,
    /// Nothing of this account is served.
    AccountBlocked,
    /// The key is not accepted.
    KeyRejected,
    /// This account may not use this model.
    ModelDenied,
    /// There is no such model here.
    ModelMissing,
    /// This model cannot take the request; another may. Only [`limits`](super::limits) tells it
    /// from the caller's own mistake.
    ModelLimit,
    /// Too much at once; the slot should rest for this long.
    Throttled(Duration),
    /// Too much of the account's plan.
    PlanThrottled,
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
            Self::ModelDenied | Self::ModelMissing => "model_denied",
            Self::ModelLimit => "model_limit",
            Self::Throttled(_) | Self::PlanThrottled => "throttled",
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
    /// The status: the answer's, or what the event says that the answer should have had.
    pub status: u16,
    /// Upstream's error code, if it gave one.
    pub code: Option<String>,
    /// Upstream's message, if it gave one.
    pub message: Option<String>,
}

impl Judgement {
    /// A success, of which nothing more is known.
    #[must_use]
    pub(crate) fn success() -> Self {
        Self { verdict: Verdict::Success, status: 200, code: None, message: None }
    }

    /// Upstream's error code, for the log.
    #[must_use]
    pub(crate) fn code(&self) -> &str {
        self.code.as_deref().unwrap_or("-")
    }

    fn of(verdict: Verdict, status: u16, fault: Fault) -> Self {
        let (code, message) = (fault.codes.into_iter().next(), fault.messages.into_iter().next());
        Self { verdict, status, code, message }
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
    let status = failure.status;
    if (200..300).contains(&status) {
        return Judgement { status, ..Judgement::success() };
    }
    let fault = Fault::of_body(failure.prefix).unwrap_or_default();
    let is_used_up = EXHAUSTION_STATUSES.contains(&status) && fault.has_code(&FREE_TIER_ONLY)
        || status == FORBIDDEN
            && (is_used_up_in_words(&fault)
                || fault.messages.is_empty() && is_used_up_in_text(failure.prefix));
    let verdict = if is_used_up { Verdict::QuotaExhausted } else { judge(failure, &fault) };
    Judgement::of(verdict, status, fault)
}

/// Judges an event of a stream that began with a success, by the same rules: a success if it is
/// no error. What an answer says is never looked at: people ask models about DashScope errors.
#[must_use]
pub(crate) fn classify_event(event: &Event, names_model: bool) -> Judgement {
    let Some(fault) = Fault::of_event(event) else { return Judgement::success() };
    let status = fault.status.or_else(|| fault.status_of_codes()).unwrap_or(UNTOLD);
    let may_say_so = fault.status.is_none_or(|status| status == FORBIDDEN);
    let is_used_up = fault.has_code(&FREE_TIER_ONLY) || may_say_so && is_used_up_in_words(&fault);
    let told = Failure { status, retry_after: None, prefix: &[], names_model };
    let verdict = if is_used_up { Verdict::QuotaExhausted } else { judge(told, &fault) };
    Judgement::of(verdict, status, fault)
}

/// Whether a message says that a free quota is used up. That decides at 403 only.
fn is_used_up_in_words(fault: &Fault) -> bool {
    let both =
        |text: &String| fault::says(text, &FREE_QUOTA_WORDS) && fault::says(text, &USED_UP_WORDS);
    fault.messages.iter().any(both) || fault.says(&FREE_TIER_ONLY_WORDS)
}

/// The same of a body without a message that is known as one, if it is no web page.
fn is_used_up_in_text(body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(body);
    let is_page = fault::says(&text, &["<html", "<!doctype html"]);
    !is_page && fault::says(&text, &FREE_QUOTA_WORDS) && fault::says(&text, &USED_UP_WORDS)
}

/// Judges what is no exhaustion.
fn judge(failure: Failure<'_>, fault: &Fault) -> Verdict {
    let Failure { status, retry_after, names_model, .. } = failure;
    let is_denied = fault.has_code(&ELIGIBILITY_CODES);
    let is_missing = fault.has_code(&MODEL_CODES)
        || status == 400 && fault.has_code(&PARAMETER_CODES) && fault.says(&MODEL_WORDS);
    if fault.has_code(&ACCOUNT_CODES) {
        Verdict::AccountBlocked
    } else if status == 401
        || fault.has_code(&KEY_CODES)
        || status == FORBIDDEN && fault.says(&KEY_WORDS)
    {
        Verdict::KeyRejected
    } else if (is_denied || is_missing) && names_model {
        Verdict::CallerError
    } else if is_denied {
        Verdict::ModelDenied
    } else if is_missing {
        Verdict::ModelMissing
    } else if fault.has_code(&PLAN_CODES) || status == 429 && speaks_of_plan(fault) {
        Verdict::PlanThrottled
    } else {
        match status {
            429 if fault.says(&FREE_ALLOCATION_WORDS) => Verdict::Throttled(LONG_BACKOFF),
            429 => Verdict::Throttled(throttle_rest(retry_after)),
            500 | 502 | 503 | 504 if fault.is_internal() => Verdict::InternalError,
            500 | 502 | 503 | 504 => Verdict::Unavailable,
            _ => Verdict::CallerError,
        }
    }
}

fn speaks_of_plan(fault: &Fault) -> bool {
    PLAN_WINDOWS
        .iter()
        .any(|window| PLAN_WORDS.iter().any(|words| fault.says(&[&format!("{window} {words}")])))
}

fn throttle_rest(retry_after: Option<u64>) -> Duration {
    let (shortest, longest) = THROTTLE_RANGE;
    let asked = retry_after.map(|seconds| Duration::from_secs(seconds.clamp(shortest, longest)));
    asked.unwrap_or(THROTTLE_REST)
}

#[cfg(test)]
mod readme;

#[cfg(test)]
mod tests {
    use serde::Deserialize;

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
        match opening(row.body.as_bytes()) {
            Some(event) if row.status == 200 && stream => classify_event(&event, false),
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
    fn at_403_the_words_alone_decide_whatever_the_code_or_none() {
        let text = format!("403 AllocationQuota.FreeTierOnly: {}", "Sorry.");
        let as_text = |json: &str| serde_json::to_string(json).unwrap();
        let capital = format!(r#"{{"RequestId":"r","Code":"Forbidden","Message":"{WORDS}"}}"#);
        for body in [
            flat("AccessDenied", WORDS),
            flat("insufficient_quota", "Free quota exhausted. Add funds."),
            flat("AccessDenied.Unpurchased", WORDS),
            flat("permission_error", "Your FREE QUOTA is used up."),
            flat("AllocationQuota", WORDS),
            flat("", WORDS),
            flat("x", &text),
            format!(r#"{{"message":"{WORDS}"}}"#),
            format!(
                r#"{{"type":"error","error":{{"type":"permission_error","message":"{WORDS}"}}}}"#
            ),
            format!(r#"{{"error":"{WORDS}"}}"#),
            format!(r#"{{"status":403,"error":"Payment Required","message":"{WORDS}"}}"#),
            format!(r#"{{"error":{}}}"#, as_text(&flat("Forbidden", WORDS))),
            format!(r#"{{"error":{}}}"#, as_text(&format!(r#"{{"error":{}}}"#, flat("x", WORDS)))),
            format!(r#"{{"Error":{{"Message":"{WORDS}"}}}}"#),
            capital.clone(),
            format!("data: {capital}\ndata: [DONE]\n\n"),
            // No envelope that is known, and none at all.
            format!(r#"{{"detail":"{WORDS}"}}"#),
            format!(r#"[{{"errorMessage":"{WORDS}"}}]"#),
            "The free tier of the model has been exhausted.".to_owned(),
            format!("<?xml version=\"1.0\"?><Error><Message>{WORDS}</Message></Error>"),
        ] {
            assert!(exhausted(403, &body), "{body}");
            for status in [400, 401, 404, 429, 500] {
                assert!(!exhausted(status, &body), "{status} {body}");
            }
        }
        for words in ["Access denied.", "The free tier is not for you.", "Your quota is exhausted."]
        {
            assert!(!exhausted(403, &flat("AccessDenied", words)), "{words}");
        }
    }

    #[test]
    fn the_code_is_known_in_capitals_and_in_texts_of_json() {
        for body in [
            r#"{"Code":"AllocationQuota.FreeTierOnly","Message":"x","RequestId":"r"}"#,
            r#"{"ERROR":{"CODE":"AllocationQuota.FreeTierOnly"}}"#,
            r#"{"error":"AllocationQuota.FreeTierOnly"}"#,
            r#"{"error":"{\"code\":\"AllocationQuota.FreeTierOnly\",\"message\":\"x\"}"}"#,
            r#"{"error":"{\"error\":{\"type\":\"AllocationQuota.FreeTierOnly\"}}","message":"x"}"#,
        ] {
            for status in EXHAUSTION_STATUSES {
                assert!(exhausted(status, body), "{status} {body}");
            }
        }
    }

    #[test]
    fn the_payload_is_the_first_data_line_that_is_json() {
        let json = r#"{"error":{"code":"AllocationQuota.FreeTierOnly"}}"#;
        for body in [
            format!("data: {json}\ndata: [DONE]\n\n"),
            format!("data:{json}\r\ndata: [DONE]"),
            format!("event: x\r\ndata: hello\r\n\r\nid: 2\r\ndata: {json}\r\n\r\n"),
            format!("\u{feff}data:\ndata: {json}"),
            format!(": keep-alive\n\nevent:ping\n\ndata:   {json}   \n"),
            "data: {\n  \"error\": {\n    \"code\": \"AllocationQuota.FreeTierOnly\"\n  }\n}"
                .to_owned(),
            "data: {\"error\":\ndata: {\"code\":\"AllocationQuota.FreeTierOnly\"}\ndata: }\n\n"
                .to_owned(),
        ] {
            assert!(exhausted(403, &body) && exhausted(400, &body), "{body}");
        }
        let second = format!("data: {{\"code\":\"x\"}}\n\ndata: {json}\n\n");
        assert!(!exhausted(400, &second));
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
            &flat("AccessDenied.Unpurchased", "Access to model denied."),
            r#"[null,"AllocationQuota.FreeTierOnly",null,null]"#,
            r#"{"choices":[{"code":"AllocationQuota.FreeTierOnly"}]}"#,
        ] {
            for status in [400, 403, 429, 500] {
                assert!(!exhausted(status, body), "{status} {body}");
            }
        }
        // The code in a message counts where words do.
        assert!(!exhausted(400, r#"{"message":"AllocationQuota.FreeTierOnly"}"#));
    }

    #[test]
    fn a_success_is_not_searched() {
        let body = flat("AllocationQuota.FreeTierOnly", WORDS);
        assert_eq!(judged(200, &body), Verdict::Success);
        assert_eq!(judged(204, ""), Verdict::Success);
    }

    /// The verdict of every row of the corpus that is no exhaustion and no success.
    #[test]
    fn every_failure_of_the_corpus_has_its_verdict() {
        let rest = Verdict::Throttled(THROTTLE_REST);
        let expected = [
            ("native_429_free_allocated_quota_exceeded", Verdict::Throttled(LONG_BACKOFF)),
            ("openai_429_free_allocated_quota_exceeded", Verdict::Throttled(LONG_BACKOFF)),
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
            ("anthropic_400_model_not_exist", Verdict::ModelMissing),
            ("openai_401_incorrect_key_intl", Verdict::KeyRejected),
            ("native_401_invalid_api_key", Verdict::KeyRejected),
            ("anthropic_401_invalid_api_key", Verdict::KeyRejected),
            ("openai_404_model_not_found", Verdict::ModelMissing),
            ("gateway_413_request_too_large", Verdict::CallerError),
            ("openai_429_limit_requests", rest),
            ("openai_429_insufficient_quota_tpm", rest),
            ("openai_429_limit_burst_rate", rest),
            ("native_429_throttling_ratequota", rest),
            ("native_429_throttling_allocationquota", rest),
            ("token_plan_429_quota_exhausted", Verdict::PlanThrottled),
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
            ("ModelNotFound", Verdict::ModelMissing),
            ("Workspace.AccessDenied", Verdict::ModelDenied),
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
        assert_eq!(judged(404, &body), Verdict::ModelMissing);
    }

    #[test]
    fn a_plans_quota_is_the_accounts_and_its_concurrency_is_not() {
        let code = flat(
            "QuotaExhausted",
            "Your token-plan 1-week quota has been exhausted. The \
            quota will reset at 09-19 07:14:00 UTC.",
        );
        for status in [400, 403, 429] {
            assert_eq!(judged(status, &code), Verdict::PlanThrottled);
        }
        for message in [
            "hour allocated quota exceeded",
            "Week allocated quota exceeded, please try again later.",
            "month allocated quota exceeded",
            "Your 5 hours allocated quota exceeded",
            "daily allocated quota exceeded",
            "Weekly allocated quota exceeded.",
            "monthly allocated quota exceeded.",
            "Your coding-plan 5-hour quota has been exhausted.",
        ] {
            let body = flat("Throttling.AllocationQuota", message);
            assert_eq!(judged(429, &body), Verdict::PlanThrottled, "{message}");
            assert_eq!(judged(400, &body), Verdict::CallerError, "{message}");
        }
        for message in [
            "concurrency allocated quota exceeded",
            "minute allocated quota exceeded",
            "per second allocated quota exceeded",
            "Allocated quota exceeded.",
        ] {
            let rest = Verdict::Throttled(THROTTLE_REST);
            assert_eq!(judged(429, &flat("Throttling", message)), rest, "{message}");
        }
        // The free tier goes before.
        assert!(exhausted(
            429,
            &flat("AllocationQuota.FreeTierOnly", "week allocated quota exceeded")
        ));
        assert!(exhausted(403, &flat("QuotaExhausted", WORDS)));
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
