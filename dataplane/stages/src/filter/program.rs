//! Checks and runs programs of the classic BSD packet filter (McCanne and Jacobson, "The BSD Packet Filter", USENIX
//! Winter 1993; `linux/filter.h`).
//!
//! Jumps only lead forward and stay inside the program, and the last instruction returns. A program therefore
//! executes each instruction at most once. A read outside the packet and a division by an X of 0 end the
//! program with 0. A shift by an X of 32 or more gives 0, as in libpcap. A program that divides by the constant 0, or
//! shifts by a constant of 32 or more, is refused.

/// The maximum number of instructions (`BPF_MAXINSNS`).
const MOST: usize = 4096;
/// The number of words of scratch memory (`BPF_MEMWORDS`).
const WORDS: usize = 16;

/// A checked program.
#[derive(Debug)]
pub(super) struct Program(Box<[BpfOp]>);

/// A decoded instruction. `A` is the accumulator, `X` the index register.
#[derive(Clone, Copy, Debug)]
enum BpfOp {
    /// Loads a value at an offset in the packet into A.
    Load(Size, u32),
    /// Loads a value at an offset plus X into A.
    LoadAtX(Size, u32),
    LoadLength,
    LoadConstant(u32),
    LoadMemory(u8),
    /// Sets X to four times the low 4 bits of a byte of the packet, which is the length of an IPv4 header.
    HeaderLengthToX(u32),
    LengthToX,
    ConstantToX(u32),
    MemoryToX(u8),
    Store(u8),
    StoreX(u8),
    /// Sets A to the result of an operation on A and a constant.
    Compute(AluOp, u32),
    /// Sets A to the result of an operation on A and X.
    ComputeX(AluOp),
    Negate,
    Jump(u32),
    /// Compares A with a constant. The last two fields are the jump offsets for true and for false, relative to the
    /// next instruction.
    Branch(Comparison, u32, u8, u8),
    /// Compares A with X.
    BranchX(Comparison, u8, u8),
    Return(u32),
    ReturnA,
    AToX,
    XToA,
}

#[derive(Clone, Copy, Debug)]
enum Size {
    Word,
    Half,
    Byte,
}

#[derive(Clone, Copy, Debug)]
enum AluOp {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
}

#[derive(Clone, Copy, Debug)]
enum Comparison {
    Equal,
    Greater,
    AtLeast,
    AnyBit,
}

impl Size {
    #[inline]
    fn load(self, packet: &[u8], at: usize) -> Option<u32> {
        let rest = packet.get(at..)?;
        Some(match self {
            Self::Word => u32::from_be_bytes(*rest.first_chunk()?),
            Self::Half => u16::from_be_bytes(*rest.first_chunk()?).into(),
            Self::Byte => (*rest.first()?).into(),
        })
    }
}

impl AluOp {
    /// Returns the result of the operation, or `None` for a division by zero.
    #[inline]
    fn of(self, a: u32, b: u32) -> Option<u32> {
        Some(match self {
            Self::Add => a.wrapping_add(b),
            Self::Sub => a.wrapping_sub(b),
            Self::Mul => a.wrapping_mul(b),
            Self::Div => a.checked_div(b)?,
            Self::Mod => a.checked_rem(b)?,
            Self::And => a & b,
            Self::Or => a | b,
            Self::Xor => a ^ b,
            Self::ShiftLeft => a.checked_shl(b).unwrap_or(0),
            Self::ShiftRight => a.checked_shr(b).unwrap_or(0),
        })
    }
}

impl Comparison {
    #[inline]
    fn holds(self, a: u32, b: u32) -> bool {
        match self {
            Self::Equal => a == b,
            Self::Greater => a > b,
            Self::AtLeast => a >= b,
            Self::AnyBit => a & b != 0,
        }
    }
}

/// Finds the first instruction that may read a word of the scratch memory before the program stores a value there.
/// Returns the indexes of the instruction and of the word. Linux also refuses a program with such an instruction
/// (`check_load_and_stores` in net/core/filter.c). The jumps of `ops` must stay inside the program.
fn unset_memory(ops: &[BpfOp]) -> Option<(usize, u8)> {
    // For each instruction: the words that have a value on every path to the instruction, as a bit set.
    let mut set = vec![u16::MAX; ops.len() + 1];
    set[0] = 0;
    for (at, op) in ops.iter().enumerate() {
        match *op {
            BpfOp::LoadMemory(word) | BpfOp::MemoryToX(word) if set[at] & 1 << word == 0 => return Some((at, word)),
            BpfOp::Store(word) | BpfOp::StoreX(word) => set[at] |= 1 << word,
            _ => {}
        }
        let next: &[usize] = match *op {
            BpfOp::Return(_) | BpfOp::ReturnA => &[],
            BpfOp::Jump(by) => &[by as usize],
            BpfOp::Branch(_, _, jt, jf) | BpfOp::BranchX(_, jt, jf) => &[jt.into(), jf.into()],
            _ => &[0],
        };
        next.iter().for_each(|by| set[at + 1 + by] &= set[at]);
    }
    None
}

