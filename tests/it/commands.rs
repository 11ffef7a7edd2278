//! `status`, `reset`, `disable`, `enable` and `check`: through the running proxy, and on the state
//! file when none runs.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]

use std::fs::File;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::process::Output;

use dashscope_proxy::standin::{Reply, Shape, StandIn};
use serde_json::{Value, json};

use crate::envelope::CHAT;
use crate::failover::{BODY, served_by, shown};
use crate::harness::{
    Builder, LIMIT, PROXY_KEY, Proxy, binary, get, key_hash, post, record, run_to_exit, slot,
};

mod check;

const LONG: &str = "qwen3-coder-plus-2025-09-23-with-a-name-that-is-much-too-long-for-any-table";

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

/// What a command says in JSON, ended with this code.
#[track_caller]
fn json_of(output: &Output, expected: i32) -> Value {
    assert_eq!(code(output), Some(expected), "{}{}", stdout(output), stderr(output));
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", stdout(output)))
}

/// What a command says, ended well and without a word on the side.
#[track_caller]
fn text_of(output: &Output) -> String {
    assert_eq!((code(output), stderr(output).as_str()), (Some(0), ""), "{}", stdout(output));
    stdout(output)
}

fn label(key: &str) -> String {
    key_hash(key)[..12].to_owned()
}

/// A state in which k1/m1 cools until 2100, after an error in Chinese.
fn cooling() -> String {
    let hash = key_hash("k1");
    json!({
        "version": 1,
        "modelState": {format!("{hash}:m1"): {
            "keyHash": hash, "modelId": "m1", "cooldownUntil": 4_102_444_800_000_u64,
            "failureCount": 3, "lastError": "免费额度用完即停".repeat(20), "lastUsedAt": null,
            "updatedAt": 1_700_000_000_000_u64,
        }},
        "runtimeState": {format!("usage:{hash}:m1"): {
            "value": r#"{"requests":7,"unknownRequests":2,"inputTokens":1200,"outputTokens":34}"#,
            "updatedAt": 1_700_000_000_000_u64,
        }},
    })
    .to_string()
}

