//! Many peers, most of them idle.

use std::time::Duration;

use multirail::wire::Metadata;
use multirail::{Agent, Remote, Way};
use ofi::Hints;

const LONG: Duration = Duration::from_secs(30);
/// The number from the issue, without the active peer.
const IDLE: usize = 65_535;
/// Bytes of memory that an idle peer with one rail and one region may take, as `docs/multirail.md` states.
const EACH: usize = 1024;

fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn sixty_five_thousand_peers_are_known_and_cost_little() {
    let open = |name: &str| {
        let builder = Agent::builder(name).progress_thread(true).rail(Hints::new().provider("shm"));
        builder.open().unwrap()
    };
    let (alice, bob) = (open("alice"), open("bob"));
    let target = bob.alloc(4096).unwrap();
    let blob = bob.metadata().unwrap();
    let real = Metadata::parse(&blob).unwrap();
    let before = resident();
    for nth in 0..IDLE as u64 {
        let idle = Metadata { name: format!("idle-{nth}"), incarnation: nth, ..real.clone() };
        alice.load(&idle.encode()).unwrap();
    }
    let each = resident().saturating_sub(before) / IDLE;
    assert!(each <= EACH, "{each} bytes for each idle peer");
    alice.load(&blob).unwrap();
    assert_eq!(alice.regions("idle-65534").unwrap(), [(target.id(), 4096)]);
    let source = alice.alloc(4096).unwrap();
    source.write_from(0, &[3; 4096]).unwrap();
    let there = Remote { region: target.id(), offset: 0, len: 4096 };
    let plan = alice.prepare("bob", Way::Write, &[source.slice(..).unwrap()], &[there]).unwrap();
    plan.post(LONG).unwrap().wait().unwrap();
    let mut found = [0; 4096];
    target.read_into(0, &mut found).unwrap();
    assert_eq!(found, [3; 4096]);
    for nth in 0..IDLE {
        alice.forget(&format!("idle-{nth}")).unwrap();
    }
    assert!(alice.regions("idle-7").is_err());
}
