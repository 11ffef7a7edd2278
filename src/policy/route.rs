//! What a path means.

use super::limits::Wire;
use super::pool::is_model_id;

/// Whose envelope an error is written in, and whose rules a body follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// OpenAI's, on DashScope's compatible mode.
    OpenAi,
    /// Anthropic's.
    Anthropic,
    /// DashScope's own.
    Native,
}

/// What is done with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// It goes upstream.
    Upstream(Endpoint),
    /// It is answered here.
    Local(Local),
    /// It changes the pool.
    Steer(Steer),
    /// A browser asks whether it may; open to everybody.
    Preflight,
    /// The path is known and the method is wrong.
    WrongMethod {
        /// What the `Allow` header says.
        allow: &'static str,
    },
    /// Nothing of ours.
    NotFound,
}

/// A path of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// Whose envelope and rules.
    pub protocol: Protocol,
    /// Which base URL.
    pub base: Base,
    /// The path of ours that it matched, for the metrics.
    pub route: &'static str,
    /// What is appended to it.
    pub path: String,
    /// Whose model and whose key a request gets.
    pub rule: Rule,
}

impl Endpoint {
    /// Whether the body is handed through as it comes instead of being understood.
    #[must_use]
    pub(crate) fn is_upload(&self) -> bool {
        matches!(self.rule, Rule::Pinned { upload: true, .. })
    }

    /// Whether what comes out is text, and not vectors or scores.
    #[must_use]
    pub(crate) fn writes_text(&self) -> bool {
        !["embedding", "rerank"].iter().any(|word| self.path.contains(word))
    }

    /// How it writes its messages.
    #[must_use]
    pub(crate) fn wire(&self) -> Wire {
        match self.protocol {
            Protocol::OpenAi if self.path.starts_with("/responses") => Wire::Responses,
            Protocol::OpenAi => Wire::Chat,
            Protocol::Anthropic => Wire::Messages,
            Protocol::Native => Wire::Native,
        }
    }
}

/// A base URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    /// `OPENAI_UPSTREAM_BASE_URL`.
    OpenAi,
    /// The origin of `OPENAI_UPSTREAM_BASE_URL`: what is not below the compatible mode's path.
    OpenAiOrigin,
    /// `UPSTREAM_BASE_URL`.
    Anthropic,
    /// `NATIVE_UPSTREAM_BASE_URL`.
    Native,
}

/// Whose model and whose key a request gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Any model of the pool, whatever the client names.
    Pool,
    /// One of the pool's if the client names one of them; else the client's stays.
    PoolIfNamed,
    /// The client's model stays: the vectors of two models do not mix. Keys rotate.
    ClientModel,
    /// As [`Rule::Pool`], but it serves nothing: it neither rotates nor teaches.
    Count,
    /// The key that made this identifier, else the current one; nothing rotates.
    Pinned {
        /// The identifier in the path, if there is one.
        id: Option<String>,
        /// Whether the body is handed through as it comes instead of being understood.
        upload: bool,
    },
}

/// A page of our own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Local {
    /// `GET /`: what there is.
    Index,
    /// `GET /` in a browser: the pool, to look at and to steer.
    Page,
    /// `GET /health`.
    Health,
    /// `GET /models/status`.
    Status,
    /// `GET /v1/models`.
    Models,
    /// `GET /v1/models/{id}`.
    Model(String),
    /// `GET /metrics`.
    Metrics,
    /// `HEAD /api/hello`: Claude Code opens its connections with it.
    Hello,
}

/// What a person asks of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steer {
    /// `POST /models/reset`.
    Reset,
    /// `POST /models/disable`.
    Disable,
    /// `POST /models/enable`.
    Enable,
}

impl Steer {
    /// Its name in the log.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::Disable => "disable",
            Self::Enable => "enable",
        }
    }

    fn at(path: &str) -> Option<Self> {
        let all = [Self::Reset, Self::Disable, Self::Enable];
        let name = path.strip_prefix("/models/")?;
        all.into_iter().find(|steer| steer.name() == name)
    }
}

