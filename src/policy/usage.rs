//! What an answer says it used: read beside the relay, from its first and its last bytes.
//!
//! DashScope has three families of names (facts, section 3): `prompt_tokens` and
//! `completion_tokens`, `input_tokens` and `output_tokens`, and what is not counted in tokens:
//! images, seconds, characters. A stream tells what it has used so far, or at first a guess, and a
//! tool's arguments may hold a `usage` of their own: of all that is said the most counts.

use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

/// How much of an answer's beginning and of its end is read, in bytes.
const HEAD: usize = 8 * 1024;
const TAIL: usize = 16 * 1024;

/// How much is cut off at once, so that a byte is moved about few times.
const STEP: usize = 4 * 1024;

/// The memory with which a scan begins, in bytes: most answers need no more.
const USUAL: usize = 2 * 1024;

/// What an asynchronous call is answered with instead of its usage, which is the task's.
const TASK: &[u8] = b"\"task_id\"";

/// The name of the member. Inside a text of JSON its quotes would be escaped.
const NAME: &[u8] = b"\"usage\"";

/// What marks the end of a stream. Text of JSON holds no line end, so none of these can be part of
/// an answer's words.
const ENDS: [&[u8]; 6] = [
    b"\ndata: [DONE]",
    b"\ndata:[DONE]",
    b"\nevent: message_stop",
    b"\nevent:message_stop",
    b"\nevent: response.completed",
    b"\nevent:response.completed",
];

/// The longest of [`ENDS`], in bytes: as much of one may have come with the part before.
const LONGEST_END: usize = 26;

/// What was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Tokens that went in.
    pub input: u64,
    /// Tokens that came out.
    pub output: u64,
    /// Pictures that came out.
    pub images: u64,
    /// Whether it is counted in something else than tokens: images, seconds, characters.
    pub in_other_units: bool,
    /// Whether it says nothing of what went in, although it does of what came out.
    pub lacks_input: bool,
}

impl Usage {
    /// Tokens in and out.
    #[must_use]
    pub(crate) fn tokens(&self) -> u64 {
        self.input.saturating_add(self.output)
    }
}

/// Watches an answer go by. It keeps at least its last 16 KiB, at most 20.
#[derive(Debug, Default)]
pub(crate) struct UsageScan {
    kept: Vec<u8>,
    /// What the beginning said, once all of it has been seen.
    first: Most,
    has_begun: bool,
}

impl UsageScan {
    /// The next bytes of the answer.
    pub(crate) fn see(&mut self, mut bytes: &[u8]) {
        if !self.has_begun {
            let (head, rest) = bytes.split_at(bytes.len().min(HEAD - self.kept.len()));
            self.keep(head);
            bytes = rest;
            if self.kept.len() < HEAD {
                return;
            }
            self.first = Most::said_in(&self.kept);
            self.has_begun = true;
        }
        let bytes = &bytes[bytes.len().saturating_sub(TAIL)..];
        if self.kept.len() + bytes.len() > TAIL + STEP {
            let before = TAIL - bytes.len();
            self.kept.drain(..self.kept.len().saturating_sub(before));
        }
        self.keep(bytes);
    }

    fn keep(&mut self, bytes: &[u8]) {
        let needed = self.kept.len() + bytes.len();
        if needed > self.kept.capacity() {
            // Never twice of nearly all.
            let capacity = (2 * needed).clamp(USUAL, TAIL + STEP);
            self.kept.reserve_exact(capacity - self.kept.len());
        }
        self.kept.extend_from_slice(bytes);
    }

