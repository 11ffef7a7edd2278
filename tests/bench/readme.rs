//! The tables in README.md, between two comments.

use std::fmt::Write;
use std::fs;

use crate::Failure;
use crate::candidate::{HAPROXY, NGINX, OURS};
use crate::goals::goals;
use crate::report::{Figure, Report};

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
const BEGIN: &str = "<!-- cargo bench -- --write-readme: from here -->\n";
const END: &str = "<!-- to here -->\n";

/// Replaces what stands between the comments.
pub(crate) fn write(report: &Report) -> Result<(), Failure> {
    let failed = |cause: &dyn std::fmt::Display| format!("failed to write `{README}`: {cause}");
    let old = fs::read_to_string(README).map_err(|cause| failed(&cause))?;
    let parts = old.split_once(BEGIN).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some((before, after))
    });
    let (before, after) = parts.ok_or_else(|| failed(&"it lacks the two comments"))?;
    let new = format!("{before}{BEGIN}{}{END}{after}", tables(report));
    fs::write(README, new).map_err(|cause| failed(&cause))
}

fn tables(report: &Report) -> String {
    let mut text = format!(
        "{}. Medians of {} rounds; what a time is beyond that of upstream alone stands behind it \
         with a plus sign.\n\n",
        report.machine.sentence(),
        report.rounds
    );
    let targets = report.targets();
    let mut line = |cells: Vec<String>| {
        writeln!(text, "| {} |", cells.join(" | ")).expect("writing to a String does not fail");
    };
    let mut head = vec![String::new()];
    head.extend(targets.iter().map(|target| (*target).to_owned()));
    let others: Vec<&str> = match targets.contains(&OURS) {
        true => [NGINX, HAPROXY].into_iter().filter(|other| targets.contains(other)).collect(),
        false => Vec::new(),
    };
    head.extend(others.iter().map(|other| format!("ours : {other}")));
    line(head.clone());
    line(
        head.iter()
            .enumerate()
            .map(|(at, _)| if at == 0 { "---" } else { "---:" }.to_owned())
            .collect(),
    );
    for figure in report.figures.iter().filter(|figure| !figure.values.is_empty()) {
        let mut cells = vec![title(figure)];
        cells.extend(targets.iter().map(|target| cell(figure, target)));
        cells.extend(others.iter().map(|other| {
            let ratio = figure.of(OURS).and_then(|ours| figure.ratio(ours, other));
            ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"))
        }));
        line(cells);
    }
    text.push_str("\n| goal | | found | |\n| --- | --- | --- | --- |\n");
    for goal in goals(report) {
        let (shown, verdict) = match &goal.found {
            Some(found) => (found.shown.as_str(), if found.is_met { "met" } else { "not met" }),
            None => ("", "not measured"),
        };
        writeln!(text, "| {} | {} | {shown} | {verdict} |", goal.what, goal.limit)
            .expect("writing to a String does not fail");
    }
    text.push('\n');
    text
}

fn title(figure: &Figure) -> String {
    match figure.unit.name() {
        "" => figure.name.clone(),
        "us" => format!("{}, µs", figure.name),
        unit => format!("{}, {unit}", figure.name),
    }
}

/// The median, and what it adds.
fn cell(figure: &Figure, target: &str) -> String {
    let Some(value) = figure.of(target) else { return String::new() };
    let median = value.spread.median;
    // The decimals of a large number are noise.
    let decimals = if median < 100.0 { figure.unit.decimals() } else { 0 };
    match figure.added(value) {
        Some(added) => format!("{median:.decimals$} ({added:+.decimals$})"),
        None => format!("{median:.decimals$}"),
    }
}
