use ofi::{Completion, Errno, Node, Op, RecvMsg, SendMsg};

use super::support::{Pair, hints, next, pair, pattern, until, well};

/// Sends a tagged message and waits until it is an unexpected message at `b`.
fn unexpected(pair: &Pair, tag: u64, bytes: &[u8]) {
    let held = |node: &Node| {
        let all = node.statistics();
        all.iter().find(|count| count.name == "rx_unexpected_now").unwrap().value
    };
    let before = held(&pair.b);
    pair.a.inject_tagged(bytes, pair.to_b, tag).unwrap();
    until(pair, || held(&pair.b) > before);
}

fn search(pair: &Pair, op: Op) -> Completion {
    let found = pair.of_b();
    assert_eq!(found.op, Some(op));
    found
}

#[test]
fn tags_choose_the_receive() {
    let pair = pair();
    let odd = pair.b.recv_tagged(vec![0; 16], 1, !1).unwrap();
    let four = pair.b.recv_tagged(vec![0; 16], 4, 0).unwrap();
    let send = pair.a.send_tagged(b"four".to_vec(), pair.to_b, 4).unwrap();
    let (sent, got) = pair.both();
    let (sent, got) = (well(sent, send), well(got, four));
    assert_eq!((got.tag, got.bytes(), sent.tag), (Some(4), &b"four"[..], None));
    pair.a.send_tagged_with_data(b"seven".to_vec(), 70, pair.to_b, 7).unwrap();
    let (_, got) = pair.both();
    let got = well(got, odd);
    assert_eq!((got.tag, got.data, got.bytes()), (Some(7), Some(70), &b"seven"[..]));
    pair.b.recv_message(RecvMsg::new(vec![0; 16]).tag(5, 0).source(pair.to_a)).unwrap();
    pair.a.send_message(SendMsg::new(b"five".to_vec(), pair.to_b).tag(5)).unwrap();
    assert_eq!(pair.both().1.bytes(), b"five");
    pair.b.recv_tagged_from(vec![0; 16], pair.to_a, 6, 0).unwrap();
    pair.a.inject_tagged_with_data(b"six", 60, pair.to_b, 6).unwrap();
    assert_eq!(pair.of_b().data, Some(60));
}

#[test]
fn peeking_finds_a_message_and_leaves_it() {
    let pair = pair();
    let nothing = pair.b.peek(3, 0).unwrap();
    let found = search(&pair, nothing);
    assert_eq!((found.result.unwrap_err().errno(), pair.b.in_flight()), (Errno::ENOMSG, 0));
    unexpected(&pair, 3, b"three");
    for _ in 0..2 {
        let op = pair.b.peek_from(pair.to_a, 3, 0).unwrap();
        let found = search(&pair, op).into_result().unwrap();
        assert_eq!((found.len, found.tag, found.source), (5, Some(3), Some(pair.to_a)));
        assert!(found.buffer.is_none() && found.claim.is_none() && found.bytes().is_empty());
    }
    let receive = pair.b.recv_tagged(vec![0; 5], 3, 0).unwrap();
    assert_eq!(well(pair.of_b(), receive).bytes(), b"three");
}

#[test]
fn a_claimed_message_is_received_by_its_claim_only() {
    let pair = pair();
    for bytes in [&b"first"[..], b"second"] {
        unexpected(&pair, 3, bytes);
    }
    let op = pair.b.peek_claim(3, 0).unwrap();
    let claim = search(&pair, op).into_result().unwrap().claim.unwrap();
    let receive = pair.b.recv_tagged(vec![0; 8], 3, 0).unwrap();
    assert_eq!(well(pair.of_b(), receive).bytes(), b"second");

    let elsewhere = pair.a.claim(claim, vec![0; 8]).unwrap_err();
    assert_eq!(elsewhere.error.errno(), Errno::EINVAL);
    let (claim, buffer) = elsewhere.buffer;
    let receive = pair.b.claim(claim, buffer).unwrap();
    assert_eq!(receive, op);
    assert_eq!(well(pair.of_b(), receive).bytes(), b"first");
    assert_eq!(pair.b.in_flight(), 0);
}

#[test]
fn messages_are_discarded_with_and_without_claim() {
    let pair = pair();
    for bytes in [&b"one"[..], b"two", b"three"] {
        unexpected(&pair, 3, bytes);
    }
    let op = pair.b.peek_claim(3, 0).unwrap();
    let claim = search(&pair, op).claim.unwrap();
    let op = pair.b.discard(3, 0).unwrap();
    assert_eq!(search(&pair, op).into_result().unwrap().len, 3);
    let rejected = pair.a.discard_claimed(claim).unwrap_err();
    assert_eq!(rejected.error.errno(), Errno::EINVAL);
    let op = pair.b.discard_claimed(rejected.buffer).unwrap();
    assert!(search(&pair, op).result.is_ok());
    pair.b.recv_tagged(vec![0; 8], 3, 0).unwrap();
    assert_eq!(pair.of_b().bytes(), b"three");
    assert_eq!(pair.b.in_flight(), 0);
}

#[test]
fn a_claim_outlives_a_full_endpoint() {
    let small = hints().rx_size(1);
    let (a, b) = (Node::open(&hints()).unwrap(), Node::open(&small).unwrap());
    let pair = Pair {
        to_b: a.insert(&b.name().unwrap()).unwrap(),
        to_a: b.insert(&a.name().unwrap()).unwrap(),
        a,
        b,
    };
    unexpected(&pair, 1, &pattern(20));
    let op = pair.b.peek_claim(1, 0).unwrap();
    let claim = search(&pair, op).claim.unwrap();
    let mut others = Vec::new();
    while let Ok(op) = pair.b.recv_tagged(vec![0; 4], 9, 0) {
        others.push(op);
    }
    let full = pair.b.claim(claim, vec![0; 20]).unwrap_err();
    assert!(full.is_again());
    let (claim, buffer) = full.buffer;
    for op in others {
        pair.b.cancel(op).unwrap();
        assert_eq!(pair.of_b().result.unwrap_err().errno(), Errno::ECANCELED);
    }
    let op = pair.b.claim(claim, buffer).unwrap();
    let got = next(&pair.b, &pair.a);
    assert_eq!(well(got, op).bytes(), pattern(20));
}
