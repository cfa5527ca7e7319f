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
    for provider in ["shm", "udp", "tcp"] {
        for (arrival, more) in [("last", "--batch=3"), ("counted", "--lazy")] {
            let writing =
                ["-p", provider, "--nics=2", "--threads=2", "--requests=3", "--json", "--warm-up", more];
            let (writer, address) = Writer::start(&writing);
            let arrival = ["--arrival", arrival, "--rounds=4", "--repeat=3", "--region=1M", "--json"];
            let reading = [&["-p", provider, "--threads=2", &address, "32K", "9"][..], &arrival];
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
    let (writer, address) = Writer::start(&["-p", "udp", "--requests=2"]);
    for _ in 0..2 {
        let output = demo(&[&address, "8K", "5"]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(String::from_utf8_lossy(&output.stdout).starts_with("data is right: 10 pages in 1 requests"));
    }
    assert!(writer.end().starts_with("20 writes, 163840 bytes"));
}

/// The lines of standard error that contain a text.
fn lines<'a>(text: &'a str, wanted: &str) -> Vec<&'a str> {
    text.lines().filter(|line| line.contains(wanted)).collect()
}

#[test]
fn the_provider_that_was_taken_is_told_with_the_reason() {
    // `cargo xtask efa --test` runs this with a device.
    let over_efa = Hints::new().provider("efa").caps(Caps::MSG | Caps::RMA).ep_type(EpType::Rdm);
    let (provider, why) = match Node::open(&over_efa) {
        Ok(_) => ("efa", "EFA device "),
        Err(_) => ("udp", "no EFA device can be used here: "),
    };
    let mut writer = command(&["--requests=1"]);
    let mut writer = writer.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the writer starts");
    let mut address = String::new();
    let mut out = BufReader::new(writer.stdout.take().expect("a pipe"));
    out.read_line(&mut address).expect("its address");
    let output = demo(&[address.trim(), "8K", "5"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let told = format!("fi_write_demo: provider {provider}: ");
    let by_address = format!("{told}the writer's address has its format");
    assert_eq!(lines(&stderr(&output), "provider"), [by_address]);
    let mut said = String::new();
    writer.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
    assert!(writer.wait().expect("it ends").success(), "{said}");
    assert!(said.starts_with(&format!("{told}{why}")) && said.lines().count() == 1, "{said}");
    // A provider that was asked for needs no reason, and no search.
    let output = demo(&["-p", "shm", "fi_shm://nobody", "8", "9999"]);
    assert!(!stderr(&output).contains("provider shm:"), "{}", stderr(&output));
}

#[test]
fn the_configuration_each_step_and_page_indices_are_shown() {
    for verbose in ["", "-v", "-vv"] {
        let level: Vec<&str> = Some(verbose).filter(|level| !level.is_empty()).into_iter().collect();
        let mut writer = command(&[&["-p", "shm", "--requests=2", "--batch=3"][..], &level].concat());
        let writer = writer.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut writer = Writer(writer.expect("the writer starts"));
        let mut out = BufReader::new(writer.0.stdout.take().expect("a pipe"));
        let mut address = String::new();
        out.read_line(&mut address).expect("its address");
        let reading = ["-p", "shm", address.trim(), "8K", "5", "--repeat=2", "--rounds=3", "--region=1M"];
        let output = demo(&[&reading[..], &level].concat());
        let reader = stderr(&output);
        assert!(output.status.success(), "{reader}");
        let mut said = String::new();
        writer.0.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
        if level.is_empty() {
            assert_eq!((&*said, &*reader), ("", ""));
            continue;
        }
        // The indices that were asked for are those that the writer writes and the reader finds right.
        let asked: Vec<&str> = lines(&reader, "pages of 8192 bytes in each region: ");
        let indices: Vec<&str> = asked.iter().filter_map(|line| Some(line.rsplit_once(": ")?.1)).collect();
        assert_eq!(indices.len(), 2, "{reader}");
        assert!(indices.iter().all(|pages| pages.split(' ').count() == 5), "{indices:?}");
        for (number, pages) in indices.iter().enumerate() {
            assert_eq!(lines(&said, &format!("in each of 2 regions: {pages}")).len(), 1, "{said}");
            let right = format!("reader, NIC 0: request {}: all pages are right: {pages}", number + 1);
            assert_eq!(lines(&reader, &right).len(), 1, "{reader}");
        }
        for (text, wanted) in [
            (
                &said,
                "configuration: provider shm (as requested); NICs 1, threads 1, pin false, timeout 60 s; writer; ",
            ),
            (&said, "requests 2, batch 3, on full Queue, counters Own, lazy false, warm-up false"),
            (
                &reader,
                "pages 5 of 8192 bytes in each region of 1048576 bytes, rounds 3, requests 2, arrival Last",
            ),
            (&said, "NIC 0: opened domain "),
            (&reader, "NIC 0: opened domain "),
            (&reader, "reader, NIC 0: registered region 1: 1048576 bytes at 0x"),
            (&said, "writer, NIC 0: a reader has connected: fi_shm://"),
        ] {
            assert_eq!(lines(text, wanted).len(), 1, "{wanted}: {text}");
        }
        assert_eq!(lines(&said, "served a request: 30 writes, 245760 bytes").len(), 2, "{said}");
        // Each page in each round, and the announcement of each request.
        let each = usize::from(verbose == "-vv");
        assert_eq!(lines(&said, "posted page").len(), 60 * each);
        assert_eq!(lines(&said, "is written").len(), 60 * each);
        assert_eq!(lines(&said, ", with the announcement").len(), 2 * each);
        assert_eq!(lines(&reader, "is right").len(), 20 * each);
        assert_eq!(lines(&reader, "an announcement has arrived, 0 are left").len(), 2 * each);
    }
}

#[test]
fn arrivals_are_counted_on_a_terminal() {
    let flags = rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY;
    let master = rustix::pty::openpt(flags).unwrap();
    rustix::pty::unlockpt(&master).unwrap();
    let name = rustix::pty::ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let terminal = std::fs::OpenOptions::new().read(true).write(true).open(name).unwrap();
    let (_writer, address) = Writer::start(&["-p", "udp", "--requests=3"]);
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
    // A request that contains one page index, 3, and claims to contain `pages` of them.
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
        (&["-p", "udp", strange], "not one of this provider"),
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
