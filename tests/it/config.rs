//! Configuration and command line: what the process makes of its environment, seen from outside.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]

use std::net::{Ipv4Addr, TcpListener};

use dashscope_proxy::standin::{Call, Reply, Shape, StandIn};

use crate::commands::{stderr, stdout};
use crate::envelope::{CHAT, MESSAGES};
use crate::harness::{AUTH, PROXY_KEY, Proxy, get, key_hash, post, request, run_to_exit};

/// Every slot of the pool in its order: with all of them exhausted, one request tries each.
#[track_caller]
fn pool_order(standin: &StandIn, proxy: &Proxy<'_>) -> Vec<String> {
    standin.reply("*", "*", Reply::Exhausted(Shape::Nested));
    assert_eq!(post(proxy, CHAT, "{}").status, 503);
    standin.slots()
}

fn last_call(standin: &StandIn) -> Call {
    standin.calls().pop().expect("a call")
}

#[test]
fn all_problems_are_told_in_one_run_and_no_value_is_shown() {
    let standin = StandIn::start().unwrap();
    let broken = [
        ("DASHSCOPE_API_KEYS", "sk-secretone，sk-secrettwo"),
        ("MODEL_IDS", "good-model,secret model"),
        ("PORT", "77128"),
        ("HOST", "secret/host"),
        ("UPSTREAM_BASE_URL", "secret-base"),
        ("OPENAI_UPSTREAM_BASE_URL", "ftp://secret.example/v1"),
        ("UPSTREAM_AUTH_MODE", "secret-mode"),
        ("MODEL_COOLDOWN_SECONDS", "-77123"),
        ("CORS_ORIGIN", "secret-origin"),
        ("WORKERS", "0"),
        ("QUEUE_SIZE", "secret-queue"),
        ("MAX_BODY_BYTES", "1e6secret"),
        ("CONNECT_TIMEOUT_SECONDS", "0"),
        ("UPSTREAM_TIMEOUT_SECONDS", "77124.5"),
        ("STREAM_IDLE_TIMEOUT_SECONDS", "77125s"),
        ("CLIENT_TIMEOUT_SECONDS", "-77126"),
        ("SHUTDOWN_GRACE_SECONDS", "0x77127"),
        ("HTTPS_PROXY", "gopher://user:secret@proxy.example"),
    ];
    let mut builder = Proxy::builder(&standin).without("PROXY_API_KEY");
    for (name, value) in broken {
        builder = builder.env(name, value);
    }
    let output = builder.run_to_exit();
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(78), "{told}");
    assert!(told.contains("PROXY_API_KEY"), "{told}");
    for (name, value) in broken {
        assert!(told.contains(&format!("{name}:")), "{name} is missing in {told}");
        assert!(value.len() < 5 || !told.contains(value), "{value} is shown in {told}");
    }
    for fragment in ["secret", "7712"] {
        assert!(!told.contains(fragment), "{fragment} is shown in {told}");
    }
}

#[test]
fn a_configuration_with_problems_leaves_no_trace_on_disk() {
    let standin = StandIn::start().unwrap();
    // In the folder of a builder that outlives the run.
    let other = Proxy::builder(&standin);
    let state = other.folder().join("new").join("state.json");
    let output = Proxy::builder(&standin)
        .env("WORKERS", "many")
        .env("STATE_PATH", state.display().to_string())
        .run_to_exit();
    assert_eq!(output.status.code(), Some(78), "{}", stderr(&output));
    assert!(!state.parent().unwrap().exists());
}

#[test]
fn the_required_variables_are_required() {
    let output = run_to_exit(&[], &[]);
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(78), "{told}");
    for name in ["PROXY_API_KEY", "DASHSCOPE_API_KEYS", "MODEL_IDS"] {
        assert!(told.contains(name), "{told}");
    }
}

#[test]
fn what_has_no_meaning_in_a_list_of_keys_is_named_by_its_kind() {
    for (keys, kind) in [
        ("sk-one,sk-t\u{200b}wo", "item 2"),
        ("sk-one;sk-two", "semicolon"),
        ("sk-one sk-two", "blank"),
        ("sk-one,sk-\u{1}two", "control character"),
    ] {
        let standin = StandIn::start().unwrap();
        let output = Proxy::builder(&standin).keys(keys).run_to_exit();
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(78), "{keys:?}: {told}");
        assert!(told.contains("DASHSCOPE_API_KEYS") && told.contains(kind), "{keys:?}: {told}");
        assert!(!told.contains("sk-"), "{keys:?}: {told}");
    }
}

