//! Acting on a client's connection past the library.
//!
//! tiny_http shows no socket, but the kernel knows it: among our descriptors it is the one whose
//! peer is the client and whose own port is ours. Each connection has two descriptors of one
//! socket; the lower one stands for it here.
//!
//! A number may be closed and given to something else at any time, so the peer is checked right
//! before acting, and nothing here closes a descriptor but [`Descriptors::close`].

use std::io;
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6, TcpListener};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use log::warn;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::libc;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{self, MsgFlags, Shutdown, SockaddrStorage};
use nix::sys::stat::Mode;
use parking_lot::Mutex;

use crate::tcp_info::{self, TcpInfo};

/// Where the kernel lists the descriptors of this process.
const DIRECTORY: &str = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };

/// The first number that is not standard input, output or error, and the one under which systemd
/// hands over a socket (`SD_LISTEN_FDS_START`).
const FIRST: RawFd = 3;

/// Without a directory the numbers themselves are tried; after this many in a row that are not
/// open there are no more. (The kernel gives out the lowest free number.)
const LARGEST_GAP: usize = 4096;

/// The descriptors of this process.
pub(super) struct Descriptors {
    /// Opened once: when it is needed most there is no descriptor left to open it.
    directory: Mutex<Option<Dir>>,
    /// The port of our listener.
    port: u16,
    /// How many there may be.
    pub(super) limit: usize,
}

/// One connection's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Connection {
    pub(super) fd: RawFd,
    pub(super) peer: SocketAddr,
}

/// A connection under a number of our own, which stays good whatever the library closes meanwhile.
#[derive(Debug)]
pub(super) struct Kept {
    connection: Connection,
    /// None when there was no descriptor left to make one.
    _own: Option<OwnedFd>,
}

impl std::ops::Deref for Kept {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

/// All descriptors at one moment.
#[derive(Debug, Default)]
pub(super) struct Census {
    /// How many are open, of whatever kind.
    pub(super) open: usize,
    /// The clients' connections, each once.
    pub(super) connections: Vec<Connection>,
    /// All their numbers, in the same order.
    numbers: Vec<Connection>,
}

/// What can be said of a connection's input without taking it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// Nothing is there.
    Silent,
    /// Bytes are waiting.
    Waiting,
    /// The client has closed or reset it.
    Ended,
}

/// What became of input that nobody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Discarded {
    Nothing,
    Something,
    TheEnd,
}

impl Descriptors {
    /// Opens the directory, and raises the limit to what the system allows.
    pub(super) fn open(port: u16) -> Self {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = Dir::open(DIRECTORY, flags, Mode::empty()).ok();
        Self { directory: Mutex::new(directory), port, limit: raise_limit() }
    }

    /// Looks at every descriptor.
    pub(super) fn census(&self) -> Census {
        let mut census = Census::default();
        self.each(|fd| {
            census.open += 1;
            if let Some(peer) = client_of(fd, self.port) {
                census.numbers.push(Connection { fd, peer });
            }
        });
        census.numbers.sort_by_key(|connection| (connection.peer, connection.fd));
        census.connections = census.numbers.clone();
        census.connections.dedup_by_key(|connection| connection.peer);
        census
    }

    /// The connection of this client. (Once both its sides are shut, it is not known any more.)
    pub(super) fn find(&self, peer: SocketAddr) -> Option<Connection> {
        let mut found = None;
        self.each(|fd| {
            if found.is_none() && client_of(fd, self.port) == Some(peer) {
                found = Some(Connection { fd, peer });
            }
        });
        found
    }

    /// The connection of this client, for more than one look. `fd`: the number under which it was
    /// seen last.
    pub(super) fn keep(&self, peer: SocketAddr, fd: Option<RawFd>) -> Option<Kept> {
        match fd.map(|fd| Connection { fd, peer }) {
            Some(seen) if seen.is_still_there() => seen.keep(),
            Some(seen) if seen.is_shut(self.port) => None,
            _ => self.find(peer)?.keep(),
        }
    }

    /// Every number of this client's connection, with what it stands for.
    pub(super) fn numbered(&self, peer: SocketAddr) -> Vec<(RawFd, Option<String>)> {
        self.numbers(peer).into_iter().map(|fd| (fd, self.identity(fd))).collect()
    }

    /// The same, as of this census, for many connections at once.
    pub(super) fn numbered_in(
        &self,
        census: &Census,
        peer: SocketAddr,
    ) -> Vec<(RawFd, Option<String>)> {
        let first = census.numbers.partition_point(|number| number.peer < peer);
        let numbers = census.numbers[first..].iter().take_while(|number| number.peer == peer);
        let still = numbers.filter(|number| number.is_still_there());
        still.map(|number| (number.fd, self.identity(number.fd))).collect()
    }

