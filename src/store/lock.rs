//! One process per state file: the lock beside it.

use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use log::warn;
use parking_lot::Mutex;

use super::beside;
use super::file::{MODE, Owner};

/// The lock of a state file. It goes with the process, or with its value.
#[derive(Debug)]
pub(super) struct Lock {
    path: PathBuf,
    owner: Option<Owner>,
    /// `None` where no lock can be had.
    held: Mutex<Option<File>>,
}

impl Lock {
    /// Takes the lock of a state file. Where none can be made, that is a warning.
    ///
    /// # Errors
    /// When another process has it.
    pub(super) fn take(state: &Path, owner: Option<Owner>) -> Result<Self, String> {
        let lock = Self { path: beside(state, ".lock"), owner, held: Mutex::default() };
        match lock.try_take() {
            Ok(()) => Ok(lock),
            Err(TryLockError::WouldBlock) => Err(lock.taken()),
            Err(TryLockError::Error(error)) => {
                lock.warn(&error);
                Ok(lock)
            }
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

    fn try_take(&self) -> Result<(), TryLockError> {
        let made = OpenOptions::new().create(true).append(true).mode(MODE).open(&self.path);
        let file = made.map_err(TryLockError::Error)?;
        self.owner.into_iter().for_each(|owner| owner.give(&file));
        file.try_lock()?;
        *self.held.lock() = Some(file);
        Ok(())
    }

    fn taken(&self) -> String {
        let (state, lock) = (self.path.with_extension(""), &self.path);
        format!(
            "another process uses the state file `{}` (its lock `{}` is taken); give each proxy a STATE_PATH of its own",
            state.display(),
            lock.display()
        )
    }

    fn warn(&self, error: &io::Error) {
        warn!(
            "state lock={} error=\"{error}\"; nothing keeps a second proxy off this file",
            self.path.display()
        );
    }
}

/// Whether an open file is the one that a path leads to.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |it: Metadata| (it.dev(), it.ino());
    let open = file.metadata().map(identity);
    open.is_ok_and(|open| fs::metadata(path).map(identity).is_ok_and(|named| named == open))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::file::tests::Folder;

    fn is_refused(outcome: Result<Lock, String>) -> bool {
        outcome.is_err_and(|refusal| refusal.contains("another process uses the state file `/"))
    }

    #[test]
    fn a_second_process_is_refused() {
        let folder = Folder::new();
        let path = folder.path().join("s.json");
        let first = Lock::take(&path, None).unwrap();
        assert!(first.is_held() && is_refused(Lock::take(&path, None)));
        drop(first);
        Lock::take(&path, None).unwrap();
    }

    #[test]
    fn a_lock_that_was_not_to_be_had_at_first_is_taken_later() {
        let folder = Folder::new();
        let path = folder.path().join("s.json");
        fs::create_dir(folder.path().join("s.json.lock")).unwrap();
        let lock = Lock::take(&path, None).unwrap();
        assert!(!lock.is_held() && !lock.keep().unwrap());
        fs::remove_dir(folder.path().join("s.json.lock")).unwrap();
        assert!(lock.keep().unwrap() && lock.is_held());
        assert!(!lock.keep().unwrap(), "it is held already");
        assert!(is_refused(Lock::take(&path, None)));
    }

    #[test]
    fn a_lock_whose_file_has_gone_is_taken_again_unless_another_has_it() {
        let folder = Folder::new();
        let path = folder.path().join("s.json");
        let first = Lock::take(&path, None).unwrap();
        fs::remove_file(folder.path().join("s.json.lock")).unwrap();
        assert!(first.keep().unwrap() && is_refused(Lock::take(&path, None)));
        fs::remove_file(folder.path().join("s.json.lock")).unwrap();
        let second = Lock::take(&path, None).unwrap();
        assert!(first.keep().unwrap_err().to_string().contains("another process"));
        drop(second);
        assert!(first.keep().unwrap());
    }
}
