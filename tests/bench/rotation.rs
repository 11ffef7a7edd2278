//! The cost of one rotation: a request that finds its slot exhausted and is served by the next,
//! against one that is served at once.
//!
//! What is between the two: a second call upstream, and the cooldown written to the disk before
//! the client hears of anything later.

use std::fs::File;
use std::io::Write;

use dashscope_proxy::clock;

use crate::candidate::{Candidate, Conditions, DIRECT, How, with_all};
use crate::client::{Caller, Connection};
use crate::process::Folder;
use crate::report::{Report, Unit};
use crate::rounds::interleaved;
use crate::stats::{median, micros};
use crate::target::Kind;
use crate::{Failure, Run};

/// The size of a small pool's state file.
const STATE_BYTES: usize = 2048;

pub(crate) fn measure(run: &Run, report: &mut Report) -> Result<(), Failure> {
    let builds = run.entrants.iter().filter(|entrant| matches!(entrant.how, How::Ours(_)));
    with_all(builds, Conditions::default(), |candidates| {
        eprintln!("measuring: rotations …");
        let mut all = Vec::new();
        for candidate in candidates {
            let caller = Caller::open(&candidate.target, Kind::Small)?;
            all.push((candidate, caller, Connection::open(&candidate.target)?));
        }
        let found = interleaved(run.plan.rounds, &mut all, |(candidate, caller, admin)| {
            turn(candidate, caller, admin, run.plan.rotations)
        })?;
        let figures = [
            ("request without a rotation".to_owned(), Unit::Microseconds),
            ("request with one".to_owned(), Unit::Microseconds),
            ("cost of a rotation".to_owned(), Unit::Microseconds),
        ];
        report.add(&figures, candidates, found);
        let syncs = (0..run.plan.rounds).map(|_| Ok(vec![sync(run.plan.rotations)?]));
        let syncs = syncs.collect::<Result<_, Failure>>()?;
        let figure = ("an fsync in that folder".to_owned(), Unit::Microseconds);
        // The disk by itself, as `direct` is upstream by itself.
        report.add(&[figure], [DIRECT], vec![syncs]);
        Ok(())
    })
}

fn turn(
    candidate: &Candidate,
    caller: &mut Caller,
    admin: &mut Connection,
    rotations: usize,
) -> Result<Vec<f64>, Failure> {
    let reset = candidate.target.reset_request();
    let (mut plain, mut rotating) = (Vec::new(), Vec::new());
    for _ in 0..rotations {
        plain.push(micros(caller.exchange()?));
        candidate.upstream.refuse(1);
        rotating.push(micros(caller.exchange()?));
        // Or the pool would soon be used up.
        admin.send(&reset)?;
        while !admin.read(|_| {})? {}
    }
    let (plain, rotating) = (median(plain), median(rotating));
    Ok(vec![plain, rotating, rotating - plain])
}

/// How long it takes to write a file of the state's size through to the disk; the median.
fn sync(times: usize) -> Result<f64, Failure> {
    let folder = Folder::new()?;
    let path = folder.path().join("synced");
    let once = |_| {
        let mut file = File::create(&path)?;
        file.write_all(&[b'x'; STATE_BYTES])?;
        let before = clock::instant();
        file.sync_all()?;
        Ok(micros(before.elapsed()))
    };
    let times = (0..times).map(once).collect::<std::io::Result<Vec<_>>>();
    times.map(median).map_err(|cause| format!("failed to write `{}`: {cause}", path.display()))
}
