//! Threads of tiny_http that wait for good.
//!
//! A request whose announced body no allocation could hold cannot be dropped (`refusals`), and a
//! request line of another version makes tiny_http wait for itself (`reaper`). Each takes one of its
//! threads for ever, and anybody can send such a thing. So they are counted, and long before there
//! are no threads left the process is renewed: a dead port would be worse.

use std::sync::atomic::{AtomicUsize, Ordering};

use log::{info, warn};
use nix::sys::resource::{Resource, getrlimit};

use crate::panics::Alarm;

/// The process is renewed when this share of the threads that the system grants is lost, or this share
/// of the descriptors may be (two for each, where they could not be taken back), and at this many at
/// the latest (some 30 KB each).
const SHARE: u64 = 4;
const SHARE_OF_DESCRIPTORS: u64 = 8;
const MOST: u64 = 1000;

/// The first of them that are worth a line.
const FIRST_TOLD: usize = 8;

/// How many threads are lost.
#[derive(Debug)]
pub(super) struct LostThreads {
    count: AtomicUsize,
    most: usize,
    alarm: Alarm,
}

impl LostThreads {
    /// None so far. `alarm` is told when it is time for a new process. `descriptors`: how many there
    /// may be.
    pub(super) fn new(alarm: &Alarm, descriptors: usize) -> Self {
        let threads = thread_limit().unwrap_or(u64::MAX) / SHARE;
        let most = threads.min(descriptors as u64 / SHARE_OF_DESCRIPTORS).clamp(1, MOST);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        Self { count: AtomicUsize::new(0), most, alarm: alarm.clone() }
    }

    /// One more is lost.
    pub(super) fn add(&self) {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if count >= FIRST_TOLD && count.is_power_of_two() {
            warn!(
                "threads lost={count} renew_at={}: clients send bodies of absurd lengths or another protocol",
                self.most
            );
        }
        if count == self.most {
            info!("threads lost={count}: the process is renewed");
            self.alarm.renew();
        }
    }
}

/// How many threads this process may have, as far as the system says.
fn thread_limit() -> Option<u64> {
    let user = getrlimit(Resource::RLIMIT_NPROC).ok().map(|(soft, _)| soft);
    let machine = read_number("/proc/sys/kernel/threads-max");
    [user, machine, group_limit()].into_iter().flatten().min()
}

/// The least `pids.max` of the control groups that this process is in: systemd's `TasksMax=`.
fn group_limit() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().filter_map(|line| {
        // number:controllers:path; version 2 names no controllers.
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        match controllers {
            "" => Some(format!("/sys/fs/cgroup{path}")),
            "pids" => Some(format!("/sys/fs/cgroup/pids{path}")),
            _ => None,
        }
    });
    own.flat_map(|folder| {
        let folders: Vec<_> = std::path::Path::new(&folder).ancestors().map(Into::into).collect();
        folders
            .into_iter()
            .filter_map(|folder: std::path::PathBuf| read_number(folder.join("pids.max")))
    })
    .min()
}

fn read_number(path: impl AsRef<std::path::Path>) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::panics::Event;

    #[test]
    fn the_process_is_renewed_once_when_too_many_are_lost() {
        let (events, heard) = crossbeam_channel::unbounded();
        let lost = LostThreads { most: 3, ..LostThreads::new(&Alarm::new(events), 1024) };
        lost.add();
        lost.add();
        assert!(heard.is_empty());
        (0..5).for_each(|_| lost.add());
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), [Event::Renew]);
    }
}