    fn numbers(&self, peer: SocketAddr) -> Vec<RawFd> {
        let mut numbers = Vec::new();
        self.each(|fd| {
            if client_of(fd, self.port) == Some(peer) {
                numbers.push(fd);
            }
        });
        numbers
    }

    /// Whether the client has closed or reset its connection. `fd`: the number under which it was
    /// seen last.
    pub(super) fn has_left(&self, peer: SocketAddr, fd: Option<RawFd>) -> bool {
        let seen = fd.map(|fd| Connection { fd, peer }).filter(|seen| seen.is_still_there());
        seen.or_else(|| self.find(peer)).is_none_or(Connection::is_closed_by_peer)
    }

    /// What a number stands for, as long as it stands for it.
    fn identity(&self, fd: RawFd) -> Option<String> {
        let link = std::fs::read_link(format!("{DIRECTORY}/{fd}")).ok()?;
        Some(link.to_str()?.to_owned())
    }

    /// Closes these numbers, if they still stand for what they stood for; whether any did. Only for
    /// descriptors whose owner will never run again.
    pub(super) fn close(&self, numbers: &[(RawFd, Option<String>)]) -> bool {
        let mut any = false;
        for (fd, identity) in numbers {
            if identity.is_some() && self.identity(*fd) == *identity {
                any |= nix::unistd::close(*fd).is_ok();
            }
        }
        any
    }

    /// Calls `f` with every open descriptor.
    fn each(&self, mut f: impl FnMut(RawFd)) {
        if let Some(directory) = &mut *self.directory.lock() {
            let own = directory.as_raw_fd();
            let names = directory.iter().flatten();
            let numbers = names.filter_map(|entry| entry.file_name().to_str().ok()?.parse().ok());
            return numbers.filter(|fd| *fd != own).for_each(f);
        }
        let mut gap = 0;
        let mut fd = FIRST;
        while gap < LARGEST_GAP {
            match socket::getsockname::<SockaddrStorage>(fd) {
                Err(Errno::EBADF) => gap += 1,
                _ => {
                    gap = 0;
                    f(fd);
                }
            }
            fd += 1;
        }
    }
}

impl Connection {
    /// The same under a number of our own, if it still is this client's: a client that has read its
    /// answer may leave at once, the library closes its numbers, and the next client gets them.
    #[expect(unsafe_code, reason = "the number is not ours before it is duplicated")]
    pub(super) fn keep(self) -> Option<Kept> {
        // SAFETY: only duplicated, and the peer of what came of it is checked.
        let own = unsafe { BorrowedFd::borrow_raw(self.fd) }.try_clone_to_owned().ok();
        let fd = own.as_ref().map_or(self.fd, AsRawFd::as_raw_fd);
        let connection = Self { fd, ..self };
        connection.is_still_there().then_some(Kept { connection, _own: own })
    }

    /// Looks at the input without taking it.
    pub(super) fn input(self) -> Input {
        let mut byte = [0];
        match socket::recv(self.fd, &mut byte, MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT) {
            Ok(0) => Input::Ended,
            Ok(_) => Input::Waiting,
            Err(Errno::EAGAIN | Errno::EINTR) => Input::Silent,
            Err(_) => Input::Ended,
        }
    }

    /// Takes what input is there and throws it away. (Not inlined: its buffer would be on every
    /// caller's stack, and each page of a stack that was touched once stays.)
    #[inline(never)]
    pub(super) fn discard(self) -> Discarded {
        let mut buffer = [0; 16 * 1024];
        let mut discarded = Discarded::Nothing;
        loop {
            match socket::recv(self.fd, &mut buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return Discarded::TheEnd,
                Ok(_) => discarded = Discarded::Something,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return discarded,
                Err(_) => return Discarded::TheEnd,
            }
        }
    }

    /// Whether the client has closed or reset it. Not told from the input: the library ends that
    /// itself after a last request, and before the end there may be another request.
    /// (Where the system does not tell, it is told from the input after all.)
    fn is_closed_by_peer(self) -> bool {
        match tcp_info::of(self.fd) {
            Some(info) => !info.established,
            None => self.input() == Input::Ended,
        }
    }

    /// What the kernel knows of it.
    pub(super) fn info(self) -> Option<TcpInfo> {
        tcp_info::of(self.fd)
    }

    /// Whether neither side has ended it, as far as the system tells.
    pub(super) fn is_established(self) -> bool {
        !self.is_closed_by_peer()
    }

