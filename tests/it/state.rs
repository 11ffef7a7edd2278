//! The state file as other processes find it: whole, private, current, and never overwritten
//! unread.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dashscope_proxy::clock;
use dashscope_proxy::standin::{Reply, StandIn};
use serde_json::Value;

use crate::envelope::CHAT;
use crate::failover::exhausted;
use crate::harness::{AUTH, Answer, Folder, LIMIT, Proxy, get, key_hash, post, record};

const BODY: &str = r#"{"model":"any","messages":[]}"#;

/// The hash of `k1`, from `sha256sum`.
const K1: &str = "6ab9f1eb8f7d3388f4f9d586f66e99fd54080df2c446f0e58668b09c08a16dd0";

/// A file as the original writes it, with k1's cursor on m3, m1 cooling until 2100, and with
/// what this version does not know. `JSON.stringify` there ends without a newline.
const ORIGINAL: &str = r#"{
  "version": 1,
  "modelState": {
    "6ab9f1eb8f7d3388f4f9d586f66e99fd54080df2c446f0e58668b09c08a16dd0:m1": {
      "keyHash": "6ab9f1eb8f7d3388f4f9d586f66e99fd54080df2c446f0e58668b09c08a16dd0",
      "modelId": "m1",
      "cooldownUntil": 4102444800000,
      "failureCount": 3,
      "lastError": "The free tier of the model has been exhausted. \"用完即停\"",
      "lastUsedAt": 1700000000123,
      "updatedAt": 1700000000456,
      "note": "of a later version"
    },
    "6ab9f1eb8f7d3388f4f9d586f66e99fd54080df2c446f0e58668b09c08a16dd0:m2": {
      "keyHash": "6ab9f1eb8f7d3388f4f9d586f66e99fd54080df2c446f0e58668b09c08a16dd0",
      "modelId": "m2",
      "cooldownUntil": 1700000000000,
      "failureCount": 1,
      "lastError": "over long ago",
      "lastUsedAt": null,
      "updatedAt": 1700000000456
    },
    "00000000000000000000000000000000000000000000000000000000000000ff:m1": {
      "keyHash": "00000000000000000000000000000000000000000000000000000000000000ff",
      "modelId": "m1",
      "cooldownUntil": 4102444800000,
      "failureCount": 9007199254740991,
      "lastError": "a stranger's",
      "lastUsedAt": null,
      "updatedAt": 1
    },
    "6ab9f1eb8f7d3388f4f9d586f66e99fd54080df2c446f0e58668b09c08a16dd0:gone": {
      "keyHash": "6ab9f1eb8f7d3388f4f9d586f66e99fd54080df2c446f0e58668b09c08a16dd0",
      "modelId": "gone",
      "cooldownUntil": 5,
      "failureCount": 1,
      "lastError": null,
      "lastUsedAt": 4,
      "updatedAt": 6
    }
  },
  "runtimeState": {
    "key_cursor": { "value": "0", "updatedAt": 1700000000000 },
    "model_cursor:6ab9f1eb8f7d3388f4f9d586f66e99fd54080df2c446f0e58668b09c08a16dd0": {
      "value": "2",
      "updatedAt": 1700000000000
    },
    "model_cursor:00000000000000000000000000000000000000000000000000000000000000ff": {
      "value": "not a number",
      "updatedAt": 3
    },
    "usage:2026-10": { "value": "{\"m1\":7}", "updatedAt": 2 }
  },
  "laterField": { "kept": [1, 2.50, null] }
}"#;

