//! The generator of the XDP program: translates a filter into BPF instructions (RFC 9669).
//!
//! The program is generated from the filter when the link is created, without a compiler or linker. The program parses
//! a frame once, stores the fields on its stack, and checks the selectors. A selected frame goes to the AF_XDP socket
//! of its receive queue. All other frames, and all frames of a queue without a socket, go to the kernel. The program
//! never changes a frame. If timestamps are requested, the program writes a stamp (a timestamp with a check) before
//! each selected frame.

use std::os::fd::RawFd;

use ipnet::IpNet;

use super::spec::{Filter, Selector};

/// The action for a frame that the filter selects.
#[derive(Clone, Copy, Debug)]
pub(super) enum Taken {
    /// Redirect the frame to the socket of its queue in this map.
    Socket(RawFd),
    /// Return this verdict. Only for tests.
    #[cfg(test)]
    Verdict(u32),
}

/// The clock of the stamp that the program writes before a selected frame. A stamp is the receive time in nanoseconds,
/// followed by the bitwise complement of the time. The complement distinguishes a stamp from other data. A time of 0
/// is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StampSource {
    Nothing,
    /// `CLOCK_MONOTONIC`.
    Kernel,
    /// The clock of the NIC. Holds the BTF id of the kernel function that returns the time.
    Nic(u32),
}

/// The size of a stamp, in bytes. The stamp ends where the frame starts.
pub(super) const STAMP: u64 = 16;
/// The kernel function that returns the NIC's receive time of a frame.
pub(super) const NIC_STAMP: &str = "bpf_xdp_metadata_rx_timestamp";

/// `XDP_PASS`: pass the frame to the kernel.
pub(super) const PASS: u32 = 2;

/// A BPF instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Instruction {
    code: u8,
    /// Destination register in the low four bits, source register in the high four bits.
    registers: u8,
    offset: i16,
    immediate: i32,
}

// The registers and their use in the program. A call overwrites registers 0 to 5 and preserves registers 6 to 9.
// Register 10 is the frame pointer of the stack.
const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R4: u8 = 4;
const CONTEXT: u8 = 6;
const POSITION: u8 = 7;
const END: u8 = 8;
const STACK: u8 = 10;

// Stack offsets of the parsed fields.
const ETHER_TYPE: i16 = -4;
const VLAN: i16 = -8;
const PROTOCOL: i16 = -12;
const SOURCE_PORT: i16 = -16;
const DESTINATION_PORT: i16 = -20;
const VERSION: i16 = -24;
const SOURCE: i16 = -40;
const DESTINATION: i16 = -56;
/// Stack offset of the receive time, which has eight bytes.
const TIME: i16 = -64;

/// The stored value of a field that the frame does not have. A field of a frame never has this value, because these
/// fields have at most 16 bits.
const NONE: i32 = 0x1_0000;
/// Maximum number of VLAN tags to parse.
const TAGS: usize = 2;
/// Maximum number of IPv6 extension headers to parse.
const EXTENSIONS: usize = 4;

// Opcodes after which execution does not continue at the next instruction.
const JUMP: u8 = 0x05;
const EXIT: u8 = 0x95;
/// The opcode that loads a map. Its instruction has the size of two instructions.
const LOAD_MAP: u8 = 0x18;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Label(usize);

/// Width of a load.
#[derive(Clone, Copy)]
enum Width {
    Byte = 0x10,
    Half = 0x08,
    Word = 0x00,
}

/// The generated instructions, and the jumps, whose targets are not yet resolved.
#[derive(Default)]
struct Assembler {
    code: Vec<Instruction>,
    labels: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    fn emit(&mut self, code: u8, to: u8, from: u8, offset: i16, immediate: i32) {
        self.code.push(Instruction { code, registers: from << 4 | to, offset, immediate });
    }

    fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    fn jump(&mut self, code: u8, register: u8, other: u8, immediate: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.emit(code, register, other, 0, immediate);
    }

    fn go(&mut self, to: Label) {
        self.jump(JUMP, 0, 0, 0, to);
    }

    fn if_equal(&mut self, register: u8, value: u32, to: Label) {
        self.jump(0x16, register, 0, value as i32, to);
    }

    fn if_not_equal(&mut self, register: u8, value: u32, to: Label) {
        self.jump(0x56, register, 0, value as i32, to);
    }

    fn load(&mut self, width: Width, to: u8, from: u8, offset: i16) {
        self.emit(0x61 | width as u8, to, from, offset, 0);
    }

