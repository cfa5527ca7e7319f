//! A peer whose packets the test writes, on a simulated device.

use std::collections::VecDeque;
use std::sync::Arc;

use ofi_efa::srd::{Action, Completion, Device, QueuePair, Segment, Sizes, To, WorkRequest};
use ofi_efa::wire::{Features, Handshake, Origin, Packet, RawAddress, parse};
use ofi_testkit::prelude::*;
use ofi_testkit::srd::{Handle, SimulatedDevice};

/// The features of C's endpoints.
pub const C: &[usize] = &[
    Features::RDMA_READ,
    Features::DELIVERY_COMPLETE,
    Features::CONNID,
    Features::RUNT,
    Features::READ_NACK,
];

const MTU: usize = 8760;

/// A peer on the device's own interface. Memory that it posts to the device is never freed.
pub struct Raw {
    pub qp: Box<dyn QueuePair>,
    /// Its name.
    pub address: RawAddress,
    to: To,
    slots: Vec<&'static mut [u8; MTU]>,
    pub came: VecDeque<Completion>,
    packets: VecDeque<Vec<u8>>,
}

impl Raw {
    /// A peer with `receives` posted receives that has sent its handshake.
    pub fn to(
        device: &Arc<SimulatedDevice>,
        side: &TestEndpoint,
        features: &[usize],
        receives: usize,
    ) -> Self {
        let mut raw = Self::silent(device, side, receives);
        let features = Features::of(features);
        raw.send(&Packet::Handshake(Handshake { features, ..Handshake::default() }));
        raw
    }

    /// A peer that has sent nothing.
    pub fn silent(device: &Arc<SimulatedDevice>, side: &TestEndpoint, receives: usize) -> Self {
        let mut raw = Self::deaf(device, side, receives);
        raw.listen(receives);
        raw
    }

    /// A peer that has sent nothing, with room for this number of receives and none posted.
    pub fn deaf(device: &Arc<SimulatedDevice>, side: &TestEndpoint, receives: usize) -> Self {
        let device = Handle(Arc::clone(device));
        let mut qp = device
            .open(Sizes { sends: 64, receives, inline: 0, unsolicited: device.limits().unsolicited }, None)
            .unwrap();
        let address = RawAddress { gid: device.gid(), qpn: qp.qpn(), connid: qp.qkey() };
        let peer = RawAddress::from_bytes(side.name().bytes()).unwrap();
        let to = To { handle: qp.attach(&peer.gid).unwrap(), qpn: peer.qpn, qkey: peer.connid };
        let (slots, came, packets) = (Vec::new(), VecDeque::new(), VecDeque::new());
        Self { qp, address, to, slots, came, packets }
    }

    /// Posts this number of receives.
    pub fn listen(&mut self, receives: usize) {
        for _ in 0..receives {
            let slot = Box::leak(Box::new([0; MTU]));
            let (id, into) = (self.slots.len(), Segment { addr: slot.as_mut_ptr(), len: MTU, lkey: 0 });
            // SAFETY: the slot is looked at when its receive has ended.
            unsafe { self.qp.receive(&[(id as u64, into)]) }.unwrap();
            self.slots.push(slot);
        }
    }

    /// Sends a packet to the endpoint.
    pub fn send(&mut self, packet: &Packet<'_>) {
        self.send_as(Origin::Address(self.address), packet);
    }

    /// The same, from the given origin.
    pub fn send_as(&mut self, origin: Origin, packet: &Packet<'_>) {
        self.send_bytes(&packet.to_vec(origin));
    }

    /// Sends arbitrary bytes.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        let bytes = Box::leak(bytes.to_vec().into_boxed_slice());
        let from = Segment { addr: bytes.as_mut_ptr(), len: bytes.len(), lkey: 0 };
        // Completed sends free their slots.
        self.qp.poll(&mut self.came).unwrap();
        // SAFETY: the bytes stay.
        unsafe {
            self.qp.post(&[WorkRequest {
                id: 0,
                to: self.to,
                action: Action::Send { from, inline: false, data: None },
            }])
        }
        .unwrap();
    }

    /// The next packet that `which` accepts.
    pub fn next(&mut self, side: &TestEndpoint, what: &str, which: impl Fn(&Packet<'_>) -> bool) -> Vec<u8> {
        wait::drive(&[side], what, || {
            self.qp.poll(&mut self.came).unwrap();
            while let Some(came) = self.came.pop_front() {
                if let Completion::Received { id, len, .. } = came {
                    let bytes = self.taken(id, len);
                    self.packets.push_back(bytes);
                }
            }
            let at = self.packets.iter().position(|bytes| parse(bytes).is_ok_and(|(_, it)| which(&it)))?;
            self.packets.remove(at)
        })
    }

    /// Whether such a packet has arrived that [`Raw::next`] has not returned.
    pub fn has(&self, which: impl Fn(&Packet<'_>) -> bool) -> bool {
        self.packets.iter().any(|bytes| parse(bytes).is_ok_and(|(_, it)| which(&it)))
    }

    /// The bytes of a slot, which is reposted.
    pub fn taken(&mut self, id: u64, len: usize) -> Vec<u8> {
        let slot = &mut self.slots[id as usize];
        let bytes = slot[..len].to_vec();
        let into = Segment { addr: slot.as_mut_ptr(), len: MTU, lkey: 0 };
        // SAFETY: the received packet was copied.
        unsafe { self.qp.receive(&[(id, into)]) }.unwrap();
        bytes
    }
}
