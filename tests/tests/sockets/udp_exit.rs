//! A process that injects its last messages and exits, without a poll or a close.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use ofi_testkit::prelude::*;

/// Number of consecutive injected messages. The first is sent at once, and the others are queued behind it.
const INJECTED: u64 = 5;
/// The part of a process in the test, and the receiver's address.
const ROLE: &str = "UDP_EXIT_ROLE";

fn open() -> TestEndpoint {
    let here = Address::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    Opening::new(Hints::new().provider("udp").ep_type(EpType::Rdm).caps(Caps::MSG)).name(&here).open()
}

/// Runs this test in its own process, over sockets only.
fn again(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["udp_exit::injected_messages_leave_though_their_process_exits", "--exact", "--nocapture"]);
    command.env(ROLE, role).env("FI_UDP_SHARED_MEMORY", "0");
    command
}

fn receive() {
    let side = open();
    for context in 0..=INJECTED {
        side.receive(()).context(context as usize).post().expect("a receive");
    }
    let to = side.name().to_socket_addr().expect("an address of IP");
    let mut sender = again(&to.to_string()).spawn().expect("this program again");
    for context in 0..=INJECTED {
        let entry = wait::drive(&[&side], "a message of a process that is gone", || side.next()).done();
        assert_eq!(entry.op_context, Context(context as usize));
    }
    assert!(sender.wait().expect("the sender's end").success());
}

fn send(to: SocketAddr) -> ! {
    let side = open();
    let to = side.insert_address(&Address::from(to));
    // Afterwards the session is open, and nothing is in flight.
    side.out(to, ()).msg(OpFlags::DELIVERY_COMPLETE).send().expect("a message");
    wait::drive(&[&side], "the first delivery", || side.next()).done();
    for _ in 0..INJECTED {
        side.out(to, ()).inject().send().expect("room");
    }
    std::process::exit(0)
}

#[test]
fn injected_messages_leave_though_their_process_exits() {
    match std::env::var(ROLE).as_deref() {
        Err(_) => assert!(again("receiver").status().expect("this program again").success()),
        Ok("receiver") => receive(),
        Ok(to) => send(to.parse().expect("an address")),
    }
}
