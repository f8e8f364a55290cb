//! The fanout group of the queues, and the BPF program that selects the queue of each frame (`packet(7)`,
//! `PACKET_FANOUT`).
//!
//! The kernel runs a classic BPF program to select the queue of each frame (`PACKET_FANOUT_CBPF`). The group can
//! therefore change the number of queues that receive frames while all sockets stay open. A new socket first joins the
//! group, and then the BPF program selects the socket too. Before a socket leaves the group, the BPF program stops
//! selecting the socket. With the hash of the kernel (`PACKET_FANOUT_HASH`), a socket would receive frames as soon as
//! the socket joins, and the frames that wait in the ring of a closed socket would be lost.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use libc::{
    BPF_A, BPF_ABS, BPF_ADD, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_IMM, BPF_IND, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JMP,
    BPF_JSET, BPF_K, BPF_LD, BPF_LDX, BPF_LEN, BPF_LSH, BPF_MEM, BPF_MISC, BPF_MOD, BPF_MUL, BPF_RET, BPF_RSH, BPF_ST,
    BPF_SUB, BPF_TAX, BPF_W, BPF_X, BPF_XOR, sock_filter, sock_fprog,
};

use crate::link::interface::set_option;

/// In a BPF load instruction, `LINK + n` is the offset of byte n of the Ethernet header.
const LINK: u32 = libc::SKF_LL_OFF as u32;
/// Offset of the load that returns the type of the packet, such as `PACKET_OUTGOING`.
const PACKET_TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;
/// The length of the Ethernet header.
const ETHERNET: u32 = 14;
/// The word of the memory with the hash.
const HASH: u32 = 0;
/// The word of the memory with the offset of the network header.
const BASE: u32 = 1;
/// Offset of the load that returns the EtherType. The kernel has removed the outer VLAN tag.
const ETHER_TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PROTOCOL) as u32;
/// The protocols with ports in the first four bytes: TCP, UDP, SCTP and UDP-Lite.
const WITH_PORTS: [u32; 4] = [6, 17, 132, 136];
/// The fractional part of the golden ratio, which spreads similar sums over all bits.
const GOLDEN: u32 = 0x9e37_79b1;

/// The sockets of a fanout group, in the order in which the kernel numbers the sockets.
#[derive(Debug, Default)]
pub(super) struct Members {
    /// For each socket, its queue and the serial number of its join.
    order: Vec<(u16, u64)>,
    /// The number of joins so far: the serial number of the last join.
    joins: u64,
}

impl Members {
    /// Adds the socket of a queue. The kernel adds a new socket at the end.
    pub(super) fn join(&mut self, queue: u16) {
        self.joins += 1;
        self.order.push((queue, self.joins));
    }

    /// Removes the socket of a queue. The kernel moves the last socket to the place of the removed socket.
    pub(super) fn leave(&mut self, queue: u16) {
        if let Some(at) = self.order.iter().position(|(member, _)| *member == queue) {
            self.order.swap_remove(at);
        }
    }

