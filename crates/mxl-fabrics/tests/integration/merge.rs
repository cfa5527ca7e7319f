//! One flow by two paths.

use std::time::{Duration, Instant};

use mxl::{BatchHints, FlowDefinition, GrainWriter, Wait};
use mxl_fabrics::{Error, Initiator, Merge, MergePath, PeerState, Provider, Received};

use super::common::{Folder, LONG, Running, byte_of, camera, demo, microphone};

fn path(provider: Provider) -> MergePath<'static> {
    MergePath { provider, node: None, service: None, id: None, options: None }
}

fn write(writer: &GrainWriter, index: u64) {
    let mut grain = writer.open(index).unwrap();
    let bytes = vec![byte_of(index); grain.len()];
    grain.write(0, &bytes).unwrap();
    grain.commit().unwrap();
}

/// A merge of one path over shared memory and one over udp.
fn two_paths(far: &Folder, definition: &FlowDefinition) -> Merge {
    let local = MergePath { node: Some("127.0.0.1"), ..path(Provider::Tcp) };
    Merge::open(&far.domain(), definition, &[path(Provider::Shm), local]).unwrap()
}

/// A program for each of these paths, which sends the flow of `near` by it.
fn two_senders(near: &Folder, definition: &FlowDefinition, merge: &Merge) -> Vec<Running> {
    let id = definition.id.to_string();
    let sender = |(at, provider): (usize, &str)| {
        let file = near.path().join(format!("path-{at}.json"));
        std::fs::write(&file, merge.path(at).unwrap().info().to_json()).unwrap();
        demo(&["-i", "-p", provider, "-f", &id, "-t", &format!("@{}", file.to_str().unwrap())], near)
    };
    ["shm", "tcp"].into_iter().enumerate().map(sender).collect()
}

/// Two programs send one flow, over shared memory and over udp; either may be killed.
fn one_of_two_is_killed(killed: usize) {
    let (near, far) = (Folder::new(), Folder::new());
    let definition = camera();
    let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
    let mut merge = two_paths(&far, &definition);
    let reader = far.domain().read_grains(definition.id).unwrap();
    let mut sending = two_senders(&near, &definition, &merge);
    let begin = Instant::now();
    while (0..2).any(|at| merge.path(at).unwrap().stats().taken == 0) {
        merge.poll().unwrap();
        assert!(begin.elapsed() < LONG, "no initiators");
    }
    // Both have sent something.
    let mut index = 1000;
    while (0..2).any(|at| merge.path(at).unwrap().stats().published == 0) {
        write(&writer, index);
        index += 1;
        merge.read(Duration::from_millis(5)).unwrap();
        assert!(begin.elapsed() < LONG, "no data on a path");
    }
    let (first, count) = (index + 100, 150);
    let mut before = 0;
    for index in first..first + count {
        write(&writer, index);
        if index == first + 50 {
            // At a random moment: its copy of this grain may be complete, partial, or missing.
            sending.remove(killed).kill();
        }
        let begin = Instant::now();
        loop {
            match merge.poll().unwrap() {
                Some(Received::Grain { index: there, invalid: false, .. }) if there == index => break,
                Some(Received::Grain { index: there, .. }) => {
                    assert!(there < first, "{there} twice, or invalid");
                }
                _ => assert!(begin.elapsed() < LONG, "no grain {index}: {:?}", merge.stats()),
            }
        }
        if index == first + 20 {
            // The jump before the first grain was reported by now.
            before = merge.stats().lost;
        }
        let bytes = reader.read(index, Wait::Not).unwrap().to_vec().unwrap();
        assert!(bytes.iter().all(|&byte| byte == byte_of(index)), "grain {index}");
        assert_eq!(reader.head(), index);
    }
    assert_eq!(merge.stats().lost, before, "{:?}", merge.stats());
    assert!(merge.stats().duplicates + merge.stats().late > 0, "{:?}", merge.stats());
}

#[test]
fn the_flow_goes_on_when_the_first_path_is_killed() {
    one_of_two_is_killed(0);
}

#[test]
fn the_flow_goes_on_when_the_second_path_is_killed() {
    one_of_two_is_killed(1);
}

/// Two paths of this process, each from its own domain.
struct Two {
    far: Folder,
    definition: FlowDefinition,
    sources: [GrainWriter; 2],
    merge: Merge,
    initiators: [Initiator; 2],
    _near: [Folder; 2],
}

fn two() -> Two {
    let (near, far) = ([Folder::new(), Folder::new()], Folder::new());
    let definition = camera();
    let sources = near
        .each_ref()
        .map(|folder| folder.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer);
    let merge = Merge::open(&far.domain(), &definition, &[path(Provider::Shm), path(Provider::Tcp)]).unwrap();
    let initiators = [(0, Provider::Shm), (1, Provider::Tcp)].map(|(at, provider)| {
        let mut initiator =
            Initiator::open(&near[at].domain(), definition.id, provider, (None, None)).unwrap();
        initiator.add(merge.path(at).unwrap().info()).unwrap();
        initiator
    });
    Two { far, definition, sources, merge, initiators, _near: near }
}

