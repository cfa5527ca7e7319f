//! Media flows over a wire that delivers in any order: provider `efa` on a simulated fabric. Publishing
//! relies on counted parts alone, so no grain, slice or sample may be visible before all of its bytes have
//! arrived.
//!
//! `MXL_REORDER_SEEDS` sets the number of seeds, `MXL_REORDER_FIRST` the first one. To repeat a seed that
//! failed: `MXL_REORDER_FIRST=SEED MXL_REORDER_SEEDS=1`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mxl::{BatchHints, Domain, FlowDefinition, GrainReader, Rational, SampleReader, Wait};
use mxl_fabrics::{Initiator, Options, Provider, Received, Target};
use ofi_testkit::net::Random;
use ofi_testkit::srd::{Handle, Plan, SimulatedDevice};

const SEEDS: u64 = 24;
const LONG: Duration = Duration::from_secs(40);
const ANY: (Option<&str>, Option<&str>) = (None, None);
const CHANNELS: u32 = 5;
/// Samples of the largest batch.
const BATCH: u64 = 480;

/// A directory that is removed after the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() { shm.to_path_buf() } else { std::env::temp_dir() };
        let path = base.join(format!("mxl-reordered-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn domain(&self) -> Domain {
        Domain::open(&self.0).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The ends of one run.
struct Ends {
    initiator: Initiator,
    target: Target,
}

impl Ends {
    fn open(near: &Folder, far: &Folder, definition: &FlowDefinition, options: &[Options; 2]) -> Self {
        let target =
            Target::open_with(&far.domain(), definition, Provider::Efa, ANY, None, &options[0]).unwrap();
        let mut initiator =
            Initiator::open_with(&near.domain(), definition.id, Provider::Efa, ANY, &options[1]).unwrap();
        initiator.add(target.info()).unwrap();
        Self { initiator, target }
    }

    /// Polls both ends until `is_done`, which gets each event of the target as soon as it arrives.
    fn until(&mut self, mut is_done: impl FnMut(&mut Initiator, Option<Received>) -> bool) {
        let begin = Instant::now();
        loop {
            self.initiator.poll().unwrap();
            let received = self.target.poll().unwrap();
            let lost = matches!(received, Some(Received::Lost { .. } | Received::Disconnected));
            assert!(!lost, "{received:?}");
            if is_done(&mut self.initiator, received) {
                return;
            }
            assert!(begin.elapsed() < LONG, "timed out: {:?}", self.target.stats());
        }
    }

    fn connect(&mut self) {
        self.until(|initiator, _| initiator.event().is_some());
    }
}

/// Bytes that differ in each grain, and at each place of it.
fn picture(index: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (index * 89 + at * 7 + at / 253 + 1) as u8).collect()
}

fn sample(channel: u32, index: u64) -> f32 {
    (index * 16 + u64::from(channel)) as f32
}

/// Pictures in two planes (with a key), in whole grains and in slices, several of them in flight at once.
fn grains(near: &Folder, far: &Folder, random: &mut Random, options: &[Options; 2]) {
    let plain = FlowDefinition::video("camera", 192, 40, Rational::new(50, 1)).unwrap();
    let keyed = plain.to_json().replace("video/v210", "video/v210a");
    let definition = FlowDefinition::parse(&keyed).unwrap();
    let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
    let mut ends = Ends::open(near, far, &definition, options);
    let reader = far.domain().read_grains(definition.id).unwrap();
    ends.connect();
    let first = 1000;
    let mut next = first;
    while next < first + 24 {
        // Sometimes more grains than the target has open slots, so that some wait.
        let count = random.below(5) + 1;
        let mut last = (0, 0);
        for index in next..next + count {
            let mut grain = writer.open(index).unwrap();
            let (len, total) = (grain.len(), grain.info().total_slices);
            grain.write(0, &picture(index, len)).unwrap();
            let mut start = 0;
            while start < total {
                let most = u64::from(total - start);
                let whole = random.chance(300);
                let end = start + if whole { most } else { random.below(most) + 1 } as u16;
                grain.commit_slices(end).unwrap();
                ends.initiator.send_slices(index, start, end).unwrap();
                start = end;
                if random.chance(300) {
                    ends.initiator.poll().unwrap();
                }
            }
            last = (index, total);
        }
        ends.until(|_, received| {
            let Some(Received::Grain { index, slices, invalid }) = received else { return false };
            assert!(!invalid);
            is_there(&reader, index, slices);
            (index, slices) == last
        });
        next += count;
    }
    for index in next - 4..next {
        let grain = reader.read(index, Wait::Not).unwrap();
        assert_eq!(grain.to_vec().unwrap(), picture(index, grain.len()), "grain {index}");
    }
    assert_eq!((ends.target.stats().nonsense, ends.target.stats().lost), (0, 0));
}

/// The bytes of all slices that the target has published.
fn is_there(reader: &GrainReader, index: u64, slices: u16) {
    let grain = reader.read_slices(index, slices, Wait::Not).unwrap();
    let (bytes, wanted) = (grain.to_vec().unwrap(), picture(index, grain.len()));
    let sizes = reader.info().config.discrete().slice_sizes;
    let mut plane = 0;
    for size in sizes.map(|size| size as usize) {
        let end = plane + size * usize::from(grain.info().valid_slices);
        assert_eq!(bytes[plane..end], wanted[plane..end], "grain {index}, {slices} slices, plane at {plane}");
        plane += size * usize::from(grain.info().total_slices);
    }
}

/// Batches of any length, over the ends of rings whose lengths differ.
fn samples(near: &Folder, far: &Folder, random: &mut Random, options: &[Options; 2]) {
    let definition = FlowDefinition::audio("microphone", CHANNELS, Rational::new(48_000, 1)).unwrap();
    let mut writer = near.domain().create_samples(&definition, &BatchHints::default()).unwrap().writer;
    let mut ends = Ends::open(near, far, &definition, options);
    let reader = far.domain().read_samples(definition.id).unwrap();
    ends.connect();
    let mut index = 19_456 - 1000;
    let end = index + 6000;
    while index < end {
        for _ in 0..=random.below(4) {
            let count = random.below(BATCH) + 1;
            index += count;
            let mut open = writer.open(index, count).unwrap();
            for channel in 0..CHANNELS {
                let samples: Vec<f32> = (index - count..index).map(|at| sample(channel, at)).collect();
                open.write_channel(channel, &samples).unwrap();
            }
            open.commit().unwrap();
            ends.initiator.send_samples(index, count).unwrap();
        }
        ends.until(|_, received| {
            let Some(Received::Samples { index: there, count }) = received else { return false };
            are_there(&reader, there, count);
            there == index
        });
    }
    assert_eq!((ends.target.stats().nonsense, ends.target.stats().lost), (0, 0));
}

fn are_there(reader: &SampleReader, index: u64, count: u64) {
    let samples = reader.read(index, count, Wait::Not).unwrap();
    for channel in 0..CHANNELS {
        let mut found = vec![0_f32; count as usize];
        samples.read_channel(channel, &mut found).unwrap();
        let wanted: Vec<f32> = (index - count..index).map(|at| sample(channel, at)).collect();
        assert_eq!(found, wanted, "channel {channel} before {index}");
    }
    assert!(samples.still_valid());
}

fn of<T: Copy>(random: &mut Random, choice: &[T]) -> T {
    choice[random.below(choice.len() as u64) as usize]
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn what_is_published_is_whole_in_whatever_order_it_arrives() {
    // SAFETY: called by the only test of this binary, before it starts threads. Makes every byte go over the
    // wire.
    unsafe { std::env::set_var("FI_EFA_ENABLE_SHM_TRANSFER", "0") };
    let device = SimulatedDevice::driven("reordering0", Plan::default());
    ofi_efa::srd::add(Arc::new(Handle(Arc::clone(&device))));
    // Refused if the provider is already registered.
    let _ = ofi::register_provider(Arc::new(ofi_efa::EfaProvider));
    let begin = number("MXL_REORDER_FIRST", 1);
    for seed in begin..begin + number("MXL_REORDER_SEEDS", SEEDS) {
        let mut random = Random(seed);
        let random = &mut random;
        device.begin(Plan {
            seed,
            mtu: of(random, &[1024, 4096, 8760]),
            not_ready: of(random, &[0, 0, 5, 40]),
            late: of(random, &[0, 10, 90]),
            receives: of(random, &[64, 4096]),
            rdma: random.chance(700),
            unsolicited: random.chance(500),
        });
        let mut ways = || {
            let mut options = Options::default();
            options.messages_only = random.chance(250);
            options.max_message = of(random, &[None, Some(600), Some(1000), Some(4096)]);
            options
        };
        let options = [ways(), ways()];
        println!("seed {seed}: {options:?}");
        let before = device.overtaken();
        let (near, far) = (Folder::new("near"), Folder::new("far"));
        grains(&near, &far, random, &options);
        samples(&near, &far, random, &options);
        assert!(device.overtaken() > before + 10, "seed {seed}: the wire kept the order");
    }
}
