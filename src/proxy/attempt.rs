//! One call upstream: what is sent, what the answer means, and what it teaches.

use std::time::Duration;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use log::{debug, info, warn};

use super::heads::{is_event_stream, number};
use super::{Proxy, Task};
use crate::clock;
use crate::config::AuthMode;
use crate::log_text::Quoted;
use crate::policy::bench::Rest;
use crate::policy::failover::{self, Penalty};
use crate::policy::headers;
use crate::policy::pool::{KeyIndex, Slot};
use crate::policy::route::Protocol;
use crate::policy::scheduler::{Pick, Wanted};
use crate::policy::verdict::{self, Failure, Judgement, Verdict};
use crate::relay::{self, Held};
use crate::upstream::{self, Answer, CallError};

/// How much of upstream's error message is kept in the state file, in characters.
const LONGEST_MESSAGE: usize = 1000;

/// An answer that has been judged. What its verdict took is held.
pub(super) struct Judged {
    pub(super) answer: Answer,
    pub(super) held: Held,
    pub(super) judgement: Judgement,
}

impl Proxy {
    /// Asks one slot; once more if the first call cannot have been worked on.
    pub(super) fn attempt(&self, task: &mut Task<'_>, pick: &Pick) -> Result<Judged, CallError> {
        task.story.attempts += 1;
        let mut outcome = self.call(task, &pick.slot);
        if let Err(error) = &outcome
            && error.repeatable
        {
            debug!("repeat id={} cause={}", task.request.id, Quoted(&error.cause));
            task.story.attempts += 1;
            outcome = self.call(task, &pick.slot);
        }
        let judged = self.judge(outcome?, task);
        self.learn(&judged, task, pick);
        Ok(judged)
    }

    fn call(&self, task: &Task<'_>, slot: &Slot) -> Result<Answer, CallError> {
        let request = task.request;
        let protocol = request.endpoint.protocol;
        let base = match protocol {
            Protocol::OpenAi => &self.config.openai_base,
            Protocol::Anthropic => &self.config.anthropic_base,
            Protocol::Native => &self.config.native_base,
        };
        let mut target = request.endpoint.path.clone();
        if let Some(query) = &request.query {
            target.push('?');
            target.push_str(query);
        }
        let client_headers = request.headers.iter().map(|(name, value)| (&**name, &**value));
        let mut headers = headers::upward(client_headers, protocol);
        self.authorize(&mut headers, slot.key);
        let body = match task.wanted {
            Wanted::Pool => task.body.with_model(&slot.model),
            Wanted::Model(_) => task.body.as_sent(),
        };
        let origin = self.config.keys[slot.key.0].origin.as_ref();
        self.upstream.post(&base.join(&target, origin), headers, &body)
    }

    fn authorize(&self, headers: &mut HeaderMap, key: KeyIndex) {
        let key = self.config.keys[key.0].secret.expose();
        if self.config.auth_mode != AuthMode::XApiKey {
            headers.insert(AUTHORIZATION, upstream::sensitive(&format!("Bearer {key}")));
        }
        if self.config.auth_mode != AuthMode::Authorization {
            headers.insert("x-api-key", upstream::sensitive(key));
        }
    }

    /// Reads as much of an answer as its verdict needs.
    fn judge(&self, mut answer: Answer, task: &Task<'_>) -> Judged {
        let is_success = (200..300).contains(&answer.status);
        let (held, mut judgement) = if !is_success {
            let mut held = relay::hold_prefix(&mut answer.body, verdict::MAX_ERROR_PREFIX);
            let judgement = verdict::classify(Failure {
                status: answer.status,
                retry_after: number(&answer.headers, "retry-after"),
                prefix: &held.bytes,
                names_model: task.wanted != Wanted::Pool,
            });
            self.scrub(&mut held.bytes);
            (held, judgement)
        } else if is_event_stream(&answer.headers) {
            let (held, event) = relay::hold_first_event(&mut answer.body);
            let judgement = event.map(|event| verdict::classify_first_event(&event));
            (held, judgement.unwrap_or_else(Judgement::success))
        } else {
            (Held::default(), Judgement::success())
        };
        judgement.verdict = if held.ended_by_client() {
            // A client that left teaches nothing.
            Verdict::CallerError
        } else {
            self.config.failover.admit(judgement.verdict)
        };
        Judged { answer, held, judgement }
    }

