//! Paths, methods, keys and CORS: what a client may ask, and in whose words it is refused.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]

use std::io::Read;

use dashscope_proxy::standin::{Reply, Shape, StandIn};
use serde_json::Value;

use crate::envelope::{self, CHAT, MESSAGES, anthropic_message, message_on, openai_message};
use crate::harness::{AUTH, Answer, Client, LIMIT, PROXY_KEY, Proxy, get, post, request};

/// The first 12 hex digits of the SHA-256 of "k1" and "k2", the harness's keys.
const LABELS: [&str; 2] = ["6ab9f1eb8f7d", "015f7e6bc5ae"];

const PAGES: [&str; 4] = ["/", "/health", "/models/status", "/v1/models"];

fn names(value: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

#[test]
fn both_protocols_reach_their_base_with_the_query_kept_and_out_of_the_log() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    for (path, there) in
        [(CHAT, "/compatible-mode/v1/chat/completions"), (MESSAGES, "/apps/anthropic/v1/messages")]
    {
        for query in ["", "?beta=true", "?a=%2Fsecret&b=1+2&a=&c", "?", "?x=?/:@"] {
            let answer = post(&proxy, &format!("{path}{query}"), "{}");
            assert_eq!(answer.status, 200, "{path}{query}: {answer:?}");
            assert!(answer.text().contains("This answer comes from m1."), "{answer:?}");
            let call = standin.calls().pop().unwrap();
            assert_eq!((call.method.as_str(), call.target), ("POST", format!("{there}{query}")));
        }
        assert!(proxy.wait_log(&format!(" path={path} "), LIMIT), "{}", proxy.log());
    }
    assert!(!proxy.log().contains("secret"), "{}", proxy.log());
}

#[test]
fn an_answer_says_who_served_it() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    standin.reply("k1", "*", Reply::Exhausted(Shape::Flat));
    for path in [CHAT, MESSAGES] {
        let answer = post(&proxy, path, "{}");
        assert_eq!(answer.header("x-proxy-key-hash"), Some(LABELS[1]));
        assert_eq!(answer.header("x-proxy-model"), Some("m1"));
        let attempts = if path == CHAT { "4" } else { "1" };
        assert_eq!(answer.header("x-proxy-attempts"), Some(attempts));
    }
}

#[test]
fn the_models_are_listed_in_the_shape_of_the_caller() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);

    let list = get(&proxy, "/v1/models").json();
    assert_eq!(list["object"], "list");
    let models = list["data"].as_array().unwrap();
    let ids: Vec<_> = models.iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["m1", "m2", "m3"]);
    for model in models {
        assert_eq!(model["object"], "model");
        assert!(model["created"].is_u64() && model["owned_by"].is_string(), "{model}");
    }

    let headers = [("x-api-key", PROXY_KEY), ("anthropic-version", "2023-06-01")];
    let list = request(proxy.address(), "GET", "/v1/models?limit=1000", &headers, "").json();
    assert_eq!(list["has_more"], false);
    assert_eq!((&list["first_id"], &list["last_id"]), (&"m1".into(), &"m3".into()));
    let models = list["data"].as_array().unwrap();
    let ids: Vec<_> = models.iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["m1", "m2", "m3"]);
    for model in models {
        assert_eq!(model["type"], "model");
        assert!(model["display_name"].is_string(), "{model}");
        let created = model["created_at"].as_str().unwrap();
        assert!(humantime::parse_rfc3339(created).is_ok(), "{created}");
    }
    assert_eq!(standin.call_count(), 0);
}

#[test]
fn health_is_open_and_counts_what_is_available() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let health = || request(proxy.address(), "GET", "/health", &[], "");
    let fields = |answer: &Answer| {
        let json = answer.json();
        let names = ["totalKeys", "modelsPerKey", "totalSlots", "availableSlots"];
        names.map(|name| json[name].as_u64().unwrap_or_else(|| panic!("{name}: {answer:?}")))
    };
    let answer = health();
    assert_eq!((answer.status, &answer.json()["ok"]), (200, &true.into()));
    assert_eq!(fields(&answer), [2, 3, 6, 6]);
    standin.reply("k1", "m1", Reply::Exhausted(Shape::Flat));
    post(&proxy, CHAT, "{}");
    assert_eq!(fields(&health()), [2, 3, 6, 5]);
    for key in ["k1", "k2", PROXY_KEY] {
        assert!(!health().text().contains(key));
    }
}