/// What Prometheus scrapes.
const METRICS: &str = "/metrics";

/// Whether only pages of this very origin may have to do with a path in a browser, whatever comes
/// of it.
#[must_use]
pub(crate) fn is_private(path: &str) -> bool {
    path == METRICS || Steer::at(path).is_some()
}

impl Local {
    /// Whether only pages of this very origin may read it in a browser.
    #[must_use]
    pub(crate) fn is_private(&self) -> bool {
        matches!(self, Self::Metrics | Self::Page)
    }

    /// Whether it is answered without the proxy key.
    #[must_use]
    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Self::Index | Self::Page | Self::Health | Self::Hello)
    }
}

/// How a known path goes on.
#[derive(Clone, Copy, Debug)]
enum Tail {
    /// Not at all.
    Nothing,
    /// In any number of plain words.
    Words,
    /// In one plain word and then this.
    WordAnd(&'static str),
    /// Not at all, or in an identifier with anything plain behind it.
    Identifier,
    /// In an identifier with anything plain behind it. A word that is a route of its own is none.
    OnlyIdentifier,
}

/// What kind of rule a path has; the identifier comes from the path.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Pool,
    PoolIfNamed,
    ClientModel,
    Count,
    Pinned,
    /// Pinned, and what is posted to the path itself is an upload.
    Files,
}

const POST: &str = "POST, OPTIONS";
const READ: &str = "GET, HEAD, OPTIONS";
const MANAGE: &str = "GET, POST, DELETE, OPTIONS";

/// The paths that go upstream: ours, how it goes on, the methods, the base URL and what replaces
/// ours there, and the rule.
#[rustfmt::skip]
const UPSTREAM: &[(&str, Tail, &str, Base, &str, Kind)] = &[
    ("/v1/chat/completions", Tail::Nothing, POST, Base::OpenAi, "/chat/completions", Kind::Pool),
    ("/v1/completions", Tail::Nothing, POST, Base::OpenAi, "/completions", Kind::Pool),
    ("/v1/responses", Tail::Nothing, POST, Base::OpenAi, "/responses", Kind::Pool),
    ("/v1/responses/compact", Tail::Nothing, POST, Base::OpenAi, "/responses/compact", Kind::Pool),
    ("/v1/responses/input_tokens", Tail::Nothing, POST, Base::OpenAi, "/responses/input_tokens", Kind::Count),
    ("/v1/messages", Tail::Nothing, POST, Base::Anthropic, "/v1/messages", Kind::Pool),
    ("/v1/messages/count_tokens", Tail::Nothing, POST, Base::Anthropic, "/v1/messages/count_tokens", Kind::Count),
    ("/v1/embeddings", Tail::Nothing, POST, Base::OpenAi, "/embeddings", Kind::ClientModel),
    ("/v1/reranks", Tail::Nothing, POST, Base::OpenAiOrigin, "/compatible-api/v1/reranks", Kind::ClientModel),
    ("/compatible-api/v1/reranks", Tail::Nothing, POST, Base::OpenAiOrigin, "/compatible-api/v1/reranks", Kind::ClientModel),
    ("/v1/responses", Tail::OnlyIdentifier, MANAGE, Base::OpenAi, "/responses", Kind::Pinned),
    ("/v1/files", Tail::Identifier, MANAGE, Base::OpenAi, "/files", Kind::Files),
    ("/v1/batches", Tail::Identifier, MANAGE, Base::OpenAi, "/batches", Kind::Pinned),
    ("/api/v1/services", Tail::Words, POST, Base::Native, "/services", Kind::PoolIfNamed),
    ("/api/v1/apps", Tail::WordAnd("/completion"), POST, Base::Native, "/apps", Kind::PoolIfNamed),
    ("/api/v1/tokenizer", Tail::Nothing, POST, Base::Native, "/tokenizer", Kind::PoolIfNamed),
    ("/api/v1/tasks", Tail::Identifier, MANAGE, Base::Native, "/tasks", Kind::Pinned),
    ("/api/v1/files", Tail::Identifier, MANAGE, Base::Native, "/files", Kind::Files),
    ("/api/v1/uploads", Tail::Nothing, MANAGE, Base::Native, "/uploads", Kind::Pinned),
];

