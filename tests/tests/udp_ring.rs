//! UDP received by io_uring (`FI_UDP_DRIVER=ring`): the conformance suite, and the tests of real sockets, of
//! two namespaces and of fork again; and the fallback where the kernel forbids io_uring. If this kernel
//! forbids it, everything here runs over recvmmsg, and the output says so.

#[macro_use]
#[path = "suites/connected.rs"]
mod connected;
#[path = "processes/fork.rs"]
mod fork;
#[path = "sockets/udp_network.rs"]
mod network;
#[path = "sockets/udp.rs"]
mod sockets;

use std::net::Ipv4Addr;

use network::near_end;
use ofi_testkit::process::{Child, Line};
use ofi_tests::mesh::member;
use ofi_tests::udp::{Echo, any_port, echo, local};
use sockets::{late, sleeper};

ofi_testkit::roles!(echo, sleeper, late, member, near_end, denied);

/// Runs before `main`, so before there is a second thread. Children inherit the environment.
#[used]
#[unsafe(link_section = ".init_array")]
static CHOOSE: extern "C" fn() = choose;

extern "C" fn choose() {
    // SAFETY: the only thread is here, and does not read the environment now.
    unsafe { std::env::set_var("FI_UDP_DRIVER", "ring") };
}

include!("suites/udp.rs");

/// Whether this process may use io_uring with all that the driver needs.
fn is_allowed() -> bool {
    local().statistic("udp_io_uring") == 1
}

#[test]
fn the_statistics_say_which_driver_receives() {
    if !is_allowed() {
        println!("NOT RUN: the_statistics_say_which_driver_receives: no io_uring here");
        return;
    }
    let mut echo = Echo::start(&[], any_port(Ipv4Addr::LOCALHOST));
    let side = local();
    echo.meet(&side.name());
    let to = side.insert_address(&echo.address);
    echo.converse(&side, to, 1);
    assert!(side.statistic("udp_ring_entries") > 0, "{}", side.report());
    echo.end(&side, to);
}

/// Forbids this thread and its child threads to create an io_uring, as containers do: io_uring_setup(2) fails
/// with `errno`.
fn deny_io_uring(errno: i32) {
    let statement = |code: u32, jt: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    // Load the call's number; fail io_uring_setup with `errno`; allow any other call (seccomp(2), bpf of
    // linux/filter.h).
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        libc::sock_filter { jf: 1, ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, SETUP) },
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    const SETUP: u32 = libc::SYS_io_uring_setup as u32;
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: takes no pointers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the program is valid during the call, which copies it.
    let rc = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

/// Converses under a filter that denies io_uring with the errno given as an argument.
fn denied(line: &mut Line, arguments: &[String]) {
    deny_io_uring(arguments[0].parse().expect("an error number"));
    let mut echo = Echo::start(&[], any_port(Ipv4Addr::LOCALHOST));
    let side = local();
    assert_eq!(side.statistic("udp_io_uring"), 0);
    echo.meet(&side.name());
    let to = side.insert_address(&echo.address);
    echo.converse(&side, to, 1);
    assert_eq!(side.statistic("udp_ring_entries"), 0);
    echo.end(&side, to);
    line.say("over");
}

#[test]
fn where_io_uring_is_denied_system_calls_serve() {
    for errno in [libc::EPERM, libc::ENOSYS, libc::ENOMEM] {
        let mut child = Child::start("denied", &[&errno.to_string()]);
        child.line.expect("over");
        child.finish();
    }
}
