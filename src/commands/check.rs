//! `check`: looks for what is wrong before, or while, a proxy runs. It changes nothing.

mod guard;
mod local;
mod remote;

use serde_json::{Value, json};

use super::{CommandError, Report, pretty};
use crate::config::{self, Config, Environment, Loaded, Setting};
use crate::log_text::Quoted;
use crate::upstream::{Step, Upstream};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Fine,
    /// Worth knowing.
    Note,
    /// It works, and may not be meant.
    Warning,
    /// It does not work.
    Failed,
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Self::Fine => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Failed => "failed",
        }
    }
}

/// What was found of one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    /// What was looked at: a stable word.
    check: &'static str,
    outcome: Outcome,
    /// Which one of several: a URL, or a key's label.
    subject: String,
    /// Where it failed, on the way to a URL.
    step: Option<Step>,
    /// What there is to say.
    detail: String,
}

impl Finding {
    fn new(check: &'static str, outcome: Outcome, detail: impl Into<String>) -> Self {
        Self { check, outcome, subject: String::new(), step: None, detail: detail.into() }
    }

    fn of(mut self, subject: impl Into<String>) -> Self {
        self.subject = subject.into();
        self
    }

    fn at(mut self, step: Step) -> Self {
        self.step = Some(step);
        self
    }

    fn to_json(&self) -> Value {
        json!({
            "check": self.check,
            "outcome": self.outcome.name(),
            "subject": Some(&self.subject).filter(|subject| !subject.is_empty()),
            "step": self.step.map(Step::name),
            "detail": self.detail,
        })
    }

    fn line(&self) -> String {
        let Self { check, subject, detail, .. } = self;
        let step = self.step.map(|step| format!("failed at {}: ", step.name()));
        let subject = if subject.is_empty() { String::new() } else { format!("{subject}: ") };
        let outcome = self.outcome.name();
        // What others said must not move the terminal.
        let detail = detail.replace(char::is_control, " ");
        format!("  {outcome:<8} {check:<13} {subject}{}{detail}\n", step.unwrap_or_default())
    }
}

pub(super) fn run(
    environment: &Environment,
    loaded: &Loaded,
    probe: bool,
    json: bool,
) -> Result<Report, CommandError> {
    let config = &loaded.config;
    let settings = config::settings(environment, config);
    let mut findings = local::look(environment, loaded);
    let upstream = Upstream::new(&impatient(config))?;
    let reached = remote::reach(&upstream, config);
    findings.extend(reached.iter().map(|reached| reached.finding.clone()));
    if probe {
        findings.extend(remote::probe(&upstream, config, &reached));
    } else {
        let text = "not asked about; --probe asks DashScope whether it accepts them";
        findings.push(Finding::new("keys", Outcome::Note, text));
    }
    let is_fine = findings.iter().all(|finding| finding.outcome != Outcome::Failed);
    let text = match json {
        true => to_json(&settings, &findings, is_fine),
        false => in_words(&settings, &findings, is_fine),
    };
    Ok(Report { text, exit_code: u8::from(!is_fine) })
}

/// Nobody waits ten minutes for a check.
fn impatient(config: &Config) -> Config {
    let limit = config.connect_timeout;
    Config { upstream_timeout: limit, stream_idle_timeout: limit, ..config.clone() }
}

fn to_json(settings: &[Setting], findings: &[Finding], is_fine: bool) -> String {
    let setting = |it: &Setting| json!({"name": it.name, "value": it.value, "origin": it.origin});
    pretty(&json!({
        "ok": is_fine,
        "version": env!("CARGO_PKG_VERSION"),
        "configuration": settings.iter().map(setting).collect::<Vec<_>>(),
        "checks": findings.iter().map(Finding::to_json).collect::<Vec<_>>(),
    }))
}

fn in_words(settings: &[Setting], findings: &[Finding], is_fine: bool) -> String {
    let mut text = "Configuration\n".to_owned();
    for Setting { name, value, origin } in settings {
        let value = value.as_deref().unwrap_or("-");
        text.push_str(&format!("  {name:<27} {value}  ({})\n", Quoted(origin)));
    }
    text.push_str("\nChecks\n");
    findings.iter().for_each(|finding| text.push_str(&finding.line()));
    text.push_str(if is_fine { "\nAll is well.\n" } else { "\nSomething is wrong.\n" });
    text
}
