use proptest::prelude::*;

use super::*;

/// Random bytes that start like a packet, so that most pass the base header.
fn nearly() -> impl Strategy<Value = Vec<u8>> {
    (any::<u8>(), any::<u16>(), prop::collection::vec(prop_oneof![Just(0u8), 0..4u8, any::<u8>()], 0..160))
        .prop_map(|(what, flags, rest)| {
            let flags = flags.to_le_bytes();
            [&[what, VERSION, flags[0], flags[1]], &rest[..]].concat()
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// A packet that parses encodes to bytes that parse to the same packet.
    #[test]
    fn what_is_read_is_written_again_alike(bytes in nearly()) {
        if let Ok((origin, packet)) = parse(&bytes) {
            let again = packet.to_vec(origin);
            // Control packets without a connection id are parsed but never encoded: ours have one.
            let (second, same) = parse(&again).unwrap();
            prop_assert_eq!(same, packet);
            prop_assert!(second == origin || origin == Origin::Unsaid);
        }
    }

    #[test]
    fn short_headers_are_those_of_the_same_messages(msg_id in any::<u32>(), tag in any::<Option<u64>>(), connid in any::<u32>()) {
        let form = Form::Eager { payload: &[] };
        let message = Message { msg_id, tag, data: None, confirm: false, send_id: 0, own: Own::default(), form };
        let long = message.encode(Origin::Connid(connid));
        let short = Short::of(msg_id, tag, connid);
        prop_assert_eq!(short.bytes(), long.bytes());
    }

    #[test]
    fn messages_come_back(
        msg_id in any::<u32>(), tag in any::<Option<u64>>(), data in any::<Option<u64>>(),
        confirm in any::<bool>(), id in any::<u32>(), rx in any::<u16>(), form in 0..4,
        payload in prop::collection::vec(any::<u8>(), 0..64), offset in 0..1000usize, rest in 0..1000usize,
        connid in any::<u32>(),
    ) {
        let (len, payload) = (payload.len() + offset + rest, &payload[..]);
        let iov = |len| Iovs::new([Iov { addr: 1, len: len as u64, key: 2 }]).unwrap();
        let form = match form {
            0 => Form::Eager { payload },
            1 => Form::Medium { len, offset, payload },
            2 => Form::LongCts { len, credits: 7, payload, nacked: rest == 0 },
            _ => Form::RuntRead { len, offset, runt: offset + payload.len(), from: iov(len), payload },
        };
        let confirm = confirm && !matches!(form, Form::RuntRead { .. });
        let named = confirm || matches!(form, Form::LongCts { .. } | Form::RuntRead { .. });
        let (send_id, own) = (if named { id } else { 0 }, Own { rx });
        let message = Message { msg_id, tag, data, confirm, send_id, own, form };
        let origin = Origin::Connid(connid);
        let bytes = Packet::Message(message).to_vec(origin);
        prop_assert_eq!(parse(&bytes), Ok((origin, Packet::Message(message))));
    }
}

#[test]
fn other_versions_types_and_lengths_are_refused_by_name() {
    assert_eq!(parse(&[]), Err(Malformed::Short));
    for version in [0, 3, 5, 255] {
        assert_eq!(parse(&[64, version, 0, 0, 1, 0, 0, 0]), Err(Malformed::Version(version)));
    }
    for what in [0, 1, 2, 6, 13, 63, 77, 127, 131, 132, 142, 143, 144, 147, 239, 244, 255] {
        let packet = [&[what, 4, 0, 0][..], &[0; 64]].concat();
        assert_eq!(parse(&packet), Err(Malformed::Type(what)), "{what}");
    }
    let write = |len: u64| {
        let remote = Iovs::new([Iov { addr: u64::MAX - 1, len, key: 0 }]).unwrap();
        let form = WriteForm::Eager(b"abc");
        let write =
            Write { remote, data: None, confirm: true, send_id: 1, own: Own::default(), number: 7, form };
        parse(&Packet::Write(write).to_vec(Origin::Connid(1))).map(|_| ())
    };
    assert_eq!(write(3), Ok(()), "whether there is such memory is not the packet's business");
    assert_eq!(write(u64::MAX), Err(Malformed::Field("iov.len")));
    assert_eq!(write(1), Err(Malformed::Field("iov.len")));
}

/// Flags and features of later versions do not change how known fields parse.
#[test]
fn unknown_bits_are_ignored() {
    let form = Form::Eager { payload: b"word" };
    let message =
        Message { msg_id: 1, tag: None, data: None, confirm: false, send_id: 0, own: Own::default(), form };
    let mut bytes = Packet::Message(message).to_vec(Origin::Connid(7));
    bytes[2] |= 0x40;
    bytes[3] |= 0x1f;
    assert_eq!(parse(&bytes), Ok((Origin::Connid(7), Packet::Message(message))));
    let with = |words: u32| {
        let base = [kind::HANDSHAKE, VERSION, 0xf0, 0xff];
        let features = vec![0xff; words as usize * 8];
        [&base[..], &(words + 3).to_le_bytes(), &features, &[7, 0, 0, 0, 0, 0, 0, 0]].concat()
    };
    for words in [0, 1, 4, 5, 64] {
        let bytes = with(words);
        let Ok((origin, Packet::Handshake(shake))) = parse(&bytes) else {
            panic!("{words} words of features")
        };
        assert_eq!(origin, Origin::Connid(7));
        let known = words.min(4) as usize * 64;
        assert!((0..256).all(|bit| shake.features.has(bit) == (bit < known)), "{words} words of features");
        assert_eq!(shake, Handshake { features: shake.features, ..Handshake::default() });
    }
    assert_eq!(parse(&with(65)), Err(Malformed::Field("nextra_p3")));
}

#[test]
fn lengths_beyond_the_packet_are_refused() {
    let origin = Origin::Connid(7);
    // Of the bytes of a payload, at these places.
    for (control, at) in [
        (Control::Data { recv_id: 1, offset: 0, payload: b"word" }, 8),
        (Control::ReadResponse { recv_id: 1, send_id: 2, payload: b"word" }, 16),
        (Control::AtomicResponse(Answer { recv_id: 1, payload: b"word" }), 16),
    ] {
        let mut bytes = Packet::Control(control).to_vec(origin);
        assert_eq!(parse(&bytes), Ok((origin, Packet::Control(control))));
        assert_eq!(parse(&bytes[..bytes.len() - 1]), Err(Malformed::Short), "{control:?}");
        for (len, why) in [(5, Malformed::Short), (u64::MAX, Malformed::Field("seg_length"))] {
            bytes[at..at + 8].copy_from_slice(&len.to_le_bytes());
            assert_eq!(parse(&bytes), Err(why), "{control:?}");
        }
    }
    // Of the sender's address, and of pieces of memory.
    let iov = Iov { addr: 1, len: 3, key: 2 };
    let read = Read { remote: Iovs::new([iov]).unwrap(), len: 3, recv_id: 1, cleared: None, number: 0 };
    let sender = RawAddress { gid: [1; 16], qpn: 2, connid: 7 };
    let mut bytes = Packet::Read(read).to_vec(Origin::Address(sender));
    assert!(parse(&bytes).is_ok());
    bytes[48..52].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(parse(&bytes), Err(Malformed::Short));
    let pieces = |count: u32, len| {
        let mut bytes = Packet::Read(read).to_vec(origin);
        bytes[4..8].copy_from_slice(&count.to_le_bytes());
        bytes.resize(len, 0);
        parse(&bytes).map(|_| ())
    };
    assert_eq!(pieces(1, 52), Ok(()));
    assert_eq!(pieces(2, 52), Err(Malformed::Short));
    assert_eq!(pieces(5, 512), Err(Malformed::Field("iov_count")));
}

#[test]
fn parts_outside_of_their_message_are_refused() {
    let from = Iovs::new([Iov { addr: 1, len: 4, key: 2 }]).unwrap();
    let part = |form| {
        let own = Own::default();
        let message = Message { msg_id: 1, tag: None, data: None, confirm: false, send_id: 3, own, form };
        parse(&Packet::Message(message).to_vec(Origin::Connid(7))).map(|_| ())
    };
    let medium = |len, offset| part(Form::Medium { len, offset, payload: b"word" });
    let long = |len| part(Form::LongCts { len, credits: 1, payload: b"word", nacked: false });
    let read = |len| part(Form::LongRead { len, from });
    let runt = |runt| part(Form::RuntRead { len: 4, offset: 0, runt, from, payload: b"word" });
    assert_eq!([medium(9, 5), long(4), read(4), runt(4)], [Ok(()); 4]);
    let wrong = Err(Malformed::Field("seg_offset"));
    assert_eq!([medium(8, 5), medium(8, isize::MAX as usize), long(3), runt(3), runt(5)], [wrong; 5]);
    assert_eq!([read(3), read(5)], [Err(Malformed::Field("iov.len")); 2]);
}
