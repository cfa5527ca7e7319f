//! Hubs: many connections in one domain and one queue, over shared memory and over sockets.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use ofi::{
    Address, Completion, CompletionKind, Connection, Errno, Hints, Hub, HubConnection, HubEvent, MrAccess,
    RemoteWindow, Result,
};

use super::support::{LONG, pattern};

fn open(provider: &str) -> (Hub, Hints) {
    let hints = Hints::new().provider(provider);
    let hub = if provider == "udp" {
        Hub::open_at(&hints, "127.0.0.1", "0").unwrap()
    } else {
        Hub::open(&hints).unwrap()
    };
    (hub, hints)
}

/// The next event that is not a completion of a send.
fn event(hub: &Hub) -> HubEvent {
    loop {
        match hub.wait(LONG).unwrap().expect("an event in time") {
            HubEvent::Completed { completion, .. } if completion.kind() == CompletionKind::Send => {
                completion.into_result().expect("a message was sent");
            }
            event => return event,
        }
    }
}

/// Accepts the next request; the receives are posted before the connection is established.
fn accept(hub: &Hub) -> HubConnection {
    loop {
        match event(hub) {
            HubEvent::Request(request) => {
                let accepted = hub.accept(request, b"welcome").unwrap();
                accepted.recv(vec![0; 4096]).unwrap();
            }
            HubEvent::Connected(connection) => return connection,
            other => panic!("{other:?}"),
        }
    }
}

fn received(hub: &Hub) -> (HubConnection, Completion) {
    match event(hub) {
        HubEvent::Completed { connection: Some(connection), completion } => (connection, completion),
        other => panic!("{other:?}"),
    }
}

fn closed(hub: &Hub) -> HubConnection {
    loop {
        match event(hub) {
            HubEvent::Closed { connection, error: None } => return connection,
            HubEvent::Completed { completion, .. } => {
                assert!(completion.result.is_err(), "cancelled by the end")
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Sends a greeting, gets the window's address, reads the window, and reports what it read.
fn client(hints: &Hints, hub: &Address, number: usize) -> Result<Connection> {
    let connection = Connection::open(hints, hub, b"", LONG)?;
    assert_eq!(connection.greeting(), b"welcome");
    connection.recv(vec![0; 64])?;
    connection.send(vec![number as u8; 100 + number])?;
    let mut window = None;
    while window.is_none() {
        let done = connection.wait(LONG)?.expect("in time").into_result()?;
        if done.kind() == CompletionKind::Receive {
            window = Some(RemoteWindow::from_bytes(done.bytes())?);
        }
    }
    let window = window.expect("a window");
    connection.read(vec![0; window.len as usize], connection.peer(), window)?;
    loop {
        let done = connection.wait(LONG)?.expect("in time").into_result()?;
        if done.kind() == CompletionKind::Read {
            assert_eq!(done.bytes(), pattern(5000));
            return Ok(connection);
        }
    }
}

fn one_window_serves_all_and_an_end_disturbs_nobody(provider: &str) {
    const CLIENTS: usize = 5;
    let (hub, hints) = open(provider);
    let name = hub.name().unwrap();
    let window = hub.domain().window(pattern(5000), MrAccess::REMOTE_READ).unwrap();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                scope.spawn({
                    let (hints, name) = (&hints, &name);
                    move || client(hints, name, number)
                })
            })
            .collect();
        let (mut met, mut ended, mut numbers) = (HashSet::new(), 0, HashSet::new());
        let until = Instant::now() + LONG;
        while clients.iter().any(|client| !client.is_finished()) {
            assert!(Instant::now() < until, "{met:?} came, {ended} went");
            let Some(event) = hub.wait(Duration::from_millis(10)).unwrap() else { continue };
            match event {
                HubEvent::Request(request) => {
                    let connection = hub.accept(request, b"welcome").unwrap();
                    connection.recv(vec![0; 4096]).unwrap();
                }
                HubEvent::Connected(connection) => assert!(met.insert(connection.id())),
                HubEvent::Completed { connection, completion } => {
                    let (connection, done) =
                        (connection.expect("a connection"), completion.into_result().unwrap());
                    assert!(
                        met.contains(&connection.id()),
                        "a connection is established before its first completion"
                    );
                    if done.kind() == CompletionKind::Receive {
                        assert_eq!(done.bytes().len(), 100 + usize::from(done.bytes()[0]));
                        assert!(numbers.insert(done.bytes()[0]));
                        connection.send(window.remote().to_bytes().to_vec()).unwrap();
                    }
                }
                HubEvent::Closed { .. } => ended += 1,
                other => panic!("{other:?}"),
            }
        }
        let mut clients: Vec<_> = clients.into_iter().map(|client| client.join().unwrap().unwrap()).collect();
        assert_eq!(
            (met.len(), numbers.len(), ended, hub.connections().len()),
            (CLIENTS, CLIENTS, 0, CLIENTS)
        );
        // One client is dropped without a shutdown; the others are still served.
        drop(clients.remove(1));
        let gone = closed(&hub);
        assert!(met.contains(&gone.id()) && !hub.connections().contains(&gone));
        assert!(gone.send(vec![1]).is_err(), "a send on a closed connection succeeded");
        for connection in hub.connections() {
            connection.recv(vec![0; 64]).unwrap();
        }
        for client in &clients {
            client.inject(b"still there").unwrap();
            let (connection, done) = received(&hub);
            assert_eq!(done.into_result().unwrap().bytes(), b"still there");
            assert!(hub.connections().contains(&connection));
        }
    });
}

