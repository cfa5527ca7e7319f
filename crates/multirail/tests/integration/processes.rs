//! Agents in two processes, over shared memory and over sockets: transfers, and a peer that is killed at any moment and
//! restarts.

use std::time::{Duration, Instant};

use multirail::{Agent, Config, Event, Region, Remote, Way};
use ofi::{Errno, Hints};
use ofi_testkit::process::{Child, Line};

use super::support::{self, hex, ports, shell, unhex};

const LEN: usize = 1 << 20;
const LONG: Duration = Duration::from_secs(30);

fn agent(name: &str, rails: &str) -> Agent {
    let config = Config {
        connect_timeout: Duration::from_secs(8),
        stall_timeout: Duration::from_secs(2),
        ..Config::default()
    };
    let builder = Agent::builder(name).config(config).shared_memory(false);
    let builder = rails.split(',').fold(builder, |builder, rail| builder.rail(Hints::new().provider(rail)));
    builder.open().unwrap()
}

/// Owns a region, and reports its content for every notification.
pub fn owner(line: &mut Line, arguments: &[String]) {
    let agent = agent("owner", &arguments[0]);
    let region = agent.register(vec![0_u8; LEN]).unwrap();
    line.say(hex(&agent.metadata().unwrap()));
    agent.load(&unhex(&line.hear())).unwrap();
    loop {
        if let Some(notification) = agent.wait_notification(Duration::from_millis(2)).unwrap() {
            let mut bytes = vec![0; LEN];
            region.read_into(0, &mut bytes).unwrap();
            let seed = notification.bytes[0];
            line.try_say(if bytes == pattern(seed) { format!("good {seed}") } else { format!("bad {seed}") });
        }
        if line.has_news() {
            match line.try_hear().as_deref() {
                None | Some("end") => return,
                Some(other) => panic!("{other}"),
            }
        }
    }
}

fn pattern(seed: u8) -> Vec<u8> {
    (0..LEN).map(|at| (at / 7) as u8 ^ seed.wrapping_mul(29)).collect()
}

struct Pair {
    agent: Agent,
    source: Region<Vec<u8>>,
    rails: String,
}

impl Pair {
    fn new(rails: &str) -> Self {
        let agent = agent("writer", rails);
        let source = agent.register(vec![0_u8; LEN]).unwrap();
        Self { agent, source, rails: rails.to_string() }
    }

    /// Starts a new process under the same name.
    fn start(&self) -> Child {
        let mut child = Child::start("owner", &[&self.rails]);
        self.agent.load(&unhex(&child.line.hear())).unwrap();
        child.line.say(hex(&self.agent.metadata().unwrap()));
        child
    }

    fn plan(&self, way: Way) -> multirail::Prepared {
        let region = self.agent.regions("owner").unwrap()[0].0;
        let parts = 8;
        let part = (LEN / parts) as u64;
        let local: Vec<_> =
            (0..parts as u64).map(|nth| self.source.slice(nth * part..(nth + 1) * part).unwrap()).collect();
        let remote: Vec<_> =
            (0..parts as u64).map(|nth| Remote { region, offset: nth * part, len: part }).collect();
        self.agent.prepare("owner", way, &local, &remote).unwrap()
    }

    fn exchange(&self, child: &mut Child, seed: u8) {
        self.source.write_from(0, &pattern(seed)).unwrap();
        self.plan(Way::Write).post_notify(&[seed], LONG).unwrap().wait().unwrap();
        child.line.expect(&format!("good {seed}"));
        self.source.write_from(0, &[0; 100]).unwrap();
        self.plan(Way::Read).post(LONG).unwrap().wait().unwrap();
        let mut bytes = vec![0; LEN];
        self.source.read_into(0, &mut bytes).unwrap();
        assert!(bytes == pattern(seed), "read back");
    }
}

fn transfers(rails: &str) {
    let pair = Pair::new(rails);
    let mut child = pair.start();
    for seed in 1..6 {
        pair.exchange(&mut child, seed);
    }
    child.line.say("end");
    child.finish();
}

