//! The format of a `.env` file: that of node's dotenv (16), because the files were written for it.
//!
//! Pure: text in, assignments out. It knows no variable and reads no file.
//!
//! Three things differ from dotenv on purpose. A `#` inside an unquoted value begins a comment
//! only after a blank (dotenv cuts there in any case). `K="a", "b"` stays as it is, for the list
//! to unquote item by item. A name, its `=` or `: ` and the first character of its value share a
//! line.

use std::str;

const QUOTES: [char; 3] = ['"', '\'', '`'];

/// What a `.env` file holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Parsed {
    /// In the order of the file; of two with the same name the later one counts.
    pub(crate) assignments: Vec<Assignment>,
    /// The numbers of the lines that are neither an assignment nor blank nor a comment.
    pub(crate) ignored: Vec<usize>,
}

/// One `NAME=value`. It has no `Debug` of its value: that may be a key.
#[derive(PartialEq, Eq)]
pub(crate) struct Assignment {
    /// The line it begins on, counted from 1.
    pub(crate) line: usize,
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) doubt: Option<Doubt>,
}

impl std::fmt::Debug for Assignment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Assignment")
            .field("line", &self.line)
            .field("name", &self.name)
            .field("doubt", &self.doubt)
            .finish_non_exhaustive()
    }
}

/// Why a value may not be what its author meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// It begins with a quote that nothing closes.
    OpenQuote,
    /// It holds a `#` without a blank before it, where dotenv would cut it.
    HashInside,
}

/// The text of a file, or what it is instead of UTF-8.
pub(crate) fn decode(bytes: &[u8]) -> Result<&str, String> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) || bytes.contains(&0) {
        return Err("it is UTF-16 or binary; save it as UTF-8".to_owned());
    }
    str::from_utf8(bytes).map_err(|error| {
        let before = &bytes[..error.valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        format!("line {line} is not UTF-8; save it as UTF-8")
    })
}

/// Reads the text of a `.env` file. Nothing in it is an error: see [`Parsed::ignored`] and
/// [`Doubt`].
pub(crate) fn parse(text: &str) -> Parsed {
    let text = text.trim_start_matches('\u{feff}').replace("\r\n", "\n").replace('\r', "\n");
    let mut parsed = Parsed::default();
    let mut rest = text.as_str();
    let mut line = 1;
    while !rest.is_empty() {
        let first_line = up_to_newline(rest);
        let length = match head(first_line) {
            Some((name, start)) => {
                let value = value(&rest[start..]);
                parsed.assignments.push(Assignment {
                    line,
                    name: name.to_owned(),
                    value: value.text,
                    doubt: value.doubt,
                });
                start + value.length
            }
            None => {
                if !is_blank_or_comment(first_line) {
                    parsed.ignored.push(line);
                }
                first_line.len()
            }
        };
        line += rest[..length].matches('\n').count() + 1;
        rest = rest.get(length + 1..).unwrap_or_default();
    }
    parsed
}

/// The name that `line` assigns to, and where on the line the value begins.
fn head(line: &str) -> Option<(&str, usize)> {
    let body = line.trim_start();
    let exported = body
        .strip_prefix("export")
        .filter(|after| after.starts_with(char::is_whitespace))
        .and_then(|after| name_and_value(after.trim_start()));
    let (name, value) = exported.or_else(|| name_and_value(body))?;
    Some((name, line.len() - value.len()))
}

/// Splits `NAME = value` or `NAME: value`.
fn name_and_value(body: &str) -> Option<(&str, &str)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    let end = body.find(|c| !is_name(c)).filter(|end| *end > 0)?;
    let (name, after) = body.split_at(end);
    let value = after.trim_start().strip_prefix('=').or_else(|| {
        after.strip_prefix(':').filter(|value| value.starts_with(char::is_whitespace))
    })?;
    Some((name, value))
}

