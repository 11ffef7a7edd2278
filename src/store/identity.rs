//! As whom the state file is touched.
//!
//! Whoever may change a name on the way to the file decides what root would meet there: a link to
//! a file of root's, or another folder at the next look. So root acts as the first user who may,
//! with no more rights than that user has; where there is no one such user (a folder of root's in
//! which others may write), it stays root and follows no link there.

use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Component, Path, PathBuf};

use nix::unistd::{Gid, Uid, getgroups, setgroups};

use super::folder_of;

/// How many symbolic links are followed, as many as Linux does.
const MOST_LINKS: usize = 40;

/// The bits of a folder that let others than its owner change names in it. (The group's are also
/// those of an access control list.)
const SHARED: u32 = 0o022;

/// The bit of a shared folder that lets only the owner of a file change its name.
const STICKY: u32 = 0o1000;

/// As whom one state file, and what lies beside it, is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    /// As who we are. What is new is given to the owner of the state file, if that is somebody
    /// else: what root resets while the service is stopped must still be the service's.
    Own { heir: Option<User> },
    /// Root, as the user who may change names on the way.
    As(User),
    /// Root, where others may change names: nothing is given away, and no link of theirs followed.
    Wary { at_link: bool },
}

/// A user with one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct User {
    uid: u32,
    gid: u32,
}

/// Who else may change a name on the way to a file.
#[derive(Debug, PartialEq, Eq)]
enum Others {
    Nobody,
    /// This user at least, and no one before it.
    One(User),
    /// Some that are not known; they may have put a link here.
    Some {
        at_link: bool,
    },
}

impl Identity {
    /// As whom to touch the state file at `path`. Root gives up its further groups for good where
    /// it is to act as somebody else.
    pub(super) fn for_file(path: &Path) -> Self {
        if !Uid::effective().is_root() {
            return Self::Own { heir: None };
        }
        match others_on_the_way(path) {
            Others::Nobody => Self::Own { heir: heir_of(path) },
            Others::One(user) if user.can_be_acted_as() => Self::As(user),
            // A root without its powers is left with its own files, which are many.
            Others::One(_) => Self::Wary { at_link: leads_over_a_link(path) },
            Others::Some { at_link } => Self::Wary { at_link },
        }
    }

    /// From now on until what is returned is dropped, this thread touches files as this identity.
    ///
    /// # Errors
    /// When the system does not let it.
    pub(super) fn assume(self) -> io::Result<Assumed> {
        match self {
            Self::As(user) => user.act(),
            Self::Own { .. } | Self::Wary { .. } => Ok(Assumed::default()),
        }
    }

    /// Gives a file that has just been made to its heir.
    pub(super) fn give(self, file: &File) {
        if let Self::Own { heir: Some(User { uid, gid }) } = self {
            let _ = fchown(file, Some(uid), Some(gid));
        }
    }

    /// What the path leads to: a rename would replace a symbolic link by a file. A link to a file
    /// that is not there yet is followed as well.
    ///
    /// # Errors
    /// When links of others' lead to it, out of their own folders.
    pub(super) fn follow(self, path: &Path) -> io::Result<PathBuf> {
        let target = behind_links(path);
        match self {
            Self::As(user) if !user.owns(&target) => Err(io::Error::other(format!(
                "neither it nor its folder is the user {}'s, to whom a folder on the way to it belongs, and as whom root acts here",
                user.uid
            ))),
            Self::Wary { at_link: true } => Err(io::Error::other(
                "a link leads to it from a folder in which others than root may write",
            )),
            _ => Ok(target),
        }
    }
}

/// As whom, for messages: empty for who we are.
impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::As(User { uid, .. }) => {
                write!(f, " (as the user {uid}, to whom a folder on the way belongs)")
            }
            Self::Own { .. } | Self::Wary { .. } => Ok(()),
        }
    }
}

/// As long as it lives, its thread touches files as somebody else. It must not leave its thread.
#[derive(Debug, Default)]
pub(super) struct Assumed(Option<User>, std::marker::PhantomData<*const ()>);

