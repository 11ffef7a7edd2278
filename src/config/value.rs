//! Single values: numbers, choices, addresses, and which characters a key may hold. Pure text; no
//! message holds the value.

use std::fmt::Display;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use super::list::items;
use super::url::{Origin, UrlError, is_host_name};
use super::{AuthMode, ModelSelection};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::policy::failover::Failover;
use crate::policy::guard::Quotas;
use crate::policy::limits::ModelLimits;
use crate::secret::Secret;

/// Reads a number written with digits alone.
pub(super) fn number<T>(text: &str, range: &RangeInclusive<T>) -> Result<T, String>
where
    T: FromStr + PartialOrd + Display,
{
    Some(text)
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|text| text.parse().ok())
        .filter(|number| range.contains(number))
        .ok_or_else(|| format!("must be a whole number from {} to {}", range.start(), range.end()))
}

/// What a key holds that was copied from `.env.example`, or from the README's examples: everybody
/// knows it.
const PLACEHOLDERS: [&str; 2] = ["replace-me", "your_proxy_api_key"];

/// What is wrong with a key that nobody has put there.
pub(super) const IS_PLACEHOLDER: &str =
    "is still the placeholder of .env.example: put your own key in its place";

/// Whether a key is an example's.
pub(super) fn is_placeholder(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    PLACEHOLDERS.iter().any(|placeholder| key.contains(placeholder))
}

/// Reads the proxy key: any visible ASCII, since it is the operator's own choice.
pub(super) fn proxy_key(text: &str) -> Result<Secret, String> {
    if is_placeholder(text) {
        return Err(IS_PLACEHOLDER.to_owned());
    }
    match first_foreign(text, |c| c.is_ascii_graphic()) {
        Some(kind) => Err(format!("holds {kind}")),
        None => Ok(Secret::new(text)),
    }
}

/// Reads a listen address: IPv4, IPv6 (with or without brackets) or a name, without a port.
pub(super) fn host(text: &str) -> Result<String, &'static str> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if bare.parse::<IpAddr>().is_ok() || is_host_name(text) {
        Ok(bare.to_owned())
    } else {
        Err("must be an IPv4 or IPv6 address or a host name; the port belongs in PORT")
    }
}

/// Reads how many tokens free quotas have: a number, then exceptions as `model=number`. Whether
/// there are such models is for the caller to see. No message holds an item, only its number.
pub(super) fn quotas(text: &str) -> Result<Quotas, String> {
    let of = |text: &str| number(text.trim(), &(0..=u64::MAX));
    let mut items = items(text);
    let usual = of(items.next().unwrap_or_default())
        .map_err(|flaw| format!("{flaw}, then exceptions as model=number"))?;
    let mut exceptions: Vec<(String, u64)> = Vec::new();
    for (place, item) in (2..).zip(items) {
        let (model, tokens) =
            item.split_once('=').ok_or_else(|| format!("item {place} must be model=number"))?;
        let model = model.trim().to_owned();
        let tokens = of(tokens).map_err(|flaw| format!("item {place}, after its `=`, {flaw}"))?;
        if exceptions.iter().any(|(known, _)| *known == model) {
            return Err(format!("item {place} names a model for the second time"));
        }
        exceptions.push((model, tokens));
    }
    Ok(Quotas { usual, exceptions })
}

/// Reads at which share of its quota a slot is left, in percent; `None` = never.
pub(super) fn quota_guard(text: &str) -> Result<Option<u8>, &'static str> {
    match text.to_ascii_lowercase().as_str() {
        "off" => Ok(None),
        text => number(text, &(1..=100))
            .map(Some)
            .map_err(|_| "must be off, or a whole number from 1 to 100 (percent)"),
    }
}

/// The certificates of a PEM file, as DER.
pub(super) fn certificates(pem: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let parsed = CertificateDer::pem_slice_iter(pem).map(|item| item.map(|der| der.to_vec()));
    match parsed.collect::<Result<Vec<_>, _>>() {
        Ok(certificates) if certificates.is_empty() => Err("holds no PEM certificate".to_owned()),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(format!("cannot be parsed: {error}")),
    }
}

pub(super) fn model_selection(text: &str) -> Result<ModelSelection, &'static str> {
    match text.to_ascii_lowercase().as_str() {
        "pool" => Ok(ModelSelection::Pool),
        "prefer" => Ok(ModelSelection::Prefer),
        _ => Err("must be pool or prefer"),
    }
}