fn state(builder: &Builder<'_>) -> Value {
    let path = builder.folder().join("proxy-state.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// How wide a line is in a terminal.
fn columns(line: &str) -> usize {
    line.chars().map(|c| if ('\u{1100}'..='\u{ffef}').contains(&c) { 2 } else { 1 }).sum()
}

#[test]
fn status_shows_what_the_running_proxy_shows() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    standin.reply_once("k1", "m1", Reply::Exhausted(Shape::Nested));
    post(&proxy, CHAT, BODY);
    post(&proxy, "/models/disable", r#"{"key":1,"model":"m3"}"#);
    let mut told = json_of(&proxy.run(&["status", "--json"]), 0);
    let source = told.as_object_mut().unwrap().remove("source").unwrap();
    assert_eq!(source, json!({"kind": "proxy", "address": proxy.address().to_string()}));
    let page = get(&proxy, "/models/status").json();
    for name in ["totalSlots", "availableSlots", "sameAccount", "freeQuotaTokens"] {
        assert_eq!(told[name], page[name], "{name}");
    }
    assert_eq!(slot(&told, "k1", "m2"), slot(&page, "k1", "m2"));
    assert_eq!(told["process"]["workers"], 64);
    let text = text_of(&proxy.run(&["status"]));
    assert!(text.contains(&format!("the proxy at {}", proxy.address())), "{text}");
    assert!(text.contains("4 of 6 slots available"), "{text}");
    let line = |key: &str, model: &str| {
        let (label, model) = (label(key), format!(" {model} "));
        text.lines().find(|line| line.contains(&label) && line.contains(&model)).unwrap().to_owned()
    };
    let cooling = line("k1", "m1");
    let rest = ["30d00h", "29d23h"].iter().any(|rest| cooling.contains(rest));
    assert!(cooling.contains("cooling") && rest, "{cooling}");
    assert!(cooling.contains("free tier"), "its error is missing: {cooling}");
    assert!(line("k1", "m2").starts_with('*') && line("k1", "m2").contains("available"), "{text}");
    assert!(line("k2", "m3").contains("disabled"), "{text}");
}

#[test]
fn status_reads_the_file_when_no_proxy_runs_and_leaves_it_alone() {
    let standin = StandIn::start().unwrap();
    let builder = Proxy::builder(&standin).state(&cooling());
    let path = builder.folder().join("proxy-state.json");
    let told = json_of(&builder.run(&["status", "--json"]), 0);
    assert_eq!(told["source"], json!({"kind": "file", "path": path.display().to_string()}));
    assert_eq!((&told["availableSlots"], &told["process"]), (&json!(5), &Value::Null));
    let slot = slot(&told, "k1", "m1");
    assert_eq!((&slot["state"], &slot["requests"]), (&json!("cooling"), &json!(7)));
    assert_eq!((&slot["inputTokens"], &slot["failureCount"]), (&json!(1200), &json!(3)));
    let text = text_of(&builder.run(&["status"]));
    assert!(text.contains("no proxy runs") && text.contains("proxy-state.json"), "{text}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), cooling());
    let names = std::fs::read_dir(builder.folder()).unwrap().count();
    assert_eq!(names, 1, "not even a lock is made");
}

#[test]
fn the_table_fits_100_columns_and_has_no_colour_when_piped() {
    let standin = StandIn::start().unwrap();
    let models = format!("m1,{LONG},m3");
    let builder = Proxy::builder(&standin).models(&models).state(&cooling());
    let text = text_of(&builder.run(&["status"]));
    let start = text.lines().position(|line| line.contains("KEY")).unwrap();
    for line in text.lines().skip(start) {
        assert!(columns(line) <= 100, "{} columns: {line}", columns(line));
    }
    assert!(!text.contains('\u{1b}'), "{text:?}");
    assert!(text.contains("免费额度") && text.contains(".."), "{text}");
    assert!(text.contains(" >1.2k "), "that two answers did not say is not said: {text}");
}

#[test]
fn a_terminal_gets_colours_unless_it_wants_none() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let on_terminal = |more: Option<(&str, &str)>| {
        let pair = nix::pty::openpty(None, None).unwrap();
        let mut command = proxy.command();
        command.arg("status").envs(more).stdout(pair.slave);
        let mut child = command.spawn().unwrap();
        // The terminal's other end is closed with the command that holds it.
        drop(command);
        let mut text = Vec::new();
        // A terminal ends with an error.
        let _ = File::from(pair.master).read_to_end(&mut text);
        assert!(child.wait().unwrap().success());
        String::from_utf8(text).unwrap()
    };
    assert!(on_terminal(None).contains("\u{1b}[32mavailable"), "no colours");
    assert!(on_terminal(Some(("NO_COLOR", ""))).contains('\u{1b}'), "empty counts as unset");
    let plain = on_terminal(Some(("NO_COLOR", "1")));
    assert!(plain.contains("available") && !plain.contains('\u{1b}'), "{plain:?}");
}

#[test]
fn a_large_pool_is_told_in_full() {
    let standin = StandIn::start().unwrap();
    let keys: Vec<String> = (0..10).map(|number| format!("key-{number}")).collect();
    let models: Vec<String> = (0..60).map(|number| format!("qwen-model-{number}")).collect();
    let proxy = Proxy::builder(&standin).keys(&keys.join(",")).models(&models.join(",")).start();
    let told = json_of(&proxy.run(&["status", "--json"]), 0);
    assert_eq!(told["models"].as_array().unwrap().len(), 600);
    assert_eq!(text_of(&proxy.run(&["status"])).matches("available").count(), 601);
}

#[test]
fn disable_reset_and_enable_go_through_the_running_proxy() {
    let standin = StandIn::start().unwrap();
    let mut proxy = Proxy::start(&standin);
    standin.reply_once("k1", "m1", Reply::Exhausted(Shape::Nested));
    post(&proxy, CHAT, BODY);
    let k1 = label("k1");
    let done = json_of(&proxy.run(&["reset", "--key", &k1, "--model=m1", "--json"]), 0);
    assert_eq!(done["changed"], json!([{"key": k1, "model": "m1"}]));
    assert_eq!((&done["ok"], &done["stateWritten"]), (&json!(true), &json!(true)));
    assert_eq!(done["source"]["kind"], "proxy");
    assert_eq!(proxy.slot("k1", "m1")["state"], "available");
    let text = text_of(&proxy.run(&["disable", "--key", "0"]));
    assert!(text.starts_with("3 slots are switched off (the proxy at"), "{text}");
    assert!(text.contains(&format!("  {k1}  m3\n")), "{text}");
    assert_eq!(served_by(&post(&proxy, CHAT, BODY)), shown("k2", "m1"));
    let text = text_of(&proxy.run(&["enable", "--key", "0", "--model", "m2"]));
    assert!(text.starts_with("1 slot is switched on"), "{text}");
    text_of(&proxy.run(&["disable", "--key", "1"]));
    assert_eq!(served_by(&post(&proxy, CHAT, BODY)), shown("k1", "m2"));
    text_of(&proxy.run(&["enable", "--key", "1"]));
    assert!(proxy.wait_log(" steer action=enable ", LIMIT), "{}", proxy.log());
    proxy.restart();
    assert_eq!(proxy.pool()["availableSlots"], 4);
    assert!(text_of(&proxy.run(&["enable"])).starts_with("2 slots are"));
    assert!(text_of(&proxy.run(&["reset", "--all"])).starts_with("nothing had to change"));
}

#[test]
fn disable_reset_and_enable_change_the_file_when_no_proxy_runs() {
    let standin = StandIn::start().unwrap();
    let builder = Proxy::builder(&standin).state(&cooling());
    let done = json_of(&builder.run(&["reset", "--json", "--all"]), 0);
    assert_eq!(done["changed"], json!([{"key": label("k1"), "model": "m1"}]));
    assert_eq!(done["source"]["kind"], "file");
    let slot = record(&state(&builder), "k1", "m1");
    assert_eq!((&slot["cooldownUntil"], &slot["failureCount"]), (&json!(0), &json!(3)));
    assert_eq!(slot["lastError"], Value::Null);
    let text = text_of(&builder.run(&["disable", "--model", "m1"]));
    assert!(text.starts_with("2 slots are switched off (no proxy runs: the state file"), "{text}");
    let told = json_of(&builder.run(&["status", "--json"]), 0);
    assert_eq!(told["availableSlots"], 4);
    // The proxy goes on from there.
    let proxy = builder.start();
    assert_eq!(served_by(&post(&proxy, CHAT, BODY)), shown("k1", "m2"));
    assert_eq!(proxy.slot("k1", "m1")["requests"], 7);
}

#[test]
fn a_file_that_another_process_holds_is_not_changed_behind_its_back() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let before = proxy.state();
    // It listens elsewhere than the command thinks.
    let state = proxy.state_path().display().to_string();
    let elsewhere = Proxy::builder(&standin).env("STATE_PATH", state.as_str());
    for action in ["reset", "disable", "enable"] {
        let output = elsewhere.run(&[action, "--all"]);
        let told = stderr(&output);
        assert_eq!((code(&output), stdout(&output).as_str()), (Some(74), ""), "{told}");
        for word in ["no proxy answers", "HOST, PORT", "another process", state.as_str()] {
            assert!(told.contains(word), "{word}: {told}");
        }
    }
    let error = json_of(&elsewhere.run(&["disable", "--all", "--json"]), 74);
    assert_eq!((&error["ok"], &error["error"]["code"]), (&json!(false), &json!("state_file")));
    assert_eq!(proxy.state(), before);
    let source = &json_of(&elsewhere.run(&["status", "--json"]), 0)["source"];
    assert_eq!((&source["kind"], &source["inUse"]), (&json!("file"), &json!(true)));
    let told = text_of(&elsewhere.run(&["status"]));
    assert!(told.contains("another process uses") && !told.contains("no proxy runs"), "{told}");
    let told = json_of(&elsewhere.run(&["check", "--json"]), 1);
    let found = told["checks"].as_array().unwrap().iter().find(|it| it["check"] == "state_lock");
    assert_eq!(found.unwrap()["outcome"], "failed");
    // Who looks keeps nobody from it.
    drop(proxy);
    let found = |output: &Output| stdout(output).contains("state_lock    nobody has it");
    assert!(found(&elsewhere.run(&["check"])));
    assert!(text_of(&elsewhere.run(&["status"])).contains("no proxy runs"));
}

#[test]
fn a_file_that_does_not_fit_is_left_for_a_person_to_look_at() {
    let standin = StandIn::start().unwrap();
    let builder = Proxy::builder(&standin).state("not JSON");
    for args in [&["status"][..], &["reset", "--all"], &["disable", "--key=0"]] {
        let output = builder.run(args);
        assert_eq!(code(&output), Some(74), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("does not fit"), "{}", stderr(&output));
    }
    let path = builder.folder().join("proxy-state.json");
    assert_eq!(std::fs::read_to_string(path).unwrap(), "not JSON");
}

#[test]
fn what_is_not_in_the_pool_or_makes_no_sense_exits_64_in_both_modes() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let stopped = Proxy::builder(&standin);
    for args in [&["reset", "--key", "2"][..], &["disable", "--model=M1"], &["enable", "--key=k1"]]
    {
        let mut json = args.to_vec();
        json.push("--json");
        for (plain, in_json) in
            [(proxy.run(args), proxy.run(&json)), (stopped.run(args), stopped.run(&json))]
        {
            let told = stderr(&plain);
            assert_eq!((code(&plain), stdout(&plain).as_str()), (Some(64), ""), "{told}");
            assert!(told.contains("the pool has no such") && !told.contains("Usage:"), "{told}");
            assert_eq!(json_of(&in_json, 64)["error"]["code"], "not_in_pool");
        }
    }
    for args in [
        &["reset"][..],
        &["disable"],
        &["reset", "--all", "--key=0"],
        &["status", "--all"],
        &["check", "--key=0"],
        &["status", "now"],
        &["--json"],
        &["demo", "--json"],
    ] {
        let output = run_to_exit(&[], args);
        assert_eq!(code(&output), Some(64), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("Usage:"), "{args:?}");
    }
    assert_eq!(proxy.pool()["availableSlots"], 6);
}

