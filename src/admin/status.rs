//! How the pool stands, as `/models/status` and the commands tell it.

use std::time::Duration;

use serde_json::{Value, json};

use crate::clock::Moment;
use crate::policy::limits::Fact;
use crate::policy::pool::Pool;
use crate::policy::scheduler::{Guarding, Scheduler, SlotView, Standing};
use crate::policy::verdict::Verdict;

/// The pool and its slots.
pub(crate) fn pool(scheduler: &Scheduler, moment: Moment) -> Value {
    let pool = scheduler.pool();
    let views = scheduler.view(moment);
    let models: Vec<Value> = views.iter().map(|view| slot(pool, view)).collect();
    let guard = scheduler.guard();
    let twins = scheduler.twins().iter();
    let twins: Vec<_> = twins.map(|(a, b)| [pool.label(*a), pool.label(*b)]).collect();
    json!({
        "totalKeys": pool.key_count(),
        "modelsPerKey": pool.model_count(),
        "totalSlots": pool.slot_count(),
        "availableSlots": scheduler.available_count(moment.calendar),
        "freeQuotaTokens": Some(guard.quotas.usual).filter(|tokens| *tokens > 0),
        "quotaGuard": guard.percent,
        "sameAccount": twins,
        "models": models,
    })
}

fn slot(pool: &Pool, view: &SlotView<'_>) -> Value {
    let (state, reason, rest) = match view.standing {
        Standing::Available => ("available", None, None),
        Standing::Benched(rest) => ("benched", view.last_verdict.map(Verdict::name), Some(rest)),
        // A guarded pool does not wait for the end of a cooldown.
        Standing::Cooling(rest) => {
            let rest = (view.guarding == Guarding::Off).then_some(rest);
            ("cooling", Some("free_quota_exhausted"), rest)
        }
        Standing::Guarded if view.guarding == Guarding::Left => {
            ("guarded", Some("quota_guard"), None)
        }
        Standing::Guarded => ("guarded", Some("free_quota_exhausted"), None),
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
        "limits": view.limits.iter().map(|fact| limit(fact)).collect::<Vec<_>>(),
        "requests": view.tally.requests,
        "inputTokens": view.tally.input_tokens,
        "outputTokens": view.tally.output_tokens,
        "estimatedTokens": view.tally.estimated_tokens,
        "images": view.tally.images,
        "unknownRequests": view.tally.unknown_requests,
        "freeQuotaTokens": view.quota,
        "estimatedTokensLeft": tokens_left(view),
        "guard": view.guarding.name(),
    })
}

/// What a model cannot take.
fn limit(fact: &Fact) -> Value {
    let on = fact.limit.hangs_on();
    json!({
        "kind": fact.limit.kind(),
        "bound": fact.limit.bound(),
        "on": Some(on).filter(|on| !on.is_empty()),
        "path": &*fact.path,
        "said": &*fact.said,
        "learnedAt": fact.learned.calendar.to_string(),
        "until": fact.until().to_string(),
    })
}

/// Rounded up: what has not ended has a second left.
fn whole_seconds(rest: Duration) -> u64 {
    u64::try_from(rest.as_millis().div_ceil(1000)).unwrap_or(u64::MAX)
}

/// What is left at least of a slot's free quota, if nothing else uses the account; nothing once
/// DashScope has said so.
fn tokens_left(view: &SlotView<'_>) -> Option<u64> {
    let is_refused = match view.standing {
        Standing::Cooling(_) => true,
        Standing::Guarded => view.guarding != Guarding::Left,
        _ => false,
    };
    match view.quota {
        Some(_) if is_refused => Some(0),
        Some(_) | None if view.tally.is_in_other_units() => None,
        quota => quota.map(|quota| quota.saturating_sub(view.tally.tokens())),
    }
}
