//! Datagram endpoints, with the addresses of C libfabric's verbs provider.

use ofi_testkit::prelude::*;

/// Datagram endpoints.
struct Datagrams;

impl ofi_testkit::Kit for Datagrams {
    fn hints(&self) -> Hints {
        Hints::new().provider("verbs").ep_type(EpType::Dgram).addr_format(AddrFormat::IbUd)
    }
}

fn open() -> TestEndpoint {
    let kit: &dyn ofi_testkit::Kit = &Datagrams;
    let caps = Caps::MSG | Caps::SOURCE;
    kit.opening_for(kit.usual().ep_type(EpType::Dgram).caps(caps)).open()
}

#[test]
fn messages_of_every_length_arrive_with_source_and_data() {
    let pair = Pair::of(open(), open());
    let longest = pair.a.info.ep_attr.max_msg_size;
    assert_eq!(pair.a.info.domain_attr.cq_data_size, 4);
    for (seed, len) in (1..).zip([0, 1, 8, 64, longest - 1, longest]) {
        let (from, into) = (Memory::patterned(len, seed), Memory::new(len));
        pair.b.receive(&into).context(1).post().unwrap();
        pair.post(|| pair.a.out(pair.to_b, &from).context(2).data(0x8000_0000 + len as u64).send());
        let (got, source) = pair.done_from(&pair.b);
        assert_eq!((got.op_context, got.len, got.data), (Context(1), len, 0x8000_0000 + len as u64));
        assert_eq!(source, pair.to_a);
        into.check(len, seed);
        assert_eq!(pair.done(&pair.a).op_context, Context(2));
    }
    let (long, small) = (Memory::new(longest + 1), Memory::new(8));
    assert_eq!(pair.a.out(pair.to_b, &long).send().unwrap_err().errno(), Errno::EMSGSIZE);
    let wide = pair.a.out(pair.to_b, &small).data(1 << 32).send();
    assert_eq!(wide.unwrap_err().errno(), Errno::EINVAL);
}

#[test]
fn a_sender_never_waits_and_what_finds_no_room_is_dropped() {
    let pair = Pair::of(open(), open());
    let from = Memory::patterned(64, 1);
    for _ in 0..5000 {
        wait::drive(&[&pair.a], "room to send", || pair.a.out(pair.to_b, &from).send().ok());
        wait::drive(&[&pair.a], "its end", || pair.a.next()).done();
    }
    let into = Memory::new(64);
    pair.b.receive(&into).context(1).post().unwrap();
    pair.drive("one of them", || pair.b.next_of(1)).done();
    into.check(64, 1);
}

#[test]
fn a_blocked_reader_wakes_for_a_datagram() {
    let kit: &dyn ofi_testkit::Kit = &Datagrams;
    let caps = Caps::MSG | Caps::SOURCE;
    let hints = kit.usual().ep_type(EpType::Dgram).caps(caps);
    let pair = Pair::of(open(), kit.opening_for(hints).wait_obj(WaitObj::Fd).open());
    let (from, into) = (Memory::patterned(64, 1), Memory::new(64));
    for round in 0..20 {
        pair.b.receive(&into).context(1).post().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(round));
                wait::drive(&[], "room to send", || pair.a.out(pair.to_b, &from).send().ok());
            });
            let mut entry = [CqTaggedEntry::EMPTY];
            let read = pair.b.rx.read_wait(&mut CqBuffer::new(&mut entry), Some(Duration::from_secs(10)));
            assert_eq!(read.unwrap(), 1);
        });
    }
}

#[test]
fn addresses_are_of_their_port_and_a_name_is_of_this_end_alone() {
    let side = open();
    assert_eq!((side.name().format(), side.name().bytes().len()), (AddrFormat::IbUd, 32));
    let hints = Hints::new().provider("verbs").ep_type(EpType::Dgram);
    let named =
        |node, flags| ofi::getinfo(Version::API, Some(node), Some("7471"), flags, Some(&hints.clone()));
    assert_eq!(named("10.77.0.1", GetinfoFlags::empty()).unwrap_err().errno(), Errno::ENODATA);
    assert_eq!(named("10.77.0.9", GetinfoFlags::SOURCE).unwrap_err().errno(), Errno::ENODATA);
    for node in ["10.77.0.1", "0.0.0.0"] {
        let infos = named(node, GetinfoFlags::SOURCE).unwrap();
        let gid = |address: &Address| address.bytes()[..16].to_vec();
        assert_eq!(infos[0].src_addr.as_ref().map(gid), Some(gid(&side.name())));
    }
    let kit: &dyn ofi_testkit::Kit = &Datagrams;
    let elsewhere = Address::new(AddrFormat::IbUd, &[1; 32]);
    let refused = kit.opening_for(hints.addr_format(AddrFormat::IbUd)).name(&elsewhere).try_open();
    assert_eq!(refused.err().unwrap().errno(), Errno::EADDRNOTAVAIL);
}
