//! What this project wants to reach. Nothing fails when it is missed.

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
    // The worst, of the places at which it was measured.
    let added_latency = Places::ALL.iter().filter_map(|places| {
        let latency = format!("latency p50, 1 connection{}", places.suffix());
        Some(added(&latency, OURS)? / added(&latency, NGINX)?)
    });
    let added_latency = added_latency.reduce(f64::max);
    let to_nginx = |figure: &str| Some(ours(figure)? / report.median(figure, NGINX)?);
    [
        ("added latency p50, 1 connection", "at most 2.5 × nginx's", added_latency, AtMost(2.5), " ×"),
        ("throughput, 64 connections", "at least 0.35 × nginx's", to_nginx("throughput, 64 connections"), AtLeast(0.35), " ×"),
        ("first byte p99, 64 streams", "at most 3 × nginx's", to_nginx("first byte p99, 64 streams"), AtMost(3.0), " ×"),
        ("memory at 500 streams", "at most 64 MiB", ours("memory at 500 streams"), AtMost(64.0), " MiB"),
        ("memory idle", "at most 6 MiB", ours("memory idle"), AtMost(6.0), " MiB"),
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
