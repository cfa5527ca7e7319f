use std::sync::Mutex;

use super::*;

const RECEIVER: Uuid = Uuid::from_u128(1);
const FLOWS: [Uuid; 2] = [Uuid::from_u128(2), Uuid::from_u128(3)];

/// The hosts that were started, and what each mirrors.
type Started = Arc<Mutex<Vec<(String, Arc<dyn Share>)>>>;

/// What the registry answers.
type Gateways = std::result::Result<Vec<(Uuid, String)>, mxl_nmos::Error>;

/// A finder whose hosts wait for their end, and then for half a second.
fn finder(given: &[&str]) -> (Finder, Arc<Wanted>, Started) {
    let (wanted, started) = (Arc::<Wanted>::default(), Started::default());
    let to = Arc::clone(&started);
    let start: Start = Box::new(move |remote, stops, share| {
        to.lock().unwrap().push((remote.to_string(), share.unwrap()));
        Ok(std::thread::spawn(move || {
            while !stops.iter().any(|stop| stop.load(Ordering::Relaxed)) {
                std::thread::sleep(Duration::from_millis(5));
            }
            std::thread::sleep(Duration::from_millis(500));
        }))
    });
    let given = given.iter().map(|host| (*host).to_owned()).collect();
    let finder = Finder::new("http://a".into(), given, Arc::clone(&wanted), Arc::default(), start).unwrap();
    (finder, wanted, started)
}

fn names(started: &Started) -> Vec<String> {
    started.lock().unwrap().iter().map(|(host, _)| host.clone()).collect()
}

/// Both flows are at these hosts.
fn at(hosts: &[&str]) -> Gateways {
    Ok(FLOWS.iter().flat_map(|flow| hosts.iter().map(|host| (*flow, format!("mxl://{host}/")))).collect())
}

fn failure(_: &mut Finder, _: &BTreeSet<Uuid>) -> Gateways {
    Err(mxl_nmos::Error::NotFound)
}

#[test]
fn a_receiver_that_changes_to_another_flow_of_a_host_keeps_the_host() {
    let (mut finder, wanted, started) = finder(&[]);
    for flow in FLOWS {
        wanted.set(RECEIVER, Some(flow));
        finder.turn(|_, _| at(&["b:1"]));
    }
    for _ in 0..10 {
        finder.turn(failure);
        std::thread::sleep(Duration::from_millis(5));
    }
    let [(host, share)] = &started.lock().unwrap()[..] else { panic!("another host") };
    assert_eq!((&**host, share.flows()), ("b:1", BTreeSet::from([FLOWS[1]])));
    assert!(!finder.hosts["b:1"].stop.load(Ordering::Relaxed));
}

#[test]
fn a_host_that_ends_while_it_gets_a_flow_begins_again_without_the_registry() {
    let (mut finder, wanted, started) = finder(&[]);
    wanted.set(RECEIVER, Some(FLOWS[0]));
    finder.turn(|_, _| at(&["b:1"]));
    wanted.set(RECEIVER, None);
    finder.turn(failure);
    wanted.set(RECEIVER, Some(FLOWS[1]));
    finder.turn(|_, _| at(&["b:1"]));
    assert_eq!(names(&started), ["b:1"]);
    let begin = Instant::now();
    while names(&started).len() < 2 {
        assert!(begin.elapsed() < Duration::from_secs(20));
        finder.turn(failure);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(started.lock().unwrap()[1].1.flows(), BTreeSet::from([FLOWS[1]]));
}

#[test]
fn a_flow_ends_with_its_receiver_while_the_registry_is_asked() {
    let (mut finder, wanted, started) = finder(&[]);
    wanted.set(RECEIVER, Some(FLOWS[0]));
    finder.turn(|_, _| at(&["b:1"]));
    let share = Arc::clone(&started.lock().unwrap()[0].1);
    assert_eq!(share.flows(), BTreeSet::from([FLOWS[0]]));
    wanted.set(RECEIVER, None);
    assert!(share.flows().is_empty());
}

#[test]
fn another_host_is_tried_if_one_is_refused_or_stays_silent() {
    let (mut finder, wanted, started) = finder(&[]);
    wanted.set(RECEIVER, Some(FLOWS[0]));
    finder.turn(|_, _| at(&["b:0", "b:1", "b:2"]));
    assert_eq!(names(&started), ["b:1"]);
    // Nothing has arrived for long.
    finder.places.get_mut(&FLOWS[0]).unwrap().move_after = Duration::ZERO;
    finder.asked = None;
    finder.turn(|_, _| at(&["b:0", "b:1", "b:2"]));
    assert_eq!(names(&started), ["b:1", "b:2"]);
    let flows = |at: usize| started.lock().unwrap()[at].1.flows();
    assert!(flows(0).is_empty() && flows(1).contains(&FLOWS[0]));
    // It arrives: it stays, although the time has passed without a look.
    started.lock().unwrap()[1].1.arrives(FLOWS[0]);
    finder.places.get_mut(&FLOWS[0]).unwrap().move_after = Duration::ZERO;
    for hosts in [&["b:1", "b:2"][..], &["b:0"], &[]] {
        finder.asked = None;
        finder.turn(|_, _| at(hosts));
    }
    assert!(names(&started).len() == 2 && flows(1).contains(&FLOWS[0]));
}

#[test]
fn a_host_of_the_command_line_is_left_to_it() {
    let (mut finder, wanted, started) = finder(&["b:7480"]);
    wanted.set(RECEIVER, Some(FLOWS[0]));
    finder.turn(|_, _| at(&["c", "b"]));
    assert!(names(&started).is_empty());
}

#[test]
fn a_registry_names_no_flows() {
    assert_eq!(remote("mxl://b/").unwrap().to_string(), "b:7480");
    let id = FLOWS[0];
    for wrong in [format!("mxl://b/?id={id}&id={id}"), "mxl:///b".into(), "http://b/".into()] {
        assert!(remote(&wrong).is_err(), "{wrong}");
    }
}
