use proptest::prelude::*;

use super::fuzzing::reference;
use super::program::Instruction;
use super::*;
use dataplane_core::harness::{Fate, Harness, frame};

/// The output of `tcpdump -ddd -y EN10MB` for `tcp port 80`.
const TCP_PORT_80: &str = "20\n40 0 0 12\n21 0 6 34525\n48 0 0 20\n21 0 15 6\n40 0 0 54\n21 12 0 80\n40 0 0 56\n\
    21 10 11 80\n21 0 10 2048\n48 0 0 23\n21 0 8 6\n40 0 0 20\n69 6 0 8191\n177 0 0 14\n72 0 0 14\n21 2 0 80\n\
    72 0 0 16\n21 0 1 80\n6 0 0 262144\n6 0 0 0\n";

fn to_port(port: u16) -> Vec<u8> {
    frame().ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into()).tcp(4000, port).build()
}

#[test]
fn bytecode_selects_packets() {
    for text in [TCP_PORT_80.to_owned(), TCP_PORT_80.trim().replace('\n', ",")] {
        let mut harness = Harness::from_toml::<Filter>(&format!("bytecode = \"\"\"{text}\"\"\"")).unwrap();
        let (web, other) = (to_port(80), to_port(81));
        let fates: Vec<Fate> = harness.run(&[&web, &other, &web]).into_iter().map(|outcome| outcome.fate).collect();
        assert_eq!(fates, [Fate::Next, Fate::Output("other".to_owned()), Fate::Next]);
        assert_eq!(harness.explain_one(&web).as_deref(), Some("the filter matches"));
        assert_eq!(harness.explain_one(&other).as_deref(), Some("the filter does not match"));
        // A truncated frame matches only if it still contains all fields that the filter reads.
        for length in 0..web.len() {
            let fate = harness.run_one(&web[..length]).fate;
            assert_eq!(fate == Fate::Next, length >= 38, "{length}");
        }
    }
}

#[test]
fn expression_selects_packets() {
    let (web, other) = (to_port(80), to_port(81));
    for (expression, takes_web, takes_other) in [("", true, true), ("tcp port 80", true, false), ("udp", false, false)]
    {
        let mut harness = Harness::from_toml::<Filter>(&format!("expression = \"{expression}\"")).unwrap();
        for (packet, matches) in [(&web, takes_web), (&other, takes_other)] {
            assert_eq!(harness.run_one(packet).fate == Fate::Next, matches, "{expression}");
        }
    }
}

#[test]
fn invalid_filter_is_refused() {
    let refused = |parameters: &str| Harness::from_toml::<Filter>(parameters).err().unwrap();
    let bytecode = |text: &str| refused(&format!("bytecode = \"{text}\""));
    for (text, expected) in [
        ("", "bytecode: the program is empty; help: write the output of `tcpdump -ddd"),
        ("1 6 0 0 x", "`x` is not a 32-bit number"),
        ("1 6 0 0 4294967296", "`4294967296` is not a 32-bit number"),
        ("2 6 0 0 0", "2 instructions need 4 numbers each, but the text has 4"),
        ("1 6 0 0 0 6 0 0 0", "1 instructions need 4 numbers each, but the text has 8"),
        ("0", "0 instructions: a program has 1 to 4096"),
        ("4097", "the program has 4097 instructions, more than the maximum of 4096"),
        ("1 6 256 0 0", "instruction 0: a number is too large"),
        (
            "2 21 1 0 0 6 0 0 0",
            "instruction 0 (0x15, 0): the instruction jumps backwards or beyond the end of the filter",
        ),
        ("2 5 0 0 1 6 0 0 0", "jumps backwards or beyond the end"),
        ("2 96 0 0 3 22 0 0 0", "instruction 0 reads word 3 of the scratch memory, which may have no value yet"),
        // Only the true branch stores the value.
        ("5 48 0 0 0 21 0 1 1 2 0 0 3 97 0 0 3 22 0 0 0", "instruction 3 reads word 3 of the scratch memory"),
        ("2 5 0 0 4294967295 6 0 0 0", "jumps backwards or beyond the end"),
        ("2 52 0 0 0 6 0 0 0", "instruction 0 (0x34, 0): division by zero"),
        ("2 148 0 0 0 6 0 0 0", "division by zero"),
        ("2 100 0 0 32 6 0 0 0", "shift by 32 bits or more"),
        ("2 96 0 0 16 6 0 0 0", "unknown instruction"),
        ("2 255 0 0 0 6 0 0 0", "unknown instruction"),
        ("2 40 0 0 4294963204 6 0 0 0", "the instruction reads packet metadata that only the kernel has"),
        ("1 0 0 0 7", "the last instruction does not return"),
    ] {
        let message = bytecode(text);
        assert!(message.contains(expected), "{text}: {message}");
    }
    assert!(refused("").contains("`expression` is missing; help: add expression"));
    assert!(
        refused("expression = \"ip\"\nbytecode = \"1 6 0 0 0\"").contains("`expression` and `bytecode` are both set")
    );
    let zero = refused("expression = \"ip\\u0000\"");
    assert!(zero.contains("zero byte"), "{zero}");
}

