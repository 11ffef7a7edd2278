//! The configuration as it is in force, for people: every value, and where it comes from.

use super::variables::VARIABLES;
use super::{Config, Environment, OUTBOUND, OutboundProxy};
use crate::log_text::Quoted;
use crate::secret;

/// One variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name, as it is written where it is set.
    pub name: String,
    /// What is in force. Keys are shown as labels, proxies without their password; `None` = it is
    /// not set and has no default.
    pub value: Option<String>,
    /// `default`, `environment`, or the name of the file.
    pub origin: String,
}

/// Every variable that is read, in the order of `.env.example`.
#[must_use]
pub fn settings(environment: &Environment, config: &Config) -> Vec<Setting> {
    VARIABLES.iter().map(|variable| setting(variable.name, environment, config)).collect()
}

fn setting(name: &str, environment: &Environment, config: &Config) -> Setting {
    let lower_case = name.to_ascii_lowercase();
    let is_lower = environment.get(name).is_none() && environment.get(&lower_case).is_some();
    let written = if is_lower && name.ends_with("_PROXY") { lower_case } else { name.to_owned() };
    let given = environment.get(&written);
    let origin = match (given, environment.file_of(&written)) {
        (None, _) => "default",
        (Some(_), Some(file)) => file,
        (Some(_), None) => "environment",
    };
    let origin = origin.to_owned();
    let text = given.or_else(|| VARIABLES.iter().find(|it| it.name == name)?.default);
    let value = text.map(|text| shown(name, text, config));
    Setting { name: written, value, origin }
}

/// A value without what must not be shown of it.
fn shown(name: &str, text: &str, config: &Config) -> String {
    match name {
        "PROXY_API_KEY" => secret::label(&config.proxy_key.hash()).to_owned(),
        "DASHSCOPE_API_KEYS" => {
            let keys = config.keys.iter().map(|key| {
                let hash = key.secret.hash();
                let origin = key.origin.as_ref().map(|origin| format!("@{origin}"));
                format!("{}{}", secret::label(&hash), origin.unwrap_or_default())
            });
            keys.collect::<Vec<_>>().join(",")
        }
        "MODEL_IDS" => config.models.join(","),
        name if OUTBOUND.contains(&name) => match OutboundProxy::parse(text, Vec::new()) {
            Ok(proxy) if config.outbound.as_ref().is_some_and(|used| used.url == proxy.url) => {
                proxy.shown()
            }
            Ok(proxy) => format!("{} (not used)", proxy.shown()),
            Err(_) => "(not used)".to_owned(),
        },
        _ => Quoted(text).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Loaded, load};
    use super::*;

    fn told(more: &[(&str, &str)]) -> Vec<Setting> {
        let required = [
            ("PROXY_API_KEY", "a-proxy-key-of-good-length"),
            ("DASHSCOPE_API_KEYS", "sk-1, sk-2@https://h"),
            ("MODEL_IDS", "m1,\n m2"),
        ];
        let pairs = required.iter().chain(more);
        let pairs = pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let environment = Environment::from_pairs(pairs);
        let Loaded { config, .. } = load(&environment).unwrap();
        settings(&environment, &config)
    }

    fn value(settings: &[Setting], name: &str) -> Option<(Option<String>, String)> {
        let found = settings.iter().find(|setting| setting.name == name);
        found.map(|setting| (setting.value.clone(), setting.origin.clone()))
    }

    #[test]
    fn every_variable_is_told_with_its_origin() {
        let settings = told(&[("PORT", "1")]);
        assert_eq!(settings.len(), VARIABLES.len());
        assert_eq!(value(&settings, "PORT"), Some((Some("1".into()), "environment".into())));
        assert_eq!(value(&settings, "WORKERS"), Some((Some("64".into()), "default".into())));
        assert_eq!(value(&settings, "NO_PROXY"), Some((None, "default".into())));
        assert_eq!(
            value(&settings, "MODEL_IDS"),
            Some((Some("m1,m2".into()), "environment".into()))
        );
    }

    #[test]
    fn no_secret_is_told() {
        let settings = told(&[
            ("https_proxy", "http://user:secret@proxy.example:8080"),
            ("HTTP_PROXY", "http://user:secret@other.example:8080"),
        ]);
        let text = format!("{settings:?}");
        for secret in ["sk-1", "sk-2", "a-proxy-key", "secret", "user"] {
            assert!(!text.contains(secret), "{secret}: {text}");
        }
        assert!(text.contains("@https://h"), "{text}");
        let proxy = Some((Some("http://proxy.example:8080".into()), "environment".into()));
        assert_eq!(value(&settings, "https_proxy"), proxy);
        let unused = "http://other.example:8080 (not used)".to_owned();
        assert_eq!(value(&settings, "HTTP_PROXY"), Some((Some(unused), "environment".into())));
    }
}