    /// How much memory it has right now, in bytes.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn kept(&self) -> usize {
        self.kept.capacity()
    }

    /// What the answer said, if it said it.
    #[must_use]
    pub(crate) fn usage(&self) -> Option<Usage> {
        // More may be kept, by how the answer was cut: that must not change what is found.
        let tail = &self.kept[self.kept.len().saturating_sub(TAIL)..];
        let Most { input, output, total, images, in_other_units } =
            self.first.or_more(Most::said_in(tail));
        // An embedding has a total and nothing else.
        let input = input.or(if output.is_none() { total } else { None });
        if input.is_none() && output.is_none() && images.is_none() && !in_other_units {
            return None;
        }
        let (lacks_input, input) = (input.is_none() && output.is_some(), input.unwrap_or(0));
        // What the total has beyond both came out in some way.
        let rest = total.unwrap_or(0).saturating_sub(input);
        let output = output.map_or(0, |output| if lacks_input { output } else { output.max(rest) });
        Some(Usage { input, output, images: images.unwrap_or(0), in_other_units, lacks_input })
    }

    /// What an application of DashScope says its models used: their ids, and how much each.
    #[must_use]
    pub(crate) fn by_model(&self) -> Vec<(String, Usage)> {
        let objects = memchr::memmem::rfind_iter(&self.kept, NAME);
        let told = objects.filter_map(|at| object_at::<Application>(&self.kept, at)).next();
        let models = told.map(|told| told.models).unwrap_or_default().into_iter();
        let used = |OfModel { model_id, input_tokens, output_tokens }| {
            let count = |told| number(told).unwrap_or(0);
            let (input, output) = (count(input_tokens), count(output_tokens));
            (model_id, Usage { input, output, ..Usage::default() })
        };
        models.map(used).collect()
    }

    /// Whether a short answer hands out a task: what that uses is told when it is done, and in
    /// images, seconds or characters.
    #[must_use]
    pub(crate) fn makes_task(&self) -> bool {
        !self.has_begun && memchr::memmem::find(&self.kept, TASK).is_some()
    }

    /// Whether the end of a stream is among the last `recent` bytes that were seen.
    #[must_use]
    pub(crate) fn has_ended_within(&self, recent: usize) -> bool {
        let recent = recent.saturating_add(LONGEST_END);
        let tail = &self.kept[self.kept.len().saturating_sub(recent)..];
        ENDS.iter().any(|end| memchr::memmem::find(tail, end).is_some())
    }
}

/// The most that any `usage` says of each thing.
#[derive(Clone, Copy, Debug, Default)]
struct Most {
    input: Option<u64>,
    output: Option<u64>,
    total: Option<u64>,
    images: Option<u64>,
    in_other_units: bool,
}

impl Most {
    fn said_in(bytes: &[u8]) -> Self {
        let objects = memchr::memmem::find_iter(bytes, NAME);
        let told = objects.filter_map(|at| object_at::<Told>(bytes, at));
        told.fold(Self::default(), |most, told| most.or_more(Self::of(&told)))
    }

    fn of(told: &Told) -> Self {
        Self {
            input: told.input(),
            output: told.output(),
            total: number(told.total_tokens),
            images: number(told.image_count),
            in_other_units: told.has_other_units(),
        }
    }

    fn or_more(self, other: Self) -> Self {
        Self {
            input: self.input.max(other.input),
            output: self.output.max(other.output),
            total: self.total.max(other.total),
            images: self.images.max(other.images),
            in_other_units: self.in_other_units || other.in_other_units,
        }
    }
}

/// The object behind the name that stands at `at`; `None` for null, and for one that is cut.
fn object_at<'a, T: Deserialize<'a>>(bytes: &'a [u8], at: usize) -> Option<T> {
    let value = bytes[at + NAME.len()..].trim_ascii_start().strip_prefix(b":")?;
    // From an array serde would read the members in their order.
    let object = Some(value.trim_ascii_start()).filter(|value| value.starts_with(b"{"))?;
    serde_json::Deserializer::from_slice(object).into_iter().next()?.ok()
}

/// The `usage` of an application.
#[derive(Deserialize)]
struct Application {
    models: Vec<OfModel>,
}

/// What one of its models used.
#[derive(Deserialize)]
struct OfModel {
    model_id: String,
    input_tokens: Option<Count>,
    output_tokens: Option<Count>,
}

/// A `usage` object.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct Told {
    prompt_tokens: Option<Count>,
    completion_tokens: Option<Count>,
    input_tokens: Option<Count>,
    output_tokens: Option<Count>,
    cache_creation_input_tokens: Option<Count>,
    cache_read_input_tokens: Option<Count>,
    total_tokens: Option<Count>,
    image_count: Option<Count>,
    seconds: Option<Count>,
    duration: Option<Count>,
    audio_seconds: Option<Count>,
    video_duration: Option<Count>,
    video_count: Option<Count>,
    characters: Option<Count>,
}

/// A number, however it is written: parts count as a whole, and less than nothing as nothing.
#[derive(Clone, Copy, Debug)]
struct Count(u64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CountVisitor)
    }
}

struct CountVisitor;

impl Visitor<'_> for CountVisitor {
    type Value = Count;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Count, E> {
        Ok(Count(number))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Count, E> {
        Ok(Count(number.try_into().unwrap_or(0)))
    }

    /// `as` keeps to the bounds.
    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Count, E> {
        Ok(Count(number.ceil() as u64))
    }
}

fn number(count: Option<Count>) -> Option<u64> {
    count.map(|Count(number)| number)
}