    pub(super) fn clear(&mut self) {
        self.order.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Returns the place of the socket of a queue, and the serial number of its join.
    pub(super) fn position(&self, queue: u16) -> Option<(u64, u64)> {
        let found = (0..).zip(&self.order).find(|(_, (member, _))| *member == queue);
        found.map(|(place, (_, join))| (place, *join))
    }

    /// Returns the sockets that another program has opened. `sockets` has the queue, the place and the serial number of
    /// the join of each socket. Returns `None` if a place is missing.
    pub(super) fn adopt(mut sockets: Vec<(u16, u64, u64)>) -> Option<Self> {
        sockets.sort_unstable_by_key(|(_, place, _)| *place);
        let joins = sockets.iter().map(|(.., join)| *join).max().unwrap_or(0);
        let is_complete = sockets.iter().map(|(_, place, _)| *place).eq(0..sockets.len() as u64);
        let order = sockets.into_iter().map(|(queue, _, join)| (queue, join)).collect();
        is_complete.then_some(Self { order, joins })
    }

    /// Restores the order in which the sockets joined. When an interface goes up after it was down, the kernel adds the
    /// sockets of the interface in this order.
    pub(super) fn sort(&mut self) {
        self.order.sort_by_key(|(_, join)| *join);
    }

    /// Returns the places of the sockets of the first `queues` queues, in the order of the queues. `None` stands for
    /// all queues.
    fn places(&self, queues: Option<u16>) -> Vec<u32> {
        let mut places: Vec<(u16, u32)> =
            self.order.iter().zip(0..).map(|((queue, _), place)| (*queue, place)).collect();
        places.retain(|(queue, _)| queues.is_none_or(|queues| *queue < queues));
        places.sort_unstable();
        places.into_iter().map(|(_, place)| place).collect()
    }

    /// Makes the kernel distribute the frames of the group among the first `queues` queues. `None` stands for all
    /// queues. `socket` is a socket of the group. After the call, the kernel adds no frame to the other queues.
    pub(super) fn distribute(&self, socket: &OwnedFd, queues: Option<u16>) -> io::Result<()> {
        let mut code = program(&self.places(queues));
        let program = sock_fprog { len: code.len() as libc::c_ushort, filter: code.as_mut_ptr() };
        set_option(socket, libc::SOL_PACKET, libc::PACKET_FANOUT_DATA, &program)
    }
}

/// Joins a fanout group, or creates a group if `group` is `None`. The socket of a new group receives all frames until a
/// BPF program selects the sockets.
pub(super) fn join(socket: &OwnedFd, group: &mut Option<u16>, outgoing: bool) -> io::Result<()> {
    // In a group, this flag filters outgoing frames. The socket option PACKET_IGNORE_OUTGOING has no effect there.
    let kind = libc::PACKET_FANOUT_CBPF | if outgoing { 0 } else { libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING };
    let found = if group.is_none() { libc::PACKET_FANOUT_FLAG_UNIQUEID } else { 0 };
    let argument = u32::from(group.unwrap_or(0)) | (kind | found) << 16;
    set_option(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, &argument)?;
    let (mut joined, mut length) = (0u32, size_of::<u32>() as libc::socklen_t);
    // SAFETY: the option writes at most `length` bytes.
    let done = unsafe {
        let to = (&raw mut joined).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_FANOUT, to, &raw mut length)
    };
    if done == -1 {
        return Err(io::Error::last_os_error());
    }
    *group = Some(joined as u16);
    Ok(())
}

/// An assembler with forward jumps to labels.
#[derive(Default)]
struct Code {
    code: Vec<sock_filter>,
    /// The jumps whose targets are not known yet: the instruction, whether the jump is taken if the condition holds,
    /// and the label.
    jumps: Vec<(usize, bool, Label)>,
}

/// A target of jumps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    Received,
    Ipv6,
    Other,
    Ports4,
    Ports6,
    Select,
}

impl Code {
    fn add(&mut self, code: u32, k: u32) {
        self.code.push(sock_filter { code: code as u16, jt: 0, jf: 0, k });
    }

    /// Adds a conditional jump. Continues with the next instruction if the target is `None`. The condition compares the
    /// accumulator with `k`, or with the index register if the condition contains `BPF_X`.
    fn jump(&mut self, condition: u32, k: u32, if_true: Option<Label>, if_false: Option<Label>) {
        let at = self.code.len();
        self.jumps.extend(if_true.map(|label| (at, true, label)));
        self.jumps.extend(if_false.map(|label| (at, false, label)));
        self.add(BPF_JMP | condition, k);
    }

    fn always(&mut self, label: Label) {
        self.jumps.push((self.code.len(), true, label));
        self.add(BPF_JMP | BPF_JA, 0);
    }

    /// Places a label before the next instruction.
    fn place(&mut self, label: Label) {
        let here = self.code.len();
        let code = &mut self.code;
        self.jumps.retain(|(at, if_true, target)| {
            if *target != label {
                return true;
            }
            let distance = here - at - 1;
            match &mut code[*at] {
                jump if u32::from(jump.code) == BPF_JMP | BPF_JA => jump.k = distance as u32,
                jump if *if_true => jump.jt = distance as u8,
                jump => jump.jf = distance as u8,
            }
            false
        });
    }

    /// Computes `((a + x) * GOLDEN) ^ (a ^ x)` from the accumulator `a` and the index register `x`, and stores the
    /// result in the accumulator. Swapping the two values does not change the result, so both directions of a flow have
    /// the same hash.
    fn mix(&mut self) {
        self.add(BPF_ST, 2);
        self.add(BPF_ALU | BPF_XOR | BPF_X, 0);
        self.add(BPF_ST, 3);
        self.add(BPF_LD | BPF_MEM | BPF_W, 2);
        self.add(BPF_ALU | BPF_ADD | BPF_X, 0);
        self.add(BPF_ALU | BPF_MUL | BPF_K, GOLDEN);
        self.add(BPF_LDX | BPF_MEM | BPF_W, 3);
        self.add(BPF_ALU | BPF_XOR | BPF_X, 0);
    }

