//! What processes use, as the system tells it.

use std::fs;
use std::time::Duration;

#[cfg(target_os = "linux")]
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// The unit of /proc's times, on every architecture that Linux has a binary for today.
const TICK: Duration = Duration::from_millis(10);

/// Sums over the processes of a group. What they share counts in each of them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) resident_mib: f64,
    /// The most that was ever resident.
    pub(crate) peak_mib: f64,
    pub(crate) cpu: Duration,
}

/// `None` where there is no /proc, or the group has ended.
pub(crate) fn of_group(group: Pid) -> Option<Usage> {
    let mut sum: Option<Usage> = None;
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let id = entry.file_name();
        let Some(id) = id.to_str().filter(|id| id.bytes().all(|byte| byte.is_ascii_digit())) else {
            continue;
        };
        // Whatever ends meanwhile no longer counts.
        if let Some(usage) = of_member(id, group) {
            let sum = sum.get_or_insert_default();
            sum.resident_mib += usage.resident_mib;
            sum.peak_mib += usage.peak_mib;
            sum.cpu += usage.cpu;
        }
    }
    sum
}

fn of_member(id: &str, group: Pid) -> Option<Usage> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name, in brackets, may hold anything; after it the state is number 0.
    let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    if fields.get(2)?.parse() != Ok(group.as_raw()) {
        return None;
    }
    let ticks: u32 = fields.get(11)?.parse::<u32>().ok()? + fields.get(12)?.parse::<u32>().ok()?;
    let cpu = id.parse().ok().and_then(cpu_clock).unwrap_or(TICK * ticks);
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let mebibytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib / 1024.0)
    };
    Some(Usage { resident_mib: mebibytes("VmRSS:")?, peak_mib: mebibytes("VmHWM:")?, cpu })
}

/// The processor time of all of a process's threads, also of those that have ended, to the
/// nanosecond: some requests of a megabyte fit into a tick.
#[cfg(target_os = "linux")]
fn cpu_clock(id: i32) -> Option<Duration> {
    let clock = clock_getcpuclockid(Pid::from_raw(id)).ok()?;
    clock_gettime(clock).ok().map(Duration::from)
}

#[cfg(not(target_os = "linux"))]
fn cpu_clock(_: i32) -> Option<Duration> {
    None
}
