//! A hub's events as futures: on any executor, with dropped futures, and the events that wake a sleeping
//! task.

use std::time::{Duration, Instant};

use ofi::{
    Address, AsyncConnection, CompletionKind, Connection, Hints, Hub, HubConnection, HubEvent, Result,
};

use super::support::{LONG, hints, park_on, pattern, poll_once};

pub const CLIENTS: usize = 8;
pub const MESSAGES: usize = 20;

/// A hub at a loopback address for sockets, at any address for shared memory.
pub fn open(provider: &str) -> (Hub, Hints) {
    let hints = Hints::new().provider(provider);
    let hub = match provider {
        "udp" => Hub::open_at(&hints, "127.0.0.1", "0").unwrap(),
        _ => Hub::open(&hints).unwrap(),
    };
    (hub, hints)
}

/// Handles one event of a server that echoes every message. Returns the connection if it closed.
pub fn serve(hub: &Hub, event: HubEvent) -> Option<HubConnection> {
    match event {
        HubEvent::Request(request) => {
            hub.accept(request, b"welcome").unwrap().recv(vec![0; 4096]).unwrap();
        }
        HubEvent::Completed { connection: Some(connection), mut completion }
            if completion.kind() == CompletionKind::Receive && completion.result.is_ok() =>
        {
            let echo = completion.bytes().to_vec();
            connection.recv(completion.take_buffer::<Vec<u8>>().expect("its buffer")).unwrap();
            connection.send(echo).unwrap();
        }
        HubEvent::Closed { connection, error } => {
            assert!(error.is_none(), "{error:?}");
            return Some(connection);
        }
        _ => {}
    }
    None
}

/// A client with pauses, in which the server sleeps.
fn client(hints: &Hints, server: &Address, number: usize) -> Result<()> {
    let connection = Connection::open(hints, server, b"", LONG)?;
    for message in 0..MESSAGES {
        if message % 5 == number % 5 {
            std::thread::sleep(Duration::from_millis(3));
        }
        let bytes = pattern(1 + number * 100 + message);
        connection.recv(vec![0; 4096])?;
        connection.send(bytes.clone())?;
        let echo = loop {
            let done = connection.wait(LONG)?.expect("in time").into_result()?;
            if done.kind() == CompletionKind::Receive {
                break done.bytes().to_vec();
            }
        };
        assert_eq!(echo, bytes);
    }
    connection.shutdown()
}

#[test]
fn a_task_serves_many_clients_through_one_queue() {
    for provider in ["shm", "udp", "tcp"] {
        let (hub, hints) = open(provider);
        let name = hub.name().unwrap();
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (hints, name) = (hints.clone(), name.clone());
                std::thread::spawn(move || client(&hints, &name, number).unwrap())
            })
            .collect();
        park_on(async {
            let mut closed = 0;
            while closed < CLIENTS {
                let event = hub.next_event().await.unwrap();
                closed += usize::from(serve(&hub, event).is_some());
            }
        });
        clients.into_iter().for_each(|client| client.join().unwrap());
        assert!(hub.connections().is_empty());
    }
}

/// A message, a request and an end each wake the task long before its bound of a second: ten of each.
#[test]
fn each_kind_of_event_wakes_a_task_that_sleeps() {
    let (hub, hints) = open("shm");
    let name = hub.name().unwrap();
    let client = std::thread::spawn(move || {
        let pause = || std::thread::sleep(Duration::from_millis(5));
        for _ in 0..10 {
            pause();
            let connection = Connection::open(&hints, &name, b"", LONG).unwrap();
            pause();
            connection.recv(vec![0; 16]).unwrap();
            connection.inject(b"news").unwrap();
            let echo = connection.wait(LONG).unwrap().expect("in time").into_result().unwrap();
            assert_eq!(echo.bytes(), b"news");
            pause();
            connection.shutdown().unwrap();
        }
    });
    let begun = Instant::now();
    park_on(async {
        let mut closed = 0;
        while closed < 10 {
            let event = hub.next_event().await.unwrap();
            closed += usize::from(serve(&hub, event).is_some());
        }
    });
    client.join().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(9), "events waited for the end of the sleep");
}

#[test]
fn a_dropped_future_loses_no_event() {
    let (hub, _) = open("shm");
    let connecting = AsyncConnection::open(&hints(), &hub.name().unwrap(), b"first").unwrap();
    let mut given_up = hub.next_event();
    // The future is ready at once if the request has already arrived.
    let early = match poll_once(&mut given_up) {
        std::task::Poll::Ready(event) => Some(event.unwrap()),
        std::task::Poll::Pending => None,
    };
    drop(given_up);
    park_on(async {
        let event = match early {
            Some(event) => event,
            None => hub.next_event().await.unwrap(),
        };
        let HubEvent::Request(request) = event else { panic!("{event:?}") };
        assert_eq!(request.data(), b"first");
        request.reject(b"no").unwrap();
        assert!(connecting.await.is_err());
    });
}
