//! The one list of the variables there are, with their defaults.

/// A variable of the configuration.
#[derive(Debug)]
pub(crate) struct Variable {
    pub(crate) name: &'static str,
    /// The text that stands for a missing value. `None`: it is required, or it switches
    /// something on by being there.
    pub(crate) default: Option<&'static str>,
}

/// Every variable that is read, in the order of `.env.example`. The proxy variables may be
/// lower case as well.
#[rustfmt::skip]
pub(crate) const VARIABLES: &[Variable] = &[
    Variable { name: "PROXY_API_KEY", default: None },
    Variable { name: "DASHSCOPE_API_KEYS", default: None },
    Variable { name: "MODEL_IDS", default: None },
    Variable { name: "HOST", default: Some("127.0.0.1") },
    Variable { name: "PORT", default: Some("3300") },
    Variable { name: "UPSTREAM_BASE_URL", default: Some("https://dashscope.aliyuncs.com/apps/anthropic") },
    Variable { name: "OPENAI_UPSTREAM_BASE_URL", default: Some("https://dashscope.aliyuncs.com/compatible-mode/v1") },
    Variable { name: "NATIVE_UPSTREAM_BASE_URL", default: Some("https://dashscope.aliyuncs.com/api/v1") },
    Variable { name: "UPSTREAM_AUTH_MODE", default: Some("authorization") },
    Variable { name: "MODEL_COOLDOWN_SECONDS", default: Some("2592000") },
    Variable { name: "FREE_QUOTA_TOKENS", default: Some("1000000") },
    Variable { name: "QUOTA_GUARD", default: Some("off") },
    Variable { name: "STATE_PATH", default: Some("./data/proxy-state.json") },
    Variable { name: "CORS_ORIGIN", default: Some("*") },
    Variable { name: "MODEL_SELECTION", default: Some("pool") },
    Variable { name: "MODEL_LIMITS", default: Some("adapt") },
    Variable { name: "VISION_MODELS", default: None },
    Variable { name: "FAILOVER", default: Some("on") },
    Variable { name: "WORKERS", default: Some("64") },
    Variable { name: "QUEUE_SIZE", default: Some("256") },
    Variable { name: "MAX_BODY_BYTES", default: Some("67108864") },
    Variable { name: "CONNECT_TIMEOUT_SECONDS", default: Some("10") },
    Variable { name: "UPSTREAM_TIMEOUT_SECONDS", default: Some("600") },
    Variable { name: "STREAM_IDLE_TIMEOUT_SECONDS", default: Some("300") },
    Variable { name: "CLIENT_TIMEOUT_SECONDS", default: Some("60") },
    Variable { name: "SHUTDOWN_GRACE_SECONDS", default: Some("60") },
    Variable { name: "UPSTREAM_CA_FILE", default: None },
    Variable { name: "ALL_PROXY", default: None },
    Variable { name: "HTTPS_PROXY", default: None },
    Variable { name: "HTTP_PROXY", default: None },
    Variable { name: "NO_PROXY", default: None },
    Variable { name: "RUST_LOG", default: Some("info") },
];

/// Whether `name` is read.
pub(super) fn is_known(name: &str) -> bool {
    VARIABLES.iter().any(|variable| {
        let lower_case_too = variable.name.ends_with("_PROXY");
        variable.name == name || (lower_case_too && variable.name.eq_ignore_ascii_case(name))
    })
}

/// The variable that the unknown `name` was probably meant to be.
pub(super) fn probably_meant(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_uppercase();
    VARIABLES
        .iter()
        .map(|variable| (edit_distance(&name, variable.name), variable.name))
        // Two edits turn HOST into PORT: a short name is only recognised by one.
        .filter(|(distance, meant)| *distance <= if meant.len() <= 5 { 1 } else { 2 })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, meant)| meant)
}

/// How many characters have to be inserted, removed or replaced (Levenshtein).
fn edit_distance(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.bytes().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distance_counts_edits() {
        for (from, to, distance) in
            [("", "", 0), ("", "ab", 2), ("ab", "", 2), ("kitten", "sitting", 3), ("ab", "ba", 2)]
        {
            assert_eq!(edit_distance(from, to), distance, "{from} {to}");
        }
    }

    #[test]
    fn a_typing_error_is_recognised() {
        for (name, meant) in [
            ("MODEL_COOLDOWN_SECOND", Some("MODEL_COOLDOWN_SECONDS")),
            ("DASHSCOPE_API_KEY", Some("DASHSCOPE_API_KEYS")),
            ("MODEL_IDS_", Some("MODEL_IDS")),
            ("PROXY_APIKEY", Some("PROXY_API_KEY")),
            ("UPSTREAM_TIMEUOT_SECONDS", Some("UPSTREAM_TIMEOUT_SECONDS")),
            ("model_ids", Some("MODEL_IDS")),
            ("PORTS", Some("PORT")),
            ("POSTS", None),
            ("HOME", None),
            ("NODE_ENV", None),
            ("NODE_OPTIONS", None),
        ] {
            assert_eq!(probably_meant(name), meant, "{name}");
        }
    }

    #[test]
    fn only_the_proxy_variables_are_known_in_lower_case() {
        assert!(is_known("PORT") && is_known("NO_PROXY") && is_known("https_proxy"));
        assert!(!is_known("port") && !is_known("No_Proxys"));
    }
}
