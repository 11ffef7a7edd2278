//! Looks after all connections ten times a second: ends those past their limits, wakes those
//! that the library has left lying, and keeps descriptors and memory for those that are served.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use log::{debug, info, warn};

use super::connections::{Activity, Sight};
use super::fd::{Census, Connection, Input};
use super::intake::Front;
use crate::{clock, tcp_info};

/// How often it looks, unless looking takes long.
const TICK: Duration = Duration::from_millis(100);

/// It rests this many times as long as it looked: never more than a twentieth of a core.
const REST: u32 = 20;

/// When a look comes this much too late, the whole process stood still, or nearly: what clients
/// have sent meanwhile lies unread in the kernel.
const LATE: Duration = Duration::from_millis(500);

/// How long no limit counts then, so that the threads that read come to their turn first.
const RESPITE: Duration = Duration::from_secs(1);

/// How much longer than a stalled head an idle connection may stay. nginx's own idle limit for
/// its upstreams is 60 s and must be the shorter one.
const IDLE_BONUS: Duration = Duration::from_secs(15);

/// How long a page or a refusal of ours may take: it fits any socket's buffer, unless the client
/// has not read what it was sent before.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// A body that has taken longer than the stall limit must have come at this pace, in bytes a
/// second: each byte of a dribble is progress, and would hold a receiver for ever.
const SLOWEST_BODY: u64 = 1024;

/// Whoever has begun with something and then waits this long has not begun a request, but TLS or
/// HTTP/2, and waits for an answer in that.
const HALF_HEAD: Duration = Duration::from_secs(5);

/// The answer to that: clients of TLS say then that this is none.
const NO_REQUEST: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// A connection that has not asked for this long, and whose bytes nobody reads, is stuck.
const STUCK_AFTER: Duration = Duration::from_millis(50);

/// No more pokes than this in one look.
const MOST_POKES: usize = 64;

/// Whoever has only just come may be about to ask, and must not go before this.
const JUST_COME: Duration = Duration::from_millis(500);

/// Above this share of the descriptors connections are ended, down to the lower one (in percent).
const HIGH_WATER: usize = 80;
const LOW_WATER: usize = 70;

/// How much memory may come from nobody knows where (a head without an end, say), in bytes.
const UNEXPLAINED: u64 = 64 << 20;

/// What a connection explains of it: its thread's stack, its buffers.
const EACH_CONNECTION: u64 = 64 << 10;

/// Why a connection is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    NoHead,
    HalfHead,
    Idle,
    StalledBody,
    SlowBody,
    UnreadAnswer,
    Descriptors,
    Memory,
}

/// The reaper and what it remembers from look to look.
pub(super) struct Reaper {
    front: Arc<Front>,
    /// The least unexplained memory so far: what is above it has been added by connections.
    floor: Option<u64>,
    /// How many looks in a row have found a connection stuck.
    stuck: u32,
    /// When the next look is due.
    due: Instant,
    /// Until when no limit counts.
    respite: Option<Instant>,
}

impl Reaper {
    pub(super) fn new(front: Arc<Front>) -> Self {
        Self { front, floor: None, stuck: 0, due: clock::instant(), respite: None }
    }

    /// Looks again and again, for the life of the process.
    pub(super) fn run(mut self) {
        let never = crossbeam_channel::never::<()>();
        loop {
            let started = clock::instant();
            let peers = self.look(started);
            let took = started.elapsed();
            // Waits, when it has to knock: that is no work to rest from.
            self.front.gate.look(&self.front, &peers);
            let rest = TICK.max(took * REST);
            self.due = clock::instant() + rest;
            let _ = never.recv_timeout(rest);
        }
    }

    /// Looks once; the clients that there are.
    fn look(&mut self, now: Instant) -> Vec<SocketAddr> {
        let census = self.front.descriptors.census();
        let peers: Vec<SocketAddr> = census.connections.iter().map(|seen| seen.peer).collect();
        let mut sights = self.front.connections.take_stock(&census.connections, now);
        sights.sort_by_key(|sight| sight.peer);
        let limit = self.front.client_timeout();
        let judged = if self.has_respite(now) { &[][..] } else { &sights };
        for sight in judged {
            let reason = past_limit(sight, limit).or_else(|| half_head(&census, sight));
            if let Some(reason) = reason {
                if matches!(reason, Reason::NoHead | Reason::HalfHead) {
                    self.bury(&census, sight.peer);
                }
                end(&census, sight.peer, reason);
            }
        }
        self.wake_stuck(&census, &sights);
        self.spare_descriptors(&census, &sights);
        self.spare_memory(&census, &sights);
        peers
    }

    /// Whether limits do not count now. After a respite they do, however late the look is: on a
    /// machine that is always late they would never.
    fn has_respite(&mut self, now: Instant) -> bool {
        match self.respite {
            Some(until) if now < until => true,
            Some(_) => {
                self.respite = None;
                false
            }
            None => {
                let is_late = now.saturating_duration_since(self.due) > LATE;
                self.respite = is_late.then(|| now + RESPITE);
                is_late
            }
        }
    }

