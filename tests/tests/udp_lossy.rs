//! A network that loses, repeats and reorders packets: each atomic is executed once, messages match the
//! receives of their tags, with and without encryption, and connections are established and lose no data.

use ofi_testkit::connect;
use ofi_testkit::net::Random;
use ofi_testkit::network::shell;
use ofi_testkit::opening::Opening;
use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};
use ofi_tests::udp::{Relay, Weather, relayed};
use ofi_tests::{Naming, heard, hints, opening};

ofi_testkit::roles!(connections);

/// Runs before `main`, so before there is a second thread. A relay translates addresses, and peers with a key
/// verify addresses unless this is set.
#[used]
#[unsafe(link_section = ".init_array")]
static CHOOSE: extern "C" fn() = choose;

extern "C" fn choose() {
    // SAFETY: the only thread is here, and does not read the environment now.
    unsafe { std::env::set_var("FI_UDP_ADDRESS_TRANSLATION", "1") };
}

const WEATHER: Weather = Weather { loss: 40, duplicate: 30, reorder: 30, longest: 1_472, forge: 0 };
/// The number of atomic operations of each kind, and of messages.
const COUNT: usize = 200;

/// Two endpoints that reach each other through a relay.
fn apart(key: Option<&[u8]>) -> (Pair, Relay) {
    let own = || {
        let with = |hints: Hints| hints.caps(Caps::MSG | Caps::TAGGED | Caps::RMA | Caps::ATOMIC);
        let opening = opening(Naming::Udp).hints(with);
        match key {
            Some(key) => opening.hints(|hints| hints.auth_key(key)).open(),
            None => opening.open(),
        }
    };
    relayed([own(), own()], WEATHER)
}

