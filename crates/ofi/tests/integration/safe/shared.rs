//! Contexts shared by several nodes.

use std::time::Instant;

use ofi::threading::Level;
use ofi::{
    Caps, Completion, Domain, Errno, FiAddr, Hints, MultiRecvBuffer, Node, OpFlags, RecvMsg, SendMsg,
    SharedReceive, WaitObj,
};

use super::support::{LONG, hints};

/// Nodes that share receives, and a sender with the addresses of the nodes in its vector.
struct Group {
    receives: SharedReceive,
    nodes: Vec<Node>,
    sender: Node,
    to: Vec<FiAddr>,
}

fn group(count: usize, hints: &Hints) -> Group {
    let receives = Domain::open(hints).unwrap().shared_receive().unwrap();
    let nodes: Vec<Node> =
        (0..count).map(|_| Node::builder().shared_receive(&receives).open().unwrap()).collect();
    let sender = Node::open(hints).unwrap();
    let to = nodes.iter().map(|node| sender.insert(&node.name().unwrap()).unwrap()).collect();
    Group { receives, nodes, sender, to }
}

impl Group {
    /// The next completion of a node. Drives progress of all others, which must have none.
    fn next(&self, at: usize) -> Completion {
        let until = Instant::now() + LONG;
        loop {
            let mut found = None;
            for (index, node) in self.nodes.iter().enumerate() {
                match node.poll().unwrap() {
                    Some(done) if index == at => found = Some(done),
                    Some(done) => panic!("node {index} has {done:?}"),
                    None => {}
                }
            }
            let _ = self.sender.poll().unwrap();
            if let Some(found) = found {
                return found;
            }
            assert!(Instant::now() < until, "no completion");
        }
    }
}

#[test]
fn receives_take_what_any_node_is_sent() {
    let group = group(3, &hints());
    for len in [0, 100, 300_000] {
        let ops: Vec<_> = (0..3).map(|_| group.receives.recv(vec![0; len]).unwrap()).collect();
        assert_eq!(group.receives.in_flight(), 3);
        for (op, at) in ops.into_iter().zip([1, 2, 0]) {
            group.sender.send(vec![at as u8; len], group.to[at]).unwrap();
            let mut got = group.next(at);
            assert_eq!((got.op, got.len, got.bytes()), (Some(op), len, &vec![at as u8; len][..]));
            assert_eq!(got.take_buffer::<Vec<u8>>().unwrap().len(), len);
        }
        assert_eq!(group.receives.in_flight(), 0);
    }
}

#[test]
fn messages_wait_are_searched_and_claimed() {
    let group = group(2, &hints());
    group.sender.inject_tagged(b"one", group.to[1], 1).unwrap();
    group.sender.inject_tagged(b"two", group.to[0], 2).unwrap();
    let until = Instant::now() + LONG;
    // The second node reports the message when it is found; before it arrives, the first node reports that
    // there is none.
    let claim = loop {
        assert!(Instant::now() < until, "the message is not found");
        group.receives.peek_claim(1, 0).unwrap();
        let told = group.nodes.iter().enumerate().find_map(|(at, node)| Some((at, node.poll().unwrap()?)));
        match told {
            Some((1, done)) => break done.claim.expect("a claim"),
            Some((_, done)) => assert_eq!(done.result.unwrap_err(), Errno::ENOMSG),
            None => panic!("the result of a search, which is immediate"),
        }
    };
    group.receives.peek(1, 0).unwrap();
    assert_eq!(group.next(0).result.unwrap_err(), Errno::ENOMSG, "the claimed message is found again");
    group.receives.claim(claim, vec![0; 8]).unwrap();
    assert_eq!(group.next(1).bytes(), b"one");
    let source = group.nodes[0].insert(&group.sender.name().unwrap()).unwrap();
    group.receives.recv_message(RecvMsg::new(vec![0; 8]).tag(2, 0).source(source)).unwrap();
    let two = group.next(0);
    assert_eq!((two.bytes(), two.source), (&b"two"[..], Some(source)));
    assert_eq!(group.receives.in_flight(), 0);
}

