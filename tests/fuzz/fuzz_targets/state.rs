//! The state file: what is read can be written and read again, and nothing in it is lost.

#![no_main]

use dashscope_proxy::fuzzing::rewrite_state;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

/// A file's content as any reader sees it; the two fields that may be left out are left out.
fn content(file: &[u8]) -> Value {
    let mut content: Value = serde_json::from_slice(file).expect("what was read is JSON");
    let slots = content.get_mut("modelState").and_then(Value::as_object_mut);
    for slot in slots.into_iter().flat_map(|slots| slots.values_mut()) {
        for name in ["lastError", "lastUsedAt"] {
            let Some(slot) = slot.as_object_mut() else { continue };
            if slot.get(name) == Some(&Value::Null) {
                slot.remove(name);
            }
        }
    }
    content
}

fuzz_target!(|file: &[u8]| {
    let Ok(written) = rewrite_state(file) else { return };
    let again = rewrite_state(&written).expect("what was written can be read");
    assert_eq!(String::from_utf8_lossy(&written), String::from_utf8_lossy(&again));
    assert!(written.ends_with(b"}\n"));
    if !file.iter().all(u8::is_ascii_whitespace) {
        assert_eq!(content(file), content(&written));
    }
});
