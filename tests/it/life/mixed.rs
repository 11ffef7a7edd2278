//! Mixed load at a fixed pace, and what the process holds at the quiet points between.
//!
//! Load generator and stand-in live in this process; what is measured is the proxy's alone.

use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use dashscope_proxy::clock;
use dashscope_proxy::standin::StandIn;
use serde_json::Value;

use super::dice::Dice;
use super::exchange::{Lab, Outcome};
use super::upstream::Upstream;
use super::vitals::Vitals;
use super::{errands, mortal, rare, rest, setting};
use crate::harness::{LIMIT, PROXY_KEY, Proxy};

const KEYS: [&str; 3] = ["sk-first-key-of-life", "sk-second-key-of-life", "sk-third-key-of-life"];
const MODELS: &str = "m1,m2,m3,m4";
pub(super) const SLOTS: usize = 12;

/// `CLIENT_TIMEOUT_SECONDS`, and how long a connection may lie idle.
const CLIENT_TIMEOUT: u64 = 2;
pub(super) const IDLE_LIMIT: Duration = Duration::from_secs(CLIENT_TIMEOUT + 15);

/// Streams and silences hold about forty of them.
const WORKERS: usize = 96;

/// Errands started in a second: an eighth of a core for the proxy.
const PACE: u64 = 50;

/// Every so often, on average, this many more at once.
const BURST: u64 = 30;
const BURST_EVERY: u64 = 8;

/// How long a round is at least. Its idle connections take [`IDLE_LIMIT`].
const ROUND: Duration = Duration::from_secs(20);

/// The quiet before a look at the process: threads of a crew go after 10 s without work, those of
/// the library after 5.
const QUIET: Duration = Duration::from_secs(11);

/// What may come and go between two quiet points: a thread that is about to end, a connection
/// that is about to be closed.
const THREADS: u64 = 5;
const DESCRIPTORS: usize = 3;

/// What the allocator may keep more of, in KiB, or as a share: bodies of 10 MB come and go.
const MEMORY: u64 = 6 << 10;
const MEMORY_SHARE: u64 = 10;

/// Never more than this: a few bodies of 10 MB at a time, and their copies.
const HIGHEST: u64 = 200 << 10;

/// 500 identifiers, twelve slots with their usage.
const STATE: u64 = 200 << 10;

/// Log lines of a request at `info`: one, and those of what it met (a cooldown, a bench, a
/// rotation), in bytes on average.
const LOG_OF_A_REQUEST: u64 = 1000;

/// A look at a quiet point.
struct Look {
    vitals: Vitals,
    /// The size of the state file.
    state: u64,
}

#[test]
#[ignore = "takes minutes: tests/life/run"]
fn under_mixed_load_nothing_grows_and_every_answer_is_right() {
    let seed = setting("LIFE_SEED", clock::now().0);
    let total = Duration::from_secs(60 * setting("LIFE_MINUTES", 1));
    println!("mixed load for {total:?}, LIFE_SEED={seed}");
    let upstream = Upstream::start();
    // What the harness wants; nobody asks it.
    let unused = StandIn::start().unwrap();
    let mut proxy = start(&unused, &upstream);
    let lab = Lab {
        proxy: proxy.address(),
        upstream: &upstream,
        tally: BTreeMap::new().into(),
        faults: Vec::new().into(),
        requests: 0.into(),
    };
    let looks = rounds(&lab, &proxy, total, seed);
    let mut faults = std::mem::take(&mut *lab.faults.lock());
    faults.extend(upstream.faults());
    let status = {
        proxy.terminate();
        proxy.wait_exit(LIMIT)
    };
    if status.and_then(|status| status.code()) != Some(0) {
        faults.push(format!("stopped with {status:?}"));
    }
    let log = proxy.log();
    let state = std::fs::read_to_string(proxy.state_path()).unwrap();
    // Its report would show the whole log.
    drop(proxy);

    println!("errand,outcome,times");
    for ((errand, outcome), times) in &*lab.tally.lock() {
        println!("{errand},{outcome},{times}");
    }
    println!("log event,lines");
    for (event, lines) in events_of(&log) {
        println!("{event},{lines}");
    }
    faults.extend(faults_of_growth(&looks));
    faults.extend(faults_of_log(&log, lab.requests.load(Ordering::Relaxed)));
    faults.extend(faults_of_state(&state));
    faults.extend(faults_of_mix(&lab));
    let end: Vec<&str> = log.lines().rev().take(30).collect();
    let end = end.into_iter().rev().collect::<Vec<_>>().join("\n");
    assert!(faults.is_empty(), "{}\n--- the end of the log\n{end}", faults.join("\n"));
}

