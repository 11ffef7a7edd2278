//! `check`: every step of the way that can fail is named, and nothing is changed.

use std::net::{Ipv4Addr, TcpListener};

use dashscope_proxy::standin::{Reply, StandIn};
use serde_json::Value;

use super::{code, json_of, label, stderr, stdout};
use crate::harness::{Builder, Proxy};
use crate::upstream::ClosedPort;

/// What was found of one thing: outcome, step and detail of every line about it.
fn found(told: &Value, check: &str) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let checks = told["checks"].as_array().unwrap();
    let found = checks.iter().filter(|it| it["check"] == check);
    found
        .map(|it| {
            let detail = format!("{}: {}", text(&it["subject"]), text(&it["detail"]));
            (text(&it["outcome"]), text(&it["step"]), detail)
        })
        .collect()
}

#[track_caller]
fn the_only(told: &Value, check: &str) -> (String, String, String) {
    let mut found = found(told, check);
    assert_eq!(found.len(), 1, "{check}: {told:#}");
    found.remove(0)
}

/// A base URL of one origin, and the step that fails there.
#[track_caller]
fn fails_at(builder: &Builder<'_>, step: &str) -> String {
    let told = json_of(&builder.run(&["check", "--json"]), 1);
    assert_eq!(told["ok"], false);
    let failures: Vec<_> =
        found(&told, "upstream").into_iter().filter(|(outcome, ..)| outcome == "failed").collect();
    assert_eq!(failures.len(), 1, "{told:#}");
    assert_eq!(failures[0].1, step, "{told:#}");
    let text = stdout(&builder.run(&["check"]));
    assert!(text.contains(&format!("failed at {step}: ")), "{text}");
    failures[0].2.clone()
}

fn bases<'a>(builder: Builder<'a>, origin: &str) -> Builder<'a> {
    builder
        .env("UPSTREAM_BASE_URL", format!("{origin}/apps/anthropic"))
        .env("OPENAI_UPSTREAM_BASE_URL", format!("{origin}/compatible-mode/v1"))
        .env("NATIVE_UPSTREAM_BASE_URL", format!("{origin}/api/v1"))
}

/// A port that closes every connection, or holds it.
fn listener(holds: bool) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for socket in listener.incoming() {
            if holds {
                held.push(socket);
            }
        }
    });
    port
}

#[test]
fn when_all_is_well_it_says_so_and_changes_nothing() {
    let standin = StandIn::start().unwrap();
    let builder = Proxy::builder(&standin).keys("sk-check-1,sk-check-2");
    let output = builder.run(&["check", "--json"]);
    let told = json_of(&output, 0);
    assert_eq!((&told["ok"], stderr(&output).as_str()), (&Value::Bool(true), ""));
    for check in ["configuration", "state_folder", "state_file", "clock", "upstream"] {
        assert_eq!(the_only(&told, check).0, "ok", "{check}");
    }
    assert_eq!(the_only(&told, "proxy").0, "note");
    assert!(the_only(&told, "accounts").2.contains("only while a proxy serves"), "{told:#}");
    let text = stdout(&builder.run(&["check"]));
    assert!(text.contains("All is well."), "{text}");
    for text in [text, told.to_string()] {
        assert!(!text.contains("sk-check") && !text.contains(crate::harness::PROXY_KEY), "{text}");
        assert!(text.contains(&label("sk-check-2")), "{text}");
    }
    assert!(standin.calls().iter().all(|call| call.key.is_none()), "no key is sent unasked");
    assert_eq!(std::fs::read_dir(builder.folder()).unwrap().count(), 0);
}

#[test]
fn an_origin_that_redirects_fails_the_check_by_its_host_alone() {
    let standin = StandIn::start().unwrap();
    let headers = [("location", "https://login.example:8443/sso?key=secret")];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let framing = dashscope_proxy::standin::Framing::Length;
    standin.reply("*", "*", Reply::Answer { status: 302, headers, body: Vec::new(), framing });
    let builder = Proxy::builder(&standin).keys("sk-check-1");
    for args in [&["check", "--json"][..], &["check", "--json", "--probe"]] {
        let output = builder.run(args);
        let told: Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert_eq!(told["ok"], false, "{told:#}");
        let text = told.to_string();
        assert!(text.contains("a redirect (302) to") && text.contains("login.example:8443"));
        assert!(!text.contains("sso") && !text.contains("secret"), "{text}");
        if args.contains(&"--probe") {
            assert_eq!(the_only(&told, "keys").0, "failed");
        }
    }
}

