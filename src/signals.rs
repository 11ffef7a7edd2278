//! Signals that ask for a stop, and those that must not.

use std::fs;

use crossbeam_channel::Sender;
use nix::sys::signal::{SigSet, Signal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::StartupError;
use crate::logging;
use crate::panics::Event;

/// What ctrlc listens to.
const ASKING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// The exit code of a process that a signal ended, as shells count it (128 + SIGINT).
const INTERRUPTED_EXIT: i32 = 130;

/// How long the last lines of the log may wait for their reader when nothing else is waited for.
const IMPATIENCE: Duration = Duration::from_millis(100);

/// Whoever started this process may have told it to ignore a signal (`nohup`, `&` in a shell):
/// that stays so. ctrlc listens to all three, so these are kept from every thread; to be called
/// before there is a second one.
pub fn keep_ignored() {
    let Ok(status) = fs::read_to_string("/proc/self/status") else { return };
    // What was kept from the program that executed this one is so here as well.
    let ignored = mask(&status, "SigIgn:") | mask(&status, "SigBlk:");
    let ignored: SigSet = ASKING.into_iter().filter(|signal| is_in(*signal, ignored)).collect();
    let _ = ignored.thread_block();
}

/// A signal asks for a stop (ctrlc cannot tell them apart); a second one does not wait for it.
///
/// # Errors
/// When the system does not let us listen.
#[expect(clippy::disallowed_methods, reason = "a second signal must not wait for main")]
pub fn ask_for_stop(events: Sender<Event>) -> Result<(), StartupError> {
    let asked = AtomicBool::new(false);
    let handler = move || {
        if asked.swap(true, Ordering::Relaxed) {
            logging::finish(IMPATIENCE);
            std::process::exit(INTERRUPTED_EXIT);
        }
        let _ = events.send(Event::Stop);
    };
    ctrlc::set_handler(handler)
        .map_err(|error| StartupError::System(format!("failed to listen to signals: {error}")))
}

/// A line of `/proc/self/status`: a bit for each signal, from the lowest on.
fn mask(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0)
}

fn is_in(signal: Signal, mask: u64) -> bool {
    mask >> (signal as i32 - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_of_the_kernel_is_read() {
        let status = "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        let ignored = mask(status, "SigIgn:");
        assert!(is_in(Signal::SIGHUP, ignored) && is_in(Signal::SIGPIPE, ignored));
        assert!(!is_in(Signal::SIGINT, ignored) && !is_in(Signal::SIGTERM, ignored));
        assert_eq!(mask(status, "SigBlk:"), 0);
        assert_eq!(mask("", "SigIgn:"), 0);
    }
}
