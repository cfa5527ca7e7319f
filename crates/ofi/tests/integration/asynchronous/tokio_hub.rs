//! A hub's events on tokio's reactor.

use std::sync::Arc;
use std::time::Duration;

use ofi::rt::tokio::{Driven, HubEvents};
use ofi::{AsyncConnection, HubEvent};
use tokio::time::{sleep, timeout};

use super::hub::{CLIENTS, MESSAGES, open, serve};
use super::support::{LONG, pattern};

/// One task serves clients, which are tasks with pauses: the reactor wakes all of them. Repeated timeouts on
/// the hub's events lose none.
async fn clients_are_served(provider: &str) {
    let (hub, hints) = open(provider);
    let name = hub.name().unwrap();
    let hub = Arc::new(hub);
    let mut events = HubEvents::new(Arc::clone(&hub)).unwrap();
    let server = tokio::spawn(async move {
        let mut closed = 0;
        while closed < CLIENTS {
            let Ok(event) = timeout(Duration::from_millis(2), events.next()).await else { continue };
            closed += usize::from(serve(&hub, event.unwrap()).is_some());
        }
    });
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let (hints, name) = (hints.clone(), name.clone());
        clients.push(tokio::spawn(async move {
            let connecting = AsyncConnection::open(&hints, &name, b"").unwrap();
            let connection = timeout(LONG, connecting).await.expect("an answer").unwrap();
            let driven = Driven::new(Arc::clone(connection.node()));
            for message in 0..MESSAGES {
                let bytes = pattern(1 + number * 100 + message);
                let echo = driven.recv(vec![0; 4096]);
                driven.send(bytes.clone(), connection.peer()).await.unwrap();
                let echo = timeout(LONG, echo).await.expect("an echo").unwrap();
                assert_eq!(echo.bytes(), bytes);
                sleep(Duration::from_millis(message as u64 % 3)).await;
            }
            connection.shutdown().unwrap();
        }));
    }
    for client in clients {
        timeout(LONG, client).await.expect("clients end").unwrap();
    }
    timeout(LONG, server).await.expect("the server ends").unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn a_hub_serves_on_one_thread() {
    clients_are_served("shm").await;
    clients_are_served("udp").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_hub_serves_on_threads() {
    clients_are_served("shm").await;
    clients_are_served("udp").await;
}

/// The task sleeps between two requests, and each request wakes it well before its sleep ends after a second.
#[tokio::test(flavor = "current_thread")]
async fn the_reactor_wakes_a_hub_that_sleeps() {
    let (hub, hints) = open("shm");
    let name = hub.name().unwrap();
    let callers = tokio::spawn(async move {
        for _ in 0..20 {
            sleep(Duration::from_millis(10)).await;
            let refused = timeout(LONG, AsyncConnection::open(&hints, &name, b"").unwrap()).await;
            assert!(refused.expect("an answer").is_err());
        }
    });
    let mut events = HubEvents::new(&hub).unwrap();
    let begun = tokio::time::Instant::now();
    for _ in 0..20 {
        match events.next().await.unwrap() {
            HubEvent::Request(request) => request.reject(b"").unwrap(),
            other => panic!("{other:?}"),
        }
    }
    callers.await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10), "requests waited for the end of the sleep");
}
