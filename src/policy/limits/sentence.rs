//! The sentences in which DashScope says what a model cannot take.
//!
//! The whole message has to be one of them: an answer may echo a caller's own text, and a
//! sentence inside that is nobody's limit. Where they were seen: facts, `limits.md` section 4.

/// What the gateway may put before a sentence, one behind the other. Another status in the brackets
/// than that of a refusal is about something else.
const STATUS: &str = "<400> ";
const PREFIX: &str = "InternalError.Algo.InvalidParameter: ";

/// What the manual's newer answers put behind one; an address of the manual follows.
const DETAILS: &str = " For details, see: https://";

/// Stands for what differs in a pattern: a number or a name.
const HOLE: &str = "{}";

/// A sentence that was understood, with what it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sentence<'a> {
    /// So many tokens of output at most.
    MaxOutput(u64),
    /// So many tokens of input at most.
    MaxInput(u64),
    /// So many tokens of thinking at most; 0: this model does not think.
    ThinkingBudget(u64),
    /// The output that was asked for must be more than this model's budget of thinking.
    BudgetOverOutput(u64),
    /// Thinking must be switched off where the answer is not streamed.
    ThinkingNeedsStream,
    /// Thinking cannot be switched off.
    OnlyThinks,
    /// Thinking cannot be switched at all.
    NeverThinks,
    /// The words that this model knows for how hard to think.
    Effort(Vec<&'a str>),
    /// Who thinks must stream increments.
    ThinkingNeedsIncrements,
    /// No tools.
    NoTools,
    /// No choice of a tool that forces one.
    NoForcedTool {
        /// It does outside of thinking.
        in_thinking: bool,
    },
    /// Not this tool of DashScope's own.
    NoBuiltInTool(&'a str),
    /// JSON and thinking exclude each other.
    NoJsonInThinking,
    /// No search.
    NoSearch,
    /// Not this parameter.
    NoParameter(&'a str),
    /// Streams only.
    OnlyStreams,
    /// Spoken answers are streamed only.
    SpeechNeedsStream,
    /// Streams in increments only.
    OnlyIncrements,
    /// No roles but the user's and the assistant's.
    OnlyTwoRoles,
    /// This model is not served on this path.
    NotServed(&'a str),
    /// This model is not served at this URL of the native protocol.
    WrongUrl,
    /// A part of a message is of a kind that this model does not take, or is malformed.
    OddPart,
    /// A message's content has to be a text.
    OnlyTexts,
}

type Reading = for<'a> fn(&[&'a str]) -> Option<Sentence<'a>>;

/// Every pattern, without a full stop at its end, and what it says.
#[rustfmt::skip]
const PATTERNS: &[(&str, Reading)] = &[
    ("Range of max_tokens should be [1, {}]", |it| number(it[0]).filter(|n| *n > 0).map(Sentence::MaxOutput)),
    ("Range of input length should be [1, {}]", |it| number(it[0]).map(Sentence::MaxInput)),
    ("Total message token length exceed model limit ({} tokens)", |it| number(it[0]).map(Sentence::MaxInput)),
    ("The thinking_budget parameter must be a positive integer and not greater than {}", |it| number(it[0]).map(Sentence::ThinkingBudget)),
    ("max_completion_tokens [{}] must be greater than thinking_budget [{}]", |it| number(it[0]).and(number(it[1])).map(Sentence::BudgetOverOutput)),
    ("parameter.enable_thinking must be set to false for non-streaming calls", |_| Some(Sentence::ThinkingNeedsStream)),
    ("parameter.enable_thinking only support stream call", |_| Some(Sentence::ThinkingNeedsStream)),
    ("parameter.enable_thinking必须设置为false才能进行非流式调用", |_| Some(Sentence::ThinkingNeedsStream)),
    ("parameter.enable_thinking 必须设置为 false 才能进行非流式调用", |_| Some(Sentence::ThinkingNeedsStream)),
    ("The value of the enable_thinking parameter is restricted to True", |_| Some(Sentence::OnlyThinks)),
    ("The model {} does not support enable_thinking", |it| name(it[0]).map(|_| Sentence::NeverThinks)),
    ("'reasoning_effort' must be one of: {}", |it| words(it[0]).map(Sentence::Effort)),
    ("The incremental_output parameter must be \"true\" when enable_thinking is true", |_| Some(Sentence::ThinkingNeedsIncrements)),
    ("The tool call is not supported", |_| Some(Sentence::NoTools)),
    ("The tool_choice parameter does not support being set to required or object in thinking mode", |_| Some(Sentence::NoForcedTool { in_thinking: true })),
    ("The tool_choice parameter does not support being set to required or object", |_| Some(Sentence::NoForcedTool { in_thinking: false })),
    ("tool_choice is one of the strings that should be [\"none\", \"auto\"]", |_| Some(Sentence::NoForcedTool { in_thinking: false })),
    ("The current model does not support the {} tool", |it| name(it[0]).map(Sentence::NoBuiltInTool)),
    ("Json mode response is not supported when enable_thinking is true", |_| Some(Sentence::NoJsonInThinking)),
    ("This model does not support enable_search", |_| Some(Sentence::NoSearch)),
    ("The parameters `{}` is not supported", |it| name(it[0]).map(Sentence::NoParameter)),
    ("This model only support stream mode", |_| Some(Sentence::OnlyStreams)),
    ("This model only support stream mode, please enable the stream parameter", |_| Some(Sentence::OnlyStreams)),
    ("This model only support stream mode, please enable the stream parameter to access the model", |_| Some(Sentence::OnlyStreams)),
    ("current user api does not support http call", |_| Some(Sentence::OnlyStreams)),
    ("'audio' output only support with stream=true", |_| Some(Sentence::SpeechNeedsStream)),
    ("This model only supports incremental_output set to True", |_| Some(Sentence::OnlyIncrements)),
    ("The incremental_output parameter of this model cannot be set to False", |_| Some(Sentence::OnlyIncrements)),
    ("Role must be in [user, assistant]", |_| Some(Sentence::OnlyTwoRoles)),
    ("Unsupported model `{}` for OpenAI compatibility mode", |it| name(it[0]).map(Sentence::NotServed)),
    ("Unsupported model {} for OpenAI compatibility mode", |it| name(it[0]).map(Sentence::NotServed)),
    ("Unsupported model: '{}'", |it| name(it[0]).map(Sentence::NotServed)),
    ("model {} is not supported", |it| name(it[0].trim_matches(['`', '\''])).map(Sentence::NotServed)),
    ("url error, please check url！", |_| Some(Sentence::WrongUrl)),
    ("url error, please check url!", |_| Some(Sentence::WrongUrl)),
    ("url error, check url！", |_| Some(Sentence::WrongUrl)),
    ("url error, check url!", |_| Some(Sentence::WrongUrl)),
    ("The provided messages input is invalid. The error info is [Unexpected item type in content.]", |_| Some(Sentence::OddPart)),
    ("The provided messages input is invalid. The error info is [Unexpected item type in content]", |_| Some(Sentence::OddPart)),
    ("The content field's type should be `str` in messages", |_| Some(Sentence::OnlyTexts)),
    ("input content must be a string", |_| Some(Sentence::OnlyTexts)),
];

impl<'a> Sentence<'a> {
    /// What a whole message says, if it is one of the known sentences.
    #[must_use]
    pub(crate) fn read(message: &'a str) -> Option<Self> {
        let bare = bare(message);
        PATTERNS.iter().find_map(|(pattern, reading)| reading(&fill(bare, pattern)?))
    }
}

/// The sentence without what the gateway puts around it.
fn bare(message: &str) -> &str {
    let message = message.trim();
    let message = message.strip_prefix(STATUS).unwrap_or(message);
    let message = strip_prefix(message, PREFIX).unwrap_or(message).trim();
    let message = without_details(message).unwrap_or(message);
    message.strip_suffix('.').or_else(|| message.strip_suffix('。')).unwrap_or(message)
}

/// What stands before an address of the manual, if nothing follows that.
fn without_details(message: &str) -> Option<&str> {
    let (sentence, address) = message.rsplit_once(DETAILS)?;
    let is_manual = address.contains("/model-studio/error-code");
    (is_manual && !address.contains(char::is_whitespace)).then_some(sentence)
}

/// What stands in the holes of a pattern, if the rest of the text is the pattern's in whatever
/// case.
fn fill<'a>(text: &'a str, pattern: &str) -> Option<Vec<&'a str>> {
    let mut pieces = pattern.split(HOLE);
    let mut rest = strip_prefix(text, pieces.next()?)?;
    let mut holes = Vec::new();
    for piece in pieces {
        let end = if piece.is_empty() { rest.len() } else { find(rest, piece)? };
        let (hole, after) = rest.split_at(end);
        holes.push(hole);
        rest = &after[piece.len()..];
    }
    rest.is_empty().then_some(holes)
}

