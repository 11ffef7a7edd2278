//! How many tokens a request can have at most, for answers that do not say how many it had: a
//! guard may act early, never late.
//!
//! One byte is one token. Qwen's tokens stand for whole bytes, mostly three or four of them, but
//! each digit is one of its own: anything below one would be too little for a table of numbers.
//! The brackets and names of the JSON make up for what the template of a chat adds.
//!
//! What is not text is not bounded by its bytes: a picture named by a short URL has as many tokens
//! as one that is sent along. So inline data is left out, and each thing that the request names in
//! a member of its own has a price; the same words inside a text are escaped, and have none.

use memchr::memmem;

/// The most tokens that a picture takes: 16,384, in the models of the Qwen-VL family.
const PICTURE: u64 = 16_384;

/// The most that a film or a recording takes, and what is taken for documents and conversations
/// that DashScope keeps: what the context of a common model holds.
const CONTEXT: u64 = 131_072;

/// What tools are introduced with, besides their own text.
const PREFACE: u64 = 256;

/// What a search on the web adds.
const SEARCH: u64 = 16_384;

/// Members and types, and what each may add.
const PRICES: [(&[u8], u64); 16] = [
    (b"\"image\"", PICTURE),
    (b"\"image_url\"", PICTURE),
    (b"\"input_image\"", PICTURE),
    (b"\"video\"", CONTEXT),
    (b"\"video_url\"", CONTEXT),
    (b"\"audio\"", CONTEXT),
    (b"\"input_audio\"", CONTEXT),
    (b"\"document\"", CONTEXT),
    (b"\"file\"", CONTEXT),
    (b"\"input_file\"", CONTEXT),
    (b"fileid://", CONTEXT),
    (b"\"previous_response_id\"", CONTEXT),
    (b"\"session_id\"", CONTEXT),
    (b"\"enable_search\"", SEARCH),
    (b"\"web_search\"", SEARCH),
    (b"\"tools\"", PREFACE),
];

/// What stands before inline data: a URL of it, or Anthropic's and OpenAI's member for it.
const INLINE: [&[u8]; 2] = [b"\"data:", b"\"data\""];

/// Members that hold a URL of inline data. Anywhere else it is text like any other.
const HOLDERS: [&[u8]; 6] =
    [b"\"url\"", b"\"image\"", b"\"image_url\"", b"\"video\"", b"\"audio\"", b"\"file_data\""];

/// What says, shortly before it, that a member called `data` is inline data.
const SOURCES: [&[u8]; 2] = [b"\"base64\"", b"\"input_audio\""];

/// How far back that is looked for, in bytes.
const SHORTLY: usize = 200;

/// The most tokens that a request with this body can have.
#[must_use]
pub(crate) fn most_input_tokens(body: &[u8]) -> u64 {
    let prices = PRICES.iter().map(|(name, price)| {
        let times = memmem::find_iter(body, name).count() as u64;
        times.saturating_mul(*price)
    });
    let prices = prices.fold(0, u64::saturating_add);
    (body.len() as u64 - inline_data(body)).saturating_add(prices)
}

/// How many bytes of a body are inline data.
fn inline_data(body: &[u8]) -> u64 {
    let url = memmem::find_iter(body, INLINE[0]).filter_map(|at| {
        let before = body[..at].trim_ascii_end().strip_suffix(b":")?.trim_ascii_end();
        HOLDERS.iter().any(|holder| before.ends_with(holder)).then_some(at + 1)
    });
    let member = memmem::find_iter(body, INLINE[1]).filter_map(|at| {
        let before = &body[at.saturating_sub(SHORTLY)..at];
        let is_source = SOURCES.iter().any(|word| memmem::find(before, word).is_some());
        let behind = &body[at + INLINE[1].len()..];
        let value = behind.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
        let text = value.strip_prefix(b"\"").filter(|_| is_source)?;
        Some(body.len() - text.len())
    });
    url.chain(member).map(|at| plain_length(&body[at..])).fold(0, u64::saturating_add)
}

/// How long the string is whose content begins here; 0 where it holds an escape.
fn plain_length(text: &[u8]) -> u64 {
    match memchr::memchr2(b'"', b'\\', text) {
        Some(end) if text[end] == b'"' => end as u64,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(body: &str) -> u64 {
        most_input_tokens(body.as_bytes())
    }

    #[test]
    fn a_byte_of_text_is_a_token() {
        for body in ["", "{}", r#"{"messages":[{"role":"user","content":"1234567890 你好"}]}"#] {
            assert_eq!(tokens(body), body.len() as u64, "{body}");
        }
    }

    #[test]
    fn a_picture_costs_the_most_it_can_and_not_its_bytes() {
        let data = "A".repeat(1 << 20);
        for body in [
            format!(
                r#"{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{data}"}}}}"#
            ),
            format!(r#"{{"image":"data:image/png;base64,{data}"}}"#),
            format!(r#"{{"type":"image","source":{{"type":"base64","data":"{data}"}}}}"#),
            r#"{"image": "https://example.com/x.png"}"#.to_owned(),
        ] {
            let told = tokens(&body);
            assert!((PICTURE..3 * PICTURE).contains(&told), "{told}");
        }
    }

    #[test]
    fn what_only_looks_like_inline_data_is_text() {
        let data = "A".repeat(5_000);
        for body in [
            format!(r#"{{"content":"data:image/png;base64,{data}"}}"#),
            format!(r#"{{"content":"{{\"url\":\"data:image/png;base64,{data}\"}}"}}"#),
            format!(r#"{{"input":{{"data":"{data}"}}}}"#),
            format!(r#"{{"url":"data:{data}\/"}}"#),
        ] {
            assert_eq!(tokens(&body), body.len() as u64, "{}", &body[..40]);
        }
    }

    #[test]
    fn what_dashscope_adds_has_a_price_and_its_name_in_a_text_has_none() {
        for (body, price) in [
            (r#"{"enable_search":true}"#, SEARCH),
            (r#"{"tools":[]}"#, PREFACE),
            (r#"{"previous_response_id":"resp_1"}"#, CONTEXT),
            (r#"{"role":"system","content":"fileid://file-fe-1"}"#, CONTEXT),
            (r#"{"content":"{\"enable_search\":true,\"image\":\"x\"}"}"#, 0),
        ] {
            assert_eq!(tokens(body), body.len() as u64 + price, "{body}");
        }
    }

    #[test]
    fn any_bytes_have_a_bound() {
        for body in [
            &b"\"data:"[..],
            b":\"data:",
            b"\"url\":\"data:",
            b"\"data\"",
            b"\"base64\"\"data\":\"",
        ] {
            let _ = most_input_tokens(body);
        }
    }
}
