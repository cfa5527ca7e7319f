//! How datagram endpoints handle asynchronous events of a device.

use std::net::SocketAddr;
use std::sync::Arc;

use ofi::raw::BindFlags;
use ofi_testkit::connect::open_eq;
use ofi_testkit::prelude::*;
use ofi_testkit::rc::{Plan, SimulatedDevice};
use ofi_verbs::rc::AsyncEvent;

use super::{CAPS, add, hints, qp};

struct Own(&'static str, Arc<SimulatedDevice>);

impl Own {
    fn new(name: &'static str) -> Self {
        let device = SimulatedDevice::new(name, Plan::default());
        add(&device);
        Self(name, device)
    }
}

impl Kit for Own {
    fn hints(&self) -> Hints {
        hints(self.0)
    }

    fn usual_caps(&self) -> Caps {
        CAPS
    }
}

#[test]
fn a_port_s_events_are_counted_and_datagrams_go_on() {
    let own = Own::new("flaps1");
    let pair = (&own as &dyn Kit).pair();
    pair.warm_up();
    own.1.raise(AsyncEvent::PortError(1));
    own.1.raise(AsyncEvent::PairFatal(qp(&pair.b) + 100)); // another endpoint's
    own.1.raise(AsyncEvent::PortActive(1));
    for side in [&pair.a, &pair.b] {
        for name in ["verbs_port_errors", "verbs_port_active"] {
            wait::drive(&[&pair.a, &pair.b], name, || (side.statistic(name) == 1).then_some(()));
        }
        assert_eq!(side.statistic("verbs_device_failures"), 0);
    }
    pair.warm_up();
}

#[test]
fn nothing_is_sent_after_the_queue_pair_or_the_device_was_reported_as_failed() {
    for (name, dies) in [("breaks4", false), ("dies4", true)] {
        let own = Own::new(name);
        let pair = (&own as &dyn Kit).pair();
        pair.warm_up();
        if dies {
            own.1.die();
        } else {
            own.1.break_datagrams(qp(&pair.a));
        }
        let failures = |side: &TestEndpoint| side.statistic("verbs_device_failures");
        wait::drive(&[&pair.a, &pair.b], "the event", || (failures(&pair.a) == 1).then_some(()));
        let error = pair.a.out(pair.to_b, ()).context(1).send().unwrap_err();
        assert_eq!(error.errno(), if dies { Errno::ENODEV } else { Errno::EIO }, "{error}");
        assert_eq!(failures(&pair.b), u64::from(dies));
        if !dies {
            pair.b.out(pair.to_a, ()).context(1).send().unwrap();
            wait::drive(&[&pair.b], "the send of another", || pair.b.next_of(1)).done();
        }
    }
}

#[test]
fn an_endpoint_joins_a_bounded_number_of_groups_and_none_of_a_device_that_is_gone() {
    // As in the provider (`datagram/groups.rs`).
    const MAX_GROUPS: u8 = 64;
    let own = Own::new("dies5");
    let hints = own.hints().caps(Caps::MSG | Caps::MULTICAST);
    let side = Opening::new(hints).open_disabled().unwrap();
    let eq = open_eq(&side.fabric).unwrap();
    side.ep.bind_eq(&eq).unwrap();
    side.ep.enable().unwrap();
    let group = |number| Address::from(SocketAddr::from(([239, 192, 79, number], 0)));
    let join = |number| side.ep.join_multicast(&group(number), BindFlags::empty(), Context(1));
    let mut all: Vec<_> = (0..MAX_GROUPS).map(|number| join(number).unwrap()).collect();
    wait::drive(&[&side], "joins", || {
        (side.statistic("verbs_groups") == u64::from(MAX_GROUPS)).then_some(())
    });
    assert_eq!(join(MAX_GROUPS).err().map(|error| error.errno()), Some(Errno::ENOSPC));
    all.pop();
    own.1.die();
    wait::drive(&[&side], "the event", || (side.statistic("verbs_device_failures") == 1).then_some(()));
    assert_eq!(join(MAX_GROUPS).err().map(|error| error.errno()), Some(Errno::ENODEV));
    all.clear();
    assert_eq!(side.statistic("verbs_groups"), 0);
}

/// An event wakes threads that sleep for datagrams. Once it is processed, they sleep again.
#[test]
fn a_sleeper_takes_the_events_and_sleeps_on() {
    let own = Own::new("flaps2");
    let side = (&own as &dyn Kit).opening().wait_obj(WaitObj::Fd).open();
    let fd = side.rx.wait_fd().unwrap();
    let sleeps = || {
        wait::drive(&[&side], "sleep", || side.rx.trywait().ok());
        !wait::readable(fd, Duration::from_millis(20))
    };
    assert!(sleeps());
    own.1.raise(AsyncEvent::PortError(1));
    assert!(wait::readable(fd, wait::BOUND), "woken");
    assert!(sleeps());
    assert_eq!(side.statistic("verbs_port_errors"), 1);
    own.1.die();
    assert!(wait::readable(fd, wait::BOUND), "woken");
    assert!(sleeps(), "a device that is gone keeps nobody awake");
    assert_eq!(side.statistic("verbs_device_failures"), 1);
}
