//! One process per state file: the lock beside it.

use std::fs::{self, File, Metadata, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use log::warn;
use parking_lot::Mutex;

use super::beside;
use super::identity::Identity;
use super::raw;

/// How often, and how far apart, a lock that is taken is asked for: `status` and `check` take it
/// for a moment to see whether it can be had.
const TRIES: usize = 4;
const PAUSE: Duration = Duration::from_millis(20);

/// The lock of a state file. It goes with the process, or with its value.
///
/// The file itself is locked as well once it has been written: where it is mounted as a single file,
/// two processes have two folders, and two locks beside it.
#[derive(Debug)]
pub(super) struct Lock {
    state: PathBuf,
    path: PathBuf,
    identity: Identity,
    /// `None` where no lock can be had.
    held: Mutex<Option<File>>,
    /// The state file as it was opened or made last.
    file: Mutex<Option<File>>,
}

impl Lock {
    /// Takes the lock of a state file, and the file. Where no lock can be made, that is a warning.
    ///
    /// # Errors
    /// When another process has it.
    pub(super) fn take(state: &Path, identity: Identity) -> Result<Self, String> {
        let (held, file) = (Mutex::default(), Mutex::default());
        let path = beside(state, ".lock");
        let lock = Self { state: state.to_owned(), path, identity, held, file };
        match lock.try_take() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(lock.taken()),
            Err(TryLockError::Error(error)) => lock.warn(&error),
        }
        // Looked at, not kept: a file system in use could not be unmounted.
        let file = raw::open(state, raw::options().read(true));
        match file.map(|file| try_lock(&file)) {
            Ok(Err(TryLockError::WouldBlock)) => Err(lock.taken_itself()),
            _ => Ok(lock),
        }
    }

    pub(super) fn is_held(&self) -> bool {
        self.held.lock().is_some()
    }

    /// Takes the lock where it is not held: it may not have been to be had before, or have gone
    /// with its folder, whose new one another process may have. Says whether it is news that it
    /// is held.
    ///
    /// # Errors
    /// When another process has it.
    pub(super) fn keep(&self) -> io::Result<bool> {
        let lost = {
            let mut held = self.held.lock();
            if held.as_ref().is_some_and(|file| is_at(file, &self.path)) {
                return Ok(false);
            }
            held.take().is_some()
        };
        match self.try_take() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => return Err(io::Error::other(self.taken())),
            Err(TryLockError::Error(error)) if lost => self.warn(&error),
            Err(TryLockError::Error(_)) => {}
        }
        Ok(false)
    }

    /// Takes the state file itself, as it is now. (Opened to be read: one that is open to be
    /// written would keep its file system from becoming read-only.)
    ///
    /// # Errors
    /// When another process has it. Where files cannot be locked, that is none.
    pub(super) fn hold(&self) -> io::Result<()> {
        let mut held = self.file.lock();
        if held.as_ref().is_some_and(|file| is_at(file, &self.state)) {
            return Ok(());
        }
        let Ok(file) = raw::open(&self.state, raw::options().read(true)) else { return Ok(()) };
        if let Err(TryLockError::WouldBlock) = try_lock(&file) {
            return Err(io::Error::other(self.taken_itself()));
        }
        *held = Some(file);
        Ok(())
    }

    fn try_take(&self) -> Result<(), TryLockError> {
        let file = self.open_or_make().map_err(TryLockError::Error)?;
        try_lock(&file)?;
        *self.held.lock() = Some(file);
        Ok(())
    }

    /// Only what has just been made is given away: what is there may be somebody else's.
    fn open_or_make(&self) -> io::Result<File> {
        match raw::options().append(true).create_new(true).open(&self.path) {
            Ok(file) => {
                self.identity.give(&file);
                Ok(file)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                raw::open(&self.path, raw::options().append(true))
            }
            Err(error) => Err(error),
        }
    }

    fn taken(&self) -> String {
        let (state, lock) = (&self.state, &self.path);
        format!(
            "another process uses the state file `{}` (its lock `{}` is taken); give each proxy a STATE_PATH of its own",
            state.display(),
            lock.display()
        )
    }

    fn taken_itself(&self) -> String {
        format!(
            "another process uses the state file `{}` (it is locked itself: is it mounted elsewhere too?); give each proxy a STATE_PATH of its own",
            self.state.display()
        )
    }

    fn warn(&self, error: &io::Error) {
        warn!(
            "state lock={} error=\"{error}\"; nothing keeps a second proxy off this file",
            self.path.display()
        );
    }
}

