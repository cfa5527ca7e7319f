//! Two threads on one core that spin on their queues: each message needs the other thread to run. Neither may
//! keep the core for a whole time slice while it polls without success.
//!
//! The test counts polls instead of measuring time. The reference is a run with `FI_GIVE_WAY=0` on the same
//! machine, in which threads spin for their whole slice.

use ofi_testkit::prelude::*;
use ofi_tests::{Naming, open};

const ROUNDS: usize = 60;
const LEN: usize = 64;

/// A core that this process may use.
fn a_core() -> usize {
    // SAFETY: all zero is a valid value of this plain structure.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is as long as stated.
    assert_eq!(unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) }, 0);
    // SAFETY: the numbers are below the set's size.
    let allowed = (0..libc::CPU_SETSIZE as usize).find(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) });
    allowed.expect("at least one core")
}

/// Binds the calling thread to a core.
fn pin(core: usize) {
    // SAFETY: all zero is a valid value of this plain structure.
    let mut one: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the core came from a set of this size.
    unsafe { libc::CPU_SET(core, &mut one) };
    // SAFETY: the call only reads the structure, which is as long as stated.
    assert_eq!(unsafe { libc::sched_setaffinity(0, size_of_val(&one), &raw const one) }, 0);
}

/// Receives a message into `memory`, and returns the number of empty reads before it. Spins, as programs do.
fn receive(side: &TestEndpoint, memory: &Memory) -> usize {
    side.receive(memory).post().unwrap();
    let (mut vain, start) = (0, Instant::now());
    loop {
        let mut entries = [CqTaggedEntry::EMPTY; 4];
        match side.rx.read(&mut CqBuffer::new(&mut entries)) {
            Ok(read) if entries[..read].iter().any(|entry| entry.flags.contains(CompletionFlags::RECV)) => {
                return vain;
            }
            Ok(_) => {}
            Err(error) => assert!(error.is_again(), "{error}"),
        }
        vain += 1;
        assert!(start.elapsed() < wait::BOUND, "{}", side.report());
    }
}

/// The median number of empty reads for a message, with two threads on one core.
fn reads_in_vain(naming: Naming, gives_way: bool) -> usize {
    // SAFETY: the test has its own process (one test in this file), and this is its only thread now.
    unsafe { std::env::set_var("FI_GIVE_WAY", if gives_way { "1" } else { "0" }) };
    let pair = Pair::of(open(naming), open(naming));
    let core = a_core();
    let mut vain: Vec<usize> = std::thread::scope(|scope| {
        let pair = &pair;
        let play = |first: bool| {
            move || {
                pin(core);
                let (side, to) = if first { (&pair.a, pair.to_b) } else { (&pair.b, pair.to_a) };
                let memory = Memory::new(LEN);
                let mut vain = Vec::new();
                for _ in 0..ROUNDS {
                    if first {
                        side.out(to, &memory).send().unwrap();
                    }
                    vain.push(receive(side, &memory));
                    if !first {
                        side.out(to, &memory).send().unwrap();
                    }
                }
                vain
            }
        };
        let threads = [scope.spawn(play(true)), scope.spawn(play(false))];
        threads.into_iter().flat_map(|thread| thread.join().expect("a thread that ends")).collect()
    });
    vain.sort_unstable();
    vain[vain.len() / 2]
}

#[test]
fn a_thread_that_polls_in_vain_lets_the_one_run_that_it_waits_for() {
    for naming in [Naming::Names, Naming::Udp] {
        let (keeps, gives) = (reads_in_vain(naming, false), reads_in_vain(naming, true));
        println!("{naming:?}: {keeps} empty reads for a message without FI_GIVE_WAY, {gives} with it");
        assert!(
            2 * gives < keeps,
            "{naming:?}: {keeps} empty reads for a message without FI_GIVE_WAY, {gives} with it"
        );
    }
}
