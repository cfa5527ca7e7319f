//! The example `echo`: a server and a client as processes.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::support;

fn example() -> Command {
    support::example("echo")
}

/// A server that is killed when the test ends.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn clients_that_nobody_inserted_get_their_messages_back() {
    answers("udp");
}

/// The host and the port are of this host, at either end.
#[test]
fn over_shared_memory_too() {
    answers("shm");
}

fn answers(provider: &str) {
    let example = || {
        let mut example = example();
        example.env("OFI_EXAMPLE_PROVIDER", provider);
        example
    };
    let process =
        example().args(["server", "127.0.0.1", "0"]).stdout(Stdio::piped()).spawn().expect("the server");
    let mut server = Server(process);
    let mut lines = BufReader::new(server.0.stdout.take().expect("its output")).lines();
    let listening = lines.next().expect("a line").expect("text");
    let port = listening.strip_prefix("listening at fi_sockaddr_in://127.0.0.1:").expect("an address");
    for _ in 0..3 {
        let client = example().args(["client", "127.0.0.1", port]).output().expect("a client");
        assert!(client.status.success(), "{client:?}");
        assert_eq!(client.stdout, b"hello, echo\n");
    }
}
