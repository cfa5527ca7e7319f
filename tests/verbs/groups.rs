//! Multicast groups of datagram endpoints: members on two devices where there are two, bad input, leaving.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use ofi::raw::{BindFlags, EventQueue, Multicast};
use ofi_testkit::connect::{event, open_eq, try_outcome};
use ofi_testkit::prelude::*;

use super::group_hints;

const LEN: usize = 64;
const CAPS: Caps = Caps::MSG.union(Caps::SOURCE).union(Caps::MULTICAST);

/// An endpoint on one of the two devices, with an event queue.
struct Member {
    side: TestEndpoint,
    eq: Arc<dyn EventQueue>,
}

impl Member {
    fn open(device: usize) -> Self {
        let side = Opening::new(group_hints(device).caps(CAPS)).open_disabled().expect("an endpoint");
        let eq = open_eq(&side.fabric).unwrap();
        side.ep.bind_eq(&eq).unwrap();
        side.ep.enable().unwrap();
        Self { side, eq }
    }

    fn try_join(&self, group: &Address, flags: BindFlags) -> Result<Multicast, Errno> {
        let joined = self.side.ep.join_multicast(group, flags, Context(4)).map_err(|error| error.errno())?;
        let event = event(&self.eq, &[&self.side]);
        assert_eq!((event.kind, event.fid), (EventKind::JoinComplete, joined.fid()));
        Ok(joined)
    }

    fn join(&self, group: &Address) -> Multicast {
        self.try_join(group, BindFlags::empty()).expect("joining")
    }

    /// Sends datagrams with this number to `to`, until `other` has received one of them. Skips earlier datagrams.
    /// Returns the sender.
    #[track_caller]
    fn reaches(&self, to: FiAddr, other: &Self, number: u8) -> FiAddr {
        let (from, into) = (Memory::patterned(LEN, number), Memory::new(LEN));
        let (mut last, mut posted) = (Instant::now(), false);
        wait::drive(&[&self.side, &other.side], "a datagram to a group", || {
            if !std::mem::replace(&mut posted, true) {
                other.side.receive(&into).context(1).post().unwrap();
            }
            while self.side.next_of(2).is_some() {}
            if last.elapsed() > Duration::from_millis(20) {
                last = Instant::now();
                let _ = self.side.out(to, &from).context(2).data(number.into()).send();
            }
            let Event::Done(entry, source) = other.side.next_of(1)? else { panic!("an error") };
            posted = false;
            (entry.data == u64::from(number)).then(|| {
                assert_eq!(entry.len, LEN);
                into.check(LEN, number);
                source
            })
        })
    }
}

/// The group with this number. The port has no meaning.
fn group(number: u8) -> Address {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(239, 192, 78, number)), 7471).into()
}

#[test]
fn members_of_a_group_receive_what_is_sent_to_it() {
    let (a, b, outsider) = (Member::open(0), Member::open(1), Member::open(1));
    let joined = [&a, &b].map(|member| member.join(&group(1)));
    let (to_a, to_b) = (b.side.insert(&a.side), a.side.insert(&b.side));
    outsider.side.receive(&Memory::new(LEN)).context(1).post().unwrap();
    assert_eq!(a.reaches(joined[0].addr(), &b, 1), to_a, "the source is the sender, not the group");
    assert_eq!(b.reaches(joined[1].addr(), &a, 2), to_b);
    wait::drive_through(Duration::from_millis(20), &[&outsider.side]);
    assert!(outsider.side.next_of(1).is_none(), "who has not joined hears nothing");
    // An endpoint that only sends is no member, and receives nothing.
    let sends = outsider.try_join(&group(1), BindFlags::SEND).unwrap();
    outsider.reaches(sends.addr(), &b, 3);
    assert!(outsider.side.next_of(1).is_none());
    let counts = [&a, &b, &outsider].map(|member| member.side.statistic("verbs_groups"));
    assert_eq!(counts, [1, 1, 1]);
    // A message to a single member reaches only that member.
    a.reaches(to_b, &b, 4);
    assert!(outsider.side.next_of(1).is_none());
    drop((outsider, sends)); // the group after its endpoint
}