#[test]
fn a_wrong_key_and_a_stranger_at_the_address_exit_69_and_touch_no_file() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let port = proxy.address().port().to_string();
    let other = Proxy::builder(&standin)
        .env("PORT", port.as_str())
        .env("PROXY_API_KEY", "another-key-0123456789");
    for args in [&["status"][..], &["reset", "--all"]] {
        let output = other.run(args);
        assert_eq!(code(&output), Some(69), "{}", stderr(&output));
        assert!(stderr(&output).contains("PROXY_API_KEY"), "{}", stderr(&output));
        assert!(!stderr(&output).contains("another-key"), "{}", stderr(&output));
    }
    // It takes the connection, and closes it without an answer.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = silent.local_addr().unwrap().port().to_string();
    std::thread::spawn(move || silent.incoming().for_each(drop));
    // The stand-in speaks HTTP, and is no proxy.
    for port in [port, standin.address().port().to_string()] {
        let strange = Proxy::builder(&standin).env("PORT", port.as_str());
        for args in [&["status", "--json"][..], &["disable", "--all", "--json"]] {
            let told = json_of(&strange.run(args), 69);
            assert!(told["error"]["message"].as_str().unwrap().contains(&port), "{told}");
        }
        assert!(!strange.folder().join("proxy-state.json").exists());
    }
}

