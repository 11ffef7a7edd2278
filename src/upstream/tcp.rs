//! TCP to upstream, with few system calls.
//!
//! ureq's own transport writes head and body apart, sets a time limit before each write, and asks
//! three system calls whether a connection is still good, before and after each use. Here a head
//! leaves together with what follows it, a limit is set when it changes, and one look before a
//! reuse is enough.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, setsockopt, sockopt};
use ureq::Error;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, Either, NextTimeout, ShutdownHandle, Transport,
};

use super::buffers::LeanBuffers;
use super::connect::connect;
use super::exchange::{self, SLICE};
use super::resolver::Memory;
use crate::{clock, tcp_info};

/// How long a connection is silent before the system asks whether its other end is still there, how
/// long it waits for each answer, and how often it asks. (It also keeps the memory of the machines in
/// between awake, which forget silent connections after some minutes.)
const PROBE_AFTER: u32 = 15;
const PROBE_EVERY: u32 = 5;
const PROBES: u32 = 3;

/// Opens connections, unless a proxy's connector has opened one already.
#[derive(Debug)]
pub(super) struct TcpConnector {
    /// Which address was good.
    pub(super) memory: Arc<Memory>,
    /// How long the other end may leave what it was sent without an acknowledgement.
    pub(super) silence_limit: Duration,
}

impl<In: Transport> Connector<In> for TcpConnector {
    type Out = Either<In, Tcp>;

