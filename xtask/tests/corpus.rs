//! Replays the corpus of the fuzz targets, with the targets' own code.

#[path = "../../fuzz/src/lib.rs"]
mod targets;

use std::path::Path;

fn replay(target: &str, mut run: impl FnMut(&str, &[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).expect("a corpus for each target") {
        let path = entry.expect("an entry").path();
        println!("{}", path.display());
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        run(name, &std::fs::read(&path).expect("a readable input"));
        count += 1;
    }
    assert!(count > 0, "{} is empty", folder.display());
}

/// Inputs that fail the first check exercise little code. So every input must parse, unless its name begins with
/// `refused`.
#[test]
fn control() {
    replay("control", |name, input| {
        assert_eq!(targets::control(input), !name.starts_with("refused"), "{name}")
    });
}

#[test]
fn efa() {
    replay("efa", |name, input| assert_eq!(targets::efa(input), !name.starts_with("refused"), "{name}"));
}

#[test]
fn tcp() {
    replay("tcp", |name, input| assert_eq!(targets::tcp(input), !name.starts_with("refused"), "{name}"));
}

#[test]
fn tcp_first() {
    // Which strangers have an answer by the end depends on time.
    let mut answered = 0;
    replay("tcp_first", |_, input| answered += targets::tcp_first(input));
    assert!(answered > 0, "no stranger gets an answer");
}

#[test]
fn efa_lane() {
    replay("efa_lane", |name, input| assert!(targets::efa_lane(input) > 0, "{name} does nothing"));
}

#[test]
fn verbs_lane() {
    replay("verbs_lane", |name, input| assert!(targets::verbs_lane(input) > 0, "{name} does nothing"));
}

#[test]
fn verbs_datagrams() {
    replay("verbs_datagrams", |name, input| {
        assert!(targets::verbs_datagrams(input) > 0, "{name} delivers nothing")
    });
}

#[test]
fn verbs_connected() {
    replay("verbs_connected", |name, input| {
        assert!(targets::verbs_connected(input) > 0, "{name} does nothing")
    });
}

#[test]
fn hints() {
    replay("hints", |_, input| targets::hints(input));
}

#[test]
fn lane() {
    replay("lane", |_, input| targets::lane(input));
}

#[test]
fn record() {
    replay("record", |_, input| targets::record(input));
}

#[test]
fn protocol() {
    replay("protocol", |name, input| {
        let sessions = targets::protocol(input);
        assert!(sessions > 0 || name == "strangers", "{name} gets no further than a handshake");
    });
}

#[test]
fn rails() {
    replay("rails", |name, input| {
        assert_eq!(targets::rails(input), !name.starts_with("refused"), "{name}");
    });
}

#[test]
fn agents() {
    replay("agents", |name, input| assert!(targets::agents(input), "{name} opens no session"));
}

#[test]
fn session() {
    replay("session", |name, input| assert!(targets::session(input), "{name}"));
}

#[test]
fn media() {
    // Which of them connects depends on time.
    let mut connected = 0;
    replay("media", |_, input| connected += u32::from(targets::media(input)));
    assert!(connected > 0, "no input connects to anything");
}

#[test]
fn mxl() {
    replay("mxl", |name, input| {
        assert_eq!(targets::mxl(input), !name.starts_with("refused"), "{name}");
    });
}
