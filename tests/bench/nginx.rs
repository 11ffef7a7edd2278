//! Starts nginx as a plain reverse proxy: its defaults, but for what would hold it back here.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use nix::unistd::geteuid;

use crate::Failure;
use crate::candidate::Conditions;
use crate::process::{Folder, Process, answers, free_port};
use crate::target::UPSTREAM_KEYS;
use crate::upstream::Upstream;

/// Streams have a location of their own: what is right for them (no buffering) is slow for
/// large answers.
pub(crate) const STREAM_PATH: &str = "/streams/v1/chat/completions";

pub(crate) fn start(
    program: &Path,
    upstream: &Upstream,
    conditions: Conditions,
) -> Result<(Process, SocketAddr), Failure> {
    let folder = Folder::new()?;
    let address = free_port()?;
    let at = folder.path().display();
    let config = format!(
        "{user}
daemon off;
worker_processes auto;
pid {at}/pid;
error_log stderr;
events {{ worker_connections 2048; }}
http {{
    access_log off;
    client_body_temp_path {at}/body;
    proxy_temp_path {at}/proxy;
    fastcgi_temp_path {at}/fastcgi;
    uwsgi_temp_path {at}/uwsgi;
    scgi_temp_path {at}/scgi;
    tcp_nodelay on;
    # By default a connection ends after 1000 requests, on either side.
    keepalive_requests 1000000000;
    upstream pool {{
        server {upstream};
        keepalive 512;
        keepalive_requests 1000000000;
    }}
    server {{
        listen {address} backlog=1024;
        client_max_body_size 64m;
        # Or a large body would go to the disk on its way.
        client_body_buffer_size 16m;
        proxy_http_version 1.1;
        proxy_set_header Connection \"\";
        proxy_set_header Authorization \"Bearer {key}\";
        proxy_max_temp_file_size 0;
        location /v1/ {{ proxy_pass http://pool/compatible-mode/v1/; }}
        location /streams/v1/ {{
            proxy_pass http://pool/compatible-mode/v1/;
            proxy_buffering off;
        }}
    }}
}}
",
        user = if geteuid().is_root() { "user root;" } else { "" },
        upstream = upstream.address(),
        key = UPSTREAM_KEYS[0],
    );
    let config = folder.write("nginx.conf", &config)?;
    let mut command = Command::new(program);
    // Until the configuration is read it would write to a log that only root may open.
    command.args(["-e", "stderr", "-c"]).arg(config);
    let (process, ()) = Process::start(command, folder, conditions.places, |_| answers(address))?;
    Ok((process, address))
}