    /// A foreign version (the first line of HTTP/2, say) makes the library's thread wait for itself
    /// for good. It never lets go of its descriptors, so they are closed by number. (Any other
    /// thread that still reads a head sees the end of its connection and closes them itself.)
    fn bury(&self, census: &Census, peer: SocketAddr) {
        let front = Arc::clone(&self.front);
        let numbers = front.descriptors.numbered_in(census, peer);
        self.front.lingerer.bury(move || {
            // Its head may have come to an end in the last moment.
            if !front.connections.is_in_work(peer) && front.descriptors.close(&numbers) {
                front.lost.add();
            }
        });
    }

    /// Connections with bytes that nobody reads lie in the library's queue behind silent ones.
    /// Each poke frees one thread, and it may take as many as there are silent ones; or more, when
    /// they lie behind some that were reset: those are not seen any more, and cost a thread each.
    fn wake_stuck(&mut self, census: &Census, sights: &[Sight]) {
        let mute = |sight: &&Sight| sight.activity == Activity::Mute && sight.age > STUCK_AFTER;
        let is_stuck = sights.iter().filter(mute).any(|sight| {
            find(census, sight.peer).is_some_and(|seen| seen.input() == Input::Waiting)
        });
        if !is_stuck {
            self.stuck = 0;
            return;
        }
        let silent = sights.iter().filter(|sight| sight.activity == Activity::Mute).count();
        let more = 1 << self.stuck.min(MOST_POKES.ilog2());
        self.stuck += 1;
        self.front.poker.poke(silent.max(more).min(MOST_POKES));
    }

    fn spare_descriptors(&self, census: &Census, sights: &[Sight]) {
        let limit = self.front.descriptors.limit;
        let water = |percent| limit.saturating_mul(percent) / 100;
        if census.open <= water(HIGH_WATER) {
            return;
        }
        // Each connection has two.
        let surplus = (census.open - water(LOW_WATER)).div_ceil(2);
        // Those that an earlier look has ended may still be known.
        let there = least_missed(sights).into_iter().filter(|peer| find(census, *peer).is_some());
        let ended = there.take(surplus);
        let count = ended.map(|peer| end(census, peer, Reason::Descriptors)).count();
        warn!("descriptors open={} limit={limit} ended={count}", census.open);
    }

    fn spare_memory(&mut self, census: &Census, sights: &[Sight]) {
        let Some(resident) = resident_memory() else { return };
        let explained =
            self.front.body_memory() as u64 + census.connections.len() as u64 * EACH_CONNECTION;
        let unexplained = resident.saturating_sub(explained);
        let floor = self.floor.map_or(unexplained, |floor| floor.min(unexplained));
        self.floor = Some(floor);
        if unexplained - floor <= UNEXPLAINED {
            return;
        }
        let ended = least_missed(sights).into_iter();
        let count = ended.map(|peer| end(census, peer, Reason::Memory)).count();
        warn!("memory resident_mb={} ended={count}", resident >> 20);
        // What the allocator keeps is the new normal.
        self.floor = Some(unexplained);
    }
}

/// Whether a connection is past a limit. `stall`: how long a client may stall.
fn past_limit(sight: &Sight, stall: Duration) -> Option<Reason> {
    let over = |limit: Duration, reason| (sight.age > limit).then_some(reason);
    match sight.activity {
        Activity::Mute => over(stall, Reason::NoHead),
        Activity::Idle => over(stall + IDLE_BONUS, Reason::Idle),
        Activity::Sending { before, bytes } => {
            let taken = before + sight.age;
            let is_slow = taken > stall && bytes < taken.as_secs() * SLOWEST_BODY;
            over(stall, Reason::StalledBody).or(is_slow.then_some(Reason::SlowBody))
        }
        Activity::Taking => over(stall, Reason::UnreadAnswer),
        Activity::Answered => over(ANSWER_LIMIT, Reason::UnreadAnswer),
        // It is not the client for whom these wait, and lingering has limits of its own.
        Activity::Waiting | Activity::Served | Activity::Lingering => None,
    }
}

/// Whether a connection has begun with something that is no request. What it was cannot be seen any
/// more: tiny_http has read it, and waits for the end of a line.
fn half_head(census: &Census, sight: &Sight) -> Option<Reason> {
    if sight.activity != Activity::Mute || sight.age < HALF_HEAD {
        return None;
    }
    let info = tcp_info::of(find(census, sight.peer)?.fd)?;
    (info.received > 0 && info.last_received >= HALF_HEAD).then_some(Reason::HalfHead)
}

