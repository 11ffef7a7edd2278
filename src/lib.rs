//! A local reverse proxy that pools the free quota of several DashScope keys and models.
//!
//! # The way of a request
//!
//! head → auth → route → body → slot → upstream → verdict → relay → commit
//!
//! # Rooms
//!
//! Arrows point down: a room uses only what stands below it.
//!
//! | room | owns |
//! | --- | --- |
//! | [`cli`], `main.rs` | what was typed, signals, the final error |
//! | [`commands`] | status, reset, disable, enable, check: through the running proxy, or on its file |
//! | [`demo`] | the service in front of the stand-in |
//! | [`service`] | the process: start, watch, stop |
//! | `server` | connections: the only user of tiny_http |
//! | `proxy`, `admin` | one request from head to last byte; the pages of our own, and steering |
//! | `relay`, `upstream`, `store` | bytes back to the client; the only user of ureq; the state file |
//! | [`error`] | what the operator and clients are told |
//! | [`config`] | the environment, checked |
//! | `policy` | every decision, pure: pool, scheduler, benches, guard, verdict, limits, failover, route, body, headers, events, what answers used, the file's schema |
//! | `metrics`, `supervisor` | what Prometheus and systemd are told |
//! | [`signals`] | which signals ask for a stop |
//! | [`panics`], [`logging`], `log_text`, `secret`, `redact`, [`clock`], `allocator`, `tcp_info` | what everybody needs |
//! | [`standin`] | a DashScope on loopback for the demo and the tests; shares no code with the proxy |
//!
//! # Threads
//!
//! | thread | runs | may block on |
//! | --- | --- | --- |
//! | main | [`service::Service::run`] | signals, its own `/health` every 10 s, the drain |
//! | ctrl-c | [`signals`]' handler | signals; the log, for a moment |
//! | log | `logging::writer` | who reads standard error |
//! | intake | `server::gate` | tiny_http's queue of requests, nothing else |
//! | worker-N | `proxy::Proxy::serve` | the queue of jobs; then upstream, the client's socket, the state file (all with limits) |
//! | receiver | `server::bodies` | a client that sends its body slowly |
//! | responder | `admin`'s pages and steering, refusals | a client that takes them slowly, the state file |
//! | lingerer | `server::refusals` | nothing for long: what refused clients still send, in turn |
//! | undertaker | drops requests of connections that are shut | nothing for long |
//! | reaper | `server::reaper` | nothing; a self-connection when the library seems dead |
//! | poker | `server::poker` | a connection to ourselves |
//! | state-writer | `store::Store::run` | the disk |
//! | resolver | `upstream::resolver` | DNS, for a name that is already known |
//! | unnamed | tiny_http: one accepts, one per connection reads | clients |
//!
//! The scheduler stands behind one mutex that is held for single questions and never over IO.
//! Who holds the store's lock may take the scheduler's, not the other way round.

pub mod cli;
pub mod clock;
pub mod commands;
pub mod config;
pub mod demo;
pub mod error;
pub mod logging;
pub mod panics;
pub mod service;
pub mod signals;
pub mod standin;

mod admin;
mod allocator;
mod log_text;
mod metrics;
mod policy;
mod proxy;
mod redact;
mod relay;
mod secret;
mod server;
mod store;
mod supervisor;
mod tcp_info;
mod upstream;

#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
