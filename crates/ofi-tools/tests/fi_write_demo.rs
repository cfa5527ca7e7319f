//! `fi_write_demo` as two processes: every provider of this host, both ways of arrival, the ladder, and bad input.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use ofi::{Address, Caps, EpType, Hints, Node};

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fi_write_demo"));
    command.args(["--timeout", "60"]).args(arguments);
    command
}

fn demo(arguments: &[&str]) -> Output {
    command(arguments).output().expect("fi_write_demo runs")
}

/// A writer that is killed when the test ends.
struct Writer(Child);

impl Writer {
    fn start(arguments: &[&str]) -> (Self, String) {
        let mut child = command(arguments).stdout(Stdio::piped()).spawn().expect("the writer starts");
        let mut address = String::new();
        let out = child.stdout.as_mut().expect("a pipe");
        // One byte at a time: the output after the address is read later.
        let mut byte = [0];
        while out.read_exact(&mut byte).is_ok() && byte != *b"\n" {
            address.push(char::from(byte[0]));
        }
        (Self(child), address)
    }

    fn end(mut self) -> String {
        let mut text = String::new();
        BufReader::new(self.0.stdout.take().expect("a pipe")).read_line(&mut text).expect("its figures");
        assert!(self.0.wait().expect("it ends").success());
        text
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn every_page_arrives_whatever_announces_it() {
    for provider in ["shm", "udp"] {
        for (arrival, more) in [("last", "--batch=3"), ("counted", "--lazy")] {
            let writing =
                ["-p", provider, "--nics=2", "--threads=2", "--requests=3", "--json", "--warm-up", more];
            let (writer, address) = Writer::start(&writing);
            let arrival = ["--arrival", arrival, "--rounds=4", "--repeat=3", "--region=1M", "--json"];
            let reading = [&["-p", provider, "--nics=2", "--threads=2", &address, "32K", "9"][..], &arrival];
            let output = demo(&reading.concat());
            assert!(output.status.success(), "{provider} {arrival:?}: {}", stderr(&output));
            let seen: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!((seen["pages"].as_u64(), seen["late"].as_u64()), (Some(2 * 3 * 2 * 9), Some(0)));
            let written: serde_json::Value = serde_json::from_str(&writer.end()).unwrap();
            assert_eq!(written["writes"], 2 * 3 * 4 * 2 * 9);
            assert_eq!(written["bytes"], 2 * 3 * 4 * 2 * 9 * (32 << 10));
        }
    }
}

#[test]
fn a_writer_serves_one_reader_after_the_other() {
    let (writer, address) = Writer::start(&["--requests=2"]);
    for _ in 0..2 {
        let output = demo(&[&address, "8K", "5"]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(String::from_utf8_lossy(&output.stdout).starts_with("data is right: 10 pages in 1 requests"));
    }
    assert!(writer.end().starts_with("20 writes, 163840 bytes"));
}

#[test]
fn arrivals_are_counted_on_a_terminal() {
    let flags = rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY;
    let master = rustix::pty::openpt(flags).unwrap();
    rustix::pty::unlockpt(&master).unwrap();
    let name = rustix::pty::ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let terminal = std::fs::OpenOptions::new().read(true).write(true).open(name).unwrap();
    let (_writer, address) = Writer::start(&["--requests=3"]);
    let mut reader = command(&["--arrival=counted", "--rounds=2", "--repeat=3", &address, "8K", "5"]);
    let output = reader.env("TERM", "xterm").stderr(terminal).output().unwrap();
    drop(reader); // closes the last descriptor of the terminal, so that reading ends
    assert!(output.status.success(), "{output:?}");
    let mut drawn = Vec::new();
    // On Linux such a read ends with EIO.
    let _ = std::fs::File::from(master).read_to_end(&mut drawn);
    let drawn = String::from_utf8_lossy(&drawn);
    // Two regions of five pages, twice in each of three requests.
    assert!(drawn.contains("/60 arrivals, "), "{drawn:?}");
}

/// Sends a message to the writer, and waits until it has left.
fn tell(stranger: &Node, writer: &Address, mut bytes: Vec<u8>) {
    let to = stranger.insert(writer).expect("the writer's address");
    let end = Instant::now() + Duration::from_secs(60);
    while let Err(rejected) = stranger.send(bytes, to) {
        assert!(rejected.is_again() && Instant::now() < end, "{}", rejected.error);
        bytes = rejected.buffer;
        let _ = stranger.poll().expect("a poll");
    }
    loop {
        if let Some(completion) = stranger.poll().expect("a poll") {
            assert!(completion.into_result().is_ok(), "the message does not leave");
            return;
        }
        assert!(Instant::now() < end, "the message does not leave");
    }
}

#[test]
fn a_writer_outlives_messages_that_lie() {
    let (writer, address) = Writer::start(&["-p", "shm", "--requests=1"]);
    let to: Address = address.parse().expect("an address");
    let stranger = Node::open(&Hints::new().provider("shm").caps(Caps::MSG).ep_type(EpType::Rdm)).unwrap();
    // A request of one page with index 3, which has so many pages by its count.
    let request = |pages: u64| {
        let mut bytes = vec![0; 36];
        (bytes[0], bytes[17], bytes[32]) = (1, 1, 3);
        bytes[24..32].copy_from_slice(&pages.to_le_bytes());
        bytes
    };
    // The address is the writer's own, with one region of 512 bytes, which has no page 3 of 256 bytes.
    let name = [address.as_bytes(), &[0]].concat();
    let mut connect = vec![0; 72];
    (connect[0], connect[4], connect[40], connect[57]) = (2, name.len() as u8, 1, 2);
    let cut = connect.clone();
    connect.extend(&name);
    for bytes in [
        vec![],
        vec![9; 64],
        vec![0; 39],
        cut,
        request(1),
        request(2),
        request(u64::MAX),
        connect,
        request(1),
    ] {
        tell(&stranger, &to, bytes);
    }
    let output = demo(&["-p", "shm", &address, "8K", "5"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(writer.end().starts_with("10 writes, 81920 bytes"));
}

#[test]
fn a_writer_that_says_nothing_is_given_up() {
    let silent = Node::open(&Hints::new().provider("shm").caps(Caps::MSG).ep_type(EpType::Rdm)).unwrap();
    let address = silent.name().expect("a name").to_string();
    let mut reader = Command::new(env!("CARGO_BIN_EXE_fi_write_demo"));
    reader.args(["-p", "shm", "--timeout=1", &address, "8K", "1"]).stderr(Stdio::piped());
    let mut reader = reader.spawn().expect("the reader starts");
    let status = loop {
        if let Some(status) = reader.try_wait().expect("the state of the reader") {
            break status;
        }
        // It takes the requests, and answers none.
        let _ = silent.poll().expect("a poll");
    };
    let mut said = String::new();
    reader.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
    assert!(!status.success() && said.contains("waiting for pages"), "{said}");
}

#[test]
fn the_ladder_has_a_row_for_each_step_and_a_plot() {
    let file = std::env::temp_dir().join(format!("ladder-{}.svg", std::process::id()));
    let path = file.to_str().unwrap();
    let output = demo(&[
        "--ladder",
        "-p",
        "shm",
        "--nics=2",
        "--threads=2",
        "--rounds=3",
        "--svg",
        path,
        "--page-size=64K",
        "--pages=4",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 10);
    let svg = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(svg.matches("<rect").count(), 9);
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let strange = "fi_shm://no-such-process";
    for (arguments, wanted) in [
        (&["--provider=nothing"][..], "looking for the provider"),
        (&["nonsense"], "reading the writer's address"),
        (&[strange], "not one of this provider"),
        (&["-p", "shm", strange, "8M", "8"], "do not fit into a region"),
        (&["-p", "shm", "--nics=2", strange], "--nics"),
        (&["-p", "shm", strange, "12"], "a multiple of 8"),
        (&["-p", "shm", strange, "8", "9999"], "9999"),
    ] {
        let output = demo(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(stderr(&output).contains(wanted), "{arguments:?}: {}", stderr(&output));
    }
}
