use ofi::{AtomicKind, Caps, CompletionFlags, Errno, FiOp, Hints, MrAccess, Node};

use super::support::LONG;

const BOTH: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);

/// A node, and another with automatic progress, whose memory it changes.
fn nodes() -> (Node, Node) {
    let hints = Hints::new().provider("shm").caps(Caps::MSG | Caps::RMA | Caps::ATOMIC);
    let served = hints.clone().progress(ofi::Progress::Auto);
    (Node::open(&hints).unwrap(), Node::open(&served).unwrap())
}

#[test]
fn numbers_of_windows_are_changed_and_fetched() {
    let (a, b) = nodes();
    let peer = a.insert(&b.name().unwrap()).unwrap();
    let done = || a.wait(LONG).unwrap().unwrap().into_result().unwrap();
    let application = b.domain().window(vec![0; 64], BOTH).unwrap();
    let library = b.domain().alloc_window(64, BOTH).unwrap();
    for window in [application.remote(), library.remote()] {
        let place = |at: u64| window.slice(at..at + 8).unwrap();
        a.fetch_add(5u64, peer, place(8)).unwrap();
        assert_eq!(done().value(), Some(0u64));
        a.fetch_add(-2i64, peer, place(8)).unwrap();
        let fetched = done();
        assert_eq!((fetched.value(), fetched.values::<i64>().count()), (Some(5i64), 1));
        assert!(fetched.flags.contains(CompletionFlags::ATOMIC | CompletionFlags::READ));
        a.compare_swap(3u64, 100, peer, place(8)).unwrap();
        assert_eq!(done().value(), Some(3u64));
        a.compare_swap(3u64, 200, peer, place(8)).unwrap();
        assert_eq!(done().value(), Some(100u64), "the compare failed");
        a.inject_atomic(FiOp::Max, &[7.5f32, -1.0], peer, place(16)).unwrap();
        let both = a.atomic(FiOp::Sum, &[0.25f32, 1.0], peer, place(16)).unwrap();
        let changed = done();
        assert!(changed.op == Some(both) && changed.buffer.is_none());
        a.fetch_atomic::<f32, _>(FiOp::AtomicRead, &[], [0u8; 8].to_vec(), peer, place(16)).unwrap();
        assert_eq!(done().values::<f32>().collect::<Vec<_>>(), [7.75, 1.0]);
        let mask = [0xFFu64 << 8];
        a.compare_atomic(FiOp::Mswap, &[0x1234u64], &mask, vec![0; 8], peer, place(24)).unwrap();
        done();
    }
    assert_eq!((application.load_u64(8).unwrap(), library.load_u64(8).unwrap()), (100, 100));
    assert_eq!((application.load_u64(24).unwrap(), library.load_u64(24).unwrap()), (0x1200, 0x1200));
}

#[test]
fn what_does_not_fit_is_refused_with_the_buffer() {
    let (a, b) = nodes();
    let peer = a.insert(&b.name().unwrap()).unwrap();
    let window = b.domain().alloc_window(1 << 16, BOTH).unwrap();
    let count = a.atomic_valid::<u64>(AtomicKind::Fetch, FiOp::Sum).unwrap();
    let remote = |bytes: usize| window.remote().slice(..bytes as u64).unwrap();
    let too_many = vec![1u64; count + 1];
    let all = 8 * (count + 1);
    let rejected = a.fetch_atomic(FiOp::Sum, &too_many, vec![3; all], peer, remote(all)).unwrap_err();
    assert_eq!((rejected.error.errno(), rejected.buffer), (Errno::EMSGSIZE, vec![3; all]));
    let rejected = a.fetch_atomic(FiOp::Sum, &[1u64, 2], vec![0; 8], peer, remote(16)).unwrap_err();
    assert_eq!(rejected.error.errno(), Errno::EINVAL);
    let rejected = a.fetch_atomic(FiOp::Bor, &[1.0f64], vec![0; 8], peer, remote(8)).unwrap_err();
    assert_eq!(rejected.error.errno(), Errno::EOPNOTSUPP);
    assert!(a.atomic_valid::<f64>(AtomicKind::Base, FiOp::Bor).is_err());
    assert_eq!(a.in_flight(), 0);
}