#[test]
fn the_status_tells_of_every_slot_and_where_the_next_request_starts() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let status = || get(&proxy, "/models/status").json();
    let start = |status: &Value| {
        let slots = status["models"].as_array().unwrap().clone();
        let here = |slot: &Value| slot["currentKey"] == true && slot["currentModel"] == true;
        let current: Vec<_> = slots.into_iter().filter(here).collect();
        assert_eq!(current.len(), 1, "{status}");
        (current[0]["keyHash"].as_str().unwrap().to_owned(), current[0]["id"].clone())
    };
    let is_time = |value: &Value| {
        let time = value.as_str().filter(|text| text.ends_with('Z'));
        time.is_some_and(|text| humantime::parse_rfc3339(text).is_ok())
    };

    let fresh = status();
    for (field, count) in
        [("totalKeys", 2), ("modelsPerKey", 3), ("totalSlots", 6), ("availableSlots", 6)]
    {
        assert_eq!(fresh[field], count, "{fresh}");
    }
    let slots = fresh["models"].as_array().unwrap();
    let order: Vec<_> = slots.iter().map(|slot| (&slot["keyHash"], &slot["id"])).collect();
    let mut expected = Vec::new();
    let labels = LABELS.map(Value::from);
    let ids = ["m1", "m2", "m3"].map(Value::from);
    for label in &labels {
        expected.extend(ids.iter().map(|id| (label, id)));
    }
    assert_eq!(order, expected);
    for (index, slot) in slots.iter().enumerate() {
        for name in [
            "available",
            "cooldownUntil",
            "currentKey",
            "currentModel",
            "failureCount",
            "id",
            "keyHash",
            "keyIndex",
            "lastError",
            "lastUsedAt",
        ] {
            assert!(names(slot).contains(&name), "{name} is missing in {slot}");
        }
        assert_eq!(slot["keyIndex"], index / 3);
        assert_eq!((&slot["available"], &slot["failureCount"]), (&true.into(), &0.into()));
        for name in ["cooldownUntil", "lastError", "lastUsedAt"] {
            assert!(slot[name].is_null(), "{name}: {slot}");
        }
    }
    assert_eq!(start(&fresh), (LABELS[0].to_owned(), "m1".into()));

    standin.reply("k1", "m1", Reply::Exhausted(Shape::Flat));
    assert_eq!(post(&proxy, CHAT, "{}").status, 200);
    let after = status();
    assert_eq!(after["availableSlots"], 5);
    let (dead, used) = (&after["models"][0], &after["models"][1]);
    assert_eq!((&dead["available"], &dead["failureCount"]), (&false.into(), &1.into()));
    assert!(is_time(&dead["cooldownUntil"]) && dead["lastUsedAt"].is_null(), "{dead}");
    assert!(dead["lastError"].as_str().unwrap().contains("Free quota exhausted"), "{dead}");
    assert!(is_time(&used["lastUsedAt"]) && used["cooldownUntil"].is_null(), "{used}");
    assert_eq!(start(&after), (LABELS[0].to_owned(), "m2".into()));
    assert_eq!(post(&proxy, CHAT, "{}").status, 200);
    assert_eq!(standin.slots(), ["k1/m1", "k1/m2", "k1/m2"]);
}

#[test]
fn the_index_is_open_and_tells_what_there_is() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let answer = request(proxy.address(), "GET", "/", &[], "");
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    for path in [CHAT, MESSAGES, "/v1/models", "/models/status", "/health"] {
        assert!(answer.text().contains(path), "{path}: {answer:?}");
    }
    assert!(answer.json().is_object());
}

#[test]
fn a_browser_gets_a_page_instead_of_the_index_that_no_other_site_may_read_or_frame() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let accept = [("accept", "text/html,application/xhtml+xml,*/*;q=0.8")];
    let page = request(proxy.address(), "GET", "/", &accept, "");
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"), "{page:?}");
    assert_eq!(page.header("access-control-allow-origin"), None);
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(page.header("referrer-policy"), Some("no-referrer"));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
    let index = request(proxy.address(), "GET", "/", &[("accept", "*/*")], "");
    for answer in [&page, &index] {
        assert_eq!(answer.header("vary"), Some("accept"), "{answer:?}");
    }
    assert!(index.json().is_object());
}

