//! Two datagram endpoints of provider `verbs` on a simulated device. One also receives the input's datagrams: of any
//! length, with any route header or none, from any sender. Each is delivered within its bounds, or counted. Messages
//! between the two arrive whole, once, in order and with their source.

use std::collections::VecDeque;
use std::sync::OnceLock;

use ofi::raw::{AddrFormat, Caps, EpType, Hints, Info};
use ofi_testkit::rc::{Forged, Plan};
use ofi_testkit::{Event, Kit, Memory, Pair};

use super::Input;
use super::two::{self, STEPS};
use super::verbs_lane::device;

/// Length of the longest datagram, and of the route header before it.
const MTU: usize = 1024;
const GRH: usize = 40;
/// This bit is set in the remote data of messages between the two endpoints.
const OWN: u64 = 1 << 31;

struct Driven;

impl Kit for Driven {
    fn hints(&self) -> Hints {
        let hints = Hints::new().provider("verbs").ep_type(EpType::Dgram).domain("fuzzed0");
        hints.addr_format(AddrFormat::IbUd)
    }

    fn usual_caps(&self) -> Caps {
        Caps::MSG | Caps::SOURCE
    }
}

struct Wire {
    pair: Pair,
    into: Memory,
    /// Messages in flight, by their patterns.
    sent: VecDeque<(u8, Memory)>,
    delivered: usize,
    number: u8,
}

impl Wire {
    fn receive(&self) {
        self.pair.b.receive(&self.into).context(1).post().expect("a receive");
    }

    fn poll(&mut self) {
        self.pair.poll();
        while self.pair.a.next().map(Event::done).is_some() {}
        while let Some(event) = self.pair.b.next() {
            let Event::Done(entry, source) = event else { panic!("{event:?}") };
            assert!(entry.len <= MTU);
            if entry.data & OWN != 0 {
                let (seed, from) = self.sent.pop_front().expect("a message that was sent");
                assert_eq!((entry.data, entry.len), (OWN | u64::from(seed), from.len()));
                assert_eq!(source, self.pair.to_a);
                self.into.check(from.len(), seed);
            }
            self.delivered += 1;
            self.receive();
        }
    }
}

/// Runs an input. Returns the number of datagrams delivered.
pub fn verbs_datagrams(input: &[u8]) -> usize {
    static INFO: OnceLock<Info> = OnceLock::new();
    let mut input = Input(input);
    let (device, _alone) = device();
    device.begin(Plan { seed: u64::from(input.byte()) + 1, ..Plan::default() });
    let pair = Pair::of(two::open(&Driven, &INFO), two::open(&Driven, &INFO));
    let name = pair.b.name();
    let qp = name.bytes().get(16..20).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes);
    let qp = qp.expect("an address of a queue pair");
    let (into, sent) = (Memory::new(MTU), VecDeque::new());
    let mut wire = Wire { pair, into, sent, delivered: 0, number: 0 };
    wire.receive();
    for _ in 0..STEPS {
        if input.0.is_empty() {
            break;
        }
        match input.byte() % 4 {
            0 => {
                wire.number = wire.number.wrapping_add(1);
                let from = Memory::patterned(input.short() % (MTU + 1), wire.number);
                let data = OWN | u64::from(wire.number);
                let out = wire.pair.a.out(wire.pair.to_b, &from).context(2).data(data);
                // A datagram without a receive is dropped, and its send succeeds.
                let posted = || wire.pair.a.statistic("verbs_tx_datagrams");
                let before = posted();
                if out.send().is_ok() && posted() > before {
                    wire.sent.push_back((wire.number, from));
                }
            }
            1 => (0..=input.byte()).for_each(|_| wire.poll()),
            _ => {
                let (how, len) = (input.byte(), input.short() % (GRH + MTU + 1));
                let claimed = input.short();
                let mut bytes = input.bytes(len).to_vec();
                if let (Some(head), true) = (bytes.first_chunk_mut::<GRH>(), how & 8 != 0) {
                    (head[0], head[20]) = if how & 16 == 0 { (0x60, 0) } else { (0, 0x45) };
                }
                let forged = Forged {
                    len: if how & 1 == 0 { bytes.len() } else { claimed },
                    bytes,
                    source_qp: claimed as u32,
                    lid: claimed as u16,
                    has_route: how & 2 == 0,
                    data: (how & 4 == 0).then_some(claimed as u32),
                    failed: how & 0xE0 == 0xE0,
                };
                wire.poll();
                device.forge(qp, forged);
                wire.poll();
            }
        }
    }
    (0..2000).for_each(|_| wire.poll());
    assert!(wire.sent.is_empty(), "{} messages have not come", wire.sent.len());
    assert_eq!(device.datagram_receives(qp), 512, "receives that the device has");
    wire.delivered
}
