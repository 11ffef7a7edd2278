//! How long everything takes.

use std::time::Duration;

use crate::options::Options;

#[derive(Debug)]
pub(crate) struct Plan {
    /// Counted rounds; one more goes first and is thrown away.
    pub(crate) rounds: usize,
    pub(crate) latency_time: Duration,
}

impl Plan {
    const FULL: Self = Self { rounds: 6, latency_time: Duration::from_millis(800) };
    const QUICK: Self = Self { rounds: 3, latency_time: Duration::from_millis(200) };

    pub(crate) fn of(options: &Options) -> Self {
        let plan = if options.quick { Self::QUICK } else { Self::FULL };
        Self { rounds: options.rounds.unwrap_or(plan.rounds), ..plan }
    }
}
