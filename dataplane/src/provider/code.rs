//! Numbers of the C interface that have names: what comes from a device is never assumed to be one of them.

/// An enum over the values of a C enum. Its conversions are total: a value without a name is kept as it came.
macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $variant:ident = $raw:literal $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$about])* $variant,)*
            /// A value that has no name here, as it came.
            Unknown(u32),
        }

        impl $name {
            /// All that have a name, by value.
            pub const NAMED: &'static [Self] = &[$(Self::$variant,)*];

            /// What a value of the C interface stands for.
            #[inline]
            pub const fn from_raw(raw: u32) -> Self {
                match raw {
                    $($raw => Self::$variant,)*
                    _ => Self::Unknown(raw),
                }
            }

            /// The value in the C interface.
            #[inline]
            pub const fn raw(self) -> u32 {
                match self {
                    $(Self::$variant => $raw,)*
                    Self::Unknown(raw) => raw,
                }
            }

            /// The name in the C interface; `unknown` without one.
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

    use crate::provider::{EventKind, QpState, QpType, WcOpcode, WcStatus, WrOpcode};

    proptest! {
        /// Nothing is lost on the way in and out, whatever a device says.
        #[test]
        fn conversions_are_total(raw in prop_oneof![any::<u32>(), 0u32..300]) {
            prop_assert_eq!(WcStatus::from_raw(raw).raw(), raw);
            prop_assert_eq!(WcOpcode::from_raw(raw).raw(), raw);
            prop_assert_eq!(WrOpcode::from_raw(raw).raw(), raw);
            prop_assert_eq!(EventKind::from_raw(raw).raw(), raw);
            prop_assert_eq!(QpType::from_raw(raw).raw(), raw);
            prop_assert_eq!(QpState::from_raw(raw).raw(), raw);
        }
    }

    #[test]
    fn named_values_are_dense_where_the_interface_is() {
        let statuses: Vec<u32> = WcStatus::NAMED.iter().map(|status| status.raw()).collect();
        assert_eq!(statuses, (0..24).collect::<Vec<_>>());
        let events: Vec<u32> = EventKind::NAMED.iter().map(|kind| kind.raw()).collect();
        assert_eq!(events, (0..20).collect::<Vec<_>>());
        assert_eq!(WcStatus::from_raw(99).to_string(), "unknown (99)");
        assert_eq!(EventKind::CqErr.to_string(), "IBV_EVENT_CQ_ERR");
    }
}
