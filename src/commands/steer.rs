//! `reset`, `disable`, `enable`: through the running proxy; when none runs, on the state file
//! under its lock, by the same rules.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{CommandError, Report, Source, client, pretty, status};
use crate::admin::steering;
use crate::cli::Target;
use crate::clock;
use crate::config::Config;
use crate::error::StartupError;
use crate::policy::route::Steer;
use crate::store::{self, Store};

/// What comes back, from either.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Done {
    changed: Vec<Changed>,
    /// Missing where nothing was lifted.
    #[serde(default)]
    guard_lifted: Vec<Changed>,
    state_written: bool,
}

#[derive(Deserialize)]
struct Changed {
    key: String,
    model: String,
}

pub(super) fn run(
    config: &Config,
    steer: Steer,
    target: &Target,
    json: bool,
) -> Result<Report, CommandError> {
    let body = body(target);
    let path = format!("/models/{}", steer.name());
    let (source, mut answer) = match client::ask(config, "POST", &path, &body)? {
        Some(answer) => (Source::Proxy(answer.address), answer.body),
        None => (Source::File(config.state_path.clone()), on_file(config, steer, &body)?),
    };
    let text = if json {
        answer["source"] = source.to_json();
        pretty(&answer)
    } else {
        let done = serde_json::from_value(answer).map_err(|error| {
            CommandError::Unavailable(format!("{source} answers in another way: {error}"))
        })?;
        in_words(steer, target, &done, &source)
    };
    Ok(Report { text, exit_code: 0 })
}

/// What is asked for, as the proxy takes it.
fn body(target: &Target) -> Vec<u8> {
    let mut body = json!({});
    if let Some(key) = &target.key {
        body["key"] = key.as_str().into();
    }
    if let Some(model) = &target.model {
        body["model"] = model.as_str().into();
    }
    if target.all {
        body["all"] = true.into();
    }
    if target.usage {
        body["usage"] = true.into();
    }
    body.to_string().into_bytes()
}

fn on_file(config: &Config, steer: Steer, body: &[u8]) -> Result<Value, CommandError> {
    // What does not fit is for a person to look at: only a proxy that starts sets it aside.
    store::peek(&config.state_path)?;
    let opened = Store::open(&config.state_path, clock::now());
    let (store, file) = opened.map_err(|error| {
        StartupError::State(format!(
            "no proxy answers at {} (HOST, PORT), and {error}",
            client::shown_address(config)
        ))
    })?;
    let mut scheduler = status::scheduler(config, file);
    let steered = steering::apply(&mut scheduler, steer, body, clock::now())?;
    store.save(&scheduler).map_err(|error| {
        let shown = store.path().display();
        StartupError::State(format!("failed to write the state file `{shown}`: {error}"))
    })?;
    Ok(steered.answer(scheduler.pool(), true))
}

fn lines(slots: &[Changed]) -> String {
    slots.iter().map(|Changed { key, model }| format!("  {key}  {model}\n")).collect()
}

fn in_words(steer: Steer, target: &Target, done: &Done, source: &Source) -> String {
    let what = match steer {
        Steer::Reset => "no longer cooling or guarded",
        Steer::Disable => "switched off",
        Steer::Enable => "switched on",
    };
    let count = match done.changed.len() {
        0 => "nothing had to change".to_owned(),
        1 => format!("1 slot is {what}"),
        count => format!("{count} slots are {what}"),
    };
    let mut text = format!("{count} ({source})\n{}", lines(&done.changed));
    if target.usage {
        text.push_str("The counted and estimated tokens of what was named are set to 0: QUOTA_GUARD counts anew.\n");
    }
    if !done.guard_lifted.is_empty() {
        text.push_str("QUOTA_GUARD does NOT watch these any more, and their calls may be billed, until --usage resets their counts:\n");
        text.push_str(&lines(&done.guard_lifted));
    }
    if !done.state_written {
        text.push_str("It is not on disk yet: the state file cannot be written.\n");
    }
    text
}
