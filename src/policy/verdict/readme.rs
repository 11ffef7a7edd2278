//! The README's table "What DashScope says, and what is done", held against the code.

use std::collections::BTreeSet;

use super::*;
use crate::policy::bench::Rest;
use crate::policy::failover::{Avoid, Budget, Penalty, avoid, penalty};

const ENGLISH: &str = include_str!("../../../README.md");
const CHINESE: &str = include_str!("../../../README.zh-CN.md");

/// Where a row says `any` status, it is tried at these.
const ANY_STATUS: [u16; 5] = [400, 403, 404, 429, 500];

const STATUS: usize = 1;
const CODES: usize = 2;
const WORDS: usize = 3;
const VERDICT: usize = 4;
const TRIES: usize = 5;
const RESTS: usize = 6;

/// The rows of the table whose head names the verdicts, as cells.
fn rows(readme: &'static str, head: &str) -> Vec<Vec<&'static str>> {
    let table = readme.lines().skip_while(|line| !line.starts_with(head));
    let rows = table.skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

fn english() -> Vec<Vec<&'static str>> {
    rows(ENGLISH, "| DashScope says |")
}

/// What stands between backticks.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

fn numbers(cell: &str) -> Vec<u64> {
    let digits = cell.split(|c: char| !c.is_ascii_digit()).filter(|text| !text.is_empty());
    digits.map(|text| text.parse().unwrap()).collect()
}

fn statuses(cell: &str) -> Vec<u16> {
    if cell == "any" {
        return ANY_STATUS.to_vec();
    }
    numbers(cell).into_iter().map(|status| u16::try_from(status).unwrap()).collect()
}

/// `InternalError.*` stands for what begins so; without a code any unknown one will do.
fn codes(cell: &str) -> Vec<String> {
    match cell.starts_with("any") {
        true => vec!["Unheard.Of".to_owned()],
        false => quoted(cell).into_iter().map(|code| code.replace('*', "Algo")).collect(),
    }
}

/// Every message that has one of the alternatives, and what has to be there besides.
fn messages(cell: &str) -> Vec<String> {
    let groups: Vec<_> = cell.split(", and ").map(quoted).collect();
    let besides: Vec<_> = groups[1..].iter().flatten().copied().collect();
    let message = |words: &&str| format!("Sorry: {words} {}.", besides.join(" "));
    match groups[0].is_empty() {
        true => vec!["Something unheard of.".to_owned()],
        false => groups[0].iter().map(message).collect(),
    }
}

fn judged(status: u16, code: &str, message: &str) -> Verdict {
    let body = format!(r#"{{"code":"{code}","message":"{message}"}}"#);
    let prefix = body.as_bytes();
    classify(Failure { status, retry_after: None, prefix, names_model: false }).verdict
}

/// How many further slots a request tries that gets this verdict again and again.
fn further_slots(verdict: Verdict) -> usize {
    let mut budget = Budget::default();
    (0..100).take_while(|_| budget.allows(verdict, Duration::ZERO)).count()
}

#[test]
fn every_row_of_the_table_is_what_the_code_does() {
    let rows = english();
    assert_eq!(rows.len(), 17);
    for row in &rows {
        let shown = row.join(" | ");
        for status in statuses(row[STATUS]) {
            for code in codes(row[CODES]) {
                for message in messages(row[WORDS]) {
                    let verdict = judged(status, &code, &message);
                    let case = format!("{status} {code} {message}: {shown}");
                    assert_eq!(quoted(row[VERDICT]), [verdict.name()], "{case}");
                    assert_tries(row[TRIES], verdict, &case);
                    assert_rests(row[RESTS], verdict, &case);
                }
                if row[WORDS] != "–" {
                    let verdict = judged(status, &code, "Something unheard of.");
                    let rest = penalty(verdict);
                    let same = quoted(row[VERDICT]) == [verdict.name()];
                    assert!(!same || rest == penalty_of_429(), "the words do not matter: {shown}");
                }
            }
        }
    }
}

/// A throttle is one with and without the words; they only make it longer.
fn penalty_of_429() -> Penalty {
    penalty(judged(429, "x", "x"))
}

fn assert_tries(cell: &str, verdict: Verdict, case: &str) {
    let expected = match (cell, numbers(cell).as_slice()) {
        ("none", _) => 0,
        ("every slot there is", _) => 100,
        (_, [count]) => usize::try_from(*count).unwrap(),
        _ => panic!("{case}"),
    };
    assert_eq!(further_slots(verdict), expected, "{case}");
    let avoided = match cell {
        cell if cell.ends_with("of other keys") => Avoid::Key,
        cell if cell.ends_with("of other keys first") => Avoid::KeyFirst,
        _ => Avoid::Slot,
    };
    assert_eq!(avoid(verdict), avoided, "{case}");
}

fn assert_rests(cell: &str, verdict: Verdict, case: &str) {
    let seconds = |count: u64| Duration::from_secs(count);
    let expected = match (cell.split([',', ';']).next(), numbers(cell).as_slice()) {
        (Some("nobody"), []) => Penalty::None,
        // Its cooldown is another matter, and no rest.
        (Some("the slot"), []) if verdict == Verdict::QuotaExhausted => Penalty::None,
        (Some("the key"), [length]) => Penalty::Key(seconds(*length)),
        (Some("the slot"), [600]) if cell.ends_with("the key") => Penalty::Denied,
        (Some("the slot"), [length]) => Penalty::Slot(Rest::For(seconds(*length))),
        (Some("the slot"), [1, 60]) => Penalty::Slot(Rest::Growing),
        (Some("the slot"), [shortest, longest, silent]) => {
            assert_eq!(THROTTLE_RANGE, (*shortest, *longest), "{case}");
            Penalty::Slot(Rest::For(seconds(*silent)))
        }
        _ => panic!("{case}"),
    };
    assert_eq!(penalty(verdict), expected, "{case}");
}

/// A limit hangs on the request as well, so it has a table of its own.
#[test]
fn every_code_and_verdict_that_the_code_knows_is_in_the_table() {
    let rows = english();
    let listed = |column: usize| -> BTreeSet<&str> {
        rows.iter().flat_map(|row| quoted(row[column])).collect()
    };
    let lists: [&[&str]; 7] = [
        &FREE_TIER_ONLY,
        &PLAN_CODES,
        &ACCOUNT_CODES,
        &KEY_CODES,
        &ELIGIBILITY_CODES,
        &MODEL_CODES,
        &PARAMETER_CODES,
    ];
    let mut known: BTreeSet<&str> = lists.into_iter().flatten().copied().collect();
    known.extend(["InternalError", "InternalError.*", "internal_server_error"]);
    assert_eq!(listed(CODES), known);
    let words: [&[&str]; 7] = [
        &FREE_QUOTA_WORDS,
        &USED_UP_WORDS,
        &KEY_WORDS,
        &MODEL_WORDS,
        &FREE_ALLOCATION_WORDS,
        &PLAN_WINDOWS,
        &PLAN_WORDS,
    ];
    let in_table: BTreeSet<_> =
        listed(WORDS).iter().map(|words| words.to_ascii_lowercase()).collect();
    for word in words.into_iter().flatten() {
        assert!(in_table.contains(*word), "{word}");
    }
    let verdicts = [
        Verdict::QuotaExhausted,
        Verdict::AccountBlocked,
        Verdict::KeyRejected,
        Verdict::ModelDenied,
        Verdict::ModelMissing,
        Verdict::Throttled(THROTTLE_REST),
        Verdict::PlanThrottled,
        Verdict::Unavailable,
        Verdict::InternalError,
        Verdict::Success,
        Verdict::CallerError,
    ];
    assert_eq!(listed(VERDICT), verdicts.into_iter().map(Verdict::name).collect());
}

#[test]
fn both_languages_say_the_same() {
    let facts = |rows: Vec<Vec<&'static str>>| -> Vec<_> {
        let fact = |cell: &&'static str| (quoted(cell), numbers(cell));
        rows.iter().map(|row| row[STATUS..].iter().map(fact).collect::<Vec<_>>()).collect()
    };
    assert_eq!(facts(rows(CHINESE, "| 百炼说 |")), facts(english()));
}
