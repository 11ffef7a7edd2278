//! Single operations on files. None follows a link in the last name, or waits for what is no file.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::iter;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nix::libc::{EINVAL, ENOSYS, ENOTSUP, EOPNOTSUPP, O_NOFOLLOW, O_NONBLOCK};

use super::folder_of;
use super::identity::Identity;

/// Only the owner may read and write: error messages of upstream are nobody else's business.
pub(super) const MODE: u32 = 0o600;

/// How a file is opened that others may have put there.
pub(super) fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    // A pipe would be waited for.
    options.mode(MODE).custom_flags(O_NOFOLLOW | O_NONBLOCK);
    options
}

/// Opens what has to be a file.
pub(super) fn open(path: &Path, options: &OpenOptions) -> io::Result<File> {
    let file = options.open(path)?;
    match file.metadata()? {
        it if it.is_file() => Ok(file),
        it if it.is_dir() => Err(ErrorKind::IsADirectory.into()),
        _ => Err(io::Error::other("it is no file")),
    }
}

/// What is in a file.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    open(path, options().read(true))?.read_to_end(&mut content)?;
    Ok(content)
}

/// Makes a file of this content, durably, in the place of one that was left there.
pub(super) fn write_new(path: &Path, content: &[u8], identity: Identity) -> io::Result<()> {
    let make = || options().write(true).create_new(true).open(path);
    let made = match make() {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let _ = fs::remove_file(path);
            make()
        }
        made => made,
    };
    let mut file = match made {
        Ok(file) => {
            identity.give(&file);
            file
        }
        // It cannot be removed: it is good enough if it is ours and nobody else's.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let file = open_own(path)?;
            file.set_len(0)?;
            file
        }
        Err(error) => return Err(error),
    };
    file.write_all(content)?;
    sync(&file)
}

/// Opens an own file, which has no other name, to be written.
fn open_own(path: &Path) -> io::Result<File> {
    let file = open(path, options().write(true))?;
    let it = file.metadata()?;
    let is_own = it.uid() == nix::unistd::Uid::effective().as_raw() && it.nlink() == 1;
    is_own.then_some(file).ok_or_else(|| io::Error::other("somebody else has put a file there"))
}

/// The way for a file that cannot be replaced. After every step it is the old or the new state,
/// because blanks after JSON change nothing: first it grows, so that a full disk is met while it
/// still holds the old state; one call then writes the new over all of the old; at last the rest
/// is cut off. Only what ends that one call in its middle, or a power cut, can tear it.
pub(super) fn write_in_place(file: &File, content: &[u8]) -> io::Result<()> {
    // Not ours to change where the file is another user's.
    let _ = file.set_permissions(Permissions::from_mode(MODE));
    let old = file.metadata()?.len();
    let new = content.len() as u64;
    if old < new {
        file.write_all_at(&blanks(new - old), old).inspect_err(|_| {
            let _ = file.set_len(old);
        })?;
    }
    file.write_all_at(&[content, &blanks(old.saturating_sub(new))].concat(), 0)?;
    file.set_len(new)?;
    sync(file)
}

fn blanks(count: u64) -> Vec<u8> {
    iter::repeat_n(b' ', usize::try_from(count).unwrap_or(usize::MAX)).collect()
}

/// Puts what a folder says of its files on disk. A folder that may be written and not read cannot
/// be asked to.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    match File::open(folder_of(path)) {
        Ok(folder) => sync(&folder),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
        Err(error) => Err(error),
    }
}

/// Puts it on disk, as far as its file system can: those of shared folders often cannot.
fn sync(file: &File) -> io::Result<()> {
    match file.sync_all() {
        Err(error) if cannot_sync(&error) => Ok(()),
        outcome => outcome,
    }
}

/// Whether that is how a file system says that it has no such thing.
fn cannot_sync(error: &io::Error) -> bool {
    let codes = [EINVAL, ENOSYS, ENOTSUP, EOPNOTSUPP];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::file::tests::Folder;

    #[test]
    fn writing_in_place_leaves_no_rest_and_makes_the_file_private() {
        let folder = Folder::new();
        let path = folder.path().join("s.json");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        for content in ["a long content", "short", "a longer content"] {
            let file = open(&path, options().write(true)).unwrap();
            write_in_place(&file, content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
    }

    #[test]
    fn what_is_no_file_is_neither_read_nor_waited_for_nor_followed() {
        let folder = Folder::new();
        let file = folder.path().join("file");
        fs::write(&file, "secret").unwrap();
        let (pipe, link) = (folder.path().join("pipe"), folder.path().join("link"));
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for path in [&pipe, &link, &folder.path().to_owned()] {
            read(path).unwrap_err();
        }
        let identity = Identity::Own { heir: None };
        for path in [&pipe, &link] {
            write_new(path, b"new", identity).unwrap();
            assert_eq!(read(path).unwrap(), b"new", "it took its place");
        }
        assert_eq!(read(&file).unwrap(), b"secret");
    }

    #[test]
    fn a_file_system_that_cannot_sync_is_no_failure_and_a_broken_disk_is() {
        let error = io::Error::from_raw_os_error;
        for code in [EINVAL, ENOTSUP, ENOSYS] {
            assert!(cannot_sync(&error(code)), "{code}");
        }
        for code in [nix::libc::EIO, nix::libc::ENOSPC, nix::libc::EROFS] {
            assert!(!cannot_sync(&error(code)), "{code}");
        }
    }
}
