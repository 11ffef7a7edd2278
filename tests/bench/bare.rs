//! The memory of many streams where the program was started by hand, without what its unit tells
//! the C library, and whether it grows from one crowd to the next.

use crate::candidate::{Conditions, How};
use crate::report::{Report, Unit};
use crate::streams::{MOST, WORKERS, memory_of};
use crate::{Failure, Run};

pub(crate) const MOST_MEMORY: &str = "memory at 500 streams, started bare, most";
pub(crate) const FIRST_MEMORY: &str = "memory at 500 streams, started bare, first";

pub(crate) fn measure(run: &Run, report: &mut Report) -> Result<(), Failure> {
    let builds: Vec<_> =
        run.entrants.iter().filter(|entrant| matches!(entrant.how, How::Ours(_))).collect();
    let conditions = Conditions { workers: Some(WORKERS), is_bare: true, ..Conditions::default() };
    eprintln!("measuring: {} crowds of {} streams, started bare …", run.plan.crowds, MOST.streams);
    let mut found = Vec::new();
    for build in &builds {
        let candidate = build.start(conditions)?;
        let crowds = (0..run.plan.crowds).map(|_| memory_of(&candidate, MOST));
        let crowds = crowds.collect::<Result<Vec<_>, _>>()?;
        let first = crowds.first().copied().unwrap_or(f64::NAN);
        found.push(vec![vec![first, crowds.into_iter().fold(f64::NAN, f64::max)]]);
    }
    let figures = [FIRST_MEMORY, MOST_MEMORY].map(|name| (name.to_owned(), Unit::Mebibytes));
    report.add(&figures, builds, found);
    Ok(())
}
