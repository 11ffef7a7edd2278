//! The configuration: read once, checked whole, then never changed.
//!
//! [`Environment::read`] gathers the variables, [`load`] turns them into a [`Config`] or into the
//! list of everything that is wrong with them. No message, note or `Debug` shows a key. It opens
//! no file but `.env` and the certificates: whether a URL leads anywhere is found by its user.

mod dotenv;
mod effective;
mod environment;
mod list;
mod plan;
mod problem;
mod url;
mod value;
mod variables;

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

pub use effective::{Setting, settings};
pub use environment::Environment;
pub use list::KeyConfig;
pub use problem::{ConfigError, Problem};
pub use url::{BaseUrl, Origin, OutboundProxy, UrlError};

use crate::policy::failover::Failover;
use crate::policy::guard::{Guard, Quotas};
use crate::policy::limits::ModelLimits;
use crate::policy::pool::Pool;
use crate::secret::Secret;
use list::List;
use variables::VARIABLES;

/// Below this many characters a proxy key can be guessed.
const SHORT_PROXY_KEY: usize = 16;

/// Ten years: a longer cooldown is a slip of the pen, and deadlines stay far from overflowing.
const COOLDOWNS: RangeInclusive<u64> = 1..=10 * 365 * 86_400;

/// A week: below the 24.8 days at which a wait counted in 32-bit milliseconds overflows.
const TIMEOUTS: RangeInclusive<u64> = 1..=7 * 86_400;

/// Every worker is a thread.
const WORKERS: RangeInclusive<usize> = 1..=4096;

/// A waiting request holds a connection: a process gets no more of them.
const QUEUE_SIZES: RangeInclusive<usize> = 1..=65_536;

/// 512 MiB: four times that, which is what all bodies may take, still fits 32 bits.
const BODY_SIZES: RangeInclusive<usize> = 1..=512 << 20;

/// The outbound proxy's variables in the order in which ureq looks at them.
const OUTBOUND: [&str; 3] = ["ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY"];

/// Everything that can be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// What clients present.
    pub proxy_key: Secret,
    /// The DashScope keys in their order; at least one.
    pub keys: Vec<KeyConfig>,
    /// The model ids in their order; at least one.
    pub models: Vec<String>,
    /// The listen address: IPv4, IPv6 (without brackets) or a name.
    pub host: String,
    /// The listen port; 0 lets the system choose.
    pub port: u16,
    /// Where the Anthropic protocol is spoken.
    pub anthropic_base: BaseUrl,
    /// Where the OpenAI protocol is spoken.
    pub openai_base: BaseUrl,
    /// Where DashScope's own protocol is spoken.
    pub native_base: BaseUrl,
    /// How the key is sent upstream.
    pub auth_mode: AuthMode,
    /// How long an exhausted slot cools.
    pub cooldown: Duration,
    /// How many tokens the free quota of each model had.
    pub quotas: Quotas,
    /// At which share of it a slot is left, in percent; `None` = never.
    pub quota_guard: Option<u8>,
    /// The state file.
    pub state_path: PathBuf,
    /// The value of `Access-Control-Allow-Origin`; `None` switches CORS off.
    pub cors_origin: Option<String>,
    /// Whether a client's choice of model counts.
    pub model_selection: ModelSelection,
    /// What is done about a model's limit.
    pub model_limits: ModelLimits,
    /// Those of the models that see pictures.
    pub vision_models: Vec<String>,
    /// Whether anything but exhaustion tries another slot.
    pub failover: Failover,
    /// Requests in flight.
    pub workers: usize,
    /// Requests waiting.
    pub queue_size: usize,
    /// The largest request body in bytes; all bodies together stay under four times this.
    pub max_body_bytes: usize,
    /// The limit of DNS, TCP and TLS together.
    pub connect_timeout: Duration,
    /// The limit until the response head.
    pub upstream_timeout: Duration,
    /// The limit between two reads of a response body.
    pub stream_idle_timeout: Duration,
    /// How long a client may stall.
    pub client_timeout: Duration,
    /// How long a stop waits for answers in flight.
    pub shutdown_grace: Duration,
    /// The roots of `UPSTREAM_CA_FILE` as DER, added to the bundled ones.
    pub ca_certificates: Vec<Vec<u8>>,
    /// The proxy on the way upstream.
    pub outbound: Option<OutboundProxy>,
    /// The `env_logger` filter.
    pub log_filter: String,
}

