pub mod bucket {
    #[derive(Clone, Debug)]
    pub struct TokenBucket {
        private: _,
    }
    impl TokenBucket {
        pub fn new(rate: u64, burst: u64, now: u64) -> Self {}
        pub fn take_over_tokens(&mut self, earlier: &Self) {}
        pub fn level(&self) -> u128 {}
        pub fn set_level(&mut self, level: u128) {}
        pub fn take(&mut self, now: u64, tokens: u64) -> bool {}
    }
    #[derive(Clone, Debug)]
    pub struct SingleRateMarker {
        private: _,
    }
    impl SingleRateMarker {
        pub fn new(
            rate: u64,
            committed_burst: u64,
            excess_burst: u64,
            now: u64,
        ) -> Self {}
        pub fn take_over_tokens(&mut self, earlier: &Self) {}
        pub fn levels(&self) -> [u128; 2] {}
        pub fn set_levels(&mut self, [committed, excess]: [u128; 2]) {}
        pub fn mark(&mut self, now: u64, tokens: u64, before: Colour) -> Colour {}
    }
    #[derive(Clone, Debug)]
    pub struct TwoRateMarker {
        private: _,
    }
    impl TwoRateMarker {
        pub fn new(committed: (u64, u64), peak: (u64, u64), now: u64) -> Self {}
        pub fn take_over_tokens(&mut self, earlier: &Self) {}
        pub fn levels(&self) -> [u128; 2] {}
        pub fn set_levels(&mut self, [committed, peak]: [u128; 2]) {}
        pub fn mark(&mut self, now: u64, tokens: u64, before: Colour) -> Colour {}
    }
}
pub mod classifier {
    mod rule {
        #[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
        pub struct Rule {
            pub source: Option<IpNet>,
            pub destination: Option<IpNet>,
            pub protocol: Option<u8>,
            pub source_ports: Option<RangeInclusive<u16>>,
            pub destination_ports: Option<RangeInclusive<u16>>,
            pub vlan: Option<u16>,
            pub tcp_flags: Option<FlagMatch>,
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct FlagMatch {
            pub mask: u8,
            pub value: u8,
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Addresses {
            V4(u32, u32),
            V6(u128, u128),
        }
        impl From<(Ipv4Addr, Ipv4Addr)> for Addresses {}
        impl From<(Ipv6Addr, Ipv6Addr)> for Addresses {}
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Key {
            pub addresses: Addresses,
            pub protocol: u8,
            pub ports: Option<(u16, u16)>,
            pub vlan: Option<u16>,
            pub tcp_flags: Option<u8>,
        }
    }
    pub use rule::{Addresses, FlagMatch, Key, Rule};
    pub type V4Key = [u32; words::V4];
    pub fn v4_key(
        addresses: (u32, u32),
        protocol: u8,
        ports: (u16, u16),
        tcp_flags: Option<u8>,
    ) -> V4Key {}
    #[derive(Clone, Debug)]
    pub struct Classifier {
        private: _,
    }
    impl Classifier {
        pub fn new(rules: &[Rule]) -> Self {}
        pub fn len(&self) -> usize {}
        pub fn is_empty(&self) -> bool {}
        pub fn rules(&self) -> impl Iterator<Item = (u32, &Rule)> {}
        pub fn rule_number_bound(&self) -> usize {}
        pub fn insert(&mut self, at: usize, rule: Rule) -> u32 {}
        pub fn remove(&mut self, at: usize) -> u32 {}
        pub fn update(&mut self, rules: &[Rule]) {}
        pub fn lookup(&self, key: &Key) -> Option<u32> {}
        pub fn lookup_batch(
            &self,
            numbers: &mut [u32],
            mut key: impl FnMut(usize) -> Option<Key>,
        ) {}
    }
    impl Classifier {
        pub fn lookup_v4(&self, keys: &[V4Key], numbers: &mut [u32]) {}
    }
}
pub mod exact {
    pub struct Exact<const WORDS: usize> {
        private: _,
    }
    impl<const WORDS: usize> std::fmt::Debug for Exact<WORDS> {}
    impl<const WORDS: usize> Default for Exact<WORDS> {}
    impl<const WORDS: usize> Exact<WORDS> {
        pub fn new(capacity: usize) -> Result<Self, TableError> {}
        pub fn len(&self) -> usize {}
        pub fn is_empty(&self) -> bool {}
        pub fn lookup(&self, key: &[u32; WORDS]) -> Option<u32> {}
        pub fn lookup_batch(&self, keys: &[[u32; WORDS]], values: &mut [u32]) {}
        pub fn insert(
            &mut self,
            key: [u32; WORDS],
            value: u32,
        ) -> Result<Option<u32>, TableError> {}
        pub fn remove(&mut self, key: &[u32; WORDS]) -> Option<u32> {}
    }
}
mod first {
    pub trait FirstLevel {
        const BITS: u32;
        const CONTINUE_BIT: u32;
        fn new() -> Result<Self, TableError>
        where
            Self: Sized;
        fn entry_or_marker(&self, slot: usize) -> u32;
        fn continue_bits(entry_or_marker: u32) -> u32;
        fn cell(&self, slot: usize) -> u32;
        fn set_cell(&self, slot: usize, entry: u32);
        fn fetch(&self, slot: usize);
    }
    pub struct Narrow {
        private: _,
    }
    impl FirstLevel for Narrow {}
    pub struct Wide(_);
    impl FirstLevel for Wide {}
}
mod form {
    pub trait AddressFamily {
        type Address: Copy;
        const BITS: u8;
        type FirstLevel: FirstLevel;
        const HALVES: usize;
        const RUNS: usize;
        const FIRST_CELL: usize = _;
        fn left_align(address: Self::Address) -> u128;
        fn from_left_aligned(aligned: u128) -> Self::Address;
        fn half(address: Self::Address, half: usize) -> u64;
        fn boundaries_below(line: &Line, key: u64) -> usize;
        fn boundary(line: &Line, index: usize, covered: u64) -> Option<u64>;
        fn bucket_words(boundaries: &[u64]) -> [u64; WORDS];
    }
    pub struct V4;
    impl AddressFamily for V4 {}
    pub struct V6;
    impl AddressFamily for V6 {}
}
pub mod lpm {
    pub type Lpm4 = Lpm<V4>;
    pub type Lpm6 = Lpm<V6>;
    pub struct Lpm<F: AddressFamily>(_);
    pub struct LpmView<F: AddressFamily>(_);
    pub type View4 = LpmView<V4>;
    pub type View6 = LpmView<V6>;
    impl<F: AddressFamily> Clone for LpmView<F> {}
    impl<F: AddressFamily> std::fmt::Debug for LpmView<F> {}
    impl<F: AddressFamily> LpmView<F> {
        pub fn lookup(&self, address: F::Address) -> Option<u32> {}
        pub fn lookup_batch(&self, addresses: &[F::Address], values: &mut [u32]) {}
    }
    impl<F: AddressFamily> std::fmt::Debug for Lpm<F> {}
    impl<F: AddressFamily> Lpm<F> {
        pub fn new() -> Result<Self, TableError> {}
        pub fn with_max_cache_lines(max: usize) -> Result<Self, TableError> {}
        pub fn view(&self) -> LpmView<F> {}
        pub fn reclaim(&mut self, time: u64, no_lookups_before: u64) {}
        pub fn prefixes(&self) -> impl Iterator<Item = (F::Address, u8, u32)> + '_ {}
        pub fn build(prefixes: &[(F::Address, u8, u32)]) -> Result<Self, TableError> {}
        pub fn len(&self) -> usize {}
        pub fn is_empty(&self) -> bool {}
        pub fn insert(
            &mut self,
            address: F::Address,
            len: u8,
            value: u32,
        ) -> Result<Option<u32>, TableError> {}
        pub fn remove(&mut self, address: F::Address, len: u8) -> Option<u32> {}
        pub fn get(&self, address: F::Address, len: u8) -> Option<u32> {}
        pub fn lookup(&self, address: F::Address) -> Option<u32> {}
        pub fn lookup_batch(&self, addresses: &[F::Address], values: &mut [u32]) {}
    }
}
pub const MISS: u32 = _;
pub const MAX_VALUE: u32 = _;
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    PrefixLength { len: u8, max: u8 },
    Value(u32),
    NoFreeLines(usize),
    TooManyKeys(usize),
    Memory(usize),
}