    /// Loads a value in network byte order.
    fn load_be(&mut self, width: Width, to: u8, from: u8, offset: i16) {
        self.load(width, to, from, offset);
        self.emit(0xdc, to, 0, 0, if matches!(width, Width::Word) { 32 } else { 16 });
    }

    fn store(&mut self, offset: i16, from: u8) {
        self.emit(0x63, STACK, from, offset, 0);
    }

    fn store_value(&mut self, offset: i16, value: i32) {
        self.emit(0x62, STACK, 0, offset, value);
    }

    fn load_stored(&mut self, to: u8, offset: i16) {
        self.load(Width::Word, to, STACK, offset);
    }

    fn set(&mut self, register: u8, value: i32) {
        self.emit(0xb7, register, 0, 0, value);
    }

    fn copy(&mut self, to: u8, from: u8) {
        self.emit(0xbf, to, from, 0, 0);
    }

    /// Calls a helper function by its number.
    fn call(&mut self, helper: i32) {
        self.emit(0x85, 0, 0, 0, helper);
    }

    fn add(&mut self, register: u8, value: i32) {
        self.emit(0x07, register, 0, 0, value);
    }

    fn and(&mut self, register: u8, mask: u32) {
        self.emit(0x54, register, 0, 0, mask as i32);
    }

    /// Adds a jump to `to`, taken if fewer than `bytes` bytes of the frame are left.
    fn need_bytes(&mut self, bytes: i32, to: Label) {
        self.copy(R2, POSITION);
        self.add(R2, bytes);
        self.jump(0x2d, R2, END, 0, to);
    }

    /// Returns for each instruction whether it is reachable. The verifier refuses programs with unreachable
    /// instructions.
    fn reachable(&self, to: &[Option<usize>]) -> Option<Vec<bool>> {
        let mut reachable = vec![false; self.code.len()];
        let mut next = vec![0];
        while let Some(at) = next.pop() {
            if std::mem::replace(reachable.get_mut(at)?, true) {
                continue;
            }
            next.extend(to[at]);
            match self.code[at].code {
                JUMP | EXIT => {}
                LOAD_MAP => next.extend([at + 1, at + 2]),
                _ => next.push(at + 1),
            }
        }
        Some(reachable)
    }

    /// Resolves the jumps and removes unreachable instructions. Returns `None` if the offset of a jump does not fit
    /// into 16 bits.
    fn finish(self) -> Option<Vec<Instruction>> {
        let mut to = vec![None; self.code.len()];
        for (at, label) in &self.jumps {
            to[*at] = self.labels[label.0];
        }
        let reachable = self.reachable(&to)?;
        let mut kept = 0;
        let place = |reachable: &bool| {
            kept += i64::from(*reachable);
            kept - i64::from(*reachable)
        };
        let places: Vec<i64> = reachable.iter().map(place).collect();
        let mut code = Vec::new();
        for (at, mut instruction) in self.code.iter().copied().enumerate().filter(|(at, _)| reachable[*at]) {
            if let Some(to) = to[at] {
                instruction.offset = i16::try_from(places[to] - places[at] - 1).ok()?;
            }
            code.push(instruction);
        }
        Some(code)
    }
}

/// Generates the program. Returns `None` if there are too many selectors.
pub(super) fn program(filter: &Filter, taken: Taken, stamp: StampSource) -> Option<Vec<Instruction>> {
    let mut it = Assembler::default();
    let (take, pass) = (it.label(), it.label());
    it.copy(CONTEXT, R1);
    if !filter.take.is_empty() || !filter.except.is_empty() {
        let rules = it.label();
        parse(&mut it, rules);
        it.bind(rules);
        filter.except.iter().for_each(|selector| select(&mut it, selector, pass));
        filter.take.iter().for_each(|selector| select(&mut it, selector, take));
        if !filter.take.is_empty() {
            it.go(pass);
        }
    }
    it.bind(take);
    if stamp != StampSource::Nothing {
        write_stamp(&mut it, stamp);
    }
    match taken {
        Taken::Socket(map) => {
            // bpf_redirect_map(map, queue, XDP_PASS if the queue has no socket)
            it.load(Width::Word, R2, CONTEXT, 16);
            it.emit(LOAD_MAP, R1, 1, 0, map);
            it.emit(0, 0, 0, 0, 0);
            it.set(R3, PASS as i32);
            it.call(51);
        }
        #[cfg(test)]
        Taken::Verdict(verdict) => it.set(R0, verdict as i32),
    }
    it.emit(EXIT, 0, 0, 0, 0);
    it.bind(pass);
    it.set(R0, PASS as i32);
    it.emit(EXIT, 0, 0, 0, 0);
    it.finish()
}

