//! `fi_dump`: a capture of provider `udp` as text, a line for each packet (`docs/protocol.md`).

mod capture;
mod packet;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use crate::failure::{Failure, Result};
use crate::output;

/// Show the packets of provider udp in a capture
///
/// Reads captures of `tcpdump -w FILE udp`: Ethernet, Linux cooked, loopback or raw IP.
#[derive(Debug, Parser)]
#[command(name = "fi_dump", version)]
pub(crate) struct Options {
    /// The capture file
    file: PathBuf,
    /// Show only datagrams from or to this port
    #[arg(short, long)]
    port: Option<u16>,
    /// Hide datagrams of other protocols
    #[arg(short, long)]
    known: bool,
}

/// The program.
pub fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::tell(&format!("fi_dump: {failure}"));
            ExitCode::from(failure.code())
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let name = options.file.display();
    let bytes =
        std::fs::read(&options.file).map_err(|error| Failure::system(format!("reading {name}"), error))?;
    let capture = capture::Capture::parse(&bytes).ok_or_else(|| {
        Failure::Usage(format!(
            "{name} is not a capture in the format of pcap(3); `editcap -F pcap` converts pcapng"
        ))
    })?;
    let (mut text, mut cut) = (String::new(), 0);
    for datagram in capture {
        cut += usize::from(datagram.is_cut);
        if options.port.is_some_and(|port| datagram.from.port() != port && datagram.to.port() != port) {
            continue;
        }
        let said = packet::describe(datagram.body);
        if options.known && said.is_none() {
            continue;
        }
        let said = said.unwrap_or_else(|| format!("{} bytes of another protocol", datagram.body.len()));
        text += &format!("{:.6} {} > {} {said}\n", datagram.time, datagram.from, datagram.to);
    }
    if cut > 0 {
        output::tell(&format!("{cut} datagrams were captured only in part: use tcpdump -s 0"));
    }
    output::print(&text)
}
