//! Acting on a client's connection past the library.
//!
//! tiny_http shows no socket, but the kernel knows it: among our descriptors it is the one whose
//! peer is the client and whose own port is ours. Each connection has two descriptors of one
//! socket; either will do.

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;

use nix::sys::socket::{self, MsgFlags, Shutdown, SockaddrStorage};

/// Where the kernel lists the descriptors of this process.
const DESCRIPTORS: &str = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };

/// Ends a connection in both directions. What was written before still arrives.
pub(super) fn shut(peer: SocketAddr, port: u16) {
    shut_down(peer, port, Shutdown::Both);
}

/// Tells the client that nothing more will come, and leaves its own direction open.
pub(super) fn end_output(peer: SocketAddr, port: u16) {
    shut_down(peer, port, Shutdown::Write);
}

/// Whether the client has closed or reset its connection. One that is not among our descriptors
/// any more has.
pub(super) fn has_left(peer: SocketAddr, port: u16) -> bool {
    let fd = match find(peer, port) {
        Ok(Some(fd)) => fd,
        Ok(None) => return true,
        Err(_) => return false,
    };
    let mut byte = [0];
    match socket::recv(fd, &mut byte, MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT) {
        Ok(count) => count == 0,
        Err(error) => error != nix::Error::EAGAIN && error != nix::Error::EINTR,
    }
}

fn shut_down(peer: SocketAddr, port: u16, how: Shutdown) {
    if let Ok(Some(fd)) = find(peer, port) {
        let _ = socket::shutdown(fd, how);
    }
}

/// The lowest descriptor of the connection between `peer` and our `port`.
fn find(peer: SocketAddr, port: u16) -> io::Result<Option<RawFd>> {
    let entries = std::fs::read_dir(DESCRIPTORS)?;
    Ok(entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .find(|fd| is_connection(*fd, peer, port)))
}

fn is_connection(fd: RawFd, peer: SocketAddr, port: u16) -> bool {
    let far = socket::getpeername::<SockaddrStorage>(fd).ok().and_then(address);
    far == Some(peer) && {
        let near = socket::getsockname::<SockaddrStorage>(fd).ok().and_then(address);
        near.is_some_and(|near| near.port() == port)
    }
}

fn address(storage: SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = storage.as_sockaddr_in() {
        return Some(SocketAddr::new(v4.ip().into(), v4.port()));
    }
    let v6 = storage.as_sockaddr_in6()?;
    Some(SocketAddr::new(v6.ip().into(), v6.port()))
}