#[test]
fn head_of_a_page_is_its_get_without_the_body() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let mut client = proxy.connect();
    for page in PAGES {
        client.send("HEAD", page, &[AUTH], b"");
        let head = client.read_answer().unwrap();
        assert_eq!((head.status, head.body.len()), (200, 0), "{page}: {head:?}");
        // The connection is in step: no body came after all.
        client.send("GET", page, &[AUTH], b"");
        let full = client.read_answer().unwrap();
        assert_eq!(full.status, 200, "{page}: {full:?}");
        assert_eq!(head.header("content-type"), full.header("content-type"), "{page}");
        if let Some(length) = head.header("content-length") {
            assert_eq!(Some(length), full.header("content-length"), "{page}");
        }
    }
    client.send("HEAD", "/v1/models", &[], b"");
    let refused = client.read_answer().unwrap();
    assert_eq!((refused.status, refused.body.len()), (401, 0));
}

#[test]
fn a_preflight_needs_no_key_and_gets_back_the_headers_it_asked_for() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let asked = "authorization,x-api-key,anthropic-version,x-stainless-lang,content-type";
    for path in [CHAT, MESSAGES, "/v1/models", "/health", "/models/status", "/"] {
        let headers = [
            ("origin", "https://app.example"),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", asked),
        ];
        let answer = request(proxy.address(), "OPTIONS", path, &headers, "");
        assert_eq!((answer.status, answer.body.len()), (204, 0), "{path}: {answer:?}");
        assert_eq!(answer.header("content-length"), None, "{path}: {answer:?}");
        assert_eq!(answer.header("access-control-allow-origin"), Some("*"), "{path}");
        assert_eq!(answer.header("access-control-allow-headers"), Some(asked), "{path}");
        let methods = answer.header("access-control-allow-methods").unwrap();
        assert!(methods.contains("POST") && methods.contains("GET"), "{path}: {methods}");
    }
    assert_eq!(standin.call_count(), 0);
}

#[test]
fn every_answer_of_an_api_path_may_be_read_by_a_browser() {
    let standin = StandIn::start().unwrap();
    let origin = "https://app.example:8443";
    let proxy = Proxy::builder(&standin).env("CORS_ORIGIN", origin).start();
    standin.reply_once("*", "*", Reply::json(400, "{}"));
    let no_key: [(&str, &str); 0] = [];
    let answers = [
        post(&proxy, CHAT, "{}"),
        post(&proxy, CHAT, "{}"),
        post(&proxy, MESSAGES, r#"{"stream":true}"#),
        post(&proxy, CHAT, "[]"),
        get(&proxy, "/v1/models"),
        get(&proxy, "/health"),
        get(&proxy, "/v1/nothing"),
        get(&proxy, CHAT),
        request(proxy.address(), "POST", CHAT, &no_key, "{}"),
    ];
    let statuses = answers.each_ref().map(|answer| answer.status);
    assert_eq!(statuses, [400, 200, 200, 400, 200, 200, 404, 405, 401]);
    for answer in &answers {
        assert_eq!(answer.header("access-control-allow-origin"), Some(origin), "{answer:?}");
        let exposed = answer.header("access-control-expose-headers").unwrap_or_default();
        for name in ["x-proxy-key-hash", "x-proxy-model", "x-proxy-attempts"] {
            assert!(exposed.contains(name), "{answer:?}");
        }
    }
}

#[test]
fn cors_origin_false_switches_cors_off_everywhere() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin).env("CORS_ORIGIN", "false").start();
    let asked = [("origin", "https://a.example"), ("access-control-request-headers", "x-a")];
    let answers = [
        request(proxy.address(), "OPTIONS", CHAT, &asked, ""),
        request(proxy.address(), "POST", CHAT, &asked, "{}"),
        request(proxy.address(), "POST", CHAT, &[AUTH, asked[0]], "{}"),
        request(proxy.address(), "GET", "/v1/models", &[AUTH, asked[0]], ""),
        get(&proxy, "/nothing"),
    ];
    let statuses = answers.each_ref().map(|answer| answer.status);
    assert_eq!(statuses, [204, 401, 200, 200, 404]);
    for answer in &answers {
        let is_cors = |(name, _): &&(String, String)| {
            name.to_ascii_lowercase().starts_with("access-control-")
        };
        assert_eq!(answer.headers.iter().find(is_cors), None, "{answer:?}");
    }
}

