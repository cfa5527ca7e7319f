//! Futures of contexts of scalable endpoints, and of nodes that share contexts.

use std::sync::Arc;

use ofi::{AsyncNode, Domain, Node};

use super::support::{both, hints, park_on};

#[test]
fn contexts_of_one_endpoint_have_futures_of_their_own() {
    let nodes = Node::builder().hints(hints()).open_contexts_async(2).unwrap();
    let client = Node::builder().hints(hints()).rx_ctx_bits(1).open_async().unwrap();
    let to = client.insert(&nodes[0].name().unwrap()).unwrap();
    let back = nodes[0].insert(&client.name().unwrap()).unwrap();
    park_on(async {
        for index in [1, 0, 1] {
            let node = &nodes[index];
            let (question, answer) = (node.recv(vec![0; 8]), client.recv(vec![0; 8]));
            let sent = client.send(vec![index as u8; 5], client.rx_addr(to, index).unwrap());
            let (sent, question) = both(sent, question).await;
            assert_eq!(question.unwrap().bytes(), [index as u8; 5]);
            assert_eq!(sent.unwrap().len, 5);
            let (sent, answer) = both(node.send(vec![9], back), answer).await;
            assert_eq!((sent.unwrap().len, answer.unwrap().bytes()), (1, &[9][..]));
        }
    });
    assert!(nodes.iter().all(|node| node.in_flight() == 0));
}

#[test]
fn what_a_shared_context_receives_is_an_event_of_its_node() {
    let receives = Domain::open(&hints()).unwrap().shared_receive().unwrap();
    let open = || Arc::new(Node::builder().shared_receive(&receives).open_async().unwrap());
    let nodes = [open(), open()];
    let drivers: Vec<_> = nodes.iter().map(|node| node.drive_on_thread().unwrap()).collect();
    let sender = AsyncNode::open(&hints()).unwrap();
    let to = nodes.each_ref().map(|node| sender.insert(&node.name().unwrap()).unwrap());
    let back = nodes[0].insert(&sender.name().unwrap()).unwrap();
    park_on(async {
        for round in 0..20_u8 {
            let at = usize::from(round % 2);
            // Its number is the same as that of an unrelated operation of the node.
            let op = receives.recv(vec![0; 16]).unwrap();
            let (sent, event) = both(sender.send(vec![round; 7], to[at]), nodes[at].event()).await;
            let mut event = event.unwrap();
            assert_eq!((event.op, event.bytes(), event.source), (Some(op), &[round; 7][..], Some(back)));
            assert_eq!(event.take_buffer::<Vec<u8>>().map(|buffer| buffer.len()), Some(16));
            assert!(sent.is_ok());
            let (sent, answer) = both(nodes[at].send(vec![round], back), sender.recv(vec![0; 4])).await;
            assert_eq!((sent.unwrap().len, answer.unwrap().bytes()), (1, &[round][..]));
        }
    });
    drop(drivers);
    assert_eq!((receives.in_flight(), nodes[0].lost(), nodes[1].lost()), (0, 0, 0));
}
