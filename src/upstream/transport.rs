//! The connector chain: TCP (or a proxy), then our slices, then TLS, then our tap.
//!
//! [`Sliced`] sits below TLS and waits in slices of a second, so that a call notices that its
//! client left and keeps its own time limits. (A time-out of a slice leaves a connection usable
//! there; above TLS it would not.) [`Tapped`] sits above TLS and notes how far a request got.

use std::io;
use std::time::Duration;

use ureq::unversioned::transport::{
    Buffers, ConnectProxyConnector, ConnectionDetails, Connector, NextTimeout, RustlsConnector,
    SocksConnector, Transport, time,
};
use ureq::{Error, Timeout};

use super::MAX_HEAD;
use super::buffers::SIZE;
use super::exchange::{self, Limit, SLICE, Stage, Step};
use super::tcp::TcpConnector;
use crate::clock;

/// No more than this lies unread in a connection's buffer: a head of the largest size and a read. A
/// line without an end (a chunk's size, a trailer) would grow in it for ever.
const MOST_UNREAD: usize = MAX_HEAD + 2 * SIZE;

/// The shortest wait there is, for a look at what has come.
const LOOK: Duration = Duration::from_millis(1);

/// The whole chain. `connect_limit` covers name resolution, TCP and TLS together.
pub(super) fn chain(connect_limit: Duration) -> impl Connector<(), Out = Tapped> {
    let inner =
        ().chain(SocksConnector::default())
            .chain(ConnectProxyConnector::default())
            .chain(TcpConnector)
            .chain(SliceConnector)
            .chain(RustlsConnector::default());
    TapConnector { inner, connect_limit }
}

#[derive(Debug)]
struct SliceConnector;

impl<In: Transport> Connector<In> for SliceConnector {
    type Out = Sliced<In>;

    fn connect(
        &self,
        _: &ConnectionDetails,
        chained: Option<In>,
    ) -> Result<Option<Sliced<In>>, Error> {
        if chained.is_some() {
            exchange::way_is_open();
        }
        Ok(chained.map(|inner| Sliced { inner }))
    }
}

/// Waits in slices.
#[derive(Debug)]
struct Sliced<T> {
    inner: T,
}

impl<T: Transport> Transport for Sliced<T> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.inner.transmit_output(amount, timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        let started = clock::instant();
        let (limit, reason) = match exchange::time_left() {
            Some((left, reason)) if left < *timeout.after => (left, Some(reason)),
            _ => (*timeout.after, None),
        };
        loop {
            let left = limit.saturating_sub(clock::instant() - started);
            // A process that stood still past the limit (SIGSTOP, a frozen container) finds what
            // came meanwhile in the socket: that was in time.
            let is_over = left.is_zero();
            let over = || Error::Timeout(reason.map_or(timeout.reason, timeout_of));
            if is_over && reason == Some(Limit::Pause) {
                return Err(over());
            }
            let slice = time::Duration::Exact(left.clamp(LOOK, SLICE));
            match self.inner.await_input(NextTimeout { after: slice, ..timeout }) {
                Err(Error::Timeout(_))
                    if reason != Some(Limit::Pause) && exchange::client_has_left() =>
                {
                    return Err(exchange::client_left());
                }
                Err(Error::Timeout(_)) if is_over => return Err(over()),
                Err(Error::Timeout(_)) => {}
                outcome => return outcome,
            }
        }
    }

    fn is_open(&mut self) -> bool {
        self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}

/// ureq's name of the limit that ended a wait.
fn timeout_of(limit: Limit) -> Timeout {
    match limit {
        Limit::Head => Timeout::RecvResponse,
        Limit::Idle => Timeout::RecvBody,
        Limit::Pause => Timeout::PerRead,
    }
}

#[derive(Debug)]
struct TapConnector<C> {
    inner: C,
    connect_limit: Duration,
}

impl<C: Connector<()>> Connector<()> for TapConnector<C> {
    type Out = Tapped;

    fn connect(&self, details: &ConnectionDetails, _: Option<()>) -> Result<Option<Tapped>, Error> {
        let proxy = details.config.proxy();
        let is_proxied = proxy.is_some_and(|proxy| !proxy.is_no_proxy(details.uri));
        let first = if is_proxied { Step::OutboundProxy } else { Step::Tcp };
        let is_outermost = exchange::start_connecting(first);
        // ureq limits resolving and connecting one after the other; we promise one limit for both.
        let spent = exchange::time_since_start();
        let left = self.connect_limit.saturating_sub(spent).max(Duration::from_millis(1));
        let after = time::Duration::Exact(left.min(*details.timeout.after));
        let details = ConnectionDetails {
            uri: details.uri,
            addrs: details.addrs.clone(),
            config: details.config,
            request_level: details.request_level,
            resolver: details.resolver,
            now: details.now,
            timeout: NextTimeout { after, ..details.timeout },
            current_time: details.current_time.clone(),
            run_connector: details.run_connector.clone(),
            register_shutdown: details.register_shutdown.clone(),
        };
        let transport = self.inner.connect(&details, None)?;
        if is_outermost {
            exchange::connected();
        } else {
            exchange::proxy_is_reached();
        }
        Ok(transport.map(|inner| Tapped { inner: inner.boxed(), refused: false }))
    }
}

/// Notes how far a request got.
#[derive(Debug)]
pub(super) struct Tapped {
    inner: Box<dyn Transport>,
    /// Upstream has stopped taking the request that is being sent.
    refused: bool,
}

impl Transport for Tapped {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        if exchange::may_have_been_left() && exchange::client_has_left() {
            return Err(exchange::client_left());
        }
        exchange::reached(Stage::Sending);
        if self.refused {
            return Ok(());
        }
        match self.inner.transmit_output(amount, timeout) {
            // Upstream takes no more of the request, and may have said why: ureq goes on to read
            // its answer. If there is none, reading fails, and the request was not fully sent.
            Err(Error::Io(error)) if exchange::is_sending() && is_refusal(error.kind()) => {
                self.refused = true;
                Ok(())
            }
            outcome => outcome,
        }
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        if !self.refused {
            exchange::reached(Stage::Waiting);
        }
        if self.inner.buffers().input().len() > MOST_UNREAD {
            let text = "a line of its framing is too long";
            return Err(io::Error::new(io::ErrorKind::InvalidData, text).into());
        }
        let outcome = self.inner.await_input(timeout).map_err(unmask_reset);
        if let Ok(true) = outcome {
            exchange::reached(Stage::Receiving);
        }
        outcome
    }

    fn is_open(&mut self) -> bool {
        !self.refused && self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}

/// Whether a write failed because the other side has had enough.
fn is_refusal(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    matches!(kind, BrokenPipe | ConnectionReset | ConnectionAborted)
}

/// ureq takes a reset for the end of a body that has no length. A cut answer must look cut.
fn unmask_reset(error: Error) -> Error {
    match error {
        Error::Io(error) if ends_a_body(error.kind()) => {
            io::Error::other(Broken(error.to_string())).into()
        }
        error => error,
    }
}

fn ends_a_body(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(kind, UnexpectedEof | ConnectionAborted | ConnectionReset)
}

/// A connection that upstream broke, under a kind of error that ureq does not interpret.
#[derive(Debug)]
pub(super) struct Broken(String);

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the connection broke ({})", self.0)
    }
}

impl std::error::Error for Broken {}
