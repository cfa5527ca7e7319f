//! The bodies of the fuzz targets. A test of the workspace (`xtask/tests/corpus.rs`) also includes this file, to replay
//! the committed corpus on the stable toolchain.
//!
//! `control`: datagrams of other processes. `record`: rings of other processes. `lane`: an endpoint whose peer breaks
//! the protocol. `hints`: hints of applications. `protocol`: two ends of the wire protocol, and an attacker between
//! them. `session`: an endpoint over sockets, and a hostile peer inside a session. `rails`: messages and metadata of
//! agents. `agents`: an agent, an honest peer, and one that breaks the rules of its sessions. `mxl`: definitions and
//! files of media flows. `media`: ends of media flows, and a hostile peer of each. `efa`: packets of Amazon's protocol.
//! `efa_lane`: two of its endpoints, and packets of a third. `verbs_lane`: two endpoints over RDMA, and a stranger that
//! connects to them. `verbs_datagrams`: two datagram endpoints over RDMA, and datagrams of strangers.
//! `verbs_connected`: connected endpoints over RDMA, and their hostile peer. `tcp`: what another process sends on a
//! connection of provider `tcp`. `tcp_first`: endpoints of it over sockets, in the clear and by TLS, and strangers that
//! call them.

mod agents;
mod efa_lane;
mod foreign;
mod heap;
mod lane;
mod media;
mod mxl;
mod protocol;
mod rails;
mod session;
mod tcp_first;
mod two;
mod verbs_connected;
mod verbs_datagrams;
mod verbs_lane;

pub use self::mxl::mxl;
pub use agents::agents;
pub use efa_lane::efa_lane;
pub use lane::lane;
pub use media::media;
pub use protocol::protocol;
pub use rails::rails;
pub use session::session;
pub use tcp_first::tcp_first;
pub use verbs_connected::verbs_connected;
pub use verbs_datagrams::verbs_datagrams;
pub use verbs_lane::verbs_lane;

use ofi::raw::{
    AddrFormat, Address, AvType, Caps, EpType, GetinfoFlags, Hints, Mode, MrMode, MsgOrder, OpFlags,
    Progress, Request, Threading, Version,
};
use ofi_ring::memory::Lines;
use ofi_ring::record::Consumer;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Reads an input piece by piece.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// The next `len` bytes, or fewer at the end.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// The next byte; 0 at the end.
    pub fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    /// The next two bytes.
    pub fn short(&mut self) -> usize {
        usize::from(self.byte()) | usize::from(self.byte()) << 8
    }

    /// The next eight bytes.
    pub fn word(&mut self) -> u64 {
        let mut word = [0; 8];
        let bytes = self.bytes(8);
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    }
}

/// A control datagram: one that parses encodes back to the same bytes. Returns whether it parsed.
pub fn control(input: &[u8]) -> bool {
    ofi_shm::fuzz::control_datagram(input)
}

/// A packet of Amazon's protocol: an accepted one is encoded again, and parses to the same value. Returns whether it
/// was accepted.
pub fn efa(input: &[u8]) -> bool {
    use ofi_efa::wire::{Origin, parse};
    let Ok((origin, packet)) = parse(input) else { return false };
    let again = packet.to_vec(origin);
    let (second, same) = parse(&again).expect("what was taken once");
    assert_eq!(same, packet);
    assert!(second == origin || origin == Origin::Unsaid);
    true
}

/// A connection of provider `tcp`: a connection message, or a stream of packets that may be cut at any byte. Whatever
/// is taken is encoded again, and parses to the same value. Returns whether something was taken.
pub fn tcp(input: &[u8]) -> bool {
    use ofi_tcp::wire::{Order, Packet, cm::CmMessage};
    let Some((&choice, mut stream)) = input.split_first() else { return false };
    if choice & 2 != 0 {
        let Ok(Some((message, len))) = CmMessage::parse(stream) else { return false };
        assert!(CmMessage::parse(&stream[..len - 1]).is_ok_and(|parsed| parsed.is_none()));
        let again = message.encode();
        assert_eq!(CmMessage::parse(&again), Ok(Some((message, len))));
        return true;
    }
    let order = if choice & 1 == 0 { Order::Own } else { Order::Swapped };
    let mut taken = false;
    while let Ok(Some((packet, len))) = Packet::parse(stream, order) {
        for cut in 0..len {
            assert_eq!(Packet::parse(&stream[..cut], order), Ok(None));
        }
        let mut again = Vec::new();
        packet.encode(order, stream[7], &mut again);
        assert_eq!(Packet::parse(&again, order), Ok(Some((packet, len))));
        taken = true;
        let payload = match packet {
            Packet::Message { len, .. } | Packet::ReadAnswer { len } => len,
            Packet::Write { len, .. } | Packet::Data { len, .. } | Packet::Stripe { len, .. } => len,
            Packet::Atomic { len, .. } | Packet::Note { len, .. } => len,
            Packet::Ack
            | Packet::Striped { .. }
            | Packet::Read { .. }
            | Packet::Rts { .. }
            | Packet::Grant { .. }
            | Packet::Cts { .. }
            | Packet::Refusal { .. } => 0,
        };
        stream = &stream[len..];
        stream = stream.get(usize::try_from(payload).expect("checked")..).unwrap_or_default();
    }
    taken
}

