//! Answers to senders that nobody inserted.

use ofi::{Caps, Domain, Errno, Hints, MultiRecvBuffer, Node};

use super::support::{both, hints, next};

fn server(hints: Hints, limit: usize) -> Node {
    Node::builder().hints(hints).insert_senders(limit).open().unwrap()
}

fn is_answered(server: &Node, client: &Node) {
    let to_server = client.insert(&server.name().unwrap()).unwrap();
    for round in 0..3_u8 {
        server.recv(vec![0; 8]).unwrap();
        client.send(vec![round; 3], to_server).unwrap();
        let (_, question) = both(client, server);
        let question = question.into_result().unwrap();
        assert_eq!(question.bytes(), [round; 3]);
        let source = question.source.expect("inserted");
        assert_eq!(server.lookup(source).unwrap(), client.name().unwrap());
        client.recv(vec![0; 8]).unwrap();
        server.send(vec![round; 5], source).unwrap();
        let (answer, _) = both(client, server);
        assert_eq!(answer.into_result().unwrap().bytes(), [round; 5]);
    }
}

#[test]
fn strangers_are_answered_over_each_provider() {
    for provider in ["shm", "udp"] {
        let hints = Hints::new().provider(provider);
        is_answered(&server(hints.clone(), 9), &Node::open(&hints).unwrap());
        let few = hints.caps(Caps::MSG);
        is_answered(&server(few.clone(), 9), &Node::open(&few).unwrap());
    }
}

#[test]
fn messages_that_arrived_together_have_one_source() {
    let (server, client) = (server(hints(), 1), Node::open(&hints()).unwrap());
    let to_server = client.insert(&server.name().unwrap()).unwrap();
    for tag in 1..=3 {
        server.recv_tagged(vec![0; 8], tag, 0).unwrap();
        client.inject_tagged(b"tagged", to_server, tag).unwrap();
    }
    let all: Vec<_> = (0..3).map(|_| next(&server, &client).into_result().unwrap()).collect();
    assert!(all.iter().all(|done| done.source.is_some() && done.source == all[0].source));
    assert_eq!(all.iter().map(|done| done.tag).collect::<Vec<_>>(), [Some(1), Some(2), Some(3)]);
}

#[test]
fn a_multi_receive_goes_on_with_the_message_of_a_stranger() {
    let (server, client) = (server(hints(), 1), Node::open(&hints()).unwrap());
    let to_server = client.insert(&server.name().unwrap()).unwrap();
    server.recv_multi(MultiRecvBuffer::new(vec![0; 20_000])).unwrap();
    for text in [&b"first"[..], b"second"] {
        client.inject(text, to_server).unwrap();
        let done = next(&server, &client).into_result().unwrap();
        assert_eq!((done.bytes(), done.source.is_some()), (text, true));
    }
}

#[test]
fn beyond_the_limit_a_message_says_its_address_and_removing_makes_room() {
    let server = server(hints(), 1);
    let clients = [(); 2].map(|()| Node::open(&hints()).unwrap());
    let ask = |client: &Node| {
        let to_server = client.insert(&server.name().unwrap()).unwrap();
        server.recv(vec![0; 8]).unwrap();
        client.inject(b"ask", to_server).unwrap();
        next(&server, client)
    };
    let first = ask(&clients[0]).into_result().unwrap().source.expect("inserted");
    let over = ask(&clients[1]);
    let error = over.result.clone().unwrap_err();
    assert_eq!((error.errno(), over.bytes()), (Errno::EADDRNOTAVAIL, &b"ask"[..]));
    assert_eq!(error.err_data(), clients[1].name().unwrap().bytes());
    server.remove(first).unwrap();
    let second = ask(&clients[1]).into_result().unwrap().source.expect("room");
    assert_eq!(server.lookup(second).unwrap(), clients[1].name().unwrap());
}

#[test]
fn receives_of_a_shared_context_know_strangers_too() {
    let domain = Domain::open(&hints().caps(Caps::MSG | Caps::SOURCE_ERR)).unwrap();
    let receives = domain.shared_receive().unwrap();
    let server = domain.node().shared_receive(&receives).insert_senders(1).open().unwrap();
    let client = Node::open(&hints()).unwrap();
    let to_server = client.insert(&server.name().unwrap()).unwrap();
    receives.recv(vec![0; 8]).unwrap();
    client.inject(b"shared", to_server).unwrap();
    let done = next(&server, &client).into_result().unwrap();
    assert_eq!((done.bytes(), done.source.is_some()), (&b"shared"[..], true));
}

#[test]
fn a_domain_without_the_addresses_of_strangers_is_told() {
    let domain = Domain::open(&hints()).unwrap();
    let error = domain.node().insert_senders(1).open().unwrap_err();
    assert_eq!(error, Errno::EINVAL);
    assert!(error.to_string().contains("FI_SOURCE_ERR"), "{error}");
    let domain = Domain::open(&hints().caps(Caps::MSG | Caps::SOURCE_ERR)).unwrap();
    is_answered(&domain.node().insert_senders(1).open().unwrap(), &Node::open(&hints()).unwrap());
}
