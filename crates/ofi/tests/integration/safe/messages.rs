use std::sync::Arc;

use ofi::{Buffer, BufferMut, Caps, CompletionFlags, Errno, Node, OpFlags, Placement, RecvMsg, SendMsg};

use super::support::{Pair, hints, pair, pair_with, pattern, well};

#[test]
fn messages_of_all_sizes_come_with_their_buffers() {
    let pair = pair();
    for len in [0, 1, 64, 4096, 8192, 100_000, 3_000_000] {
        let receive = pair.b.recv(vec![0; len]).unwrap();
        let send = pair.a.send(pattern(len), pair.to_b).unwrap();
        let (sent, got) = pair.both();
        let (mut sent, mut got) = (well(sent, send), well(got, receive));
        assert_eq!((sent.len, got.len), (len, len));
        assert!(got.flags.contains(CompletionFlags::RECV | CompletionFlags::MSG) && got.tag.is_none());
        assert!(sent.flags.contains(CompletionFlags::SEND) && sent.source.is_none());
        assert_eq!(got.source, Some(pair.to_a));
        assert!(got.bytes() == pattern(len));
        assert!(sent.take_buffer::<Box<[u8]>>().is_none(), "the buffer has another type");
        assert!(sent.take_buffer::<Vec<u8>>().unwrap() == pattern(len));
        assert!(got.take_buffer::<Vec<u8>>().unwrap() == pattern(len));
        assert!(got.take_buffer::<Vec<u8>>().is_none() && got.bytes().is_empty());
    }
    assert_eq!((pair.a.in_flight(), pair.b.in_flight()), (0, 0));
}

/// Sends `from` to `b`, received in `into`; returns both buffers.
fn exchange<F: Buffer, I: BufferMut>(pair: &Pair, from: F, into: I) -> (F, I) {
    let (receive, send) = (pair.b.recv(into).unwrap(), pair.a.send(from, pair.to_b).unwrap());
    let (sent, got) = pair.both();
    let (mut sent, mut got) = (well(sent, send), well(got, receive));
    assert!(sent.bytes() == got.bytes() && !got.bytes().is_empty());
    (sent.take_buffer().unwrap(), got.take_buffer().unwrap())
}

#[test]
fn every_kind_of_buffer_sends_and_the_writable_ones_receive() {
    let pair = pair();
    let text: &'static [u8] = b"static";
    let (_, got) = exchange(&pair, text, vec![0; 6].into_boxed_slice());
    assert_eq!(&got[..], b"static");
    let shared: Arc<[u8]> = Arc::from(pattern(20_000));
    for _ in 0..2 {
        let into = pair.b.domain().alloc(20_000, Placement::default()).unwrap();
        let (_, got) = exchange(&pair, Arc::clone(&shared), into);
        assert_eq!(got[..], pattern(20_000));
    }
    let into = pair.b.domain().register(vec![0; 9]).unwrap();
    let (_, got) = exchange(&pair, pattern(9).into_boxed_slice(), into);
    assert_eq!(got.into_inner().unwrap(), pattern(9));
    for len in [10, 10_000, 1 << 20] {
        let mut library = pair.a.domain().alloc(len, Placement::default()).unwrap();
        library[..3].copy_from_slice(b"lib");
        let (library, got) = exchange(&pair, library, vec![1; len]);
        assert_eq!((&library[..4], &got[..4], got[len - 1]), (&b"lib\0"[..], &b"lib\0"[..], 0));
    }
    let registered = pair.a.domain().register(pattern(5)).unwrap();
    let (mut registered, _) = exchange(&pair, registered, vec![0; 10]);
    registered[0] = 99;
    assert_eq!(registered.into_inner().unwrap()[0], 99);
    let twice = pair.a.domain().register(pair.a.domain().register(pattern(50_000)).unwrap()).unwrap();
    let (twice, _) = exchange(&pair, twice, vec![0; 50_000]);
    assert_eq!(twice.into_inner().unwrap().into_inner().unwrap(), pattern(50_000));
}

