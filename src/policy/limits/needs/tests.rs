use std::io::Read;

use proptest::prelude::*;
use proptest::test_runner::Config;

use super::*;
use crate::policy::body::RequestBody;

fn needs(wire: Wire, body: &str) -> Needs {
    serde_json::from_str::<serde_json::Value>(body).expect("a body of JSON");
    Needs::of(body.as_bytes(), wire, false)
}

fn chat(body: &str) -> Needs {
    needs(Wire::Chat, body)
}

/// The body with these edits.
fn edited(body: &str, lowered: &[Lowered]) -> String {
    let mut lowered = lowered.to_vec();
    lowered.sort_by_key(|it| std::cmp::Reverse(it.span.start));
    lowered.into_iter().fold(body.to_owned(), |mut body, it| {
        body.replace_range(it.span, &it.value.to_string());
        body
    })
}

fn bounds(output: Option<u64>, budget: Option<u64>) -> Bounds {
    Bounds { output, budget }
}

#[test]
fn upper_bounds_are_found_with_their_digits_on_every_wire() {
    for (wire, body, digits) in [
        (Wire::Chat, r#"{"messages":[],"max_tokens" : 64000 }"#, "64000"),
        (Wire::Chat, r#"{"max_completion_tokens":64000}"#, "64000"),
        (Wire::Chat, r#"{"max_tok\u0065ns":6.4e4}"#, "6.4e4"),
        (Wire::Responses, r#"{"input":"x","max_output_tokens":64000}"#, "64000"),
        (Wire::Messages, r#"{"max_tokens":64000,"messages":[{"max_tokens":1}]}"#, "64000"),
        (Wire::Native, r#"{"input":{},"parameters":{"max_tokens":64000}}"#, "64000"),
    ] {
        let needs = needs(wire, body);
        let [bound] = &needs.outputs[..] else { panic!("{body} {needs:?}") };
        assert_eq!((bound.value, &body[bound.span.clone()]), (64_000, digits), "{body}");
    }
}

#[test]
fn what_is_no_number_above_zero_is_no_upper_bound() {
    for value in ["0", "-1", "null", "\"64000\"", "[64000]", "{}", "true", "0.5"] {
        assert!(chat(&format!("{{\"max_tokens\":{value}}}")).outputs.is_empty(), "{value}");
    }
    let huge = chat(r#"{"max_tokens":1e30}"#);
    assert_eq!(huge.most_output(), Some(u64::MAX));
    assert!(chat(r#"{"parameters":{"max_tokens":64000}}"#).outputs.is_empty(), "not chat's");
}

#[test]
fn a_thinking_budget_is_found_in_each_of_its_places() {
    for (wire, body) in [
        (Wire::Chat, r#"{"enable_thinking":true,"thinking_budget":31999}"#),
        (Wire::Chat, r#"{"thinking":{"type":"enabled","budget_tokens":31999}}"#),
        (Wire::Messages, r#"{"thinking":{"budget_tokens":31999,"type":"enabled"}}"#),
        (Wire::Responses, r#"{"thinking_budget":31999}"#),
        (Wire::Responses, r#"{"reasoning":{"max_tokens":31999}}"#),
        (Wire::Native, r#"{"parameters":{"thinking_budget":31999}}"#),
    ] {
        let needs = needs(wire, body);
        let [bound] = &needs.budgets[..] else { panic!("{body} {needs:?}") };
        assert_eq!((bound.value, &body[bound.span.clone()]), (31_999, "31999"), "{body}");
        assert_eq!(needs.thinking, Thinking::On, "{body}");
    }
}

#[test]
fn thinking_is_on_off_or_unsaid() {
    for (body, thinking) in [
        ("{}", Thinking::Unsaid),
        (r#"{"enable_thinking":null}"#, Thinking::Unsaid),
        (r#"{"enable_thinking":true}"#, Thinking::On),
        (r#"{"enable_thinking":false,"reasoning_effort":"high"}"#, Thinking::Off),
        (r#"{"parameters":{"enable_thinking":false}}"#, Thinking::Off),
        (r#"{"thinking":{"type":"adaptive"}}"#, Thinking::On),
        (r#"{"thinking":{"type":"disabled"}}"#, Thinking::Off),
        (r#"{"reasoning_effort":"none"}"#, Thinking::Off),
        (r#"{"reasoning":{"effort":"medium","summary":"auto"}}"#, Thinking::On),
        (r#"{"output_config":{"effort":"low"}}"#, Thinking::On),
    ] {
        assert_eq!(needs(Wire::Native, body).thinking, thinking, "{body}");
    }
}

#[test]
fn media_of_a_known_type_that_are_well_formed_are_found() {
    let (image, audio, video, file) = (Media::IMAGE, Media::AUDIO, Media::VIDEO, Media::FILE);
    let content = |parts: &str| {
        format!(
            r#"{{"messages":[{{"role":"user","content":[{{"type":"text","text":"a\nb"}},{parts}]}}]}}"#
        )
    };
    let native = |part: &str| {
        format!(
            r#"{{"input":{{"messages":[{{"role":"user","content":[{{"text":"x"}},{part}]}}]}}}}"#
        )
    };
    let input = |part: &str| {
        let text = r#"{"type":"input_text","text":"x"}"#;
        format!(r#"{{"input":[{{"role":"user","content":[{text},{part}]}}]}}"#)
    };
    let result = r#"{"type":"tool_result","tool_use_id":"t","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"aGk="}}]}"#;
    for (wire, body, media) in [
        (Wire::Chat, content(r#"{"type":"image_url","image_url":{"url":"https:\/\/h\/a.png"}}"#), image),
        (Wire::Chat, content(r#"{"image_url":{"detail":"low","url":"data:image/png;base64,aGk="},"type":"image_url"}"#), image),
        (Wire::Chat, content(r#"{"type":"image_url","image_url":"https://h/a.png"}"#), image),
        (Wire::Chat, content(r#"{"type":"input_audio","input_audio":{"data":"aGk=","format":"wav"}}"#), audio),
        (Wire::Chat, content(r#"{"type":"video_url","video_url":{"url":"https://h/a.mp4"}}"#), video),
        (Wire::Chat, content(r#"{"type":"video","video":["https://h/1.png","https://h/2.png"]}"#), video),
        (Wire::Chat, content(r#"{"type":"file","file":{"file_id":"file-1"}}"#), file),
        (Wire::Responses, input(r#"{"type":"input_image","image_url":"data:image/png;base64,aGk="}"#), image),
        (Wire::Responses, input(r#"{"type":"input_image","file_id":"file-1"}"#), image),
        (Wire::Responses, input(r#"{"type":"input_file","file_url":"https://h/a.pdf"}"#), file),
        (Wire::Responses, r#"{"input":[{"type":"function_call_output","call_id":"c","output":[{"type":"input_image","image_url":"https://h/a"}]}]}"#.to_owned(), image),
        (Wire::Messages, content(r#"{"type":"image","source":{"type":"url","url":"https://h/a.png"}}"#), image),
        (Wire::Messages, content(r#"{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"aGk="}}"#), file),
        (Wire::Messages, content(result), image),
        (Wire::Native, native(r#"{"image":"https://h/a.png"}"#), image),
        (Wire::Native, native(r#"{"audio":"https://h/a.wav"},{"video":["https://h/1"]}"#), audio.and(video)),
    ] {
        let needs = needs(wire, &body);
        assert_eq!(needs.media, media, "{body}");
        assert!(needs.has_parts && !needs.has_odd_parts, "{body}");
    }
}

#[test]
fn a_part_that_is_unknown_there_or_malformed_is_odd_and_no_medium() {
    let content = |part: &str| format!(r#"{{"messages":[{{"role":"user","content":[{part}]}}]}}"#);
    for (wire, part) in [
        (Wire::Chat, r#"{"type":"image_url"}"#),
        (Wire::Chat, r#"{"type":"image_url","image_url":{}}"#),
        (Wire::Chat, r#"{"type":"image_url","image_url":{"url":""}}"#),
        (Wire::Chat, r#"{"type":"image_url","image_url":{"uri":"https://h"}}"#),
        (Wire::Chat, r#"{"type":"image_url","image_url":null}"#),
        (Wire::Chat, r#"{"type":"image","source":{"type":"url","url":"https://h"}}"#),
        (Wire::Chat, r#"{"type":"tool_result","content":"x"}"#),
        (Wire::Chat, r#"{"image_url":{"url":"https://h"}}"#),
        (Wire::Chat, r#"{"image":"https://h"}"#),
        (Wire::Messages, r#"{"type":"image_url","image_url":{"url":"https://h"}}"#),
        (Wire::Messages, r#"{"type":"image","source":{"type":"base64","data":7}}"#),
        (Wire::Responses, r#"{"type":"image_url","image_url":{"url":"https://h"}}"#),
        (Wire::Native, r#"{"picture":"https://h"}"#),
        (Wire::Native, r#"{"image":{"url":"https://h"}}"#),
        (Wire::Native, r#"{"video":["https://h",7]}"#),
        (Wire::Native, r#"{"text":7}"#),
        (Wire::Chat, r#"{"type":"image_url","image_url":{"data":"aGk="}}"#),
        (Wire::Chat, r#"{"type":"image_url","image_url":{"url":7}}"#),
        (Wire::Chat, r#"{"type":"image_url","image_url":["https://h"]}"#),
        (Wire::Responses, r#"{"type":"input_image","image_url":{"url":"https://h"}}"#),
        (Wire::Responses, r#"{"type":"input_text","text":null}"#),
        (Wire::Messages, r#"{"type":"text"}"#),
        (Wire::Chat, r#"{"type":"text","text":["x"]}"#),
    ] {
        let needs = needs(
            wire,
            &content(part)
                .replace("messages", if wire == Wire::Responses { "input" } else { "messages" }),
        );
        assert!(needs.has_odd_parts, "{wire:?} {part} {needs:?}");
        assert!(needs.media.is_empty(), "{wire:?} {part}");
    }
    let text = chat(&content(r#"{"type":"text","text":"{\"type\":\"image_url\"}"}"#));
    assert!(!text.has_odd_parts && text.media.is_empty());
}

#[test]
fn what_is_no_part_beside_a_picture_is_odd() {
    let chat = r#"{"type":"image_url","image_url":{"url":"https://h"}}"#;
    let responses = r#"{"type":"input_image","image_url":"https://h"}"#;
    let messages = r#"{"type":"image","source":{"type":"url","url":"https://h"}}"#;
    for (wire, list, image) in [
        (Wire::Chat, "messages", chat),
        (Wire::Responses, "input", responses),
        (Wire::Messages, "messages", messages),
        (Wire::Native, "messages", r#"{"image":"https://h"}"#),
    ] {
        let told = |item: &str| {
            let messages = format!(r#""{list}":[{{"role":"user","content":[{image}{item}]}}]"#);
            let is_native = wire == Wire::Native;
            let body = if is_native { format!("\"input\":{{{messages}}}") } else { messages };
            needs(wire, &format!("{{{body}}}"))
        };
        let fine = told("");
        assert!(!fine.has_odd_parts && fine.media == Media::IMAGE, "{wire:?}");
        for item in [r#""hi""#, "7", "-7", "7.5", "true", "null", "[]", image] {
            let item = if item == image { format!(",[{image}]") } else { format!(",{item}") };
            assert!(told(&item).has_odd_parts, "{wire:?} {item}");
        }
        for item in [r#"{"type":"text"}"#, r#"{"type":"text","text":7}"#, "{}"] {
            assert!(told(&format!(",{item}")).has_odd_parts, "{wire:?} {item}");
        }
    }
}

#[test]
fn what_cannot_be_decoded_hides_nothing_behind_it() {
    for odd in [
        r#""content":"cut \ud83d""#,
        r#""content":"\uDC00\\\"\ud83d""#,
        r#""content":[{"type":"text","text":"cut \ud83d"}]"#,
        r#""content":[{"type":"text","text":"x","n":1e999}]"#,
        r#""content":[{"type":"text","text":1e999}]"#,
        r#""content":1e999"#,
        r#""content":"x","cut \ud83d":1"#,
        r#""content":"x","n":-1e999"#,
    ] {
        let body = format!(
            r#"{{"messages":[{{{odd},"role":"user"}},{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"https://h"}}}}]}}],"max_completion_tokens":1e999,"max_tokens" : 64000}}"#
        );
        let needs = Needs::of(body.as_bytes(), Wire::Chat, false);
        assert_eq!(needs.media, Media::IMAGE, "{odd}");
        let values: Vec<_> = needs.outputs.iter().map(|it| it.value).collect();
        assert_eq!(values, [u64::MAX, 64_000], "{odd}");
        let digits = needs.outputs.iter().map(|it| &body[it.span.clone()]);
        assert_eq!(digits.collect::<Vec<_>>(), ["1e999", "64000"], "{odd}");
        assert_eq!(needs.has_odd_parts, odd.contains(r#""text":1e999"#), "{odd}");
    }
    for body in ["\"\\", "{\"a\":\"\\ud8", "{\"a\":1e999", "[1e", "{\"é\":\"\\ud8é\""] {
        assert_eq!(Needs::of(body.as_bytes(), Wire::Chat, false).size, body.len(), "no panic");
    }
}

#[test]
fn tools_choices_formats_roles_and_parameters_are_found() {
    let tools = chat(r#"{"tools":[{"type":"function","function":{"name":"f","parameters":{}}}]}"#);
    assert!(tools.has_tools && tools.built_in_tools.is_empty() && !tools.forces_tool);
    assert!(!chat(r#"{"tools":[]}"#).has_tools && !chat(r#"{"tools":null}"#).has_tools);
    let built_in = needs(Wire::Responses, r#"{"tools":[{"type":"code_interpreter"}]}"#);
    assert!(built_in.has_tools && built_in.built_in_tools.contains("code_interpreter"));
    for choice in [
        r#""required""#,
        r#""any""#,
        r#"{"type":"function","function":{"name":"f"}}"#,
        r#"{"type":"any"}"#,
        r#"{"name":"f","type":"tool"}"#,
        r#"{"type":"allowed_tools","mode":"required","tools":[]}"#,
        r#"{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[]}}"#,
    ] {
        assert!(chat(&format!("{{\"tool_choice\":{choice}}}")).forces_tool, "{choice}");
    }
    for choice in [
        r#""auto""#,
        r#""none""#,
        "null",
        r#"{"type":"auto"}"#,
        r#"{"type":"none"}"#,
        r#"{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"f"}]}"#,
        r#"{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function"}]}}"#,
    ] {
        assert!(!chat(&format!("{{\"tool_choice\":{choice}}}")).forces_tool, "{choice}");
    }
    assert!(chat(r#"{"response_format":{"type":"json_object"}}"#).wants_json);
    assert!(needs(Wire::Responses, r#"{"text":{"format":{"type":"json_schema"}}}"#).wants_json);
    assert!(!chat(r#"{"response_format":{"type":"text"}}"#).wants_json);
    assert!(chat(r#"{"messages":[{"role":"developer","content":"x"}]}"#).has_other_roles);
    assert!(needs(Wire::Messages, r#"{"system":"x","messages":[]}"#).has_other_roles);
    let two = r#"{"system":"","messages":[{"role":"user"},{"content":"x","role":"assistant"}]}"#;
    assert!(!needs(Wire::Messages, two).has_other_roles);
    let names = chat(r#"{"logprobs":true,"top_p":null,"x":{"y":1},"modalities":["text","audio"]}"#);
    let expected = ["logprobs", "modalities", "x"].map(str::to_owned);
    assert_eq!(names.parameters, expected.into());
    assert!(names.wants_speech && chat(r#"{"enable_search":true}"#).searches);
}

#[test]
fn any_shape_is_looked_through_without_a_panic_and_without_taking_it_for_another() {
    for body in [
        "{}",
        "[]",
        "null",
        r#"{"messages":"x","tools":"x","tool_choice":7,"response_format":"json_object","input":7}"#,
        r#"{"messages":[7,"x",null,[{"role":"system"}],{"content":7},{"content":{"type":"x"}}]}"#,
        r#"{"thinking":"on","reasoning":[],"text":"x","modalities":"audio","parameters":[1]}"#,
    ] {
        for wire in [Wire::Chat, Wire::Responses, Wire::Messages, Wire::Native] {
            let needs = needs(wire, body);
            assert!(needs.media.is_empty() && !needs.forces_tool && !needs.wants_json, "{body}");
        }
    }
    let deep =
        format!("{{\"messages\":{}{},\"max_tokens\":7}}", "[".repeat(9_000), "]".repeat(9_000));
    assert_eq!(Needs::of(deep.as_bytes(), Wire::Chat, false).size, deep.len());
    assert_eq!(
        Needs::of(b"\xff", Wire::Chat, true),
        Needs { is_streamed: true, size: 1, ..Needs::default() }
    );
}

#[test]
fn only_numbers_above_a_bound_are_lowered_and_nothing_else_changes() {
    let body = r#"{"max_tokens":64000, "max_completion_tokens" : 4096,"x":64000}"#;
    let lowered = chat(body).lowered(bounds(Some(8_192), None));
    let expected = r#"{"max_tokens":8192, "max_completion_tokens" : 4096,"x":64000}"#;
    assert_eq!(edited(body, &lowered), expected);
    assert!(chat(body).lowered(bounds(Some(64_000), None)).is_empty());
    assert!(chat(body).lowered(Bounds::default()).is_empty());
}

#[test]
fn a_thinking_budget_that_fitted_and_no_longer_does_becomes_half_of_the_output() {
    let lowered = |output: u64, budget: u64, bounds: Bounds| -> Vec<(String, u64)> {
        let body = format!("{{\"max_tokens\":{output},\"thinking_budget\":{budget}}}");
        let lowered = chat(&body).lowered(bounds);
        lowered.into_iter().map(|it| (it.name.to_owned(), it.value)).collect()
    };
    let pair = |output, budget| {
        vec![("max_tokens".to_owned(), output), ("thinking_budget".to_owned(), budget)]
    };
    assert_eq!(lowered(32_000, 31_999, bounds(Some(8_192), None)), pair(8_192, 4_096));
    assert_eq!(lowered(32_000, 8_192, bounds(Some(8_192), None)), pair(8_192, 4_096));
    assert_eq!(lowered(32_000, 8_191, bounds(Some(8_192), None)), pair(8_192, 0)[..1]);
    // It did not fit before: then the output is not meant to hold it.
    assert_eq!(lowered(32_000, 81_920, bounds(Some(8_192), None)), pair(8_192, 0)[..1]);
    assert_eq!(lowered(32_000, 81_920, bounds(None, Some(38_912))), pair(0, 38_912)[1..]);
    assert_eq!(lowered(64_000, 63_000, bounds(Some(32_768), Some(38_912))), pair(32_768, 16_384));
}

proptest! {
    #![proptest_config(Config { failure_persistence: None, ..Config::default() })]

    /// The digits of a bound, its place among the members, and blanks around it.
    #[test]
    fn nothing_of_a_request_changes_but_its_model_and_a_lowered_bound(
        output in prop::option::of(1..200_000_u64),
        budget in prop::option::of(1..200_000_u64),
        bounds in (prop::option::of(1..100_000_u64), prop::option::of(1..100_000_u64)),
        text in ".{0,20}",
        blank in prop::sample::select(vec!["", " ", "\n\t"]),
        order in Just(vec![0, 1, 2, 3]).prop_shuffle(),
    ) {
        let text = serde_json::Value::from(text).to_string();
        let members = [
            output.map(|value| format!("\"max_tokens\"{blank}:{blank}{value}{blank}")),
            budget.map(|value| format!("\"thinking_budget\":{value}")),
            Some(format!("\"model\":{blank}\"any\"")),
            Some(format!("\"messages\":[{{\"role\":\"user\",\"content\":{text},\"max_tokens\":9}}]")),
        ];
        let members: Vec<_> = order.into_iter().filter_map(|at| members[at].clone()).collect();
        let body = format!("{blank}{{{}}}{blank}", members.join(&format!(",{blank}")));
        let lowered = chat(&body).lowered(Bounds { output: bounds.0, budget: bounds.1 });
        let sent = sent(&body, &lowered);
        for it in &lowered {
            let name = if it.name == "max_tokens" { output } else { budget };
            prop_assert!(it.value < name.unwrap(), "{:?} is no lower", it);
            let digits = name.unwrap().to_string();
            prop_assert_eq!(&body[it.span.clone()], digits.as_str());
        }
        let expected = edited(&body, &lowered).replacen("\"any\"", "\"m\"", 1);
        prop_assert_eq!(&sent, &expected);
        let within = |value: Option<u64>, bound: Option<u64>| value.is_none_or(|it| it <= bound.unwrap_or(u64::MAX));
        let after = chat(&sent);
        prop_assert!(within(after.most_output(), bounds.0) && within(after.most_budget(), bounds.1));
    }
}

/// The body as it goes upstream.
fn sent(body: &str, lowered: &[Lowered]) -> String {
    let (body, mut sent) = (RequestBody::parse(body.as_bytes()).unwrap(), String::new());
    body.with_model("m", lowered).reader().read_to_string(&mut sent).unwrap();
    sent
}
