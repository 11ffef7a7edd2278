//! Runs the real binary for a test, in a folder of its own, against a stand-in.
//!
//! Nothing here picks a port or sleeps: the proxy binds port 0 and says where, and waits are for
//! something observable, with a deadline. A test that fails shows configuration, log, state file
//! and what the stand-in was asked.
#![allow(dead_code, reason = "a harness offers more than the tests of one day use")]

mod answer;
mod client;
mod folder;
mod process;
mod raw;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use dashscope_proxy::standin::StandIn;
use nix::sys::signal::Signal;
use serde_json::Value;
use sha2::{Digest, Sha256};

#[allow(unused_imports, reason = "as above")]
pub(crate) use answer::{Answer, Cut, Head, How};
#[allow(unused_imports, reason = "as above")]
pub(crate) use client::{Client, get, post, request};
pub(crate) use folder::Folder;
pub(crate) use process::Process;
#[allow(unused_imports, reason = "as above")]
pub(crate) use raw::RawUpstream;

/// How long anything may take that takes no time.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// How much of a log the report of a failed test shows, in bytes.
const LONGEST_LOG: usize = 1 << 20;

/// The key that clients of the proxy under test send.
pub(crate) const PROXY_KEY: &str = "test-proxy-key-0123456789";

/// The header that carries [`PROXY_KEY`].
pub(crate) const AUTH: (&str, &str) = ("authorization", "Bearer test-proxy-key-0123456789");

/// A proxy that is about to be started.
pub(crate) struct Builder<'a> {
    standin: &'a StandIn,
    folder: Folder,
    env: BTreeMap<String, String>,
    args: Vec<String>,
    wrapper: Vec<String>,
}

impl<'a> Builder<'a> {
    /// Sets a variable.
    pub(crate) fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.insert(name.to_owned(), value.into());
        self
    }

    /// Leaves a variable out that is set by default.
    pub(crate) fn without(mut self, name: &str) -> Self {
        self.env.remove(name);
        self
    }

    /// The DashScope keys, comma-separated.
    pub(crate) fn keys(self, keys: &str) -> Self {
        self.env("DASHSCOPE_API_KEYS", keys)
    }

    /// The model ids, comma-separated.
    pub(crate) fn models(self, models: &str) -> Self {
        self.env("MODEL_IDS", models)
    }

    /// Adds a command line argument.
    pub(crate) fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }

    /// Runs the binary under a command that ends by executing its arguments, `prlimit` for
    /// instance.
    pub(crate) fn under(mut self, wrapper: &[&str]) -> Self {
        self.wrapper.extend(wrapper.iter().map(|&word| word.to_owned()));
        self
    }

    /// Writes a file into the working folder, `.env` for instance.
    pub(crate) fn file(self, name: &str, text: &str) -> Self {
        self.folder.write(name, text);
        self
    }

    /// Writes the state file.
    pub(crate) fn state(self, text: &str) -> Self {
        self.file(STATE_FILE, text)
    }

    /// The working folder, to prepare it further.
    pub(crate) fn folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// Starts the proxy and waits until it listens.
    pub(crate) fn start(self) -> Proxy<'a> {
        let process = Process::start(self.command());
        let mut proxy = Proxy { builder: self, process, address: ([0, 0, 0, 0], 0).into() };
        proxy.await_listening();
        proxy
    }

    /// Runs the binary with these settings and arguments until it exits by itself.
    pub(crate) fn run(&self, args: &[&str]) -> Output {
        let mut command = self.command();
        command.args(args);
        finish(command)
    }

    /// Runs the proxy with these settings until it exits by itself.
    pub(crate) fn run_to_exit(self) -> Output {
        finish(self.command())
    }

    /// The binary with these settings and arguments.
    pub(crate) fn command(&self) -> Command {
        let binary = binary();
        let mut command = match self.wrapper.split_first() {
            None => binary,
            Some((wrapper, args)) => {
                let mut command = Command::new(wrapper);
                command.args(args).arg(binary.get_program());
                command
            }
        };
        command.env_clear().envs(&self.env).args(&self.args).current_dir(self.folder.path());
        command
    }
}

const STATE_FILE: &str = "proxy-state.json";

/// A running proxy. Dropping it kills it and waits for its end.
pub(crate) struct Proxy<'a> {
    builder: Builder<'a>,
    process: Process,
    address: SocketAddr,
}

