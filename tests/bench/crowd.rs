//! Many connections of one client thread, watched with poll(2).
//!
//! One thread, because the machine is shared with upstream and candidate: a thread for each of
//! 500 connections would mostly measure how the machine switches between them. The sockets are
//! read only when poll says that there is something, and written as far as there is room: a large
//! request goes out on all connections at the same time.

use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::client::{Caller, Listener};
use crate::{Failure, LIMIT};

/// What a crowd consists of.
pub(crate) trait Member {
    fn socket(&self) -> Arc<TcpStream>;

    /// Whether it waits for room to write.
    fn is_sending(&self) -> bool {
        false
    }

    /// Writes what there is room for.
    fn push(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}

impl Member for Caller {
    fn socket(&self) -> Arc<TcpStream> {
        self.connection.socket()
    }

    fn is_sending(&self) -> bool {
        self.is_sending()
    }

    fn push(&mut self) -> Result<(), Failure> {
        self.push()
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
    let waited_for = |member: &M| match member.is_sending() {
        // Also for an answer: a refusal may come before all of the request has gone.
        true => PollFlags::POLLIN | PollFlags::POLLOUT,
        false => PollFlags::POLLIN,
    };
    let mut polled: Vec<_> = sockets
        .iter()
        .zip(members.iter())
        .map(|(socket, member)| PollFd::new(socket.as_fd(), waited_for(member)))
        .collect();
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
            let Some(found) = polled.revents().filter(|found| is_waited_for && !found.is_empty())
            else {
                continue;
            };
            if found == PollFlags::POLLOUT {
                member.push()?;
            } else if on_readable(member)? == Further::Through {
                polled.set_events(PollFlags::empty());
                left -= 1;
                continue;
            }
            polled.set_events(waited_for(member));
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