    /// Loads a value at an offset from the network header.
    ///
    /// This load does not use `SKF_NET_OFF`. With `SKF_NET_OFF`, kernels before 6.15 cannot load bytes that are in a
    /// fragment of the socket buffer.
    fn load(&mut self, size: u32, offset: u32) {
        self.add(BPF_LDX | BPF_MEM | BPF_W, BASE);
        self.add(BPF_LD | BPF_IND | size, offset);
    }

    /// Jumps to a label if the packet has fewer bytes from the network header on.
    fn need(&mut self, bytes: u32, otherwise: Label) {
        self.add(BPF_LD | BPF_LEN | BPF_W, 0);
        self.add(BPF_LDX | BPF_MEM | BPF_W, BASE);
        self.add(BPF_ALU | BPF_SUB | BPF_X, 0);
        self.jump(BPF_JGE, bytes, None, Some(otherwise));
    }

    /// Loads the words at the offsets `one` and `other` from the network header, mixes the two words, and adds the
    /// result to the hash.
    fn add_words(&mut self, one: u32, other: u32) {
        self.load(BPF_W, one);
        self.add(BPF_ST, 4);
        self.load(BPF_W, other);
        self.add(BPF_LDX | BPF_MEM | BPF_W, 4);
        self.mix();
        self.add_to_hash();
    }

    /// Adds the accumulator to the hash.
    fn add_to_hash(&mut self) {
        self.add(BPF_LDX | BPF_MEM | BPF_W, HASH);
        self.add(BPF_ALU | BPF_ADD | BPF_X, 0);
        self.add(BPF_ST, HASH);
    }

    /// Mixes the ports, which are a word in the accumulator, and adds the result to the hash.
    fn add_ports(&mut self) {
        self.add(BPF_ST, 4);
        self.add(BPF_ALU | BPF_RSH | BPF_K, 16);
        self.add(BPF_MISC | BPF_TAX, 0);
        self.add(BPF_LD | BPF_MEM | BPF_W, 4);
        self.add(BPF_ALU | BPF_AND | BPF_K, 0xffff);
        self.mix();
        self.add_to_hash();
    }
}

