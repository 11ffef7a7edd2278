//! The proxy as a process: started, watched, killed and waited for.

use std::fs;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use dashscope_proxy::clock;

use crate::target::{MODELS, PROXY_KEY, UPSTREAM_KEYS};
use crate::{Failure, LIMIT};

const BINARY: &str = env!("CARGO_BIN_EXE_dashscope-proxy");
/// How much of the log is kept for a failure's message.
const LOG_BYTES: usize = 8 * 1024;

/// A running proxy; dropping it kills it and removes its folder.
#[derive(Debug)]
pub(crate) struct Proxy {
    child: Child,
    folder: PathBuf,
    log: Arc<Mutex<Vec<u8>>>,
    address: SocketAddr,
    start_time: Duration,
}

impl Proxy {
    /// Starts the binary on a new state folder and waits until it listens.
    pub(crate) fn start(upstream: SocketAddr) -> Result<Self, Failure> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // Under the target folder: a real disk, where /tmp is often memory and fsync is free.
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("bench-{}-{count}", std::process::id()));
        fs::create_dir_all(&folder)
            .map_err(|cause| format!("failed to make `{}`: {cause}", folder.display()))?;

        let started = clock::instant();
        let spawned = Command::new(BINARY)
            .env_clear()
            .env("PROXY_API_KEY", PROXY_KEY)
            .env("DASHSCOPE_API_KEYS", UPSTREAM_KEYS.join(","))
            .env("MODEL_IDS", MODELS.join(","))
            .env("PORT", "0")
            .env("OPENAI_UPSTREAM_BASE_URL", format!("http://{upstream}/compatible-mode/v1"))
            .env("UPSTREAM_BASE_URL", format!("http://{upstream}/apps/anthropic"))
            .env("STATE_PATH", folder.join("proxy-state.json"))
            .env("RUST_LOG", "info")
            // Not the repository, whose `.env` may fill what is unset here.
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(cause) => {
                let _ = fs::remove_dir_all(&folder);
                return Err(format!("failed to start `{BINARY}`: {cause}"));
            }
        };
        let stderr = child.stderr.take();
        let log = Arc::new(Mutex::new(Vec::new()));
        // From here on `proxy` owns the child: every return kills it.
        let mut proxy = Self {
            child,
            folder,
            log: Arc::clone(&log),
            address: upstream,
            start_time: Duration::ZERO,
        };
        let (listening, heard) = mpsc::channel();
        if let Some(stderr) = stderr {
            thread::spawn(move || drain(stderr, &log, listening));
        }
        let (address, at) = heard.recv_timeout(LIMIT).map_err(|_| {
            format!("`{BINARY}` said nothing of listening; its log:\n{}", proxy.log())
        })?;
        proxy.address = address;
        proxy.start_time = at - started;
        Ok(proxy)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// From before the process was made until its `listening` line was read.
    pub(crate) fn start_millis(&self) -> f64 {
        self.start_time.as_secs_f64() * 1e3
    }

    /// The memory the process holds now; `None` where there is no /proc.
    pub(crate) fn resident_mib(&self) -> Option<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib / 1024.0)
    }

    /// The end of what it logged.
    pub(crate) fn log(&self) -> String {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&log).into_owned()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Errors mean that it has ended already, or that nothing more can be done about it.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The size of the measured binary.
pub(crate) fn binary_mib() -> Result<f64, Failure> {
    fs::metadata(BINARY)
        .map(|metadata| metadata.len() as f64 / (1024.0 * 1024.0))
        .map_err(|cause| format!("failed to look at `{BINARY}`: {cause}"))
}

/// Empties the log in large pieces, so that a line per request costs the machine little, and
/// tells once where the proxy listens. Ends, and so lets the receiver know, with the process.
fn drain(mut stderr: ChildStderr, log: &Mutex<Vec<u8>>, listening: Sender<(SocketAddr, Instant)>) {
    let mut listening = Some(listening);
    let mut piece = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = stderr.read(&mut piece) {
        let at = clock::instant();
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        log.extend_from_slice(&piece[..count]);
        if let Some(sender) = &listening
            && let Some(address) = listening_address(&log)
        {
            // A receiver that gave up has its own failure to report.
            let _ = sender.send((address, at));
            listening = None;
        }
        let surplus = log.len().saturating_sub(LOG_BYTES);
        log.drain(..surplus);
    }
}

/// The address in a complete line `… listening address=127.0.0.1:41234 …`.
fn listening_address(log: &[u8]) -> Option<SocketAddr> {
    let log = String::from_utf8_lossy(log);
    log.split_inclusive('\n').filter(|line| line.ends_with('\n')).find_map(|line| {
        let (_, fields) = line.split_once(" listening ")?;
        let address = fields.split_whitespace().find_map(|field| field.strip_prefix("address="))?;
        address.trim_matches('"').parse().ok()
    })
}
