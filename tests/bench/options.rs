//! The command line.

use lexopt::{Arg, ValueExt};

use crate::Failure;

pub(crate) const USAGE: &str = "\
cargo bench [-- OPTIONS]

  --quick               fewer and shorter rounds (about 10 s)
  --json                one JSON object per figure and target instead of the table
  --proxy URL           measure a proxy that already runs (its key bench-key-0123456789, its
                        upstream http://127.0.0.1:N/compatible-mode/v1) instead of starting ours
  --upstream-port N     the port of the upstream behind the proxy, for --proxy (else any free one)

A null test of the benchmark itself, whose ratios should be near 1:
  cargo bench -- --upstream-port 4100 --proxy http://127.0.0.1:4100";

#[derive(Debug, Default)]
pub(crate) struct Options {
    pub(crate) quick: bool,
    pub(crate) json: bool,
    pub(crate) proxy: Option<String>,
    pub(crate) upstream_port: u16,
}

impl Options {
    /// What was typed; `None` when the usage was asked for.
    pub(crate) fn from_command_line() -> Result<Option<Self>, Failure> {
        let mut options = Self::default();
        let mut parser = lexopt::Parser::from_env();
        while let Some(arg) = parser.next().map_err(wrong)? {
            match arg {
                Arg::Long("quick") => options.quick = true,
                Arg::Long("json") => options.json = true,
                Arg::Long("proxy") => {
                    let url = parser.value().and_then(|value| value.string()).map_err(wrong)?;
                    options.proxy = Some(url);
                }
                Arg::Long("upstream-port") => {
                    options.upstream_port =
                        parser.value().and_then(|value| value.parse()).map_err(wrong)?;
                }
                // Cargo tells every benchmark that it is one.
                Arg::Long("bench") => {}
                Arg::Long("help") | Arg::Short('h') => return Ok(None),
                other => return Err(wrong(other.unexpected())),
            }
        }
        Ok(Some(options))
    }
}

fn wrong(error: lexopt::Error) -> Failure {
    format!("{error} (see --help)")
}
