//! Facts: known properties of packets. A stage can set facts, and can need facts that earlier stages or the device have
//! set.

use bitflags::bitflags;

bitflags! {
    /// Properties that are known about a packet. Each stage declares the facts that it needs and the facts that it
    /// sets.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Facts: u16 {
        /// The header offsets and protocol fields of `Meta` are set.
        const HEADERS = 1;
        /// `Meta::egress`, the port that sends the packet, is set.
        const EGRESS = 1 << 1;
        /// `Meta::next_hop` is set.
        const NEXT_HOP = 1 << 2;
        /// `Meta::colour` is set.
        const COLOUR = 1 << 3;
        /// `Packet::stamp`, the receive timestamp, is set.
        const STAMP = 1 << 4;
        /// `Meta::flow_hash` is set.
        const FLOW_HASH = 1 << 5;
    }
}

impl Facts {
    /// Returns the names of the facts, for messages.
    pub fn describe(self) -> String {
        let words: Vec<&str> = self
            .iter()
            .map(|fact| match fact {
                Self::HEADERS => "parsed headers",
                Self::EGRESS => "an egress port",
                Self::NEXT_HOP => "a next hop",
                Self::COLOUR => "a colour",
                Self::STAMP => "a receive timestamp",
                _ => "a flow hash",
            })
            .collect();
        words.join(" and ")
    }
}
