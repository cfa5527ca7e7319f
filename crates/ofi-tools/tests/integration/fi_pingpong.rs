//! `fi_pingpong` as users run it: both sides in one command, a server and a client, and sides that fail.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

fn fi_pingpong(line: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fi_pingpong"));
    command.env_remove("FI_PROVIDER").args(line);
    command
}

fn run(line: &[&str]) -> Output {
    fi_pingpong(line).output().expect("fi_pingpong starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A run keeps two cores busy, so runs are serialized.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A server, and the port that it prints.
struct Server {
    child: Child,
    port: String,
}

impl Server {
    fn start(line: &[&str]) -> Server {
        let mut command = fi_pingpong(&[line, &["-B", "0"]].concat());
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a server starts");
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let port =
            line.split("port ").nth(1).and_then(|rest| rest.split(';').next()).expect("a port").to_owned();
        Server { child, port }
    }

    fn finish(mut self) -> (Option<i32>, String) {
        let mut out = String::new();
        std::io::Read::read_to_string(&mut self.child.stdout.take().unwrap(), &mut out).unwrap();
        (self.child.wait().unwrap().code(), out)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn by_itself_it_measures_and_checks_every_transport() {
    let _alone = alone();
    let output = run(&["--sizes", "64,4096", "--quick", "-c", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let shm = &value["transports"][0];
    assert_eq!(shm["provider"], "shm");
    let rows = shm["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|row| row["bytes"].as_u64().unwrap()).collect::<Vec<_>>(), [64, 4096]);
    for row in rows {
        for figure in ["latency_us", "rate_mps", "bandwidth_gbps", "checked"] {
            assert!(row[figure].as_f64().unwrap() > 0.0, "{figure}: {row}");
        }
    }
}

#[test]
fn the_table_has_a_line_for_each_size() {
    let _alone = alone();
    let output = run(&["--sizes", "0,1K", "--quick", "--rma", "--threading", "safe", "--memory", "library"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert!(table.starts_with("shm (FI_PROTO_SHM): two processes, "), "{table}");
    assert!(table.contains("FI_THREAD_SAFE") && table.contains("library memory\n"), "{table}");
    assert!(table.contains("   bytes    latency us    rate M/s    bandwidth GB/s\n       0 "), "{table}");
    for memory in ["application", "library"] {
        assert!(table.contains(&format!("   1 KiB  {memory}")), "{table}");
    }
    assert_eq!(text(&output.stderr), "", "a progress bar without a terminal");
}

#[test]
fn a_client_and_a_server_print_c_s_table() {
    let _alone = alone();
    let server = Server::start(&["-p", "shm", "-e", "rdm"]);
    let line = ["-p", "shm", "-e", "rdm", "-I", "100", "-S", "1024", "-c", "-P", &server.port, "127.0.0.1"];
    let output = run(&line);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (code, there) = server.finish();
    assert_eq!(code, Some(0));
    for table in [text(&output.stdout), there] {
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 2, "{table}");
        assert!(lines[0].starts_with("bytes   #sent   #ack     total "), "{table}");
        assert!(lines[1].starts_with("1k      100     =100     200k "), "{table}");
    }
}

#[test]
fn tagged_messages_and_json_work_between_a_client_and_a_server() {
    let _alone = alone();
    let server = Server::start(&["-m", "tagged", "--json"]);
    let output = run(&["-m", "tagged", "--json", "-I", "10", "-P", &server.port, "localhost"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(value["rows"].as_array().unwrap().len(), 6);
    assert_eq!(
        serde_json::from_str::<Value>(&server.finish().1).expect("JSON")["rows"].as_array().unwrap().len(),
        6
    );
}

#[test]
fn sides_that_do_not_fit_say_so() {
    let _alone = alone();
    let server = Server::start(&["-m", "tagged"]);
    let output = run(&["-P", &server.port, "127.0.0.1"]);
    assert_eq!(output.status.code(), Some(104));
    assert!(text(&output.stderr).contains("give both the same -m"), "{}", text(&output.stderr));
    assert_eq!(server.finish().0, Some(104), "the server's exit code");
}

#[test]
fn a_stranger_on_the_port_ends_the_server() {
    let server = Server::start(&["-p", "shm"]);
    let port: u16 = server.port.parse().unwrap();
    TcpStream::connect(("127.0.0.1", port)).unwrap().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(server.finish().0, Some(104));
}

#[test]
fn a_peer_that_dies_is_told_within_moments() {
    let _alone = alone();
    let mut server = Server::start(&["-p", "shm"]);
    let line = ["-p", "shm", "-I", "1000000000", "-S", "64", "-P", &server.port, "127.0.0.1"];
    let mut client = fi_pingpong(&line).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(client.try_wait().unwrap().is_none(), "the client ended early");
    server.child.kill().unwrap();
    let since = Instant::now();
    let status = client.wait().unwrap();
    assert!(!status.success() && status.code().is_some(), "{status}");
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
}

#[test]
fn a_second_process_that_is_killed_is_named() {
    let _alone = alone();
    let line = ["--sizes", "64", "--self", "-I", "1000000000"];
    let run = fi_pingpong(&line).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.id())).unwrap();
    let child = children.split_whitespace().next().expect("a second process");
    assert!(Command::new("kill").args(["-9", child]).status().unwrap().success());
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(104));
    assert!(text(&output.stderr).contains("killed by signal 9"), "{}", text(&output.stderr));
}

#[test]
fn what_cannot_be_measured_is_said_clearly() {
    for kind in ["msg", "dgram"] {
        let output = run(&["--self", "-e", kind]);
        assert_eq!(output.status.code(), Some(61));
        assert!(text(&output.stderr).contains("use -e rdm"), "{}", text(&output.stderr));
    }
    let output = run(&["--self", "-p", "nobody"]);
    assert_eq!(output.status.code(), Some(61));
    assert!(text(&output.stderr).contains("nobody"), "{}", text(&output.stderr));
}

#[test]
fn wrong_calls_say_what_would_be_right() {
    for line in [&["-S", "many"][..], &["--sizes", "1,x"], &["-e", "stream"], &["-I", "0"], &["-P", "65536"]]
    {
        let output = run(line);
        assert_eq!(output.status.code(), Some(1), "{line:?}");
        assert!(!output.stderr.is_empty());
    }
    let output = run(&["--cores", "0,9999", "--quick"]);
    assert_eq!(output.status.code(), Some(22), "{}", text(&output.stderr));
}

#[test]
fn a_port_that_is_taken_or_silent_is_named() {
    let taken = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = run(&["-B", &port]);
    assert_eq!(output.status.code(), Some(98));
    assert!(text(&output.stderr).contains(&port) && text(&output.stderr).contains("-B"));
    drop(taken);
    let output = run(&["-P", &port, "127.0.0.1"]);
    assert_eq!(output.status.code(), Some(111));
    assert!(text(&output.stderr).contains("is the server started"), "{}", text(&output.stderr));
}

#[test]
fn counters_are_printed_on_request() {
    let _alone = alone();
    let line = ["-p", "udp", "--self", "--sizes", "64", "--quick", "--stats"];
    let output = fi_pingpong(&line).env("FI_UDP_SHARED_MEMORY", "0").output().expect("fi_pingpong starts");
    let told = text(&output.stderr);
    assert!(output.status.success(), "{told}");
    for counter in ["endpoint  tx_messages", "peer  udp_rtt_ns", "peer  udp_window"] {
        assert!(told.contains(counter), "{counter} in\n{told}");
    }
    assert!(!told.contains("tx_failed"), "counters of 0 must be left out:\n{told}");
    let without = run(&["-p", "udp", "--self", "--sizes", "64", "--quick"]);
    assert!(!text(&without.stderr).contains("tx_messages"));
}