#[test]
fn the_key_is_taken_in_every_form_and_from_either_header() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let with = |scheme: &str| format!("{scheme}{PROXY_KEY}");
    let (bearer, lower, upper) = (with("Bearer "), with("bearer "), with("BEARER "));
    let good: [&[(&str, &str)]; 8] = [
        &[("authorization", &bearer)],
        &[("authorization", &lower)],
        &[("Authorization", &upper)],
        &[("authorization", PROXY_KEY)],
        &[("x-api-key", PROXY_KEY)],
        &[("X-Api-Key", PROXY_KEY), ("authorization", "Bearer something-else")],
        &[("x-api-key", "something-else"), ("authorization", &bearer)],
        &[("x-api-key", ""), ("authorization", &bearer)],
    ];
    for headers in good {
        for path in [CHAT, MESSAGES] {
            let answer = request(proxy.address(), "POST", path, headers, "{}");
            assert_eq!(answer.status, 200, "{path} {headers:?}: {answer:?}");
        }
        for page in ["/v1/models", "/models/status"] {
            let answer = request(proxy.address(), "GET", page, headers, "");
            assert_eq!(answer.status, 200, "{page} {headers:?}: {answer:?}");
        }
    }
}

#[test]
fn without_the_key_there_is_401_in_the_callers_words_and_no_call_upstream() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let half = &PROXY_KEY[..PROXY_KEY.len() - 1];
    let longer = format!("Bearer {PROXY_KEY}x");
    let upper = format!("Bearer {}", PROXY_KEY.to_uppercase());
    let (basic, twice) = (format!("Basic {PROXY_KEY}"), format!("Bearer Bearer {PROXY_KEY}"));
    let bad: [&[(&str, &str)]; 11] = [
        &[],
        &[("authorization", "")],
        &[("authorization", "Bearer")],
        &[("authorization", "Bearer ")],
        &[("authorization", &longer)],
        &[("authorization", half)],
        &[("authorization", &upper)],
        &[("authorization", &basic)],
        &[("authorization", &twice)],
        &[("x-api-key", half), ("authorization", "Bearer k1")],
        &[("proxy-authorization", PROXY_KEY), ("x-key", PROXY_KEY)],
    ];
    for headers in bad {
        for path in [CHAT, MESSAGES] {
            let answer = request(proxy.address(), "POST", path, headers, "{}");
            assert_eq!(answer.status, 401, "{path} {headers:?}: {answer:?}");
            let message = message_on(path, &answer);
            assert!(!message.contains(half), "{message}");
        }
        for page in ["/v1/models", "/models/status"] {
            let answer = request(proxy.address(), "GET", page, headers, "");
            assert_eq!(answer.status, 401, "{page} {headers:?}: {answer:?}");
            openai_message(&answer);
        }
    }
    let answer = request(proxy.address(), "POST", MESSAGES, &[], "{}");
    assert_eq!(envelope::anthropic_type(&answer), "authentication_error");
    let answer = request(proxy.address(), "POST", CHAT, &[], "{}");
    assert_eq!(answer.json()["error"]["code"], "invalid_api_key");
    let anthropic = [("anthropic-version", "2023-06-01")];
    anthropic_message(&request(proxy.address(), "GET", "/v1/models", &anthropic, ""));
    assert_eq!(standin.call_count(), 0);
    assert!(!proxy.log().contains(half), "{}", proxy.log());
}

#[test]
fn an_unknown_path_is_404_in_the_callers_words() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    for path in ["/v1/nothing", "/favicon.ico", "//v1/chat/completions", "/v1/chat/../models"] {
        for method in ["GET", "POST", "DELETE"] {
            let answer = request(proxy.address(), method, path, &[AUTH], "");
            assert_eq!(answer.status, 404, "{method} {path}: {answer:?}");
            openai_message(&answer);
        }
    }
    let answer = post(&proxy, "/v1/messages/nothing", "{}");
    assert_eq!(answer.status, 404, "{answer:?}");
    anthropic_message(&answer);
    assert_eq!(envelope::anthropic_type(&answer), "not_found_error");
    let anthropic = [AUTH, ("anthropic-version", "2023-06-01")];
    anthropic_message(&request(proxy.address(), "GET", "/v1/nothing", &anthropic, ""));
    assert_eq!(standin.call_count(), 0);
}