/// DashScope's own prefixes: a client only swaps the host.
const COMPATIBLE_MODE: &str = "/compatible-mode";
const APPS_ANTHROPIC: &str = "/apps/anthropic";

/// Where DashScope's own protocol begins.
const NATIVE: &str = "/api/v1";

const MODELS: &str = "/v1/models";

/// Decides by method and path (without the query). Paths are matched in plain words: nothing
/// that only looks like a known one, with encoded dots or doubled slashes, is ever forwarded.
#[must_use]
pub(crate) fn resolve(method: &str, path: &str) -> Route {
    if method == "OPTIONS" {
        return Route::Preflight;
    }
    let path = without_prefix(path);
    let mut allowed = None;
    for (known, tail, methods, base, upstream, kind) in UPSTREAM {
        let fits = |rest: &&str| tail.fits(rest) && !(tail.takes_identifier() && names_route(path));
        let Some(rest) = path.strip_prefix(known).filter(fits) else { continue };
        if !methods.split(", ").any(|allowed| allowed == method) {
            allowed = Some(*methods);
            continue;
        }
        let is_post = method == "POST" && rest.is_empty();
        return Route::Upstream(Endpoint {
            protocol: base.protocol(),
            base: *base,
            route: known,
            path: format!("{upstream}{rest}"),
            rule: kind.rule(rest, is_post),
        });
    }
    if let Some(steer) = Steer::at(path) {
        return match method {
            "POST" => Route::Steer(steer),
            _ => Route::WrongMethod { allow: "POST" },
        };
    }
    match local(path) {
        Some(local) if matches!(method, "GET" | "HEAD") => Route::Local(local),
        Some(_) => Route::WrongMethod { allow: READ },
        None => allowed.map_or(Route::NotFound, |allow| Route::WrongMethod { allow }),
    }
}

