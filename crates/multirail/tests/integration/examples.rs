//! Runs the examples as a user does, each with all of its processes.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Command, Stdio};

/// The command of an example. `cargo test` builds examples beside the tests.
fn example(name: &str) -> Command {
    let tests = std::env::current_exe().expect("this program");
    let built = tests.ancestors().nth(2).expect("the build folder").join("examples").join(name);
    assert!(
        built.exists(),
        "{} does not exist (build it: cargo build -p multirail --examples)",
        built.display()
    );
    Command::new(built)
}

/// The decode process compares each block of each layer with what the prefill process has computed.
fn kv_cache(rails: &str) {
    let output = example("kv_cache").arg(rails).output().expect("the example");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let layers: Vec<_> = text.lines().filter(|line| line.contains("of prefill-0 arrived intact")).collect();
    assert_eq!(layers.len(), 32, "{text}");
    for nth in 0..32 {
        let start = format!("layer {nth:2} ");
        assert!(layers.iter().any(|line| line.starts_with(&start)), "{text}");
    }
}

#[test]
fn a_kv_cache_moves_layer_by_layer_over_shared_memory() {
    kv_cache("shm");
}

#[test]
fn a_kv_cache_moves_layer_by_layer_over_two_rails() {
    kv_cache("udp,udp");
}

#[test]
fn two_agents_meet_and_one_writes() {
    let address =
        TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its number").to_string();
    let mut server = example("two_agents")
        .args(["serve", &address])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the example as a server");
    let mut lines = BufReader::new(server.stdout.take().expect("a pipe"));
    let mut first = String::new();
    lines.read_line(&mut first).expect("a line");
    assert_eq!(first, format!("waiting at {address}\n"));
    let writer = example("two_agents").args(["write", &address]).output().expect("the example as a writer");
    assert!(writer.status.success(), "{writer:?}");
    let mut rest = String::new();
    lines.read_to_string(&mut rest).expect("text");
    assert_eq!(rest, format!("write wrote {} bytes, the last is 7\n", 64 << 20));
    assert!(server.wait().expect("an end").success());
}
