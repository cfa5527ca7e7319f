//! Mixed operations by eight processes: every byte is checked, and memory stays flat. Takes nine seconds here;
//! `cargo xtask soak --minutes N` sets another time.

use std::time::{Duration, Instant};

use ofi_tests::mesh::{Mesh, Report, Seat};

const MEMBERS: usize = 8;
/// The limit on growth of resident memory from the first third of the run to the last, in KiB: allocators
/// keep freed memory, and buffers of all lengths come into use gradually.
const GROWTH: u64 = 8 << 10;

/// The duration of the test: `OFI_SOAK_SECONDS`, by default 9 s.
fn time() -> Duration {
    let seconds = std::env::var("OFI_SOAK_SECONDS").ok();
    Duration::from_secs(seconds.map_or(9, |text| text.parse().expect("a number of seconds")))
}

#[test]
fn eight_processes_do_everything_to_each_other_and_memory_stays_flat() {
    let time = time();
    let mut mesh = Mesh::start(MEMBERS, &[]);
    let start = Instant::now();
    let mut samples: Vec<Vec<Report>> = Vec::new();
    let mut said = Duration::ZERO;
    while start.elapsed() < time {
        std::thread::sleep((time / 30).min(Duration::from_secs(10)));
        let before: Vec<u64> =
            samples.last().map_or(vec![0; MEMBERS], |last| last.iter().map(|one| one.done).collect());
        let sample: Vec<Report> = mesh.seats.iter_mut().map(Seat::report).collect();
        for (report, before) in sample.iter().zip(before) {
            assert!(report.done > before, "a member made no progress: {sample:?}");
            assert_eq!(report.unexplained, 0, "an operation failed: {sample:?}");
        }
        if start.elapsed() - said > Duration::from_secs(60) {
            said = start.elapsed();
            println!("{} s: {sample:?}", said.as_secs());
        }
        samples.push(sample);
    }
    let third = samples.len() / 3;
    assert!(third > 2, "too few samples: {}", samples.len());
    // The first half of the first third is the warm-up.
    let (first, last) = (&samples[third / 2..third], &samples[samples.len() - third..]);
    for member in 0..MEMBERS {
        let most = |part: &[Vec<Report>], what: fn(&Report) -> u64| {
            part.iter().map(|sample| what(&sample[member])).max()
        };
        let resident: fn(&Report) -> u64 = |one| one.resident;
        let files: fn(&Report) -> u64 = |one| one.files;
        let (before, after) = (most(first, resident), most(last, resident));
        println!("member {member}: {before:?} KiB, then {after:?}");
        assert!(
            after <= before.map(|before| before + GROWTH),
            "member {member}: {before:?} KiB, then {after:?}"
        );
        let (before, after) = (most(first, files), most(last, files));
        assert!(
            after <= before.map(|before| before + 4),
            "member {member}: {before:?} descriptors, then {after:?}"
        );
    }
    let done: u64 = mesh.end().iter().map(|report| report.done).sum();
    println!("{done} operations in {:?}; {:?}", start.elapsed(), samples.last());
}
