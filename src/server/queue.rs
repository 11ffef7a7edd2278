//! The queue of jobs, and the workers that wait for one.
//!
//! Jobs are taken in the order in which they came. The worker that fell asleep last is the first to
//! be woken: its stack and its memory are still warm.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// Where one worker waits.
pub(super) type Sleeper = Arc<Condvar>;

/// Jobs that no worker has taken yet. `J` is what workers do.
#[derive(Debug)]
pub(super) struct Queue<J> {
    state: Mutex<State<J>>,
}

#[derive(Debug)]
struct State<J> {
    /// Each with whether it found no worker waiting.
    jobs: VecDeque<(J, bool)>,
    sleeping: Vec<Sleeper>,
}

impl<J> Queue<J> {
    /// A queue without jobs or workers.
    pub(super) fn new() -> Self {
        Self { state: Mutex::new(State { jobs: VecDeque::new(), sleeping: Vec::new() }) }
    }

    /// Puts a job at the end. Never waits; how many there may be is `Admission`'s to decide.
    pub(super) fn push(&self, job: J) {
        let mut state = self.state.lock();
        let last = state.sleeping.pop();
        state.jobs.push_back((job, last.is_none()));
        drop(state);
        if let Some(sleeper) = last {
            sleeper.notify_one();
        }
    }

    /// A worker's next job, and whether that had to wait because every worker was busy. Waits until
    /// there is one.
    pub(super) fn next(&self, own: &Sleeper) -> (J, bool) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return job;
            }
            state.sleeping.push(Arc::clone(own));
            own.wait(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::clock;

    const LIMIT: Duration = Duration::from_secs(10);

    fn wait_for(queue: &Queue<u32>, is_so: impl Fn(&State<u32>) -> bool) {
        let deadline = clock::instant() + LIMIT;
        while !is_so(&queue.state.lock()) {
            assert!(clock::instant() < deadline, "{queue:?}");
            thread::yield_now();
        }
    }

    #[test]
    fn jobs_are_taken_in_the_order_in_which_they_came() {
        let (queue, own) = (Queue::new(), Sleeper::default());
        (0..5).for_each(|job| queue.push(job));
        let taken: Vec<_> = (0..5).map(|_| queue.next(&own)).collect();
        assert_eq!(taken, [0, 1, 2, 3, 4].map(|job| (job, true)));
    }

    #[test]
    fn the_worker_that_fell_asleep_last_is_woken_first() {
        let queue = Arc::new(Queue::new());
        let (say, said) = crossbeam_channel::unbounded();
        for worker in 0..3 {
            let (jobs, say) = (Arc::clone(&queue), say.clone());
            thread::spawn(move || say.send((worker, jobs.next(&Sleeper::default()))));
            wait_for(&queue, |state| state.sleeping.len() == worker + 1);
        }
        for (job, worker) in [(1, 2), (2, 1), (3, 0)] {
            queue.push(job);
            assert_eq!(said.recv_timeout(LIMIT), Ok((worker, (job, false))));
        }
    }

    #[test]
    fn jobs_from_all_sides_are_all_taken() {
        let queue = Arc::new(Queue::new());
        let (say, said) = crossbeam_channel::unbounded();
        for _ in 0..3 {
            let (queue, say) = (Arc::clone(&queue), say.clone());
            thread::spawn(move || {
                let own = Sleeper::default();
                while say.send(queue.next(&own).0).is_ok() {}
            });
        }
        thread::scope(|scope| {
            scope.spawn(|| (0..2000).for_each(|job| queue.push(job)));
            scope.spawn(|| (2000..4000).for_each(|job| queue.push(job)));
        });
        let taken: BTreeSet<u32> = (0..4000).map(|_| said.recv_timeout(LIMIT).unwrap()).collect();
        assert_eq!(taken.len(), 4000);
    }
}