/// A value, and how much of the text belongs to it and its comment, without the newline.
struct Value {
    text: String,
    length: usize,
    doubt: Option<Doubt>,
}

fn value(text: &str) -> Value {
    let line = up_to_newline(text);
    let body = &text[line.len() - line.trim_start().len()..];
    let quote = body.chars().next().filter(|c| QUOTES.contains(c));
    let expand = |inner: &str| match quote {
        Some('"') => inner.replace("\\n", "\n").replace("\\r", "\r"),
        _ => inner.to_owned(),
    };

    if let Some(quote) = quote
        && let Some(end) = closing(&body[1..], quote)
    {
        let after = &body[end + 2..];
        let length = text.len() - after.len() + up_to_newline(after).len();
        return Value { text: expand(&body[1..=end]), length, doubt: None };
    }

    let raw = before_comment(up_to_newline(body)).trim();
    let doubt = match quote {
        Some(quote) if raw.matches(quote).count() == 1 => Some(Doubt::OpenQuote),
        _ if raw.contains('#') => Some(Doubt::HashInside),
        _ => None,
    };
    Value { text: expand(raw), length: line.len(), doubt }
}

/// Where in `body`, which follows an opening quote, the closing one is: nothing but a comment may
/// follow it on its line.
///
/// A quote after a backslash closes only if no other one does (`"C:\"`), as in dotenv.
fn closing(body: &str, quote: char) -> Option<usize> {
    let unescaped =
        body.match_indices(quote).map(|(at, _)| at).find(|at| !body[..*at].ends_with('\\'));
    let escaped = &body[..unescaped.unwrap_or(body.len())];
    unescaped
        .into_iter()
        .chain(escaped.rmatch_indices(quote).map(|(at, _)| at))
        .find(|at| is_blank_or_comment(up_to_newline(&body[at + 1..])))
}

/// The part of an unquoted value before a `#` that begins it or follows a blank.
fn before_comment(line: &str) -> &str {
    let comment = line.match_indices('#').map(|(at, _)| at).find(|at| {
        let before = &line[..*at];
        before.is_empty() || before.ends_with(char::is_whitespace)
    });
    &line[..comment.unwrap_or(line.len())]
}

fn up_to_newline(text: &str) -> &str {
    text.split('\n').next().unwrap_or_default()
}

