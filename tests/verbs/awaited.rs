//! Members of a group that disappear while others wait for their notes.

use std::sync::{Arc, LazyLock};

use ofi_testkit::connect::open_eq;
use ofi_testkit::prelude::*;
use ofi_testkit::rc::{Plan, SimulatedDevice};

use super::{device, hints};

/// A device that holds one connection of an endpoint.
struct Lonely;

static LONELY: LazyLock<Arc<SimulatedDevice>> =
    LazyLock::new(|| device("lonely0", Plan { connections: 1, ..Plan::default() }));

impl Kit for Lonely {
    fn hints(&self) -> Hints {
        LazyLock::force(&LONELY);
        hints("lonely0")
    }

    fn usual_caps(&self) -> Caps {
        Caps::MSG | Caps::COLLECTIVE
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

/// A member that waits for a broadcast sends nothing, so no failure shows that the root is gone: the root's device is
/// probed, over a new connection if the idle one was closed.
#[test]
fn a_root_that_vanishes_fails_who_waits_for_it() {
    // SAFETY: the process has this test, and no other thread reads the environment yet.
    unsafe { std::env::set_var("FI_VERBS_CONNECT_TIMEOUT_MS", "1000") };
    let kit: &dyn Kit = &Lonely;
    for is_put_away in [false, true] {
        let sides = [(); 2].map(|()| kit.opening().open_disabled().unwrap());
        let queues = sides.each_ref().map(|side| open_eq(&side.fabric).unwrap());
        for (side, queue) in sides.iter().zip(&queues) {
            side.ep.bind_eq(queue).unwrap();
            side.ep.enable().unwrap();
        }
        let both = [&sides[0], &sides[1]];
        let members = both.map(|side| both.map(|other| side.insert(other)));
        let sets: [Arc<dyn AvSet>; 2] = std::array::from_fn(|rank| {
            let set = Arc::clone(&sides[rank].av).set(&AvSetAttr::default()).unwrap();
            members[rank].iter().for_each(|&number| set.insert(number).unwrap());
            set
        });
        let groups: [Group; 2] = std::array::from_fn(|rank| {
            sides[rank].ep.join_collective(sets[rank].addr(), &*sets[rank], Context(9)).unwrap()
        });
        for queue in &queues {
            wait::drive(&both, "a group", || queue.read().ok());
        }
        let far = kit.side();
        if is_put_away {
            let [waiting, root] = both;
            let (to, into) = (waiting.insert(&far), Memory::new(8));
            let all = [waiting, root, &far];
            far.receive(&into).context(1).post().unwrap();
            waiting.out(to, &Memory::new(8)).context(1).send().unwrap();
            wait::drive(&all, "a message", || far.next_of(1)).done();
            wait::drive(&all, "its end", || waiting.next_of(1)).done();
            wait::drive(&all, "one connection", || {
                (root.statistic("verbs_connections_now") == 0).then_some(())
            });
        }
        let [waiting, root] = both;
        assert_eq!(root.statistic("verbs_connections_now"), u64::from(!is_put_away));
        LONELY.vanish(root.name().to_socket_addr().unwrap());
        let memory = Memory::new(8);
        let pieces = [memory.slice(..).piece()];
        // SAFETY: the memory outlives the wait for the end; a failed test leaks it.
        let lent = unsafe { Lent::new(&pieces, &[]) };
        let mut op = CollectiveOp::new(CollectiveKind::Broadcast, groups[0].addr(), Context(2));
        op = op.data(Datatype::Uint64, 1, lent, lent);
        op.root = members[0][1];
        waiting.ep.collective(&op).unwrap();
        let error = wait::drive(&[waiting], "the failure", || waiting.next_of(2)).failed();
        assert!(error.flags.contains(CompletionFlags::COLLECTIVE), "{error:?}");
        // The new connection is tried again until its time is over.
        let wanted: &[Errno] =
            if is_put_away { &[Errno::EHOSTUNREACH, Errno::ETIMEDOUT] } else { &[Errno::ECONNABORTED] };
        assert!(wanted.contains(&error.err), "{error:?}");
    }
}
