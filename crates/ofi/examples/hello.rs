//! Two endpoints in one process, and a message between them.
#![forbid(unsafe_code)]

use std::time::Duration;

use ofi::{Caps, Hints, Node};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let hints = Hints::new().caps(Caps::MSG);
    let (alice, bob) = (Node::open(&hints)?, Node::open(&hints)?);
    let to_bob = alice.insert(&bob.name()?)?; // addresses are numbered, as in fi_av_insert
    bob.recv(vec![0; 64])?; // the buffer moves into the operation
    alice.send(b"hello, Bob".to_vec(), to_bob)?;
    let second = Duration::from_secs(1);
    let message = bob.wait(second)?.ok_or("no message")?.into_result()?; // and comes back with its completion
    let sent = alice.wait(second)?.ok_or("not sent")?.into_result()?;
    println!("Bob got {:?}", String::from_utf8_lossy(message.bytes()));
    println!("Alice has her {} bytes back", sent.bytes().len());
    Ok(())
}
