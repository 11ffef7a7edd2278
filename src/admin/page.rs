//! The page for people: one file, built in. It has nothing but what it brings along, and its
//! browser is told so: style and script are let in by their hashes, and it may talk to us alone.

use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use http::header::{REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderValue};
use sha2::{Digest, Sha256};

use crate::relay::Head;

const PAGE: &str = include_str!("page.html");

static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    HeaderValue::try_from(policy(PAGE)).expect("a policy is made of visible ASCII characters")
});

/// The page: its head and its body.
pub(super) fn page() -> (Head, Vec<u8>) {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(VARY, HeaderValue::from_static("accept"));
    headers.insert(CONTENT_SECURITY_POLICY, POLICY.clone());
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    (Head { status: 200, headers, length: Some(PAGE.len() as u64) }, PAGE.into())
}

/// What the page may do: run its own script in its own style, show its icon (a data URL), and
/// ask us. No text becomes markup: the script may not even try (trusted types).
fn policy(page: &str) -> String {
    let hash = |name: &str| {
        let content = content(page, name).expect("the page has one style and one script");
        format!("'sha256-{}'", STANDARD.encode(Sha256::digest(content)))
    };
    format!(
        "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'",
        hash("script"),
        hash("style")
    )
}

/// What stands in the only element of this name.
fn content<'a>(page: &'a str, name: &str) -> Option<&'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let (_, after) = page.split_once(&open)?;
    let (content, rest) = after.split_once(&close)?;
    (!rest.contains(&format!("<{name}"))).then_some(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn style_and_script_are_let_in_by_their_hashes() {
        let page = "<html><style>a{}</style><script>let a</script></html>";
        let policy = policy(page);
        // printf 'a{}' | openssl dgst -sha256 -binary | base64, and the same of 'let a'
        for hash in [
            "style-src 'sha256-X1RutGBrXCt9KkSaXMK7tHftWiRscFHOhxsS8tv8hBk='",
            "script-src 'sha256-IfEXP/8HLuXoAiy0hZVrCAcjcLsZqYFpLOHDGj8enqE='",
        ] {
            assert!(policy.contains(hash), "{policy}");
        }
    }

    #[test]
    fn an_element_that_is_missing_or_repeated_is_not_taken_for_the_only_one() {
        assert_eq!(content("<style>a</style>", "style"), Some("a"));
        for page in ["", "<style>a", "<style>a</style><style>b</style>", "<style media=x>a</style>"]
        {
            assert_eq!(content(page, "style"), None, "{page}");
        }
    }

    #[test]
    fn the_page_brings_everything_along_and_nothing_that_its_policy_forbids() {
        let (head, body) = page();
        assert_eq!(head.length, Some(body.len() as u64));
        let policy = head.headers[CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        for word in ["src=", "://", " style=", "innerHTML", "outerHTML", "insertAdjacent", "eval("]
        {
            assert!(!PAGE.contains(word), "{word}");
        }
        let handler = PAGE.split([' ', '\n']).find(|word| {
            word.starts_with("on")
                && word.split_once('=').is_some_and(|(_, value)| value.starts_with('"'))
        });
        assert_eq!(handler, None, "an inline handler");
    }
}
