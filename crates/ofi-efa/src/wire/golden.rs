//! Packets as a C compiler lays out the published structures, and their expected contents. A program that uses
//! `prov/efa/src/rdm/efa_rdm_protocol.h` of libfabric 2.6 generated the bytes on x86-64, with each field set to the
//! expected value.

use super::*;

const HELLO: &[u8] = b"hello";
const TAG: Option<u64> = Some(0x6162_6364_6566_6768);
const DATA: Option<u64> = Some(0x8182_8384_8586_8788);
const CONNID: Origin = Origin::Connid(0x5152_5354);

/// Packet names and bytes.
const BYTES: &[(&str, &str)] = &[
    ("cts", "030480805453525101000000020000000300000000000000"),
    ("ctsdata", "040400800200000005000000000000000700000000000000545352510000000068656c6c6f"),
    ("readrsp", "05040080545352510200000001000000050000000000000068656c6c6f"),
    ("eor", "07040080010000000200000054535251"),
    ("read_nack", "0b040080010000000200000054535251"),
    ("atomrsp", "08040080545352510000000002000000050000000000000068656c6c6f"),
    ("receipt", "0a040080010000000900000054535251"),
    ("peer_error", "0c04008001000000010000000f10000054535251"),
    (
        "handshake",
        "09040f80070000000a0200000000000000000000000000000000000000000000000000000000008054535251000000008887868584838281a2ef0000000000000b0000000c0000000100000000000000",
    ),
    (
        "eager_msgrtm",
        "400407000900000024000000f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff3412000054535251000000000000000000000000888786858483828168656c6c6f",
    ),
    ("eager_tagrtm", "41040e8009000000686766656463626188878685848382815453525168656c6c6f"),
    ("medium_msgrtm", "4204048009000000140000000000000007000000000000005453525168656c6c6f"),
    ("medium_tagrtm", "43040c80090000001400000000000000070000000000000068676665646362615453525168656c6c6f"),
    ("longcts_msgrtm", "440404a0090000001400000000000000010000002000000054535251"),
    ("longcts_tagrtm", "45040c80090000001400000000000000010000002000000068676665646362615453525168656c6c6f"),
    (
        "eager_rtw",
        "460412800200000000100000000000000300000000000000747372710000000001100000000000000300000000000000757372710000000088878685848382815453525168656c6c6f73",
    ),
    (
        "longcts_rtw",
        "4704108002000000060000000000000001000000200000000010000000000000030000000000000074737271000000000110000000000000030000000000000075737271000000005453525168656c6c6f",
    ),
    (
        "short_rtr",
        "48041080010000000300000000000000020000000000000000100000000000000300000000000000747372710000000054535251",
    ),
    (
        "longcts_rtr",
        "49041100010000000300000000000000020000000020000000100000000000000300000000000000747372710000000024000000f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff3412000054535251000000000000000000000000",
    ),
    (
        "write_rta",
        "4a04208009000000010000000700000002000000000000000010000000000000030000000000000074737271000000005453525168656c",
    ),
    (
        "fetch_rta",
        "4b04208009000000010000000700000002000000020000000010000000000000030000000000000074737271000000005453525168656c",
    ),
    (
        "compare_rta",
        "4c0420800900000001000000070000000b000000020000000010000000000000030000000000000074737271000000005453525168656c6c6f6f",
    ),
    (
        "dc_write_rta",
        "8d04208009000000010000000700000002000000010000000010000000000000030000000000000074737271000000005453525168656c",
    ),
    (
        "longread_msgrtm",
        "80040480090000000600000000000000010000000200000054535251001000000000000003000000000000007473727100000000011000000000000003000000000000007573727100000000",
    ),
    (
        "longread_tagrtm",
        "81040c800900000006000000000000000100000002000000686766656463626154535251001000000000000003000000000000007473727100000000011000000000000003000000000000007573727100000000",
    ),
    (
        "longread_rtw",
        "820412800200000006000000000000000100000002000000001000000000000003000000000000007473727100000000011000000000000003000000000000007573727100000000888786858483828154535251001000000000000003000000000000007473727100000000011000000000000003000000000000007573727100000000",
    ),
    ("dc_eager_msgrtm", "850404800900000001000000000000005453525168656c6c6f"),
    ("dc_eager_tagrtm", "86040c8009000000010000000000000068676665646362615453525168656c6c6f"),
    (
        "dc_medium_msgrtm",
        "87040480090000000100000000000000140000000000000007000000000000005453525168656c6c6f",
    ),
    (
        "dc_medium_tagrtm",
        "88040c800900000001000000000000001400000000000000070000000000000068676665646362615453525168656c6c6f",
    ),
    ("dc_longcts_msgrtm", "8904048009000000140000000000000001000000200000005453525168656c6c6f"),
    (
        "dc_longcts_tagrtm",
        "8a040c80090000001400000000000000010000002000000068676665646362615453525168656c6c6f",
    ),
    (
        "dc_eager_rtw",
        "8b0410800200000001000000000000000010000000000000030000000000000074737271000000000110000000000000030000000000000075737271000000005453525168656c6c6f73",
    ),
    (
        "dc_longcts_rtw",
        "8c04108002000000060000000000000001000000200000000010000000000000030000000000000074737271000000000110000000000000030000000000000075737271000000005453525168656c6c6f",
    ),
    (
        "runtread_msgrtm",
        "910404800900000006000000000000000100000002000000010000000000000004000000000000005453525100100000000000000300000000000000747372710000000001100000000000000300000000000000757372710000000068656c",
    ),
    (
        "runtread_tagrtm",
        "92040c8009000000060000000000000001000000020000000100000000000000040000000000000068676665646362615453525100100000000000000300000000000000747372710000000001100000000000000300000000000000757372710000000068656c",
    ),
];

