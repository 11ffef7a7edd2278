//! `/metrics`: what Prometheus is told, and what it must never be told.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]

use dashscope_proxy::standin::{Reply, Shape, StandIn};

use crate::envelope::{CHAT, MESSAGES};
use crate::harness::{AUTH, LIMIT, Proxy, get, key_hash, post, request};

/// The value of a series, written as Prometheus writes it.
#[track_caller]
fn value(text: &str, series: &str) -> f64 {
    let line = text
        .lines()
        .find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')));
    let line = line.unwrap_or_else(|| panic!("no {series} in\n{text}"));
    line[series.len() + 1..].parse().unwrap()
}

#[track_caller]
fn scrape(proxy: &Proxy<'_>) -> String {
    let answer = get(proxy, "/metrics");
    assert_eq!(answer.status, 200, "{answer:?}");
    let kind = answer.header("content-type").unwrap();
    assert!(kind.starts_with("text/plain") && kind.contains("version=0.0.4"), "{kind}");
    answer.text()
}

#[test]
fn what_happened_is_counted_by_route_slot_and_state() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin).env("WORKERS", "5").start();
    let usage = r#"{"usage":{"prompt_tokens":30,"completion_tokens":12}}"#;
    standin.reply_once("k1", "m1", Reply::Exhausted(Shape::Nested));
    standin.reply_once("k1", "m2", Reply::json(200, usage));
    post(&proxy, CHAT, "{}");
    post(&proxy, MESSAGES, "{}");
    post(&proxy, CHAT, "not JSON");
    post(&proxy, "/models/disable", r#"{"key":1,"model":"m3"}"#);
    for id in 1..=3 {
        assert!(proxy.wait_log(&format!(" request id={id} "), LIMIT));
    }
    let text = scrape(&proxy);
    let (k1, name) = (&key_hash("k1")[..12], |rest: &str| format!("dashscope_proxy_{rest}"));
    for (series, expected) in [
        (format!(r#"requests_total{{route="{CHAT}",status="200",verdict="success"}}"#), 1.0),
        (format!(r#"requests_total{{route="{CHAT}",status="400",verdict="invalid_body"}}"#), 1.0),
        (format!(r#"requests_total{{route="{MESSAGES}",status="200",verdict="success"}}"#), 1.0),
        (
            format!(
                r#"upstream_attempts_total{{key="{k1}",model="m1",verdict="quota_exhausted"}}"#
            ),
            1.0,
        ),
        (format!(r#"upstream_attempts_total{{key="{k1}",model="m2",verdict="success"}}"#), 2.0),
        (r#"slots{state="available"}"#.to_owned(), 4.0),
        (r#"slots{state="benched"}"#.to_owned(), 0.0),
        (r#"slots{state="cooling"}"#.to_owned(), 1.0),
        (r#"slots{state="disabled"}"#.to_owned(), 1.0),
        (r#"workers{state="busy"}"#.to_owned(), 0.0),
        (r#"workers{state="idle"}"#.to_owned(), 5.0),
        ("queued_requests".to_owned(), 0.0),
        ("state_write_failures_total".to_owned(), 0.0),
        ("request_seconds_count".to_owned(), 3.0),
        ("first_byte_seconds_count".to_owned(), 2.0),
        (format!(r#"build_info{{version="{}"}}"#, env!("CARGO_PKG_VERSION")), 1.0),
    ] {
        assert_eq!(value(&text, &name(&series)), expected, "{series}\n{text}");
    }
    let input = format!(r#"tokens_total{{key="{k1}",model="m2",direction="input"}}"#);
    assert!(value(&text, &name(&input)) >= 30.0, "{text}");
    assert!(value(&text, &name("state_writes_total")) >= 2.0, "{text}");
    assert!(value(&text, &name("connections")) >= 1.0, "{text}");
    assert!(value(&text, &name("uptime_seconds")) < 3_600.0, "{text}");
}

#[test]
fn a_call_without_an_answer_is_counted_too() {
    let standin = StandIn::start().unwrap();
    standin.reply("*", "*", Reply::HangBeforeHead);
    let proxy = Proxy::builder(&standin).env("UPSTREAM_TIMEOUT_SECONDS", "1").start();
    assert_eq!(post(&proxy, CHAT, "{}").status, 504);
    assert!(proxy.wait_log(" request id=1 ", LIMIT));
    let text = scrape(&proxy);
    let label = &key_hash("k1")[..12];
    let attempts = format!(
        r#"dashscope_proxy_upstream_attempts_total{{key="{label}",model="m1",verdict="no_answer"}}"#
    );
    assert_eq!(value(&text, &attempts), 1.0);
    let requests = format!(
        r#"dashscope_proxy_requests_total{{route="{CHAT}",status="504",verdict="upstream_timeout"}}"#
    );
    assert_eq!(value(&text, &requests), 1.0);
}

#[test]
fn only_who_has_the_key_and_no_foreign_page_reads_it() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let ask = |headers: &[(&str, &str)]| request(proxy.address(), "GET", "/metrics", headers, "");
    assert_eq!(ask(&[]).status, 401);
    assert_eq!(ask(&[("x-api-key", "k1")]).status, 401);
    assert_eq!(ask(&[AUTH, ("origin", "https://evil.example")]).status, 403);
    assert_eq!(ask(&[AUTH]).status, 200);
    assert_eq!(post(&proxy, "/metrics", "").status, 405);
}

#[test]
fn no_key_and_no_clients_text_is_in_it_and_clients_cannot_make_it_grow() {
    const KEY: &str = "sk-metrics-secret-0123456789";
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin).keys(KEY).start();
    let mut sizes = Vec::new();
    for round in 0..2 {
        for number in 0..20 {
            let name = format!("clienttext-{round}-{number}");
            let body = format!(r#"{{"model":"{name}","input":"{name}","messages":["{name}"]}}"#);
            for path in [
                format!("{CHAT}?q={name}"),
                "/v1/embeddings".to_owned(),
                format!("/api/v1/services/{name}/generation"),
                format!("/v1/responses/{name}/cancel"),
                format!("/v1/files/{name}"),
                format!("/v1/models/{name}"),
                format!("/{name}"),
            ] {
                post(&proxy, &path, body.as_str());
            }
            get(&proxy, &format!("/api/v1/tasks/{name}"));
            request(proxy.address(), "GET", "/v1/models", &[("x-api-key", &name)], "");
        }
        let served = proxy.log().matches(" request id=").count();
        assert!(proxy.wait_log(&format!(" request id={served} "), LIMIT));
        let text = scrape(&proxy);
        for secret in [KEY, "clienttext", crate::harness::PROXY_KEY] {
            assert!(!text.contains(secret), "{secret} in\n{text}");
        }
        sizes.push(text.lines().filter(|line| !line.starts_with('#')).count());
    }
    // Statuses and verdicts that a second round meets for the first time are few.
    assert!(sizes[1] <= sizes[0] + 5, "{sizes:?}");
}