fn is_blank_or_comment(line: &str) -> bool {
    let line = line.trim_start();
    line.is_empty() || line.starts_with('#')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        parse(text).assignments.into_iter().map(|a| (a.name, a.value)).collect()
    }

    fn value_of(text: &str) -> String {
        let found = pairs(text);
        assert_eq!(found.len(), 1, "{text:?} gives {found:?}");
        found[0].1.clone()
    }

    /// Every expectation here is what dotenv 16.4.5 answers.
    #[test]
    fn a_value_reads_as_dotenv_reads_it() {
        for (text, expected) in [
            ("A=b", "b"),
            ("A = b ", "b"),
            ("  A=b", "b"),
            ("export A=b", "b"),
            ("export  A = b", "b"),
            ("A: b", "b"),
            ("A: http://h/", "http://h/"),
            ("A=", ""),
            ("A= ", ""),
            ("A=b=c", "b=c"),
            ("A=m1, m2", "m1, m2"),
            ("A=b # comment", "b"),
            ("A=# comment", ""),
            ("A=$HOME ${HOME}", "$HOME ${HOME}"),
            ("A=it's", "it's"),
            ("A='b'", "b"),
            ("A=' b '", " b "),
            ("A='b # c'", "b # c"),
            ("A='b' # c", "b"),
            ("A='b'#c", "b"),
            (r"A='b\nc'", r"b\nc"),
            (r#"A="b\nc\rd""#, "b\nc\rd"),
            (r#"A="b\tc\\d""#, r"b\tc\\d"),
            (r#"A="b \"c\" d""#, r#"b \"c\" d"#),
            (r#"A="C:\""#, r"C:\"),
            (r"A=b\nc", r"b\nc"),
            ("A=`b 'c' \"d\"`", "b 'c' \"d\""),
            ("A=\"b\nc\"", "b\nc"),
            ("A='b\n\nc' # d", "b\n\nc"),
            ("A=\"b\" c", "\"b\" c"),
            ("A=\"b", "\"b"),
            ("A=\"\"", ""),
            ("A.b-C_1=d", "d"),
            ("A=ключ", "ключ"),
        ] {
            assert_eq!(value_of(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_hash_begins_a_comment_only_after_a_blank() {
        let parsed = parse("A=b#c\nB=b #c\nC=b\t# c");
        let values: Vec<_> = parsed.assignments.iter().map(|a| a.value.as_str()).collect();
        assert_eq!(values, ["b#c", "b", "b"]);
        let doubts: Vec<_> = parsed.assignments.iter().map(|a| a.doubt).collect();
        assert_eq!(doubts, [Some(Doubt::HashInside), None, None]);
    }

    #[test]
    fn several_quoted_items_keep_their_quotes() {
        assert_eq!(value_of(r#"A="a", "b""#), r#""a", "b""#);
    }

    #[test]
    fn every_kind_of_line_end_and_a_bom_are_fine() {
        let expected = [("A", "b"), ("C", "d\ne"), ("F", "g")].map(|(n, v)| (n.into(), v.into()));
        for end in ["\n", "\r\n", "\r"] {
            for bom in ["", "\u{feff}"] {
                let text = format!("{bom}A=b{end}{end}# x=y{end}C='d{end}e'{end}F=g{end}");
                assert_eq!(pairs(&text), expected, "{text:?}");
            }
        }
    }

    #[test]
    fn assignments_come_in_the_order_of_the_file_with_their_lines() {
        let parsed = parse("A=1\n\nA='2\n2'\nB=3\n");
        let lines: Vec<_> = parsed.assignments.iter().map(|a| (a.line, a.name.as_str())).collect();
        assert_eq!(lines, [(1, "A"), (3, "A"), (5, "B")]);
    }

    #[test]
    fn a_line_that_assigns_nothing_is_told_by_its_number() {
        let parsed = parse("A=1\nsk-secret\n  # fine\n=x\nA B=c\nA:b\nэ=1\n\nB=2");
        assert_eq!(parsed.ignored, [2, 4, 5, 6, 7]);
        assert_eq!(parsed.assignments.len(), 2);
    }

    #[test]
    fn a_quote_that_nothing_closes_is_doubted() {
        let parsed = parse("A=\"a,\nB='x'\nC=`y");
        let doubts: Vec<_> = parsed.assignments.iter().map(|a| a.doubt).collect();
        assert_eq!(doubts, [Some(Doubt::OpenQuote), None, Some(Doubt::OpenQuote)]);
    }

    #[test]
    fn any_cut_of_a_file_parses() {
        let text = "\u{feff}export A=\"b\\\"\r\nc\" # d\r\nB: 'e' f\n`\nC=`g\u{a0}\n\"";
        for (at, _) in text.char_indices() {
            parse(&text[..at]);
            parse(&text[at..]);
        }
    }

    #[test]
    fn only_utf8_is_text() {
        assert_eq!(decode("A=ключ".as_bytes()), Ok("A=ключ"));
        for bytes in [&b"\xff\xfeA\0=\0"[..], b"\xfe\xff\0A\0=", b"A\0=\0b\0"] {
            assert_eq!(decode(bytes), Err("it is UTF-16 or binary; save it as UTF-8".to_owned()));
        }
        let latin1 = decode(b"A=1\nB=\xe9");
        assert_eq!(latin1, Err("line 2 is not UTF-8; save it as UTF-8".to_owned()));
    }

    #[test]
    fn debug_shows_no_value() {
        assert!(!format!("{:?}", parse("A=sk-secret")).contains("sk-secret"));
    }
}
