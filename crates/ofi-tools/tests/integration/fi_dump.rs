//! `fi_dump` on generated captures.

use std::process::{Command, Output};

use ofi_rdm::Stream;
use ofi_rdm::wire::header::{self, flag};
use ofi_rdm::wire::{Frame, Header, Init, Kind, Params};

/// Writes an Ethernet capture of `datagrams` to a file, and dumps it.
fn dump(name: &str, datagrams: &[Vec<u8>], options: &[&str]) -> Output {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0002_0004, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for body in datagrams {
        let mut frame = vec![0u8; 12];
        frame.extend([0x08, 0x00, 0x45, 0]);
        frame.extend((28 + body.len() as u16).to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        for word in [7000u16, 8000, 8 + body.len() as u16, 0] {
            frame.extend(word.to_be_bytes());
        }
        frame.extend(body);
        for word in [1u32, 250_000, frame.len() as u32, frame.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    let path = std::env::temp_dir().join(format!("fi_dump-{}-{name}", std::process::id()));
    std::fs::write(&path, file).expect("a file");
    let output = Command::new(env!("CARGO_BIN_EXE_fi_dump")).args(options).arg(&path).output();
    std::fs::remove_file(&path).expect("removing the capture");
    output.expect("fi_dump starts")
}

fn data() -> Vec<u8> {
    let mut packet = vec![0u8; 200];
    let mut at = header::LEN;
    at += Frame::Credit { stream: Stream::Commands, limit: 4096 }.write(&mut packet[at..]).expect("room");
    at += Frame::Data { stream: Stream::Bulk, offset: 100, bytes: b"hello" }
        .write(&mut packet[at..])
        .expect("room");
    packet.truncate(at);
    Header { flags: flag::CHECKED, ..Header::new(Kind::Data, 0xabc, 17) }.write(&mut packet);
    packet
}

fn init() -> Vec<u8> {
    let params = Params { window: 65_536, in_flight: 1, max_packet: 9000, liveness_port: 0, flags: 0 };
    let mut packet = vec![0u8; 1200];
    Init::plain(5, 6, 7, params, ([10, 0, 0, 2], 8000).into()).write(&mut packet[header::LEN..]);
    Header { flags: flag::CHECKED, ..Header::new(Kind::Init, 0, 0) }.write(&mut packet);
    packet
}

#[test]
fn a_capture_is_shown_packet_by_packet() {
    let mut damaged = data();
    damaged[30] ^= 1;
    let output = dump("all", &[init(), data(), b"something".to_vec(), damaged], &[]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let way = "1.250000 10.0.0.1:7000 > 10.0.0.2:8000";
    assert_eq!(
        lines,
        [
            format!(
                "{way} Init session 0000000000000000 checked as 0000000000000005 epoch 0000000000000006 attempt 7 cookie 0000000000000000 window 65536 packet 9000 to 10.0.0.2:8000"
            ),
            format!(
                "{way} Data session 0000000000000abc checked number 17 | credit Commands 4096 | Bulk 100+5"
            ),
            format!("{way} 9 bytes of another protocol"),
            format!("{way} damaged: wrong checksum"),
        ]
    );
}

#[test]
fn options_leave_out_what_is_not_wanted() {
    let all = [b"something".to_vec(), data()];
    let known = dump("known", &all, &["--known", "-p", "8000"]);
    assert_eq!(String::from_utf8_lossy(&known.stdout).lines().count(), 1);
    assert!(dump("port", &all, &["-p", "1"]).stdout.is_empty());
}

#[test]
fn what_is_no_capture_is_an_error() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_fi_dump")).arg("Cargo.toml").output().expect("fi_dump starts");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not a capture"), "{output:?}");
}