/// Returns a BPF program that selects one of these places for each frame, from a hash of the addresses and ports of the
/// frame. Both directions of a flow have the same place. For a frame that is not an IP packet, and for a truncated IP
/// header, the program hashes the MAC addresses. For truncated ports, the program hashes the IP addresses.
///
/// If a load fails, the kernel selects place 0, even if this place is not one of `places`. So the program checks the
/// length of the packet before each load.
fn program(places: &[u32]) -> Vec<sock_filter> {
    let mut it = Code::default();
    if places.len() < 2 {
        it.add(BPF_RET | BPF_K, places.first().copied().unwrap_or(0));
        return it.code;
    }
    it.add(BPF_LD | BPF_IMM, 0);
    it.add(BPF_ST, HASH);
    it.add(BPF_ST, BASE);
    // The data of a received packet starts with the network header. The data of an outgoing packet starts with the
    // Ethernet header.
    it.add(BPF_LD | BPF_ABS | BPF_W, PACKET_TYPE);
    it.jump(BPF_JEQ, libc::PACKET_OUTGOING.into(), None, Some(Label::Received));
    it.add(BPF_LD | BPF_IMM, ETHERNET);
    it.add(BPF_ST, BASE);
    it.place(Label::Received);
    it.add(BPF_LD | BPF_ABS | BPF_W, ETHER_TYPE);
    it.jump(BPF_JEQ, libc::ETH_P_IPV6 as u32, Some(Label::Ipv6), None);
    it.jump(BPF_JEQ, libc::ETH_P_IP as u32, None, Some(Label::Other));
    it.need(20, Label::Other);
    it.add_words(12, 16);
    // Only the first fragment of a packet has ports, so the hash of a fragment does not include ports.
    it.load(BPF_H, 6);
    it.jump(BPF_JSET, 0x3fff, Some(Label::Select), None);
    it.load(BPF_B, 9);
    WITH_PORTS.iter().for_each(|protocol| it.jump(BPF_JEQ, *protocol, Some(Label::Ports4), None));
    it.always(Label::Select);
    it.place(Label::Ports4);
    // Compute the offset of the ports from the length of the header.
    it.load(BPF_B, 0);
    it.add(BPF_ALU | BPF_AND | BPF_K, 0xf);
    it.add(BPF_ALU | BPF_LSH | BPF_K, 2);
    it.add(BPF_ALU | BPF_ADD | BPF_X, 0);
    it.add(BPF_MISC | BPF_TAX, 0);
    it.add(BPF_LD | BPF_LEN | BPF_W, 0);
    it.add(BPF_ALU | BPF_SUB | BPF_K, 4);
    it.jump(BPF_JGE | BPF_X, 0, None, Some(Label::Select));
    it.add(BPF_LD | BPF_IND | BPF_W, 0);
    it.add_ports();
    it.always(Label::Select);
    it.place(Label::Ipv6);
    it.need(40, Label::Other);
    for word in 0..4 {
        it.add_words(8 + 4 * word, 24 + 4 * word);
    }
    it.load(BPF_B, 6);
    WITH_PORTS.iter().for_each(|protocol| it.jump(BPF_JEQ, *protocol, Some(Label::Ports6), None));
    it.always(Label::Select);
    it.place(Label::Ports6);
    it.need(44, Label::Select);
    it.load(BPF_W, 40);
    it.add_ports();
    it.always(Label::Select);
    it.place(Label::Other);
    // Each frame has an Ethernet header.
    it.add(BPF_LD | BPF_ABS | BPF_W, LINK + 2);
    it.add(BPF_MISC | BPF_TAX, 0);
    it.add(BPF_LD | BPF_ABS | BPF_W, LINK + 8);
    it.mix();
    it.add_to_hash();
    it.place(Label::Select);
    it.add(BPF_LD | BPF_MEM | BPF_W, HASH);
    it.add(BPF_ALU | BPF_MUL | BPF_K, GOLDEN);
    it.add(BPF_ALU | BPF_RSH | BPF_K, 16);
    it.add(BPF_ALU | BPF_MOD | BPF_K, places.len() as u32);
    if places.iter().copied().eq(0..places.len() as u32) {
        it.add(BPF_RET | BPF_A, 0);
        return it.code;
    }
    for (index, place) in (0..).zip(places) {
        it.code.push(sock_filter { code: (BPF_JMP | BPF_JEQ | BPF_K) as u16, jt: 0, jf: 1, k: index });
        it.add(BPF_RET | BPF_K, *place);
    }
    it.add(BPF_RET | BPF_K, places[0]);
    it.code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_follow_the_kernel_when_sockets_join_and_leave() {
        let mut members = Members::default();
        // The sockets may join in any order.
        [1, 0, 2].into_iter().for_each(|queue| members.join(queue));
        assert_eq!(members.places(None), [1, 0, 2]);
        assert_eq!(members.places(Some(2)), [1, 0]);
        assert_eq!(members.places(Some(1)), [1]);
        // The last socket moves to the free place.
        members.leave(1);
        assert_eq!(members.places(None), [1, 0]);
        members.join(1);
        assert_eq!(members.places(None), [1, 2, 0]);
        members.sort();
        assert_eq!(members.places(None), [0, 2, 1]);
    }

    #[test]
    fn places_move_to_another_program() {
        let mut old = Members::default();
        [2, 0, 1].into_iter().for_each(|queue| old.join(queue));
        old.leave(2);
        old.join(2);
        let position = |queue| old.position(queue).map(|(place, join)| (queue, place, join)).unwrap();
        let mut new = Members::adopt((0..3).map(position).collect()).unwrap();
        assert_eq!(new.places(None), old.places(None));
        assert_eq!(Members::adopt(vec![position(0), position(2)]).map(|_| ()), None);
        for members in [&mut old, &mut new] {
            members.join(3);
            members.sort();
        }
        assert_eq!(new.places(None), old.places(None));
    }

    #[test]
    fn program_has_no_open_jumps_and_fits_into_the_limit_of_the_kernel() {
        // The distance of a conditional jump has 8 bits.
        assert!(program(&[0, 1]).len() < 256);
        for queues in [0, 1, 2, 3, 1024] {
            let code = program(&(0..queues).rev().collect::<Vec<_>>());
            assert!(code.len() <= 4096, "{queues} queues: {} instructions", code.len());
            for (at, jump) in code.iter().enumerate().filter(|(_, one)| u32::from(one.code) & 7 == BPF_JMP) {
                let is_always = u32::from(jump.code) == BPF_JMP | BPF_JA;
                let distance = if is_always { jump.k } else { u32::from(jump.jt.max(jump.jf)) };
                assert!(distance > 0 && at + 1 + (distance as usize) < code.len(), "{queues} queues, instruction {at}");
            }
        }
    }
}
