//! What was found, for people (a table with ratios) and for machines (JSON lines).

use std::fmt::Write;

use serde_json::json;

use crate::measure::Spread;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Microseconds,
    Milliseconds,
    PerSecond,
    Mebibytes,
    Count,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::Microseconds => "us",
            Self::Milliseconds => "ms",
            Self::PerSecond => "1/s",
            Self::Mebibytes => "MiB",
            Self::Count => "",
        }
    }

    fn decimals(self) -> usize {
        match self {
            Self::Microseconds => 1,
            Self::Milliseconds | Self::Mebibytes => 2,
            Self::PerSecond | Self::Count => 0,
        }
    }
}

/// A figure that every target has.
#[derive(Debug)]
pub(crate) struct Figure {
    name: &'static str,
    unit: Unit,
    /// In the order of the report's targets.
    values: Vec<Spread>,
}

impl Figure {
    pub(crate) fn new(name: &'static str, unit: Unit) -> Self {
        Self { name, unit, values: Vec::new() }
    }
}

/// A figure of the proxy's process alone.
#[derive(Debug)]
pub(crate) struct Fact {
    name: &'static str,
    unit: Unit,
    /// `None` where the system does not tell.
    value: Option<f64>,
}

impl Fact {
    pub(crate) fn new(name: &'static str, unit: Unit, value: Option<f64>) -> Self {
        Self { name, unit, value }
    }
}

#[derive(Debug)]
pub(crate) struct Report {
    rounds: usize,
    /// Names; the first is what the others are compared with.
    pub(crate) targets: Vec<String>,
    figures: Vec<Figure>,
    pub(crate) facts: Vec<Fact>,
}

impl Report {
    pub(crate) fn new(rounds: usize) -> Self {
        Self { rounds, targets: Vec::new(), figures: Vec::new(), facts: Vec::new() }
    }

    /// Adds a figure: number `at` of what a measurement found for each target.
    pub(crate) fn add(&mut self, figure: Figure, found: &[Vec<Spread>], at: usize) {
        let values = found.iter().map(|values| values[at]).collect();
        self.figures.push(Figure { values, ..figure });
    }

    /// A line per figure: each target's median, lowest and highest round, and for all but the first the ratio to the first
    /// and, for times, what was added.
    pub(crate) fn table(&self) -> String {
        let mut text = format!("{}\n\n{:<22}{:>5}", self.conditions(), "", "");
        for (at, target) in self.targets.iter().enumerate() {
            push(&mut text, format_args!("{target:>12}{:>18}", "low..high"));
            if at > 0 {
                push(&mut text, format_args!("{:>9}{:>11}", "ratio", "added"));
            }
        }
        text.push('\n');
        for Figure { name, unit, values } in &self.figures {
            let decimals = unit.decimals();
            push(&mut text, format_args!("{name:<22}{:>5}", unit.name()));
            for (at, Spread { low, median, high }) in values.iter().enumerate() {
                let range = format!("{low:.decimals$}..{high:.decimals$}");
                push(&mut text, format_args!("{median:>12.decimals$}{range:>18}"));
                if at > 0 {
                    push(&mut text, format_args!("{:>9.3}", median / values[0].median));
                    match added(*unit, *median, values[0].median) {
                        Some(added) => push(&mut text, format_args!("{added:>+11.decimals$}")),
                        None => push(&mut text, format_args!("{:>11}", "")),
                    }
                }
            }
            text.push('\n');
        }
        if !self.facts.is_empty() {
            text.push_str("\nthe proxy's process\n");
        }
        for Fact { name, unit, value } in &self.facts {
            let Some(value) = value else { continue };
            let decimals = unit.decimals();
            push(&mut text, format_args!("{name:<22}{:>5}{value:>12.decimals$}\n", unit.name()));
        }
        text
    }

    /// The conditions, then an object per figure and target, then one per fact.
    pub(crate) fn json_lines(&self) -> String {
        let mut lines = vec![json!({
            "cores": cores(), "os": std::env::consts::OS, "arch": std::env::consts::ARCH,
            "debug": cfg!(debug_assertions), "rounds": self.rounds,
        })];
        for Figure { name, unit, values } in &self.figures {
            for (at, (target, value)) in self.targets.iter().zip(values).enumerate() {
                let mut line = json!({
                    "name": name, "unit": unit.name(), "target": target, "value": value.median,
                    "low": value.low, "high": value.high,
                });
                if at > 0 {
                    line["ratio"] = json!(value.median / values[0].median);
                    line["added"] = json!(added(*unit, value.median, values[0].median));
                }
                lines.push(line);
            }
        }
        for Fact { name, unit, value } in &self.facts {
            lines.push(json!({"name": name, "unit": unit.name(), "value": value}));
        }
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    fn conditions(&self) -> String {
        let build = if cfg!(debug_assertions) { "DEBUG build" } else { "optimised build" };
        format!(
            "{} {}, {} cores, {build}, medians of {} rounds",
            std::env::consts::OS,
            std::env::consts::ARCH,
            cores(),
            self.rounds
        )
    }
}

/// What a target adds to the first one's time; a rate has no such thing.
fn added(unit: Unit, value: f64, reference: f64) -> Option<f64> {
    matches!(unit, Unit::Microseconds | Unit::Milliseconds).then_some(value - reference)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(0, usize::from)
}

fn push(text: &mut String, piece: std::fmt::Arguments<'_>) {
    text.write_fmt(piece).expect("writing to a String does not fail");
}
