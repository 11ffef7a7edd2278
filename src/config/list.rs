//! Lists in one variable: the DashScope keys and the model ids. Pure text; no message holds an
//! item, only its number.

use super::url::Origin;
use super::value::{IS_PLACEHOLDER, first_foreign, is_key_character, is_placeholder, unquote};
use crate::policy::pool::{LONGEST_MODEL_ID, is_model_character};
use crate::secret::Secret;

/// A DashScope key and where it is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyConfig {
    /// The key.
    pub secret: Secret,
    /// What replaces the origin of every base URL for this key; `None` leaves them.
    pub origin: Option<Origin>,
}

/// What was found in a list. It counts only if there are no flaws.
#[derive(Debug)]
pub(super) struct List<T> {
    pub(super) entries: Vec<T>,
    pub(super) flaws: Vec<String>,
    pub(super) notes: Vec<String>,
}

/// The items of a list: between commas or line ends, without blanks and one pair of quotes around
/// the whole or an item, without empty ones.
pub(super) fn items(text: &str) -> impl Iterator<Item = &str> {
    unquote(text.trim())
        .split([',', '\n', '\r'])
        .map(|item| unquote(item.trim()).trim())
        .filter(|item| !item.is_empty())
}

/// Reads the DashScope keys: `key` or `key@scheme://host[:port]`.
pub(super) fn keys(text: &str) -> List<KeyConfig> {
    list(text, key, |one, other| {
        if one.secret != other.secret {
            Likeness::Different
        } else if one.origin == other.origin {
            Likeness::Same
        } else {
            Likeness::Contradiction("the same key with different origins")
        }
    })
}

/// Reads the model ids.
pub(super) fn models(text: &str) -> List<String> {
    list(text, model, |one, other| match one == other {
        true => Likeness::Same,
        false => Likeness::Different,
    })
}

