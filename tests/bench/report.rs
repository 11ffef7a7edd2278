//! What was found: for people (a table with ratios), and for machines (JSON lines).

use serde_json::json;

use crate::candidate::{DIRECT, NGINX, OURS};
use crate::goals::goals;
use crate::machine::Machine;
use crate::rounds::Turns;
use crate::stats::Spread;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Microseconds,
    Milliseconds,
    PerSecond,
    PerRequest,
    Mebibytes,
    MebibytesPerSecond,
    Count,
}

impl Unit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Microseconds => "us",
            Self::Milliseconds => "ms",
            Self::PerSecond => "1/s",
            Self::Mebibytes => "MiB",
            Self::MebibytesPerSecond => "MiB/s",
            Self::PerRequest | Self::Count => "",
        }
    }

    pub(crate) fn decimals(self) -> usize {
        match self {
            Self::Microseconds => 1,
            Self::PerRequest => 3,
            Self::Milliseconds | Self::Mebibytes => 2,
            Self::PerSecond | Self::MebibytesPerSecond | Self::Count => 0,
        }
    }

    fn is_time(self) -> bool {
        matches!(self, Self::Microseconds | Self::Milliseconds)
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

    fn write(&self, text: &mut String) {
        let decimals = self.unit.decimals();
        let mut title = format!("{} {}", self.name, self.unit.name());
        for value in &self.values {
            let Spread { low, median, high } = value.spread;
            let range = format!("{low:.decimals$}..{high:.decimals$}");
            let added = self.added(value);
            let added = added.map_or(String::new(), |added| format!("{added:+.decimals$}"));
            let [to_nginx, to_ours] = [NGINX, OURS].map(|to| {
                self.ratio(value, to).map_or(String::new(), |ratio| format!("{ratio:.2}"))
            });
            // Once for each figure.
            let title = std::mem::take(&mut title);
            *text += &format!(
                "{title:<44}{:<10}{median:>10.decimals$}{range:>20}{added:>10}{to_nginx:>8}{to_ours:>8}\n",
                value.target,
            );
        }
    }

    /// What a target adds to the direct one's time; a rate, a size or a count has no such thing.
    pub(crate) fn added(&self, value: &Value) -> Option<f64> {
        let direct = self.of(DIRECT).filter(|_| self.unit.is_time() && value.target != DIRECT)?;
        Some(value.spread.median - direct.spread.median)
    }

    /// How a target compares with another one: what it adds with what the other one adds, where
    /// there is such a thing (and the other one adds anything), else the value itself.
    pub(crate) fn ratio(&self, value: &Value, to: &str) -> Option<f64> {
        let other = self.of(to).filter(|_| value.target != DIRECT && value.target != to)?;
        match (self.added(value), self.added(other)) {
            (Some(added), Some(by_other)) => (by_other > 0.0).then(|| added / by_other),
            _ => Some(value.spread.median / other.spread.median),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) rounds: usize,
    pub(crate) figures: Vec<Figure>,
}

impl Report {
    pub(crate) fn new(machine: Machine, rounds: usize) -> Self {
        Self { machine, rounds, figures: Vec::new() }
    }

    /// Adds figures: of what the turns of each target found, number 0 is the first of `figures`
    /// and so on. What is not a number is what this target does not have.
    pub(crate) fn add<T: AsRef<str>>(
        &mut self,
        figures: &[(String, Unit)],
        targets: impl IntoIterator<Item = T>,
        found: Vec<Turns>,
    ) {
        let found: Vec<_> = targets.into_iter().zip(found).collect();
        for (at, (name, unit)) in figures.iter().enumerate() {
            let value = |(target, turns): &(T, Turns)| {
                let spread = Spread::of(turns.iter().map(|turn| turn[at]).collect());
                let target = target.as_ref().to_owned();
                (!spread.median.is_nan()).then_some(Value { target, spread })
            };
            let values = found.iter().filter_map(value).collect();
            self.figures.push(Figure { name: name.clone(), unit: *unit, values });
        }
    }

    pub(crate) fn median(&self, figure: &str, target: &str) -> Option<f64> {
        let figure = self.figures.iter().find(|it| it.name == figure)?;
        Some(figure.of(target)?.spread.median)
    }

    /// Everyone of whom something is known: the direct one, then in the order in which they came.
    pub(crate) fn targets(&self) -> Vec<&str> {
        let mut targets: Vec<&str> = Vec::new();
        for value in self.figures.iter().flat_map(|figure| &figure.values) {
            if !targets.contains(&value.target.as_str()) {
                targets.push(&value.target);
            }
        }
        targets.sort_by_key(|target| *target != DIRECT);
        targets
    }

    /// The machine; a line per figure and target with its median, its lowest and highest round,
    /// what it adds to the direct one, and how that compares with nginx and ours; the goals.
    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "{}, medians of {} rounds\n\n{:<44}{:<10}{:>10}{:>20}{:>10}{:>8}{:>8}\n",
            self.machine.sentence(),
            self.rounds,
            "",
            "",
            "median",
            "low..high",
            "added",
            ":nginx",
            ":ours"
        );
        for figure in &self.figures {
            figure.write(&mut text);
        }
        text.push('\n');
        for goal in goals(self) {
            let Some(found) = goal.found else { continue };
            let verdict = if found.is_met { "met" } else { "NOT met" };
            text += &format!("{:<34}{:<28}{:<12}{verdict}\n", goal.what, goal.limit, found.shown);
        }
        text
    }

    /// The machine, then an object per figure and target, then one per goal.
    pub(crate) fn json_lines(&self) -> String {
        let mut lines = vec![json!({"machine": self.machine.json(), "rounds": self.rounds})];
        for figure in &self.figures {
            for value in &figure.values {
                let Spread { low, median, high } = value.spread;
                lines.push(json!({
                    "name": figure.name, "unit": figure.unit.name(), "target": value.target,
                    "value": median, "low": low, "high": high,
                    "added": figure.added(value), "to_nginx": figure.ratio(value, NGINX),
                    "to_ours": figure.ratio(value, OURS),
                }));
            }
        }
        for goal in goals(self) {
            let (found, is_met) = goal.found.map(|found| (found.shown, found.is_met)).unzip();
            lines.push(json!({
                "goal": goal.what, "limit": goal.limit, "found": found, "met": is_met,
            }));
        }
        lines.iter().map(|line| format!("{line}\n")).collect()
    }
}

/// `1 stream`, `64 streams`.
pub(crate) fn plural(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
