//! UDP between two network namespaces joined by a veth pair of 1,500 bytes, with losses made by nftables: the closest
//! approximation of two hosts on one host. The namespaces are in a user namespace of this program and end with it.

use std::{
    env, fs,
    net::{IpAddr, Ipv4Addr},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;

use crate::{
    Error, Figures, Result,
    figures::median,
    ours::{Job, Test},
    worker::{self, Ends, Work},
};

const NEAR: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 2);
const LARGE: usize = 1 << 20;
/// Packets lost per 1,000 in each direction, and the fraction of the rate without loss that must remain.
const LOSSES: [(u32, f64); 3] = [(1, 0.8), (10, 0.5), (50, 0.2)];

/// The results of a run, for `cargo xtask report`.
#[derive(Serialize)]
struct Found {
    bulk: Vec<Bulk>,
    losses: Vec<Kept>,
}

/// A way to send megabytes.
#[derive(Serialize)]
struct Bulk {
    name: &'static str,
    /// 10^9 bytes per second.
    rate: f64,
    /// The fraction of the bare sockets' rate.
    of_bare: f64,
}

/// The performance of a ping-pong under losses.
#[derive(Serialize)]
struct Kept {
    lost_percent: f64,
    one_way_us: f64,
    /// The fraction of the rate without loss.
    kept: f64,
    bound: Option<f64>,
}

