//! Two agents on two hosts: one writes 64 MiB into the other's memory over two rails.
//!
//! On the first host `cargo run --release -p multirail --example two_agents -- serve 10.0.0.1:7000`, with an address of
//! that host; on the second one `cargo run --release -p multirail --example two_agents -- write 10.0.0.1:7000`.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use multirail::{Agent, Remote, Way};
use ofi::Hints;

const LIMIT: Duration = Duration::from_secs(60);
const LEN: usize = 64 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [role, address] = &arguments[..] else {
        return Err("usage: two_agents serve|write ADDRESS:PORT".into());
    };
    let udp = || Hints::new().provider("udp");
    let agent = Agent::builder(role).rail(udp()).rail(udp()).open()?;
    if role == "serve" {
        let memory = agent.register(vec![0; LEN])?;
        let _server = agent.serve(address)?; // hands the agent's metadata to each visitor
        println!("waiting at {address}");
        let notification = agent.wait_notification(LIMIT)?.ok_or("no notification arrived in time")?;
        let mut last = [0];
        memory.read_into(LEN - 1, &mut last)?;
        println!("{} wrote {LEN} bytes, the last is {}", notification.peer, last[0]);
    } else {
        let memory = agent.register(vec![7; LEN])?;
        let peer = agent.visit(address, LIMIT)?; // loads the server's metadata
        let (region, _) = agent.regions(&peer)?[0];
        let remote = Remote { region, offset: 0, len: LEN as u64 };
        let plan = agent.prepare(&peer, Way::Write, &[memory.slice(..)?], &[remote])?;
        let began = Instant::now();
        plan.post_notify(b"all of it", LIMIT)?.wait()?; // the notification arrives after all bytes
        println!("{:.2} GB/s", LEN as f64 / began.elapsed().as_secs_f64() / 1e9);
    }
    Ok(())
}
