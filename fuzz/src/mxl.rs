//! Untrusted input of media flows: definitions and files of a domain that other users may write, and messages (with and
//! without payloads) and target infos of peers. The first byte chooses.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use mxl::{BatchHints, Domain, FlowDefinition, Uuid, Wait};
use mxl_fabrics::gateway::http;
use mxl_fabrics::gateway::wire::{ControlReply, ControlRequest};
use mxl_nmos::{Node, NodeOptions};

use super::Input;

/// Flows as the C++ SDK made them.
const VIDEO: &str = "11111111-2222-4333-8444-555555555501";
const AUDIO: &str = "11111111-2222-4333-8444-555555555503";
macro_rules! made_by_cpp {
    ($($name:literal),*) => {
        [$(($name, include_bytes!(concat!("../../crates/mxl/tests/cpp-domain/", $name)))),*]
    };
}
const FILES: [(&str, &[u8]); 8] = made_by_cpp![
    "11111111-2222-4333-8444-555555555501.mxl-flow/data",
    "11111111-2222-4333-8444-555555555501.mxl-flow/grains/data.0",
    "11111111-2222-4333-8444-555555555501.mxl-flow/grains/data.1",
    "11111111-2222-4333-8444-555555555501.mxl-flow/grains/data.2",
    "11111111-2222-4333-8444-555555555501.mxl-flow/flow_def.json",
    "11111111-2222-4333-8444-555555555503.mxl-flow/data",
    "11111111-2222-4333-8444-555555555503.mxl-flow/channels",
    "options.json"
];

/// Runs an input. Returns whether it was a valid definition, or a flow that could be read in part.
pub fn mxl(input: &[u8]) -> bool {
    let Some((&kind, bytes)) = input.split_first() else { return false };
    match kind {
        b'D' => definition(&String::from_utf8_lossy(bytes)),
        b'H' => BatchHints::parse(&String::from_utf8_lossy(bytes)).is_ok(),
        // A value that parses encodes back to the same.
        b'M' => mxl_fabrics::message::Message::parse(bytes).is_some_and(|message| {
            assert_eq!(message.encode(), bytes);
            true
        }),
        b'P' => mxl_fabrics::message::Piece::parse(bytes).is_some_and(|(piece, payload)| {
            assert_eq!([&piece.encode(), payload].concat(), bytes);
            true
        }),
        b'T' => mxl_fabrics::TargetInfo::parse(&String::from_utf8_lossy(bytes)).is_ok_and(|info| {
            assert_eq!(
                mxl_fabrics::TargetInfo::parse(&info.to_json()).expect("what was written parses"),
                info
            );
            true
        }),
        b'Q' => ControlRequest::parse(bytes).is_ok_and(|request| {
            let line = request.to_line();
            assert_eq!(ControlRequest::parse(line.trim_end().as_bytes()), Ok(request));
            true
        }),
        b'R' => ControlReply::parse(bytes).is_ok_and(|reply| {
            let line = reply.to_line();
            assert_eq!(ControlReply::parse(line.trim_end().as_bytes()), Ok(reply));
            true
        }),
        // A request to the page of a gateway.
        b'W' => match http::parse(bytes) {
            http::Parsed::Request { request, len, .. } => {
                assert!(len <= bytes.len() && request.body.len() <= http::MAX_BODY);
                true
            }
            _ => false,
        },
        b'N' => nmos(bytes),
        _ => files(&mut Input(bytes)),
    }
}

/// A controller patches a receiver. What is refused changes nothing.
fn nmos(body: &[u8]) -> bool {
    let options = NodeOptions {
        seed: "fuzz".into(),
        label: "fuzz".into(),
        hostname: "fuzz".into(),
        host: ("127.0.0.1".into(), 1),
        domain: None,
        receivers: 1,
        gateway: None,
    };
    let node = Node::new(options, Box::new(()));
    let (id, before) = node.receivers().swap_remove(0);
    let path = format!("/x-nmos/connection/v1.2/single/receivers/{id}/staged");
    let staged = || node.answer("GET", &path, b"").expect("a path of NMOS");
    let staged_before = staged();
    let answer = node.answer("PATCH", &path, body).expect("a path of NMOS");
    // What is accepted for later (202) is staged, and not yet active.
    if answer.status != 200 {
        assert_eq!(node.receivers()[0].1, before);
    }
    let is_taken = matches!(answer.status, 200 | 202);
    if !is_taken {
        assert_eq!(staged(), staged_before);
    }
    is_taken
}