    /// Whether the number is a connection of our listener that has no other end any more.
    fn is_shut(self, port: u16) -> bool {
        let near = socket::getsockname::<SockaddrStorage>(self.fd).ok().and_then(address);
        near.is_some_and(|near| near.port() == port)
            && socket::getpeername::<SockaddrStorage>(self.fd) == Err(Errno::ENOTCONN)
    }

    /// Whether the number still is this client's connection.
    pub(super) fn is_still_there(self) -> bool {
        let peer = socket::getpeername::<SockaddrStorage>(self.fd).ok().and_then(address);
        peer == Some(self.peer)
    }

    /// Writes as much as goes without waiting. A short answer always does: the client has taken
    /// everything before it.
    pub(super) fn send(self, bytes: &[u8]) {
        let _ = socket::send(self.fd, bytes, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
    }

    /// Tells the client that nothing more will come, and leaves its own direction open.
    pub(super) fn end_output(self) {
        let _ = socket::shutdown(self.fd, Shutdown::Write);
    }

    /// Ends the connection with a reset: where only its end tells that an answer is over, a
    /// farewell would make half an answer look whole. (No `SO_LINGER` of zero: the library says
    /// farewell itself before it closes.)
    #[expect(unsafe_code, reason = "nix has no address of no family")]
    pub(super) fn abort(self) {
        // Lets go of the library's reader: some kernels disconnect no socket that is waited on.
        let _ = socket::shutdown(self.fd, Shutdown::Read);
        // SAFETY: zero is a valid value of every field, and the pointer is good for the length.
        let disconnected = unsafe {
            let nowhere: libc::sockaddr_storage = std::mem::zeroed();
            let length = std::mem::size_of_val(&nowhere) as libc::socklen_t;
            libc::connect(self.fd, std::ptr::from_ref(&nowhere).cast(), length)
        };
        if disconnected != 0 {
            self.shut();
        }
    }

    /// Ends the connection in both directions.
    pub(super) fn shut(self) {
        let _ = socket::shutdown(self.fd, Shutdown::Both);
    }
}

/// The client at the other end of `fd`, if that is a connection of our listener.
fn client_of(fd: RawFd, port: u16) -> Option<SocketAddr> {
    let near = socket::getsockname::<SockaddrStorage>(fd).ok().and_then(address)?;
    if near.port() != port {
        return None;
    }
    socket::getpeername::<SockaddrStorage>(fd).ok().and_then(address)
}

/// The address as std tells it, scope and all: a link-local client has one.
fn address(storage: SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = storage.as_sockaddr_in() {
        return Some(SocketAddrV4::from(*v4).into());
    }
    Some(SocketAddrV6::from(*storage.as_sockaddr_in6()?).into())
}

/// Takes over a listening socket that this process was started with.
#[expect(unsafe_code, reason = "adopting a descriptor that is nobody else's in this process")]
pub(super) fn adopt(fd: RawFd) -> io::Result<TcpListener> {
    socket::getsockname::<SockaddrStorage>(fd)?;
    // SAFETY: it is open, systemd says that it is ours, and this is called once, before any
    // thread could have opened another descriptor under its number.
    Ok(unsafe { TcpListener::from_raw_fd(fd) })
}

/// Puts a listening socket where [`adopt`] finds it in the program that this process executes next.
/// Whatever has that number is closed, so nothing else may be done after this.
#[expect(unsafe_code, reason = "nix replaces only descriptors that it owns")]
pub(super) fn hand_over(listener: &TcpListener) -> io::Result<()> {
    // SAFETY: both calls take numbers; the first keeps no flag of the old number, unless the two are
    // the same, hence the second.
    let outcome = unsafe {
        match libc::dup2(listener.as_raw_fd(), FIRST) {
            -1 => -1,
            fd => libc::fcntl(fd, libc::F_SETFD, 0),
        }
    };
    if outcome == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Raises the limit on descriptors to what the system allows, and tells it.
fn raise_limit() -> usize {
    let (soft, hard) = match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok(limits) => limits,
        Err(_) => return 1024,
    };
    let limit = match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(error) => {
            warn!("descriptors limit={soft} error=\"{error}\"");
            soft
        }
    };
    usize::try_from(limit).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_the_one_that_std_tells() {
        for text in ["127.0.0.1:80", "[::1]:80", "[::ffff:127.0.0.1]:80", "[fe80::1%7]:80"] {
            let told: SocketAddr = text.parse().unwrap();
            assert_eq!(address(SockaddrStorage::from(told)), Some(told), "{text}");
        }
    }
}
