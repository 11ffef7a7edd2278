//! The state file: one process per file, and every change on disk before anybody can rely on it.
//!
//! A thread of its own writes, so that a hung disk never holds a worker for longer than
//! two seconds. Changes that come while it writes share the next write (group commit), and under
//! load those that nobody would miss wait for a shared one a little longer.
//! Nothing here takes the scheduler's lock for longer than a snapshot.

mod file;
mod identity;
mod lock;
mod raw;

use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use log::{info, warn};
use parking_lot::{Condvar, Mutex};

use crate::clock::{self, Timestamp};
use crate::error::StartupError;
use crate::policy::scheduler::Scheduler;
use crate::policy::state::StateFile;
use file::Place;

/// How long a worker waits for the disk. The write itself goes on.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// How often a change is written that nobody would miss, once [`CREDIT`] is used up. Stamps of time
/// and tallies change with every answer, and a write flushes the disk twice.
const PACE: Duration = Duration::from_millis(100);

/// How many writes may come at once after a pause.
const CREDIT: u32 = 20;

/// How often a failed write is tried again while nothing changes.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The state file, held for the life of the process.
#[derive(Debug)]
pub(crate) struct Store {
    place: Place,
    progress: Mutex<Progress>,
    /// Writes that reached the disk, and that did not.
    writes: AtomicU64,
    failures: AtomicU64,
    /// Wakes the writer.
    wanted: Condvar,
    /// Wakes those who wait for a write.
    written: Condvar,
}

#[derive(Debug, Default)]
struct Progress {
    /// The newest revision that somebody wants on disk.
    wanted: u64,
    /// The newest revision that may wait for its turn.
    welcome: u64,
    /// When the last write began.
    begun: Option<Instant>,
    /// Until when the writes so far count, at one each [`PACE`].
    spent: Option<Instant>,
    /// The newest revision that was tried.
    tried: u64,
    /// The newest revision that is on disk.
    written: u64,
    /// Whether the last try failed.
    failing: bool,
    /// Somebody has waited in vain for the write that is under way: nobody else has to.
    hanging: bool,
}

impl Store {
    /// Takes the file for this process, reads it, and removes what earlier runs left behind.
    ///
    /// # Errors
    /// When another process has the file, or when it can neither be read nor set aside: nothing
    /// is ever overwritten unread.
    pub(crate) fn open(path: &Path, now: Timestamp) -> Result<(Self, StateFile), StartupError> {
        let place = Place::take(path, now).map_err(StartupError::State)?;
        let state = place.read(now).map_err(StartupError::State)?;
        let store = Self {
            place,
            progress: Mutex::default(),
            writes: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            wanted: Condvar::new(),
            written: Condvar::new(),
        };
        Ok((store, state))
    }