/// Sends a message with delivery confirmation, and waits for its end without reading the receiving node's
/// queue.
fn place(group: &Group, bytes: Vec<u8>, at: usize, tag: Option<u64>) {
    let message = SendMsg::new(bytes, group.to[at]).flags(OpFlags::DELIVERY_COMPLETE);
    let message = match tag {
        Some(tag) => message.tag(tag),
        None => message,
    };
    let op = group.sender.send_message(message).unwrap();
    let until = Instant::now() + LONG;
    loop {
        assert!(Instant::now() < until, "the message does not arrive");
        // A search drives progress of all nodes. The first one reports it, as it finds nothing.
        group.receives.peek(u64::MAX, 0).unwrap();
        assert_eq!(group.nodes[0].poll().unwrap().unwrap().result.unwrap_err(), Errno::ENOMSG);
        if let Some(done) = group.sender.poll().unwrap() {
            assert!(done.result.is_ok(), "{:?}", done.result);
            // An earlier message may complete only now.
            if done.op == Some(op) {
                return;
            }
        }
    }
}

#[test]
fn a_multi_receive_takes_messages_of_all_nodes() {
    let group = group(2, &hints());
    let mut buffer = MultiRecvBuffer::new(vec![0; 20_000]);
    for round in 0..3_u8 {
        group.receives.recv_multi(buffer).unwrap();
        place(&group, vec![round + 1; 3000], 1, None);
        group.sender.send(vec![round + 3; 4000], group.to[0]).unwrap();
        // This message releases the buffer, and is read before the other node's message.
        let until = Instant::now() + LONG;
        let mut last = loop {
            assert!(Instant::now() < until, "the last message does not arrive");
            if let Some(done) = group.nodes[0].poll().unwrap() {
                break done;
            }
            let _ = group.sender.poll().unwrap();
        };
        assert_eq!(last.bytes(), [round + 3; 4000]);
        buffer = last.released.take().expect("the buffer, as less than the minimum is left");
        assert_eq!(group.receives.in_flight(), 0);
        drop(last);
        assert!(!buffer.is_unused(), "the other node has an unread message in the buffer");
        let refused = group.receives.recv_multi(buffer).unwrap_err();
        assert_eq!(refused.error.errno(), Errno::EBUSY);
        buffer = refused.buffer;
        assert_eq!(group.next(1).bytes(), [round + 1; 3000]);
        assert!(group.nodes[1].poll().unwrap().is_none());
        assert!(buffer.is_unused(), "all messages in the buffer are read");
    }
}

#[test]
fn a_node_that_closes_gives_up_its_part_of_a_multi_receive() {
    let mut group = group(2, &hints());
    let op = group.receives.recv_multi_tagged(MultiRecvBuffer::new(vec![0; 20_000]), 4, 3).unwrap();
    place(&group, vec![1; 10], 1, Some(4));
    group.receives.cancel(op).unwrap();
    let mut buffer = group.nodes[0].wait(LONG).unwrap().expect("the end of the receive").released.unwrap();
    assert!(!buffer.is_unused());
    drop(group.nodes.remove(1));
    assert!(buffer.is_unused());
    assert_eq!(buffer.into_inner::<Vec<u8>>().unwrap()[..10], [1; 10]);
}