fn address() -> Origin {
    let gid = std::array::from_fn(|at| 0xF0 + at as u8);
    Origin::Address(RawAddress { gid, qpn: 0x1234, connid: 0x5152_5354 })
}

fn iovs(count: u64) -> Iovs {
    Iovs::new((0..count).map(|at| Iov { addr: 0x1000 + at, len: 3, key: 0x7172_7374 + at })).unwrap()
}

fn message(form: Form<'_>, tag: Option<u64>) -> Message<'_> {
    Message { msg_id: 9, tag, data: None, confirm: false, send_id: 0, own: Own::default(), form }
}

fn write(form: WriteForm<'_>) -> Write<'_> {
    Write { remote: iovs(2), data: None, confirm: false, send_id: 1, own: Own::default(), number: 0, form }
}

fn atomic(kind: u8, op: u32, id: u32, payload: &[u8]) -> Packet<'_> {
    Packet::Atomic(Atomic { kind, msg_id: 9, remote: iovs(1), datatype: 7, op, id, payload })
}

fn expected(name: &str) -> (Origin, Packet<'static>) {
    let medium = Form::Medium { len: 20, offset: 7, payload: HELLO };
    let long = Form::LongCts { len: 20, credits: 32, payload: HELLO, nacked: false };
    let read = Form::LongRead { len: 6, from: iovs(2) };
    let runt = Form::RuntRead { len: 6, offset: 1, runt: 4, from: iovs(2), payload: b"hel" };
    let eager = Form::Eager { payload: HELLO };
    let long_write = WriteForm::LongCts { len: 6, credits: 32, payload: HELLO };
    let tag = if name.contains("tagrtm") { TAG } else { None };
    let (send_id, recv_id) = (1, 2);
    let confirmed = |form| Message { confirm: true, send_id, ..message(form, tag) };
    let named = |form| Message { send_id, ..message(form, tag) };
    let packet = match name {
        "cts" => Packet::Control(Control::Cts { send_id, recv_id, len: 3, read: true, before: None }),
        "ctsdata" => Packet::Control(Control::Data { recv_id, offset: 7, payload: HELLO }),
        "readrsp" => Packet::Control(Control::ReadResponse { recv_id, send_id, payload: HELLO }),
        "eor" => Packet::Control(Control::EndOfRead { send_id, recv_id }),
        "read_nack" => Packet::Control(Control::ReadNack { send_id, recv_id }),
        "atomrsp" => Packet::Control(Control::AtomicResponse(Answer { recv_id, payload: HELLO })),
        "receipt" => Packet::Control(Control::Receipt { send_id, msg_id: 9 }),
        "peer_error" => Packet::Control(Control::PeerError { what: Abandoned::Message(1), errno: 4111 }),
        "handshake" => Packet::Handshake(Handshake {
            features: Features::of(&[
                Features::DELIVERY_COMPLETE,
                Features::CONNID,
                Features::PEER_ERROR,
                Features::OWN,
            ]),
            host_id: DATA,
            device_version: Some(0xEFA2),
            user_recv_qp: Some((11, 12)),
            p2p: Some(true),
        }),
        "eager_msgrtm" => {
            return (address(), Packet::Message(Message { data: DATA, ..message(eager, None) }));
        }
        "eager_tagrtm" => Packet::Message(Message { data: DATA, ..message(eager, TAG) }),
        "medium_msgrtm" | "medium_tagrtm" => Packet::Message(message(medium, tag)),
        "longcts_msgrtm" => {
            Packet::Message(named(Form::LongCts { len: 20, credits: 32, payload: b"", nacked: true }))
        }
        "longcts_tagrtm" => Packet::Message(named(long)),
        "longread_msgrtm" | "longread_tagrtm" => Packet::Message(named(read)),
        "runtread_msgrtm" | "runtread_tagrtm" => Packet::Message(named(runt)),
        "dc_eager_msgrtm" | "dc_eager_tagrtm" => Packet::Message(confirmed(eager)),
        "dc_medium_msgrtm" | "dc_medium_tagrtm" => Packet::Message(confirmed(medium)),
        "dc_longcts_msgrtm" | "dc_longcts_tagrtm" => Packet::Message(confirmed(long)),
        "eager_rtw" => Packet::Write(Write { data: DATA, send_id: 0, ..write(WriteForm::Eager(b"hellos")) }),
        "dc_eager_rtw" => Packet::Write(Write { confirm: true, ..write(WriteForm::Eager(b"hellos")) }),
        "longcts_rtw" => Packet::Write(write(long_write)),
        "dc_longcts_rtw" => Packet::Write(Write { confirm: true, ..write(long_write) }),
        "longread_rtw" => {
            Packet::Write(Write { data: DATA, ..write(WriteForm::LongRead { len: 6, from: iovs(2) }) })
        }
        "short_rtr" => Packet::Read(Read { remote: iovs(1), len: 3, recv_id, cleared: None, number: 0 }),
        "longcts_rtr" => {
            let read = Read { remote: iovs(1), len: 3, recv_id, cleared: Some(8192), number: 0 };
            return (address(), Packet::Read(read));
        }
        "write_rta" => atomic(kind::WRITE_RTA, 2, 0, b"hel"),
        "fetch_rta" => atomic(kind::FETCH_RTA, 2, recv_id, b"hel"),
        "compare_rta" => atomic(kind::COMPARE_RTA, 11, recv_id, b"helloo"),
        "dc_write_rta" => atomic(kind::DC_WRITE_RTA, 2, send_id, b"hel"),
        other => unreachable!("{other} has no expectation"),
    };
    (CONNID, packet)
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn packets_of_the_published_structures_are_read_and_written_byte_for_byte() {
    assert_eq!(BYTES.len(), 36);
    for (name, hex) in BYTES {
        let golden = bytes(hex);
        let (origin, packet) = expected(name);
        assert_eq!(parse(&golden), Ok((origin, packet)), "{name}");
        assert_eq!(packet.to_vec(origin), golden, "{name}");
    }
}