#[test]
fn a_dotenv_file_as_people_write_it_is_understood() {
    let standin = StandIn::start().unwrap();
    let text = format!(
        "\u{feff}# keys\r\n\r\nexport PROXY_API_KEY='{PROXY_KEY}'\r\n\
         DASHSCOPE_API_KEYS=\"sk-one,\r\n  sk-two\r\n\"\r\n\
         MODEL_IDS=m1, m2 # the second one is cheaper\r\n\
         PORT=0\r\nMODEL_COOLDOWN_SECONDS=\r\n"
    );
    let proxy = Proxy::builder(&standin)
        .without("PROXY_API_KEY")
        .without("DASHSCOPE_API_KEYS")
        .without("MODEL_IDS")
        .without("PORT")
        .file(".env", &text)
        .start();
    let slots = pool_order(&standin, &proxy);
    assert_eq!(slots, ["sk-one/m1", "sk-one/m2", "sk-two/m1", "sk-two/m2"]);
}

#[test]
fn the_environment_wins_over_the_file_unless_it_is_blank() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin)
        .env("DASHSCOPE_API_KEYS", "sk-environment")
        .env("MODEL_IDS", " ")
        .file(".env", "DASHSCOPE_API_KEYS=sk-file\nMODEL_IDS=from-file\n")
        .start();
    assert_eq!(pool_order(&standin, &proxy), ["sk-environment/from-file"]);
}

#[test]
fn env_file_names_another_file_and_the_default_one_is_not_read() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin)
        .without("MODEL_IDS")
        .without("DASHSCOPE_API_KEYS")
        .file(".env", "MODEL_IDS=wrong\nDASHSCOPE_API_KEYS=sk-wrong\nWORKERS=broken\n")
        .file("other.env", "MODEL_IDS=right\nDASHSCOPE_API_KEYS=sk-right\n")
        .arg("--env-file")
        .arg("other.env")
        .start();
    assert_eq!(pool_order(&standin, &proxy), ["sk-right/right"]);
}

#[test]
fn an_env_file_that_is_missing_is_a_problem_of_the_configuration() {
    let standin = StandIn::start().unwrap();
    let builder = Proxy::builder(&standin).arg("--env-file=no-such.env");
    let output = builder.run_to_exit();
    assert_eq!(output.status.code(), Some(78), "{}", stderr(&output));
    assert!(stderr(&output).contains("no-such.env"), "{}", stderr(&output));
}

#[test]
fn messy_lists_are_read_in_order_without_empties_quotes_and_repeats() {
    let standin = StandIn::start().unwrap();
    for keys in [
        "sk-one,sk-two",
        " sk-one , ,sk-two,, ",
        "sk-one\r\nsk-two\r\n",
        "\n\nsk-one\n,\nsk-two",
        "\"sk-one,sk-two\"",
        "'sk-one'\n\" sk-two \"",
        "sk-one,sk-two,sk-one,sk-two",
    ] {
        standin.clear();
        let before = standin.call_count();
        let models = "\r\n'm1' ,m2,\r\n\"m1\"";
        let proxy = Proxy::builder(&standin).keys(keys).models(models).start();
        let slots = pool_order(&standin, &proxy);
        let expected = ["sk-one/m1", "sk-one/m2", "sk-two/m1", "sk-two/m2"];
        assert_eq!(slots[before..], expected, "{keys:?}");
        assert!(proxy.log().contains("MODEL_IDS item 3"), "the repeat goes unsaid: {keys:?}");
    }
}

#[test]
fn a_short_proxy_key_is_a_warning() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin).env("PROXY_API_KEY", "shortie").start();
    let log = proxy.log();
    let warned = |line: &str| line.contains("WARN") && line.contains("PROXY_API_KEY");
    assert!(log.lines().any(warned), "{log}");
    assert!(!log.contains("shortie"), "{log}");
    let answer = request(proxy.address(), "GET", "/v1/models", &[("x-api-key", "shortie")], b"");
    assert_eq!(answer.status, 200);
}

#[test]
fn a_plans_key_on_the_pay_as_you_go_host_is_a_warning_by_its_label() {
    const KEY: &str = "sk-sp-0123456789abcdef";
    let standin = StandIn::start().unwrap();
    let keys = format!("{KEY}@https://dashscope.aliyuncs.com,sk-2");
    let proxy = Proxy::builder(&standin).keys(&keys).start();
    let log = proxy.log();
    let warned: Vec<_> = log.lines().filter(|line| line.contains(" configuration ")).collect();
    assert_eq!(warned.len(), 1, "{log}");
    for word in ["WARN", "DASHSCOPE_API_KEYS", "plan key", &key_hash(KEY)[..12], "pay-as-you-go"] {
        assert!(warned[0].contains(word), "{word}: {log}");
    }
    assert!(!log.contains(KEY), "{log}");
}

#[test]
fn an_unknown_flag_exits_64_with_the_usage_on_stderr() {
    for args in [&["--frobnicate"][..], &["-x"], &["serve"], &["--env-file"]] {
        let output = run_to_exit(&[], args);
        assert_eq!(output.status.code(), Some(64), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("Usage:"), "{args:?}: {}", stderr(&output));
        assert!(stdout(&output).is_empty(), "{args:?}: {}", stdout(&output));
    }
}

