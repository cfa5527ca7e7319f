//! Two reliable datagram endpoints on tokio: every peer can send to every other, without connections. The runtime's
//! reactor watches the queues, so no thread polls.
//!
//! `cargo run --release --features tokio --example tokio_node`
#![forbid(unsafe_code)]

use ofi::rt::tokio::Driven;
use ofi::{AsyncNode, Hints};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let hints = Hints::new().provider("udp");
    // `Driven` takes the node, spawns the task that drives it, and dereferences to the node.
    let server = Driven::new(AsyncNode::open(&hints)?);
    let client = Driven::new(AsyncNode::open(&hints)?);
    let (to_server, to_client) = (client.insert(&server.name()?)?, server.insert(&client.name()?)?);
    let node = server.node().clone(); // an `Arc<AsyncNode>`, for other tasks to share
    let answers = tokio::spawn(async move {
        for _ in 0..3 {
            let question = node.recv(vec![0; 64]).await?;
            let answer: Vec<u8> = question.bytes().iter().rev().copied().collect();
            node.send(answer, to_client).await?;
        }
        Ok::<_, ofi::Error>(())
    });
    for question in ["one", "two", "three"] {
        let answer = client.recv(vec![0; 64]); // posted before the question leaves
        client.send(question.as_bytes().to_vec(), to_server).await?;
        println!("{question}: {}", String::from_utf8_lossy(answer.await?.bytes()));
    }
    answers.await??;
    Ok(())
}
