//! Registration before `main`.
//!
//! While a process has one thread, Linux answers a registration at once. Later, it waits until every processor has
//! passed through a quiescent state (`synchronize_rcu`): 10 to 30 ms on an idle machine, but tens of seconds were
//! measured when processes that yield in a loop starved the kernel's RCU thread (6.18, two cores;
//! docs/design-choices.md). Opening an endpoint would take that much longer, and a peer would consider its process
//! dead.
//!
//! If a process that already has several threads loads this library, it is not delayed then: it registers when it opens
//! its first endpoint.

/// Run by the loader, in programs and libraries that contain this crate.
#[used]
#[unsafe(link_section = ".init_array")]
pub(super) static REGISTER: extern "C" fn() = {
    extern "C" fn register() {
        if is_single_threaded() {
            super::register();
            super::register_private();
        }
    }
    register
};

/// Whether this process has one thread. `false` if `/proc` is not available.
fn is_single_threaded() -> bool {
    // SAFETY: `stat` is plain data, for which zeroes are a value.
    let mut status: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the path ends with a zero byte, and `status` is writable.
    let known = unsafe { libc::stat(c"/proc/self/task".as_ptr(), &mut status) } == 0;
    // A directory of /proc has two links plus one for each subdirectory; here each subdirectory is a thread.
    known && status.st_nlink == 3
}

#[cfg(test)]
mod tests {
    use super::super::{Failed, Support, register};

    /// Linux 6.3.
    const GET_REGISTRATIONS: libc::c_int = 1 << 9;

    #[test]
    fn this_process_is_registered_before_it_asks() {
        let wanted =
            libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED | libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED;
        match super::super::imp::membarrier(GET_REGISTRATIONS) {
            Ok(registered) => assert_eq!(registered & wanted, wanted, "of {wanted:#x}: {registered:#x}"),
            Err(Failed { errno: libc::EINVAL }) => {
                eprintln!("NOT RUN: early registration: Linux before 6.3 tells none")
            }
            Err(failed) => assert_eq!(register(), Support::Missing, "{failed}"),
        }
    }
}
