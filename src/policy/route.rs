//! What a path means.

/// Whose envelope an error is written in, and which base URL a request goes to.
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
pub enum Route {
    /// It goes upstream with a slot of the pool.
    Upstream(Endpoint),
    /// It is answered here.
    Local(Local),
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
pub struct Endpoint {
    /// Which base URL and which envelope.
    pub protocol: Protocol,
    /// What is appended to the base URL.
    pub path: String,
    /// Whose model a request gets.
    pub model: ModelRule,
}

/// Whose model a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelRule {
    /// Any of the pool's, whatever the client names.
    Pool,
    /// One of the pool's if the client names one of them; else the client's stays.
    PoolIfNamed,
}

/// A page of our own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// `GET /`: what there is.
    Index,
    /// `GET /health`.
    Health,
    /// `GET /models/status`.
    Status,
    /// `GET /v1/models`.
    Models,
    /// `HEAD /api/hello`: Claude Code opens its connections with it.
    Hello,
}

impl Local {
    /// Whether it is answered without the proxy key.
    #[must_use]
    pub fn is_open(self) -> bool {
        matches!(self, Self::Index | Self::Health | Self::Hello)
    }
}

/// The paths that go upstream with a model of the pool, and what they become there.
const POOLED: [(&str, Protocol, &str); 2] = [
    ("/v1/chat/completions", Protocol::OpenAi, "/chat/completions"),
    ("/v1/messages", Protocol::Anthropic, "/v1/messages"),
];

/// Where DashScope's own protocol begins, and its services below that.
const NATIVE: &str = "/api/v1";
const SERVICES: &str = "/services/";

/// The pages of our own.
const LOCALS: [(&str, Local); 5] = [
    ("/", Local::Index),
    ("/health", Local::Health),
    ("/models/status", Local::Status),
    ("/v1/models", Local::Models),
    ("/api/hello", Local::Hello),
];

/// Decides by method and path (without the query). The match is exact: nothing that only looks
/// like a known path, with encoded dots or doubled slashes, is ever forwarded.
#[must_use]
pub fn resolve(method: &str, path: &str) -> Route {
    if method == "OPTIONS" {
        return Route::Preflight;
    }
    if let Some(endpoint) = endpoint(path) {
        return match method {
            "POST" => Route::Upstream(endpoint),
            _ => Route::WrongMethod { allow: "POST, OPTIONS" },
        };
    }
    if let Some((_, local)) = LOCALS.iter().find(|(known, _)| *known == path) {
        return match method {
            "GET" | "HEAD" => Route::Local(*local),
            _ => Route::WrongMethod { allow: "GET, HEAD, OPTIONS" },
        };
    }
    Route::NotFound
}

fn endpoint(path: &str) -> Option<Endpoint> {
    if let Some((_, protocol, path)) = POOLED.iter().find(|(known, ..)| *known == path) {
        let path = (*path).to_owned();
        return Some(Endpoint { protocol: *protocol, path, model: ModelRule::Pool });
    }
    let service = path.strip_prefix(NATIVE).filter(|path| is_plain(path, SERVICES))?;
    let path = service.to_owned();
    Some(Endpoint { protocol: Protocol::Native, path, model: ModelRule::PoolIfNamed })
}

/// Whether a path goes on below `prefix` in plain words, without dots that climb or anything
/// that another reader might decode differently.
fn is_plain(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| {
        let word = |word: &str| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            !word.is_empty() && word.bytes().all(plain)
        };
        rest.strip_suffix('/').unwrap_or(rest).split('/').all(word)
    })
}

/// In whose words an error on `path` is told. `speaks_anthropic`: the request carries
/// `anthropic-version`, which only Anthropic's clients send.
#[must_use]
pub fn protocol_of(path: &str, speaks_anthropic: bool) -> Protocol {
    let below = |prefix: &str| path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
    if below(NATIVE) {
        Protocol::Native
    } else if path == "/v1/messages" || below("/v1/messages") || speaks_anthropic {
        Protocol::Anthropic
    } else {
        Protocol::OpenAi
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chat_and_messages_go_upstream() {
        for (path, protocol, upstream) in POOLED {
            let (path, model) = (path.to_owned(), ModelRule::Pool);
            let route = resolve("POST", &path);
            let path = upstream.to_owned();
            assert_eq!(route, Route::Upstream(Endpoint { protocol, path, model }));
        }
    }

    #[test]
    fn native_services_go_upstream_under_any_plain_name() {
        for path in ["/services/aigc/text-generation/generation", "/services/a/b_c/"] {
            let route = resolve("POST", &format!("/api/v1{path}"));
            let (protocol, model) = (Protocol::Native, ModelRule::PoolIfNamed);
            let path = path.to_owned();
            assert_eq!(route, Route::Upstream(Endpoint { protocol, path, model }));
        }
        for path in ["/services/../x", "/services/a//b", "/services/%61", "/services/", "/services"]
        {
            assert_eq!(resolve("POST", &format!("/api/v1{path}")), Route::NotFound, "{path}");
        }
    }

    #[test]
    fn a_known_path_with_a_wrong_method_is_told_so() {
        assert_eq!(resolve("GET", "/v1/messages"), Route::WrongMethod { allow: "POST, OPTIONS" });
        let local = Route::WrongMethod { allow: "GET, HEAD, OPTIONS" };
        assert_eq!(resolve("POST", "/health"), local);
        assert_eq!(resolve("DELETE", "/v1/models"), local);
    }

    #[test]
    fn local_pages_are_read_with_get_and_head() {
        for method in ["GET", "HEAD"] {
            assert_eq!(resolve(method, "/health"), Route::Local(Local::Health));
            assert_eq!(resolve(method, "/"), Route::Local(Local::Index));
        }
        assert!(Local::Health.is_open() && Local::Index.is_open());
        assert!(!Local::Status.is_open() && !Local::Models.is_open());
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
            "/v1/embeddings",
            "",
            "*",
            "/v1/messages/../chat/completions",
        ] {
            assert_eq!(resolve("POST", path), Route::NotFound, "{path}");
        }
    }

    #[test]
    fn errors_are_told_in_the_callers_protocol() {
        assert_eq!(protocol_of("/v1/messages", false), Protocol::Anthropic);
        assert_eq!(protocol_of("/v1/messages/nope", false), Protocol::Anthropic);
        assert_eq!(protocol_of("/v1/messagesx", false), Protocol::OpenAi);
        assert_eq!(protocol_of("/api/v1/services/x", false), Protocol::Native);
        assert_eq!(protocol_of("/v1/models", true), Protocol::Anthropic);
        assert_eq!(protocol_of("/v1/models", false), Protocol::OpenAi);
    }
}
