//! The XDP program: a filter becomes BPF instructions (RFC 9669).
//!
//! Nothing is compiled and nothing is linked: the program is made when the link is, from the filter alone. It looks at a
//! frame once, writes what it found on its stack, and goes through the selectors. A frame that is selected goes to the
//! AF_XDP socket of the queue that it came in on; any other, and every frame of a queue without a socket, goes on to the
//! kernel. It writes nothing into a frame, and before one its stamp, where that is asked for.

use std::os::fd::RawFd;

use ipnet::IpNet;

/// What a frame must have to be selected: all that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// The EtherType after up to two VLAN tags.
    pub ether_type: Option<u16>,
    /// The id of the outer VLAN tag, where the interface leaves tags in the frame.
    pub vlan: Option<u16>,
    /// The protocol of an IPv4 packet, or the one after the extension headers of an IPv6 packet.
    pub protocol: Option<u8>,
    /// The source or the destination port, of TCP, UDP, DCCP, SCTP and UDP-Lite. Only the first fragment has ports.
    pub port: Option<u16>,
    /// What the source or the destination address is in.
    pub prefix: Option<IpNet>,
}

/// Which frames are taken; all others go on to the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// A frame that one of them selects is taken; without any, every frame.
    pub take: Vec<Selector>,
    /// A frame that one of them selects is not, whatever `take` says.
    pub except: Vec<Selector>,
}

/// What happens to a frame that is taken.
#[derive(Clone, Copy, Debug)]
pub(super) enum Taken {
    /// It goes to the socket of its queue in this map.
    Socket(RawFd),
    /// The program says this: for tests.
    #[cfg(test)]
    Verdict(u32),
}

/// What is written before a frame that is taken: when it came in, in nanoseconds, and the same with every bit turned, so that
/// nothing else is taken for it. 0 is no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stamp {
    Nothing,
    /// By `CLOCK_MONOTONIC`.
    Kernel,
    /// By the clock of the NIC. The number of the kernel's function that tells.
    Nic(u32),
}

/// Bytes of a stamp, right before the frame.
pub(super) const STAMP: u64 = 16;
/// The kernel's function that tells when the NIC received a frame.
pub(super) const NIC_STAMP: &str = "bpf_xdp_metadata_rx_timestamp";

/// `XDP_PASS`: on to the kernel.
pub(super) const PASS: u32 = 2;

/// An instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Instruction {
    code: u8,
    /// The destination in the low four bits, the source above.
    registers: u8,
    offset: i16,
    immediate: i32,
}

// Registers, by use. 1 to 5 are lost by a call, 6 to 9 are kept; 10 is the frame of the stack.
const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R4: u8 = 4;
const CONTEXT: u8 = 6;
const AT: u8 = 7;
const END: u8 = 8;
const STACK: u8 = 10;

// What was found, as words on the stack.
const ETHER_TYPE: i16 = -4;
const VLAN: i16 = -8;
const PROTOCOL: i16 = -12;
const SOURCE_PORT: i16 = -16;
const DESTINATION_PORT: i16 = -20;
const VERSION: i16 = -24;
const SOURCE: i16 = -40;
const DESTINATION: i16 = -56;
/// Eight bytes of room for a time.
const TIME: i16 = -64;

/// A word that no field has.
const NONE: i32 = 0x1_0000;
/// VLAN tags that are looked through.
const TAGS: usize = 2;
/// Extension headers that are looked through.
const EXTENSIONS: usize = 4;

// Instructions after which it does not go on at the next.
const JUMP: u8 = 0x05;
const EXIT: u8 = 0x95;
/// The load of a map, which takes two places.
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

