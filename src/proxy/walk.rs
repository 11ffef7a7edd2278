//! From slot to slot, until there is an answer to hand on.

use std::ops::ControlFlow;

use super::attempt::Judged;
use super::counting::Counting;
use super::heads::{ADJUSTED_HEADER, is_event_stream, text_value};
use super::story::{Answered, Failed};
use super::{Proxy, Task};
use crate::clock;
use crate::error::ProxyError;
use crate::policy::failover::{self, Avoid, Budget};
use crate::policy::limits::Lowered;
use crate::policy::scheduler::{Ask, Next, Pick, Tried, Wanted};
use crate::policy::verdict::{Judgement, LateScan, Verdict};
use crate::relay::{self, Client};
use crate::upstream::{self, CallError, FailureKind};

/// The best answer of those that did not help, and whose it is.
struct Kept {
    judged: Judged,
    pick: Pick,
}

/// What a request has behind it.
#[derive(Default)]
pub(super) struct Walk {
    tried: Tried,
    budget: Budget,
    kept: Option<Kept>,
}

/// How a walk ends.
enum Outcome {
    /// With the answer that is kept.
    Answered,
    /// There was no answer from the last slot.
    Failed(CallError),
    /// No slot is left to try, or the budget is spent: with the answer that is kept, else this.
    NothingLeft(ProxyError),
}

impl Proxy {
    /// Slot → upstream → verdict, from slot to slot until there is an answer to hand on.
    pub(super) fn walk(
        &self,
        mut task: Task<'_>,
        client: &mut dyn Client,
    ) -> Result<(), ProxyError> {
        let _watching = upstream::watch_client(client.watch());
        let has_left = client.watch();
        let mut walk = Walk::default();
        let outcome = loop {
            let step = self.step(&mut task, &mut walk, client, &has_left);
            if let ControlFlow::Break(outcome) = step {
                break outcome;
            }
        };
        match (outcome, walk.kept) {
            (Outcome::Failed(error), _) if error.kind == FailureKind::ClientLeft => {
                self.give_up(error, client, task.story)
            }
            (_, Some(kept)) => self.settle(kept, client, &mut task),
            (Outcome::Failed(error), None) => self.give_up(error, client, task.story),
            (Outcome::NothingLeft(error), None) => Err(error),
            (Outcome::Answered, None) => unreachable!("an answer was kept"),
        }
    }

    /// One slot. Breaks with how the walk ends.
    fn step(
        &self,
        task: &mut Task<'_>,
        walk: &mut Walk,
        client: &mut dyn Client,
        has_left: &dyn Fn() -> bool,
    ) -> ControlFlow<Outcome> {
        let pick = match self.next_slot(task, walk) {
            Ok(pick) => pick,
            Err(error) => return ControlFlow::Break(Outcome::NothingLeft(error)),
        };
        let may_have_left = task.request.waited || task.story.attempts > 0;
        if may_have_left && has_left() {
            return ControlFlow::Break(Outcome::Failed(CallError::client_left()));
        }
        self.log_rotation(task, &pick.slot);
        task.story.slot = Some(pick.slot.clone());
        walk.tried.add(pick.slot.clone(), pick.bounds);
        let judged = match self.attempt(task, &pick, client) {
            Ok(judged) => judged,
            Err(error) => {
                if error.sent {
                    task.story.learned |= self.count_unanswered(task.request, &pick.slot);
                }
                return ControlFlow::Break(Outcome::Failed(error));
            }
        };
        task.story.last = Some(Answered::of(&pick.slot, &judged));
        let verdict = judged.judgement.verdict;
        if let Some(limit) = &judged.limit {
            let place = self.scheduler.lock().place(&pick.slot);
            walk.tried.add_refusal(place, pick.bounds, limit);
        }
        let answer = Kept { judged, pick };
        match verdict {
            Verdict::QuotaExhausted => return ControlFlow::Continue(()),
            Verdict::Success => {
                walk.kept = Some(answer);
                return ControlFlow::Break(Outcome::Answered);
            }
            // After a 429, say, its own mistake is not the last word to a client.
            Verdict::CallerError => {
                walk.keep(answer);
                return ControlFlow::Break(Outcome::Answered);
            }
            _ => {}
        }
        let slot = &answer.pick.slot;
        match failover::avoid(verdict) {
            Avoid::Slot => {}
            Avoid::KeyFirst => walk.tried.deny(slot.clone()),
            Avoid::Key => walk.tried.add_key(slot.key),
        }
        walk.keep(answer);
        if walk.budget.allows(verdict, task.request.arrived.elapsed()) {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(Outcome::NothingLeft(ProxyError::Overloaded))
        }
    }

