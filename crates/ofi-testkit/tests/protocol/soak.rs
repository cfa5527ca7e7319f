//! A day of virtual time: four hosts communicate continually over a bad network, fall asleep, are cut off, die and
//! return. Half an hour here; more with `cargo xtask simulate --hours N`.

use std::time::Duration;

use ofi_rdm::Stream;
use ofi_rdm::congestion::Congestion;
use ofi_testkit::net::{Net, NetworkLink, Random};

const HOSTS: usize = 4;
/// Growth of anonymous memory allowed after the first quarter, in KiB: lists double now and then.
const GROWTH: u64 = 2 << 10;
/// After each round all faults are repaired, and everything must have ended.
const ROUND: Duration = Duration::from_secs(600);

/// Hours, from `OFI_SOAK_HOURS`.
fn time() -> Duration {
    let hours = std::env::var("OFI_SOAK_HOURS").ok();
    Duration::from_secs_f64(3600.0 * hours.map_or(0.5, |text| text.parse().expect("a number of hours")))
}

fn anonymous_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).expect("Linux says RssAnon")
}

/// Ten minutes with many events. Returns the number of operations started.
fn round(net: &mut Net, random: &mut Random) -> u64 {
    let (end, mut begun) = (net.now + ROUND, 0);
    while net.now < end {
        let (one, other) = (random.below(4) as usize, random.below(4) as usize);
        match random.below(400) {
            0 => {
                net.kill(one);
                net.start(one);
            }
            1 => net.sleep(one, Duration::from_millis(random.below(20_000))),
            2 if one != other => net.cut.push((one, other)),
            3..8 => {
                net.cut.clear();
                net.mute.clear();
            }
            9 if one != other => net.mute.push((one, other)),
            8 => {
                net.close(one);
                net.start(one);
            }
            _ => {
                for _ in 0..1 + random.below(8) {
                    begun += 1;
                    let stream = if random.chance(700) { Stream::Commands } else { Stream::Bulk };
                    match random.below(20) {
                        0 => _ = net.payload(one, other, stream, 1 + random.below(60_000)),
                        _ => net.record(one, other, stream, random.below(300) as usize),
                    }
                }
            }
        }
        net.run(Duration::from_micros(random.below(1_000_000)));
    }
    begun
}

#[test]
fn a_day_leaves_memory_as_it_was_and_every_operation_ends() {
    let rounds = (time().as_secs() / ROUND.as_secs()).max(1);
    let link = NetworkLink {
        loss: 5,
        burst: 2,
        duplicate: 5,
        reorder: 20,
        jitter: Duration::from_micros(40),
        byte_time: 1,
        queue: 300_000,
        reports: Some(true),
        ..NetworkLink::default()
    };
    let mut random = Random(11);
    let mut net = Net::new(11, HOSTS, link, Congestion::Reno);
    net.stops(20);
    let (mut begun, mut after_quarter) = (0, None);
    for number in 0..rounds {
        begun += round(&mut net, &mut random);
        net.cut.clear();
        net.mute.clear();
        net.run(Duration::from_secs(60));
        for (from, to) in (0..HOSTS).flat_map(|from| (0..HOSTS).map(move |to| (from, to))) {
            let model = net.model(from, to);
            assert!(model.is_none_or(|model| model.is_acked()), "{from} to {to}: {model:?}");
        }
        net.forget_history();
        if number >= rounds / 4 && after_quarter.is_none() {
            after_quarter = Some(anonymous_kib());
        }
    }
    let (before, after) = (after_quarter.expect("there was a round"), anonymous_kib());
    let hours = net.now.as_nanos() / 3_600_000_000_000;
    println!(
        "{hours} hours, {begun} operations, {} datagrams; {before} KiB, then {after} KiB",
        net.datagrams
    );
    assert!(begun > rounds * 1000);
    assert!(after <= before + GROWTH, "{before} KiB, then {after} KiB");
}
