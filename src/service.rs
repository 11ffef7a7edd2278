//! The process: puts the parts together, watches over them, and stops them in order.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use log::{info, warn};
use parking_lot::Mutex;

use crate::admin::Admin;
use crate::allocator;
use crate::clock::{self, Timestamp};
use crate::config::{Config, Loaded};
use crate::error::StartupError;
use crate::metrics::Metrics;
use crate::panics::{Alarm, Event};
use crate::policy::pool::Pool;
use crate::policy::scheduler::{Guarded, Scheduler};
use crate::proxy::Proxy;
use crate::proxy::counting::log_guard;
use crate::server::{self, Server};
use crate::store::Store;
use crate::supervisor;
use crate::upstream::Upstream;

/// How often the process asks its own `/health`.
const CHECK_EVERY: Duration = Duration::from_secs(10);

/// How often a stop looks whether the answers in flight are through.
const DRAIN_STEP: Duration = Duration::from_millis(50);

/// How often the supervisor hears that a stop goes on.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// How many of these steps must be quiet in a row: a request may be on its way from the socket.
const QUIET_STEPS: u32 = 2;

/// How long a renewal waits for answers in flight: new clients wait as long.
const LONGEST_RENEWAL: Duration = Duration::from_secs(30);

/// How long answers that were interrupted at the end of the grace may take to end.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// A proxy that serves.
#[derive(Debug)]
pub struct Service {
    config: Arc<Config>,
    scheduler: Arc<Mutex<Scheduler>>,
    store: Arc<Store>,
    upstream: Upstream,
    server: Server,
}

impl Service {
    /// Reads the state, opens the port and starts every thread.
    ///
    /// # Errors
    /// When the state file, the certificates or the port cannot be had.
    pub fn start(loaded: Loaded, events: Sender<Event>) -> Result<Self, StartupError> {
        allocator::return_large_blocks();
        let alarm = Alarm::new(events);
        let Loaded { config, notes } = loaded;
        let config = Arc::new(config);
        notes.iter().for_each(|note| warn!("configuration {note}"));
        let upstream = Upstream::new(&config)?;
        let now = clock::now();
        let (store, file) = Store::open(&config.state_path, now)?;
        let newest = file.newest_change();
        let pool = Arc::new(config.pool());
        let mut scheduler = Scheduler::new(Arc::clone(&pool), config.cooldown, file, now)
            .with_limits(config.limits(), &config.vision_models);
        let guarded = scheduler.set_guard(config.guard(), now);
        for doubt in doubts_of_the_clock(&scheduler, config.cooldown, newest, now) {
            warn!("clock {doubt}");
        }
        let (store, scheduler) = (Arc::new(store), Arc::new(Mutex::new(scheduler)));
        let listening = server::bind(&config.host, config.port, config.client_timeout)?;
        let system = |error| StartupError::System(format!("failed to start a thread: {error}"));
        let (disk, state) = (Arc::clone(&store), Arc::clone(&scheduler));
        alarm.essential("state-writer", move || disk.run(&state)).map_err(system)?;
        store.commit(&scheduler);
        let metrics = Arc::new(Metrics::default());
        let proxy = Arc::new(Proxy::new(
            Arc::clone(&config),
            Arc::clone(&scheduler),
            Arc::clone(&store),
            upstream.clone(),
            Arc::clone(&metrics),
        ));
        let (pool, disk) = (Arc::clone(&scheduler), Arc::clone(&store));
        let admin = Arc::new(Admin::new(pool, disk, metrics));
        introduce(&config, &scheduler.lock(), &store);
        tell_guarded(&guarded, scheduler.lock().pool());
        let server =
            Server::start(listening, Arc::clone(&config), proxy, admin, &alarm).map_err(system)?;
        supervisor::ready(&server.address().to_string());
        info!("listening address={} version={}", server.address(), env!("CARGO_PKG_VERSION"));
        Ok(Self { config, scheduler, store, upstream, server })
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> std::net::SocketAddr {
        self.server.address()
    }

    /// Serves until an event says so, then lets what is in flight finish and flushes the state.
    /// After a panic of an essential thread nothing is waited for.
    ///
    /// # Errors
    /// The name of the thread that panicked.
    pub fn run(self, events: &Receiver<Event>) -> Result<Ended, Broken> {
        let outcome = match self.watch(events) {
            Event::Stop => Ok(self.drain(events, Ended::Stopped)),
            Event::Renew => Ok(self.drain(events, Ended::Renew)),
            Event::Broken(thread) => Err(Broken(thread)),
        };
        let is_written = self.store.flush(&self.scheduler);
        info!("stopped state_written={is_written}");
        if outcome.as_ref().is_ok_and(|ended| *ended == Ended::Renew)
            && let Err(error) = self.server.hand_over()
        {
            warn!("renew listener=lost error=\"{error}\"");
        }
        outcome
    }

    /// Waits for an event, and asks from time to time whether the front still answers.
    fn watch(&self, events: &Receiver<Event>) -> Event {
        let period = supervisor::watchdog_period().map_or(CHECK_EVERY, |due| due.min(CHECK_EVERY));
        loop {
            match events.recv_timeout(period) {
                Ok(event) => return event,
                // The watchdog is fed by a proof, not by a timer.
                Err(RecvTimeoutError::Timeout) => match self.server.check() {
                    Ok(()) => supervisor::alive(),
                    Err(error) => warn!("self_check passed=false error=\"{error}\""),
                },
                Err(RecvTimeoutError::Disconnected) => return Event::Broken("signals".to_owned()),
            }
        }
    }

    /// Waits until nothing is in flight; at the end of the grace what is left is interrupted. Gives
    /// `ended`, unless a signal asks for a stop meanwhile.
    fn drain(&self, events: &Receiver<Event>, mut ended: Ended) -> Ended {
        if ended == Ended::Stopped {
            supervisor::stopping(self.config.shutdown_grace + LAST_WAIT);
        }
        self.server.stop_listening(ended == Ended::Renew);
        let in_flight = self.server.requests_in_flight();
        info!("drain in_flight={in_flight} grace_s={}", self.config.shutdown_grace.as_secs());
        let grace = match ended {
            Ended::Stopped => self.config.shutdown_grace,
            Ended::Renew => self.config.shutdown_grace.min(LONGEST_RENEWAL),
        };
        if !self.is_quiet_within(grace, events, &mut ended) {
            let left = self.server.requests_in_flight();
            warn!("drain grace=over interrupted={left}");
            self.upstream.shut_down();
            self.is_quiet_within(LAST_WAIT, events, &mut ended);
        }
        ended
    }

    fn is_quiet_within(
        &self,
        limit: Duration,
        events: &Receiver<Event>,
        ended: &mut Ended,
    ) -> bool {
        let deadline = clock::instant() + limit;
        let (mut quiet, mut told) = (0, clock::instant());
        while quiet < QUIET_STEPS {
            if clock::instant() >= deadline {
                return false;
            }
            if let Ok(Event::Stop) = events.recv_timeout(DRAIN_STEP) {
                // Nobody waits for a next program any more.
                *ended = Ended::Stopped;
                self.server.let_go();
                supervisor::stopping(limit + LAST_WAIT);
            }
            if told.elapsed() >= TELL_EVERY {
                told = clock::instant();
                supervisor::still_stopping(deadline.saturating_duration_since(told));
            }
            quiet = if self.server.requests_in_flight() == 0 { quiet + 1 } else { 0 };
        }
        true
    }
}

/// How a service ends that nothing broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// A signal asked for it.
    Stopped,
    /// The program is to be executed anew, with the listener where systemd would hand it over.
    Renew,
}

