//! What a used-up free quota does to a request, to the pool and to the next request, and what
//! only looks like one.

use std::thread;

use dashscope_proxy::clock;
use dashscope_proxy::standin::{End, Framing, Part, Reply, Shape, StandIn};
use serde_json::Value;

use crate::envelope::{CHAT, MESSAGES};
use crate::failover::{attempts, exhausted, state_text};
use crate::harness::{AUTH, Answer, LIMIT, Proxy, get, key_hash, post, record};

const BODY: &str = r#"{"model":"any","messages":[{"role":"user","content":"hi"}]}"#;
const STREAMED: &str =
    r#"{"model":"any","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;

const MONTH_MS: u64 = 2_592_000_000;

fn calls_to(standin: &StandIn, slot: &str) -> usize {
    standin.slots().iter().filter(|called| *called == slot).count()
}

fn served_by(answer: &Answer) -> Option<&str> {
    answer.header("x-proxy-model")
}

/// What may not change when nothing is learned.
fn assert_nothing_cools(state: &Value) {
    for (name, slot) in state["modelState"].as_object().expect("records") {
        let learned = (&slot["cooldownUntil"], &slot["failureCount"], &slot["lastError"]);
        assert_eq!(learned, (&0.into(), &0.into(), &Value::Null), "{name}");
    }
}

#[test]
fn the_same_request_goes_on_with_the_next_model_and_later_ones_start_there() {
    let standin = StandIn::start().unwrap();
    standin.reply("k1", "m1", exhausted());
    let proxy = Proxy::start(&standin);
    let before = clock::now().0;

    let answer = post(&proxy, CHAT, BODY);
    assert_eq!((answer.status, attempts(&answer)), (200, Some("2")));
    assert_eq!(served_by(&answer), Some("m2"));
    assert_eq!(answer.header("x-proxy-key-hash"), Some(&key_hash("k1")[..12]));
    assert!(answer.text().contains("comes from m2"), "{answer:?}");
    assert_eq!(standin.slots(), ["k1/m1", "k1/m2"]);

    let state = proxy.state();
    let slot = record(&state, "k1", "m1");
    let until = slot["cooldownUntil"].as_u64().unwrap();
    assert!((before + MONTH_MS..=clock::now().0 + MONTH_MS).contains(&until), "{slot}");
    assert_eq!(slot["failureCount"], 1);
    assert_eq!(record(&state, "k1", "m2")["cooldownUntil"], 0);
    assert_eq!(record(&state, "k2", "m1")["cooldownUntil"], 0);

    for _ in 0..3 {
        let answer = post(&proxy, MESSAGES, BODY);
        assert_eq!((answer.status, attempts(&answer)), (200, Some("1")));
        assert_eq!(served_by(&answer), Some("m2"));
    }
    assert_eq!(calls_to(&standin, "k1/m1"), 1);
}

#[test]
fn a_key_without_a_model_left_hands_over_to_the_next_key() {
    let standin = StandIn::start().unwrap();
    standin.reply("k1", "*", exhausted());
    let proxy = Proxy::start(&standin);
    let answer = post(&proxy, CHAT, BODY);
    assert_eq!((answer.status, attempts(&answer)), (200, Some("4")));
    assert_eq!(standin.slots(), ["k1/m1", "k1/m2", "k1/m3", "k2/m1"]);
    assert_eq!(attempts(&post(&proxy, CHAT, BODY)), Some("1"));
    assert_eq!(standin.slots().last().unwrap(), "k2/m1");
}

#[test]
fn the_walk_wraps_from_the_last_key_and_model_to_the_first() {
    let standin = StandIn::start().unwrap();
    standin.reply("k2", "*", exhausted());
    let (first, second) = (key_hash("k1"), key_hash("k2"));
    let state = serde_json::json!({"version": 1, "modelState": {}, "runtimeState": {
        "key_cursor": {"value": "1", "updatedAt": 1_700_000_000_000_u64},
        format!("model_cursor:{first}"): {"value": "2", "updatedAt": 1_700_000_000_000_u64},
        format!("model_cursor:{second}"): {"value": "1", "updatedAt": 1_700_000_000_000_u64},
    }});
    let proxy = Proxy::builder(&standin).state(&state.to_string()).start();
    assert_eq!(post(&proxy, CHAT, BODY).status, 200);
    assert_eq!(standin.slots(), ["k2/m2", "k2/m3", "k2/m1", "k1/m3"]);
}

