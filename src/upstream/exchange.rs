//! What one call is waiting for and how far it got.
//!
//! ureq gives a transport no way to know which call it serves, but a blocking call never leaves
//! its thread: so the transport and the call meet in a thread-local. It is set up by
//! [`begin`] and read by `transport`.

use std::cell::RefCell;
use std::io;
use std::mem;
use std::time::{Duration, Instant};

use crate::clock;

/// How long a wait goes on before the client is looked after.
pub(super) const SLICE: Duration = Duration::from_secs(1);

/// Says whether the client that waits for this call has left.
pub(crate) type ClientWatch = Box<dyn Fn() -> bool>;

/// How far a call got. A request may be repeated only while upstream cannot have worked on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// There is no connection yet.
    #[default]
    Connecting,
    /// Part of the request was handed to the system.
    Sending,
    /// The whole request was, and no byte has come back.
    Waiting,
    /// The answer has begun.
    Receiving,
}

/// What a new connection, and the request on it, needs done in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Step {
    /// The host's addresses.
    #[default]
    Dns,
    /// The outbound proxy, and its consent.
    OutboundProxy,
    /// A TCP connection.
    Tcp,
    /// TLS on it.
    Tls,
    /// An answer to the request.
    Answer,
}

impl Step {
    /// Its name for people.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Dns => "DNS",
            Self::OutboundProxy => "outbound proxy",
            Self::Tcp => "TCP",
            Self::Tls => "TLS",
            Self::Answer => "answer",
        }
    }
}

/// Which limit a wait is under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// Until the answer's head: `UPSTREAM_TIMEOUT_SECONDS`.
    Head,
    /// Between two reads of a body: `STREAM_IDLE_TIMEOUT_SECONDS`.
    Idle,
    /// The reader wants to be asked again at this time, and the answer goes on.
    Pause,
}

#[derive(Default)]
struct Exchange {
    stage: Stage,
    /// What is being done while the stage is [`Stage::Connecting`].
    step: Step,
    /// Set while an outbound proxy is connected to, as if it were upstream.
    at_proxy: bool,
    /// Whether the connection had served another call before.
    reused: bool,
    /// Set while connectors work, whose bytes are not the request's.
    connecting: bool,
    started: Option<Instant>,
    /// When the last of the request was handed to the system.
    sent: Option<Instant>,
    /// The other end has vanished, and has not had all of the request.
    not_received: bool,
    head_deadline: Option<Instant>,
    idle_limit: Option<Duration>,
    pause_at: Option<Instant>,
    watch: Option<ClientWatch>,
    client_left: bool,
    /// Whether the next bytes of the request are its head, and its body is at hand.
    holds: bool,
    /// How long that body is, in bytes.
    body: usize,
}

thread_local! {
    static CURRENT: RefCell<Exchange> = RefCell::default();
}

fn with<T>(f: impl FnOnce(&mut Exchange) -> T) -> T {
    CURRENT.with_borrow_mut(f)
}

/// A new attempt begins on this thread; its head is due within `head_limit`. `body`: how long its
/// body is in bytes, if that is at hand.
pub(super) fn begin(head_limit: Duration, body: Option<usize>) {
    with(|exchange| {
        exchange.holds = body.is_some();
        exchange.body = body.unwrap_or(0);
        exchange.stage = Stage::Connecting;
        exchange.step = Step::Dns;
        exchange.at_proxy = false;
        exchange.reused = true;
        exchange.connecting = false;
        let now = clock::instant();
        exchange.started = Some(now);
        exchange.sent = None;
        exchange.not_received = false;
        exchange.head_deadline = Some(now + head_limit);
        exchange.idle_limit = None;
        exchange.pause_at = None;
        exchange.client_left = false;
    });
}

/// The head has come: from here on only silence is limited.
pub(super) fn head_arrived(idle_limit: Duration) {
    with(|exchange| {
        exchange.head_deadline = None;
        exchange.idle_limit = Some(idle_limit);
    });
}

/// Makes the next reads of this thread return at `at`, if nothing has come by then.
pub(super) fn pause_at(at: Option<Instant>) {
    with(|exchange| exchange.pause_at = at);
}

/// For how long `watch` is asked during this thread's waits: until it is dropped.
#[must_use]
pub(crate) struct Watching(());

/// From now on this thread's waits ask between slices whether the client is still there.
pub(crate) fn watch_client(watch: ClientWatch) -> Watching {
    with(|exchange| exchange.watch = Some(watch));
    Watching(())
}

impl Drop for Watching {
    fn drop(&mut self) {
        with(|exchange| exchange.watch = None);
    }
}

