//! Who takes the next request from the library.
//!
//! A worker without work waits at the gate itself, so that a request goes from the library's thread
//! to the one that serves it without a third in between. One at a time, or two requests of one
//! connection might be looked at in the wrong order: it leads. With a request in hand it calls the
//! next leader; but if it is the only one with work, not before it has to wait (`lead`). The others
//! sleep, and the last to fall asleep is the first to be woken: its stack and its memory are still
//! warm. When no worker is free, the intake leads, which serves nothing itself and so never has to
//! wait.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::lead;

/// Where a worker sleeps.
pub(super) type Bell = Arc<Condvar>;

/// The workers' order of duty. `J` is what they do.
#[derive(Debug)]
pub(super) struct Roster<J> {
    workers: usize,
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
    /// How often a leader went on leading.
    terms: u64,
    /// The term in which the leader was away at the last look.
    seen: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leader {
    /// None at this moment; one has been called.
    Called,
    Worker,
    Intake,
    /// A worker that serves what it took and has not had to wait so far, in this term.
    Away(u64),
}

impl<J> Roster<J> {
    /// Nobody leads, until one of so many workers asks for work.
    pub(super) fn new(workers: usize) -> Self {
        let state = State {
            jobs: VecDeque::new(),
            sleeping: Vec::new(),
            leader: Leader::Called,
            terms: 0,
            seen: 0,
        };
        Self { workers, state: Mutex::new(state), intakes: Condvar::new() }
    }

