//! What travels and what does not: headers both ways, request bodies edited in place, answers
//! byte for byte, and keys nowhere but in the one header upstream.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]

use std::io::{Read, Write};
use std::time::Duration;

use dashscope_proxy::standin::{Framing, Reply, Shape, StandIn};
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::envelope::{CHAT, MESSAGES, message_on};
use crate::harness::{AUTH, Answer, LIMIT, PROXY_KEY, Proxy, get, post, request};

const GENERATION: &str = "/api/v1/services/aigc/text-generation/generation";

/// Lower-case names with their values, sorted.
fn sorted(headers: &[(String, String)]) -> Vec<(String, String)> {
    let lower = |(name, value): &(String, String)| (name.to_ascii_lowercase(), value.clone());
    let mut headers: Vec<_> = headers.iter().map(lower).collect();
    headers.sort();
    headers
}

fn owned(headers: &[(&str, &str)]) -> Vec<(String, String)> {
    headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn whole(status: u16, headers: &[(&str, &str)], body: &[u8], framing: Framing) -> Reply {
    Reply::Answer { status, headers: owned(headers), body: body.to_vec(), framing }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::default());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

/// The body as a client reads it.
fn unpacked(answer: &Answer) -> Vec<u8> {
    if answer.header("content-encoding") != Some("gzip") {
        return answer.body.clone();
    }
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&*answer.body).read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn upward_go_exactly_the_headers_that_are_meant_for_upstream() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let kept = [
        ("accept", "text/event-stream"),
        ("idempotency-key", "abc"),
        ("openai-organization", "org"),
        ("user-agent", "tester/1.0"),
        ("x-custom", "one"),
        ("x-custom", "two, three"),
        ("x-dashscope-datainspection", "disable"),
        ("x-stainless-lang", "rust"),
    ];
    let anthropic = [("anthropic-beta", "a,b"), ("anthropic-version", "2023-06-01")];
    let dropped = [
        ("accept-encoding", "gzip, br"),
        ("authorization", "Bearer not-the-key"),
        ("connection", "keep-alive, X-Named-Hop , te"),
        ("content-type", "application/x-www-form-urlencoded"),
        ("cookie", "session=1"),
        ("forwarded", "for=10.0.0.1"),
        ("host", "proxy.test"),
        ("http2-settings", "AAMAAABkAAQAoAAAAAIAAAAA"),
        ("keep-alive", "timeout=5"),
        ("origin", "https://app.example"),
        ("proxy-authenticate", "Basic"),
        ("proxy-authorization", "Basic eA=="),
        ("proxy-connection", "keep-alive"),
        ("referer", "https://app.example/page"),
        ("sec-ch-ua", "\"x\""),
        ("sec-fetch-mode", "cors"),
        ("te", "trailers"),
        ("trailer", "x-checksum"),
        ("x-api-key", PROXY_KEY),
        ("x-forwarded-for", "10.0.0.1"),
        ("x-forwarded-host", "proxy.example"),
        ("x-forwarded-proto", "https"),
        ("x-named-hop", "1"),
        ("x-real-ip", "10.0.0.1"),
    ];
    let body = r#"{"model":"m9"}"#;
    for path in [CHAT, MESSAGES] {
        let sent: Vec<_> = kept.iter().chain(&anthropic).chain(&dropped).copied().collect();
        let answer = request(proxy.address(), "POST", path, &sent, body);
        assert_eq!(answer.status, 200, "{answer:?}");
        let host = standin.address().to_string();
        let mut expected = kept.to_vec();
        expected.extend([
            ("accept-encoding", "identity"),
            ("authorization", "Bearer k1"),
            ("content-length", "14"),
            ("content-type", "application/json"),
            ("host", &host),
        ]);
        if path == MESSAGES {
            expected.extend(anthropic);
        }
        let call = standin.calls().pop().unwrap();
        assert_eq!(sorted(&call.headers), sorted(&owned(&expected)), "{path}");
    }
}