fn poll_all(initiators: &mut [Initiator], merge: &mut Merge) {
    for initiator in initiators {
        initiator.poll().unwrap();
    }
    merge.poll().unwrap();
}

fn is_connected(initiator: &Initiator) -> bool {
    initiator.targets().all(|(_, state, _)| state == PeerState::Connected)
}

#[test]
fn gaps_are_filled_invalid_grains_mended_and_the_first_wins() {
    let Two { far, definition, sources, mut merge, mut initiators, _near } = two();
    let turns = |merge: &mut Merge,
                 initiators: &mut [Initiator; 2],
                 is_done: &dyn Fn(&Merge, &[Initiator; 2]) -> bool| {
        let (begin, mut seen) = (Instant::now(), Vec::new());
        while !is_done(merge, initiators) {
            for initiator in initiators.iter_mut() {
                initiator.poll().unwrap();
            }
            seen.extend(merge.poll().unwrap());
            assert!(begin.elapsed() < LONG, "timeout: {:?}", merge.stats());
        }
        seen.extend(std::iter::from_fn(|| merge.poll().unwrap()));
        seen
    };
    turns(&mut merge, &mut initiators, &|_, initiators| initiators.iter().all(is_connected));
    let reader = far.domain().read_grains(definition.id).unwrap();
    // The first path skips 101, and reports 102 as invalid.
    write(&sources[0], 100);
    sources[0].open(102).unwrap().commit_invalid().unwrap();
    initiators[0].send(100).unwrap();
    initiators[0].send(102).unwrap();
    let slices = turns(&mut merge, &mut initiators, &|merge, _| merge.stats().published == 2)
        .into_iter()
        .find_map(|event| {
            if let Received::Grain { index: 102, slices, invalid: true } = event {
                Some(slices)
            } else {
                None
            }
        });
    assert!(reader.read(102, Wait::Not).unwrap().info().is_invalid());
    assert_eq!(reader.head(), 102);
    // The second path has all of them; its 100 differs, and is dropped.
    write(&sources[1], 101);
    write(&sources[1], 102);
    sources[1].open(100).unwrap().commit().unwrap();
    (100..103).for_each(|index| initiators[1].send(index).unwrap());
    let seen = turns(&mut merge, &mut initiators, &|merge, _| merge.stats().mended == 1);
    let slices = slices.expect("the invalid grain was reported");
    let grain = |index| Received::Grain { index, slices, invalid: false };
    assert_eq!(seen, [grain(101), grain(102)]);
    for index in 100..103 {
        let there = reader.read(index, Wait::Not).unwrap();
        assert!(!there.info().is_invalid());
        assert!(there.to_vec().unwrap().iter().all(|&byte| byte == byte_of(index)), "grain {index}");
    }
    assert_eq!(reader.head(), 102, "a grain that fills a gap does not move the head");
    let stats = merge.stats();
    assert_eq!((stats.published, stats.duplicates, stats.late, stats.lost), (3, 1, 0, 0), "{stats:?}");
    // Readers see slices before their grain is whole, from whichever path has more of them.
    let (slices, size) = (103, definition.geometry());
    let mxl::Geometry::Grains { slices: lines, .. } = size else { unreachable!() };
    let mut parts = sources.each_ref().map(|source| source.open(slices).unwrap());
    let line = parts[0].len() / usize::from(lines);
    for (at, until) in [(0, 1), (1, 3), (0, 5)] {
        for part in &mut parts {
            part.write(0, &vec![byte_of(103); line * usize::from(until)]).unwrap();
            part.commit_slices(until).unwrap();
        }
        initiators[at].send_slices(103, 0, until).unwrap();
        let seen =
            turns(&mut merge, &mut initiators, &|_, _| reader.read_slices(103, until, Wait::Not).is_ok());
        assert_eq!(seen, [Received::Grain { index: 103, slices: until, invalid: false }]);
        let there = reader.read_slices(103, until, Wait::Not).unwrap();
        let mut bytes = vec![0; line * usize::from(until)];
        there.read_into(0, &mut bytes).unwrap();
        assert!(there.info().valid_slices == until && bytes.iter().all(|&byte| byte == byte_of(103)));
    }
    // The first path stops there, and the second one completes the grain.
    let mut rest = parts;
    rest[1].write(0, &vec![byte_of(103); line * usize::from(lines)]).unwrap();
    let [_, second] = rest;
    second.commit().unwrap();
    initiators[1].send_slices(103, 3, lines).unwrap();
    let seen = turns(&mut merge, &mut initiators, &|_, _| reader.read(103, Wait::Not).is_ok());
    assert_eq!(seen, [grain(103)]);
    assert!(reader.read(103, Wait::Not).unwrap().to_vec().unwrap().iter().all(|&byte| byte == byte_of(103)));
    assert_eq!(merge.stats().published, 4);
    let metrics = merge.metrics();
    for line in [
        "mxl_merge_published_total{",
        "path=\"1\"",
        "mxl_merge_path_connected{",
        "mxl_merge_path_arrival_seconds_count{",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    // The flows of the paths are deleted with the merge.
    let flows = || std::fs::read_dir(far.path()).unwrap().count();
    let with_paths = flows();
    drop((merge, reader));
    assert_eq!(flows() + 3, with_paths);
}

#[test]
fn a_path_from_the_far_future_does_not_stop_the_others() {
    let Two { far, definition, sources, mut merge, mut initiators, _near } = two();
    let begin = Instant::now();
    while !initiators.iter().all(is_connected) {
        poll_all(&mut initiators, &mut merge);
        assert!(begin.elapsed() < LONG, "no initiators");
    }
    let reader = far.domain().read_grains(definition.id).unwrap();
    for index in 100..160 {
        write(&sources[0], index);
        initiators[0].send(index).unwrap();
        if index > 100 {
            // It continues from there.
            write(&sources[1], index + 1_000_000);
            initiators[1].send(index + 1_000_000).unwrap();
        }
        let begin = Instant::now();
        while reader.head() != index {
            poll_all(&mut initiators, &mut merge);
            assert!(begin.elapsed() < LONG, "no grain {index}: {:?}", merge.stats());
        }
    }
    let begin = Instant::now();
    while merge.stats().strange == 0 {
        poll_all(&mut initiators, &mut merge);
        assert!(begin.elapsed() < LONG, "{:?}", merge.stats());
    }
    assert_eq!((merge.stats().published, merge.stats().lost), (60, 0), "{:?}", merge.stats());
}

/// How one path fails.
#[derive(Clone, Copy)]
enum End {
    /// The program that sends on it is killed.
    Killed(usize),
    /// The flow that it is received into loses its samples.
    Truncated(usize),
}

/// Truncates the samples of a path's own flow.
fn truncate(far: &Folder, path: usize) {
    let name = format!("(path {path})");
    let flows = std::fs::read_dir(far.path()).unwrap().map(|entry| entry.unwrap().path());
    let is_path = |flow: &std::path::PathBuf| {
        std::fs::read_to_string(flow.join("flow_def.json")).is_ok_and(|text| text.contains(&name))
    };
    let flow = flows.into_iter().find(is_path).expect("the flow of the path");
    std::fs::OpenOptions::new().write(true).open(flow.join("channels")).unwrap().set_len(0).unwrap();
}

/// Batches of 10 ms from two programs, until something happens to one path.
fn sound_goes_on(ends: End) {
    const BATCH: u64 = 480;
    let (near, far) = (Folder::new(), Folder::new());
    let definition = microphone(3);
    let mut writer = near.domain().create_samples(&definition, &BatchHints::default()).unwrap().writer;
    let mut merge = two_paths(&far, &definition);
    let reader = far.domain().read_samples(definition.id).unwrap();
    let mut sending = two_senders(&near, &definition, &merge);
    let value = |index: u64, channel: u32| (index % 10_007) as f32 + channel as f32 / 4.0;
    let mut write = |end: u64| {
        let mut open = writer.open(end, BATCH).unwrap();
        for channel in 0..3 {
            let samples: Vec<f32> = (end - BATCH..end).map(|index| value(index, channel)).collect();
            open.write_channel(channel, &samples).unwrap();
        }
        open.commit().unwrap();
    };
    let begin = Instant::now();
    let mut end = 100 * BATCH;
    while (0..2).any(|at| merge.path(at).unwrap().stats().published == 0) {
        write(end);
        end += BATCH;
        merge.read(Duration::from_millis(5)).unwrap();
        assert!(begin.elapsed() < LONG, "no data on a path: {:?}", merge.stats());
    }
    let first = end;
    let (mut before, mut next) = (0, None);
    for batch in 0..150 {
        write(end);
        if batch == 50 {
            match ends {
                End::Killed(path) => sending.remove(path).kill(),
                End::Truncated(path) => truncate(&far, path),
            }
        }
        let begin = Instant::now();
        while reader.head() < end {
            if let Some(Received::Samples { index, count }) = merge.poll().unwrap() {
                assert!(next.is_none_or(|next| index - count == next), "nothing twice, and no gap");
                next = (index >= first).then_some(index);
            }
            assert!(begin.elapsed() < LONG, "not up to {end}: {:?}", merge.stats());
        }
        if batch == 20 {
            before = merge.stats().lost;
        }
        if batch > 20 {
            let there = reader.read(end, BATCH, Wait::Not).unwrap();
            for channel in 0..3 {
                let mut samples = vec![0_f32; BATCH as usize];
                there.read_channel(channel, &mut samples).unwrap();
                let is_right = |(index, sample): (u64, &f32)| *sample == value(index, channel);
                assert!((end - BATCH..).zip(&samples).all(is_right), "channel {channel} before {end}");
            }
        }
        end += BATCH;
    }
    assert_eq!(merge.stats().lost, before, "{:?}", merge.stats());
    assert!(merge.stats().duplicates > 0, "{:?}", merge.stats());
}

#[test]
fn sound_goes_on_when_the_first_path_is_killed() {
    sound_goes_on(End::Killed(0));
}

#[test]
fn sound_goes_on_when_the_second_path_is_killed() {
    sound_goes_on(End::Killed(1));
}

#[test]
fn sound_goes_on_when_a_path_s_file_is_truncated() {
    sound_goes_on(End::Truncated(0));
}

/// The program merges: two initiators send, one is killed, and the metrics of both paths are exported.
#[test]
fn the_demo_merges_two_paths() {
    let (near, far) = (Folder::new(), Folder::new());
    let definition = camera();
    let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
    let flow = far.path().join("flow.json");
    std::fs::write(&flow, definition.to_json()).unwrap();
    let [flow, first, second, metrics] = ["flow.json", "0.json", "1.json", "merge.prom"]
        .map(|name| far.path().join(name).to_str().unwrap().to_owned());
    let _merging = demo(
        &[
            "-p",
            "shm",
            "--path",
            "udp,127.0.0.1",
            "-f",
            &flow,
            "-t",
            &first,
            "-t",
            &second,
            "--metrics",
            &metrics,
            "--progress-thread",
        ],
        &far,
    );
    let begin = Instant::now();
    let is_written = |path: &str| std::fs::read(path).is_ok_and(|text| !text.is_empty());
    while !is_written(&first) || !is_written(&second) {
        std::thread::sleep(Duration::from_millis(5));
        assert!(begin.elapsed() < LONG, "no target infos");
    }
    std::thread::sleep(Duration::from_millis(50));
    let id = definition.id.to_string();
    let mut sending: Vec<_> = [("shm", &first), ("udp", &second)]
        .map(|(provider, info)| {
            demo(&["-i", "-p", provider, "-f", &id, "-t", &format!("@{info}"), "--progress-thread"], &near)
        })
        .into();
    let mut index = 1000;
    let mut until = |what: &dyn Fn(&str) -> bool| {
        let begin = Instant::now();
        while !what(&std::fs::read_to_string(&metrics).unwrap_or_default()) {
            write(&writer, index);
            index += 1;
            std::thread::sleep(Duration::from_millis(10));
            assert!(begin.elapsed() < LONG, "{}", std::fs::read_to_string(&metrics).unwrap_or_default());
        }
    };
    let has = |text: &str, start: &str, is_right: &dyn Fn(u64) -> bool| {
        let value =
            |line: &str| line.rsplit(' ').next().and_then(|value| value.parse().ok()).is_some_and(is_right);
        text.lines().filter(|line| line.starts_with(start)).filter(|line| value(line)).count()
    };
    until(&|text| has(text, "mxl_merge_path_published_total", &|count| count > 10) == 2);
    sending.remove(0).kill();
    let count = |text: &str| {
        let line = text.lines().find(|line| line.starts_with("mxl_merge_published_total"));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    let before = count(&std::fs::read_to_string(&metrics).unwrap());
    until(&|text| count(text) > before + 100);
    let reader = far.domain().read_grains(definition.id).unwrap();
    // On a busy machine the source may be overwritten while it is sent: then the grain is flagged, or overwritten here.
    let valid = || {
        let there = reader.read(reader.head(), Wait::Not).ok().filter(|there| !there.info().is_invalid())?;
        Some((there.info().index, there.to_vec().ok()?))
    };
    until(&|_| match valid() {
        Some((head, bytes)) => {
            assert!(bytes.iter().all(|&byte| byte == byte_of(head)), "grain {head} is torn");
            true
        }
        None => false,
    });
}

#[test]
fn what_cannot_be_merged_is_refused() {
    let far = Folder::new();
    let refused = |definition, paths: &[_]| match Merge::open(&far.domain(), &definition, paths) {
        Err(Error::Argument(why)) => why,
        _ => panic!("the merge was opened"),
    };
    assert!(refused(camera(), &[path(Provider::Shm)]).contains("1 paths; a merge has 2 to 8"));
    assert!(refused(camera(), &[path(Provider::Shm); 9]).contains("9 paths"));
    assert!(std::fs::read_dir(far.path()).unwrap().next().is_none(), "remains of a flow");
}
