//! Agents that find their rails.

use std::time::Duration;

use multirail::{Agent, RailList, Remote, Way};
use ofi::{Errno, Hints};

use super::support::{holds, whole};

const LONG: Duration = Duration::from_secs(20);

#[test]
fn agents_without_a_list_of_rails_reach_each_other() {
    let open = |name| Agent::builder(name).progress_thread(true).open().unwrap();
    let (alice, bob) = (open("alice"), open("bob"));
    let wanted = RailList::default().infos().unwrap();
    assert!(!wanted.is_empty());
    let names: Vec<String> = alice.rails().into_iter().map(|(name, _)| name).collect();
    assert!(names.iter().all(|name| *name == wanted[0].fabric_attr.prov_name), "{names:?}");
    let (source, target) =
        (alice.register(vec![3; 300_000]).unwrap(), bob.register(vec![0; 300_000]).unwrap());
    let peer = alice.load(&bob.metadata().unwrap()).unwrap();
    let (local, _) = whole(&source);
    let remote: Remote = whole(&target).1;
    alice.prepare(&peer, Way::Write, &[local], &[remote]).unwrap().post(LONG).unwrap().wait().unwrap();
    assert!(holds(&target, 3));
}

#[test]
fn lists_are_added_to_other_rails_and_what_names_nothing_ends_the_opening() {
    let list = |text: &str| text.parse::<RailList>().unwrap();
    let agent = Agent::builder("a").rail(Hints::new().provider("shm")).rails(list("udp,udp")).open().unwrap();
    let names: Vec<String> = agent.rails().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["shm", "udp", "udp"]);
    let error = Agent::builder("a").rails(list("udp,udp/gone*")).open().unwrap_err();
    assert_eq!(error.errno(), Errno::ENODATA);
    assert!(error.to_string().contains("udp/gone*"), "{error}");
    let many = vec!["shm"; 33].join(",");
    assert_eq!(Agent::builder("a").rails(list(&many)).open().unwrap_err().errno(), Errno::EINVAL);
}
