//! The values of a header field: one value, a list, or a range. The packets get the values of a range in turn, at random,
//! or at random with Zipf's law.

use std::fmt;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use dataplane::header::MacAddr;
use serde::de::value::{MapAccessDeserializer, StrDeserializer, U64Deserializer};
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// The maximum number of values of a range with Zipf's law. Each value needs 8 bytes of memory.
pub const MAX_ZIPF: u64 = 1 << 20;

/// The values that a header field takes, one for each packet.
#[derive(Clone, Debug, PartialEq)]
pub enum Values<T> {
    /// The same value in each packet.
    One(T),
    /// The values of a list, in turn.
    List(Vec<T>),
    /// The values of a range.
    Range(ValueRange<T>),
}

/// A range of values: `first`, `first + step`, `first + 2 * step` and so on.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValueRange<T> {
    /// The first value.
    pub first: T,
    /// The number of values.
    pub count: u64,
    /// The difference between two values.
    #[serde(default = "one")]
    pub step: u64,
    /// Whether each packet gets a random value of the range. Otherwise, the packets get the values in turn.
    #[serde(default)]
    pub random: bool,
    /// The exponent of Zipf's law. The packets get random values, and the probability of value number `k` is proportional
    /// to `1 / k^zipf`. The first value has number 1.
    pub zipf: Option<f64>,
}

const fn one() -> u64 {
    1
}

/// A type that a header field can have.
pub trait FieldValue: Copy {
    /// Returns the width of the field in bits.
    fn bits(self) -> u32;
    /// Returns the value as a number.
    fn number(self) -> u128;
}

impl FieldValue for u16 {
    fn bits(self) -> u32 {
        16
    }
    fn number(self) -> u128 {
        self.into()
    }
}

impl FieldValue for u32 {
    fn bits(self) -> u32 {
        32
    }
    fn number(self) -> u128 {
        self.into()
    }
}

impl FieldValue for u64 {
    fn bits(self) -> u32 {
        64
    }
    fn number(self) -> u128 {
        self.into()
    }
}

impl FieldValue for MacAddr {
    fn bits(self) -> u32 {
        48
    }
    fn number(self) -> u128 {
        self.0.iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
    }
}

impl FieldValue for Ipv4Addr {
    fn bits(self) -> u32 {
        32
    }
    fn number(self) -> u128 {
        self.to_bits().into()
    }
}

impl FieldValue for Ipv6Addr {
    fn bits(self) -> u32 {
        128
    }
    fn number(self) -> u128 {
        self.to_bits()
    }
}

impl FieldValue for IpAddr {
    fn bits(self) -> u32 {
        match self {
            Self::V4(_) => 32,
            Self::V6(_) => 128,
        }
    }
    fn number(self) -> u128 {
        match self {
            Self::V4(address) => address.number(),
            Self::V6(address) => address.number(),
        }
    }
}

impl<T: fmt::Display> fmt::Display for Values<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(value) => value.fmt(f),
            Self::List(values) => f.write_str(&values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
            Self::Range(ValueRange { first, count, step, random, zipf }) => {
                write!(f, "{count} from {first} step {step}{}", if *random { " random" } else { "" })?;
                zipf.map_or(Ok(()), |zipf| write!(f, " zipf {zipf}"))
            }
        }
    }
}

impl<T: FieldValue> Values<T> {
    /// Returns the first value, or `None` for an empty list.
    pub(crate) fn sample(&self) -> Option<T> {
        match self {
            Self::One(value) => Some(*value),
            Self::List(values) => values.first().copied(),
            Self::Range(range) => Some(range.first),
        }
    }

    /// Returns the value if the config has only one value.
    pub(crate) fn constant(&self) -> Option<T> {
        match self {
            Self::One(value) => Some(*value),
            _ => None,
        }
    }

    /// Checks that all values are at most `most` and of the same type. Otherwise, returns the reason.
    pub(crate) fn check(&self, key: &str, most: u128) -> Result<(), String> {
        let too_large = |number: u128| format!("`{key}` reaches {number}; help: use values up to {most}");
        match self {
            Self::One(value) => match value.number() {
                number if number > most => Err(too_large(number)),
                _ => Ok(()),
            },
            Self::List(values) => {
                let bits = self.sample().ok_or_else(|| format!("`{key}` is an empty list; help: add a value"))?.bits();
                if values.iter().any(|value| value.bits() != bits) {
                    return Err(format!("`{key}` mixes IPv4 and IPv6; help: write one stream for each family"));
                }
                values
                    .iter()
                    .map(|value| value.number())
                    .find(|number| *number > most)
                    .map_or(Ok(()), |it| Err(too_large(it)))
            }
            Self::Range(ValueRange { count: 0, .. }) => {
                Err(format!("`{key}` has the count 0; help: set count to at least 1"))
            }
            Self::Range(ValueRange { zipf: Some(zipf), .. }) if !(*zipf > 0.0 && zipf.is_finite()) => {
                Err(format!("`{key}` has zipf = {zipf}; help: use an exponent above 0, such as zipf = 1.0"))
            }
            Self::Range(ValueRange { zipf: Some(_), random: true, .. }) => {
                Err(format!("`{key}` has both `random` and `zipf`; help: remove `random`"))
            }
            Self::Range(ValueRange { zipf: Some(_), count, .. }) if *count > MAX_ZIPF => {
                Err(format!("`{key}` has {count} values with `zipf`; help: use at most {MAX_ZIPF} values"))
            }
            Self::Range(range) => {
                let span = u128::from(range.count - 1) * u128::from(range.step);
                match range.first.number().checked_add(span) {
                    Some(last) if last <= most => Ok(()),
                    _ => Err(format!(
                        "`{key}` has {} values with step {}, which exceeds the width of the field; help: reduce `count`",
                        range.count, range.step
                    )),
                }
            }
        }
    }