#[test]
fn every_shape_of_exhaustion_rotates_on_both_protocols_streamed_or_not() {
    let standin = StandIn::start().unwrap();
    let paths = [CHAT, MESSAGES];
    let cases: Vec<_> = Shape::ALL
        .into_iter()
        .flat_map(|shape| paths.map(|path| (shape, path)))
        .flat_map(|(shape, path)| [BODY, STREAMED].map(|body| (shape, path, body)))
        .collect();
    let model = |index: usize| format!("m{index:02}");
    let models: Vec<String> = (0..=cases.len()).map(model).collect();
    let proxy = Proxy::builder(&standin).keys("k1").models(&models.join(",")).start();

    for (index, (shape, path, body)) in cases.iter().enumerate() {
        standin.reply("k1", &model(index), Reply::Exhausted(*shape));
        let answer = post(&proxy, path, body);
        let case = format!("{shape:?} {path} {body}: {answer:?}");
        assert_eq!((answer.status, attempts(&answer)), (200, Some("2")), "{case}");
        assert_eq!(served_by(&answer), Some(&*model(index + 1)), "{case}");
        assert!(!answer.text().to_lowercase().contains("exhausted"), "{case}");
        let is_stream = answer.header("content-type").unwrap().starts_with("text/event-stream");
        assert_eq!(is_stream, *body == STREAMED, "{case}");
    }

    assert_eq!(standin.call_count(), 2 * cases.len());
    let state = proxy.state();
    for (index, case) in cases.iter().enumerate() {
        let slot = record(&state, "k1", &model(index));
        assert_eq!(slot["failureCount"], 1, "{case:?}");
        assert!(slot["cooldownUntil"].as_u64().unwrap() > clock::now().0, "{case:?}");
        assert!(slot["lastError"].as_str().unwrap().contains("exhausted"), "{case:?} {slot}");
    }
}

#[test]
fn keep_alives_before_it_do_not_hide_an_exhaustion_in_a_stream() {
    let standin = StandIn::start().unwrap();
    let error = r#"data:{"code":"AllocationQuota.FreeTierOnly","message":"exhausted"}"#;
    let proxy = Proxy::start(&standin);
    for (model, before) in [("m1", ": keep-alive\n\n"), ("m2", "event:ping\ndata:{}\n\n")] {
        let parts = vec![Part::now(before), Part::now(format!("{error}\n\n"))];
        standin.reply("k1", model, Reply::sse(parts, End::Clean));
        let answer = post(&proxy, MESSAGES, STREAMED);
        assert_eq!((answer.status, attempts(&answer)), (200, Some("2")), "{answer:?}");
    }
    assert_eq!(standin.slots(), ["k1/m1", "k1/m2", "k1/m2", "k1/m3"]);
}

/// A non-success that is not an exhaustion, with a header that must survive.
fn look_alike(status: u16, content_type: &str, body: impl Into<Vec<u8>>) -> Reply {
    let mut headers = vec![("x-request-id".to_owned(), "r-1".to_owned())];
    if !content_type.is_empty() {
        headers.push(("content-type".to_owned(), content_type.to_owned()));
    }
    Reply::Answer { status, headers, body: body.into(), framing: Framing::Length }
}