/// Generates code that makes space before the frame and writes the stamp there. If there is no space, the code writes
/// nothing.
fn write_stamp(it: &mut Assembler, stamp: StampSource) {
    let done = it.label();
    // bpf_xdp_adjust_meta(context, -STAMP)
    it.copy(R1, CONTEXT);
    it.set(R2, -(STAMP as i32));
    it.call(54);
    it.if_not_equal(R0, 0, done);
    match stamp {
        StampSource::Nic(function) => {
            // function(context, &time): the time stays 0 if the NIC has none.
            it.emit(0x7a, STACK, 0, TIME, 0);
            it.copy(R1, CONTEXT);
            it.copy(R2, STACK);
            it.add(R2, TIME.into());
            it.emit(0x85, 0, 2, 0, function as i32);
            it.emit(0x79, R3, STACK, TIME, 0);
        }
        _ => {
            // bpf_ktime_get_ns()
            it.call(5);
            it.copy(R3, R0);
        }
    }
    it.load(Width::Word, R1, CONTEXT, 8);
    it.load(Width::Word, R2, CONTEXT, 0);
    it.copy(R4, R1);
    it.add(R4, STAMP as i32);
    it.jump(0x2d, R4, R2, 0, done);
    it.emit(0x7b, R1, R3, 0, 0);
    it.emit(0xa7, R3, 0, 0, -1);
    it.emit(0x7b, R1, R3, 8, 0);
    it.bind(done);
}

/// Generates code that parses the fields that selectors use. When all fields are parsed or the frame ends early, the
/// code continues at `rules`, where the selectors are checked.
fn parse(it: &mut Assembler, rules: Label) {
    for offset in [ETHER_TYPE, VLAN, PROTOCOL, SOURCE_PORT, DESTINATION_PORT] {
        it.store_value(offset, NONE);
    }
    (DESTINATION..=VERSION).step_by(4).for_each(|offset| it.store_value(offset, 0));
    it.load(Width::Word, POSITION, CONTEXT, 0);
    it.load(Width::Word, END, CONTEXT, 4);
    it.need_bytes(14, rules);
    it.load_be(Width::Half, R0, POSITION, 12);
    it.add(POSITION, 14);
    let untagged = it.label();
    for tag in 0..TAGS {
        let tagged = it.label();
        it.if_equal(R0, 0x8100, tagged);
        it.if_not_equal(R0, 0x88a8, untagged);
        it.bind(tagged);
        it.need_bytes(4, untagged);
        if tag == 0 {
            it.load_be(Width::Half, R1, POSITION, 0);
            it.and(R1, 0xfff);
            it.store(VLAN, R1);
        }
        it.load_be(Width::Half, R0, POSITION, 2);
        it.add(POSITION, 4);
    }
    it.bind(untagged);
    it.store(ETHER_TYPE, R0);
    let (v4, v6, ports) = (it.label(), it.label(), it.label());
    it.if_equal(R0, 0x0800, v4);
    it.if_equal(R0, 0x86dd, v6);
    it.go(rules);
    it.bind(v4);
    ipv4(it, ports, rules);
    it.bind(v6);
    ipv6(it, ports, rules);
    it.bind(ports);
    let has_ports = it.label();
    it.load_stored(R1, PROTOCOL);
    for protocol in [6, 17, 33, 132, 136] {
        it.if_equal(R1, protocol, has_ports);
    }
    it.go(rules);
    it.bind(has_ports);
    it.need_bytes(4, rules);
    for (offset, kept) in [(0, SOURCE_PORT), (2, DESTINATION_PORT)] {
        it.load_be(Width::Half, R1, POSITION, offset);
        it.store(kept, R1);
    }
}

/// Generates code that stores the IP version if the IP header has this version, and otherwise jumps to `rules`.
fn version(it: &mut Assembler, version: u32, rules: Label) {
    it.load(Width::Byte, R1, POSITION, 0);
    it.copy(R3, R1);
    it.and(R3, 0xf0);
    it.if_not_equal(R3, version << 4, rules);
    it.store_value(VERSION, version as i32);
}