    /// Writes what the scheduler knows, here and now: for a process without a writer.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn save(&self, scheduler: &Scheduler) -> io::Result<()> {
        self.place.write(&scheduler.snapshot().to_file().to_bytes())
    }

    /// Where the file is.
    #[must_use]
    pub(crate) fn path(&self) -> &Path {
        self.place.path()
    }

    /// Whether the last write reached the disk.
    #[must_use]
    pub(crate) fn is_writable(&self) -> bool {
        let progress = self.progress.lock();
        !progress.failing && !progress.hanging
    }

    /// How many writes reached the disk, and how many did not.
    #[must_use]
    pub(crate) fn write_counts(&self) -> (u64, u64) {
        (self.writes.load(Ordering::Relaxed), self.failures.load(Ordering::Relaxed))
    }

    /// Whether this revision is on disk, or is known not to get there for now.
    #[must_use]
    pub(crate) fn has_tried(&self, revision: u64) -> bool {
        self.progress.lock().tried >= revision
    }

    /// Asks for a write and does not wait.
    pub(crate) fn request(&self, revision: u64) {
        let mut progress = self.progress.lock();
        if progress.wanted < revision {
            progress.wanted = revision;
            self.wanted.notify_one();
        }
    }

    /// Waits until `revision` is on disk, or could not be written, or two seconds are over: on a
    /// hung disk the first who waits learns it for all. Says whether it is on disk.
    pub(crate) fn wait(&self, revision: u64) -> bool {
        let deadline = clock::instant() + LONGEST_WAIT;
        let mut hangs = false;
        let is_written = {
            let mut progress = self.progress.lock();
            while progress.tried < revision && !progress.hanging {
                if self.written.wait_until(&mut progress, deadline).timed_out() {
                    hangs = progress.tried < revision && !progress.hanging;
                    progress.hanging |= hangs;
                    break;
                }
            }
            progress.written >= revision
        };
        if hangs {
            warn!("state written=pending file={}: the disk hangs", self.path().display());
        }
        is_written
    }

    /// Puts everything that has happened so far on disk; says whether it is there.
    pub(crate) fn commit(&self, scheduler: &Mutex<Scheduler>) -> bool {
        let revision = scheduler.lock().revision();
        self.request(revision);
        self.wait(revision)
    }

    /// Puts everything that has happened so far on disk; only if nobody would miss it after a
    /// crash, and many writes have just been made, it gets there [`PACE`] later.
    pub(crate) fn settle(&self, scheduler: &Mutex<Scheduler>) {
        let (revision, lasting) = {
            let scheduler = scheduler.lock();
            (scheduler.revision(), scheduler.lasting_revision())
        };
        {
            let mut progress = self.progress.lock();
            if progress.written >= lasting && !progress.has_credit() {
                if progress.welcome <= progress.tried {
                    self.wanted.notify_one();
                }
                progress.welcome = progress.welcome.max(revision);
                return;
            }
        }
        self.request(revision);
        self.wait(revision);
    }

    /// As [`Store::commit`] for the last time: what could not be written before is tried once more.
    pub(crate) fn flush(&self, scheduler: &Mutex<Scheduler>) -> bool {
        {
            let mut progress = self.progress.lock();
            progress.tried = progress.written;
            self.wanted.notify_one();
        }
        self.commit(scheduler)
    }

    /// The writer's life: it writes whatever was asked for.
    pub(crate) fn run(&self, scheduler: &Mutex<Scheduler>) {
        loop {
            self.await_work();
            let snapshot = scheduler.lock().snapshot();
            let outcome = self.place.write(&snapshot.to_file().to_bytes());
            self.record(snapshot.revision, &outcome);
        }
    }

    /// Blocks until there is something to write, or a failed write is to be tried again.
    fn await_work(&self) {
        let mut progress = self.progress.lock();
        while progress.wanted <= progress.tried {
            match progress.due() {
                None => self.wanted.wait(&mut progress),
                Some(at) if self.wanted.wait_until(&mut progress, at).timed_out() => break,
                Some(_) => {}
            }
        }
        progress.spend(clock::instant());
    }

    fn record(&self, revision: u64, outcome: &io::Result<()>) {
        let count = if outcome.is_ok() { &self.writes } else { &self.failures };
        count.fetch_add(1, Ordering::Relaxed);
        let (failed_before, hung) = {
            let mut progress = self.progress.lock();
            progress.tried = progress.tried.max(revision);
            if outcome.is_ok() {
                progress.written = progress.written.max(revision);
            }
            self.written.notify_all();
            let hung = mem::replace(&mut progress.hanging, false);
            (mem::replace(&mut progress.failing, outcome.is_err()), hung)
        };
        match outcome {
            Ok(()) if failed_before || hung => {
                info!("state written=true file={}", self.path().display())
            }
            Err(error) if !failed_before => warn!(
                "state written=false file={} error=\"{error}\"; cooldowns are kept in memory and written as soon as they can be",
                self.path().display()
            ),
            _ => {}
        }
    }
}

impl Progress {
    /// When the next write is due that nobody waits for.
    fn due(&self) -> Option<Instant> {
        match () {
            () if self.failing => self.begun.map(|begun| begun + RETRY_AFTER),
            () if self.welcome > self.tried => self.spent,
            () => None,
        }
    }