/// Kills the peer after an increasing number of transfers, starting before the first greeting. Each transfer ends; the
/// next process of the name works.
fn kills(rails: &str) {
    let pair = Pair::new(rails);
    for round in 0..6_u8 {
        let mut child = pair.start();
        if round > 0 {
            pair.exchange(&mut child, round);
        }
        let plan = pair.plan(Way::Write);
        let posted: Vec<_> = (0..round * 3).map(|nth| plan.post_notify(&[nth], LONG).unwrap()).collect();
        for _ in 0..round {
            pair.agent.progress().unwrap();
        }
        child.kill();
        let last = plan.post(LONG).unwrap();
        for transfer in posted.iter().chain([&last]) {
            // Successfully, if it ended before; otherwise with an error that gives the reason, long before its
            // deadline.
            if let Err(error) = transfer.wait() {
                let known = [
                    Errno::ETIMEDOUT,
                    Errno::ECONNRESET,
                    Errno::ESHUTDOWN,
                    Errno::ECONNREFUSED,
                    Errno::EHOSTUNREACH,
                ];
                assert!(known.contains(&error.errno()), "{error}");
            }
            assert!(transfer.wait_quiet(LONG).unwrap());
        }
        assert!(last.wait().is_err(), "the peer was gone");
    }
    let mut child = pair.start();
    pair.exchange(&mut child, 99);
    let restarts =
        pair.agent.events().into_iter().filter(|event| matches!(event, Event::Restarted(_))).count();
    assert_eq!(restarts, 6);
    child.line.say("end");
    child.finish();
}

#[test]
fn two_processes_over_shared_memory() {
    transfers("shm");
}

#[test]
fn two_processes_over_two_rails_of_sockets() {
    transfers("udp,udp");
}

#[test]
fn two_processes_over_rails_of_two_providers() {
    transfers("shm,udp");
}

#[test]
fn a_peer_that_is_killed_comes_back_over_shared_memory() {
    kills("shm");
}

#[test]
fn a_peer_that_is_killed_comes_back_over_sockets() {
    kills("udp,udp");
}

#[test]
fn plans_of_an_earlier_incarnation_are_refused() {
    let pair = Pair::new("shm");
    let mut first = pair.start();
    pair.exchange(&mut first, 1);
    let old = pair.plan(Way::Write);
    first.kill();
    let mut second = pair.start();
    assert_eq!(old.post(LONG).unwrap_err().errno(), Errno::ECONNRESET);
    pair.exchange(&mut second, 2);
    second.line.say("end");
    second.finish();
}

/// In a network namespace of its own: two processes over two rails. One rail is cut at its ports only, so that the peer
/// looks alive.
pub fn cut_rail(line: &mut Line, _: &[String]) {
    if let Err(why) = shell(support::TABLE) {
        return line.say(format!("NOT RUN: a_rail_is_cut_under_two_processes: {why}"));
    }
    let pair = Pair::new("udp,udp");
    let mut child = Child::start("owner", &["udp,udp"]);
    let there = unhex(&child.line.hear());
    pair.agent.load(&there).unwrap();
    let here = pair.agent.metadata().unwrap();
    child.line.say(hex(&here));
    (1..4).for_each(|seed| pair.exchange(&mut child, seed));
    // In flight at the moment of the cut, and after it.
    let mut posted: Vec<_> =
        (0..4).map(|_| pair.plan(Way::Write).post_notify(&[3], LONG * 10).unwrap()).collect();
    for port in [ports(&here)[1], ports(&there)[1]] {
        shell(&format!("nft add rule ip cut in udp dport {port} counter drop")).unwrap();
    }
    let begin = Instant::now();
    let mut done = 0;
    while done < 5 {
        posted.push(pair.plan(Way::Write).post_notify(&[3], LONG * 10).unwrap());
        for transfer in posted.drain(..) {
            match transfer.wait() {
                Ok(()) => done += 1,
                Err(error) => {
                    assert_eq!(error.errno(), Errno::ETIMEDOUT);
                    done = 0;
                }
            }
        }
        assert!(begin.elapsed() < LONG, "{:?} {:?}", pair.agent.counts(), pair.agent.paths("owner"));
    }
    let counts = pair.agent.counts();
    assert!(counts.repeated + counts.fenced > 0, "the cut was noticed: {counts:?}");
    let paths = pair.agent.paths("owner").unwrap();
    assert!(paths.iter().any(|path| path.rail == 0 && path.up), "{paths:?}");
    child.line.say("end");
    while let Some(said) = child.line.try_hear() {
        assert_eq!(said, "good 3", "no notification comes before its data");
    }
    child.finish();
    line.say(format!("over: {counts:?}"));
}

#[test]
fn a_rail_is_cut_under_two_processes() {
    if let Err(why) = shell("unshare -Urn true") {
        println!("NOT RUN: a_rail_is_cut_under_two_processes: {why}");
        return;
    }
    let mut child = Child::start_under(&["unshare", "-Urn"], "cut_rail", &[], &[]);
    println!("{}", child.line.hear());
    child.finish();
}
