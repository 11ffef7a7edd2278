//! One call upstream: what is sent, what the answer means, and what it teaches.

use std::time::Duration;

use log::{debug, info, warn};

use super::heads::is_event_stream;
use super::{ClientRequest, NO_MODEL, Proxy, Task};
use crate::clock;
use crate::log_text::Quoted;
use crate::policy::bench::{LONG_BACKOFF, Rest};
use crate::policy::failover::{self, Penalty};
use crate::policy::headers::{self, Content};
use crate::policy::ids::{self, Makes};
use crate::policy::limits::Limit;
use crate::policy::pool::{KeyIndex, Slot};
use crate::policy::retry_after;
use crate::policy::route::{Base, Rule};
use crate::policy::scheduler::{Pick, Wanted};
use crate::policy::verdict::{self, Failure, Judgement, Verdict};
use crate::relay::{self, Client, Held, Upload};
use crate::upstream::{self, Answer, CallError, Over, Payload};

/// How much of upstream's error message is kept in the state file, in characters.
const LONGEST_MESSAGE: usize = 1000;

/// How much of an answer that makes an identifier is held until that is found, in bytes: the
/// identifier may be its last member.
const LONGEST_MAKER: usize = 4 << 20;

/// An answer that has been judged. What its verdict took is held.
pub(super) struct Judged {
    pub(super) answer: Answer,
    pub(super) held: Held,
    pub(super) judgement: Judgement,
    /// What the model cannot take, if that is the verdict.
    pub(super) limit: Option<Limit>,
}

impl Proxy {
    /// Asks one slot; once more if the first call cannot have been worked on.
    pub(super) fn attempt(
        &self,
        task: &mut Task<'_>,
        pick: &Pick,
        client: &mut dyn Client,
    ) -> Result<Judged, CallError> {
        task.story.attempts += 1;
        let mut outcome = self.call(task, pick, client, Over::Any);
        if let Err(error) = &outcome
            && error.repeatable
            && !task.request.endpoint.is_upload()
        {
            debug!("repeat id={} cause={}", task.request.id, Quoted(&error.cause));
            task.story.attempts += 1;
            outcome = self.call(task, pick, client, Over::Fresh);
        }
        let (key, model) = (self.pool.label(pick.slot.key), self.model_name(&pick.slot));
        let judged = match outcome {
            Ok(answer) => self.judge(answer, task, pick),
            Err(error) => {
                self.metrics.attempt(key, model, "no_answer");
                return Err(error);
            }
        };
        let verdict = judged.judgement.verdict;
        self.metrics.attempt(key, model, verdict.name());
        if verdict != Verdict::CallerError {
            self.scheduler.lock().note_verdict(&pick.slot, verdict);
        }
        self.learn(&judged, task, pick);
        Ok(judged)
    }

    pub(super) fn call(
        &self,
        task: &Task<'_>,
        pick: &Pick,
        client: &mut dyn Client,
        over: Over,
    ) -> Result<Answer, CallError> {
        let (request, slot) = (task.request, &pick.slot);
        let url = self.url(request, slot.key);
        let client_headers = request.headers.iter().map(|(name, value)| (&**name, &**value));
        let content = match task.body {
            Some(_) => Content::Json,
            None => Content::Clients,
        };
        let protocol = request.endpoint.protocol;
        let is_secret = |value: &str| self.is_secret(value);
        let mut headers = headers::upward(client_headers, protocol, content, is_secret);
        let key = &self.config.keys[slot.key.0].secret;
        upstream::authorize(&mut headers, self.config.auth_mode, key);
        let edited = task.body.map(|body| match task.wanted {
            Wanted::Pool => body.with_model(&slot.model, &task.lowered(pick)),
            Wanted::Model(_) => body.as_sent(),
        });
        let length = client.upload_length();
        let mut upload = Upload::new(client);
        let payload = match &edited {
            Some(edited) => Payload::Bytes(edited),
            None if task.request.endpoint.is_upload() => {
                Payload::Stream { reader: &mut upload, length }
            }
            None => Payload::Nothing,
        };
        let outcome = self.upstream.send(&request.method, &url, headers, payload, over);
        upload.failure().map_or(outcome, Err)
    }

    /// Where a request goes with this key.
    fn url(&self, request: &ClientRequest, key: KeyIndex) -> String {
        let mut target = request.endpoint.path.clone();
        if let Some(query) = &request.query {
            // Some clients put their key there.
            let open: Vec<&str> = query.split('&').filter(|part| !self.is_secret(part)).collect();
            if !open.is_empty() {
                target.push('?');
                target.push_str(&open.join("&"));
            }
        }
        let origin = self.config.keys[key.0].origin.as_ref();
        match request.endpoint.base {
            Base::OpenAi => self.config.openai_base.join(&target, origin),
            Base::OpenAiOrigin => {
                format!("{}{target}", origin.unwrap_or(self.config.openai_base.origin()))
            }
            Base::Anthropic => self.config.anthropic_base.join(&target, origin),
            Base::Native => self.config.native_base.join(&target, origin),
        }
    }

    /// Reads as much of an answer as its verdict needs.
    fn judge(&self, mut answer: Answer, task: &Task<'_>, pick: &Pick) -> Judged {
        let (held, mut judgement) = if answer.is_success() {
            self.judge_success(&mut answer, task)
        } else {
            self.judge_failure(&mut answer, task)
        };
        // Where nothing may rotate, the answer is the client's, unless it is about our key.
        let is_pinned = matches!(task.request.endpoint.rule, Rule::Pinned { .. });
        let is_clients =
            is_pinned && !matches!(judgement.verdict, Verdict::Success | Verdict::KeyRejected);
        // A client that left teaches nothing.
        judgement.verdict = if is_clients || held.ended_by_client() {
            Verdict::CallerError
        } else {
            self.config.failover.admit(judgement.verdict)
        };
        let limit = match held.ended_by_client() {
            true => None,
            false => self.limit_in(&judgement, task, pick),
        };
        if limit.is_some() {
            judgement.verdict = Verdict::ModelLimit;
        }
        Judged { answer, held, judgement, limit }
    }

