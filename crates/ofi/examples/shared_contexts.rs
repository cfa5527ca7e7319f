//! One pool of buffers for several services of a process: each service is a node with its own address and queue, and
//! takes the next buffer of a shared receive context when a message arrives. They also share the transmit context.
//!
//! `cargo run --example shared_contexts`
#![forbid(unsafe_code)]

use std::process::ExitCode;

use ofi::{Caps, Domain, Node};

mod support;

use support::{Outcome, next, report};

/// Buffers for all services together.
const BUFFERS: usize = 8;

fn main() -> ExitCode {
    report(run)
}

fn run() -> Outcome {
    let hints = support::hints("shm").caps(Caps::MSG | Caps::SOURCE);
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
        // The buffer returns to the pool, for any of the services.
        receives.recv(question.take_buffer::<Vec<u8>>().ok_or("no buffer")?)?;
        println!("{text} -> {}", String::from_utf8_lossy(next(&client)?.bytes()));
    }
    Ok(())
}
