//! What an upstream answer means. The first byte chooses the status, the second the flags and how
//! often the padding is repeated; the rest is the answer, and the padding around known ones.

#![no_main]

use dashscope_proxy::fuzzing::{self, MAX_ERROR_PREFIX, ids_in, judge, judge_stream};
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value, json};

const EXHAUSTED: &str = "quota_exhausted";

const STATUSES: [u16; 16] =
    [403, 400, 429, 200, 201, 204, 299, 300, 401, 404, 413, 500, 502, 503, 504, u16::MAX];

const KNOWN: [&str; 4] = [
    r#"{"error":{"message":"x","type":"AllocationQuota.FreeTierOnly","code":null}}"#,
    r#"{"code":"AllocationQuota.FreeTierOnly","message":"x","request_id":"r"}"#,
    r#"{"type":"error","error":{"type":"AllocationQuota.FreeTierOnly","message":"x"}}"#,
    r#"{"code":"AccessDenied","message":"The free tier of the model has been exhausted."}"#,
];

fn verdict(status: u16, body: &[u8]) -> &'static str {
    judge(status, None, body, false).0
}

/// The known exhaustion, with padding in every place where an answer may have some.
fn padded(known: &str, padding: &[u8]) -> Vec<Vec<u8>> {
    let text = String::from_utf8_lossy(padding).into_owned();
    let comment: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    let blanks: String =
        padding.iter().map(|byte| [' ', '\t', '\n', '\r'][usize::from(byte % 4)]).collect();
    let members = |first: bool| {
        let inner: Map<String, Value> = serde_json::from_str(known).unwrap();
        let mut members: Vec<String> =
            inner.iter().map(|(name, value)| format!("{}:{value}", json!(name))).collect();
        members.insert(if first { 0 } else { members.len() }, format!("\"pad\":{}", json!(text)));
        format!("{{{}}}", members.join(","))
    };
    let nested = format!("{{\"details\":{}1{},{}", "[".repeat(200), "]".repeat(200), &known[1..]);
    [
        format!("{blanks}{known}{blanks}"),
        members(true),
        members(false),
        nested,
        format!(":{comment}\n\nx{comment}\n\nid:1\nevent:error\ndata:{known}\n\n"),
        format!("data: {known}\r\n\r\ndata: {comment}\r\n"),
        format!(":{comment}\r\rdata:{known}"),
    ]
    .map(String::into_bytes)
    .into()
}

/// The known exhaustion at the start of an answer that goes on beyond the prefix.
fn cut(known: &str, padding: &[u8]) -> Vec<Vec<u8>> {
    let padding: String =
        padding.iter().map(|byte| char::from((*byte).clamp(b'#', b'['))).collect();
    let padding = padding.repeat(1 + MAX_ERROR_PREFIX / padding.len().max(1));
    let known = known.strip_suffix('}').expect("an object ends with its brace");
    ["", "\u{feff}", "\n", "data:", ":x\r\n\r\nevent:error\r\ndata: "]
        .map(|start| {
            let answer = format!("{start}{known},\"pad\":\"{padding}");
            answer.into_bytes().drain(..MAX_ERROR_PREFIX).collect()
        })
        .into()
}

fuzz_target!(|input: &[u8]| {
    let [choice, flags, body @ ..] = input else { return };
    let status = STATUSES[usize::from(*choice) % STATUSES.len()];
    let retry_after = (flags & 1 != 0).then_some(u64::from(*choice) << (flags & 63));
    let (found, rest) = judge(status, retry_after, body, flags & 2 != 0);
    assert_eq!(found == "success", (200..300).contains(&status));
    assert!(rest.is_none_or(|seconds| (1..=600).contains(&seconds)));
    if found == EXHAUSTED {
        assert!([400, 403, 429].contains(&status), "{status}");
        if !body.starts_with(b"\xef\xbb\xbf") {
            assert_eq!(verdict(status, &[b"\n", body, b"\n\n"].concat()), EXHAUSTED);
        }
    }
    // How a stream is cut changes nothing, and what a model says is no error.
    let step = usize::from(*choice) + 1;
    let whole = judge_stream(body, [body].into_iter());
    assert_eq!(judge_stream(body, body.chunks(step)), whole);
    let talk = String::from_utf8_lossy(body);
    let talk = format!("data: {}\n\n", json!({"choices": [{"delta": {"content": talk}}]}));
    assert_eq!(judge_stream(talk.as_bytes(), talk.as_bytes().chunks(step)), ("success", false));
    let (seconds, travels) = fuzzing::retry_after(body, 1_700_000_000_000);
    assert_eq!(travels, seconds.is_some_and(|seconds| seconds <= 60));
    for id in ids_in(body) {
        assert!((1..=200).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic()));
    }

    let known = KNOWN[usize::from(*choice) % KNOWN.len()];
    let times = if flags & 0xf0 == 0xf0 { 8 } else { 1 };
    for answer in padded(known, &body.repeat(times)) {
        if answer.len() <= MAX_ERROR_PREFIX {
            assert_eq!(verdict(403, &answer), EXHAUSTED, "{}", String::from_utf8_lossy(&answer));
            assert_eq!(verdict(200, &answer), "success");
        }
    }
    // Long answers take long.
    if flags & 0xf0 == 0xe0 && !body.is_empty() {
        for answer in cut(known, body) {
            let start = String::from_utf8_lossy(&answer[..200]);
            assert_eq!(verdict(403, &answer), EXHAUSTED, "{start}");
        }
    }
});
