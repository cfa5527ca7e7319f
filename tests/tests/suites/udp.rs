// The suite over UDP sockets. Included by the test programs that run it, each with its own driver.

/// UDP sockets on loopback, reliable datagram endpoints. With shared memory as well: `processes/composite/mod.rs`.
struct UdpPair;

impl ofi_testkit::Kit for UdpPair {
    fn hints(&self) -> ofi::raw::Hints {
        let loopback = ofi::raw::Address::from(std::net::SocketAddr::from(([127, 0, 0, 1], 0)));
        ofi::raw::Hints::new().provider("udp").ep_type(ofi::raw::EpType::Rdm).src_addr(loopback)
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

/// UDP sockets on loopback, connected endpoints. With shared memory as well: `processes/composite/mod.rs`.
struct UdpConnected;

impl ofi_testkit::Kit for UdpConnected {
    fn hints(&self) -> ofi::raw::Hints {
        let loopback = ofi::raw::Address::from(std::net::SocketAddr::from(([127, 0, 0, 1], 0)));
        ofi::raw::Hints::new().provider("udp").ep_type(ofi::raw::EpType::Msg).src_addr(loopback)
    }

    fn usual_caps(&self) -> ofi::raw::Caps {
        use ofi::raw::Caps;
        Caps::MSG | Caps::TAGGED | Caps::RMA
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

ofi_testkit::conformance!(udp: UdpPair, skip = [
    each_level_completes_at_its_step: "FI_TRANSMIT_COMPLETE needs an acknowledgement, so the peer must poll",
]);

connected!(udp_msg: UdpConnected, skip = [
    each_level_completes_at_its_step: "FI_TRANSMIT_COMPLETE needs an acknowledgement, so the peer must poll",
]);