impl Config {
    /// The guard that is set.
    pub(crate) fn guard(&self) -> Guard {
        Guard { quotas: self.quotas.clone(), percent: self.quota_guard }
    }

    /// The pool of these keys and models.
    #[must_use]
    pub(crate) fn pool(&self) -> Pool {
        let hashes = self.keys.iter().map(|key| key.secret.hash()).collect();
        let number = |key: &KeyConfig| {
            let first = self.keys.iter().position(|other| other.origin == key.origin);
            first.expect("a key is among the keys")
        };
        let origins = self.keys.iter().map(number).collect();
        Pool::new(hashes, self.models.clone()).with_origins(origins)
    }

    /// What is done about a model's limit, whatever else forbids it.
    #[must_use]
    pub fn limits(&self) -> ModelLimits {
        match self.failover {
            Failover::On => self.model_limits,
            Failover::QuotaOnly => ModelLimits::Off,
        }
    }
}

/// Which header carries the key upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthMode {
    /// `Authorization: Bearer key`.
    Authorization,
    /// `x-api-key: key`.
    XApiKey,
    /// Both of them.
    Both,
}

/// Whether a client's choice of model counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelSelection {
    /// It is ignored.
    Pool,
    /// A model of the pool is tried first on the current key.
    Prefer,
}

/// A configuration that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// What to warn of once there is a log. Never the value of a secret.
    pub notes: Vec<String>,
}

/// Makes the configuration of an environment.
///
/// # Errors
/// All problems at once, in the order of the variables.
pub fn load(environment: &Environment) -> Result<Loaded, ConfigError> {
    let mut read = Reader::new(environment);
    let config = Config {
        proxy_key: read.proxy_key("PROXY_API_KEY"),
        keys: read.list("DASHSCOPE_API_KEYS", list::keys),
        models: read.list("MODEL_IDS", list::models),
        host: read.value("HOST", value::host),
        port: read.number("PORT", 0..=u16::MAX),
        anthropic_base: read.value("UPSTREAM_BASE_URL", BaseUrl::parse),
        openai_base: read.value("OPENAI_UPSTREAM_BASE_URL", BaseUrl::parse),
        native_base: read.value("NATIVE_UPSTREAM_BASE_URL", BaseUrl::parse),
        auth_mode: read.value("UPSTREAM_AUTH_MODE", value::auth_mode),
        cooldown: read.seconds("MODEL_COOLDOWN_SECONDS", COOLDOWNS),
        quotas: read.value("FREE_QUOTA_TOKENS", value::quotas),
        quota_guard: read.value("QUOTA_GUARD", value::quota_guard),
        state_path: read.text("STATE_PATH").into(),
        cors_origin: read.value("CORS_ORIGIN", value::cors_origin),
        model_selection: read.value("MODEL_SELECTION", value::model_selection),
        model_limits: read.value("MODEL_LIMITS", value::model_limits),
        vision_models: read.optional_list("VISION_MODELS", list::models),
        failover: read.value("FAILOVER", value::failover),
        workers: read.number("WORKERS", WORKERS),
        queue_size: read.number("QUEUE_SIZE", QUEUE_SIZES),
        max_body_bytes: read.number("MAX_BODY_BYTES", BODY_SIZES),
        connect_timeout: read.seconds("CONNECT_TIMEOUT_SECONDS", TIMEOUTS),
        upstream_timeout: read.seconds("UPSTREAM_TIMEOUT_SECONDS", TIMEOUTS),
        stream_idle_timeout: read.seconds("STREAM_IDLE_TIMEOUT_SECONDS", TIMEOUTS),
        client_timeout: read.seconds("CLIENT_TIMEOUT_SECONDS", TIMEOUTS),
        shutdown_grace: read.seconds("SHUTDOWN_GRACE_SECONDS", TIMEOUTS),
        ca_certificates: read.certificates("UPSTREAM_CA_FILE"),
        outbound: read.outbound(),
        log_filter: read.text("RUST_LOG"),
    };
    read.vision(&config);
    read.plans(&config);
    read.guard(&config);
    read.finish(config)
}

