//! Starts another proxy of the pool that understands the same settings: the TypeScript original.

use std::net::SocketAddr;
use std::process::Command;

use crate::Failure;
use crate::candidate::Conditions;
use crate::ours;
use crate::process::{Folder, Process, answers, free_port};
use crate::upstream::Upstream;

/// By a shell, in a new folder (so that no `.env` fills what is unset), with this environment.
pub(crate) fn start(
    line: &str,
    upstream: &Upstream,
    conditions: Conditions,
) -> Result<(Process, SocketAddr), Failure> {
    let folder = Folder::new()?;
    let address = free_port()?;
    let mut command = Command::new("sh");
    command.args(["-c", line]).envs(ours::settings(upstream, &folder, conditions.workers));
    command.env("HOST", "127.0.0.1").env("PORT", address.port().to_string());
    let (process, ()) = Process::start(command, folder, conditions.places, |_| answers(address))?;
    Ok((process, address))
}
