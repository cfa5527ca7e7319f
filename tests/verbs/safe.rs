//! The safe layer over provider `verbs`, with the same calls as over every other provider. The nodes are in a separate
//! process that uses only the device.

use std::time::Duration;

use ofi::raw::Progress;
use ofi::{Completion, FiAddr, MrAccess, Node, RemoteWindow};
use ofi_testkit::Kit;
use ofi_testkit::process::{Child, Line};

use super::VerbsPair;

const LIMIT: Duration = Duration::from_secs(30);
const LEN: usize = 64 << 10;

fn open() -> Node {
    Node::open(&VerbsPair.hints()).unwrap()
}

fn next(node: &Node) -> Completion {
    node.wait(LIMIT).unwrap().expect("a completion within the limit").into_result().unwrap()
}

fn content() -> Vec<u8> {
    (0..LEN).map(|at| (at + at / 256) as u8).collect()
}

/// Registers memory once, and serves reads of it until a peer has finished.
fn serve(owner: &Node, reader: FiAddr) {
    let window = owner.domain().window(content(), MrAccess::REMOTE_READ).unwrap();
    owner.recv(vec![0; 8]).unwrap();
    owner.inject(&window.remote().to_bytes(), reader).unwrap();
    assert_eq!(next(owner).bytes(), b"finished");
    assert_eq!(window.withdraw().unwrap(), content());
}

/// An owner of memory, and a node that reads it. Prints how many of the reads the device executed.
pub fn served(line: &mut Line, _: &[String]) {
    let (owner, reader) = (open(), open());
    let to_reader = owner.insert(&reader.name().unwrap()).unwrap();
    let to_owner = reader.insert(&owner.name().unwrap()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&owner, to_reader));
        reader.recv(vec![0; RemoteWindow::BYTES]).unwrap();
        let remote = RemoteWindow::from_bytes(next(&reader).bytes()).unwrap();
        for _ in 0..10 {
            reader.read(vec![0; LEN], to_owner, remote).unwrap();
            assert_eq!(next(&reader).bytes(), content());
        }
        reader.inject(b"finished", to_owner).unwrap();
    });
    let statistics = reader.statistics();
    let native = statistics.iter().find(|statistic| statistic.name == "verbs_native_reads").unwrap();
    line.say(native.value);
}

/// As the example `hello`, with automatic progress: one thread, which waits at one of two nodes for a message of the
/// other.
pub fn waited(line: &mut Line, _: &[String]) {
    let open = || Node::open(&VerbsPair.hints().progress(Progress::Auto)).unwrap();
    let (alice, bob) = (open(), open());
    let to_bob = alice.insert(&bob.name().unwrap()).unwrap();
    bob.recv(vec![0; 64]).unwrap();
    alice.send(b"hello, Bob".to_vec(), to_bob).unwrap();
    line.say(String::from_utf8_lossy(next(&bob).bytes()));
}

/// Both ends of a new connection make progress, each by a thread of its domain. With manual progress the message waits
/// for a poll of the sender.
#[test]
fn with_automatic_progress_a_thread_may_wait_at_one_of_its_endpoints() {
    let mut child = Child::start_with("waited", &[], &[("FI_VERBS_SHARED_MEMORY", "0")]);
    child.line.expect("hello, Bob");
    child.finish();
}

#[test]
fn a_node_serves_reads_of_memory_that_it_registers_once() {
    let mut child = Child::start_with("served", &[], &[("FI_VERBS_SHARED_MEMORY", "0")]);
    let native: u64 = child.line.hear().parse().expect("a number");
    // The owner executes the first read, and later ones until the device's key has arrived.
    assert!((1..10).contains(&native), "{native} of 10 reads were the device's");
    child.finish();
}
