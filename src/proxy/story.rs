//! What is told of a request: one line for each slot it left, and one at its end.

use log::info;

use super::attempt::Judged;
use super::{ClientRequest, Proxy, Task};
use crate::error::ProxyError;
use crate::log_text::{Quoted, millis};
use crate::policy::pool::Slot;
use crate::policy::verdict::Verdict;
use crate::relay::{End, Relayed};

/// How a request went, for the log.
#[derive(Debug, Default)]
pub(super) struct Story {
    pub(super) asked: Option<String>,
    pub(super) attempts: u32,
    pub(super) slot: Option<Slot>,
    /// The last slot that answered.
    pub(super) last: Option<Answered>,
    pub(super) status: u16,
    /// What was lowered in the request for that slot, as the client is told.
    pub(super) adjusted: Option<String>,
    pub(super) relayed: Option<Relayed>,
    pub(super) refusal: Option<ProxyError>,
    pub(super) failure: Option<Failed>,
    /// What the answer meant.
    pub(super) verdict: Option<Verdict>,
    /// Whether something was learned that belongs on disk.
    pub(super) learned: bool,
}

/// What upstream said of a request that it did not serve, where the client is told.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) code: String,
    pub(super) request_id: String,
}

/// A slot and what it answered, for the log.
#[derive(Debug)]
pub(super) struct Answered {
    slot: Slot,
    verdict: Verdict,
    code: String,
    request_id: String,
}

impl Answered {
    pub(super) fn of(slot: &Slot, judged: &Judged) -> Self {
        Self {
            slot: slot.clone(),
            verdict: judged.judgement.verdict,
            code: judged.code().to_owned(),
            request_id: judged.request_id().to_owned(),
        }
    }
}

impl Proxy {
    pub(super) fn log_rotation(&self, task: &Task<'_>, to: &Slot) {
        let Some(from) = &task.story.last else { return };
        info!(
            "rotate id={} from={} to={} verdict={} code={} request_id={}",
            task.request.id,
            self.pool.show(&from.slot),
            self.pool.show(to),
            from.verdict.name(),
            Quoted(&from.code),
            Quoted(&from.request_id),
        );
    }

    pub(super) fn log(&self, request: &ClientRequest, story: &Story) {
        let first_byte = story.relayed.as_ref().and_then(|relayed| relayed.first_byte);
        if let Some(at) = first_byte {
            self.metrics.first_byte(at - request.arrived);
        }
        let verdict = match (&story.refusal, story.verdict) {
            (Some(error), _) => error.code(),
            (None, verdict) => verdict.map_or("none", Verdict::name),
        };
        let route = &request.endpoint.route;
        self.metrics.request(route, story.status, verdict, request.arrived.elapsed());
        let first_byte = first_byte.map(|at| millis(at - request.arrived));
        let end = match (&story.refusal, story.relayed.as_ref().map(|relayed| &relayed.end)) {
            (Some(error), _) => {
                format!("refused error={} reason={}", error.code(), Quoted(&error.to_string()))
            }
            (None, Some(End::ClientLeft)) => "client_left".to_owned(),
            (None, Some(End::UpstreamCut(cause))) => format!("cut cause={}", Quoted(cause)),
            (None, _) => "clean".to_owned(),
        };
        let failure = story.failure.as_ref().map(|Failed { code, request_id }| {
            format!(" code={} request_id={}", Quoted(code), Quoted(request_id))
        });
        let failure = failure.unwrap_or_default();
        let adjusted = story.adjusted.as_deref();
        let adjusted = adjusted.map(|what| format!(" adjusted={}", Quoted(what)));
        let adjusted = adjusted.unwrap_or_default();
        info!(
            "request id={} client={} method={} path={} asked={} slot={} attempts={} status={} first_byte_ms={} total_ms={} bytes={}{adjusted}{failure} end={end}",
            request.id,
            request.peer.ip(),
            request.method,
            Quoted(&request.path),
            Quoted(story.asked.as_deref().unwrap_or("-")),
            story.slot.as_ref().map_or_else(|| "-".to_owned(), |slot| self.pool.show(slot)),
            story.attempts,
            story.status,
            first_byte.unwrap_or_else(|| "-".to_owned()),
            millis(request.arrived.elapsed()),
            story.relayed.as_ref().map_or(0, |relayed| relayed.bytes),
        );
    }
}
