//! The key-value store between processes that only know an address of the server, as clients on other hosts
//! do.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::support;

fn example() -> Command {
    let mut command = support::example("kv_store");
    // Different hosts have no shared memory.
    command.env("FI_UDP_SHARED_MEMORY", "0");
    command
}

#[test]
fn clients_find_the_store_by_its_address() {
    let server = example().args(["server", "127.0.0.1", "0", "2", "50"]).stdout(Stdio::piped()).spawn();
    let mut server = server.expect("the server");
    let mut lines = BufReader::new(server.stdout.take().expect("its output")).lines();
    let serving = lines.next().expect("a line").expect("text");
    let address = serving.strip_prefix("serving at fi_sockaddr_in://").expect("an address");
    let clients: Vec<_> = ["0", "1"]
        .map(|number| {
            example()
                .args(["client", address, number, "50"])
                .stderr(Stdio::piped())
                .spawn()
                .expect("a client")
        })
        .into();
    for client in clients {
        let ended = client.wait_with_output().expect("a client");
        assert!(ended.status.success(), "{ended:?}");
    }
    assert_eq!(lines.next().expect("a line").expect("text"), "stored 100 values");
    assert!(server.wait().expect("the server").success());
}