impl Told {
    /// Anthropic counts what comes from its cache apart.
    fn input(&self) -> Option<u64> {
        let cached = [self.cache_creation_input_tokens, self.cache_read_input_tokens];
        let cached = cached.into_iter().filter_map(number).fold(0, u64::saturating_add);
        let own = number(self.input_tokens).map(|tokens| tokens.saturating_add(cached));
        number(self.prompt_tokens).or(own)
    }

    fn output(&self) -> Option<u64> {
        number(self.completion_tokens.or(self.output_tokens))
    }

    fn has_other_units(&self) -> bool {
        let seconds = [self.seconds, self.duration, self.audio_seconds, self.video_duration];
        let counts = [self.image_count, self.video_count, self.characters];
        seconds.into_iter().chain(counts).filter_map(number).any(|count| count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scanned(bytes: &[u8], step: usize) -> Option<Usage> {
        let mut scan = UsageScan::default();
        bytes.chunks(step).for_each(|chunk| scan.see(chunk));
        scan.usage()
    }

    #[test]
    fn a_usage_among_the_arguments_of_a_tool_hides_none() {
        let said = r#""usage":{"input_tokens":500,"output_tokens":700}"#;
        let tool = r#""content":[{"type":"tool_use","input":{"usage":{"input_tokens":0,"output_tokens":1}}}]"#;
        for text in [
            format!("{{{said},{tool}}}"),
            format!("{{{tool},{said}}}"),
            format!("{{{tool},{said},{tool}}}"),
        ] {
            assert_eq!(usage(&text), Some((500, 700, 0)), "{text}");
        }
    }

    fn usage(text: &str) -> Option<(u64, u64, u64)> {
        let seen: Vec<_> =
            [1, 7, 1000, usize::MAX >> 1].map(|step| scanned(text.as_bytes(), step)).into();
        assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "{seen:?}");
        seen[0].map(|usage| (usage.input, usage.output, usage.images))
    }

    #[derive(Deserialize)]
    struct Row {
        name: String,
        body: String,
    }

    #[test]
    fn every_success_of_the_corpus_tells_what_it_used() {
        let rows = include_str!("../../tests/data/upstream-corpus.jsonl").lines();
        let rows: Vec<Row> = rows.map(|line| serde_json::from_str(line).unwrap()).collect();
        for (name, expected) in [
            ("ok_openai_chat", Some((22, 1, 0))),
            ("ok_openai_chat_stream_with_usage", Some((22, 2, 0))),
            ("ok_openai_chat_TRAP_answer_quotes_error", Some((10, 40, 0))),
            ("ok_native_text", Some((8, 39, 0))),
            ("ok_native_stream", Some((8, 3, 0))),
            ("ok_anthropic_message", Some((62, 34, 0))),
            ("ok_anthropic_stream", Some((63, 23, 0))),
            ("ok_responses_stream_dashscope_style", Some((5, 2, 0))),
            ("ok_openai_embeddings", Some((23, 0, 0))),
            ("ok_native_async_submit", None),
            ("ok_openai_models", None),
        ] {
            let row = rows.iter().find(|row| row.name == name).unwrap();
            assert_eq!(usage(&row.body), expected, "{name}");
        }
    }

    #[test]
    fn pictures_are_counted_apart() {
        assert_eq!(usage(r#"{"output":{},"usage":{"image_count":2}}"#), Some((0, 0, 2)));
    }

    #[test]
    fn what_is_not_counted_in_tokens_is_known_as_such() {
        for (told, others) in [
            (r#"{"image_count":1}"#, true),
            (r#"{"image_count":0,"input_tokens":1}"#, false),
            (r#"{"seconds":1.25}"#, true),
            (r#"{"duration":4}"#, true),
            (r#"{"video_duration":5,"video_ratio":"16:9","video_count":1}"#, true),
            (r#"{"characters":195,"input_tokens":0}"#, true),
            (r#"{"input_tokens":1277,"output_tokens":30,"image_tokens":1247}"#, false),
        ] {
            let usage = scanned(format!(r#"{{"output":{{}},"usage":{told}}}"#).as_bytes(), 7);
            assert_eq!(usage.unwrap().in_other_units, others, "{told}");
        }
    }

    #[test]
    fn an_application_says_what_each_of_its_models_used() {
        let by_model = |answer: &str| {
            let mut scan = UsageScan::default();
            answer.as_bytes().chunks(5).for_each(|part| scan.see(part));
            let used = scan.by_model().into_iter();
            used.map(|(model, usage)| (model, usage.input, usage.output)).collect::<Vec<_>>()
        };
        let answer = r#"{"output":{"text":"x"},"usage":{"models":[{"output_tokens":5,"model_id":"qwen-plus","input_tokens":74},{"model_id":"m"}]}}"#;
        assert_eq!(by_model(answer), [("qwen-plus".to_owned(), 74, 5), ("m".to_owned(), 0, 0)]);
        for answer in [r#"{"usage":{"input_tokens":1}}"#, r#"{"usage":{"models":[{}]}}"#, "", "{"] {
            assert!(by_model(answer).is_empty(), "{answer}");
        }
    }

    #[test]
    fn a_total_beyond_both_counts_and_a_missing_input_is_noticed() {
        let said = r#"{"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":17}}"#;
        assert_eq!(usage(said), Some((3, 14, 0)));
        let said = scanned(br#"{"usage":{"output_tokens":4,"total_tokens":9}}"#, 5).unwrap();
        assert_eq!((said.lacks_input, said.output), (true, 4));
    }

    #[test]
    fn the_end_of_a_stream_is_recognised_in_whatever_parts_it_comes() {
        for end in ENDS {
            let stream = [b"data: {\"x\":\"[DONE]\"}\n", end, b"\n\n"].concat();
            for step in [1, 5, 1000] {
                let mut scan = UsageScan::default();
                let mut ended = false;
                for chunk in stream.chunks(step) {
                    scan.see(chunk);
                    ended |= scan.has_ended_within(chunk.len());
                }
                assert!(ended, "{}", String::from_utf8_lossy(end));
            }
            assert!(end.len() <= LONGEST_END);
        }
        let mut scan = UsageScan::default();
        scan.see(br#"data: {"content":"\ndata: [DONE] event:message_stop"}"#);
        assert!(!scan.has_ended_within(100));
    }

    #[test]
    fn a_number_counts_however_it_is_written() {
        for (written, count) in [
            ("700.0", 700),
            ("7e2", 700),
            ("699.2", 700),
            ("-7", 0),
            ("-0.5", 0),
            ("1e300", u64::MAX),
            ("99999999999999999999999", u64::MAX),
        ] {
            let answer =
                format!(r#"{{"usage":{{"prompt_tokens":{written},"total_tokens":null}}}}"#);
            assert_eq!(usage(&answer), Some((count, 0, 0)), "{written}");
        }
        assert_eq!(usage(r#"{"usage":{"prompt_tokens":"7"}}"#), None);
    }

    #[test]
    fn a_stream_that_does_not_say_is_unknown() {
        assert_eq!(usage("data: {\"usage\":null}\n\ndata: [DONE]\n\n"), None);
        assert_eq!(usage(r#"{"text":"\"usage\":{\"prompt_tokens\":7}"}"#), None);
        assert_eq!(usage(r#"{"usage":{"prompt_tokens":7"#), None);
        assert_eq!(usage(r#"{"usage":[1,2,3,4,5,6,7,8]}"#), None);
        assert_eq!(usage(""), None);
    }

    #[test]
    fn what_the_end_leaves_out_was_told_at_the_beginning() {
        let stream = format!(
            "data:{{\"message\":{{\"usage\":{{\"input_tokens\":9,\"output_tokens\":0}}}}}}\n\n{}data:{{\"usage\":{{\"output_tokens\":5}}}}\n\n",
            ":x\n\n".repeat(50_000)
        );
        assert_eq!(usage(&stream), Some((9, 5, 0)));
    }

    #[test]
    fn how_an_answer_is_cut_does_not_change_what_is_found() {
        for behind in [TAIL - 100, TAIL, TAIL + 1000, 2 * TAIL] {
            let before = " ".repeat(HEAD);
            let behind = " ".repeat(behind);
            usage(&format!(r#"{{{before}"usage":{{"input_tokens":9}}{behind}}}"#));
        }
    }

    #[test]
    fn counts_of_any_size_are_added() {
        let most = u64::MAX;
        let text = format!(
            r#"{{"usage":{{"input_tokens":{most},"cache_read_input_tokens":{most},"cache_creation_input_tokens":1}}}}"#
        );
        assert_eq!(usage(&text), Some((most, 0, 0)));
    }

    #[test]
    fn a_long_answer_is_scanned_in_bounded_memory() {
        let mut scan = UsageScan::default();
        for _ in 0..1000 {
            scan.see(&[b'x'; 10_000]);
            assert!(scan.kept() <= TAIL + STEP);
        }
        scan.see(br#"","usage":{"prompt_tokens":3,"completion_tokens":4}}"#);
        let expected = Usage { input: 3, output: 4, ..Usage::default() };
        assert_eq!(scan.usage(), Some(expected));
    }
}
