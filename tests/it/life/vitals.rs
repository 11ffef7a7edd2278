//! What a process holds, from /proc.

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::path::Path;

/// One look at a process.
#[derive(Clone, Debug, Default)]
pub(super) struct Vitals {
    /// Resident memory now and at its highest, in KiB.
    pub(super) resident: u64,
    pub(super) highest: u64,
    pub(super) threads: u64,
    /// Descriptors, but for those of connections to upstream.
    pub(super) descriptors: usize,
    /// Connections to upstream, pooled ones too, and those that upstream has closed.
    pub(super) upstream: usize,
    /// Processor time so far, in milliseconds.
    pub(super) busy: u64,
}

impl Vitals {
    /// Looks at the process; `upstream`: the port to which it connects.
    pub(super) fn of(pid: u32, upstream: u16) -> Self {
        let proc = format!("/proc/{pid}");
        let proc = Path::new(&proc);
        let status = fs::read_to_string(proc.join("status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_ascii_whitespace().next().unwrap().parse().unwrap()
        };
        let pooled = sockets_to(proc, upstream);
        // A descriptor may be closed between the list and the look.
        let open = fs::read_dir(proc.join("fd")).unwrap().flatten();
        let open = open.filter_map(|entry| fs::read_link(entry.path()).ok());
        let is_pooled = |target: &Path| target.to_str().is_some_and(|name| pooled.contains(name));
        let (upstream, own): (Vec<_>, Vec<_>) = open.partition(|target| is_pooled(target));
        Self {
            resident: field("VmRSS:"),
            highest: field("VmHWM:"),
            threads: field("Threads:"),
            descriptors: own.len(),
            upstream: upstream.len(),
            busy: processor_time(pid),
        }
    }
}

/// The processor time of a process in milliseconds.
pub(super) fn processor_time(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").expect("a name in brackets");
    let fields: Vec<&str> = fields.split(' ').collect();
    // utime and stime, in hundredths of a second on every Linux (USER_HZ).
    let ticks = [fields[11], fields[12]].map(|field| field.parse::<u64>().unwrap());
    ticks.iter().sum::<u64>() * 10
}

/// The sockets with this remote port, as the links in /proc/PID/fd name them.
fn sockets_to(proc: &Path, port: u16) -> HashSet<String> {
    let table = fs::read_to_string(proc.join("net/tcp")).unwrap();
    let wanted = format!(":{port:04X}");
    let rows = table.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let rows = rows.filter(|row| row.get(2).is_some_and(|remote| remote.ends_with(&wanted)));
    rows.filter_map(|row| row.get(9).map(|inode| format!("socket:[{inode}]"))).collect()
}

impl Vitals {
    pub(super) const COLUMNS: &str = "rss_kb,hwm_kb,threads,fds,upstream_fds,cpu_ms";
}

impl fmt::Display for Vitals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resident, highest, threads, descriptors, upstream, busy } = self;
        write!(f, "{resident},{highest},{threads},{descriptors},{upstream},{busy}")
    }
}