/// Whether another process has a state file or its lock. Nothing is made; what cannot be opened
/// counts as free.
pub(super) fn is_taken(state: &Path) -> bool {
    [state, &beside(state, ".lock")].into_iter().any(|path| {
        let file = raw::open(path, raw::options().read(true));
        file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    })
}

fn try_lock(file: &File) -> Result<(), TryLockError> {
    for _ in 1..TRIES {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => thread::park_timeout(PAUSE),
            outcome => return outcome,
        }
    }
    file.try_lock()
}

/// Whether an open file is the one that a path leads to.
fn is_at(file: &File, path: &Path) -> bool {
    let open = file.metadata().map(identity);
    open.is_ok_and(|open| fs::metadata(path).map(identity).is_ok_and(|named| named == open))
}

fn identity(it: Metadata) -> (u64, u64) {
    (it.dev(), it.ino())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::file::tests::Folder;

    const NOBODY_ELSE: Identity = Identity::Own { heir: None };

    fn is_refused(outcome: Result<Lock, String>) -> bool {
        outcome.is_err_and(|refusal| refusal.contains("another process uses the state file `/"))
    }

    #[test]
    fn a_second_process_is_refused() {
        let folder = Folder::new();
        let path = folder.path().join("s.json");
        let first = Lock::take(&path, NOBODY_ELSE).unwrap();
        assert!(first.is_held() && is_refused(Lock::take(&path, NOBODY_ELSE)));
        drop(first);
        Lock::take(&path, NOBODY_ELSE).unwrap();
    }

    #[test]
    fn one_file_under_two_names_is_one_processes() {
        let folder = Folder::new();
        let path = folder.path().join("s.json");
        fs::write(&path, "{}").unwrap();
        // As a file that is mounted over another has a second folder, and a second lock.
        let elsewhere = folder.path().join("mounted.json");
        fs::hard_link(&path, &elsewhere).unwrap();
        let first = Lock::take(&path, NOBODY_ELSE).unwrap();
        for _ in 0..2 {
            first.hold().unwrap();
        }
        assert!(is_taken(&path) && is_taken(&elsewhere));
        assert!(is_refused(Lock::take(&elsewhere, NOBODY_ELSE)));
        drop(first);
        assert!(!is_taken(&path) && !is_taken(&elsewhere));
        Lock::take(&elsewhere, NOBODY_ELSE).unwrap();
    }

    #[test]
    fn looking_at_a_lock_makes_none_and_keeps_nobody_from_it() {
        let folder = Folder::new();
        let path = folder.path().join("s.json");
        assert!(!is_taken(&path) && fs::read_dir(folder.path()).unwrap().next().is_none());
        let lock = Lock::take(&path, NOBODY_ELSE).unwrap();
        assert!(is_taken(&path));
        drop(lock);
        assert!(!is_taken(&path));
        Lock::take(&path, NOBODY_ELSE).unwrap();
    }

    #[test]
    fn a_lock_that_was_not_to_be_had_at_first_is_taken_later() {
        let folder = Folder::new();
        let path = folder.path().join("s.json");
        fs::create_dir(folder.path().join("s.json.lock")).unwrap();
        let lock = Lock::take(&path, NOBODY_ELSE).unwrap();
        assert!(!lock.is_held() && !lock.keep().unwrap());
        fs::remove_dir(folder.path().join("s.json.lock")).unwrap();
        assert!(lock.keep().unwrap() && lock.is_held());
        assert!(!lock.keep().unwrap(), "it is held already");
        assert!(is_refused(Lock::take(&path, NOBODY_ELSE)));
    }

    #[test]
    fn a_lock_whose_file_has_gone_is_taken_again_unless_another_has_it() {
        let folder = Folder::new();
        let path = folder.path().join("s.json");
        let first = Lock::take(&path, NOBODY_ELSE).unwrap();
        fs::remove_file(folder.path().join("s.json.lock")).unwrap();
        assert!(first.keep().unwrap() && is_refused(Lock::take(&path, NOBODY_ELSE)));
        fs::remove_file(folder.path().join("s.json.lock")).unwrap();
        let second = Lock::take(&path, NOBODY_ELSE).unwrap();
        assert!(first.keep().unwrap_err().to_string().contains("another process"));
        drop(second);
        assert!(first.keep().unwrap());
    }
}