impl<'a> Proxy<'a> {
    /// Two keys, three models, both protocols at the stand-in, nothing from this environment.
    pub(crate) fn builder(standin: &'a StandIn) -> Builder<'a> {
        let folder = Folder::new();
        let state = folder.path().join(STATE_FILE).display().to_string();
        let origin = standin.origin();
        let env = [
            ("PROXY_API_KEY", PROXY_KEY.to_owned()),
            ("DASHSCOPE_API_KEYS", "k1,k2".to_owned()),
            ("MODEL_IDS", "m1,m2,m3".to_owned()),
            ("PORT", "0".to_owned()),
            ("UPSTREAM_BASE_URL", format!("{origin}/apps/anthropic")),
            ("OPENAI_UPSTREAM_BASE_URL", format!("{origin}/compatible-mode/v1")),
            ("NATIVE_UPSTREAM_BASE_URL", format!("{origin}/api/v1")),
            ("STATE_PATH", state),
            ("RUST_LOG", "debug".to_owned()),
        ];
        let env = env.map(|(name, value)| (name.to_owned(), value)).into();
        Builder { standin, folder, env, args: Vec::new(), wrapper: Vec::new() }
    }

    /// Starts with the defaults.
    pub(crate) fn start(standin: &'a StandIn) -> Self {
        Self::builder(standin).start()
    }

    /// Runs a command with its settings, and with the port that it has.
    pub(crate) fn run(&self, args: &[&str]) -> Output {
        let mut command = self.command();
        command.args(args);
        finish(command)
    }

    /// The binary with its settings, and with the port that it has.
    pub(crate) fn command(&self) -> Command {
        let mut command = self.builder.command();
        command.env("PORT", self.address.port().to_string());
        command
    }

    /// What `/models/status` tells of one slot.
    pub(crate) fn slot(&self, key: &str, model: &str) -> Value {
        slot(&get(self, "/models/status").json(), key, model)
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of a path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// A fresh connection to it.
    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    /// What it has logged since it was (re)started.
    pub(crate) fn log(&self) -> String {
        self.process.log()
    }

    /// How many bytes it has logged since it was (re)started.
    pub(crate) fn log_length(&self) -> usize {
        self.process.log_length()
    }

    /// Waits until the log holds `text`; false if it does not within `limit`.
    pub(crate) fn wait_log(&self, text: &str, limit: Duration) -> bool {
        self.process.wait_log(limit, |log| log.contains(text))
    }

    /// The state file as it is on disk now.
    pub(crate) fn state(&self) -> Value {
        let text = std::fs::read_to_string(self.state_path()).expect("a state file");
        serde_json::from_str(&text).expect("a state file of JSON")
    }

    /// What `/models/status` tells of the pool, without the figures that change by themselves: the
    /// process's own, and the seconds that are left of a cooldown.
    pub(crate) fn pool(&self) -> Value {
        let mut status = get(self, "/models/status").json();
        status.as_object_mut().expect("a status page").remove("process").expect("a process");
        for model in status["models"].as_array_mut().expect("the slots") {
            model.as_object_mut().expect("a slot").remove("secondsLeft").expect("a rest or null");
        }
        status
    }

    /// Where the state file is.
    pub(crate) fn state_path(&self) -> PathBuf {
        self.folder().join(STATE_FILE)
    }

    /// Its working folder.
    pub(crate) fn folder(&self) -> PathBuf {
        self.builder.folder()
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Asks it to stop (SIGTERM).
    pub(crate) fn terminate(&self) {
        self.signal(Signal::SIGTERM);
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Stops it in mid-air (SIGSTOP), and waits until its last thread stands still.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
        self.process.wait_frozen(LIMIT);
    }

    /// Lets it go on (SIGCONT).
    pub(crate) fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Waits until it has exited; none if it has not within `limit`.
    pub(crate) fn wait_exit(&mut self, limit: Duration) -> Option<ExitStatus> {
        self.process.wait_exit(limit)
    }

    /// Stops it in peace and waits for its end.
    pub(crate) fn stop(&mut self) {
        self.terminate();
        let status = self.wait_exit(LIMIT);
        assert!(status.is_some_and(|status| status.success()), "stopped with {status:?}");
    }

    /// Stops it, so that all it knows is in the state file, and reads that.
    pub(crate) fn final_state(mut self) -> Value {
        self.stop();
        self.state()
    }

    /// Kills it as a power cut would (SIGKILL) and waits for its end.
    pub(crate) fn kill9(&mut self) {
        self.process.kill();
    }

    /// Sets a variable for the next [`Proxy::restart`].
    pub(crate) fn set_env(&mut self, name: &str, value: &str) {
        self.builder.env.insert(name.to_owned(), value.to_owned());
    }

    /// Starts it again in the same folder; one that still runs is asked to stop first.
    pub(crate) fn restart(&mut self) {
        if !self.process.has_exited() {
            self.terminate();
            assert!(self.wait_exit(LIMIT).is_some(), "the proxy did not stop in time");
        }
        self.process = Process::start(self.builder.command());
        self.await_listening();
    }

    fn await_listening(&mut self) {
        self.process.wait_log(LIMIT, |log| listening(log).is_some());
        self.address = listening(&self.log()).expect("the proxy logs where it is listening");
    }

    /// Everything that helps to see why a test failed.
    fn report(&self) -> String {
        let mut lines = vec![format!("--- folder {}", self.folder().display())];
        lines.extend(self.builder.env.iter().map(|(name, value)| format!("--- {name}={value}")));
        let log = self.log();
        let surplus = log.len().saturating_sub(LONGEST_LOG);
        let shown = log.get(surplus..).unwrap_or(&log);
        lines.push(format!("--- log but for {surplus} bytes\n{shown}"));
        let state = std::fs::read_to_string(self.state_path());
        let state = state.unwrap_or_else(|error| error.to_string());
        lines.push(format!("--- state file\n{state}\n--- the stand-in was asked"));
        for (index, call) in self.builder.standin.calls().iter().enumerate() {
            let (key, model) = (call.key.as_deref(), call.model.as_deref());
            lines.push(format!(
                "{index}: {} {} key={} model={} connection={} body={} bytes{}",
                call.method,
                call.target,
                key.unwrap_or("-"),
                model.unwrap_or("-"),
                call.connection,
                call.body.len(),
                if call.closed { " closed" } else { "" }
            ));
        }
        lines.join("\n")
    }
}

impl Drop for Proxy<'_> {
    #[expect(clippy::print_stderr, reason = "the report of a failed test")]
    fn drop(&mut self) {
        self.process.kill();
        if std::thread::panicking() {
            eprintln!("{}", self.report());
        }
    }
}

/// The address of the `listening` line, once the line is complete.
fn listening(log: &str) -> Option<SocketAddr> {
    let (complete, _) = log.rsplit_once('\n')?;
    let line = complete.lines().find(|line| line.contains(" listening "))?;
    let address = line.split_once("address=")?.1.split_whitespace().next()?;
    address.trim_matches('"').parse().ok()
}

/// SHA-256 of a DashScope key, in hex, as the state file names it.
pub(crate) fn key_hash(key: &str) -> String {
    Sha256::digest(key.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a status says of a slot.
pub(crate) fn slot(status: &Value, key: &str, model: &str) -> Value {
    let label = &key_hash(key)[..12];
    let slots = status["models"].as_array().expect("slots");
    let found = slots.iter().find(|slot| slot["keyHash"] == label && slot["id"] == model);
    found.unwrap_or_else(|| panic!("no {key}/{model} in {status:#}")).clone()
}

/// What a state file says of a slot.
pub(crate) fn record(state: &Value, key: &str, model: &str) -> Value {
    let record = &state["modelState"][format!("{}:{model}", key_hash(key))];
    assert!(record.is_object(), "no record of {key}/{model} in {state:#}");
    record.clone()
}

/// The binary, to be run in a way that [`Proxy`] does not know. Cargo's own, unless `TEST_BINARY`
/// names another.
pub(crate) fn binary() -> Command {
    let named = std::env::var_os("TEST_BINARY");
    Command::new(named.unwrap_or_else(|| env!("CARGO_BIN_EXE_dashscope-proxy").into()))
}

/// Runs the binary with nothing but this environment, in an empty folder, until it exits by
/// itself.
pub(crate) fn run_to_exit(env: &[(&str, &str)], args: &[&str]) -> Output {
    let folder = Folder::new();
    let mut command = binary();
    command.env_clear().envs(env.iter().copied()).args(args).current_dir(folder.path());
    finish(command)
}

fn finish(mut command: Command) -> Output {
    let shown = format!("{command:?}");
    command.stdin(Stdio::null());
    let mut process = Process::start(command);
    let Some(status) = process.wait_exit(LIMIT) else {
        panic!("still running after {LIMIT:?}: {shown}\n{}", process.log());
    };
    let (stdout, stderr) = process.output();
    Output { status, stdout: stdout.into_bytes(), stderr: stderr.into_bytes() }
}
