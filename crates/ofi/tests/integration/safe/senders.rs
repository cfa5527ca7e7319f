//! Answers to senders that the server did not insert.

use ofi::{Caps, Completion, CompletionKind, Domain, Errno, Hints, MrAccess, MultiRecvBuffer, Node};

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
    for provider in ["shm", "udp", "tcp"] {
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

/// The message of an unknown sender does not fit: the receive fails, and the server can answer its sender.
#[test]
fn the_sender_of_a_message_that_is_too_long_is_inserted() {
    for provider in ["shm", "udp", "tcp"] {
        let hints = Hints::new().provider(provider);
        let (server, client) = (server(hints.clone(), 1), Node::open(&hints).unwrap());
        let to_server = client.insert(&server.name().unwrap()).unwrap();
        for len in [9, 100_000] {
            server.recv(vec![0; 4]).unwrap();
            client.send(vec![7; len], to_server).unwrap();
            let (_, failed) = both(&client, &server);
            let error = failed.result.clone().unwrap_err();
            assert_eq!((error.errno(), error.olen(), failed.len), (Errno::ETRUNC, len - 4, 4));
            let source = failed.source.expect("inserted");
            assert_eq!(server.lookup(source).unwrap(), client.name().unwrap());
            client.recv(vec![0; 8]).unwrap();
            server.inject(b"shorter!", source).unwrap();
            assert_eq!(next(&client, &server).into_result().unwrap().bytes(), b"shorter!");
            server.remove(source).unwrap(); // makes the sender unknown again
        }
    }
}

/// A message that does not fit into the rest of a multi-receive: its error releases the buffer, and has its
/// sender.
#[test]
fn the_sender_of_what_does_not_fit_a_multi_receive_is_inserted() {
    let (server, client) = (server(hints(), 1), Node::open(&hints()).unwrap());
    let to_server = client.insert(&server.name().unwrap()).unwrap();
    server.recv_multi(MultiRecvBuffer::new(vec![0; 1000])).unwrap();
    client.send(vec![1; 1001], to_server).unwrap();
    let (_, failed) = both(&client, &server);
    assert_eq!(failed.result.unwrap_err().errno(), Errno::ETRUNC);
    assert_eq!(server.lookup(failed.source.expect("inserted")).unwrap(), client.name().unwrap());
}

/// Lets `client` write with remote CQ data, and returns the server's completion.
fn written(server: &Node, client: &Node, data: u64) -> Completion {
    let to_server = client.insert(&server.name().unwrap()).unwrap();
    let window = server.domain().window(vec![0; 16], MrAccess::REMOTE_WRITE).unwrap();
    client.write_with_data(vec![data as u8; 16], data, to_server, window.remote()).unwrap();
    let (done, event) = both(client, server);
    done.into_result().unwrap();
    let mut there = [0; 16];
    window.read_into(0, &mut there).unwrap();
    assert_eq!(there, [data as u8; 16]);
    assert_eq!((event.kind(), event.data, event.len), (CompletionKind::PeerWrote, Some(data), 16));
    event
}

#[test]
fn who_writes_with_data_is_inserted() {
    for provider in ["shm", "udp", "tcp"] {
        let hints = Hints::new().provider(provider);
        let (server, client) = (server(hints.clone(), 1), Node::open(&hints).unwrap());
        for data in 1..=2 {
            let event = written(&server, &client, data).into_result().unwrap();
            let source = event.source.expect("inserted");
            assert_eq!(server.lookup(source).unwrap(), client.name().unwrap());
            client.recv(vec![0; 4]).unwrap();
            server.inject(b"seen", source).unwrap();
            assert_eq!(next(&client, &server).into_result().unwrap().bytes(), b"seen");
        }
        // Beyond the limit the data still arrives, with the address of its sender.
        let second = Node::open(&hints).unwrap();
        let event = written(&server, &second, 3);
        let error = event.result.unwrap_err();
        assert_eq!(error.errno(), Errno::EADDRNOTAVAIL);
        assert_eq!(error.err_data(), second.name().unwrap().bytes());
    }
}

#[test]
fn beyond_the_limit_a_message_that_is_too_long_says_its_address() {
    let (server, client) = (server(hints(), 0), Node::open(&hints()).unwrap());
    let to_server = client.insert(&server.name().unwrap()).unwrap();
    server.recv(vec![0; 4]).unwrap();
    client.send(vec![7; 9], to_server).unwrap();
    let (_, failed) = both(&client, &server);
    let error = failed.result.unwrap_err();
    assert_eq!((error.errno(), failed.source), (Errno::ETRUNC, None));
    assert_eq!(error.err_data(), client.name().unwrap().bytes());
}
