use proptest::prelude::*;

use super::*;

fn pieces(lens: &[u64]) -> Pieces {
    let piece = |(at, &len): (usize, &u64)| RemotePiece { addr: 0x1000 * at as u64, len, key: 7 + at as u64 };
    Pieces::new(lens.iter().enumerate().map(piece)).unwrap()
}

/// The first 16 bytes of packets of C libfabric 2.6, and the packets.
fn captured() -> Vec<(Packet, [u8; 16])> {
    let message = |tag, data, len| Packet::Message { tag, data, confirm: false, len };
    let one = pieces(&[64]);
    let base = |op, flags: u8, number, count, header: u8, size: u64| {
        let mut bytes = [3, op, flags, 0, number, count, header, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        bytes[8..].copy_from_slice(&size.to_le_bytes());
        bytes
    };
    vec![
        (message(None, None, 64), base(0, 0, 0, 0, 0x10, 0x50)),
        (message(Some(0x77), None, 64), base(1, 0, 0, 0, 0x18, 0x58)),
        (message(Some(0x77), Some(5), 64), base(1, 1, 0, 0, 0x20, 0x60)),
        (Packet::Write { remote: one, data: None, confirm: false, len: 64 }, base(4, 0, 0, 1, 0x28, 0x68)),
        (Packet::Write { remote: one, data: Some(5), confirm: true, len: 64 }, base(4, 5, 0, 1, 0x30, 0x70)),
        (Packet::Read { remote: one }, base(2, 0, 0, 1, 0x28, 0x28)),
        (
            Packet::Write { remote: pieces(&[48, 48]), data: None, confirm: false, len: 96 },
            base(4, 0, 0, 2, 64, 160),
        ),
        (Packet::Ack, base(0, 0, 2, 0, 0x10, 0x10)),
        (
            Packet::Rts { number: 1, tag: Some(9), data: Some(5), confirm: true, len: 1 << 20 },
            base(5, 5, 1, 0, 0x28, 0x28),
        ),
        (Packet::Cts { number: 1 }, base(6, 0, 1, 0, 0x10, 0x10)),
    ]
}

#[test]
#[cfg(target_endian = "little")]
fn what_c_sends_is_what_this_end_sends() {
    for (packet, base) in captured() {
        let mut bytes = Vec::new();
        packet.encode(Order::Own, 0, &mut bytes);
        assert_eq!(bytes[..16], base, "{packet:?}");
        assert_eq!(Packet::parse(&bytes, Order::Own), Ok(Some((packet, bytes.len()))));
    }
}

/// C leaves old values in bytes that do not matter, and the flags of an announcement in its data.
#[test]
#[cfg(target_endian = "little")]
fn stale_bytes_do_not_matter() {
    let answer = [3, 3, 0, 0, 0, 1, 16, 99, 0x50, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(Packet::parse(&answer, Order::Own), Ok(Some((Packet::ReadAnswer { len: 64 }, 16))));
    let data = [9, 7, 5, 0, 1, 0, 16, 0, 0x10, 0, 0x10, 0, 0, 0, 0, 0];
    assert_eq!(Packet::parse(&data, Order::Own), Ok(Some((Packet::Data { number: 1, len: 1 << 20 }, 16))));
}

#[test]
#[cfg(target_endian = "little")]
fn packets_that_cannot_be_are_refused() {
    let good = |packet: Packet| {
        let mut bytes = Vec::new();
        packet.encode(Order::Own, 0, &mut bytes);
        bytes
    };
    let with = |packet, changes: &[(usize, u8)]| {
        let mut bytes = good(packet);
        changes.iter().for_each(|&(at, value)| bytes[at] = value);
        Packet::parse(&bytes, Order::Own)
    };
    let message = Packet::Message { tag: None, data: None, confirm: false, len: 64 };
    let write = Packet::Write { remote: pieces(&[64]), data: None, confirm: false, len: 64 };
    let refusal = Packet::Refusal { of_read: true, errno: 13 };
    let atomic = Packet::Atomic { what: 7, remote: pieces(&[8]), len: 16 };
    assert_eq!(with(message, &[(1, 15)]), Err(Malformed::Operation(15)));
    assert_eq!(with(message, &[(1, 14)]), Err(Malformed::Header { op: 14, len: 16 }));
    assert_eq!(with(Packet::Striped { count: 2 }, &[(8, 17)]), Err(Malformed::Length(17)));
    assert_eq!(with(message, &[(1, 9)]), Err(Malformed::Pieces(0)));
    assert_eq!(with(message, &[(1, 10)]), Err(Malformed::Header { op: 10, len: 16 }));
    assert_eq!(with(atomic, &[(18, 1)]), Err(Malformed::Atomic(0x1_0007)));
    assert_eq!(with(atomic, &[(9, 0x21)]), Err(Malformed::Length(0x2140)), "more than 8 KiB");
    assert_eq!(with(message, &[(1, 8)]), Err(Malformed::Header { op: 8, len: 16 }));
    assert_eq!(with(message, &[(1, 11)]), Err(Malformed::Header { op: 11, len: 16 }));
    assert_eq!(with(message, &[(1, 12)]), Err(Malformed::Header { op: 12, len: 16 }));
    assert_eq!(with(Packet::Grant { bytes: 1 }, &[(8, 25)]), Err(Malformed::Length(25)));
    assert_eq!(with(refusal, &[(16, 0)]), Err(Malformed::Reason(0)));
    assert_eq!(with(refusal, &[(17, 16)]), Err(Malformed::Reason(4096 + 13)));
    assert_eq!(with(refusal, &[(8, 25)]), Err(Malformed::Length(25)));
    assert_eq!(with(message, &[(6, 121)]), Err(Malformed::Header { op: 0, len: 121 }));
    assert_eq!(with(message, &[(2, 1)]), Err(Malformed::Header { op: 0, len: 16 }), "no word of CQ data");
    assert_eq!(with(message, &[(8, 15)]), Err(Malformed::Length(15)));
    assert_eq!(with(message, &[(15, 0xFF)]), Err(Malformed::Length(0xFF00_0000_0000_0050)));
    assert_eq!(with(Packet::Ack, &[(8, 17)]), Err(Malformed::Length(17)));
    assert_eq!(with(Packet::Cts { number: 1 }, &[(8, 17)]), Err(Malformed::Length(17)));
    assert_eq!(with(write, &[(5, 0)]), Err(Malformed::Pieces(0)));
    assert_eq!(with(write, &[(5, 5)]), Err(Malformed::Pieces(5)));
    assert_eq!(with(write, &[(24, 65)]), Err(Malformed::Length(0x68)), "less than its pieces");
    let total = Pieces::new([u64::MAX, 2].into_iter().map(|len| RemotePiece { len, ..<_>::default() }));
    assert_eq!(total.unwrap().total(), None);
    let none: [RemotePiece; 0] = [];
    assert_eq!(Pieces::new(none.into_iter()), None);
}

fn any_packet() -> impl Strategy<Value = Packet> {
    let len = 0u64..1 << 50;
    let piece = (any::<u64>(), 0u64..1 << 40, any::<u64>());
    let remote = prop::collection::vec(piece, 1..=4).prop_map(|all| {
        Pieces::new(all.into_iter().map(|(addr, len, key)| RemotePiece { addr, len, key })).unwrap()
    });
    let data = any::<Option<u64>>();
    prop_oneof![
        (any::<Option<u64>>(), data.clone(), any::<bool>(), len.clone())
            .prop_map(|(tag, data, confirm, len)| Packet::Message { tag, data, confirm, len }),
        Just(Packet::Ack),
        remote.clone().prop_map(|remote| Packet::Read { remote }),
        len.clone().prop_map(|len| Packet::ReadAnswer { len }),
        (remote.clone(), data.clone(), any::<bool>()).prop_map(|(remote, data, confirm)| {
            Packet::Write { remote, data, confirm, len: remote.total().unwrap() }
        }),
        (any::<u8>(), any::<Option<u64>>(), data, any::<bool>(), len.clone())
            .prop_map(|(number, tag, data, confirm, len)| Packet::Rts { number, tag, data, confirm, len }),
        any::<u8>().prop_map(|number| Packet::Cts { number }),
        any::<u64>().prop_map(|bytes| Packet::Grant { bytes }),
        any::<u8>().prop_map(|count| Packet::Striped { count }),
        (any::<u64>(), any::<u8>(), len.clone()).prop_map(|(number, index, len)| Packet::Stripe {
            number,
            index,
            len
        }),
        (any::<bool>(), 1u16..=4095).prop_map(|(of_read, errno)| Packet::Refusal { of_read, errno }),
        (any::<u8>(), len).prop_map(|(number, len)| Packet::Data { number, len }),
        (any::<u16>(), remote, 0..=MAX_SHORT_LEN as u64).prop_map(|(what, remote, len)| Packet::Atomic {
            what,
            remote,
            len
        }),
        (any::<[u64; 4]>(), 0..=MAX_SHORT_LEN as u64).prop_map(|(words, len)| Packet::Note { words, len }),
    ]
}

proptest! {
    #[test]
    fn every_packet_comes_back_and_no_part_of_it_does(
        packet in any_packet(), swapped: bool, count: u8, after in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let order = if swapped { Order::Swapped } else { Order::Own };
        let mut bytes = Vec::new();
        packet.encode(order, count, &mut bytes);
        let len = bytes.len();
        prop_assert!(len <= MAX_HEADER_LEN && bytes[7] == count);
        for cut in 0..len {
            prop_assert_eq!(Packet::parse(&bytes[..cut], order), Ok(None));
        }
        bytes.extend(after);
        prop_assert_eq!(Packet::parse(&bytes, order), Ok(Some((packet, len))));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..150), swapped: bool) {
        let order = if swapped { Order::Swapped } else { Order::Own };
        if let Ok(Some((packet, len))) = Packet::parse(&bytes, order) {
            let mut again = Vec::new();
            packet.encode(order, bytes[7], &mut again);
            prop_assert_eq!(Packet::parse(&again, order), Ok(Some((packet, len))));
        }
    }
}