pub(super) fn model_limits(text: &str) -> Result<ModelLimits, &'static str> {
    match text.to_ascii_lowercase().as_str() {
        "adapt" => Ok(ModelLimits::Adapt),
        "move" => Ok(ModelLimits::Move),
        "off" => Ok(ModelLimits::Off),
        _ => Err("must be adapt, move or off"),
    }
}

pub(super) fn failover(text: &str) -> Result<Failover, &'static str> {
    match text.to_ascii_lowercase().as_str() {
        "on" => Ok(Failover::On),
        "quota-only" => Ok(Failover::QuotaOnly),
        _ => Err("must be on or quota-only"),
    }
}

/// Reads how the key is sent upstream.
pub(super) fn auth_mode(text: &str) -> Result<AuthMode, &'static str> {
    match text.to_ascii_lowercase().as_str() {
        "authorization" => Ok(AuthMode::Authorization),
        "x-api-key" => Ok(AuthMode::XApiKey),
        "both" => Ok(AuthMode::Both),
        _ => Err("must be authorization, x-api-key or both"),
    }
}

/// Reads the one origin that browsers are let in from: `*`, an origin of any scheme, or `false`.
pub(super) fn cors_origin(text: &str) -> Result<Option<String>, String> {
    if text.eq_ignore_ascii_case("false") {
        return Ok(None);
    }
    if text == "*" {
        return Ok(Some(text.to_owned()));
    }
    Origin::parse_any_scheme(text)
        .map(|origin| Some(origin.to_string()))
        .map_err(|error: UrlError| format!("is neither * nor false, and as an origin it {error}"))
}

/// What is inside one pair of quotes around the whole of `text`; `"a","b"` has none.
pub(super) fn unquote(text: &str) -> &str {
    ['"', '\'', '`']
        .into_iter()
        .filter_map(|quote| {
            let inner = text.strip_prefix(quote)?.strip_suffix(quote)?;
            (!inner.contains(quote)).then_some(inner)
        })
        .next()
        .unwrap_or(text)
}

/// Whether a DashScope key may hold `c`: it goes into a header, and what separates or quotes keys
/// elsewhere is a list written for another program.
pub(super) fn is_key_character(c: char) -> bool {
    c.is_ascii_graphic() && !";\"'`".contains(c)
}

/// The kind of the first character that is not allowed. The character itself stays unsaid: it is
/// part of a key.
pub(super) fn first_foreign(text: &str, allowed: impl Fn(char) -> bool) -> Option<&'static str> {
    text.chars().find(|c| !allowed(*c)).map(kind)
}

