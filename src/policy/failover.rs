//! When a request goes on to another slot, and which answer it gets when nothing helped.

use std::time::Duration;

use super::bench::{LONG_BACKOFF, PLAN_BACKOFF, Rest};
use super::verdict::Verdict;

/// How many further slots a request tries over anything but exhaustion.
const FURTHER_SLOTS: u32 = 2;

/// How many further slots it tries when the request itself may be the cause.
const FURTHER_AFTER_INTERNAL: u32 = 1;

/// No further slot is tried once the request is this old.
const LATEST: Duration = Duration::from_secs(30);

/// Whether anything but exhaustion tries another slot: `FAILOVER`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Failover {
    /// Everything that another slot may cure does.
    #[default]
    On,
    /// Nothing but exhaustion does; every other answer passes as it is and teaches nothing.
    QuotaOnly,
}

impl Failover {
    /// The verdict that counts.
    #[must_use]
    pub fn admit(self, verdict: Verdict) -> Verdict {
        match verdict {
            Verdict::QuotaExhausted | Verdict::Success => verdict,
            _ if self == Self::QuotaOnly => Verdict::CallerError,
            _ => verdict,
        }
    }
}

/// What a verdict costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Penalty {
    /// Nothing.
    None,
    /// The slot rests, at this base URL.
    Slot(Rest),
    /// The slot rests for the longest, and with a second one of its key that is denied the key.
    Denied,
    /// The key rests with all its slots.
    Key(Duration),
}

/// Who rests after a verdict, and for how long.
#[must_use]
pub(crate) fn penalty(verdict: Verdict) -> Penalty {
    match verdict {
        Verdict::AccountBlocked | Verdict::KeyRejected => Penalty::Key(LONG_BACKOFF),
        Verdict::PlanThrottled => Penalty::Key(PLAN_BACKOFF),
        Verdict::ModelDenied => Penalty::Denied,
        Verdict::ModelMissing => Penalty::Slot(Rest::For(LONG_BACKOFF)),
        Verdict::Throttled(rest) => Penalty::Slot(Rest::For(rest)),
        Verdict::Unavailable => Penalty::Slot(Rest::Growing),
        Verdict::QuotaExhausted
        | Verdict::ModelLimit
        | Verdict::InternalError
        | Verdict::Success
        | Verdict::CallerError => Penalty::None,
    }
}

/// Which slots a request does without, or tries after all others, once one gave this verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Avoid {
    /// This slot alone.
    Slot,
    /// Others of its key come last, and others of its model once a second key has refused it.
    KeyFirst,
    /// Every slot of its key.
    Key,
}

/// What a request makes of a verdict that sends it on.
#[must_use]
pub(crate) fn avoid(verdict: Verdict) -> Avoid {
    match verdict {
        Verdict::AccountBlocked | Verdict::KeyRejected | Verdict::PlanThrottled => Avoid::Key,
        Verdict::ModelDenied | Verdict::ModelMissing => Avoid::KeyFirst,
        _ => Avoid::Slot,
    }
}

/// How often one request has gone on already.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Budget {
    further: u32,
}

impl Budget {
    /// Whether a request of this `age` goes on to a further slot after `verdict`.
    pub(crate) fn allows(&mut self, verdict: Verdict, age: Duration) -> bool {
        let limit = match verdict {
            Verdict::QuotaExhausted | Verdict::ModelLimit => return true,
            Verdict::Success | Verdict::CallerError => return false,
            Verdict::InternalError => FURTHER_AFTER_INTERNAL,
            Verdict::AccountBlocked
            | Verdict::KeyRejected
            | Verdict::ModelDenied
            | Verdict::ModelMissing
            | Verdict::Throttled(_)
            | Verdict::PlanThrottled
            | Verdict::Unavailable => FURTHER_SLOTS,
        };
        let allowed = self.further < limit && age < LATEST;
        self.further += u32::from(allowed);
        allowed
    }
}

/// Whether `status` is better handed on than `before`: a 429 or 5xx tells the client that trying
/// again may help. Among equals the last counts.
#[must_use]
pub(crate) fn is_better(status: u16, before: u16) -> bool {
    is_hopeful(status) || !is_hopeful(before)
}

fn is_hopeful(status: u16) -> bool {
    status == 429 || status >= 500
}

#[cfg(test)]
mod tests {
    use super::*;

    const YOUNG: Duration = Duration::from_secs(1);
    const THROTTLED: Verdict = Verdict::Throttled(Duration::from_secs(30));

    #[test]
    fn two_further_slots_are_tried_and_no_more() {
        let mut budget = Budget::default();
        assert!(budget.allows(THROTTLED, YOUNG));
        assert!(budget.allows(Verdict::KeyRejected, YOUNG));
        assert!(!budget.allows(THROTTLED, YOUNG));
    }

    #[test]
    fn exhaustion_and_streaming_only_cost_no_budget() {
        let mut budget = Budget::default();
        for _ in 0..100 {
            assert!(budget.allows(Verdict::QuotaExhausted, LATEST * 100));
            assert!(budget.allows(Verdict::ModelLimit, LATEST * 100));
        }
        assert!(budget.allows(THROTTLED, YOUNG));
    }

    #[test]
    fn an_old_request_does_not_go_on() {
        let mut budget = Budget::default();
        assert!(!budget.allows(THROTTLED, LATEST));
        assert!(budget.allows(THROTTLED, LATEST.saturating_sub(Duration::from_millis(1))));
    }

    #[test]
    fn an_internal_error_is_tried_once_more() {
        let mut budget = Budget::default();
        assert!(budget.allows(Verdict::InternalError, YOUNG));
        assert!(!budget.allows(Verdict::InternalError, YOUNG));
    }

    #[test]
    fn a_callers_mistake_and_a_success_end_the_walk() {
        let mut budget = Budget::default();
        assert!(!budget.allows(Verdict::CallerError, YOUNG));
        assert!(!budget.allows(Verdict::Success, YOUNG));
    }

    #[test]
    fn the_most_hopeful_answer_is_kept_else_the_last() {
        assert!(is_better(429, 403) && is_better(503, 429) && is_better(403, 404));
        assert!(!is_better(403, 429) && !is_better(404, 500));
    }

    #[test]
    fn quota_only_switches_everything_else_off() {
        for verdict in [THROTTLED, Verdict::KeyRejected, Verdict::Unavailable, Verdict::ModelLimit]
        {
            assert_eq!(Failover::QuotaOnly.admit(verdict), Verdict::CallerError);
            assert_eq!(Failover::On.admit(verdict), verdict);
        }
        let exhausted = Failover::QuotaOnly.admit(Verdict::QuotaExhausted);
        assert_eq!(exhausted, Verdict::QuotaExhausted);
    }
}