    pub(super) fn next_slot(&self, task: &Task<'_>, walk: &Walk) -> Result<Pick, ProxyError> {
        let path = &*task.request.endpoint.path;
        let moment = clock::moment();
        let is_asked = task.wanted == Wanted::Pool
            && self.scheduler.lock().asks_for_needs(path, moment.monotonic);
        let ask = Ask {
            tried: &walk.tried,
            wanted: task.wanted,
            key: task.key,
            first: task.first,
            base: task.request.endpoint.protocol,
            path,
            // Not under the lock: this may be a pass over a long body.
            needs: is_asked.then(|| task.needs()),
            has_answer: walk.kept.is_some(),
        };
        let next = self.scheduler.lock().next_slot(&ask, moment);
        match next {
            Next::Slot(pick) => Ok(pick),
            Next::NoneAvailable { until, cooling, guarded, disabled } => {
                let now = moment.calendar;
                Err(ProxyError::NoSlot { until, now, cooling, guarded, disabled })
            }
            Next::NoneTakes { said } => Err(ProxyError::NoneTakes { said: said.to_string() }),
            // Cooldowns so short that some ended while this request went on.
            Next::NoneLeft => {
                let (now, cooling) = (moment.calendar, self.pool.slot_count());
                Err(ProxyError::NoSlot { until: Some(now), now, cooling, guarded: 0, disabled: 0 })
            }
        }
    }

    /// Hands an answer on, once the cooldowns before it are on disk.
    fn settle(
        &self,
        kept: Kept,
        client: &mut dyn Client,
        task: &mut Task<'_>,
    ) -> Result<(), ProxyError> {
        let Kept { judged, pick } = kept;
        if judged.judgement.verdict == Verdict::KeyRejected {
            let label = self.pool.label(pick.slot.key).to_owned();
            return Err(ProxyError::KeyRejected { label });
        }
        if let Some(error) = self.redirect(&judged.answer) {
            return Err(error);
        }
        self.keep_cooldowns();
        let request_id = judged.request_id().to_owned();
        let Judged { mut answer, held, judgement, .. } = judged;
        let mut head = self.head(&answer, &pick.slot, task.story.attempts);
        let adjusted = adjusted(&task.lowered(&pick));
        if let Some(adjusted) = &adjusted {
            head.headers.insert(ADJUSTED_HEADER, text_value(adjusted));
        }
        task.story.adjusted = adjusted;
        task.story.slot = Some(pick.slot.clone());
        task.story.status = head.status;
        let verdict = judgement.verdict;
        if verdict != Verdict::Success {
            task.story.failure =
                Some(Failed { code: judgement.code().to_owned(), request_id: request_id.clone() });
        }
        let (request, slot) = (task.request, pick.slot.clone());
        // A client that left before its first event is nobody's mistake, and the tokens are used.
        let was_left = held.ended_by_client() && answer.is_success();
        let mut counting = (verdict == Verdict::Success || was_left)
            .then(|| Counting::new(self, request, slot, &answer, head.length));
        let is_success_stream = answer.is_success() && is_event_stream(&answer.headers);
        let mut late = is_success_stream.then(LateScan::default);
        let mut learn = |found: Option<Judgement>| {
            if let Some(exhaustion) = found {
                self.learn_exhaustion(&exhaustion, &request_id, task, &pick);
            }
        };
        let see = |bytes: &[u8]| {
            counting.iter_mut().for_each(|counting| counting.see(bytes));
            learn(late.as_mut().and_then(|late| late.see(bytes)));
        };
        let outcome = relay::relay(&head, held, &mut answer.body, client, &self.redactor, see);
        learn(late.as_mut().and_then(LateScan::end));
        if let Some(counting) = counting {
            counting.end(task.story);
        }
        task.story.verdict = Some(verdict);
        match outcome {
            Ok(relayed) => {
                task.story.relayed = Some(relayed);
                Ok(())
            }
            Err(error) => self.give_up(error, client, task.story),
        }
    }
}

impl Walk {
    /// Keeps an answer that did not help, if it is better than the one before.
    fn keep(&mut self, answer: Kept) {
        let status = |kept: &Kept| kept.judged.judgement.status;
        let is_better = self.kept.as_ref().is_none_or(|before| {
            match (&before.judged.limit, &answer.judged.limit) {
                (Some(before), Some(limit)) => !before.is_more_generous(limit),
                _ => failover::is_better(status(&answer), status(before)),
            }
        });
        if is_better {
            self.kept = Some(answer);
        }
    }
}

/// What was lowered, as the client is told: `max_tokens=8192`.
fn adjusted(lowered: &[Lowered]) -> Option<String> {
    let mut told: Vec<String> = Vec::new();
    for it in lowered.iter().map(|it| format!("{}={}", it.name, it.value)) {
        // A body may have the same member twice.
        if !told.contains(&it) {
            told.push(it);
        }
    }
    Some(told.join(", ")).filter(|told| !told.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_is_lowered_twice_is_told_once() {
        let lowered = |name, start, value| Lowered { name, span: start..start + 1, value };
        let twice = [lowered("max_tokens", 1, 5), lowered("max_tokens", 9, 5)];
        assert_eq!(adjusted(&twice).as_deref(), Some("max_tokens=5"));
        let both = [lowered("max_tokens", 1, 5), lowered("thinking_budget", 9, 2)];
        assert_eq!(adjusted(&both).as_deref(), Some("max_tokens=5, thinking_budget=2"));
        assert_eq!(adjusted(&[]), None);
    }
}
