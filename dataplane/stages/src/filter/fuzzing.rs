//! Targets of the fuzzer: filter programs and filter expressions.

use pcap::{Capture, Linktype};

use super::compile;
use super::program::{Instruction, Program};

/// The words from which [`expression`] builds expressions. No word is the name of a host, because libpcap would resolve
/// the name.
const WORDS: [&str; 65] = [
    "and",
    "or",
    "not",
    "(",
    ")",
    "ip",
    "ip6",
    "arp",
    "rarp",
    "tcp",
    "udp",
    "icmp",
    "icmp6",
    "sctp",
    "ether",
    "vlan",
    "vlan 7",
    "mpls",
    "mpls 100",
    "pppoes",
    "llc",
    "src",
    "dst",
    "src or dst",
    "host 192.0.2.1",
    "host 2001:db8::1",
    "net 10.0.0.0/8",
    "net 2001:db8::/32",
    "port 53",
    "port 80",
    "portrange 1-1024",
    "proto 17",
    "proto 6",
    "host",
    "ether host 02:00:00:00:00:01",
    "ether proto 0x0800",
    "broadcast",
    "multicast",
    "ip multicast",
    "len",
    "less 64",
    "greater 100",
    "ip[0]",
    "ip[6:2]",
    "tcp[13]",
    "udp[4:2]",
    "ether[12:2]",
    "ip6[6]",
    "icmp[0]",
    "[",
    "]",
    "=",
    "!=",
    ">",
    "<",
    "&",
    "|",
    "+",
    "-",
    "*",
    "<<",
    "0",
    "2",
    "0x0f",
    "geneve",
];

/// Runs a program on a packet, and compares the result with the result of the reference interpreter. The first byte of
/// the input is the number of instructions, each of which has 8 bytes. The packet follows.
pub(crate) fn program(input: &[u8]) {
    let Some((&count, rest)) = input.split_first() else { return };
    let (instructions, packet) = rest.split_at(rest.len().min(8 * usize::from(count)));
    let instruction = |bytes: &[u8; 8]| Instruction {
        code: u16::from_le_bytes([bytes[0], bytes[1]]),
        jt: bytes[2],
        jf: bytes[3],
        k: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
    };
    let instructions: Vec<_> = instructions.as_chunks().0.iter().map(instruction).collect();
    let checked = Program::new(&instructions);
    let lines = instructions.iter().map(|at| format!("{} {} {} {}", at.code, at.jt, at.jf, at.k));
    let text = format!("{}\n{}", instructions.len(), lines.collect::<Vec<_>>().join("\n"));
    let parsed = Program::parse(&text);
    assert_eq!(checked.as_ref().err(), parsed.as_ref().err());
    if let (Ok(checked), Ok(parsed)) = (checked, parsed) {
        let result = checked.run(packet);
        assert_eq!(result, reference(&instructions, packet));
        assert_eq!(result, parsed.run(packet));
    }
}

/// Parses a text as a program, and runs the program on the bytes of the text.
pub(crate) fn text(input: &[u8]) {
    if let Ok(text) = std::str::from_utf8(input)
        && let Ok(program) = Program::parse(text)
    {
        program.run(input);
    }
}

/// Compiles an expression, and compares the result of the stage for a packet with the result of libpcap. The first byte
/// of the input, modulo 32, is the number of words in the expression. Each of the following bytes selects a word of
/// [`WORDS`]. The remaining bytes are the packet.
pub(crate) fn expression(input: &[u8]) {
    let Some((&count, rest)) = input.split_first() else { return };
    let (words, packet) = rest.split_at(rest.len().min(usize::from(count % 32)));
    let words: Vec<&str> = words.iter().map(|word| WORDS[usize::from(*word) % WORDS.len()]).collect();
    let expression = words.join(" ");
    let Ok(program) = compile(&expression) else { return };
    let capture = Capture::dead(Linktype::ETHERNET).expect("a capture without a device");
    let reference = capture.compile(&expression, true).expect("the expression compiled before");
    assert_eq!(program.run(packet) != 0, reference.filter(packet), "{expression}");
}

/// Runs a program in a reference interpreter. The interpreter executes the undecoded instructions one by one, as the
/// definition of classic BPF describes the instructions, with 64-bit arithmetic.
pub(super) fn reference(program: &[Instruction], packet: &[u8]) -> u32 {
    let (mut a, mut x, mut memory) = (0u64, 0u64, [0u64; 16]);
    let read = |at: u64, bytes: u64| -> Option<u64> {
        (at + bytes <= packet.len() as u64)
            .then(|| (at..at + bytes).fold(0, |value, at| value << 8 | u64::from(packet[at as usize])))
    };
    let mut at = 0;
    loop {
        let Instruction { code, jt, jf, k } = program[at];
        let k = u64::from(k);
        let operand = if code & 8 == 0 { k } else { x };
        at += 1;
        match code & 7 {
            0 | 1 => {
                let bytes = [4, 2, 1][usize::from(code >> 3 & 3)];
                let value = match code >> 5 {
                    0 => Some(k),
                    1 => read(k, bytes),
                    2 => read(x + k, bytes),
                    3 => Some(memory[k as usize]),
                    4 => Some(packet.len() as u64),
                    5 => read(k, 1).map(|byte| 4 * (byte % 16)),
                    _ => unreachable!(),
                };
                let Some(value) = value else { return 0 };
                *(if code & 7 == 0 { &mut a } else { &mut x }) = value;
            }
            2 => memory[k as usize] = a,
            3 => memory[k as usize] = x,
            4 => {
                let of_zero = operand == 0 && [3, 9].contains(&(code >> 4));
                if of_zero {
                    return 0;
                }
                let whole = match code >> 4 {
                    0 => a + operand,
                    1 => a + (1 << 32) - operand,
                    2 => a.wrapping_mul(operand),
                    3 => a / operand,
                    4 => a | operand,
                    5 => a & operand,
                    6 => {
                        if operand < 32 {
                            a << operand
                        } else {
                            0
                        }
                    }
                    7 => {
                        if operand < 32 {
                            a >> operand
                        } else {
                            0
                        }
                    }
                    8 => (1 << 32) - a,
                    9 => a % operand,
                    10 => a ^ operand,
                    _ => unreachable!(),
                };
                a = whole & 0xffff_ffff;
            }
            5 => {
                let holds = match code >> 4 {
                    0 => {
                        at += k as usize;
                        continue;
                    }
                    1 => a == operand,
                    2 => a > operand,
                    3 => a >= operand,
                    4 => a & operand > 0,
                    _ => unreachable!(),
                };
                at += usize::from(if holds { jt } else { jf });
            }
            6 => return if code == 0x06 { k } else { a } as u32,
            _ => *(if code == 0x07 { &mut x } else { &mut a }) = if code == 0x07 { a } else { x },
        }
    }
}