    fn learn(&self, judged: &Judged, task: &mut Task<'_>, pick: &Pick) {
        match judged.judgement.verdict {
            Verdict::QuotaExhausted => self.learn_exhaustion(judged, task, pick),
            Verdict::Success => self.learn_success(task, pick),
            Verdict::StreamOnly => self.scheduler.lock().note_stream_only(&pick.slot.model),
            verdict => self.penalize(verdict, judged, task, &pick.slot),
        }
    }

    fn learn_exhaustion(&self, judged: &Judged, task: &mut Task<'_>, pick: &Pick) {
        let message = judged.judgement.message.as_deref();
        let message = message.unwrap_or("DashScope free tier exhausted");
        let message: String = self.masked(message).chars().take(LONGEST_MESSAGE).collect();
        let (outcome, revision) = {
            let mut scheduler = self.scheduler.lock();
            let outcome = scheduler.report_exhausted(pick, &message, clock::now());
            (outcome, scheduler.revision())
        };
        task.story.learned = true;
        // It is written while the next slot is asked; the answer waits for both.
        self.store.request(revision);
        info!(
            "cooldown id={} slot={} until={} failures={} status={} code={} request_id={} error={}",
            task.request.id,
            self.pool.show(&pick.slot),
            outcome.until,
            outcome.failures,
            judged.answer.status,
            Quoted(judged.code()),
            Quoted(judged.request_id()),
            Quoted(&message)
        );
        if let Some(twin) = outcome.twin {
            warn!(
                "twins keys={},{}: they look like two keys of one account, which share its free quota",
                self.pool.label(pick.slot.key),
                self.pool.label(twin)
            );
        }
    }

    fn learn_success(&self, task: &mut Task<'_>, pick: &Pick) {
        let base = task.request.endpoint.protocol;
        let stamped = self.scheduler.lock().report_success(pick, base, clock::now());
        task.story.learned |= stamped.changed;
        if stamped.revived {
            warn!(
                "revived slot={} cooldown=ended: this pair answers again and may now be billed, unless \"free quota only\" is on",
                self.pool.show(&pick.slot)
            );
        }
    }

    fn penalize(&self, verdict: Verdict, judged: &Judged, task: &Task<'_>, slot: &Slot) {
        let at = clock::instant();
        let (who, rest) = match failover::penalty(verdict) {
            Penalty::None => return,
            Penalty::Slot(rest) => (self.pool.show(slot), self.bench_slot(slot, rest, task)),
            Penalty::Key(rest) => {
                self.scheduler.lock().bench_key(slot.key, rest, at);
                (self.pool.label(slot.key).to_owned(), rest)
            }
        };
        info!(
            "bench id={} who={who} verdict={} for_s={} status={} code={} request_id={}",
            task.request.id,
            verdict.name(),
            rest.as_secs(),
            judged.answer.status,
            Quoted(judged.code()),
            Quoted(judged.request_id()),
        );
    }

    fn bench_slot(&self, slot: &Slot, rest: Rest, task: &Task<'_>) -> Duration {
        let base = task.request.endpoint.protocol;
        self.scheduler.lock().bench_slot(slot, base, rest, clock::instant())
    }
}

impl Judged {
    /// Upstream's error code, for the log.
    pub(super) fn code(&self) -> &str {
        self.judgement.code.as_deref().unwrap_or("-")
    }

    /// Upstream's id of the request, for the log.
    pub(super) fn request_id(&self) -> &str {
        let id = self.answer.headers.get("x-request-id").and_then(|value| value.to_str().ok());
        id.unwrap_or("-")
    }
}
