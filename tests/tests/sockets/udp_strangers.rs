//! More unknown senders than a datagram endpoint remembers.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use ofi_testkit::prelude::*;

/// More than an endpoint remembers (`STRANGERS` in `ofi-udp/datagram/messages.rs`).
const STRANGERS: u32 = (1 << 16) + 500;

/// Each sender has its own address and sends one message. The endpoint forgets the oldest senders to make
/// room for new ones.
#[test]
fn strangers_that_are_gone_make_room_for_others() {
    let caps = Caps::MSG | Caps::SOURCE;
    let hints = Hints::new().provider("udp").ep_type(EpType::Dgram).caps(caps);
    let here = Address::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let side = Opening::new(hints).name(&here).open();
    let to = side.name().to_socket_addr().expect("an address of IP");
    let got = Memory::new(4);
    for number in 1..=STRANGERS {
        let stranger = Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 1, 0, 0)) + number);
        let socket = UdpSocket::bind((stranger, 0)).expect("an address of loopback");
        side.receive(&got).context(1).post().expect("a receive");
        socket.send_to(&number.to_le_bytes(), to).expect("a datagram");
        assert_eq!(wait::drive(&[&side], "a datagram", || side.next_of(1)).done().len, 4);
        assert_eq!(got.bytes(), number.to_le_bytes());
    }
    assert_eq!(side.statistic("udp_nameless"), 0, "{}", side.report());
}
