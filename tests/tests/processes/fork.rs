//! fork(2) in a program with live endpoints and threads: in the child, calls on inherited objects fail,
//! closing them does no harm, and new objects work. The parent is not affected.

use ofi_testkit::fork::Forked;
use ofi_testkit::prelude::*;
use ofi_tests::{Naming, opening};

/// Whether `result` is the error that a child gets from an inherited object.
fn is_refused<T>(result: Result<T>) -> bool {
    result.is_err_and(|error| error.errno() == Errno::EINVAL && error.to_string().contains("fork"))
}

/// The number of the first check that fails in the child, or 0. It does not print: the inherited lock of the
/// output may never be released.
fn in_the_child(
    naming: Naming,
    pair: Pair,
    counter: std::sync::Arc<dyn Counter>,
    region: std::sync::Arc<dyn MemoryRegion>,
) -> i32 {
    let Pair { a, to_b, .. } = &pair;
    let mut entry = [CqTaggedEntry::EMPTY];
    let address = Address::from_text("fi_shm://nobody");
    let refused = [
        is_refused(a.out(*to_b, ()).send()),
        is_refused(a.out(*to_b, ()).tag(1).send()),
        is_refused(a.receive(()).post()),
        is_refused(a.cancel(1)),
        is_refused(a.ep.name()),
        is_refused(a.ep.option(EpOption::MaxMsgSize)),
        is_refused(a.tx.read(&mut CqBuffer::new(&mut entry))),
        is_refused(a.tx.read_wait(&mut CqBuffer::new(&mut entry), Some(Duration::from_secs(1)))),
        is_refused(a.tx.trywait()),
        is_refused(a.av.insert(&[address]).remove(0)),
        is_refused(a.av.lookup(*to_b)),
        is_refused(a.domain.open_cq(&CqAttr::default())),
        is_refused(a.domain.open_endpoint(&a.info)),
        is_refused(a.domain.alloc(64, Placement::default())),
        is_refused(counter.add(1)),
        is_refused(counter.wait(1, None)),
        is_refused(region.refresh(&[])),
        region.close().is_ok(),
    ];
    if let Some(at) = refused.iter().position(|refused| !refused) {
        return at as i32 + 1;
    }
    drop((pair, counter, region));
    // New objects of the child work.
    let pair = Pair::of(opening(naming).open(), opening(naming).open());
    let (from, into) = (Memory::patterned(100_000, 3), Memory::new(100_000));
    pair.b.receive(&into).context(2).post().unwrap();
    pair.post(|| pair.a.out(pair.to_b, &from).context(1).send());
    pair.all_done(&pair.b, 2, 1);
    pair.all_done(&pair.a, 1, 1);
    into.check(100_000, 3);
    0
}

fn exchange(pair: &Pair) {
    let (from, into) = (Memory::patterned(100_000, 7), Memory::new(100_000));
    pair.b.receive(&into).context(2).post().unwrap();
    pair.post(|| pair.a.out(pair.to_b, &from).context(1).send());
    pair.all_done(&pair.b, 2, 1);
    pair.all_done(&pair.a, 1, 1);
    into.check(100_000, 7);
}

