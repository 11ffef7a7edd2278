//! The bodies of a used-up free quota.

use super::script::Shape;

/// The code in every capture from 2026-03 to 2026-10; the sentence changed three times.
pub(super) const CODE: &str = "AllocationQuota.FreeTierOnly";

/// The wording of 2026-08 to 2026-10.
pub(super) const MESSAGE: &str = r#"Free quota exhausted. To continue accessing the model on a paid basis, please add funds or disable the "use free tier only" mode in the management console."#;

/// The wording of 2025-09 to 2026-05.
const OLD_MESSAGE: &str = r#"The free tier of the model has been exhausted. If you wish to continue access the model on a paid basis, please disable the "use free tier only" mode in the management console."#;

/// A stream, as DashScope names it.
pub(super) const EVENTS: &str = "text/event-stream;charset=UTF-8";

/// Events of each protocol that carry nothing.
pub(super) const KEEP_ALIVES: &str = concat!(
    ": keep-alive\n\n",
    "event:ping\ndata:{\"type\":\"ping\"}\n\n",
    "id:1\nevent:response.created\n:HTTP_STATUS/200\n",
    "data:{\"type\":\"response.created\",\"response\":{\"id\":\"resp_0\",\"error\":null}}\n\n",
    "data: {\"type\":\"response.in_progress\",\"response\":{\"id\":\"resp_0\"}}\n\n",
    "id:1\nevent:result\n:HTTP_STATUS/200\n",
    "data:{\"output\":{\"message\":{\"phase\":\"KeepAlive\",\"content\":\"\"}},\"request_id\":\"r\"}\n\n",
);

