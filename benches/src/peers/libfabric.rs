//! libfabric's own benchmarks over its `shm`, `tcp` and `udp;ofi_rxd` providers.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    time::Duration,
};

use super::{Benchmark, Peer, PeerRun, Wire, buffers, fresh_port, iterations, ucx, unreadable};
use crate::{
    Error, Figures, Result,
    spawn::{ProcessPair, Ready},
};

/// Environment variable: the prefix of a libfabric with its fabtests, to be used instead of the packages.
pub const PREFIX: &str = "OFI_BENCH_LIBFABRIC_PREFIX";

/// Environment variable: the folder of our `libfabric.so.1`, for the lines that run libfabric's own programs on it.
/// `cargo xtask bench` links it and sets the variable.
pub const OURS: &str = "OFI_BENCH_LIBRARY";

/// libfabric 2.6 over UCX 1.13 on the same machine (`shared/reference/peers.md`): messages a second, 64 B.
const RATE_OVER_UCX: f64 = 8.5 / 9.1;
/// The same for 1 MiB messages.
const LARGE_OVER_UCX: f64 = 13.1 / 11.7;
/// The same for 64 KiB messages.
const MEDIUM_OVER_UCX: f64 = 10.1 / 9.0;

/// The same over loopback: libfabric's tcp and UCX's tcp, 64 B messages a second.
const TCP_RATE_OVER_UCX: f64 = 0.20 / 0.18;
/// 1 MiB messages, libfabric's tcp.
const TCP_LARGE_OVER_UCX: f64 = 4.6 / 4.8;
/// 1 MiB writes, libfabric's tcp over UCX's messages.
const TCP_WRITE_OVER_UCX: f64 = 2.8 / 4.8;
/// 64 B messages a second, libfabric's ofi_rxd and UCX's tcp.
const RXD_RATE_OVER_UCX: f64 = 0.17 / 0.18;
/// 1 MiB messages, ofi_rxd.
const RXD_LARGE_OVER_UCX: f64 = 0.30 / 4.8;
/// 1 MiB writes, ofi_rxd over UCX's messages.
const RXD_WRITE_OVER_UCX: f64 = 0.09 / 4.8;

/// The name in the table.
pub(super) fn name(run: &PeerRun) -> String {
    let version = version();
    let wire = match run.wire {
        Wire::Shm => "",
        Wire::Tcp => " tcp",
        Wire::Udp => " udp;ofi_rxd",
    };
    match plan(run) {
        Plan::Fabtests(_) | Plan::PingPong | Plan::Buffers(_) => format!("libfabric {version}{wire}"),
        Plan::FromUcx(factor) => format!("libfabric 2.6{wire} (UCX x {factor:.2})"),
        Plan::Nothing => format!("libfabric {version}{wire} (no benchmark)"),
    }
}

/// The value of `FI_PROVIDER` and `-p`. The older version has reliable datagrams over tcp only by a utility provider.
fn provider(wire: Wire, newest: bool) -> &'static str {
    match wire {
        Wire::Shm => "shm",
        Wire::Tcp if newest => "tcp",
        Wire::Tcp => "tcp;ofi_rxm",
        Wire::Udp => "udp;ofi_rxd",
    }
}

/// Operations of a run, which takes a few hundred times longer with ofi_rxd.
fn count(run: &PeerRun) -> u64 {
    match run.wire {
        Wire::Shm => iterations(run.size),
        Wire::Tcp => iterations(run.size) / 5,
        Wire::Udp => iterations(run.size) / 20,
    }
}

