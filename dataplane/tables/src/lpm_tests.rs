//! Tests for both longest-prefix-match tables, against a model that tries every prefix.

macro_rules! lpm_tests {
    ($Lpm:ident, $Address:ident, $bits:literal) => {
        use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

        use proptest::prelude::*;

        use super::*;
        use crate::{MAX_VALUE, MISS};
        use dataplane_testing::StopOnDrop;

        /// A model of the table. A lookup tries every prefix.
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

        /// Generates random addresses, the lowest and the highest address, and addresses with equal leading bits.
        /// Many short prefixes of addresses with equal leading bits contain longer prefixes.
        fn address() -> impl Strategy<Value = $Address> {
            prop_oneof![
                2 => any::<$Address>(),
                1 => prop::sample::select(vec![0, $Address::MAX]),
                3 => (0..$bits as u32 - 1, 0..4u8)
                    .prop_map(|(shift, low)| ($Address::MAX / 5) ^ ($Address::from(low) << shift)),
            ]
        }

        /// Generates values of all widths, including values next to the two-byte limit.
        fn value() -> impl Strategy<Value = u32> {
            prop_oneof![0..=MAX_VALUE, 0..=8u32, (1u32 << 16) - 4..(1 << 16) + 4]
        }

        /// Generates addresses that differ in few adjacent bits.
        fn crowded() -> impl Strategy<Value = (u32, Vec<$Address>)> {
            let shift = prop_oneof![0..$bits as u32 - 8, prop::sample::select(vec![0, $bits / 2 - 1, $bits - 24])];
            (shift, prop::collection::vec(any::<u8>(), 1..120)).prop_map(|(shift, lows)| {
                (shift, lows.into_iter().map(|low| ($Address::MAX / 5) ^ ($Address::from(low) << shift)).collect())
            })
        }

        fn changes() -> impl Strategy<Value = Vec<(bool, $Address, u8, u32)>> {
            let len = prop_oneof![6 => 8..=$bits as u8, 1 => 1..8u8, 1 => Just(0u8), 2 => Just($bits)];
            prop::collection::vec((prop::bool::weighted(0.7), address(), len, value()), 1..60)
        }

        proptest! {
            #![proptest_config(ProptestConfig::with_cases(64))]

            #[test]
            fn table_agrees_with_the_model(changes in changes(), probes in prop::collection::vec(address(), 70)) {
                let (mut table, mut model) = ($Lpm::new().unwrap(), Model::default());
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
                // A prefix that covers too many or too few cells gives a wrong result near its first or last address.
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

        proptest! {
            #![proptest_config(ProptestConfig::with_cases(48))]

            /// If a prefix does not fit, the table refuses the prefix and stays unchanged. After prefixes are removed,
            /// other prefixes fit. At the end, all memory is free.
            #[test]
            fn dense_prefixes_are_found_and_their_memory_is_freed(
                (shift, addresses) in crowded(), lens in prop::collection::vec(0..10u32, 1..20), most in prop_oneof![8..64usize, Just(4096)],
                probes in prop::collection::vec(address(), 20), order in any::<u64>(), reclaimed in 1..50u64,
            ) {
                let (mut table, mut model) = ($Lpm::with_max_cache_lines(most).unwrap(), Model::default());
                let prefixes = addresses.iter().zip(lens.iter().cycle()).zip(0u32..);
                let prefixes: Vec<_> = prefixes.map(|((address, len), value)| {
                    // Prefixes shorter than eight bits fill so many cells of the first level that the test would be
                    // slow.
                    (*address, ($bits - (shift + len).min($bits - 8)) as u8, value % 5 * (MAX_VALUE / 4))
                }).collect();
                let same = |table: &$Lpm, model: &Model| {
                    let edges = model.0.iter().flat_map(|p| {
                        let last = p.0 | !Model::mask(p.1);
                        [p.0, last, last.wrapping_add(1), p.0.wrapping_sub(1)]
                    });
                    let probes: Vec<$Address> = edges.chain(probes.iter().copied()).chain(addresses.iter().copied()).collect();
                    let mut values = vec![7; probes.len()];
                    table.lookup_batch(&probes, &mut values);
                    for (probe, value) in probes.iter().zip(values) {
                        prop_assert_eq!(value, model.lookup(*probe).unwrap_or(MISS), "{:x}", probe);
                    }
                    Ok(())
                };
                let mut time = 0;
                let mut pass = |table: &mut $Lpm| {
                    time += 1;
                    table.reclaim(time, if time % reclaimed == 0 { time } else { 0 });
                };
                for (address, len, value) in &prefixes {
                    match table.insert(*address, *len, *value) {
                        Ok(old) => prop_assert_eq!(old, model.insert(*address, *len, *value)),
                        Err(error) => {
                            prop_assert_eq!(error, TableError::NoFreeLines(most.next_multiple_of(8)));
                            prop_assert_eq!(table.get(*address, *len), None);
                        }
                    }
                    pass(&mut table);
                }
                same(&table, &model)?;
                let half = model.0.len() / 2;
                while model.0.len() > half {
                    let (address, len, value) = model.0[(order >> (model.0.len() % 32)) as usize % model.0.len()];
                    prop_assert_eq!(table.remove(address, len), Some(value));
                    model.remove(address, len);
                    pass(&mut table);
                }
                same(&table, &model)?;
                for (address, len, value) in &prefixes[..prefixes.len() / 2] {
                    if let Ok(old) = table.insert(*address, *len, value / 2) {
                        prop_assert_eq!(old, model.insert(*address, *len, value / 2));
                    }
                    pass(&mut table);
                }
                same(&table, &model)?;
                for (address, len, value) in std::mem::take(&mut model.0) {
                    prop_assert_eq!(table.remove(address, len), Some(value));
                    pass(&mut table);
                }
                same(&table, &model)?;
                prop_assert!(table.is_empty() && table.0.is_clear());
            }
        }

        /// Readers see old or new values while prefixes are added, changed and removed. Prefixes that do not change are
        /// always found.
        #[test]
        fn readers_see_only_old_or_new_values() {
            let front = $Address::MAX / 5;
            let wide = |at: u8| (front ^ $Address::from(at) << ($bits - 31), ($bits - 28) as u8);
            let narrow = |at: u8| (front ^ $Address::from(at) << ($bits - 31), $bits - u8::from(at % 2));
            let mut table = $Lpm::new().unwrap();
            table.insert(front, 6, 1).unwrap();
            table.insert(wide(0).0, wide(0).1, 2).unwrap();
            for at in (1..64).step_by(9) {
                table.insert(narrow(at).0, narrow(at).1, 3).unwrap();
            }
            table.reclaim(1, 0);
            let stays = |at: u8| at % 9 == 1;
            let (view, time, done) = (table.view(), AtomicU64::new(1), AtomicBool::new(false));
            // The time when each reader last had no lookup running.
            let passes = [AtomicU64::new(0), AtomicU64::new(0)];
            let seen: u64 = std::thread::scope(|scope| {
                let ended = StopOnDrop(&done);
                let look = |pass: &AtomicU64| {
                    let addresses: Vec<$Address> = (0..64).map(|at| narrow(at).0).collect();
                    let (mut values, mut seen) = ([0; 64], 0);
                    while !done.load(Ordering::Relaxed) {
                        pass.store(time.load(Ordering::SeqCst), Ordering::SeqCst);
                        view.lookup_batch(&addresses, &mut values);
                        for (at, value) in (0..64u8).zip(values) {
                            match value {
                                3 if stays(at) => {}
                                1 | 2 | 5 | 6 if !stays(at) => {}
                                other => panic!("address {at} has the value {other}"),
                            }
                        }
                        seen += 1;
                    }
                    seen
                };
                let readers: Vec<_> = passes.iter().map(|pass| scope.spawn(move || look(pass))).collect();
                // Wait until each reader has been quiescent once. Before, `reclaim` frees no memory of removed
                // prefixes.
                while passes.iter().any(|pass| pass.load(Ordering::SeqCst) == 0) {
                    std::thread::yield_now();
                }
                for round in 0..60u32 {
                    for at in (0..64).filter(|at| !stays(*at)) {
                        let (address, len) = narrow(at);
                        match round % 3 {
                            0 => assert_eq!(table.insert(address, len, 5), Ok(None)),
                            1 => assert_eq!(table.insert(address, len, 6), Ok(Some(5))),
                            _ => assert_eq!(table.remove(address, len), Some(6)),
                        }
                        let now = time.fetch_add(1, Ordering::SeqCst) + 1;
                        let quiet = passes.iter().map(|pass| pass.load(Ordering::SeqCst)).min().unwrap_or(0);
                        table.reclaim(now, quiet);
                    }
                    if round % 6 == 5 {
                        table.remove(wide(0).0, wide(0).1);
                        table.insert(wide(0).0, wide(0).1, 2).unwrap();
                    }
                }
                drop(ended);
                readers.into_iter().map(|reader| reader.join().unwrap()).sum()
            });
            assert!(seen > 0);
            assert_eq!((table.len(), table.lookup(narrow(1).0)), (10 - 1, Some(3)));
        }

        #[test]
        fn invalid_prefixes_and_values_are_refused() {
            let mut table = $Lpm::new().unwrap();
            assert_eq!(table.insert(0, $bits + 1, 0), Err(TableError::PrefixLength { len: $bits + 1, max: $bits }));
            assert_eq!(table.insert(0, 8, MAX_VALUE + 1), Err(TableError::Value(MAX_VALUE + 1)));
            assert_eq!((table.remove(0, $bits + 1), table.get(0, 255), table.len()), (None, None, 0));
            assert_eq!(table.insert(0, 0, MAX_VALUE), Ok(None));
            assert_eq!(table.lookup($Address::MAX), Some(MAX_VALUE));
        }
    };
}

pub(super) use lpm_tests;