impl User {
    fn of(it: &Metadata) -> Self {
        Self { uid: it.uid(), gid: it.gid() }
    }

    /// Whether a file is this user's, or the folder in which it is or would be made.
    fn owns(self, path: &Path) -> bool {
        if fs::symlink_metadata(path).is_ok_and(|it| it.is_file() && it.uid() == self.uid) {
            return true;
        }
        let folders = path.ancestors().skip(1);
        let folders = folders.map(|it| if it == Path::new("") { Path::new(".") } else { it });
        let nearest = folders.map(fs::metadata).find_map(Result::ok);
        nearest.is_some_and(|folder| folder.uid() == self.uid)
    }

    /// Whether acting as this user takes all other rights away.
    fn can_be_acted_as(self) -> bool {
        let has_no_groups = || getgroups().is_ok_and(|groups| groups.is_empty());
        (has_no_groups() || setgroups(&[]).is_ok() && has_no_groups()) && self.act().is_ok()
    }

    /// The identity for files is the thread's own on Linux, and the one thing that changes.
    #[cfg(target_os = "linux")]
    fn act(self) -> io::Result<Assumed> {
        use nix::unistd::{setfsgid, setfsuid};

        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        // The group first, while we may still choose it.
        let gid_before = setfsgid(gid).as_raw();
        let before = User { uid: setfsuid(uid).as_raw(), gid: gid_before };
        let assumed = Assumed(Some(before), std::marker::PhantomData);
        // They say who it was before: asked again, whether it has worked.
        if (setfsuid(uid), setfsgid(gid)) == (uid, gid) {
            Ok(assumed)
        } else {
            Err(io::Error::from(io::ErrorKind::PermissionDenied))
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn act(self) -> io::Result<Assumed> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
}

impl Drop for Assumed {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        if let Some(User { uid, gid }) = self.0 {
            nix::unistd::setfsuid(Uid::from_raw(uid));
            nix::unistd::setfsgid(Gid::from_raw(gid));
        }
    }
}

/// Whose the file is where only root may change names, if it is not root's.
fn heir_of(path: &Path) -> Option<User> {
    let it = fs::metadata(path).or_else(|_| fs::metadata(folder_of(path))).ok()?;
    (it.uid() != 0).then(|| User::of(&it))
}

/// Goes to a file name by name, as the system would, up to the first that another than root may
/// change. Up to there nobody can have changed anything behind our back.
fn others_on_the_way(path: &Path) -> Others {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let (mut at, mut rest, mut links) = (PathBuf::from("/"), names(&absolute), 0);
    loop {
        let Ok(folder) = fs::symlink_metadata(&at) else { return Others::Nobody };
        if folder.uid() != 0 {
            return Others::One(User::of(&folder));
        }
        let Some(name) = rest.pop() else { return Others::Nobody };
        if name == ".." {
            at.pop();
            continue;
        }
        let is_shared = folder.mode() & SHARED != 0;
        let entry = at.join(name);
        match fs::symlink_metadata(&entry) {
            Ok(it) if is_shared && it.uid() != 0 => return Others::One(User::of(&it)),
            Ok(it) if is_shared && folder.mode() & STICKY == 0 => {
                return Others::Some { at_link: it.is_symlink() };
            }
            Ok(it) if it.is_symlink() && links < MOST_LINKS => {
                links += 1;
                let target = fs::read_link(&entry).unwrap_or_default();
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                rest.extend(names(&target));
            }
            Ok(it) if it.is_dir() => at = entry,
            _ if is_shared => return Others::Some { at_link: false },
            _ => return Others::Nobody,
        }
    }
}

/// Whether there is a link anywhere on the way to a file, or in its place.
fn leads_over_a_link(path: &Path) -> bool {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let is_link = |path: &Path| fs::symlink_metadata(path).is_ok_and(|it| it.is_symlink());
    absolute.ancestors().any(is_link)
}

/// The names in a path, the last first.
fn names(path: &Path) -> Vec<OsString> {
    let name = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    };
    path.components().rev().filter_map(name).collect()
}

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