/// Runs the benchmark once, on libfabric.
pub(super) fn run(run: &PeerRun, cores: [usize; 2]) -> Result<Figures> {
    match plan(run) {
        Plan::Fabtests(prefix) => fabtests(run, &prefix, &Library::theirs(run, Some(&prefix)), cores),
        Plan::PingPong => ping_pong(run, &Library::theirs(run, None), cores),
        Plan::Buffers(prefix) => {
            many_buffers(run, prefix.as_deref(), &Library::theirs(run, prefix.as_deref()), cores)
        }
        Plan::FromUcx(factor) => {
            // UCX's tcp implements one-sided operations with messages, so its messages represent both.
            let benchmark = if run.wire == Wire::Shm { run.benchmark } else { Benchmark::Stream };
            Ok(ucx::run(&PeerRun { peer: Peer::Ucx, benchmark, ..*run }, cores)?.scaled(factor))
        }
        Plan::Nothing => Err(no_program()),
    }
}

/// Runs libfabric's own program once, on our library: over `shm`, or over the sockets of `udp`.
///
/// # Errors
/// There is no program for it, the path of our library is not set, or the program fails.
pub fn run_on_ours(run: &PeerRun, cores: [usize; 2]) -> Result<Figures> {
    let library = Library::ours(run)?;
    match plan(run) {
        Plan::Fabtests(prefix) => fabtests(run, &prefix, &library, cores),
        Plan::PingPong => ping_pong(run, &library, cores),
        Plan::Buffers(prefix) => many_buffers(run, prefix.as_deref(), &library, cores),
        Plan::FromUcx(_) | Plan::Nothing => Err(no_program()),
    }
}

fn no_program() -> Error {
    Error::Missing {
        program: "a libfabric benchmark".into(),
        reason: format!("the packages have none for this; set {PREFIX} to a libfabric built with fabtests"),
    }
}

/// The library of a program.
struct Library {
    /// The provider, as for `-p`.
    provider: &'static str,
    environment: Vec<(&'static str, OsString)>,
}

impl Library {
    /// The library of the prefix, or the system's.
    fn theirs(run: &PeerRun, prefix: Option<&Path>) -> Self {
        let folder = prefix.map(|prefix| ("LD_LIBRARY_PATH", prefix.join("lib").into()));
        Self { provider: provider(run.wire, prefix.is_some()), environment: folder.into_iter().collect() }
    }

