use ofi::{CompletionFlags, Errno, MrAccess, OpFlags, Placement, RemoteWindow, RmaMsg};

use super::support::{Pair, pair, pattern, well};

const BOTH: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);

/// Writes and reads of `a` to a window of `b`; `see` returns its bytes.
fn write_and_read(pair: &Pair, remote: RemoteWindow, see: impl Fn(usize) -> Vec<u8>) {
    for len in [0, 1, 8, 5000, 1 << 20] {
        let part = remote.slice(..len as u64).unwrap();
        let op = pair.a.write(pattern(len), pair.to_b, part).unwrap();
        let done = well(pair.of_a(), op);
        assert!(
            done.flags.contains(CompletionFlags::RMA | CompletionFlags::WRITE)
                && done.bytes() == pattern(len)
        );
        assert!(see(len) == pattern(len));
        let op = pair.a.read(vec![0; len], pair.to_b, part).unwrap();
        let mut done = well(pair.of_a(), op);
        assert!(done.len == len && done.take_buffer::<Vec<u8>>().unwrap() == pattern(len));
    }
}

#[test]
fn windows_of_both_kinds_are_written_read_and_withdrawn() {
    let pair = pair();
    let window = pair.b.domain().window(vec![0; 1 << 20], BOTH).unwrap();
    let see = |len| {
        let mut bytes = vec![0; len];
        window.read_into(0, &mut bytes).unwrap();
        bytes
    };
    write_and_read(&pair, window.remote(), see);
    assert!(window.withdraw().unwrap() == pattern(1 << 20));

    let window = pair.b.domain().alloc_window(1 << 20, BOTH).unwrap();
    let see = |len| {
        let mut bytes = vec![0; len];
        window.read_into(0, &mut bytes).unwrap();
        bytes
    };
    write_and_read(&pair, window.remote(), see);
    let address = window.as_ptr().cast_const();
    let mut memory = window.withdraw().unwrap();
    assert!(memory[..] == pattern(1 << 20));
    assert_ne!(memory.as_ptr(), address, "a peer may still have the old memory mapped");
    memory[0] = 1;
    let window = pair.b.domain().window(memory, MrAccess::REMOTE_READ).unwrap();
    let op = pair.a.read(vec![0; 1], pair.to_b, window.remote().slice(..1).unwrap()).unwrap();
    assert_eq!(well(pair.of_a(), op).bytes(), [1]);
    let address = window.as_ptr().cast_const();
    assert_eq!(window.withdraw().unwrap().as_ptr(), address, "read-only memory needs no copy");
}

/// A peer that breaks the protocol may keep its mapping of memory that it could write.
#[test]
fn registered_memory_that_peers_could_write_comes_back_as_a_copy() {
    let pair = pair();
    let domain = pair.b.domain();
    let memory = domain.alloc(4_096, Placement::default()).unwrap();
    let before = memory.as_ptr();
    let window = domain.window(domain.register(memory).unwrap(), BOTH).unwrap();
    window.write_from(10, b"kept").unwrap();
    let back = window.withdraw().unwrap();
    assert_ne!(back.as_ptr(), before);
    assert_eq!(&back[10..14], b"kept");
    pair.b.send(back, pair.b.insert(&pair.a.name().unwrap()).unwrap()).expect("a send of registered memory");
}

#[test]
fn remote_cq_data_tells_the_owner() {
    let pair = pair();
    let window = pair.b.domain().alloc_window(100, BOTH).unwrap();
    let remote = RemoteWindow::from_bytes(&window.remote().to_bytes()).unwrap();
    pair.a.write_with_data(b"notice".to_vec(), 0xFEED, pair.to_b, remote.slice(10..16).unwrap()).unwrap();
    let (_, told) = pair.both();
    assert_eq!((told.op, told.data, told.len), (None, Some(0xFEED), 6));
    assert!(told.flags.contains(CompletionFlags::REMOTE_WRITE | CompletionFlags::RMA));
    let mut bytes = [0; 6];
    window.read_into(10, &mut bytes).unwrap();
    assert_eq!(&bytes, b"notice");
    pair.a.inject_write_with_data(b"NOT", 7, pair.to_b, remote.slice(10..13).unwrap()).unwrap();
    assert_eq!(pair.of_b().data, Some(7));
    pair.a.inject_write(b"E", pair.to_b, remote.slice(13..14).unwrap()).unwrap();
    let back = pair.a.read(vec![0; 6], pair.to_b, remote.slice(10..16).unwrap()).unwrap();
    assert_eq!(well(pair.of_a(), back).bytes(), b"NOTEce");
    let write = RmaMsg::new(pattern(100), pair.to_b, remote.slice(50..60).unwrap()).range(20..30);
    pair.a.write_message(write.data(8).flags(OpFlags::DELIVERY_COMPLETE)).unwrap();
    assert_eq!((pair.both().1.data, window.load_u64(48).is_ok()), (Some(8), true));
    let read = RmaMsg::new(vec![0; 12], pair.to_b, remote.slice(50..60).unwrap()).range(1..11);
    pair.a.read_message(read).unwrap();
    let mut read = pair.of_a().into_result().unwrap();
    assert_eq!(read.bytes(), &pattern(100)[20..30]);
    assert_eq!(read.take_buffer::<Vec<u8>>().unwrap()[0], 0);
}

