//! A rail over real sockets that goes mute: its wire is cut without an error. Its held packets arrive when the wire is
//! repaired, after the transfers have ended over the other rail and the memory was rewritten.

use std::time::{Duration, Instant};

use multirail::{Agent, Config, Way};
use ofi::Hints;
use ofi_testkit::process::{Child, Line};

use super::support::{self, holds, ports, shell, whole};

const LONG: Duration = Duration::from_secs(60);
/// A transfer of two rails, in many parts.
const LEN: usize = 4 << 20;
/// After this time without an end, a path is fenced.
const STALL: Duration = Duration::from_secs(1);

fn agent(name: &str) -> Agent {
    let config = Config { stall_timeout: STALL, largest_access: 256 << 10, ..Config::default() };
    let builder = Agent::builder(name).config(config).shared_memory(false).progress_thread(true);
    builder.rail(Hints::new().provider("udp")).rail(Hints::new().provider("udp")).open().unwrap()
}

/// One cut, in a network of its own.
pub fn cut(line: &mut Line, _: &[String]) {
    shell(support::TABLE).unwrap();
    let (alice, bob) = (agent("alice"), agent("bob"));
    let [source, sink] = [1, 0].map(|byte| alice.register(vec![byte; LEN]).unwrap());
    let [target, origin] = [0, 2].map(|byte| bob.register(vec![byte; LEN]).unwrap());
    alice.load(&bob.metadata().unwrap()).unwrap();
    let write = alice.prepare("bob", Way::Write, &[whole(&source).0], &[whole(&target).1]).unwrap();
    let read = alice.prepare("bob", Way::Read, &[whole(&sink).0], &[whole(&origin).1]).unwrap();
    // Both rails are measured, and the keys are leased.
    for _ in 0..4 {
        write.post(LONG).unwrap().wait().unwrap();
        read.post(LONG).unwrap().wait().unwrap();
    }
    let moved = |agent: &Agent| agent.paths("bob").unwrap().iter().map(|path| path.moved).min().unwrap();
    assert!(moved(&alice) > 0, "both rails are used");
    source.write_from(0, &vec![3; LEN]).unwrap();
    origin.write_from(0, &vec![4; LEN]).unwrap();
    target.write_from(0, &vec![0; LEN]).unwrap();
    sink.write_from(0, &vec![0; LEN]).unwrap();

    let began = Instant::now();
    for port in [&alice, &bob].map(|agent| ports(&agent.metadata().unwrap())[1]) {
        shell(&format!("nft add rule ip cut in udp dport {port} drop")).unwrap();
    }
    let (writing, reading) = (write.post_notify(b"written", LONG).unwrap(), read.post(LONG).unwrap());
    assert_eq!(bob.wait_notification(LONG).unwrap().unwrap().bytes, b"written");
    writing.wait().unwrap();
    reading.wait().unwrap();
    let took = began.elapsed();
    assert!(holds(&target, 3) && holds(&sink, 4));
    let counts = alice.counts();
    assert!(counts.fenced > 0 && counts.moved > 0, "{counts:?}");
    assert!(took < 20 * STALL, "{took:?}");
    assert!(writing.wait_quiet(LONG).unwrap() && reading.wait_quiet(LONG).unwrap(), "no rail uses it");
    drop((writing, reading));

    // The memory is written anew, by the other rail and by the program, before the wire is mended.
    source.write_from(0, &vec![5; LEN]).unwrap();
    origin.write_from(0, &vec![6; LEN]).unwrap();
    let (writing, reading) = (write.post(LONG).unwrap(), read.post(LONG).unwrap());
    writing.wait().unwrap();
    reading.wait().unwrap();
    assert!(holds(&target, 5) && holds(&sink, 6));
    target.write_from(0, &vec![7; LEN]).unwrap();
    sink.write_from(0, &vec![8; LEN]).unwrap();
    source.write_from(0, &vec![9; LEN]).unwrap();
    shell("nft flush chain ip cut in").unwrap();
    let mended = Instant::now();
    while alice.under_way().0 > 0 {
        assert!(mended.elapsed() < LONG, "{:?} under way", alice.under_way());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(holds(&target, 7) && holds(&sink, 8), "nothing came late");

    // Both rails work again.
    drop((writing, reading));
    let before = moved(&alice);
    while moved(&alice) == before {
        assert!(mended.elapsed() < LONG, "{:?}", alice.paths("bob").unwrap());
        write.post(LONG).unwrap().wait().unwrap();
    }
    assert!(holds(&target, 9));
    line.say(format!("{took:?} {counts:?}"));
}

#[test]
fn the_parts_on_a_rail_that_was_cut_move_and_come_to_nothing_late() {
    if let Err(why) = shell(&format!("unshare -Urn sh -ec \"{}\"", support::TABLE)) {
        return println!("NOT RUN: a cut of a rail: {why}");
    }
    let mut child = Child::start_under(&["unshare", "-Urn"], "cut", &[], &[]);
    println!("{}", child.line.try_hear().expect("the transfers move: see above"));
    child.finish();
}