    fn has_credit(&self) -> bool {
        self.spent.is_none_or(|spent| spent <= clock::instant())
    }

    /// A write begins.
    fn spend(&mut self, now: Instant) {
        let least = now.checked_sub(PACE * CREDIT);
        self.spent = self.spent.max(least).or(Some(now)).map(|spent| spent + PACE);
        self.begun = Some(now);
    }
}

/// Reads a file that may be another process's, and changes nothing; one that is missing is an
/// empty state.
///
/// # Errors
/// When it cannot be read, or does not fit.
pub(crate) fn peek(path: &Path) -> Result<StateFile, StartupError> {
    let misfit = |misfit| {
        let shown = path.display();
        StartupError::State(format!("the state file `{shown}` does not fit: {misfit}"))
    };
    let content = file::peek(path).map_err(StartupError::State)?;
    content.map_or(Ok(StateFile::default()), |content| StateFile::parse(&content).map_err(misfit))
}

/// Tries whether a state file could be written at `path`: whether its folder, or the folder in
/// which that would be made, takes a file.
///
/// # Errors
/// When it does not.
pub(crate) fn try_folder(path: &Path) -> io::Result<()> {
    file::try_folder(path)
}

/// Whether another process has the file. Nothing is made or kept.
#[must_use]
pub(crate) fn is_taken(path: &Path) -> bool {
    file::is_taken(path)
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// The name of a file beside `path`, with something appended.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::Moment;
    use crate::policy::pool::Pool;
    use crate::policy::route::Protocol;
    use crate::policy::scheduler::{Ask, Next, Pick, Tried, Wanted};
    use crate::store::file::tests::Folder;

    fn scheduler(state: StateFile) -> Arc<Mutex<Scheduler>> {
        let pool = Arc::new(Pool::new(vec!["aa".into()], vec!["m1".into(), "m2".into()]));
        let cooldown = Duration::from_secs(60);
        Arc::new(Mutex::new(Scheduler::new(pool, cooldown, state, Timestamp(1_000))))
    }

    /// A store with its writer, and a scheduler.
    fn started(path: &Path) -> (Arc<Store>, Arc<Mutex<Scheduler>>) {
        let (store, state) = Store::open(path, Timestamp(0)).unwrap();
        let (store, scheduler) = (Arc::new(store), scheduler(state));
        let (writer, changed) = (Arc::clone(&store), Arc::clone(&scheduler));
        std::thread::spawn(move || writer.run(&changed));
        (store, scheduler)
    }

    /// Puts a file where the folder was: nothing can be written there, not even by root.
    fn block(path: &Path) {
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path.parent().unwrap(), "in the way").unwrap();
    }

    /// The file holds what the scheduler knows.
    fn assert_holds(path: &Path, scheduler: &Mutex<Scheduler>) {
        let written = StateFile::parse(&std::fs::read(path).unwrap()).unwrap();
        assert_eq!(written, scheduler.lock().snapshot().to_file());
    }

    fn exhaust(scheduler: &Mutex<Scheduler>) {
        let pick = take(scheduler);
        scheduler.lock().report_exhausted(&pick, "used up", Timestamp(2_000));
    }

    fn take(scheduler: &Mutex<Scheduler>) -> Pick {
        let (wanted, base) = (Wanted::Pool, Protocol::OpenAi);
        let tried = &Tried::default();
        let (path, needs) = ("/chat/completions", None);
        let ask =
            Ask { tried, wanted, key: None, first: None, base, path, needs, has_answer: false };
        let moment = Moment { calendar: Timestamp(2_000), monotonic: clock::instant() };
        match scheduler.lock().next_slot(&ask, moment) {
            Next::Slot(pick) => pick,
            other => panic!("no slot: {other:?}"),
        }
    }

    #[test]
    fn a_committed_change_is_in_the_file() {
        let folder = Folder::new();
        let path = folder.path().join("deep/state.json");
        let (store, scheduler) = started(&path);
        exhaust(&scheduler);
        store.commit(&scheduler);
        assert_holds(&path, &scheduler);
    }

    #[test]
    fn parallel_changes_are_all_on_disk_when_their_commit_returns() {
        let folder = Folder::new();
        let path = folder.path().join("state.json");
        let (store, scheduler) = started(&path);
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let pick = take(&scheduler);
                        scheduler.lock().report_success(&pick, Protocol::OpenAi, Timestamp(2_000));
                        let revision = scheduler.lock().revision();
                        store.commit(&scheduler);
                        assert!(store.progress.lock().tried >= revision);
                        let content = std::fs::read(&path).unwrap();
                        StateFile::parse(&content).unwrap();
                    }
                });
            }
        });
    }

    #[test]
    fn a_stamp_soon_after_a_write_waits_for_the_next_and_a_cooldown_does_not() {
        let folder = Folder::new();
        let path = folder.path().join("state.json");
        let (store, scheduler) = started(&path);
        store.commit(&scheduler);
        let (first, pick) = (store.write_counts().0, take(&scheduler));
        for _ in 0..100 {
            scheduler.lock().report_success(&pick, Protocol::OpenAi, Timestamp(2_000));
            store.settle(&scheduler);
        }
        assert!(store.write_counts().0 - first < 50, "they share writes");
        exhaust(&scheduler);
        let cooled = scheduler.lock().revision();
        store.settle(&scheduler);
        assert!(store.progress.lock().written >= cooled);
        scheduler.lock().report_success(&pick, Protocol::OpenAi, Timestamp(2_000));
        store.settle(&scheduler);
        // Nobody asks again, and it gets there.
        let stamped = scheduler.lock().revision();
        let deadline = clock::instant() + LONGEST_WAIT * 10;
        let mut progress = store.progress.lock();
        while progress.written < stamped {
            assert!(!store.written.wait_until(&mut progress, deadline).timed_out());
        }
    }

    #[test]
    fn on_a_hung_disk_one_waits_and_nobody_after_it() {
        let folder = Folder::new();
        let path = folder.path().join("state.json");
        let (store, state) = Store::open(&path, Timestamp(0)).unwrap();
        // No writer: whatever is asked for stays pending.
        let scheduler = scheduler(state);
        assert!(store.wait(0), "there was nothing to wait for");
        assert!(!store.commit(&scheduler) && !store.is_writable());
        let started = clock::instant();
        for _ in 0..100 {
            assert!(!store.commit(&scheduler));
        }
        assert!(started.elapsed() < LONGEST_WAIT, "only the first had to wait");
        store.record(scheduler.lock().revision(), &Ok(()));
        assert!(store.commit(&scheduler) && store.is_writable());
    }

    #[test]
    fn the_last_write_is_tried_although_the_one_before_it_failed() {
        let folder = Folder::new();
        let path = folder.path().join("inner/state.json");
        let (store, scheduler) = started(&path);
        block(&path);
        exhaust(&scheduler);
        assert!(!store.commit(&scheduler) && !store.flush(&scheduler));
        std::fs::remove_file(path.parent().unwrap()).unwrap();
        assert!(!store.commit(&scheduler), "nothing new, and not yet due again");
        assert!(store.flush(&scheduler));
        assert_holds(&path, &scheduler);
    }

    #[test]
    fn a_folder_that_vanished_is_made_again() {
        let folder = Folder::new();
        let path = folder.path().join("inner/state.json");
        let (store, scheduler) = started(&path);
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
        exhaust(&scheduler);
        store.commit(&scheduler);
        assert!(store.is_writable() && path.exists());
    }

    #[test]
    fn a_failed_write_fails_no_request_and_is_made_up_for() {
        let folder = Folder::new();
        let path = folder.path().join("inner/state.json");
        let (store, scheduler) = started(&path);
        block(&path);
        exhaust(&scheduler);
        store.commit(&scheduler);
        assert!(!store.is_writable());
        std::fs::remove_file(path.parent().unwrap()).unwrap();
        exhaust(&scheduler);
        store.commit(&scheduler);
        assert!(store.is_writable());
        assert_holds(&path, &scheduler);
    }
}