#[test]
fn a_known_path_with_a_wrong_method_is_405_and_names_the_right_ones() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    for path in [CHAT, MESSAGES] {
        for method in ["GET", "PUT", "DELETE", "PATCH"] {
            let answer = request(proxy.address(), method, path, &[AUTH], "");
            assert_eq!(answer.status, 405, "{method} {path}: {answer:?}");
            assert!(answer.header("allow").unwrap().contains("POST"), "{answer:?}");
            message_on(path, &answer);
        }
    }
    for page in PAGES {
        for method in ["POST", "PUT", "DELETE"] {
            let answer = request(proxy.address(), method, page, &[AUTH], "");
            assert_eq!(answer.status, 405, "{method} {page}: {answer:?}");
            assert!(answer.header("allow").unwrap().contains("GET"), "{answer:?}");
            openai_message(&answer);
        }
    }
    assert_eq!(standin.call_count(), 0);
}

#[test]
fn a_body_that_is_no_object_is_400_in_the_callers_words_and_goes_nowhere() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let bad: [&[u8]; 8] =
        [b"", b"[]", b"\"text\"", b"null", b"{", b"{\"a\":1}}", b"{\"a\":1,}", b"model=m1&a=b"];
    for body in bad {
        for path in [CHAT, MESSAGES] {
            let answer = post(&proxy, path, body);
            assert_eq!(answer.status, 400, "{path} {body:?}: {answer:?}");
            message_on(path, &answer);
        }
    }
    assert_eq!(standin.call_count(), 0);
}

#[test]
fn a_compressed_body_is_415_and_names_the_encoding() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    for (coding, body) in [("gzip", &b"\x1f\x8b"[..]), ("zstd", b"\x28\xb5\x2f\xfd"), ("br", b"{}")]
    {
        for path in [CHAT, MESSAGES] {
            let headers = [AUTH, ("content-encoding", coding)];
            let answer = request(proxy.address(), "POST", path, &headers, body);
            assert_eq!(answer.status, 415, "{answer:?}");
            assert!(message_on(path, &answer).contains(coding), "{answer:?}");
        }
    }
    assert_eq!(standin.call_count(), 0);
    let headers = [AUTH, ("content-encoding", "identity")];
    assert_eq!(request(proxy.address(), "POST", CHAT, &headers, "{}").status, 200);
}

#[test]
fn a_body_over_the_limit_is_413_and_one_at_the_limit_is_not() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin).env("MAX_BODY_BYTES", "100000").start();
    let body = |length: usize| {
        let mut body = br#"{"model":"m1","a":""#.to_vec();
        body.resize(length - 2, b'x');
        body.extend(b"\"}");
        body
    };
    for path in [CHAT, MESSAGES] {
        assert_eq!(post(&proxy, path, body(100_000)).status, 200);
        let calls = standin.call_count();
        let answer = post(&proxy, path, body(100_001));
        assert_eq!(answer.status, 413, "{answer:?}");
        message_on(path, &answer);
        // A length that is not known beforehand.
        let mut chunked = b"186a1\r\n".to_vec();
        chunked.extend(body(100_001));
        chunked.extend(b"\r\n0\r\n\r\n");
        let headers = [AUTH, ("transfer-encoding", "chunked")];
        let answer = request(proxy.address(), "POST", path, &headers, chunked);
        assert_eq!(answer.status, 413, "{answer:?}");
        message_on(path, &answer);
        assert_eq!(standin.call_count(), calls);
    }
    let answer = post(&proxy, MESSAGES, body(200_000));
    assert_eq!(envelope::anthropic_type(&answer), "request_too_large");
}

