//! Messages that are read by their receivers, and whose first bytes are sent ahead (`FI_EFA_RUNT_SIZE`).

use std::sync::{Arc, LazyLock};

use ofi_efa::wire::{Control, Form, Message, Packet, parse};
use ofi_testkit::prelude::*;
use ofi_testkit::srd::{Handle, Plan, SimulatedDevice};

use super::efa::raw_peer::{C, Raw};

const LEN: usize = 2 << 20;
/// Bytes that are sent ahead: more packets than there are slots.
const RUNT: usize = 300_000;

static DEVICE: LazyLock<Arc<SimulatedDevice>> = LazyLock::new(|| {
    for (name, value) in [("RUNT_SIZE", RUNT.to_string()), ("TX_SIZE", "16".to_string())] {
        // SAFETY: each test of this binary calls this first, before it starts threads.
        unsafe { std::env::set_var(format!("FI_EFA_{name}"), value) };
    }
    let device = SimulatedDevice::new("runt0", Plan::default());
    ofi_efa::srd::add(Arc::new(Handle(Arc::clone(&device))));
    // Refused if the provider is already registered.
    let _ = ofi::register_provider(Arc::new(ofi_efa::EfaProvider));
    device
});

struct Efa;

impl Kit for Efa {
    fn hints(&self) -> Hints {
        Hints::new().provider("efa").ep_type(EpType::Rdm).domain("runt0-rdm")
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

#[test]
fn first_bytes_are_sent_ahead_and_the_rest_is_read_or_sent() {
    let device = &*DEVICE;
    let kit: &dyn Kit = &Efa;
    let pair = kit.pair();
    pair.warm_up();
    let runts = || ["efa_lent", "efa_runts"].map(|name| pair.a.statistic(name));
    for (round, refuses) in [false, true, false].into_iter().enumerate() {
        device.refuse_local(refuses);
        let (from, into) = (Memory::patterned(LEN, 3 + round as u8), Memory::new(LEN));
        pair.post(|| pair.b.receive(&into).context(1).post());
        pair.post(|| pair.a.out(pair.to_b, &from).context(2).send());
        assert_eq!(pair.done(&pair.b).len, LEN);
        pair.done(&pair.a);
        into.check(LEN, 3 + round as u8);
        assert_eq!(runts(), [round as u64 + 1; 2], "the first bytes of each were sent ahead");
    }
    assert_eq!((pair.b.statistic("efa_fetched"), pair.b.statistic("efa_nacks")), (2, 1));
    // Two at a time: the second is read from its first byte, as the peer has not finished the first.
    let (from, into) = (Memory::patterned(LEN, 8), [Memory::new(LEN), Memory::new(LEN)]);
    for _ in 0..2 {
        pair.post(|| pair.a.out(pair.to_b, &from).context(2).send());
    }
    assert_eq!(runts(), [5, 4]);
    for into in &into {
        pair.post(|| pair.b.receive(into).context(1).post());
    }
    for into in &into {
        pair.done(&pair.b);
        pair.done(&pair.a);
        into.check(LEN, 8);
    }
    // A shorter receive truncates the message.
    let short = Memory::new(5000);
    pair.post(|| pair.b.receive(&short).context(1).post());
    pair.post(|| pair.a.out(pair.to_b, &from).context(2).send());
    assert_eq!(pair.failed(&pair.b).err, Errno::ETRUNC);
    pair.done(&pair.a);
    short.check(5000, 8);
}

/// The next part of a message that is sent ahead in packets: the message's number, the offset, and the bytes.
fn part(raw: &mut Raw, side: &TestEndpoint) -> (u32, usize, Vec<u8>) {
    let bytes = raw.next(side, "a message", |packet| matches!(packet, Packet::Message(_)));
    let Ok((_, Packet::Message(Message { send_id, form, .. }))) = parse(&bytes) else { unreachable!() };
    let Form::RuntRead { len: LEN, offset, runt: RUNT, payload, .. } = form else { panic!("{form:?}") };
    (send_id, offset, payload.to_vec())
}

#[test]
fn what_is_sent_ahead_is_sent_though_c_has_read_the_rest_and_nothing_is_that_is_to_be_confirmed() {
    let device = &*DEVICE;
    let kit: &dyn Kit = &Efa;
    let side = kit.side();
    // With one receive, so that packets wait until it polls.
    let mut raw = Raw::to(device, &side, C, 1);
    raw.next(&side, "a greeting", |packet| matches!(packet, Packet::Handshake(_)));
    let to = side.insert_address(&Address::new(side.name().format(), &raw.address.to_bytes()));
    let from = Memory::patterned(LEN, 3);
    wait::drive(&[&side], "room", || side.out(to, &from).context(2).send().ok());
    let (send_id, mut offset, mut payload) = part(&mut raw, &side);
    let received = side.statistic("efa_received");
    raw.send(&Packet::Control(Control::EndOfRead { send_id, recv_id: 0 }));
    wait::drive(&[&side], "the packet", || (side.statistic("efa_received") > received).then_some(()));
    let mut came = vec![0; RUNT];
    let mut got = 0;
    loop {
        came[offset..offset + payload.len()].copy_from_slice(&payload);
        got += payload.len();
        if got == RUNT {
            break;
        }
        assert_eq!(side.pending(), 0, "{got} of {RUNT} bytes");
        (_, offset, payload) = part(&mut raw, &side);
    }
    assert_eq!(came, from.bytes()[..RUNT]);
    wait::drive(&[&side], "the completion", || side.next_of(2)).done();
    // With a delivery confirmation nothing is sent ahead, as the confirmation would come too early.
    let flags = OpFlags::COMPLETION | OpFlags::DELIVERY_COMPLETE;
    wait::drive(&[&side], "room", || side.out(to, &from).context(3).msg(flags).send().ok());
    let bytes = raw.next(&side, "a message", |packet| matches!(packet, Packet::Message(_)));
    let Ok((_, Packet::Message(message))) = parse(&bytes) else { unreachable!() };
    assert!(matches!(message.form, Form::LongRead { len: LEN, .. }), "{:?}", message.form);
    raw.send(&Packet::Control(Control::EndOfRead { send_id: message.send_id, recv_id: 0 }));
    wait::drive(&[&side], "the completion", || side.next_of(3)).done();
    assert_eq!(side.statistic("efa_runts"), 1);
}
