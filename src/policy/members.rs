//! The members at the top level of a JSON object, found without reading what is inside them.
//!
//! Bodies hold hundreds of kilobytes of text and need to be known at their top level only. So strings
//! are skipped from quote to quote, at the speed of memory, and of what is nested only the brackets
//! are counted. What is malformed inside is upstream's to refuse; what makes the top level ambiguous
//! is refused here.

use std::fmt;
use std::ops::Range;

use memchr::memchr;
use serde::de::IgnoredAny;

/// One member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member<'a> {
    /// The name, unescaped.
    pub name: Name<'a>,
    /// Where the value stands.
    pub value: Range<usize>,
}

/// A member's name. `"mod\u0065l"` is a `model` too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Name<'a> {
    /// As it stands there. (It need not be UTF-8.)
    Plain(&'a [u8]),
    /// It was written with escapes.
    Escaped(String),
}

impl Name<'_> {
    /// The name's bytes.
    #[must_use]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Plain(bytes) => bytes,
            Self::Escaped(text) => text.as_bytes(),
        }
    }
}

/// Why something is no JSON object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Malformed {
    what: &'static str,
    /// In bytes from the start.
    at: usize,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.what, self.at)
    }
}

/// The members in their order. After an error there are no more.
pub(crate) fn members(bytes: &[u8]) -> impl Iterator<Item = Result<Member<'_>, Malformed>> {
    Members { bytes, at: 0, next: Next::Open }
}

struct Members<'a> {
    bytes: &'a [u8],
    at: usize,
    next: Next,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The opening brace.
    Open,
    /// A comma and another member, or the closing brace.
    More,
    Nothing,
}

impl<'a> Iterator for Members<'a> {
    type Item = Result<Member<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = std::mem::replace(&mut self.next, Next::Nothing);
        let outcome = match next {
            Next::Nothing => return None,
            Next::Open => self.first(),
            Next::More => self.further(),
        };
        if let Ok(Some(_)) = outcome {
            self.next = Next::More;
        }
        outcome.transpose()
    }
}

