//! Lines on their way to standard error, which may take them late or never.
//!
//! What cannot be written without waiting is left to one thread, so nobody else ever waits for
//! whoever reads the log. What that has not written yet is kept up to a limit; what does not fit is
//! dropped and counted, and the count is a line of its own once there is room again.

use std::io;
use std::mem;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use log::Level;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd;
use parking_lot::{Condvar, Mutex};

use super::direct::{Direct, WHOLE};
use crate::clock;

/// How many bytes wait at most: thousands of lines, in which a reader that keeps up may fall behind.
const MOST_WAITING: usize = 4 << 20;

/// How much memory is kept for the next lines, in bytes.
const USUAL_BATCH: usize = 64 << 10;

/// How long a stop waits for a reader who takes some of it, at most.
const LONGEST_FLUSH: Duration = Duration::from_secs(5);

/// How often the writer asks whether it may write where nobody tells it.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// The lines, and the thread that writes them.
#[derive(Debug)]
pub(super) struct Writer {
    direct: Option<Direct>,
    waiting: Mutex<Waiting>,
    /// Nothing waits, so that a line may take the short way.
    is_free: AtomicBool,
    /// Wakes the thread.
    wanted: Condvar,
    /// Wakes who waits for it.
    written: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: Vec<u8>,
    /// How many lines have come behind them and did not fit.
    dropped: u64,
    /// How many lines are missing in what is written, and that has not been said.
    untold: u64,
    /// How many bytes are being written.
    underway: usize,
    /// The thread has nothing to do.
    is_idle: bool,
    /// Grows with everything that gets out.
    progress: u64,
}

impl Writer {
    /// Starts the thread that writes.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(super) fn start(out: impl AsFd + Send + 'static) -> io::Result<Arc<Self>> {
        let writer = Arc::new(Self {
            direct: Direct::to(&out),
            waiting: Mutex::new(Waiting { is_idle: true, ..Waiting::default() }),
            is_free: AtomicBool::new(true),
            wanted: Condvar::new(),
            written: Condvar::new(),
        });
        let own = Arc::clone(&writer);
        thread::Builder::new().name("log".to_owned()).spawn(move || own.run(&out))?;
        Ok(writer)
    }

    /// Takes a line; never waits for anything but memory.
    pub(super) fn take(&self, mut line: &[u8]) {
        if let Some(direct) = self.direct.as_ref().filter(|_| self.is_free.load(Ordering::Relaxed))
        {
            line = direct.write(line);
            if line.is_empty() {
                return;
            }
        }
        let mut waiting = self.waiting.lock();
        let length = waiting.underway + waiting.lines.len() + line.len();
        // Behind one that did not fit nothing fits until that is said.
        if waiting.dropped > 0 || length > MOST_WAITING {
            waiting.dropped += 1;
            return;
        }
        waiting.lines.extend_from_slice(line);
        if mem::replace(&mut waiting.is_idle, false) {
            self.is_free.store(false, Ordering::Relaxed);
            self.wanted.notify_one();
        }
    }

    /// Waits until every line so far is out, or none has got out for `patience`.
    pub(super) fn flush(&self, patience: Duration) {
        let last = clock::instant() + LONGEST_FLUSH;
        let mut waiting = self.waiting.lock();
        while !waiting.is_idle {
            let before = waiting.progress;
            let until = last.min(clock::instant() + patience);
            let is_late = self.written.wait_until(&mut waiting, until).timed_out();
            if is_late && waiting.progress == before || clock::instant() >= last {
                return;
            }
        }
    }

    fn run(&self, out: &impl AsFd) {
        let (mut batch, mut is_torn) = (Vec::new(), false);
        loop {
            let dropped = self.next(&mut batch);
            self.tell_missing(out, &mut is_torn);
            let mut rest = &batch[..];
            while !rest.is_empty() {
                let piece = piece(rest);
                let outcome = put(out, piece);
                rest = &rest[piece.len()..];
                let mut waiting = self.waiting.lock();
                waiting.underway = rest.len();
                match outcome {
                    Ok(()) => waiting.progress += 1,
                    Err(Lost { begun }) => {
                        waiting.untold += memchr::memchr_iter(b'\n', piece).count() as u64;
                        is_torn |= begun;
                    }
                }
                self.written.notify_all();
            }
            if dropped > 0 {
                self.waiting.lock().untold += dropped;
                self.tell_missing(out, &mut is_torn);
            }
        }
    }

    /// Fills the batch with everything that waits, once there is something; how many lines are
    /// missing behind it.
    fn next(&self, batch: &mut Vec<u8>) -> u64 {
        batch.clear();
        batch.shrink_to(USUAL_BATCH);
        let mut waiting = self.waiting.lock();
        while waiting.lines.is_empty() && waiting.dropped == 0 {
            waiting.is_idle = true;
            // What is missing has to be said before anything else.
            self.is_free.store(waiting.untold == 0, Ordering::Relaxed);
            self.written.notify_all();
            self.wanted.wait(&mut waiting);
        }
        mem::swap(batch, &mut waiting.lines);
        waiting.underway = batch.len();
        mem::take(&mut waiting.dropped)
    }

    /// Says how many lines are missing here, if any.
    fn tell_missing(&self, out: &impl AsFd, is_torn: &mut bool) {
        let count = self.waiting.lock().untold;
        if count == 0 {
            return;
        }
        let (time, level) = (clock::now(), Level::Warn);
        // The line that is torn ends here.
        let before = if *is_torn { "\n" } else { "" };
        let line = format!(
            "{before}{time} {level:<5} log dropped={count}: standard error did not take them\n"
        );
        match put(out, line.as_bytes()) {
            Ok(()) => {
                self.waiting.lock().untold = 0;
                *is_torn = false;
            }
            Err(Lost { begun }) => *is_torn |= begun,
        }
    }
}