fn words(memory: &Memory) -> Vec<u64> {
    memory.bytes().as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

/// Fetching and plain sums, interleaved: each fetch returns a different value of the sum.
fn atomics(pair: &Pair) {
    let memory = Memory::new(8);
    let region = pair.b.register(&memory, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
    let one = Memory::new(8);
    one.slice(..).put(&1u64.to_ne_bytes());
    let results: Vec<Memory> = (0..COUNT).map(|_| Memory::new(8)).collect();
    let there = [remote(&region)];
    for (number, result) in results.iter().enumerate() {
        let out = pair.a.out(pair.to_b, &one);
        pair.post(|| out.clone().context(number).fetch(FiOp::Sum, Datatype::Uint64, result, &there));
        pair.post(|| out.clone().context(COUNT).atomic(FiOp::Sum, Datatype::Uint64, &there));
    }
    for _ in 0..2 * COUNT {
        pair.done(&pair.a);
    }
    assert_eq!(words(&memory), [2 * COUNT as u64], "each is executed once");
    let mut seen: Vec<u64> = results.iter().flat_map(words).collect();
    seen.sort_unstable();
    let wanted: Vec<u64> = (0..COUNT as u64).map(|number| 2 * number).collect();
    assert_eq!(seen, wanted, "in the order in which they were posted");
}

/// Messages of different lengths, whose receives are posted in another order.
fn tags(pair: &Pair) {
    let mut random = Random(7);
    let len = |tag: usize| [0, 1, 64, 5_000, 16_384, 16_385, 60_000][tag % 7];
    let mut order: Vec<usize> = (0..COUNT).collect();
    for at in (1..COUNT).rev() {
        order.swap(at, random.below(at as u64 + 1) as usize);
    }
    let into: Vec<Memory> = (0..COUNT).map(|tag| Memory::new(len(tag))).collect();
    let from: Vec<Memory> = (0..COUNT).map(|tag| Memory::patterned(len(tag), tag as u8)).collect();
    for &tag in &order {
        pair.post(|| pair.b.receive(&into[tag]).tag(tag as u64).context(tag).post());
    }
    for (tag, from) in from.iter().enumerate() {
        pair.post(|| pair.a.out(pair.to_b, from).tag(tag as u64).context(tag).send());
    }
    for _ in 0..COUNT {
        let entry = pair.done(&pair.b);
        let tag = entry.tag as usize;
        assert_eq!((entry.op_context, entry.len), (Context(tag), len(tag)));
        into[tag].check(len(tag), tag as u8);
    }
    for _ in 0..COUNT {
        pair.done(&pair.a);
    }
}

fn everything(key: Option<&[u8]>) {
    let (pair, relay) = apart(key);
    atomics(&pair);
    tags(&pair);
    assert!(relay.lost() > 0, "no packets were lost");
    let repaired = pair.a.statistic("udp_lost") + pair.a.statistic("udp_probes");
    assert!(repaired > 0, "{}", pair.a.report());
    assert_eq!((pair.a.statistic("udp_forged"), pair.b.statistic("udp_forged")), (0, 0));
}

#[test]
fn atomics_and_tags_are_served_once_in_the_clear() {
    everything(None);
}

#[test]
fn atomics_and_tags_are_served_once_encrypted() {
    everything(Some(b"a job"));
}

/// Runs in its own network namespace, whose loopback loses some of the packets.
fn connections(line: &mut Line, _: &[String]) {
    let lossy = "ip link set lo up mtu 1500
        nft add table ip lossy
        nft add chain ip lossy in '{ type filter hook input priority 0; }'
        nft add rule ip lossy in meta l4proto udp numgen random mod 1000 '<' 60 counter drop";
    if let Err(why) = shell(lossy) {
        return line.say(format!(
            "NOT RUN: connections_come_about_and_carry_everything: {}",
            why.replace('\n', "; ")
        ));
    }
    let own = |key: bool| {
        let loopback = Address::from(std::net::SocketAddr::from(([127, 0, 0, 1], 0)));
        let hints = hints(Naming::Udp).ep_type(EpType::Msg).caps(Caps::MSG).src_addr(loopback);
        Opening::new(if key { hints.auth_key(*b"a job") } else { hints }).without_shared_memory()
    };
    let mut repaired = 0;
    for round in 0..20 {
        let key = round % 2 == 1;
        let caller = own(key).open_disabled().expect("an endpoint");
        caller.ep.enable().expect("it has its queues");
        let accepting = connect::connect(&caller, own(key)).expect("a connection");
        let pair = Pair { a: caller, b: accepting, to_b: FiAddr::UNSPEC, to_a: FiAddr::UNSPEC };
        for len in [0, 64, 16_385, 200_000] {
            let (from, into) = (Memory::patterned(len, round), Memory::new(len));
            for (one, other) in [(&pair.a, &pair.b), (&pair.b, &pair.a)] {
                pair.post(|| other.receive(&into).context(1).post());
                pair.post(|| one.out(FiAddr::UNSPEC, &from).context(2).send());
                assert_eq!(pair.done(other).len, len);
                pair.done(one);
                into.check(len, round);
                repaired += one.statistic("udp_lost") + one.statistic("udp_probes");
            }
        }
    }
    assert!(repaired > 0, "no packets were lost");
    line.say("");
}

#[test]
fn connections_come_about_and_carry_everything() {
    if let Err(why) = shell("unshare -Urn true") {
        println!("NOT RUN: connections_come_about_and_carry_everything: {why}");
        return;
    }
    let mut child = Child::start_under(&["unshare", "-Urn"], "connections", &[], &[]);
    println!("{}", child.line.hear());
    child.finish();
}

#[test]
fn losses_and_the_protocol_of_messages_are_logged() {
    heard::listen();
    let (pair, relay) = apart(None);
    let len = 1 << 20;
    let (from, into) = (Memory::patterned(len, 1), Memory::new(len));
    for _ in 0..2 {
        pair.post(|| pair.b.receive(&into).context(1).post());
        pair.post(|| pair.a.out(pair.to_b, &from).context(2).send());
        pair.done(&pair.b);
        pair.done(&pair.a);
    }
    heard::says(&[
        "udp:ep_data<debug> chose the protocol of short messages to a peer",
        "protocol=eager",
        "up_to=",
    ]);
    let chosen = [
        "udp:ep_data<debug> chose the protocol of a message to a peer",
        "protocol=rendezvous",
        "len=1048576",
    ];
    assert_eq!(heard::count(&chosen), 1, "not for each message");
    heard::says(&[
        "udp:ep_data<debug> the congestion window was reduced",
        "why=packets were lost",
        "peer=fi_sockaddr_in://",
        "window=",
        "rtt_us=",
    ]);
    drop(relay);
}
