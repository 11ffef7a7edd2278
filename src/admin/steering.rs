//! What a person asks of the pool: reset, disable, enable.

use std::sync::Arc;

use log::info;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Admin;
use crate::clock::{self, Timestamp};
use crate::error::ProxyError;
use crate::policy::pool::{KeyIndex, Pool, Slot};
use crate::policy::route::Steer;
use crate::policy::scheduler::{Guarding, Scheduler, Scope};

/// What is named in a request. An unknown member is an error, so that a typing error changes
/// nothing.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    key: Option<KeyName>,
    model: Option<String>,
    #[serde(default)]
    all: bool,
    /// Whether counts are set to 0 as well; only for a reset.
    #[serde(default)]
    usage: bool,
}

/// A key by its label (or its whole hash), or by its place in `DASHSCOPE_API_KEYS` from 0 on.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum KeyName {
    Index(usize),
    Label(String),
}

/// What was done.
#[derive(Debug)]
pub(crate) struct Steered {
    scope: Scope,
    usage: bool,
    changed: Vec<Slot>,
    /// Slots for which the guard is lifted now.
    lifted: Vec<Slot>,
}

impl Steered {
    /// The answer to who asked for it.
    pub(crate) fn answer(&self, pool: &Pool, is_written: bool) -> Value {
        let named = |slot: &Slot| json!({"key": pool.label(slot.key), "model": &*slot.model});
        let changed: Vec<Value> = self.changed.iter().map(named).collect();
        let lifted: Vec<Value> = self.lifted.iter().map(named).collect();
        let mut answer = json!({"ok": true, "changed": changed, "stateWritten": is_written});
        if !lifted.is_empty() {
            answer["guardLifted"] = lifted.into();
        }
        answer
    }
}

/// Does what `body` asks for.
///
/// # Errors
/// When it cannot be understood, or names what is not in the pool.
pub(crate) fn apply(
    scheduler: &mut Scheduler,
    steer: Steer,
    body: &[u8],
    now: Timestamp,
) -> Result<Steered, ProxyError> {
    let (scope, usage) = scope(steer, body, scheduler.pool())?;
    let changed = match steer {
        Steer::Reset => scheduler.reset(&scope, usage, now),
        Steer::Disable => scheduler.disable(scope.clone(), now),
        Steer::Enable => scheduler.enable(&scope, now),
    };
    let is_lifted = |slot: &Slot| {
        steer == Steer::Reset && scope.covers(slot) && scheduler.guarding(slot) == Guarding::Lifted
    };
    let lifted = scheduler.pool().slots().filter(is_lifted).collect();
    Ok(Steered { scope, usage, changed, lifted })
}

impl Admin {
    /// Does what is asked, and answers with what changed.
    ///
    /// # Errors
    /// When the request cannot be understood, or names what is not in the pool.
    pub(crate) fn steer(&self, steer: Steer, body: &[u8]) -> Result<Value, ProxyError> {
        let steered = apply(&mut self.scheduler.lock(), steer, body, clock::now())?;
        let is_written = self.store.commit(&self.scheduler);
        let pool = Arc::clone(self.scheduler.lock().pool());
        let Steered { scope, usage, changed, lifted } = &steered;
        info!(
            "steer action={} key={} model={} changed={} state_written={is_written} guard_lifted={} usage_reset={usage}",
            steer.name(),
            scope.key.map_or("*", |key| pool.label(key)),
            scope.model.as_deref().unwrap_or("*"),
            changed.len(),
            lifted.len()
        );
        Ok(steered.answer(&pool, is_written))
    }
}

/// The part of the pool that a request names, and whether its counts are meant, too.
fn scope(steer: Steer, body: &[u8], pool: &Pool) -> Result<(Scope, bool), ProxyError> {
    let body = if body.trim_ascii().is_empty() { b"{}" } else { body };
    let Named { key, model, all, usage } = serde_json::from_slice(body)
        .map_err(|error| ProxyError::Command(format!("the body is not understood: {error}")))?;
    if usage && steer != Steer::Reset {
        return Err(ProxyError::Command("`usage` is for a reset".to_owned()));
    }
    if all && (key.is_some() || model.is_some()) {
        return Err(ProxyError::Command("name a key or a model, or `all`, not both".to_owned()));
    }
    if !all && key.is_none() && model.is_none() && steer != Steer::Enable {
        return Err(ProxyError::Command(
            "name a `key`, a `model` or both, or say `\"all\": true`".to_owned(),
        ));
    }
    let key = key.map(|key| find_key(&key, pool)).transpose()?;
    let model = model.map(|model| find_model(model, pool)).transpose()?;
    Ok((Scope { key, model }, usage))
}

