//! What datagrams may cost, counted on the simulated device: `docs/hot-path.md`, "Over verbs, unreliable datagrams",
//! has the table, which is checked here.

use std::collections::BTreeMap;

use ofi_testkit::prelude::*;

use super::{DEVICE, Quick, qp};

/// Operations of each row.
const COUNT: usize = 100;

/// What so many datagrams take: requests and reported ends of one end, and the same of the other.
fn cost(pair: &Pair, len: usize, injected: bool) -> [usize; 4] {
    let (from, into) = (Memory::patterned(len, 5), Memory::new(len));
    let take = |side: &Side| DEVICE.take_datagram_log(qp(side));
    pair.quiet(Duration::from_millis(5));
    let _before = [&pair.a, &pair.b].map(take);
    for _ in 0..COUNT {
        pair.b.receive(&into).context(1).post().unwrap();
        pair.post(|| {
            let out = pair.a.out(pair.to_b, &from).context(2);
            if injected { out.inject() } else { out }.send()
        });
        pair.drive("a datagram", || pair.b.next_of(1)).done();
        if !injected {
            pair.drive("its end", || pair.a.next_of(2)).done();
        }
    }
    pair.quiet(Duration::from_millis(5));
    into.check(len, 5);
    let [here, there] = [&pair.a, &pair.b].map(take);
    [here.0.len(), here.1, there.0.len(), there.1]
}

/// The table: of each row, what [`cost`] says at most.
fn table() -> BTreeMap<String, [usize; 4]> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/hot-path.md");
    let text = std::fs::read_to_string(path).unwrap();
    let mut sections = text.split("\n## ");
    let section = sections.find(|section| section.starts_with("Over verbs, unreliable datagrams\n")).unwrap();
    let rows = section.lines().filter_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let numbers: Vec<usize> = cells.get(1..5)?.iter().filter_map(|cell| cell.parse().ok()).collect();
        Some((cells[0].to_string(), numbers.try_into().ok()?))
    });
    rows.collect()
}

#[test]
fn datagrams_cost_no_more_than_the_table_says() {
    let kit: &dyn Kit = &Quick;
    let pair = kit.pair();
    pair.warm_up();
    let measured = [
        ("send 64 B, injected", cost(&pair, 64, true)),
        ("send 64 B", cost(&pair, 64, false)),
        ("send 1 KiB", cost(&pair, 1024, false)),
    ];
    let table = table();
    for (name, now) in measured {
        println!("| {name} | {} | {} | {} | {} |", now[0], now[1], now[2], now[3]);
        let row = table.get(name).unwrap_or_else(|| panic!("no row for {name}"));
        assert!(now.iter().zip(row).all(|(now, most)| now <= most), "{name}: {now:?}, the table has {row:?}");
    }
    assert_eq!(table.len(), measured.len());
}

/// Nobody who only looks posts anything.
#[test]
fn a_poll_that_finds_no_datagram_posts_nothing() {
    let kit: &dyn Kit = &Quick;
    let pair = kit.pair();
    pair.warm_up();
    let take = |side: &Side| DEVICE.take_datagram_log(qp(side));
    pair.quiet(Duration::from_millis(5));
    let _before = [&pair.a, &pair.b].map(take);
    (0..COUNT).for_each(|_| pair.poll());
    assert_eq!([&pair.a, &pair.b].map(take), [(Vec::new(), 0), (Vec::new(), 0)]);
}
