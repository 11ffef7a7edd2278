//! The measurements: each takes what it needs of one target and gives one round's figures.

use std::thread;
use std::time::Duration;

use dashscope_proxy::clock;

use crate::Failure;
use crate::client::Connection;
use crate::target::{Kind, Target};

/// How many connections are busy at once.
pub(crate) const CONNECTIONS: usize = 64;
/// How many threads keep them busy. Upstream and proxy have a thread per connection each; 64
/// more of the client would mostly measure how the machine switches between them. Two, each
/// going round its share of the connections, take two system calls per request and are enough
/// to keep any candidate busy.
const CLIENT_THREADS: usize = 2;

/// How long everything takes.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Counted rounds; one more goes first and is thrown away.
    pub(crate) rounds: usize,
    pub(crate) starts: usize,
    pub(crate) latency_time: Duration,
    pub(crate) throughput_time: Duration,
    /// Streams in a round, one after another.
    pub(crate) streams: usize,
}

impl Plan {
    pub(crate) const FULL: Self = Self {
        rounds: 5,
        starts: 7,
        latency_time: Duration::from_millis(1200),
        throughput_time: Duration::from_millis(1500),
        streams: 3,
    };
    pub(crate) const QUICK: Self = Self {
        rounds: 3,
        starts: 3,
        latency_time: Duration::from_millis(300),
        throughput_time: Duration::from_millis(500),
        streams: 1,
    };
}

/// A figure over the rounds. Lowest and highest belong to it: where the scheduler puts the
/// threads can change a latency fourfold from one round to the next, and a median hides that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let [low, median, high] = [0, 50, 100].map(|percent| percentile(&values, percent));
        Self { low, median, high }
    }
}

/// Measures the targets in turn, round after round, so that whatever disturbs the machine
/// disturbs all of them. Gives for each target what the rounds found for each figure.
pub(crate) fn interleaved<T>(
    rounds: usize,
    targets: &mut [T],
    mut measure: impl FnMut(&mut T) -> Result<Vec<f64>, Failure>,
) -> Result<Vec<Vec<Spread>>, Failure> {
    for target in targets.iter_mut() {
        measure(target)?;
    }
    let mut rounds_of: Vec<Vec<Vec<f64>>> = targets.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (target, found) in targets.iter_mut().zip(&mut rounds_of) {
            found.push(measure(target)?);
        }
    }
    Ok(rounds_of.iter().map(|rounds| spreads(rounds)).collect())
}

/// One request after another for `time`: p50 and p99 in microseconds.
pub(crate) fn latency(connection: &mut Connection, time: Duration) -> Result<Vec<f64>, Failure> {
    let end = clock::instant() + time;
    let mut found = Vec::new();
    let mut before = clock::instant();
    while before < end {
        connection.exchange()?;
        let after = clock::instant();
        found.push(micros(after - before));
        before = after;
    }
    found.sort_by(f64::total_cmp);
    Ok(vec![percentile(&found, 50), percentile(&found, 99)])
}

/// Many open connections to one target.
#[derive(Debug)]
pub(crate) struct Crowd(Vec<Connection>);

impl Crowd {
    /// Opens the connections one after another, each with a finished request on it before the
    /// next: tiny_http 0.12 may leave some of many connections that come at the same instant
    /// without a thread until others close. That flaw is for a test, not for a benchmark.
    pub(crate) fn open(target: &Target) -> Result<Self, Failure> {
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut connection = target.connect(Kind::Small)?;
            connection.exchange()?;
            connections.push(connection);
        }
        Ok(Self(connections))
    }
}

/// All connections busy for `time`: requests per second.
pub(crate) fn throughput(crowd: &mut Crowd, time: Duration) -> Result<Vec<f64>, Failure> {
    let share = crowd.0.len().div_ceil(CLIENT_THREADS);
    let start = clock::instant();
    let answers = thread::scope(|scope| {
        let threads: Vec<_> = crowd
            .0
            .chunks_mut(share)
            .map(|connections| scope.spawn(move || go_round(connections, time)))
            .collect();
        threads.into_iter().try_fold(0, |sum, thread| {
            let answers = thread.join().map_err(|_| "a client thread panicked".to_owned())?;
            Ok::<u64, Failure>(sum + answers?)
        })
    })?;
    Ok(vec![answers as f64 / start.elapsed().as_secs_f64()])
}

/// Takes the oldest answer and sends that connection's next request, again and again: but for
/// the one being read all connections have a request in flight. Gives the number of answers.
fn go_round(connections: &mut [Connection], time: Duration) -> Result<u64, Failure> {
    let end = clock::instant() + time;
    let mut answers = 0;
    for connection in connections.iter_mut() {
        connection.send()?;
    }
    while clock::instant() < end {
        for connection in connections.iter_mut() {
            connection.receive()?;
            connection.send()?;
            answers += 1;
        }
    }
    for connection in connections.iter_mut() {
        connection.receive()?;
        answers += 1;
    }
    Ok(answers)
}

/// Some streams, one after another: the median time to the first byte, and p50 and p99 of how
/// late an event was, in microseconds.
pub(crate) fn streaming(connection: &mut Connection, streams: usize) -> Result<Vec<f64>, Failure> {
    let mut first_bytes = Vec::new();
    let mut delays = Vec::new();
    for _ in 0..streams {
        let times = connection.stream()?;
        first_bytes.push(micros(times.first_byte));
        delays.extend(times.events.into_iter().map(micros));
    }
    delays.sort_by(f64::total_cmp);
    Ok(vec![median(first_bytes), percentile(&delays, 50), percentile(&delays, 99)])
}

/// The spread of each figure over the rounds.
fn spreads(rounds: &[Vec<f64>]) -> Vec<Spread> {
    let figures = rounds.first().map_or(0, Vec::len);
    (0..figures).map(|at| Spread::of(rounds.iter().map(|round| round[at]).collect())).collect()
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    percentile(&values, 50)
}

/// The nearest-rank percentile of sorted values; not a number when there are none.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}
