//! The kinds of the mappings of this process, from /proc/self/maps.

use std::fs::File;
use std::io::{Read, Seek};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

/// `struct procmap_query` of <linux/fs.h>.
#[repr(C)]
#[derive(Default)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}
const _: () = assert!(size_of::<ProcmapQuery>() == 104);

/// `PROCMAP_QUERY`: `_IOWR('f', 17, struct procmap_query)`, since Linux 6.11.
const PROCMAP_QUERY: libc::c_ulong = 0xc068_6611;
/// `PROCMAP_QUERY_VMA_SHARED`.
const SHARED: u64 = 8;

/// The mappings of this process.
pub struct Maps {
    file: Mutex<File>,
    /// An address in the main thread's stack.
    stack: usize,
}

impl Maps {
    pub fn open() -> std::io::Result<Self> {
        // SAFETY: it reads a value that the kernel passed to this program: the address of bytes on its stack.
        let stack = unsafe { libc::getauxval(libc::AT_RANDOM) } as usize;
        Ok(Self { file: Mutex::new(File::open("/proc/self/maps")?), stack })
    }

    /// Whether all of a range is private memory without a file: then only system calls of this process replace its
    /// pages. Pages of a file also go when another process truncates it. Not the mapping of the main thread's stack.
    pub fn is_private(&self, span: &Range<usize>) -> bool {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let mut at = span.start;
        while at < span.end {
            let mut query = ProcmapQuery {
                size: size_of::<ProcmapQuery>() as u64,
                query_addr: at as u64,
                ..ProcmapQuery::default()
            };
            // SAFETY: the structure is that of the request, and is written for the size that it states.
            if unsafe { libc::ioctl(file.as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) } != 0 {
                let errno = std::io::Error::last_os_error().raw_os_error();
                return errno == Some(libc::ENOTTY) && by_text(&mut file, span, self.stack);
            }
            let is_stack = (query.vma_start..query.vma_end).contains(&(self.stack as u64));
            if is_stack || query.vma_flags & SHARED != 0 || query.inode != 0 || query.vma_end as usize <= at {
                return false;
            }
            at = query.vma_end as usize;
        }
        true
    }
}

/// The same from the text, on older kernels.
fn by_text(file: &mut File, span: &Range<usize>, stack: usize) -> bool {
    let mut text = String::new();
    file.rewind().is_ok() && file.read_to_string(&mut text).is_ok() && covers(&text, span, stack)
}

fn covers(text: &str, span: &Range<usize>, stack: usize) -> bool {
    let mut at = span.start;
    for vma in text.lines().filter_map(parse) {
        if at >= span.end || vma.span.start > at {
            break;
        }
        if vma.span.end > at {
            if !vma.is_private || vma.span.contains(&stack) {
                return false;
            }
            at = vma.span.end;
        }
    }
    at >= span.end
}

struct Vma {
    span: Range<usize>,
    is_private: bool,
}

/// A line such as `7f00-7f10 rw-p 00000000 00:00 0`.
fn parse(line: &str) -> Option<Vma> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    let span = number(start)?..number(end)?;
    let is_shared = !fields.next()?.ends_with('p');
    let inode = fields.nth(2)?;
    Some(Vma { span, is_private: !is_shared && inode == "0" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_memory_without_a_file_is_told_from_all_other() {
        let text = "1000-3000 rw-p 00000000 00:00 0 [heap]\n3000-4000 ---p 00000000 00:00 0 \n\
                    5000-6000 rw-p 00000000 00:00 0\n6000-7000 rw-s 00000000 00:01 9 /dev/shm/x\n\
                    8000-9000 r--p 00000000 fe:00 77 /lib/x y.so\n\
                    a000-b000 rw-p 00000000 00:00 0\nb000-d000 rw-p 00000000 00:00 0 [stack]\nnonsense\n";
        for (span, wanted) in [
            (0x1000..0x3000, true),
            (0x1800..0x4000, true),
            (0x3000..0x5001, false),
            (0x5000..0x6000, true),
            (0x5000..0x6001, false),
            (0x8000..0x8001, false),
            (0x7000..0x7001, false),
            (0xa000..0xb000, true),
            (0xb000..0xb001, false),
            (0xa000..0xc000, false),
            (0xf000..0xf001, false),
        ] {
            assert_eq!(covers(text, &span, 0xcff0), wanted, "{span:x?}");
        }
    }

    /// Whether this is the program's first thread, as with `--test-threads=1`.
    fn runs_main() -> bool {
        // SAFETY: no memory is involved.
        let thread = unsafe { libc::gettid() };
        thread.cast_unsigned() == std::process::id()
    }

    #[test]
    fn the_query_and_the_text_agree_about_this_process() {
        let maps = Maps::open().unwrap();
        let heap = vec![1_u8; 1 << 20];
        let (local, code) = (0_u8, the_query_and_the_text_agree_about_this_process as *const () as usize);
        let start = heap.as_ptr().addr();
        let on_stack = (&raw const local).addr();
        // SAFETY: it reads a value.
        let environment = unsafe { libc::getauxval(libc::AT_EXECFN) } as usize;
        for (span, wanted) in [
            (start..start + heap.len(), true),
            (on_stack..on_stack + 1, !runs_main()),
            (environment..environment + 1, false),
            (code..code + 1, false),
            (0..1, false),
        ] {
            assert_eq!(maps.is_private(&span), wanted, "{span:x?}");
            let mut file = File::open("/proc/self/maps").unwrap();
            assert_eq!(by_text(&mut file, &span, maps.stack), wanted, "{span:x?} by text");
        }
    }
}
