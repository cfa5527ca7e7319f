//! The bytes received are the bytes sent, and no byte beside them is touched.

use ofi_testkit::prelude::*;
use ofi_tests::{Naming, open};
use proptest::prelude::*;

use super::missing;

/// The length of the memory at each end.
const ROOM: usize = 3 << 20;

/// Lengths around a page and around a chunk, and random ones.
pub fn length() -> impl Strategy<Value = usize> {
    prop_oneof![
        8_200..20_000_usize,
        (1..4_usize, -3..3_isize).prop_map(|(pages, more)| (pages << 16).wrapping_add_signed(more)),
        20_000..(ROOM / 2),
    ]
}

/// Where to cut `len` bytes into pieces.
pub fn cuts() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(0.0..1.0, 0..7)
}

/// `len` bytes of `memory` from `offset` on, cut into pieces.
pub fn pieces(memory: &Memory, offset: usize, len: usize, cuts: &[f64]) -> Vec<Slice> {
    let mut at: Vec<usize> = cuts.iter().map(|cut| (cut * len as f64) as usize).chain([0, len]).collect();
    at.sort_unstable();
    at.windows(2).map(|ends| memory.slice(offset + ends[0]..offset + ends[1])).collect()
}

#[derive(Clone, Debug)]
struct Shape {
    len: usize,
    /// Room in the receive, relative to the message.
    room: f64,
    offsets: [usize; 2],
    cuts: [Vec<f64>; 2],
    tagged: bool,
    library: [bool; 2],
}

fn shape() -> impl Strategy<Value = Shape> {
    let room = prop_oneof![3 => Just(1.0), 1 => 0.0..1.5];
    let whole = prop_oneof![2 => Just(Vec::new()), 1 => cuts()];
    let offset = prop_oneof![Just(0_usize), Just(4_096), 0..9_000_usize];
    let library = prop_oneof![3 => Just(false), 1 => Just(true)];
    (
        length(),
        room,
        [offset.clone(), offset],
        [whole.clone(), whole],
        any::<bool>(),
        [Just(false).boxed(), library.boxed()],
    )
        .prop_map(|(len, room, offsets, cuts, tagged, library)| Shape {
            len,
            room,
            offsets,
            cuts,
            tagged,
            library,
        })
}

