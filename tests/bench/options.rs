//! The command line.

use std::path::PathBuf;
use std::str::FromStr;

use lexopt::{Arg, ValueExt};

use crate::Failure;

pub(crate) const USAGE: &str = "\
cargo bench [-- OPTIONS]

Measures upstream alone (`direct`), this proxy (`ours`) and, where they are installed, nginx and
HAProxy as plain reverse proxies, in turns. About seven minutes; --quick: one and a half.

  --quick               fewer and shorter rounds
  --only NAME[,NAME]    these measurements: start, latency (and throughput, of the smallest
                        requests), prompts (of real sizes and text), answers (of 300 events),
                        streams (paced, and their memory), burst (64 streams over new connections
                        at once), bare (500 streams without the unit's setting), bodies, rotation,
                        writes
  --counts N[,N]        these numbers of connections or streams only
  --sizes SIZE[,SIZE]   of prompts and bodies these sizes only: 2KB, 32KB, 560KB, 3.5MB; 1KB,
                        100KB, 10MB
  --targets NAME[,NAME] these besides `direct`
  --binary PATH         another build of this proxy beside ours, as `other`
  --rounds N            that many rounds
  --json                one JSON object per line instead of the tables
  --write-readme        put the whole table into README.md as well
  --original COMMAND    a proxy with the same settings and endpoints, as `original`: started by a
                        shell in a new folder, told its port by PORT
  --beside NAME=URL     a proxy that already runs, for NAME in the table: its key is
                        bench-key-0123456789, its upstream http://127.0.0.1:N/compatible-mode/v1
                        with N from --upstream-port; may be repeated
  --upstream-port N     the port of the upstream behind those (else any free one)

A null test of the benchmark itself, which should add nothing:
  cargo bench -- --upstream-port 4100 --beside null=http://127.0.0.1:4100 --targets null";

#[derive(Debug, Default)]
pub(crate) struct Options {
    pub(crate) quick: bool,
    pub(crate) json: bool,
    /// `None`: all of them.
    pub(crate) only: Option<Vec<Measurement>>,
    pub(crate) counts: Option<Vec<usize>>,
    pub(crate) sizes: Option<Vec<String>>,
    pub(crate) targets: Option<Vec<String>>,
    pub(crate) rounds: Option<usize>,
    pub(crate) binary: Option<PathBuf>,
    pub(crate) write_readme: bool,
    pub(crate) original: Option<String>,
    pub(crate) beside: Vec<(String, String)>,
    pub(crate) upstream_port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measurement {
    Start,
    Latency,
    Prompts,
    Answers,
    Streams,
    Burst,
    Bare,
    Bodies,
    Rotation,
    Writes,
}

impl FromStr for Measurement {
    type Err = Failure;

    fn from_str(name: &str) -> Result<Self, Failure> {
        match name {
            "start" => Ok(Self::Start),
            "latency" => Ok(Self::Latency),
            "prompts" => Ok(Self::Prompts),
            "answers" => Ok(Self::Answers),
            "streams" => Ok(Self::Streams),
            "burst" => Ok(Self::Burst),
            "bare" => Ok(Self::Bare),
            "bodies" => Ok(Self::Bodies),
            "rotation" => Ok(Self::Rotation),
            "writes" => Ok(Self::Writes),
            _ => Err(format!("there is no measurement `{name}`")),
        }
    }
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
                Arg::Long("write-readme") => options.write_readme = true,
                Arg::Long("original") => {
                    let line = parser.value().and_then(ValueExt::string).map_err(wrong)?;
                    options.original = Some(line);
                }
                Arg::Long("only") => options.only = Some(list(&mut parser)?),
                Arg::Long("counts") => options.counts = Some(list(&mut parser)?),
                Arg::Long("sizes") => options.sizes = Some(list(&mut parser)?),
                Arg::Long("targets") => options.targets = Some(list(&mut parser)?),
                Arg::Long("rounds") => {
                    options.rounds =
                        Some(parser.value().and_then(|value| value.parse()).map_err(wrong)?);
                }
                Arg::Long("binary") => {
                    let path = PathBuf::from(parser.value().map_err(wrong)?);
                    let path = std::path::absolute(&path)
                        .map_err(|cause| format!("failed to find `{}`: {cause}", path.display()))?;
                    options.binary = Some(path);
                }
                Arg::Long("beside") => {
                    let text = parser.value().and_then(ValueExt::string).map_err(wrong)?;
                    let (name, url) = text
                        .split_once('=')
                        .ok_or_else(|| format!("--beside `{text}` is not NAME=URL"))?;
                    options.beside.push((name.to_owned(), url.to_owned()));
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
        let is_part = options.only.is_some()
            || options.counts.is_some()
            || options.sizes.is_some()
            || options.targets.is_some();
        if options.write_readme && (is_part || options.quick) {
            return Err("--write-readme takes the place of the whole table: without --quick, --only, --counts, --sizes or --targets".to_owned());
        }
        Ok(Some(options))
    }

    pub(crate) fn wants(&self, measurement: Measurement) -> bool {
        self.only.as_ref().is_none_or(|only| only.contains(&measurement))
    }

    /// Whether a body of this size, `560 KB`, is wanted.
    pub(crate) fn wants_size(&self, shown: &str) -> bool {
        let shown = shown.replace(' ', "");
        let is_it = |size: &String| size.eq_ignore_ascii_case(&shown);
        self.sizes.as_ref().is_none_or(|sizes| sizes.iter().any(is_it))
    }

    /// Those of `counts` that are wanted.
    pub(crate) fn counts<'a>(&self, counts: &'a [usize]) -> impl Iterator<Item = usize> + 'a {
        let chosen = self.counts.clone();
        let is_wanted =
            move |count: &usize| chosen.as_ref().is_none_or(|chosen| chosen.contains(count));
        counts.iter().copied().filter(is_wanted)
    }
}

fn list<T>(parser: &mut lexopt::Parser) -> Result<Vec<T>, Failure>
where
    T: FromStr,
    T::Err: std::fmt::Display,
{
    let text = parser.value().and_then(ValueExt::string).map_err(wrong)?;
    text.split(',')
        .map(|item| item.parse().map_err(|cause| format!("`{item}`: {cause} (see --help)")))
        .collect()
}

fn wrong(error: lexopt::Error) -> Failure {
    format!("{error} (see --help)")
}
