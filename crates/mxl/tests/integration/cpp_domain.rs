//! A domain from the C++ SDK (commit c2661a91, version 1.2.0-dev): our readers find its content, and our writers
//! produce the same bytes.
//!
//! It has three flows with a history of 120 ms. The grains 1000, 1001 (flagged invalid) and 1002 (half of its slices)
//! are in the two rings of grains; byte `i` of each is the index plus `i`. The samples up to 8000 are in the audio
//! ring; each is its index, and the negative of the index in the second channel.

use std::fs;
use std::path::{Path, PathBuf};

use mxl::{BatchHints, Domain, Error, FlowDefinition, GrainInfo, Uuid, Wait};

use super::common::Folder;

const VIDEO: Uuid = Uuid::from_u128(0x11111111_2222_4333_8444_555555555501);
const DATA: Uuid = Uuid::from_u128(0x11111111_2222_4333_8444_555555555502);
const AUDIO: Uuid = Uuid::from_u128(0x11111111_2222_4333_8444_555555555503);
/// Bytes of `data` that differ from one creation to the next: two times and the inode.
const CHANGING: [std::ops::Range<usize>; 2] = [208..224, 2048..2056];

fn made_by_cpp() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cpp-domain")
}

fn bytes_of(index: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (index + at) as u8).collect()
}

/// Every file below a folder, by its path in it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path.strip_prefix(folder).unwrap().to_path_buf());
            }
        }
    }
    found.sort();
    found
}

/// A copy of the domain that processes may write.
fn copied() -> Folder {
    let folder = Folder::new();
    for file in files(&made_by_cpp()) {
        let to = folder.path().join(&file);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(made_by_cpp().join(file), to).unwrap();
    }
    folder
}

#[test]
fn readers_find_what_cpp_wrote() {
    let folder = copied();
    let domain = folder.domain();
    assert_eq!(domain.flows().unwrap(), [VIDEO, DATA, AUDIO]);
    for (id, size, slices) in [(VIDEO, 272, 2), (DATA, 4096, 4096)] {
        let reader = domain.read_grains(id).unwrap();
        assert_eq!((reader.head(), reader.grains()), (1002, 3));
        assert_eq!(reader.rate(), domain.definition(id).unwrap().geometry().rate());
        let grain = reader.read(1001, Wait::Not).unwrap();
        let info = grain.info();
        assert!(info.is_invalid());
        assert_eq!((info.size, info.total_slices, info.valid_slices), (size, slices, slices));
        assert_eq!(grain.to_vec().unwrap(), bytes_of(1001, size as usize));
        let grain = reader.read_slices(1002, slices / 2, Wait::Not).unwrap();
        assert_eq!(grain.to_vec().unwrap(), bytes_of(1002, size as usize));
        assert!(matches!(reader.read(1002, Wait::Not), Err(Error::TooEarly { index: 1002 })));
        // As in the C++ SDK, the oldest grain is in the slot that the writer opens next.
        assert!(reader.read(1000, Wait::Not).is_ok());
        assert!(matches!(reader.read(999, Wait::Not), Err(Error::TooLate { oldest: 1001, .. })));
    }
    let reader = domain.read_samples(AUDIO).unwrap();
    assert_eq!((reader.head(), reader.channels(), reader.max_read()), (8000, 2, 1024));
    let samples = reader.read(8000, 1000, Wait::Not).unwrap();
    let mut channel = [0_f32; 1000];
    for sign in [1.0, -1.0] {
        samples.read_channel(u32::from(sign < 0.0), &mut channel).unwrap();
        assert!(channel.iter().zip(7000_u16..).all(|(&sample, index)| sample == sign * f32::from(index)));
    }
}

/// Writes the same as the program that created the domain.
fn write_the_same(domain: &Domain) {
    let text = |id| fs::read(made_by_cpp().join(format!("{id}.mxl-flow/flow_def.json"))).unwrap();
    let parse = |text: &[u8]| FlowDefinition::parse(std::str::from_utf8(text).unwrap()).unwrap();
    for (id, hints) in [(VIDEO, BatchHints::new(1, 2)), (DATA, BatchHints::default())] {
        let text = text(id);
        let writer = domain.create_grains_as(&parse(&text), &text, &hints).unwrap().writer;
        for index in 1000..1003 {
            let mut grain = writer.open(index).unwrap();
            let info = grain.info();
            grain.write(0, &bytes_of(index, info.size as usize)).unwrap();
            drop(grain);
            let valid_slices = if index == 1002 { info.total_slices / 2 } else { info.total_slices };
            writer.publish(GrainInfo { flags: u32::from(index == 1001), valid_slices, ..info }).unwrap();
        }
        // Dropping it would delete the flow.
        std::mem::forget(writer);
    }
    let text = text(AUDIO);
    let mut writer = domain.create_samples_as(&parse(&text), &text, &BatchHints::default()).unwrap().writer;
    for index in (80..=8000_u16).step_by(80) {
        let mut samples = writer.open(u64::from(index), 80).unwrap();
        for (channel, sign) in [1.0, -1.0].into_iter().enumerate() {
            let values: Vec<f32> = (index - 80..index).map(|sample| sign * f32::from(sample)).collect();
            samples.write_channel(channel as u32, &values).unwrap();
        }
        samples.commit().unwrap();
    }
    std::mem::forget(writer);
}

#[test]
fn writers_make_the_bytes_that_cpp_made() {
    let folder = Folder::new();
    fs::copy(made_by_cpp().join("options.json"), folder.path().join("options.json")).unwrap();
    write_the_same(&folder.domain());
    let names = files(&made_by_cpp());
    assert_eq!(files(folder.path()), names);
    for name in names {
        let [mut ours, mut theirs] =
            [folder.path(), &made_by_cpp()].map(|domain| fs::read(domain.join(&name)).unwrap());
        assert_eq!(ours.len(), theirs.len(), "{}", name.display());
        if name.ends_with("data") {
            for range in CHANGING {
                ours[range.clone()].fill(0);
                theirs[range].fill(0);
            }
        }
        let differs = ours.iter().zip(&theirs).position(|(ours, theirs)| ours != theirs);
        assert_eq!(differs, None, "{}: the first byte that differs", name.display());
    }
}
