//! One flow by two paths.

mod common;

use std::time::{Duration, Instant};

use common::{Folder, LONG, byte_of, camera, demo, microphone};
use mxl::{BatchHints, GrainWriter, Wait};
use mxl_fabrics::{Error, Initiator, Merge, MergePath, PeerState, Provider, Received};

fn path(provider: Provider) -> MergePath<'static> {
    MergePath { provider, node: None, service: None, id: None }
}

fn write(writer: &GrainWriter, index: u64) {
    let mut grain = writer.open(index).unwrap();
    let bytes = vec![byte_of(index); grain.len()];
    grain.write(0, &bytes).unwrap();
    grain.commit().unwrap();
}

/// Two programs send one flow, over shared memory and over udp; either may be killed.
fn one_of_two_is_killed(killed: usize) {
    let (near, far) = (Folder::new(), Folder::new());
    let definition = camera();
    let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
    let local = MergePath { node: Some("127.0.0.1"), ..path(Provider::Tcp) };
    let mut merge = Merge::open(&far.domain(), &definition, &[path(Provider::Shm), local]).unwrap();
    let reader = far.domain().read_grains(definition.id).unwrap();
    let id = definition.id.to_string();
    let mut sending: Vec<_> = ["shm", "tcp"]
        .into_iter()
        .enumerate()
        .map(|(at, provider)| {
            let file = near.path().join(format!("path-{at}.json"));
            std::fs::write(&file, merge.path(at).unwrap().info().to_json()).unwrap();
            demo(&["-i", "-p", provider, "-f", &id, "-t", &format!("@{}", file.to_str().unwrap())], &near)
        })
        .collect();
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
        assert!(begin.elapsed() < LONG, "nothing by a path");
    }
    let (first, count) = (index + 100, 150);
    let mut before = 0;
    for index in first..first + count {
        write(&writer, index);
        if index == first + 50 {
            // In the middle of whatever it does: its copy of this grain may be there, or in part, or not at all.
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
            // The jump before the first was told by now.
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

#[test]
fn gaps_are_filled_invalid_grains_mended_and_the_first_wins() {
    let (near, other, far) = (Folder::new(), Folder::new(), Folder::new());
    let definition = camera();
    let sources = [&near, &other]
        .map(|folder| folder.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer);
    let mut merge =
        Merge::open(&far.domain(), &definition, &[path(Provider::Shm), path(Provider::Tcp)]).unwrap();
    let mut initiators = [(&near, Provider::Shm), (&other, Provider::Tcp)].map(|(folder, provider)| {
        Initiator::open(&folder.domain(), definition.id, provider, (None, None)).unwrap()
    });
    for (at, initiator) in initiators.iter_mut().enumerate() {
        initiator.add(merge.path(at).unwrap().info()).unwrap();
    }
    let turns = |merge: &mut Merge,
                 initiators: &mut [Initiator; 2],
                 is_done: &dyn Fn(&Merge, &[Initiator; 2]) -> bool| {
        let (begin, mut seen) = (Instant::now(), Vec::new());
        while !is_done(merge, initiators) {
            for initiator in initiators.iter_mut() {
                initiator.poll().unwrap();
            }
            seen.extend(merge.poll().unwrap());
            assert!(begin.elapsed() < LONG, "it did not happen: {:?}", merge.stats());
        }
        seen.extend(std::iter::from_fn(|| merge.poll().unwrap()));
        seen
    };
    turns(&mut merge, &mut initiators, &|_, initiators| {
        initiators.iter().all(|one| one.targets().all(|(_, state, _)| state == PeerState::Connected))
    });
    let reader = far.domain().read_grains(definition.id).unwrap();
    // The first path leaves out 101, and says that 102 is invalid.
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
    // The second one has all of them; its 100 differs, and is dropped.
    write(&sources[1], 101);
    write(&sources[1], 102);
    sources[1].open(100).unwrap().commit().unwrap();
    (100..103).for_each(|index| initiators[1].send(index).unwrap());
    let seen = turns(&mut merge, &mut initiators, &|merge, _| merge.stats().mended == 1);
    let slices = slices.expect("the invalid grain was told");
    let grain = |index| Received::Grain { index, slices, invalid: false };
    assert_eq!(seen, [grain(101), grain(102)]);
    for index in 100..103 {
        let there = reader.read(index, Wait::Not).unwrap();
        assert!(!there.info().is_invalid());
        assert!(there.to_vec().unwrap().iter().all(|&byte| byte == byte_of(index)), "grain {index}");
    }
    assert_eq!(reader.head(), 102, "what fills a gap is not the newest");
    let stats = merge.stats();
    assert_eq!((stats.published, stats.duplicates, stats.late, stats.lost), (3, 1, 0, 0), "{stats:?}");
    // A slice of a grain is none of it.
    let before = merge.stats();
    let mut part = sources[0].open(103).unwrap();
    part.commit_slices(1).unwrap();
    initiators[0].send_slices(103, 0, 1).unwrap();
    let published = merge.path(0).unwrap().stats().published;
    turns(&mut merge, &mut initiators, &|merge, _| merge.path(0).unwrap().stats().published > published);
    assert_eq!(merge.stats(), before);
    // Flows of paths go with the merge.
    let flows = || std::fs::read_dir(far.path()).unwrap().count();
    let with_paths = flows();
    drop((merge, reader));
    assert_eq!(flows() + 3, with_paths);
}

#[test]
fn what_cannot_be_merged_is_refused() {
    let far = Folder::new();
    let refused = |definition, paths: &[_]| match Merge::open(&far.domain(), &definition, paths) {
        Err(Error::Argument(why)) => why,
        _ => panic!("it was taken"),
    };
    assert!(refused(camera(), &[path(Provider::Shm)]).contains("1 paths; a merge has 2 to 8"));
    assert!(refused(camera(), &[path(Provider::Shm); 9]).contains("9 paths"));
    assert!(refused(microphone(2), &[path(Provider::Shm); 2]).contains("only grains"));
    assert!(std::fs::read_dir(far.path()).unwrap().next().is_none(), "nothing was made");
}