/// Reads variables one by one and remembers what it does not like. What it answers for a value
/// with a problem is a stand-in that [`Reader::finish`] does not let out.
struct Reader<'a> {
    environment: &'a Environment,
    problems: Vec<Problem>,
    notes: Vec<String>,
}

impl<'a> Reader<'a> {
    fn new(environment: &'a Environment) -> Self {
        let problems = environment.problems.clone();
        Self { environment, problems, notes: environment.notes.clone() }
    }

    fn value<T, E: Display>(&mut self, name: &str, parse: impl Fn(&str) -> Result<T, E>) -> T {
        match self.environment.get(name).map(&parse) {
            Some(Ok(value)) => return value,
            Some(Err(flaw)) => self.problem(name, flaw.to_string()),
            None => {}
        }
        parse(default_of(name)).ok().expect("the defaults in VARIABLES are valid")
    }

    fn number<T>(&mut self, name: &str, range: RangeInclusive<T>) -> T
    where
        T: FromStr + PartialOrd + Display,
    {
        self.value(name, |text| value::number(text, &range))
    }

    fn seconds(&mut self, name: &str, range: RangeInclusive<u64>) -> Duration {
        Duration::from_secs(self.number(name, range))
    }

    fn text(&self, name: &str) -> String {
        self.environment.get(name).unwrap_or_else(|| default_of(name)).to_owned()
    }

    fn proxy_key(&mut self, name: &str) -> Secret {
        let Some(text) = self.required(name) else { return Secret::new("") };
        if text.len() < SHORT_PROXY_KEY {
            self.note(name, format!("is shorter than {SHORT_PROXY_KEY} characters"));
        }
        if text.contains(',') {
            self.note(name, "holds a comma: it is one key, not a list");
        }
        value::proxy_key(text).unwrap_or_else(|flaw| {
            self.problem(name, flaw);
            Secret::new("")
        })
    }

    fn list<T>(&mut self, name: &str, parse: impl Fn(&str) -> List<T>) -> Vec<T> {
        self.required(name);
        self.optional_list(name, parse)
    }

    fn optional_list<T>(&mut self, name: &str, parse: impl Fn(&str) -> List<T>) -> Vec<T> {
        let Some(text) = self.environment.get(name) else { return Vec::new() };
        let List { entries, flaws, notes } = parse(text);
        flaws.into_iter().for_each(|flaw| self.problem(name, flaw));
        notes.into_iter().for_each(|note| self.note(name, note));
        entries
    }

    fn certificates(&mut self, name: &str) -> Vec<Vec<u8>> {
        let Some(path) = self.environment.get(name) else { return Vec::new() };
        let read = std::fs::read(path).map_err(|error| format!("cannot be read: {error}"));
        read.and_then(|pem| value::certificates(&pem)).unwrap_or_else(|flaw| {
            self.problem(name, flaw);
            Vec::new()
        })
    }

    /// Models that are not the pool's are never asked.
    fn vision(&mut self, config: &Config) {
        for (number, model) in (1..).zip(&config.vision_models) {
            if !config.models.contains(model) {
                self.problem("VISION_MODELS", format!("item {number} is not in MODEL_IDS"));
            }
        }
    }

    fn plans(&mut self, config: &Config) {
        let bases = [
            ("UPSTREAM_BASE_URL", &config.anthropic_base),
            ("OPENAI_UPSTREAM_BASE_URL", &config.openai_base),
            ("NATIVE_UPSTREAM_BASE_URL", &config.native_base),
        ];
        // No plan speaks the native protocol: nobody has moved that base unless it is set.
        let is_meant =
            |name: &str| !name.starts_with("NATIVE") || self.environment.get(name).is_some();
        let bases: Vec<_> = bases.into_iter().filter(|(name, _)| is_meant(name)).collect();
        for note in plan::notes(&config.keys, &bases) {
            self.note("DASHSCOPE_API_KEYS", note);
        }
    }

