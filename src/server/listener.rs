//! The listening socket.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::sys::socket::{self, Backlog, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use parking_lot::Mutex;

use crate::error::StartupError;

/// How many connections may wait to be accepted. std asks for 128, and a second `listen` on the
/// same socket changes it.
const BACKLOG: i32 = 1024;

/// The socket that clients connect to. Dropping the last share of it closes it.
#[derive(Debug)]
pub struct Listening {
    listener: Mutex<Option<TcpListener>>,
    address: SocketAddr,
}

/// Binds the address of `HOST` and `PORT`. `send_limit`: how long a client may refuse to take an
/// answer.
///
/// # Errors
/// When the name is unknown or the address cannot be had.
pub fn bind(host: &str, port: u16, send_limit: Duration) -> Result<Listening, StartupError> {
    let failed = |error: io::Error| {
        StartupError::Listen(format!("failed to listen on `{host}` port {port}: {error}"))
    };
    let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(failed)?.collect();
    let listener = TcpListener::bind(addresses.as_slice()).map_err(failed)?;
    prepare(&listener, send_limit).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok(Listening { listener: Mutex::new(Some(listener)), address })
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
    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
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
    pub(super) fn close(&self) {
        if let Some(listener) = self.listener.lock().take() {
            let _ = socket::shutdown(listener.as_raw_fd(), socket::Shutdown::Both);
        }
    }
}
