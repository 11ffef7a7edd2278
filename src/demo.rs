//! `dashscope-proxy demo`: the real proxy in front of the built-in stand-in, with small quotas.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use log::info;

use crate::clock;
use crate::config::{self, Environment};
use crate::error::StartupError;
use crate::panics::Event;
use crate::service::{Broken, Ended, Service};
use crate::standin::{Limit, StandIn};

const PROXY_KEY: &str = "demo-proxy-key-0001";
const KEYS: [&str; 2] = ["sk-demo-first", "sk-demo-second"];
const MODELS: [&str; 3] = ["qwen-max", "qwen-plus", "qwen-turbo"];

/// How many requests each slot of the demo serves.
const QUOTA: u64 = 2;

/// How many requests the demo makes itself: enough to see the first key run out, so that the next
/// one starts with the first model again. That is the model whose limits the curl lines show.
const SHOWN: u64 = QUOTA * MODELS.len() as u64 + 1;

/// How many tokens of output the first model writes at most. It takes no pictures either.
const MOST_OUTPUT: u64 = 8192;

/// The port of the real thing, and how many after it are tried.
const PORT: u16 = 3300;
const PORTS: u16 = 100;

/// A demo that serves.
pub struct Demo {
    service: Service,
    _standin: StandIn,
    _folder: Folder,
}

/// Starts the demo.
///
/// # Errors
/// When there is no free port or no place for the state.
pub fn start(events: Sender<Event>) -> Result<Demo, StartupError> {
    let standin = StandIn::start()
        .map_err(|error| StartupError::System(format!("failed to start the stand-in: {error}")))?;
    standin.set_keys(&KEYS);
    standin.set_models(&MODELS);
    standin.set_default_quota(Some(QUOTA));
    standin.set_limits(MODELS[0], &[Limit::MaxOutput(MOST_OUTPUT), Limit::TextOnly]);
    standin.keep_calls(false);
    let folder = Folder::new();
    let service = serve(&standin.origin(), &folder, &events)?;
    Ok(Demo { service, _standin: standin, _folder: folder })
}

impl Demo {
    /// What to try.
    #[must_use]
    pub fn introduction(&self) -> String {
        let address = self.service.address();
        let elsewhere = match address.port() {
            PORT => String::new(),
            port => format!("\nPort {PORT} is taken, so this demo is on port {port}.\n"),
        };
        let (keys, models) = (KEYS.len(), MODELS.len());
        let slots = keys * models;
        format!(
            r#"{elsewhere}
The demo proxy is on http://{address} with the key {PROXY_KEY}.
Behind it is a mock of DashScope: {keys} keys x {models} models = {slots} slots, each with a free
quota of {QUOTA} requests. {SHOWN} requests are made right now, which use up the first key; watch the log.

The first model, {first}, writes {MOST_OUTPUT} tokens at most and sees no pictures. So another model
serves these two, as x-proxy-model says, and the log says why (limit):

  curl -i http://{address}/v1/chat/completions -H 'Authorization: Bearer {PROXY_KEY}' \
       -d '{{"model":"any","max_tokens":64000,"messages":[{{"role":"user","content":"hello"}}]}}'

  curl -i http://{address}/v1/chat/completions -H 'Authorization: Bearer {PROXY_KEY}' \
       -d '{{"model":"any","messages":[{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"https://example.com/cat.png"}}}}]}}]}}'

Any model serves these two. Repeat them

  curl http://{address}/v1/chat/completions -H 'Authorization: Bearer {PROXY_KEY}' \
       -d '{{"model":"any","messages":[{{"role":"user","content":"hello"}}]}}'

  curl -N http://{address}/v1/messages -H 'x-api-key: {PROXY_KEY}' \
       -d '{{"model":"any","max_tokens":99,"stream":true,"messages":[{{"role":"user","content":"hello"}}]}}'

until all {slots} slots are used up and the answer is 503. Ctrl-C ends it.

"#,
            first = MODELS[0],
        )
    }

    /// Makes the first requests itself, and serves until an event says so.
    ///
    /// # Errors
    /// As [`Service::run`].
    pub fn run(self, events: &Receiver<Event>) -> Result<Ended, Broken> {
        let address = self.service.address();
        for _ in 0..SHOWN {
            if let Err(error) = ask(address) {
                info!("demo request failed: {error}");
            }
        }
        self.service.run(events)
    }
}

/// Starts the proxy on the first port from [`PORT`] on that can be had.
fn serve(origin: &str, folder: &Folder, events: &Sender<Event>) -> Result<Service, StartupError> {
    for port in PORT..PORT + PORTS {
        match serve_on(port, origin, folder, events) {
            Err(StartupError::Listen(_)) => {}
            outcome => return outcome,
        }
    }
    Err(StartupError::Listen(format!("no port is free from {PORT} on")))
}

fn serve_on(
    port: u16,
    origin: &str,
    folder: &Folder,
    events: &Sender<Event>,
) -> Result<Service, StartupError> {
    let settings = [
        ("PROXY_API_KEY", PROXY_KEY.to_owned()),
        ("DASHSCOPE_API_KEYS", KEYS.join(",")),
        ("MODEL_IDS", MODELS.join(",")),
        ("PORT", port.to_string()),
        ("UPSTREAM_BASE_URL", format!("{origin}/apps/anthropic")),
        ("OPENAI_UPSTREAM_BASE_URL", format!("{origin}/compatible-mode/v1")),
        ("NATIVE_UPSTREAM_BASE_URL", format!("{origin}/api/v1")),
        ("STATE_PATH", folder.0.join("proxy-state.json").display().to_string()),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), value));
    Service::start(config::load(&Environment::from_pairs(settings))?, events.clone())
}

/// One chat request, the answer read to its end.
fn ask(address: SocketAddr) -> io::Result<()> {
    let body = r#"{"model":"any","messages":[{"role":"user","content":"hello"}]}"#;
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(
        socket,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         authorization: Bearer {PROXY_KEY}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )?;
    socket.read_to_end(&mut Vec::new()).map(drop)
}

/// A temporary folder that goes with the demo.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let name = format!("dashscope-proxy-demo-{}-{}", process::id(), clock::now().0);
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
