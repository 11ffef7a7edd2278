//! What one answer is counted as: what it said it used, and, where it did not say or not to its
//! end, the most it can have been.

use super::meter::TextMeter;
use super::usage::{Usage, UsageScan};

/// How much text may stand behind the last `usage` of a stream without being the model's, in bytes:
/// names and states of a gateway that we do not know.
const MOST_TRIFLES: u64 = 64;

/// What an answer is counted as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charge {
    /// What it said; `None` = nothing at all.
    pub said: Option<Usage>,
    /// The tokens by which the estimate is above that; 0 where it said all there is to say.
    pub estimated: u64,
}

impl Charge {
    /// A call that was sent and got no answer, with the most that it can have used.
    #[must_use]
    pub(crate) fn unanswered(most: u64) -> Self {
        Self { said: None, estimated: most }
    }

    /// Tokens, said and estimated.
    #[must_use]
    pub(crate) fn tokens(&self) -> u64 {
        let said = self.said.map_or(0, |usage| usage.tokens());
        said.saturating_add(self.estimated)
    }

    /// Whether it is counted in images, seconds or characters.
    #[must_use]
    pub(crate) fn is_in_other_units(&self) -> bool {
        self.said.is_some_and(|usage| usage.in_other_units)
    }
}

/// Watches an answer go by.
#[derive(Debug, Default)]
pub(crate) struct Metered {
    scan: UsageScan,
    text: TextMeter,
    is_stream: bool,
    has_ended: bool,
}

impl Metered {
    /// An answer that is about to come.
    #[must_use]
    pub(crate) fn new(is_stream: bool) -> Self {
        Self { is_stream, ..Self::default() }
    }

    /// The next bytes of it.
    pub(crate) fn see(&mut self, bytes: &[u8]) {
        self.scan.see(bytes);
        self.text.see(bytes);
        self.has_ended |= self.is_stream && self.scan.has_ended_within(bytes.len());
    }

    /// Whether a stream has said that it is over, whatever may still come.
    #[must_use]
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// What an application says that each of its models used.
    #[must_use]
    pub(crate) fn by_model(&self) -> Vec<(String, Charge)> {
        let charge = |usage| Charge { said: Some(usage), estimated: 0 };
        let used = self.scan.by_model().into_iter();
        used.map(|(model, usage)| (model, charge(usage))).collect()
    }

    /// What it is counted as if it ends here, `whole` or not. `input` is the most that its request
    /// can have had. What a stream said covers the text before it; what came after is estimated.
    #[must_use]
    pub(crate) fn charge(&self, whole: bool, input: impl FnOnce() -> u64) -> Charge {
        let said = self.scan.usage();
        let (text, behind) = self.text.text(self.is_stream);
        if self.is_told(whole, said, (text, behind)) {
            return Charge { said, estimated: 0 };
        }
        let usage = said.unwrap_or_default();
        let output = if said.is_some() { usage.output.saturating_add(behind) } else { text };
        let most = input().saturating_add(output);
        Charge { said, estimated: most.saturating_sub(usage.tokens()) }
    }

    /// Whether nothing would have to be estimated if it ended here.
    #[must_use]
    pub(crate) fn says_all(&self, whole: bool) -> bool {
        self.is_told(whole, self.scan.usage(), self.text.text(self.is_stream))
    }