fn read(path: &Path) -> Value {
    let text = fs::read_to_string(path).expect("a state file");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

fn cools(slot: &Value) -> bool {
    slot["cooldownUntil"].as_u64().expect("a time") > clock::now().0
}

/// The names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The quarantined copies of the state file.
fn set_aside(folder: &Path) -> Vec<PathBuf> {
    let names = names(folder).into_iter();
    names.filter(|name| name.contains(".bak.")).map(|name| folder.join(name)).collect()
}

/// Asks for `/health` until `stateWritable` is as wanted.
fn wait_writable(proxy: &Proxy<'_>, wanted: bool) {
    let deadline = clock::instant() + LIMIT;
    loop {
        let health = get(proxy, "/health");
        assert_eq!(health.status, 200);
        if health.json()["stateWritable"] == wanted {
            return;
        }
        assert!(clock::instant() < deadline, "{health:?}");
    }
}

#[test]
fn a_file_of_the_original_is_continued() {
    assert_eq!(K1, key_hash("k1"));
    let standin = StandIn::start().unwrap();
    let mut proxy = Proxy::builder(&standin).state(ORIGINAL).start();
    // Where the file says, although m2 is free as well.
    assert_eq!(post(&proxy, CHAT, BODY).header("x-proxy-model"), Some("m3"));
    standin.reply("k1", "m3", exhausted());
    // Around the end of the list, past m1, which cools.
    assert_eq!(post(&proxy, CHAT, BODY).header("x-proxy-model"), Some("m2"));
    assert_eq!(standin.slots(), ["k1/m3", "k1/m3", "k1/m2"]);
    assert!(set_aside(&proxy.folder()).is_empty());
    proxy.stop();

    let (original, state): (Value, Value) =
        (serde_json::from_str(ORIGINAL).unwrap(), proxy.state());
    for name in original["modelState"].as_object().unwrap().keys() {
        if !name.ends_with(":m2") {
            assert_eq!(state["modelState"][name], original["modelState"][name], "{name}");
        }
    }
    for name in [
        "model_cursor:00000000000000000000000000000000000000000000000000000000000000ff",
        "usage:2026-10",
    ] {
        assert_eq!(state["runtimeState"][name], original["runtimeState"][name], "{name}");
    }
    assert_eq!(state["laterField"], original["laterField"]);
    let cursor = &state["runtimeState"][format!("model_cursor:{K1}")];
    assert_eq!(cursor["value"], "1");
    assert_eq!(state["runtimeState"]["key_cursor"], original["runtimeState"]["key_cursor"]);
    let served = record(&state, "k1", "m2");
    assert_eq!((&served["failureCount"], &served["lastError"]), (&1.into(), &Value::Null));
    assert!(cools(&record(&state, "k1", "m3")));
}

#[test]
fn at_the_start_every_slot_gets_a_record_in_the_form_of_the_original() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let text = fs::read_to_string(proxy.state_path()).unwrap();
    assert!(text.starts_with("{\n  \"version\": 1,\n  \"modelState\": {\n    \""), "{text}");
    assert!(text.ends_with("\n  }\n}\n"), "{text}");
    let state = proxy.state();
    assert_eq!(state["modelState"].as_object().unwrap().len(), 6);
    for key in ["k1", "k2"] {
        for model in ["m1", "m2", "m3"] {
            let mut slot = record(&state, key, model);
            assert!(slot["updatedAt"].as_u64().unwrap().abs_diff(clock::now().0) < 600_000);
            slot["updatedAt"] = 0.into();
            let hash = key_hash(key);
            let fresh = serde_json::json!({
                "keyHash": hash, "modelId": model, "cooldownUntil": 0, "failureCount": 0,
                "lastError": null, "lastUsedAt": null, "updatedAt": 0,
            });
            assert_eq!(slot, fresh);
            let cursor = &state["runtimeState"][format!("model_cursor:{hash}")];
            assert!(cursor["value"] == "0" && cursor["updatedAt"].is_u64(), "{cursor}");
        }
    }
    assert_eq!(state["runtimeState"]["key_cursor"]["value"], "0");
}

#[test]
fn what_does_not_fit_is_set_aside_and_the_proxy_serves_with_an_empty_state() {
    let standin = StandIn::start().unwrap();
    let half = &ORIGINAL[..ORIGINAL.len() / 2];
    let newer = ORIGINAL.replacen("\"version\": 1", "\"version\": 99", 1);
    let wrong = ORIGINAL.replacen("\"failureCount\": 3", "\"failureCount\": \"3\"", 1);
    let nuls = "\0".repeat(107);
    for text in ["not json", "[]", "{}", "null", half, &newer, &wrong, &nuls] {
        let proxy = Proxy::builder(&standin).state(text).start();
        let aside = set_aside(&proxy.folder());
        assert_eq!(aside.len(), 1, "{text:?} {aside:?}");
        assert_eq!(fs::read_to_string(&aside[0]).unwrap(), text);
        let name = aside[0].file_name().unwrap().to_str().unwrap().to_owned();
        let stamp = name.strip_prefix("proxy-state.json.bak.").unwrap();
        let shape = stamp.replace(|c: char| c.is_ascii_digit(), "9");
        assert_eq!(shape, "9999-99-99T99-99-99-999Z", "{name}");
        assert!(proxy.wait_log(&name, LIMIT));
        assert_eq!(post(&proxy, CHAT, BODY).header("x-proxy-model"), Some("m1"));
        assert_eq!(proxy.state()["modelState"].as_object().unwrap().len(), 6);
    }
}

