//! What the proxy decides, without doing anything: pure functions and plain state.
//!
//! Nothing in here reads a clock, takes a lock, does IO or logs. Time comes in as an argument,
//! decisions go out as values, and the caller acts on them.

pub mod bench;
pub mod body;
pub mod estimate;
pub mod failover;
pub mod headers;
pub mod ids;
pub mod pool;
pub mod route;
pub mod scheduler;
pub mod sse;
pub mod state;
pub mod usage;
pub mod verdict;
