//! Transfers from and to a peer that does not poll, which are cancelled, dropped or too late: their memory is the
//! program's again, and nothing comes to it when the peer polls at last.

use std::time::Duration;

use multirail::{Agent, Outcome, Remote, Way};
use ofi::{Errno, Hints};

const LEN: usize = 300_000;
const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(50);

fn open(name: &str, provider: &str) -> Agent {
    let builder = Agent::builder(name).shared_memory(provider == "shm");
    builder.rail(Hints::new().provider(provider)).open().unwrap()
}

fn poll(agents: [&Agent; 2], mut until: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !until() {
        assert!(began.elapsed() < LONG);
        agents.into_iter().for_each(|agent| _ = agent.progress().unwrap());
    }
}

fn memory_is_given_back(provider: &str) {
    for way in [Way::Read, Way::Write] {
        for end in ["cancelled", "dropped", "late", "disconnected"] {
            println!("{provider}: a {way:?} that is {end}");
            let (alice, bob) = (open("alice", provider), open("bob", provider));
            let own = alice.register(vec![1_u8; LEN]).unwrap();
            let theirs = bob.register(vec![2_u8; LEN]).unwrap();
            alice.load(&bob.metadata().unwrap()).unwrap();
            alice.connect("bob").unwrap();
            poll([&alice, &bob], || alice.is_connected("bob").unwrap());
            // Many parts, of which the rail has some, and one that it cannot take at once.
            let parts = |len: usize| (0..LEN / len).map(move |nth| ((nth * len) as u64, len as u64));
            let parts: Vec<_> = if end == "late" { vec![(0, LEN as u64)] } else { parts(100).collect() };
            let local: Vec<_> = parts.iter().map(|&(at, len)| own.slice(at..at + len).unwrap()).collect();
            let remote = |&(offset, len): &(u64, u64)| Remote { region: theirs.id(), offset, len };
            let remote: Vec<_> = parts.iter().map(remote).collect();
            let plan = alice.prepare("bob", way, &local, &remote).unwrap();
            // Bob does not poll from here on.
            let transfer = plan.post(if end == "late" { SHORT } else { LONG }).unwrap();
            assert_eq!(transfer.progress().outcome, None);
            match end {
                "cancelled" => {
                    transfer.cancel();
                    let progress = transfer.progress();
                    assert_eq!((progress.outcome, progress.is_quiet), (Some(Outcome::Cancelled), true));
                    drop(transfer);
                }
                "late" => {
                    assert_eq!(transfer.wait().unwrap_err().errno(), Errno::ETIMEDOUT);
                    assert!(transfer.progress().is_quiet, "its end gives the memory back");
                    drop(transfer);
                }
                "dropped" => drop(transfer),
                _ => {
                    alice.disconnect("bob").unwrap();
                    assert!(transfer.progress().is_quiet);
                    drop(transfer);
                }
            }
            drop((plan, local));
            let mut memory = own.withdraw().expect("nothing uses the memory");
            memory.fill(77);
            // Bob polls at last.
            let began = std::time::Instant::now();
            poll([&alice, &bob], || {
                let is_over = alice.under_way() == (0, 0) && began.elapsed() > SHORT;
                assert!(memory.iter().all(|&byte| byte == 77), "nothing is written late");
                is_over
            });
            // The two go on.
            let own = alice.register(vec![0_u8; LEN]).unwrap();
            let whole = Remote { region: theirs.id(), offset: 0, len: LEN as u64 };
            let again = alice.prepare("bob", Way::Read, &[own.slice(..).unwrap()], &[whole]).unwrap();
            let again = again.post(LONG).unwrap();
            poll([&alice, &bob], || again.progress().outcome.is_some());
            again.wait().unwrap();
        }
    }
}

#[test]
fn memory_is_given_back_over_shared_memory() {
    memory_is_given_back("shm");
}

#[test]
fn memory_is_given_back_over_sockets() {
    memory_is_given_back("udp");
}