fn strip_prefix<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let (start, rest) = text.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(rest)
}

fn find(text: &str, piece: &str) -> Option<usize> {
    let begins = |at: &usize| text.get(*at..).and_then(|rest| strip_prefix(rest, piece)).is_some();
    (0..text.len()).find(begins)
}

/// A number written with digits alone.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// A model's, a tool's or a parameter's name: it has no blank and no quote in it.
fn name(text: &str) -> Option<&str> {
    let is_plain = |c: char| !c.is_whitespace() && !"`'\"".contains(c);
    (!text.is_empty() && text.chars().all(is_plain)).then_some(text)
}

/// The words of a list like `'low', 'high','max'`.
fn words(text: &str) -> Option<Vec<&str>> {
    text.split(',').map(|item| name(item.trim().strip_prefix('\'')?.strip_suffix('\'')?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "Range of max_tokens should be [1, 8192]";

    #[test]
    fn the_gateways_prefixes_a_full_stop_and_the_case_make_no_difference() {
        for message in [
            OUTPUT,
            "<400> InternalError.Algo.InvalidParameter: Range of max_tokens should be [1, 8192]",
            "<400> Range of max_tokens should be [1, 8192]",
            "InternalError.Algo.InvalidParameter: Range of max_tokens should be [1, 8192]",
            "internalerror.algo.invalidparameter: range of MAX_TOKENS should be [1, 8192].",
            " Range of max_tokens should be [1, 8192] \n",
        ] {
            assert_eq!(Sentence::read(message), Some(Sentence::MaxOutput(8192)), "{message}");
        }
    }

    #[test]
    fn the_manuals_address_may_follow_and_nothing_else() {
        let url = "url error, please check url！";
        let manual = "https://help.aliyun.com/zh/model-studio/error-code#error-url";
        let read = |message: &str| Sentence::read(message).is_some();
        assert!(read(&format!("{url} For details, see: {manual}")));
        assert!(!read(&format!("{url} For details, see: {manual} and {OUTPUT}")));
        assert!(!read(&format!("{url} For details, see: https://example.com/")));
        assert!(!read(&format!("{url} Sorry.")));
    }

    #[test]
    fn a_sentence_inside_a_longer_message_is_none() {
        for message in [
            "",
            "<400> ",
            "x Range of max_tokens should be [1, 8192]",
            "Range of max_tokens should be [1, 8192], or so",
            "<429> Range of max_tokens should be [1, 8192]",
            "<429> InternalError.Algo.InvalidParameter: Range of max_tokens should be [1, 8192]",
            "Tool 'Range of max_tokens should be [1, 8192]' is unknown",
            "400: <400> InternalError.Algo.InvalidParameter: Range of max_tokens should be [1, 8192]",
            "Range of max_tokens should be [1, xxx]",
            "Range of max_tokens should be [1, ]",
            "Range of max_tokens should be [1, 0]",
            "Range of max_tokens should be [1, 99999999999999999999999]",
            "Range of max_tokens should be [1, -5]",
            "Role must be in [\"user\",\"assistant\"]",
            "The parameters `a b` is not supported.",
            "model a b is not supported.",
            "The current model does not support the  tool.",
            "'reasoning_effort' must be one of: low, high",
            "'reasoning_effort' must be 'none' when 'enable_thinking' is false",
            "Range of n should be [1, 4]",
        ] {
            assert_eq!(Sentence::read(message), None, "{message}");
        }
    }

    #[test]
    fn numbers_and_names_are_read_out_of_it() {
        for (message, sentence) in [
            ("Range of input length should be [1, 98304]", Sentence::MaxInput(98_304)),
            (
                "Total message token length exceed model limit (10000000 tokens).",
                Sentence::MaxInput(10_000_000),
            ),
            (
                "max_completion_tokens [8192] must be greater than thinking_budget [32768]",
                Sentence::BudgetOverOutput(32_768),
            ),
            (
                "<400> InternalError.Algo.InvalidParameter: The parameters `top_logprobs` is not supported.",
                Sentence::NoParameter("top_logprobs"),
            ),
            (
                "The current model does not support the web_search tool.",
                Sentence::NoBuiltInTool("web_search"),
            ),
            ("model `qwen3-max` is not supported.", Sentence::NotServed("qwen3-max")),
            ("model claude-sonnet-4-6 is not supported.", Sentence::NotServed("claude-sonnet-4-6")),
            ("Unsupported model: 'a/b:c'", Sentence::NotServed("a/b:c")),
            (
                "Unsupported model `baichuan-7b-v1` for OpenAI compatibility mode.",
                Sentence::NotServed("baichuan-7b-v1"),
            ),
            (
                "'reasoning_effort' must be one of: 'low','high', 'max'",
                Sentence::Effort(vec!["low", "high", "max"]),
            ),
        ] {
            assert_eq!(Sentence::read(message), Some(sentence), "{message}");
        }
    }

    #[test]
    fn every_pattern_is_read_back() {
        for (pattern, _) in PATTERNS {
            let said = pattern.replace("[{}]", "[7]").replace("({} tokens)", "(7 tokens)");
            let said = said.replace("must be one of: {}", "must be one of: 'low'");
            let said = said.replace("than {}", "than 7").replace("1, {}", "1, 7");
            let said = said.replace(HOLE, "name");
            for suffix in ["", ".", " "] {
                assert!(Sentence::read(&format!("{said}{suffix}")).is_some(), "{said}");
            }
        }
    }

    #[test]
    fn text_of_any_kind_is_read_without_a_panic() {
        for text in ["é", "<40é> x", "<400>é", "InternalError.Algo.InvalidParameteré", "参数", "{}"]
        {
            assert_eq!(Sentence::read(text), None);
        }
    }
}