#[test]
fn receives_and_searches_may_be_directed() {
    let group = group(2, &hints());
    let other = Node::open(&hints()).unwrap();
    let [here, there] =
        [&group.sender, &other].map(|node| group.nodes[0].insert(&node.name().unwrap()).unwrap());
    let to = other.insert(&group.nodes[1].name().unwrap()).unwrap();
    for (tag, text) in [(1, "first"), (1, "second"), (2, "third")] {
        group.sender.inject_tagged(text.as_bytes(), group.to[1], tag).unwrap();
    }
    let until = Instant::now() + LONG;
    let found = |search: &dyn Fn() -> ofi::Result<ofi::Op>| {
        search().unwrap();
        let told = group.nodes.iter().find_map(|node| node.poll().unwrap());
        told.expect("the result of a search, which is immediate")
    };
    let claim = loop {
        assert!(Instant::now() < until, "the messages are not found");
        let found = found(&|| group.receives.peek_claim_from(here, 1, 0));
        if let Some(claim) = found.claim {
            break claim;
        }
    };
    let receives = &group.receives;
    assert_eq!(found(&|| receives.peek_from(there, 1, 0)).result.unwrap_err(), Errno::ENOMSG);
    assert_eq!(found(&|| receives.peek_claim_from(there, 1, 0)).result.unwrap_err(), Errno::ENOMSG);
    assert_eq!(found(&|| receives.discard_from(there, 1, 0)).result.unwrap_err(), Errno::ENOMSG);
    receives.recv_tagged_from(vec![0; 8], there, 1, 0).unwrap();
    other.inject_tagged(b"theirs", to, 1).unwrap();
    assert_eq!(group.next(1).bytes(), b"theirs", "messages of another sender came first");
    receives.claim(claim, vec![0; 8]).unwrap();
    assert_eq!(group.next(1).bytes(), b"first");
    // The messages arrive in order: later ones may still be in flight.
    while found(&|| receives.peek_from(here, 2, 0)).result.is_err() {
        assert!(Instant::now() < until, "the last message is not found");
    }
    assert_eq!(found(&|| receives.discard_from(here, 1, 0)).len, 6);
    assert_eq!(found(&|| receives.peek_from(here, 1, 0)).result.unwrap_err(), Errno::ENOMSG);
    receives.recv_from(vec![0; 8], there).unwrap();
    group.sender.inject(b"not this", group.to[0]).unwrap();
    other.inject(b"this", to).unwrap();
    assert_eq!(group.next(1).bytes(), b"this");
}

#[test]
fn a_cancelled_receive_comes_back_by_the_first_node() {
    let group = group(2, &hints());
    let op = group.receives.recv(vec![9; 4]).unwrap();
    assert_eq!(
        group.nodes[0].cancel(op).unwrap_err(),
        Errno::ENOENT,
        "the receive belongs to the shared context"
    );
    group.receives.cancel(op).unwrap();
    let mut done = group.next(0);
    assert_eq!(done.result.as_ref().unwrap_err(), &Errno::ECANCELED);
    assert_eq!(done.take_buffer(), Some(vec![9_u8; 4]));
    assert_eq!(group.receives.cancel(op).unwrap_err(), Errno::ENOENT);
    // A node of a shared context has no receives of its own, and returns the buffer.
    let refused = group.nodes[1].recv(vec![8; 4]).unwrap_err();
    assert_eq!((refused.error.errno(), refused.buffer), (Errno::EOPNOTSUPP, vec![8; 4]));
}

#[test]
fn a_node_that_closes_leaves_the_receives_to_the_others() {
    let mut group = group(2, &hints());
    group.receives.recv(vec![0; 8]).unwrap();
    group.receives.recv(vec![0; 8]).unwrap();
    // One message is received and not read: it goes with the node.
    place(&group, b"unread".to_vec(), 1, None);
    drop(group.nodes.remove(1));
    assert_eq!(group.receives.in_flight(), 1);
    group.sender.inject(b"read", group.to[0]).unwrap();
    assert_eq!(group.next(0).bytes(), b"read");
    let receives = group.receives.close().expect_err("a node is open");
    receives.recv(vec![5; 5]).unwrap();
    drop(group.nodes);
    let mut back = receives.close().unwrap();
    assert_eq!(back.pop().and_then(|buffer| buffer.downcast().ok()), Some(vec![5_u8; 5]));
}

#[test]
fn the_context_outlives_its_handle_while_it_has_nodes() {
    let Group { receives, nodes, sender, to } = group(1, &hints());
    receives.recv(vec![0; 8]).unwrap();
    drop(receives);
    sender.inject(b"here", to[0]).unwrap();
    let done = nodes[0].wait(LONG).unwrap().expect("a message").into_result().unwrap();
    assert_eq!(done.bytes(), b"here");
}

