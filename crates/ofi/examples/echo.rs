//! A server that replies to clients it did not know before.
//!
//! On one host `cargo run --release --example echo -- server 10.0.0.1 7000`, with an address of that host; on others
//! `cargo run --release --example echo -- client 10.0.0.1 7000`.
#![forbid(unsafe_code)]

#[allow(dead_code, reason = "only the hints are used")]
mod support;

use std::time::Duration;

use ofi::{CompletionKind, Hints, Node};

const LIMIT: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [role, host, port] = &arguments[..] else {
        return Err("usage: echo server|client HOST PORT".into());
    };
    let hints = support::hints("udp");
    if role == "server" { serve(&hints, host, port) } else { ask(&hints, host, port) }
}

/// Sends each message back, in the buffer that received it.
fn serve(hints: &Hints, host: &str, port: &str) -> Result<(), Box<dyn std::error::Error>> {
    let node = Node::builder().hints(hints.clone()).listen(host, port).insert_senders(1000).open()?;
    println!("listening at {}", node.name()?);
    for _ in 0..16 {
        node.recv(vec![0; 1024])?;
    }
    loop {
        let Some(mut done) = node.wait(None)? else { continue };
        let client = done.source;
        let len = done.bytes().len();
        if done.kind() == CompletionKind::Receive {
            let mut message: Vec<u8> = done.take_buffer().ok_or("a receive without its buffer")?;
            message.truncate(len);
            match client {
                Some(client) => drop(node.send(message, client)?),
                None => eprintln!("no answer: {:?}", done.result),
            }
            node.recv(vec![0; 1024])?;
        }
    }
}

fn ask(hints: &Hints, host: &str, port: &str) -> Result<(), Box<dyn std::error::Error>> {
    let node = Node::open(hints)?;
    let server = node.insert_service(host, port)?;
    node.recv(vec![0; 1024])?;
    node.send(b"hello, echo".to_vec(), server)?;
    for _ in 0..2 {
        let done = node.wait(LIMIT)?.ok_or("nothing came in time")?.into_result()?;
        if done.kind() == CompletionKind::Receive {
            println!("{}", String::from_utf8_lossy(done.bytes()));
        }
    }
    Ok(())
}
