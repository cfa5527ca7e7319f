//! Denies a process copying from and to the memory of other processes and its own, as in a container whose system-call
//! filter excludes process_vm_readv and process_vm_writev.

/// The denied calls.
const CALLS: [libc::c_long; 2] = [libc::SYS_process_vm_readv, libc::SYS_process_vm_writev];

/// Makes both calls fail with EPERM from now on, in this thread and those that it starts.
///
/// # Panics
/// If the kernel has no system-call filters.
pub fn deny_process_vm() {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        step(LOAD, 0, 0, 0), // the number of the call
        step(EQUAL, 1, 0, CALLS[0] as u32),
        step(EQUAL, 0, 1, CALLS[1] as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: takes numbers only.
    let rc = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(rc, 0, "PR_SET_NO_NEW_PRIVS");
    // SAFETY: the program is as long as it says, and the kernel copies it.
    let rc = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(rc, 0, "PR_SET_SECCOMP");
}

/// Whether this thread may copy from the memory of its own process.
pub fn may_copy() -> bool {
    let (from, mut to) = ([1u8; 8], [0u8; 8]);
    let here = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: 8 };
    let there = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: 8 };
    // SAFETY: both ranges live here; the remote one is read only.
    let moved = unsafe {
        libc::process_vm_readv(std::process::id() as libc::pid_t, &raw const here, 1, &raw const there, 1, 0)
    };
    moved == 8
}

/// Sets a variable of the environment, unless it is set, before anything in this process reads it. Call it from a
/// function in `.init_array`, when there is one thread and no Rust code has run.
pub fn set_early(name: &std::ffi::CStr, value: &std::ffi::CStr) {
    // SAFETY: both are C strings, and no other code accesses the environment yet.
    unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 0) };
}
