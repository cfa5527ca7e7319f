use std::time::Duration;

use ofi::{Address, Caps, CompletionFlags, Errno, FiAddr, FiOp, Group, Hints, Node};

use super::support::LONG;

fn hints() -> Hints {
    Hints::new().provider("shm").caps(Caps::MSG | Caps::COLLECTIVE)
}

/// Runs `work` on every rank of a group, each in a thread of its own.
fn together(ranks: usize, work: impl Fn(&Node, &Group) + Sync) {
    let nodes: Vec<Node> = (0..ranks).map(|_| Node::open(&hints()).unwrap()).collect();
    let names: Vec<Address> = nodes.iter().map(|node| node.name().unwrap()).collect();
    std::thread::scope(|scope| {
        for node in &nodes {
            scope.spawn(|| {
                let members: Vec<FiAddr> = names.iter().map(|name| node.insert(name).unwrap()).collect();
                let group = node.join(&members, LONG).unwrap();
                work(node, &group);
                node.barrier(&group).unwrap();
                let last = node.wait(LONG).unwrap().unwrap().into_result().unwrap();
                assert!(last.flags.contains(CompletionFlags::COLLECTIVE));
                assert_eq!(node.in_flight(), 0);
            });
        }
    });
}

#[test]
fn every_collective_gives_numbers() {
    together(3, |node, group| {
        let me = group.rank() as u32;
        let done = || node.wait(LONG).unwrap().unwrap().into_result().unwrap();
        let values = || done().values::<u32>().collect::<Vec<_>>();
        node.allreduce(group, FiOp::Max, &[me, 10 - me]).unwrap();
        assert_eq!(values(), [2, 10]);
        node.reduce(group, 1, FiOp::Sum, &[me, 1]).unwrap();
        assert_eq!(values(), if me == 1 { vec![3, 3] } else { vec![] });
        node.reduce_scatter(group, FiOp::Sum, &[1, 2, 3, 4, 5, me]).unwrap();
        assert_eq!(values(), [[3, 6], [9, 12], [15, 3]][me as usize]);
        node.allgather(group, &[me, me * 2]).unwrap();
        assert_eq!(values(), [0, 0, 1, 2, 2, 4]);
        node.gather(group, 2, &[me + 5]).unwrap();
        assert_eq!(values(), if me == 2 { vec![5, 6, 7] } else { vec![] });
        node.scatter(group, 0, 2, if me == 0 { &[1, 2, 3, 4, 5, 6] } else { &[] }).unwrap();
        assert_eq!(values(), [2 * me + 1, 2 * me + 2]);
        node.alltoall(group, &[me * 10, me * 10 + 1, me * 10 + 2]).unwrap();
        assert_eq!(values(), [me, 10 + me, 20 + me]);
        let buffer = if me == 0 { b"from the root".to_vec() } else { vec![0; 13] };
        node.broadcast(group, 0, buffer).unwrap();
        let mut received = done();
        assert_eq!(received.bytes(), b"from the root");
        assert_eq!(received.take_buffer::<Vec<u8>>().unwrap().len(), 13);
    });
}

#[test]
fn wrong_arguments_give_the_buffer_back() {
    together(2, |node, group| {
        assert_eq!(node.broadcast(group, 2, vec![7]).unwrap_err().buffer, [7]);
        assert_eq!(node.alltoall(group, &[1u8, 2, 3]).unwrap_err(), Errno::EINVAL);
        assert_eq!(node.allreduce(group, FiOp::Bor, &[1.0f32]).unwrap_err(), Errno::EOPNOTSUPP);
        assert_eq!(node.reduce(group, 9, FiOp::Sum, &[1u8]).unwrap_err(), Errno::EINVAL);
        for count in [usize::MAX / 16, usize::MAX] {
            assert_eq!(node.scatter(group, 0, count, &[1u64]).unwrap_err(), Errno::EMSGSIZE);
        }
        assert_eq!((group.ranks(), group.member(2)), (2, None));
    });
}

#[test]
fn a_join_without_the_others_ends_with_its_limit() {
    let (node, other) = (Node::open(&hints()).unwrap(), Node::open(&hints()).unwrap());
    let members = [&node, &other].map(|member| node.insert(&member.name().unwrap()).unwrap());
    let limit = Duration::from_millis(20);
    assert_eq!(node.join(&members, limit).unwrap_err(), Errno::ETIMEDOUT);
    assert_eq!(node.join(&members[1..], limit).unwrap_err(), Errno::EINVAL);
    let plain = Node::open(&Hints::new().provider("shm").caps(Caps::MSG)).unwrap();
    let own = plain.insert(&plain.name().unwrap()).unwrap();
    assert_eq!(plain.join(&[own], limit).unwrap_err(), Errno::EOPNOTSUPP);
}
