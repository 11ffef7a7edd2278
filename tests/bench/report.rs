//! What was found: for people (a table with ratios), and for machines (JSON lines).

use std::fmt::Write;

use serde_json::json;

use crate::candidate::{DIRECT, NGINX};
use crate::rounds::Turns;
use crate::stats::Spread;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Microseconds,
    PerSecond,
    Count,
}

impl Unit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Microseconds => "us",
            Self::PerSecond => "1/s",
            Self::Count => "",
        }
    }

    pub(crate) fn decimals(self) -> usize {
        match self {
            Self::Microseconds => 1,
            Self::PerSecond | Self::Count => 0,
        }
    }

    fn is_time(self) -> bool {
        self == Self::Microseconds
    }
}

/// One thing that was measured of several targets.
#[derive(Debug)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    pub(crate) values: Vec<Value>,
}

/// What was found for one target.
#[derive(Debug)]
pub(crate) struct Value {
    pub(crate) target: String,
    pub(crate) spread: Spread,
}

impl Figure {
    pub(crate) fn of(&self, target: &str) -> Option<&Value> {
        self.values.iter().find(|value| value.target == target)
    }

    /// What a target adds to the direct one's time; a rate, a size or a count has no such thing.
    pub(crate) fn added(&self, value: &Value) -> Option<f64> {
        let direct = self.of(DIRECT).filter(|_| self.unit.is_time() && value.target != DIRECT)?;
        Some(value.spread.median - direct.spread.median)
    }

    /// How a target compares with nginx: what it adds with what nginx adds, where there is such
    /// a thing (and nginx adds anything), else the value itself.
    pub(crate) fn to_nginx(&self, value: &Value) -> Option<f64> {
        let nginx = self.of(NGINX).filter(|_| value.target != DIRECT && value.target != NGINX)?;
        match (self.added(value), self.added(nginx)) {
            (Some(added), Some(by_nginx)) => (by_nginx > 0.0).then(|| added / by_nginx),
            _ => Some(value.spread.median / nginx.spread.median),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) figures: Vec<Figure>,
}

impl Report {
    /// Adds figures: of what the turns of each target found, number 0 is the first of `figures`
    /// and so on.
    pub(crate) fn add(&mut self, figures: &[(String, Unit)], found: &[(String, Turns)]) {
        for (at, (name, unit)) in figures.iter().enumerate() {
            let value = |(target, turns): &(String, Turns)| Value {
                target: target.clone(),
                spread: Spread::of(&turns.iter().map(|turn| turn[at]).collect::<Vec<_>>()),
            };
            let values = found.iter().map(value).collect();
            self.figures.push(Figure { name: name.clone(), unit: *unit, values });
        }
    }

    /// A block of lines per figure: each target's median, lowest and highest round, what it adds
    /// to the direct one, and how that compares with nginx.
    pub(crate) fn table(&self) -> String {
        let mut text = format!(
            "{:<32}{:<10}{:>10}{:>20}{:>10}{:>8}\n",
            "", "", "median", "low..high", "added", ":nginx"
        );
        for figure in &self.figures {
            let decimals = figure.unit.decimals();
            let mut title = format!("{} {}", figure.name, figure.unit.name());
            for value in &figure.values {
                let Spread { low, median, high } = value.spread;
                let range = format!("{low:.decimals$}..{high:.decimals$}");
                let added = figure.added(value);
                let added = added.map_or(String::new(), |added| format!("{added:+.decimals$}"));
                let ratio = figure.to_nginx(value);
                let ratio = ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
                let name = std::mem::take(&mut title);
                writeln!(
                    text,
                    "{name:<32}{:<10}{median:>10.decimals$}{range:>20}{added:>10}{ratio:>8}",
                    value.target,
                )
                .expect("writing to a String does not fail");
            }
        }
        text
    }

    /// An object per figure and target.
    pub(crate) fn json_lines(&self) -> String {
        let mut text = String::new();
        for figure in &self.figures {
            for value in &figure.values {
                let Spread { low, median, high } = value.spread;
                let line = json!({
                    "name": figure.name, "unit": figure.unit.name(), "target": value.target,
                    "value": median, "low": low, "high": high,
                    "added": figure.added(value), "to_nginx": figure.to_nginx(value),
                });
                text += &format!("{line}\n");
            }
        }
        text
    }
}
