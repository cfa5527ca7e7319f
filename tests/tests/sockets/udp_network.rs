//! UDP between two network namespaces joined by a veth pair of 1,500 bytes, with losses by nftables: as close
//! to two hosts as one host permits. The test makes the namespaces in a user namespace, without privileges,
//! and reports features that this host lacks as NOT RUN.

use std::net::{Ipv4Addr, SocketAddr};

use ofi_testkit::network::{Far, shell};
use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};
use ofi_tests::udp::{Echo, open};

const NEAR: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);

fn join_namespaces() -> Result<Far, String> {
    let far = Far::open()?;
    shell(&format!(
        "ip link add near type veth peer name far netns {}
         ip address add {NEAR}/24 dev near
         ip link set near up",
        far.pid()
    ))?;
    far.shell(&format!("ip address add {FAR}/24 dev far; ip link set far up"))?;
    Ok(far)
}

/// Drops `loss` of 1,000 datagrams that arrive at this end; 0 removes the rule.
fn lose(loss: u32) -> Result<(), String> {
    shell("nft list table ip lossy >/dev/null 2>&1 && nft delete table ip lossy || true")?;
    if loss > 0 {
        shell(&format!(
            "nft add table ip lossy
             nft add chain ip lossy in '{{ type filter hook input priority 0; }}'
             nft add rule ip lossy in meta l4proto udp numgen random mod 1000 '<' {loss} counter drop"
        ))?;
    }
    Ok(())
}

/// Marks one in 50 ECN-capable packets as congested (CE), of those that arrive here and of those that leave.
fn mark() -> Result<(), String> {
    shell(
        "nft add table ip marks
         nft add chain ip marks in '{ type filter hook input priority 0; }'
         nft add chain ip marks out '{ type filter hook output priority 0; }'
         nft add rule ip marks in ip ecn ect0 numgen random mod 50 == 0 ip ecn set ce
         nft add rule ip marks out ip ecn ect0 numgen random mod 50 == 0 ip ecn set ce",
    )
    .map(drop)
}

/// Packets dropped so far by the rule of [`lose`]. A packet may be a whole train of datagrams (GSO).
fn lost() -> u64 {
    let rule = shell("nft list table ip lossy").expect("the table of this test");
    let mut words = rule.split_whitespace().skip_while(|word| *word != "packets");
    words
        .nth(1)
        .and_then(|count| count.parse().ok())
        .unwrap_or_else(|| panic!("a rule with a counter: {rule}"))
}

/// Runs in the near namespace. Prints what could not run, one line each, and then `over`.
pub fn near_end(line: &mut Line, _: &[String]) {
    let far = match join_namespaces() {
        Ok(far) => far,
        Err(why) => {
            line.say(format!("NOT RUN: all: {}", why.replace('\n', "; ")));
            return line.say("over");
        }
    };
    let mut echo = Echo::start(&far.under(), SocketAddr::new(FAR.into(), 0));
    let side = open(SocketAddr::new(NEAR.into(), 0));
    echo.meet(&side.name());
    let to = side.insert_address(&echo.address);
    echo.converse(&side, to, 2);
    assert!(side.statistic("udp_tx_calls") < side.statistic("udp_tx_datagrams"), "{}", side.report());
    for loss in [1, 10, 50] {
        match lose(loss) {
            Ok(()) => {
                // Only incoming packets are dropped, so the far end does most of the resending.
                echo.converse(&side, to, 2);
                assert!(loss < 50 || lost() > 0, "{}", side.report());
            }
            Err(why) => line.say(format!("NOT RUN: losses: {}", why.replace('\n', "; "))),
        }
    }
    lose(0).expect("removing the rule");
    match mark() {
        Ok(()) => {
            // A packet may be a whole train of datagrams here, so there are few packets. Hence ten rounds.
            for _ in 0..10 {
                echo.converse(&side, to, 2);
            }
            let [came, told] = ["udp_rx_marked", "udp_tx_marked"].map(|name| side.statistic(name));
            assert!(came > 0 && told > 0, "{}", side.report());
            shell("nft delete table ip marks").expect("a table of this test");
        }
        Err(why) => line.say(format!("NOT RUN: marks: {}", why.replace('\n', "; "))),
    }
    // The path narrows under the session, and widens again.
    shell("ip link set near mtu 1400").expect("an interface of this test");
    far.shell("ip link set far mtu 1400").expect("an interface of this test");
    echo.converse(&side, to, 1);
    // The link is down for less than the bound: no operation fails.
    shell("ip link set near down").expect("an interface of this test");
    let message = Memory::patterned(64, 9);
    let back = Memory::new(64);
    side.receive(&back).context(50).tag(50).post().expect("a receive");
    side.out(to, &message).context(51).tag(50).send().expect("a send while the link is down");
    wait::drive_through(Duration::from_secs(1), &[&side]);
    shell("ip link set near up").expect("an interface of this test");
    wait::drive(&[&side], "the message after the cut", || side.next_of(50)).done();
    wait::drive(&[&side], "the completion", || side.next_of(51)).done();
    back.check(64, 9);
    // The link stays down: every operation fails within the bound.
    shell("ip link set near down").expect("an interface of this test");
    let begin = Instant::now();
    side.out(to, &message).context(52).tag(50).send().expect("a send while the link is down");
    wait::drive_for(Duration::from_secs(9), &[&side], "the end", || side.next_of(52)).failed();
    assert!(begin.elapsed() > Duration::from_secs(4), "{:?}", begin.elapsed());
    line.say("over");
}

#[test]
fn two_namespaces_converse_whatever_the_link_does() {
    if let Err(why) = shell("unshare -Urn true") {
        println!("NOT RUN: two_namespaces_converse_whatever_the_link_does: {why}");
        return;
    }
    let mut child = Child::start_under(&["unshare", "-Urn"], "near_end", &[], &[]);
    loop {
        match child.line.hear().as_str() {
            "over" => break,
            said => println!("{said}"),
        }
    }
    child.finish();
}
