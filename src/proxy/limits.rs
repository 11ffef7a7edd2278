//! What a model cannot take, as an answer tells it.

use log::info;

use super::attempt::Judged;
use super::{Proxy, Task};
use crate::clock;
use crate::log_text::Quoted;
use crate::policy::limits::{self, LIFE, Limit, ModelLimits, Refusal};
use crate::policy::pool::Slot;
use crate::policy::route::Protocol;
use crate::policy::scheduler::{Pick, Wanted};
use crate::policy::verdict::{Judgement, Verdict};

impl Proxy {
    /// What the slot's model cannot take, if that is all that an answer says. Where the client's
    /// model stays, or the key that made something, the answer is the client's.
    pub(super) fn limit_in(
        &self,
        judgement: &Judgement,
        task: &Task<'_>,
        pick: &Pick,
    ) -> Option<Limit> {
        let may_move = task.wanted == Wanted::Pool && self.config.limits() != ModelLimits::Off;
        let message = judgement.message.as_deref().filter(|_| may_move)?;
        if !matches!(judgement.verdict, Verdict::CallerError | Verdict::ModelMissing) {
            return None;
        }
        let status = judgement.status;
        let is_native = task.request.endpoint.protocol == Protocol::Native;
        let refusal = Refusal { status, message, model: &pick.slot.model, is_native };
        limits::recognise(refusal, || task.needs().as_sent(pick.bounds))
    }

    /// Remembers it; the log is told once.
    pub(super) fn learn_limit(&self, judged: &Judged, task: &Task<'_>, slot: &Slot) {
        let Some(limit) = judged.limit.clone() else { return };
        let said = judged.judgement.message.as_deref().unwrap_or_default();
        let (path, moment) = (&task.request.endpoint.path, clock::moment());
        let (kind, bound, on) = (limit.kind(), limit.bound(), limit.hangs_on());
        let is_news = self.scheduler.lock().learn_limit(slot, path, limit, said, moment);
        if is_news {
            info!(
                "limit id={} model={} kind={kind} bound={} on={} path={} until={} status={} code={} request_id={} slot={} said={}",
                task.request.id,
                slot.model,
                bound.map_or_else(|| "-".to_owned(), |bound| bound.to_string()),
                Quoted(if on.is_empty() { "-" } else { &on }),
                Quoted(path),
                moment.calendar.plus(LIFE),
                judged.judgement.status,
                Quoted(judged.code()),
                Quoted(judged.request_id()),
                self.pool.show(slot),
                Quoted(said)
            );
        }
    }
}