fn find_key(name: &KeyName, pool: &Pool) -> Result<KeyIndex, ProxyError> {
    let found = match name {
        KeyName::Index(index) => pool.keys().find(|key| key.0 == *index),
        KeyName::Label(label) => pool.keys().find(|key| {
            pool.label(*key) == label || pool.key_hash(*key) == label || label.parse() == Ok(key.0)
        }),
    };
    found.ok_or_else(|| ProxyError::NotInPool("key".to_owned()))
}

fn find_model(name: String, pool: &Pool) -> Result<Arc<str>, ProxyError> {
    let place = pool.place_of(&name).ok_or_else(|| ProxyError::NotInPool("model".to_owned()))?;
    Ok(Arc::clone(&pool.models()[place]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> Pool {
        let hash = |digit: &str| digit.repeat(64);
        Pool::new(vec![hash("a"), hash("b")], vec!["m1".into(), "m2".into()])
    }

    fn named(steer: Steer, body: &str) -> Result<Scope, ProxyError> {
        scope(steer, body.as_bytes(), &pool()).map(|(scope, _)| scope)
    }

    #[test]
    fn counts_are_reset_only_where_that_is_said() {
        let usage = |steer, body: &str| scope(steer, body.as_bytes(), &pool()).map(|named| named.1);
        assert!(!usage(Steer::Reset, r#"{"key":0}"#).unwrap());
        assert!(!usage(Steer::Reset, r#"{"key":0,"usage":false}"#).unwrap());
        assert!(usage(Steer::Reset, r#"{"all":true,"usage":true}"#).unwrap());
        for (steer, body) in [
            (Steer::Reset, r#"{"usage":true}"#),
            (Steer::Reset, r#"{"all":true,"usage":"yes"}"#),
            (Steer::Disable, r#"{"all":true,"usage":true}"#),
            (Steer::Enable, r#"{"usage":true}"#),
        ] {
            assert_eq!(usage(steer, body).unwrap_err().status(), 400, "{body}");
        }
    }

    #[test]
    fn a_key_is_named_by_label_hash_or_place() {
        let second = Scope { key: Some(KeyIndex(1)), model: None };
        let hash = "b".repeat(64);
        for key in ["1", "\"1\"", "\"bbbbbbbbbbbb\"", &format!("\"{hash}\"")] {
            let scope = named(Steer::Disable, &format!("{{\"key\":{key}}}")).unwrap();
            assert_eq!(scope, second, "{key}");
        }
    }

    #[test]
    fn a_key_a_model_both_or_all_are_named() {
        let scope = named(Steer::Reset, r#"{"key":0,"model":"m2"}"#).unwrap();
        assert_eq!(scope, Scope { key: Some(KeyIndex(0)), model: Some("m2".into()) });
        assert_eq!(named(Steer::Reset, r#"{"all":true}"#).unwrap(), Scope::default());
        for body in ["", "{}", " "] {
            assert_eq!(named(Steer::Enable, body).unwrap(), Scope::default());
        }
    }

    #[test]
    fn a_typing_error_changes_nothing() {
        for body in [
            "",
            "{}",
            "[]",
            "nonsense",
            r#"{"all":false}"#,
            r#"{"modle":"m1"}"#,
            r#"{"key":0,"models":["m1"]}"#,
            r#"{"all":true,"key":0}"#,
            r#"{"all":"yes"}"#,
        ] {
            for steer in [Steer::Reset, Steer::Disable] {
                let error = named(steer, body).unwrap_err();
                assert_eq!(error.status(), 400, "{body}");
            }
        }
    }

    #[test]
    fn what_is_not_in_the_pool_is_not_found() {
        for body in
            [r#"{"key":2}"#, r#"{"key":"cccccccccccc"}"#, r#"{"key":""}"#, r#"{"model":"m3"}"#]
        {
            assert_eq!(named(Steer::Reset, body).unwrap_err().status(), 404, "{body}");
        }
    }
}