#[test]
fn a_bare_client_gets_no_headers_invented_but_those_that_are_needed() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    request(proxy.address(), "POST", CHAT, &[AUTH], "{}");
    let call = standin.calls().pop().unwrap();
    let headers = sorted(&call.headers);
    let names: Vec<_> = headers.iter().map(|(name, _)| name.as_str()).collect();
    let expected = ["accept-encoding", "authorization", "content-length", "content-type", "host"];
    assert_eq!(names, expected);
}

#[test]
fn downward_come_exactly_the_headers_that_are_meant_for_the_client() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let kept = [
        ("content-type", "application/json; charset=utf-8"),
        ("date", "Thu, 01 Oct 2026 00:00:00 GMT"),
        ("req-cost-time", "12"),
        ("retry-after", "7"),
        ("server", "istio-envoy"),
        ("vary", "Origin"),
        ("x-custom", "one"),
        ("x-custom", "two"),
        ("x-dashscope-call-gateway", "true"),
        ("x-ratelimit-remaining-requests", "3"),
        ("x-request-id", "r-1"),
    ];
    let dropped = [
        ("access-control-allow-credentials", "true"),
        ("access-control-allow-origin", "https://upstream.example"),
        ("access-control-expose-headers", "x-request-id"),
        ("connection", "keep-alive, X-Named-Hop"),
        ("keep-alive", "timeout=5"),
        ("proxy-authenticate", "Basic"),
        ("set-cookie", "a=b"),
        ("set-cookie", "c=d"),
        ("trailer", "x-checksum"),
        ("upgrade", "h2c"),
        ("x-dashscope-apikeyid", "17"),
        ("x-dashscope-inner-host", "10.1.2.3"),
        ("x-dashscope-inner-model", "secret-model"),
        ("x-dashscope-uid", "1234567890"),
        ("x-named-hop", "1"),
        ("x-proxy-attempts", "99"),
        ("x-proxy-model", "theirs"),
    ];
    let exposed = "retry-after, x-should-retry, x-request-id, x-proxy-key-hash, x-proxy-model, x-proxy-attempts, x-proxy-adjusted";
    let ours = [
        ("access-control-allow-origin", "*"),
        ("access-control-expose-headers", exposed),
        ("x-proxy-attempts", "1"),
        ("x-proxy-key-hash", "6ab9f1eb8f7d"),
        ("x-proxy-model", "m1"),
    ];
    let sent: Vec<_> = kept.iter().chain(&dropped).copied().collect();
    for (framing, header) in [
        (Framing::Length, ("content-length", "2")),
        (Framing::Chunked, ("transfer-encoding", "chunked")),
    ] {
        for status in [200, 400] {
            standin.reply("*", "*", whole(status, &sent, b"{}", framing));
            for path in [CHAT, MESSAGES] {
                let answer = post(&proxy, path, "{}");
                assert_eq!((answer.status, answer.text().as_str()), (status, "{}"));
                let expected: Vec<_> = kept.iter().chain(&ours).chain([&header]).copied().collect();
                let (got, expected) = (sorted(&answer.headers), sorted(&owned(&expected)));
                assert_eq!(got, expected, "{path} {status} {framing:?}");
            }
        }
    }
}

#[test]
fn only_a_stream_asks_not_to_be_buffered() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    for path in [CHAT, MESSAGES] {
        let stream = post(&proxy, path, r#"{"stream":true}"#);
        assert!(stream.header("content-type").unwrap().starts_with("text/event-stream"));
        assert_eq!(stream.header("x-accel-buffering"), Some("no"));
        assert_eq!(post(&proxy, path, "{}").header("x-accel-buffering"), None);
    }
}