    /// An exception for a model that is not there would guard nothing, and its model by the number
    /// of the others.
    fn guard(&mut self, config: &Config) {
        let (name, quotas) = ("FREE_QUOTA_TOKENS", &config.quotas);
        for (place, (model, _)) in (2..).zip(&quotas.exceptions) {
            // Without a list of models that is right, all would seem to be missing.
            if !config.models.is_empty() && !config.models.contains(model) {
                self.problem(
                    name,
                    format!("item {place} is about a model that is not in MODEL_IDS"),
                );
            }
        }
        let is_known = |model: &String| quotas.of(model).is_some();
        if config.quota_guard.is_some() && !config.models.iter().any(is_known) {
            self.note("QUOTA_GUARD", "guards nothing: FREE_QUOTA_TOKENS is 0 for every model");
        }
    }

    fn outbound(&mut self) -> Option<OutboundProxy> {
        let (name, url) = OUTBOUND.into_iter().find_map(|name| self.in_either_case(name))?;
        let exceptions = self.in_either_case("NO_PROXY").map_or("", |(_, hosts)| hosts);
        let exceptions = list::items(exceptions).map(str::to_owned).collect();
        OutboundProxy::parse(url, exceptions)
            .map_err(|flaw| self.problem(&name, flaw.to_string()))
            .ok()
    }

    /// The value of a variable that other programs also know in lower case, and how it is called
    /// here.
    fn in_either_case(&self, name: &str) -> Option<(String, &'a str)> {
        let environment = self.environment;
        [name.to_owned(), name.to_ascii_lowercase()]
            .into_iter()
            .find_map(|name| environment.get(&name).map(|value| (name, value)))
    }

    fn required(&mut self, name: &str) -> Option<&'a str> {
        let value = self.environment.get(name);
        if value.is_none() {
            let hint = self.environment.misspelling_of(name);
            let hint = hint.map(|written| format!("; was it meant by {written}?"));
            self.problem(name, format!("is required{}", hint.unwrap_or_default()));
        }
        value
    }

    fn problem(&mut self, name: &str, text: impl Into<String>) {
        self.problems.push(Problem::new(name, text));
    }

    fn note(&mut self, name: &str, text: impl Display) {
        self.notes.push(format!("{name} {text}"));
    }

    fn finish(mut self, config: Config) -> Result<Loaded, ConfigError> {
        self.problems.sort_by_key(|problem| place_of(&problem.subject));
        if self.problems.is_empty() {
            Ok(Loaded { config, notes: self.notes })
        } else {
            Err(ConfigError { problems: self.problems })
        }
    }
}

/// Where a variable stands among all, before them what is none.
fn place_of(name: &str) -> Option<usize> {
    VARIABLES.iter().position(|variable| variable.name.eq_ignore_ascii_case(name))
}