/// An instruction in the layout of `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    pub(super) code: u16,
    /// The jump offset if the comparison is true, relative to the next instruction.
    pub(super) jt: u8,
    /// The jump offset if the comparison is false.
    pub(super) jf: u8,
    pub(super) k: u32,
}

impl Instruction {
    /// Returns the decoded instruction, or `None` if the code is unknown.
    fn decode(self) -> Option<BpfOp> {
        let Self { code, jt, jf, k } = self;
        let word = u8::try_from(k).ok().filter(|word| usize::from(*word) < WORDS);
        let is_x = code & 0x08 != 0;
        Some(match code {
            0x20 => BpfOp::Load(Size::Word, k),
            0x28 => BpfOp::Load(Size::Half, k),
            0x30 => BpfOp::Load(Size::Byte, k),
            0x40 => BpfOp::LoadAtX(Size::Word, k),
            0x48 => BpfOp::LoadAtX(Size::Half, k),
            0x50 => BpfOp::LoadAtX(Size::Byte, k),
            0x80 => BpfOp::LoadLength,
            0x00 => BpfOp::LoadConstant(k),
            0x60 => BpfOp::LoadMemory(word?),
            0xb1 => BpfOp::HeaderLengthToX(k),
            0x81 => BpfOp::LengthToX,
            0x01 => BpfOp::ConstantToX(k),
            0x61 => BpfOp::MemoryToX(word?),
            0x02 => BpfOp::Store(word?),
            0x03 => BpfOp::StoreX(word?),
            0x84 => BpfOp::Negate,
            0x05 => BpfOp::Jump(k),
            0x06 => BpfOp::Return(k),
            0x16 => BpfOp::ReturnA,
            0x07 => BpfOp::AToX,
            0x87 => BpfOp::XToA,
            _ if code & 0x07 == 0x04 => {
                let alu_op = match code & !0x0f {
                    0x00 => AluOp::Add,
                    0x10 => AluOp::Sub,
                    0x20 => AluOp::Mul,
                    0x30 => AluOp::Div,
                    0x40 => AluOp::Or,
                    0x50 => AluOp::And,
                    0x60 => AluOp::ShiftLeft,
                    0x70 => AluOp::ShiftRight,
                    0x90 => AluOp::Mod,
                    0xa0 => AluOp::Xor,
                    _ => return None,
                };
                if is_x { BpfOp::ComputeX(alu_op) } else { BpfOp::Compute(alu_op, k) }
            }
            _ if code & 0x07 == 0x05 => {
                let comparison = match code & !0x0f {
                    0x10 => Comparison::Equal,
                    0x20 => Comparison::Greater,
                    0x30 => Comparison::AtLeast,
                    0x40 => Comparison::AnyBit,
                    _ => return None,
                };
                if is_x { BpfOp::BranchX(comparison, jt, jf) } else { BpfOp::Branch(comparison, k, jt, jf) }
            }
            _ => return None,
        })
    }
}

