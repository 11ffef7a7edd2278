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

use memchr::{memchr, memchr2, memmem};

use super::members::members;

/// The most tokens that a picture takes: 16,384, in the models of the Qwen-VL family.
const PICTURE: u64 = 16_384;

/// The most that a film or a recording takes, and what is taken for documents and conversations
/// that DashScope keeps: what the context of a common model holds.
const CONTEXT: u64 = 131_072;

/// What tools are introduced with, besides their own text.
const PREFACE: u64 = 256;

/// What a search on the web adds.
const SEARCH: u64 = 16_384;

/// What is taken for an answer that nobody has seen and whose request names no bound: the most that
/// a common model of Qwen's writes in one.
const ANSWER: u64 = 65_536;

/// Members that bound what is written; DashScope bounds the thinking apart.
const BOUNDS: [&[u8]; 3] = [b"max_tokens", b"max_completion_tokens", b"max_output_tokens"];
const THINKING: &[u8] = b"thinking_budget";

/// How many answers are wanted.
const ANSWERS: &[u8] = b"n";

/// Where DashScope's own protocol has these members.
const PARAMETERS: &[u8] = b"parameters";

/// Names a file that DashScope keeps, anywhere in a text.
const FILE_ID: &[u8] = b"fileid://";

/// Members and types, and what each may add.
const PRICES: [(&[u8], u64); 15] = [
    (b"image", PICTURE),
    (b"image_url", PICTURE),
    (b"input_image", PICTURE),
    (b"video", CONTEXT),
    (b"video_url", CONTEXT),
    (b"audio", CONTEXT),
    (b"input_audio", CONTEXT),
    (b"document", CONTEXT),
    (b"file", CONTEXT),
    (b"input_file", CONTEXT),
    (b"previous_response_id", CONTEXT),
    (b"session_id", CONTEXT),
    (b"enable_search", SEARCH),
    (b"web_search", SEARCH),
    (b"tools", PREFACE),
];

/// Members that hold a URL of inline data. Anywhere else it is text like any other.
const HOLDERS: [&[u8]; 6] = [b"url", b"image", b"image_url", b"video", b"audio", b"file_data"];

/// What inline data begins with in such a member.
const URL: &[u8] = b"data:";

/// Anthropic's and OpenAI's member for inline data.
const DATA: &[u8] = b"data";

/// What says, shortly before it, that a member called `data` is inline data.
const SOURCES: [&[u8]; 2] = [b"base64", b"input_audio"];

/// How far back that is looked for, in bytes.
const SHORTLY: usize = 200;

/// A string of the body, as it is written.
#[derive(Clone, Copy, Default)]
struct Text<'a> {
    /// Where its first quote stands.
    at: usize,
    content: &'a [u8],
    /// Whether it holds no escape and has an end.
    is_plain: bool,
}

impl<'a> Text<'a> {
    /// The next string from `from` on.
    fn next(body: &'a [u8], from: usize) -> Option<Self> {
        let at = from + memchr(b'"', body.get(from..)?)?;
        let (mut end, mut is_plain) = (at + 1, true);
        loop {
            let Some(found) = body.get(end..).and_then(|rest| memchr2(b'"', b'\\', rest)) else {
                return Some(Self { at, content: &body[at + 1..], is_plain: false });
            };
            end += found;
            if body[end] == b'"' {
                return Some(Self { at, content: &body[at + 1..end], is_plain });
            }
            (end, is_plain) = (end + 2, false);
        }
    }

    /// The first byte behind it.
    fn end(&self) -> usize {
        self.at + self.content.len() + 2
    }
}

/// The most tokens that a request with this body can have. It is read once, from string to string:
/// megabytes of inline data are one step.
#[must_use]
pub(crate) fn most_input_tokens(body: &[u8]) -> u64 {
    let file_id = memmem::Finder::new(FILE_ID);
    let mut tokens = body.len() as u64;
    let mut last = Text::default();
    let mut source = None;
    let mut from = 0;
    while let Some(text) = Text::next(body, from) {
        let is_value = body[from..text.at].trim_ascii() == b":";
        if is_value && text.is_plain && is_inline(text.content, last, source) {
            tokens -= text.content.len() as u64;
        } else {
            tokens = tokens.saturating_add(price(text.content, &file_id));
        }
        if SOURCES.contains(&text.content) {
            source = Some(text.at);
        }
        from = text.end();
        last = text;
    }
    tokens
}

/// Whether the value of the member `name` is inline data. `source`: where the last word stands
/// that says so of a `data`.
fn is_inline(value: &[u8], name: Text<'_>, source: Option<usize>) -> bool {
    HOLDERS.contains(&name.content) && value.starts_with(URL)
        || name.content == DATA && source.is_some_and(|at| name.at - at <= SHORTLY)
}

/// What a string adds besides its bytes.
fn price(content: &[u8], file_id: &memmem::Finder<'_>) -> u64 {
    if let Some((_, price)) = PRICES.iter().find(|(name, _)| *name == content) {
        return *price;
    }
    let files = file_id.find_iter(content).count() as u64;
    files.saturating_mul(CONTEXT)
}

/// The most tokens that an answer can have had which never came: what its request allows.
#[must_use]
pub(crate) fn most_output_tokens(body: &[u8]) -> u64 {
    let parameters = members(body).flatten().find(|it| it.name.as_bytes() == PARAMETERS);
    let parameters = parameters.map_or(&b""[..], |it| &body[it.value]);
    let most = |names: &[&[u8]]| {
        let numbers = numbers_of(body, names).chain(numbers_of(parameters, names));
        numbers.max()
    };
    let written = most(&BOUNDS).unwrap_or(ANSWER);
    let each = written.saturating_add(most(&[THINKING]).unwrap_or(0));
    each.saturating_mul(most(&[ANSWERS]).unwrap_or(1).max(1))
}

/// The numbers that members with one of these names have.
fn numbers_of<'a>(object: &'a [u8], names: &'a [&[u8]]) -> impl Iterator<Item = u64> + 'a {
    let named = members(object).map_while(Result::ok);
    let named = named.filter(|it| names.contains(&it.name.as_bytes()));
    named.filter_map(|it| serde_json::from_slice(&object[it.value]).ok())
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
    fn a_price_does_not_hang_on_where_its_name_stands() {
        let quoted = r#"{"content":"say \"image\" \\","image":"x"}"#;
        assert_eq!(tokens(quoted), quoted.len() as u64 + PICTURE);
        let files = r#"{"content":"fileid://a,fileid://b"}"#;
        assert_eq!(tokens(files), files.len() as u64 + 2 * CONTEXT);
        let cut = r#"{"image":"data:AAAA"#;
        assert_eq!(tokens(cut), cut.len() as u64 + PICTURE);
    }

    #[test]
    fn an_answer_that_never_came_has_what_its_request_allows() {
        for (body, tokens) in [
            (r#"{"max_tokens":9}"#, 9),
            (r#"{"max_completion_tokens":9,"max_tokens":7}"#, 9),
            (r#"{"input":"max_tokens","max_output_tokens":5}"#, 5),
            (r#"{"input":{"max_tokens":1},"parameters":{"max_tokens":6}}"#, 6),
            (r#"{"max_tokens":9,"thinking_budget":30,"n":2}"#, 78),
            (r#"{"max_tokens":null}"#, ANSWER),
            (r#"{"messages":[{"max_tokens":1}]}"#, ANSWER),
            ("no JSON", ANSWER),
            (r#"{"max_tokens":18446744073709551615,"n":3}"#, u64::MAX),
        ] {
            assert_eq!(most_output_tokens(body.as_bytes()), tokens, "{body}");
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