fn shell(script: &str) -> Result<()> {
    let output = Command::new("sh").args(["-ec", script]).stdin(Stdio::null()).output();
    let output = output.map_err(Error::io("starting a shell"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::Stack(format!("{script}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

/// The far namespace: a process that only keeps it alive.
struct Far(Child);

impl Drop for Far {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn join_namespaces() -> Result<Far> {
    shell("ip link set lo up")?;
    let far = Command::new("unshare").args(["-n", "sleep", "600"]).stdin(Stdio::null()).spawn();
    let far = Far(far.map_err(Error::io("starting unshare"))?);
    let pid = far.0.id();
    let namespace = |path: String| fs::read_link(path).map_err(Error::io("reading a namespace"));
    let own = namespace("/proc/self/ns/net".into())?;
    let begin = Instant::now();
    while namespace(format!("/proc/{pid}/ns/net"))? == own {
        if begin.elapsed() > Duration::from_secs(5) {
            return Err(Error::Stack("unshare did not create a namespace".into()));
        }
        thread::sleep(Duration::from_millis(1));
    }
    shell(&format!(
        "ip link add near type veth peer name far
         ip link set far netns {pid}
         ip address add {NEAR}/24 dev near
         ip link set near up
         nsenter -t {pid} -n sh -ec 'ip link set lo up; ip address add {FAR}/24 dev far; ip link set far up'"
    ))?;
    Ok(far)
}

/// Drops `loss` of 1,000 packets that arrive at either end, or none.
fn lose(far: &Far, loss: u32) -> Result<()> {
    let mut script =
        "nft list table ip lossy >/dev/null 2>&1 && nft delete table ip lossy || true".to_string();
    if loss > 0 {
        script += &format!(
            "
             nft add table ip lossy
             nft add chain ip lossy in \"{{ type filter hook input priority 0; }}\"
             nft add rule ip lossy in meta l4proto udp numgen random mod 1000 \"<\" {loss} counter drop"
        );
    }
    shell(&script)?;
    shell(&format!("nsenter -t {} -n sh -ec '{script}'", far.0.id()))
}

/// Makes the kernel segment batches of datagrams before transmission, so that a loss affects one packet, as on a wire,
/// and not a batch of 44.
fn cut_rows(far: &Far) -> Result<()> {
    let cut = |name| format!("ip link set {name} gso_max_segs 1");
    shell(&cut("near"))?;
    shell(&format!("nsenter -t {} -n {}", far.0.id(), cut("far")))
}

/// In the outer namespace, restarts itself in an inner one; there, measures `rounds` times and prints the medians.
///
/// # Errors
/// A missing requirement of this host, or a worker's error.
pub fn main(rounds: usize, json: Option<&Path>, inside: bool, cores: [usize; 2]) -> Result<()> {
    if !inside {
        let this = env::current_exe().map_err(Error::io("finding this program"))?;
        let [server, client] = cores;
        let status = Command::new("unshare")
            .arg("-Urn")
            .arg(this)
            .args(["--cores", &server.to_string(), &client.to_string()])
            .args(["veth", "--inside", "--rounds", &rounds.to_string()])
            .args(json.map(|file| ["--json".as_ref(), file.as_os_str()]).into_iter().flatten())
            .status()
            .map_err(Error::io("starting unshare"))?;
        return if status.success() { Ok(()) } else { Err(Error::Stack(format!("unshare: {status}"))) };
    }
    let far = join_namespaces()?;
    let wrapper = ["nsenter", "-t", &far.0.id().to_string(), "-n"].map(String::from).to_vec();
    let ends = Ends { wrapper, addresses: Some([IpAddr::from(FAR), IpAddr::from(NEAR)]) };
    let bulk = bulk(rounds, &ends, cores)?;
    cut_rows(&far)?;
    let losses = losses(&far, rounds, &ends, cores)?;
    let Some(file) = json else { return Ok(()) };
    let text = serde_json::to_string_pretty(&Found { bulk, losses });
    let text = text.map_err(|error| Error::Link(error.to_string()))?;
    fs::write(file, text + "\n").map_err(Error::io(file.display().to_string()))
}

fn middle(runs: &[Figures], figure: impl Fn(&Figures) -> f64) -> f64 {
    median(runs.iter().map(figure)).unwrap_or(f64::NAN)
}

/// 1 MiB messages and writes beside bare sockets.
fn bulk(rounds: usize, ends: &Ends, cores: [usize; 2]) -> Result<Vec<Bulk>> {
    let stream = |test| Work::Ours(Job::new(test, LARGE, 2_000).over_udp());
    let works = [
        ("bare sockets, UDP_SEGMENT and UDP_GRO", Work::Bare { copies: false }),
        ("the same, with a second copy", Work::Bare { copies: true }),
        ("1 MiB messages", stream(Test::Stream)),
        ("1 MiB writes", stream(Test::RmaWrite)),
    ];
    let mut runs = works.map(|_| Vec::with_capacity(rounds));
    for _ in 0..rounds {
        for (runs, (_, work)) in runs.iter_mut().zip(&works) {
            runs.push(worker::run_between(work, ends, cores)?);
        }
    }
    let bare = middle(&runs[0], |run| run.GB_s);
    println!("| 1,500 bytes, no loss | GB/s | of bare sockets |\n|---|---|---|");
    let mut found = Vec::with_capacity(works.len());
    for (runs, (name, _)) in runs.iter().zip(&works) {
        let rate = middle(runs, |run| run.GB_s);
        println!("| {name} | {rate:.2} | {:.0} % |", 100.0 * rate / bare);
        found.push(Bulk { name, rate, of_bare: rate / bare });
    }
    Ok(found)
}

/// A 64 KiB ping-pong without losses and with losses, alternately.
fn losses(far: &Far, rounds: usize, ends: &Ends, cores: [usize; 2]) -> Result<Vec<Kept>> {
    let work = |iterations| Work::Ours(Job::new(Test::PingPong, 64 << 10, iterations).over_udp());
    let mut runs: [Vec<Figures>; LOSSES.len() + 1] = Default::default();
    for _ in 0..rounds {
        for (runs, (loss, iterations)) in
            runs.iter_mut().zip([(0, 5_000)].into_iter().chain(LOSSES.map(|(loss, _)| (loss, 2_000))))
        {
            lose(far, loss)?;
            runs.push(worker::run_between(&work(iterations), ends, cores)?);
        }
    }
    lose(far, 0)?;
    let clean = middle(&runs[0], |run| run.latency_us.unwrap_or(f64::NAN));
    println!(
        "\n| 64 KiB ping-pong, 1,500 bytes | one way, us | of the rate without loss | bound |\n|---|---|---|---|"
    );
    println!("| no loss | {clean:.1} | 100 % | |");
    let mut found = vec![Kept { lost_percent: 0.0, one_way_us: clean, kept: 1.0, bound: None }];
    for (runs, (loss, bound)) in runs[1..].iter().zip(LOSSES) {
        let (latency, loss) =
            (middle(runs, |run| run.latency_us.unwrap_or(f64::NAN)), f64::from(loss) / 10.0);
        println!(
            "| {loss} % of packets lost at either end | {latency:.1} | {:.0} % | {:.0} % |",
            100.0 * clean / latency,
            100.0 * bound
        );
        found.push(Kept {
            lost_percent: loss,
            one_way_us: latency,
            kept: clean / latency,
            bound: Some(bound),
        });
    }
    Ok(found)
}