/// Instructions, and jumps to places that are not known yet.
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

    fn here(&mut self, label: Label) {
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

    fn if_other(&mut self, register: u8, value: u32, to: Label) {
        self.jump(0x56, register, 0, value as i32, to);
    }

    fn load(&mut self, width: Width, to: u8, from: u8, offset: i16) {
        self.emit(0x61 | width as u8, to, from, offset, 0);
    }

    /// Loads what is in network order.
    fn load_be(&mut self, width: Width, to: u8, from: u8, offset: i16) {
        self.load(width, to, from, offset);
        self.emit(0xdc, to, 0, 0, if matches!(width, Width::Word) { 32 } else { 16 });
    }

    fn keep(&mut self, offset: i16, from: u8) {
        self.emit(0x63, STACK, from, offset, 0);
    }

    fn keep_value(&mut self, offset: i16, value: i32) {
        self.emit(0x62, STACK, 0, offset, value);
    }

    fn kept(&mut self, to: u8, offset: i16) {
        self.load(Width::Word, to, STACK, offset);
    }

    fn set(&mut self, register: u8, value: i32) {
        self.emit(0xb7, register, 0, 0, value);
    }

    fn copy(&mut self, to: u8, from: u8) {
        self.emit(0xbf, to, from, 0, 0);
    }

    /// Calls a helper by its number.
    fn call(&mut self, helper: i32) {
        self.emit(0x85, 0, 0, 0, helper);
    }

    fn add(&mut self, register: u8, value: i32) {
        self.emit(0x07, register, 0, 0, value);
    }

    fn and(&mut self, register: u8, mask: u32) {
        self.emit(0x54, register, 0, 0, mask as i32);
    }

    /// Goes `to` where fewer than `bytes` are left.
    fn need(&mut self, bytes: i32, to: Label) {
        self.copy(R2, AT);
        self.add(R2, bytes);
        self.jump(0x2d, R2, END, 0, to);
    }

    /// Which instructions can be reached: the kernel takes no program with one that cannot.
    fn reached(&self, to: &[Option<usize>]) -> Option<Vec<bool>> {
        let mut reached = vec![false; self.code.len()];
        let mut next = vec![0];
        while let Some(at) = next.pop() {
            if std::mem::replace(reached.get_mut(at)?, true) {
                continue;
            }
            next.extend(to[at]);
            match self.code[at].code {
                JUMP | EXIT => {}
                LOAD_MAP => next.extend([at + 1, at + 2]),
                _ => next.push(at + 1),
            }
        }
        Some(reached)
    }

    /// `None`: the program is longer than a jump.
    fn finish(self) -> Option<Vec<Instruction>> {
        let mut to = vec![None; self.code.len()];
        for (at, label) in &self.jumps {
            to[*at] = self.labels[label.0];
        }
        let reached = self.reached(&to)?;
        let mut kept = 0;
        let place = |reached: &bool| {
            kept += i64::from(*reached);
            kept - i64::from(*reached)
        };
        let places: Vec<i64> = reached.iter().map(place).collect();
        let mut code = Vec::new();
        for (at, mut instruction) in self.code.iter().copied().enumerate().filter(|(at, _)| reached[*at]) {
            if let Some(to) = to[at] {
                instruction.offset = i16::try_from(places[to] - places[at] - 1).ok()?;
            }
            code.push(instruction);
        }
        Some(code)
    }
}

