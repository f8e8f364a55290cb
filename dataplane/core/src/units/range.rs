//! Functions that deserialize a number and check its range, for `#[serde(deserialize_with = "…")]`.

use std::fmt;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use super::Bytes;

/// Reads a whole number from `MIN` to `MAX`, for `#[serde(deserialize_with = "within::<_, u32, 1, 256>")]`.
///
/// # Errors
///
/// Returns an error that names the range if the number is outside the range.
pub fn within<'de, D, T, const MIN: u64, const MAX: u64>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    struct Number<const MIN: u64, const MAX: u64>;
    impl<const MIN: u64, const MAX: u64> Visitor<'_> for Number<MIN, MAX> {
        type Value = u64;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a whole number from {MIN} to {MAX}")
        }
        fn visit_i64<E: Error>(self, number: i64) -> Result<u64, E> {
            let valid = u64::try_from(number).ok().filter(|number| (MIN..=MAX).contains(number));
            valid.ok_or_else(|| E::invalid_value(Unexpected::Signed(number), &self))
        }
        fn visit_u64<E: Error>(self, number: u64) -> Result<u64, E> {
            let valid = Some(number).filter(|number| (MIN..=MAX).contains(number));
            valid.ok_or_else(|| E::invalid_value(Unexpected::Unsigned(number), &self))
        }
    }
    let number = deserializer.deserialize_u64(Number::<MIN, MAX>)?;
    T::try_from(number).map_err(|_| D::Error::custom(format!("{number} is too large for this key")))
}

/// Reads a whole number from `MIN` to `MAX` like [`within`], for a key that may be absent.
///
/// # Errors
///
/// Returns an error that names the range if the number is outside the range.
pub fn within_some<'de, D, T, const MIN: u64, const MAX: u64>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    within::<D, T, MIN, MAX>(deserializer).map(Some)
}

/// Reads a size from `MIN` to `MAX` bytes: a number, or text with a unit, such as `"9k"` or `"2MiB"`.
///
/// # Errors
///
/// Returns an error that names the range if the size is outside the range.
pub fn bytes_within<'de, D, T, const MIN: u64, const MAX: u64>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    let Bytes(bytes) = Bytes::deserialize(deserializer)?;
    let valid = Some(bytes).filter(|bytes| (MIN..=MAX).contains(bytes)).and_then(|bytes| T::try_from(bytes).ok());
    let expected = format!("a size from {MIN} to {MAX} bytes");
    valid.ok_or_else(|| D::Error::invalid_value(Unexpected::Unsigned(bytes), &expected.as_str()))
}

/// Reads a size from `MIN` to `MAX` bytes like [`bytes_within`], for a key that may be absent.
///
/// # Errors
///
/// Returns an error that names the range if the size is outside the range.
pub fn bytes_within_some<'de, D, T, const MIN: u64, const MAX: u64>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    bytes_within::<D, T, MIN, MAX>(deserializer).map(Some)
}

/// Reads a whole number from `MIN` to `MAX`, which may be negative.
///
/// # Errors
///
/// Returns an error that names the range if the number is outside the range.
pub fn within_signed<'de, D, const MIN: i64, const MAX: i64>(deserializer: D) -> Result<i64, D::Error>
where
    D: Deserializer<'de>,
{
    let number = i64::deserialize(deserializer)?;
    if (MIN..=MAX).contains(&number) {
        return Ok(number);
    }
    let expected = format!("a whole number from {MIN} to {MAX}");
    Err(D::Error::invalid_value(Unexpected::Signed(number), &expected.as_str()))
}

/// Reads a probability: a number from 0 to 1.
///
/// # Errors
///
/// Returns an error that names the range if the number is outside the range.
pub fn probability<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    struct Probability;
    impl Visitor<'_> for Probability {
        type Value = f64;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a probability from 0.0 to 1.0")
        }
        fn visit_f64<E: Error>(self, number: f64) -> Result<f64, E> {
            let valid = Some(number).filter(|number| (0.0..=1.0).contains(number));
            valid.ok_or_else(|| E::invalid_value(Unexpected::Float(number), &self))
        }
        fn visit_i64<E: Error>(self, number: i64) -> Result<f64, E> {
            match number {
                0 => Ok(0.0),
                1 => Ok(1.0),
                _ => Err(E::invalid_value(Unexpected::Signed(number), &self)),
            }
        }
    }
    deserializer.deserialize_f64(Probability)
}
