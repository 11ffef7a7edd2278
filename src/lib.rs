//! A local reverse proxy that pools the free quota of several DashScope keys and models.
pub mod clock;
pub mod secret;
