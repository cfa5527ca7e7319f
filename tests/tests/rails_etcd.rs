//! Metadata through a real etcd: Debian's `etcd-server`, started by each test in a directory of its own.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use multirail::{Agent, Etcd, Remote, Way};
use ofi::{Errno, Hints};
use ofi_testkit::etcd::Server;

const LONG: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_secs(2);

fn connect(server: &Server, prefix: &str) -> Etcd {
    Etcd::connect(&server.url(), prefix).unwrap()
}

fn agent(name: &str) -> Agent {
    Agent::builder(name).progress_thread(true).rail(Hints::new().provider("shm")).open().unwrap()
}

#[test]
fn agents_find_each_other_by_name_and_a_name_has_one_agent() {
    let Some(server) = Server::start("agents_find_each_other_by_name_and_a_name_has_one_agent") else {
        return;
    };
    let etcd = connect(&server, "/run-1/");
    let (alice, bob) = (agent("alice"), agent("bob"));
    let missing = alice.find(&etcd, "bob", Duration::from_millis(100)).unwrap_err();
    assert_eq!(missing, Errno::ENOENT);
    let published = bob.publish(&etcd, LEASE).unwrap();
    alice.publish(&connect(&server, "/run-2/"), LEASE).unwrap();
    assert_eq!(etcd.names().unwrap(), ["bob"]);
    // Published before it had memory: the entry follows.
    let target = bob.alloc(4096).unwrap();
    published.update(&bob).unwrap();
    assert_eq!(&*alice.find(&etcd, "bob", LONG).unwrap(), "bob");
    let source = alice.alloc(4096).unwrap();
    source.write_from(0, &[7; 4096]).unwrap();
    let remote = Remote { region: target.id(), offset: 0, len: 4096 };
    let plan = alice.prepare("bob", Way::Write, &[source.slice(..).unwrap()], &[remote]).unwrap();
    plan.post(LONG).unwrap().wait().unwrap();
    let mut found = [0; 4096];
    target.read_into(0, &mut found).unwrap();
    assert_eq!(found, [7; 4096]);
    // The lease is kept alive, so the name stays taken for longer than it lasts.
    assert_eq!(agent("bob").publish(&etcd, LEASE).unwrap_err(), Errno::EADDRINUSE);
    assert!(published.is_there());
    drop(published);
    assert!(etcd.names().unwrap().is_empty());
}

#[test]
fn the_entry_of_a_dead_process_goes_and_its_successor_gets_the_name() {
    if std::env::var_os("MULTIRAIL_ETCD").is_some() {
        return be_published();
    }
    let name = "the_entry_of_a_dead_process_goes_and_its_successor_gets_the_name";
    let Some(server) = Server::start(name) else { return };
    let etcd = connect(&server, "/agents/");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name]).env("MULTIRAIL_ETCD", server.url());
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let here = agent("here");
    here.find(&etcd, "mortal", LONG).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(etcd.names().unwrap(), ["mortal"], "its lease lasts a little longer");
    // The name is waited for, as nobody keeps it alive.
    let successor = agent("mortal");
    let published = successor.publish(&etcd, LEASE).unwrap();
    here.find(&etcd, "mortal", LONG).unwrap();
    drop(published);
    assert!(etcd.names().unwrap().is_empty());
}

/// Ends all leases, as etcd does with those that nobody keeps alive.
fn revoke_all(server: &Server) {
    let leases = server.ask("lease/leases", "{}");
    let ids: Vec<&str> =
        leases.split("\"ID\":\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(!ids.is_empty(), "{leases}");
    for id in ids {
        server.ask("lease/revoke", &format!("{{\"ID\":\"{id}\"}}"));
    }
}

#[test]
fn an_entry_whose_lease_ran_out_is_made_anew_unless_another_agent_has_its_name() {
    let name = "an_entry_whose_lease_ran_out_is_made_anew_unless_another_agent_has_its_name";
    let Some(server) = Server::start(name) else { return };
    let etcd = connect(&server, "/run-2/");
    let bob = agent("bob");
    let published = bob.publish(&etcd, LEASE).unwrap();
    revoke_all(&server);
    assert!(etcd.names().unwrap().is_empty());
    agent("alice").find(&etcd, "bob", LONG).unwrap();
    assert!(published.is_there());
    revoke_all(&server);
    let other = etcd.announce("bob", b"a value of another kind", LEASE).unwrap();
    let began = Instant::now();
    while published.is_there() {
        assert!(began.elapsed() < LONG, "the loss is not noticed");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(published.update(&bob).unwrap_err(), Errno::EADDRINUSE);
    drop(published);
    assert_eq!(etcd.names().unwrap(), ["bob"], "the other one's stays");
    drop(other);
    assert!(etcd.names().unwrap().is_empty());
}

/// In the child: publishes, and waits for its end.
fn be_published() {
    let etcd = Etcd::connect(&std::env::var("MULTIRAIL_ETCD").unwrap(), "/agents/").unwrap();
    let agent = agent("mortal");
    let _published = agent.publish(&etcd, LEASE).unwrap();
    std::thread::sleep(LONG);
}

#[test]
fn what_is_no_etcd_is_an_error_with_a_reason() {
    let unreached = Etcd::connect("http://127.0.0.1:1", "/").unwrap_err();
    assert_eq!(unreached, Errno::ECONNREFUSED);
    assert_eq!(Etcd::connect("https://127.0.0.1:2379", "/").unwrap_err(), Errno::EINVAL);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answers =
        ["HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello", "nonsense\r\n\r\n"];
    let server = std::thread::spawn(move || {
        use std::io::{Read, Write};
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    for _ in answers {
        let strange = Etcd::connect(&format!("http://{address}"), "/").unwrap_err();
        assert!(strange.to_string().contains("etcd"), "{strange}");
    }
    server.join().unwrap();
}
