//! Payloads that are written into the rings by forced streaming stores: on every path through a ring, the bytes
//! received are the bytes sent, and no other byte changes.

use std::sync::Arc;

use ofi_testkit::prelude::*;
use ofi_tests::denied::set_early;
use ofi_tests::{Naming, open};
use proptest::prelude::*;

extern "C" fn first() {
    set_early(c"FI_SHM_STREAMING_STORES", c"always");
    set_early(c"FI_SHM_SINGLE_COPY", c"never");
}

/// Runs before `main`, when nothing has read the environment.
#[used]
#[unsafe(link_section = ".init_array")]
static FIRST: extern "C" fn() = first;

/// The length of the memory at each end.
const ROOM: usize = 200_000;

/// How the bytes move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Message,
    Tagged,
    Write,
    Read,
}

#[derive(Clone, Debug)]
struct Shape {
    kind: Kind,
    len: usize,
    /// Their offsets at both ends.
    offsets: [usize; 2],
    /// Where to cut the local bytes in two.
    cut: f64,
}

fn shape() -> impl Strategy<Value = Shape> {
    let kind = prop::sample::select(vec![Kind::Message, Kind::Tagged, Kind::Write, Kind::Read]);
    // Around the shortest payloads that are streamed, the longest ones in a command, and parts.
    let around = |at: usize| at - 70..at + 70;
    let len = prop_oneof![around(1 << 10), around(8_128), around(16 << 10), 1_usize..100_000];
    (kind, len, [0..300_usize, 0..300_usize], prop_oneof![Just(0.0), 0.0..1.0_f64])
        .prop_map(|(kind, len, offsets, cut)| Shape { kind, len, offsets, cut })
}

fn check(pair: &Pair, [near, far]: [&Memory; 2], region: &Arc<dyn MemoryRegion>, shape: &Shape, seed: u8) {
    let &Shape { kind, len, offsets, cut } = shape;
    let (from, into, at) = if kind == Kind::Read { (far, near, [1, 0]) } else { (near, far, [0, 1]) };
    into.slice(..).put(&[0; ROOM]);
    from.slice(offsets[at[0]]..offsets[at[0]] + len).fill(seed);
    let middle = offsets[0] + (cut * len as f64) as usize;
    let local = [near.slice(offsets[0]..middle), near.slice(middle..offsets[0] + len)];
    let out = pair.a.out(pair.to_b, local.to_vec()).context(1);
    let there = remote_at(region, offsets[1], len);
    match kind {
        Kind::Message | Kind::Tagged => {
            let receive = pair.b.receive(far.slice(offsets[1]..offsets[1] + len)).context(2);
            if kind == Kind::Tagged {
                receive.tag(7).post().unwrap();
                let out = out.tag(7);
                pair.post(|| out.send());
            } else {
                receive.post().unwrap();
                pair.post(|| out.send());
            }
            assert_eq!(pair.drive("a message", || pair.b.next_of(2)).done().len, len);
        }
        Kind::Write => pair.post(|| out.write(&[there])),
        Kind::Read => pair.post(|| out.read(&[there])),
    }
    pair.drive("the operation", || pair.a.next_of(1)).done();
    let (bytes, start) = (into.bytes(), offsets[at[1]]);
    assert!(
        bytes[start..start + len] == from.slice(offsets[at[0]]..offsets[at[0]] + len).bytes()[..],
        "{shape:?}"
    );
    assert!(bytes[..start].iter().chain(&bytes[start + len..]).all(|&byte| byte == 0), "beside: {shape:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn any_shape_arrives_whole_and_touches_nothing_else(shapes in prop::collection::vec(shape(), 1..12)) {
        let pair = Pair::of(open(Naming::Names), open(Naming::Names));
        pair.warm_up();
        let [near, far] = [Memory::new(ROOM), Memory::new(ROOM)];
        let region = pair.b.register(&far, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
        for (number, shape) in shapes.iter().enumerate() {
            check(&pair, [&near, &far], &region, shape, 1 + number as u8);
        }
        let streamed = pair.a.statistic("shm_streamed_bytes") + pair.b.statistic("shm_streamed_bytes");
        // Short records are not streamed: whole payloads, answers, and last parts. Words before a payload count.
        let [long, all] = [1 << 10, 0].map(|least| {
            shapes.iter().map(|shape| shape.len).filter(|&len| len >= least).sum::<usize>()
        });
        if cfg!(target_arch = "x86_64") {
            let (least, most) = (long.saturating_sub(1_024 * shapes.len()), all + 1_024 * shapes.len());
            prop_assert!((least..=most).contains(&(streamed as usize)), "{streamed}: {shapes:?}");
        }
        region.close().unwrap();
    }
}