    fn judge_failure(&self, answer: &mut Answer, task: &Task<'_>) -> (Held, Judgement) {
        let held = relay::hold_prefix(&mut answer.body, verdict::MAX_ERROR_PREFIX);
        let judgement = verdict::classify(Failure {
            status: answer.status,
            retry_after: retry_after::asked(&answer.headers, clock::now()),
            prefix: &held.bytes,
            names_model: task.names_model(),
        });
        (held, judgement)
    }

    fn judge_success(&self, answer: &mut Answer, task: &Task<'_>) -> (Held, Judgement) {
        if is_event_stream(&answer.headers) {
            let (held, opening) = relay::hold_opening(&mut answer.body);
            let judgement = opening
                .map(|event| verdict::classify_event(&event, task.names_model()))
                .unwrap_or_else(Judgement::success);
            return (held, judgement);
        }
        let held = match task.makes {
            Makes::Nothing => Held::default(),
            _ => relay::hold_prefix(&mut answer.body, LONGEST_MAKER),
        };
        (held, Judgement::success())
    }

    fn learn(&self, judged: &Judged, task: &mut Task<'_>, pick: &Pick) {
        match judged.judgement.verdict {
            Verdict::QuotaExhausted => {
                self.learn_exhaustion(&judged.judgement, judged.request_id(), task, pick);
            }
            Verdict::Success => self.learn_success(judged, task, pick),
            Verdict::ModelLimit => self.learn_limit(judged, task, &pick.slot),
            verdict => self.penalize(verdict, judged, task, &pick.slot),
        }
    }

    /// `request_id`: upstream's.
    pub(super) fn learn_exhaustion(
        &self,
        judgement: &Judgement,
        request_id: &str,
        task: &mut Task<'_>,
        pick: &Pick,
    ) {
        if &*pick.slot.model == NO_MODEL {
            // No quota of one model: it is the key that cannot serve this.
            self.bench_slot(&pick.slot, Rest::For(LONG_BACKOFF), task);
            return;
        }
        let message = judgement.message.as_deref();
        let message = message.unwrap_or("DashScope free tier exhausted");
        let message: String = self.redactor.text(message).chars().take(LONGEST_MESSAGE).collect();
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
            judgement.status,
            Quoted(judgement.code()),
            Quoted(request_id),
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

    fn learn_success(&self, judged: &Judged, task: &mut Task<'_>, pick: &Pick) {
        let base = task.request.endpoint.protocol;
        let ids = match task.makes {
            Makes::Nothing => Vec::new(),
            makes => judged.held.find(|document| ids::found_in(makes, document)),
        };
        let (pinned, stamped) = {
            let mut scheduler = self.scheduler.lock();
            let pinned = scheduler.pin(ids, pick.slot.key, clock::now());
            let revision = scheduler.revision();
            // Where nobody had to look, nothing is known that this could disprove.
            if let Some(needs) = task.needs.get() {
                scheduler.note_served(pick, &task.request.endpoint.path, needs);
            }
            (pinned.then_some(revision), scheduler.report_success(pick, base, clock::now()))
        };
        // Before the client hears of an identifier, its key is on disk.
        pinned.into_iter().for_each(|revision| self.store.request(revision));
        task.story.learned |= pinned.is_some() || stamped.changed;
        if stamped.revived {
            warn!(
                "revived slot={} cooldown=ended: this pair answers again and may now be billed, unless \"free quota only\" is on",
                self.pool.show(&pick.slot)
            );
        }
    }

    fn penalize(&self, verdict: Verdict, judged: &Judged, task: &Task<'_>, slot: &Slot) {
        let at = clock::instant();
        let base = task.request.endpoint.protocol;
        let (of_slot, of_key) = match failover::penalty(verdict) {
            Penalty::None => return,
            Penalty::Slot(rest) => (Some(self.bench_slot(slot, rest, task)), None),
            Penalty::Denied => {
                let is_second = self.scheduler.lock().deny_slot(slot, base, at);
                (Some(LONG_BACKOFF), is_second.then_some(LONG_BACKOFF))
            }
            Penalty::Key(rest) => {
                self.scheduler.lock().bench_key(slot.key, rest, at);
                (None, Some(rest))
            }
        };
        let of_slot = of_slot.map(|rest| (self.pool.show(slot), rest));
        let of_key = of_key.map(|rest| (self.pool.label(slot.key).to_owned(), rest));
        for (who, rest) in of_slot.into_iter().chain(of_key) {
            info!(
                "bench id={} who={who} verdict={} for_s={} status={} code={} request_id={}",
                task.request.id,
                verdict.name(),
                rest.as_secs(),
                judged.judgement.status,
                Quoted(judged.code()),
                Quoted(judged.request_id()),
            );
        }
    }

    fn bench_slot(&self, slot: &Slot, rest: Rest, task: &Task<'_>) -> Duration {
        let base = task.request.endpoint.protocol;
        self.scheduler.lock().bench_slot(slot, base, rest, clock::instant())
    }
}

impl Judged {
    /// Upstream's error code, for the log.
    pub(super) fn code(&self) -> &str {
        self.judgement.code()
    }

    /// Upstream's id of the request, for the log.
    pub(super) fn request_id(&self) -> &str {
        let id = self.answer.headers.get("x-request-id").and_then(|value| value.to_str().ok());
        id.unwrap_or("-")
    }
}
