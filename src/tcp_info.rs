//! What the kernel knows of a TCP connection (`TCP_INFO`).

use std::os::fd::RawFd;
use std::time::Duration;

/// The state of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TcpInfo {
    /// Neither side has ended it.
    pub established: bool,
    /// The other end has not ended it.
    pub open: bool,
    /// Something was sent that the other end has not acknowledged.
    pub unacknowledged: bool,
    /// How long ago the other end acknowledged anything.
    pub last_acknowledged: Duration,
    /// How many bytes the other end has acknowledged.
    pub acknowledged: u64,
    /// How many bytes have come.
    pub received: u64,
    /// How long ago the last of them came.
    pub last_received: Duration,
}

/// `struct tcp_info` of the kernel's `linux/tcp.h` as far as it is looked at: eight bytes, then 24
/// numbers of four, then numbers of eight. (glibc's is shorter, musl's is longer.)
#[cfg(target_os = "linux")]
#[repr(C)]
#[derive(Default)]
struct Kernel {
    state: u8,
    _flags: [u8; 7],
    numbers: [u32; 24],
    _pacing: [u64; 2],
    bytes_acked: u64,
    bytes_received: u64,
}

/// Asks; `None` where the number is no TCP connection, or the system does not tell.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "nix does not know this option")]
pub(crate) fn of(fd: RawFd) -> Option<TcpInfo> {
    use nix::libc;

    /// Of the kernel's tcp_states.h: `TCP_ESTABLISHED`, and `TCP_FIN_WAIT1` and `2`, in which only we
    /// have ended it.
    const ESTABLISHED: u8 = 1;
    const FIN_WAIT: [u8; 2] = [4, 5];
    /// Where `tcpi_unacked`, `tcpi_last_data_recv` and `tcpi_last_ack_recv` stand.
    const UNACKED: usize = 4;
    const LAST_DATA_RECV: usize = 11;
    const LAST_ACK_RECV: usize = 12;
    let mut info = Kernel::default();
    let mut length = std::mem::size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes no more than `length` bytes, and any bytes are numbers.
    let outcome = unsafe {
        let place = std::ptr::from_mut(&mut info).cast();
        let (level, option) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        libc::getsockopt(fd, level, option, place, &raw mut length)
    };
    let millis = |place: usize| Duration::from_millis(info.numbers[place].into());
    (outcome == 0).then(|| TcpInfo {
        established: info.state == ESTABLISHED,
        open: info.state == ESTABLISHED || FIN_WAIT.contains(&info.state),
        unacknowledged: info.numbers[UNACKED] > 0,
        last_acknowledged: millis(LAST_ACK_RECV),
        acknowledged: info.bytes_acked,
        received: info.bytes_received,
        last_received: millis(LAST_DATA_RECV),
    })
}

/// The same where there is nobody to ask.
#[cfg(not(target_os = "linux"))]
pub(crate) fn of(_: RawFd) -> Option<TcpInfo> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn it_is_told_what_came_and_whether_the_other_end_is_there() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let before = of(server.as_raw_fd()).unwrap();
        assert!(before.established && before.received == 0);
        client.write_all(b"twelve bytes").unwrap();
        server.read_exact(&mut [0; 12]).unwrap();
        assert_eq!(of(server.as_raw_fd()).unwrap().received, 12);
        drop(client);
        server.read_exact(&mut [0; 1]).unwrap_err();
        assert!(!of(server.as_raw_fd()).unwrap().established);
        assert!(of(listener.as_raw_fd()).is_some_and(|info| !info.established));
    }
}
