//! `demo`: the real proxy before the built-in stand-in, without an account.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use nix::sys::signal::Signal;

use crate::envelope::{CHAT, MESSAGES};
use crate::harness::{Folder, LIMIT, Process, binary, request};

/// How many requests the demo makes itself: the first key's 3 models, 2 requests each, and one.
const SHOWN: usize = 3 * 2 + 1;

/// The path and the body of each curl line that was printed.
fn curl_lines(printed: &str) -> Vec<(&'static str, String)> {
    let lines = printed.split("  curl ").filter_map(|line| {
        let path = if line.contains(MESSAGES) { MESSAGES } else { CHAT };
        let body = line.split_once("-d '")?.1.split_once('\'')?.0;
        Some((path, body.to_owned()))
    });
    lines.collect()
}

/// The word after `before` in what was printed.
fn word_after(text: &str, before: &str) -> String {
    let word = text.split_once(before).unwrap_or_else(|| panic!("no {before:?} in {text}")).1;
    word.split_whitespace().next().unwrap_or_default().trim_end_matches(['.', ',', '\'']).to_owned()
}

#[test]
fn the_demo_serves_beside_a_taken_port_until_its_quotas_are_used_up() {
    // Whether this bind succeeds or somebody else has the port: it is taken.
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 3300));
    let folder = Folder::new();
    let mut command = binary();
    command.env_clear().env("TMPDIR", folder.path()).arg("demo").current_dir(folder.path());
    let mut demo = Process::start(command);
    let is_introduced = |text: &str| text.contains("Ctrl-C");
    assert!(demo.wait_stdout(LIMIT, is_introduced), "{:?}", demo.output());
    let requests = |log: &str| log.lines().filter(|line| line.contains(" request id=")).count();
    assert!(demo.wait_log(LIMIT, |log| requests(log) >= SHOWN), "{}", demo.log());

    let (printed, _) = demo.output();
    let address: SocketAddr = word_after(&printed, "http://").parse().unwrap();
    let key = word_after(&printed, "with the key ");
    if taken.is_ok() {
        assert_ne!(address.port(), 3300);
        assert!(printed.contains("Port 3300 is taken"), "{printed}");
    }
    // The state is in a temporary folder, not here.
    let names = || std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(names(), 1);

    let bearer = format!("Bearer {key}");
    let lines = curl_lines(&printed);
    let models = lines.iter().chain(&lines[3..]).map(|(path, body)| {
        let answer = request(address, "POST", path, &[("authorization", &bearer)], body);
        assert_eq!(answer.status, 200, "{answer:?}\n{}", demo.log());
        answer.header("x-proxy-model").unwrap().to_owned()
    });
    let models: Vec<String> = models.collect();
    // The first model is current, refuses the first two, and stays current.
    assert_eq!(models, ["qwen-plus", "qwen-plus", "qwen-max", "qwen-turbo", "qwen-turbo"]);
    let has_learned =
        |log: &str, kind: &str| log.contains(&format!(" model=qwen-max kind={kind} "));
    let has_both = |log: &str| has_learned(log, "max_output") && has_learned(log, "media");
    assert!(demo.wait_log(LIMIT, has_both), "{}", demo.log());
    let refused = request(address, "POST", MESSAGES, &[("x-api-key", &key)], r#"{"model":"any"}"#);
    assert_eq!(refused.status, 503);
    assert_eq!(refused.json()["type"], "error");

    assert!(demo.wait_log(LIMIT, |log| log.contains("status=503")));
    let cooldowns = demo.log().lines().filter(|line| line.contains(" cooldown id=")).count();
    assert_eq!(cooldowns, 6, "{}", demo.log());

    demo.signal(Signal::SIGTERM);
    assert_eq!(demo.wait_exit(LIMIT).and_then(|status| status.code()), Some(0));
    assert_eq!(names(), 0, "the demo leaves its folder behind");
}

#[test]
fn without_the_right_key_the_demo_refuses_like_the_real_thing() {
    let folder = Folder::new();
    let mut command = binary();
    command.env_clear().env("TMPDIR", folder.path()).arg("demo").current_dir(folder.path());
    let mut demo = Process::start(command);
    assert!(demo.wait_stdout(LIMIT, |text| text.contains("Ctrl-C")), "{:?}", demo.output());
    let address: SocketAddr = word_after(&demo.output().0, "http://").parse().unwrap();
    let answer = request(address, "POST", CHAT, &[("authorization", "Bearer wrong")], "{}");
    assert_eq!(answer.status, 401);
    demo.signal(Signal::SIGINT);
    assert_eq!(demo.wait_exit(LIMIT).and_then(|status| status.code()), Some(0));
}

#[test]
fn the_demo_reaches_its_stand_in_only_on_every_protocol_and_over_nobody() {
    let outbound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    outbound.set_nonblocking(true).unwrap();
    let proxy = format!("http://{}", outbound.local_addr().unwrap());
    let folder = Folder::new();
    folder.write(".env", &format!("NATIVE_UPSTREAM_BASE_URL={proxy}/api/v1\nALL_PROXY={proxy}\n"));
    let mut command = binary();
    command.env_clear().env("TMPDIR", folder.path()).arg("demo").current_dir(folder.path());
    for name in ["ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"] {
        command.env(name, &proxy);
    }
    for name in ["UPSTREAM_BASE_URL", "OPENAI_UPSTREAM_BASE_URL", "NATIVE_UPSTREAM_BASE_URL"] {
        command.env(name, &proxy);
    }
    let mut demo = Process::start(command);
    assert!(demo.wait_stdout(LIMIT, |text| text.contains("Ctrl-C")), "{:?}", demo.output());
    let (printed, _) = demo.output();
    let address: SocketAddr = word_after(&printed, "http://").parse().unwrap();
    let bearer = format!("Bearer {}", word_after(&printed, "with the key "));
    for (path, body) in [
        (CHAT, r#"{"model":"any","messages":[]}"#),
        (MESSAGES, r#"{"model":"any","messages":[]}"#),
        (
            "/api/v1/services/aigc/text-generation/generation",
            r#"{"model":"qwen-max","input":{"messages":[{"role":"user","content":"hello"}]}}"#,
        ),
    ] {
        let answer = request(address, "POST", path, &[("authorization", &bearer)], body);
        assert_eq!(answer.status, 200, "{path}: {answer:?}\n{}", demo.log());
    }
    let reached =
        demo.log().lines().find(|line| line.contains(" upstream openai=")).map(str::to_owned);
    let reached = reached.unwrap();
    assert_eq!(reached.matches("=http://127.0.0.1:").count(), 3, "{reached}");
    assert!(reached.contains("outbound=direct"), "{reached}");
    assert!(outbound.accept().is_err(), "somebody came");
    demo.signal(Signal::SIGTERM);
    assert_eq!(demo.wait_exit(LIMIT).and_then(|status| status.code()), Some(0));
}