#[test]
fn nothing_of_a_body_changes_but_the_bytes_of_its_model() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin).models("qwen-new").start();
    let deep = format!(r#"{{"a":{}{},"model":"x"}}"#, "[".repeat(300), "]".repeat(300));
    let deep_edited = deep.replace("\"x\"", "\"qwen-new\"");
    for (sent, arrives) in [
        (r#"{"model":"x"}"#, r#"{"model":"qwen-new"}"#),
        // Integers beyond 2^53, and numbers as nobody would spell them again.
        (
            r#"{"seed":9007199254740993,"model":"x","big":123456789012345678901234567890,"f":1.10,"e":1E+02,"z":-0.0}"#,
            r#"{"seed":9007199254740993,"model":"qwen-new","big":123456789012345678901234567890,"f":1.10,"e":1E+02,"z":-0.0}"#,
        ),
        // Odd spacing, before and after as well.
        (
            " \r\n{ \"b\" : [ 1 ,2 ],\t\"model\"\n:\t\"x\" , \"a\":{ } } \n",
            " \r\n{ \"b\" : [ 1 ,2 ],\t\"model\"\n:\t\"qwen-new\" , \"a\":{ } } \n",
        ),
        // Escapes, and the same character written out.
        (
            r#"{"model":"a\"b\\","t":"\u4f60\/好 \ud83d\ude00 😀 \u0000"}"#,
            r#"{"model":"qwen-new","t":"\u4f60\/好 \ud83d\ude00 😀 \u0000"}"#,
        ),
        (r#"{"mod\u0065l":"x","a":1}"#, r#"{"mod\u0065l":"qwen-new","a":1}"#),
        // Nested ones and look-alikes are none of ours.
        (
            r#"{"tools":[{"model":"in"}],"s":"\"model\":\"x\"","Model":1,"model":"x","m":{"model":"y"}}"#,
            r#"{"tools":[{"model":"in"}],"s":"\"model\":\"x\"","Model":1,"model":"qwen-new","m":{"model":"y"}}"#,
        ),
        (r#"{"messages":[],"model":"x"}"#, r#"{"messages":[],"model":"qwen-new"}"#),
        // Missing.
        (r#"{"messages":[]}"#, r#"{"model":"qwen-new","messages":[]}"#),
        ("{}", r#"{"model":"qwen-new"}"#),
        ("{ }", r#"{"model":"qwen-new" }"#),
        (r#"{"m":{"model":"y"}}"#, r#"{"model":"qwen-new","m":{"model":"y"}}"#),
        // No text.
        (r#"{"model":null,"a":1}"#, r#"{"model":"qwen-new","a":1}"#),
        (r#"{"model":{"model":[1,2]},"a":1}"#, r#"{"model":"qwen-new","a":1}"#),
        // Other repeated members are upstream's business.
        (r#"{"a":1,"model":"x","a":2}"#, r#"{"a":1,"model":"qwen-new","a":2}"#),
        (&deep, &deep_edited),
    ] {
        for path in [CHAT, MESSAGES] {
            let answer = post(&proxy, path, sent);
            assert_eq!(answer.status, 200, "{path} {sent}: {answer:?}");
            let call = standin.calls().pop().unwrap();
            assert_eq!(String::from_utf8(call.body.clone()).unwrap(), arrives, "{path}");
            let length = arrives.len().to_string();
            assert_eq!(call.header("content-length"), Some(length.as_str()), "{path} {sent}");
        }
    }
}

#[test]
fn every_attempt_sends_the_body_from_its_first_byte_with_its_own_model() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin).models("m1,much-longer-m2,m3").start();
    standin.reply("k1", "m1", Reply::Exhausted(Shape::Nested));
    standin.reply("k1", "much-longer-m2", Reply::Exhausted(Shape::Nested));
    let padding = "p".repeat(100_000);
    let answer = post(&proxy, CHAT, format!(r#"{{"model":"x","p":"{padding}"}}"#));
    assert_eq!(answer.status, 200, "{answer:?}");
    let bodies: Vec<_> = standin.calls().into_iter().map(|call| call.body).collect();
    let expected = ["m1", "much-longer-m2", "m3"]
        .map(|model| format!(r#"{{"model":"{model}","p":"{padding}"}}"#).into_bytes());
    assert!(bodies == expected, "{:?}", standin.slots());
}

#[test]
fn a_repeated_model_is_400_and_no_call_upstream() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    for body in [
        r#"{"model":"a","model":"b"}"#,
        r#"{"model":"a","x":1,"model":"a"}"#,
        r#"{"model":"a","mod\u0065l":"b"}"#,
        r#"{"model":null,"model":null}"#,
    ] {
        for path in [CHAT, MESSAGES] {
            let answer = post(&proxy, path, body);
            assert_eq!(answer.status, 400, "{body}: {answer:?}");
            assert!(message_on(path, &answer).contains("model"), "{answer:?}");
        }
    }
    assert_eq!(standin.call_count(), 0);
}

#[test]
fn answers_pass_byte_for_byte_with_their_status_and_headers() {
    let standin = StandIn::start().unwrap();
    // Long keys: what looks like one in a body is blotted out, and chance must not make one.
    let proxy = Proxy::builder(&standin).keys(&SECRETS.join(",")).start();
    let body = b" {\"n\":9007199254740993,\r\n \"t\":\"\\u4f60\xff\x00\"}\n";
    let large: Vec<u8> = (0..300_000_u32).map(|at| at.to_le_bytes()[at as usize % 3]).collect();
    for status in [200, 201, 202, 400, 404, 409, 413, 418, 422, 429, 451, 500, 503, 504, 529] {
        for framing in [Framing::Length, Framing::Chunked, Framing::UntilClose] {
            for body in [&body[..], &large, b""] {
                let headers = [("content-type", "text/odd"), ("retry-after", "17"), ("x-a", "b")];
                // The same from every slot: what else is tried makes no difference.
                standin.reply("*", "*", whole(status, &headers, body, framing));
                let answer = post(&proxy, CHAT, "{}");
                let shown = format!("{status} {framing:?} {} bytes", body.len());
                assert_eq!(answer.status, status, "{shown}: {answer:?}");
                assert!(answer.body == body, "{shown}: {} bytes came", answer.body.len());
                for (name, value) in headers {
                    assert_eq!(answer.header(name), Some(value), "{shown}");
                }
            }
        }
    }
}

#[test]
fn a_callers_mistake_costs_one_call_and_changes_nothing() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    assert_eq!(post(&proxy, CHAT, "{}").status, 200);
    // What it used is counted behind the answer.
    assert!(proxy.wait_log(" request id=1 ", LIMIT));
    let before = proxy.pool();
    let calls = standin.call_count();
    for (status, body) in [
        (400, r#"{"code":"InvalidParameter","message":"Range of max_tokens is wrong"}"#),
        (400, r#"{"error":{"code":"data_inspection_failed","message":"inappropriate content"}}"#),
        (403, "<html>blocked by the company</html>"),
        (404, ""),
        (422, "{}"),
    ] {
        standin.reply("*", "*", Reply::json(status, body));
        let answer = post(&proxy, CHAT, "{}");
        assert_eq!((answer.status, answer.text().as_str()), (status, body));
    }
    assert_eq!(standin.call_count(), calls + 5);
    assert_eq!(proxy.pool(), before);
}

#[test]
fn a_redirect_is_neither_followed_nor_handed_on_but_502_with_its_host() {
    const KEY: &str = "sk-alpha-0123456789abcdef";
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin).keys(KEY).start();
    let origin = standin.origin();
    let host = origin.strip_prefix("http://").unwrap();
    let there = format!("{origin}/compatible-mode/v1/elsewhere?token=secret");
    for (index, status) in [300, 301, 302, 303, 307, 308].into_iter().enumerate() {
        let before = standin.call_count();
        let headers = [("location", there.as_str())];
        standin.reply("*", "*", whole(status, &headers, b"moved", Framing::Length));
        let path = [CHAT, MESSAGES, "/v1/files/f-1", GENERATION][index % 4];
        let answer = match path {
            "/v1/files/f-1" => get(&proxy, path),
            path => post(&proxy, path, "{}"),
        };
        assert_eq!(answer.status, 502, "{answer:?}");
        assert_eq!(answer.header("location"), None);
        let text = answer.text();
        assert!(text.contains(&format!("({status}) to {host};")), "{text}");
        assert!(!text.contains("elsewhere") && !text.contains("secret"), "{text}");
        assert_eq!(standin.call_count(), before + 1, "{status}");
    }
    for location in [format!("https://{KEY}.example/"), "/elsewhere".to_owned()] {
        standin.reply("*", "*", whole(302, &[("location", &location)], b"", Framing::Length));
        let answer = post(&proxy, CHAT, "{}");
        assert_eq!(answer.json()["error"]["code"], "upstream_redirect");
        assert!(!answer.text().contains(KEY) && !answer.text().contains("elsewhere"), "{answer:?}");
    }
    // With another status it names nothing that a client may use either.
    standin.reply("*", "*", whole(201, &[("location", &there)], b"{}", Framing::Length));
    let answer = post(&proxy, CHAT, "{}");
    assert_eq!((answer.status, answer.header("location")), (201, None));
}

#[test]
fn no_wait_of_over_a_minute_is_handed_on_by_any_path_or_status() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin).env("FAILOVER", "quota-only").start();
    let date = |seconds: u64| {
        let now = dashscope_proxy::clock::now().plus(Duration::from_secs(seconds));
        httpdate::fmt_http_date(now.into())
    };
    let (soon, late) = (date(50), date(3_600));
    let cases = [
        ("retry-after", "60", true),
        ("retry-after", "61", false),
        ("retry-after", "999999999999", false),
        ("retry-after", "86400.5", false),
        ("retry-after", &*soon, true),
        ("retry-after", &*late, false),
        ("retry-after-ms", "60000", true),
        ("retry-after-ms", "2592000000", false),
    ];
    for path in [CHAT, MESSAGES, GENERATION, "/v1/responses", "/v1/embeddings"] {
        for (name, value, travels) in cases {
            let headers = [("content-type", "application/json"), (name, value)];
            for status in [429, 503, 200] {
                standin.reply("*", "*", whole(status, &headers, b"{}", Framing::Length));
                let answer = post(&proxy, path, r#"{"model":"m1"}"#);
                let expected = travels.then_some(value);
                assert_eq!((answer.status, answer.header(name)), (status, expected), "{path}");
            }
        }
    }
}

#[test]
fn an_answer_that_has_no_body_has_none_and_the_connection_stays_in_step() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let mut client = proxy.connect();
    for status in [204, 304] {
        standin.reply("*", "*", whole(status, &[("x-a", "b")], b"", Framing::Length));
        for _ in 0..2 {
            client.send("POST", CHAT, &[AUTH], b"{}");
            let answer = client.read_answer().unwrap();
            assert_eq!((answer.status, answer.header("x-a")), (status, Some("b")));
            assert_eq!(answer.header("transfer-encoding"), None, "{answer:?}");
            assert_eq!(answer.header("content-length"), None, "{answer:?}");
        }
    }
    client.send("GET", "/health", &[], b"");
    assert_eq!(client.read_answer().unwrap().status, 200);
}

#[test]
fn a_compressed_answer_reads_the_same_and_its_length_is_right() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let text = r#"{"text":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}"#.repeat(50);
    let packed = gzip(text.as_bytes());
    let headers = [("content-type", "application/json"), ("content-encoding", "gzip")];
    let mut client = proxy.connect();
    for status in [200, 400, 429, 500] {
        for framing in [Framing::Length, Framing::Chunked] {
            standin.reply("*", "*", whole(status, &headers, &packed, framing));
            client.send("POST", CHAT, &[AUTH], b"{}");
            let answer = client.read_answer().unwrap();
            assert_eq!(answer.status, status, "{framing:?}");
            assert_eq!(String::from_utf8(unpacked(&answer)).unwrap(), text, "{framing:?}");
        }
    }
}

const SECRETS: [&str; 2] = ["sk-aaaaaaaa1111111111111111", "sk-bbbbbbbb2222222222222222"];

/// A body in which upstream repeats the key that it was sent, between two words.
fn echo(secret: &str) -> String {
    format!(
        r#"{{"error":{{"code":"odd","message":"before Bearer {secret} {secret}, after"}},"key":"{secret}"}}"#
    )
}

#[test]
fn a_key_that_an_error_body_echoes_is_not_handed_on() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin).keys(&SECRETS.join(",")).start();
    for status in [400, 403, 404, 500] {
        for framing in [Framing::Length, Framing::Chunked, Framing::UntilClose] {
            let body = echo(SECRETS[0]) + &echo(SECRETS[1]);
            let packed = gzip(body.as_bytes());
            let json = ("content-type", "application/json");
            for (headers, body) in [
                (&[json][..], body.as_bytes()),
                (&[json, ("content-encoding", "gzip")][..], &packed),
            ] {
                standin.reply("*", "*", whole(status, headers, body, framing));
                let answer = post(&proxy, CHAT, "{}");
                assert_eq!(answer.status, status);
                let text = String::from_utf8(unpacked(&answer)).unwrap();
                for secret in SECRETS {
                    assert!(!text.contains(secret), "{status} {framing:?}: {text}");
                }
                assert!(text.contains("before") && text.contains(", after"), "{text}");
            }
        }
    }
}

#[test]
fn no_key_is_anywhere_but_in_its_header_at_the_highest_log_level() {
    let standin = StandIn::start().unwrap();
    let mut proxy = Proxy::builder(&standin)
        .keys(&SECRETS.join(","))
        .env("RUST_LOG", "trace,ureq=trace,rustls=trace,ureq_proto=trace")
        .start();
    let foreign = "sk-foreign-client-key-333333";
    let mut shown = Vec::new();
    let mut keep = |answer: Answer| {
        shown.push(format!(
            "{:?}\n{}",
            answer.headers,
            String::from_utf8_lossy(&unpacked(&answer))
        ));
        answer.status
    };

    for path in [CHAT, MESSAGES] {
        // Successes, the caller's mistakes with and without an echo, failures, refusals.
        assert_eq!(keep(post(&proxy, path, r#"{"stream":true}"#)), 200);
        standin.reply_once("*", "*", Reply::json(400, echo(SECRETS[0])));
        assert_eq!(keep(post(&proxy, path, "{}")), 400);
        standin.reply_once("*", "*", Reply::ResetBeforeHead);
        keep(post(&proxy, path, "{}"));
        assert_eq!(keep(post(&proxy, path, "[]")), 400);
        let headers = [("authorization", foreign), ("x-api-key", foreign)];
        assert_eq!(keep(request(proxy.address(), "POST", path, &headers, "{}")), 401);
    }
    // An exhaustion whose message holds the key goes into the state file and the status.
    let exhausted = format!(
        r#"{{"code":"AllocationQuota.FreeTierOnly","message":"the free tier of {} has been exhausted"}}"#,
        SECRETS[0]
    );
    standin.reply(SECRETS[0], "*", Reply::json(403, exhausted));
    assert_eq!(keep(post(&proxy, CHAT, "{}")), 200);
    standin.reply("*", "*", Reply::Exhausted(Shape::Nested));
    assert_eq!(keep(post(&proxy, CHAT, "{}")), 503);
    for page in ["/", "/health", "/models/status", "/v1/models"] {
        assert_eq!(keep(get(&proxy, page)), 200);
    }
    let status = get(&proxy, "/models/status").text();
    assert!(status.contains("has been exhausted"), "{status}");

    proxy.terminate();
    assert!(proxy.wait_exit(LIMIT).is_some());
    let log = proxy.log();
    assert!(log.contains(" TRACE ") || log.contains(" DEBUG "), "{log}");
    shown.push(log);
    shown.push(std::fs::read_to_string(proxy.state_path()).unwrap());
    let used = standin.calls();
    for secret in SECRETS {
        assert!(used.iter().any(|call| call.key.as_deref() == Some(secret)), "{secret} is unused");
    }
    for secret in [SECRETS[0], SECRETS[1], PROXY_KEY, foreign] {
        for text in &shown {
            assert!(!text.contains(secret), "{secret} is in {text}");
        }
    }
}
