//! The status as a table that fits 100 columns. Pure text.

use serde::Deserialize;
use serde_json::Value;

use super::Source;

/// No line of the table is wider.
const WIDTH: usize = 100;

/// The widest that a model's name may be shown.
const WIDEST_MODEL: usize = 26;

/// What is left out. Not an ellipsis, which some Chinese terminals draw twice as wide.
const CUT: &str = "..";

/// What of a status is shown. Members that a proxy of another version lacks are empty.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    total_keys: u64,
    models_per_key: u64,
    quota_guard: Option<u64>,
    total_slots: u64,
    available_slots: u64,
    #[serde(default)]
    same_account: Vec<Vec<String>>,
    process: Option<Process>,
    models: Vec<Row>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Process {
    version: String,
    uptime_seconds: u64,
    workers: u64,
    workers_busy: u64,
    queue_length: u64,
    connections: u64,
    draining: bool,
    state_file: String,
    state_writable: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Row {
    key_hash: String,
    id: String,
    current_key: bool,
    current_model: bool,
    state: String,
    seconds_left: Option<f64>,
    requests: u64,
    unknown_requests: u64,
    input_tokens: u64,
    output_tokens: u64,
    estimated_tokens: u64,
    estimated_tokens_left: Option<u64>,
    limits: Vec<Limit>,
    last_error: Option<String>,
    last_verdict: Option<String>,
}

/// What a model is known not to take.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Limit {
    kind: String,
    bound: Option<u64>,
    on: Option<String>,
    path: String,
    until: String,
}

/// The whole text.
///
/// # Errors
/// When this is no status.
pub(super) fn render(
    status: Value,
    source: &Source,
    colours: bool,
) -> Result<String, serde_json::Error> {
    let status: Status = serde_json::from_value(status)?;
    let mut text = introduction(&status, source);
    let widths = status.models.iter().map(|row| width(&row.id));
    let model = widths.max().unwrap_or(0).clamp("MODEL".len(), WIDEST_MODEL);
    let heads = ["KEY", "MODEL", "STATE", "FOR", "REQ", "USED", "EST", "LEFT", "LAST ERROR"];
    text.push_str(&line(" ", heads, model, None));
    for row in &status.models {
        let colour = if colours { colour(&row.state) } else { None };
        text.push_str(&row.line(model, colour));
    }
    if status.models.iter().any(|row| row.current_key && row.current_model) {
        text.push_str("* the next request starts here\n");
    }
    text.push_str(&limits(&status.models));
    if status.models.iter().any(|row| row.unknown_requests > 0) {
        text.push_str("> <: some answers did not say how many tokens they used\n");
    }
    if status.models.iter().any(|row| row.estimated_tokens > 0) {
        text.push_str("EST: the most that such answers, and those that were cut, can have used\n");
    }
    if status.models.iter().any(|row| row.state == "guarded") {
        text.push_str(
            "guarded: kept from requests until `reset`, so that DashScope cannot bill it\n",
        );
    }
    Ok(text)
}

fn introduction(status: &Status, source: &Source) -> String {
    let mut text = format!("{source}\n");
    if let Some(process) = &status.process {
        text.push_str(&format!(
            "version {}, up {}{}; {} of {} workers busy, {} waiting, {} connections\nstate file {}{}\n",
            process.version,
            in_words(process.uptime_seconds),
            if process.draining { ", stopping" } else { "" },
            process.workers_busy,
            process.workers,
            process.queue_length,
            process.connections,
            process.state_file,
            if process.state_writable { "" } else { ": it CANNOT BE WRITTEN" },
        ));
    }
    text.push_str(&format!(
        "{} keys x {} models: {} of {} slots available\n",
        status.total_keys, status.models_per_key, status.available_slots, status.total_slots
    ));
    if let Some(percent) = status.quota_guard {
        text.push_str(&format!("QUOTA_GUARD: a slot is left at {percent} % of its free quota\n"));
    }
    for pair in &status.same_account {
        text.push_str(&format!("{} look like two keys of one account\n", pair.join(" and ")));
    }
    text.push('\n');
    text
}

/// A line for each limit; those of one model are the same whatever the key.
fn limits(rows: &[Row]) -> String {
    let mut told: Vec<(&str, &Limit)> = Vec::new();
    for row in rows {
        for limit in row.limits.iter().map(|limit| (&*row.id, limit)) {
            if !told.contains(&limit) {
                told.push(limit);
            }
        }
    }
    let line = |(model, limit): (&str, &Limit)| {
        let bound = limit.bound.map(|bound| format!(" {bound}"));
        let on = limit.on.as_ref().map(|on| format!(" ({on})"));
        let (bound, on) = (bound.unwrap_or_default(), on.unwrap_or_default());
        let Limit { kind, path, until, .. } = limit;
        let text = format!("limit: {model} {kind}{bound}{on} on {path} until {until}");
        format!("{}\n", fitted(&text, WIDTH).trim_end())
    };
    told.into_iter().map(line).collect()
}