#[test]
fn what_only_looks_like_an_exhaustion_passes_byte_for_byte_and_teaches_nothing() {
    const JSON: &str = "application/json";
    const WORDS: &str = "The free tier of the model has been exhausted.";
    let standin = StandIn::start().unwrap();
    // Nothing but exhaustion moves a request on here, so that each answer is seen as it is.
    let proxy = Proxy::builder(&standin).env("FAILOVER", "quota-only").start();
    let before = state_text(&proxy);
    let long = format!("{{\"code\":\"{}\",\"message\":\"{WORDS}\"}}", "x".repeat(300_000));
    let cases = [
        (403, "text/html", format!("<html>403: AccessDenied. {WORDS}</html>")),
        (403, "text/html", String::new()),
        (403, "", String::new()),
        (403, JSON, String::new()),
        (403, JSON, r#"{"code":"AccessDenied","message":"Access denied."}"#.to_owned()),
        (403, JSON, r#"{"error":{"code":"AccessDenied.Unpurchased","message":"no"}}"#.to_owned()),
        (403, JSON, r#"{"message":"Your quota is used up."}"#.to_owned()),
        (403, JSON, r#"{"code":"AllocationQuota.FreeTierOnlyNot","message":"no"}"#.to_owned()),
        (403, JSON, "{\"code\":\"AllocationQuota.FreeTierOnly\"".to_owned()),
        (400, JSON, format!(r#"{{"code":"AccessDenied","message":"{WORDS}"}}"#)),
        (
            400,
            JSON,
            r#"{"code":"InvalidParameter","message":"AllocationQuota.FreeTierOnly"}"#.to_owned(),
        ),
        (429, JSON, format!(r#"{{"error":{{"code":"insufficient_quota","message":"{WORDS}"}}}}"#)),
        (429, JSON, r#"{"error":{"code":"insufficient_quota","message":"You exceeded your current quota, please check your plan and billing details.","type":"insufficient_quota"}}"#.to_owned()),
        (429, JSON, r#"{"code":"Throttling.AllocationQuota","message":"Allocated quota exceeded, please increase your quota limit."}"#.to_owned()),
        (429, JSON, r#"{"code":"Throttling.RateQuota","message":"Requests rate limit exceeded"}"#.to_owned()),
        (500, JSON, format!(r#"{{"code":"AllocationQuota.FreeTierOnly","message":"{WORDS}"}}"#)),
        (403, JSON, long),
    ];
    for (index, (status, content_type, body)) in cases.into_iter().enumerate() {
        standin.reply("*", "*", look_alike(status, content_type, &*body));
        let path = [CHAT, MESSAGES][index % 2];
        for request in [BODY, STREAMED] {
            let answer = post(&proxy, path, request);
            assert_eq!((answer.status, answer.text()), (status, body.clone()));
            assert_eq!(answer.header("content-type").unwrap_or_default(), content_type);
            assert_eq!(answer.header("x-request-id"), Some("r-1"));
            assert_eq!(attempts(&answer), Some("1"), "{status} {body}");
        }
        assert_eq!(standin.call_count(), 2 * (index + 1), "{status} {body}");
    }
    assert_eq!(state_text(&proxy), before);
    assert_eq!(proxy.final_state(), serde_json::from_str::<Value>(&before).unwrap());
}

#[test]
fn everything_else_that_was_ever_captured_passes_byte_for_byte_and_cools_nothing() {
    let standin = StandIn::start().unwrap();
    // Nothing but exhaustion moves a request on here, so that each answer is seen as it is.
    let proxy = Proxy::builder(&standin).env("FAILOVER", "quota-only").start();
    let lines = include_str!("../data/upstream-corpus.jsonl").lines();
    let mut rows: Vec<Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    rows.retain(|row| row["free_quota_exhausted"] == false);
    // The successes last: they are stamped, a moment after their answer.
    rows.sort_by_key(|row| row["status"] == 200);
    let start = state_text(&proxy);
    for row in &rows {
        let status = u16::try_from(row["status"].as_u64().unwrap()).unwrap();
        let body = row["body"].as_str().unwrap();
        standin.reply("*", "*", look_alike(status, row["content_type"].as_str().unwrap(), body));
        let answer = post(&proxy, CHAT, STREAMED);
        assert_eq!((answer.status, answer.text().as_str()), (status, body), "{}", row["name"]);
        assert_eq!(attempts(&answer), Some("1"), "{}", row["name"]);
        if status != 200 {
            assert_eq!(state_text(&proxy), start, "{}", row["name"]);
        }
    }
    assert!(rows.len() > 10, "{} rows", rows.len());
    assert_eq!(standin.call_count(), rows.len());
    assert_nothing_cools(&proxy.final_state());
}

#[test]
fn answers_that_talk_about_exhaustion_are_answers() {
    const TALK: &str = r#"{\"code\":\"AllocationQuota.FreeTierOnly\",\"message\":\"The free tier of the model has been exhausted.\"}"#;
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let whole = [
        format!(r#"{{"choices":[{{"message":{{"role":"assistant","content":"{TALK}"}}}}]}}"#),
        // Even the error itself, word for word, is a success under 200 and no event stream.
        r#"{"code":"AllocationQuota.FreeTierOnly","message":"The free tier is exhausted"}"#.into(),
    ];
    for body in whole {
        standin.reply("*", "*", Reply::json(200, &*body));
        for path in [CHAT, MESSAGES] {
            let answer = post(&proxy, path, BODY);
            assert_eq!((answer.status, answer.text()), (200, body.clone()));
        }
    }
    let streams = [
        vec![
            format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{TALK}\"}}}}]}}\n\n"),
            "data: [DONE]\n\n".to_owned(),
        ],
        vec![
            "event:message_start\ndata:{\"type\":\"message_start\"}\n\n".to_owned(),
            format!(
                "event:content_block_delta\ndata:{{\"type\":\"content_block_delta\",\"delta\":{{\"text\":\"{TALK}\"}}}}\n\n"
            ),
        ],
    ];
    for events in streams {
        let parts = events.iter().map(|event| Part::now(&**event)).collect();
        standin.reply("*", "*", Reply::sse(parts, End::Clean));
        let answer = post(&proxy, MESSAGES, STREAMED);
        assert_eq!((answer.status, answer.text()), (200, events.concat()));
    }
    assert_eq!(standin.slots(), vec!["k1/m1"; 6]);
    assert_nothing_cools(&proxy.final_state());
}

#[test]
fn an_exhaustion_after_the_first_event_passes_and_is_learned_and_another_error_is_not() {
    let standin = StandIn::start().unwrap();
    let error =
        "event:error\ndata:{\"code\":\"AllocationQuota.FreeTierOnly\",\"message\":\"x\"}\n\n";
    let throttled = "event:error\ndata:{\"code\":\"Throttling\",\"message\":\"x\"}\n\n";
    let proxy = Proxy::start(&standin);
    for (last, model) in [(throttled, "m1"), (error, "m1"), (throttled, "m2")] {
        let events = ["data: {\"choices\":[]}\n\n", "data: {\"choices\":[1]}\n\n", last];
        standin.reply_once("*", "*", Reply::sse(events.map(Part::now).to_vec(), End::Clean));
        let answer = post(&proxy, CHAT, STREAMED);
        assert_eq!((answer.status, answer.text()), (200, events.concat()));
        assert_eq!(served_by(&answer), Some(model));
    }
    assert_eq!(standin.call_count(), 3);
    let state = proxy.final_state();
    assert_eq!(record(&state, "k1", "m1")["failureCount"], 1);
    assert_eq!(record(&state, "k1", "m2")["failureCount"], 0);
}

#[test]
fn an_exhaustion_that_comes_when_the_hold_has_ended_is_learned_at_once() {
    let standin = StandIn::start().unwrap();
    let gate = standin.gate();
    let event = |json: &str| format!("data: {json}\n\n");
    let created = event(r#"{"type":"response.created","response":{"id":"resp_1"}}"#);
    let failed = event(
        r#"{"type":"response.failed","response":{"error":{"code":"AllocationQuota.FreeTierOnly","message":"free quota exhausted"}}}"#,
    );
    let (start, end) = failed.split_at(40);
    let parts = vec![created.clone(), start.to_owned(), end.to_owned(), event("1")];
    standin.reply_once("k1", "m1", Reply::gated_sse(&gate, parts, End::Clean));
    let proxy = Proxy::start(&standin);
    let mut client = proxy.connect();
    client.send("POST", "/v1/responses", &[AUTH], STREAMED.as_bytes());
    gate.release();
    // Nothing else comes, so the hold ends by itself.
    assert_eq!(client.read_head().unwrap().status, 200);
    assert_eq!(client.read_chunk().unwrap().unwrap(), created.as_bytes());
    gate.release();
    gate.release();
    assert!(proxy.wait_log(" cooldown ", LIMIT), "while the stream goes on");
    assert_eq!(served_by(&post(&proxy, CHAT, BODY)), Some("m2"));
    gate.open();
    assert_eq!(standin.slots(), ["k1/m1", "k1/m2"]);
    assert_eq!(record(&proxy.state(), "k1", "m1")["failureCount"], 1);
}

#[test]
fn with_nothing_left_both_protocols_get_their_503_and_upstream_is_not_asked() {
    const KEYS: [&str; 2] = ["sk-alpha-0123456789abcdef", "sk-beta-fedcba9876543210"];
    let standin = StandIn::start().unwrap();
    standin.reply("*", "*", exhausted());
    let proxy = Proxy::builder(&standin).keys(&KEYS.join(",")).models("m1,m2").start();
    // The first one uses the pool up itself.
    assert_eq!(post(&proxy, CHAT, STREAMED).status, 503);
    assert_eq!(standin.call_count(), 4);

    for path in [CHAT, MESSAGES] {
        for body in [BODY, STREAMED] {
            let answer = post(&proxy, path, body);
            assert_eq!(answer.status, 503);
            // Clients sleep for whatever they are told, and stop at these words.
            assert_eq!(answer.header("retry-after"), None);
            assert_eq!(answer.header("x-should-retry"), Some("false"));
            assert!(answer.header("content-type").unwrap().starts_with("application/json"));
            let json = answer.json();
            let error = &json["error"];
            if path == CHAT {
                assert!(error["code"].is_string() && error["type"].is_string(), "{json}");
                assert_eq!(error.get("param"), Some(&Value::Null));
            } else {
                assert_eq!(json["type"], "error");
                assert_eq!(error["type"], "api_error");
            }
            let message = error["message"].as_str().unwrap();
            let start = "the free quota of all 4 slots is exhausted; it will reset at 20";
            assert!(message.starts_with(start), "{message}");
            for key in KEYS {
                let shown = format!("{answer:?}");
                assert!(!shown.contains(key) && !shown.contains(&key_hash(key)), "{shown}");
            }
        }
    }
    assert_eq!(standin.call_count(), 4);
    assert_eq!(get(&proxy, "/health").json()["availableSlots"], 0);
    for key in KEYS {
        assert!(!proxy.log().contains(key));
    }
}

#[test]
fn a_503_whose_wait_is_short_may_be_retried() {
    let standin = StandIn::start().unwrap();
    standin.reply("*", "*", exhausted());
    let proxy = Proxy::builder(&standin).env("MODEL_COOLDOWN_SECONDS", "60").start();
    let answer = post(&proxy, MESSAGES, BODY);
    assert_eq!((answer.status, answer.header("x-should-retry")), (503, None));
    let wait: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
}

/// Sends `count` requests at once; returns their answers when all are there.
fn at_once(proxy: &Proxy<'_>, count: usize, meanwhile: impl FnOnce()) -> Vec<Answer> {
    thread::scope(|scope| {
        let requests: Vec<_> = (0..count)
            .map(|index| {
                let (path, body) = ([CHAT, MESSAGES][index % 2], [BODY, STREAMED][index / 2 % 2]);
                scope.spawn(move || post(proxy, path, body))
            })
            .collect();
        meanwhile();
        requests.into_iter().map(|request| request.join().expect("a request")).collect()
    })
}

#[test]
fn fifty_requests_under_which_a_slot_dies_all_succeed_and_every_403_is_counted() {
    let standin = StandIn::start().unwrap();
    let gate = standin.gate();
    standin.reply("k1", "m1", Reply::Held { gate: gate.clone(), then: Box::new(exhausted()) });
    let proxy = Proxy::start(&standin);
    let answers = at_once(&proxy, 50, || {
        assert!(standin.wait_calls(50, LIMIT));
        gate.open();
    });
    for answer in &answers {
        assert_eq!((answer.status, attempts(answer)), (200, Some("2")), "{answer:?}");
        assert_eq!(served_by(answer), Some("m2"));
    }
    assert_eq!(calls_to(&standin, "k1/m1"), 50);
    assert_eq!(record(&proxy.state(), "k1", "m1")["failureCount"], 50);
    for answer in at_once(&proxy, 20, || {}) {
        assert_eq!((served_by(&answer), attempts(&answer)), (Some("m2"), Some("1")));
    }
    assert_eq!(calls_to(&standin, "k1/m1"), 50);
    assert_eq!(record(&proxy.final_state(), "k1", "m2")["failureCount"], 0);
}

#[test]
fn a_quota_that_ends_in_the_middle_of_fifty_requests_fails_none_of_them() {
    let standin = StandIn::start().unwrap();
    let gate = standin.gate();
    standin.set_quota("k1", "m1", 20);
    standin.reply("k1", "m1", Reply::Held { gate: gate.clone(), then: Box::new(Reply::Normal) });
    let proxy = Proxy::start(&standin);
    let answers = at_once(&proxy, 50, || {
        assert!(standin.wait_calls(50, LIMIT));
        gate.open();
    });
    assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
    let by = |model| answers.iter().filter(|answer| served_by(answer) == Some(model)).count();
    assert_eq!((by("m1"), by("m2")), (20, 30));
    assert_eq!(served_by(&post(&proxy, CHAT, BODY)), Some("m2"));
    assert_eq!(calls_to(&standin, "k1/m1"), 50);
    let slot = record(&proxy.final_state(), "k1", "m1");
    assert_eq!(slot["failureCount"], 30);
    assert!(slot["cooldownUntil"].as_u64().unwrap() > clock::now().0, "{slot}");
}

#[test]
fn an_ended_cooldown_opens_the_slot_again_and_its_success_is_a_warning() {
    let standin = StandIn::start().unwrap();
    standin.reply_once("k1", "m1", exhausted());
    let proxy =
        Proxy::builder(&standin).keys("k1").models("m1").env("MODEL_COOLDOWN_SECONDS", "1").start();
    let refused = post(&proxy, CHAT, BODY);
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    let deadline = clock::instant() + LIMIT;
    let answer = loop {
        let answer = post(&proxy, CHAT, BODY);
        if answer.status != 503 {
            break answer;
        }
        assert!(clock::instant() < deadline, "the cooldown does not end");
    };
    assert_eq!((answer.status, attempts(&answer)), (200, Some("1")));
    // While it cooled, upstream was left alone.
    assert_eq!(standin.call_count(), 2);
    assert!(proxy.wait_log("billed", LIMIT));
    let warning = proxy.log().lines().filter(|line| line.contains("billed")).count();
    post(&proxy, CHAT, BODY);
    let log = proxy.log();
    assert_eq!((warning, log.lines().filter(|line| line.contains("billed")).count()), (1, 1));
    let slot = record(&proxy.final_state(), "k1", "m1");
    assert_eq!((&slot["failureCount"], &slot["lastError"]), (&1.into(), &Value::Null));
    assert!(slot["lastUsedAt"].is_u64(), "{slot}");
}

#[test]
fn a_success_that_began_before_the_exhaustion_does_not_lift_it() {
    let standin = StandIn::start().unwrap();
    let gate = standin.gate();
    let held = Reply::Held { gate: gate.clone(), then: Box::new(Reply::Normal) };
    standin.reply_once("k1", "m1", held);
    standin.reply("k1", "m1", exhausted());
    let proxy = Proxy::start(&standin);
    thread::scope(|scope| {
        let early = scope.spawn(|| post(&proxy, CHAT, BODY));
        assert!(standin.wait_calls(1, LIMIT));
        assert_eq!(served_by(&post(&proxy, CHAT, BODY)), Some("m2"));
        gate.open();
        assert_eq!(served_by(&early.join().unwrap()), Some("m1"));
    });
    let answer = post(&proxy, CHAT, BODY);
    assert_eq!((served_by(&answer), attempts(&answer)), (Some("m2"), Some("1")));
    assert_eq!(calls_to(&standin, "k1/m1"), 2);
    let slot = record(&proxy.final_state(), "k1", "m1");
    assert!(slot["cooldownUntil"].as_u64().unwrap() > clock::now().0, "{slot}");
    assert!(slot["lastError"].is_string() && slot["lastUsedAt"].is_u64(), "{slot}");
    assert_eq!(slot["failureCount"], 1);
}

#[test]
fn a_long_stream_that_outlives_the_exhaustion_of_its_slot_does_not_lift_it() {
    let standin = StandIn::start().unwrap();
    let gate = standin.gate();
    let events = vec!["data: 1\n\n", "data: 2\n\n", "data: [DONE]\n\n"];
    standin.reply_once("k1", "m1", Reply::gated_sse(&gate, events, End::Clean));
    standin.reply("k1", "m1", exhausted());
    let proxy = Proxy::start(&standin);
    let mut stream = proxy.connect();
    stream.send("POST", CHAT, &[AUTH], STREAMED.as_bytes());
    assert!(standin.wait_calls(1, LIMIT));
    gate.release();
    assert_eq!(stream.read_head().unwrap().header("x-proxy-model"), Some("m1"));

    assert_eq!(served_by(&post(&proxy, MESSAGES, BODY)), Some("m2"));
    gate.open();
    assert_eq!(stream.read_body().unwrap(), b"data: 1\n\ndata: 2\n\ndata: [DONE]\n\n");

    assert_eq!(served_by(&post(&proxy, CHAT, BODY)), Some("m2"));
    assert_eq!(calls_to(&standin, "k1/m1"), 2);
    let slot = record(&proxy.final_state(), "k1", "m1");
    assert!(slot["cooldownUntil"].as_u64().unwrap() > clock::now().0, "{slot}");
    assert!(slot["lastError"].is_string(), "{slot}");
}

#[test]
fn the_last_error_is_upstreams_message_masked_or_a_text_of_ours() {
    const KEY: &str = "sk-alpha-0123456789abcdef";
    let standin = StandIn::start().unwrap();
    let with = |message: &str| {
        format!(r#"{{"error":{{"code":"AllocationQuota.FreeTierOnly","message":"{message}"}}}}"#)
    };
    let silent = r#"{"code":"AllocationQuota.FreeTierOnly"}"#;
    standin.reply(KEY, "m1", Reply::json(403, with("免费额度已用完 of the model")));
    standin.reply(KEY, "m2", Reply::json(403, silent));
    standin.reply(KEY, "m3", Reply::json(403, with(&format!("key {KEY} is exhausted"))));
    let proxy = Proxy::builder(&standin).keys(&format!("{KEY},k2")).start();
    let answer = post(&proxy, CHAT, BODY);
    assert_eq!((answer.status, attempts(&answer)), (200, Some("4")));
    let label = &key_hash(KEY)[..12];
    let expected = [
        ("m1", "免费额度已用完 of the model".to_owned()),
        ("m2", "DashScope free tier exhausted".to_owned()),
        ("m3", format!("key {label} is exhausted")),
    ];
    let status = get(&proxy, "/models/status").json();
    for (index, (model, text)) in expected.iter().enumerate() {
        assert_eq!(record(&proxy.state(), KEY, model)["lastError"], **text);
        assert_eq!(status["models"][index]["lastError"], **text);
    }
    assert!(!proxy.log().contains(KEY));
}
