//! What is said to systemd, if it listens: readiness, progress, the end.
//!
//! Without `NOTIFY_SOCKET` every call does nothing. (sd_notify's own way to send would wait for a
//! supervisor that does not read, and with it the main thread for ever.)

use std::ffi::OsStr;
use std::io;
#[cfg(target_os = "linux")]
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use log::debug;
use sd_notify::NotifyState;

/// How long a supervisor may take to take a word.
const PATIENCE: Duration = Duration::from_millis(200);

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
    let Some(address) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let text: String = state.iter().map(|state| format!("{state}\n")).collect();
    if let Err(error) = send(&address, &text) {
        debug!("supervisor told=false error=\"{error}\"");
    }
}

fn send(address: &OsStr, text: &str) -> io::Result<()> {
    let address = match address.as_bytes().strip_prefix(b"@") {
        #[cfg(target_os = "linux")]
        Some(name) => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(address)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.send_to_addr(text.as_bytes(), &address).map(drop)
}
