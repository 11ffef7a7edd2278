//! What this project wants to reach. Nothing fails when it is missed.

use crate::bare::{FIRST_MEMORY, MOST_MEMORY};
use crate::candidate::{DIRECT, NGINX, OURS};
use crate::cores::Places;
use crate::report::Report;

#[derive(Debug)]
pub(crate) struct Goal {
    pub(crate) what: &'static str,
    pub(crate) limit: &'static str,
    /// `None`: not measured this time.
    pub(crate) found: Option<Found>,
}

#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) shown: String,
    pub(crate) is_met: bool,
}

/// How a number compares with its limit.
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

use Bound::{AtLeast, AtMost};

#[rustfmt::skip]
pub(crate) fn goals(report: &Report) -> Vec<Goal> {
    let ours = |figure: &str| report.median(figure, OURS);
    let added = |figure: &str, target: &str| {
        Some(report.median(figure, target)? - report.median(figure, DIRECT)?)
    };
    // Where nginx seems to add nothing there is nothing to compare with.
    let added_to_nginx = |figure: &str| {
        let by_nginx = added(figure, NGINX).filter(|added| *added > 0.0)?;
        Some(added(figure, OURS)? / by_nginx)
    };
    // The worst, of the places at which it was measured.
    let worst_added = |before: &str, after: &str| {
        let figures = Places::ALL.iter().map(|places| format!("{before}{}{after}", places.suffix()));
        figures.filter_map(|figure| added_to_nginx(&figure)).reduce(f64::max)
    };
    let to_nginx = |figure: &str| Some(ours(figure)? / report.median(figure, NGINX)?);
    let growth = || Some(ours(MOST_MEMORY)? / ours(FIRST_MEMORY)?);
    [
        ("added latency p50, 1 connection", "at most 2.5 × nginx's", worst_added("latency p50, 1 connection", ""), AtMost(2.5), " ×"),
        ("added p50, 32 KB, 1 connection", "at most 2 × nginx's", worst_added("prompt of 32 KB, 1 connection", ", p50"), AtMost(2.0), " ×"),
        ("added p50, 560 KB, 1 connection", "at most 2 × nginx's", worst_added("prompt of 560 KB, 1 connection", ", p50"), AtMost(2.0), " ×"),
        ("rate, 32 KB, 64 connections", "at least 0.55 × nginx's", to_nginx("prompt of 32 KB, 64 connections, rate"), AtLeast(0.55), " ×"),
        ("rate, 560 KB, 16 connections", "at least 0.6 × nginx's", to_nginx("prompt of 560 KB, 16 connections, rate"), AtLeast(0.6), " ×"),
        ("request of 10 MB, rate", "at least 0.6 × nginx's", to_nginx("request of 10 MB, rate"), AtLeast(0.6), " ×"),
        ("throughput, 64 connections", "at least 0.4 × nginx's", to_nginx("throughput, 64 connections"), AtLeast(0.4), " ×"),
        ("first byte p99, 64 streams", "at most 3 × nginx's", to_nginx("first byte p99, 64 streams"), AtMost(3.0), " ×"),
        ("the same over new connections, added", "at most 5 × nginx's", added_to_nginx("first byte p99, 64 streams over new connections"), AtMost(5.0), " ×"),
        ("memory at 500 streams, started bare", "at most 50 MiB", ours(MOST_MEMORY), AtMost(50.0), " MiB"),
        ("its most, to that of the first 500", "at most 1.1 ×", growth(), AtMost(1.1), " ×"),
        ("memory idle", "at most 5 MiB", ours("memory idle"), AtMost(5.0), " MiB"),
        ("start to listening", "at most 20 ms", ours("start to listening"), AtMost(20.0), " ms"),
        ("upstream connections", "at most one per worker: 64", ours("upstream connections"), AtMost(64.0), ""),
    ]
    .into_iter()
    .map(|(what, limit, value, bound, unit)| {
        let found = value.map(|value| Found {
            shown: format!("{}{unit}", (value * 100.0).round() / 100.0),
            is_met: match bound {
                AtMost(limit) => value <= limit,
                AtLeast(limit) => value >= limit,
            },
        });
        Goal { what, limit, found }
    })
    .collect()
}
