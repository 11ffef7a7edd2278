//! A redirect of upstream's. It is never handed on: a client that followed it would send the
//! proxy's key and the prompt to whoever is named there.

use http::{HeaderMap, header};

/// The longest name of a host (RFC 1035).
const LONGEST_HOST: usize = 253;

/// Whether a status sends its client elsewhere. (304 says that there is nothing new.)
#[must_use]
pub(crate) fn is_redirect(status: u16) -> bool {
    (300..400).contains(&status) && status != 304
}

/// The host to which a redirect points, without anything else of its URL. `None` where it names
/// none, or what is no host.
#[must_use]
pub(crate) fn target(headers: &HeaderMap) -> Option<&str> {
    let location = headers.get(header::LOCATION)?.to_str().ok()?.trim();
    let (_, rest) = location.split_once("//")?;
    let authority = rest.split(['/', '?', '#', '\\']).next()?;
    let host = authority.rsplit('@').next()?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
    let is_host = (1..=LONGEST_HOST).contains(&host.len()) && host.chars().all(is_plain);
    is_host.then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn host(location: &str) -> Option<String> {
        let value = HeaderValue::from_str(location).unwrap();
        let headers = HeaderMap::from_iter([(header::LOCATION, value)]);
        target(&headers).map(str::to_owned)
    }

    #[test]
    fn only_the_host_of_a_location_is_told() {
        for location in [
            "https://login.example:8443/a?key=secret#x",
            "//login.example:8443",
            "http://user:secret@login.example:8443/",
            "HTTPS://login.example:8443?x=http://other.example/",
            "https://login.example:8443\\@other.example/",
        ] {
            assert_eq!(host(location).as_deref(), Some("login.example:8443"), "{location}");
        }
        assert_eq!(host("https://[::1]:80/").as_deref(), Some("[::1]:80"));
        for location in ["/elsewhere?x=secret", "elsewhere", "", "https://", "https://a b/", "///"]
        {
            assert_eq!(host(location), None, "{location}");
        }
        assert_eq!(target(&HeaderMap::new()), None);
    }

    #[test]
    fn every_redirect_is_one_and_nothing_else() {
        let redirects: Vec<u16> = (100..600).filter(|status| is_redirect(*status)).collect();
        assert!(redirects.contains(&300) && redirects.contains(&308) && redirects.contains(&399));
        assert!(!redirects.contains(&304));
        assert_eq!(redirects.len(), 99);
    }
}