    /// Our library. Both processes are on one host, so `udp` is told to use its sockets.
    fn ours(run: &PeerRun) -> Result<Self> {
        let folder = env::var_os(OURS).ok_or_else(|| Error::Missing {
            program: "our libfabric.so.1".into(),
            reason: format!("{OURS} is not set; `cargo xtask bench` sets it"),
        })?;
        let provider = if run.wire == Wire::Shm { "shm" } else { "udp" };
        let sockets = ("FI_UDP_SHARED_MEMORY", OsString::from("0"));
        Ok(Self { provider, environment: vec![("LD_LIBRARY_PATH", folder), sockets] })
    }
}

enum Plan {
    Fabtests(PathBuf),
    PingPong,
    /// Our own program, compiled against this prefix or the system's.
    Buffers(Option<PathBuf>),
    FromUcx(f64),
    Nothing,
}

fn plan(run: &PeerRun) -> Plan {
    match (env::var_os(PREFIX), run.benchmark) {
        (prefix, Benchmark::ColdStream | Benchmark::ColdWrite | Benchmark::ColdRead) => {
            Plan::Buffers(prefix.map(PathBuf::from))
        }
        (Some(prefix), _) => Plan::Fabtests(prefix.into()),
        (None, Benchmark::Latency | Benchmark::TaggedLatency) => Plan::PingPong,
        (None, Benchmark::Stream | Benchmark::RmaWrite) if run.wire != Wire::Shm => {
            Plan::FromUcx(match (run.wire, run.benchmark, run.size) {
                (Wire::Tcp, Benchmark::RmaWrite, _) => TCP_WRITE_OVER_UCX,
                (Wire::Tcp, _, 0..=4096) => TCP_RATE_OVER_UCX,
                (Wire::Tcp, ..) => TCP_LARGE_OVER_UCX,
                (_, Benchmark::RmaWrite, _) => RXD_WRITE_OVER_UCX,
                (_, _, 0..=4096) => RXD_RATE_OVER_UCX,
                _ => RXD_LARGE_OVER_UCX,
            })
        }
        (None, Benchmark::Stream) => Plan::FromUcx(match run.size {
            0..=4096 => RATE_OVER_UCX,
            4097..=262_144 => MEDIUM_OVER_UCX,
            _ => LARGE_OVER_UCX,
        }),
        (None, _) => Plan::Nothing,
    }
}

/// The benchmarks of fabtests. `-E` exchanges addresses over a socket; without it, two unrelated processes cannot use
/// `shm`.
fn fabtests(run: &PeerRun, prefix: &Path, library: &Library, cores: [usize; 2]) -> Result<Figures> {
    let (program, operation) = match run.benchmark {
        Benchmark::Latency => ("fi_rdm_pingpong", None),
        Benchmark::TaggedLatency => ("fi_rdm_tagged_pingpong", None),
        Benchmark::Stream | Benchmark::ColdStream => ("fi_rdm_bw", None),
        Benchmark::RmaWrite | Benchmark::ColdWrite => ("fi_rma_bw", Some("write")),
        Benchmark::RmaRead | Benchmark::ColdRead => ("fi_rma_bw", Some("read")),
    };
    let port = fresh_port();
    let mut server = Command::new(prefix.join("bin").join(program));
    server.envs(library.environment.iter().cloned());
    server.args(["-p", library.provider, "-m"]).arg(format!("-E={port}"));
    server.args(["-S", &run.size.to_string(), "-I", &count(run).to_string()]);
    if run.benchmark == Benchmark::Stream {
        server.args(["-W", "64"]);
    }
    server.args(operation.map(|operation| ["-o", operation]).into_iter().flatten());
    let mut client = copy_of(&server);
    client.arg("127.0.0.1");
    let limit = Duration::from_secs(60);
    let outputs = ProcessPair { server, client, ready: Ready::Listening(port), limit }.run(cores)?;
    parse_fabtests(run, &outputs.client).ok_or_else(|| unreadable(program, "usec/xfer", &outputs.client))
}

/// Our program for many buffers.
fn many_buffers(
    run: &PeerRun,
    prefix: Option<&Path>,
    library: &Library,
    cores: [usize; 2],
) -> Result<Figures> {
    let (mut server, mut client, port) = buffers::commands(run, library.provider, prefix)?;
    for program in [&mut server, &mut client] {
        program.envs(library.environment.iter().cloned());
    }
    let limit = Duration::from_secs(60);
    let output = ProcessPair { server, client, ready: Ready::Listening(port), limit }.run(cores)?.client;
    parse_fabtests(run, &output).ok_or_else(|| unreadable("buffers", "usec/xfer", &output))
}

/// `- { xfer_size: 64, iterations: 1000, …, time: 0.49, MB/sec: 26.03, usec/xfer: 2.458, Mxfers/sec: 0.4067 }`
fn parse_fabtests(run: &PeerRun, output: &str) -> Option<Figures> {
    let line = output.lines().rfind(|line| line.contains("usec/xfer:"))?;
    let after = line.split_once("usec/xfer:")?.1;
    let us: f64 = after.split([',', '}']).next()?.trim().parse().ok()?;
    figures(run, us)
}

/// The packaged ping-pong. Two of its columns have few digits and one has enough: MB/sec, of 10^6 bytes.
fn ping_pong(run: &PeerRun, library: &Library, cores: [usize; 2]) -> Result<Figures> {
    const PROGRAM: &str = "fi_pingpong";
    let port = fresh_port().to_string();
    let mode = if run.benchmark == Benchmark::TaggedLatency { "tagged" } else { "msg" };
    let command = |port_flag: &str| {
        let mut command = Command::new(PROGRAM);
        command.envs(library.environment.iter().cloned());
        command.args(["-p", library.provider, "-e", "rdm", "-m", mode, port_flag, &port]);
        command.args(["-S", &run.size.to_string(), "-I", &count(run).to_string()]);
        command
    };
    let server = command("-B");
    let mut client = command("-P");
    client.arg("127.0.0.1");
    let ready = Ready::Listening(port.parse().unwrap_or_default());
    let pair = ProcessPair { server, client, ready, limit: Duration::from_secs(60) };
    let output = pair.run(cores)?.client;
    parse_ping_pong(run, &output).ok_or_else(|| unreadable(PROGRAM, "MB/sec", &output))
}

/// `bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec`, then a line of values.
fn parse_ping_pong(run: &PeerRun, output: &str) -> Option<Figures> {
    let mut lines = output.lines().skip_while(|line| !line.contains("MB/sec"));
    let column = lines.next()?.split_whitespace().position(|name| name == "MB/sec")?;
    let mb_per_s: f64 = lines.next()?.split_whitespace().nth(column)?.parse().ok()?;
    figures(run, run.size as f64 / mb_per_s)
}

fn figures(run: &PeerRun, us: f64) -> Option<Figures> {
    if !(us.is_finite() && us > 0.0) {
        return None;
    }
    Some(match run.benchmark {
        Benchmark::Latency | Benchmark::TaggedLatency => Figures::from_latency(run.size, us),
        _ => Figures::from_rate(run.size, 1e6 / us),
    })
}

/// The version of the programs' library: the prefix's, or the system's.
pub(super) fn version() -> String {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| ask_version().unwrap_or_else(|| "?".into())).clone()
}

