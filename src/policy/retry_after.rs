//! How long upstream asks to wait, and how much of that a client is told.
//!
//! Clients sleep for whatever they are told, a month too, and nobody learns why: so no
//! `Retry-After` of over a minute leaves the proxy, ours or upstream's.

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::clock::Timestamp;

/// The longest wait that a client is told, in seconds.
pub(crate) const LONGEST_TOLD: u64 = 60;

/// The same in milliseconds, which the SDKs of OpenAI and Anthropic look at first.
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// How many seconds an answer asks to wait, rounded up.
#[must_use]
pub(crate) fn asked(headers: &HeaderMap, now: Timestamp) -> Option<u64> {
    [RETRY_AFTER, RETRY_AFTER_MS].iter().find_map(|name| seconds(name, headers.get(name)?, now))
}

/// Whether a header of upstream's may travel: another one, or a wait that can be understood and
/// is no longer than a minute.
#[must_use]
pub(crate) fn travels(name: &HeaderName, value: &HeaderValue, now: Timestamp) -> bool {
    let is_wait = *name == RETRY_AFTER || *name == RETRY_AFTER_MS;
    !is_wait || seconds(name, value, now).is_some_and(|seconds| seconds <= LONGEST_TOLD)
}

/// Seconds, milliseconds, or an HTTP date (RFC 9110, section 10.2.3).
fn seconds(name: &HeaderName, value: &HeaderValue, now: Timestamp) -> Option<u64> {
    let text = value.to_str().ok()?.trim();
    let millis = match text.parse::<f64>() {
        Ok(count) if *name == RETRY_AFTER_MS => count,
        Ok(count) => count * 1000.0,
        Err(_) => {
            let at = Timestamp::from(httpdate::parse_http_date(text).ok()?);
            return Some(at.since(now).as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX));
        }
    };
    whole_seconds(millis)
}

/// `None` for what is no time: below zero, or not a number.
fn whole_seconds(millis: f64) -> Option<u64> {
    let seconds = (millis / 1000.0).ceil();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "whole, not below zero, and `as` ends at the largest number"
    )]
    (seconds >= 0.0).then_some(seconds as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1994-11-06T08:49:37Z.
    const NOW: Timestamp = Timestamp(784_111_777_000);

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        let value = HeaderValue::from_str(value).unwrap();
        HeaderMap::from_iter([(HeaderName::from_static(name), value)])
    }

    fn told(name: &'static str, value: &str) -> (Option<u64>, bool) {
        let headers = headers(name, value);
        let (name, value) = headers.iter().next().unwrap();
        (asked(&headers, NOW), travels(name, value, NOW))
    }

    #[test]
    fn seconds_milliseconds_and_dates_are_understood() {
        assert_eq!(told("retry-after", "7"), (Some(7), true));
        assert_eq!(told("retry-after", " 0 "), (Some(0), true));
        assert_eq!(told("retry-after", "1.2"), (Some(2), true));
        assert_eq!(told("retry-after-ms", "1500"), (Some(2), true));
        assert_eq!(told("retry-after", "Sun, 06 Nov 1994 08:50:37 GMT"), (Some(60), true));
        assert_eq!(told("retry-after", "Sun, 06 Nov 1994 08:49:00 GMT"), (Some(0), true));
        assert_eq!(told("retry-after", "Sunday, 06-Nov-94 08:49:47 GMT"), (Some(10), true));
    }

    #[test]
    fn no_wait_of_over_a_minute_travels_however_it_is_spelt() {
        assert_eq!(told("retry-after", "60"), (Some(60), true));
        assert_eq!(told("retry-after", "61"), (Some(61), false));
        assert_eq!(told("retry-after", "999999999999"), (Some(999_999_999_999), false));
        assert_eq!(told("retry-after", "8.64e4"), (Some(86_400), false));
        assert_eq!(told("retry-after", &"9".repeat(400)), (Some(u64::MAX), false));
        assert_eq!(told("retry-after-ms", "60001"), (Some(61), false));
        assert_eq!(told("retry-after", "Sun, 06 Nov 1994 08:50:38 GMT"), (Some(61), false));
    }

    #[test]
    fn what_is_no_wait_is_not_believed_and_does_not_travel() {
        for nonsense in ["", "soon", "-1", "nan", "Sun, 06 Nov 1994", "1, 86400"] {
            assert_eq!(told("retry-after", nonsense), (None, false), "{nonsense:?}");
        }
    }

    #[test]
    fn the_first_that_is_understood_counts_and_other_headers_travel() {
        let mut both = headers("retry-after", "soon");
        both.extend(headers("retry-after-ms", "3000"));
        assert_eq!(asked(&both, NOW), Some(3));
        assert_eq!(asked(&HeaderMap::new(), NOW), None);
        assert_eq!(told("x-request-id", "999999999999"), (None, true));
    }
}