#[test]
fn an_empty_file_is_an_empty_state() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin).state("").start();
    assert!(set_aside(&proxy.folder()).is_empty());
    assert_eq!(proxy.state()["modelState"].as_object().unwrap().len(), 6);
}

#[test]
fn what_cannot_be_read_ends_the_start_and_is_left_as_it_is() {
    let standin = StandIn::start().unwrap();
    let folder = Folder::new();
    let path = folder.path().join("state.json");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("inner"), "kept").unwrap();
    let shown = path.display().to_string();
    let output = Proxy::builder(&standin).env("STATE_PATH", &shown).run_to_exit();
    assert_eq!(output.status.code(), Some(74), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains(&shown), "{output:?}");
    assert_eq!(fs::read_to_string(path.join("inner")).unwrap(), "kept");
}

#[test]
fn the_file_is_private_even_where_it_was_not() {
    let standin = StandIn::start().unwrap();
    let builder = Proxy::builder(&standin).state(ORIGINAL);
    let path = builder.folder().join("proxy-state.json");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let mut proxy = builder.start();
    assert_eq!(post(&proxy, CHAT, BODY).status, 200);
    proxy.stop();
    for name in names(&proxy.folder()) {
        let mode = fs::metadata(proxy.folder().join(&name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn no_key_is_in_the_file_in_the_log_or_in_what_was_set_aside() {
    const KEYS: [&str; 2] = ["sk-alpha-0123456789abcdef", "sk-beta-fedcba9876543210"];
    let standin = StandIn::start().unwrap();
    let echo = |key: &str| {
        let message = format!("Bearer {key}: free tier exhausted");
        format!(r#"{{"code":"AllocationQuota.FreeTierOnly","message":"{message}"}}"#)
    };
    standin.reply(KEYS[0], "m1", Reply::json(403, echo(KEYS[0])));
    standin.reply(KEYS[0], "m2", Reply::json(403, echo(KEYS[1])));
    let mut proxy = Proxy::builder(&standin).keys(&KEYS.join(",")).env("RUST_LOG", "trace").start();
    assert_eq!(post(&proxy, CHAT, BODY).header("x-proxy-attempts"), Some("3"));
    proxy.stop();
    for name in names(&proxy.folder()) {
        let text = fs::read_to_string(proxy.folder().join(&name)).unwrap();
        for key in KEYS {
            assert!(!text.contains(key), "{name}");
        }
    }
    for key in KEYS {
        assert!(!proxy.log().contains(key));
    }
}

#[test]
fn a_second_proxy_on_the_same_file_is_refused_and_the_first_goes_on() {
    let standin = StandIn::start().unwrap();
    let mut first = Proxy::start(&standin);
    let path = first.state_path().display().to_string();
    let text = fs::read_to_string(&path).unwrap();
    let second = || Proxy::builder(&standin).env("STATE_PATH", &path);
    let output = second().run_to_exit();
    assert_eq!(output.status.code(), Some(74), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains(&path) && said.contains("another process"), "{said}");
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    assert_eq!(post(&first, CHAT, BODY).status, 200);
    // The lock goes with its process, however that ends.
    first.kill9();
    assert_eq!(post(&second().start(), CHAT, BODY).status, 200);
}

#[test]
fn temporary_files_of_earlier_runs_are_removed_and_nothing_else() {
    let standin = StandIn::start().unwrap();
    let keep = ["notes.tmp", "other.json.1.1700000000000.tmp", "proxy-state.json.bak.old"];
    let stale = ["proxy-state.json.1.1700000000000.tmp", "proxy-state.json.4242.5.tmp"];
    let mut builder = Proxy::builder(&standin);
    for name in keep.iter().chain(&stale) {
        builder = builder.file(name, "x");
    }
    let mut proxy = builder.start();
    assert_eq!(post(&proxy, CHAT, BODY).status, 200);
    proxy.stop();
    let mut left = names(&proxy.folder());
    left.retain(|name| !matches!(name.as_str(), "proxy-state.json" | "proxy-state.json.lock"));
    assert_eq!(left, keep);
}

#[test]
fn a_folder_that_was_removed_is_made_again() {
    let standin = StandIn::start().unwrap();
    let builder = Proxy::builder(&standin);
    let folder = builder.folder().join("deep/er");
    let path = folder.join("state.json");
    let proxy = builder.env("STATE_PATH", path.display().to_string()).start();
    assert!(path.exists());
    fs::remove_dir_all(proxy.folder().join("deep")).unwrap();
    standin.reply("k1", "m1", exhausted());
    assert_eq!(post(&proxy, CHAT, BODY).header("x-proxy-attempts"), Some("2"));
    assert!(cools(&record(&read(&path), "k1", "m1")));
    assert_eq!(get(&proxy, "/health").json()["stateWritable"], true);
}

#[test]
fn where_nothing_can_be_written_it_serves_says_so_and_writes_when_it_can() {
    let standin = StandIn::start().unwrap();
    let builder = Proxy::builder(&standin);
    let folder = builder.folder().join("inner");
    let path = folder.join("state.json");
    let proxy = builder.env("STATE_PATH", path.display().to_string()).start();
    assert_eq!(get(&proxy, "/health").json()["stateWritable"], true);
    // A file in the place of the folder: there nothing can be written, not even by root.
    fs::remove_dir_all(&folder).unwrap();
    fs::write(&folder, "in the way").unwrap();

    standin.reply("k1", "m1", exhausted());
    for attempts in ["2", "1", "1"] {
        let answer = post(&proxy, CHAT, BODY);
        let got = (answer.status, answer.header("x-proxy-attempts"));
        assert_eq!(got, (200, Some(attempts)));
    }
    wait_writable(&proxy, false);
    assert_eq!(get(&proxy, "/health").json()["ok"], true);
    let complaints = proxy.log().lines().filter(|line| line.contains("written=false")).count();
    assert_eq!(complaints, 1, "said once");

    fs::remove_file(&folder).unwrap();
    assert_eq!(post(&proxy, CHAT, BODY).status, 200);
    wait_writable(&proxy, true);
    // What was learned in the dark is there as well.
    let slot = record(&read(&path), "k1", "m1");
    assert!(cools(&slot) && slot["failureCount"] == 1, "{slot}");
}

#[test]
fn a_restart_loses_nothing() {
    let standin = StandIn::start().unwrap();
    standin.reply("k1", "m1", exhausted());
    standin.reply("k1", "m2", exhausted());
    let mut proxy = Proxy::start(&standin);
    assert_eq!(post(&proxy, CHAT, BODY).header("x-proxy-attempts"), Some("3"));
    proxy.stop();
    let (before, calls) = (fs::read_to_string(proxy.state_path()).unwrap(), standin.call_count());
    for _ in 0..2 {
        proxy.restart();
        assert_eq!(fs::read_to_string(proxy.state_path()).unwrap(), before);
    }
    let status = get(&proxy, "/models/status").json();
    assert_eq!(status["availableSlots"], 4);
    assert!(status["models"][0]["cooldownUntil"].is_string(), "{status}");
    let answer = post(&proxy, CHAT, BODY);
    assert_eq!(answer.header("x-proxy-model"), Some("m3"));
    assert_eq!(standin.call_count(), calls + 1);
}

#[test]
fn whoever_reads_the_file_while_it_is_written_finds_it_whole() {
    let standin = StandIn::start().unwrap();
    standin.set_default_quota(Some(5));
    let models: Vec<String> = (0..40).map(|index| format!("m{index:02}")).collect();
    let proxy = Proxy::builder(&standin).models(&models.join(",")).start();
    let path = proxy.state_path();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..40 {
                        assert_eq!(post(&proxy, CHAT, BODY).status, 200);
                    }
                })
            })
            .collect();
        let reader = scope.spawn(|| {
            let mut versions = 0;
            let mut last = Value::Null;
            while !done.load(Ordering::Acquire) {
                let state = read(&path);
                versions += usize::from(state != last);
                last = state;
            }
            versions
        });
        let outcomes: Vec<_> = clients.into_iter().map(thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Release);
        assert!(outcomes.iter().all(Result::is_ok));
        assert!(reader.join().unwrap() > 5, "the file was hardly written");
    });
}

