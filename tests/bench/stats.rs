//! Medians, percentiles and spreads.

use std::time::Duration;

/// A figure over the rounds. Lowest and highest belong to it: where the scheduler puts the
/// threads can change a latency fourfold from one round to the next, and a median hides that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
}

impl Spread {
    pub(crate) fn of(values: Vec<f64>) -> Self {
        let sorted = sorted(values);
        let [low, median, high] = [0, 50, 100].map(|percent| percentile(&sorted, percent));
        Self { low, median, high }
    }
}

pub(crate) fn median(values: Vec<f64>) -> f64 {
    percentile(&sorted(values), 50)
}

/// p50 and p99.
pub(crate) fn p50_p99(values: Vec<f64>) -> [f64; 2] {
    let sorted = sorted(values);
    [50, 99].map(|percent| percentile(&sorted, percent))
}

pub(crate) fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// The nearest-rank percentile of sorted values; not a number when there are none.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}