#[test]
fn one_window_serves_all_connections_over_shared_memory() {
    one_window_serves_all_and_an_end_disturbs_nobody("shm");
}

#[test]
fn one_window_serves_all_connections_over_sockets() {
    one_window_serves_all_and_an_end_disturbs_nobody("udp");
}

/// Two connections, and their clients.
fn two(hub: &Hub, hints: &Hints) -> [(HubConnection, Connection); 2] {
    let name = hub.name().unwrap();
    [(); 2].map(|()| {
        std::thread::scope(|scope| {
            let client = scope.spawn(|| Connection::open(hints, &name, b"", LONG).unwrap());
            (accept(hub), client.join().unwrap())
        })
    })
}

#[test]
fn operations_of_a_connection_end_with_it_and_no_others() {
    for provider in ["shm", "udp", "tcp"] {
        let (hub, hints) = open(provider);
        let [(first, first_client), (second, second_client)] = two(&hub, &hints);
        for _ in 0..3 {
            first.recv(vec![0; 64]).unwrap();
        }
        let kept = second.recv(vec![0; 64]).unwrap();
        assert_eq!(hub.in_flight(), 2 + 3 + 1);
        assert!(
            second.cancel(first.recv(vec![0; 64]).unwrap()).is_err(),
            "cancelled an operation of another connection"
        );
        let id = first.id();
        first_client.shutdown().unwrap();
        assert_eq!(closed(&hub).id(), id);
        drop(first); // the last clone: unread completions go with it
        assert_eq!(hub.in_flight(), 2);
        second_client.inject(b"one").unwrap();
        second_client.inject(b"two").unwrap();
        for text in [b"one", b"two"] {
            let until = Instant::now() + LONG;
            let event = loop {
                if let Some(event) = hub.wait(Duration::from_millis(1)).unwrap() {
                    break event;
                }
                assert!(
                    second_client.poll().unwrap().is_none(),
                    "sends are injected, so they have no completions"
                );
                assert!(Instant::now() < until, "{provider}: no message");
            };
            let HubEvent::Completed { connection: Some(connection), completion: done } = event else {
                panic!("{provider}: {event:?}");
            };
            assert_eq!(connection, second);
            if text == b"two" {
                assert_eq!(done.op, Some(kept));
            }
            assert_eq!(done.into_result().unwrap().bytes(), text);
        }
        assert_eq!(hub.in_flight(), 0);
    }
}

#[test]
fn a_request_of_another_hub_is_refused_and_waiting_ends() {
    let (hub, hints) = open("shm");
    let (other, _) = open("shm");
    assert!(hub.wait(Duration::from_millis(20)).unwrap().is_none());
    let name = hub.name().unwrap();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| Connection::open(&hints, &name, b"", LONG).unwrap_err());
        let first = hub.wait(Duration::MAX).unwrap().expect("an event");
        let HubEvent::Request(request) = first else { panic!("a request comes first") };
        assert_eq!(other.accept(request, b"").unwrap_err().errno(), Errno::EINVAL);
        assert_eq!(client.join().unwrap().error.errno(), Errno::ECONNREFUSED);
    });
    assert!(hub.connections().is_empty() && other.connections().is_empty());
}