#[test]
fn every_value_comes_with_its_origin() {
    let standin = StandIn::start().unwrap();
    let builder = Proxy::builder(&standin)
        .env("WORKERS", "7")
        .file(".env", "WORKERS=8\nQUEUE_SIZE=9\nMODEL_COOLDOWN_SECOND=5\nNODE_ENV=x\n");
    let told = json_of(&builder.run(&["check", "--json"]), 0);
    let setting = |name: &str| {
        let settings = told["configuration"].as_array().unwrap();
        let setting = settings.iter().find(|it| it["name"] == name).unwrap();
        [&setting["value"], &setting["origin"]].map(|it| it.as_str().unwrap().to_owned())
    };
    assert_eq!(setting("WORKERS"), ["7", "environment"]);
    assert_eq!(setting("QUEUE_SIZE"), ["9", ".env"]);
    assert_eq!(setting("FAILOVER"), ["on", "default"]);
    assert_eq!(setting("DASHSCOPE_API_KEYS")[0], format!("{},{}", label("k1"), label("k2")));
    let warnings = found(&told, "configuration");
    assert!(warnings.iter().any(|it| it.0 == "warning" && it.2.contains("MODEL_COOLDOWN_SECONDS")));
    let names = the_only(&told, "names");
    assert!(names.2.contains("NODE_ENV") && names.0 == "note", "{names:?}");
}

#[test]
fn a_plans_key_on_the_wrong_host_is_a_warning() {
    let standin = StandIn::start().unwrap();
    let key = format!("sk-sp-0123456789@{}", standin.origin());
    let builder =
        Proxy::builder(&standin).keys(&key).env("NATIVE_UPSTREAM_BASE_URL", standin.origin());
    let told = json_of(&builder.run(&["check", "--json"]), 0);
    assert_eq!(the_only(&told, "configuration").0, "ok", "a host that is not DashScope's");
    let builder = Proxy::builder(&standin).keys("sk-sp-1@http://dashscope.aliyuncs.com:1");
    let told = json_of(&builder.run(&["check", "--json"]), 1);
    let warning = the_only(&told, "configuration");
    assert!(warning.0 == "warning" && warning.2.contains("plan key"), "{warning:?}");
}

#[test]
fn a_folder_or_a_file_that_cannot_be_used_fails() {
    let standin = StandIn::start().unwrap();
    let builder =
        Proxy::builder(&standin).file("in-the-way", "").env("STATE_PATH", "in-the-way/s.json");
    let told = json_of(&builder.run(&["check", "--json"]), 1);
    assert_eq!(the_only(&told, "state_folder").0, "failed");
    let builder = Proxy::builder(&standin).state("not JSON");
    let told = json_of(&builder.run(&["check", "--json"]), 1);
    assert_eq!(the_only(&told, "state_file").0, "failed");
    let far = format!(
        r#"{{"version":1,"modelState":{{}},"runtimeState":{{"x":{{"value":"","updatedAt":{}}}}}}}"#,
        4_102_444_800_000_u64
    );
    let builder = Proxy::builder(&standin).state(&far);
    let told = json_of(&builder.run(&["check", "--json"]), 0);
    let clock = the_only(&told, "clock");
    assert!(clock.0 == "warning" && clock.2.contains("behind the state file"), "{clock:?}");
}

#[test]
fn the_step_that_fails_on_the_way_is_named() {
    let standin = StandIn::start().unwrap();
    let on =
        |origin: &str| bases(Proxy::builder(&standin), origin).env("CONNECT_TIMEOUT_SECONDS", "1");
    fails_at(&on("https://no-such-host.invalid"), "DNS");
    let port = ClosedPort::new();
    let closed = port.origin();
    fails_at(&on(&closed), "TCP");
    fails_at(&on(&closed.replace("http", "https")), "TCP");
    fails_at(&on(&format!("https://{}", standin.address())), "TLS");
    fails_at(&on(&format!("https://127.0.0.1:{}", listener(true))), "TLS");
    fails_at(&on(&format!("https://127.0.0.1:{}", listener(false))), "TLS");
    fails_at(&on(&format!("http://127.0.0.1:{}", listener(true))), "answer");
    fails_at(&on(&format!("http://127.0.0.1:{}", listener(false))), "answer");
    let far = || on("http://dashscope.example").env("CONNECT_TIMEOUT_SECONDS", "1");
    for proxy in [
        closed.clone(),
        closed.replace("http", "socks5h"),
        format!("http://127.0.0.1:{}", listener(true)),
        format!("socks5h://127.0.0.1:{}", listener(false)),
        format!("http://user:secret@{}", standin.address()),
    ] {
        let detail = fails_at(&far().env("ALL_PROXY", proxy.as_str()), "outbound proxy");
        assert!(!detail.contains("secret"), "{detail}");
    }
}

