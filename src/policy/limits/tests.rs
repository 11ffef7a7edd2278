use super::*;

const IMAGE: &str = r#"{"type":"image_url","image_url":{"url":"https://h/a.png"}}"#;
const ODD: &str = r#"{"type":"hologram"}"#;

fn needs(body: &str, is_streamed: bool) -> Needs {
    Needs::of(body.as_bytes(), Wire::Chat, is_streamed)
}

fn told_of(status: u16, message: &str, body: &str, is_streamed: bool) -> Option<Limit> {
    let needs = needs(body, is_streamed);
    let refusal = Refusal { status, message, model: "qwen-max", is_native: false };
    recognise(refusal, || Cow::Borrowed(&needs))
}

/// Of a request that is not streamed.
fn told_by(message: &str, body: &str) -> Option<Limit> {
    told_of(400, message, body, false)
}

fn saying(parts: &str) -> String {
    format!(r#"{{"messages":[{{"role":"user","content":[{parts}]}}]}}"#)
}

#[test]
fn a_number_is_a_limit_only_for_a_request_above_it() {
    let output = "Range of max_tokens should be [1, 8192]";
    let budget =
        "The thinking_budget parameter must be a positive integer and not greater than 38912";
    for (message, member, bound) in [
        (output, "max_tokens", 8_192_u64),
        (output, "max_completion_tokens", 8_192),
        (budget, "thinking_budget", 38_912),
    ] {
        let told = |value: &str| told_by(message, &format!("{{\"{member}\":{value}}}"));
        assert_eq!(told(&(bound + 1).to_string()).and_then(|it| it.bound()), Some(bound));
        for value in [&*bound.to_string(), "1", "0", "-1", "null", "\"99999\""] {
            assert_eq!(told(value), None, "{member} {value}");
        }
        assert_eq!(told_by(message, "{}"), None);
    }
}

#[test]
fn only_a_400_tells_of_a_limit_and_of_a_path_a_404_as_well() {
    for status in [401, 403, 404, 413, 422, 429, 500] {
        let message = "This model only support stream mode";
        assert_eq!(told_of(status, message, "{}", false), None, "{status}");
    }
    let path = "Unsupported model `qwen-max` for OpenAI compatibility mode.";
    for status in [400, 404] {
        assert_eq!(told_of(status, path, "{}", false), Some(Limit::NotServed));
    }
    assert_eq!(told_of(403, path, "{}", false), None);
}

#[test]
fn a_model_that_the_pool_did_not_choose_is_no_limit() {
    for message in [
        "Unsupported model `gpt-4o` for OpenAI compatibility mode.",
        "model claude-sonnet-4-6 is not supported.",
        "Unsupported model: 'qwen-max-latest'",
    ] {
        assert_eq!(told_by(message, "{}"), None, "{message}");
    }
}

#[test]
fn a_part_is_a_limit_only_if_all_are_known_and_one_is_a_medium() {
    for message in [
        "The provided messages input is invalid. The error info is [Unexpected item type in content.]",
        "<400> InternalError.Algo.InvalidParameter: The content field's type should be `str` in messages.",
    ] {
        assert_eq!(told_by(message, &saying(IMAGE)), Some(Limit::Media(Media::IMAGE)));
        for parts in [ODD, &format!("{IMAGE},{ODD}"), r#"{"type":"image_url"}"#] {
            assert_eq!(told_by(message, &saying(parts)), None, "{message} {parts}");
        }
        assert_eq!(told_by(message, r#"{"messages":[{"role":"user","content":"x"}]}"#), None);
    }
    let text = saying(r#"{"type":"text","text":"x"}"#);
    assert_eq!(told_by("input content must be a string.", &text), Some(Limit::Parts));
}

#[test]
fn what_is_about_thinking_hangs_on_what_is_said_of_it() {
    let no_stream = "parameter.enable_thinking must be set to false for non-streaming calls";
    let told = |body: &str| told_by(no_stream, body);
    let limit = |thinking| Some(Limit::ThinkingOnlyStreamed { thinking });
    assert_eq!(told("{}"), limit(Thinking::Unsaid));
    assert_eq!(told(r#"{"enable_thinking":true}"#), limit(Thinking::On));
    assert_eq!(told(r#"{"enable_thinking":false}"#), None);
    assert_eq!(told_of(400, no_stream, "{}", true), None);
    let learned = limit(Thinking::On).unwrap();
    assert_eq!(learned.effect(&needs("{}", false)), Effect::None);
    assert_eq!(learned.effect(&needs(r#"{"enable_thinking":true}"#, true)), Effect::None);
    assert_eq!(learned.effect(&needs(r#"{"enable_thinking":true}"#, false)), Effect::Refused);
}

#[test]
fn a_contradiction_in_the_request_is_the_callers_whatever_the_model() {
    for (message, body) in [
        // The client's own numbers.
        (
            "max_completion_tokens [512] must be greater than thinking_budget [1024]",
            r#"{"max_completion_tokens":512,"thinking_budget":1024}"#,
        ),
        ("'reasoning_effort' must be one of: 'low', 'high'", r#"{"reasoning_effort":"banana"}"#),
        ("'reasoning_effort' must be one of: 'low', 'high'", r#"{"reasoning_effort":"low"}"#),
        (
            "The tool_choice parameter does not support being set to required or object",
            r#"{"tool_choice":"auto"}"#,
        ),
        (
            "The tool_choice parameter does not support being set to required or object in thinking mode",
            r#"{"tool_choice":"required","enable_thinking":false}"#,
        ),
        ("The tool call is not supported.", r#"{"tools":[]}"#),
        ("The parameters `logprobs` is not supported.", r#"{"top_logprobs":1}"#),
        ("This model does not support enable_search.", r#"{"enable_search":false}"#),
        ("Role must be in [user, assistant].", r#"{"messages":[{"role":"user","content":"x"}]}"#),
        (
            "Json mode response is not supported when enable_thinking is true",
            r#"{"response_format":{"type":"text"}}"#,
        ),
        ("The value of the enable_thinking parameter is restricted to True.", "{}"),
        ("url error, please check url!", "{}"),
    ] {
        assert_eq!(told_by(message, body), None, "{message} {body}");
    }
}

#[test]
fn a_budget_that_the_client_did_not_send_is_the_models() {
    let message = "max_completion_tokens [8192] must be greater than thinking_budget [32768]";
    let limit = told_by(message, r#"{"max_completion_tokens":8192}"#).unwrap();
    assert_eq!(limit, Limit::DefaultBudget { bound: 32_768, thinking: Thinking::Unsaid });
    assert_eq!(limit.effect(&needs(r#"{"max_completion_tokens":40000}"#, false)), Effect::None);
    assert_eq!(limit.effect(&needs("{}", false)), Effect::None);
}

#[test]
fn a_model_without_thinking_refuses_every_wish_for_it() {
    let message = "The thinking_budget parameter must be a positive integer and not greater than 0";
    for body in [r#"{"enable_thinking":true}"#, r#"{"thinking_budget":1}"#] {
        let limit = told_by(message, body).unwrap();
        assert_eq!(limit.effect(&needs(body, false)), Effect::Refused, "nothing to be lowered");
    }
    assert_eq!(told_by(message, r#"{"enable_thinking":false}"#), None);
}

#[test]
fn a_request_with_more_media_than_were_refused_is_refused_too_and_one_with_less_is_not() {
    let both = Limit::Media(Media::IMAGE.and(Media::AUDIO));
    let image = Needs { media: Media::IMAGE, ..Needs::default() };
    assert_eq!(both.effect(&image), Effect::None);
    let all = Needs { media: Media::IMAGE.and(Media::AUDIO).and(Media::VIDEO), ..image };
    assert_eq!(both.effect(&all), Effect::Refused);
}

#[test]
fn the_body_is_not_looked_through_for_a_message_that_is_no_sentence() {
    let refusal = Refusal { status: 400, message: "No.", model: "m", is_native: false };
    assert_eq!(recognise(refusal, || panic!("nobody asked")), None);
    let refusal = Refusal { status: 500, message: "The tool call is not supported", ..refusal };
    assert_eq!(recognise(refusal, || panic!("nobody asked")), None);
}

/// The kinds that a document lists in the table of this head.
fn listed(document: &'static str, head: &str) -> Vec<&'static str> {
    let rows = document.lines().skip_while(|line| !line.starts_with(head)).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    rows.flat_map(|row| row.split('|').nth(1).unwrap_or_default().split('`').skip(1).step_by(2))
        .collect()
}

#[test]
fn every_kind_is_in_the_documents_and_on_the_page() {
    let thinking = Thinking::On;
    let limits = [
        Limit::MaxOutput { bound: 1, thinking },
        Limit::ThinkingBudget { bound: 1 },
        Limit::DefaultBudget { bound: 1, thinking },
        Limit::MaxInput { bound: 1, smallest: 1, with_media: false },
        Limit::Media(Media::IMAGE),
        Limit::Parts,
        Limit::Tools,
        Limit::ForcedTool { thinking: None },
        Limit::BuiltInTool("x".into()),
        Limit::ThinkingOnlyStreamed { thinking },
        Limit::ThinkingRequired,
        Limit::ThinkingImpossible { thinking },
        Limit::Effort("x".into()),
        Limit::StreamsOnly,
        Limit::IncrementsOnly { thinking: None },
        Limit::SpeechOnlyStreamed,
        Limit::JsonWithThinking { thinking },
        Limit::Search,
        Limit::Parameter("x".into()),
        Limit::Roles,
        Limit::NotServed,
    ];
    let kinds: Vec<_> = limits.iter().map(Limit::kind).collect();
    assert_eq!(listed(include_str!("../../../README.md"), "| kind |"), kinds);
    assert_eq!(listed(include_str!("../../../README.zh-CN.md"), "| 种类 |"), kinds);
    let page = include_str!("../../admin/page.html");
    for kind in kinds {
        assert_eq!(page.matches(&format!(" {kind}: '")).count(), 2, "{kind} in two languages");
    }
}
