//! What is known of every slot's free quota, and whether it is guarded.

use serde::Deserialize;
use serde_json::Value;

use super::super::status;
use super::{Finding, Outcome};
use crate::admin;
use crate::clock;
use crate::config::Config;
use crate::store;

/// What the proxy cannot ask.
const SWITCH: &str = "\"free quota only\" (免费额度用完即停) must be on in the Model Studio console for \
                      every model: where it is off, an exhausted model is billed";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    quota_guard: Option<u8>,
    models: Vec<Slot>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Slot {
    key_hash: String,
    id: String,
    guard: String,
    input_tokens: u64,
    output_tokens: u64,
    estimated_tokens: u64,
    free_quota_tokens: Option<u64>,
    estimated_tokens_left: Option<u64>,
}

/// The guard, slot by slot: as the proxy that runs has it, else as one that starts now would.
pub(super) fn look(config: &Config, running: Option<Value>) -> Vec<Finding> {
    let status = running.or_else(|| {
        let file = store::peek(&config.state_path).ok()?;
        Some(admin::status::pool(&status::scheduler(config, file), clock::moment()))
    });
    let Some(status) = status.and_then(|status| serde_json::from_value::<Status>(status).ok())
    else {
        return Vec::new();
    };
    let mut findings = vec![guard(status.quota_guard)];
    findings.extend(status.models.iter().map(slot));
    findings
}

fn guard(percent: Option<u8>) -> Finding {
    match percent {
        Some(percent) => {
            let text = format!(
                "on: a slot is left at {percent} % of its FREE_QUOTA_TOKENS; what uses the account beside the proxy is not seen"
            );
            Finding::new("guard", Outcome::Fine, text)
        }
        None => Finding::new("guard", Outcome::Note, format!("off (QUOTA_GUARD); {SWITCH}")),
    }
}

fn slot(slot: &Slot) -> Finding {
    let (outcome, word) = match slot.guard.as_str() {
        "on" => (Outcome::Fine, "on"),
        "left" => (Outcome::Note, "on, and it has left this slot until a reset"),
        "lifted" => {
            (Outcome::Warning, "lifted by a reset until the count is reset (reset --usage)")
        }
        "unknown_quota" => (Outcome::Note, "none: FREE_QUOTA_TOKENS is 0 for this model"),
        "other_units" => {
            (Outcome::Note, "none: it counts images, seconds or characters, not tokens")
        }
        _ => (Outcome::Note, "off"),
    };
    let counted = slot.input_tokens.saturating_add(slot.output_tokens);
    let left = slot.estimated_tokens_left.map_or_else(|| "unknown".to_owned(), |it| it.to_string());
    let of = slot.free_quota_tokens.map(|quota| format!(" of {quota}")).unwrap_or_default();
    let text = format!(
        "guard {word}; tokens counted {counted}, estimated {}, left {left}{of}",
        slot.estimated_tokens
    );
    Finding::new("quota", outcome, text).of(format!("{}:{}", slot.key_hash, slot.id))
}
