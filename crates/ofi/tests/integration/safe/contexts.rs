//! Scalable endpoints: several nodes under one address.

use std::time::{Duration, Instant};

use ofi::threading::Level;
use ofi::{Caps, Errno, FiAddr, FiOp, Hints, MrAccess, Node};

use super::support::{LONG, hints};

const BITS: u32 = 2;

/// The contexts of one endpoint, and a client that addresses them.
fn service(count: usize, hints: &Hints) -> (Vec<Node>, Node, FiAddr) {
    let nodes = Node::builder().hints(hints.clone()).open_contexts(count).unwrap();
    let client = Node::builder().hints(hints.clone()).rx_ctx_bits(BITS).open().unwrap();
    let to = client.insert(&nodes[0].name().unwrap()).unwrap();
    (nodes, client, to)
}

/// The next completion of the first node. Drives progress of the others.
fn next<L: Level>(nodes: &[&Node<L>]) -> ofi::Completion {
    let until = Instant::now() + LONG;
    loop {
        if let Some(done) = nodes[0].poll().unwrap() {
            return done;
        }
        nodes[1..].iter().for_each(|node| assert_eq!(node.poll_many(&mut Vec::new(), 0), Ok(0)));
        assert!(Instant::now() < until, "no completion");
    }
}

#[test]
fn each_context_is_a_node_of_its_own_at_one_address() {
    let (nodes, client, to) = service(3, &hints());
    assert_eq!(nodes.len(), 3);
    let name = nodes[0].name().unwrap();
    assert!(nodes.iter().all(|node| node.name().unwrap() == name));
    let back = nodes[2].insert(&client.name().unwrap()).unwrap();
    assert_eq!(nodes[0].reverse_lookup(&client.name().unwrap()), Some(back), "the contexts share a vector");
    for (index, node) in nodes.iter().enumerate() {
        let text = format!("for context {index}").into_bytes();
        node.recv(vec![0; 64]).unwrap();
        client.send(text.clone(), client.rx_addr(to, index).unwrap()).unwrap();
        let got = next(&[node, &client]);
        assert_eq!((got.bytes(), got.source), (&text[..], Some(back)));
        assert!(next(&[&client, node]).result.is_ok());
        // The answer comes from its own transmit context, with the endpoint's address.
        client.recv_tagged(vec![0; 64], index as u64, 0).unwrap();
        let sent = node.send_tagged(text.clone(), back, index as u64).unwrap();
        let answer = next(&[&client, node]);
        assert_eq!((answer.bytes(), answer.source), (&text[..], Some(to)));
        assert_eq!(next(&[node, &client]).op, Some(sent));
        assert_eq!(node.in_flight(), 0);
    }
}

#[test]
fn a_context_has_remote_memory_and_atomics() {
    let (nodes, client, _) = service(2, &hints());
    let rights = MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE;
    let window = client.domain().alloc_window(4096, rights).unwrap();
    let to_client = nodes[1].insert(&client.name().unwrap()).unwrap();
    let remote = window.remote();
    nodes[1].write(vec![7; 100], to_client, remote.slice(0..100).unwrap()).unwrap();
    assert!(next(&[&nodes[1], &client]).result.is_ok());
    nodes[0].read(vec![0; 100], to_client, remote.slice(0..100).unwrap()).unwrap();
    assert_eq!(next(&[&nodes[0], &client]).bytes(), [7; 100]);
    let counter = remote.slice(200..208).unwrap();
    nodes[0].fetch_atomic(FiOp::Sum, &[5_u64], vec![0; 8], to_client, counter).unwrap();
    assert_eq!(next(&[&nodes[0], &client]).value::<u64>(), Some(0));
}

#[test]
fn receives_are_cancelled_searched_and_packed_in_a_context() {
    let (nodes, client, to) = service(2, &hints());
    let node = &nodes[1];
    let op = node.recv(vec![3; 10]).unwrap();
    assert_eq!(nodes[0].cancel(op).unwrap_err(), Errno::ENOENT, "another node's");
    node.cancel(op).unwrap();
    let mut cancelled = next(&[node]);
    assert_eq!(cancelled.result.as_ref().unwrap_err(), &Errno::ECANCELED);
    assert_eq!(cancelled.take_buffer(), Some(vec![3_u8; 10]));
    client.inject_tagged(b"found", client.rx_addr(to, 1).unwrap(), 9).unwrap();
    let until = Instant::now() + LONG;
    let claim = loop {
        node.peek_claim(9, 0).unwrap();
        match next(&[node, &client]).claim {
            Some(claim) => break claim,
            None => assert!(Instant::now() < until, "the message is not found"),
        }
    };
    node.claim(claim, vec![0; 10]).unwrap();
    assert_eq!(next(&[node]).bytes(), b"found");
    assert_eq!(node.in_flight(), 0);
}