/// Each node runs on its own thread; one thread posts receives for all.
fn fed<L: Level + Send>(receives: &SharedReceive<L>, nodes: Vec<Node<L>>, sender: &Node) {
    const EACH: usize = 500;
    let to: Vec<_> = nodes.iter().map(|node| sender.insert(&node.name().unwrap()).unwrap()).collect();
    let count = nodes.len();
    std::thread::scope(|scope| {
        for (at, node) in nodes.into_iter().enumerate() {
            scope.spawn(move || {
                for _ in 0..EACH {
                    let got = node.wait(LONG).unwrap().expect("a message").into_result().unwrap();
                    assert_eq!(got.bytes(), [at as u8; 32]);
                }
            });
        }
        for number in 0..EACH * count {
            let mut buffer = vec![0; 32];
            while let Err(refused) = receives.recv(buffer) {
                assert!(refused.is_again(), "{refused}");
                buffer = refused.buffer;
            }
            let at = number % count;
            while let Err(error) = sender.inject(&[at as u8; 32], to[at]) {
                assert!(error.is_again(), "{error}");
                let _ = sender.poll();
            }
        }
    });
    assert_eq!(receives.in_flight(), 0);
}

#[test]
fn one_thread_posts_for_nodes_that_others_read() {
    let Group { receives, nodes, sender, .. } = group(3, &hints());
    fed(&receives, nodes, &sender);
    // Nodes that sleep, and nodes without locks.
    let open = || Node::builder().shared_receive(&receives).wait_obj(WaitObj::Unspec).open().unwrap();
    fed(&receives, (0..3).map(|_| open()).collect(), &sender);
    let hints = Hints::new().provider("shm").caps(Caps::MSG);
    let receives = Domain::open_exclusive(&hints).unwrap().shared_receive().unwrap();
    let open = || receives.domain().node().shared_receive(&receives).open().unwrap();
    fed(&receives, (0..3).map(|_| open()).collect(), &sender);
}

#[test]
fn nodes_share_the_room_of_a_transmit_context() {
    const SIZE: usize = 4;
    let domain = Domain::open(&hints().tx_size(SIZE)).unwrap();
    let room = domain.shared_transmit().unwrap();
    let open = || Node::builder().shared_transmit(&room).open().unwrap();
    let (red, blue, receiver) = (open(), open(), Node::open(&hints()).unwrap());
    let [from_red, from_blue] = [&red, &blue].map(|node| node.insert(&receiver.name().unwrap()).unwrap());
    // Long messages without receives; a node's first message may have to wait for the connection.
    let fill = |node: &Node, to, most| {
        let until = Instant::now() + LONG;
        let mut sent = 0;
        while sent < most {
            sent += usize::from(node.send(vec![1; 300_000], to).is_ok());
            let _ = (node.poll_many(&mut Vec::new(), 0), receiver.poll_many(&mut Vec::new(), 0));
            assert!(Instant::now() < until, "room for {sent} of {most}");
        }
    };
    fill(&red, from_red, SIZE);
    for node in [&red, &blue] {
        let to = if std::ptr::eq(node, &red) { from_red } else { from_blue };
        for _ in 0..100 {
            assert!(node.send(vec![1; 300_000], to).unwrap_err().is_again());
        }
    }
    for _ in 0..SIZE {
        receiver.recv(vec![0; 300_000]).unwrap();
    }
    let (until, mut ended) = (Instant::now() + LONG, 0);
    while ended < SIZE {
        ended += usize::from(red.poll().unwrap().is_some_and(|done| done.result.is_ok()));
        let _ = receiver.poll().unwrap();
        assert!(Instant::now() < until, "{ended} have ended");
    }
    fill(&blue, from_blue, 1); // any node can use the room again
    assert_eq!(room.domain().info().tx_attr.size, SIZE);
}

#[test]
fn contexts_of_another_domain_and_of_scalable_endpoints_are_refused() {
    let (one, other) = (Domain::open(&hints()).unwrap(), Domain::open(&hints()).unwrap());
    let (receives, room) = (one.shared_receive().unwrap(), one.shared_transmit().unwrap());
    assert_eq!(other.node().shared_receive(&receives).open().unwrap_err(), Errno::EDOMAIN);
    assert_eq!(other.node().shared_transmit(&room).open().unwrap_err(), Errno::EDOMAIN);
    assert_eq!(one.node().shared_receive(&receives).open_contexts(2).unwrap_err(), Errno::EINVAL);
    assert_eq!(receives.peek(1, 0).unwrap_err(), Errno::EOPBADSTATE, "no node to report a result");
    assert!(one.node().shared_receive(&receives).shared_transmit(&room).open().is_ok());
}