/// As many whole lines as are written at once, or a longer one alone.
fn piece(lines: &[u8]) -> &[u8] {
    let end_of_line = |bytes: &[u8]| memchr::memrchr(b'\n', bytes).map(|at| at + 1);
    let first = memchr::memchr(b'\n', lines).map_or(lines.len(), |at| at + 1);
    let fitting = lines.get(..WHOLE).unwrap_or(lines);
    &lines[..end_of_line(fitting).unwrap_or(first)]
}

/// It could not be written, or only its beginning.
struct Lost {
    begun: bool,
}

/// Writes all of it, however long that takes.
fn put(out: &impl AsFd, bytes: &[u8]) -> Result<(), Lost> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match unistd::write(out, rest) {
            Ok(count) => rest = &rest[count..],
            Err(Errno::EINTR) => {}
            // Somebody else who has it open does not want to wait.
            Err(Errno::EAGAIN) => await_room(out),
            Err(_) => return Err(Lost { begun: rest.len() < bytes.len() }),
        }
    }
    Ok(())
}

fn await_room(out: &impl AsFd) {
    let timeout = PollTimeout::try_from(ASK_AGAIN).unwrap_or(PollTimeout::MAX);
    let mut ready = [PollFd::new(out.as_fd(), PollFlags::POLLOUT)];
    // A terminal may say at once that it can, and then that it cannot.
    if poll(&mut ready, timeout).is_ok_and(|count| count > 0) {
        thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{BufRead, BufReader, Read};

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(50);

    fn line(number: usize) -> String {
        format!("line {number} {}\n", "x".repeat(200))
    }

    /// How many lines were read, and how many were said to be dropped; the rest is whole.
    fn counts(lines: impl Iterator<Item = String>) -> (usize, usize) {
        let (mut read, mut dropped) = (0, 0);
        for line in lines {
            match line.split_once("log dropped=") {
                Some((_, rest)) => {
                    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
                    dropped += digits.parse::<usize>().unwrap();
                }
                None => {
                    assert!(line.starts_with("line ") && line.ends_with("xx"), "{line}");
                    read += 1;
                }
            }
        }
        (read, dropped)
    }

    #[test]
    fn nothing_is_lost_where_the_reader_keeps_up_also_in_a_burst() {
        let (reader, out) = io::pipe().unwrap();
        let reading = thread::spawn(move || {
            counts(BufReader::new(reader).lines().map_while(Result::ok).take(10_000))
        });
        let writer = Writer::start(out).unwrap();
        thread::scope(|scope| {
            for part in 0..4 {
                let writer = &writer;
                scope.spawn(move || {
                    for number in 0..2_500 {
                        writer.take(line(part * 2_500 + number).as_bytes());
                    }
                });
            }
        });
        assert_eq!(reading.join().unwrap(), (10_000, 0));
    }

    #[test]
    fn where_nobody_reads_lines_are_dropped_and_counted_and_nobody_waits() {
        let (reader, out) = io::pipe().unwrap();
        let writer = Writer::start(out).unwrap();
        let count = 2 * MOST_WAITING / line(0).len();
        for number in 0..count {
            writer.take(line(number).as_bytes());
        }
        // Not for long, with nobody there.
        writer.flush(PATIENCE);
        // Somebody is there again. What does not come is told, perhaps in parts.
        let mut lines = BufReader::new(reader).lines().map_while(Result::ok);
        let (mut read, mut dropped) = (0, 0);
        while read + dropped < count {
            let (more, missing) = counts(lines.by_ref().take(1));
            (read, dropped) = (read + more, dropped + missing);
        }
        assert_eq!(read + dropped, count);
        assert!(dropped > count / 3, "{dropped} of {count}");
        writer.take(line(1).as_bytes());
        assert_eq!(counts(lines.take(1)), (1, 0), "from here on nothing is missing");
    }

    #[test]
    fn a_line_that_finds_room_is_out_at_once_and_in_order_with_those_that_did_not() {
        let (mut reader, out) = io::pipe().unwrap();
        let writer = Writer::start(out).unwrap();
        writer.take(b"first\n");
        assert!(writer.waiting.lock().is_idle, "nobody had to be woken");
        let mut read = [0; 6];
        reader.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"first\n");
        let text: String = (0..2_000).map(line).collect();
        (0..2_000).for_each(|number| writer.take(line(number).as_bytes()));
        let mut read = vec![0; text.len()];
        reader.read_exact(&mut read).unwrap();
        assert_eq!(read, text.as_bytes());
    }

    #[test]
    fn a_socket_takes_lines_as_a_pipe_does() {
        let (reader, out) = std::os::unix::net::UnixStream::pair().unwrap();
        let writer = Writer::start(out).unwrap();
        (0..5_000).for_each(|number| writer.take(line(number).as_bytes()));
        let lines = BufReader::new(reader).lines().map_while(Result::ok).take(5_000);
        assert_eq!(counts(lines), (5_000, 0));
    }

    #[test]
    fn a_flush_waits_for_what_gets_out() {
        let (reader, out) = io::pipe().unwrap();
        let writer = Writer::start(out).unwrap();
        (0..1_000).for_each(|number| writer.take(line(number).as_bytes()));
        let reading = thread::spawn(move || {
            counts(BufReader::new(reader).lines().map_while(Result::ok).take(1_000))
        });
        writer.flush(LONGEST_FLUSH);
        assert!(writer.waiting.lock().is_idle, "the pipe holds no 200 KB");
        assert_eq!(reading.join().unwrap(), (1_000, 0));
    }

    #[test]
    fn who_shares_standard_error_may_have_made_it_nonblocking() {
        let (mut reader, out) = io::pipe().unwrap();
        let flags = nix::fcntl::fcntl(&out, nix::fcntl::FcntlArg::F_GETFL).unwrap();
        let flags = nix::fcntl::OFlag::from_bits_retain(flags) | nix::fcntl::OFlag::O_NONBLOCK;
        nix::fcntl::fcntl(&out, nix::fcntl::FcntlArg::F_SETFL(flags)).unwrap();
        let writer = Writer::start(out).unwrap();
        let text: String = (0..1_000).map(line).collect();
        (0..1_000).for_each(|number| writer.take(line(number).as_bytes()));
        writer.flush(PATIENCE);
        let mut read = vec![0; text.len()];
        reader.read_exact(&mut read).unwrap();
        assert_eq!(read, text.as_bytes());
    }

    #[test]
    fn what_a_full_disk_or_a_closed_pipe_does_not_take_is_counted_and_harms_nobody() {
        let writer = Writer::start(File::options().write(true).open("/dev/full").unwrap()).unwrap();
        (0..3).for_each(|number| writer.take(line(number).as_bytes()));
        writer.flush(LONGEST_FLUSH);
        assert_eq!(writer.waiting.lock().untold, 3);
        let (reader, out) = io::pipe().unwrap();
        let writer = Writer::start(out).unwrap();
        drop(reader);
        writer.take(line(0).as_bytes());
        writer.flush(LONGEST_FLUSH);
        assert_eq!(writer.waiting.lock().untold, 1);
    }

    #[test]
    fn a_piece_is_of_whole_lines_that_the_kernel_keeps_together() {
        let short = line(1);
        let lines = short.repeat(100).into_bytes();
        let first = piece(&lines);
        assert!(first.len() <= WHOLE && first.ends_with(b"\n"));
        assert!(first.len() + short.len() > WHOLE, "as many as fit");
        let long = format!("{}\n{short}", "y".repeat(10_000)).into_bytes();
        assert_eq!(piece(&long).len(), 10_001);
        assert_eq!(piece(b"a\nb"), b"a\n");
        assert_eq!(piece(b"no end"), b"no end");
    }
}
