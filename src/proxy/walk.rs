//! From slot to slot, until there is an answer to hand on.

use std::ops::ControlFlow;

use super::attempt::Judged;
use super::story::{Answered, Story};
use super::{Proxy, Task};
use crate::clock;
use crate::error::ProxyError;
use crate::policy::failover::{self, Budget};
use crate::policy::pool::Slot;
use crate::policy::scheduler::{Ask, Next, Pick, Tried};
use crate::policy::usage::UsageScan;
use crate::policy::verdict::Verdict;
use crate::relay::{self, Client};
use crate::upstream::{self, CallError, FailureKind};

/// The best answer of those that did not help, and whose it is.
struct Kept {
    judged: Judged,
    slot: Slot,
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
            (_, Some(kept)) => self.settle(kept, client, task.story),
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
        walk.tried.add(pick.slot.clone());
        let judged = match self.attempt(task, &pick, client) {
            Ok(judged) => judged,
            Err(error) => return ControlFlow::Break(Outcome::Failed(error)),
        };
        task.story.last = Some(Answered::of(&pick.slot, &judged));
        let verdict = judged.judgement.verdict;
        let answer = Kept { judged, slot: pick.slot };
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
            Verdict::AccountBlocked | Verdict::KeyRejected => walk.tried.add_key(answer.slot.key),
            _ => {}
        }
        walk.keep(answer);
        if walk.budget.allows(verdict, task.request.arrived.elapsed()) {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(Outcome::NothingLeft(ProxyError::Overloaded))
        }
    }

    pub(super) fn next_slot(&self, task: &Task<'_>, walk: &Walk) -> Result<Pick, ProxyError> {
        let ask = Ask {
            tried: &walk.tried,
            wanted: task.wanted,
            key: task.key,
            first: task.first,
            base: task.request.endpoint.protocol,
            streamed: task.is_streamed(),
        };
        let moment = clock::moment();
        let next = self.scheduler.lock().next_slot(&ask, moment);
        match next {
            Next::Slot(pick) => Ok(pick),
            Next::NoneAvailable { until, cooling, disabled } => {
                Err(ProxyError::NoSlot { until, now: moment.calendar, cooling, disabled })
            }
            // Cooldowns so short that some ended while this request went on.
            Next::NoneLeft => {
                let (now, cooling) = (moment.calendar, self.pool.slot_count());
                Err(ProxyError::NoSlot { until: Some(now), now, cooling, disabled: 0 })
            }
        }
    }

    /// Hands an answer on, once the cooldowns before it are on disk.
    fn settle(
        &self,
        kept: Kept,
        client: &mut dyn Client,
        story: &mut Story,
    ) -> Result<(), ProxyError> {
        let Kept { judged, slot } = kept;
        if judged.judgement.verdict == Verdict::KeyRejected {
            let label = self.pool.label(slot.key).to_owned();
            return Err(ProxyError::KeyRejected { label });
        }
        self.keep_cooldowns();
        let Judged { mut answer, held, judgement } = judged;
        let head = self.head(&answer, &slot, story.attempts);
        story.slot = Some(slot);
        story.status = head.status;
        let mut scan = UsageScan::default();
        let see = |bytes: &[u8]| scan.see(bytes);
        story.verdict = Some(judgement.verdict);
        match relay::relay(&head, held, &mut answer.body, client, see) {
            Ok(relayed) => {
                story.relayed = Some(relayed);
                story.usage = scan.usage();
                Ok(())
            }
            Err(error) => self.give_up(error, client, story),
        }
    }
}

impl Walk {
    /// Keeps an answer that did not help, if it is better than the one before.
    fn keep(&mut self, answer: Kept) {
        let before = self.kept.as_ref().map(|kept| kept.judged.answer.status);
        if before.is_none_or(|before| failover::is_better(answer.judged.answer.status, before)) {
            self.kept = Some(answer);
        }
    }
}
