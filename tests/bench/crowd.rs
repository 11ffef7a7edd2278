//! Many connections of one client thread, watched with poll(2).
//!
//! One thread, because the machine is shared with upstream and candidate: a thread for each of
//! 500 connections would mostly measure how the machine switches between them. The sockets
//! block: they are read only when poll says that there is something, and a request of some
//! hundred bytes always finds room.

use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::client::{Caller, Listener};
use crate::{Failure, LIMIT};

/// What a crowd consists of.
pub(crate) trait Member {
    fn socket(&self) -> Arc<TcpStream>;
}

impl Member for Caller {
    fn socket(&self) -> Arc<TcpStream> {
        self.connection.socket()
    }
}

impl Member for Listener {
    fn socket(&self) -> Arc<TcpStream> {
        self.connection.socket()
    }
}

/// Calls `on_readable` for each member that has something to read, until each has said that it
/// is through. All of them must be waiting for something.
pub(crate) fn watch<M: Member>(
    members: &mut [M],
    mut on_readable: impl FnMut(&mut M) -> Result<Further, Failure>,
) -> Result<(), Failure> {
    let sockets: Vec<_> = members.iter().map(Member::socket).collect();
    let mut polled: Vec<_> =
        sockets.iter().map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN)).collect();
    let limit = PollTimeout::try_from(LIMIT).map_err(|cause| cause.to_string())?;
    let mut left = members.len();
    while left > 0 {
        match poll(&mut polled, limit) {
            Ok(0) => return Err(format!("{left} answers: nothing came for {LIMIT:?}")),
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(cause) => return Err(format!("failed to poll: {cause}")),
        }
        for (member, polled) in members.iter_mut().zip(&mut polled) {
            let is_waited_for = !polled.events().is_empty();
            if is_waited_for
                && polled.any() == Some(true)
                && on_readable(member)? == Further::Through
            {
                polled.set_events(PollFlags::empty());
                left -= 1;
            }
        }
    }
    Ok(())
}

/// Whether more is to come for a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Further {
    Waiting,
    Through,
}