fn default_of(name: &str) -> &'static str {
    VARIABLES
        .iter()
        .find(|variable| variable.name == name)
        .and_then(|variable| variable.default)
        .expect("a variable that is read with a default has one in VARIABLES")
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUIRED: [(&str, &str); 3] = [
        ("PROXY_API_KEY", "a-proxy-key-of-good-length"),
        ("DASHSCOPE_API_KEYS", "sk-1,sk-2"),
        ("MODEL_IDS", "qwen-max,qwen-plus"),
    ];

    fn load_with(more: &[(&str, &str)]) -> Result<Loaded, ConfigError> {
        let pairs = REQUIRED.iter().chain(more);
        load(&Environment::from_pairs(pairs.map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))))
    }

    fn config_with(more: &[(&str, &str)]) -> Config {
        load_with(more).unwrap().config
    }

    #[test]
    fn what_is_not_set_has_its_default() {
        let loaded = load_with(&[]).unwrap();
        let config = loaded.config;
        assert!(loaded.notes.is_empty());
        assert_eq!((config.host.as_str(), config.port), ("127.0.0.1", 3300));
        assert_eq!(
            config.anthropic_base.to_string(),
            "https://dashscope.aliyuncs.com/apps/anthropic"
        );
        assert_eq!(
            config.openai_base.to_string(),
            "https://dashscope.aliyuncs.com/compatible-mode/v1"
        );
        assert_eq!(config.native_base.to_string(), "https://dashscope.aliyuncs.com/api/v1");
        assert_eq!(config.auth_mode, AuthMode::Authorization);
        assert_eq!(config.cooldown, Duration::from_secs(30 * 86_400));
        assert_eq!(config.state_path, PathBuf::from("./data/proxy-state.json"));
        assert_eq!(config.cors_origin.as_deref(), Some("*"));
        assert_eq!(config.quotas, Quotas { usual: 1_000_000, exceptions: Vec::new() });
        assert_eq!(config.quota_guard, None);
        assert_eq!(config.model_selection, ModelSelection::Pool);
        assert_eq!((config.limits(), config.failover), (ModelLimits::Adapt, Failover::On));
        assert!(config.vision_models.is_empty());
        assert_eq!((config.workers, config.queue_size), (64, 256));
        assert_eq!(config.max_body_bytes, 64 << 20);
        let timeouts = [
            (config.connect_timeout, 10),
            (config.upstream_timeout, 600),
            (config.stream_idle_timeout, 300),
            (config.client_timeout, 60),
            (config.shutdown_grace, 60),
        ];
        for (timeout, seconds) in timeouts {
            assert_eq!(timeout, Duration::from_secs(seconds));
        }
        assert_eq!((config.ca_certificates, config.outbound), (Vec::new(), None));
        assert_eq!(config.log_filter, "info");
    }

    #[test]
    fn every_variable_reaches_the_configuration() {
        let settings = [
            ("PROXY_API_KEY", "another-key-of-good-length"),
            ("DASHSCOPE_API_KEYS", "sk-3"),
            ("MODEL_IDS", "qwen-turbo"),
            ("HOST", "::1"),
            ("PORT", "0"),
            ("UPSTREAM_BASE_URL", "http://127.0.0.1:1/a"),
            ("OPENAI_UPSTREAM_BASE_URL", "http://127.0.0.1:1/b"),
            ("UPSTREAM_AUTH_MODE", "both"),
            ("MODEL_COOLDOWN_SECONDS", "1"),
            ("FREE_QUOTA_TOKENS", "7"),
            ("QUOTA_GUARD", "90"),
            ("STATE_PATH", "/var/lib/state.json"),
            ("CORS_ORIGIN", "false"),
            ("NATIVE_UPSTREAM_BASE_URL", "http://127.0.0.1:1/c"),
            ("MODEL_SELECTION", "prefer"),
            ("MODEL_LIMITS", "move"),
            ("VISION_MODELS", "qwen-turbo"),
            ("FAILOVER", "quota-only"),
            ("WORKERS", "1"),
            ("QUEUE_SIZE", "1"),
            ("MAX_BODY_BYTES", "1"),
            ("CONNECT_TIMEOUT_SECONDS", "1"),
            ("UPSTREAM_TIMEOUT_SECONDS", "1"),
            ("STREAM_IDLE_TIMEOUT_SECONDS", "1"),
            ("CLIENT_TIMEOUT_SECONDS", "1"),
            ("SHUTDOWN_GRACE_SECONDS", "1"),
            ("UPSTREAM_CA_FILE", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/ca.pem")),
            ("HTTP_PROXY", "http://127.0.0.1:1"),
            ("HTTPS_PROXY", "http://127.0.0.1:2"),
            ("ALL_PROXY", "http://127.0.0.1:3"),
            ("NO_PROXY", "h"),
            ("RUST_LOG", "debug"),
        ];
        let mut so_far = Vec::new();
        for setting in settings {
            let before = config_with(&so_far);
            so_far.push(setting);
            assert_ne!(config_with(&so_far), before, "{}", setting.0);
        }
        let mut listed: Vec<_> = VARIABLES.iter().map(|variable| variable.name).collect();
        let mut set: Vec<_> = settings.iter().map(|(name, _)| *name).collect();
        listed.sort_unstable();
        set.sort_unstable();
        assert_eq!(set, listed);
    }

    #[test]
    fn an_exception_is_for_a_model_of_the_pool() {
        let config = config_with(&[("FREE_QUOTA_TOKENS", "5,qwen-plus=0,qwen-max=9")]);
        let of = |model| config.quotas.of(model);
        assert_eq!([of("qwen-plus"), of("qwen-max"), of("other")], [None, Some(9), Some(5)]);
        for text in ["5,qwen=0", "5,geheim=1", "5,qwen-max=1,QWEN-MAX=1", "5,=1"] {
            let error = load_with(&[("FREE_QUOTA_TOKENS", text), ("WORKERS", "0")]).unwrap_err();
            let subjects: Vec<_> = error.problems.iter().map(|it| it.subject.as_str()).collect();
            assert_eq!(subjects, ["FREE_QUOTA_TOKENS", "WORKERS"], "{text}");
            assert!(error.to_string().contains("that is not in MODEL_IDS"), "{error}");
            assert!(!error.to_string().contains("geheim"), "{error}");
        }
    }

    #[test]
    fn a_guard_that_guards_nothing_is_noted() {
        let notes = |quotas: &str| {
            let settings = [("QUOTA_GUARD", "90"), ("FREE_QUOTA_TOKENS", quotas)];
            load_with(&settings).unwrap().notes
        };
        assert_eq!(notes("0").len(), 1);
        assert_eq!(notes("5,qwen-max=0,qwen-plus=0").len(), 1);
        assert!(notes("0,qwen-plus=5").is_empty() && notes("5").is_empty());
    }

    #[test]
    fn every_default_is_a_value_that_may_also_be_written() {
        let defaults = VARIABLES.iter().filter_map(|it| Some((it.name, it.default?)));
        assert_eq!(config_with(&defaults.collect::<Vec<_>>()), config_with(&[]));
    }

    #[test]
    fn a_model_that_sees_has_to_be_in_the_pool() {
        let config = config_with(&[("VISION_MODELS", " qwen-plus, 'qwen-max'")]);
        assert_eq!(config.vision_models, ["qwen-plus", "qwen-max"]);
        let error = load_with(&[("VISION_MODELS", "qwen-plus,qwen-vl-max")]).unwrap_err();
        assert_eq!(error.to_string().trim(), "VISION_MODELS: item 2 is not in MODEL_IDS");
    }

    #[test]
    fn where_only_exhaustion_tries_another_slot_limits_are_off() {
        let config = config_with(&[("FAILOVER", "quota-only"), ("MODEL_LIMITS", "adapt")]);
        assert_eq!(config.limits(), ModelLimits::Off);
        assert_eq!(config_with(&[("MODEL_LIMITS", "MOVE")]).limits(), ModelLimits::Move);
    }

    #[test]
    fn models_are_told_apart_by_the_origin_of_their_key() {
        let keys = "k1,k2@https://h,k3,k4@https://h,k5@https://i";
        let pool = config_with(&[("DASHSCOPE_API_KEYS", keys)]).pool();
        let origins: Vec<_> = pool.keys().map(|key| pool.origin_of(key)).collect();
        assert_eq!(origins, [0, 1, 0, 1, 4]);
    }

    #[test]
    fn all_problems_are_told_at_once_by_variable_and_without_values() {
        let error = load_with(&[
            ("PROXY_API_KEY", "geheim wort"),
            ("DASHSCOPE_API_KEYS", "geheim;wort, geheim@https://geheim/geheim"),
            ("MODEL_IDS", " "),
            ("HOST", "geheim/"),
            ("PORT", "65536"),
            ("UPSTREAM_BASE_URL", "geheim"),
            ("OPENAI_UPSTREAM_BASE_URL", "https://geheim:geheim@h"),
            ("UPSTREAM_AUTH_MODE", "geheim"),
            ("MODEL_COOLDOWN_SECONDS", "0"),
            ("FREE_QUOTA_TOKENS", "geheim"),
            ("QUOTA_GUARD", "geheim"),
            ("CORS_ORIGIN", "geheim"),
            ("MODEL_SELECTION", "geheim"),
            ("MODEL_LIMITS", "geheim"),
            ("FAILOVER", "geheim"),
            ("WORKERS", "4097"),
            ("QUEUE_SIZE", "-1"),
            ("MAX_BODY_BYTES", "99999999999999999999999"),
            ("CONNECT_TIMEOUT_SECONDS", "geheim"),
            ("UPSTREAM_TIMEOUT_SECONDS", "1.5"),
            ("STREAM_IDLE_TIMEOUT_SECONDS", "0"),
            ("CLIENT_TIMEOUT_SECONDS", "0"),
            ("SHUTDOWN_GRACE_SECONDS", "0"),
            ("https_proxy", "geheim://geheim"),
        ])
        .unwrap_err();
        let shown = error.to_string();
        let subjects: Vec<_> = error.problems.iter().map(|it| it.subject.as_str()).collect();
        assert_eq!(
            subjects,
            [
                "PROXY_API_KEY",
                "DASHSCOPE_API_KEYS",
                "DASHSCOPE_API_KEYS",
                "MODEL_IDS",
                "HOST",
                "PORT",
                "UPSTREAM_BASE_URL",
                "OPENAI_UPSTREAM_BASE_URL",
                "UPSTREAM_AUTH_MODE",
                "MODEL_COOLDOWN_SECONDS",
                "FREE_QUOTA_TOKENS",
                "QUOTA_GUARD",
                "CORS_ORIGIN",
                "MODEL_SELECTION",
                "MODEL_LIMITS",
                "FAILOVER",
                "WORKERS",
                "QUEUE_SIZE",
                "MAX_BODY_BYTES",
                "CONNECT_TIMEOUT_SECONDS",
                "UPSTREAM_TIMEOUT_SECONDS",
                "STREAM_IDLE_TIMEOUT_SECONDS",
                "CLIENT_TIMEOUT_SECONDS",
                "SHUTDOWN_GRACE_SECONDS",
                "https_proxy",
            ]
        );
        assert_eq!(shown.lines().count(), subjects.len());
        assert!(!shown.contains("geheim") && !format!("{error:?}").contains("geheim"), "{shown}");
        assert!(shown.contains("\nPORT: must be a whole number from 0 to 65535\n"), "{shown}");
    }

    #[test]
    fn nothing_set_names_the_three_that_are_required() {
        let error = load(&Environment::from_pairs([])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "PROXY_API_KEY: is required\nDASHSCOPE_API_KEYS: is required\nMODEL_IDS: is required"
        );
    }

    #[test]
    fn a_weak_or_odd_proxy_key_and_repeats_are_noted() {
        let loaded = load_with(&[("PROXY_API_KEY", "a,b"), ("MODEL_IDS", "a,a")]).unwrap();
        assert_eq!(
            loaded.notes,
            [
                "PROXY_API_KEY is shorter than 16 characters",
                "PROXY_API_KEY holds a comma: it is one key, not a list",
                "MODEL_IDS item 2 repeats item 1 and is dropped",
            ]
        );
    }

    #[test]
    fn a_plans_key_on_a_pay_as_you_go_host_is_noted_and_the_reverse() {
        let notes = |more: &[(&str, &str)]| load_with(more).unwrap().notes;
        let plan = "https://coding.dashscope.aliyuncs.com/v1";
        let told = notes(&[("DASHSCOPE_API_KEYS", "sk-sp-1")]);
        assert_eq!(told.len(), 1);
        assert!(told[0].starts_with("DASHSCOPE_API_KEYS sends the plan key"), "{told:?}");
        assert!(told[0].contains("(UPSTREAM_BASE_URL, OPENAI_UPSTREAM_BASE_URL)"), "{told:?}");
        assert!(!told[0].contains("sk-sp-1"), "{told:?}");
        let moved = [("UPSTREAM_BASE_URL", plan), ("OPENAI_UPSTREAM_BASE_URL", plan)];
        assert_eq!(notes(&moved).len(), 2, "one for each of the two pay-as-you-go keys");
        let at_home = [moved[0], moved[1], ("DASHSCOPE_API_KEYS", "sk-sp-1")];
        assert!(notes(&at_home).is_empty(), "the native base is at its default");
        let native = ("NATIVE_UPSTREAM_BASE_URL", "https://dashscope-intl.aliyuncs.com/api/v1");
        let told = notes(&[at_home[0], at_home[1], at_home[2], native]);
        assert!(told.len() == 1 && told[0].contains("(NATIVE_UPSTREAM_BASE_URL)"), "{told:?}");
    }

    #[test]
    fn the_outbound_proxy_is_the_first_that_is_set() {
        let order =
            ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
        let urls: Vec<String> = (1..=6).map(|port| format!("http://proxy:{port}")).collect();
        for set in 1..=order.len() {
            let settings: Vec<_> =
                order.iter().copied().zip(urls.iter().map(String::as_str)).take(set).collect();
            let outbound = config_with(&settings).outbound.unwrap();
            assert_eq!(outbound.shown(), urls[set - 1]);
        }
    }

    #[test]
    fn the_hosts_without_a_proxy_are_a_list() {
        let config = config_with(&[
            ("ALL_PROXY", "socks5://u:p@proxy"),
            ("no_proxy", "localhost, .example.com,"),
        ]);
        let outbound = config.outbound.unwrap();
        assert_eq!(outbound.no_proxy, ["localhost", ".example.com"]);
        assert_eq!(outbound.url, Secret::new("socks5://u:p@proxy"));
    }

    #[test]
    fn debug_shows_no_key() {
        let loaded = load_with(&[("ALL_PROXY", "http://u:geheim@proxy")]).unwrap();
        let shown = format!("{loaded:?}");
        for secret in ["a-proxy-key", "sk-1", "geheim"] {
            assert!(!shown.contains(secret));
        }
    }

    /// The text of `.env.example`, with the optional settings switched on or not.
    fn example(optional: bool) -> String {
        let is_setting = |line: &str| {
            line.split_once('=')
                .is_some_and(|(name, _)| VARIABLES.iter().any(|variable| variable.name == name))
        };
        let text = include_str!("../.env.example");
        let lines = text.lines().map(|line| match line.strip_prefix("# ") {
            Some(setting) if optional && is_setting(setting) => setting,
            _ => line,
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Puts keys where the example has placeholders.
    fn filled_in(pairs: impl Iterator<Item = (String, String)>) -> Environment {
        let filled = pairs.map(|(name, value)| (name, value.replace("replace-me", "filled-in")));
        Environment::from_pairs(filled)
    }

    #[test]
    fn the_example_file_works_once_its_placeholders_are_filled_in_and_not_before() {
        let parsed = dotenv::parse(&example(false));
        assert!(parsed.ignored.is_empty());
        let names: Vec<_> = parsed.assignments.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, REQUIRED.map(|(name, _)| name));
        let pairs: Vec<_> = parsed.assignments.into_iter().map(|it| (it.name, it.value)).collect();
        assert!(load(&filled_in(pairs.iter().cloned())).is_ok());
        let error = load(&Environment::from_pairs(pairs)).unwrap_err();
        let told: Vec<_> = error.problems.iter().map(ToString::to_string).collect();
        assert_eq!(told.len(), 3, "{told:?}");
        for (told, subject) in told.iter().zip([
            "PROXY_API_KEY: is",
            "DASHSCOPE_API_KEYS: item 1 is",
            "DASHSCOPE_API_KEYS: item 2 is",
        ]) {
            assert!(told.starts_with(subject) && told.contains("placeholder"), "{told}");
        }
    }

    #[test]
    fn the_example_file_shows_every_variable_with_its_default() {
        let parsed = dotenv::parse(&example(true));
        let shown: Vec<_> = parsed.assignments.iter().map(|it| it.name.as_str()).collect();
        let listed: Vec<_> = VARIABLES.iter().map(|it| it.name).collect();
        assert_eq!(shown, listed);
        for (assignment, variable) in parsed.assignments.iter().zip(VARIABLES) {
            if let Some(default) = variable.default {
                assert_eq!(assignment.value, default, "{}", variable.name);
            }
        }
        // The certificates of the example are on nobody's disk, and none of its models sees.
        let strange = ["UPSTREAM_CA_FILE", "VISION_MODELS"];
        let there = parsed.assignments.into_iter();
        let there = there.filter(|it| !strange.contains(&&*it.name));
        let pairs = there.map(|it| (it.name, it.value));
        assert!(load(&filled_in(pairs)).is_ok());
    }
}
