//! Long life: hours of mixed load, a calendar that is set, pauses of the whole process.
//!
//! These take longer than a test may, and are asked for by `tests/life/run`.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]
#![allow(clippy::print_stdout, reason = "tables for whoever runs it")]

mod clock;
mod dice;
mod errands;
mod exchange;
mod mixed;
mod pauses;
mod rare;
mod upstream;
mod vitals;

use std::time::Duration;

use crate::harness::Builder;

/// A setting of `tests/life/run`, in the environment.
fn setting(name: &str, default: u64) -> u64 {
    let given = std::env::var_os(name);
    given.map_or(default, |text| text.to_str().unwrap().parse().unwrap())
}

/// Lets time pass: a pace and a pause are waits for nothing else.
#[expect(clippy::disallowed_methods, reason = "as it says")]
fn rest(duration: Duration) {
    std::thread::sleep(duration);
}

/// The process ends with the thread that started it, also when that is killed and when the process
/// is stopped (SIGSTOP) in that moment.
fn mortal(builder: Builder<'_>) -> Builder<'_> {
    builder.under(&["setpriv", "--pdeathsig", "KILL"])
}
