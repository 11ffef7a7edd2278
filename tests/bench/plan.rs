//! How long everything takes.

use std::time::Duration;

use crate::options::Options;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Counted rounds, an odd number; one more goes first and is thrown away.
    pub(crate) rounds: usize,
    pub(crate) latency_time: Duration,
    /// The events of a stream are divided by this.
    pub(crate) fewer_events: u64,
    pub(crate) body_time: Duration,
    pub(crate) prompt_time: Duration,
    pub(crate) answer_time: Duration,
    /// How often in a turn many connect at once.
    pub(crate) bursts: usize,
    /// How often 500 streams come to a build that was started bare.
    pub(crate) crowds: usize,
    /// Rotations, and as many requests without one, in a round.
    pub(crate) rotations: usize,
    /// Requests over which state writes are counted.
    pub(crate) counted_requests: usize,
}

impl Plan {
    /// About seven minutes.
    const FULL: Self = Self {
        rounds: 7,
        latency_time: Duration::from_millis(700),
        fewer_events: 1,
        body_time: Duration::from_millis(300),
        prompt_time: Duration::from_millis(250),
        answer_time: Duration::from_millis(300),
        bursts: 8,
        crowds: 24,
        rotations: 40,
        counted_requests: 4096,
    };
    /// About a minute and a half.
    const QUICK: Self = Self {
        rounds: 3,
        latency_time: Duration::from_millis(150),
        fewer_events: 2,
        body_time: Duration::from_millis(50),
        prompt_time: Duration::from_millis(60),
        answer_time: Duration::from_millis(80),
        bursts: 3,
        crowds: 6,
        rotations: 15,
        counted_requests: 1024,
    };

    pub(crate) fn of(options: &Options) -> Self {
        let plan = if options.quick { Self::QUICK } else { Self::FULL };
        Self { rounds: options.rounds.unwrap_or(plan.rounds), ..plan }
    }
}