/// Length of the ring of `record`.
const RING: usize = 1024;

#[repr(align(64))]
struct Memory([AtomicU64; RING / 8]);

/// A ring whose lines have arbitrary contents and change while they are read: every record lies within the ring.
pub fn record(input: &[u8]) {
    let mut input = Input(input);
    let memory = Memory(std::array::from_fn(|_| AtomicU64::new(0)));
    for word in &memory.0 {
        word.store(input.word(), Ordering::Relaxed);
    }
    let base = NonNull::from(&memory).cast::<u8>();
    // SAFETY: the memory outlives the consumer and is aligned; it is accessed atomically here, between its reads.
    let lines = unsafe { Lines::new(base, RING / 64) }.expect("sixteen aligned lines");
    let head = AtomicU64::new(0);
    // SAFETY: this is the only consumer of these lines, and `head` outlives it.
    let mut consumer = unsafe { Consumer::new(lines, &raw const head) };
    let inside = base.addr().get()..=base.addr().get() + RING;
    for _ in 0..256 {
        match consumer.peek() {
            Ok(Some(record)) => {
                let begin = record.body.addr();
                assert!(inside.contains(&begin) && inside.contains(&(begin + record.body_len)), "{record:?}");
                for at in 0..record.body_len {
                    let byte = record.body.wrapping_add(at);
                    // SAFETY: just checked.
                    std::hint::black_box(unsafe { byte.read_volatile() });
                }
                consumer.advance(&record);
            }
            Ok(None) => consumer.flush(),
            Err(_) if input.0.is_empty() => return,
            Err(_) => {}
        }
        if input.0.is_empty() {
            continue;
        }
        let at = usize::from(input.byte()) % memory.0.len();
        memory.0[at].store(input.word(), Ordering::Relaxed);
    }
}

/// An application's hints, and arbitrary addresses: getinfo fails, or its answer grants everything requested.
pub fn hints(input: &[u8]) {
    let mut input = Input(input);
    let caps = Caps::from_bits_retain(input.word());
    let format = AddrFormat::from_c(u32::from(input.byte()) % 20).unwrap_or_default();
    let mut hints = Hints::new()
        .caps(caps)
        .mode(Mode::from_bits_retain(input.word()))
        .addr_format(format)
        .ep_type(EpType::from_c(u32::from(input.byte()) % 5).unwrap_or_default())
        .mr_mode(MrMode::from_bits_retain(u32::from_le_bytes([input.byte(), input.byte(), 0, 0])))
        .msg_order(MsgOrder::from_bits_retain(input.word()))
        .tx_op_flags(OpFlags::from_bits_retain(input.word()))
        .rx_op_flags(OpFlags::from_bits_retain(input.word()))
        .threading(Threading::from_c(u32::from(input.byte()) % 7).unwrap_or_default())
        .progress(Progress::from_c(u32::from(input.byte()) % 5).unwrap_or_default())
        .tx_size(input.short())
        .rx_size(input.word() as usize)
        .inject_size(input.short())
        .max_msg_size(input.word() as usize)
        .mem_tag_format(input.word());
    hints.info.domain_attr.av_type = AvType::from_c(u32::from(input.byte()) % 4).unwrap_or_default();
    let (flags, len) = (GetinfoFlags::from_bits_retain(input.word()), input.short());
    let bytes = input.bytes(len);
    let address = Address::new(format, bytes);
    std::hint::black_box((
        address.to_string(),
        format!("{address:?}"),
        address.to_socket_addr(),
        address.text(),
    ));
    if input.byte() % 2 == 1 {
        hints = hints.dest_addr(address);
    }
    let text = String::from_utf8_lossy(input.0);
    let (provider, node) = text.split_once(' ').unwrap_or(("", &text));
    hints = hints.provider(provider);
    // Host names would be resolved over the network.
    let node = node.starts_with("fi_shm://").then_some(node);
    let request = Request { version: Version::API, node, service: None, flags, hints: Some(&hints) };
    let Ok(offers) = ofi::explain(&request) else { return };
    for info in offers.infos {
        if flags.contains(GetinfoFlags::PROV_ATTR_ONLY) {
            // Provider names and nothing else, whatever the hints.
            assert!(info.caps.is_empty(), "{info}");
            continue;
        }
        let primary = caps & Caps::PRIMARY;
        assert!(info.caps.contains(primary), "granted {} of {caps}", info.caps);
        assert!(
            info.tx_attr.size >= hints.info.tx_attr.size
                && info.tx_attr.inject_size >= hints.info.tx_attr.inject_size
        );
        std::hint::black_box(info.to_string());
    }
    offers.refusals.iter().for_each(|refusal| drop(std::hint::black_box(refusal.to_string())));
}
