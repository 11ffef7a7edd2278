//! Starting: how long until it listens, and what it takes before it has done anything.

use std::thread;
use std::time::Duration;

use crate::candidate::{Conditions, Entrant, How};
use crate::report::{Report, Unit};
use crate::rounds::interleaved;
use crate::{Failure, Run};

/// How long a candidate is left alone before its memory is read: some of its threads and
/// children are still on their way when it listens.
const REST: Duration = Duration::from_millis(150);

pub(crate) fn measure(run: &Run, report: &mut Report) -> Result<(), Failure> {
    eprintln!("measuring: starts …");
    let mut all: Vec<&Entrant> = run.entrants.iter().filter(|entrant| entrant.starts()).collect();
    let found = interleaved(run.plan.rounds, &mut all, |entrant| {
        let candidate = entrant.start(Conditions::default())?;
        thread::park_timeout(REST);
        let time = candidate
            .process
            .as_ref()
            .map_or(f64::NAN, |process| process.start_time.as_secs_f64() * 1e3);
        Ok(vec![time, candidate.memory().0])
    })?;
    let figures = [
        ("start to listening".to_owned(), Unit::Milliseconds),
        ("memory idle".to_owned(), Unit::Mebibytes),
    ];
    report.add(&figures, all.iter().copied(), found);

    let builds: Vec<_> = all.iter().filter(|entrant| matches!(entrant.how, How::Ours(_))).collect();
    let sizes = builds.iter().map(|entrant| Ok(vec![vec![entrant.size_mib()?]]));
    let sizes = sizes.collect::<Result<_, Failure>>()?;
    let figure = ("binary size".to_owned(), Unit::Mebibytes);
    report.add(&[figure], builds.into_iter().copied(), sizes);
    Ok(())
}
