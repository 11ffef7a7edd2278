//! Answers of several sizes and a very large request, one after another on one connection. Who is
//! measured has a core of its own.

use std::time::Duration;

use dashscope_proxy::clock;

use crate::candidate::{Candidate, Conditions, with_all};
use crate::client::Caller;
use crate::cores::Places;
use crate::report::{Report, Unit};
use crate::rounds::interleaved;
use crate::stats::{median, micros};
use crate::target::Kind;
use crate::{Failure, Run};

const ANSWERS: [(&str, usize); 3] = [("1 KB", 1 << 10), ("100 KB", 100 << 10), LARGE];
const LARGE: (&str, usize) = ("10 MB", 10 << 20);

pub(crate) fn measure(run: &Run, report: &mut Report) -> Result<(), Failure> {
    let conditions = Conditions { places: Places::TwoCores, ..Conditions::default() };
    with_all(&run.entrants, conditions, |candidates| {
        for (shown, size) in ANSWERS.into_iter().filter(|(shown, _)| run.options.wants_size(shown))
        {
            let what = format!("answer of {shown}");
            compare(run, report, candidates, (&what, size), Kind::Answer(size))?;
        }
        let (shown, size) = LARGE;
        if run.options.wants_size(shown) {
            let what = format!("request of {shown}");
            compare(run, report, candidates, (&what, size), Kind::Prompt(size))?;
        }
        Ok(())
    })
}

fn compare(
    run: &Run,
    report: &mut Report,
    candidates: &[Candidate],
    (what, size): (&str, usize),
    kind: Kind,
) -> Result<(), Failure> {
    eprintln!("measuring: {what} …");
    let open = |candidate: &Candidate| Caller::open(&candidate.target, kind);
    let mut all: Vec<_> = candidates.iter().map(open).collect::<Result<_, _>>()?;
    let found =
        interleaved(run.plan.rounds, &mut all, |caller| turn(caller, size, run.plan.body_time))?;
    let figures = [
        (format!("{what}, p50"), Unit::Microseconds),
        (format!("{what}, rate"), Unit::MebibytesPerSecond),
    ];
    // The rate of a small one is its latency once more.
    let is_large = size >= 1 << 20;
    report.add(&figures[..1 + usize::from(is_large)], candidates, found);
    Ok(())
}

fn turn(caller: &mut Caller, size: usize, time: Duration) -> Result<Vec<f64>, Failure> {
    let end = clock::instant() + time;
    let mut found = Vec::new();
    while found.is_empty() || clock::instant() < end {
        found.push(micros(caller.exchange()?));
    }
    let p50 = median(found);
    let mebibytes = size as f64 / f64::from(1 << 20);
    Ok(vec![p50, mebibytes / (p50 / 1e6)])
}
