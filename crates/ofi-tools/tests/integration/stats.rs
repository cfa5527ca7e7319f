//! `ofi stats` and `ofi top` on a process that exports its statistics, on one that does not, and on one that
//! was killed.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use ofi::{Hints, Node};
use serde_json::Value;

/// Names the provider, in the process that has endpoints.
const CHILD: &str = "OFI_TEST_STATISTICS_CHILD";

/// Not a test of its own: runs as the process that has endpoints, until its standard input ends.
#[test]
fn child() {
    let Ok(provider) = std::env::var(CHILD) else { return };
    if provider == AGENTS {
        return be_agents();
    }
    let hints = Hints::new().provider(&provider);
    let (a, b): (Node, Node) = (Node::open(&hints).unwrap(), Node::open(&hints).unwrap());
    let to = a.insert(&b.name().unwrap()).unwrap();
    if std::env::var(FORKS).is_ok() {
        fork(&hints);
    }
    let talk = || {
        b.recv(vec![0; 64]).unwrap();
        a.send(vec![7; 64], to).unwrap();
        // By turns: a connection of tcp is established only while both ends poll.
        let (mut waiting, end) = (vec![&a, &b], Instant::now() + Duration::from_secs(10));
        while !waiting.is_empty() {
            waiting.retain(|node| match node.wait(Duration::from_millis(1)).unwrap() {
                Some(done) => {
                    done.into_result().unwrap();
                    false
                }
                None => true,
            });
            assert!(Instant::now() < end, "in time");
        }
    };
    talk(); // so that the statistics are not zero
    println!("\nready");
    std::io::stdout().flush().unwrap();
    let ended = std::thread::spawn(|| std::io::stdin().read_line(&mut String::new()));
    let end = Instant::now() + Duration::from_secs(60);
    while !ended.is_finished() && Instant::now() < end {
        talk();
    }
}

/// Stands for a provider: the process has agents.
const AGENTS: &str = "agents";

