//! Where log lines go, and which never do.

use std::io::Write;

use env_logger::{Builder, Logger};
use log::{Level, Log, Metadata, Record};

use crate::clock;

/// Libraries whose debug and trace lines print headers, and with them the key.
const TELLTALES: [&str; 2] = ["ureq", "rustls"];

/// The server library calls the end of its accept thread an error, also when it was asked for.
/// What matters of it is logged by `server`.
const ALARMIST: &str = "tiny_http";

/// Starts logging to standard error. `filter` is in env_logger's notation; whatever it says,
/// ureq and rustls never go below info.
pub fn start(filter: &str) {
    let logger = Builder::new()
        .parse_filters(filter)
        .format(|out, record| {
            let time = clock::now();
            writeln!(out, "{time} {:<5} {}", record.level(), record.args())
        })
        .build();
    let level = logger.filter();
    if log::set_boxed_logger(Box::new(Guarded(logger))).is_ok() {
        log::set_max_level(level);
    }
}

struct Guarded(Logger);

impl Log for Guarded {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        !is_kept_out(metadata) && self.0.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if !is_kept_out(record.metadata()) {
            self.0.log(record);
        }
    }

    fn flush(&self) {
        self.0.flush();
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