/// A value that parses is written as a text that parses to the same value.
fn definition(text: &str) -> bool {
    let Ok(definition) = FlowDefinition::parse(text) else { return false };
    let again = FlowDefinition::parse(&definition.to_json()).expect("what was written parses");
    assert_eq!(again, definition);
    assert_eq!(again.geometry(), definition.geometry());
    true
}

/// A directory that is removed after the run.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let shm = PathBuf::from("/dev/shm");
        let base = if shm.is_dir() { shm } else { std::env::temp_dir() };
        let name = format!("mxl-fuzz-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = Self(base.join(name));
        fs::create_dir_all(&folder.0).expect("a folder");
        folder
    }

    pub(super) fn domain(&self) -> Domain {
        Domain::open(&self.0).expect("a directory")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Reads flows whose files were changed as the input says, before and after they were opened.
fn files(input: &mut Input<'_>) -> bool {
    let folder = Folder::new();
    for (name, bytes) in FILES {
        let path = folder.0.join(name);
        fs::create_dir_all(path.parent().expect("in the folder")).expect("a folder");
        fs::write(path, bytes).expect("a file");
    }
    change(&folder, input, true);
    let domain = folder.domain();
    let mut was_read = false;
    for id in domain.flows().unwrap_or_default() {
        let _ = domain.definition(id);
    }
    if let Ok(reader) = domain.read_grains(Uuid::parse_str(VIDEO).expect("an id")) {
        change(&folder, input, false);
        let head = reader.head();
        for index in [head, head.wrapping_sub(1), 1000, 1001, u64::MAX] {
            if let Ok(grain) = reader.read_slices(index, 1, Wait::Not) {
                let mut bytes = vec![0; grain.len()];
                was_read |= grain.read_into(0, &mut bytes).is_ok();
                let _ = (grain.still_valid(), grain.header());
            }
        }
    }
    if let Ok(reader) = domain.read_samples(Uuid::parse_str(AUDIO).expect("an id")) {
        change(&folder, input, false);
        for (index, count) in [(reader.head(), 10), (reader.head(), reader.max_read()), (u64::MAX, 1), (0, 0)]
        {
            if let Ok(samples) = reader.read(index, count, Wait::Not) {
                let mut channel = vec![0_f32; samples.len()];
                was_read |= samples.read_channel(0, &mut channel).is_ok();
                let _ = (samples.still_valid(), samples.pieces(0));
            }
        }
    }
    was_read
}

/// Overwrites bytes of files. Lengths change only before the files are opened, because no library survives the
/// truncation of every mapped file.
fn change(folder: &Folder, input: &mut Input<'_>, with_lengths: bool) {
    for _ in 0..input.byte() % 8 {
        let (name, bytes) = FILES[usize::from(input.byte()) % FILES.len()];
        let path = folder.0.join(name);
        let at = input.short() % (bytes.len() + 1);
        let count = usize::from(input.byte());
        let Ok(mut contents) = fs::read(&path) else { continue };
        if with_lengths && count == 255 {
            contents.truncate(at);
        } else {
            let new = input.bytes(count % 32);
            let end = (at + new.len()).min(contents.len());
            if at < end {
                contents[at..end].copy_from_slice(&new[..end - at]);
            }
        }
        if with_lengths {
            fs::write(&path, contents).expect("a file");
        } else {
            // In place, because rewriting the file would truncate it for a moment.
            use std::os::unix::fs::FileExt;
            let file = fs::OpenOptions::new().write(true).open(&path).expect("a file");
            file.write_all_at(&contents, 0).expect("as long as it was");
        }
    }
}