impl<'a> Members<'a> {
    fn first(&mut self) -> Result<Option<Member<'a>>, Malformed> {
        self.expect(b'{', "expected an object")?;
        self.skip_blanks();
        if self.peek() == Some(b'}') { self.close() } else { self.member().map(Some) }
    }

    fn further(&mut self) -> Result<Option<Member<'a>>, Malformed> {
        self.skip_blanks();
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                self.skip_blanks();
                self.member().map(Some)
            }
            Some(b'}') => self.close(),
            _ => Err(self.malformed("expected `,` or `}`")),
        }
    }

    /// The closing brace, behind which there is nothing.
    fn close(&mut self) -> Result<Option<Member<'a>>, Malformed> {
        self.at += 1;
        self.skip_blanks();
        if self.at < self.bytes.len() { Err(self.malformed("unexpected bytes")) } else { Ok(None) }
    }

    fn member(&mut self) -> Result<Member<'a>, Malformed> {
        let start = self.at;
        if self.peek() != Some(b'"') {
            return Err(self.malformed("expected a name in quotes"));
        }
        self.skip_string()?;
        let quoted = &self.bytes[start..self.at];
        let plain = &quoted[1..quoted.len() - 1];
        let name = match memchr(b'\\', plain) {
            None => Name::Plain(plain),
            Some(_) => serde_json::from_slice(quoted)
                .map(Name::Escaped)
                .map_err(|_| Malformed { what: "a name that cannot be read", at: start })?,
        };
        self.expect(b':', "expected `:`")?;
        self.skip_blanks();
        let start = self.at;
        self.skip_value()?;
        Ok(Member { name, value: start..self.at })
    }

    fn skip_value(&mut self) -> Result<(), Malformed> {
        match self.peek() {
            Some(b'"') => self.skip_string(),
            Some(b'{' | b'[') => self.skip_nested(),
            _ => self.skip_scalar(),
        }
    }

    /// To behind the next quote that is not escaped.
    fn skip_string(&mut self) -> Result<(), Malformed> {
        let first = self.at + 1;
        let mut from = first;
        while let Some(found) = memchr(b'"', &self.bytes[from..]) {
            let quote = from + found;
            let before = self.bytes[from..quote].iter().rev();
            from = quote + 1;
            // A run of backslashes begins behind the quote before it: nothing is counted twice.
            if before.take_while(|byte| **byte == b'\\').count() % 2 == 0 {
                self.at = from;
                return Ok(());
            }
        }
        Err(self.malformed("a string without an end"))
    }

    /// To behind the bracket that closes the one here.
    fn skip_nested(&mut self) -> Result<(), Malformed> {
        let start = self.at;
        let mut open = Vec::new();
        while let Some(byte) = self.peek() {
            match byte {
                b'"' => {
                    self.skip_string()?;
                    continue;
                }
                b'{' => open.push(b'}'),
                b'[' => open.push(b']'),
                b'}' | b']' => {
                    if open.pop() != Some(byte) {
                        return Err(self.malformed("a bracket that closes nothing"));
                    }
                    if open.is_empty() {
                        self.at += 1;
                        return Ok(());
                    }
                }
                _ => {}
            }
            self.at += 1;
        }
        Err(Malformed { what: "a bracket without an end", at: start })
    }

    /// A number, `true`, `false` or `null`.
    fn skip_scalar(&mut self) -> Result<(), Malformed> {
        let start = self.at;
        let is_over = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r');
        let rest = &self.bytes[start..];
        let length = rest.iter().position(is_over).unwrap_or(rest.len());
        if serde_json::from_slice::<IgnoredAny>(&rest[..length]).is_err() {
            return Err(Malformed { what: "expected a value", at: start });
        }
        self.at += length;
        Ok(())
    }

    fn expect(&mut self, byte: u8, what: &'static str) -> Result<(), Malformed> {
        self.skip_blanks();
        if self.peek() != Some(byte) {
            return Err(self.malformed(what));
        }
        self.at += 1;
        Ok(())
    }

    fn skip_blanks(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn malformed(&self, what: &'static str) -> Malformed {
        Malformed { what, at: self.at }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde_json::value::RawValue;

    use super::*;

    fn read(text: &[u8]) -> Result<Vec<(Vec<u8>, String)>, Malformed> {
        let pair = |member: Member<'_>| {
            let value = String::from_utf8_lossy(&text[member.value]).into_owned();
            (member.name.as_bytes().to_vec(), value)
        };
        members(text).map(|member| member.map(pair)).collect()
    }

    fn pairs(text: &str) -> Vec<(String, String)> {
        let members = read(text.as_bytes()).unwrap_or_else(|error| panic!("{error} in {text}"));
        let name = |bytes| String::from_utf8(bytes).unwrap();
        members.into_iter().map(|(bytes, value)| (name(bytes), value)).collect()
    }

    fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_top_level_is_found_whatever_is_inside() {
        assert_eq!(pairs(" {} \n"), []);
        let text =
            r#" { "a" : "x\"y\\", "b":{"a":["}",{"\\":"\\\""}]} ,"c":[],"d":-1.5e3,"e":null } "#;
        let expected = [
            ("a", r#""x\"y\\""#),
            ("b", r#"{"a":["}",{"\\":"\\\""}]}"#),
            ("c", "[]"),
            ("d", "-1.5e3"),
            ("e", "null"),
        ];
        assert_eq!(pairs(text), owned(&expected));
        assert_eq!(
            pairs(r#"{"mod\u0065l":1,"model":2}"#),
            owned(&[("model", "1"), ("model", "2")])
        );
    }

    #[test]
    fn what_is_malformed_inside_is_passed_over() {
        for text in [
            &b"{\"a\":\"\xff\xfe\"}"[..],
            b"{\"a\":\"line\nbreak \\x\"}",
            b"{\"a\":[1 2,,]}",
            b"{\"a\":{b:c}}",
            b"{\"\xff\":1}",
        ] {
            assert_eq!(read(text).map(|members| members.len()), Ok(1), "{text:?}");
        }
    }

    #[test]
    fn what_leaves_the_top_level_open_is_refused_with_its_place() {
        for (text, error) in [
            ("", "expected an object at byte 0"),
            ("[]", "expected an object at byte 0"),
            ("\"x\"", "expected an object at byte 0"),
            ("{", "expected a name in quotes at byte 1"),
            ("{\"a\"}", "expected `:` at byte 4"),
            ("{\"a\":}", "expected a value at byte 5"),
            ("{\"a\":1", "expected `,` or `}` at byte 6"),
            ("{\"a\":1,}", "expected a name in quotes at byte 7"),
            ("{\"a\":1 2}", "expected `,` or `}` at byte 7"),
            ("{\"a\":01}", "expected a value at byte 5"),
            ("{\"a\":nil}", "expected a value at byte 5"),
            ("{\"a\":\"x}", "a string without an end at byte 5"),
            ("{\"a\":\"x\\\"}", "a string without an end at byte 5"),
            ("{\"a\":[}", "a bracket that closes nothing at byte 6"),
            ("{\"a\":[[]", "a bracket without an end at byte 5"),
            ("{}{}", "unexpected bytes at byte 2"),
            ("{a:1}", "expected a name in quotes at byte 1"),
            ("{\"\\x\":1}", "a name that cannot be read at byte 1"),
        ] {
            let outcome = read(text.as_bytes()).map_err(|error| error.to_string());
            assert_eq!(outcome, Err(error.to_owned()), "{text}");
        }
    }

    #[test]
    fn depth_has_no_end_of_its_own() {
        let text = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(pairs(&text).len(), 1);
    }

    /// JSON texts with blanks and escapes where they may be.
    fn json() -> impl Strategy<Value = String> {
        let string = prop::collection::vec(
            prop_oneof![
                Just("\\\"".to_owned()),
                Just("\\\\".to_owned()),
                Just("\\u00e9".to_owned()),
                Just("{}[],:".to_owned()),
                "[a-z汉 ]{0,8}",
            ],
            0..5,
        )
        .prop_map(|parts| format!("\"{}\"", parts.concat()));
        let leaf = prop_oneof![
            string.clone(),
            any::<f64>()
                .prop_filter("finite", |it| it.is_finite())
                .prop_map(|it| format!("{it:e}")),
            any::<i64>().prop_map(|it| it.to_string()),
            prop_oneof![Just("true"), Just("false"), Just("null")].prop_map(str::to_owned),
        ];
        leaf.prop_recursive(4, 40, 5, move |inner| {
            let blank = "[ \n\t\r]{0,2}";
            let member = (blank, string.clone(), blank, blank, inner.clone(), blank)
                .prop_map(|(a, name, b, c, value, d)| format!("{a}{name}{b}:{c}{value}{d}"));
            prop_oneof![
                prop::collection::vec(inner, 0..5).prop_map(|it| format!("[{}]", it.join(" , "))),
                prop::collection::vec(member, 0..5).prop_map(|it| format!("{{{}}}", it.join(","))),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_valid_object_is_read_as_serde_json_reads_it(text in json()) {
            let Ok(expected) = serde_json::from_str::<BTreeMap<String, &RawValue>>(&text) else {
                prop_assert!(read(text.as_bytes()).is_err(), "{text} is taken for an object");
                return Ok(());
            };
            // Of members with one name serde_json keeps the last.
            let found: BTreeMap<_, _> = pairs(&text).into_iter().collect();
            let expected: BTreeMap<_, _> =
                expected.into_iter().map(|(name, value)| (name, value.get().to_owned())).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
