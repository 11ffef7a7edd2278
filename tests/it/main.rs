//! The integration tests: the real binary between a bare client and the DashScope stand-in.

mod benches;
mod bodies_and_headers;
mod config;
mod counting;
mod demo;
mod early_answer;
mod envelope;
mod every_route;
mod exhaustion;
mod failover;
mod front;
mod harness;
mod models;
mod native;
mod pins;
mod prefer;
mod routes;
mod stale;
mod standin;
mod state;
mod stopping;
mod streaming;
mod uploads;
mod upstream;
