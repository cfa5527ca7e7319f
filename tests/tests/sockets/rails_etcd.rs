//! Metadata through a real etcd: Debian's `etcd-server`, started by each test in a directory of its own.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use multirail::{Agent, Etcd, Members, Remote, Way};
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
    // Published before the memory was registered: the update adds it.
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
    // The lease is renewed, so the name stays taken for longer than one lease.
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
    command.args(["--exact", &format!("rails_etcd::{name}")]).env("MULTIRAIL_ETCD", server.url());
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let here = agent("here");
    here.find(&etcd, "mortal", LONG).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(etcd.names().unwrap(), ["mortal"], "its lease lasts a little longer");
    // `publish` waits for the name, whose lease is not renewed any more.
    let successor = agent("mortal");
    let published = successor.publish(&etcd, LEASE).unwrap();
    here.find(&etcd, "mortal", LONG).unwrap();
    drop(published);
    assert!(etcd.names().unwrap().is_empty());
}

/// Ends all leases, as etcd does with those that are not renewed.
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
        assert!(began.elapsed() < LONG, "the loss of the name was not noticed");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(published.update(&bob).unwrap_err(), Errno::EADDRINUSE);
    drop(published);
    assert_eq!(etcd.names().unwrap(), ["bob"], "the entry of the other agent stays");
    drop(other);
    assert!(etcd.names().unwrap().is_empty());
}

/// Runs in the child: publishes, and waits to be killed.
fn be_published() {
    let etcd = Etcd::connect(&std::env::var("MULTIRAIL_ETCD").unwrap(), "/agents/").unwrap();
    let agent = agent("mortal");
    let _published = agent.publish(&etcd, LEASE).unwrap();
    std::thread::sleep(LONG);
}

