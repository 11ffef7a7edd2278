//! The listening socket.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::sys::socket::{self, Backlog, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use parking_lot::Mutex;

use super::fd;
use crate::error::StartupError;

/// How many connections may wait to be accepted. std asks for 128, and a second `listen` on the
/// same socket changes it.
const BACKLOG: i32 = 1024;

/// What systemd hands over first (`SD_LISTEN_FDS_START`).
const INHERITED: &str = "a socket handed over by systemd";

/// The socket that clients connect to. Dropping the last share of it closes it.
#[derive(Debug)]
pub(crate) struct Listening {
    listener: Mutex<Option<TcpListener>>,
    address: SocketAddr,
    /// It belongs to systemd as well, and lives on when this process ends.
    inherited: bool,
    /// It is kept for the program that this process executes next.
    kept: Mutex<Option<TcpListener>>,
}

/// Takes the socket that systemd has handed over, or else binds the address of `HOST` and `PORT`.
/// `send_limit`: how long a client may refuse to take an answer.
///
/// # Errors
/// When the name is unknown or the address cannot be had, or when there are several sockets: the
/// second would accept connections that nobody serves.
pub(crate) fn bind(host: &str, port: u16, send_limit: Duration) -> Result<Listening, StartupError> {
    let mut inherited = sd_notify::listen_fds().into_iter().flatten();
    if let Some(fd) = inherited.next() {
        if inherited.next().is_some() {
            let text = "systemd has handed over more than one socket: give its socket unit a single ListenStream=";
            return Err(StartupError::Listen(text.to_owned()));
        }
        let failed = |error: io::Error| {
            StartupError::Listen(format!("failed to listen on {INHERITED}: {error}"))
        };
        let listener = fd::adopt(fd).map_err(failed)?;
        return Listening::new(listener, true, send_limit).map_err(failed);
    }
    let failed = |error: io::Error| {
        StartupError::Listen(format!("failed to listen on `{host}` port {port}: {error}"))
    };
    let mut addresses: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(failed)?.collect();
    // `localhost` is both ::1 and 127.0.0.1, and everybody's settings say the latter.
    addresses.sort_by_key(SocketAddr::is_ipv6);
    let listener = TcpListener::bind(addresses.as_slice()).map_err(failed)?;
    Listening::new(listener, false, send_limit).map_err(failed)
}

/// Sets what accepted sockets inherit on Linux. A receive time-out must not be among it: it
/// would make `accept` fail and thereby end the library's accept thread.
fn prepare(listener: &TcpListener, send_limit: Duration) -> io::Result<()> {
    let millis = i64::try_from(send_limit.as_millis()).unwrap_or(i64::MAX);
    socket::setsockopt(listener, sockopt::SendTimeout, &TimeVal::milliseconds(millis))?;
    socket::setsockopt(listener, sockopt::TcpNoDelay, &true)?;
    socket::setsockopt(listener, sockopt::KeepAlive, &true)?;
    socket::listen(listener, Backlog::new(BACKLOG)?)?;
    Ok(())
}

impl Listening {
    fn new(listener: TcpListener, inherited: bool, send_limit: Duration) -> io::Result<Self> {
        // A process before this one may have left it non-blocking, see `close`.
        listener.set_nonblocking(false)?;
        prepare(&listener, send_limit)?;
        let address = listener.local_addr()?;
        let listener = Mutex::new(Some(listener));
        Ok(Self { listener, address, inherited, kept: Mutex::default() })
    }

    /// Where clients connect.
    #[must_use]
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Another handle of the same socket, for the library.
    pub(super) fn share(&self) -> io::Result<TcpListener> {
        match &*self.listener.lock() {
            Some(listener) => listener.try_clone(),
            None => Err(io::Error::new(io::ErrorKind::NotConnected, "the listener is closed")),
        }
    }

    /// Closes every handle: shutting a listening socket down makes the library's `accept` return,
    /// and its accept thread lets go of its own handle.
    ///
    /// A socket of systemd's must go on listening for the next process, and so must one that is to be
    /// handed over (`keeps`). It is made non-blocking instead, so that the library's next `accept`
    /// fails once nobody waits any more; the caller pokes it, because one `accept` is under way.
    pub(super) fn close(&self, keeps: bool) {
        let Some(listener) = self.listener.lock().take() else { return };
        if self.inherited || keeps {
            let _ = listener.set_nonblocking(true);
            *self.kept.lock() = Some(listener);
        } else {
            let _ = socket::shutdown(listener.as_raw_fd(), socket::Shutdown::Both);
        }
    }

    /// Closes the socket that was kept, unless it is systemd's.
    pub(super) fn let_go(&self) {
        if !self.inherited {
            *self.kept.lock() = None;
        }
    }

    /// Hands the closed socket over to the program that this process executes next.
    pub(super) fn hand_over(&self) -> io::Result<()> {
        match &*self.kept.lock() {
            Some(listener) => fd::hand_over(listener),
            None => Err(io::Error::new(io::ErrorKind::NotConnected, "the listener was not kept")),
        }
    }
}
