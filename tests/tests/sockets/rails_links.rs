//! Four udp rails over four veth links of 1 Gb/s each (`tc`, token buckets), between two network namespaces:
//! one transfer uses the bandwidth of all, and cutting a link during a transfer loses nothing. The test makes
//! the namespaces in a user namespace, without privileges, and reports features that this host lacks as NOT
//! RUN.

use std::time::{Duration, Instant};

use multirail::{Agent, Remote, Way};
use ofi::Hints;
use ofi_testkit::network::{Far, shell};
use ofi_testkit::process::{Child, Line};
use ofi_testkit::wait;

const LINKS: usize = 4;
/// Bytes of a transfer.
const LEN: usize = 16 << 20;
/// Transfers of one measurement.
const ROUNDS: usize = 10;
/// Transfers in flight when a link is cut: half a second at the rate of four links.
const CUT: usize = 16;
const LONG: Duration = Duration::from_secs(60);

fn join_namespaces() -> Result<Far, String> {
    let far = Far::open()?;
    for nth in 0..LINKS {
        let shaped = |end: usize| {
            format!(
                "ip address add 10.97.{nth}.{end}/24 dev r{nth}; ip link set r{nth} up
                 tc qdisc add dev r{nth} root tbf rate 1gbit burst 256kb latency 4ms"
            )
        };
        shell(&format!("ip link add r{nth} type veth peer name r{nth} netns {}", far.pid()))?;
        shell(&shaped(1))?;
        far.shell(&shaped(2))?;
    }
    // The kernel brings links up asynchronously, and `udp` only offers links that are up.
    let are_up = (0..LINKS).map(|nth| format!("ip -br link show r{nth} | grep -qw UP; ")).collect::<String>();
    wait::until("links that are up", || shell(&are_up).is_ok() && far.shell(&are_up).is_ok());
    Ok(far)
}

/// An agent with a rail on each link.
fn agent(name: &str) -> Agent {
    let builder = Agent::builder(name).progress_thread(true);
    let rail = |nth| Hints::new().provider("udp").domain(format!("r{nth}"));
    (0..LINKS).fold(builder, |builder, nth| builder.rail(rail(nth))).open().unwrap()
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..LEN).map(|at| (at * 7 + at / 251 + seed * 31) as u8).collect()
}

/// The target: prints its metadata, and for each seed that it reads whether its memory has that pattern.
pub fn far_end(line: &mut Line, _: &[String]) {
    let bob = agent("bob");
    let region = bob.register(vec![1_u8; LEN]).unwrap();
    line.say(bob.metadata().unwrap().iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    while let Ok(seed) = line.hear().parse::<usize>() {
        let mut found = vec![0; LEN];
        region.read_into(0, &mut found).unwrap();
        line.say(found == pattern(seed));
    }
}

/// Runs in the near namespace. Prints what could not run, or the rates, one line each, and then `over`.
pub fn near_end(line: &mut Line, _: &[String]) {
    let far = match join_namespaces() {
        Ok(far) => far,
        Err(why) => {
            line.say(format!("NOT RUN: rails on links of 1 Gb/s: {}", why.replace('\n', "; ")));
            return line.say("over");
        }
    };
    let mut child = Child::start_under(&far.under(), "far_end", &[], &[]);
    let hex = child.line.hear();
    let bytes = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap());
    let alice = agent("alice");
    alice.load(&bytes.collect::<Vec<u8>>()).unwrap();
    let source = alice.register(vec![2_u8; LEN]).unwrap();
    let remote = Remote { region: alice.regions("bob").unwrap()[0].0, offset: 0, len: LEN as u64 };
    let local = [source.slice(..).unwrap()];
    for way in [Way::Write, Way::Read] {
        let plan = alice.prepare("bob", way, &local, &[remote]).unwrap();
        source.write_from(0, &pattern(1)).unwrap();
        for _ in 0..ROUNDS {
            plan.post(LONG).unwrap().wait().unwrap(); // measures the rates of the rails
        }
        let began = Instant::now();
        for _ in 0..ROUNDS {
            plan.post(LONG).unwrap().wait().unwrap();
        }
        let rate = (8 * ROUNDS * LEN) as f64 / began.elapsed().as_secs_f64() / 1e9;
        line.say(format!("{way:?}: {rate:.2} Gb/s over {LINKS} links of 1 Gb/s"));
        // On a busy machine the processor is the bottleneck. A rate above three links proves striping.
        assert!(rate > 3.0 || cfg!(debug_assertions), "{rate} Gb/s");
        child.line.say(1);
        assert_eq!(child.line.hear(), "true", "{way:?}");
    }
    // A link is cut during transfers: its share moves to the other rails once udp gives up. There are enough
    // transfers to outlast the command that cuts the link.
    source.write_from(0, &pattern(2)).unwrap();
    let plan = alice.prepare("bob", Way::Write, &local, &[remote]).unwrap();
    let transfers: Vec<_> = (0..CUT).map(|_| plan.post(LONG).unwrap()).collect();
    wait::until("the first bytes", || transfers[0].progress().moved > 0);
    shell("ip link set r2 down").expect("an interface of this test");
    let began = Instant::now();
    for transfer in transfers {
        transfer.wait().unwrap();
    }
    line.say(format!("transfers in flight at the cut took {:.1} s more", began.elapsed().as_secs_f64()));
    child.line.say(2);
    assert_eq!(child.line.hear(), "true", "no bytes are lost");
    assert!(alice.counts().moved > 0, "{:?}", alice.counts());
    // Later transfers use the remaining rails.
    let began = Instant::now();
    for seed in 3..6 {
        source.write_from(0, &pattern(seed)).unwrap();
        plan.post(LONG).unwrap().wait().unwrap();
        child.line.say(seed);
        assert_eq!(child.line.hear(), "true");
    }
    assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    child.line.say("end");
    child.finish();
    line.say("over");
}

#[test]
fn four_rails_on_four_links_carry_four_times_one_and_bear_a_cut() {
    if let Err(why) = shell("unshare -Urn true") {
        println!("NOT RUN: four_rails_on_four_links_carry_four_times_one_and_bear_a_cut: {why}");
        return;
    }
    let mut child = Child::start_under(&["unshare", "-Urn"], "rails_near_end", &[], &[]);
    loop {
        match child.line.hear().as_str() {
            "over" => break,
            said => println!("{said}"),
        }
    }
    child.finish();
}
