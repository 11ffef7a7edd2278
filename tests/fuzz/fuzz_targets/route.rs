//! The paths that go upstream: plain words and nothing that another reader may read differently.
//! The first byte chooses the method.

#![no_main]

use dashscope_proxy::fuzzing::forwarded;
use libfuzzer_sys::fuzz_target;

const METHODS: [&str; 8] = ["POST", "GET", "DELETE", "HEAD", "PUT", "PATCH", "OPTIONS", "post"];

fuzz_target!(|input: &[u8]| {
    let Some((choice, path)) = input.split_first() else { return };
    let path = String::from_utf8_lossy(path);
    let method = METHODS[usize::from(*choice) % METHODS.len()];
    let Some(forwarded) = forwarded(method, &path) else { return };
    assert!(["POST", "GET", "DELETE", "HEAD"].contains(&method), "{method}");

    let upstream = &*forwarded.path;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_".contains(&byte);
    assert!(upstream.starts_with('/') && !upstream.contains("//"), "{upstream}");
    assert!(upstream.bytes().all(is_plain), "{upstream}");
    assert!(path.bytes().all(is_plain), "{path}");
    let words: Vec<&str> = upstream.trim_matches('/').split('/').collect();
    assert!(path.trim_matches('/').ends_with(words[words.len() - 1]), "{path} {upstream}");
    if let Some(id) = &forwarded.id {
        assert!(!id.is_empty() && words.contains(&id.as_str()), "{id} {upstream}");
    }
});
