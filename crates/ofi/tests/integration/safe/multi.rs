use ofi::{EpOption, Errno, MultiRecvBuffer, MultiRecvRange};

use super::support::{pair, pattern};

#[test]
fn ranges_of_one_buffer_outlive_the_node() {
    let pair = pair();
    pair.b.set_option(EpOption::MinMultiRecv, 64).unwrap();
    let op = pair.b.recv_multi(MultiRecvBuffer::new(vec![0; 1000])).unwrap();
    let mut ranges: Vec<MultiRecvRange> = Vec::new();
    let mut released = None;
    for len in [300, 0, 200, 100, 350] {
        assert!(released.is_none());
        pair.a.send(pattern(len), pair.to_b).unwrap();
        let (sent, got) = pair.both();
        assert!(sent.result.is_ok());
        assert_eq!((got.op, got.len, got.bytes()), (Some(op), len, &pattern(len)[..]));
        assert!(got.buffer.is_none());
        ranges.extend(got.range);
        released = got.released;
    }
    let used: Vec<_> = ranges.iter().map(MultiRecvRange::range).collect();
    assert_eq!(used, [0..300, 300..300, 300..500, 500..600, 600..950]);
    let mut buffer = released.expect("the buffer, as 50 bytes are too few for another message");
    assert!(!buffer.is_unused());
    let rejected = pair.b.recv_multi(buffer).unwrap_err();
    assert_eq!(rejected.error.errno(), Errno::EBUSY);
    buffer = rejected.buffer;
    drop(pair);
    let copy = ranges[2].clone();
    drop(ranges);
    assert_eq!(&copy[..], pattern(200));
    let Err(buffer) = buffer.into_inner::<Vec<u8>>() else { panic!("a range is there") };
    drop(copy);
    let Err(buffer) = buffer.into_inner::<Box<[u8]>>() else { panic!("it is none") };
    assert_eq!(buffer.into_inner::<Vec<u8>>().unwrap()[300..500], pattern(200));
}

#[test]
fn an_open_buffer_is_kept_by_its_ranges_and_freed_with_them() {
    let pair = pair();
    pair.b
        .recv_multi(MultiRecvBuffer::new(pair.b.domain().alloc(100_000, Default::default()).unwrap()))
        .unwrap();
    pair.a.send(pattern(40_000), pair.to_b).unwrap();
    let range = pair.both().1.range.unwrap();
    assert!(pair.b.close().is_empty(), "the range still holds the memory");
    assert_eq!(&range[..], pattern(40_000));
}

#[test]
fn cancelling_releases_the_buffer() {
    let pair = pair();
    let op = pair.b.recv_multi(MultiRecvBuffer::new(vec![0; 100_000])).unwrap();
    pair.a.send(pattern(10), pair.to_b).unwrap();
    let range = pair.both().1.range.unwrap();
    pair.b.cancel(op).unwrap();
    let mut ended = pair.of_b();
    assert_eq!((ended.op, ended.result.clone().unwrap_err().errno()), (Some(op), Errno::ECANCELED));
    let mut buffer = ended.released.take().unwrap();
    assert!(!buffer.is_unused());
    drop(range);
    assert!(buffer.is_unused());
    pair.b.recv_multi(buffer).unwrap();
    assert_eq!(pair.b.in_flight(), 1);
}

#[test]
fn a_message_that_does_not_fit_is_truncated_and_releases_the_buffer() {
    let pair = pair();
    pair.b.recv_multi_tagged(MultiRecvBuffer::new(vec![0; 20_000]), 1, 0).unwrap();
    pair.a.send_tagged(pattern(30_000), pair.to_b, 1).unwrap();
    let (_, got) = pair.both();
    let error = got.result.clone().unwrap_err();
    assert_eq!((error.errno(), error.olen()), (Errno::ETRUNC, 10_000));
    assert_eq!((got.bytes(), got.tag), (&pattern(20_000)[..], Some(1)));
    assert!(got.released.is_some());
    assert_eq!(pair.b.in_flight(), 0);
}

#[test]
fn messages_that_came_before_the_buffer_go_into_it() {
    let pair = pair();
    for len in [10, 20, 50_000] {
        pair.a.send(pattern(len), pair.to_b).unwrap();
    }
    pair.b.recv_multi(MultiRecvBuffer::new(vec![0; 100_000])).unwrap();
    let mut sizes = Vec::new();
    let mut sent = 0;
    while sizes.len() < 3 || sent < 3 {
        if let Some(got) = pair.b.poll().unwrap() {
            assert_eq!(got.bytes(), pattern(got.len));
            sizes.push(got.len);
        }
        sent += usize::from(pair.a.poll().unwrap().is_some());
    }
    assert_eq!(sizes, [10, 20, 50_000]);
}