fn start<'a>(unused: &'a StandIn, upstream: &Upstream) -> Proxy<'a> {
    let origin = format!("http://{}", upstream.address());
    let seconds = |seconds: u64| seconds.to_string();
    mortal(Proxy::builder(unused))
        .keys(&KEYS.join(","))
        .models(MODELS)
        .env("UPSTREAM_BASE_URL", format!("{origin}/apps/anthropic"))
        .env("OPENAI_UPSTREAM_BASE_URL", format!("{origin}/compatible-mode/v1"))
        .env("NATIVE_UPSTREAM_BASE_URL", format!("{origin}/api/v1"))
        .env("MODEL_COOLDOWN_SECONDS", seconds(1))
        .env("CLIENT_TIMEOUT_SECONDS", seconds(CLIENT_TIMEOUT))
        .env("UPSTREAM_TIMEOUT_SECONDS", seconds(5))
        .env("STREAM_IDLE_TIMEOUT_SECONDS", seconds(5))
        .env("WORKERS", WORKERS.to_string())
        .env("RUST_LOG", "info")
        .start()
}

/// Load and quiet in turn; a look at the end of each quiet.
fn rounds(lab: &Lab<'_>, proxy: &Proxy<'_>, total: Duration, seed: u64) -> Vec<Look> {
    let round = (total / 20).clamp(ROUND, ROUND * 3);
    let count = total.div_duration_f64(round).ceil().max(3.0);
    let started = clock::instant();
    let mut looks = Vec::new();
    println!("s,when,{},state_bytes,log_bytes,requests", Vitals::COLUMNS);
    let look = |when| {
        let (vitals, log) = (look_at(lab, proxy), proxy.log_length());
        let state = proxy.state_path().metadata().map_or(0, |file| file.len());
        let requests = lab.requests.load(Ordering::Relaxed);
        let seconds = started.elapsed().as_secs();
        println!("{seconds},{when},{vitals},{state},{log},{requests}");
        Look { vitals, state }
    };
    let mut number = 0;
    while (looks.len() as f64) < count && lab.faults.lock().is_empty() {
        let begun = clock::instant();
        let busy = begun + round - QUIET;
        thread::scope(|scope| {
            let mut start = |name, run: fn(&Lab<'_>, &str, &mut Dice) -> Outcome| {
                number += 1;
                let (nonce, dice) = (format!("n{number}"), Dice::new(seed ^ number));
                scope.spawn(move || run_one(lab, name, run, &nonce, dice));
            };
            for _ in 0..4 {
                start("left lying", rare::left_lying);
                start("never asks", rare::never_asks);
            }
            // The rarest are run too, however short the time.
            if looks.is_empty() {
                errands::ERRANDS.iter().for_each(|errand| start(errand.name, errand.run));
            }
            let mut dice = Dice::new(seed.wrapping_add(looks.len() as u64));
            let away = begun + (busy - begun).mul_f64(0.1 + dice.below(60) as f64 / 100.0);
            load(&mut start, &mut dice, away);
            scope.spawn(|| lab.upstream.restart());
            load(&mut start, &mut dice, busy);
            look("busy");
        });
        let quiet = QUIET.saturating_sub(busy.elapsed());
        rest(quiet.max(Duration::from_secs(2)));
        looks.push(look("quiet"));
    }
    looks
}

fn look_at(lab: &Lab<'_>, proxy: &Proxy<'_>) -> Vitals {
    Vitals::of(proxy.pid(), lab.upstream.address().port())
}

/// Starts errands at the pace until then.
fn load(
    start: &mut impl FnMut(&'static str, fn(&Lab<'_>, &str, &mut Dice) -> Outcome),
    dice: &mut Dice,
    until: Instant,
) {
    let mut due = clock::instant();
    while due < until {
        let is_burst = dice.below(PACE * BURST_EVERY) == 0;
        for _ in 0..if is_burst { BURST } else { 1 } {
            let errand = errands::next(dice);
            start(errand.name, errand.run);
        }
        due += Duration::from_secs(1) / u32::try_from(PACE).unwrap();
        rest(due.saturating_duration_since(clock::instant()));
    }
}

fn run_one(
    lab: &Lab<'_>,
    name: &'static str,
    run: fn(&Lab<'_>, &str, &mut Dice) -> Outcome,
    nonce: &str,
    mut dice: Dice,
) {
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| run(lab, nonce, &mut dice)));
    match outcome {
        Ok(Ok(word)) => *lab.tally.lock().entry((name, word)).or_default() += 1,
        Ok(Err(fault)) => lab.faults.lock().push(format!("{name}: {fault}")),
        Err(_) => lab.faults.lock().push(format!("{name} {nonce}: a panic, see above")),
    }
}

