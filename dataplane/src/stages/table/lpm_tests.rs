//! The tests that both longest-prefix-match tables pass, against a model that tries every prefix.

macro_rules! lpm_tests {
    ($Lpm:ident, $Address:ident, $bits:literal) => {
        use proptest::prelude::*;

        use super::*;
        use crate::stages::table::{MAX_VALUE, MISS};

        /// Every prefix is tried.
        #[derive(Default)]
        struct Model(Vec<($Address, u8, u32)>);

        impl Model {
            fn mask(len: u8) -> $Address {
                $Address::MAX.checked_shl($bits - u32::from(len)).unwrap_or(0)
            }

            fn insert(&mut self, address: $Address, len: u8, value: u32) -> Option<u32> {
                let old = self.remove(address, len);
                self.0.push((address & Self::mask(len), len, value));
                old
            }

            fn remove(&mut self, address: $Address, len: u8) -> Option<u32> {
                let at = self.0.iter().position(|p| (p.0, p.1) == (address & Self::mask(len), len))?;
                Some(self.0.swap_remove(at).2)
            }

            fn lookup(&self, address: $Address) -> Option<u32> {
                let covers = |p: &&($Address, u8, u32)| address & Self::mask(p.1) == p.0;
                self.0.iter().filter(covers).max_by_key(|p| p.1).map(|p| p.2)
            }
        }

        /// Addresses that share their front, so that prefixes nest.
        fn address() -> impl Strategy<Value = $Address> {
            prop_oneof![
                any::<$Address>(),
                (0..$bits as u32 - 1, 0..4u8)
                    .prop_map(|(shift, low)| ($Address::MAX / 5) ^ ($Address::from(low) << shift)),
            ]
        }

        fn changes() -> impl Strategy<Value = Vec<(bool, $Address, u8, u32)>> {
            let len = prop_oneof![3 => 8..=$bits as u8, 1 => Just(0u8), 1 => Just($bits)];
            prop::collection::vec((prop::bool::weighted(0.7), address(), len, 0..=MAX_VALUE), 1..60)
        }

        proptest! {
            #![proptest_config(ProptestConfig::with_cases(64))]

            #[test]
            fn a_table_is_its_model(changes in changes(), probes in prop::collection::vec(address(), 70)) {
                let (mut table, mut model) = ($Lpm::new(), Model::default());
                for (add, address, len, value) in changes {
                    if add {
                        prop_assert_eq!(table.insert(address, len, value), Ok(model.insert(address, len, value)));
                    } else if !model.0.is_empty() {
                        let (address, len, _) = model.0[value as usize % model.0.len()];
                        prop_assert_eq!(table.remove(address, len), model.remove(address, len));
                    } else {
                        prop_assert_eq!(table.remove(address, len), None);
                    }
                    prop_assert_eq!(table.len(), model.0.len());
                    prop_assert_eq!(table.lookup(address), model.lookup(address));
                }
                // The last address of every prefix and the one behind it are where a wrong expansion shows.
                let edges = model.0.iter().flat_map(|p| {
                    let last = p.0 | !Model::mask(p.1);
                    [p.0, last, last.wrapping_add(1), p.0.wrapping_sub(1)]
                });
                let probes: Vec<$Address> = edges.chain(probes).collect();
                let mut values = vec![7; probes.len()];
                table.lookup_batch(&probes, &mut values);
                for (probe, value) in probes.iter().zip(values) {
                    let expected = model.lookup(*probe);
                    prop_assert_eq!(table.lookup(*probe), expected);
                    prop_assert_eq!(value, expected.unwrap_or(MISS));
                }
                let built = $Lpm::build(&model.0).unwrap();
                for probe in probes {
                    prop_assert_eq!(built.lookup(probe), model.lookup(probe));
                }
                for (address, len, value) in model.0 {
                    prop_assert_eq!(table.get(address, len), Some(value));
                    prop_assert_eq!(table.remove(address, len), Some(value));
                    prop_assert_eq!(table.get(address, len), None);
                }
                prop_assert!(table.is_empty() && table.0.is_clear());
            }
        }

        #[test]
        fn what_cannot_be_stored_is_refused() {
            let mut table = $Lpm::new();
            assert_eq!(table.insert(0, $bits + 1, 0), Err(TableError::PrefixLength { len: $bits + 1, max: $bits }));
            assert_eq!(table.insert(0, 8, MAX_VALUE + 1), Err(TableError::Value(MAX_VALUE + 1)));
            assert_eq!((table.remove(0, $bits + 1), table.get(0, 255), table.len()), (None, None, 0));
            assert_eq!(table.insert(0, 0, MAX_VALUE), Ok(None));
            assert_eq!(table.lookup($Address::MAX), Some(MAX_VALUE));
        }
    };
}

pub(super) use lpm_tests;
