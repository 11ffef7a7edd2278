//! What the proxy decides, without doing anything: pure functions and plain state.
//!
//! Nothing in here reads a clock, takes a lock, does IO or logs. Time comes in as an argument,
//! decisions go out as values, and the caller acts on them.

pub(crate) mod bench;
pub(crate) mod body;
pub(crate) mod bound;
pub(crate) mod charge;
pub(crate) mod estimate;
pub(crate) mod failover;
pub(crate) mod guard;
pub(crate) mod headers;
pub(crate) mod ids;
pub(crate) mod limits;
pub(crate) mod members;
pub(crate) mod meter;
pub(crate) mod pool;
pub(crate) mod redirect;
pub(crate) mod retry_after;
pub(crate) mod route;
pub(crate) mod scheduler;
pub(crate) mod sse;
pub(crate) mod state;
pub(crate) mod usage;
pub(crate) mod verdict;
