//! Groups of several processes: collectives of all sizes, and members that are killed in the middle.

use std::sync::Arc;

use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};
use ofi_tests::{Naming, opening, parse};

const RANKS: usize = 4;

/// An endpoint in a group.
struct Member {
    group: Group,
    side: TestEndpoint,
}

impl Member {
    fn open(naming: Naming) -> (TestEndpoint, Arc<dyn EventQueue>) {
        let opening = opening(naming).hints(|hints| hints.caps(Caps::MSG | Caps::COLLECTIVE));
        let side = opening.open_disabled().unwrap();
        let queue = side.fabric.open_eq(&EqAttr::default()).unwrap();
        side.ep.bind_eq(&queue).unwrap();
        side.ep.enable().unwrap();
        (side, queue)
    }

    fn join(side: TestEndpoint, queue: &Arc<dyn EventQueue>, names: &[Address]) -> Self {
        let set = Arc::clone(&side.av).set(&AvSetAttr::default()).unwrap();
        for name in names {
            set.insert(side.insert_address(name)).unwrap();
        }
        let group = side.ep.join_collective(set.addr(), &*set, Context(1)).unwrap();
        let event = wait::drive(&[&side], "the join", || queue.read().ok());
        assert_eq!(event.kind, EventKind::JoinComplete);
        Self { group, side }
    }

    /// Posts an all-reduce of `count` numbers; the memory must stay until it ends.
    fn post(&self, memory: &[Memory; 2], count: usize) -> Result<()> {
        let pieces = memory.each_ref().map(|memory| [memory.slice(..).piece()]);
        // SAFETY: the caller keeps the memory until the completion.
        let lent = pieces.each_ref().map(|pieces| unsafe { Lent::new(pieces, &[]) });
        let mut op = CollectiveOp::new(CollectiveKind::Allreduce, self.group.addr(), Context(2)).data(
            Datatype::Uint64,
            count,
            lent[0],
            lent[1],
        );
        op.op = FiOp::Sum;
        self.side.ep.collective(&op)
    }

    /// Sums over all members, and checks the result.
    fn sum(&self, round: u64, count: usize) {
        let number = |rank: usize, index: usize| round * 1_000 + (rank * 10 + index) as u64;
        let memory = [Memory::new(8 * count), Memory::new(8 * count)];
        let mine: Vec<u8> =
            (0..count).flat_map(|index| number(self.group.rank(), index).to_ne_bytes()).collect();
        memory[0].slice(..).put(&mine);
        wait::drive(&[&self.side], "room", || self.post(&memory, count).ok());
        wait::drive(&[&self.side], "a sum", || self.side.next_of(2)).done();
        for (index, found) in memory[1].bytes().chunks(8).enumerate() {
            let wanted: u64 = (0..RANKS).map(|rank| number(rank, index)).sum();
            assert_eq!(found, wanted.to_ne_bytes(), "round {round}, element {index} of {count}");
        }
    }
}

/// Computes the given number of sums, and then goes on until the group fails, if the test wants that.
pub fn member(line: &mut Line, arguments: &[String]) {
    let (side, queue) = Member::open(Naming::from_argument(&arguments[2]));
    line.say(side.name());
    let names: Vec<Address> = (0..RANKS).map(|_| parse(&line.hear())).collect();
    let member = Member::join(side, &queue, &names);
    let rounds: u64 = arguments[0].parse().unwrap();
    (0..rounds).for_each(|round| member.sum(round, SIZES[round as usize % SIZES.len()]));
    line.say("summed");
    if arguments[1] == "fail" {
        fail(&member);
        line.say("failed");
    }
    // No member exits or stops polling before all are done.
    wait::drive(&[&member.side], "the end", || line.has_news().then_some(()));
    line.expect("end");
}

const SIZES: [usize; 4] = [1, 50, 3_000, 40_000];

/// Goes on until the group fails, and checks the errors.
fn fail(member: &Member) {
    let memory = [Memory::new(8 * 3_000), Memory::new(8 * 3_000)];
    let start = Instant::now();
    let failed = loop {
        match member.post(&memory, 3_000) {
            Ok(()) => match wait::drive(&[&member.side], "an end", || member.side.next_of(2)) {
                Event::Done(..) => {}
                Event::Failed(error) => break error.err,
            },
            Err(error) if error.is_again() => member.side.poll(),
            Err(error) => break error.errno(),
        }
        assert!(start.elapsed() < wait::BOUND);
    };
    assert_eq!(failed, Errno::ECONNRESET);
    assert_eq!(member.post(&memory, 3_000).unwrap_err().errno(), Errno::ECONNRESET, "the group works again");
}

fn start(rounds: u64, how: &str, namings: [Naming; RANKS]) -> (Vec<Child>, Member) {
    let (side, queue) = Member::open(namings[0]);
    let mut children: Vec<Child> = namings[1..]
        .iter()
        .map(|naming| Child::start("collective_member", &[&rounds.to_string(), how, naming.as_str()]))
        .collect();
    let mut names = vec![side.name()];
    names.extend(children.iter_mut().map(|child| parse(&child.line.hear())));
    for child in &mut children {
        names.iter().for_each(|name| child.line.say(name));
    }
    (children, Member::join(side, &queue, &names))
}

#[test]
fn processes_sum_up_together() {
    sum_up([Naming::Names; RANKS]);
}

#[test]
fn processes_sum_up_over_two_transports() {
    // Each member has peers on one transport of its endpoint or on both.
    sum_up([Naming::Crossed; RANKS]);
    for (near, far) in [(Naming::Nearby, Naming::Udp), (Naming::NearbyTcp, Naming::Tcp)] {
        let member = sum_up([near, near, far, near]);
        let peers = (member.side.statistic("peers_local"), member.side.statistic("peers_remote"));
        assert!(peers.0 > 0 && peers.1 > 0, "{peers:?}");
    }
}

fn sum_up(namings: [Naming; RANKS]) -> Member {
    const ROUNDS: u64 = 60;
    let (mut children, member) = start(ROUNDS, "end", namings);
    (0..ROUNDS).for_each(|round| member.sum(round, SIZES[round as usize % SIZES.len()]));
    for child in &mut children {
        wait::drive(&[&member.side], "the others", || child.line.has_news().then_some(()));
        child.line.expect("summed");
    }
    for child in &mut children {
        child.line.say("end");
    }
    children.into_iter().for_each(Child::finish);
    member
}

#[test]
fn survivors_of_a_killed_member_hear_within_a_second() {
    for victim in 0..RANKS - 1 {
        let (mut children, member) = start(4, "fail", [Naming::Names; RANKS]);
        (0..4).for_each(|round| member.sum(round, SIZES[round as usize]));
        for child in &mut children {
            wait::drive(&[&member.side], "the others", || child.line.has_news().then_some(()));
            child.line.expect("summed");
        }
        // The kill comes in the middle of a sum.
        let start = Instant::now();
        let memory = [Memory::new(8 * 3_000), Memory::new(8 * 3_000)];
        while start.elapsed() < Duration::from_millis(5) {
            member.post(&memory, 3_000).unwrap();
            wait::drive(&[&member.side], "a sum", || member.side.next_of(2)).done();
        }
        children.remove(victim).kill();
        let start = Instant::now();
        fail(&member);
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        for child in &mut children {
            child.line.expect("failed");
            child.line.say("end");
        }
        children.into_iter().for_each(Child::finish);
    }
}
