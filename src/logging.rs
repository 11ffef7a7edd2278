//! Where log lines go, and which never do.

mod direct;
mod writer;

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use env_logger::{Builder, Logger};
use log::{Level, Log, Metadata, Record};

use crate::{clock, redact};
use writer::Writer;

/// Libraries whose debug and trace lines print headers, and with them the key.
const TELLTALES: [&str; 2] = ["ureq", "rustls"];

/// The server library calls the end of its accept thread an error, also when it was asked for.
/// What matters of it is logged by `server`.
const ALARMIST: &str = "tiny_http";

/// The memory with which a line begins, in bytes.
const USUAL_LINE: usize = 320;

/// What writes to standard error; `None` where there is no thread for it.
static WRITER: OnceLock<Option<Arc<Writer>>> = OnceLock::new();

/// Starts logging to standard error. `filter` is in env_logger's notation; whatever it says,
/// ureq and rustls never go below info.
pub fn start(filter: &str) {
    let logger = Builder::new().parse_filters(filter).build();
    let level = logger.filter();
    if log::set_boxed_logger(Box::new(Guarded(logger))).is_ok() {
        log::set_max_level(level);
    }
}

/// env_logger's filter, and ours.
struct Guarded(Logger);

impl Log for Guarded {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        !is_kept_out(metadata) && self.0.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if !is_kept_out(record.metadata()) && self.0.matches(record) {
            let (time, level) = (clock::now(), record.level());
            let mut line = String::with_capacity(USUAL_LINE);
            // Memory takes everything.
            let _ = writeln!(line, "{time} {level:<5} {}", record.args());
            print(redact::log_line(&line).as_bytes());
        }
    }

    fn flush(&self) {}
}

/// Takes a text for standard error, and never waits for who reads that.
fn print(text: &[u8]) {
    match WRITER.get_or_init(|| Writer::start(io::stderr()).ok()) {
        Some(writer) => writer.take(text),
        // There is no thread to be had: it is better said late than not.
        None => {
            let _ = io::stderr().write_all(text);
        }
    }
}

/// Says something outside the log: why the process ends. Never waits, never fails.
pub fn say(text: &str) {
    print(format!("{text}\n").as_bytes());
}

/// Waits until all that was said is out, unless nobody takes it for this long. To be called
/// before the process ends.
pub fn finish(patience: Duration) {
    if let Some(Some(writer)) = WRITER.get() {
        writer.flush(patience);
    }
}

fn is_kept_out(metadata: &Metadata<'_>) -> bool {
    let is_telltale = TELLTALES.iter().any(|name| metadata.target().starts_with(name));
    is_telltale && metadata.level() > Level::Info || metadata.target().starts_with(ALARMIST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_that_print_headers_stay_at_info() {
        let filter = "trace,ureq=trace,ureq::run=trace,rustls=debug";
        let guarded = Guarded(Builder::new().parse_filters(filter).build());
        let enabled = |target, level| {
            guarded.enabled(&Metadata::builder().target(target).level(level).build())
        };
        for target in ["ureq", "ureq::run", "ureq_proto::util", "rustls::client"] {
            assert!(!enabled(target, Level::Debug) && !enabled(target, Level::Trace), "{target}");
            assert!(enabled(target, Level::Info), "{target}");
        }
        assert!(enabled("dashscope_proxy::proxy", Level::Trace));
    }
}