    /// Creates the sequence of values. The values must have passed [`Values::check`].
    pub(crate) fn cycle(&self, seed: u64) -> Cycle {
        match self {
            Self::One(value) => Cycle::List { values: [value.number()].into(), at: 0 },
            Self::List(values) => Cycle::List { values: values.iter().map(|value| value.number()).collect(), at: 0 },
            Self::Range(range) => {
                let (first, step, count) = (range.first.number(), range.step.into(), range.count.max(1));
                match (range.zipf, range.random) {
                    (Some(zipf), _) => {
                        Cycle::Zipf { first, step, table: alias_table(zipf, count), random: Random::new(seed) }
                    }
                    (None, true) => Cycle::Random { first, step, count, random: Random::new(seed) },
                    (None, false) => Cycle::Count { first, step, count, at: 0 },
                }
            }
        }
    }
}

/// The sequence of the values of a field. The sequence has no end.
#[derive(Clone, Debug)]
pub(crate) enum Cycle {
    Count { first: u128, step: u128, count: u64, at: u64 },
    Random { first: u128, step: u128, count: u64, random: Random },
    Zipf { first: u128, step: u128, table: Arc<[Alias]>, random: Random },
    List { values: Box<[u128]>, at: usize },
}

/// An entry of an alias table: with the probability `threshold / 2^32`, the entry stands for its own index, and otherwise
/// for the index `other`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alias {
    threshold: u32,
    other: u32,
}

/// Returns the alias table (Vose's method) of the numbers 0 to `count - 1` with Zipf's law. A random entry of the table
/// then gives each number with the right probability, without a search.
fn alias_table(exponent: f64, count: u64) -> Arc<[Alias]> {
    let weights: Vec<f64> = (1..=count).map(|number| libm::pow(number as f64, -exponent)).collect();
    let mean = weights.iter().sum::<f64>() / count as f64;
    let mut shares: Vec<f64> = weights.iter().map(|weight| weight / mean).collect();
    let mut table = vec![Alias { threshold: u32::MAX, other: 0 }; shares.len()];
    let (mut large, mut small): (Vec<usize>, Vec<usize>) = (0..shares.len()).partition(|index| shares[*index] >= 1.0);
    while let (Some(less), Some(more)) = (small.pop(), large.pop()) {
        table[less] = Alias { threshold: (shares[less] * f64::from(u32::MAX)) as u32, other: more as u32 };
        shares[more] -= 1.0 - shares[less];
        if shares[more] < 1.0 { small.push(more) } else { large.push(more) }
    }
    // The remaining shares are 1, apart from rounding errors.
    for rest in large.into_iter().chain(small) {
        table[rest].other = rest as u32;
    }
    table.into()
}

impl Cycle {
    /// Returns the sequence with `base` added to each value.
    pub(crate) fn plus(mut self, base: u128) -> Self {
        match &mut self {
            Self::List { values, .. } => values.iter_mut().for_each(|value| *value += base),
            Self::Count { first, .. } | Self::Random { first, .. } | Self::Zipf { first, .. } => *first += base,
        }
        self
    }

    /// Returns the number of values after which the sequence repeats, or `None` for random values.
    pub(crate) fn period(&self) -> Option<u64> {
        match self {
            Self::Count { count, .. } => Some(*count),
            Self::List { values, .. } => Some(values.len() as u64),
            Self::Random { .. } | Self::Zipf { .. } => None,
        }
    }

    /// Moves to the value with the number `number`, counted from 0. Random values have no numbers and do not move.
    pub(crate) fn seek(&mut self, number: u64) {
        match self {
            Self::Count { count, at, .. } => *at = number % (*count).max(1),
            Self::List { values, at } => *at = (number % values.len().max(1) as u64) as usize,
            Self::Random { .. } | Self::Zipf { .. } => {}
        }
    }

    /// Returns the next value.
    #[inline]
    pub(crate) fn next(&mut self) -> u128 {
        match self {
            Self::Count { first, step, count, at } => {
                let value = *first + *step * u128::from(*at);
                *at = if *at + 1 < *count { *at + 1 } else { 0 };
                value
            }
            Self::Random { first, step, count, random } => *first + *step * u128::from(random.below(*count)),
            Self::Zipf { first, step, table, random } => {
                let index = random.below(table.len() as u64);
                let index = match table.get(index as usize) {
                    Some(entry) if random.next() as u32 > entry.threshold => u64::from(entry.other),
                    _ => index,
                };
                *first + *step * u128::from(index)
            }
            Self::List { values, at } => {
                let value = values.get(*at).copied().unwrap_or(0);
                *at = if *at + 1 < values.len() { *at + 1 } else { 0 };
                value
            }
        }
    }
}

/// A pseudo-random number generator (SplitMix64). Equal seeds give equal numbers.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `limit`.
    #[inline]
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }

    /// Returns a number in the interval (0, 1].
    #[inline]
    pub(crate) fn fraction(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Values<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Any<T> {
            type Value = Values<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value, a list of values, or a range such as { first = 1000, count = 16 }")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                T::deserialize(StrDeserializer::new(text)).map(Values::One)
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
                T::deserialize(U64Deserializer::new(number)).map(Values::One)
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
                let number = u64::try_from(number).map_err(|_| E::custom(format!("{number} is negative")))?;
                self.visit_u64(number)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = list.next_element()? {
                    values.push(value);
                }
                Ok(Values::List(values))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                ValueRange::deserialize(MapAccessDeserializer::new(map)).map(Values::Range)
            }
        }

        deserializer.deserialize_any(Any(PhantomData))
    }
}