#[test]
fn data_ranges_and_completion_levels() {
    let pair = pair();
    pair.b.recv(vec![0; 8]).unwrap();
    pair.a.send_with_data(b"data".to_vec(), 77, pair.to_b).unwrap();
    let (sent, got) = pair.both();
    assert_eq!((got.data, got.bytes(), sent.data), (Some(77), &b"data"[..], None));

    pair.b.recv_message(RecvMsg::new(vec![b'.'; 8]).range(2..)).unwrap();
    let flags = OpFlags::DELIVERY_COMPLETE;
    pair.a.send_message(SendMsg::new(pattern(100), pair.to_b).range(10..=14).data(1).flags(flags)).unwrap();
    let (sent, mut got) = pair.both();
    assert_eq!(
        (sent.bytes(), got.bytes(), got.data),
        (&pattern(100)[10..15], &pattern(100)[10..15], Some(1))
    );
    let whole = got.take_buffer::<Vec<u8>>().unwrap();
    assert_eq!((&whole[..2], &whole[7..]), (&b".."[..], &b"."[..]));
}

#[test]
fn injected_messages_borrow_and_complete_only_at_the_peer() {
    let pair = pair();
    let mut bytes = *b"one";
    pair.a.inject(&bytes, pair.to_b).unwrap();
    bytes = *b"two";
    pair.a.inject_with_data(&bytes, 5, pair.to_b).unwrap();
    for (text, data) in [(b"one", None), (b"two", Some(5))] {
        pair.b.recv(vec![0; 3]).unwrap();
        let got = pair.of_b();
        assert_eq!((got.bytes(), got.data), (&text[..], data));
    }
    let size = pair.a.info().tx_attr.inject_size;
    assert_eq!(pair.a.inject(&vec![0; size + 1], pair.to_b).unwrap_err(), Errno::EMSGSIZE);
    assert_eq!(pair.a.in_flight(), 0);
}

#[test]
fn a_directed_receive_takes_its_source_only() {
    let pair = pair();
    let c = Node::open(&hints()).unwrap();
    let (to_b, from_c) =
        (c.insert(&pair.b.name().unwrap()).unwrap(), pair.b.insert(&c.name().unwrap()).unwrap());
    let from_c = pair.b.recv_from(vec![0; 8], from_c).unwrap();
    pair.a.send(b"of a".to_vec(), pair.to_b).unwrap();
    assert!(pair.of_a().result.is_ok());
    let any = pair.b.recv(vec![0; 8]).unwrap();
    assert_eq!(well(pair.of_b(), any).bytes(), b"of a");
    c.send(b"of c".to_vec(), to_b).unwrap();
    let sent = super::support::next(&c, &pair.a);
    assert!(sent.result.is_ok());
    assert_eq!(well(pair.of_b(), from_c).bytes(), b"of c");

    let plain = pair_with(&hints().caps(Caps::MSG));
    let rejected = plain.a.recv_from(vec![1; 3], plain.to_b).unwrap_err();
    assert_eq!((rejected.error, rejected.buffer), (Errno::EOPNOTSUPP.into(), vec![1; 3]));
}

#[test]
fn a_rejected_call_gives_the_buffer_back() {
    let pair = pair();
    let bytes = pattern(10);
    let unknown = pair.a.send(bytes, ofi::FiAddr(12_345)).unwrap_err();
    assert_eq!(unknown.error.errno(), Errno::EINVAL);
    let range = pair.a.send_message(SendMsg::new(unknown.buffer, pair.to_b).range(..11)).unwrap_err();
    assert_eq!(range.error.errno(), Errno::EINVAL);
    let flags = pair.a.send_message(SendMsg::new(range.buffer, pair.to_b).flags(OpFlags::PEEK)).unwrap_err();
    assert_eq!((flags.error.errno(), &flags.buffer), (Errno::EBADFLAGS, &pattern(10)));
    let range = pair.a.recv_message(RecvMsg::new(flags.buffer).range(11..)).unwrap_err();
    assert_eq!((range.buffer, pair.a.in_flight()), (pattern(10), 0));
    let elsewhere = pair.b.domain().register(pattern(3)).unwrap();
    let domain = pair.a.send(elsewhere, pair.to_b).unwrap_err();
    assert_eq!((domain.error.errno(), &domain.buffer[..]), (Errno::EDOMAIN, &pattern(3)[..]));
    let limit = pair.a.option(ofi::EpOption::MaxMsgSize).unwrap();
    pair.a.set_option(ofi::EpOption::MaxMsgSize, 2).unwrap();
    assert_eq!(pair.a.send(vec![1; 3], pair.to_b).unwrap_err().error.errno(), Errno::EMSGSIZE);
    pair.a.set_option(ofi::EpOption::MaxMsgSize, limit).unwrap();
}

