//! How often the state file is written, from the proxy's own count. A write is two fsyncs: the
//! file's and its folder's.

use crate::candidate::{Candidate, Conditions, How, with_all};
use crate::client::{Caller, Connection};
use crate::crowd::{Further, watch};
use crate::decode::excerpt;
use crate::report::{Report, Unit};
use crate::target::Kind;
use crate::{Failure, Run, latency};

const FSYNCS_A_WRITE: f64 = 2.0;
const CONNECTIONS: usize = 64;

pub(crate) fn measure(run: &Run, report: &mut Report) -> Result<(), Failure> {
    let builds = run.entrants.iter().filter(|entrant| matches!(entrant.how, How::Ours(_)));
    with_all(builds, Conditions::default(), |candidates| {
        eprintln!("measuring: state writes …");
        let count = run.plan.counted_requests;
        let found = candidates.iter().map(|candidate| {
            let one_by_one = per_request(candidate, 1, count)?;
            Ok(vec![vec![one_by_one, per_request(candidate, CONNECTIONS, count)?]])
        });
        let figures = [
            ("fsyncs per request, 1 connection".to_owned(), Unit::PerRequest),
            (format!("fsyncs per request, {CONNECTIONS} connections"), Unit::PerRequest),
        ];
        report.add(&figures, candidates, found.collect::<Result<_, Failure>>()?);
        Ok(())
    })
}

/// Fsyncs per request over about `count` requests on so many connections.
fn per_request(candidate: &Candidate, connections: usize, count: usize) -> Result<f64, Failure> {
    let mut callers = latency::open(&candidate.target, connections, Kind::Small)?;
    let before = writes(candidate)?;
    let mut left = count;
    for caller in &mut callers {
        caller.send()?;
    }
    watch(&mut callers, |caller: &mut Caller| {
        if caller.read()?.is_none() {
            return Ok(Further::Waiting);
        }
        left = left.saturating_sub(1);
        if left < connections {
            return Ok(Further::Through);
        }
        caller.send()?;
        Ok(Further::Waiting)
    })?;
    Ok((writes(candidate)? - before) * FSYNCS_A_WRITE / count as f64)
}

/// The count of the proxy's `/metrics`.
fn writes(candidate: &Candidate) -> Result<f64, Failure> {
    let mut connection = Connection::open(&candidate.target)?;
    connection.send(&candidate.target.metrics_request())?;
    let mut text = Vec::new();
    while !connection.read(|data| text.extend_from_slice(data))? {}
    std::str::from_utf8(&text)
        .ok()
        .and_then(|text| {
            let name = "dashscope_proxy_state_writes_total ";
            text.lines().find_map(|line| line.strip_prefix(name))?.parse().ok()
        })
        .ok_or_else(|| connection.wrong(&excerpt(&text)))
}
