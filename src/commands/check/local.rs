//! What can be checked on this machine: the settings, the state file, the clock, and whether a
//! proxy runs.

use serde_json::Value;

use super::super::{client, status};
use super::{Finding, Outcome, guard};
use crate::clock::{self, Timestamp};
use crate::config::{Config, Environment, Loaded};
use crate::service;
use crate::store;

/// 2025-01-01: this program is younger.
const EARLIEST: Timestamp = Timestamp(1_735_689_600_000);

/// Everything but the network.
pub(super) fn look(environment: &Environment, loaded: &Loaded) -> Vec<Finding> {
    let mut findings = settings(environment, loaded);
    findings.push(folder(&loaded.config));
    findings.extend(state_and_clock(&loaded.config));
    let (about_proxy, status) = proxy_and_accounts(&loaded.config);
    findings.extend(about_proxy);
    findings.extend(guard::look(&loaded.config, status));
    findings
}

fn settings(environment: &Environment, loaded: &Loaded) -> Vec<Finding> {
    let warning = |note: &String| Finding::new("configuration", Outcome::Warning, note);
    let mut findings: Vec<Finding> = loaded.notes.iter().map(warning).collect();
    if findings.is_empty() {
        findings.push(Finding::new("configuration", Outcome::Fine, "nothing is odd about it"));
    }
    let unknown: Vec<&str> = environment.unknown_names().collect();
    if let (Some(file), false) = (environment.file(), unknown.is_empty()) {
        let text = format!("{file} sets what this program does not read: {}", unknown.join(", "));
        findings.push(Finding::new("names", Outcome::Note, text));
    }
    findings
}

fn folder(config: &Config) -> Finding {
    let shown = config.state_path.display();
    match store::try_folder(&config.state_path) {
        Ok(()) => {
            Finding::new("state_folder", Outcome::Fine, "it can be written").of(shown.to_string())
        }
        Err(error) => {
            let text = format!("it cannot be written, so cooldowns would be forgotten: {error}");
            Finding::new("state_folder", Outcome::Failed, text).of(shown.to_string())
        }
    }
}

fn state_and_clock(config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    let now = clock::now();
    let mut doubts = Vec::new();
    match store::peek(&config.state_path) {
        Ok(file) => {
            let newest = file.newest_change();
            let text = match newest {
                Timestamp(0) => "there is none yet: every slot counts as available".to_owned(),
                newest => format!("it fits; its last change was at {newest}"),
            };
            findings.push(Finding::new("state_file", Outcome::Fine, text));
            let scheduler = status::scheduler(config, file);
            doubts = service::doubts_of_the_clock(&scheduler, config.cooldown, newest, now);
        }
        Err(error) => {
            findings.push(Finding::new("state_file", Outcome::Failed, error.to_string()));
        }
    }
    if now < EARLIEST {
        let text = format!("now={now}: that is before this program was written");
        findings.push(Finding::new("clock", Outcome::Failed, text));
    } else if doubts.is_empty() {
        findings.push(Finding::new("clock", Outcome::Fine, format!("now={now}")));
    }
    findings.extend(doubts.into_iter().map(|doubt| Finding::new("clock", Outcome::Warning, doubt)));
    findings
}

/// Whether a proxy runs, and which keys it takes for one account's: that shows only while it
/// serves. And how the pool stands, if one runs.
fn proxy_and_accounts(config: &Config) -> (Vec<Finding>, Option<Value>) {
    let shown = client::shown_address(config);
    let is_taken = store::is_taken(&config.state_path);
    match client::ask(config, "GET", "/models/status", b"") {
        Ok(Some(answer)) => {
            let text = format!("it runs at {}", answer.address);
            let mut findings = vec![Finding::new("proxy", Outcome::Fine, text)];
            if is_taken {
                findings.insert(0, Finding::new("state_lock", Outcome::Fine, "a proxy has it"));
            }
            findings.extend(accounts(&answer.body["sameAccount"]));
            (findings, Some(answer.body))
        }
        Ok(None) => {
            let text = format!("none runs at {shown}");
            let lock = match is_taken {
                true => Finding::new(
                    "state_lock",
                    Outcome::Failed,
                    format!(
                        "another process has it, and no proxy answers at {shown} (HOST, PORT): none would start on this state file"
                    ),
                ),
                false => Finding::new("state_lock", Outcome::Fine, "nobody has it"),
            };
            let unknown = "whether two keys belong to one account shows only while a proxy serves";
            let proxy = Finding::new("proxy", Outcome::Note, text);
            (vec![lock, proxy, Finding::new("accounts", Outcome::Note, unknown)], None)
        }
        Err(error) => (vec![Finding::new("proxy", Outcome::Failed, error.to_string())], None),
    }
}

fn accounts(pairs: &Value) -> Vec<Finding> {
    let pairs = pairs.as_array().map(Vec::as_slice).unwrap_or_default();
    if pairs.is_empty() {
        let text = "no two keys have looked like one account since the proxy was started";
        return vec![Finding::new("accounts", Outcome::Fine, text)];
    }
    let finding = |pair: &Value| {
        let labels = [&pair[0], &pair[1]].map(|label| label.as_str().unwrap_or("?"));
        let text = "they look like two keys of one account, which share its free quota";
        Finding::new("accounts", Outcome::Warning, text).of(labels.join(","))
    };
    pairs.iter().map(finding).collect()
}
