//! A local reverse proxy that pools the free quota of several DashScope keys and models.
pub mod admin;
pub mod cli;
pub mod clock;
pub mod config;
pub mod demo;
pub mod error;
pub mod log_text;
pub mod logging;
pub mod policy;
pub mod proxy;
pub mod relay;
pub mod secret;
pub mod server;
pub mod service;
pub mod standin;
pub mod store;
pub mod upstream;
