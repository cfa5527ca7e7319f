//! Connections as futures: on an executor that is independent of nodes, and cancelled at every point.

use std::time::Duration;

use ofi::{AsyncConnection, Errno, Listener};

use super::support::{LONG, all, both, hints, park_on, pattern, poll_once};

/// Connects, and returns the calling and the accepting end.
async fn connect(listener: &Listener) -> (AsyncConnection, AsyncConnection) {
    let calling = AsyncConnection::open(&hints(), &listener.name().unwrap(), b"who").unwrap();
    let accepting = async {
        let request = listener.next_request().await.unwrap();
        assert_eq!(request.data(), b"who");
        request.accept_async(b"you").await.unwrap()
    };
    let (client, server) = both(calling, accepting).await;
    (client.unwrap(), server)
}

#[test]
fn a_connection_comes_about_carries_messages_and_ends() {
    let listener = Listener::open(&hints()).unwrap();
    park_on(async {
        let (client, server) = connect(&listener).await;
        assert_eq!((client.greeting(), server.greeting()), (&b"you"[..], &b""[..]));
        assert_eq!(client.peer_name().unwrap(), server.name().unwrap());
        for (from, to) in [(&client, &server), (&server, &client)] {
            let (sent, got) = both(from.send(pattern(70_000)), to.recv(vec![0; 70_000])).await;
            assert!(sent.is_ok());
            assert_eq!(got.unwrap().buffer, pattern(70_000));
        }
        let waits = server.recv(vec![0; 8]);
        let mut end = server.ended();
        assert!(poll_once(&mut end).is_pending());
        client.shutdown().unwrap();
        end.await.unwrap();
        assert!(waits.await.is_err(), "the outstanding operation ends with an error");
        client.ended().await.unwrap();
    });
}

#[test]
fn a_listener_is_a_stream_of_requests() {
    const COUNT: usize = 12;
    let listener = Listener::open(&hints()).unwrap();
    let name = listener.name().unwrap();
    park_on(async {
        let calling = (0..COUNT).map(|_| AsyncConnection::open(&hints(), &name, b"").unwrap()).collect();
        let accepting = async {
            let mut servers = Vec::new();
            while servers.len() < COUNT {
                servers.push(listener.next_request().await.unwrap().accept_async(b"").await.unwrap());
            }
            servers
        };
        let (clients, servers) = both(all(calling), accepting).await;
        assert_eq!((clients.into_iter().filter(Result::is_ok).count(), servers.len()), (COUNT, COUNT));
    });
}

#[test]
fn a_rejection_says_why_and_nobody_there_refuses() {
    let listener = Listener::open(&hints()).unwrap();
    let name = listener.name().unwrap();
    park_on(async {
        let calling = AsyncConnection::open(&hints(), &name, b"").unwrap();
        let rejecting = async { listener.next_request().await.unwrap().reject(b"full").unwrap() };
        let (refused, ()) = both(calling, rejecting).await;
        let refused = refused.unwrap_err();
        assert_eq!((refused.error.errno(), &refused.data[..]), (Errno::ECONNREFUSED, &b"full"[..]));
        drop(listener);
        let refused = AsyncConnection::open(&hints(), &name, b"").unwrap().await.unwrap_err();
        assert_eq!(refused.error.errno(), Errno::ECONNREFUSED);
    });
}

#[test]
fn what_is_dropped_on_the_way_is_given_up_and_bothers_nobody() {
    let listener = Listener::open(&hints()).unwrap();
    let name = listener.name().unwrap();
    park_on(async {
        // A future of the next request is dropped before there is one.
        let mut next = listener.next_request();
        assert!(poll_once(&mut next).is_pending());
        drop(next);
        // A connecting future is dropped: accepting its request fails.
        let mut calling = AsyncConnection::open(&hints(), &name, b"gone").unwrap();
        assert!(poll_once(&mut calling).is_pending());
        drop(calling);
        let request = listener.next_request().await.unwrap();
        assert_eq!(request.data(), b"gone");
        assert!(request.accept_async(b"").await.is_err());
        // An accepting future is dropped: the other end is notified.
        let calling = AsyncConnection::open(&hints(), &name, b"").unwrap();
        let accepting = listener.next_request().await.unwrap().accept_async(b"");
        drop(accepting);
        if let Ok(connection) = calling.await {
            connection.ended().await.unwrap(); // the connection was established, and has ended
        }
        // The listener still works.
        let (client, server) = connect(&listener).await;
        drop(server);
        client.ended().await.unwrap();
    });
}

#[test]
fn a_wait_for_requests_costs_nothing_until_one_comes() {
    let listener = Listener::open(&hints()).unwrap();
    let name = listener.name().unwrap();
    let asks = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        ofi::Connection::open(&hints(), &name, b"late", LONG).map(drop)
    });
    let request = park_on(listener.next_request()).unwrap();
    assert_eq!(request.data(), b"late");
    drop(request);
    assert_eq!(asks.join().unwrap().unwrap_err().error.errno(), Errno::ECONNREFUSED);
}