fn kind(c: char) -> &'static str {
    match c {
        '，' => "a full-width comma",
        '；' => "a full-width semicolon",
        '、' => "an ideographic comma",
        ';' => "a semicolon",
        '"' | '\'' | '`' => "a quote",
        '\u{2018}'..='\u{201f}' => "a curly quote",
        '\u{a0}' | '\u{202f}' => "a no-break space",
        '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}' => "a zero-width character",
        c if c.is_control() => "a control character",
        c if c.is_whitespace() => "a blank",
        c if c.is_ascii() => "a character that is not allowed",
        _ => "a character that is not ASCII",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_digits_within_its_range() {
        assert_eq!(number("0", &(0..=u16::MAX)), Ok(0));
        assert_eq!(number("65535", &(0..=u16::MAX)), Ok(65_535));
        assert_eq!(number("007", &(1_u64..=9)), Ok(7));
        for text in
            ["", "0", "10", "-1", "+1", "1.5", "1e3", "0x1", "1s", "1 ", "１", "99999999999"]
        {
            let flaw = Err("must be a whole number from 1 to 9".to_owned());
            assert_eq!(number(text, &(1_u16..=9)), flaw, "{text:?}");
        }
    }

    #[test]
    fn quotas_are_a_number_and_exceptions() {
        let read = |text| {
            let Quotas { usual, exceptions } = quotas(text).unwrap();
            (usual, exceptions)
        };
        let own = |model: &str, tokens| (model.to_owned(), tokens);
        assert_eq!(read("0"), (0, vec![]));
        assert_eq!(read("1000000,qwen-image=0"), (1_000_000, vec![own("qwen-image", 0)]));
        assert_eq!(read("\" 5 , b = 6,\na=7, \""), (5, vec![own("b", 6), own("a", 7)]));
        for text in [
            "a=1",
            "1,2",
            "1,a=",
            "1,a=b=2",
            "1,a=-1",
            "1,a=1,a=1",
            "1 000",
            "1_000",
            "1e6",
            "99999999999999999999",
            ",",
            "1，a=0",
        ] {
            assert!(quotas(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_guard_is_off_or_a_percentage() {
        assert_eq!(quota_guard("Off"), Ok(None));
        assert_eq!(
            ["1", "090", "100"].map(quota_guard),
            [Ok(Some(1)), Ok(Some(90)), Ok(Some(100))]
        );
        for text in ["0", "101", "90%", "on", "90.5", "-1", "1e1", "90,", "０"] {
            assert!(quota_guard(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_proxy_key_is_visible_ascii() {
        for text in ["k", "a,b;c\"d", "!~"] {
            assert_eq!(proxy_key(text), Ok(Secret::new(text)));
        }
        assert_eq!(proxy_key("a b"), Err("holds a blank".to_owned()));
        assert_eq!(proxy_key("a\nb"), Err("holds a control character".to_owned()));
        assert_eq!(proxy_key("密钥"), Err("holds a character that is not ASCII".to_owned()));
    }

    #[test]
    fn a_placeholder_is_no_key_whatever_its_case() {
        for text in ["replace-me-with-a-long-random-key", "Replace-Me", "YOUR_PROXY_API_KEY"] {
            assert_eq!(proxy_key(text), Err(IS_PLACEHOLDER.to_owned()), "{text}");
        }
        assert!(!is_placeholder("sk-replaced") && !is_placeholder("my_proxy_api_key"));
    }

    #[test]
    fn a_listen_host_is_an_address_or_a_name() {
        for (text, expected) in [
            ("127.0.0.1", "127.0.0.1"),
            ("0.0.0.0", "0.0.0.0"),
            ("::", "::"),
            ("[::1]", "::1"),
            ("localhost", "localhost"),
            ("my-host.lan", "my-host.lan"),
        ] {
            assert_eq!(host(text), Ok(expected.to_owned()));
        }
        for text in ["127.0.0.1:3300", "[::1]:80", "http://h", "a b", "1.2.3", "h/x", "[h]"] {
            assert!(host(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_model_is_the_pools_or_preferably_the_clients() {
        assert_eq!(model_selection("pool"), Ok(ModelSelection::Pool));
        assert_eq!(model_selection("Prefer"), Ok(ModelSelection::Prefer));
        assert!(model_selection("strict").is_err());
    }

    #[test]
    fn failover_is_on_or_for_exhaustion_only() {
        assert_eq!(failover("On"), Ok(Failover::On));
        assert_eq!(failover("quota-only"), Ok(Failover::QuotaOnly));
        assert!(failover("off").is_err());
    }

    #[test]
    fn an_auth_mode_is_one_of_three() {
        assert_eq!(auth_mode("authorization"), Ok(AuthMode::Authorization));
        assert_eq!(auth_mode("X-Api-Key"), Ok(AuthMode::XApiKey));
        assert_eq!(auth_mode("both"), Ok(AuthMode::Both));
        assert!(auth_mode("bearer").is_err());
    }

    #[test]
    fn a_cors_origin_is_one_that_a_browser_sends() {
        for (text, expected) in [
            ("*", Some("*")),
            ("false", None),
            ("FALSE", None),
            ("http://localhost:5173", Some("http://localhost:5173")),
            ("https://App.example:443", Some("https://app.example")),
            ("chrome-extension://abcdef", Some("chrome-extension://abcdef")),
        ] {
            assert_eq!(cors_origin(text), Ok(expected.map(str::to_owned)));
        }
        for text in ["true", "localhost", "http://a,http://b", "http://a/", "http://a\nx: y"] {
            assert!(cors_origin(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_one_pair_of_quotes_around_the_whole_is_taken_off() {
        for (text, expected) in [
            ("\"a\"", "a"),
            ("'a'", "a"),
            ("'\"a\"'", "\"a\""),
            ("\"a\",\"b\"", "\"a\",\"b\""),
            ("\"a'", "\"a'"),
            ("\"", "\""),
            ("", ""),
        ] {
            assert_eq!(unquote(text), expected);
        }
    }
}