impl Program {
    /// Parses the output of `tcpdump -ddd`: the number of instructions, and four numbers for each instruction.
    ///
    /// # Errors
    /// Returns the reason if the text is malformed or the program is not valid.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let words = text.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty());
        let numbers = words.map(|word| word.parse::<u32>().map_err(|_| format!("`{word}` is not a 32-bit number")));
        let numbers: Vec<u32> = numbers.take(4 * MOST + 2).collect::<Result<_, _>>()?;
        let (count, rest) = numbers.split_first().ok_or("the program is empty")?;
        if *count as usize > MOST || rest.len() != 4 * *count as usize {
            return Err(match *count as usize {
                count if count > MOST => {
                    format!("the program has {count} instructions, more than the maximum of {MOST}")
                }
                count => format!("{count} instructions need 4 numbers each, but the text has {}", rest.len()),
            });
        }
        let narrow = |at: usize| format!("instruction {at}: a number is too large");
        let instructions = rest.chunks_exact(4).enumerate().map(|(at, numbers)| {
            let &[code, jt, jf, k] = numbers else { return Err(narrow(at)) };
            let code = u16::try_from(code).map_err(|_| narrow(at))?;
            let [jt, jf] = [u8::try_from(jt).map_err(|_| narrow(at))?, u8::try_from(jf).map_err(|_| narrow(at))?];
            Ok(Instruction { code, jt, jf, k })
        });
        Self::new(&instructions.collect::<Result<Vec<_>, _>>()?)
    }

    /// Checks a program.
    ///
    /// # Errors
    /// Returns the reason if the program is not valid.
    pub(super) fn new(instructions: &[Instruction]) -> Result<Self, String> {
        if !(1..=MOST).contains(&instructions.len()) {
            return Err(format!("{} instructions: a program has 1 to {MOST}", instructions.len()));
        }
        let mut ops = Vec::with_capacity(instructions.len());
        for (at, instruction) in instructions.iter().enumerate() {
            let wrong =
                |what: &str| Err(format!("instruction {at} ({:#04x}, {}): {what}", instruction.code, instruction.k));
            let Some(op) = instruction.decode() else { return wrong("unknown instruction") };
            let behind = instructions.len() - at - 1;
            let stays = match op {
                BpfOp::Jump(by) => (by as usize) < behind,
                BpfOp::Branch(_, _, jt, jf) | BpfOp::BranchX(_, jt, jf) => usize::from(jt.max(jf)) < behind,
                _ => true,
            };
            if !stays {
                return wrong("the instruction jumps backwards or beyond the end of the filter");
            }
            match op {
                // Linux reserves these offsets for packet metadata (`SKF_AD_OFF`, `SKF_NET_OFF`, `SKF_LL_OFF`).
                BpfOp::Load(_, 0x8000_0000..) => {
                    return wrong(
                        "the instruction reads packet metadata that only the kernel has, such as the direction",
                    );
                }
                BpfOp::Compute(AluOp::Div | AluOp::Mod, 0) => return wrong("division by zero"),
                BpfOp::Compute(AluOp::ShiftLeft | AluOp::ShiftRight, 32..) => return wrong("shift by 32 bits or more"),
                _ => ops.push(op),
            }
        }
        if !matches!(ops.last(), Some(BpfOp::Return(_) | BpfOp::ReturnA)) {
            return Err("the last instruction does not return".to_owned());
        }
        if let Some((at, word)) = unset_memory(&ops) {
            return Err(format!(
                "instruction {at} reads word {word} of the scratch memory, which may have no value yet"
            ));
        }
        Ok(Self(ops.into()))
    }

    /// Returns the result of the program for a packet. 0 means that the packet does not match.
    #[inline]
    pub(super) fn run(&self, packet: &[u8]) -> u32 {
        self.finish(packet).unwrap_or(0)
    }

    /// Returns the result of the program, or `None` if the program reads outside the packet or divides by zero.
    #[inline]
    fn finish(&self, packet: &[u8]) -> Option<u32> {
        let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; WORDS]);
        let mut at = 0;
        loop {
            let op = *self.0.get(at)?;
            at += 1;
            match op {
                BpfOp::Load(size, place) => a = size.load(packet, place as usize)?,
                BpfOp::LoadAtX(size, place) => a = size.load(packet, (x as usize).checked_add(place as usize)?)?,
                BpfOp::LoadLength => a = packet.len() as u32,
                BpfOp::LoadConstant(k) => a = k,
                BpfOp::LoadMemory(word) => a = memory[usize::from(word) % WORDS],
                BpfOp::HeaderLengthToX(place) => x = u32::from(packet.get(place as usize)? & 0x0f) << 2,
                BpfOp::LengthToX => x = packet.len() as u32,
                BpfOp::ConstantToX(k) => x = k,
                BpfOp::MemoryToX(word) => x = memory[usize::from(word) % WORDS],
                BpfOp::Store(word) => memory[usize::from(word) % WORDS] = a,
                BpfOp::StoreX(word) => memory[usize::from(word) % WORDS] = x,
                BpfOp::Compute(alu_op, k) => a = alu_op.of(a, k)?,
                BpfOp::ComputeX(alu_op) => a = alu_op.of(a, x)?,
                BpfOp::Negate => a = a.wrapping_neg(),
                BpfOp::Jump(by) => at += by as usize,
                BpfOp::Branch(comparison, k, jt, jf) => at += usize::from(if comparison.holds(a, k) { jt } else { jf }),
                BpfOp::BranchX(comparison, jt, jf) => at += usize::from(if comparison.holds(a, x) { jt } else { jf }),
                BpfOp::Return(k) => return Some(k),
                BpfOp::ReturnA => return Some(a),
                BpfOp::AToX => x = a,
                BpfOp::XToA => a = x,
            }
        }
    }
}