#[test]
fn every_origin_is_asked_once_and_keys_with_an_origin_of_their_own_too() {
    let home = StandIn::start().unwrap();
    let closed = ClosedPort::new();
    let keys = format!("k1,k2@{0},k3@{0}", closed.origin());
    let builder = Proxy::builder(&home).keys(&keys);
    let detail = fails_at(&builder, "TCP");
    for word in [label("k2"), label("k3"), closed.origin()] {
        assert!(detail.contains(&word), "{detail}");
    }
    assert_eq!(home.call_count(), 2, "one call a run");
}

#[test]
fn a_probe_tells_valid_rejected_and_unreachable_keys_apart() {
    let (home, abroad) = (StandIn::start().unwrap(), StandIn::start().unwrap());
    let closed = ClosedPort::new();
    let keys = format!(
        "valid-key,rejected-key,abroad-key@{},unreachable-key@{},poor-key,odd-key",
        abroad.origin(),
        closed.origin()
    );
    let models = r#"{"object":"list","data":[]}"#;
    let error = |code: &str| format!(r#"{{"error":{{"code":"{code}","message":"rejected-key"}}}}"#);
    home.reply("valid-key", "*", Reply::json(200, models));
    abroad.reply("abroad-key", "*", Reply::json(200, models));
    home.reply("rejected-key", "*", Reply::json(401, error("invalid_api_key")));
    home.reply("poor-key", "*", Reply::json(400, error("Arrearage")));
    home.reply("odd-key", "*", Reply::json(404, "<html>"));
    let builder = Proxy::builder(&home).keys(&keys);
    let output = builder.run(&["check", "--probe", "--json"]);
    let told = json_of(&output, 1);
    let keys = found(&told, "keys");
    let expected = [
        ("valid-key", "ok", "valid"),
        ("rejected-key", "failed", "rejected"),
        ("abroad-key", "ok", "valid"),
        ("unreachable-key", "failed", "unreachable"),
        ("poor-key", "failed", "does not pay"),
        ("odd-key", "warning", "404"),
    ];
    assert_eq!(keys.len(), expected.len());
    for ((key, outcome, word), (told, _, detail)) in expected.into_iter().zip(&keys) {
        assert_eq!(told, outcome, "{key}: {keys:?}");
        assert!(detail.contains(&label(key)) && detail.contains(word), "{key}: {detail}");
    }
    assert!(keys[1].2.contains("another region"), "{keys:?}");
    let probes: Vec<_> = home.calls().into_iter().filter(|call| call.key.is_some()).collect();
    assert!(
        probes.iter().all(
            |call| (call.method.as_str(), call.path()) == ("GET", "/compatible-mode/v1/models")
        )
    );
    assert_eq!(probes.len(), 4, "one call a key");
    for text in [stdout(&output), stderr(&output), stdout(&builder.run(&["check", "--probe"]))] {
        assert!(!text.contains("-key\""), "{text}");
        assert!(!text.contains("valid-key") && !text.contains("rejected-key"), "{text}");
    }
}

#[test]
fn beside_a_running_proxy_it_says_so_and_which_keys_look_like_one_account() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let told = json_of(&proxy.run(&["check", "--json"]), 0);
    assert_eq!(the_only(&told, "proxy").0, "ok");
    assert_eq!(the_only(&told, "accounts").0, "ok");
    // Both keys run out of the same models, the second without one success.
    for key in ["k1", "k2"] {
        for model in ["m1", "m2", "m3"] {
            standin.set_quota(key, model, u64::from(key == "k1"));
        }
    }
    for _ in 0..4 {
        crate::harness::post(&proxy, crate::envelope::CHAT, "{}");
    }
    let told = json_of(&proxy.run(&["check", "--json"]), 0);
    let accounts = the_only(&told, "accounts");
    assert!(accounts.0 == "warning" && accounts.2.contains("one account"), "{accounts:?}");
    assert!(accounts.2.contains(&label("k1")) && accounts.2.contains(&label("k2")));
    let other = proxy.run(&["check"]);
    assert_eq!(code(&other), Some(0), "a warning is no failure");
}