/// A small generator, so that the moments of the kills need no crate (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// The pool of the kill test, in the order in which it is used up.
struct Order(Vec<(String, String)>);

impl Order {
    const KEYS: [&str; 2] = ["k1", "k2"];
    const MODELS: usize = 80;

    fn new() -> Self {
        let slots = Self::KEYS.iter().flat_map(|key| {
            (0..Self::MODELS).map(move |model| ((*key).to_owned(), format!("m{model:02}")))
        });
        Self(slots.collect())
    }

    fn models(&self) -> String {
        let models: Vec<&str> =
            self.0[..Self::MODELS].iter().map(|(_, model)| model.as_str()).collect();
        models.join(",")
    }

    /// The place of the slot that served this answer.
    fn place(&self, answer: &Answer) -> usize {
        let label = answer.header("x-proxy-key-hash").expect("a key");
        let model = answer.header("x-proxy-model").expect("a model");
        let is_it = |(key, id): &(String, String)| key_hash(key)[..12] == *label && id == model;
        self.0.iter().position(is_it).expect("a slot of the pool")
    }

    /// The place of a slot as the stand-in names it.
    fn place_of_call(&self, slot: &str) -> usize {
        self.0.iter().position(|(key, model)| format!("{key}/{model}") == slot).expect("a slot")
    }
}

