//! Programs of the classic packet filter, checked and run (McCanne and Jacobson, "The BSD Packet Filter", USENIX Winter
//! 1993; `linux/filter.h`).
//!
//! Jumps lead forward and inside the program, and its last instruction returns: so it ends, and after no more
//! instructions than it has. What is read outside of the packet ends it with 0, as does a division by zero. Shifts by 32
//! and more give 0, as with libpcap.

/// The most instructions (`BPF_MAXINSNS`).
const MOST: usize = 4096;
/// Words of scratch memory (`BPF_MEMWORDS`).
const WORDS: usize = 16;

/// A program that was checked.
#[derive(Debug)]
pub(super) struct Program(Box<[Op]>);

/// An instruction. `A` is the accumulator, `X` the index register.
#[derive(Clone, Copy, Debug)]
enum Op {
    /// Loads what is at a place of the packet.
    Load(Size, u32),
    /// The same, with X added to the place.
    LoadAtX(Size, u32),
    LoadLength,
    LoadConstant(u32),
    LoadMemory(u8),
    /// X becomes four times the lower half of a byte of the packet: the length of an IPv4 header.
    HeaderLengthToX(u32),
    LengthToX,
    ConstantToX(u32),
    MemoryToX(u8),
    Store(u8),
    StoreX(u8),
    /// On A and a constant.
    Compute(Sum, u32),
    /// On A and X.
    ComputeX(Sum),
    Negate,
    Jump(u32),
    /// Compares A with a constant; where to go on, counted from the next instruction, if it holds and if not.
    Branch(Test, u32, u8, u8),
    /// Compares A with X.
    BranchX(Test, u8, u8),
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
enum Sum {
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
enum Test {
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

impl Sum {
    /// `None`: a division by zero.
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

impl Test {
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

/// An instruction as `struct sock_filter` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    pub(super) code: u16,
    /// Where to go on if the test holds, counted from the next instruction.
    pub(super) jt: u8,
    /// And if not.
    pub(super) jf: u8,
    pub(super) k: u32,
}

impl Instruction {
    /// `None`: there is no such instruction.
    fn decode(self) -> Option<Op> {
        let Self { code, jt, jf, k } = self;
        let word = u8::try_from(k).ok().filter(|word| usize::from(*word) < WORDS);
        let is_x = code & 0x08 != 0;
        Some(match code {
            0x20 => Op::Load(Size::Word, k),
            0x28 => Op::Load(Size::Half, k),
            0x30 => Op::Load(Size::Byte, k),
            0x40 => Op::LoadAtX(Size::Word, k),
            0x48 => Op::LoadAtX(Size::Half, k),
            0x50 => Op::LoadAtX(Size::Byte, k),
            0x80 => Op::LoadLength,
            0x00 => Op::LoadConstant(k),
            0x60 => Op::LoadMemory(word?),
            0xb1 => Op::HeaderLengthToX(k),
            0x81 => Op::LengthToX,
            0x01 => Op::ConstantToX(k),
            0x61 => Op::MemoryToX(word?),
            0x02 => Op::Store(word?),
            0x03 => Op::StoreX(word?),
            0x84 => Op::Negate,
            0x05 => Op::Jump(k),
            0x06 => Op::Return(k),
            0x16 => Op::ReturnA,
            0x07 => Op::AToX,
            0x87 => Op::XToA,
            _ if code & 0x07 == 0x04 => {
                let sum = match code & !0x0f {
                    0x00 => Sum::Add,
                    0x10 => Sum::Sub,
                    0x20 => Sum::Mul,
                    0x30 => Sum::Div,
                    0x40 => Sum::Or,
                    0x50 => Sum::And,
                    0x60 => Sum::ShiftLeft,
                    0x70 => Sum::ShiftRight,
                    0x90 => Sum::Mod,
                    0xa0 => Sum::Xor,
                    _ => return None,
                };
                if is_x { Op::ComputeX(sum) } else { Op::Compute(sum, k) }
            }
            _ if code & 0x07 == 0x05 => {
                let test = match code & !0x0f {
                    0x10 => Test::Equal,
                    0x20 => Test::Greater,
                    0x30 => Test::AtLeast,
                    0x40 => Test::AnyBit,
                    _ => return None,
                };
                if is_x { Op::BranchX(test, jt, jf) } else { Op::Branch(test, k, jt, jf) }
            }
            _ => return None,
        })
    }
}

impl Program {
    /// Reads what `tcpdump -ddd` prints: how many instructions there are, and four numbers of each.
    ///
    /// # Errors
    /// It is no such text, or no program, and why.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let words = text.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty());
        let numbers = words.map(|word| word.parse::<u32>().map_err(|_| format!("`{word}` is no number of 32 bits")));
        let numbers: Vec<u32> = numbers.take(4 * MOST + 2).collect::<Result<_, _>>()?;
        let (count, rest) = numbers.split_first().ok_or("it is empty")?;
        if *count as usize > MOST || rest.len() != 4 * *count as usize {
            return Err(match *count as usize {
                count if count > MOST => format!("{count} instructions: a program has {MOST} at most"),
                count => format!("{count} instructions have 4 numbers each, and these are {}", rest.len()),
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
    /// It is none, and why.
    pub(super) fn new(instructions: &[Instruction]) -> Result<Self, String> {
        if !(1..=MOST).contains(&instructions.len()) {
            return Err(format!("{} instructions: a program has 1 to {MOST}", instructions.len()));
        }
        let mut ops = Vec::with_capacity(instructions.len());
        for (at, instruction) in instructions.iter().enumerate() {
            let wrong =
                |what: &str| Err(format!("instruction {at} ({:#04x}, {}): {what}", instruction.code, instruction.k));
            let Some(op) = instruction.decode() else { return wrong("there is no such instruction") };
            let behind = instructions.len() - at - 1;
            let stays = match op {
                Op::Jump(by) => (by as usize) < behind,
                Op::Branch(_, _, jt, jf) | Op::BranchX(_, jt, jf) => usize::from(jt.max(jf)) < behind,
                _ => true,
            };
            if !stays {
                return wrong("it jumps out of the program");
            }
            match op {
                // Linux has there what it knows of a packet (`SKF_AD_OFF`, `SKF_NET_OFF`, `SKF_LL_OFF`).
                Op::Load(_, 0x8000_0000..) => {
                    return wrong("it asks for what the kernel alone knows of a packet, such as its direction");
                }
                Op::Compute(Sum::Div | Sum::Mod, 0) => return wrong("it divides by zero"),
                Op::Compute(Sum::ShiftLeft | Sum::ShiftRight, 32..) => return wrong("it shifts by 32 bits or more"),
                _ => ops.push(op),
            }
        }
        match ops.last() {
            Some(Op::Return(_) | Op::ReturnA) => Ok(Self(ops.into())),
            _ => Err("the last instruction does not return".to_owned()),
        }
    }

    /// What the program returns for a packet: 0 where it does not take it.
    #[inline]
    pub(super) fn run(&self, packet: &[u8]) -> u32 {
        self.finish(packet).unwrap_or(0)
    }

    /// `None`: it reads outside of the packet, or divides by zero.
    #[inline]
    fn finish(&self, packet: &[u8]) -> Option<u32> {
        let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; WORDS]);
        let mut at = 0;
        loop {
            let op = *self.0.get(at)?;
            at += 1;
            match op {
                Op::Load(size, place) => a = size.load(packet, place as usize)?,
                Op::LoadAtX(size, place) => a = size.load(packet, (x as usize).checked_add(place as usize)?)?,
                Op::LoadLength => a = packet.len() as u32,
                Op::LoadConstant(k) => a = k,
                Op::LoadMemory(word) => a = memory[usize::from(word) % WORDS],
                Op::HeaderLengthToX(place) => x = u32::from(packet.get(place as usize)? & 0x0f) << 2,
                Op::LengthToX => x = packet.len() as u32,
                Op::ConstantToX(k) => x = k,
                Op::MemoryToX(word) => x = memory[usize::from(word) % WORDS],
                Op::Store(word) => memory[usize::from(word) % WORDS] = a,
                Op::StoreX(word) => memory[usize::from(word) % WORDS] = x,
                Op::Compute(sum, k) => a = sum.of(a, k)?,
                Op::ComputeX(sum) => a = sum.of(a, x)?,
                Op::Negate => a = a.wrapping_neg(),
                Op::Jump(by) => at += by as usize,
                Op::Branch(test, k, jt, jf) => at += usize::from(if test.holds(a, k) { jt } else { jf }),
                Op::BranchX(test, jt, jf) => at += usize::from(if test.holds(a, x) { jt } else { jf }),
                Op::Return(k) => return Some(k),
                Op::ReturnA => return Some(a),
                Op::AToX => x = a,
                Op::XToA => a = x,
            }
        }
    }
}
