//! An address vector that several processes share: all agree on the numbers, processes die while they change
//! it, and nothing is left behind.

use std::sync::Arc;

use ofi_testkit::leftovers::{Snapshot, sockets_named};
use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};
use ofi_tests::{Naming, open, parse};

fn shared(name: &str, read_only: bool) -> AvAttr {
    AvAttr { name: Some(name.into()), read_only, ..AvAttr::default() }
}

fn name_of(case: &str) -> String {
    format!("{case}-{}", std::process::id())
}

/// Inserts and removes without end: addresses of its own, and one that all processes insert.
pub fn changer(line: &mut Line, arguments: &[String]) {
    let side = open(Naming::Names);
    let av = side.domain.open_av(&shared(&arguments[0], false)).unwrap();
    let mine: Vec<Address> =
        (0..8).map(|at| Address::from_text(&format!("fi_shm://{}-{at}", arguments[1]))).collect();
    let all = Address::from_text("fi_shm://everybody");
    line.say("ready");
    for round in 0_usize.. {
        let mut numbers: Vec<FiAddr> = av.insert(&mine).into_iter().map(Result::unwrap).collect();
        numbers.push(av.insert(std::slice::from_ref(&all)).remove(0).unwrap());
        for (number, address) in numbers.iter().zip(&mine) {
            assert_eq!(&av.lookup(*number).unwrap(), address, "round {round}");
        }
        av.remove(&numbers).unwrap();
    }
}

/// Opens a vector that its parent created, and reports what it found.
pub fn looker(line: &mut Line, arguments: &[String]) {
    let side = open(Naming::Names);
    let av = side.domain.open_av(&shared(&arguments[0], true)).unwrap();
    line.say(av.count());
    line.say(av.lookup(FiAddr(0)).unwrap());
    // Later insertions of the parent are visible here too.
    line.expect("more");
    line.say(av.lookup(FiAddr(1)).unwrap());
    line.expect("end");
}

/// Sends to number 0 of a vector into which it has not inserted anything.
pub fn sender(line: &mut Line, arguments: &[String]) {
    let side = open(Naming::Names);
    let av: Arc<dyn AddressVector> = side.domain.open_av(&shared(&arguments[0], true)).unwrap();
    let ep = side.domain.open_endpoint(&side.info).unwrap();
    ep.bind_cq(&side.tx, BindFlags::TRANSMIT | BindFlags::RECV).unwrap();
    ep.bind_av(&av).unwrap();
    ep.enable().unwrap();
    wait::drive(&[&side], "room", || ep.send(&SendOp::new(Lent::EMPTY, FiAddr(0), Context(1))).ok());
    wait::drive(&[&side], "the send", || side.next_of(1)).done();
    line.expect("end");
}

#[test]
fn numbers_are_the_same_in_another_process() {
    let name = name_of("same");
    let side = open(Naming::Names);
    let av = side.domain.open_av(&shared(&name, false)).unwrap();
    av.insert(&[side.name()]);
    let mut child = Child::start("looker", &[&name]);
    assert_eq!(child.line.hear(), "1");
    assert_eq!(parse(&child.line.hear()), side.name());
    let other = Address::from_text("fi_shm://somebody-else");
    av.insert(std::slice::from_ref(&other));
    child.line.say("more");
    assert_eq!(parse(&child.line.hear()), other);
    // The child keeps the vector open when its creator closes it.
    drop(av);
    let again = side.domain.open_av(&shared(&name, true)).unwrap();
    assert_eq!(again.lookup(FiAddr(0)).unwrap(), side.name());
    child.line.say("end");
    child.finish();
}

#[test]
fn a_process_sends_by_numbers_that_another_one_inserted() {
    let name = name_of("send");
    let side = open(Naming::Names);
    let av = side.domain.open_av(&shared(&name, false)).unwrap();
    av.insert(&[side.name()]);
    side.receive(()).context(2).post().unwrap();
    let mut child = Child::start("sender", &[&name]);
    wait::drive(&[&side], "the message", || side.next_of(2)).done();
    child.line.say("end");
    child.finish();
}

#[test]
fn processes_killed_in_the_middle_of_changes_leave_a_vector_that_works_and_nothing_else() {
    let (before, name) = (Snapshot::take(), name_of("killed"));
    let side = open(Naming::Names);
    let av = side.domain.open_av(&shared(&name, false)).unwrap();
    let start = |round: usize| {
        let mut child = Child::start("changer", &[&name, &format!("c{round}")]);
        assert_eq!(child.line.hear(), "ready");
        child
    };
    let mut children: Vec<Child> = (0..3).map(start).collect();
    let mut ids: Vec<String> = children.iter().map(|child| child.id().to_string()).collect();
    for round in 0..24_usize {
        std::thread::sleep(Duration::from_micros(700 * (round as u64 % 7) + 300));
        children[round % 3].kill();
        // The victim may have died at any step. The other processes go on, and so does this one, without
        // delay.
        let start_of_change = Instant::now();
        let mine = Address::from_text(&format!("fi_shm://mine-{round}"));
        let number = av.insert(std::slice::from_ref(&mine)).remove(0).expect("inserting beside the dead");
        assert!(start_of_change.elapsed() < Duration::from_secs(2));
        assert_eq!(av.lookup(number).unwrap(), mine);
        assert_eq!(av.reverse_lookup(&mine), Some(number));
        av.remove(&[number]).expect("removing");
        assert!(av.count() <= 8 * (round + 4) + 1, "{}", av.count());
        children[round % 3] = start(round + 3);
        ids.push(children[round % 3].id().to_string());
    }
    // Every remaining number has one address, and every address one number.
    for child in &mut children {
        child.kill();
    }
    drop(children);
    let numbers: Vec<FiAddr> = (0..256).map(FiAddr).filter(|&number| av.lookup(number).is_ok()).collect();
    assert_eq!(numbers.len(), av.count());
    for number in numbers {
        assert_eq!(av.reverse_lookup(&av.lookup(number).unwrap()), Some(number));
    }
    drop(av);
    // The last user has closed the vector: the name is gone, and no process has left a file.
    let absent = side.domain.open_av(&shared(&name, true)).expect_err("the vector is gone");
    assert_eq!(absent.errno(), Errno::ENOENT);
    assert_eq!(before.new_since(&ids), Vec::<std::path::PathBuf>::new());
    let mine = format!(
        "ofi-av/{}/",
        std::fs::metadata("/proc/self").map_or(0, |of| std::os::unix::fs::MetadataExt::uid(&of))
    );
    let held = sockets_named(&mine).into_iter().filter(|line| line.contains("lock")).count();
    assert!(held <= 1, "dead processes still hold turns");
}