#[test]
fn local_access_is_checked_and_words_are_whole() {
    let pair = pair();
    let window = pair.b.domain().alloc_window(64, BOTH).unwrap();
    assert_eq!((window.len(), window.is_empty()), (64, false));
    window.write_from(60, &[1, 2, 3, 4]).unwrap();
    window.store_u64(8, u64::MAX).unwrap();
    assert_eq!((window.load_u64(8).unwrap(), window.load_u64(56).unwrap() >> 32), (u64::MAX, 0x0403_0201));
    for bad in [
        window.write_from(61, &[0; 4]),
        window.read_into(usize::MAX, &mut [0]),
        window.store_u64(4, 0),
        window.store_u64(60, 0),
        window.load_u64(57).map(drop),
    ] {
        assert_eq!(bad.unwrap_err(), Errno::EINVAL);
    }
    for access in [MrAccess::empty(), MrAccess::SEND | MrAccess::REMOTE_READ] {
        let rejected = pair.b.domain().window(vec![5; 3], access).unwrap_err();
        assert_eq!((rejected.error.errno(), rejected.buffer), (Errno::EINVAL, vec![5; 3]));
    }
    assert!(pair.b.domain().window(Vec::new(), BOTH).unwrap().is_empty());
    assert!(pair.b.domain().alloc(0, Placement::default()).is_err());
}

#[test]
fn what_the_owner_refuses_comes_back_as_an_error_with_its_buffer() {
    let pair = pair();
    let window = pair.b.domain().window(vec![1; 100], MrAccess::REMOTE_READ).unwrap();
    let remote = window.remote();
    let forged = RemoteWindow { key: remote.key ^ 1, ..remote };
    let beyond = RemoteWindow { len: 101, ..remote };
    for (bad, len) in [(remote, 100), (forged, 100), (beyond, 101)] {
        let op = pair.a.write(pattern(len), pair.to_b, bad).unwrap();
        let mut failed = pair.of_a();
        assert_eq!((failed.op, failed.result.is_err()), (Some(op), true), "{bad:?}");
        assert_eq!(failed.take_buffer::<Vec<u8>>().unwrap(), pattern(len));
    }
    let lengths = pair.a.write(pattern(5), pair.to_b, remote).unwrap_err();
    assert_eq!((lengths.error.errno(), lengths.buffer), (Errno::EINVAL, pattern(5)));
    assert_eq!(window.withdraw().unwrap(), [1; 100]);
    let op = pair.a.read(vec![0; 100], pair.to_b, remote).unwrap();
    let failed = pair.of_a();
    assert_eq!((failed.op, failed.result.is_err()), (Some(op), true), "its key is gone");
}

#[test]
fn a_window_outlives_its_node_and_is_dropped_in_use() {
    let pair = pair();
    let windows = [BOTH; 20].map(|access| pair.b.domain().alloc_window(200_000, access).unwrap());
    let mut posted = 0;
    for window in windows {
        posted += usize::from(pair.a.write(pattern(200_000), pair.to_b, window.remote()).is_ok());
        drop(window); // while the write is in flight
    }
    while posted > 0 {
        posted -= usize::from(pair.a.poll().unwrap().is_some());
        pair.b.poll().unwrap();
    }
    let window = pair.b.domain().window(vec![3; 10], BOTH).unwrap();
    drop(pair);
    window.write_from(0, &[4]).unwrap();
    assert_eq!(window.withdraw().unwrap()[..2], [4, 3]);
}