/// What the looks show of growth. Medians of the first and the last third after the warm-up are
/// compared: a single look may see a body of 10 MB that the allocator has kept.
fn faults_of_growth(looks: &[Look]) -> Vec<String> {
    let warm = &looks[(looks.len() / 5).max(1).min(looks.len())..];
    let third = warm.len().div_ceil(3);
    let Some(last) = looks.last().filter(|_| warm.len() > 1) else {
        return vec!["too few rounds to see growth".to_owned()];
    };
    let (earlier, later) = (&warm[..third], &warm[warm.len() - third..]);
    let mut faults = Vec::new();
    let mut compare = |what, of: &dyn Fn(&Look) -> u64, allowed: &dyn Fn(u64) -> u64| {
        let (before, after) = (median(earlier, of), median(later, of));
        println!("{what}: {before}, then {after}");
        if after > before + allowed(before) {
            faults.push(format!("{what} grew from {before} to {after}"));
        }
    };
    compare("threads", &|look| look.vitals.threads, &|_| THREADS);
    compare("descriptors", &|look| look.vitals.descriptors as u64, &|_| DESCRIPTORS as u64);
    let resident = |look: &Look| look.vitals.resident;
    compare("resident KiB", &resident, &|before| MEMORY.max(before * MEMORY_SHARE / 100));
    let bounds = [
        ("KiB at the highest", last.vitals.highest, HIGHEST),
        ("pooled connections", last.vitals.upstream as u64, WORKERS as u64),
        ("bytes of state", last.state, STATE),
    ];
    for (what, value, bound) in bounds {
        if value > bound {
            faults.push(format!("{value} {what}, more than {bound}"));
        }
    }
    faults
}

fn median(looks: &[Look], of: impl Fn(&Look) -> u64) -> u64 {
    let mut values: Vec<u64> = looks.iter().map(of).collect();
    values.sort_unstable();
    values[values.len() / 2]
}

fn faults_of_log(log: &str, requests: u64) -> Vec<String> {
    let mut faults = Vec::new();
    let most = requests * LOG_OF_A_REQUEST + (64 << 10);
    if log.len() as u64 > most {
        faults.push(format!("{} bytes of log for {requests} requests", log.len()));
    }
    for key in KEYS.iter().chain(&[PROXY_KEY]) {
        if log.contains(key) {
            faults.push(format!("the log shows the key {key}"));
        }
    }
    let is_alarming = |line: &&str| {
        ["ERROR", "panic", "passed=false", "written=false", "written=pending", "descriptors open="]
            .iter()
            .any(|word| line.contains(word))
    };
    faults.extend(log.lines().filter(is_alarming).take(5).map(str::to_owned));
    faults
}

fn faults_of_state(text: &str) -> Vec<String> {
    let Ok(state) = serde_json::from_str::<Value>(text) else {
        return vec![format!("the state file is no JSON: {text}")];
    };
    let mut faults = Vec::new();
    let names = |part: &str| state[part].as_object().map_or(0, serde_json::Map::len);
    let pins = state["runtimeState"].as_object().into_iter().flatten();
    let pins = pins.filter(|(name, _)| name.starts_with("pin:")).count();
    println!(
        "state: {} slots, {} runtime records, {pins} of them identifiers",
        names("modelState"),
        names("runtimeState")
    );
    if state["version"] != 1 || names("modelState") != SLOTS || pins > 500 {
        faults.push("the state file is not as it should be".to_owned());
    }
    if KEYS.iter().any(|key| text.contains(key)) {
        faults.push("the state file shows a key".to_owned());
    }
    faults
}

/// Every errand has been run, and few have met nothing but an empty pool or a dead upstream.
fn faults_of_mix(lab: &Lab<'_>) -> Vec<String> {
    let tally = lab.tally.lock();
    let runs = |errand: &str| tally.keys().any(|(name, _)| *name == errand);
    let missing = errands::ERRANDS.iter().filter(|errand| !runs(errand.name));
    let mut faults: Vec<String> =
        missing.map(|errand| format!("never run: {}", errand.name)).collect();
    let is_lost = |word: &str| word.contains("pool empty") || word.starts_with("shaken");
    let lost: u64 = tally.iter().filter(|((_, word), _)| is_lost(word)).map(|(_, n)| n).sum();
    let all: u64 = tally.values().sum();
    if lost * 3 > all {
        faults.push(format!("{lost} of {all} errands did not come to what they are for"));
    }
    faults
}

/// The lines of each event, by level.
fn events_of(log: &str) -> BTreeMap<String, u64> {
    let mut events = BTreeMap::new();
    for line in log.lines() {
        let words: Vec<&str> = line.split_whitespace().skip(1).take(2).collect();
        *events.entry(words.join(" ")).or_default() += 1;
    }
    events
}