/// Connections come and go on one thread while another handles the events.
#[test]
fn connections_are_dropped_while_another_thread_reads() {
    const ROUNDS: usize = 40;
    let (hub, hints) = open("shm");
    let name = hub.name().unwrap();
    std::thread::scope(|scope| {
        let clients = scope.spawn(|| {
            for _ in 0..ROUNDS {
                let connection = Connection::open(&hints, &name, b"", LONG).unwrap();
                for _ in 0..8 {
                    connection.inject(b"a message that may be read or not").unwrap();
                }
            }
        });
        let (drop_here, dropped) = std::sync::mpsc::channel::<HubConnection>();
        let dropper = scope.spawn(move || dropped.into_iter().for_each(drop));
        let mut ended = 0;
        while ended < ROUNDS {
            match hub.wait(LONG).unwrap().expect("an event in time") {
                HubEvent::Request(request) => {
                    let connection = hub.accept(request, b"").unwrap();
                    for _ in 0..8 {
                        connection.recv(vec![0; 64]).unwrap();
                    }
                }
                HubEvent::Closed { connection, .. } => {
                    ended += 1;
                    drop_here.send(connection).unwrap();
                }
                _ => {}
            }
        }
        drop(drop_here);
        clients.join().unwrap();
        dropper.join().unwrap();
    });
    assert_eq!(hub.in_flight(), 0);
}

/// A connection of the hub, and its client's end.
fn met(hub: &Hub, hints: &Hints) -> (HubConnection, Connection) {
    let name = hub.name().unwrap();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| Connection::open(hints, &name, b"", LONG).unwrap());
        let accepted = accept(hub);
        (accepted, client.join().unwrap())
    })
}

/// The turns of the hub and a client until a message of 64 bytes has come from one to the other.
fn turns_of_a_message(hub: &Hub, to: &HubConnection, client: &Connection) -> usize {
    let (mut turns, mut is_sent, begin) = (0, false, Instant::now());
    client.recv(vec![0; 64]).unwrap();
    loop {
        turns += 1;
        is_sent = is_sent || to.send(vec![7; 64]).is_ok();
        while hub.poll().unwrap().is_some() {}
        while let Some(done) = client.poll().unwrap() {
            let done = done.into_result().unwrap();
            if done.kind() == CompletionKind::Receive {
                assert_eq!(done.bytes(), [7; 64]);
                return turns;
            }
        }
        assert!(begin.elapsed() < LONG, "sent: {is_sent}");
    }
}

fn median(values: impl Iterator<Item = usize>) -> usize {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable();
    values[values.len() / 2]
}

#[test]
fn a_client_that_reads_nothing_delays_no_message_to_another() {
    const ROUNDS: usize = 30;
    for provider in ["shm", "udp", "tcp"] {
        let (hub, hints) = open(provider);
        let (to_silent, silent) = met(&hub, &hints);
        let (to_live, live) = met(&hub, &hints);
        let rounds = || (0..ROUNDS).map(|_| turns_of_a_message(&hub, &to_live, &live));
        rounds().for_each(drop); // until both know each other
        let usual = median(rounds());
        for len in [64, 100_000] {
            let mut accepted = 0;
            let begin = Instant::now();
            while to_silent.send(vec![1; len]).is_ok() {
                accepted += 1;
                while hub.poll().unwrap().is_some() {}
                assert!(
                    begin.elapsed() < LONG,
                    "{accepted} messages of {len} bytes to a client that reads nothing"
                );
            }
            let beside = median((0..ROUNDS).map(|_| {
                // A refused message must not hold up other clients' messages.
                let _ = to_silent.send(vec![1; len]);
                turns_of_a_message(&hub, &to_live, &live)
            }));
            println!(
                "{provider}: {accepted} of {len} bytes accepted, {beside} turns where {usual} are usual"
            );
            assert!(beside <= 2 * usual, "{provider}, {len} bytes: {beside} turns where {usual} are usual");
        }
        drop(silent);
    }
}