/// Connections in the order in which they may go: those that have had their last answer, those that
/// never asked, then the idle ones, the longest first. Nothing that is in work is among them.
fn least_missed(sights: &[Sight]) -> Vec<SocketAddr> {
    let mut free: Vec<&Sight> = sights
        .iter()
        .filter(|sight| how_much_missed(sight.activity).is_some())
        .filter(|sight| sight.age >= how_long_spared(sight.activity))
        .collect();
    free.sort_by_key(|sight| (how_much_missed(sight.activity), std::cmp::Reverse(sight.age)));
    free.into_iter().map(|sight| sight.peer).collect()
}

/// `None`: it is in work, and may not go.
fn how_much_missed(activity: Activity) -> Option<u8> {
    match activity {
        Activity::Lingering => Some(0),
        Activity::Mute => Some(1),
        Activity::Idle => Some(2),
        Activity::Waiting
        | Activity::Sending { .. }
        | Activity::Served
        | Activity::Taking
        | Activity::Answered => None,
    }
}

/// How long a connection stays even if descriptors are scarce.
fn how_long_spared(activity: Activity) -> Duration {
    match activity {
        // Long enough to read an answer that is there already.
        Activity::Lingering => TICK,
        _ => JUST_COME,
    }
}

fn end(census: &Census, peer: SocketAddr, reason: Reason) {
    // Under a number of our own: between a look and the end another client may have got it.
    if let Some(connection) = find(census, peer).and_then(Connection::keep) {
        debug!("ended client={} reason={reason}", peer.ip());
        match reason {
            Reason::HalfHead => {
                info!(
                    "half_head client={}: it began with something that is no request of HTTP/1.1; `https://` or HTTP/2 on this port?",
                    peer.ip()
                );
                connection.send(NO_REQUEST);
                connection.shut();
            }
            // A farewell might make half an answer look whole; and whoever writes gets free.
            Reason::UnreadAnswer => connection.abort(),
            _ => connection.shut(),
        }
    }
}

fn find(census: &Census, peer: SocketAddr) -> Option<Connection> {
    let place = census.connections.binary_search_by_key(&peer, |seen| seen.peer).ok()?;
    Some(census.connections[place])
}

/// The resident memory of this process in bytes, where the system tells it.
fn resident_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoHead => "no_head",
            Self::HalfHead => "half_head",
            Self::Idle => "idle",
            Self::StalledBody => "stalled_body",
            Self::SlowBody => "slow_body",
            Self::UnreadAnswer => "unread_answer",
            Self::Descriptors => "descriptors",
            Self::Memory => "memory",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL: Duration = Duration::from_secs(60);

    fn sight(port: u16, activity: Activity, age: u64) -> Sight {
        let peer = SocketAddr::from(([127, 0, 0, 1], port));
        Sight { peer, activity, age: Duration::from_secs(age) }
    }

    fn judged(activity: Activity, age: u64) -> Option<Reason> {
        past_limit(&sight(1, activity, age), STALL)
    }

    #[test]
    fn a_connection_without_a_head_or_with_nothing_to_say_is_let_go() {
        assert_eq!(judged(Activity::Mute, 60), None);
        assert_eq!(judged(Activity::Mute, 61), Some(Reason::NoHead));
        assert_eq!(judged(Activity::Idle, 75), None);
        assert_eq!(judged(Activity::Idle, 76), Some(Reason::Idle));
    }

    #[test]
    fn a_body_may_be_slow_but_neither_stall_nor_dribble() {
        let body = |taken: u64, bytes, silent| {
            let before = Duration::from_secs(taken - silent);
            judged(Activity::Sending { before, bytes }, silent)
        };
        assert_eq!(body(59, 0, 59), None);
        assert_eq!(body(61, 0, 61), Some(Reason::StalledBody));
        assert_eq!(body(50, 10, 1), None);
        assert_eq!(body(100, 100 * SLOWEST_BODY, 1), None);
        assert_eq!(body(100, 100 * SLOWEST_BODY - 1, 1), Some(Reason::SlowBody));
    }

    #[test]
    fn what_is_in_work_has_limits_elsewhere() {
        assert_eq!(judged(Activity::Served, 100_000), None);
        assert_eq!(judged(Activity::Lingering, 100_000), None);
        assert_eq!(judged(Activity::Waiting, 100_000), None);
    }

    #[test]
    fn an_answer_is_to_be_taken() {
        assert_eq!(judged(Activity::Taking, 60), None);
        assert_eq!(judged(Activity::Taking, 61), Some(Reason::UnreadAnswer));
        assert_eq!(judged(Activity::Answered, 6), Some(Reason::UnreadAnswer));
    }

    #[test]
    fn who_had_its_last_answer_goes_first_then_who_never_asked_then_the_longest_idle() {
        let sights = [
            sight(1, Activity::Idle, 5),
            sight(2, Activity::Served, 900),
            sight(3, Activity::Mute, 1),
            sight(4, Activity::Idle, 50),
            sight(5, Activity::Mute, 30),
            sight(6, Activity::Lingering, 2),
        ];
        let ports: Vec<u16> = least_missed(&sights).iter().map(SocketAddr::port).collect();
        assert_eq!(ports, [6, 5, 3, 4, 1]);
    }
}
