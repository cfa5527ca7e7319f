//! Shared by the tests.
#![allow(dead_code, reason = "not every test program uses all of it")]

pub mod kept;

use std::process::{Command, Stdio};

use multirail::{Local, Region, Remote};

/// An nftables table for cuts, in a network namespace of its own, with the loopback up.
pub const TABLE: &str = "ip link set lo up; nft add table ip cut; nft add chain ip cut in '{ type filter hook input priority 0; }'";

/// Bytes of memory that this process has.
pub fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn unhex(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

/// Runs a script. The error describes its failure.
pub fn shell(script: &str) -> Result<(), String> {
    let output = Command::new("sh").args(["-ec", script]).stdin(Stdio::null()).output();
    let output = output.map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{script}: {}", String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ")))
}

/// The port of each rail of an agent; 0 for rails without a port.
pub fn ports(metadata: &[u8]) -> Vec<u16> {
    let rails = multirail::wire::Metadata::parse(metadata).unwrap().rails;
    let port = |rail: &multirail::wire::RailInfo| match (&*rail.provider, &rail.address[..]) {
        ("udp", [_, _, high, low, ..]) => u16::from_be_bytes([*high, *low]),
        _ => 0,
    };
    rails.iter().map(port).collect()
}

/// All of a region, for this end and for a peer.
pub fn whole(region: &Region<Vec<u8>>) -> (Local, Remote) {
    let (region_id, len) = (region.id(), region.len() as u64);
    (region.slice(..).unwrap(), Remote { region: region_id, offset: 0, len })
}

/// Whether every byte of a region is this one.
pub fn holds(region: &Region<Vec<u8>>, byte: u8) -> bool {
    let mut bytes = vec![0; region.len()];
    region.read_into(0, &mut bytes).unwrap();
    bytes.iter().all(|&found| found == byte)
}
