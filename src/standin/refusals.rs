//! What DashScope refuses a request with besides a used-up free quota, in each protocol's code and
//! words (`dashscope.md` section 2.3), as an answer or in a stream that began with 200.

use super::answers::{Surface, quoted};
use super::shapes;

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// 429: too many requests in a minute.
    Requests,
    /// 429: the coding plan's week is used up.
    PlanWeek,
    /// 429: the token plan's week is used up, by its own code.
    TokenPlan,
    /// 429: too many requests of a plan at once.
    Concurrency,
    /// 429: the free quota of a model that cannot be paid for is over.
    FreeAllocation,
    /// 403: the account may not use the model.
    Unpurchased,
    /// 400: the account is overdue.
    Arrears,
    /// 401: the key is not accepted.
    Key,
    /// 503: the model has no capacity.
    Capacity,
    /// 500: something failed.
    Internal,
    /// 400: the content filter.
    Inspection,
}

/// How a refusal arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Told {
    /// As an answer with its status, in JSON.
    Answer,
    /// As an answer with its status, whose body is `data: {…}` and `data: [DONE]`.
    DataLines,
    /// As the first event of a 200 stream.
    FirstEvent,
    /// In a 200 stream, behind events that carry nothing.
    BehindKeepAlives,
    /// In a 200 stream, as a `response.failed`.
    ResponseFailed,
}

impl Refusal {
    /// Every refusal.
    pub const ALL: [Refusal; 11] = [
        Refusal::Requests,
        Refusal::PlanWeek,
        Refusal::TokenPlan,
        Refusal::Concurrency,
        Refusal::FreeAllocation,
        Refusal::Unpurchased,
        Refusal::Arrears,
        Refusal::Key,
        Refusal::Capacity,
        Refusal::Internal,
        Refusal::Inspection,
    ];

    /// Status, native code, OpenAI's code, Anthropic's type, message.
    fn facts(self) -> (u16, &'static str, &'static str, &'static str, &'static str) {
        const ALLOCATION: &str = "Throttling.AllocationQuota";
        const QUOTA: &str = "insufficient_quota";
        const RATE: &str = "rate_limit_error";
        const INVALID: &str = "invalid_request_error";
        match self {
            Self::Requests => (
                429,
                "Throttling.RateQuota",
                "limit_requests",
                RATE,
                "Requests rate limit exceeded, please try again later.",
            ),
            Self::PlanWeek => (429, ALLOCATION, QUOTA, RATE, "week allocated quota exceeded"),
            Self::TokenPlan => (
                429,
                "QuotaExhausted",
                "QuotaExhausted",
                RATE,
                "Your token-plan 1-week quota has been exhausted. The quota will reset at 09-19 07:14:00 UTC.",
            ),
            Self::Concurrency => {
                (429, ALLOCATION, QUOTA, RATE, "concurrency allocated quota exceeded")
            }
            Self::FreeAllocation => {
                (429, ALLOCATION, QUOTA, RATE, "Free allocated quota exceeded.")
            }
            Self::Unpurchased => (
                403,
                "AccessDenied.Unpurchased",
                "AccessDenied.Unpurchased",
                "AccessDenied.Unpurchased",
                "Access to model denied. Please make sure you are eligible for using the model.",
            ),
            Self::Arrears => (
                400,
                "Arrearage",
                "Arrearage",
                "Arrearage",
                "Access denied, please make sure your account is in good standing.",
            ),
            Self::Key => (
                401,
                "InvalidApiKey",
                "invalid_api_key",
                "authentication_error",
                "Incorrect API key provided.",
            ),
            Self::Capacity => (
                503,
                "ModelServingError",
                "ModelServingError",
                "overloaded_error",
                "Too many requests. Your requests are being throttled due to system capacity limits. Please try again later.",
            ),
            Self::Internal => (
                500,
                "InternalError.Algo",
                "internal_server_error",
                "InternalError.Algo",
                "<500> InternalError.Algo: list index out of range",
            ),
            Self::Inspection => (
                400,
                "DataInspectionFailed",
                "data_inspection_failed",
                INVALID,
                "Input data may contain inappropriate content.",
            ),
        }
    }
}

/// Status, content type, body.
pub(super) fn render(
    refusal: Refusal,
    told: Told,
    surface: Surface,
    id: &str,
) -> (u16, &'static str, String) {
    let (status, native, openai, anthropic, message) = refusal.facts();
    let body = match surface {
        Surface::Native => shapes::native(native, message, id),
        Surface::Messages => shapes::flat(native, message, id),
        _ => shapes::nested(openai, openai, message, id),
    };
    let event = match surface {
        Surface::Native => format!("id:1\nevent:error\n:HTTP_STATUS/{status}\ndata:{body}\n\n"),
        Surface::Messages => format!(
            "event:error\ndata:{{\"type\":\"error\",\"error\":{{\"type\":{},\"message\":{}}}}}\n\n",
            quoted(anthropic),
            quoted(message)
        ),
        _ => format!("data: {body}\n\n"),
    };
    match told {
        Told::Answer => (status, "application/json", body),
        Told::DataLines => (status, "application/json", format!("data: {body}\ndata: [DONE]\n\n")),
        Told::FirstEvent => (200, shapes::EVENTS, event),
        Told::BehindKeepAlives => (200, shapes::EVENTS, shapes::KEEP_ALIVES.to_owned() + &event),
        Told::ResponseFailed => (200, shapes::EVENTS, shapes::failed(openai, message, id)),
    }
}