/// How long a read may wait that starts now, and under which limit.
pub(super) fn time_left() -> Option<(Duration, Limit)> {
    with(|exchange| {
        let now = clock::instant();
        let until = |at: Instant| at.saturating_duration_since(now);
        let limits = [
            exchange.head_deadline.map(|at| (until(at), Limit::Head)),
            exchange.idle_limit.map(|limit| (limit, Limit::Idle)),
            exchange.pause_at.map(|at| (until(at), Limit::Pause)),
        ];
        limits.into_iter().flatten().min_by_key(|(left, _)| *left)
    })
}

/// Asks whether the client has left. Once it has, it has.
pub(super) fn client_has_left() -> bool {
    // Taken out while it is asked, so that it may do what it likes on this thread.
    let Some(watch) = with(|exchange| exchange.watch.take()) else { return false };
    let left = watch();
    with(|exchange| {
        exchange.watch = Some(watch);
        exchange.client_left |= left;
        exchange.client_left
    })
}

/// The error of a call that is given up because its client has left.
pub(super) fn client_left() -> ureq::Error {
    io::Error::other("the client left").into()
}

/// Whether nothing of the request has been sent although the call began a while ago, so that its
/// client may not wait any more.
pub(super) fn may_have_been_left() -> bool {
    with(|exchange| {
        !exchange.connecting
            && exchange.stage == Stage::Connecting
            && exchange.started.is_some_and(|at| clock::instant() - at >= SLICE)
    })
}

/// Whether this call ended because its client left.
pub(super) fn ended_by_client() -> bool {
    with(|exchange| exchange.client_left)
}

/// Connectors begin to work, first on this. `false` when they already do: a proxy's own
/// connection.
pub(super) fn start_connecting(first: Step) -> bool {
    with(|exchange| {
        exchange.reused = false;
        exchange.at_proxy = std::mem::replace(&mut exchange.connecting, true);
        if !exchange.at_proxy {
            exchange.step = first;
        }
        !exchange.at_proxy
    })
}

/// There is a way for bytes: to upstream, or only to the outbound proxy.
pub(super) fn way_is_open() {
    with(|exchange| {
        if !exchange.at_proxy {
            exchange.step = Step::Tls;
        }
    });
}

/// The connection to the outbound proxy stands.
pub(super) fn proxy_is_reached() {
    with(|exchange| exchange.at_proxy = false);
}

/// The connection stands.
pub(super) fn connected() {
    with(|exchange| exchange.connecting = false);
}

/// What has not been done of a call that failed.
pub(super) fn failing_step() -> Step {
    with(|exchange| match exchange.stage {
        Stage::Connecting if exchange.connecting || exchange.step == Step::Dns => exchange.step,
        _ => Step::Answer,
    })
}

/// How long ago the attempt began.
pub(super) fn time_since_start() -> Duration {
    let started = with(|exchange| exchange.started);
    started.map_or(Duration::ZERO, |at| clock::instant().saturating_duration_since(at))
}

/// The request reached a stage; it never goes back. Bytes of a connector's own talk do not count.
pub(super) fn reached(stage: Stage) {
    with(|exchange| {
        if !exchange.connecting {
            exchange.stage = exchange.stage.max(stage);
            if stage == Stage::Sending {
                exchange.sent = Some(clock::instant());
            }
        }
    });
}

/// How long ago something of the request was sent last.
pub(super) fn time_since_sent() -> Duration {
    let sent = with(|exchange| exchange.sent);
    sent.map_or(Duration::ZERO, |at| clock::instant().saturating_duration_since(at))
}

/// How much of a body is at hand to be sent, in bytes.
pub(super) fn body_at_hand() -> usize {
    with(|exchange| exchange.body)
}

/// Whether what is sent now is better sent with what follows at once: the head, once.
pub(super) fn holds_head() -> bool {
    with(|exchange| !exchange.connecting && mem::take(&mut exchange.holds))
}

/// The other end has vanished before it acknowledged the whole request.
pub(super) fn was_not_received() {
    with(|exchange| exchange.not_received = true);
}

/// Whether upstream cannot have had all of the request.
pub(super) fn is_not_received() -> bool {
    with(|exchange| exchange.not_received)
}

/// Whether the request itself is being sent, and not a connector's own talk.
pub(super) fn is_sending() -> bool {
    with(|exchange| !exchange.connecting && exchange.stage == Stage::Sending)
}

/// How far the call got, and whether its connection had served another call before.
pub(super) fn progress() -> (Stage, bool) {
    with(|exchange| (exchange.stage, exchange.reused))
}
