//! Scalable endpoints of an info, and the names of their contexts (`FI_NAMED_RX_CTX`).

use ofi_testkit::prelude::*;

use super::moves::{count, has};
use super::opens::Granted;

/// Address bits that select a receive context.
const BITS: u32 = 4;

/// Opens a scalable endpoint of the info, with two contexts in each direction, and sends to the second.
pub fn scalable(granted: &Granted) {
    let info = &granted.info;
    let domain = &info.domain_attr;
    let shared = [info.ep_attr.tx_ctx_cnt, info.ep_attr.rx_ctx_cnt].contains(&SHARED_CONTEXT);
    let keyed = domain.auth_key_size == AV_AUTH_KEY;
    if domain.max_ep_tx_ctx < 2 || domain.max_ep_rx_ctx < 2 || shared || keyed {
        return;
    }
    let mut info = info.clone();
    // As MPICH does, with more than one context.
    (info.src_addr, info.ep_attr.tx_ctx_cnt, info.ep_attr.rx_ctx_cnt) = (None, 2, 2);
    let host = granted.another().rx_ctx_bits(BITS).open_disabled().expect("a domain of the info");
    let hub = host.domain.open_scalable(&info).expect("a scalable endpoint of the info");
    hub.bind_av(&host.av).expect("its vector");
    let mut contexts = Vec::new();
    for index in 0..2 {
        let (tx, _) = hub.transmit_context(index, Some(&info.tx_attr)).expect("a transmit context");
        let (rx, _) = hub.receive_context(index, Some(&info.rx_attr)).expect("a receive context");
        for (context, direction) in [(tx, BindFlags::TRANSMIT), (rx, BindFlags::RECV)] {
            let queue = host.domain.open_cq(&CqAttr::default()).expect("a queue");
            context.bind_cq(&queue, direction).expect("binding it");
            context.enable().expect("enabling a context");
            contexts.push(host.context_with(context, queue));
        }
    }
    hub.enable().expect("enabling the scalable endpoint");
    // A context has the capabilities of its attributes, which may be fewer than the endpoint's.
    if !(info.caps.contains(Caps::NAMED_RX_CTX) && has(info.rx_attr.caps, Caps::MSG, Caps::RECV)) {
        return;
    }
    count();
    let peer = granted.peer().rx_ctx_bits(BITS).open();
    host.insert(&peer); // or it is a stranger (FI_SOURCE_ERR)
    let to = peer.insert_address(&hub.name().expect("a name")).with_rx_index(1, BITS);
    let (sent, got) = (Memory::patterned(20, 3), Memory::new(20));
    contexts[3].receive(&got).context(1).post().expect("posting a receive");
    let mut sides: Vec<&TestEndpoint> = contexts.iter().collect();
    sides.push(&peer);
    let out = peer.out(to, &sent).context(2);
    wait::drive(&sides, "room for a message", || match out.send() {
        Ok(()) => Some(()),
        Err(error) if error.is_again() => None,
        Err(error) => panic!("FI_NAMED_RX_CTX: {error}"),
    });
    wait::drive(&sides, "a message to a context", || contexts[3].next_of(1)).done();
    got.check(20, 3);
}
