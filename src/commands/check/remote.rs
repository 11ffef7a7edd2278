//! What can be checked of DashScope: the way to every origin, and whether it accepts the keys.

use http::HeaderMap;

use super::{Finding, Outcome};
use crate::config::{BaseUrl, Config, KeyConfig, Origin};
use crate::log_text::Quoted;
use crate::policy::redirect;
use crate::policy::verdict::{self, Failure, Verdict};
use crate::relay;
use crate::secret;
use crate::upstream::{self, Answer, Over, Payload, Upstream};

/// Where DashScope's other regions are, for a key that is refused.
const REGIONS: &str = "a key of another region or plan is refused like this too: write it as \
                       KEY@https://dashscope-intl.aliyuncs.com (Singapore), say";

/// An origin, and whether it could be reached.
pub(super) struct Reached {
    origin: Origin,
    is_reached: bool,
    pub(super) finding: Finding,
}

/// Asks every origin for something, without a key: any answer will do.
pub(super) fn reach(upstream: &Upstream, config: &Config) -> Vec<Reached> {
    targets(config).into_iter().map(|target| target.ask(upstream)).collect()
}

/// One origin, a URL there, and who names it.
struct Target {
    origin: Origin,
    url: String,
    named_by: Vec<String>,
}

fn targets(config: &Config) -> Vec<Target> {
    let bases = [
        ("OPENAI_UPSTREAM_BASE_URL", &config.openai_base),
        ("UPSTREAM_BASE_URL", &config.anthropic_base),
        ("NATIVE_UPSTREAM_BASE_URL", &config.native_base),
    ];
    let of_base =
        |(name, base): (&str, &BaseUrl)| (base.origin().clone(), base.to_string(), name.to_owned());
    let of_key = |key: &KeyConfig| {
        let origin = key.origin.clone()?;
        let url = models_url(config, key);
        Some((origin, url, format!("key {}", secret::label(&key.secret.hash()))))
    };
    let mut targets: Vec<Target> = Vec::new();
    for (origin, url, name) in
        bases.into_iter().map(of_base).chain(config.keys.iter().filter_map(of_key))
    {
        match targets.iter_mut().find(|target| target.origin == origin) {
            Some(target) => target.named_by.push(name),
            None => targets.push(Target { origin, url, named_by: vec![name] }),
        }
    }
    targets
}

impl Target {
    fn ask(self, upstream: &Upstream) -> Reached {
        let Self { origin, url, named_by } = self;
        let outcome = upstream.send("GET", &url, HeaderMap::new(), Payload::Nothing, Over::Any);
        let names = named_by.join(", ");
        let is_reached = outcome.is_ok();
        let finding = match outcome {
            Ok(answer) if redirect::is_redirect(answer.status) => Finding::new(
                "upstream",
                Outcome::Failed,
                format!("{} ({names})", redirects(&answer)),
            ),
            Ok(_) => Finding::new("upstream", Outcome::Fine, format!("reached ({names})")),
            Err(error) => {
                let text = format!("{} ({names})", error.cause);
                Finding::new("upstream", Outcome::Failed, text).at(error.step)
            }
        };
        let finding = finding.of(origin.to_string());
        Reached { origin, is_reached, finding }
    }
}

/// Asks for the models with every key: that costs nothing.
pub(super) fn probe(upstream: &Upstream, config: &Config, reached: &[Reached]) -> Vec<Finding> {
    let probe = |key: &KeyConfig| {
        let origin = key.origin.as_ref().unwrap_or(config.openai_base.origin());
        let is_reached = |it: &Reached| it.origin == *origin && it.is_reached;
        let finding = if reached.iter().any(is_reached) {
            ask_about(upstream, config, key)
        } else {
            Finding::new("keys", Outcome::Failed, format!("unreachable: {origin} is"))
        };
        finding.of(secret::label(&key.secret.hash()))
    };
    config.keys.iter().map(probe).collect()
}

fn ask_about(upstream: &Upstream, config: &Config, key: &KeyConfig) -> Finding {
    let mut headers = HeaderMap::new();
    upstream::authorize(&mut headers, config.auth_mode, &key.secret);
    let url = models_url(config, key);
    let mut answer = match upstream.send("GET", &url, headers, Payload::Nothing, Over::Any) {
        Ok(answer) => answer,
        Err(error) => {
            let text = format!("unreachable: {}", error.cause);
            return Finding::new("keys", Outcome::Failed, text).at(error.step);
        }
    };
    let status = answer.status;
    if (200..300).contains(&status) {
        return Finding::new("keys", Outcome::Fine, "valid");
    }
    if redirect::is_redirect(status) {
        return Finding::new("keys", Outcome::Failed, redirects(&answer));
    }
    let held = relay::hold_prefix(&mut answer.body, verdict::MAX_ERROR_PREFIX);
    let judgement = verdict::classify(Failure {
        status,
        retry_after: None,
        prefix: &held.bytes,
        names_model: false,
    });
    // The code is a word of DashScope's; its message may echo the key.
    let code = judgement.code.as_deref().unwrap_or("-");
    let told = format!("status {status}, code {}", Quoted(&code.replace(key.secret.expose(), "…")));
    match judgement.verdict {
        Verdict::KeyRejected => {
            Finding::new("keys", Outcome::Failed, format!("rejected ({told}); {REGIONS}"))
        }
        Verdict::AccountBlocked => {
            let text = format!("rejected: the account does not pay its bills ({told})");
            Finding::new("keys", Outcome::Failed, text)
        }
        _ => Finding::new("keys", Outcome::Warning, format!("DashScope does not say ({told})")),
    }
}

/// What is wrong with an origin that redirects. Its host may echo what it was sent.
fn redirects(answer: &Answer) -> String {
    let host = redirect::target(&answer.headers).unwrap_or("a place without a name");
    let status = answer.status;
    format!("answers with a redirect ({status}) to {}, which is not followed", Quoted(host))
}

fn models_url(config: &Config, key: &KeyConfig) -> String {
    config.openai_base.join("/models", key.origin.as_ref())
}