/// Generates code that stores `count` words of a header on the stack.
fn words(it: &mut Assembler, from: i16, to: i16, count: i16) {
    for word in 0..count {
        it.load_be(Width::Word, R3, POSITION, from + 4 * word);
        it.store(to + 4 * word, R3);
    }
}

fn ipv4(it: &mut Assembler, ports: Label, rules: Label) {
    it.need_bytes(20, rules);
    version(it, 4, rules);
    words(it, 12, SOURCE, 1);
    words(it, 16, DESTINATION, 1);
    it.load(Width::Byte, R3, POSITION, 9);
    it.store(PROTOCOL, R3);
    // Only the first fragment has ports.
    it.load_be(Width::Half, R3, POSITION, 6);
    it.and(R3, 0x1fff);
    it.if_not_equal(R3, 0, rules);
    it.and(R1, 0xf);
    it.emit(0x67, R1, 0, 0, 2);
    it.emit(0x0f, POSITION, R1, 0, 0);
    it.go(ports);
}

fn ipv6(it: &mut Assembler, ports: Label, rules: Label) {
    it.need_bytes(40, rules);
    version(it, 6, rules);
    words(it, 8, SOURCE, 4);
    words(it, 24, DESTINATION, 4);
    it.load(Width::Byte, R4, POSITION, 6);
    it.add(POSITION, 40);
    let (known, later) = (it.label(), it.label());
    for _ in 0..EXTENSIONS {
        let (options, fragment, next) = (it.label(), it.label(), it.label());
        for protocol in [0, 43, 60] {
            it.if_equal(R4, protocol, options);
        }
        it.if_equal(R4, 44, fragment);
        it.go(known);
        it.bind(options);
        it.need_bytes(8, known);
        it.load(Width::Byte, R4, POSITION, 0);
        it.load(Width::Byte, R1, POSITION, 1);
        it.add(R1, 1);
        it.emit(0x67, R1, 0, 0, 3);
        it.emit(0x0f, POSITION, R1, 0, 0);
        it.go(next);
        it.bind(fragment);
        it.need_bytes(8, known);
        it.load(Width::Byte, R4, POSITION, 0);
        it.load_be(Width::Half, R3, POSITION, 2);
        it.and(R3, 0xfff8);
        it.if_not_equal(R3, 0, later);
        it.add(POSITION, 8);
        it.bind(next);
    }
    it.bind(known);
    it.store(PROTOCOL, R4);
    it.go(ports);
    it.bind(later);
    it.store(PROTOCOL, R4);
    it.go(rules);
}

/// Generates code that jumps to `to` if the frame matches the selector.
fn select(it: &mut Assembler, selector: &Selector, to: Label) {
    let next = it.label();
    let exact = [
        (ETHER_TYPE, selector.ether_type.map(u32::from)),
        (VLAN, selector.vlan.map(u32::from)),
        (PROTOCOL, selector.protocol.map(u32::from)),
    ];
    for (kept, value) in exact {
        if let Some(value) = value {
            it.load_stored(R1, kept);
            it.if_not_equal(R1, value, next);
        }
    }
    if let Some(port) = selector.port.map(u32::from) {
        let matched = it.label();
        it.load_stored(R1, SOURCE_PORT);
        it.if_equal(R1, port, matched);
        it.load_stored(R1, DESTINATION_PORT);
        it.if_not_equal(R1, port, next);
        it.bind(matched);
    }
    if let Some(prefix) = selector.prefix {
        let (version, net, mask) = match prefix.trunc() {
            IpNet::V4(net) => (4, u128::from(net.network().to_bits()) << 96, u128::from(net.netmask().to_bits()) << 96),
            IpNet::V6(net) => (6, net.network().to_bits(), net.netmask().to_bits()),
        };
        let (matched, destination) = (it.label(), it.label());
        it.load_stored(R1, VERSION);
        it.if_not_equal(R1, version, next);
        for (kept, fails) in [(SOURCE, destination), (DESTINATION, next)] {
            for word in 0..4 {
                let shift = 96 - 32 * word;
                let mask = (mask >> shift) as u32;
                if mask != 0 {
                    it.load_stored(R1, kept + 4 * word as i16);
                    it.and(R1, mask);
                    it.if_not_equal(R1, (net >> shift) as u32, fails);
                }
            }
            if kept == SOURCE {
                it.go(matched);
                it.bind(destination);
            }
        }
        it.bind(matched);
    }
    it.go(to);
    it.bind(next);
}