const POOLS: usize = 6;
const KILLS_PER_POOL: usize = 9;

/// An answer that comes from a slot tells its client that every slot before it is used up. So
/// these must cool in the file at whatever moment the process is killed, and the next process
/// must not ask for them again.
#[test]
fn a_kill_at_any_moment_loses_no_cooldown_that_a_client_could_have_noticed() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let order = Order::new();
    for _ in 0..POOLS {
        let standin = StandIn::start().unwrap();
        standin.set_default_quota(Some(2));
        let mut proxy = Proxy::builder(&standin)
            .keys(&Order::KEYS.join(","))
            .models(&order.models())
            .env("RUST_LOG", "info")
            .start();
        // How many slots are known to be used up, from the first on.
        let known = AtomicUsize::new(0);
        for kill in 0..KILLS_PER_POOL {
            let (known_before, calls_before) = (known.load(Ordering::SeqCst), standin.call_count());
            kill_under_load(&mut proxy, &order, &known, &mut random);
            // Nothing of the dead process is on its way to the stand-in any more.
            assert!(standin.wait_open(0, LIMIT));

            let state = proxy.state();
            let known_now = known.load(Ordering::SeqCst);
            for (key, model) in &order.0[..known_now] {
                let slot = record(&state, key, model);
                assert!(cools(&slot), "kill {kill}, {known_now} known: lost {key}/{model} {slot}");
            }
            for slot in &standin.slots()[calls_before..] {
                let place = order.place_of_call(slot);
                assert!(place >= known_before, "kill {kill}: {slot} was asked again");
            }
            proxy.restart();
        }
        assert!(known.into_inner() > KILLS_PER_POOL, "hardly any slot was used up");
    }
}

/// Several clients send requests; some moment after a random number of answers comes the kill.
fn kill_under_load(proxy: &mut Proxy<'_>, order: &Order, known: &AtomicUsize, random: &mut Random) {
    let (answered, answers) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..4 {
            let (answered, mut client) = (answered.clone(), proxy.connect());
            scope.spawn(move || {
                loop {
                    client.send("POST", CHAT, &[AUTH], BODY.as_bytes());
                    let Ok(answer) = client.read_answer() else { return };
                    assert_eq!(answer.status, 200, "{answer:?}");
                    known.fetch_max(order.place(&answer), Ordering::SeqCst);
                    let _ = answered.send(());
                }
            });
        }
        for _ in 0..=random.below(16) {
            answers.recv_timeout(LIMIT).expect("an answer");
        }
        let moment = clock::instant() + Duration::from_micros(random.below(3_000));
        while clock::instant() < moment {
            std::hint::spin_loop();
        }
        proxy.kill9();
    });
}
