//! The README's example program, as two processes.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::support;

fn example() -> Command {
    support::example("two_hosts")
}

#[test]
fn a_server_and_a_client_greet_each_other() {
    let mut server =
        example().args(["server", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn().expect("the server");
    let mut lines = BufReader::new(server.stdout.take().expect("its output")).lines();
    let listening = lines.next().expect("a line").expect("text");
    let address = listening.strip_prefix("listening at fi_sockaddr_in://").expect("an address");
    let client = example().args(["client", address]).output().expect("the client");
    assert!(client.status.success(), "{client:?}");
    assert_eq!(client.stdout, b"hello from the server\n");
    assert_eq!(lines.next().expect("a line").expect("text"), "hello from the client");
    assert!(server.wait().expect("the server").success());
}

#[test]
fn wrong_arguments_are_told() {
    for arguments in [&["server"][..], &["client", "nowhere"]] {
        let output = example().args(arguments).output().expect("the example");
        assert!(!output.status.success());
        assert!(String::from_utf8_lossy(&output.stderr).contains("Error"), "{output:?}");
    }
}
