//! How much text an answer has, for answers that do not say what they used: counted beside the
//! relay, in whatever parts the answer comes, and without a tree.
//!
//! Text is every string that is a value, whatever it is called, but for a few members that are
//! never generated: an unknown member makes the count too high, never too low.

use memchr::{memchr, memchr3};

/// Members whose texts DashScope writes and no model: names, states, vectors and pictures. An
/// event of a stream repeats them for a few bytes of text.
const NO_TEXT: [&[u8]; 18] = [
    b"id",
    b"object",
    b"model",
    b"role",
    b"type",
    b"status",
    b"finish_reason",
    b"stop_reason",
    b"request_id",
    b"system_fingerprint",
    b"service_tier",
    b"item_id",
    b"call_id",
    b"response_id",
    b"previous_response_id",
    b"task_id",
    b"embedding",
    b"b64_json",
];

const USAGE: &[u8] = b"usage";

/// How much of a name is kept, in bytes: a longer one is none of ours.
const LONGEST_NAME: usize = 24;

/// What a string that is a value belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Of {
    /// A member that is no text.
    NoText,
    /// Anything else, a list for instance.
    #[default]
    Text,
}

/// Where the meter stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Between strings: the first two bytes there that are no blanks.
    #[default]
    Between,
    InString,
    /// Right behind a backslash.
    Escaped,
}

/// Counts the text of an answer that goes by.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TextMeter {
    seen: u64,
    /// The first byte that is no blank.
    first: Option<u8>,
    text: u64,
    /// How much text there was when the last `usage` began.
    before_usage: u64,
    place: Place,
    of: Of,
    /// The last string: how long it is, and how it begins. None is left before the first.
    length: Option<u64>,
    name: [u8; LONGEST_NAME],
    /// The first two bytes behind it that are no blanks.
    behind: [Option<u8>; 2],
}

impl TextMeter {
    /// The next bytes of the answer.
    pub(crate) fn see(&mut self, mut bytes: &[u8]) {
        self.seen += bytes.len() as u64;
        if self.first.is_none() {
            self.first = bytes.iter().copied().find(|byte| !byte.is_ascii_whitespace());
        }
        while !bytes.is_empty() {
            let taken = match self.place {
                Place::Between => self.see_between(bytes),
                Place::InString => self.see_string(bytes),
                Place::Escaped => {
                    self.extend(&bytes[..1]);
                    self.place = Place::InString;
                    1
                }
            };
            bytes = &bytes[taken..];
        }
    }

    /// How much text there was, in bytes, and how much of it behind the last `usage`. What is
    /// neither JSON nor a stream of it is text as a whole.
    #[must_use]
    pub(crate) fn text(&self, is_stream: bool) -> (u64, u64) {
        if !is_stream && !matches!(self.first, Some(b'{' | b'[') | None) {
            return (self.seen, self.seen);
        }
        let mut meter = *self;
        meter.settle();
        (meter.text, meter.text - meter.before_usage)
    }

    fn see_between(&mut self, bytes: &[u8]) -> usize {
        let quote = memchr(b'"', bytes);
        let gap = &bytes[..quote.unwrap_or(bytes.len())];
        for byte in gap.iter().filter(|byte| !byte.is_ascii_whitespace()) {
            match self.behind.iter_mut().find(|place| place.is_none()) {
                Some(place) => *place = Some(*byte),
                None => break,
            }
        }
        let Some(quote) = quote else { return bytes.len() };
        self.settle();
        self.length = Some(0);
        self.behind = [None; 2];
        self.place = Place::InString;
        quote + 1
    }

    /// A line end ends a string, too: JSON has none inside, and what is cut ends with its line.
    fn see_string(&mut self, bytes: &[u8]) -> usize {
        let Some(at) = memchr3(b'"', b'\\', b'\n', bytes) else {
            self.extend(bytes);
            return bytes.len();
        };
        self.extend(&bytes[..at]);
        if bytes[at] == b'\\' {
            self.extend(b"\\");
            self.place = Place::Escaped;
        } else {
            self.place = Place::Between;
        }
        at + 1
    }

    fn extend(&mut self, part: &[u8]) {
        let length = self.length.unwrap_or(0);
        for (place, byte) in self.name.iter_mut().skip(length as usize).zip(part) {
            *place = *byte;
        }
        self.length = Some(length + part.len() as u64);
    }

