//! Checks whether memory of this process is accessible, which registrations of the whole address space do not promise.

/// Whether the process may read, or write, each byte of `addr..addr + len` now.
///
/// The kernel brings in the pages (`MADV_POPULATE_READ`, `MADV_POPULATE_WRITE`) without changing them. On kernels
/// before 5.14, and for mappings that do not support it, `/proc/self/maps` is consulted.
pub fn is_mapped(addr: usize, len: usize, write: bool) -> bool {
    if len == 0 {
        return true;
    }
    let Some(end) = addr.checked_add(len) else { return false };
    // SAFETY: takes no pointers.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let start = addr / page * page;
    let Some(whole) = end.checked_next_multiple_of(page).map(|end| end - start) else { return false };
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    let place = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: populating changes no byte, and the kernel checks the range.
    if unsafe { libc::madvise(place, whole, advice) } == 0 {
        return true;
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EINVAL | libc::ENOSYS) => is_in_maps(start, end, write),
        _ => false,
    }
}

/// The same by the list of the process's mappings.
fn is_in_maps(start: usize, end: usize, write: bool) -> bool {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return false };
    let mut reached = start;
    // In order of their addresses.
    for line in maps.lines() {
        let Some((from, to, rights)) = mapping(line) else { continue };
        if from <= reached && reached < to {
            if !rights.starts_with('r') || write && rights.as_bytes().get(1) != Some(&b'w') {
                return false;
            }
            reached = to;
        }
        if reached >= end {
            return true;
        }
    }
    false
}

/// Start, end and rights of a line such as `7f00-7fff rw-p 0000 00:00 0`.
fn mapping(line: &str) -> Option<(usize, usize, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some((number(from)?, number(to)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_with_the_right_is_told_from_the_rest() {
        static CONSTANT: [u8; 9_000] = [7; 9_000];
        let mut own = vec![1u8; 100_000];
        let own_at = own.as_mut_ptr().expose_provenance();
        let constant = CONSTANT.as_ptr().expose_provenance();
        let beyond = usize::MAX - 9_000; // the kernel's
        for (addr, len, write, wanted) in [
            (own_at, 100_000, false, true),
            (own_at + 1, 99_999, true, true),
            (constant, 9_000, false, true),
            (constant, 9_000, true, false),
            (0, 1, false, false),
            (8, 8, true, false),
            (own_at, 1 << 46, false, false),
            (beyond, 8, false, false),
            (usize::MAX - 1, 8, false, false),
            (0, 0, true, true),
        ] {
            assert_eq!(is_mapped(addr, len, write), wanted, "{len} bytes at {addr:#x}, write {write}");
            if len > 0 && addr < beyond {
                assert_eq!(is_in_maps(addr, addr + len, write), wanted, "maps: {len} bytes at {addr:#x}");
            }
        }
        assert!(own.iter().all(|&byte| byte == 1), "nothing was changed");
    }
}