#[test]
fn a_group_is_an_ip_multicast_address_of_the_family_and_is_joined_once() {
    let member = Member::open(0);
    let unicast = Address::from(SocketAddr::from(([10, 77, 0, 1], 1)));
    let v6 = Address::from("[ff12::77]:1".parse::<SocketAddr>().unwrap());
    for bad in [unicast, v6, member.side.name()] {
        let refused = member.side.ep.join_multicast(&bad, BindFlags::empty(), Context(4)).err().unwrap();
        assert_eq!(refused.errno(), Errno::EINVAL, "{bad}");
        assert!(refused.to_string().contains("multicast"), "{refused}");
    }
    let joined = member.join(&group(2));
    assert_eq!(member.try_join(&group(2), BindFlags::RECV).err(), Some(Errno::EALREADY));
    assert_eq!(member.side.statistic("verbs_groups"), 1);
    drop(joined);
    assert_eq!(member.side.statistic("verbs_groups"), 0);
    drop(member.join(&group(2)));
    let plain = Opening::new(group_hints(0).caps(Caps::MSG)).open();
    let refused = plain.ep.join_multicast(&group(2), BindFlags::empty(), Context(4));
    assert_eq!(refused.err().map(|error| error.errno()), Some(Errno::EOPNOTSUPP));
}

#[test]
fn who_leaves_while_datagrams_arrive_receives_no_more_and_may_come_back() {
    let (a, b, stays) = (Member::open(0), Member::open(1), Member::open(1));
    let sends = a.try_join(&group(3), BindFlags::SEND).unwrap();
    let (joined, _stays_in) = (b.join(&group(3)), stays.join(&group(3)));
    let to = sends.addr();
    assert_eq!(b.side.statistic("verbs_groups"), 1);
    let into = Memory::new(LEN);
    let from = Memory::patterned(LEN, 1);
    let flood = || {
        for _ in 0..20 {
            let _ = a.side.out(to, &from).context(2).data(1).send();
            a.side.poll();
            while a.side.next_of(2).is_some() {}
        }
    };
    flood();
    drop(joined);
    flood();
    a.reaches(to, &stays, 2); // what was before has arrived, or never will
    let all = [&a.side, &b.side, &stays.side];
    wait::drive_through(Duration::from_millis(20), &all);
    // Read earlier messages.
    loop {
        b.side.receive(&into).context(5).post().unwrap();
        wait::drive_through(Duration::from_millis(2), &[&b.side]);
        if b.side.next_of(5).is_none() {
            break;
        }
    }
    let before = b.side.statistic("verbs_rx_datagrams");
    a.reaches(to, &stays, 3);
    wait::drive_through(Duration::from_millis(20), &all);
    assert_eq!(b.side.statistic("verbs_rx_datagrams"), before, "it has left");
    let _again = b.join(&group(3));
    let number = 4;
    wait::drive(&all, "a datagram after it came back", || {
        let _ = a.side.out(to, &from).context(2).data(number).send();
        while a.side.next_of(2).is_some() {}
        b.side.next_of(5)
    })
    .done();
    drop(stays); // with its membership
    drop(sends);
}

/// No other call advances the join.
#[test]
fn a_thread_that_sleeps_at_the_event_queue_is_woken_for_the_end_of_a_join() {
    let member = Member::open(0);
    let all = [4, 5, 6].map(|number| {
        let joined =
            member.side.ep.join_multicast(&group(number), BindFlags::empty(), Context(number.into()));
        joined.expect("joining")
    });
    for _ in &all {
        let event = member.eq.read_wait(Some(wait::BOUND)).expect("an event");
        let at = all.iter().position(|joined| joined.fid() == event.fid).expect("of one of them");
        assert_eq!((event.kind, event.context), (EventKind::JoinComplete, Context(4 + at)));
    }
    assert_eq!(member.side.statistic("verbs_groups"), 3);
}

/// The network may or may not have answered.
#[test]
fn groups_are_left_at_once_and_joined_again() {
    let (a, b) = (Member::open(0), Member::open(1));
    for _ in 0..20 {
        let joined = a.side.ep.join_multicast(&group(7), BindFlags::empty(), Context(4)).expect("joining");
        a.side.poll();
        drop(joined);
    }
    assert_eq!(["verbs_groups", "verbs_joins_now"].map(|name| a.side.statistic(name)), [0, 0]);
    assert!(try_outcome(&a.eq).is_none(), "an event of a group that was left");
    let joined = [&a, &b].map(|member| member.join(&group(7)));
    a.side.insert(&b.side);
    b.side.insert(&a.side);
    a.reaches(joined[0].addr(), &b, 1);
    b.reaches(joined[1].addr(), &a, 2);
}