#[test]
fn a_full_endpoint_says_again_and_gives_the_buffer_back() {
    let pair = pair_with(&hints().rx_size(16).tx_size(16));
    let mut posted = 0;
    let again = loop {
        match pair.b.recv(vec![posted as u8; 4]) {
            Ok(_) => posted += 1,
            Err(rejected) => break rejected,
        }
        assert!(posted < 100_000);
    };
    assert!(again.is_again() && again.buffer == [posted as u8; 4]);
    assert_eq!(pair.b.in_flight(), posted);
    pair.a.send(b"room".to_vec(), pair.to_b).unwrap();
    assert!(pair.both().1.result.is_ok());
    assert!(pair.b.recv(again.buffer).is_ok());
}

#[test]
fn a_truncated_message_fails_with_its_buffer_and_what_fitted() {
    let pair = pair();
    for len in [10, 1_000_000] {
        let receive = pair.b.recv(vec![9; 4]).unwrap();
        pair.a.send(pattern(len), pair.to_b).unwrap();
        let (sent, mut got) = pair.both();
        assert!(sent.result.is_ok());
        assert_eq!((got.op, got.len), (Some(receive), 4));
        let error = got.result.clone().unwrap_err();
        assert_eq!((error.errno(), error.olen()), (Errno::ETRUNC, len - 4));
        assert!(error.to_string().starts_with("FI_ETRUNC"), "{error}");
        assert_eq!(ofi::Error::from(error), Errno::ETRUNC);
        assert_eq!(got.take_buffer::<Vec<u8>>().unwrap(), pattern(4));
        assert_eq!(got.into_result().unwrap_err(), Errno::ETRUNC);
    }
}

#[test]
fn the_source_is_none_for_strangers_and_addresses_can_be_looked_up() {
    let pair = pair();
    assert_eq!(pair.a.lookup(pair.to_b).unwrap(), pair.b.name().unwrap());
    assert_eq!(pair.b.reverse_lookup(&pair.a.name().unwrap()), Some(pair.to_a));
    pair.b.remove(pair.to_a).unwrap();
    assert_eq!(pair.b.remove(pair.to_a).unwrap_err(), Errno::EINVAL);
    pair.b.recv(vec![0; 4]).unwrap();
    pair.a.send(b"anon".to_vec(), pair.to_b).unwrap();
    assert_eq!(pair.both().1.into_result().unwrap().source, None);
    let picky = pair_with(&hints().caps(Caps::MSG | Caps::SOURCE_ERR));
    picky.b.remove(picky.to_a).unwrap();
    picky.b.recv(vec![0; 4]).unwrap();
    picky.a.send(b"anon".to_vec(), picky.to_b).unwrap();
    let unknown = picky.both().1;
    let error = unknown.result.clone().unwrap_err();
    assert_eq!((error.errno(), unknown.bytes()), (Errno::EADDRNOTAVAIL, &b"anon"[..]));
    assert_eq!(error.err_data(), picky.a.name().unwrap().bytes());
    let by_name =
        Node::builder().hints(hints()).name("fi_shm://safe-test-name".parse().unwrap()).open().unwrap();
    let to = pair.a.insert_service("fi_shm://safe-test-name", "").unwrap();
    assert_eq!(pair.a.lookup(to).unwrap(), by_name.name().unwrap());
    assert!(!pair.a.statistics().is_empty() && format!("{:?}", pair.a).contains("in_flight"));
}
