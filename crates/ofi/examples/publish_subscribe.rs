//! Publish and subscribe, with back-pressure: each subscriber may lag up to `WINDOW` messages. The publisher waits at
//! most `SUBSCRIBER_TIMEOUT` for a subscriber that lags further, then drops it, so that one stalled subscriber does not
//! hold up the others.
//!
//! `cargo run --release --example publish_subscribe`
#![forbid(unsafe_code)]

mod support;

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ofi::{Address, CompletionKind, Connection, Hub, HubConnection, HubEvent, OpFlags};
use support::{LIMIT, Outcome};

const MESSAGES: u64 = 1000;
const WINDOW: usize = 32;
/// How long the publisher waits for a subscriber that lags `WINDOW` messages behind.
const SUBSCRIBER_TIMEOUT: Duration = Duration::from_secs(2);

/// Subscribers by the numbers of their connections, and the number of messages that each lags behind.
type Subscribers = HashMap<u32, (HubConnection, usize)>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    support::report(|| match &arguments[..] {
        [kind, address] => subscribe(kind, &address.parse()?),
        _ => publish(),
    })
}

fn publish() -> Outcome {
    // A message counts as pending until its subscriber has it; merely having sent it says nothing about a stalled
    // subscriber.
    let hints = support::hints("udp").tx_op_flags(OpFlags::DELIVERY_COMPLETE);
    let hub = Hub::open_at(&hints, "127.0.0.1", "0")?;
    let name = hub.name()?.to_string();
    let start = |kind: &str| support::process(&[kind.into(), name.clone()]);
    let (readers, sleeper) = ([start("reader")?, start("reader")?], start("sleeper")?);
    let mut subscribers = Subscribers::new();
    while subscribers.len() < 3 {
        turn(&hub, &mut subscribers, Instant::now() + LIMIT)?;
    }
    for number in 1..=MESSAGES {
        let patience = Instant::now() + SUBSCRIBER_TIMEOUT;
        while subscribers.values().any(|(_, behind)| *behind == WINDOW) && Instant::now() < patience {
            turn(&hub, &mut subscribers, patience)?;
        }
        for (id, (subscriber, _)) in subscribers.extract_if(|_, (_, behind)| *behind == WINDOW) {
            println!("dropped subscriber {id} before message {number}");
            subscriber.shutdown()?;
        }
        for (subscriber, behind) in subscribers.values_mut() {
            subscriber.send(number.to_le_bytes().to_vec())?;
            *behind += 1;
        }
    }
    while subscribers.values().any(|(_, behind)| *behind > 0) {
        turn(&hub, &mut subscribers, Instant::now() + LIMIT)?;
    }
    println!("published {MESSAGES} messages to {} subscribers", subscribers.len());
    subscribers.into_values().try_for_each(|(subscriber, _)| subscriber.shutdown())?;
    drop(sleeper);
    readers.into_iter().try_for_each(support::Process::finish)
}

/// Handles one event: a subscriber connects, leaves, or has received a message.
fn turn(hub: &Hub, subscribers: &mut Subscribers, until: Instant) -> Outcome {
    match hub.wait(until.saturating_duration_since(Instant::now()))? {
        Some(HubEvent::Request(request)) => drop(hub.accept(request, b"")?),
        Some(HubEvent::Connected(subscriber)) => {
            subscribers.insert(subscriber.id(), (subscriber, 0));
        }
        Some(HubEvent::Closed { connection, .. }) => drop(subscribers.remove(&connection.id())),
        Some(HubEvent::Completed { connection: Some(subscriber), .. }) => {
            subscribers.entry(subscriber.id()).and_modify(|(_, behind)| *behind -= 1);
        }
        _ => {}
    }
    Ok(())
}

fn subscribe(kind: &str, publisher: &Address) -> Outcome {
    let connection = Connection::open(&support::hints("udp"), publisher, b"", LIMIT)?;
    if kind == "sleeper" {
        std::thread::sleep(LIMIT); // it does not even take what has arrived
        return Ok(());
    }
    for _ in 0..WINDOW {
        connection.recv(vec![0; 8])?;
    }
    for expected in 1..=MESSAGES {
        let mut message = support::next(&connection)?;
        assert_eq!((message.kind(), message.bytes()), (CompletionKind::Receive, &expected.to_le_bytes()[..]));
        connection.recv(message.take_buffer::<Vec<u8>>().ok_or("no buffer")?)?;
    }
    println!("a subscriber got {MESSAGES} messages");
    Ok(())
}