#[test]
fn an_index_without_room_in_an_address_is_refused() {
    let (_nodes, client, to) = service(2, &hints());
    assert_eq!(client.rx_addr(to, 1 << BITS).unwrap_err(), Errno::EINVAL);
    let plain = Node::open(&hints()).unwrap();
    assert_eq!(plain.rx_addr(to, 0), Ok(to));
    assert_eq!(plain.rx_addr(to, 1).unwrap_err(), Errno::EINVAL);
    assert!(Node::builder().hints(hints()).open_contexts(100_000).is_err());
    assert!(Node::builder().hints(hints()).open_contexts(0).is_err());
}

#[test]
fn contexts_in_a_domain_that_is_there_are_closed_one_by_one() {
    let domain = ofi::Domain::open(&hints()).unwrap();
    let mut nodes = domain.node().open_contexts(2).unwrap();
    let client = domain.node().rx_ctx_bits(1).open().unwrap();
    let to = client.insert(&nodes[0].name().unwrap()).unwrap();
    nodes[0].recv(vec![1; 8]).unwrap();
    let given = nodes.remove(0).close();
    assert_eq!(given.len(), 1, "the buffer of its receive");
    nodes[0].recv(vec![0; 8]).unwrap();
    client.inject(b"still", client.rx_addr(to, 1).unwrap()).unwrap();
    assert_eq!(next(&[&nodes[0], &client]).bytes(), b"still");
}

/// Each context runs on its own thread, and has no lock; the library locks the state that they share.
fn threads<L: Level + Send>(nodes: Vec<Node<L>>, client: &Node, to: FiAddr) {
    const EACH: u64 = 500;
    let count = nodes.len();
    std::thread::scope(|scope| {
        for node in nodes {
            let client = client.name().unwrap();
            scope.spawn(move || {
                let back = node.insert(&client).unwrap();
                for _ in 0..EACH {
                    node.recv(vec![0; 8]).unwrap();
                    let question = node.wait(LONG).unwrap().expect("a question").into_result().unwrap();
                    node.send_tagged(question.bytes().to_vec(), back, question.data.unwrap_or(0)).unwrap();
                    assert!(node.wait(LONG).unwrap().expect("sent").result.is_ok());
                }
            });
        }
        for number in 0..EACH * count as u64 {
            let index = number as usize % count;
            client.recv_tagged(vec![0; 8], index as u64, 0).unwrap();
            let bytes = number.to_le_bytes();
            while let Err(error) =
                client.inject_with_data(&bytes, index as u64, client.rx_addr(to, index).unwrap())
            {
                assert!(error.is_again(), "{error}");
                let _ = client.poll_many(&mut Vec::new(), 0);
            }
            let answer = client.wait(LONG).unwrap().expect("an answer").into_result().unwrap();
            assert_eq!(answer.bytes(), bytes);
        }
    });
}

#[test]
fn threads_have_a_context_each() {
    let (nodes, client, to) = service(3, &hints());
    threads(nodes, &client, to);
    let hints =
        Hints::new().provider("shm").caps(Caps::MSG | Caps::TAGGED | Caps::NAMED_RX_CTX | Caps::SOURCE);
    let nodes = Node::builder_exclusive().hints(hints).open_contexts(3).unwrap();
    let to = client.insert(&nodes[0].name().unwrap()).unwrap();
    threads(nodes, &client, to);
}

#[test]
fn a_context_sleeps_until_its_message_comes() {
    let builder = Node::builder().hints(hints()).wait_obj(ofi::WaitObj::Unspec);
    let nodes = builder.open_contexts(2).unwrap();
    let client = Node::builder().hints(hints()).rx_ctx_bits(BITS).open().unwrap();
    let to = client.insert(&nodes[0].name().unwrap()).unwrap();
    nodes[1].recv(vec![0; 8]).unwrap();
    assert!(nodes[0].wait(Duration::from_millis(5)).unwrap().is_none());
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| nodes[1].wait(LONG).unwrap().expect("a message").into_result().unwrap());
        std::thread::sleep(Duration::from_millis(20));
        client.inject(b"wake up", client.rx_addr(to, 1).unwrap()).unwrap();
        assert_eq!(sleeper.join().unwrap().bytes(), b"wake up");
    });
}
