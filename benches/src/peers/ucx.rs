//! UCX's own benchmark over shared memory, or TCP.

use std::{env, process::Command, sync::OnceLock, time::Duration};

use super::{Benchmark, PeerRun, Wire, fresh_port, iterations, unreadable};
use crate::{
    Error, Figures, Result,
    spawn::{ProcessPair, Ready},
};

/// Environment variable: the transports that UCX may use, instead of [`TRANSPORTS`].
pub const OVERRIDE: &str = "OFI_BENCH_UCX_TLS";
/// Shared memory with single copies by process_vm_readv, as programs use it by default.
const TRANSPORTS: &str = "posix,cma,self";
const PROGRAM: &str = "ucx_perftest";

/// The name in the table.
pub(super) fn name() -> String {
    format!("UCX {}", version())
}

/// The installed version.
pub(super) fn version() -> String {
    static VERSION: OnceLock<Option<String>> = OnceLock::new();
    let version = VERSION.get_or_init(|| {
        let output = Command::new("ucx_info").arg("-v").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().find_map(|line| line.split_once("ersion ")).map(|(_, version)| version.trim().to_owned())
    });
    version.clone().unwrap_or_else(|| "?".into())
}

/// Runs the benchmark once.
pub(super) fn run(run: &PeerRun, cores: [usize; 2]) -> Result<Figures> {
    let test = match run.benchmark {
        Benchmark::Latency | Benchmark::TaggedLatency => "tag_lat", // UCX has only tagged messages
        Benchmark::Stream => "tag_bw",
        Benchmark::RmaWrite => "ucp_put_bw",
        Benchmark::RmaRead => "ucp_get",
        Benchmark::ColdStream | Benchmark::ColdWrite | Benchmark::ColdRead => {
            let reason = "it has one buffer at each end".into();
            return Err(Error::Missing { program: PROGRAM.into(), reason });
        }
    };
    let port = fresh_port();
    let iterations = iterations(run.size);
    let command = || {
        let mut command = Command::new(PROGRAM);
        let usual = if run.wire == Wire::Shm { TRANSPORTS } else { "tcp,self" };
        let transports = env::var(OVERRIDE).unwrap_or_else(|_| usual.to_owned());
        command.env("UCX_TLS", transports).env("UCX_LOG_LEVEL", "error");
        command.args(["-t", test, "-f", "-p", &port.to_string(), "-s", &run.size.to_string()]);
        command.args(["-n", &iterations.to_string(), "-w", &(iterations / 20).to_string()]);
        command
    };
    let server = command();
    let mut client = command();
    client.arg("127.0.0.1");
    let limit = Duration::from_secs(60);
    let output = ProcessPair { server, client, ready: Ready::Listening(port), limit }.run(cores)?.client;
    parse(run, &output).ok_or_else(|| unreadable(PROGRAM, "the line of eight figures", &output))
}

/// The last line with eight figures: iterations; latency in us as percentile, average, overall; MiB/s as average,
/// overall; messages per second as average, overall. A word such as `Final:` may precede them.
fn parse(run: &PeerRun, output: &str) -> Option<Figures> {
    let row = output.lines().rev().find_map(|line| {
        let numbers: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        <[f64; 8]>::try_from(numbers).ok()
    })?;
    let [_, _, _, overall_us, _, _, _, msgs_per_s] = row;
    let usable = |value: f64| value.is_finite() && value > 0.0;
    match run.benchmark {
        Benchmark::Latency | Benchmark::TaggedLatency => {
            usable(overall_us).then(|| Figures::from_latency(run.size, overall_us))
        }
        _ => usable(msgs_per_s).then(|| Figures::from_rate(run.size, msgs_per_s)),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Peer, *};

    #[test]
    fn the_final_line_is_read_with_and_without_its_label() {
        let head = "|     Test     | # iterations | 50.0%ile | average | overall |\n";
        let run = PeerRun { peer: Peer::Ucx, benchmark: Benchmark::TaggedLatency, size: 64, wire: Wire::Shm };
        let labelled =
            format!("{head}Final:   200000      0.690     8.387    10.685   7.28  5.71  119233  93586\n");
        assert_eq!(parse(&run, &labelled).unwrap().latency_us, Some(10.685));
        let bare =
            format!("{head}         2000000      0.180     4.828     4.893  12.64  12.47  207115  204369\n");
        let run = PeerRun { benchmark: Benchmark::Stream, ..run };
        assert_eq!(parse(&run, &bare).unwrap().msgs_per_s, 204_369.0);
        assert_eq!(parse(&run, head), None);
    }
}
