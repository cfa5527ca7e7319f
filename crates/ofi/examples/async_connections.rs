//! Connections as futures: a server accepts every client, receives a stream of messages from each in one buffer, and
//! replies with the number of bytes. The clients run on another thread; futures of a node run on any executor.
//!
//! `cargo run --release --example async_connections`
#![forbid(unsafe_code)]

mod support;

use std::process::ExitCode;

use ofi::{Address, AsyncConnection, AsyncNode, Hints, Incoming, Listener, MultiRecvBuffer, Result};

const CLIENTS: usize = 3;
const MESSAGES: usize = 5;

fn main() -> ExitCode {
    support::report(|| {
        let hints = support::hints("shm");
        let listener = Listener::open(&hints)?;
        let name = listener.name()?;
        let clients = std::thread::spawn(move || {
            let executor = AsyncNode::open(&hints)?;
            (0..CLIENTS).try_for_each(|number| executor.block_on(client(&hints, &name, number)))
        });
        let executor = AsyncNode::open(&support::hints("shm"))?;
        executor.block_on(async {
            for number in 1..=CLIENTS {
                let bytes = serve(listener.next_request().await?).await?;
                println!("client {number} of {CLIENTS} sent {bytes} bytes");
            }
            Ok::<_, ofi::Error>(())
        })?;
        clients.join().map_err(|_| "a client panicked")??;
        Ok(())
    })
}

async fn serve(request: Incoming) -> Result<usize> {
    let connection = request.accept_async(b"welcome").await?;
    let mut messages = connection.recv_multi(MultiRecvBuffer::new(vec![0; 1 << 20]));
    let mut bytes = 0;
    for _ in 0..MESSAGES {
        let Some(message) = messages.next_message().await else { break };
        bytes += message?.into_result()?.bytes().len();
    }
    connection.send(bytes.to_le_bytes().to_vec()).await?;
    connection.ended().await?;
    Ok(bytes)
}

async fn client(hints: &Hints, server: &Address, number: usize) -> Result<()> {
    let connection = AsyncConnection::open(hints, server, b"")?.await?;
    let answer = connection.recv(vec![0; 8]);
    for _ in 0..MESSAGES {
        connection.send(vec![1; 1000 * (number + 1)]).await?;
    }
    let got = answer.await?;
    assert_eq!(got.bytes(), (MESSAGES * 1000 * (number + 1)).to_le_bytes());
    connection.shutdown()
}
