//! The integration tests: the real binary between a bare client and the DashScope stand-in.

mod harness;
mod standin;