    /// Decides what the last string was, now that it is known what stands behind it.
    fn settle(&mut self) {
        let Some(length) = self.length.take() else { return };
        let [first, second] = self.behind;
        if first != Some(b':') || self.place != Place::Between {
            self.text += if self.of == Of::Text { length } else { 0 };
            self.of = Of::Text;
            return;
        }
        let name = self.name.get(..length as usize).unwrap_or_default();
        self.of = if second.is_none() && NO_TEXT.contains(&name) { Of::NoText } else { Of::Text };
        if second == Some(b'{') && name == USAGE {
            self.before_usage = self.text;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn how_an_answer_is_cut_does_not_change_what_is_counted(
            answer in r#"([{}:,"\\\n a]|"id"|"usage":|data: ){0,60}"#,
            cuts in prop::collection::vec(1..9_usize, 1..60),
        ) {
            let mut whole = TextMeter::default();
            whole.see(answer.as_bytes());
            let (mut parts, mut rest) = (TextMeter::default(), answer.as_bytes());
            for cut in cuts.into_iter().chain([usize::MAX]) {
                let (part, behind) = rest.split_at(cut.min(rest.len()));
                parts.see(part);
                rest = behind;
            }
            for is_stream in [false, true] {
                let (text, behind) = whole.text(is_stream);
                prop_assert_eq!(parts.text(is_stream), (text, behind));
                prop_assert!(behind <= text && text <= answer.len() as u64);
            }
        }
    }

    fn text(answer: &str) -> (u64, u64) {
        let metered = |step: usize| {
            let mut meter = TextMeter::default();
            answer.as_bytes().chunks(step).for_each(|part| meter.see(part));
            meter.text(answer.starts_with("data") || answer.starts_with("event"))
        };
        let whole = metered(answer.len().max(1));
        for step in [1, 2, 3, 7, 16] {
            assert_eq!(metered(step), whole, "in parts of {step}: {answer}");
        }
        whole
    }

    #[test]
    fn only_what_a_model_may_have_written_is_text() {
        for (answer, expected) in [
            (r#"{"id":"chatcmpl-1","model":"m1","content":"hello"}"#, 5),
            (r#"{ "id" : "x" , "content" : "a\"b\\" }"#, 6),
            (r#"{"content":"\u4f60"}"#, 6),
            (
                r#"{"choices":[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}}]}"#,
                3,
            ),
            (r#"{"type":[{"type":"x"},"abc"]}"#, 3),
            (r#"{"type":null,"a":"id","b":1}"#, 2),
            (r#"{"data":[{"embedding":[0.25,1e-3]},{"embedding":"AAAA"}]}"#, 0),
            (r#"{"a_name_that_is_longer_than_any_of_ours_id":"abc"}"#, 3),
            (r#""a text""#, 6),
            ("", 0),
        ] {
            let expected = if answer.starts_with('"') { answer.len() as u64 } else { expected };
            assert_eq!(text(answer).0, expected, "{answer}");
        }
    }

    #[test]
    fn what_is_no_json_is_text_as_a_whole() {
        assert_eq!(text("not even JSON"), (13, 13));
        assert_eq!(text("\u{fffd}PNG \"x\""), (10, 10));
    }

    #[test]
    fn what_came_behind_the_last_usage_is_known() {
        let stream =
            "data: {\"c\":\"one\",\"usage\":null}\n\ndata: {\"c\":\"two\",\"usage\":{\"n\":1}}\n\n";
        assert_eq!(text(stream), (6, 0));
        assert_eq!(text(&format!("{stream}data: {{\"c\":\"three\"}}\n\n")), (11, 5));
        assert_eq!(text("event:ping\ndata:{\"usage\":{\"n\":1},\"c\":\"four\"}\n\n"), (4, 4));
    }

    #[test]
    fn a_string_that_is_cut_counts_as_far_as_it_came() {
        assert_eq!(text("data: {\"c\":\"hel"), (3, 3));
        assert_eq!(text("data: {\"c\":\"hel\n\ndata: {\"id\":\"x\",\"c\":\"lo\"}\n\n"), (5, 5));
        assert_eq!(text(r#"{"c":"hel\"#), (4, 4));
    }

    #[test]
    fn a_text_that_looks_like_a_member_is_text() {
        assert_eq!(text(r#"{"c":"\"usage\":{\"id\":\"x\"}"}"#).1, 24);
    }
}
