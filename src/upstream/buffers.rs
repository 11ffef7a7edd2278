//! The memory of one connection to upstream.
//!
//! Hundreds of streams wait for their next event at once, and most connections lie in the pool: so
//! the way out has memory only while a request is being sent, and that memory goes round.

use std::mem;
use std::ops::Range;

use parking_lot::Mutex;
use ureq::unversioned::transport::Buffers;

use super::exchange;

/// How much of a stream leaves at once, and how large the way in may grow by itself, in bytes.
pub(super) const SIZE: usize = 16 * 1024;

/// With how much the way in begins: the events of a stream fit in.
const FIRST: usize = 2 * 1024;

/// Ways out that nobody uses, as many as there may be senders at one moment. (Allocated for each
/// request they would leave holes that soon are too small for the next.)
static SPARE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
const MOST_SPARE: usize = 8;
const LARGEST_SPARE: usize = 128 * 1024;

/// How much of a body at hand leaves at once at the most, in bytes.
const LARGEST_OUTPUT: usize = 512 * 1024;

#[derive(Debug, Default)]
pub(super) struct LeanBuffers {
    input: Vec<u8>,
    /// What has come and has not been taken.
    unread: Range<usize>,
    /// Whether the last read took all the room there was: more is waiting.
    was_full: bool,
    /// ureq's scratch, and behind it what leaves.
    output: Vec<u8>,
    /// Whether something was taken the last time that ureq tried.
    progress: bool,
}

impl LeanBuffers {
    /// Gives the memory of what was sent back.
    pub(super) fn free_output(&mut self) {
        if self.output.is_empty() {
            return;
        }
        let output = mem::take(&mut self.output);
        let mut spare = SPARE.lock();
        if spare.len() < MOST_SPARE && output.len() <= LARGEST_SPARE {
            spare.push(output);
        }
    }

    /// Makes room for what comes.
    fn make_room(&mut self) {
        self.input.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        let is_small = self.was_full && self.input.len() < SIZE;
        // A head or a chunk may be longer than all of it.
        let is_crowded = self.unread.end + FIRST > self.input.len();
        if is_small || is_crowded {
            self.input.resize((self.input.len() * 2).max(FIRST), 0);
        }
    }
}

impl Drop for LeanBuffers {
    fn drop(&mut self) {
        self.free_output();
    }
}

impl Buffers for LeanBuffers {
    fn output(&mut self) -> &mut [u8] {
        self.tmp_and_output().1
    }

    fn input(&self) -> &[u8] {
        &self.input[self.unread.clone()]
    }

    fn input_append_buf(&mut self) -> &mut [u8] {
        self.make_room();
        &mut self.input[self.unread.end..]
    }

    fn input_appended(&mut self, amount: usize) {
        self.unread.end += amount;
        self.was_full = self.unread.end == self.input.len();
    }

    fn input_consume(&mut self, amount: usize) {
        self.progress = amount > 0;
        self.unread.start += amount;
    }

    fn tmp_and_output(&mut self) -> (&mut [u8], &mut [u8]) {
        if self.output.is_empty() {
            let leaves = exchange::body_at_hand().clamp(SIZE, LARGEST_OUTPUT);
            let mut output = SPARE.lock().pop().unwrap_or_default();
            if output.len() < SIZE + leaves {
                output.resize(SIZE + leaves, 0);
            }
            self.output = output;
        }
        self.output.split_at_mut(SIZE)
    }

    fn can_use_input(&self) -> bool {
        !self.unread.is_empty() && self.progress
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(buffers: &mut LeanBuffers, bytes: &[u8]) {
        buffers.input_append_buf()[..bytes.len()].copy_from_slice(bytes);
        buffers.input_appended(bytes.len());
    }

    #[test]
    fn what_came_is_read_in_order_whatever_is_taken_when() {
        let mut buffers = LeanBuffers::default();
        let (mut written, mut read) = (0u32, 0u32);
        for step in 1..2000usize {
            let count = step * 7 % 1000;
            let bytes: Vec<u8> = (0..count).map(|at| (written + at as u32) as u8).collect();
            append(&mut buffers, &bytes);
            written += count as u32;
            let taken = buffers.input().len().min(step * 13 % 2000);
            for byte in &buffers.input()[..taken] {
                assert_eq!(*byte, read as u8);
                read += 1;
            }
            buffers.input_consume(taken);
            let is_left = read < written;
            assert_eq!(buffers.can_use_input(), taken > 0 && is_left);
        }
        assert!(buffers.input.len() <= 2 * SIZE + FIRST, "what was taken makes room");
    }

    #[test]
    fn the_way_in_grows_when_much_comes_at_once_and_no_further() {
        let mut buffers = LeanBuffers::default();
        append(&mut buffers, b"an event");
        assert_eq!(buffers.input.len(), FIRST);
        buffers.input_consume(8);
        for _ in 0..10 {
            let room = buffers.input_append_buf().len();
            buffers.input_appended(room);
            buffers.input_consume(room);
        }
        assert_eq!(buffers.input_append_buf().len(), SIZE);
    }

    #[test]
    fn what_nobody_takes_is_kept_and_there_is_always_room() {
        let mut buffers = LeanBuffers::default();
        for _ in 0..100 {
            append(&mut buffers, &[7; 1000]);
            assert!(buffers.input_append_buf().len() >= FIRST);
        }
        assert_eq!(buffers.input(), [7; 100_000]);
    }

    #[test]
    fn the_way_out_has_memory_only_while_it_is_used() {
        let mut buffers = LeanBuffers::default();
        exchange::begin(std::time::Duration::ZERO, None);
        assert_eq!(buffers.output().len(), SIZE);
        buffers.free_output();
        assert_eq!(buffers.output.capacity(), 0);
        let (tmp, output) = buffers.tmp_and_output();
        assert!(tmp.len() == SIZE && output.len() == SIZE);
    }
}