/// Status, content type, whether the body is gzip, body.
pub(super) fn render(shape: Shape, id: &str) -> (u16, &'static str, bool, Vec<u8>) {
    const JSON: &str = "application/json";
    const SSE: &str = "text/event-stream";
    const NATIVE_SSE: &str = EVENTS;
    let plain = nested(CODE, CODE, OLD_MESSAGE, id);
    let one = |field: &str| {
        format!(r#"{{"error":{{"message":{},"{field}":"{CODE}"}}}}"#, quoted(OLD_MESSAGE))
    };
    let event = || format!("data: {plain}\n\n");
    let native = || {
        let body = native(CODE, OLD_MESSAGE, id);
        format!("id:1\nevent:error\n:HTTP_STATUS/403\ndata:{body}\n\n")
    };
    let words = |code: &str, message: &str| (403, JSON, flat(code, message, id));
    let (status, content_type, body) = match shape {
        Shape::Nested | Shape::Gzip | Shape::Chunked => (403, JSON, plain),
        Shape::Flat => (403, JSON, flat(CODE, MESSAGE, id)),
        Shape::CodeOnly => (403, JSON, one("code")),
        Shape::TypeOnly => (403, JSON, one("type")),
        Shape::AccessDeniedWords => words("AccessDenied", OLD_MESSAGE),
        Shape::PermissionWords => {
            (403, JSON, nested("permission_error", "permission_error", OLD_MESSAGE, id))
        }
        Shape::MessageOnly => (403, JSON, format!(r#"{{"message":{}}}"#, quoted(MESSAGE))),
        Shape::CodeInMessage => words("Forbidden", &format!("{CODE}: {MESSAGE}")),
        Shape::Capitalised => {
            let body = words(CODE, MESSAGE).2;
            let names = [("request_id", "RequestId"), ("\"code", "\"Code"), ("message", "Message")];
            let body = names.into_iter().fold(body, |body, (from, to)| body.replacen(from, to, 1));
            (403, JSON, body)
        }
        Shape::ErrorAsText => {
            (403, JSON, format!(r#"{{"error":{}}}"#, quoted(&flat(CODE, MESSAGE, id))))
        }
        Shape::ErrorAsSentence => (403, JSON, format!(r#"{{"error":{}}}"#, quoted(MESSAGE))),
        Shape::DataLines => (403, JSON, format!("data: {plain}\ndata: [DONE]\n\n")),
        Shape::BehindKeepAlives => (200, SSE, KEEP_ALIVES.to_owned() + &native()),
        Shape::ResponseFailed => (200, NATIVE_SSE, failed(CODE, MESSAGE, id)),
        Shape::FirstEventOf200Words => {
            let code = "insufficient_quota";
            (200, SSE, format!("data: {}\n\n", nested(code, code, MESSAGE, id)))
        }
        Shape::InsufficientQuotaWords => {
            (403, JSON, nested("insufficient_quota", "insufficient_quota", MESSAGE, id))
        }
        Shape::SseFramed => (403, SSE, event()),
        Shape::SseFramedAsJson => (403, JSON, event()),
        Shape::SseFramedNative => (403, NATIVE_SSE, native()),
        Shape::FirstEventOf200 => (200, SSE, event()),
        Shape::FirstEventOf200Native => (200, NATIVE_SSE, native()),
        Shape::Status400 => (400, JSON, plain),
        Shape::Status429 => (429, JSON, plain),
        Shape::Pretty => (403, "application/json;charset=UTF-8", pretty(id)),
        Shape::LowerCase => {
            let code = CODE.to_ascii_lowercase();
            (403, JSON, nested(&code, &code, OLD_MESSAGE, id))
        }
    };
    let encoded = shape == Shape::Gzip;
    let body = if encoded { gzip(body.as_bytes()) } else { body.into_bytes() };
    (status, content_type, encoded, body)
}

/// The error envelope of compatible mode.
pub(super) fn nested(code: &str, kind: &str, message: &str, id: &str) -> String {
    let (code, kind, message) = (quoted(code), quoted(kind), quoted(message));
    format!(
        r#"{{"error":{{"message":{message},"type":{kind},"param":null,"code":{code}}},"id":"chatcmpl-{id}","request_id":"{id}"}}"#
    )
}

/// The error envelope of `/apps/anthropic`: the native one with the request id first.
pub(super) fn flat(code: &str, message: &str, id: &str) -> String {
    let (code, message) = (quoted(code), quoted(message));
    format!(r#"{{"request_id":"{id}","code":{code},"message":{message}}}"#)
}

/// The error envelope of DashScope's own protocol.
pub(super) fn native(code: &str, message: &str, id: &str) -> String {
    let (code, message) = (quoted(code), quoted(message));
    format!(r#"{{"code":{code},"message":{message},"request_id":"{id}"}}"#)
}

/// What ends a stream of the Responses API that failed.
pub(super) fn failed(code: &str, message: &str, id: &str) -> String {
    let (code, message) = (quoted(code), quoted(message));
    format!(
        "id:2\nevent:response.failed\n:HTTP_STATUS/200\ndata:{{\"type\":\"response.failed\",\"response\":{{\"id\":\"resp_{id}\",\"status\":\"failed\",\"error\":{{\"code\":{code},\"message\":{message}}}}}}}\n\n"
    )
}

fn pretty(id: &str) -> String {
    let (code, message) = (quoted(CODE), quoted(OLD_MESSAGE));
    format!(
        r#"{{
  "error": {{
    "message": {message},
    "type": {code},
    "param": null,
    "code": {code}
  }},
  "id": "chatcmpl-{id}",
  "request_id": "{id}"
}}
"#
    )
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Gzip with one stored (uncompressed) block, RFC 1951 section 3.2.4 and RFC 1952: it spares
/// the binary a compressor, and is as much gzip to whoever reads it.
fn gzip(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).expect("error bodies are shorter than 64 KiB");
    let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255, 1];
    out.extend(length.to_le_bytes());
    out.extend((!length).to_le_bytes());
    out.extend(bytes);
    out.extend(crc32(bytes).to_le_bytes());
    out.extend(u32::from(length).to_le_bytes());
    out
}

/// The checksum of gzip, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::io::Read;

    use serde_json::Value;

    use super::*;

    const ID: &str = "00000000-0000-4000-8000-000000000001";

    /// What tells the shapes apart: status, framing, media type, nesting, code and type.
    fn signature(status: u16, content_type: &str, body: &str) -> String {
        let media_type = content_type.split(';').next().unwrap();
        let (framing, json) = match body.split_once("data:") {
            Some((before, data)) if !body.starts_with('{') => {
                (if before.is_empty() { "data" } else { "native event" }, data)
            }
            _ => (if body.starts_with("{\n") { "pretty" } else { "plain" }, body),
        };
        // Another line may follow.
        let mut json = serde_json::Deserializer::from_str(json.trim()).into_iter();
        let json: Value = json.next().unwrap().unwrap();
        let (nested, fields) = match json.get("error") {
            Some(error) => (true, error),
            None => (false, &json),
        };
        let (code, kind) = (&fields["code"], &fields["type"]);
        format!("{status} {media_type} {framing} nested={nested} code={code} type={kind}")
    }

    #[test]
    fn every_exhaustion_of_the_corpus_has_its_shape() {
        let ours: HashSet<String> = Shape::ALL
            .into_iter()
            .filter(|shape| *shape != Shape::Gzip)
            .map(|shape| {
                let (status, content_type, _, body) = render(shape, ID);
                signature(status, content_type, &String::from_utf8(body).unwrap())
            })
            .collect();
        let corpus = include_str!("../../tests/data/upstream-corpus.jsonl");
        let mut rows = 0;
        for line in corpus.lines() {
            let row: Value = serde_json::from_str(line).unwrap();
            if row["free_quota_exhausted"] != true {
                continue;
            }
            rows += 1;
            let status = u16::try_from(row["status"].as_u64().unwrap()).unwrap();
            let content_type = row["content_type"].as_str().unwrap();
            let theirs = signature(status, content_type, row["body"].as_str().unwrap());
            assert!(ours.contains(&theirs), "{}: {theirs}\nours: {ours:#?}", row["name"]);
        }
        assert_eq!(rows, 14);
    }

    #[test]
    fn a_body_is_the_captured_one_byte_for_byte() {
        let corpus = include_str!("../../tests/data/upstream-corpus.jsonl");
        let row: Value = serde_json::from_str(corpus.lines().next().unwrap()).unwrap();
        let (_, _, _, body) = render(Shape::Nested, ID);
        assert_eq!(String::from_utf8(body).unwrap(), row["body"].as_str().unwrap());
    }

    #[test]
    fn the_gzip_body_unpacks_to_the_plain_one() {
        let (_, _, encoded, body) = render(Shape::Gzip, ID);
        assert!(encoded);
        let mut text = Vec::new();
        flate2::read::GzDecoder::new(body.as_slice()).read_to_end(&mut text).unwrap();
        assert_eq!(text, render(Shape::Nested, ID).3);
    }
}
