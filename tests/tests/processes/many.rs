//! Many peers: 4,096 of one endpoint, in a process that may have 1,024 descriptors; and many in succession.

use ofi_testkit::leftovers::open_files;
use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};
use ofi_tests::{Naming, limit_descriptors, open, parse, resident_kib};

const PEERS: usize = 4_096;
/// Endpoints in each of the peers' processes.
const EACH: usize = 256;
/// The descriptor limit of the hub's process.
const DESCRIPTORS: u64 = 1_024;
/// Thousands of first contacts take their time in a debug build on two cores.
const BOUND: Duration = Duration::from_secs(90);

/// One endpoint with all others as its peers: receives a message from each, answers it, and reports the cost.
pub fn hub(line: &mut Line, _arguments: &[String]) {
    limit_descriptors(DESCRIPTORS);
    let side = open(Naming::Names);
    let memory = resident_kib();
    line.say(side.name());
    let mut peers = vec![FiAddr::NOTAVAIL; PEERS];
    for peer in &mut peers {
        *peer = side.insert_address(&parse(&line.hear()));
    }
    line.say("inserted");
    let start = Instant::now();
    let (mut posted, mut taken) = (0, 0);
    let mut seen = vec![false; PEERS];
    wait::drive_for(BOUND, &[&side], "a message of each", || {
        while posted < PEERS && posted < taken + 512 {
            side.receive(()).context(1).tag_ignoring(0, u64::MAX).post().unwrap();
            posted += 1;
        }
        while let Some(event) = side.next() {
            let Event::Done(entry, source) = event else { panic!("{event:?}") };
            let number = entry.tag as usize;
            assert_eq!(source, peers[number], "the message of peer {number}");
            assert!(!std::mem::replace(&mut seen[number], true), "peer {number} twice");
            taken += 1;
        }
        (taken == PEERS).then_some(())
    });
    for (number, &peer) in peers.iter().enumerate() {
        let out = side.out(peer, ()).tag(number as u64).inject();
        wait::drive_for(BOUND, &[&side], "room", || match out.send() {
            Ok(()) => Some(()),
            Err(error) => {
                assert!(error.is_again(), "{error}");
                None
            }
        });
    }
    line.say("answered");
    let elapsed = start.elapsed();
    let memory = resident_kib() - memory;
    // Stays alive until all answers have arrived.
    wait::drive_for(BOUND, &[&side], "the end", || line.has_news().then_some(()));
    line.expect("end");
    line.say(format!("{} descriptors, {memory} KiB, {} ms", open_files(), elapsed.as_millis()));
}

/// Endpoints `first..first + EACH`: each sends its number to the hub, and waits for the answer.
pub fn crowd(line: &mut Line, arguments: &[String]) {
    limit_descriptors(0);
    let hub = parse(&arguments[0]);
    let first: usize = arguments[1].parse().unwrap();
    let leader = open(Naming::Names);
    let opening = || Opening::new(ofi_tests::hints(Naming::Names)).beside(&leader).queue(&leader.rx);
    let sides: Vec<TestEndpoint> = (0..EACH).map(|_| opening().open()).collect();
    for side in &sides {
        line.say(side.name());
    }
    line.expect("go");
    for (number, side) in sides.iter().enumerate() {
        let tag = (first + number) as u64;
        let to = side.insert_address(&hub);
        side.receive(()).context(number + 1).tag(tag).post().unwrap();
        wait::drive_for(BOUND, &[&leader], "room", || side.out(to, ()).tag(tag).inject().send().ok());
    }
    let mut answered = vec![false; EACH];
    let mut count = 0;
    wait::drive_for(BOUND, &[&leader], "all answers", || {
        while let Some(event) = leader.next() {
            let entry = event.done();
            assert!(!std::mem::replace(&mut answered[entry.op_context.0 - 1], true));
            count += 1;
        }
        (count == EACH).then_some(())
    });
    line.say("done");
    line.expect("end");
}

#[test]
fn four_thousand_peers_with_a_thousand_descriptors() {
    let mut hub = Child::start("hub", &[]);
    let address = hub.line.hear();
    let start = Instant::now();
    let mut crowds: Vec<Child> = (0..PEERS / EACH)
        .map(|number| Child::start("crowd", &[&address, &(number * EACH).to_string()]))
        .collect();
    for crowd in &mut crowds {
        for _ in 0..EACH {
            let name = crowd.line.hear();
            hub.line.say(name);
        }
    }
    hub.line.expect("inserted");
    println!("{PEERS} endpoints opened and inserted in {:?}", start.elapsed());
    crowds.iter_mut().for_each(|crowd| crowd.line.say("go"));
    hub.line.expect("answered");
    for crowd in &mut crowds {
        crowd.line.expect("done");
    }
    hub.line.say("end");
    let cost = hub.line.hear();
    println!("{PEERS} peers of one endpoint: {cost}");
    let words: Vec<u64> = cost.split(' ').filter_map(|word| word.parse().ok()).collect();
    assert!(words[0] < DESCRIPTORS, "{cost}");
    assert!(words[1] < 1 << 20, "more than a gigabyte for {PEERS} idle peers: {cost}");
    crowds.iter_mut().for_each(|crowd| crowd.line.say("end"));
    crowds.into_iter().for_each(Child::finish);
    hub.finish();
}

/// Opens and closes pairs. Runs in its own process, so that leftovers can be counted.
pub fn churn(line: &mut Line, _arguments: &[String]) {
    let keep = open(Naming::Names);
    let round = |large: bool| {
        let pair = Pair::of(open(Naming::Names), open(Naming::Names));
        pair.warm_up();
        if large {
            let (from, into) = (Memory::patterned(300_000, 5), Memory::new(300_000));
            pair.b.receive(&into).context(2).post().unwrap();
            pair.post(|| pair.a.out(pair.to_b, &from).send());
            pair.drive("a large message", || pair.b.next_of(2)).done();
        }
        let to = keep.insert(&pair.a);
        pair.post(|| keep.out(to, ()).inject().send());
        keep.av.remove(&[to]).unwrap();
    };
    let mut before = (0, 0);
    for number in 0..400 {
        round(number % 10 == 0);
        if number == 100 {
            before = (open_files(), resident_kib());
        }
    }
    // The helper thread may still be closing the last descriptors.
    wait::drive(&[&keep], "descriptors to be closed", || (open_files() <= before.0).then_some(()));
    let grown = resident_kib().saturating_sub(before.1);
    assert!(grown < 16 << 10, "{grown} KiB more after 300 more pairs");
    line.say("done");
}

#[test]
fn endpoints_that_come_and_go_leave_no_descriptors_and_no_memory() {
    let mut child = Child::start("churn", &[]);
    child.line.expect("done");
    child.finish();
}
