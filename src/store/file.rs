//! One file, its lock, its temporary files and its quarantine.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};

use log::{info, warn};
use parking_lot::Mutex;

use super::beside;
use crate::clock::Timestamp;
use crate::policy::state::StateFile;

/// Only the owner may read and write: error messages of upstream are nobody else's business.
const MODE: u32 = 0o600;

/// How many symbolic links are followed, as many as Linux does.
const MOST_LINKS: usize = 40;

/// The state file of this process.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    /// Held, not read: the lock goes with it. `None` where no lock file can be made.
    lock: Mutex<Option<File>>,
    /// Set once renaming has proved impossible (a bind-mounted single file).
    in_place: AtomicBool,
}

impl Place {
    /// Makes the folder, takes the lock, and removes temporary files of earlier runs.
    pub(super) fn take(path: &Path) -> Result<Self, String> {
        let path = behind_links(path);
        if let Err(error) = fs::create_dir_all(folder_of(&path)) {
            warn!("state folder={} error=\"{error}\"", folder_of(&path).display());
        }
        let lock = lock(&path)?;
        if lock.is_some() {
            remove_stale(&path);
        }
        Ok(Self { path, lock: Mutex::new(lock), in_place: AtomicBool::new(false) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file; one that does not fit is set aside and an empty state takes its place.
    pub(super) fn read(&self, now: Timestamp) -> Result<StateFile, String> {
        let shown = self.path.display();
        let Some(content) = content(&self.path)? else { return Ok(StateFile::default()) };
        match StateFile::parse(&content) {
            Ok(state) => Ok(state),
            Err(misfit) => {
                let aside = set_aside(&self.path, now).map_err(|error| {
                    format!(
                        "the state file `{shown}` does not fit ({misfit}) and cannot be set aside: {error}"
                    )
                })?;
                warn!(
                    "state misfit=\"{misfit}\" kept={}; starting with an empty state",
                    aside.display()
                );
                Ok(StateFile::default())
            }
        }
    }

    /// Replaces the content, durably: afterwards the file is whole and new, or whole and old.
    pub(super) fn write(&self, content: &[u8], now: Timestamp) -> io::Result<()> {
        if self.in_place.load(Ordering::Relaxed) {
            return write_in_place(&self.path, content);
        }
        match replace(&self.path, content, now) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(folder_of(&self.path))?;
                // The lock went with the folder, and another process may have taken its place.
                *self.lock.lock() = lock(&self.path).map_err(io::Error::other)?;
                replace(&self.path, content, now)
            }
            Err(error) if is_mount_point(&error) => {
                self.in_place.store(true, Ordering::Relaxed);
                info!(
                    "state in_place=true file={} reason=\"{error}\"; mount the folder instead of the file, so that a power cut cannot tear it",
                    self.path.display()
                );
                write_in_place(&self.path, content)
            }
            outcome => outcome,
        }
    }
}

/// What is in a state file; `None` when there is none.
pub(super) fn content(path: &Path) -> Result<Option<Vec<u8>>, String> {
    match fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("failed to read the state file `{}`: {error}", path.display())),
    }
}

/// Makes and removes a file in the nearest folder that there is.
pub(super) fn try_folder(path: &Path) -> io::Result<()> {
    let path = behind_links(path);
    let folder = path.ancestors().skip(1).find(|folder| folder.exists());
    let folder = folder.filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let trial = folder.join(format!(".dashscope-proxy.{}.check", process::id()));
    let outcome = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&trial);
    outcome.and_then(|_| fs::remove_file(&trial))
}

/// What the path leads to: a rename would replace a symbolic link by a file. A link to a file
/// that is not there yet is followed as well.
fn behind_links(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        match fs::read_link(&path) {
            Ok(target) => path = folder_of(&path).join(target),
            Err(_) => break,
        }
    }
    fs::canonicalize(&path).unwrap_or(path)
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

fn lock(path: &Path) -> Result<Option<File>, String> {
    let lock_path = beside(path, ".lock");
    let made = OpenOptions::new().create(true).append(true).mode(MODE).open(&lock_path);
    let outcome = made.map_err(TryLockError::Error).and_then(|file| {
        file.try_lock()?;
        Ok(file)
    });
    match outcome {
        Ok(file) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(format!(
            "another process uses the state file `{}` (its lock `{}` is taken); give each proxy a STATE_PATH of its own",
            path.display(),
            lock_path.display()
        )),
        Err(TryLockError::Error(error)) => {
            warn!(
                "state lock={} error=\"{error}\"; nothing keeps a second proxy off this file",
                lock_path.display()
            );
            Ok(None)
        }
    }
}

