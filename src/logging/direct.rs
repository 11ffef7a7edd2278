//! The short way of a line: written at once by who has it, where that cannot block.
//!
//! Whether a write may wait is a property of the open file, which other processes share; so a pipe
//! is opened once more, and a socket is told with each line. Everything else has the long way.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use nix::errno::Errno;
use nix::libc::{O_NONBLOCK, S_IFIFO, S_IFMT, S_IFSOCK};
use nix::sys::socket::{MsgFlags, send};
use nix::sys::stat::fstat;
use nix::unistd;

/// The most that the kernel writes to a pipe as a whole or not at all, in bytes (PIPE_BUF).
pub(super) const WHOLE: usize = 4096;

/// A way to standard error that never blocks.
#[derive(Debug)]
pub(super) enum Direct {
    Pipe(File),
    Socket(OwnedFd),
}

impl Direct {
    /// The short way, if there is one.
    pub(super) fn to(out: &impl AsFd) -> Option<Self> {
        let out = out.as_fd();
        match fstat(out).ok()?.st_mode & S_IFMT {
            S_IFIFO => {
                let path = format!("/proc/self/fd/{}", out.as_raw_fd());
                let pipe = OpenOptions::new().write(true).custom_flags(O_NONBLOCK).open(path);
                pipe.ok().map(Self::Pipe)
            }
            S_IFSOCK => out.try_clone_to_owned().ok().map(Self::Socket),
            _ => None,
        }
    }

    /// Writes a line; what of it has not been written.
    pub(super) fn write<'a>(&self, line: &'a [u8]) -> &'a [u8] {
        if line.len() > WHOLE {
            return line;
        }
        loop {
            let written = match self {
                Self::Pipe(pipe) => unistd::write(pipe, line),
                Self::Socket(socket) => {
                    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
                    send(socket.as_raw_fd(), line, flags)
                }
            };
            match written {
                Ok(count) => return &line[count..],
                Err(Errno::EINTR) => {}
                Err(_) => return line,
            }
        }
    }
}
