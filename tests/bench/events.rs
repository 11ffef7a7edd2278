//! The events of a stream: as large as those of a chat, 250 to 400 bytes, a third in Chinese.

use std::sync::{Arc, LazyLock};
use std::time::Instant;

use dashscope_proxy::clock;

/// What is written before the first event.
pub(crate) const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                               cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";

/// What comes after the events, in one write.
pub(crate) const END: &str = concat!(
    r#"data: {"choices":[],"object":"chat.completion.chunk","usage":{"prompt_tokens":712,"#,
    r#""completion_tokens":300,"total_tokens":1012,"prompt_tokens_details":{"cached_tokens":0}},"#,
    r#""created":1700000000,"system_fingerprint":null,"model":"m1","#,
    r#""id":"chatcmpl-6f2d7c1e-93ab-9b1f-b0c4-5d1f0a2e7788"}"#,
    "\n\ndata: [DONE]\n\n"
);

/// What the answer consists of, as it stands in JSON.
const PARTS: [&str; 12] = [
    "The",
    " three rivers",
    "这个函数会先检查额度，",
    r"\n\n```rust\nfn main() {\n",
    r#"    println!(\"{}\", slot.name());\n"#,
    "然后换到下一个模型，直到有一个可以回答为止。",
    " meet",
    " at Passau, and the town",
    "多瑙河、因河和伊尔茨河",
    r"\u003cbr\u003e C:\\work\\src",
    r"}\n```\n\n- ",
    "。请注意：这里的锁要尽早释放，否则别的请求会一直等到超时，客户端就会断开连接。",
];

/// Upstream and client share a process and so this moment: stamps of one mean something to the
/// other.
static START: LazyLock<Instant> = LazyLock::new(clock::instant);

/// To be called before anything is stamped.
pub(crate) fn begin() {
    LazyLock::force(&START);
}

/// The moment as an event's stamp: nanoseconds since the process began to measure.
pub(crate) fn stamp(at: Instant) -> u64 {
    u64::try_from(at.saturating_duration_since(*START).as_nanos()).unwrap_or(u64::MAX)
}

/// Event `number`, sent at `stamp`, without the blank line that ends it.
pub(crate) fn event(number: u64, stamp: u64) -> String {
    let part = usize::try_from(number).map_or("", |number| PARTS[number % PARTS.len()]);
    format!(
        r#"data: {{"at":{stamp},"n":{number},"choices":[{{"delta":{{"content":"{part}"}},"finish_reason":null,"index":0,"logprobs":null}}],"object":"chat.completion.chunk","usage":null,"created":1700000000,"system_fingerprint":null,"model":"m1","id":"chatcmpl-6f2d7c1e-93ab-9b1f-b0c4-5d1f0a2e7788"}}"#
    )
}

/// Event `number` and its blank line as a chunk.
pub(crate) fn chunk(number: u64, stamp: u64) -> String {
    let event = event(number, stamp);
    format!("{:x}\r\n{event}\n\n\r\n", event.len() + 2)
}

/// The last chunks.
pub(crate) fn end() -> String {
    format!("{:x}\r\n{END}\r\n0\r\n\r\n", END.len())
}

/// The body of a stream of so many events that are not stamped.
pub(crate) fn unstamped(events: u64) -> Arc<[u8]> {
    let text: String = (0..events).map(|number| event(number, 0) + "\n\n").collect();
    (text + END).into_bytes().into()
}

/// The same, from the head on, as it is written: each event by itself.
pub(crate) fn unstamped_writes(events: u64) -> Vec<Vec<u8>> {
    let chunks = (0..events).map(|number| chunk(number, 0));
    [HEAD.to_owned()].into_iter().chain(chunks).chain([end()]).map(String::into_bytes).collect()
}
