//! One message each way between two hosts. On the first host, with its address:
//! `cargo run --release --example two_hosts -- server 10.0.0.1:7000`
//! and on the second `cargo run --release --example two_hosts -- client 10.0.0.1:7000`.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::time::Duration;

use ofi::{CompletionKind, Connection, Hints, Listener};

const LIMIT: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [role, address] = &arguments[..] else { return Err("usage: two_hosts server|client IP:PORT".into()) };
    let (hints, address) = (Hints::new().provider("udp"), address.parse::<SocketAddr>()?);
    let connection = if role == "server" {
        let listener = Listener::open_at(&hints, &address.ip().to_string(), &address.port().to_string())?;
        println!("listening at {}", listener.name()?);
        listener.wait(None)?.ok_or("the wait was interrupted")?.accept(b"", LIMIT)?
    } else {
        Connection::open(&hints, &address.into(), b"", LIMIT)?
    };
    connection.recv(vec![0; 64])?; // the buffer moves into the operation
    connection.send(format!("hello from the {role}").into_bytes())?;
    for _ in 0..2 {
        let done = connection.wait(LIMIT)?.ok_or("nothing came in time")?.into_result()?; // and comes back here
        if done.kind() == CompletionKind::Receive {
            println!("{}", String::from_utf8_lossy(done.bytes()));
        }
    }
    Ok(())
}