impl Row {
    fn line(&self, model: usize, colour: Option<&str>) -> String {
        let mark = if self.current_key && self.current_model { "*" } else { " " };
        let used = self.input_tokens.saturating_add(self.output_tokens);
        let at_least = if self.unknown_requests > 0 { ">" } else { "" };
        // Counted before there were estimates.
        let is_too_high = self.unknown_requests > 0 && self.estimated_tokens == 0;
        let left = match self.estimated_tokens_left {
            None => "?".to_owned(),
            Some(left) if is_too_high && left > 0 => format!("<{}", short(left)),
            Some(left) => short(left),
        };
        let error = self.last_error.as_deref().or(match self.state.as_str() {
            "benched" => self.last_verdict.as_deref(),
            _ => None,
        });
        let cells = [
            &self.key_hash,
            &self.id,
            &self.state,
            &self.seconds_left.map_or_else(String::new, |left| in_words(left as u64)),
            &short(self.requests),
            &format!("{at_least}{}", short(used)),
            &short(self.estimated_tokens),
            &left,
            error.unwrap_or_default(),
        ];
        line(mark, cells, model, colour)
    }
}

/// One line. `colour` is for the state.
fn line(mark: &str, cells: [&str; 9], model: usize, colour: Option<&str>) -> String {
    let [key, name, state, rest, requests, used, estimated, left, error] = cells;
    let state = fitted(state, 9);
    let state = match colour {
        Some(colour) => format!("\x1b[{colour}m{state}\x1b[0m"),
        None => state,
    };
    let mut text = format!(
        "{mark} {} {} {state} {} {} {} {} {} ",
        fitted(key, 12),
        fitted(name, model),
        to_the_right(rest, 7),
        to_the_right(requests, 5),
        to_the_right(used, 6),
        to_the_right(estimated, 5),
        to_the_right(left, 6),
    );
    // Mark, blanks, and the widths above.
    let before = 2 + 12 + 1 + model + 1 + 9 + 1 + 7 + 1 + 5 + 1 + 6 + 1 + 5 + 1 + 6 + 1;
    text.push_str(&fitted(error, WIDTH - before));
    format!("{}\n", text.trim_end())
}

/// ANSI colours, as their numbers.
fn colour(state: &str) -> Option<&'static str> {
    match state {
        "available" => Some("32"),
        "benched" => Some("33"),
        "cooling" => Some("31"),
        "guarded" => Some("35"),
        "disabled" => Some("2"),
        _ => None,
    }
}

/// Cut or filled up to exactly this width. What a terminal might act on is not shown.
fn fitted(text: &str, columns: usize) -> String {
    let text: String = text.chars().map(|c| if is_shown(c) { c } else { ' ' }).collect();
    if width(&text) <= columns {
        return format!("{text}{}", " ".repeat(columns - width(&text)));
    }
    let (mut cut, mut taken) = (String::new(), width(CUT));
    for c in text.chars().take_while(|c| {
        taken += column_count(*c);
        taken <= columns
    }) {
        cut.push(c);
    }
    cut.push_str(CUT);
    let rest = columns - width(&cut);
    format!("{cut}{}", " ".repeat(rest))
}

fn to_the_right(text: &str, columns: usize) -> String {
    format!("{}{text}", " ".repeat(columns.saturating_sub(width(text))))
}

fn width(text: &str) -> usize {
    text.chars().map(column_count).sum()
}

/// At most this many columns: from the Hangul letters on most characters take two.
fn column_count(c: char) -> usize {
    if u32::from(c) < 0x1100 { 1 } else { 2 }
}

/// Whether a terminal only draws it: `escape_debug` leaves what is neither a control nor a
/// formatting character.
fn is_shown(c: char) -> bool {
    matches!(c, '"' | '\'' | '\\') || c.escape_debug().count() == 1
}

/// A number in at most five characters.
fn short(number: u64) -> String {
    const UNITS: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    let (mut value, mut unit) = (number as f64, 0);
    while value >= 999.5 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1000.0, unit + 1);
    }
    match unit {
        0 => number.to_string(),
        unit if value < 99.95 => format!("{value:.1}{}", UNITS[unit]),
        unit => format!("{value:.0}{}", UNITS[unit]),
    }
}

