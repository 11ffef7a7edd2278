//! A local reverse proxy that pools the free quota of several DashScope keys and models.
pub mod clock;
pub mod config;
pub mod error;
pub mod policy;
pub mod relay;
pub mod secret;
pub mod standin;
pub mod store;
pub mod upstream;
