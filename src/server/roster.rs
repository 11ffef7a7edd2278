//! Who takes the next request from the library.
//!
//! A worker without work waits at the gate itself, so that a request goes from the library's thread
//! to the one that serves it without a third in between. One at a time, or two requests of one
//! connection might be looked at in the wrong order: it leads. With a request in hand it calls the
//! next leader before it serves. The others sleep, and the last to fall asleep is the first to be
//! woken: its stack and its memory are still warm. When no worker is free, the intake leads, which
//! serves nothing itself and so never has to wait.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};

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
    leader: Leader,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leader {
    /// None at this moment; one has been called.
    Called,
    Worker,
    Intake,
}

impl<J> Default for Roster<J> {
    fn default() -> Self {
        let state = State { jobs: VecDeque::new(), sleeping: Vec::new(), leader: Leader::Called };
        Self { state: Mutex::new(state), intakes: Condvar::new() }
    }
}

impl<J> Roster<J> {
    /// A worker's next job. `lead` waits at the gate; it gives what its caller is to do itself,
    /// or nothing after a call of `wake`.
    pub(super) fn next(&self, bell: &Bell, lead: impl Fn() -> Option<J>) -> J {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                self.replace_leader(&mut state);
                return job;
            }
            if state.leader != Leader::Called {
                state.sleeping.push(Arc::clone(bell));
                bell.wait(&mut state);
                continue;
            }
            if let Some(job) = Self::lead(&mut state, Leader::Worker, &lead) {
                self.replace_leader(&mut state);
                return job;
            }
        }
    }

    /// Hands a job over. `wake` makes a leader's wait end.
    pub(super) fn give(&self, job: J, wake: impl FnOnce()) {
        let mut state = self.state.lock();
        if !state.push(job) && state.leader == Leader::Worker {
            drop(state);
            wake();
        }
        // Else every worker is busy, and looks for a job when it is done.
    }

    /// The intake's life, until `is_over`: it leads while no worker is free to.
    pub(super) fn stand_in(&self, is_over: impl Fn() -> bool, lead: impl Fn() -> Option<J>) {
        let mut state = self.state.lock();
        // Asked under the lock, or the last `muster` could be missed.
        while !is_over() {
            if state.leader != Leader::Called || !state.sleeping.is_empty() {
                self.intakes.wait(&mut state);
                continue;
            }
            if let Some(job) = Self::lead(&mut state, Leader::Intake, &lead) {
                state.push(job);
            }
            self.replace_leader(&mut state);
        }
        self.replace_leader(&mut state);
    }

    /// Makes the intakes look whether their life is over.
    pub(super) fn muster(&self) {
        let _state = self.state.lock();
        self.intakes.notify_all();
    }

    /// Leads until `wait` is over, with the lock let go.
    fn lead(
        state: &mut MutexGuard<'_, State<J>>,
        leader: Leader,
        wait: impl Fn() -> Option<J>,
    ) -> Option<J> {
        state.leader = leader;
        let job = MutexGuard::unlocked(state, wait);
        state.leader = Leader::Called;
        job
    }

    /// Calls a leader, if there is none.
    fn replace_leader(&self, state: &mut State<J>) {
        if state.leader != Leader::Called {
            return;
        }
        if !state.wake_one() {
            self.intakes.notify_all();
        }
    }
}

impl<J> State<J> {
    /// Puts a job at the end of the line; says whether a worker was woken for it.
    fn push(&mut self, job: J) -> bool {
        self.jobs.push_back(job);
        self.wake_one()
    }

    /// Wakes the worker that fell asleep last, if one sleeps.
    fn wake_one(&mut self) -> bool {
        let last = self.sleeping.pop();
        last.is_some_and(|bell| {
            bell.notify_one();
            true
        })
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
            thread::spawn(move || intake.stand_in(|| false, || requests.recv().ok()?));
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