/// A duration in at most seven characters: its two largest units.
fn in_words(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{minutes}m{:02}s", seconds % 60),
        3_600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ if days < 1000 => format!("{days}d{:02}h", hours % 24),
        _ if days < 1_000_000 => format!("{days}d"),
        _ => ">2000y".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rendered(models: Value, colours: bool) -> String {
        let status = json!({
            "totalKeys": 1, "modelsPerKey": 2, "totalSlots": 2, "availableSlots": 1,
            "sameAccount": [["aaaaaaaaaaaa", "bbbbbbbbbbbb"]], "models": models,
        });
        render(status, &Source::Proxy("127.0.0.1:3300".parse().unwrap()), colours).unwrap()
    }

    fn worst() -> Value {
        json!({
            "keyHash": "6ab9f1eb8f7d", "id": "m".repeat(128), "state": "available",
            "currentKey": true, "currentModel": true, "secondsLeft": u64::MAX,
            "requests": u64::MAX, "unknownRequests": 1, "inputTokens": u64::MAX, "outputTokens": 1,
            "estimatedTokens": u64::MAX,
            "estimatedTokensLeft": u64::MAX, "lastError": "免费额度用完即停".repeat(50),
            "limits": [{"kind": "x".repeat(99), "path": "/\u{1b}[31m", "on": "限".repeat(99)}],
        })
    }

    #[test]
    fn no_line_is_wider_than_100_columns() {
        let control = "\u{1b}]0;title\u{7}\r\n\u{202e}\u{200b}x";
        let hostile = json!({"keyHash": "x".repeat(99), "id": "m1", "state": "s".repeat(99),
                             "lastError": control});
        let text = rendered(json!([worst(), hostile]), false);
        assert!(text.lines().all(|line| width(line) <= WIDTH), "{text}");
        assert!(text.chars().all(|c| c == '\n' || is_shown(c)), "{text:?}");
    }

    #[test]
    fn columns_stand_below_each_other() {
        let slot = |id: &str, error: Value| {
            json!({"keyHash": "6ab9f1eb8f7d", "id": id, "state": "cooling", "secondsLeft": 90,
                   "requests": 3, "inputTokens": 1200, "estimatedTokens": 56,
                   "estimatedTokensLeft": 0,
                   "lastError": error})
        };
        let text =
            rendered(json!([slot("m1", json!("used up")), slot("model-2", json!(null))]), false);
        let lines: Vec<&str> = text.lines().skip_while(|line| !line.contains("KEY")).collect();
        assert_eq!(
            lines[0],
            "  KEY          MODEL   STATE         FOR   REQ   USED   EST   LEFT LAST ERROR"
        );
        assert_eq!(
            lines[1],
            "  6ab9f1eb8f7d m1      cooling     1m30s     3   1.2k    56      0 used up"
        );
        assert_eq!(lines[2], "  6ab9f1eb8f7d model-2 cooling     1m30s     3   1.2k    56      0");
    }

    #[test]
    fn only_the_state_has_a_colour_and_only_when_asked_for() {
        let plain = rendered(json!([worst()]), false);
        let coloured = rendered(json!([worst()]), true);
        assert!(!plain.contains('\x1b'));
        assert_eq!(coloured.replace("\x1b[32mavailable\x1b[0m", "available"), plain);
    }

    #[test]
    fn a_limit_is_told_once_whatever_the_number_of_keys() {
        let limit = json!({"kind": "max_output", "bound": 8192, "on": "thinking:on",
                           "path": "/messages", "until": "2026-12-01T00:00:00.000Z"});
        let slot = |key: &str| json!({"keyHash": key, "id": "m1", "limits": [limit]});
        let text = rendered(json!([slot("a"), slot("b")]), false);
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("limit:")).collect();
        let told =
            "limit: m1 max_output 8192 (thinking:on) on /messages until 2026-12-01T00:00:00.000Z";
        assert_eq!(lines, [told]);
    }

    #[test]
    fn numbers_and_times_are_short() {
        for (number, told) in [
            (0, "0"),
            (999, "999"),
            (1000, "1.0k"),
            (99_949, "99.9k"),
            (99_950, "100k"),
            (999_499, "999k"),
            (999_500, "1.0M"),
            (u64::MAX, "18.4E"),
        ] {
            assert_eq!(short(number), told);
        }
        for (seconds, told) in [
            (0, "0s"),
            (61, "1m01s"),
            (3_661, "1h01m"),
            (2_592_000, "30d00h"),
            (1 << 30, "12427d"),
            (1 << 40, ">2000y"),
        ] {
            assert_eq!(in_words(seconds), told);
        }
    }

    #[test]
    fn what_is_no_status_is_an_error() {
        let source = Source::File("x".into());
        assert!(render(json!({"ok": true}), &source, false).is_err());
    }
}