/// Two agents of one process; 100 transfers, one of them with a notification.
fn be_agents() {
    let open = |name: &str| {
        let rail = || Hints::new().provider("shm");
        multirail::Agent::builder(name).rail(rail()).rail(rail()).progress_thread(true).open().unwrap()
    };
    let (here, there) = (open("here"), open("there"));
    let (source, target) =
        (here.register(vec![7_u8; 4096]).unwrap(), there.register(vec![0_u8; 4096]).unwrap());
    here.load(&there.metadata().unwrap()).unwrap();
    let remote = multirail::Remote { region: target.id(), offset: 0, len: 4096 };
    let local = source.slice(..).unwrap();
    let plan = here.prepare("there", multirail::Way::Write, &[local], &[remote]).unwrap();
    let limit = Duration::from_secs(30);
    (1..100).for_each(|_| plan.post(limit).unwrap().wait().unwrap());
    let last = plan.post_notify(b"last", limit).unwrap();
    there.wait_notification(limit).unwrap().expect("a notification");
    last.wait().unwrap();
    println!("\nready");
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn agents_say_how_long_accesses_and_transfers_took() {
    let running = Running::start("agents", AGENTS, "1");
    let report = json(&running.ofi(&["stats", "--json"]));
    let sections = report["processes"][0]["endpoints"].as_array().unwrap();
    let agents: Vec<&Value> = sections.iter().filter(|section| section["kind"] == "AGENT").collect();
    assert_eq!(
        (agents.len(), &agents[0]["domain"], &agents[1]["domain"]),
        (2, &"here".into(), &"there".into())
    );
    let histograms = agents[0]["histograms"].as_array().unwrap();
    let of = |name: &str| histograms.iter().filter(|one| one["name"] == name).collect::<Vec<_>>();
    let count =
        |one: &Value| one["buckets"].as_array().unwrap().iter().filter_map(Value::as_u64).sum::<u64>();
    let accesses: u64 = of("rail_access_seconds").into_iter().map(count).sum();
    let transfers = of("transfer_seconds");
    assert_eq!((accesses, transfers.len(), count(transfers[0])), (100, 1, 100), "{report}");
    assert!(transfers[0]["sum_us"].as_u64().unwrap() > 0);
    assert!(agents[1].get("histograms").is_none(), "histograms of an agent that has not posted: {report}");

    let prometheus = String::from_utf8(running.ofi(&["stats", "--prometheus"]).stdout).unwrap();
    assert!(prometheus.contains("# TYPE ofi_transfer_seconds histogram\n"), "{prometheus}");
    let whole = prometheus
        .lines()
        .find(|line| line.starts_with("ofi_transfer_seconds_bucket") && line.contains("+Inf"));
    assert!(whole.unwrap().contains("domain=\"here\"") && whole.unwrap().ends_with(" 100"), "{whole:?}");
    for line in prometheus.lines().filter(|line| !line.starts_with('#')) {
        let labels =
            line.split_once('{').unwrap().1.split("\",").map(|label| label.split('=').next().unwrap());
        let labels: Vec<&str> = labels.collect();
        let once: std::collections::BTreeSet<&str> = labels.iter().copied().collect();
        assert_eq!(once.len(), labels.len(), "a label occurs twice: {line}");
    }
    let text = String::from_utf8(running.ofi(&["stats"]).stdout).unwrap();
    assert!(text.contains("bytes=4096: ") && text.contains("99 % <= "), "{text}");
    let rows = json(&running.ofi(&["top", "--once", "--json"]));
    assert_eq!(rows["endpoints"].as_array().unwrap().len(), 4, "only rails are listed, not agents: {rows}");
}

/// Set if that process has a child with its own endpoint.
const FORKS: &str = "OFI_TEST_STATISTICS_FORKS";

fn fork(hints: &Hints) {
    // SAFETY: the child opens an endpoint, sleeps, and ends without unwinding into the harness.
    if unsafe { libc::fork() } != 0 {
        return;
    }
    let node: ofi::Result<Node> = Node::open(hints);
    let parent = std::os::unix::process::parent_id();
    let end = Instant::now() + Duration::from_secs(60);
    while node.is_ok() && std::os::unix::process::parent_id() == parent && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    // SAFETY: ends the process without running its exit handlers.
    unsafe { libc::_exit(0) };
}

struct Running {
    child: Child,
    runtime: PathBuf,
}

impl Running {
    fn start(name: &str, provider: &str, export: &str) -> Self {
        Self::start_with(name, provider, export, &[])
    }

    fn start_with(name: &str, provider: &str, export: &str, more: &[(&str, &str)]) -> Self {
        let runtime = std::env::temp_dir().join(format!("ofi-stats-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&runtime);
        std::fs::create_dir_all(&runtime).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "stats::child", "--nocapture"]).env(CHILD, provider);
        command.env("FI_EXPORT_STATISTICS", export).env("XDG_RUNTIME_DIR", &runtime);
        command.envs(more.iter().copied());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the child starts");
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"), "the child did not get ready");
        Self { child, runtime }
    }

    fn ofi(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ofi"));
        command.args(arguments).env("XDG_RUNTIME_DIR", &self.runtime).output().expect("ofi runs")
    }

    fn socket(&self) -> PathBuf {
        self.runtime.join(format!("ofi/{}.sock", self.child.id()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.runtime);
    }
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn endpoints_are_shown_in_every_form() {
    for provider in ["shm", "udp", "tcp"] {
        let running = Running::start(provider, provider, "1");
        let report = json(&running.ofi(&["stats", "--json"]));
        let process = &report["processes"][0];
        assert_eq!(process["pid"], running.child.id());
        let endpoints = process["endpoints"].as_array().unwrap();
        assert_eq!(endpoints.len(), 2, "{process}");
        assert_eq!((&endpoints[0]["provider"], &endpoints[0]["kind"]), (&provider.into(), &"RDM".into()));
        assert!(endpoints[0]["address"].as_str().unwrap().contains("://"), "{process}");

        let prometheus = String::from_utf8(running.ofi(&["stats", "--prometheus"]).stdout).unwrap();
        assert!(prometheus.contains("# TYPE ofi_tx_messages untyped\nofi_tx_messages{pid="), "{prometheus}");
        let output = running.ofi(&["stats"]);
        assert!(String::from_utf8_lossy(&output.stdout).contains("messages sent"), "{output:?}");

        let rows = json(&running.ofi(&["top", "--once", "--json"]));
        let rows = rows["endpoints"].as_array().unwrap().clone();
        let sent = ["tx_messages", "tx_bytes"].map(|name| rows[0][name].as_f64().unwrap());
        assert!(sent.iter().all(|&rate| rate > 0.0), "{provider}: {rows:?}");
        assert!(rows[1]["rx_messages"].as_f64().unwrap() > 0.0, "{rows:?}");
        let text = String::from_utf8(running.ofi(&["top", "--once"]).stdout).unwrap();
        assert!(text.lines().count() == 3 && text.contains("resent/s"), "{text}");

        assert_eq!(running.ofi(&["stats", "--pid", "1"]).status.code(), Some(61), "no such process");
        let piped = running.ofi(&["top"]);
        assert_eq!(piped.status.code(), Some(1), "no terminal");
    }
}

#[test]
fn nothing_is_exported_unless_asked_for() {
    let running = Running::start("off", "shm", "0");
    assert!(!running.runtime.join("ofi").exists());
    let output = running.ofi(&["stats"]);
    assert_eq!(output.status.code(), Some(61));
    assert!(String::from_utf8_lossy(&output.stderr).contains("FI_EXPORT_STATISTICS=1"));
}

#[test]
fn the_socket_is_private_and_readers_that_stall_or_leave_disturb_nobody() {
    let running = Running::start("readers", "shm", "1");
    let mode = std::fs::metadata(running.runtime.join("ofi")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let connect = || UnixStream::connect(running.socket()).expect("a connection");
    let idle: Vec<UnixStream> = (0..8).map(|_| connect()).collect();
    for _ in 0..32 {
        drop(connect());
    }
    let mut talker = connect();
    let _ = talker.write_all(b"GET / HTTP/1.1\r\n\r\n");
    let before = json(&running.ofi(&["top", "--once", "--json"]));
    assert!(before["endpoints"][0]["tx_messages"].as_f64().unwrap() > 0.0, "{before}");
    drop(idle);
}

#[test]
fn a_killed_process_is_gone_and_its_socket_is_swept_by_the_next() {
    let mut running = Running::start("killed", "shm", "1");
    let socket = running.socket();
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    assert!(socket.exists(), "kill -9 removed the socket");
    assert_eq!(running.ofi(&["stats"]).status.code(), Some(61));
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "stats::child"]).env(CHILD, "shm").env("FI_EXPORT_STATISTICS", "1");
    let status =
        command.env("XDG_RUNTIME_DIR", &running.runtime).stdin(Stdio::null()).stdout(Stdio::null()).status();
    assert!(status.unwrap().success());
    assert!(!socket.exists());
}

#[test]
fn a_forked_process_exports_its_own_endpoints_and_not_its_parent_s() {
    let running = Running::start_with("forks", "shm", "1", &[(FORKS, "1")]);
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let report = json(&running.ofi(&["stats", "--json"]));
        let processes = report["processes"].as_array().unwrap();
        let child = processes.iter().find(|process| process["pid"] != running.child.id());
        if let Some(child) = child {
            assert_eq!(child["endpoints"].as_array().unwrap().len(), 1, "{child}");
            assert_eq!(processes.len(), 2);
            return;
        }
        assert!(Instant::now() < end, "fewer than two processes: {report}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
