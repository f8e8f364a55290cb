//! Looks up kernel functions by name in the kernel's type information (`Documentation/bpf/btf.rst`).

use std::fs;
use std::ops::Range;

/// The file with the type information of the kernel.
const KERNEL: &str = "/sys/kernel/btf/vmlinux";
const MAGIC: u16 = 0xeb9f;
const KIND_FUNC: u32 = 12;

/// Returns the BTF id of a kernel function that BPF programs may call. Returns `None` if the kernel has no function of
/// that name or no type information.
pub(super) fn function(name: &str) -> Option<u32> {
    find(&fs::read(KERNEL).ok()?, name)
}

pub(in crate::link) fn find(all: &[u8], name: &str) -> Option<u32> {
    let word = |at: usize| Some(u32::from_ne_bytes(all.get(at..at + 4)?.try_into().ok()?));
    let magic = u16::from_ne_bytes(all.get(..2)?.try_into().ok()?);
    if magic != MAGIC {
        return None;
    }
    let header = word(4)? as usize;
    let part = |at: usize| Some(part(all.len(), header, word(at)?, word(at + 4)?)).flatten();
    let (types, strings) = (part(8)?, &all[part(16)?]);
    let is_named = |offset: u32| {
        let rest = strings.get(offset as usize..).unwrap_or_default();
        rest.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
    };
    let (mut at, mut number) = (types.start, 1);
    while at < types.end {
        let (named, info) = (word(at)?, word(at + 4)?);
        let (kind, members) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
        if kind == KIND_FUNC && is_named(named) {
            return Some(number);
        }
        // Additional bytes after the three words that every type has.
        at += 12
            + match kind {
                1 | 14 | 17 => 4,
                3 => 12,
                4 | 5 | 15 | 19 => 12 * members,
                6 | 13 => 8 * members,
                2 | 7..=12 | 16 | 18 => 0,
                // A type that only newer kernels have. Its length is unknown, so the search cannot continue.
                _ => return None,
            };
        number += 1;
    }
    None
}

/// Returns the range of a section with `length` bytes at `offset` after the header, if it is inside the file.
fn part(all: usize, header: usize, offset: u32, length: u32) -> Option<Range<usize>> {
    let start = header.checked_add(offset as usize)?;
    let end = start.checked_add(length as usize)?;
    (end <= all).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a type with an optional name, followed by `rest` bytes.
    fn kind(kind: u32, members: u32, name: u32, rest: usize) -> Vec<u8> {
        let words = [name, kind << 24 | members, 0];
        words.iter().flat_map(|word| word.to_ne_bytes()).chain(std::iter::repeat_n(0xff, rest)).collect()
    }

    fn btf(types: &[u8], strings: &[u8]) -> Vec<u8> {
        let (types_len, strings_len) = (types.len() as u32, strings.len() as u32);
        let words = [24, 0, types_len, types_len, strings_len];
        let head = [0x1_u32 << 16 | u32::from(MAGIC)];
        let head = head.iter().chain(&words).flat_map(|word| word.to_ne_bytes());
        head.chain(types.iter().chain(strings).copied()).collect()
    }

    #[test]
    fn function_is_found_after_types_of_every_kind() {
        let strings = b"\0name\0names\0";
        let lengths = [(1, 0, 4), (3, 0, 12), (4, 2, 24), (6, 3, 24), (13, 1, 8), (14, 0, 4), (15, 1, 12), (19, 2, 24)];
        let mut types: Vec<u8> = lengths.iter().flat_map(|(of, members, rest)| kind(*of, *members, 1, *rest)).collect();
        types.extend(kind(KIND_FUNC, 0, 6, 0));
        types.extend(kind(KIND_FUNC, 0, 1, 0));
        let all = btf(&types, strings);
        assert_eq!(find(&all, "names"), Some(9));
        assert_eq!(find(&all, "name"), Some(10));
        assert_eq!(find(&all, "nam"), None);
        // Truncated anywhere.
        for length in 0..all.len() {
            assert!(find(&all[..length], "nothing").is_none());
        }
        assert_eq!(find(&btf(&kind(31, 0, 1, 0), strings), "name"), None);
    }
}
