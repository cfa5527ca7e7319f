//! Where pages are.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr;

/// Pages that are looked at: enough for a majority.
const SAMPLES: usize = 64;

/// The NUMA node of most of the sampled pages. `None` if none exists yet, or the kernel does not tell: some
/// containers forbid the question.
pub(super) fn node_of(at: *mut u8, len: usize) -> Option<u32> {
    let page = rustix::param::page_size();
    let (first, last) = (at.addr() / page, (at.addr() + len.max(1) - 1) / page);
    let step = (last - first) / SAMPLES + 1;
    let address = |nth: usize| at.with_addr(nth * page).cast::<c_void>();
    let pages: Vec<*mut c_void> = (first..=last).step_by(step).map(address).collect();
    let mut nodes: Vec<c_int> = vec![-1; pages.len()];
    // SAFETY: without target nodes the call moves nothing: it reads the addresses as numbers, and writes one
    // status for each of them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            pages.len(),
            pages.as_ptr(),
            ptr::null::<c_int>(),
            nodes.as_mut_ptr(),
            0,
        )
    };
    if result != 0 {
        return None;
    }
    majority(nodes.into_iter().filter_map(|node| u32::try_from(node).ok()).collect())
}

/// The most frequent of these.
fn majority(mut nodes: Vec<u32>) -> Option<u32> {
    nodes.sort_unstable();
    nodes.chunk_by(|a, b| a == b).max_by_key(|same| same.len()).map(|same| same[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_pages_decide() {
        assert_eq!(majority(vec![1, 0, 1, 1, 0]), Some(1));
        assert_eq!(majority(Vec::new()), None);
    }

    /// On every machine: pages that were written are on some node, if the kernel tells, and no others exist.
    #[test]
    fn pages_that_exist_have_a_node_and_others_do_not() {
        let page = rustix::param::page_size();
        let fresh = || {
            let memory = unsafe {
                // SAFETY: a new private mapping at an address of the kernel's choice.
                rustix::mm::mmap_anonymous(
                    ptr::null_mut(),
                    100 * page,
                    rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                    rustix::mm::MapFlags::PRIVATE,
                )
            };
            memory.unwrap().cast::<u8>()
        };
        let untouched = fresh();
        // Before there is other memory that the kernel could join with it in a huge page.
        assert_eq!(node_of(untouched, 100 * page), None, "no page exists");
        let written = fresh();
        for nth in 0..100 {
            let byte = written.wrapping_add(nth * page);
            // SAFETY: inside the mapping above.
            unsafe { byte.write(1) };
        }
        let told = node_of(written, 100 * page);
        let node = |id: u32| std::path::Path::new(&format!("/sys/devices/system/node/node{id}")).exists();
        assert!(told.is_none_or(|id| id == 0 || node(id)), "{told:?}");
        for memory in [written, untouched] {
            // SAFETY: mapped above, and not used any more.
            unsafe { rustix::mm::munmap(memory.cast(), 100 * page).unwrap() };
        }
    }
}
