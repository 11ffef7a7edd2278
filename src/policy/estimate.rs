//! How many input tokens a message has, roughly: for clients that want to know before they ask,
//! when upstream does not say.

use serde_json::Value;

/// What a picture counts: about what the vision models of Qwen and Claude take for a screenshot.
const PICTURE: u64 = 1500;

/// What a message costs besides its text: its role and its ends.
const MESSAGE: u64 = 4;

/// The longest body that is looked into, in bytes. By a name that serde_json keeps for itself a
/// body can nest deeper than its limit of 128, by the root of its length: so far that a worker's
/// stack would not do for the largest bodies.
const LONGEST: usize = 32 << 20;

/// The estimate for the body of an Anthropic request. At least 1.
#[must_use]
pub(crate) fn input_tokens(body: &[u8]) -> u64 {
    if body.len() > LONGEST {
        return body.len() as u64 / 4;
    }
    let Ok(request) = serde_json::from_slice::<Value>(body) else { return 1 };
    let parts = ["system", "messages", "tools"].iter().filter_map(|name| request.get(*name));
    let quarters: u64 = parts.map(quarter_tokens).sum();
    let messages = request.get("messages").and_then(Value::as_array).map_or(0, Vec::len) as u64;
    (quarters.div_ceil(4) + messages * MESSAGE).max(1)
}

/// Four times the tokens in a value. Four characters of ASCII are about a token; so is one and a
/// half of Chinese, of which we say one.
fn quarter_tokens(value: &Value) -> u64 {
    match value {
        Value::String(text) => text.chars().map(|c| if c.is_ascii() { 1 } else { 4 }).sum(),
        Value::Array(items) => items.iter().map(quarter_tokens).sum(),
        Value::Object(_) if is_picture(value) => PICTURE * 4,
        Value::Object(members) => {
            members.iter().map(|(name, value)| name.len() as u64 + quarter_tokens(value)).sum()
        }
        Value::Number(number) => number.to_string().len() as u64,
        Value::Bool(_) | Value::Null => 4,
    }
}

fn is_picture(value: &Value) -> bool {
    matches!(value.get("type").and_then(Value::as_str), Some("image" | "document"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(body: &str) -> u64 {
        input_tokens(body.as_bytes())
    }

    #[test]
    fn what_is_too_long_is_not_looked_into() {
        let text = "x".repeat(LONGEST);
        let body = format!(r#"{{"messages":[],"system":"{text}"}}"#);
        assert_eq!(tokens(&body), body.len() as u64 / 4);
    }

    #[test]
    fn more_text_is_more_tokens() {
        let of = |text: &str| {
            tokens(&format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}]}}"#))
        };
        assert!(of("") < of("hello") && of("hello") < of("hello there, how are you?"));
        assert!(of(&"你好".repeat(100)) > of(&"ab".repeat(100)));
        let thousand = of(&"word ".repeat(1000));
        assert!((1000..2000).contains(&thousand), "{thousand}");
    }

    #[test]
    fn system_and_tools_count_and_pictures_count_flat() {
        let plain = tokens(r#"{"messages":[]}"#);
        assert!(tokens(r#"{"messages":[],"system":"be kind to everybody"}"#) > plain);
        assert!(tokens(r#"{"messages":[],"tools":[{"name":"find","input_schema":{}}]}"#) > plain);
        let picture = |data: &str| {
            tokens(&format!(
                r#"{{"messages":[{{"role":"user","content":[{{"type":"image","source":{{"data":"{data}"}}}}]}}]}}"#
            ))
        };
        assert_eq!(picture("x"), picture(&"x".repeat(100_000)));
    }

    #[test]
    fn what_is_no_request_counts_as_one() {
        for body in ["", "[]", "{}", "nonsense"] {
            assert_eq!(tokens(body), 1, "{body}");
        }
    }
}
