//! A server of many clients on tokio: a task for each connection, woken by tokio's reactor. The process sleeps while it
//! is idle.
//!
//! `cargo run --release --features tokio --example tokio_server`
#![forbid(unsafe_code)]

use ofi::rt::tokio::Driven;
use ofi::{Address, AsyncConnection, Hints, Incoming, Listener, Result};

const CLIENTS: u32 = 50;
const QUESTIONS: u32 = 10;

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let hints = Hints::new().provider("udp");
    let listener = Listener::open_at(&hints, "127.0.0.1", "0")?;
    let name = listener.name()?;
    let server = tokio::spawn(async move {
        let mut sessions = tokio::task::JoinSet::new();
        for _ in 0..CLIENTS {
            sessions.spawn(serve(listener.next_request().await?));
        }
        // A failing session ends only that client's connection.
        Ok::<u32, ofi::Error>(sessions.join_all().await.into_iter().map(|session| session.unwrap_or(0)).sum())
    });
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

/// Replies to each message with its bytes in reverse, until the client leaves.
async fn serve(request: Incoming) -> Result<u32> {
    let connection = request.accept_async(b"").await?;
    let _driven = Driven::new(connection.node().clone()); // its futures sleep until tokio's reactor wakes them
    let mut answers = 0;
    loop {
        tokio::select! {
            biased;
            question = connection.recv(vec![0; 64]) => {
                let Ok(question) = question else { return Ok(answers) };
                let answer: Vec<u8> = question.bytes().iter().rev().copied().collect();
                connection.send(answer).await?;
                answers += 1;
            }
            ended = connection.ended() => return ended.map(|()| answers),
        }
    }
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
