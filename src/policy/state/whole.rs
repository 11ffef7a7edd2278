//! Whole numbers, however a person or another program spells them: `1700000000000`, `1.7e12` and
//! `1700000000000.0` are one number to JSON.

use std::fmt;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use crate::clock::Timestamp;

/// 2^64, the first number that is too large.
const TOO_LARGE: f64 = 18_446_744_073_709_551_616.0;

/// Reads a whole number that is not negative.
pub(super) fn number<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    from.deserialize_u64(Whole)
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        number(from).map(Self)
    }
}

/// The `f64` that a number is, if it is whole and fits.
pub(super) fn of_float(number: f64) -> Option<u64> {
    let is_whole = number.fract() == 0.0 && (0.0..TOO_LARGE).contains(&number);
    is_whole.then_some(number as u64)
}

struct Whole;

impl Visitor<'_> for Whole {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number that is not negative")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<u64, E> {
        let unexpected = |_| E::invalid_value(Unexpected::Signed(number), &self);
        u64::try_from(number).map_err(unexpected)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<u64, E> {
        let unexpected = || E::invalid_value(Unexpected::Float(number), &self);
        of_float(number).ok_or_else(unexpected)
    }
}
