//! One file, its temporary files and its quarantine.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};

use log::{info, warn};

use super::identity::Identity;
use super::lock::{self, Lock};
use super::{beside, folder_of, raw};
use crate::clock::Timestamp;
use crate::policy::state::StateFile;

/// The state file of this process.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    /// Where new content is written first. Every write of a process uses the same name, so that
    /// a file that could not be removed is not one of many.
    temporary: PathBuf,
    identity: Identity,
    lock: Lock,
    /// Whether the log has said that the file is written in place.
    in_place: AtomicBool,
}

impl Place {
    /// Makes the folder and takes the lock.
    pub(super) fn take(path: &Path, now: Timestamp) -> Result<Self, String> {
        let identity = Identity::for_file(path);
        let refused = |error| format!("failed to use the state file `{}`: {error}", path.display());
        let _assumed = identity.assume().map_err(refused)?;
        let path = identity.follow(path).map_err(refused)?;
        if let Err(error) = fs::create_dir_all(folder_of(&path)) {
            warn!("state folder={} error=\"{error}\"", folder_of(&path).display());
        }
        let lock = Lock::take(&path, identity)?;
        let temporary = beside(&path, &format!(".{}.{}.tmp", process::id(), now.0));
        Ok(Self { path, temporary, identity, lock, in_place: AtomicBool::new(false) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file, and removes temporary files of earlier runs. A file that does not fit is
    /// set aside; what takes its place is the copy that a torn write has left, or an empty state.
    pub(super) fn read(&self, now: Timestamp) -> Result<StateFile, String> {
        let assumed = self.identity.assume().map_err(|error| error.to_string())?;
        let content = content(&self.path, self.identity)?;
        let state = match content.map(|content| StateFile::parse(&content)) {
            None => StateFile::default(),
            Some(Ok(state)) => state,
            Some(Err(misfit)) => return self.read_instead(&misfit, now),
        };
        self.remove_stale();
        drop(assumed);
        Ok(state)
    }

    fn read_instead(&self, misfit: &str, now: Timestamp) -> Result<StateFile, String> {
        let shown = self.path.display();
        let aside = set_aside(&self.path, now).map_err(|error| {
            format!(
                "the state file `{shown}` does not fit ({misfit}) and cannot be set aside: {error}"
            )
        })?;
        let aside = aside.display();
        let Some(copy) = newest_copy(&self.path) else {
            warn!("state misfit=\"{misfit}\" kept={aside}; starting with an empty state");
            self.remove_stale();
            return Ok(StateFile::default());
        };
        let from = copy.path.display();
        warn!("state misfit=\"{misfit}\" kept={aside}; starting with its copy {from}");
        match self.install(&copy.path, &copy.content) {
            Ok(()) => self.remove_stale(),
            Err(error) => warn!("state copy={from} error=\"{error}\"; it is kept in memory"),
        }
        Ok(copy.state)
    }

    /// Replaces the content, durably: afterwards the file is whole and new, or whole and old. For
    /// a file that can only be written in place, see [`raw::write_in_place`].
    pub(super) fn write(&self, content: &[u8]) -> io::Result<()> {
        let _assumed = self.identity.assume()?;
        let folder = folder_of(&self.path);
        if !folder.is_dir() {
            fs::create_dir_all(folder)?;
        }
        if self.lock.keep()? {
            self.remove_stale();
        }
        match raw::write_new(&self.temporary, content, self.identity) {
            Ok(()) => self.install(&self.temporary, content),
            // A mounted file may be writable in a folder that is not.
            Err(error) if takes_no_file(&error) && self.path.exists() => {
                self.write_in_place(content)?;
                self.mention_in_place(&error);
                Ok(())
            }
            Err(error) => {
                let _ = fs::remove_file(&self.temporary);
                Err(error)
            }
        }
    }

    /// Puts a temporary file, which is whole and on disk, in the place of the state file.
    fn install(&self, temporary: &Path, content: &[u8]) -> io::Result<()> {
        match fs::rename(temporary, &self.path) {
            Ok(()) => {
                // Whoever mounts it from now on finds it taken.
                self.lock.hold()?;
                raw::sync_folder(&self.path)
            }
            Err(error) if cannot_be_replaced(&error) => {
                // Until the file is whole again, its copy stays: the next start may need it.
                raw::sync_folder(&self.path)?;
                self.write_in_place(content)?;
                self.mention_in_place(&error);
                let _ = fs::remove_file(temporary);
                Ok(())
            }
            Err(error) => {
                let _ = fs::remove_file(temporary);
                Err(error)
            }
        }
    }

    fn write_in_place(&self, content: &[u8]) -> io::Result<()> {
        let file = raw::open(&self.path, raw::options().write(true))?;
        if matches!(self.identity, Identity::Wary { .. }) && file.metadata()?.nlink() > 1 {
            return Err(io::Error::other("it has another name, and root does not write there"));
        }
        self.lock.hold()?;
        raw::write_in_place(&file, content)
    }

    fn mention_in_place(&self, reason: &io::Error) {
        if !self.in_place.swap(true, Ordering::Relaxed) {
            info!(
                "state in_place=true file={} reason=\"{reason}\"; mount the folder instead of the file, and let the proxy make files in it, so that the file is always replaced as a whole",
                self.path.display()
            );
        }
    }

    /// Removes `<file>.<pid>.<ms>.tmp`, ours and the original's, where the lock says that nobody
    /// writes.
    fn remove_stale(&self) {
        if !self.lock.is_held() {
            return;
        }
        for stale in temporaries(&self.path) {
            if fs::remove_file(&stale).is_ok() {
                info!("state removed={}", stale.display());
            }
        }
    }
}

/// What a write that was torn has left beside the file.
struct Copy {
    path: PathBuf,
    content: Vec<u8>,
    state: StateFile,
}

/// The newest temporary file that is whole.
fn newest_copy(path: &Path) -> Option<Copy> {
    let mut paths = temporaries(path);
    paths.sort_by_cached_key(|path| fs::metadata(path).and_then(|it| it.modified()).ok());
    paths.into_iter().rev().find_map(|path| {
        let content = raw::read(&path).ok()?;
        // Not the empty state that an empty file is elsewhere, but one that nothing has reached.
        if content.trim_ascii().is_empty() {
            return None;
        }
        let state = StateFile::parse(&content).ok()?;
        Some(Copy { path, content, state })
    })
}

/// What is in the state file at `path`, which may be another process's; `None` when there is none.
pub(super) fn peek(path: &Path) -> Result<Option<Vec<u8>>, String> {
    as_its_user(path, |path, identity| Ok(content(path, identity)))
        .unwrap_or_else(|error| Err(unreadable(path, &error)))
}

/// Whether another process has the state file at `path`.
pub(super) fn is_taken(path: &Path) -> bool {
    as_its_user(path, |path, _| Ok(lock::is_taken(path))).unwrap_or(false)
}

/// Makes and removes a file in the nearest folder that there is.
pub(super) fn try_folder(path: &Path) -> io::Result<()> {
    as_its_user(path, |path, _| {
        let folder = path.ancestors().skip(1).find(|folder| folder.exists());
        let folder = folder.filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        let trial = folder.join(format!(".dashscope-proxy.{}.check", process::id()));
        let outcome = raw::options().write(true).create_new(true).open(&trial);
        outcome.and_then(|_| fs::remove_file(&trial))
    })
}

/// Touches a state file as who is to touch it, behind its links.
fn as_its_user<T>(
    path: &Path,
    act: impl FnOnce(&Path, Identity) -> io::Result<T>,
) -> io::Result<T> {
    let identity = Identity::for_file(path);
    let _assumed = identity.assume()?;
    act(&identity.follow(path)?, identity)
}

fn content(path: &Path, identity: Identity) -> Result<Option<Vec<u8>>, String> {
    match raw::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(path, &error) + &identity.to_string()),
    }
}

fn unreadable(path: &Path, error: &io::Error) -> String {
    format!("failed to read the state file `{}`: {error}", path.display())
}

/// The temporary files beside a state file.
fn temporaries(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().and_then(|name| name.to_str());
    let (Some(name), Ok(entries)) = (name, fs::read_dir(folder_of(path))) else {
        return Vec::new();
    };
    let is_one = |entry: &fs::DirEntry| {
        entry.file_name().to_str().is_some_and(|other| is_temporary(other, name))
    };
    entries.flatten().filter(is_one).map(|entry| entry.path()).collect()
}

fn is_temporary(name: &str, of: &str) -> bool {
    let middle = name.strip_prefix(of).and_then(|rest| rest.strip_prefix('.'));
    let numbers = middle.and_then(|rest| rest.strip_suffix(".tmp"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    numbers
        .and_then(|text| text.split_once('.'))
        .is_some_and(|(pid, millis)| is_number(pid) && is_number(millis))
}

/// Moves a file that does not fit out of the way, or copies it where it cannot be moved.
fn set_aside(path: &Path, now: Timestamp) -> io::Result<PathBuf> {
    let stamp = format!(".bak.{}", now.file_stamp());
    let mut aside = beside(path, &stamp);
    let mut count = 1;
    // Links that lead nowhere count.
    while fs::symlink_metadata(&aside).is_ok() {
        count += 1;
        aside = beside(path, &format!("{stamp}-{count}"));
    }
    if fs::rename(path, &aside).is_err() {
        let identity = Identity::Own { heir: None };
        raw::write_new(&aside, &raw::read(path)?, identity).inspect_err(|_| {
            let _ = fs::remove_file(&aside);
        })?;
    }
    Ok(aside)
}

/// Whether a file is there to stay: a mounted one, or another user's in a sticky folder.
fn cannot_be_replaced(error: &io::Error) -> bool {
    use io::ErrorKind::{CrossesDevices, PermissionDenied, ResourceBusy};
    matches!(error.kind(), ResourceBusy | CrossesDevices | PermissionDenied)
}

/// Whether no file can be made in a folder, whatever becomes of the files that are in it.
fn takes_no_file(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied)
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::{Duration, UNIX_EPOCH};

    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::policy::state::RuntimeRecord;
    use crate::store::raw::MODE;

    /// A temporary folder that goes with its owner.
    pub(in crate::store) struct Folder(PathBuf);

    impl Folder {
        pub(in crate::store) fn new() -> Self {
            static COUNT: AtomicU64 = AtomicU64::new(0);
            let name = format!(
                "dashscope-proxy-{}-{}",
                process::id(),
                COUNT.fetch_add(1, Ordering::Relaxed)
            );
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        pub(in crate::store) fn path(&self) -> &Path {
            &self.0
        }

        fn names(&self) -> Vec<String> {
            let mut names: Vec<String> = fs::read_dir(&self.0)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_written_file_is_whole_private_and_leaves_nothing_beside_it() {
        let folder = Folder::new();
        let place = Place::take(&folder.path().join("s.json"), Timestamp(1)).unwrap();
        for content in ["{\"long\": \"content\"}\n", "{}\n"] {
            place.write(content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(place.path()).unwrap(), content);
        }
        let mode = fs::metadata(place.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, MODE);
        assert_eq!(folder.names(), ["s.json", "s.json.lock"]);
    }

    #[test]
    fn temporary_files_of_earlier_runs_are_removed_and_nothing_else() {
        let folder = Folder::new();
        let keep = ["other.json.1.2.tmp", "s.json.1.tmp", "s.json.a.2.tmp", "s.json.bak.x"];
        for name in keep.iter().chain(&["s.json.123.1700000000000.tmp"]) {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        let place = Place::take(&folder.path().join("s.json"), Timestamp(1)).unwrap();
        place.read(Timestamp(1)).unwrap();
        let mut left = folder.names();
        left.retain(|name| name != "s.json.lock");
        assert_eq!(left, keep);
    }

    #[test]
    fn what_does_not_fit_is_set_aside_and_never_overwritten() {
        let folder = Folder::new();
        let place = Place::take(&folder.path().join("s.json"), Timestamp(1)).unwrap();
        let time = Timestamp(1_700_000_000_123);
        for content in ["not json", "\0\0\0"] {
            fs::write(place.path(), content).unwrap();
            assert_eq!(place.read(time).unwrap(), StateFile::default());
        }
        let first = folder.path().join("s.json.bak.2023-11-14T22-13-20-123Z");
        assert_eq!(fs::read_to_string(&first).unwrap(), "not json");
        let second = beside(&first, "-2");
        assert_eq!(fs::read_to_string(second).unwrap(), "\0\0\0");
        assert!(!place.path().exists());
    }

    #[test]
    fn a_missing_or_empty_file_is_an_empty_state() {
        let folder = Folder::new();
        let place = Place::take(&folder.path().join("s.json"), Timestamp(1)).unwrap();
        assert_eq!(place.read(Timestamp(0)).unwrap(), StateFile::default());
        fs::write(place.path(), "").unwrap();
        assert_eq!(place.read(Timestamp(0)).unwrap(), StateFile::default());
        assert_eq!(folder.names(), ["s.json", "s.json.lock"]);
    }

    #[test]
    fn what_cannot_be_read_stops_the_start() {
        let folder = Folder::new();
        fs::create_dir(folder.path().join("s.json")).unwrap();
        let place = Place::take(&folder.path().join("s.json"), Timestamp(1)).unwrap();
        assert!(place.read(Timestamp(0)).unwrap_err().contains("failed to read"));
    }

    #[test]
    fn a_link_is_written_through_even_to_a_file_that_is_not_there() {
        let folder = Folder::new();
        let (real, link) = (folder.path().join("real.json"), folder.path().join("link.json"));
        std::os::unix::fs::symlink("real.json", &link).unwrap();
        let place = Place::take(&link, Timestamp(1)).unwrap();
        for content in ["{}", "{ }"] {
            place.write(content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&real).unwrap(), content);
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        }
    }

    #[test]
    fn a_folder_made_again_is_locked_again() {
        let folder = Folder::new();
        let path = folder.path().join("inner/s.json");
        let place = Place::take(&path, Timestamp(1)).unwrap();
        fs::remove_dir_all(folder.path().join("inner")).unwrap();
        place.write(b"{}").unwrap();
        assert!(Place::take(&path, Timestamp(1)).unwrap_err().contains("another process"));
    }

    #[test]
    fn a_torn_file_is_replaced_by_the_newest_whole_copy_beside_it() {
        let folder = Folder::new();
        let path = folder.path().join("s.json");
        let state = |name: &str| {
            let mut state = StateFile::default();
            state
                .runtime_state
                .insert(name.to_owned(), RuntimeRecord::new("1".into(), Timestamp(0)));
            state
        };
        let copies =
            [state("older").to_bytes(), state("newer").to_bytes(), b"{ half".to_vec(), vec![]];
        for (number, content) in copies.iter().enumerate() {
            let copy = beside(&path, &format!(".1.{number}.tmp"));
            fs::write(&copy, content).unwrap();
            let written = UNIX_EPOCH + Duration::from_secs(1_700_000_000 + number as u64);
            fs::File::options().write(true).open(&copy).unwrap().set_modified(written).unwrap();
        }
        fs::write(&path, "{ torn").unwrap();
        let place = Place::take(&path, Timestamp(1)).unwrap();
        assert_eq!(place.read(Timestamp(1_700_000_000_123)).unwrap(), state("newer"));
        assert_eq!(fs::read(&path).unwrap(), copies[1]);
        let aside = "s.json.bak.2023-11-14T22-13-20-123Z";
        assert_eq!(folder.names(), ["s.json", aside, "s.json.lock"]);
    }

    #[test]
    fn a_temporary_file_that_could_not_be_removed_is_used_again() {
        let folder = Folder::new();
        let place = Place::take(&folder.path().join("s.json"), Timestamp(1)).unwrap();
        fs::write(&place.temporary, "left over, and longer than what comes").unwrap();
        place.write(b"{}").unwrap();
        assert_eq!(fs::read_to_string(place.path()).unwrap(), "{}");
        assert_eq!(folder.names(), ["s.json", "s.json.lock"]);
    }

    #[test]
    fn what_is_left_by_earlier_runs_is_removed_once_the_lock_can_be_had() {
        let folder = Folder::new();
        let path = folder.path().join("s.json");
        let (lock, stale) = (beside(&path, ".lock"), beside(&path, ".1.2.tmp"));
        fs::create_dir(&lock).unwrap();
        fs::write(&stale, "").unwrap();
        let place = Place::take(&path, Timestamp(1)).unwrap();
        place.read(Timestamp(1)).unwrap();
        assert!(stale.exists(), "another process may write it");
        fs::remove_dir(&lock).unwrap();
        place.write(b"{}").unwrap();
        assert!(!stale.exists());
    }
}
