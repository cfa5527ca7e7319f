//! A key-value store for processes of one host or of several, on futures.
//!
//! The server keeps its table in a window. Clients look values up by reading the window (`FI_READ`), without involving
//! the server's program. They send updates as tagged messages to the server, the only writer.
//!
//! `cargo run --release --example kv_store [CLIENTS [KEYS]]`: the number of client processes on this host (default 2),
//! and the number of keys that each stores (default 2,000).
//!
//! On several hosts, run `cargo run --release --example kv_store -- server 10.0.0.1 7000 2 2000` on the first, with its
//! address, for two clients. Then run `cargo run --release --example kv_store -- client 10.0.0.1:7000 0 2000` on the
//! others, each with a different number in place of 0.
//!
//! `table.rs`: the layout of the window. `server.rs`, `client.rs`: the two sides, and their messages.
#![forbid(unsafe_code)]

mod client;
mod server;
#[path = "../support/mod.rs"]
mod support;
mod table;

use std::process::ExitCode;
use std::time::Instant;

use ofi::Address;

use client::Client;
use server::Server;
use support::Outcome;

fn main() -> ExitCode {
    support::report(|| {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        match &arguments[..] {
            [role, host, port, clients, keys] if role == "server" => {
                let (clients, keys) = (clients.parse()?, keys.parse()?);
                let server = Server::open(slots(clients, keys), Some((host, port)))?;
                println!("serving at {}", server.name()?);
                println!("stored {} values", server.run(clients)?);
                Ok(())
            }
            [role, server, number, keys] if role == "client" => {
                run_client(&server.parse()?, number.parse()?, keys.parse()?)
            }
            numbers => {
                let number = |at: usize, default| numbers.get(at).map_or(Ok(default), |text| text.parse());
                run_server(number(0, 2)?, number(1, 2000)?)
            }
        }
    })
}

/// At most a quarter full, so that every key finds a slot.
fn slots(clients: usize, keys: usize) -> usize {
    clients.saturating_mul(keys).saturating_mul(4)
}

fn run_server(clients: usize, keys: usize) -> Outcome {
    let server = Server::open(slots(clients, keys), None)?;
    let (name, keys) = (server.name()?.to_string(), keys.to_string());
    let mut others = Vec::new();
    for number in 0..clients {
        others.push(support::second_process(&["client", &name, &number.to_string(), &keys])?.0);
    }
    // In a thread of its own, so that a failing client ends this process.
    let serving = std::thread::spawn(move || server.run(clients).map_err(|error| error.to_string()));
    for other in others {
        other.finish()?;
    }
    let puts = serving.join().map_err(|_| "the server panicked")??;
    println!("the server has stored {puts} values for {clients} clients, and was asked for none");
    Ok(())
}

fn run_client(server: &Address, number: usize, keys: usize) -> Outcome {
    let client = Client::open()?;
    println!("{}", client.name()?);
    let (put, get) = client.block_on(async {
        let store = client.connect(server).await?;
        let key = |of: usize| format!("client {number}, key {of}").into_bytes();
        let start = Instant::now();
        for of in 0..keys {
            store.put(&key(of), format!("value {of}").as_bytes()).await?;
        }
        let (put, start) = (start.elapsed(), Instant::now());
        for of in 0..keys {
            if store.get(&key(of)).await?.as_deref() != Some(format!("value {of}").as_bytes()) {
                return Err(format!("key {of} has another value").into());
            }
        }
        let get = start.elapsed();
        if store.get(b"nobody's").await?.is_some() {
            return Err("a key that nobody stored has a value".into());
        }
        store.leave().await?;
        Ok::<_, Box<dyn std::error::Error>>((put, get))
    })?;
    eprintln!("client {number}: {keys} keys stored in {put:.1?}, found in {get:.1?}");
    Ok(())
}
