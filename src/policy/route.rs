//! What a path means.

/// Whose envelope an error is written in, and which base URL a request goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// OpenAI's, on DashScope's compatible mode.
    OpenAi,
    /// Anthropic's.
    Anthropic,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Which base URL and which envelope.
    pub protocol: Protocol,
    /// What is appended to the base URL.
    pub path: &'static str,
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

/// The paths that go upstream, and what they become there.
const ENDPOINTS: [(&str, Endpoint); 2] = [
    ("/v1/chat/completions", Endpoint { protocol: Protocol::OpenAi, path: "/chat/completions" }),
    ("/v1/messages", Endpoint { protocol: Protocol::Anthropic, path: "/v1/messages" }),
];

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
    if let Some((_, endpoint)) = ENDPOINTS.iter().find(|(known, _)| *known == path) {
        return match method {
            "POST" => Route::Upstream(*endpoint),
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

/// In whose words an error on `path` is told. `speaks_anthropic`: the request carries
/// `anthropic-version`, which only Anthropic's clients send.
#[must_use]
pub fn protocol_of(path: &str, speaks_anthropic: bool) -> Protocol {
    let messages = path == "/v1/messages" || path.starts_with("/v1/messages/");
    if messages || speaks_anthropic { Protocol::Anthropic } else { Protocol::OpenAi }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chat_and_messages_go_upstream() {
        let chat = resolve("POST", "/v1/chat/completions");
        let openai = Endpoint { protocol: Protocol::OpenAi, path: "/chat/completions" };
        assert_eq!(chat, Route::Upstream(openai));
        let messages = resolve("POST", "/v1/messages");
        let anthropic = Endpoint { protocol: Protocol::Anthropic, path: "/v1/messages" };
        assert_eq!(messages, Route::Upstream(anthropic));
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
        assert_eq!(protocol_of("/v1/models", true), Protocol::Anthropic);
        assert_eq!(protocol_of("/v1/models", false), Protocol::OpenAi);
    }
}