    fn is_told(&self, whole: bool, said: Option<Usage>, (text, behind): (u64, u64)) -> bool {
        let usage = said.unwrap_or_default();
        let are_trifles = behind == 0 || behind <= MOST_TRIFLES && behind < text;
        let is_last_word = !self.is_stream || are_trifles;
        let is_all = (whole || self.has_ended) && is_last_word && !usage.lacks_input;
        let is_task = said.is_none() && !self.is_stream && self.scan.makes_task();
        said.is_some() && (is_all || usage.in_other_units) || is_task
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INPUT: u64 = 100;

    /// Input, output and estimated tokens.
    fn charged(answer: &str, whole: bool) -> (u64, u64, u64) {
        let mut metered = Metered::new(answer.starts_with("data") || answer.starts_with("event"));
        answer.as_bytes().chunks(7).for_each(|part| metered.see(part));
        let charge = metered.charge(whole, || INPUT);
        let said = charge.said.unwrap_or_default();
        assert_eq!(charge.tokens(), said.tokens() + charge.estimated);
        (said.input, said.output, charge.estimated)
    }

    #[test]
    fn an_answer_that_says_what_it_used_is_not_estimated() {
        for answer in [
            r#"{"content":"hello","usage":{"prompt_tokens":3,"completion_tokens":4}}"#,
            "data: {\"c\":\"hello\",\"usage\":null}\n\ndata: {\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\n\ndata: [DONE]\n\n",
            "event:message_start\ndata:{\"usage\":{\"input_tokens\":2,\"output_tokens\":0}}\n\ndata:{\"text\":\"hi\"}\n\ndata:{\"usage\":{\"input_tokens\":3,\"output_tokens\":4}}\n\nevent:message_stop\ndata:{\"type\":\"message_stop\"}\n\n",
            "data:{\"text\":\"h\",\"usage\":{\"input_tokens\":3,\"output_tokens\":1}}\n\ndata:{\"text\":\"hi\",\"usage\":{\"input_tokens\":3,\"output_tokens\":4}}\n\n",
        ] {
            assert_eq!(charged(answer, true), (3, 4, 0), "{answer}");
        }
    }

    #[test]
    fn every_success_of_the_corpus_is_whole_or_estimated() {
        let rows = include_str!("../../tests/data/upstream-corpus.jsonl").lines();
        let rows: Vec<serde_json::Value> =
            rows.map(|line| serde_json::from_str(line).unwrap()).collect();
        for (name, is_said) in [
            ("ok_openai_chat", true),
            ("ok_openai_chat_stream_with_usage", true),
            ("ok_openai_chat_TRAP_answer_quotes_error", true),
            ("ok_native_text", true),
            ("ok_native_stream", true),
            ("ok_anthropic_message", true),
            ("ok_anthropic_stream", true),
            ("ok_responses_stream_dashscope_style", true),
            ("ok_openai_embeddings", true),
            ("ok_openai_models", false),
        ] {
            let row = rows.iter().find(|row| row["name"] == name).unwrap();
            let stream = row["content_type"].as_str().unwrap().contains("event-stream");
            let mut metered = Metered::new(stream);
            metered.see(row["body"].as_str().unwrap().as_bytes());
            let charge = metered.charge(true, || INPUT);
            assert_eq!(
                (charge.said.is_some(), charge.estimated == 0),
                (is_said, is_said),
                "{name}"
            );
        }
    }

    #[test]
    fn a_few_names_behind_the_usage_do_not_make_it_doubtful() {
        let stream = |behind: &str| {
            format!(
                "data: {{\"c\":\"hello\"}}\n\ndata: {{\"usage\":{{\"prompt_tokens\":3,\"completion_tokens\":4}},\"provider\":\"{behind}\"}}\n\n"
            )
        };
        assert_eq!(charged(&stream("gateway-17"), true), (3, 4, 0));
        assert!(charged(&stream(&"x".repeat(99)), true).2 > 0);
    }

    #[test]
    fn an_answer_that_does_not_say_is_estimated_by_request_and_text() {
        let stream = "data: {\"id\":\"x\",\"c\":\"hello\",\"usage\":null}\n\ndata: [DONE]\n\n";
        assert_eq!(charged(stream, true), (0, 0, INPUT + 5));
        assert_eq!(charged(r#"{"id":"x","c":"hello"}"#, true), (0, 0, INPUT + 5));
        assert_eq!(charged("nothing of JSON", true), (0, 0, INPUT + 15));
        assert_eq!(charged("", false), (0, 0, INPUT));
    }

    #[test]
    fn a_stream_that_is_cut_is_estimated_above_what_it_had_said() {
        let start = "event:message_start\ndata:{\"usage\":{\"input_tokens\":9,\"output_tokens\":1}}\n\ndata:{\"text\":\"hello\"}\n\n";
        assert_eq!(charged(start, false), (9, 1, INPUT + 1 + 5 - 10));
        assert_eq!(charged(start, true), (9, 1, INPUT + 1 + 5 - 10), "nor is its start an end");
        let said = "data:{\"text\":\"h\",\"usage\":{\"input_tokens\":900,\"output_tokens\":7}}\n\n";
        assert_eq!(charged(said, false), (900, 7, 0), "what was said is more");
    }

    #[test]
    fn a_stream_that_has_said_all_may_be_left() {
        let told = "data: {\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\n\n";
        assert_eq!(charged(&format!("{told}data: [DONE]\n\n"), false), (3, 4, 0));
        assert!(charged(told, false).2 > 0);
    }

    #[test]
    fn an_answer_that_says_nothing_of_its_input_is_estimated() {
        assert_eq!(charged(r#"{"usage":{"output_tokens":4}}"#, true), (0, 4, INPUT));
    }

    #[test]
    fn a_task_that_has_only_begun_has_used_nothing() {
        let task = r#"{"output":{"task_status":"PENDING","task_id":"t"},"request_id":"r"}"#;
        assert_eq!(charged(task, true), (0, 0, 0));
        let talk = r#"{"output":{"text":"the \"task_id\" is t"}}"#;
        assert!(charged(talk, true).2 > INPUT);
    }

    #[test]
    fn pictures_are_no_tokens() {
        let mut metered = Metered::new(false);
        metered.see(br#"{"output":{"image":"https://x"},"usage":{"image_count":1}}"#);
        let charge = metered.charge(true, || INPUT);
        assert!(charge.is_in_other_units() && charge.tokens() == 0);
    }
}
