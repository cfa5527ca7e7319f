//! The memory of a peer at an endpoint with very many, in the whole stack: as `--only udp-peers-memory`, with
//! fewer peers.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use ofi_benches::Figures;
use ofi_benches::ours::{Job, Test};

/// The limit for an idle peer, in bytes.
const EACH: f64 = 1024.0;

/// The memory of one of 6,000 peers, in bytes.
fn measure() -> f64 {
    let job = serde_json::to_string(&Job::new(Test::Round { peers: 6_000 }, 64, 1).over_udp()).unwrap();
    let (server, client) = UnixStream::pair().unwrap();
    let worker = |role: &str, link: UnixStream| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ofi-benches"));
        command.args(["worker", "--role", role, "--job", &job]).stdin(Stdio::from(OwnedFd::from(link)));
        command
    };
    let mut server = worker("server", server).spawn().unwrap();
    let output = worker("client", client).output().unwrap();
    assert!(server.wait().unwrap().success() && output.status.success(), "{output:?}");
    let figures: Figures = serde_json::from_slice(&output.stdout).unwrap();
    figures.bytes_each.expect("a measured size")
}

/// On a busy machine more is in flight at once, in buffers that count here too: so the minimum of three runs
/// is used.
#[test]
fn an_idle_peer_takes_a_kibibyte_of_the_whole_stack_at_most() {
    let mut least = f64::INFINITY;
    for _ in 0..3 {
        least = least.min(measure());
        println!("{least:.0} bytes for each peer");
        if least <= EACH {
            break;
        }
    }
    assert!(least > 0.0 && least <= EACH, "{least:.0} bytes for each peer");
}