fn check(pair: &Pair, memory: &[[Memory; 2]; 2], shape: &Shape, seed: u8) {
    let (from, into) = (&memory[0][0], &memory[1][usize::from(shape.library[1])]);
    from.slice(shape.offsets[0]..shape.offsets[0] + shape.len).fill(seed);
    into.slice(..).put(&vec![0; ROOM]);
    let room = (shape.room * shape.len as f64) as usize;
    let arrives = room.min(shape.len);
    let target = pieces(into, shape.offsets[1], room, &shape.cuts[1]);
    let receive = pair.b.receive(target).context(2);
    if shape.tagged { receive.tag(7).post() } else { receive.post() }.unwrap();
    let out = pair.a.out(pair.to_b, pieces(from, shape.offsets[0], shape.len, &shape.cuts[0])).context(1);
    let out = if shape.tagged { out.tag(7) } else { out };
    pair.post(|| out.send());
    let event = pair.drive("a message", || pair.b.next_of(2));
    if arrives < shape.len {
        let error = event.failed();
        assert_eq!((error.err, error.len, error.olen), (Errno::ETRUNC, arrives, shape.len - arrives));
    } else {
        assert_eq!(event.done().len, shape.len);
    }
    pair.drive("the send", || pair.a.next_of(1)).done();
    let bytes = into.bytes();
    let end = shape.offsets[1] + arrives;
    assert!(
        bytes[..shape.offsets[1]].iter().chain(&bytes[end..]).all(|&byte| byte == 0),
        "beside the message"
    );
    if arrives > 0 {
        let sent = from.slice(shape.offsets[0]..shape.offsets[0] + arrives).bytes();
        assert!(bytes[shape.offsets[1]..end] == sent[..], "{shape:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn any_shape_arrives_whole_and_touches_nothing_else(shapes in prop::collection::vec(shape(), 1..6)) {
        if missing().is_some() {
            return Ok(());
        }
        let pair = Pair::of(open(Naming::Names), open(Naming::Names));
        pair.warm_up();
        let memory = [&pair.a, &pair.b].map(|side| [Memory::new(ROOM), Memory::library(&side.domain, ROOM)]);
        for (number, shape) in shapes.iter().enumerate() {
            check(&pair, &memory, shape, number as u8);
        }
        let came = pair.b.statistic("shm_single_messages");
        let expected = shapes.iter().filter(|shape| (shape.room * shape.len as f64) as usize > 0).count();
        prop_assert_eq!(came as usize, expected, "{}", pair.b.report());
        prop_assert_eq!(pair.b.statistic("shm_single_failed"), 0);
    }
}

#[test]
fn both_ends_copy_and_what_they_copied_is_counted() {
    if let Some(reason) = missing() {
        return println!("skipped: {reason}");
    }
    let pair = Pair::of(open(Naming::Names), open(Naming::Names));
    pair.warm_up();
    let len = 8 << 20;
    let (from, into) = (Memory::patterned(len, 3), Memory::new(len));
    for round in 0..4 {
        pair.b.receive(&into).context(2).post().unwrap();
        pair.post(|| pair.a.out(pair.to_b, &from).context(1).send());
        pair.drive("a message", || pair.b.next_of(2)).done();
        pair.drive("the send", || pair.a.next_of(1)).done();
        into.check(len, 3);
        into.fill(round);
    }
    let (read, written) =
        (pair.b.statistic("shm_single_read_bytes"), pair.a.statistic("shm_single_written_bytes"));
    assert!(read > 0 && written > 0, "{read} read, {written} written");
    assert!(read + written >= 4 * len as u64, "{read} read, {written} written");
    assert_eq!((pair.a.statistic("shm_bulk_bytes"), pair.b.statistic("shm_single_messages")), (0, 4));
}

#[test]
fn a_sender_that_does_not_look_holds_nothing_up() {
    if let Some(reason) = missing() {
        return println!("skipped: {reason}");
    }
    let pair = Pair::of(open(Naming::Names), open(Naming::Names));
    pair.warm_up();
    let len = 5 << 20;
    let (from, into) = (Memory::patterned(len, 9), Memory::new(len));
    pair.post(|| pair.a.out(pair.to_b, &from).context(1).send());
    pair.b.receive(&into).context(2).post().unwrap();
    // Only the receiver is polled: through a ring of 512 KiB the message would never arrive.
    wait::drive(&[&pair.b], "a message", || pair.b.next_of(2)).done();
    into.check(len, 9);
    assert_eq!(pair.b.statistic("shm_single_read_bytes"), len as u64);
    pair.drive("the send", || pair.a.next_of(1)).done();
}

#[test]
fn what_is_one_chunk_is_read_by_its_receiver_alone() {
    if let Some(reason) = missing() {
        return println!("skipped: {reason}");
    }
    let pair = Pair::of(open(Naming::Names), open(Naming::Names));
    pair.warm_up();
    let (from, into) = (Memory::patterned(64 << 10, 9), Memory::new(64 << 10));
    for _ in 0..20 {
        pair.b.receive(&into).context(2).post().unwrap();
        pair.post(|| pair.a.out(pair.to_b, &from).context(1).send());
        pair.drive("a message", || pair.b.next_of(2)).done();
        pair.drive("the send", || pair.a.next_of(1)).done();
        into.check(64 << 10, 9);
        into.fill(0);
    }
    let read = pair.b.statistic("shm_single_read_bytes");
    assert_eq!(
        (read, pair.a.statistic("shm_single_written_bytes")),
        (20 * (64 << 10), 0),
        "{}",
        pair.b.report()
    );
}

#[test]
fn payloads_in_both_directions_are_copied_by_their_receivers_alone() {
    if let Some(why) = missing() {
        return println!("NOT RUN: {why}");
    }
    const COUNT: usize = 8;
    const LEN: usize = 1 << 20;
    let pair = Pair::of(open(Naming::Names), open(Naming::Names));
    pair.warm_up();
    let ends = [(&pair.a, pair.to_b), (&pair.b, pair.to_a)];
    let memory = [(); 2].map(|()| [(); COUNT].map(|()| (Memory::patterned(LEN, 3), Memory::new(LEN))));
    for ((side, to), memory) in ends.iter().zip(&memory) {
        for (index, (from, into)) in memory.iter().enumerate() {
            side.receive(into).context(index).post().unwrap();
            side.out(*to, from).context(100 + index).send().unwrap();
        }
    }
    for (side, _) in ends {
        for context in (0..COUNT).chain(100..100 + COUNT) {
            pair.drive("a message", || side.next_of(context)).done();
        }
    }
    memory.iter().flatten().for_each(|(_, into)| into.check(LEN, 3));
    for (side, _) in ends {
        // The last ones may come when the other direction has ended.
        let by_the_other = side.statistic("shm_single_received_bytes") as usize;
        assert!(by_the_other <= 2 * LEN, "{}", side.report());
        assert!(side.statistic("shm_single_messages") >= COUNT as u64, "{}", side.report());
    }
}
