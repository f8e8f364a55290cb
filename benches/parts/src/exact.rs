//! Exact-match lookup of flows.

use dataplane::tables::exact::Exact;

use crate::{Table, fail, file};

/// The source address, the destination address, both ports, and the protocol followed by three zero bytes.
type Key = [u32; 4];

pub(crate) struct Flows {
    table: Exact<4>,
    keys: Vec<Key>,
}

impl Flows {
    /// Creates the table from the input file. The value of a key is the index of the key in the file.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let (flows, keys) = file::read::<Key, Key>(bytes);
        let mut table = Exact::new(flows.len()).unwrap_or_else(|error| fail(&error.to_string()));
        for (number, flow) in flows.iter().enumerate() {
            table.insert(*flow, number as u32).unwrap_or_else(|error| fail(&error.to_string()));
        }
        Self { table, keys }
    }
}

impl Table for Flows {
    fn lookup_count(&self) -> usize {
        self.keys.len()
    }

    fn lookup(&self, range: std::ops::Range<usize>, values: &mut [u32]) {
        self.table.lookup_batch(&self.keys[range], values);
    }
}
