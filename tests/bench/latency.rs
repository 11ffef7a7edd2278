//! Latency and throughput: every connection always has one request in flight.
//!
//! With one connection the latency is the time of a request on a machine that has nothing else
//! to do. With more it is what a request takes while the machine is as busy as it can be (two
//! cores that client, candidate and upstream share): most of it is waiting for the others, and
//! its mean is the number of connections divided by the throughput.

use std::time::Duration;

use dashscope_proxy::clock;

use crate::Failure;
use crate::client::Caller;
use crate::crowd::{Further, watch};
use crate::stats::{micros, p50_p99};
use crate::target::{Kind, Target};

pub(crate) const COUNTS: [usize; 4] = [1, 16, 64, 256];

/// Opens the connections one after another, each with a finished request on it before the next:
/// how a candidate takes a burst of new ones is not measured here.
pub(crate) fn open(target: &Target, count: usize) -> Result<Vec<Caller>, Failure> {
    let open = |_| {
        let mut caller = Caller::open(target, Kind::Small)?;
        caller.exchange()?;
        Ok(caller)
    };
    (0..count).map(open).collect()
}

/// Keeps the callers busy for `time`: p50 and p99 in microseconds, and requests per second.
pub(crate) fn turn(callers: &mut [Caller], time: Duration) -> Result<Vec<f64>, Failure> {
    let start = clock::instant();
    let found = match callers {
        [one] => alone(one, time)?,
        many => together(many, time)?,
    };
    let per_second = found.len() as f64 / start.elapsed().as_secs_f64();
    let [p50, p99] = p50_p99(found);
    Ok(vec![p50, p99, per_second])
}

/// One request after another, without a poll before each read.
fn alone(caller: &mut Caller, time: Duration) -> Result<Vec<f64>, Failure> {
    let end = clock::instant() + time;
    let mut found = Vec::new();
    while clock::instant() < end {
        found.push(micros(caller.exchange()?));
    }
    Ok(found)
}

/// The next request as soon as an answer is there, on every connection.
fn together(callers: &mut [Caller], time: Duration) -> Result<Vec<f64>, Failure> {
    let end = clock::instant() + time;
    let mut found = Vec::new();
    for caller in callers.iter_mut() {
        caller.send()?;
    }
    watch(callers, |caller| {
        let Some(took) = caller.read()? else { return Ok(Further::Waiting) };
        found.push(micros(took));
        if clock::instant() >= end {
            return Ok(Further::Through);
        }
        caller.send()?;
        Ok(Further::Waiting)
    })?;
    Ok(found)
}