#[test]
fn a_connection_is_in_step_or_closed_after_its_body_was_refused() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin).env("MAX_BODY_BYTES", "100000").start();
    let large = vec![b'x'; 300_000];
    let refusals: [(&[(&str, &str)], u16); 3] =
        [(&[AUTH], 413), (&[], 401), (&[AUTH, ("content-encoding", "gzip")], 415)];
    for (headers, status) in refusals {
        let mut client = proxy.connect();
        client.send("POST", CHAT, headers, &large);
        let answer = client.read_answer().unwrap();
        assert_eq!(answer.status, status, "{answer:?}");
        client.send("GET", "/health", &[], b"");
        match client.read_answer() {
            Ok(next) => assert_eq!((next.status, &next.json()["ok"]), (200, &true.into())),
            Err(cut) => assert_eq!(cut.received, b"", "{cut:?}"),
        }
    }
}

/// Sends a head that asks for `100 Continue` and returns the first line of what comes, once that
/// head has come whole.
fn first_line_after(client: &mut Client, head: &str) -> String {
    client.send_raw(head.as_bytes()).unwrap();
    let mut socket = client.socket();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.ends_with(b"\r\n\r\n") {
        socket.read_exact(&mut byte).expect("an answer to a head that waits");
        answer.push(byte[0]);
    }
    let answer = String::from_utf8(answer).unwrap();
    answer.lines().next().unwrap().to_owned()
}

#[test]
fn a_client_that_waits_for_100_continue_is_told_to_go_on() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let mut client = proxy.connect();
    // Twice on one connection: with a large body and with a small one.
    for length in [3_000_000, 20] {
        let mut body = br#"{"a":""#.to_vec();
        body.resize(length - 2, b'y');
        body.extend(b"\"}");
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: p\r\nauthorization: {}\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n",
            AUTH.1
        );
        let line = first_line_after(&mut client, &head);
        assert_eq!(line, "HTTP/1.1 100 Continue");
        client.send_raw(&body).unwrap();
        let answer = client.read_answer().unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        let call = standin.calls().pop().unwrap();
        assert_eq!(call.body.len(), length + r#""model":"m1","#.len());
        assert_eq!(call.header("expect"), None);
    }
}

#[test]
fn a_client_that_waits_for_100_continue_is_refused_without_its_body() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin).env("MAX_BODY_BYTES", "1000").start();
    for (auth, length, status) in [(AUTH.1, 3_000_000, "413"), ("Bearer wrong", 500, "401")] {
        let mut client = proxy.connect();
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: p\r\nauthorization: {auth}\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n",
        );
        let line = first_line_after(&mut client, &head);
        assert!(line.starts_with(&format!("HTTP/1.1 {status} ")), "{line}");
    }
    assert_eq!(standin.call_count(), 0);
}

#[test]
fn a_length_beyond_all_memory_is_refused_and_harms_nobody() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    for length in ["1000000000000000", "9223372036854775807", "18446744073709551615"] {
        for headers in [&[AUTH][..], &[]] {
            let mut client = proxy.connect();
            let length = [("content-length", length)];
            let headers: Vec<_> = headers.iter().chain(&length).copied().collect();
            client.send("POST", CHAT, &headers, b"{}");
            client.socket().shutdown(std::net::Shutdown::Write).unwrap();
            // Whatever this client gets: nobody else may suffer.
            let _ = client.read_answer();
            assert_eq!(get(&proxy, "/health").status, 200, "{headers:?}");
        }
    }
    assert_eq!(standin.call_count(), 0);
}

#[test]
fn a_chunked_request_body_goes_up_whole() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let mut client = proxy.connect();
    let text = format!(r#"{{"model":"m9","a":"{}"}}"#, "z".repeat(200_000));
    for pieces in [1, 7, 1000] {
        let mut body = Vec::new();
        for piece in text.as_bytes().chunks(text.len().div_ceil(pieces)) {
            body.extend(format!("{:x};ext=1\r\n", piece.len()).into_bytes());
            body.extend(piece);
            body.extend(b"\r\n");
        }
        body.extend(b"0\r\n\r\n");
        client.send("POST", CHAT, &[AUTH, ("transfer-encoding", "chunked")], &body);
        assert_eq!(client.read_answer().unwrap().status, 200);
        let call = standin.calls().pop().unwrap();
        assert!(call.body == text.replace("m9", "m1").as_bytes(), "{pieces} pieces");
        assert_eq!(call.header("transfer-encoding"), None);
        assert_eq!(call.header("content-length"), Some(call.body.len().to_string().as_str()));
    }
}