#[test]
fn env_file_counts_for_every_command() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let (port, origin) = (proxy.address().port(), standin.origin());
    let text = format!(
        "PORT={port}\nPROXY_API_KEY={PROXY_KEY}\nDASHSCOPE_API_KEYS=k1\nMODEL_IDS=m1\n\
         STATE_PATH=other.json\nOPENAI_UPSTREAM_BASE_URL={origin}\nUPSTREAM_BASE_URL={origin}\n\
         NATIVE_UPSTREAM_BASE_URL={origin}\n"
    );
    std::fs::write(proxy.folder().join("other.env"), text).unwrap();
    for args in
        [&["status"][..], &["reset", "--all"], &["disable", "--key=0"], &["enable"], &["check"]]
    {
        let mut args = args.to_vec();
        args.extend(["--env-file", "other.env", "--json"]);
        let mut command = binary();
        command.env_clear().args(&args).current_dir(proxy.folder());
        let output = command.output().unwrap();
        let told = json_of(&output, 0);
        match args[0] {
            "check" => {
                let check =
                    told["checks"].as_array().unwrap().iter().find(|it| it["check"] == "proxy");
                assert_eq!(check.unwrap()["outcome"], "ok", "{told:#}");
            }
            _ => assert_eq!(told["source"]["kind"], "proxy", "{args:?}"),
        }
    }
}

#[test]
fn a_configuration_with_problems_exits_78_and_tells_them_all() {
    for command in [&["status"][..], &["reset", "--all"], &["check"]] {
        let mut args = command.to_vec();
        let env = [("PORT", "nonsense"), ("MODEL_IDS", "m1")];
        let plain = run_to_exit(&env, &args);
        assert_eq!(code(&plain), Some(78), "{}", stderr(&plain));
        args.push("--json");
        let told = json_of(&run_to_exit(&env, &args), 78);
        let problems = told["error"]["problems"].as_array().unwrap();
        let names: Vec<_> = problems.iter().map(|it| it["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["PROXY_API_KEY", "DASHSCOPE_API_KEYS", "PORT"]);
        assert!(names.iter().all(|name| stderr(&plain).contains(name)));
    }
}

#[test]
fn help_tells_every_command_option_and_exit_code() {
    let help = stdout(&run_to_exit(&[], &["--help"]));
    for word in [
        "status",
        "reset",
        "disable",
        "enable",
        "check",
        "demo",
        "--json",
        "--key",
        "--model",
        "--all",
        "--probe",
        "--env-file",
        "64 usage",
        "69 ",
        "70 ",
        "71 ",
        "74 ",
        "78 ",
        "130 ",
    ] {
        assert!(help.contains(word), "{word}: {help}");
    }
    assert!(help.lines().all(|line| line.len() <= 80), "{help}");
}
