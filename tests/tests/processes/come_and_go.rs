//! Thousands of peers that come and go: the state of an endpoint grows only with the number of peers at one
//! time, and state of a former peer is never attributed to another.

use ofi_testkit::leftovers::open_files;
use ofi_testkit::prelude::*;
use ofi_tests::{Naming, open};

/// Mappings of this process.
fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").map_or(0, |text| text.lines().count())
}

/// Heap bytes in use. (Resident memory also depends on the allocator, and on the thousands of short-lived
/// endpoints in this process.)
fn heap() -> usize {
    // SAFETY: takes no pointers.
    let info = unsafe { libc::mallinfo2() };
    info.uordblks + info.hblkhd
}

/// A client sends a request, receives the answer, and exits; the server removes its address. Messages are
/// empty, as an endpoint of the test kit keeps all memory that was ever lent to it.
fn visit(server: &TestEndpoint, naming: Naming, number: u64) {
    let client = open(naming);
    let (to_server, to_client) = (client.insert(server), server.insert(&client));
    server.receive(()).context(1).post().unwrap();
    client.receive(()).context(2).post().unwrap();
    let sides = [server, &client];
    let ask = || client.out(to_server, ()).data(number).inject().send().ok();
    wait::drive(&sides, "room", ask);
    let Event::Done(entry, source) = wait::drive(&sides, "a question", || server.next_of(1)) else {
        panic!("a failed receive")
    };
    assert_eq!((entry.data, source), (number, to_client));
    let answer = || server.out(to_client, ()).data(number + 1).context(3).send().ok();
    wait::drive(&sides, "room", answer);
    wait::drive(&sides, "the end of an answer", || server.next_of(3)).done();
    assert_eq!(wait::drive(&sides, "an answer", || client.next_of(2)).done().data, number + 1);
    server.av.remove(&[to_client]).unwrap();
}

fn serve(naming: Naming, clients: u64) {
    let server = open(naming);
    let mut usage = [0; 3];
    for number in 0..clients {
        visit(&server, naming, number);
        if number == clients / 4 {
            usage = [open_files() as usize, mappings(), heap()];
        }
    }
    let now = [open_files() as usize, mappings(), heap()];
    println!("{naming:?}: files, mappings, bytes of heap after a quarter {usage:?}, at the end {now:?}");
    for name in ["shm_peers", "udp_peers"] {
        let all = server.ep.statistics();
        let peers = all
            .iter()
            .filter(|statistic| statistic.name == name)
            .map(|statistic| statistic.value)
            .sum::<u64>();
        assert!(peers < 64, "{name}: {peers} after {clients} clients");
    }
    assert!(now[0] < usage[0] + 16 && now[1] < usage[1] + 64, "{usage:?}, then {now:?}");
    let grown = now[2].saturating_sub(usage[2]);
    assert!(grown < 64 << 10, "{grown} bytes more after {} clients", clients - clients / 4);
}

#[test]
fn an_endpoint_whose_clients_come_and_go_does_not_grow() {
    serve(Naming::Names, 2_000);
}

#[test]
fn a_composite_endpoint_does_not_grow() {
    serve(Naming::Crossed, 1_000);
}

#[test]
fn sessions_over_sockets_come_and_go() {
    serve(Naming::Udp, 600);
}

#[test]
fn neighbours_of_an_endpoint_on_the_network_come_and_go() {
    serve(Naming::Nearby, 1_000);
}

/// State left behind by a closed client, which refers to that client.
enum Left {
    /// An unexpected message with this tag, and the client's number in the vector.
    Message(u64, FiAddr),
    /// The context of a receive directed at it.
    Receive(usize),
    /// Its number in the vector.
    Number(FiAddr),
}

/// Peer numbers are reused: leftovers of one peer must not pass to another.
fn nothing_passes_to_another(naming: Naming) {
    /// The number of clients after which a leftover is checked.
    const LATER: usize = 7;
    let server = open(naming);
    let mut left = std::collections::VecDeque::new();
    let room = Memory::new(64);
    let mut met = std::collections::HashSet::new();
    for number in 0..300_u64 {
        let client = open(naming);
        // The system reuses ports: messages to an address rightly go to its new owner then, so such a client
        // is skipped.
        if !met.insert(client.name().to_string()) {
            continue;
        }
        let (to_server, to_client) = (client.insert(&server), server.insert(&client));
        let sides = [&server, &client];
        let tag = 1_000 + number;
        let send =
            |tag| wait::drive(&sides, "room", || client.out(to_server, ()).tag(tag).inject().send().ok());
        match number % 3 {
            0 => {
                let waiting = server.statistic("rx_unexpected_now");
                send(tag);
                let came = || (server.statistic("rx_unexpected_now") > waiting).then_some(());
                wait::drive(&sides, "a message", came);
                left.push_back(Left::Message(tag, to_client));
            }
            1 => {
                // The first message makes the peers meet. The receive must not match messages of others.
                server.receive(()).tag(tag).context(1).post().unwrap();
                send(tag);
                wait::drive(&sides, "a message", || server.next_of(1)).done();
                let context = tag as usize;
                let receive =
                    server.receive(&room).tag_ignoring(0, u64::MAX).from(to_client).context(context);
                receive.post().unwrap();
                left.push_back(Left::Receive(context));
            }
            _ => {
                server.receive(()).tag(tag).context(1).post().unwrap();
                send(tag);
                wait::drive(&sides, "a message", || server.next_of(1)).done();
                let greet = || server.out(to_client, ()).tag(1).inject().send().ok();
                wait::drive(&sides, "room", greet);
                client.receive(()).tag(1).context(9).post().unwrap();
                wait::drive(&sides, "a greeting", || client.next_of(9)).done();
                left.push_back(Left::Number(to_client));
            }
        }
        if left.len() <= LATER {
            continue;
        }
        match left.pop_front().expect("something") {
            Left::Message(tag, from) => {
                server.receive(&room).tag_ignoring(0, u64::MAX).from(from).context(2).post().unwrap();
                match wait::drive(&sides, "an old message", || server.next_of(2)) {
                    Event::Done(entry, source) => assert_eq!((entry.tag, source), (tag, from)),
                    Event::Failed(error) => panic!("{error:?}"),
                }
                server.av.remove(&[from]).unwrap();
            }
            Left::Receive(context) => {
                // The receive got no message; it may have failed together with its peer.
                let _ = server.cancel(context);
                wait::drive(&sides, "the end of a receive", || server.next_of(context)).failed();
            }
            Left::Number(to) => {
                // The peer that has the number now must not get this message.
                client.receive(()).tag(77).context(3).post().unwrap();
                let _ = server.out(to, ()).tag(77).inject().send();
                wait::drive_through(Duration::from_millis(1), &sides);
                let got = client.next_of(3);
                assert!(got.is_none(), "{naming:?}: client {number} got a message for another: {got:?}");
                server.av.remove(&[to]).unwrap();
            }
        }
        while server.next().is_some() {}
    }
}

#[test]
fn nothing_of_a_peer_that_went_is_taken_for_another_s() {
    for naming in [Naming::Names, Naming::Crossed, Naming::Nearby] {
        nothing_passes_to_another(naming);
    }
}
