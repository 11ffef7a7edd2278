//! How the pool stands, as `/models/status` and the commands tell it.

use std::time::Duration;

use serde_json::{Value, json};

use crate::clock::Moment;
use crate::policy::pool::Pool;
use crate::policy::scheduler::{Scheduler, SlotView, Standing};
use crate::policy::verdict::Verdict;

/// The pool and its slots. `free_quota`: how many tokens a slot's has; 0 = unknown.
pub(crate) fn pool(scheduler: &Scheduler, free_quota: u64, moment: Moment) -> Value {
    let pool = scheduler.pool();
    let views = scheduler.view(moment);
    let models: Vec<Value> = views.iter().map(|view| slot(pool, view, free_quota)).collect();
    let twins = scheduler.twins().iter();
    let twins: Vec<_> = twins.map(|(a, b)| [pool.label(*a), pool.label(*b)]).collect();
    json!({
        "totalKeys": pool.key_count(),
        "modelsPerKey": pool.model_count(),
        "totalSlots": pool.slot_count(),
        "availableSlots": scheduler.available_count(moment.calendar),
        "freeQuotaTokens": Some(free_quota).filter(|tokens| *tokens > 0),
        "sameAccount": twins,
        "models": models,
    })
}

fn slot(pool: &Pool, view: &SlotView<'_>, free_quota: u64) -> Value {
    let (state, reason, rest) = match view.standing {
        Standing::Available => ("available", None, None),
        Standing::Benched(rest) => ("benched", view.last_verdict.map(Verdict::name), Some(rest)),
        Standing::Cooling(rest) => ("cooling", Some("free_quota_exhausted"), Some(rest)),
        Standing::Disabled => ("disabled", Some("manual"), None),
    };
    json!({
        "keyHash": pool.label(view.slot.key),
        "keyIndex": view.slot.key.0,
        "currentKey": view.current_key,
        "currentModel": view.current_model,
        "modelCursor": view.model_cursor,
        "id": &*view.slot.model,
        "available": view.is_available(),
        "state": state,
        "reason": reason,
        "secondsLeft": rest.map(whole_seconds),
        "cooldownUntil": view.cooldown_until.map(|end| end.to_string()),
        "failureCount": view.failure_count,
        "lastError": view.last_error,
        "lastUsedAt": view.last_used_at.map(|at| at.to_string()),
        "lastVerdict": view.last_verdict.map(Verdict::name),
        "requests": view.tally.requests,
        "inputTokens": view.tally.input_tokens,
        "outputTokens": view.tally.output_tokens,
        "images": view.tally.images,
        "unknownRequests": view.tally.unknown_requests,
        "estimatedTokensLeft": tokens_left(view, free_quota),
    })
}

/// Rounded up: what has not ended has a second left.
fn whole_seconds(rest: Duration) -> u64 {
    u64::try_from(rest.as_millis().div_ceil(1000)).unwrap_or(u64::MAX)
}

/// What may be left of a slot's free quota. Answers that did not say what they used make it too
/// much.
fn tokens_left(view: &SlotView<'_>, free_quota: u64) -> Option<u64> {
    let used = view.tally.input_tokens.saturating_add(view.tally.output_tokens);
    match view.standing {
        _ if free_quota == 0 => None,
        Standing::Cooling(_) => Some(0),
        _ => Some(free_quota.saturating_sub(used)),
    }
}
