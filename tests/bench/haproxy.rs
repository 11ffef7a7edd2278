//! Starts HAProxy as a plain reverse proxy.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::Failure;
use crate::candidate::Conditions;
use crate::process::{Folder, Process, answers, free_port};
use crate::target::UPSTREAM_KEYS;
use crate::upstream::Upstream;

pub(crate) fn start(
    program: &Path,
    upstream: &Upstream,
    conditions: Conditions,
) -> Result<(Process, SocketAddr), Failure> {
    let folder = Folder::new()?;
    let address = free_port()?;
    let config = format!(
        "global
    maxconn 1024
    # Or connections would be closed instead of kept once a quarter of its descriptors is in use.
    tune.pool-low-fd-ratio 80
    tune.pool-high-fd-ratio 90
defaults
    mode http
    timeout connect 10s
    timeout client 10m
    timeout server 10m
    timeout http-keep-alive 10m
    # Or the small pieces of a stream would wait for more.
    option http-no-delay
    http-reuse always
frontend clients
    bind {address}
    http-request set-header Authorization \"Bearer {key}\"
    http-request set-path /compatible-mode%[path]
    default_backend pool
backend pool
    server upstream {upstream}
",
        key = UPSTREAM_KEYS[0],
        upstream = upstream.address(),
    );
    let config = folder.write("haproxy.cfg", &config)?;
    let mut command = Command::new(program);
    command.args(["-db", "-f"]).arg(config);
    let (process, ()) = Process::start(command, folder, conditions.places, |_| answers(address))?;
    Ok((process, address))
}