/// A thread that the process cannot do without has panicked.
#[derive(Debug)]
pub struct Broken(pub String);

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the thread `{}` has panicked; this is a bug", self.0)
    }
}

/// Says what is odd about the clock, and changes nothing: a board that boots in 1970 must not
/// open the pool.
pub(crate) fn doubts_of_the_clock(
    scheduler: &Scheduler,
    cooldown: Duration,
    newest_change: Timestamp,
    now: Timestamp,
) -> Vec<String> {
    let mut doubts = Vec::new();
    if newest_change > now {
        doubts.push(format!(
            "now={now} newest_change={newest_change}: the clock is behind the state file"
        ));
    }
    let latest = scheduler.latest_end();
    if latest > now.plus(cooldown.saturating_mul(2)) {
        doubts.push(format!(
            "now={now} latest_cooldown={latest}: a cooldown ends later than twice MODEL_COOLDOWN_SECONDS from now"
        ));
    }
    doubts
}

/// The start-up block: what this process is about to do, and the one thing it cannot check.
fn introduce(config: &Config, scheduler: &Scheduler, store: &Store) {
    let pool = scheduler.pool();
    let labels: Vec<&str> = pool.keys().map(|key| pool.label(key)).collect();
    let outbound = config.outbound.as_ref().map_or_else(|| "direct".into(), |proxy| proxy.shown());
    info!(
        "upstream openai={} anthropic={} native={} outbound={outbound}",
        config.openai_base, config.anthropic_base, config.native_base
    );
    info!(
        "pool keys={} models={} slots={} available={} labels={}",
        pool.key_count(),
        pool.model_count(),
        pool.slot_count(),
        scheduler.available_count(clock::now()),
        labels.join(",")
    );
    info!("state file={} writable={}", store.path().display(), store.is_writable());
    let guard = match config.quota_guard {
        Some(percent) => format!(
            "guard={percent}%: a slot is left at {percent} % of its FREE_QUOTA_TOKENS, by what its answers say; what uses the account beside this proxy is not seen"
        ),
        None => "guard=off: QUOTA_GUARD can leave a slot before that".to_owned(),
    };
    info!(
        "reminder \"free quota only\" (免费额度用完即停) must be on in the Model Studio console for every model; where it is off, DashScope bills an exhausted model instead of refusing it; {guard}"
    );
}

/// What the guard found at the start.
fn tell_guarded(guarded: &Guarded, pool: &Pool) {
    guarded.left.iter().for_each(|left| log_guard("", &pool.show(&left.slot), left));
    for slot in &guarded.released {
        info!("guard slot={} released=true: it is below the limit of today", pool.show(slot));
    }
}
