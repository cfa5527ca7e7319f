//! Peers at ports that no socket has: real sockets, real ICMP reports of the system.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use ofi_testkit::prelude::*;
use ofi_tests::udp::open;

const LOOPBACKS: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
const DRIVERS: [&str; 2] = ["calls", "ring"];

/// Runs a test for each driver in its own process, as the driver is a setting of the process.
macro_rules! with_each_driver {
    ($($name:ident: $case:path;)+) => {
        $(#[test]
        fn $name() {
            if std::env::var_os("FI_UDP_DRIVER").is_some() {
                return $case();
            }
            let begin = |driver: &str| {
                let program = std::env::current_exe().expect("this program");
                let mut command = std::process::Command::new(program);
                command.args([concat!("udp_refused::", stringify!($name)), "--exact", "--nocapture"]).stderr(std::process::Stdio::piped());
                // Over sockets alone: shared memory would detect peers of this host.
                command.env("FI_UDP_DRIVER", driver).env("FI_UDP_SHARED_MEMORY", "0");
                command.spawn().expect("this program again")
            };
            for (driver, child) in DRIVERS.map(|driver| (driver, begin(driver))) {
                let output = child.wait_with_output().expect("the completion");
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{driver}: {said}");
            }
        })+
    };
}

with_each_driver! {
    a_closed_port_ends_the_first_operation: refused;
    a_peer_that_starts_in_time_is_reached: starts;
}

/// Loopback addresses of this host, each paired with two addresses to bind: itself, and the unspecified
/// address.
fn places() -> Vec<(IpAddr, IpAddr)> {
    let there = LOOPBACKS.into_iter().filter(|&ip| UdpSocket::bind((ip, 0)).is_ok());
    let any = |ip: IpAddr| -> IpAddr {
        if ip.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
    };
    there.flat_map(|ip| [(ip, ip), (ip, any(ip))]).collect()
}

/// An endpoint that sends a message to an unused port.
struct Caller {
    side: TestEndpoint,
    address: SocketAddr,
    to: FiAddr,
}

/// A caller for each of the places.
fn callers() -> Vec<Caller> {
    let caller = |(ip, bound): (IpAddr, IpAddr)| {
        let side = open(SocketAddr::new(bound, 0));
        let address = UdpSocket::bind((ip, 0)).expect("a port").local_addr().expect("its address");
        let to = side.insert_address(&address.into());
        Caller { side, address, to }
    };
    places().into_iter().map(caller).collect()
}

fn refused() {
    let (memory, all) = (Memory::patterned(100, 1), callers());
    let sides: Vec<&TestEndpoint> = all.iter().map(|caller| &caller.side).collect();
    // The second send probes the peer again.
    for context in 1..=2 {
        let begin = Instant::now();
        for Caller { side, to, .. } in &all {
            side.out(*to, &memory).context(context).tag(1).send().expect("a send");
        }
        for Caller { side, address, .. } in &all {
            let error = wait::drive(&sides, "the completion", || side.next_of(context)).failed();
            let took = begin.elapsed();
            assert_eq!(error.err, Errno::ECONNREFUSED, "{address} after {took:?}");
            assert_eq!(error.peer.as_deref(), Some(&(*address).into()), "the error names the peer");
            assert!((Duration::from_millis(1900)..Duration::from_secs(5)).contains(&took), "{took:?}");
        }
    }
}

fn starts() {
    let (memory, all) = (Memory::patterned(100, 1), callers());
    for Caller { side, to, .. } in &all {
        side.out(*to, &memory).context(1).tag(1).send().expect("a send");
    }
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(1500) {
        all.iter().for_each(|caller| caller.side.poll());
        std::thread::yield_now();
    }
    for Caller { side, address, .. } in &all {
        let (late, got) = (open(*address), Memory::new(100));
        late.receive(&got).context(2).tag(1).post().expect("a receive");
        let sides: Vec<&TestEndpoint> = all.iter().map(|caller| &caller.side).chain([&late]).collect();
        wait::drive(&sides, "the message", || late.next_of(2)).done();
        assert_eq!(got.bytes(), memory.bytes(), "{address}");
        wait::drive(&sides, "the completion", || side.next_of(1)).done();
    }
}
