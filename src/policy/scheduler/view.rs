//! The pool as a person may see it.

use std::time::Duration;

use super::{Guarding, Moment, Scheduler, Slot, Tally, Timestamp, Verdict};
use crate::policy::limits::Fact;

/// How a slot stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// A request may use it now.
    Available,
    /// It rests for this long: tried last, never refused.
    Benched(Duration),
    /// Its free quota is used up, for this long.
    Cooling(Duration),
    /// The guard keeps requests away until a person resets it.
    Guarded,
    /// A person has switched it off.
    Disabled,
}

/// One slot as the status page shows it.
#[derive(Debug)]
pub(crate) struct SlotView<'a> {
    /// The slot.
    pub slot: Slot,
    /// How it stands.
    pub standing: Standing,
    /// When its cooldown ends; `None` = it does not cool, or does not any more.
    pub cooldown_until: Option<Timestamp>,
    /// How many exhaustion answers it has had, ever.
    pub failure_count: u64,
    /// Upstream's message of the last exhaustion.
    pub last_error: Option<&'a str>,
    /// The last success.
    pub last_used_at: Option<Timestamp>,
    /// What its last answer meant.
    pub last_verdict: Option<Verdict>,
    /// What its model cannot take.
    pub limits: Vec<&'a Fact>,
    /// What it has served.
    pub tally: Tally,
    /// How many tokens its free quota had, if that is known.
    pub quota: Option<u64>,
    /// How the guard stands to it.
    pub guarding: Guarding,
    /// Whether the next request starts with this key.
    pub current_key: bool,
    /// Whether the next request starts with this slot.
    pub current_model: bool,
    /// Whether its key's cursor stands on this model.
    pub model_cursor: bool,
}

impl SlotView<'_> {
    /// Whether a request may use it now.
    #[must_use]
    pub(crate) fn is_available(&self) -> bool {
        matches!(self.standing, Standing::Available | Standing::Benched(_))
    }
}

impl Scheduler {
    /// Every slot as a person may see it.
    #[must_use]
    pub(crate) fn view(&self, moment: Moment) -> Vec<SlotView<'_>> {
        let now = moment.calendar;
        let current = self.current_slot(now);
        self.pool
            .slots()
            .filter_map(|slot| {
                let record = self.slots.get(&slot)?;
                let end = record.cooldown_until;
                let place = self.pool.place_of(&slot.model);
                Some(SlotView {
                    standing: self.standing(&slot, moment),
                    cooldown_until: Some(end).filter(|end| *end > now),
                    failure_count: record.failure_count,
                    last_error: record.last_error.as_deref(),
                    last_used_at: record.last_used_at,
                    last_verdict: self.last_verdicts.get(&slot).copied(),
                    limits: self.limits_of(&slot, moment.monotonic).collect(),
                    tally: self.tally(&slot),
                    quota: self.guard.quotas.of(&slot.model),
                    guarding: self.guarding(&slot),
                    current_key: current.as_ref().is_some_and(|current| current.key == slot.key),
                    current_model: current.as_ref() == Some(&slot),
                    model_cursor: place == Some(self.model_cursors[slot.key.0].at),
                    slot,
                })
            })
            .collect()
    }

    fn standing(&self, slot: &Slot, moment: Moment) -> Standing {
        let cooldown = self.slots.get(slot).map_or(Timestamp(0), |state| state.cooldown_until);
        if self.is_disabled(slot) {
            Standing::Disabled
        } else if self.is_left(slot)
            || self.is_cooling(slot, moment.calendar) && cooldown <= moment.calendar
        {
            Standing::Guarded
        } else if cooldown > moment.calendar {
            Standing::Cooling(cooldown.since(moment.calendar))
        } else {
            let rest = self.benches.rest_of(slot, moment.monotonic);
            rest.map_or(Standing::Available, Standing::Benched)
        }
    }
}