#[test]
fn ip_broadcast_is_refused_because_no_netmask_is_known() {
    let built = |expression: &str| Harness::from_toml::<Filter>(&format!("expression = \"{expression}\""));
    for expression in ["ip broadcast", "tcp or (ip  broadcast)", "not ip broadcast"] {
        let message = built(expression).err().unwrap_or_else(|| panic!("{expression}"));
        assert!(message.contains("needs a netmask") && message.contains("help: use `ether broadcast`"), "{message}");
    }
    for expression in ["ether broadcast", "broadcast", "ip and broadcast", "ip && broadcast", "ip multicast"] {
        assert_eq!(built(expression).err(), None, "{expression}");
    }
}

/// libpcap compiles `not geneve and not tcp` to a program that reads words before the program stores values there. The
/// result would depend on old data.
#[test]
fn expression_whose_program_reads_unset_memory_is_refused() {
    let built = |expression: &str| Harness::from_toml::<Filter>(&format!("expression = \"{expression}\"")).err();
    assert_eq!(built("geneve"), None);
    let message = built("not geneve and not tcp").unwrap();
    assert!(message.contains("of the scratch memory, which may have no value yet"), "{message}");
}

#[test]
fn expression_that_takes_long_to_compile_is_refused() {
    let refused = |terms: usize| {
        let ports: Vec<String> = (0..terms).map(|port| format!("port {port}")).collect();
        Harness::from_toml::<Filter>(&format!("expression = \"{}\"", ports.join(" or "))).err()
    };
    let help = "help: split the filter over several `filter` stages, or use an `acl` stage";
    for (terms, expected) in [
        (2000, "the expression has 2000 values, more than the maximum of 400"),
        (150, "instructions before optimisation, more than the maximum of 8192"),
    ] {
        let message = refused(terms).unwrap();
        assert!(message.contains(expected) && message.contains(help), "{message}");
    }
    assert_eq!(refused(100), None);
}

#[test]
fn long_invalid_expression_is_shortened_in_the_message() {
    let message = Harness::from_toml::<Filter>(&format!("expression = \"{}\"", "?".repeat(900_000))).err().unwrap();
    assert!(message.contains(&format!("`{}...`: ", "?".repeat(80))) && message.len() < 1000, "{message}");
}

#[test]
fn direction_in_an_expression_is_refused_with_help() {
    for expression in ["inbound", "outbound"] {
        let message = Harness::from_toml::<Filter>(&format!("expression = \"{expression}\"")).err().unwrap();
        assert!(message.contains("a packet has no direction in this stage"), "{message}");
    }
}

const CODES: [u16; 48] = [
    0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0x80, 0x00, 0x60, 0xb1, 0x81, 0x01, 0x61, 0x02, 0x03, 0x84, 0x05, 0x06, 0x16,
    0x07, 0x87, 0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3c, 0x44, 0x4c, 0x54, 0x5c, 0x64, 0x6c, 0x74, 0x7c, 0x94,
    0x9c, 0xa4, 0xac, 0x15, 0x1d, 0x25, 0x35, 0x3d, 0x45, 0x4d,
];

/// Generates mostly valid instructions, with short jumps and with offsets in the packet or close to its end.
fn instruction() -> impl Strategy<Value = Instruction> {
    let code = prop_oneof![40 => prop::sample::select(CODES.to_vec()), 1 => any::<u16>()];
    let k =
        prop_oneof![6 => 0..20u32, 3 => 0..80u32, 1 => any::<u32>(), 1 => (0..4u32).prop_map(|below| u32::MAX - below)];
    (code, 0..4u8, 0..4u8, k).prop_map(|(code, jt, jf, k)| Instruction { code, jt, jf, k })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Every program that passes the check ends without a panic and returns the result of the reference interpreter.
    #[test]
    fn programs_match_the_reference_interpreter(
        mut program in prop::collection::vec(instruction(), 1..40),
        packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 1..8),
        tidy in any::<bool>(),
    ) {
        if tidy {
            program.retain(|instruction| Program::new(&[*instruction, ret(), ret(), ret(), ret(), ret()]).is_ok());
            program.extend([ret(); 5]);
        }
        if let Ok(checked) = Program::new(&program) {
            for packet in &packets {
                prop_assert_eq!(checked.run(packet), reference(&program, packet), "{:?}", program);
            }
        } else {
            prop_assert!(!tidy);
        }
    }

    /// The parser does not panic on any text.
    #[test]
    fn parser_never_panics(text in "[0-9 ,x\n-]{0,200}") {
        let _ = Program::parse(&text);
    }
}

fn ret() -> Instruction {
    Instruction { code: 0x16, jt: 0, jf: 0, k: 0 }
}
