//! Connections in the safe layer.

use std::time::{Duration, Instant};

use ofi::{Connection, Errno, Listener};

use super::support::{LONG, hints, pattern};

fn connect() -> (Connection, Connection) {
    let listener = Listener::open(&hints()).unwrap();
    let address = listener.name().unwrap();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| Connection::open(&hints(), &address, b"who", LONG).unwrap());
        let request = listener.wait(LONG).unwrap().expect("a request");
        assert_eq!(request.data(), b"who");
        assert!(request.peer().is_some());
        let server = request.accept(b"you", LONG).unwrap();
        (client.join().unwrap(), server)
    })
}

#[test]
fn a_connection_sends_both_ways_and_ends() {
    let (client, server) = connect();
    assert_eq!((client.greeting(), server.greeting()), (&b"you"[..], &b""[..]));
    assert_eq!(client.peer_name().unwrap(), server.name().unwrap());
    for (from, to) in [(&client, &server), (&server, &client)] {
        to.recv(vec![0; 1000]).unwrap();
        from.send(pattern(1000)).unwrap();
        let (sent, received) = super::support::both(&**from, &**to);
        assert!(sent.into_result().is_ok());
        assert_eq!(received.into_result().unwrap().bytes(), pattern(1000));
    }
    let waits = server.recv(vec![0; 8]).unwrap();
    assert!(!server.wait_shutdown(Duration::from_millis(10)).unwrap());
    client.shutdown().unwrap();
    assert!(server.wait_shutdown(LONG).unwrap());
    let ended = server.wait(LONG).unwrap().expect("the receive ends");
    assert_eq!(ended.op, Some(waits));
    assert!(ended.into_result().is_err());
    assert!(server.send(vec![1]).is_err());
}

#[test]
fn a_rejection_says_why_and_a_dropped_request_refuses() {
    let listener = Listener::open(&hints()).unwrap();
    let address = listener.name().unwrap();
    for reject in [true, false] {
        std::thread::scope(|scope| {
            let client = scope.spawn(|| Connection::open(&hints(), &address, &[], LONG).unwrap_err());
            let request = listener.wait(LONG).unwrap().expect("a request");
            if reject {
                request.reject(b"full").unwrap();
            } else {
                drop(request);
            }
            let refused = client.join().unwrap();
            assert_eq!(refused.error.errno(), Errno::ECONNREFUSED);
            assert_eq!(refused.data, if reject { &b"full"[..] } else { b"" });
        });
    }
}

#[test]
fn nobody_answers_in_time() {
    let listener = Listener::open(&hints()).unwrap();
    let start = Instant::now();
    let refused = Connection::open(&hints(), &listener.name().unwrap(), &[], Duration::from_millis(50));
    assert_eq!(refused.unwrap_err().error.errno(), Errno::ETIMEDOUT);
    assert!(start.elapsed() >= Duration::from_millis(50));
    // Accepting the request of a caller that has given up fails.
    let request = listener.wait(LONG).unwrap().expect("a request");
    assert!(request.accept(&[], LONG).is_err());
    assert!(listener.wait(Duration::from_millis(1)).unwrap().is_none());
}

/// Limits beyond the clock's range are no limits.
#[test]
fn endless_limits_are_kept() {
    const FOREVER: Duration = Duration::MAX;
    let listener = Listener::open(&hints()).unwrap();
    let address = listener.name().unwrap();
    let (client, server) = std::thread::scope(|scope| {
        let client = scope.spawn(|| Connection::open(&hints(), &address, b"", FOREVER).unwrap());
        let request = listener.wait(FOREVER).unwrap().expect("a request");
        let server = request.accept(b"", FOREVER).unwrap();
        (client.join().unwrap(), server)
    });
    server.recv(vec![0; 8]).unwrap();
    client.send(vec![7; 8]).unwrap();
    assert!(client.wait(FOREVER).unwrap().expect("the send ends").result.is_ok());
    assert_eq!(server.wait(FOREVER).unwrap().expect("the message").bytes(), [7; 8]);
    client.shutdown().unwrap();
    assert!(server.wait_shutdown(FOREVER).unwrap());
}
