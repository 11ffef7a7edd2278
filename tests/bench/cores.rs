//! Which cores work for whom.
//!
//! With one request at a time, where the system puts four threads decides more than what they do:
//! waking one takes two microseconds on the same core and ten times that on another, and upstream
//! alone is sometimes measured the one way and sometimes the other. So there the places are fixed.

#[cfg(target_os = "linux")]
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
#[cfg(target_os = "linux")]
use nix::unistd::Pid;

use crate::Failure;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Places {
    /// Wherever the system likes.
    #[default]
    Any,
    /// All on the same core, as on a server that has one.
    OneCore,
    /// Client and upstream on one core, and who is measured on another.
    TwoCores,
}

/// Keeps the thread that made it, and what it starts meanwhile, on one core until it is dropped.
#[derive(Debug)]
pub(crate) struct Confined {
    #[cfg(target_os = "linux")]
    before: Option<CpuSet>,
}

impl Places {
    pub(crate) const ALL: [Self; 3] = [Self::Any, Self::OneCore, Self::TwoCores];

    /// Where one request at a time is measured: at the fixed ones that this machine has.
    pub(crate) fn for_one() -> Vec<Self> {
        let fixed = [Self::OneCore, Self::TwoCores].into_iter().take(usable().len());
        let fixed: Vec<_> = fixed.collect();
        if fixed.is_empty() { vec![Self::Any] } else { fixed }
    }

    /// Behind the name of a figure.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::Any => "",
            Self::OneCore => ", one core",
            Self::TwoCores => ", two cores",
        }
    }

    /// For client and upstream.
    pub(crate) fn confine_client(self) -> Result<Confined, Failure> {
        confine(if self == Self::Any { None } else { Some(0) })
    }

    /// For who is measured.
    pub(crate) fn confine_candidate(self) -> Result<Confined, Failure> {
        confine(match self {
            Self::Any => None,
            Self::OneCore => Some(0),
            Self::TwoCores => Some(1),
        })
    }
}

#[cfg(target_os = "linux")]
const THIS_THREAD: Pid = Pid::from_raw(0);

/// The cores that this process may use; found out before anything is confined.
#[cfg(target_os = "linux")]
fn usable() -> &'static [usize] {
    static USABLE: std::sync::LazyLock<Vec<usize>> = std::sync::LazyLock::new(|| {
        let may = sched_getaffinity(Pid::this()).unwrap_or_default();
        (0..CpuSet::count()).filter(|core| may.is_set(*core) == Ok(true)).collect()
    });
    &USABLE
}

/// Confines this thread to the first, second, … of the cores that it may use.
#[cfg(target_os = "linux")]
fn confine(place: Option<usize>) -> Result<Confined, Failure> {
    let Some(core) = place.and_then(|place| usable().get(place)) else {
        return Ok(Confined { before: None });
    };
    let confine = || {
        let before = sched_getaffinity(THIS_THREAD)?;
        let mut only = CpuSet::new();
        only.set(*core)?;
        sched_setaffinity(THIS_THREAD, &only)?;
        Ok(Confined { before: Some(before) })
    };
    confine().map_err(|cause: nix::Error| format!("failed to choose a core: {cause}"))
}

#[cfg(target_os = "linux")]
impl Drop for Confined {
    fn drop(&mut self) {
        // Where this fails, so does the next one.
        let _ = self.before.map(|before| sched_setaffinity(THIS_THREAD, &before));
    }
}

#[cfg(not(target_os = "linux"))]
fn usable() -> &'static [usize] {
    &[]
}

#[cfg(not(target_os = "linux"))]
fn confine(_: Option<usize>) -> Result<Confined, Failure> {
    Ok(Confined {})
}
