//! What an answer used, counted before its client can know that it is over: whoever asks next must
//! not get a slot that this answer has brought to its limit.

use log::info;

use super::heads::is_event_stream;
use super::{ClientRequest, NO_MODEL, Proxy, Story};
use crate::clock;
use crate::metrics::Spent;
use crate::policy::bound;
use crate::policy::charge::{Charge, Metered};
use crate::policy::pool::Slot;
use crate::policy::scheduler::Left;
use crate::policy::usage::Usage;
use crate::upstream::Answer;

/// Counts one answer while it goes by.
pub(super) struct Counting<'a> {
    proxy: &'a Proxy,
    request: &'a ClientRequest,
    slot: Slot,
    metered: Metered,
    /// How many bytes are still to come, if that is known.
    missing: Option<u64>,
    /// Whether upstream has sent all of it.
    is_whole: bool,
    /// Whether that was counted.
    is_done: bool,
    /// What it has been counted as so far.
    counted: Option<Charge>,
    changed: bool,
    /// Whether a guard goes by it, which must know before the client does.
    is_urgent: bool,
}

impl<'a> Counting<'a> {
    /// An answer of `slot` that is about to be relayed.
    pub(super) fn new(
        proxy: &'a Proxy,
        request: &'a ClientRequest,
        slot: Slot,
        answer: &Answer,
        length: Option<u64>,
    ) -> Self {
        let is_urgent = proxy.scheduler.lock().guard().limit(&slot.model).is_some();
        let metered = Metered::new(is_event_stream(&answer.headers));
        Self {
            proxy,
            request,
            slot,
            metered,
            missing: length,
            is_whole: false,
            is_done: false,
            counted: None,
            changed: false,
            is_urgent,
        }
    }

    /// What the client is about to get; nothing at all before its clean end. An estimate takes a
    /// pass over the request, and waits for the answer's end where no guard needs it.
    pub(super) fn see(&mut self, bytes: &[u8]) {
        self.metered.see(bytes);
        self.missing = self.missing.map(|missing| missing.saturating_sub(bytes.len() as u64));
        self.is_whole |= bytes.is_empty() || self.missing == Some(0);
        let is_due = self.is_whole || self.metered.has_ended() && self.counted.is_none();
        if is_due && (self.is_urgent || self.metered.says_all(self.is_whole)) {
            self.count();
        }
    }

    /// The answer is over, however it ended.
    pub(super) fn end(mut self, story: &mut Story) {
        self.count();
        if !self.is_done {
            self.count_models();
        }
        story.learned |= self.changed;
    }

    /// Counts by how much it is more than it was counted as before.
    fn count(&mut self) {
        if std::mem::replace(&mut self.is_done, self.is_whole) {
            return;
        }
        if self.is_whole {
            self.count_models();
        }
        let input = || bound::most_input_tokens(&self.request.body);
        let charge = self.metered.charge(self.is_whole, input);
        let (requests, more) = match &self.counted {
            None => (1, charge),
            Some(before) if charge.tokens() <= before.tokens() => return,
            Some(before) => (0, beyond(&charge, before)),
        };
        self.counted = Some(charge);
        self.add(&self.slot.clone(), requests, &more);
    }

    /// An application uses models without a request for them: they are the key's all the same.
    fn count_models(&mut self) {
        if &*self.slot.model != NO_MODEL {
            return;
        }
        for (model, charge) in self.metered.by_model() {
            let slot = Slot { key: self.slot.key, model: model.into() };
            if self.proxy.pool.place_of(&slot.model).is_some() {
                self.add(&slot, 1, &charge);
            }
        }
    }

    fn add(&mut self, slot: &Slot, requests: u64, charge: &Charge) {
        self.changed |= self.proxy.add_usage(self.request, slot, requests, charge);
    }
}

impl Proxy {
    /// Counts a call that upstream had whole and did not answer: it may have worked on it, and
    /// DashScope charges for that. Only where a guard goes by the count, because it is the most that
    /// it can have been. Says whether there is something to write.
    pub(super) fn count_unanswered(&self, request: &ClientRequest, slot: &Slot) -> bool {
        if self.scheduler.lock().guard().limit(&slot.model).is_none() {
            return false;
        }
        let input = bound::most_input_tokens(&request.body);
        let output = if request.endpoint.writes_text() {
            bound::most_output_tokens(&request.body)
        } else {
            0
        };
        let charge = Charge::unanswered(input.saturating_add(output));
        self.add_usage(request, slot, 1, &charge)
    }

    fn add_usage(
        &self,
        request: &ClientRequest,
        slot: &Slot,
        requests: u64,
        charge: &Charge,
    ) -> bool {
        let (counted, revision) = {
            let mut scheduler = self.scheduler.lock();
            let counted = scheduler.count(slot, requests, charge, clock::now());
            (counted, scheduler.revision())
        };
        let said = charge.said.unwrap_or_default();
        let spent = Spent { input: said.input, output: said.output, estimated: charge.estimated };
        self.metrics.used(self.pool.label(slot.key), self.model_name(slot), spent);
        if let Some(left) = counted.left {
            // It is written while the next slot is asked; the answer of that waits for it.
            self.store.request(revision);
            log_guard(&format!("id={} ", request.id), &self.pool.show(slot), &left);
        }
        counted.changed
    }
}

/// What a charge is above an earlier one of the same answer.
fn beyond(charge: &Charge, before: &Charge) -> Charge {
    let estimated = charge.tokens() - before.tokens();
    Charge { said: before.said.map(|_| Usage::default()), estimated }
}

/// Says that the guard has left a slot.
pub(crate) fn log_guard(id: &str, slot: &str, left: &Left) {
    info!(
        "guard {id}slot={slot} counted={} estimated={} limit={} until={}: it is left before DashScope could bill it, and only a reset brings it back",
        left.counted, left.estimated, left.limit, left.until
    );
}
