//! Keys of subscription plans (`sk-sp-…`) and the hosts that take them.
//!
//! A plan's host refuses a pay-as-you-go key, and the other way round, with the very answer that a
//! bad key gets (facts, section 1.1): so it is said at the start.

use super::list::KeyConfig;
use super::url::{BaseUrl, Origin};
use crate::secret;

/// How the keys of the coding and token plans begin.
const PLAN_PREFIX: &str = "sk-sp-";

/// Whose keys a host takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tariff {
    Plan,
    PayAsYouGo,
}

impl Tariff {
    fn of_key(key: &str) -> Self {
        if key.starts_with(PLAN_PREFIX) { Self::Plan } else { Self::PayAsYouGo }
    }

    /// `None` for a host that is not known to be DashScope's: a proxy, a test, a new name.
    fn of_host(host: &str) -> Option<Self> {
        let name = host.strip_suffix(".aliyuncs.com")?;
        let (first, rest) = name.split_once('.').unwrap_or((name, ""));
        match (first, rest) {
            (coding, "dashscope") if coding.starts_with("coding") => Some(Self::Plan),
            ("token-plan", region) if region.ends_with(".maas") => Some(Self::Plan),
            (_, "dashscope") => Some(Self::PayAsYouGo),
            (host, "") if host.starts_with("dashscope") => Some(Self::PayAsYouGo),
            (_, region) if region.ends_with(".maas") => Some(Self::PayAsYouGo),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::PayAsYouGo => "pay-as-you-go",
        }
    }
}

/// What to warn of: keys that go to a host of the other tariff. `bases` come with their
/// variables; a key's own origin goes before them.
pub(super) fn notes(keys: &[KeyConfig], bases: &[(&str, &BaseUrl)]) -> Vec<String> {
    keys.iter().filter_map(|key| note(key, bases)).collect()
}

fn note(key: &KeyConfig, bases: &[(&str, &BaseUrl)]) -> Option<String> {
    let tariff = Tariff::of_key(key.secret.expose());
    let is_foreign =
        |origin: &Origin| Tariff::of_host(origin.host()).is_some_and(|of| of != tariff);
    let places = match &key.origin {
        Some(origin) if is_foreign(origin) => vec!["its origin after @"],
        Some(_) => Vec::new(),
        None => {
            let foreign = bases.iter().filter(|(_, base)| is_foreign(base.origin()));
            foreign.map(|(name, _)| *name).collect()
        }
    };
    let other = if tariff == Tariff::Plan { Tariff::PayAsYouGo } else { Tariff::Plan };
    (!places.is_empty()).then(|| {
        format!(
            "sends the {} key {} to a {} host ({}), which will refuse it",
            tariff.name(),
            secret::label(&key.secret.hash()),
            other.name(),
            places.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::list;

    const PAY: &str = "https://dashscope.aliyuncs.com/apps/anthropic";
    const PLAN: &str = "https://coding.dashscope.aliyuncs.com/v1";

    fn noted(keys: &str, base: &str) -> Vec<String> {
        let base = BaseUrl::parse(base).unwrap();
        notes(&list::keys(keys).entries, &[("BASE", &base)])
    }

    #[test]
    fn a_host_takes_keys_of_one_tariff() {
        for (host, tariff) in [
            ("dashscope.aliyuncs.com", Some(Tariff::PayAsYouGo)),
            ("dashscope-intl.aliyuncs.com", Some(Tariff::PayAsYouGo)),
            ("dashscope-us.aliyuncs.com", Some(Tariff::PayAsYouGo)),
            ("cn-hongkong.dashscope.aliyuncs.com", Some(Tariff::PayAsYouGo)),
            ("ws-1.cn-beijing.maas.aliyuncs.com", Some(Tariff::PayAsYouGo)),
            ("coding.dashscope.aliyuncs.com", Some(Tariff::Plan)),
            ("coding-intl.dashscope.aliyuncs.com", Some(Tariff::Plan)),
            ("token-plan.cn-beijing.maas.aliyuncs.com", Some(Tariff::Plan)),
            ("127.0.0.1", None),
            ("[::1]", None),
            ("localhost", None),
            ("oss.aliyuncs.com", None),
            ("aliyuncs.com", None),
            ("coding.dashscope.aliyuncs.com.example", None),
            ("dashscope.example", None),
        ] {
            assert_eq!(Tariff::of_host(host), tariff, "{host}");
        }
    }

    #[test]
    fn a_key_on_a_host_of_the_other_tariff_is_noted_by_its_label() {
        let label = |key: &str| secret::label(&secret::Secret::new(key).hash()).to_owned();
        let expected = format!(
            "sends the plan key {} to a pay-as-you-go host (BASE), which will refuse it",
            label("sk-sp-1")
        );
        assert_eq!(noted("sk-sp-1", PAY), [expected]);
        let expected = format!(
            "sends the pay-as-you-go key {} to a plan host (BASE), which will refuse it",
            label("sk-2")
        );
        assert_eq!(noted("sk-sp-1,sk-2", PLAN), [expected]);
        assert_eq!(noted("sk-1,sk-ws-2,sk-sp-3", PAY).len(), 1);
    }

    #[test]
    fn a_keys_own_origin_goes_before_the_base_urls() {
        assert!(noted("sk-sp-1@https://coding.dashscope.aliyuncs.com", PAY).is_empty());
        assert!(noted("sk-1@https://dashscope-intl.aliyuncs.com:443", PLAN).is_empty());
        let notes = noted("sk-1@https://token-plan.cn-beijing.maas.aliyuncs.com:8443", PAY);
        assert!(notes[0].contains("its origin after @"), "{notes:?}");
    }

    #[test]
    fn a_host_that_is_not_dashscopes_is_never_noted() {
        for base in ["http://127.0.0.1:3000/v1", "http://[::1]/v1", "https://gateway.example"] {
            assert!(noted("sk-sp-1,sk-2", base).is_empty(), "{base}");
        }
    }

    #[test]
    fn every_base_that_does_not_fit_is_named() {
        let (pay, plan) = (BaseUrl::parse(PAY).unwrap(), BaseUrl::parse(PLAN).unwrap());
        let bases = [("A", &pay), ("B", &plan), ("C", &pay)];
        let notes = notes(&list::keys("sk-sp-1").entries, &bases);
        assert!(notes.len() == 1 && notes[0].contains("(A, C)"), "{notes:?}");
    }
}
