//! What a model cannot take. The first byte chooses a sentence and the status, the second the
//! number in it; the rest is the request's body, or the message itself.

#![no_main]

use dashscope_proxy::fuzzing::limit;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

const SENTENCES: [&str; 6] = [
    "Range of max_tokens should be [1, {}]",
    "<400> InternalError.Algo.InvalidParameter: The thinking_budget parameter must be a positive integer and not greater than {}",
    "The provided messages input is invalid. The error info is [Unexpected item type in content.]",
    "The tool call is not supported.",
    "The parameters `logprobs` is not supported.",
    "'reasoning_effort' must be one of: 'low', 'max'",
];

/// How many values differ.
fn differences(before: &Value, after: &Value) -> usize {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            assert!(before.keys().eq(after.keys()));
            before.iter().map(|(name, value)| differences(value, &after[name])).sum()
        }
        (Value::Array(before), Value::Array(after)) => {
            assert_eq!(before.len(), after.len());
            before.iter().zip(after).map(|(before, after)| differences(before, after)).sum()
        }
        (before, after) if before == after => 0,
        (before, after) => {
            assert!(after.as_f64() < before.as_f64(), "{before} became {after}");
            1
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let [choice, number, body @ ..] = input else { return };
    let is_streamed = choice & 1 != 0;
    if let Ok(message) = std::str::from_utf8(body) {
        assert!(limit(500, message, b"{}", is_streamed).is_none());
        let _ = limit(400, message, b"{}", is_streamed);
    }
    let sentence = SENTENCES[usize::from(*choice) % SENTENCES.len()];
    let message = sentence.replace("{}", &(1_u64 << (number & 31)).to_string());
    let Some((_, sent)) = limit(400, &message, body, is_streamed) else { return };
    let (Ok(mut before), Ok(mut after)) =
        (serde_json::from_slice::<Value>(body), serde_json::from_slice::<Value>(&sent))
    else {
        return;
    };
    before["model"] = Value::Null;
    after["model"] = Value::Null;
    // Two bounds of each kind at most, each in each of its places.
    assert!(differences(&before, &after) <= 8);
});