#[test]
fn help_and_version_need_no_configuration() {
    for flag in ["--help", "-h"] {
        let help = run_to_exit(&[], &[flag]);
        assert_eq!(help.status.code(), Some(0), "{}", stderr(&help));
        assert!(stdout(&help).contains("Usage:") && stdout(&help).contains("--env-file"));
    }
    for flag in ["--version", "-V"] {
        let version = run_to_exit(&[("PORT", "broken")], &[flag]);
        assert_eq!(version.status.code(), Some(0), "{}", stderr(&version));
        assert!(stdout(&version).contains(env!("CARGO_PKG_VERSION")), "{}", stdout(&version));
    }
}

#[test]
fn a_second_instance_on_the_same_state_is_told_so_and_the_first_goes_on() {
    let standin = StandIn::start().unwrap();
    let first = Proxy::start(&standin);
    let state = first.state_path().display().to_string();
    let output = Proxy::builder(&standin).env("STATE_PATH", state.as_str()).run_to_exit();
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(74), "{told}");
    assert!(told.contains("another process") && told.contains(&state), "{told}");
    assert!(told.contains("STATE_PATH"), "{told}");
    assert_eq!(post(&first, CHAT, "{}").status, 200);
}

#[test]
fn a_port_that_is_taken_exits_69_and_names_the_address() {
    let standin = StandIn::start().unwrap();
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = Proxy::builder(&standin).env("PORT", port.as_str()).run_to_exit();
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(69), "{told}");
    assert!(told.contains(&port) && told.contains("127.0.0.1"), "{told}");
}

#[test]
fn port_0_lets_the_system_choose_and_the_default_address_is_loopback() {
    let standin = StandIn::start().unwrap();
    let (one, other) = (Proxy::start(&standin), Proxy::start(&standin));
    assert_ne!(one.address(), other.address());
    for proxy in [&one, &other] {
        assert!(proxy.address().ip().is_loopback() && proxy.address().port() != 0);
        assert_eq!(get(proxy, "/health").status, 200);
    }
}

#[test]
fn a_name_can_be_listened_on() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin).env("HOST", "localhost").start();
    assert!(proxy.address().ip().is_loopback());
    assert_eq!(get(&proxy, "/health").status, 200);
}

#[test]
fn the_auth_mode_decides_which_header_carries_the_key() {
    let bearer = Some("Bearer k1");
    for (mode, authorization, x_api_key) in [
        (None, bearer, None),
        (Some("authorization"), bearer, None),
        (Some("x-api-key"), None, Some("k1")),
        (Some("both"), bearer, Some("k1")),
    ] {
        let standin = StandIn::start().unwrap();
        let mut builder = Proxy::builder(&standin);
        if let Some(mode) = mode {
            builder = builder.env("UPSTREAM_AUTH_MODE", mode);
        }
        let proxy = builder.start();
        for path in [CHAT, MESSAGES] {
            // Also when the client itself used the other header.
            let headers = [AUTH, ("x-api-key", "not-the-key")];
            assert_eq!(request(proxy.address(), "POST", path, &headers, "{}").status, 200);
            let call = last_call(&standin);
            assert_eq!(call.header("authorization"), authorization, "{mode:?} {path}");
            assert_eq!(call.header("x-api-key"), x_api_key, "{mode:?} {path}");
        }
    }
}

#[test]
fn a_key_with_an_origin_goes_there_with_the_paths_kept() {
    let home = StandIn::start().unwrap();
    let abroad = StandIn::start().unwrap();
    let keys = format!("k1@{},k2", abroad.origin());
    let proxy = Proxy::builder(&home).keys(&keys).models("m1").start();
    for (path, there) in [
        (CHAT, "/compatible-mode/v1/chat/completions?a=1"),
        (MESSAGES, "/apps/anthropic/v1/messages?a=1"),
    ] {
        assert_eq!(post(&proxy, &format!("{path}?a=1"), "{}").status, 200);
        let call = last_call(&abroad);
        assert_eq!((call.key.as_deref(), call.target.as_str()), (Some("k1"), there));
        assert_eq!(call.header("host"), Some(abroad.address().to_string().as_str()));
    }
    assert_eq!(home.call_count(), 0);
    abroad.reply("*", "*", Reply::Exhausted(Shape::Nested));
    assert_eq!(post(&proxy, CHAT, "{}").status, 200);
    assert_eq!(home.slots(), ["k2/m1"]);
    // SHA-256 of "k1" alone, without the origin.
    let hash = "6ab9f1eb8f7d3388f4f9d586f66e99fd54080df2c446f0e58668b09c08a16dd0";
    let state = proxy.state();
    assert_eq!(state["modelState"][format!("{hash}:m1")]["keyHash"], hash, "{state}");
}
