//! Starts a build of this proxy.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::Failure;
use crate::candidate::Conditions;
use crate::process::{Folder, Log, Process};
use crate::target::{MODELS, PROXY_KEY, UPSTREAM_KEYS};
use crate::upstream::Upstream;

/// The build that cargo made for this benchmark.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_dashscope-proxy");

/// The unit, which has one setting of the C library's allocator.
const UNIT: &str = include_str!("../../systemd/dashscope-proxy.service");
const TUNABLES: &str = "GLIBC_TUNABLES";

/// As a service: on a new state folder, with its defaults but for the number of workers.
pub(crate) fn start(
    binary: &Path,
    upstream: &Upstream,
    conditions: Conditions,
) -> Result<(Process, SocketAddr), Failure> {
    let folder = Folder::new()?;
    let mut command = Command::new(binary);
    command.env_clear().envs(settings(upstream, &folder, conditions.workers)).env("PORT", "0");
    if !conditions.is_bare {
        let named = format!("Environment={TUNABLES}=");
        let lines = UNIT.lines();
        command.envs(lines.filter_map(|line| Some((TUNABLES, line.strip_prefix(&named)?))));
    }
    Process::start(command, folder, conditions.places, listening_address)
}

/// What a proxy of the pool has to be told, besides its port.
pub(crate) fn settings(
    upstream: &Upstream,
    folder: &Folder,
    workers: Option<usize>,
) -> Vec<(&'static str, String)> {
    let origin = format!("http://{}", upstream.address());
    let mut settings = vec![
        ("PROXY_API_KEY", PROXY_KEY.to_owned()),
        ("DASHSCOPE_API_KEYS", UPSTREAM_KEYS.join(",")),
        ("MODEL_IDS", MODELS.join(",")),
        ("OPENAI_UPSTREAM_BASE_URL", format!("{origin}/compatible-mode/v1")),
        ("UPSTREAM_BASE_URL", format!("{origin}/apps/anthropic")),
        ("STATE_PATH", folder.path().join("proxy-state.json").display().to_string()),
        // A line per request, as it is by default.
        ("RUST_LOG", "info".to_owned()),
    ];
    settings.extend(workers.map(|workers| ("WORKERS", workers.to_string())));
    settings
}

/// The address in a complete line `… listening address=127.0.0.1:41234 …`.
fn listening_address(log: &Log) -> Option<SocketAddr> {
    let log = log.end();
    log.split_inclusive('\n').filter(|line| line.ends_with('\n')).find_map(|line| {
        let (_, fields) = line.split_once(" listening ")?;
        let address = fields.split_whitespace().find_map(|field| field.strip_prefix("address="))?;
        address.trim_matches('"').parse().ok()
    })
}
