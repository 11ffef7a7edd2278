//! Opening a connection to one of several addresses.
//!
//! One that does not answer must not hold up the others: the next is tried a moment later, beside it,
//! and the first that is there wins (RFC 8305, "Happy Eyeballs").

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    self, AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, sockopt,
};

use crate::clock;

/// How long an address is tried alone ("Connection Attempt Delay", RFC 8305, section 5).
const HEAD_START: Duration = Duration::from_millis(250);

/// An attempt that is under way.
struct Attempt {
    stream: TcpStream,
    address: SocketAddr,
}

/// Connects to the first of these addresses that is there within `limit`.
///
/// # Errors
/// `TimedOut` when none was, else why the last one failed.
pub(super) fn connect(
    addresses: &[SocketAddr],
    limit: Duration,
) -> io::Result<(TcpStream, SocketAddr)> {
    let deadline = clock::instant() + limit;
    let mut waiting = interleaved(addresses);
    let mut under_way: Vec<Attempt> = Vec::new();
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    let mut next_at = clock::instant();
    loop {
        let now = clock::instant();
        if now >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if (now >= next_at || under_way.is_empty())
            && let Some(address) = waiting.pop_front()
        {
            match begin(address) {
                Ok(stream) => under_way.push(Attempt { stream, address }),
                Err(error) => failure = error,
            }
            next_at = now + HEAD_START;
            continue;
        }
        if under_way.is_empty() {
            return Err(failure);
        }
        let until = if waiting.is_empty() { deadline } else { deadline.min(next_at) };
        let ready = wait(&under_way, until)?;
        // From the back, so that the places before stay what they are.
        for place in ready.into_iter().rev() {
            let Attempt { stream, address } = under_way.swap_remove(place);
            match finish(stream) {
                Ok(stream) => return Ok((stream, address)),
                Err(error) => failure = error,
            }
        }
    }
}

/// The addresses with their families in turns, the first one's first (RFC 8305, section 4).
fn interleaved(addresses: &[SocketAddr]) -> VecDeque<SocketAddr> {
    let is_first = |address: &SocketAddr| address.is_ipv4() == addresses[0].is_ipv4();
    let (mut first, mut second): (VecDeque<_>, VecDeque<_>) =
        addresses.iter().copied().partition(is_first);
    let mut turns = VecDeque::with_capacity(addresses.len());
    while !first.is_empty() || !second.is_empty() {
        turns.extend(first.pop_front());
        turns.extend(second.pop_front());
    }
    turns
}

/// Begins to connect and does not wait.
fn begin(address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket::socket(family, SockType::Stream, CLOSE_ON_EXEC, SockProtocol::Tcp)?;
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(true)?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&stream);
    match socket::connect(fd, &SockaddrStorage::from(address)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(stream),
        Err(error) => Err(error.into()),
    }
}

#[cfg(target_os = "linux")]
const CLOSE_ON_EXEC: SockFlag = SockFlag::SOCK_CLOEXEC;
#[cfg(not(target_os = "linux"))]
const CLOSE_ON_EXEC: SockFlag = SockFlag::empty();

/// Waits until something is decided, or it is `until`. The places of what is.
fn wait(attempts: &[Attempt], until: Instant) -> io::Result<Vec<usize>> {
    let mut fds: Vec<PollFd<'_>> = attempts
        .iter()
        .map(|attempt| PollFd::new(attempt.stream.as_fd(), PollFlags::POLLOUT))
        .collect();
    // Rounded up: a wait of nothing would be none.
    let left = until.saturating_duration_since(clock::instant()) + Duration::from_millis(1);
    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
    match poll(&mut fds, timeout) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(error) => return Err(error.into()),
    }
    let decided = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
    Ok((0..fds.len()).filter(|place| decided(&fds[*place])).collect())
}

/// What came of an attempt.
fn finish(stream: TcpStream) -> io::Result<TcpStream> {
    match socket::getsockopt(&stream, sockopt::SocketError)? {
        0 => {
            stream.set_nonblocking(false)?;
            Ok(stream)
        }
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use nix::sys::socket::{Backlog, listen};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// A listener that takes no more connections, and those that fill it.
    fn black_hole() -> (SocketAddr, TcpListener, Vec<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listen(&listener, Backlog::new(0).unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let mut crowd = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(100)) {
            crowd.push(stream);
        }
        (address, listener, crowd)
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_that_refuses_is_followed_by_the_next() {
        let refusing = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let good = listener.local_addr().unwrap();
        let (stream, won) = connect(&[refusing, good], LIMIT).unwrap();
        assert_eq!((won, stream.peer_addr().unwrap()), (good, good));
        let refused = connect(&[refusing], LIMIT).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn addresses_that_do_not_answer_hold_up_nobody() {
        let (hole, _listener, _crowd) = black_hole();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let good = listener.local_addr().unwrap();
        let started = clock::instant();
        let (_, won) = connect(&[hole, hole, good], LIMIT).unwrap();
        assert_eq!(won, good);
        assert!(started.elapsed() < LIMIT / 2, "each was waited for");
        let silent = connect(&[hole], Duration::from_millis(300)).unwrap_err();
        assert_eq!(silent.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn an_address_that_answers_late_still_wins_when_nothing_else_is_there() {
        let (hole, listener, crowd) = black_hole();
        drop(crowd);
        // Its queue is emptied while it is waited for; the system asks again by itself.
        let taker = std::thread::spawn(move || listener.incoming().take(3).flatten().count());
        let refusing = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let outcome = connect(&[hole, refusing], LIMIT);
        assert_eq!(outcome.map(|(_, won)| won).ok(), Some(hole));
        drop(taker);
    }

    #[test]
    fn families_take_turns() {
        let [a, b, c, d] = ["[::1]:1", "[::2]:1", "[::3]:1", "127.0.0.1:1"].map(address);
        assert_eq!(interleaved(&[a, b, c, d]), [a, d, b, c]);
        assert_eq!(interleaved(&[d, a, b]), [d, a, b]);
        assert_eq!(interleaved(&[]), []);
    }
}