/// How two entries of a list compare.
enum Likeness {
    Different,
    Same,
    Contradiction(&'static str),
}

fn list<T>(
    text: &str,
    parse: impl Fn(&str) -> Result<T, String>,
    compare: impl Fn(&T, &T) -> Likeness,
) -> List<T> {
    let mut kept: Vec<(usize, T)> = Vec::new();
    let mut list = List { entries: Vec::new(), flaws: Vec::new(), notes: Vec::new() };
    for (number, item) in (1..).zip(items(text)) {
        let entry = match parse(item) {
            Ok(entry) => entry,
            Err(flaw) => {
                list.flaws.push(format!("item {number} {flaw}"));
                continue;
            }
        };
        let rival = kept.iter().find_map(|(first, other)| match compare(&entry, other) {
            Likeness::Different => None,
            likeness => Some((*first, likeness)),
        });
        match rival {
            None => kept.push((number, entry)),
            Some((first, Likeness::Contradiction(what))) => {
                list.flaws.push(format!("items {first} and {number} are {what}"));
            }
            Some((first, _)) => {
                list.notes.push(format!("item {number} repeats item {first} and is dropped"));
            }
        }
    }
    if kept.is_empty() && list.flaws.is_empty() {
        list.flaws.push("holds no item".to_owned());
    }
    list.entries = kept.into_iter().map(|(_, entry)| entry).collect();
    list
}

fn key(item: &str) -> Result<KeyConfig, String> {
    let (key, origin) = split_origin(item);
    if key.is_empty() {
        return Err("has no key before its origin".to_owned());
    }
    if let Some(kind) = first_foreign(key, is_key_character) {
        return Err(format!("holds {kind}"));
    }
    if is_placeholder(key) {
        return Err(IS_PLACEHOLDER.to_owned());
    }
    let origin = origin
        .map(Origin::parse)
        .transpose()
        .map_err(|error| format!("has an origin after @ that {error}"))?;
    Ok(KeyConfig { secret: Secret::new(key), origin })
}

/// Splits at the last `@` that an `http://` or `https://` follows; any other one is part of the
/// key.
fn split_origin(item: &str) -> (&str, Option<&str>) {
    let begins_with = |text: &str, scheme: &str| {
        text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    };
    item.rmatch_indices('@')
        .map(|(at, _)| (&item[..at], &item[at + 1..]))
        .find(|(_, origin)| begins_with(origin, "http://") || begins_with(origin, "https://"))
        .map_or((item, None), |(key, origin)| (key, Some(origin)))
}

fn model(item: &str) -> Result<String, String> {
    if let Some(kind) = first_foreign(item, is_model_character) {
        return Err(format!("holds {kind}; only letters, digits and ._:/@+- are allowed"));
    }
    if item.len() > LONGEST_MODEL_ID {
        return Err(format!("is longer than {LONGEST_MODEL_ID} characters"));
    }
    Ok(item.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows keys as `key` or `key origin`.
    fn shown_keys(list: &List<KeyConfig>) -> Vec<String> {
        let shown = |key: &KeyConfig| match &key.origin {
            Some(origin) => format!("{} {origin}", key.secret.expose()),
            None => key.secret.expose().to_owned(),
        };
        list.entries.iter().map(shown).collect()
    }

    #[test]
    fn a_messy_list_is_the_list_that_was_meant() {
        for text in [
            "a,b,c",
            " a , b , c ",
            "a,,b,\n,c,",
            "a\nb\nc\n",
            "a\r\nb\r\nc\r\n",
            "a\rb\rc",
            "a,\n  b,\n  c",
            "\ta\t,\u{a0}b\u{a0},\u{3000}c",
            "\"a,b,c\"",
            "'a,b,c'",
            "`a\nb\nc`",
            " \"a, b, c\" ",
            "\"a\",\"b\",\"c\"",
            "'a', \"b\", c",
            "'\"a\",\"b\",\"c\"'",
            "\" a \",b,\"\",c",
        ] {
            let list = models(text);
            assert_eq!(list.entries, ["a", "b", "c"], "{text:?}");
            assert!(list.flaws.is_empty() && list.notes.is_empty(), "{text:?}");
            assert_eq!(shown_keys(&keys(text)), ["a", "b", "c"], "{text:?}");
        }
    }

    #[test]
    fn every_separator_gives_the_same_list() {
        for separator in [",", "\n", "\r\n", ",\n", " , ", ",,", "\n\n", "\u{a0},\t"] {
            for quote in ["", "\"", "'", "`"] {
                let item = |name: &str| format!("{quote}{name}{quote}");
                let text = [item("sk-1"), item("sk-2"), item("sk-3")].join(separator);
                assert_eq!(items(&text).collect::<Vec<_>>(), ["sk-1", "sk-2", "sk-3"], "{text:?}");
            }
        }
    }

    #[test]
    fn a_repeated_item_is_dropped_and_told_by_its_number() {
        let list = keys("sk-1, sk-2, sk-1, sk-2");
        assert_eq!(shown_keys(&list), ["sk-1", "sk-2"]);
        assert_eq!(
            list.notes,
            ["item 3 repeats item 1 and is dropped", "item 4 repeats item 2 and is dropped"]
        );
        assert!(list.flaws.is_empty());
    }

    #[test]
    fn a_list_of_nothing_is_a_flaw() {
        for text in [",", " , \n", "\"\"", "'',\"\""] {
            assert_eq!(models(text).flaws, ["holds no item"], "{text:?}");
        }
    }

    #[test]
    fn a_key_may_name_its_origin_after_the_last_at() {
        for (text, key) in [
            ("sk-1@https://h.example", "sk-1 https://h.example"),
            ("sk-1@HTTP://h.example:8080", "sk-1 http://h.example:8080"),
            ("s@k@https://h.example", "s@k https://h.example"),
            ("s@https://a@https://b", "s@https://a https://b"),
            ("sk-1@h.example", "sk-1@h.example"),
        ] {
            assert_eq!(shown_keys(&keys(text)), [key], "{text}");
        }
    }

    #[test]
    fn an_origin_that_is_none_is_a_flaw() {
        let cases = [
            ("sk-1@https://", "item 1 has an origin after @ that has no valid host"),
            (
                "sk-1@https://h/v1",
                "item 1 has an origin after @ that must end after scheme://host[:port], without a \
                 slash or a path",
            ),
            ("@https://h", "item 1 has no key before its origin"),
        ];
        for (text, flaw) in cases {
            assert_eq!(keys(text).flaws, [flaw]);
        }
    }

    #[test]
    fn one_key_with_two_origins_is_a_flaw() {
        let list = keys("sk-1, sk-2, sk-1@https://h");
        assert_eq!(list.flaws, ["items 1 and 3 are the same key with different origins"]);
    }

    #[test]
    fn a_character_that_no_key_has_is_told_by_its_kind_only() {
        for (text, kind) in [
            ("sk-1;sk-2", "a semicolon"),
            ("sk-1，sk-2", "a full-width comma"),
            ("sk-1；sk-2", "a full-width semicolon"),
            ("sk-1、sk-2", "an ideographic comma"),
            ("sk-1 sk-2", "a blank"),
            ("sk-1\u{a0}sk-2", "a no-break space"),
            ("sk-1\u{3000}sk-2", "a blank"),
            ("sk-1\u{200b}", "a zero-width character"),
            ("\u{feff}sk-1", "a zero-width character"),
            ("sk-1\u{7}", "a control character"),
            ("sk-1\tsk-2", "a control character"),
            ("“sk-1”", "a curly quote"),
            ("[\"sk-1\"]", "a quote"),
            ("\"sk-1", "a quote"),
            ("sk-é", "a character that is not ASCII"),
        ] {
            assert_eq!(keys(text).flaws, [format!("item 1 holds {kind}")], "{text:?}");
        }
    }

    #[test]
    fn every_flaw_of_a_list_is_told() {
        assert_eq!(keys("sk 1, sk-2, sk;3").flaws.len(), 2);
    }

    #[test]
    fn a_model_id_is_short_and_plain() {
        let longest = "m".repeat(LONGEST_MODEL_ID);
        for id in ["qwen-max", "deepseek/v3.1@2025:free+x_1", &longest] {
            assert_eq!(models(id).entries, [id]);
        }
        assert_eq!(models(&format!("{longest}m")).flaws, ["item 1 is longer than 128 characters"]);
        let flaw = "item 2 holds a character that is not allowed; only letters, digits and \
                    ._:/@+- are allowed";
        assert_eq!(models("a,b!").flaws, [flaw]);
    }
}
