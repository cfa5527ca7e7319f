//! A server of many clients on tokio: one task and one queue for all connections, woken by tokio's reactor. The process
//! sleeps while it is idle.
//!
//! `cargo run --release --features tokio --example tokio_server`
#![forbid(unsafe_code)]

use ofi::rt::tokio::{Driven, HubEvents};
use ofi::{Address, AsyncConnection, CompletionKind, Hints, Hub, HubEvent, Result};

const CLIENTS: u32 = 50;
const QUESTIONS: u32 = 10;

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let hints = Hints::new().provider("udp");
    let hub = Hub::open_at(&hints, "127.0.0.1", "0")?;
    let name = hub.name()?;
    let server = tokio::spawn(serve(hub));
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(ask(hints.clone(), name.clone(), number));
    }
    for answers in clients.join_all().await {
        answers?;
    }
    println!("{CLIENTS} clients got {} answers", server.await??);
    Ok(())
}

/// Replies to each message with its bytes in reverse, until all clients have left. Returns the number of replies.
async fn serve(hub: Hub) -> Result<u32> {
    let mut events = HubEvents::new(&hub)?;
    let (mut answers, mut gone) = (0, 0);
    while gone < CLIENTS {
        match events.next().await? {
            HubEvent::Request(request) => drop(hub.accept(request, b"")?.recv(vec![0; 64])?),
            // A failed operation means that its client is leaving, which is a separate event.
            HubEvent::Completed { connection: Some(connection), mut completion }
                if completion.kind() == CompletionKind::Receive && completion.result.is_ok() =>
            {
                let answer: Vec<u8> = completion.bytes().iter().rev().copied().collect();
                let question = completion.take_buffer::<Vec<u8>>().expect("the buffer of `recv`");
                connection.recv(question)?;
                connection.send(answer)?;
                answers += 1;
            }
            HubEvent::Closed { .. } => gone += 1,
            _ => {}
        }
    }
    Ok(answers)
}

async fn ask(hints: Hints, server: Address, number: u32) -> Result<()> {
    let connection = AsyncConnection::open(&hints, &server, b"")?.await?;
    let _driven = Driven::new(connection.node().clone());
    for question in 0..QUESTIONS {
        let answer = connection.recv(vec![0; 64]);
        connection.send((number * 1000 + question).to_le_bytes().to_vec()).await?;
        assert_eq!(answer.await?.bytes(), (number * 1000 + question).to_be_bytes());
    }
    connection.shutdown()
}