fn a_child_is_kept_apart(naming: Naming, progress: Progress) {
    let open = || opening(naming).wait_obj(WaitObj::Fd).hints(|hints| hints.progress(progress)).open();
    let pair = Pair::of(open(), open());
    pair.warm_up();
    exchange(&pair);
    let attr = CntrAttr { wait_obj: WaitObj::Fd, ..CntrAttr::default() };
    let counter = pair.a.domain.open_counter(&attr).unwrap();
    let memory = Memory::library(&pair.b.domain, 4096);
    let region = pair.b.register(&memory, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
    let mut all = Some((pair, counter, region));
    let child = Forked::start(|| {
        let (pair, counter, region) = all.take().expect("everything");
        in_the_child(naming, pair, counter, region)
    });
    let (pair, counter, region) = all.expect("only the child has taken it");
    // The parent goes on while the child runs, and afterwards.
    child.finish(|| exchange(&pair));
    exchange(&pair);
    let there = [remote(&region)];
    let back = Memory::new(4096);
    pair.post(|| pair.a.out(pair.to_b, &back).context(5).read(&there));
    pair.all_done(&pair.a, 5, 1);
    counter.add(1).unwrap();
    counter.wait(1, Some(Duration::from_secs(5))).unwrap();
}

/// Objects that do not belong to one endpoint: event queues, passive endpoints, sets, shared vectors.
struct Others {
    eq: std::sync::Arc<dyn EventQueue>,
    passive: std::sync::Arc<dyn PassiveEndpoint>,
    polls: std::sync::Arc<dyn PollSet>,
    waits: Vec<std::sync::Arc<dyn WaitSet>>,
    shared: std::sync::Arc<dyn AddressVector>,
}

fn others_in_the_child(side: &TestEndpoint, others: Others) -> i32 {
    let Others { eq, passive, polls, waits, shared } = &others;
    let (name, second) = (Address::from_text("fi_shm://nobody"), Some(Duration::from_secs(1)));
    let event = ofi::raw::Event { data: 1, ..ofi::raw::Event::new(EventKind::Notify, Fid(1)) };
    let mut refused = vec![
        is_refused(eq.read()),
        is_refused(eq.peek_wait(second)),
        is_refused(eq.read_error()),
        is_refused(eq.write(event)),
        is_refused(eq.trywait()),
        is_refused(passive.set_name(&name)),
        is_refused(passive.name()),
        is_refused(passive.set_backlog(3)),
        is_refused(passive.listen()),
        is_refused(polls.add(PollMember::Queue(std::sync::Arc::clone(&side.tx)), Context(1))),
        polls.poll(&mut [Context(0)]) == 0,
        is_refused(shared.insert(&[name]).remove(0)),
        is_refused(shared.lookup(FiAddr(0))),
        shared.count() == 0,
    ];
    refused.extend(waits.iter().flat_map(|set| [is_refused(set.wait(second)), is_refused(set.trywait())]));
    if let Some(at) = refused.iter().position(|refused| !refused) {
        return at as i32 + 1;
    }
    drop(others); // must not join threads of the parent, nor release its resources
    0
}

#[test]
fn queues_of_events_passive_endpoints_and_sets_are_kept_apart_too() {
    let side = opening(Naming::Names).wait_obj(WaitObj::Fd).open();
    let fabric = &side.fabric;
    let eq = fabric.open_eq(&EqAttr { write: true, wait_obj: WaitObj::Unspec, ..EqAttr::default() }).unwrap();
    let msg = Hints::new().provider("shm").ep_type(EpType::Msg);
    let info = ofi::getinfo(Version::API, None, None, GetinfoFlags::empty(), Some(&msg)).unwrap().remove(0);
    let passive = fabric.open_passive(&info).unwrap();
    passive.bind_eq(&eq).unwrap();
    passive.listen().unwrap();
    let polls = side.domain.open_poll_set().unwrap();
    polls.add(PollMember::Queue(std::sync::Arc::clone(&side.tx)), Context(1)).unwrap();
    let open_set = |wait_obj| fabric.open_wait_set(&WaitAttr { wait_obj }).unwrap();
    let waits = vec![open_set(WaitObj::Fd), open_set(WaitObj::MutexCond)];
    let name = format!("fork-{}", std::process::id());
    let attr = AvAttr { name: Some(name), ..AvAttr::default() };
    let shared = side.domain.open_av(&attr).unwrap();
    shared.insert(&[side.name()]);
    let others = Others { eq, passive, polls, waits, shared };
    let mut all = Some(others);
    let child = Forked::start(|| others_in_the_child(&side, all.take().expect("the others")));
    child.finish(|| std::thread::sleep(Duration::from_millis(2)));
    let Others { eq, passive, polls: _, waits, shared: _open } = all.expect("only the child has taken them");
    // The parent's objects still work.
    eq.write(ofi::raw::Event { data: 7, ..ofi::raw::Event::new(EventKind::Notify, Fid(1)) }).unwrap();
    assert_eq!(eq.read_wait(Some(Duration::from_secs(5))).unwrap().data, 7);
    assert!(passive.name().is_ok());
    assert_eq!(waits[1].wait(Some(Duration::from_millis(5))).unwrap_err().errno(), Errno::ETIMEDOUT);
    let again = side.domain.open_av(&AvAttr { read_only: true, ..attr }).unwrap();
    assert_eq!(again.lookup(FiAddr(0)).unwrap(), side.name());
}

#[test]
fn a_child_is_kept_apart_under_manual_progress() {
    a_child_is_kept_apart(Naming::Names, Progress::Manual);
}

#[test]
fn a_child_is_kept_apart_under_automatic_progress() {
    a_child_is_kept_apart(Naming::Names, Progress::Auto);
}

#[test]
fn a_child_of_an_endpoint_over_two_transports_is_kept_apart() {
    for naming in [Naming::Crossed, Naming::Nearby] {
        for progress in [Progress::Manual, Progress::Auto] {
            a_child_is_kept_apart(naming, progress);
        }
    }
}