    fn connect(
        &self,
        details: &ConnectionDetails,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, Error> {
        if chained.is_some() {
            return Ok(chained.map(Either::A));
        }
        let limit = *details.timeout.after;
        let (stream, address) = connect(&details.addrs, limit).map_err(|error| {
            self.memory.doubt(details.uri);
            failure(error, details.timeout)
        })?;
        self.memory.prefer(details.uri, address);
        stream.set_nodelay(true)?;
        probe(&stream);
        let stream = Arc::new(Shared(stream));
        let handle: Weak<dyn ShutdownHandle> = Arc::<Shared>::downgrade(&stream);
        (details.register_shutdown)(handle)?;
        Ok(Some(Either::B(Tcp::new(stream, self.silence_limit))))
    }
}

/// Makes the system find out when the other end of a silent connection is gone. Where an option is
/// not to be had, `STREAM_IDLE_TIMEOUT_SECONDS` remains.
fn probe(stream: &TcpStream) {
    let _ = setsockopt(stream, sockopt::KeepAlive, &true);
    #[cfg(target_os = "linux")]
    {
        let _ = setsockopt(stream, sockopt::TcpKeepIdle, &PROBE_AFTER);
        let _ = setsockopt(stream, sockopt::TcpKeepInterval, &PROBE_EVERY);
        let _ = setsockopt(stream, sockopt::TcpKeepCount, &PROBES);
    }
}

/// A socket that another thread may shut.
#[derive(Debug)]
struct Shared(TcpStream);

impl ShutdownHandle for Shared {
    fn shutdown(&self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// A connection to upstream.
#[derive(Debug)]
pub(super) struct Tcp {
    stream: Arc<Shared>,
    silence_limit: Duration,
    buffers: LeanBuffers,
    /// What leaves with the next write.
    held: Vec<u8>,
    /// The limits that are set on the socket.
    writes_in_slices: bool,
    read_limit: Option<Duration>,
    /// Input has just come: the connection is good without a look.
    is_fresh: bool,
}

impl Tcp {
    fn new(stream: Arc<Shared>, silence_limit: Duration) -> Self {
        Self {
            stream,
            silence_limit,
            buffers: LeanBuffers::default(),
            held: Vec::new(),
            writes_in_slices: false,
            read_limit: None,
            is_fresh: false,
        }
    }

    /// Writes what is held and the first `amount` bytes of the output buffer.
    fn write(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        if !self.writes_in_slices {
            self.stream.0.set_write_timeout(Some(SLICE))?;
            self.writes_in_slices = true;
        }
        let output = &self.buffers.output()[..amount];
        let mut parts = [IoSlice::new(&self.held), IoSlice::new(output)];
        let silence_limit = self.silence_limit;
        let written = write_all(&self.stream.0, &mut parts, timeout, silence_limit);
        self.held.clear();
        written
    }

    /// Notes what was read; whether it was anything.
    fn took(&mut self, count: usize) -> bool {
        self.buffers.input_appended(count);
        self.is_fresh = count > 0;
        self.is_fresh
    }
}

impl Transport for Tcp {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.is_fresh = false;
        if exchange::holds_head() {
            self.held.extend_from_slice(&self.buffers.output()[..amount]);
            return Ok(());
        }
        self.write(amount, timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        // Not before its body, as ureq does it.
        debug_assert!(self.held.is_empty());
        self.buffers.free_output();
        let limit = (*timeout.after).max(Duration::from_millis(1));
        if self.read_limit != Some(limit) {
            match self.stream.0.set_read_timeout(Some(limit)) {
                // macOS, when the other side has closed: what it said before can still be read.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
                outcome => outcome?,
            }
            self.read_limit = Some(limit);
        }
        let count = loop {
            match (&self.stream.0).read(self.buffers.input_append_buf()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_pause(&error) => {
                    let sent = exchange::time_since_sent();
                    look_after(&self.stream.0, sent, self.silence_limit)?;
                    return Err(Error::Timeout(timeout.reason));
                }
                outcome => break outcome.map_err(Error::Io)?,
            }
        };
        Ok(self.took(count))
    }

    fn is_open(&mut self) -> bool {
        if std::mem::take(&mut self.is_fresh) {
            return true;
        }
        // Silence is what an idle connection has to say; bytes that nobody asked for are an end.
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        recv(self.stream.0.as_raw_fd(), &mut [0], flags) == Err(Errno::EAGAIN)
    }
}

/// Writes all of it, and between slices of waiting looks after the client and the limits.
fn write_all(
    mut stream: &TcpStream,
    mut parts: &mut [IoSlice<'_>],
    timeout: NextTimeout,
    silence_limit: Duration,
) -> Result<(), Error> {
    let started = clock::instant();
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        match stream.write_vectored(parts) {
            Ok(0) => return Err(Error::Io(io::ErrorKind::WriteZero.into())),
            Ok(count) => IoSlice::advance_slices(&mut parts, count),
            Err(error) if is_pause(&error) => {}
            Err(error) => return Err(Error::Io(error)),
        }
        // Whatever is left had to wait.
        if !parts.is_empty() {
            go_on(started, timeout)?;
            look_after(stream, started.elapsed(), silence_limit)?;
        }
    }
    Ok(())
}

/// Whether a limit on the socket has run out, or a signal has come in between. (When the other end has
/// vanished the system says `ETIMEDOUT`, which is neither.)
fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Gives a connection up whose other end has vanished without a word (a machine that sleeps, another
/// network, a forgetful firewall): for the whole `limit` it has acknowledged nothing of what was
/// `sent`. A time limit of the kernel's own would also end one whose other end is there and reads
/// nothing.
fn look_after(stream: &TcpStream, sent: Duration, limit: Duration) -> Result<(), Error> {
    if sent < limit {
        return Ok(());
    }
    match tcp_info::of(stream.as_raw_fd()) {
        Some(info) if info.unacknowledged && info.last_acknowledged >= limit => {
            exchange::was_not_received();
            Err(Error::Io(Errno::ETIMEDOUT.into()))
        }
        _ => Ok(()),
    }
}

/// Whether a write that has waited goes on waiting.
fn go_on(started: Instant, timeout: NextTimeout) -> Result<(), Error> {
    if exchange::client_has_left() {
        return Err(exchange::client_left());
    }
    if started.elapsed() >= *timeout.after {
        return Err(Error::Timeout(timeout.reason));
    }
    Ok(())
}

/// Why there is no connection.
fn failure(error: io::Error, timeout: NextTimeout) -> Error {
    match error.kind() {
        io::ErrorKind::TimedOut => Error::Timeout(timeout.reason),
        _ => Error::Io(error),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use ureq::Timeout;
    use ureq::unversioned::transport::time;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn timeout(reason: Timeout) -> NextTimeout {
        within(LIMIT, reason)
    }

    fn within(limit: Duration, reason: Timeout) -> NextTimeout {
        let after = time::Duration::Exact(limit);
        NextTimeout { after, reason, per_read: None, per_write: None }
    }

    /// A transport and its other end.
    fn pair() -> (Tcp, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (stream, _) = connect(&[address], LIMIT).unwrap();
        let (other, _) = listener.accept().unwrap();
        other.set_read_timeout(Some(LIMIT)).unwrap();
        (Tcp::new(Arc::new(Shared(stream)), LIMIT), other)
    }

    fn transmit(tcp: &mut Tcp, bytes: &[u8]) {
        tcp.buffers().output()[..bytes.len()].copy_from_slice(bytes);
        tcp.transmit_output(bytes.len(), timeout(Timeout::SendBody)).unwrap();
    }

    #[test]
    fn a_head_leaves_with_the_body_and_what_follows_at_once() {
        let (mut tcp, mut other) = pair();
        exchange::begin(LIMIT, Some(4));
        transmit(&mut tcp, b"head ");
        other.set_nonblocking(true).unwrap();
        assert_eq!(other.read(&mut [0; 9]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        other.set_nonblocking(false).unwrap();
        for (sent, seen) in [("body", "head body"), ("more", "more")] {
            transmit(&mut tcp, sent.as_bytes());
            let mut got = vec![0; seen.len()];
            other.read_exact(&mut got).unwrap();
            assert_eq!(got, seen.as_bytes());
        }
    }

    #[test]
    fn a_head_without_a_body_at_hand_leaves_at_once() {
        let (mut tcp, mut other) = pair();
        exchange::begin(LIMIT, None);
        transmit(&mut tcp, b"head");
        other.read_exact(&mut [0; 4]).unwrap();
        other.write_all(b"answer").unwrap();
        assert!(tcp.await_input(timeout(Timeout::RecvResponse)).unwrap());
        assert_eq!(tcp.buffers().input(), b"answer");
        drop(other);
        assert!(!tcp.await_input(timeout(Timeout::RecvResponse)).unwrap(), "it has ended");
    }

    #[test]
    fn what_connectors_say_is_never_held() {
        let (mut tcp, mut other) = pair();
        exchange::begin(LIMIT, Some(4));
        exchange::start_connecting(exchange::Step::Tcp);
        transmit(&mut tcp, b"hello");
        other.read_exact(&mut [0; 5]).unwrap();
        exchange::connected();
        transmit(&mut tcp, b"head ");
        transmit(&mut tcp, b"body");
        let mut got = [0; 9];
        other.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"head body");
    }

    #[test]
    fn a_connection_is_open_while_its_other_end_is_silent() {
        let (mut tcp, mut other) = pair();
        assert!(tcp.is_open());
        other.write_all(b"unasked").unwrap();
        assert!(tcp.stream.0.peek(&mut [0]).is_ok() && !tcp.is_open());
        let (mut tcp, other) = pair();
        drop(other);
        assert!(tcp.stream.0.peek(&mut [0]).is_ok() && !tcp.is_open());
    }

    #[test]
    fn a_wait_ends_at_its_limit() {
        let (mut tcp, _other) = pair();
        let soon = within(Duration::from_millis(20), Timeout::RecvBody);
        let outcome = tcp.await_input(soon);
        assert!(matches!(outcome, Err(Error::Timeout(Timeout::RecvBody))), "{outcome:?}");
    }

    #[test]
    fn a_reset_is_no_end() {
        let (mut tcp, mut other) = pair();
        other.write_all(b"half an answer").unwrap();
        assert!(tcp.await_input(timeout(Timeout::RecvBody)).unwrap());
        let at_once = nix::libc::linger { l_onoff: 1, l_linger: 0 };
        nix::sys::socket::setsockopt(&other, nix::sys::socket::sockopt::Linger, &at_once).unwrap();
        drop(other);
        let outcome = tcp.await_input(timeout(Timeout::RecvBody));
        assert!(
            matches!(&outcome, Err(Error::Io(error)) if error.kind() == io::ErrorKind::ConnectionReset),
            "{outcome:?}"
        );
    }
}
