//! What the kernel knows of a TCP connection (`TCP_INFO`).

use std::os::fd::RawFd;
use std::time::Duration;

/// The state of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TcpInfo {
    /// Neither side has ended it.
    pub established: bool,
    /// Something was sent that the other end has not acknowledged.
    pub unacknowledged: bool,
    /// How long ago the other end acknowledged anything.
    pub last_acknowledged: Duration,
}

/// Asks; `None` where the number is no TCP connection, or the system does not tell.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "nix does not know this option")]
pub(crate) fn of(fd: RawFd) -> Option<TcpInfo> {
    use nix::libc;

    /// `TCP_ESTABLISHED` of the kernel's tcp_states.h.
    const ESTABLISHED: u8 = 1;
    // SAFETY: zero is a valid value of every field, and the kernel writes no more than `length`.
    let (outcome, info) = unsafe {
        let mut info: libc::tcp_info = std::mem::zeroed();
        let mut length = std::mem::size_of_val(&info) as libc::socklen_t;
        let place = std::ptr::from_mut(&mut info).cast();
        let (level, option) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        (libc::getsockopt(fd, level, option, place, &raw mut length), info)
    };
    (outcome == 0).then(|| TcpInfo {
        established: info.tcpi_state == ESTABLISHED,
        unacknowledged: info.tcpi_unacked > 0,
        last_acknowledged: Duration::from_millis(info.tcpi_last_ack_recv.into()),
    })
}

/// The same where there is nobody to ask.
#[cfg(not(target_os = "linux"))]
pub(crate) fn of(_: RawFd) -> Option<TcpInfo> {
    None
}
