//! Who takes the next request from the library.
//!
//! Workers without work wait at the gate themselves, so that a request goes from the library's
//! thread to the one that serves it without a third in between. Two at a time: when one has got a
//! request, the other is there for the next, and nobody has to be woken. The rest sleep, and the
//! last to fall asleep is the first to be woken: its stack and its memory are still warm. When no
//! worker is free, the intake waits at the gate, which serves nothing itself and so always can.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// How many workers wait at the gate.
pub(super) const AT_THE_GATE: usize = 2;

/// Where a worker sleeps.
pub(super) type Bell = Arc<Condvar>;

/// The workers' order of duty. `J` is what they do.
#[derive(Debug)]
pub(super) struct Roster<J> {
    state: Mutex<State<J>>,
    /// Where intakes sleep.
    intakes: Condvar,
}

#[derive(Debug)]
struct State<J> {
    /// What no worker has taken yet.
    jobs: VecDeque<J>,
    sleeping: Vec<Bell>,
    /// Workers at the gate, and whether an intake is.
    waiting: usize,
    intake_waits: bool,
}

impl<J> Default for Roster<J> {
    fn default() -> Self {
        let (jobs, sleeping) = (VecDeque::new(), Vec::new());
        let state = State { jobs, sleeping, waiting: 0, intake_waits: false };
        Self { state: Mutex::new(state), intakes: Condvar::new() }
    }
}

impl<J> Roster<J> {
    /// A worker's next job. `wait` is its time at the gate; it gives what the worker is to do, or
    /// nothing, after a call of `wake` at the latest.
    pub(super) fn next(&self, bell: &Bell, wait: impl Fn() -> Option<J>) -> J {
        let mut state = self.state.lock();
        loop {
            let mut job = state.jobs.pop_front();
            if job.is_none() && state.waiting < AT_THE_GATE {
                state.waiting += 1;
                drop(state);
                job = wait();
                state = self.state.lock();
                state.waiting -= 1;
            } else if job.is_none() {
                state.sleeping.push(Arc::clone(bell));
                bell.wait(&mut state);
            }
            if let Some(job) = job {
                self.man_the_gate(&mut state);
                return job;
            }
        }
    }

    /// Hands a job over. `wake` ends the time at the gate of one who waits there.
    pub(super) fn give(&self, job: J, wake: impl FnOnce()) {
        let mut state = self.state.lock();
        state.jobs.push_back(job);
        if let Some(bell) = state.sleeping.pop() {
            bell.notify_one();
        } else if state.waiting > 0 {
            drop(state);
            wake();
        }
        // Else every worker is busy, and looks for a job when it is done.
    }

    /// The intake's life, until `is_over`: it waits at the gate while no worker does.
    pub(super) fn stand_in(
        &self,
        is_over: impl Fn() -> bool,
        wait: impl Fn() -> Option<J>,
        wake: impl Fn(),
    ) {
        while !is_over() {
            let mut state = self.state.lock();
            if state.is_manned() || !state.sleeping.is_empty() {
                self.man_the_gate(&mut state);
                self.intakes.wait(&mut state);
                continue;
            }
            state.intake_waits = true;
            drop(state);
            let job = wait();
            self.state.lock().intake_waits = false;
            job.into_iter().for_each(|job| self.give(job, &wake));
        }
        self.man_the_gate(&mut self.state.lock());
    }

    /// Makes the intakes look whether they are still needed.
    pub(super) fn muster(&self) {
        let _state = self.state.lock();
        self.intakes.notify_all();
    }

    /// Calls somebody to the gate, if there is nobody.
    fn man_the_gate(&self, state: &mut State<J>) {
        if state.is_manned() {
            return;
        }
        match state.sleeping.pop() {
            Some(bell) => drop(bell.notify_one()),
            None => drop(self.intakes.notify_all()),
        }
    }
}

impl<J> State<J> {
    fn is_manned(&self) -> bool {
        self.waiting > 0 || self.intake_waits
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::thread;
    use std::time::Duration;

    use crossbeam_channel::{Receiver, Sender, unbounded};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// A gate: what is sent comes out at one leader; `None` is a wake.
    type Gate = (Sender<Option<u32>>, Receiver<Option<u32>>);

    /// A roster with an intake and workers, each of which says what it took and then waits until
    /// it may go on.
    struct Crew {
        roster: Arc<Roster<u32>>,
        gate: Sender<Option<u32>>,
        taken: Receiver<(usize, u32)>,
        go_on: Sender<()>,
    }

    impl Crew {
        fn of(workers: usize) -> Self {
            let roster = Arc::<Roster<u32>>::default();
            let (gate, requests): Gate = unbounded();
            let (take, taken) = unbounded();
            let (go_on, release) = unbounded::<()>();
            for number in 0..workers {
                let (roster, requests) = (Arc::clone(&roster), requests.clone());
                let (take, release) = (take.clone(), release.clone());
                thread::spawn(move || {
                    let bell = Bell::default();
                    while take.send((number, roster.next(&bell, || requests.recv().ok()?))).is_ok()
                        && release.recv().is_ok()
                    {}
                });
            }
            let intake = Arc::clone(&roster);
            let waker = gate.clone();
            thread::spawn(move || {
                let wake = || waker.send(None).unwrap();
                intake.stand_in(|| false, || requests.recv().ok()?, wake);
            });
            Self { roster, gate, taken, go_on }
        }

        fn ask(&self, job: u32) {
            self.gate.send(Some(job)).unwrap();
        }

        fn give(&self, job: u32) {
            self.roster.give(job, || self.gate.send(None).unwrap());
        }

        fn take(&self) -> (usize, u32) {
            self.taken.recv_timeout(LIMIT).expect("somebody takes it")
        }
    }

    #[test]
    fn every_job_is_taken_while_workers_are_free() {
        let crew = Crew::of(4);
        crew.ask(1);
        crew.give(2);
        crew.ask(3);
        crew.give(4);
        let taken: BTreeSet<_> = (0..4).map(|_| crew.take()).collect();
        let jobs: BTreeSet<_> = taken.iter().map(|(_, job)| *job).collect();
        let workers: BTreeSet<_> = taken.iter().map(|(worker, _)| *worker).collect();
        assert_eq!((jobs.len(), workers.len()), (4, 4));
    }

    #[test]
    fn with_no_worker_free_jobs_wait_and_are_taken_in_order() {
        let crew = Crew::of(1);
        crew.ask(1);
        assert_eq!(crew.take(), (0, 1));
        for job in 2..6 {
            crew.ask(job);
        }
        crew.give(6);
        let taken = (2..=6).map(|_| {
            crew.go_on.send(()).unwrap();
            crew.take().1
        });
        let (given, asked): (Vec<u32>, Vec<u32>) = taken.partition(|job| *job == 6);
        assert_eq!((given, asked), (vec![6], vec![2, 3, 4, 5]));
    }

    #[test]
    fn jobs_from_all_sides_are_all_taken() {
        let crew = Crew::of(3);
        thread::scope(|scope| {
            scope.spawn(|| (0..2000).for_each(|job| crew.ask(job)));
            scope.spawn(|| (2000..4000).for_each(|job| crew.give(job)));
            let taken: BTreeSet<u32> = (0..4000)
                .map(|_| {
                    let (_, job) = crew.take();
                    crew.go_on.send(()).unwrap();
                    job
                })
                .collect();
            assert_eq!(taken.len(), 4000);
        });
    }
}
