//! What is said to systemd, if it listens: readiness, progress, the end.
//!
//! Without `NOTIFY_SOCKET` every call does nothing.

use std::time::Duration;

use log::debug;
use sd_notify::NotifyState;

/// How much longer than it says itself a stop may go on, so that systemd does not cut it short
/// between two signs of life.
const MARGIN: Duration = Duration::from_secs(10);

/// How often a sign of life is due: a third of the watchdog's limit, if there is one.
pub(crate) fn watchdog_period() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|limit| limit / 3)
}

/// Requests are served from now on.
pub(crate) fn ready(address: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(&format!("listening on {address}"))]);
}

/// The process has just proved that it answers, or that its drain goes on.
pub(crate) fn alive() {
    tell(&[NotifyState::Watchdog]);
}

/// The process stops, and may take this long.
pub(crate) fn stopping(longest: Duration) {
    tell(&[NotifyState::Stopping, extension(longest)]);
}

/// The stop goes on for at most this long.
pub(crate) fn still_stopping(longest: Duration) {
    tell(&[NotifyState::Watchdog, extension(longest)]);
}

fn extension(longest: Duration) -> NotifyState<'static> {
    let micros = (longest + MARGIN).as_micros();
    NotifyState::ExtendTimeoutUsec(u32::try_from(micros).unwrap_or(u32::MAX))
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        debug!("supervisor told=false error=\"{error}\"");
    }
}
