//! Lists and `.env` files. `~` in the input stands for a secret: whatever else it holds, nothing
//! that the operator is told shows it. An input that begins with `!` is a list of keys and, after
//! a line of `---`, one of models; any other is a file.

#![no_main]

use dashscope_proxy::fuzzing::{Configured, configure_by_file, configure_by_pairs};
use libfuzzer_sys::fuzz_target;

const SECRET: &str = "Zq7SECRETx9";

fn is_visible(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn check(configured: &Configured) {
    for message in configured.messages.iter().chain([&configured.debug]) {
        assert!(!message.contains(SECRET), "a message shows a secret: {message}");
        assert!(!message.contains(['\n', '\r']), "a message of two lines: {message:?}");
    }
    for (key, origin) in &configured.keys {
        assert!(is_visible(key) && origin.as_deref().is_none_or(is_visible), "{key:?} {origin:?}");
        assert!(!key.contains([',', ';', '"', '\'', '`']), "{key:?}");
    }
    assert!(configured.proxy_key.as_deref().is_none_or(is_visible));
    for text in configured.models.iter().chain(&configured.urls) {
        assert!(is_visible(text), "{text:?}");
    }
    let twice = |list: &[String]| (1..list.len()).any(|at| list[..at].contains(&list[at]));
    let keys: Vec<String> = configured.keys.iter().map(|(key, _)| key.clone()).collect();
    assert!(!twice(&configured.models) && !twice(&keys));
}

fn list(text: &str) {
    let (keys, models) = text.split_once("\n---\n").unwrap_or((text, "qwen-max"));
    let proxy_key = format!("proxy-{SECRET}");
    let of = |keys: &str| {
        let pairs =
            [("PROXY_API_KEY", &*proxy_key), ("DASHSCOPE_API_KEYS", keys), ("MODEL_IDS", models)];
        configure_by_pairs(&pairs)
    };
    let configured = of(keys);
    check(&configured);
    // Without an item, blanks are no list and commas are an empty one.
    let has_item = keys.contains(|c: char| c != ',' && !c.is_whitespace());
    if has_item && !keys.contains(['"', '\'', '`']) {
        assert_eq!(of(&keys.replace(',', "\n")), configured);
        assert_eq!(of(&format!(" \"{keys}\"\n")), configured);
    }
}

fn file(bytes: &[u8]) {
    let configured = configure_by_file(bytes);
    check(&configured);
    if let Ok(text) = std::str::from_utf8(bytes)
        && !text.contains('\r')
    {
        for end in ["\r\n", "\r"] {
            assert_eq!(
                configure_by_file(text.replace('\n', end).as_bytes()),
                configured,
                "{end:?}"
            );
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let input: Vec<u8> = input
        .iter()
        .flat_map(|byte| if *byte == b'~' { SECRET.as_bytes() } else { std::slice::from_ref(byte) })
        .copied()
        .collect();
    match input.strip_prefix(b"!") {
        Some(lists) => list(&String::from_utf8_lossy(lists)),
        None => file(&input),
    }
});
