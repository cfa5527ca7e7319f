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
    for what in [0, 1, 2, 6, 13, 63, 77, 127, 131, 132, 142, 143, 144, 147, 239, 243, 255] {
        let packet = [&[what, 4, 0, 0][..], &[0; 64]].concat();
        assert_eq!(parse(&packet), Err(Malformed::Type(what)), "{what}");
    }
    let write = |len: u64| {
        let remote = Iovs::new([Iov { addr: u64::MAX - 1, len, key: 0 }]).unwrap();
        let form = WriteForm::Eager(b"abc");
        let write = Write { remote, data: None, confirm: true, send_id: 1, own: Own::default(), form };
        parse(&Packet::Write(write).to_vec(Origin::Connid(1))).map(|_| ())
    };
    assert_eq!(write(3), Ok(()), "whether there is such memory is not the packet's business");
    assert_eq!(write(u64::MAX), Err(Malformed::Field("iov.len")));
    assert_eq!(write(1), Err(Malformed::Field("iov.len")));
}