/// Removes `<file>.<pid>.<ms>.tmp`, ours and the original's: the lock says that nobody writes.
fn remove_stale(path: &Path) {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return };
    let Ok(entries) = fs::read_dir(folder_of(path)) else { return };
    for entry in entries.flatten() {
        let is_stale = entry.file_name().to_str().is_some_and(|other| is_temporary(other, name));
        if is_stale && fs::remove_file(entry.path()).is_ok() {
            info!("state removed={}", entry.path().display());
        }
    }
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
    while aside.exists() {
        count += 1;
        aside = beside(path, &format!("{stamp}-{count}"));
    }
    if fs::rename(path, &aside).is_err() {
        fs::copy(path, &aside)?;
        fs::set_permissions(&aside, fs::Permissions::from_mode(MODE))?;
        File::open(&aside)?.sync_all()?;
    }
    Ok(aside)
}

fn replace(path: &Path, content: &[u8], now: Timestamp) -> io::Result<()> {
    let temporary = beside(path, &format!(".{}.{}.tmp", process::id(), now.0));
    let outcome = write_new(&temporary, content)
        .and_then(|()| fs::rename(&temporary, path))
        .and_then(|()| File::open(folder_of(path))?.sync_all());
    if outcome.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    outcome
}

fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(MODE).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// The way for a file that cannot be renamed onto. The old content is overwritten from the start
/// and cut afterwards, so that a failure in between leaves the file no shorter than it has to be.
fn write_in_place(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(false).mode(MODE).open(path)?;
    file.set_permissions(fs::Permissions::from_mode(MODE))?;
    file.write_all(content)?;
    file.set_len(content.len() as u64)?;
    file.sync_all()
}

fn is_mount_point(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ResourceBusy | io::ErrorKind::CrossesDevices)
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

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
        let place = Place::take(&folder.path().join("s.json")).unwrap();
        for content in ["{\"long\": \"content\"}\n", "{}\n"] {
            place.write(content.as_bytes(), Timestamp(5)).unwrap();
            assert_eq!(fs::read_to_string(place.path()).unwrap(), content);
        }
        let mode = fs::metadata(place.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, MODE);
        assert_eq!(folder.names(), ["s.json", "s.json.lock"]);
    }

    #[test]
    fn a_second_process_is_refused() {
        let folder = Folder::new();
        let path = folder.path().join("s.json");
        let first = Place::take(&path).unwrap();
        let refusal = Place::take(&path).unwrap_err();
        assert!(refusal.contains("another process"), "{refusal}");
        drop(first);
        Place::take(&path).unwrap();
    }

    #[test]
    fn temporary_files_of_earlier_runs_are_removed_and_nothing_else() {
        let folder = Folder::new();
        let keep = ["other.json.1.2.tmp", "s.json.1.tmp", "s.json.a.2.tmp", "s.json.bak.x"];
        for name in keep.iter().chain(&["s.json.123.1700000000000.tmp"]) {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        let _place = Place::take(&folder.path().join("s.json")).unwrap();
        let mut left = folder.names();
        left.retain(|name| name != "s.json.lock");
        assert_eq!(left, keep);
    }

    #[test]
    fn what_does_not_fit_is_set_aside_and_never_overwritten() {
        let folder = Folder::new();
        let place = Place::take(&folder.path().join("s.json")).unwrap();
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
        let place = Place::take(&folder.path().join("s.json")).unwrap();
        assert_eq!(place.read(Timestamp(0)).unwrap(), StateFile::default());
        fs::write(place.path(), "").unwrap();
        assert_eq!(place.read(Timestamp(0)).unwrap(), StateFile::default());
        assert_eq!(folder.names(), ["s.json", "s.json.lock"]);
    }

    #[test]
    fn what_cannot_be_read_stops_the_start() {
        let folder = Folder::new();
        fs::create_dir(folder.path().join("s.json")).unwrap();
        let place = Place::take(&folder.path().join("s.json")).unwrap();
        assert!(place.read(Timestamp(0)).unwrap_err().contains("failed to read"));
    }

    #[test]
    fn a_link_is_written_through_even_to_a_file_that_is_not_there() {
        let folder = Folder::new();
        let (real, link) = (folder.path().join("real.json"), folder.path().join("link.json"));
        std::os::unix::fs::symlink("real.json", &link).unwrap();
        let place = Place::take(&link).unwrap();
        for content in ["{}", "{ }"] {
            place.write(content.as_bytes(), Timestamp(1)).unwrap();
            assert_eq!(fs::read_to_string(&real).unwrap(), content);
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        }
    }

    #[test]
    fn a_folder_made_again_is_locked_again() {
        let folder = Folder::new();
        let path = folder.path().join("inner/s.json");
        let place = Place::take(&path).unwrap();
        fs::remove_dir_all(folder.path().join("inner")).unwrap();
        place.write(b"{}", Timestamp(1)).unwrap();
        assert!(Place::take(&path).unwrap_err().contains("another process"));
    }

    #[test]
    fn writing_in_place_leaves_no_rest_and_makes_the_file_private() {
        let folder = Folder::new();
        let path = folder.path().join("s.json");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        write_in_place(&path, b"a long content").unwrap();
        write_in_place(&path, b"short").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "short");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
    }
}
