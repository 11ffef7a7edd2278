//! The machine on which it was measured, in words.

use std::fs;
use std::path::Path;
use std::process::Command;

use dashscope_proxy::clock;
use serde_json::{Value, json};

use crate::candidate::{HAPROXY, NGINX};
use crate::process::find_program;

/// What can be found out; empty where the system does not tell.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    date: String,
    processor: String,
    cores: usize,
    memory_gib: f64,
    kernel: String,
    /// Of the folder in which candidates keep their files.
    file_system: String,
    /// `name version` of what is compared with.
    versions: Vec<String>,
}

impl Machine {
    pub(crate) fn look() -> Self {
        let kernel = read("/proc/sys/kernel/osrelease").trim().to_owned();
        Self {
            date: clock::now().to_string().split('T').next().unwrap_or_default().to_owned(),
            processor: field(&read("/proc/cpuinfo"), "model name").unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_gib: field(&read("/proc/meminfo"), "MemTotal")
                .and_then(|text| text.strip_suffix("kB")?.trim().parse().ok())
                .map_or(0.0, |kib: f64| kib / f64::from(1 << 20)),
            kernel: format!("{} {kernel}", std::env::consts::OS).trim_end().to_owned(),
            file_system: file_system(Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap_or_default(),
            versions: [NGINX, HAPROXY].into_iter().filter_map(version).collect(),
        }
    }

    /// One sentence.
    pub(crate) fn sentence(&self) -> String {
        let mut parts = vec![
            self.date.clone(),
            format!("{} cores", self.cores),
            self.processor.clone(),
            format!("{:.0} GiB of memory", self.memory_gib),
            self.kernel.clone(),
            self.file_system.clone(),
        ];
        if self.memory_gib == 0.0 {
            parts.remove(3);
        }
        parts.extend(self.versions.iter().cloned());
        if cfg!(debug_assertions) {
            parts.push("DEBUG build".to_owned());
        }
        parts.retain(|part| !part.is_empty());
        parts.join(", ")
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "date": self.date, "processor": self.processor, "cores": self.cores,
            "memory_gib": self.memory_gib, "kernel": self.kernel,
            "file_system": self.file_system, "versions": self.versions,
            "debug": cfg!(debug_assertions),
        })
    }
}

/// The value in the first line `name : value`.
fn field(text: &str, name: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(value.trim_start().strip_prefix(':')?.trim().to_owned())
}

/// The type of the file system whose mount point is the longest that leads to `path`.
fn file_system(path: &Path) -> Option<String> {
    let path = fs::canonicalize(path).ok()?;
    let mounts = read("/proc/self/mounts");
    let mounts = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((Path::new(fields.next()?), fields.next()?))
    });
    mounts
        .filter(|(point, _)| path.starts_with(point))
        .max_by_key(|(point, _)| point.as_os_str().len())
        .map(|(_, kind)| kind.to_owned())
}

/// `nginx version: nginx/1.22.1`, `HAProxy version 2.6.12-1 2026/10/17`: the first word that has
/// a digit.
fn version(name: &str) -> Option<String> {
    let output = Command::new(find_program(name)?).arg("-v").output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let found = text.split_whitespace().find(|word| word.contains(|c: char| c.is_ascii_digit()))?;
    Some(format!("{name} {}", found.rsplit('/').next().unwrap_or(found)))
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