fn ask_version() -> Option<String> {
    let mut command = match env::var_os(PREFIX).map(PathBuf::from) {
        Some(prefix) => {
            let mut command = Command::new(prefix.join("bin/fi_info"));
            command.env("LD_LIBRARY_PATH", prefix.join("lib"));
            command
        }
        None => Command::new("fi_info"),
    };
    let output = command.arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.lines().find_map(|line| line.strip_prefix("libfabric: "))?;
    Some(version.trim().to_owned())
}

fn copy_of(command: &Command) -> Command {
    let mut copy = Command::new(command.get_program());
    copy.args(command.get_args());
    copy.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    copy
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: PeerRun =
        PeerRun { peer: Peer::Libfabric, benchmark: Benchmark::Latency, size: 64, wire: Wire::Shm };

    #[test]
    fn fabtests_output_is_read() {
        let output = "---\nfi_rdm_tagged_pingpong -p shm -E -S 64 -I 100000 -m 127.0.0.1 :\n\
            - { xfer_size: 64, iterations: 100000, total: 12800000, time: 0.491677, MB/sec: 26.033351, \
            usec/xfer: 2.458385, Mxfers/sec: 0.406771 }\n";
        assert_eq!(parse_fabtests(&RUN, output).unwrap().latency_us, Some(2.458385));
        let bandwidth = PeerRun { benchmark: Benchmark::RmaWrite, size: 1 << 20, ..RUN };
        let figures = parse_fabtests(&bandwidth, output).unwrap();
        assert_eq!((figures.latency_us, figures.msgs_per_s.round()), (None, 406_771.0));
        assert_eq!(parse_fabtests(&RUN, "usec/xfer: zero"), None);
    }

    #[test]
    fn the_packaged_ping_pong_is_read_from_the_column_with_digits() {
        let output = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
            64      100k    =100k    12m         0.19s     64.00       0.97       1.03\n";
        assert_eq!(parse_ping_pong(&RUN, output).unwrap().latency_us, Some(1.0));
        assert_eq!(parse_ping_pong(&RUN, "bytes MB/sec\n64"), None);
        assert_eq!(parse_ping_pong(&RUN, "bytes MB/sec\n64 0.00"), None);
    }
}
