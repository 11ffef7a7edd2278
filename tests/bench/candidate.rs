//! Who is compared: the upstream alone, builds of this proxy, and others beside them.

use std::path::PathBuf;

use crate::options::Options;
use crate::process::{Process, find_program};
use crate::target::{MODELS, Target, UPSTREAM_KEYS, UPSTREAM_PATH};
use crate::upstream::{Check, Upstream};
use crate::{Failure, haproxy, nginx, ours};

/// The names that have a meaning in the report.
pub(crate) const DIRECT: &str = "direct";
pub(crate) const OURS: &str = "ours";
pub(crate) const OTHER: &str = "other";
pub(crate) const NGINX: &str = "nginx";
pub(crate) const HAPROXY: &str = "haproxy";

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
    /// It runs already, and so does the upstream behind it.
    Running(Target, Upstream),
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
    /// Starts it in front of an upstream of its own, with that many workers where it has such a
    /// setting.
    pub(crate) fn start(&self, workers: Option<usize>) -> Result<Candidate, Failure> {
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
            How::Ours(binary) => {
                let (process, address) = ours::start(binary, &upstream, workers)?;
                target.address = address;
                Some(process)
            }
            How::Nginx(program) => {
                let (process, address) = nginx::start(program, &upstream)?;
                target.address = address;
                target.stream_path = nginx::STREAM_PATH.to_owned();
                target.model = MODELS[0];
                Some(process)
            }
            How::HaProxy(program) => {
                let (process, address) = haproxy::start(program, &upstream)?;
                target.address = address;
                target.model = MODELS[0];
                Some(process)
            }
        };
        Ok(Candidate { target, upstream, process })
    }
}

/// Starts all of them, lets `measure` have them, and adds to its failure what they logged.
pub(crate) fn with_all<T>(
    entrants: &[Entrant],
    workers: Option<usize>,
    measure: impl FnOnce(&[Candidate]) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let candidates: Vec<_> =
        entrants.iter().map(|entrant| entrant.start(workers)).collect::<Result<_, _>>()?;
    measure(&candidates).map_err(|failure| {
        let logs = candidates.iter().filter_map(|candidate| {
            let log = candidate.process.as_ref()?.log();
            Some(format!("\nthe end of the log of {}:\n{log}", candidate.target.name))
        });
        failure + &logs.collect::<String>()
    })
}
