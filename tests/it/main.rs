//! The integration tests: the real binary between a bare client and the DashScope stand-in.

mod demo;
mod exhaustion;
mod harness;
mod standin;
mod state;
mod stopping;
mod streaming;
