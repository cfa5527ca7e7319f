//! Classifies x86-64 instructions by their first bytes.

/// Maximum length of an x86-64 instruction, in bytes.
pub const MAX_INSTRUCTION_LEN: usize = 15;

/// Kinds that the budgets count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any other instruction.
    Plain,
    /// A locked instruction or a full fence: `lock`, `xchg` with memory, `mfence`.
    Locked,
    /// `syscall`.
    SystemCall,
}

/// The kind of the instruction that begins with `bytes`.
pub fn kind(bytes: &[u8]) -> Kind {
    let prefixes = bytes.iter().take_while(|byte| is_prefix(**byte)).count();
    let locked = bytes[..prefixes].contains(&0xF0);
    let mut rest = &bytes[prefixes..];
    if let [0x40..=0x4F, after @ ..] = rest {
        rest = after;
    }
    match rest {
        _ if locked => Kind::Locked,
        [0x0F, 0x05, ..] => Kind::SystemCall,
        // fence number 6 of group 15, in its register form: mfence.
        [0x0F, 0xAE, 0xF0, ..] => Kind::Locked,
        // xchg locks by itself when an operand is memory.
        [0x86 | 0x87, modrm, ..] if modrm >> 6 != 0b11 => Kind::Locked,
        _ => Kind::Plain,
    }
}

/// Legacy prefixes: lock, repeat, segments, operand and address size.
fn is_prefix(byte: u8) -> bool {
    matches!(byte, 0xF0 | 0xF2 | 0xF3 | 0x2E | 0x36 | 0x3E | 0x26 | 0x64 | 0x65 | 0x66 | 0x67)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_instructions_fences_and_calls_are_told_from_the_rest() {
        for (bytes, wanted) in [
            (&[0xF0, 0x48, 0x0F, 0xB1, 0x17][..], Kind::Locked), // lock cmpxchg [rdi], rdx
            (&[0xF0, 0x83, 0x0C, 0x24, 0x00], Kind::Locked),     // lock or dword [rsp], 0
            (&[0x64, 0xF0, 0xFF, 0x07], Kind::Locked),           // lock inc dword fs:[rdi]
            (&[0x48, 0x87, 0x07], Kind::Locked),                 // xchg [rdi], rax
            (&[0x86, 0x07], Kind::Locked),                       // xchg [rdi], al
            (&[0x0F, 0xAE, 0xF0], Kind::Locked),                 // mfence
            (&[0x48, 0x87, 0xC8], Kind::Plain),                  // xchg rax, rcx
            (&[0x0F, 0xAE, 0xE8], Kind::Plain),                  // lfence
            (&[0x0F, 0x05], Kind::SystemCall),                   // syscall
            (&[0x48, 0x89, 0xF0], Kind::Plain),                  // mov rax, rsi: F0 is no prefix here
            (&[0x66, 0x90], Kind::Plain),                        // nop
        ] {
            assert_eq!(kind(bytes), wanted, "{bytes:02x?}");
        }
    }
}