/// In whose words an error on `path` is told. `speaks_anthropic`: the request carries
/// `anthropic-version`, which only Anthropic's clients send.
#[must_use]
pub(crate) fn protocol_of(path: &str, speaks_anthropic: bool) -> Protocol {
    let below = |prefix: &str| {
        path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if below(NATIVE) {
        Protocol::Native
    } else if below("/v1/messages") || below(APPS_ANTHROPIC) || speaks_anthropic {
        Protocol::Anthropic
    } else {
        Protocol::OpenAi
    }
}

/// The path without DashScope's own prefix, where what follows belongs to that prefix.
fn without_prefix(path: &str) -> &str {
    let of = |prefix: &str, anthropic: bool| {
        let rest = path.strip_prefix(prefix)?;
        let belongs = rest.starts_with("/v1/") && (rest.starts_with("/v1/messages") == anthropic);
        (belongs || rest.starts_with(MODELS)).then_some(rest)
    };
    of(COMPATIBLE_MODE, false).or_else(|| of(APPS_ANTHROPIC, true)).unwrap_or(path)
}

fn local(path: &str) -> Option<Local> {
    match path {
        "/" => Some(Local::Index),
        "/health" => Some(Local::Health),
        "/models/status" => Some(Local::Status),
        METRICS => Some(Local::Metrics),
        "/api/hello" => Some(Local::Hello),
        MODELS => Some(Local::Models),
        _ => {
            let id = decoded(path.strip_prefix(MODELS)?.strip_prefix('/')?)?;
            is_model_id(&id).then_some(Local::Model(id))
        }
    }
}

/// A name from a path without its percent encoding: SDKs encode the slash of `vendor/model`.
fn decoded(name: &str) -> Option<String> {
    let mut parts = name.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

/// Whether what looks like an identifier is a word of ours, `/v1/responses/compact` say, or stands
/// below one.
fn names_route(path: &str) -> bool {
    UPSTREAM.iter().any(|(known, tail, ..)| {
        matches!(tail, Tail::Nothing)
            && path.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            && !UPSTREAM.iter().any(|(other, tail, ..)| other == known && tail.takes_identifier())
    })
}

impl Tail {
    fn takes_identifier(self) -> bool {
        matches!(self, Self::Identifier | Self::OnlyIdentifier)
    }

    fn fits(self, rest: &str) -> bool {
        match self {
            Self::Nothing => rest.is_empty(),
            Self::Words | Self::OnlyIdentifier => are_words(rest),
            Self::WordAnd(end) => rest
                .strip_suffix(end)
                .is_some_and(|word| are_words(word) && !word[1..].contains('/')),
            Self::Identifier => rest.is_empty() || are_words(rest),
        }
    }
}

impl Kind {
    fn rule(self, rest: &str, is_post: bool) -> Rule {
        let id = rest.split('/').nth(1).map(str::to_owned);
        match self {
            Self::Pool => Rule::Pool,
            Self::PoolIfNamed => Rule::PoolIfNamed,
            Self::ClientModel => Rule::ClientModel,
            Self::Count => Rule::Count,
            Self::Pinned => Rule::Pinned { id, upload: false },
            Self::Files => Rule::Pinned { id, upload: is_post },
        }
    }
}

impl Base {
    fn protocol(self) -> Protocol {
        match self {
            Self::OpenAi | Self::OpenAiOrigin => Protocol::OpenAi,
            Self::Anthropic => Protocol::Anthropic,
            Self::Native => Protocol::Native,
        }
    }
}

/// Whether `rest` is `/word/word…` in plain words, without dots that climb or anything that
/// another reader might decode differently. A last slash is allowed.
fn are_words(rest: &str) -> bool {
    let is_word = |word: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        !word.is_empty() && word.bytes().all(plain)
    };
    let words = rest.strip_prefix('/').map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    words.is_some_and(|words| words.split('/').all(is_word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(method: &str, path: &str) -> Endpoint {
        match resolve(method, path) {
            Route::Upstream(endpoint) => endpoint,
            other => panic!("{method} {path}: {other:?}"),
        }
    }

    fn pinned(id: Option<&str>) -> Rule {
        Rule::Pinned { id: id.map(str::to_owned), upload: false }
    }

    #[test]
    fn every_path_goes_to_its_base_url_with_its_rule() {
        for (path, base, upstream, rule) in [
            ("/v1/chat/completions", Base::OpenAi, "/chat/completions", Rule::Pool),
            ("/v1/completions", Base::OpenAi, "/completions", Rule::Pool),
            ("/v1/responses", Base::OpenAi, "/responses", Rule::Pool),
            ("/v1/messages", Base::Anthropic, "/v1/messages", Rule::Pool),
            ("/v1/embeddings", Base::OpenAi, "/embeddings", Rule::ClientModel),
            ("/api/v1/tokenizer", Base::Native, "/tokenizer", Rule::PoolIfNamed),
            ("/v1/batches", Base::OpenAi, "/batches", pinned(None)),
        ] {
            let found = endpoint("POST", path);
            assert_eq!((found.base, &*found.path, found.rule), (base, upstream, rule), "{path}");
        }
        for path in ["/v1/reranks", "/compatible-api/v1/reranks"] {
            let found = endpoint("POST", path);
            assert_eq!(
                (found.base, &*found.path),
                (Base::OpenAiOrigin, "/compatible-api/v1/reranks")
            );
        }
        assert_eq!(endpoint("POST", "/v1/messages/count_tokens").rule, Rule::Count);
    }

    #[test]
    fn a_known_word_is_no_identifier_and_any_other_is_one() {
        for prefix in ["", "/compatible-mode"] {
            let of = |word: &str| format!("{prefix}/v1/responses/{word}");
            let compact = endpoint("POST", &of("compact"));
            assert_eq!((&*compact.path, compact.rule), ("/responses/compact", Rule::Pool));
            let tokens = endpoint("POST", &of("input_tokens"));
            assert_eq!((&*tokens.path, tokens.rule), ("/responses/input_tokens", Rule::Count));
            for method in ["GET", "DELETE"] {
                let wrong = Route::WrongMethod { allow: POST };
                assert_eq!(resolve(method, &of("compact")), wrong);
                assert_eq!(resolve(method, &of("input_tokens")), wrong);
            }
            for path in ["compact/", "compact/input_items", "input_tokens/x"] {
                assert_eq!(resolve("POST", &of(path)), Route::NotFound, "{path}");
            }
            for id in ["compacted", "resp_1", "input_items", "Compact"] {
                assert_eq!(endpoint("POST", &of(id)).rule, pinned(Some(id)), "{id}");
            }
            assert_eq!(endpoint("POST", &of("resp_1/compact")).rule, pinned(Some("resp_1")));
        }
    }

    #[test]
    fn native_paths_go_on_in_plain_words() {
        for path in ["/services/aigc/text-generation/generation", "/services/a/b_c/"] {
            let found = endpoint("POST", &format!("/api/v1{path}"));
            assert_eq!((found.base, &*found.path), (Base::Native, path));
            assert_eq!((found.protocol, found.rule), (Protocol::Native, Rule::PoolIfNamed));
        }
        assert_eq!(endpoint("POST", "/api/v1/apps/app1/completion").path, "/apps/app1/completion");
        for path in [
            "/services/../x",
            "/services/a//b",
            "/services/%61",
            "/services/",
            "/services",
            "/apps/a/b/completion",
            "/apps//completion",
            "/apps/completion",
        ] {
            assert_eq!(resolve("POST", &format!("/api/v1{path}")), Route::NotFound, "{path}");
        }
    }

    #[test]
    fn identifiers_pin_a_request_to_their_key() {
        for (method, path, id) in [
            ("GET", "/api/v1/tasks/0f-1", Some("0f-1")),
            ("POST", "/api/v1/tasks/0f-1/cancel", Some("0f-1")),
            ("GET", "/api/v1/tasks", None),
            ("GET", "/v1/files/file-fe-1/content", Some("file-fe-1")),
            ("DELETE", "/v1/files/file-fe-1", Some("file-fe-1")),
            ("GET", "/v1/batches", None),
            ("GET", "/v1/responses/resp_1/input_items", Some("resp_1")),
            ("DELETE", "/v1/responses/resp_1", Some("resp_1")),
            ("GET", "/api/v1/uploads", None),
        ] {
            assert_eq!(endpoint(method, path).rule, pinned(id), "{method} {path}");
        }
        let upload = Rule::Pinned { id: None, upload: true };
        assert_eq!(endpoint("POST", "/v1/files").rule, upload);
        assert_eq!(endpoint("POST", "/api/v1/files").rule, upload);
    }

    #[test]
    fn dashscopes_own_prefixes_are_understood() {
        for (ours, theirs) in [
            ("/v1/chat/completions", "/compatible-mode/v1/chat/completions"),
            ("/v1/embeddings", "/compatible-mode/v1/embeddings"),
            ("/v1/messages", "/apps/anthropic/v1/messages"),
            ("/v1/messages/count_tokens", "/apps/anthropic/v1/messages/count_tokens"),
        ] {
            assert_eq!(resolve("POST", theirs), resolve("POST", ours), "{theirs}");
        }
        assert_eq!(resolve("GET", "/compatible-mode/v1/models"), Route::Local(Local::Models));
        assert_eq!(resolve("POST", "/compatible-mode/v1/messages"), Route::NotFound);
        assert_eq!(resolve("POST", "/apps/anthropic/v1/chat/completions"), Route::NotFound);
    }

    #[test]
    fn a_known_path_with_a_wrong_method_is_told_so() {
        assert_eq!(resolve("GET", "/v1/messages"), Route::WrongMethod { allow: POST });
        assert_eq!(resolve("POST", "/health"), Route::WrongMethod { allow: READ });
        assert_eq!(resolve("DELETE", "/v1/models"), Route::WrongMethod { allow: READ });
        assert_eq!(resolve("PUT", "/v1/files/f"), Route::WrongMethod { allow: MANAGE });
        assert_eq!(resolve("GET", "/v1/responses"), Route::WrongMethod { allow: POST });
    }

    #[test]
    fn local_pages_are_read_with_get_and_head() {
        for method in ["GET", "HEAD"] {
            assert_eq!(resolve(method, "/health"), Route::Local(Local::Health));
            assert_eq!(resolve(method, "/"), Route::Local(Local::Index));
            let model = Local::Model("qwen3.7-plus".to_owned());
            assert_eq!(resolve(method, "/v1/models/qwen3.7-plus"), Route::Local(model));
            let model = Local::Model("vendor/m".to_owned());
            assert_eq!(resolve(method, "/v1/models/vendor%2fm"), Route::Local(model));
            assert_eq!(resolve(method, "/v1/models/vendor%2"), Route::NotFound);
        }
        assert!(Local::Health.is_open() && Local::Index.is_open());
        assert!(!Local::Status.is_open() && !Local::Models.is_open());
    }

    #[test]
    fn the_pool_is_steered_with_post() {
        assert_eq!(resolve("POST", "/models/reset"), Route::Steer(Steer::Reset));
        assert_eq!(resolve("POST", "/models/disable"), Route::Steer(Steer::Disable));
        assert_eq!(resolve("POST", "/models/enable"), Route::Steer(Steer::Enable));
        assert_eq!(resolve("GET", "/models/reset"), Route::WrongMethod { allow: "POST" });
        assert_eq!(resolve("POST", "/models/resett"), Route::NotFound);
    }

    #[test]
    fn a_preflight_is_answered_on_every_path() {
        for path in ["/v1/messages", "/health", "/nowhere", "*"] {
            assert_eq!(resolve("OPTIONS", path), Route::Preflight);
        }
    }

    #[test]
    fn what_only_resembles_a_path_is_not_found() {
        for path in [
            "/v1/chat/completions/",
            "/v1//chat/completions",
            "/v1/%63hat/completions",
            "/v1/x/../chat/completions",
            "/V1/chat/completions",
            "/v1/audio/speech",
            "",
            "*",
            "/v1/messages/../chat/completions",
            "/v1/files/../chat",
            "/v1/files/a%2fb",
            "/v1/models/a?b",
            "/compatible-mode/chat/completions",
        ] {
            assert_eq!(resolve("POST", path), Route::NotFound, "{path}");
        }
    }

    #[test]
    fn errors_are_told_in_the_callers_protocol() {
        assert_eq!(protocol_of("/v1/messages", false), Protocol::Anthropic);
        assert_eq!(protocol_of("/v1/messages/nope", false), Protocol::Anthropic);
        assert_eq!(protocol_of("/apps/anthropic/v1/x", false), Protocol::Anthropic);
        assert_eq!(protocol_of("/v1/messagesx", false), Protocol::OpenAi);
        assert_eq!(protocol_of("/api/v1/services/x", false), Protocol::Native);
        assert_eq!(protocol_of("/v1/models", true), Protocol::Anthropic);
        assert_eq!(protocol_of("/v1/models", false), Protocol::OpenAi);
    }
}