#[test]
fn who_waits_for_a_name_is_told_and_does_not_ask_again_and_again() {
    let Some(server) = Server::start("who_waits_for_a_name_is_told_and_does_not_ask_again_and_again") else {
        return;
    };
    let etcd = connect(&server, "/run/");
    let bob = agent("bob");
    let before = ranges(&server);
    std::thread::scope(|scope| {
        let finder = scope.spawn(|| agent("alice").find(&etcd, "bob", LONG).unwrap());
        std::thread::sleep(Duration::from_secs(1));
        let published = bob.publish(&connect(&server, "/run/"), LEASE).unwrap();
        let began = Instant::now();
        finder.join().unwrap();
        // Without an event of the watch, the name would be requested after five seconds.
        assert!(began.elapsed() < Duration::from_secs(3), "notified after {:?}", began.elapsed());
        drop(published);
    });
    // One request before the watch, one after it, and as many again if the watch had to be renewed.
    let asked = ranges(&server) - before;
    assert!((2..=4).contains(&asked), "{asked} requests");
    // If nothing happens to the name, the call returns when the time is up.
    let began = Instant::now();
    let missing = bob.find(&etcd, "nobody", Duration::from_millis(300)).unwrap_err();
    assert_eq!(missing, Errno::ENOENT);
    assert!((300..4_000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
}

#[test]
fn who_waits_for_names_is_told_and_does_not_ask_again_and_again() {
    let Some(server) = Server::start("who_waits_for_names_is_told_and_does_not_ask_again_and_again") else {
        return;
    };
    let etcd = connect(&server, "/list/");
    let before = ranges(&server);
    std::thread::scope(|scope| {
        let finder = scope.spawn(|| etcd.wait_for_names(2, LONG).unwrap());
        std::thread::sleep(Duration::from_secs(1));
        let beside = connect(&server, "/list-of-others/").announce("c", &[], LEASE).unwrap();
        let entries = ["b", "a"].map(|name| connect(&server, "/list/").announce(name, &[], LEASE).unwrap());
        let began = Instant::now();
        assert_eq!(finder.join().unwrap(), ["a", "b"]);
        // Without an event of the watch, the names would be requested after five seconds.
        assert!(began.elapsed() < Duration::from_secs(3), "notified after {:?}", began.elapsed());
        drop((entries, beside));
    });
    // One request before the watch, one for each name, and as many again if a watch had to be renewed.
    let asked = ranges(&server) - before;
    assert!((2..=6).contains(&asked), "{asked} requests");
    let began = Instant::now();
    assert!(etcd.wait_for_names(1, Duration::from_millis(300)).unwrap().is_empty());
    assert!(etcd.wait_for_names(0, Duration::MAX).unwrap().is_empty(), "a time beyond the clock's range");
    assert!((300..4_000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
}

/// The number of range requests that etcd has served.
fn ranges(server: &Server) -> u64 {
    let metrics = server.metrics();
    let of = |line: &str| {
        line.starts_with("grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Range\"")
            .then(|| line.rsplit(' ').next()?.parse::<f64>().ok())
            .flatten()
    };
    metrics.lines().find_map(of).unwrap_or(0.0) as u64
}

#[test]
fn an_etcd_that_is_killed_and_comes_back_has_the_entries_and_is_waited_for() {
    let name = "an_etcd_that_is_killed_and_comes_back_has_the_entries_and_is_waited_for";
    let Some(mut server) = Server::start(name) else { return };
    let etcd = connect(&server, "/run/");
    let (bob, carol) = (agent("bob"), agent("carol"));
    let published = bob.publish(&etcd, LEASE).unwrap();
    std::thread::scope(|scope| {
        // The finder watches when etcd stops, and retries while it is down.
        let finder = scope.spawn(|| agent("alice").find(&etcd, "carol", LONG).unwrap());
        std::thread::sleep(Duration::from_millis(500));
        server.kill();
        let gone = bob.find(&etcd, "carol", Duration::from_millis(200)).unwrap_err();
        assert_eq!(gone, Errno::ECONNREFUSED);
        // Longer than the lease: its renewal fails while etcd is down.
        std::thread::sleep(LEASE + Duration::from_secs(1));
        server.restart();
        let _other = carol.publish(&etcd, LEASE).unwrap();
        finder.join().unwrap();
    });
    // Two more leases later the entry is still there: it is renewed again.
    std::thread::sleep(2 * LEASE);
    agent("dave").find(&etcd, "bob", LONG).unwrap();
    assert!(published.is_there());
    published.update(&bob).unwrap();
}

#[test]
fn a_member_that_does_not_answer_is_replaced_by_the_next() {
    let Some(server) = Server::start("a_member_that_does_not_answer_is_replaced_by_the_next") else { return };
    // One member refuses connections; one accepts them and never answers.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let urls = format!("http://127.0.0.1:1, http://{}/,{}", mute.local_addr().unwrap(), server.url());
    let began = Instant::now();
    let etcd = Etcd::connect(&urls, "/run/").unwrap();
    assert!(began.elapsed() < LONG, "{:?}", began.elapsed());
    // From now on the member that answered comes first.
    let began = Instant::now();
    let bob = agent("bob");
    let _published = bob.publish(&etcd, LEASE).unwrap();
    agent("alice").find(&etcd, "bob", LONG).unwrap();
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}

#[test]
fn a_user_is_known_by_a_password_and_a_token_that_is_lost_is_replaced() {
    let name = "a_user_is_known_by_a_password_and_a_token_that_is_lost_is_replaced";
    let Some(mut server) = Server::start(name) else { return };
    let root = "{\"name\":\"root\",\"password\":\"secret\"}";
    server.ask("auth/user/add", root);
    server.ask("auth/role/add", "{\"name\":\"root\"}");
    server.ask("auth/user/grant", "{\"user\":\"root\",\"role\":\"root\"}");
    let answer = server.ask("auth/enable", "{}");
    assert!(answer.contains("200 OK"), "{answer}");
    let members = Members::at(&server.url());
    assert!(!format!("{:?}", members.clone().user("root", "secret")).contains("secret"));
    let etcd = Etcd::open(&members.clone().user("root", "secret"), "/run/").unwrap();
    let bob = agent("bob");
    let published = bob.publish(&etcd, LEASE).unwrap();
    agent("alice").find(&etcd, "bob", LONG).unwrap();
    let stranger = Etcd::open(&members, "/run/").unwrap();
    assert_eq!(stranger.names().unwrap_err(), Errno::EREMOTEIO);
    let wrong = Etcd::open(&members.user("root", "guess"), "/run/").unwrap_err();
    assert_eq!(wrong, Errno::EREMOTEIO);
    assert!(!wrong.to_string().contains("guess"), "{wrong}");
    // A restarted etcd does not know earlier tokens.
    server.restart();
    assert_eq!(etcd.names().unwrap(), ["bob"]);
    drop(published);
    assert!(etcd.names().unwrap().is_empty());
}

#[test]
fn what_is_no_etcd_is_an_error_with_a_reason() {
    let unreached = Etcd::connect("http://127.0.0.1:1", "/").unwrap_err();
    assert_eq!(unreached, Errno::ECONNREFUSED);
    for wrong in ["https://127.0.0.1:2379", "", ",", "http://127.0.0.1:2379,10.0.0.1:2379"] {
        assert_eq!(Etcd::connect(wrong, "/").unwrap_err(), Errno::EINVAL, "{wrong:?}");
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answers =
        ["HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello", "nonsense\r\n\r\n"];
    // Each request is tried twice.
    let server = std::thread::spawn(move || {
        use std::io::{Read, Write};
        for answer in answers.into_iter().flat_map(|answer| [answer; 2]) {
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
