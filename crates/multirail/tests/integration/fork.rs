//! A forked child: what it closes stays as it is for its parent, and none of it waits for what only the parent has.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use multirail::{Agent, Remote, Way};
use ofi::{Errno, Hints};
use ofi_testkit::fork::in_a_child;

use super::support::{holds, whole};

const LONG: Duration = Duration::from_secs(30);

/// Two agents that a thread drives, with a region each, and what a write between them takes.
struct Pair {
    near: Agent,
    far: Agent,
    from: multirail::Region<Vec<u8>>,
    to: multirail::Region<Vec<u8>>,
}

impl Pair {
    fn open(provider: &str) -> Self {
        let open = |name: &str| {
            let rail = Hints::new().provider(provider);
            Agent::builder(name).progress_thread(true).rail(rail).open().unwrap()
        };
        let (near, far) = (open("near"), open("far"));
        let (from, to) = (near.register(vec![0; 4096]).unwrap(), far.register(vec![0; 4096]).unwrap());
        near.load(&far.metadata().unwrap()).unwrap();
        Self { near, far, from, to }
    }

    fn exchange(&self, byte: u8) {
        self.from.write_from(0, &[byte; 4096]).unwrap();
        let (local, remote) = (whole(&self.from).0, whole(&self.to).1);
        let plan = self.near.prepare("far", Way::Write, &[local], &[remote]).unwrap();
        let transfer = plan.post_notify(b"here", LONG).unwrap();
        let notification = self.far.wait_notification(LONG).unwrap().expect("a notification");
        assert_eq!(notification.bytes[..], *b"here");
        transfer.wait().unwrap();
        assert!(holds(&self.to, byte));
    }
}

/// The child drops everything: agents whose thread runs, a plan, a transfer that waits for its end, regions, a server.
fn a_child_drops_everything(provider: &str) {
    let pair = Pair::open(provider);
    pair.exchange(1);
    let server = pair.far.serve("127.0.0.1:0").unwrap();
    let (address, own) = (server.address(), pair.far.alloc(4096).unwrap());
    let remote = Remote { region: pair.to.id(), offset: 0, len: 4096 };
    let plan = pair.near.prepare("far", Way::Write, &[whole(&pair.from).0], &[remote]).unwrap();
    // Nobody takes its notification before the child has ended.
    let pending = plan.post_notify(b"pending", LONG).unwrap();
    let (near, far) = (pair.near.clone(), pair.far.clone());
    let mut all = Some((pair, server, own, plan, pending, near, far));
    in_a_child(|| {
        let all = all.take().expect("everything");
        all.4.cancel();
        assert!(all.5.metadata().is_err() && all.6.serve("127.0.0.1:0").is_err());
        drop(all);
    });
    let (pair, server, own, plan, pending, near, far) = all.expect("only the child has taken it");
    let notification = far.wait_notification(LONG).unwrap().expect("the notification of a living transfer");
    assert_eq!(notification.bytes[..], *b"pending");
    pending.wait().unwrap();
    pair.exchange(2);
    // The server's thread still answers, and sleeps when nobody calls: it is not woken without end.
    let third = Agent::builder("third").rail(Hints::new().provider(provider)).open().unwrap();
    assert_eq!(&*third.visit(address, LONG).unwrap(), "far");
    drop((server, plan, own, near, far));
    pair.exchange(3);
}

#[test]
fn a_child_that_drops_agents_leaves_them_to_its_parent() {
    a_child_drops_everything("shm");
    a_child_drops_everything("udp");
    a_child_drops_everything("tcp");
}

/// Regression test: the child waited for a lock that a thread of its parent had held during the fork.
#[test]
fn a_child_waits_for_no_lock_of_its_parent() {
    let pair = Pair::open("shm");
    pair.exchange(1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // This thread has the lock most of the time.
        let _busy = scope.spawn(|| {
            let begin = Instant::now();
            while !stop.load(Ordering::Relaxed) && begin.elapsed() < 2 * LONG {
                pair.near.progress().unwrap();
            }
        });
        for _ in 0..20 {
            let near = pair.near.clone();
            in_a_child(|| {
                near.events();
                assert!(near.progress().is_err());
                assert!(near.notify("far", b"from the child", LONG).is_err() || near.progress().is_err());
                drop(near);
            });
        }
        stop.store(true, Ordering::Relaxed);
    });
    pair.exchange(2);
    assert!(pair.far.take_notification().is_none(), "nothing of a child arrived");
}

/// The memory of a region is the parent's: a child gets none of it back.
#[test]
fn a_child_cannot_withdraw_a_region() {
    let pair = Pair::open("shm");
    pair.exchange(1);
    let spare = pair.far.register(vec![7; 64]).unwrap();
    pair.far.metadata().unwrap();
    let mut spare = Some(spare);
    in_a_child(|| {
        let spare = spare.take().expect("the region");
        assert_eq!(pair.far.revoke(&spare, LONG).unwrap_err(), Errno::EINVAL);
        assert_eq!(spare.withdraw().unwrap_err(), Errno::EINVAL);
    });
    assert_eq!(spare.expect("only the child has taken it").withdraw().unwrap(), vec![7; 64]);
    pair.exchange(2);
}
