//! The two clocks of the process, and the only place that reads them.
//!
//! Calendar time ([`Timestamp`]) goes into the state file; monotonic time ([`Instant`]) measures
//! waits. Policy gets both as arguments.
#![expect(clippy::disallowed_methods, reason = "the one module that is allowed to read the clocks")]

use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// Where years of four digits end.
const YEAR_10000: Timestamp = Timestamp(253_402_300_800_000);

/// Milliseconds since the Unix epoch, as the state file counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// This moment plus `duration`, at most the largest representable time.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(millis))
    }

    /// How long it is from `earlier` to this moment; zero when it is not later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// The time for a file name: `2026-11-29T18-00-00-123Z`.
    #[must_use]
    pub fn file_stamp(self) -> String {
        self.to_string().replace([':', '.'], "-")
    }
}

/// A time before 1970 reads as 0.
impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
    }
}

impl From<Timestamp> for SystemTime {
    fn from(time: Timestamp) -> Self {
        UNIX_EPOCH + Duration::from_millis(time.0)
    }
}

/// ISO 8601 in UTC with milliseconds, e.g. `2026-11-29T18:00:00.123Z`, as JavaScript's
/// `toISOString` writes it.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self < YEAR_10000 {
            humantime::format_rfc3339_millis((*self).into()).fmt(f)
        } else {
            write!(f, "@{}ms", self.0)
        }
    }
}

/// One moment on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// For what is written down.
    pub calendar: Timestamp,
    /// For what is waited for.
    pub monotonic: Instant,
}

/// This moment.
#[must_use]
pub fn moment() -> Moment {
    Moment { calendar: now(), monotonic: instant() }
}

/// The calendar time now. A clock before 1970 reads as 0.
#[must_use]
pub fn now() -> Timestamp {
    SystemTime::now().into()
}

/// The monotonic time now.
#[must_use]
pub fn instant() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_shown_as_javascript_shows_it() {
        assert_eq!(Timestamp(1_700_000_000_000).to_string(), "2023-11-14T22:13:20.000Z");
        assert_eq!(Timestamp(1_700_000_000_120).to_string(), "2023-11-14T22:13:20.120Z");
        assert_eq!(Timestamp(1_700_000_000_007).file_stamp(), "2023-11-14T22-13-20-007Z");
    }

    #[test]
    fn a_time_beyond_the_calendar_is_still_shown() {
        assert_eq!(Timestamp(YEAR_10000.0 - 1).to_string(), "9999-12-31T23:59:59.999Z");
        assert_eq!(YEAR_10000.to_string(), "@253402300800000ms");
        assert_eq!(Timestamp(u64::MAX).to_string(), format!("@{}ms", u64::MAX));
    }

    #[test]
    fn adding_never_overflows() {
        assert_eq!(Timestamp(5).plus(Duration::MAX), Timestamp(u64::MAX));
        assert_eq!(Timestamp(5).since(Timestamp(9)), Duration::ZERO);
    }
}
