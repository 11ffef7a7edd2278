//! The memory of one connection to upstream.
//!
//! Hundreds of streams wait for their next event at once, and most connections lie in the pool: so
//! the way out has memory only while a request is being sent.

use std::ops::Range;

use ureq::unversioned::transport::Buffers;

/// The size of either buffer in bytes.
pub(super) const SIZE: usize = 16 * 1024;

#[derive(Debug, Default)]
pub(super) struct LeanBuffers {
    input: Vec<u8>,
    /// What has come and has not been taken.
    unread: Range<usize>,
    output: Vec<u8>,
    /// Whether something was taken the last time that ureq tried.
    progress: bool,
}

impl LeanBuffers {
    /// Gives the memory of what was sent back.
    pub(super) fn free_output(&mut self) {
        self.output = Vec::new();
    }

    /// Makes room for what comes: at least half a buffer.
    fn make_room(&mut self) {
        if self.input.len() - self.unread.end >= SIZE / 2 {
            return;
        }
        self.input.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        let size = (self.unread.end + SIZE / 2).max(SIZE);
        if self.input.len() < size {
            self.input.resize(size, 0);
        }
    }
}

impl Buffers for LeanBuffers {
    fn output(&mut self) -> &mut [u8] {
        self.output.resize(SIZE, 0);
        &mut self.output
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
    }

    fn input_consume(&mut self, amount: usize) {
        self.progress = amount > 0;
        self.unread.start += amount;
        if self.unread.is_empty() {
            self.unread = 0..0;
        }
    }

    fn tmp_and_output(&mut self) -> (&mut [u8], &mut [u8]) {
        self.make_room();
        self.output.resize(SIZE, 0);
        (&mut self.input[self.unread.end..], &mut self.output)
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
        assert!(buffers.input.len() <= 3 * SIZE, "what was taken makes room");
    }

    #[test]
    fn what_nobody_takes_is_kept_and_there_is_always_room() {
        let mut buffers = LeanBuffers::default();
        for _ in 0..100 {
            append(&mut buffers, &[7; 1000]);
            assert!(buffers.input_append_buf().len() >= SIZE / 2);
        }
        assert_eq!(buffers.input(), [7; 100_000]);
    }

    #[test]
    fn the_way_out_has_memory_only_while_it_is_used() {
        let mut buffers = LeanBuffers::default();
        assert_eq!(buffers.output().len(), SIZE);
        buffers.free_output();
        assert_eq!(buffers.output.capacity(), 0);
        let (tmp, output) = buffers.tmp_and_output();
        assert!(tmp.len() >= SIZE / 2 && output.len() == SIZE);
    }
}
