//! Who is compared: the upstream alone, builds of this proxy, and others beside them.

use std::path::PathBuf;

use crate::cores::Places;
use crate::options::Options;
use crate::process::{Process, find_program};
use crate::stats::micros;
use crate::target::{MODELS, Target, UPSTREAM_KEYS, UPSTREAM_PATH};
use crate::upstream::{Check, Upstream};
use crate::{Failure, haproxy, nginx, original, ours};

/// The names that have a meaning in the report.
pub(crate) const DIRECT: &str = "direct";
pub(crate) const OURS: &str = "ours";
pub(crate) const OTHER: &str = "other";
pub(crate) const NGINX: &str = "nginx";
pub(crate) const HAPROXY: &str = "haproxy";
pub(crate) const ORIGINAL: &str = "original";

/// Someone who can be started, once for each measurement: nothing that one of them leaves behind
/// (connections, threads, memory) disturbs the next.
#[derive(Debug)]
pub(crate) struct Entrant {
    pub(crate) name: String,
    pub(crate) how: How,
}

#[derive(Debug)]
pub(crate) enum How {
    /// Nobody: the client speaks to upstream.
    Direct,
    /// A build of this proxy.
    Ours(PathBuf),
    Nginx(PathBuf),
    HaProxy(PathBuf),
    /// Another proxy of the pool, by a command for the shell.
    Original(String),
    /// It runs already, and so does the upstream behind it.
    Running(Target, Upstream),
}

/// Under which all of them are measured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Conditions {
    /// How many workers they get, where they have such a setting.
    pub(crate) workers: Option<usize>,
    pub(crate) places: Places,
    /// Whether a build of this proxy does without what its unit tells the C library.
    pub(crate) is_bare: bool,
}

/// One that runs.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) target: Target,
    pub(crate) upstream: Upstream,
    /// None of our own where nobody stands between, or someone else started it.
    pub(crate) process: Option<Process>,
}

/// Everyone who is to be compared and can be, the direct one first.
pub(crate) fn entrants(options: &Options) -> Result<Vec<Entrant>, Failure> {
    let mut entrants = vec![
        Entrant { name: DIRECT.to_owned(), how: How::Direct },
        Entrant { name: OURS.to_owned(), how: How::Ours(ours::BINARY.into()) },
    ];
    if let Some(binary) = &options.binary {
        entrants.push(Entrant { name: OTHER.to_owned(), how: How::Ours(binary.clone()) });
    }
    for (name, how) in
        [(NGINX, How::Nginx as fn(PathBuf) -> How), (HAPROXY, How::HaProxy as fn(PathBuf) -> How)]
    {
        match find_program(name) {
            Some(program) => entrants.push(Entrant { name: name.to_owned(), how: how(program) }),
            None => eprintln!("{name} is not installed: left out"),
        }
    }
    if let Some(line) = &options.original {
        let how = How::Original(line.clone());
        entrants.push(Entrant { name: ORIGINAL.to_owned(), how });
    }
    if !options.beside.is_empty() {
        // One for all of them: they were started with its port.
        let upstream = Upstream::start(options.upstream_port, Check::Nothing)?;
        for (name, url) in &options.beside {
            let target = Target::running(name, url)?;
            let how = How::Running(target, upstream.clone());
            entrants.push(Entrant { name: name.clone(), how });
        }
    }
    if let Some(chosen) = &options.targets {
        for name in chosen {
            if !entrants.iter().any(|entrant| entrant.name == *name) {
                return Err(format!("there is no target `{name}`"));
            }
        }
        entrants.retain(|entrant| entrant.name == DIRECT || chosen.contains(&entrant.name));
    }
    Ok(entrants)
}

impl Entrant {
    /// Whether there is anything to start.
    pub(crate) fn starts(&self) -> bool {
        !matches!(self.how, How::Direct | How::Running(..))
    }

    /// The size of a build of this proxy.
    pub(crate) fn size_mib(&self) -> Result<f64, Failure> {
        let How::Ours(binary) = &self.how else { return Ok(f64::NAN) };
        std::fs::metadata(binary)
            .map(|metadata| metadata.len() as f64 / f64::from(1 << 20))
            .map_err(|cause| format!("failed to look at `{}`: {cause}", binary.display()))
    }

    /// Starts it in front of an upstream of its own.
    pub(crate) fn start(&self, conditions: Conditions) -> Result<Candidate, Failure> {
        if let How::Running(target, upstream) = &self.how {
            let (target, upstream) = (target.clone(), upstream.clone());
            return Ok(Candidate { target, upstream, process: None });
        }
        let upstream = Upstream::start(0, Check::KeyAndModel)?;
        let mut target = Target::pool(&self.name, upstream.address());
        let process = match &self.how {
            How::Direct | How::Running(..) => {
                target.path = UPSTREAM_PATH.to_owned();
                target.stream_path = UPSTREAM_PATH.to_owned();
                target.key = UPSTREAM_KEYS[0];
                target.model = MODELS[0];
                None
            }
            How::Original(line) => {
                let (process, address) = original::start(line, &upstream, conditions)?;
                target.address = address;
                Some(process)
            }
            How::Ours(binary) => {
                let (process, address) = ours::start(binary, &upstream, conditions)?;
                target.address = address;
                Some(process)
            }
            How::Nginx(program) => {
                let (process, address) = nginx::start(program, &upstream, conditions)?;
                target.address = address;
                target.stream_path = nginx::STREAM_PATH.to_owned();
                target.model = MODELS[0];
                Some(process)
            }
            How::HaProxy(program) => {
                let (process, address) = haproxy::start(program, &upstream, conditions)?;
                target.address = address;
                target.model = MODELS[0];
                Some(process)
            }
        };
        Ok(Candidate { target, upstream, process })
    }
}

impl Candidate {
    /// Mebibytes: resident, and the most that ever were. Not a number where nobody tells.
    pub(crate) fn memory(&self) -> (f64, f64) {
        let usage = self.process.as_ref().and_then(Process::usage);
        usage.map_or((f64::NAN, f64::NAN), |usage| (usage.resident_mib, usage.peak_mib))
    }

    /// The processor time it has used so far. Not a number where nobody tells.
    pub(crate) fn cpu_micros(&self) -> f64 {
        let usage = self.process.as_ref().and_then(Process::usage);
        usage.map_or(f64::NAN, |usage| micros(usage.cpu))
    }
}

/// Its name in the report.
impl AsRef<str> for Entrant {
    fn as_ref(&self) -> &str {
        &self.name
    }
}

/// Its name in the report.
impl AsRef<str> for Candidate {
    fn as_ref(&self) -> &str {
        &self.target.name
    }
}

/// Starts all of them, lets `measure` have them, and adds to its failure what they logged.
pub(crate) fn with_all<'a, T>(
    entrants: impl IntoIterator<Item = &'a Entrant>,
    conditions: Conditions,
    measure: impl FnOnce(&[Candidate]) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let _confined = conditions.places.confine_client()?;
    let started = entrants.into_iter().map(|entrant| entrant.start(conditions));
    let candidates = started.collect::<Result<Vec<_>, _>>()?;
    measure(&candidates).map_err(|failure| {
        let logs = candidates.iter().filter_map(|candidate| {
            let log = candidate.process.as_ref()?.log();
            Some(format!("\nthe end of the log of {}:\n{log}", candidate.target.name))
        });
        failure + &logs.collect::<String>()
    })
}