/// Makes the program. `None`: there are too many selectors.
pub(super) fn program(filter: &Filter, taken: Taken, stamp: Stamp) -> Option<Vec<Instruction>> {
    let mut it = Assembler::default();
    let (take, pass) = (it.label(), it.label());
    it.copy(CONTEXT, R1);
    if !filter.take.is_empty() || !filter.except.is_empty() {
        let rules = it.label();
        parse(&mut it, rules);
        it.here(rules);
        filter.except.iter().for_each(|selector| select(&mut it, selector, pass));
        filter.take.iter().for_each(|selector| select(&mut it, selector, take));
        if !filter.take.is_empty() {
            it.go(pass);
        }
    }
    it.here(take);
    if stamp != Stamp::Nothing {
        write_stamp(&mut it, stamp);
    }
    match taken {
        Taken::Socket(map) => {
            // bpf_redirect_map(map, the queue, XDP_PASS where it has no socket)
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
    it.here(pass);
    it.set(R0, PASS as i32);
    it.emit(EXIT, 0, 0, 0, 0);
    it.finish()
}

/// Makes room before the frame, and writes when it came in. Where there can be no room nothing is written.
fn write_stamp(it: &mut Assembler, stamp: Stamp) {
    let done = it.label();
    // bpf_xdp_adjust_meta(context, -STAMP)
    it.copy(R1, CONTEXT);
    it.set(R2, -(STAMP as i32));
    it.call(54);
    it.if_other(R0, 0, done);
    match stamp {
        Stamp::Nic(function) => {
            // function(context, &time): what it does not know stays 0.
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
    it.here(done);
}

/// Finds what selectors look at, and goes to `rules`.
fn parse(it: &mut Assembler, rules: Label) {
    for offset in [ETHER_TYPE, VLAN, PROTOCOL, SOURCE_PORT, DESTINATION_PORT] {
        it.keep_value(offset, NONE);
    }
    (DESTINATION..=VERSION).step_by(4).for_each(|offset| it.keep_value(offset, 0));
    it.load(Width::Word, AT, CONTEXT, 0);
    it.load(Width::Word, END, CONTEXT, 4);
    it.need(14, rules);
    it.load_be(Width::Half, R0, AT, 12);
    it.add(AT, 14);
    let untagged = it.label();
    for tag in 0..TAGS {
        let tagged = it.label();
        it.if_equal(R0, 0x8100, tagged);
        it.if_other(R0, 0x88a8, untagged);
        it.here(tagged);
        it.need(4, untagged);
        if tag == 0 {
            it.load_be(Width::Half, R1, AT, 0);
            it.and(R1, 0xfff);
            it.keep(VLAN, R1);
        }
        it.load_be(Width::Half, R0, AT, 2);
        it.add(AT, 4);
    }
    it.here(untagged);
    it.keep(ETHER_TYPE, R0);
    let (v4, v6, ports) = (it.label(), it.label(), it.label());
    it.if_equal(R0, 0x0800, v4);
    it.if_equal(R0, 0x86dd, v6);
    it.go(rules);
    it.here(v4);
    ipv4(it, ports, rules);
    it.here(v6);
    ipv6(it, ports, rules);
    it.here(ports);
    let has_ports = it.label();
    it.kept(R1, PROTOCOL);
    for protocol in [6, 17, 33, 132, 136] {
        it.if_equal(R1, protocol, has_ports);
    }
    it.go(rules);
    it.here(has_ports);
    it.need(4, rules);
    for (offset, kept) in [(0, SOURCE_PORT), (2, DESTINATION_PORT)] {
        it.load_be(Width::Half, R1, AT, offset);
        it.keep(kept, R1);
    }
}

/// Goes to `rules` unless the header is of this version.
fn version(it: &mut Assembler, version: u32, rules: Label) {
    it.load(Width::Byte, R1, AT, 0);
    it.copy(R3, R1);
    it.and(R3, 0xf0);
    it.if_other(R3, version << 4, rules);
    it.keep_value(VERSION, version as i32);
}

/// Keeps words of a header.
fn words(it: &mut Assembler, from: i16, to: i16, count: i16) {
    for word in 0..count {
        it.load_be(Width::Word, R3, AT, from + 4 * word);
        it.keep(to + 4 * word, R3);
    }
}

fn ipv4(it: &mut Assembler, ports: Label, rules: Label) {
    it.need(20, rules);
    version(it, 4, rules);
    words(it, 12, SOURCE, 1);
    words(it, 16, DESTINATION, 1);
    it.load(Width::Byte, R3, AT, 9);
    it.keep(PROTOCOL, R3);
    // Of the fragments the first alone has ports.
    it.load_be(Width::Half, R3, AT, 6);
    it.and(R3, 0x1fff);
    it.if_other(R3, 0, rules);
    it.and(R1, 0xf);
    it.emit(0x67, R1, 0, 0, 2);
    it.emit(0x0f, AT, R1, 0, 0);
    it.go(ports);
}

fn ipv6(it: &mut Assembler, ports: Label, rules: Label) {
    it.need(40, rules);
    version(it, 6, rules);
    words(it, 8, SOURCE, 4);
    words(it, 24, DESTINATION, 4);
    it.load(Width::Byte, R4, AT, 6);
    it.add(AT, 40);
    let (known, later) = (it.label(), it.label());
    for _ in 0..EXTENSIONS {
        let (options, fragment, next) = (it.label(), it.label(), it.label());
        for protocol in [0, 43, 60] {
            it.if_equal(R4, protocol, options);
        }
        it.if_equal(R4, 44, fragment);
        it.go(known);
        it.here(options);
        it.need(8, known);
        it.load(Width::Byte, R4, AT, 0);
        it.load(Width::Byte, R1, AT, 1);
        it.add(R1, 1);
        it.emit(0x67, R1, 0, 0, 3);
        it.emit(0x0f, AT, R1, 0, 0);
        it.go(next);
        it.here(fragment);
        it.need(8, known);
        it.load(Width::Byte, R4, AT, 0);
        it.load_be(Width::Half, R3, AT, 2);
        it.and(R3, 0xfff8);
        it.if_other(R3, 0, later);
        it.add(AT, 8);
        it.here(next);
    }
    it.here(known);
    it.keep(PROTOCOL, R4);
    it.go(ports);
    it.here(later);
    it.keep(PROTOCOL, R4);
    it.go(rules);
}

/// Goes `to` if the frame is selected.
fn select(it: &mut Assembler, selector: &Selector, to: Label) {
    let next = it.label();
    let exact = [
        (ETHER_TYPE, selector.ether_type.map(u32::from)),
        (VLAN, selector.vlan.map(u32::from)),
        (PROTOCOL, selector.protocol.map(u32::from)),
    ];
    for (kept, value) in exact {
        if let Some(value) = value {
            it.kept(R1, kept);
            it.if_other(R1, value, next);
        }
    }
    if let Some(port) = selector.port.map(u32::from) {
        let matched = it.label();
        it.kept(R1, SOURCE_PORT);
        it.if_equal(R1, port, matched);
        it.kept(R1, DESTINATION_PORT);
        it.if_other(R1, port, next);
        it.here(matched);
    }
    if let Some(prefix) = selector.prefix {
        let (version, net, mask) = match prefix.trunc() {
            IpNet::V4(net) => (4, u128::from(net.network().to_bits()) << 96, u128::from(net.netmask().to_bits()) << 96),
            IpNet::V6(net) => (6, net.network().to_bits(), net.netmask().to_bits()),
        };
        let (matched, destination) = (it.label(), it.label());
        it.kept(R1, VERSION);
        it.if_other(R1, version, next);
        for (kept, fails) in [(SOURCE, destination), (DESTINATION, next)] {
            for word in 0..4 {
                let shift = 96 - 32 * word;
                let mask = (mask >> shift) as u32;
                if mask != 0 {
                    it.kept(R1, kept + 4 * word as i16);
                    it.and(R1, mask);
                    it.if_other(R1, (net >> shift) as u32, fails);
                }
            }
            if kept == SOURCE {
                it.go(matched);
                it.here(destination);
            }
        }
        it.here(matched);
    }
    it.go(to);
    it.here(next);
}
