//! Enums for the named constants of the C interface. A value from a device may have no name.

/// Defines an enum for the values of a C enum. Conversions never fail: a value without a name is kept unchanged.
/// The variant `Unknown` holds such values. The optional argument `unknown` is an attribute of that variant.
macro_rules! codes {
    ($(#[$doc:meta])* $name:ident $(unknown = #[$unknown:meta])? { $($(#[$about:meta])* $variant:ident = $raw:literal $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$about])* $variant,)*
            /// A value without a name, unchanged.
            $(#[$unknown])?
            Unknown(u32),
        }

        impl $name {
            /// All named values, in ascending order.
            pub const NAMED: &'static [Self] = &[$(Self::$variant,)*];

            /// Converts a value of the C interface.
            #[inline]
            pub const fn from_raw(raw: u32) -> Self {
                match raw {
                    $($raw => Self::$variant,)*
                    _ => Self::Unknown(raw),
                }
            }

            /// Returns the value in the C interface.
            #[inline]
            pub const fn raw(self) -> u32 {
                match self {
                    $(Self::$variant => $raw,)*
                    Self::Unknown(raw) => raw,
                }
            }

            /// Returns the value with this name in the C interface. The name must match exactly.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::NAMED.iter().copied().find(|named| named.name() == name)
            }

            /// Returns the name in the C interface, or `unknown` if the value has no name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                    Self::Unknown(_) => "unknown",
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    Self::Unknown(raw) => write!(f, "unknown ({raw})"),
                    named => f.write_str(named.name()),
                }
            }
        }
    };
}

pub(super) use codes;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::verbs::{EventKind, QpState, QpType, WcOpcode, WcStatus, WrOpcode};

    proptest! {
        /// Converting any raw value to an enum and back returns the same value.
        #[test]
        fn conversions_round_trip_for_every_value(raw in prop_oneof![any::<u32>(), 0u32..300]) {
            prop_assert_eq!(WcStatus::from_raw(raw).raw(), raw);
            prop_assert_eq!(WcOpcode::from_raw(raw).raw(), raw);
            prop_assert_eq!(WrOpcode::from_raw(raw).raw(), raw);
            prop_assert_eq!(EventKind::from_raw(raw).raw(), raw);
            prop_assert_eq!(QpType::from_raw(raw).raw(), raw);
            prop_assert_eq!(QpState::from_raw(raw).raw(), raw);
        }
    }

    #[test]
    fn every_value_is_found_by_its_exact_name() {
        for status in WcStatus::NAMED {
            assert_eq!(WcStatus::from_name(status.name()), Some(*status));
            assert_eq!(WcStatus::from_name(&format!(" {status}")), None);
        }
        assert_eq!(WcStatus::from_name("IBV_WC_RNR_RETRY_EXC_ERR"), Some(WcStatus::RnrRetryExcErr));
        assert_eq!((WcStatus::from_name("unknown"), WcStatus::from_name("")), (None, None));
        assert_eq!(EventKind::from_name("IBV_EVENT_CQ_ERR"), Some(EventKind::CqErr));
    }

    #[test]
    fn named_statuses_and_events_have_no_gaps() {
        let statuses: Vec<u32> = WcStatus::NAMED.iter().map(|status| status.raw()).collect();
        assert_eq!(statuses, (0..24).collect::<Vec<_>>());
        let events: Vec<u32> = EventKind::NAMED.iter().map(|kind| kind.raw()).collect();
        assert_eq!(events, (0..20).collect::<Vec<_>>());
        assert_eq!(WcStatus::from_raw(99).to_string(), "unknown (99)");
        assert_eq!(EventKind::CqErr.to_string(), "IBV_EVENT_CQ_ERR");
    }
}