    /// A worker's next job. `lead` waits at the gate; it gives what its caller is to do itself,
    /// or nothing after a call of `wake`.
    pub(super) fn next(&self, bell: &Bell, lead: impl Fn() -> Option<J>) -> J {
        let term = lead::end();
        let mut state = self.state.lock();
        if term.is_some_and(|term| state.leader == Leader::Away(term)) {
            // Back without having waited: nobody else has been called.
            state.leader = Leader::Called;
        }
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
                if state.sleeping.len() + 1 == self.workers {
                    state.terms += 1;
                    state.leader = Leader::Away(state.terms);
                    lead::begin(state.terms);
                } else {
                    self.replace_leader(&mut state);
                }
                return job;
            }
        }
    }

    /// Calls another leader in the place of the one that is away in this term.
    pub(super) fn relieve(&self, term: u64) {
        let mut state = self.state.lock();
        if state.leader == Leader::Away(term) {
            self.relieve_leader(&mut state);
        }
    }

    /// Relieves a leader that was away at the last look as well: it waits for something that
    /// nobody thought of. Says whether there was one.
    pub(super) fn look(&self) -> bool {
        let mut state = self.state.lock();
        let Leader::Away(term) = state.leader else { return false };
        let is_stuck = mem::replace(&mut state.seen, term) == term;
        if is_stuck {
            self.relieve_leader(&mut state);
        }
        is_stuck
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
        let mut is_replaced = false;
        // Asked under the lock, or the last `muster` could be missed.
        while !is_over() {
            let is_called = state.leader == Leader::Called && state.sleeping.is_empty();
            if mem::take(&mut is_replaced) || !is_called {
                self.intakes.wait(&mut state);
                continue;
            }
            if let Some(job) = Self::lead(&mut state, Leader::Intake, &lead) {
                state.push(job);
            }
            is_replaced = self.replace_leader(&mut state);
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

    fn relieve_leader(&self, state: &mut State<J>) {
        state.leader = Leader::Called;
        self.replace_leader(state);
    }

    /// Calls a leader, if there is none; says whether that is a worker.
    fn replace_leader(&self, state: &mut State<J>) -> bool {
        if state.leader != Leader::Called {
            return false;
        }
        let is_worker = state.wake_one();
        if !is_worker {
            self.intakes.notify_all();
        }
        is_worker
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
    use crate::clock;

    const LIMIT: Duration = Duration::from_secs(10);

    /// A gate: what is sent comes out at one leader; `None` is a wake.
    type Gate = (Sender<Option<u32>>, Receiver<Option<u32>>);

    /// What a worker does with its job, one order after the other.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Order {
        /// It is done, and looks for the next.
        Next,
        /// It says that it is going to wait.
        Wait,
    }

    /// A roster with an intake and workers, each of which says what it took.
    struct Crew {
        roster: Arc<Roster<u32>>,
        gate: Sender<Option<u32>>,
        taken: Receiver<(usize, u32)>,
        orders: Vec<Sender<Order>>,
    }

    impl Crew {
        /// The intake leads first, as in a new server.
        fn of(workers: usize) -> Self {
            let roster = Arc::new(Roster::new(workers));
            let (gate, requests): Gate = unbounded();
            let (take, taken) = unbounded();
            let mut crew = Self { roster, gate, taken, orders: Vec::new() };
            let (intake, arrivals) = (Arc::clone(&crew.roster), requests.clone());
            thread::spawn(move || intake.stand_in(|| false, || arrivals.recv().ok()?));
            crew.wait_for(|state| state.leader == Leader::Intake);
            for number in 0..workers {
                let (roster, requests) = (Arc::clone(&crew.roster), requests.clone());
                let take = take.clone();
                let (order, given) = unbounded();
                crew.orders.push(order);
                thread::spawn(move || {
                    let (bell, followed) = (Bell::default(), Arc::clone(&roster));
                    lead::ends_with(move |term| followed.relieve(term));
                    while take.send((number, roster.next(&bell, || requests.recv().ok()?))).is_ok()
                    {
                        while given.recv() == Ok(Order::Wait) {
                            lead::pass_on();
                        }
                    }
                });
            }
            crew
        }

        /// One of which a worker leads and the others sleep.
        fn at_rest(workers: usize) -> Self {
            let crew = Self::of(workers);
            crew.wait_for(|state| state.sleeping.len() == workers);
            // Nobody asks: the intake's wait is over, and it calls a worker.
            crew.gate.send(None).unwrap();
            crew.rest();
            crew
        }

        /// Waits until a worker leads and the others sleep.
        fn rest(&self) {
            let others = self.orders.len() - 1;
            self.wait_for(|state| state.leader == Leader::Worker && state.sleeping.len() == others);
        }

        fn wait_for(&self, is_so: impl Fn(&State<u32>) -> bool) {
            let deadline = clock::instant() + LIMIT;
            while !is_so(&self.roster.state.lock()) {
                assert!(clock::instant() < deadline, "{:?}", self.roster);
                thread::yield_now();
            }
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

        fn order(&self, worker: usize, order: Order) {
            self.orders[worker].send(order).unwrap();
        }
    }

    #[test]
    fn every_job_is_taken_while_workers_are_free() {
        let crew = Crew::of(4);
        crew.ask(1);
        crew.give(2);
        crew.ask(3);
        crew.give(4);
        let taken: Vec<_> = (0..4)
            .map(|_| {
                let (worker, job) = crew.take();
                crew.order(worker, Order::Wait);
                (worker, job)
            })
            .collect();
        let jobs: BTreeSet<_> = taken.iter().map(|(_, job)| *job).collect();
        let workers: BTreeSet<_> = taken.iter().map(|(worker, _)| *worker).collect();
        assert_eq!((jobs.len(), workers.len()), (4, 4));
    }

    #[test]
    fn the_intake_leads_until_its_wait_is_over_and_a_worker_is_free() {
        for workers in [1, 2, 5] {
            let crew = Crew::at_rest(workers);
            let busy: Vec<_> = (0..workers)
                .map(|job| {
                    crew.ask(job as u32);
                    let (worker, _) = crew.take();
                    crew.order(worker, Order::Wait);
                    worker
                })
                .collect();
            crew.wait_for(|state| state.leader == Leader::Intake);
            busy.into_iter().for_each(|worker| crew.order(worker, Order::Next));
            crew.wait_for(|state| state.sleeping.len() == workers);
            crew.gate.send(None).unwrap();
            crew.rest();
        }
    }

    #[test]
    fn who_is_alone_goes_on_leading_until_it_waits() {
        let crew = Crew::at_rest(3);
        crew.ask(1);
        let (first, _) = crew.take();
        for job in 2..20 {
            crew.order(first, Order::Next);
            crew.ask(job);
            assert_eq!(crew.take(), (first, job), "nobody else was called");
        }
        crew.ask(20);
        assert!(crew.taken.recv_timeout(Duration::from_millis(20)).is_err(), "nobody leads");
        crew.order(first, Order::Wait);
        let (second, job) = crew.take();
        assert!(second != first && job == 20);
        crew.ask(21);
        assert_eq!(crew.take().1, 21, "who is not alone is followed at once");
    }

    #[test]
    fn what_is_given_while_the_leader_is_away_is_taken_at_once() {
        let crew = Crew::at_rest(2);
        crew.ask(1);
        let (first, _) = crew.take();
        crew.give(2);
        assert_eq!(crew.take(), (1 - first, 2));
        crew.give(3);
        crew.order(first, Order::Next);
        assert_eq!(crew.take(), (first, 3));
    }

    #[test]
    fn a_leader_that_waits_without_a_word_is_relieved_at_the_second_look() {
        let crew = Crew::at_rest(2);
        crew.ask(1);
        let (first, _) = crew.take();
        assert!(!crew.roster.look() && crew.roster.look() && !crew.roster.look());
        crew.ask(2);
        assert_eq!(crew.take(), (1 - first, 2));
        // It comes back, and is not taken for the leader that it was.
        crew.order(first, Order::Next);
        crew.order(1 - first, Order::Next);
        crew.ask(3);
        assert_eq!(crew.take().1, 3);
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
            crew.order(0, Order::Next);
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
                    let (worker, job) = crew.take();
                    crew.order(worker, Order::Next);
                    job
                })
                .collect();
            assert_eq!(taken.len(), 4000);
        });
    }
}
