//! Datagrams that no correct device reports: short ones, without a route header, of unknown versions, from any sender,
//! with wrong lengths. Each is delivered within its bounds, or dropped and counted, and other traffic continues.

use ofi_testkit::net::Random;
use ofi_testkit::prelude::*;
use ofi_testkit::rc::{Forged, Plan};

use super::{Driven, driven, qp};

const GRH: u64 = 40;
const MTU: u64 = 1024;

fn forged(random: &mut Random) -> Forged {
    let mut bytes: Vec<u8> = (0..random.below(GRH + MTU + 1)).map(|_| random.bits() as u8).collect();
    if let (Some(head), true) = (bytes.first_chunk_mut::<40>(), random.chance(700)) {
        // A route header of IPv6, of IPv4 at the end of its room, or of neither.
        head[0] = [0x60, 0, 0x4F, 0][random.below(4) as usize];
        head[20] = [0x45, 0, 0x65][random.below(3) as usize];
    }
    let written = bytes.len() as u64;
    let len = match random.below(4) {
        0 => random.below(GRH + 1),
        1 => written + random.below(5000),
        2 => u64::from(u32::MAX),
        _ => written,
    };
    Forged {
        bytes,
        len: len as usize,
        source_qp: random.bits() as u32,
        lid: random.bits() as u16,
        has_route: random.chance(600),
        data: random.chance(300).then(|| random.bits() as u32),
        failed: random.chance(50),
    }
}

#[test]
fn forged_datagrams_are_delivered_within_their_bounds_or_counted() {
    let (device, _alone) = driven();
    device.begin(Plan::default());
    let kit: &dyn Kit = &Driven;
    let pair = kit.pair();
    pair.warm_up();
    let mut random = Random(1);
    let (mut good, mut short, mut failed, mut delivered) = (0, 0, 0, 0);
    let into = Memory::new(MTU as usize);
    for _ in 0..20_000 {
        pair.b.receive(&into).context(1).post().unwrap();
        let forged = forged(&mut random);
        let fits = (GRH..=GRH + MTU).contains(&(forged.len as u64));
        *if forged.failed {
            &mut failed
        } else if fits {
            &mut good
        } else {
            &mut short
        } += 1;
        let (len, data) = (forged.len, forged.data);
        let is_delivered = fits && !forged.failed;
        device.forge(qp(&pair.b), forged);
        pair.b.poll();
        match pair.b.next_of(1) {
            Some(Event::Done(entry, source)) => {
                assert!(is_delivered);
                assert_eq!((entry.len, source), (len - GRH as usize, FiAddr::NOTAVAIL));
                assert_eq!(entry.data, u64::from(data.unwrap_or(0)));
                delivered += 1;
            }
            Some(Event::Failed(error)) => panic!("{error:?}"),
            None => {
                assert!(!is_delivered);
                pair.b.cancel(1).unwrap();
                wait::drive(&[&pair.b], "the cancelled receive", || pair.b.next_of(1)).failed();
            }
        }
    }
    assert!(good > 1000 && short > 1000 && failed > 100, "{good}, {short}, {failed}");
    assert_eq!((delivered, pair.b.statistic("verbs_malformed")), (good, short));
    assert_eq!(device.datagram_receives(qp(&pair.b)), 512, "receives that the device has");
    // Other traffic continues.
    let (from, got) = (Memory::patterned(1024, 3), Memory::new(1024));
    pair.b.receive(&got).context(2).post().unwrap();
    pair.post(|| pair.a.out(pair.to_b, &from).context(3).send());
    let Event::Done(entry, source) = pair.drive("the datagram", || pair.b.next_of(2)) else {
        panic!("an error");
    };
    assert_eq!((entry.len, source), (1024, pair.to_a));
    got.check(1024, 3);
}
