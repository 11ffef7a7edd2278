//! One file, its temporary files and its quarantine.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::iter;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};

use log::{info, warn};
use nix::libc::O_NOFOLLOW;
use nix::unistd::Uid;

use super::beside;
use super::lock::Lock;
use crate::clock::Timestamp;
use crate::policy::state::StateFile;

/// Only the owner may read and write: error messages of upstream are nobody else's business.
pub(super) const MODE: u32 = 0o600;

/// How many symbolic links are followed, as many as Linux does.
const MOST_LINKS: usize = 40;

/// The state file of this process.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    /// Where new content is written first. Every write of a process uses the same name, so that
    /// a file that could not be removed is not one of many.
    temporary: PathBuf,
    owner: Option<Owner>,
    lock: Lock,
    /// Whether the log has said that the file is written in place.
    in_place: AtomicBool,
}

impl Place {
    /// Makes the folder and takes the lock.
    pub(super) fn take(path: &Path, now: Timestamp) -> Result<Self, String> {
        let path = behind_links(path);
        if let Err(error) = fs::create_dir_all(folder_of(&path)) {
            warn!("state folder={} error=\"{error}\"", folder_of(&path).display());
        }
        let owner = Owner::of(&path);
        let lock = Lock::take(&path, owner)?;
        let temporary = beside(&path, &format!(".{}.{}.tmp", process::id(), now.0));
        Ok(Self { path, temporary, owner, lock, in_place: AtomicBool::new(false) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file, and removes temporary files of earlier runs. A file that does not fit is
    /// set aside; what takes its place is the copy that a torn write has left, or an empty state.
    pub(super) fn read(&self, now: Timestamp) -> Result<StateFile, String> {
        let state = match content(&self.path)?.map(|content| StateFile::parse(&content)) {
            None => StateFile::default(),
            Some(Ok(state)) => state,
            Some(Err(misfit)) => return self.read_instead(&misfit, now),
        };
        self.remove_stale();
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
    /// a file that can only be written in place, see [`write_in_place`].
    pub(super) fn write(&self, content: &[u8]) -> io::Result<()> {
        let folder = folder_of(&self.path);
        if !folder.is_dir() {
            fs::create_dir_all(folder)?;
        }
        if self.lock.keep()? {
            self.remove_stale();
        }
        match write_new(&self.temporary, content, self.owner) {
            Ok(()) => self.install(&self.temporary, content),
            // A mounted file may be writable in a folder that is not.
            Err(error) if takes_no_file(&error) && self.path.exists() => {
                write_in_place(&self.path, content)?;
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
            Ok(()) => sync_folder(&self.path),
            Err(error) if is_mount_point(&error) => {
                // Until the file is whole again, its copy stays: the next start may need it.
                sync_folder(&self.path)?;
                write_in_place(&self.path, content)?;
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
        let content = fs::read(&path).ok()?;
        // Not the empty state that an empty file is elsewhere, but one that nothing has reached.
        if content.trim_ascii().is_empty() {
            return None;
        }
        let state = StateFile::parse(&content).ok()?;
        Some(Copy { path, content, state })
    })
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
    while aside.exists() {
        count += 1;
        aside = beside(path, &format!("{stamp}-{count}"));
    }
    if fs::rename(path, &aside).is_err() {
        copy_synced(path, &aside).inspect_err(|_| {
            let _ = fs::remove_file(&aside);
        })?;
    }
    Ok(aside)
}

fn copy_synced(from: &Path, to: &Path) -> io::Result<()> {
    fs::copy(from, to)?;
    fs::set_permissions(to, fs::Permissions::from_mode(MODE))?;
    File::open(to)?.sync_all()
}

fn write_new(path: &Path, content: &[u8], owner: Option<Owner>) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(MODE).custom_flags(O_NOFOLLOW);
    let mut file = options.open(path)?;
    owner.into_iter().for_each(|owner| owner.give(&file));
    file.write_all(content)?;
    file.sync_all()
}

/// Somebody else, whose files the files here stay: what root resets while the service is stopped
/// must still be the service's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    uid: u32,
    gid: u32,
}

impl Owner {
    /// Whose the file at `path` is, or else its folder; `None` when that is who we are.
    fn of(path: &Path) -> Option<Self> {
        let it = fs::metadata(path).or_else(|_| fs::metadata(folder_of(path))).ok()?;
        let is_other = it.uid() != Uid::effective().as_raw();
        is_other.then_some(Self { uid: it.uid(), gid: it.gid() })
    }

    /// Gives a new file to its owner, if we may.
    pub(super) fn give(self, file: &File) {
        let _ = fchown(file, Some(self.uid), Some(self.gid));
    }
}

fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(folder_of(path))?.sync_all()
}

/// The way for a file that cannot be replaced. After every step it is the old or the new state,
/// because blanks after JSON change nothing: first it grows, so that a full disk is met while it
/// still holds the old state; one call then writes the new over all of the old; at last the rest
/// is cut off. Only what ends that one call in its middle, or a power cut, can tear it.
fn write_in_place(path: &Path, content: &[u8]) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    // Not ours to change where the file is another user's.
    let _ = file.set_permissions(fs::Permissions::from_mode(MODE));
    let old = file.metadata()?.len();
    let new = content.len() as u64;
    if old < new {
        file.write_all_at(&blanks(new - old), old).inspect_err(|_| {
            let _ = file.set_len(old);
        })?;
    }
    file.write_all_at(&[content, &blanks(old.saturating_sub(new))].concat(), 0)?;
    file.set_len(new)?;
    file.sync_all()
}

fn blanks(count: u64) -> Vec<u8> {
    iter::repeat_n(b' ', usize::try_from(count).unwrap_or(usize::MAX)).collect()
}

fn is_mount_point(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ResourceBusy | io::ErrorKind::CrossesDevices)
}

/// Whether no file can be made in a folder, whatever becomes of the files that are in it.
fn takes_no_file(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied)
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::policy::state::RuntimeRecord;

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

    /// Only root can give files away; who is not finds its own.
    #[test]
    fn what_root_writes_stays_its_owners() {
        let folder = Folder::new();
        let path = folder.path().join("s.json");
        let _ = std::os::unix::fs::chown(folder.path(), Some(61_234), Some(61_235));
        let owner_of = |path: &Path| fs::metadata(path).map(|it| (it.uid(), it.gid())).unwrap();
        let place = Place::take(&path, Timestamp(1)).unwrap();
        for content in ["{}", "{ }"] {
            place.write(content.as_bytes()).unwrap();
            for name in ["s.json", "s.json.lock"] {
                let made = folder.path().join(name);
                assert_eq!(owner_of(&made), owner_of(folder.path()), "{name}");
            }
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
            File::options().write(true).open(&copy).unwrap().set_modified(written).unwrap();
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

    #[test]
    fn writing_in_place_leaves_no_rest_and_makes_the_file_private() {
        let folder = Folder::new();
        let path = folder.path().join("s.json");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        for content in ["a long content", "short", "a longer content"] {
            write_in_place(&path, content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
    }
}
