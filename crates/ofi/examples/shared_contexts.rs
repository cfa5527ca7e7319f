//! One pool of buffers for several services of a process: each is a node with an address and a queue of its own, and whichever
//! is sent to takes the next buffer of a shared receive context. They also share room for what they send.
//!
//! `cargo run --example shared_contexts`
#![forbid(unsafe_code)]

use std::process::ExitCode;

use ofi::{Caps, Domain, Hints, Node};

mod support;

use support::{Outcome, next, report};

/// Buffers for all services together.
const BUFFERS: usize = 8;

fn main() -> ExitCode {
    report(run)
}

fn run() -> Outcome {
    let hints = Hints::new().provider("shm").caps(Caps::MSG | Caps::SOURCE);
    let domain = Domain::open(&hints)?;
    let (receives, room) = (domain.shared_receive()?, domain.shared_transmit()?);
    let open = || Node::builder().shared_receive(&receives).shared_transmit(&room).open();
    let (upper, lower) = (open()?, open()?);
    for _ in 0..BUFFERS {
        receives.recv(vec![0; 64])?;
    }

    let client = Node::open(&hints)?;
    upper.insert(&client.name()?)?; // services of one context have one address vector
    let (to_upper, to_lower) = (client.insert(&upper.name()?)?, client.insert(&lower.name()?)?);
    for (text, loud) in [("Hello", true), ("World", false), ("Again", true)] {
        let (to, service) = if loud { (to_upper, &upper) } else { (to_lower, &lower) };
        client.recv(vec![0; 64])?;
        client.inject(text.as_bytes(), to)?;
        let mut question = next(service)?;
        let asked = std::str::from_utf8(question.bytes())?;
        let answer = if loud { asked.to_uppercase() } else { asked.to_lowercase() };
        let from = question.source.ok_or("a question of a stranger")?;
        service.inject(answer.as_bytes(), from)?;
        // The buffer goes back to the pool, for whichever service is asked next.
        receives.recv(question.take_buffer::<Vec<u8>>().ok_or("no buffer")?)?;
        println!("{text} -> {}", String::from_utf8_lossy(next(&client)?.bytes()));
    }
    Ok(())
}
