//! Death at every step, and at random: `crash_point!` and `kill -9` among processes that use every operation
//! with each other.
//!
//! Survivors go on, every operation with a dead process ends within a second, and nothing is left behind:
//! `Load::settle` and `Mesh::bury` check this.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ofi_tests::Naming;
use ofi_tests::mesh::{Mesh, NAMING, Report, Seat};

/// A budget for unexpected messages that is sometimes exhausted, so that payloads stay at their senders; and
/// single copies for the longest messages and accesses, where the system permits them.
const ENVIRONMENT: [(&str, &str); 3] =
    [("FI_UNEXPECTED_BYTES", "4096"), ("FI_SHM_SINGLE_COPY", "always"), ("FI_SHM_SINGLE_COPY_SIZE", "50000")];
/// How long a victim may take to reach its label.
const REACHED: Duration = Duration::from_secs(30);
/// The same for a victim that others may replace.
const SOON: Duration = Duration::from_secs(4);

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// The labels of all crash points in the sources of shared memory and its rings, without those in comments.
fn labels() -> Vec<String> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let mut files = Vec::new();
    sources(&crates.join("ofi-shm/src"), &mut files);
    sources(&crates.join("ofi-ring/src"), &mut files);
    let (mut labels, mut twice) = (BTreeSet::new(), Vec::new());
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a source");
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        for line in code {
            let Some((_, rest)) = line.split_once("crash_point!(\"") else { continue };
            let label = rest.split('"').next().expect("the end of a label").to_owned();
            if !labels.insert(label.clone()) {
                twice.push(label);
            }
        }
    }
    assert_eq!(twice, Vec::<String>::new(), "labels used in two places");
    labels.into_iter().collect()
}

/// Waits until a member has done enough operations to have used every path, however slow it is. Returns how
/// long to wait for its end.
fn work(member: &mut Seat) -> Duration {
    let until = Instant::now() + REACHED;
    while member.report().done < 200 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    Duration::ZERO
}

/// The operations that members have to prefer, so that a victim reaches a step that is otherwise rare.
fn favour(label: &str) -> Option<&'static str> {
    match label.split('.').next() {
        Some("withdraw") => Some("leases"),
        Some("notice") => Some("notices"),
        _ => None,
    }
}

/// Lets a victim among the members die at the `count`-th pass of `label`. Returns whether it got there within
/// `limit`.
fn die_at(mesh: &mut Mesh, label: &str, count: u32, limit: Duration) -> bool {
    let at = format!("{label}:{count}");
    let mut victim = mesh.newcomer(&[("OFI_CRASH_AT", &at)]);
    mesh.introduce(&mut victim);
    if let Some(what) = favour(label) {
        mesh.seats.iter_mut().chain([&mut victim]).for_each(|seat| seat.favour(what));
    }
    if label.starts_with("bye.") {
        // Some process has to say goodbye: a visitor that meets only the victim, and exits.
        let mut visitor = mesh.newcomer(&[]);
        visitor.meet(&victim);
        std::thread::sleep(Duration::from_millis(300));
        visitor.end();
        visitor.child.ended_within(REACHED).expect("the end of a visit");
    }
    // Most labels are reached by working; those of closing, by an end after work of every kind.
    let patience = if label.starts_with("close.") { work(&mut victim) } else { limit };
    let patience = if count > 1 { Duration::from_millis(300) } else { patience };
    let mut ended = victim.child.ended_within(patience);
    if ended.is_none() {
        victim.end();
        ended = victim.child.ended_within(REACHED);
    }
    mesh.seats.iter_mut().for_each(|seat| seat.favour("nothing"));
    mesh.tell_of_death(victim.index);
    mesh.bury(&victim);
    match ended {
        Some(Some(libc::SIGKILL)) => true,
        Some(None) => false,
        other => panic!("{label}: the victim ended with {other:?}"),
    }
}

/// Lets victims die at these labels, at some of them also in a later pass, among members with this
/// environment. If a victim does not reach its label, others try, `tries` in all. Returns the labels that no
/// victim reached.
fn die_everywhere(
    labels: &[String],
    environment: &[(&'static str, &'static str)],
    tries: u32,
) -> Vec<String> {
    // The last labels come first, so that the slow ones do not remain for the end.
    let only = std::env::var("OFI_CRASH_ONLY").ok();
    let mut left: Vec<(String, u32)> = labels.iter().map(|label| (label.clone(), 1)).collect();
    // Some labels also at a later pass, in the middle of other work; not those that are passed once for each
    // peer.
    let once = ["attach.", "bulk.", "bye.", "close.", "greet.", "meet.", "welcome."];
    let often = labels.iter().filter(|label| !once.iter().any(|once| label.starts_with(once)));
    left.extend(often.step_by(3).map(|label| (label.clone(), 5)));
    left.retain(|(label, _)| !label.starts_with("single.") || ofi_tests::denied::may_copy());
    left.retain(|(label, _)| only.as_ref().is_none_or(|only| label.starts_with(only.as_str())));
    let (left, missed) = (Mutex::new(left), Mutex::new(Vec::new()));
    let next = || left.lock().unwrap().pop();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut mesh = Mesh::start(2, environment);
                while let Some((label, count)) = next() {
                    let start = Instant::now();
                    let tries = if count == 1 { tries } else { 1 };
                    // A victim that does not reach its label soon rarely does later. Only the last one has
                    // the full time.
                    let limits = (1..=tries).map(|attempt| if attempt < tries { SOON } else { REACHED });
                    let reached = limits.into_iter().any(|limit| die_at(&mut mesh, &label, count, limit));
                    println!("{label}:{count}: {:?}, reached: {reached}", start.elapsed());
                    if !reached && count == 1 {
                        missed.lock().unwrap().push(label);
                    }
                }
                mesh.expect_progress();
                mesh.end();
            });
        }
    });
    missed.into_inner().unwrap()
}

#[test]
fn a_peer_dies_at_every_step_of_every_protocol() {
    let labels = labels();
    assert!(labels.len() > 60, "{labels:?}");
    let missed = die_everywhere(&labels, &ENVIRONMENT, 2);
    assert_eq!(missed, Vec::<String>::new(), "steps that no victim reached: add them to the load");
}

/// Two instances of shared memory in each endpoint: every fourth step of either instance, and every step in
/// `cargo xtask nightly deaths`. One victim in four is reached by all others over the second instance, and then
/// never gets to the steps that need the library's memory. Another victim, with another name, tries then.
#[test]
fn a_peer_of_two_transports_dies_at_steps_of_every_protocol() {
    let environment = [&ENVIRONMENT[..], &[(NAMING, Naming::Crossed.as_str())]].concat();
    let step = number("OFI_CRASH_STRIDE", 4);
    let labels: Vec<String> = labels().into_iter().step_by(step as usize).collect();
    let missed = die_everywhere(&labels, &environment, 6);
    assert_eq!(missed, Vec::<String>::new(), "steps that no victim reached");
}

/// Sockets and shared memory: every fourth step only, since a death is certain only after the timeout of the
/// sockets.
#[test]
fn a_neighbour_dies_at_steps_of_shared_memory() {
    let more = [(NAMING, Naming::Nearby.as_str()), ("FI_UDP_PEER_TIMEOUT_MS", "900")];
    let environment = [&ENVIRONMENT[..], &more].concat();
    let labels: Vec<String> = labels().into_iter().step_by(4).collect();
    let missed = die_everywhere(&labels, &environment, 1);
    assert!(missed.len() * 10 < labels.len(), "too many steps that no victim reached: {missed:?}");
}

fn number(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().map_or(usual, |text| text.parse().expect("a number"))
}

/// `OFI_KILLS` sets the number of deaths (default: 30; `cargo xtask kills` uses 1,000).
#[test]
fn peers_are_killed_at_random_under_load() {
    let kills = number("OFI_KILLS", 30);
    let mut mesh = Mesh::start(4, &ENVIRONMENT);
    let mut random = 0x2545_F491_4F6C_DD1D_u64;
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut files = 0;
    for kill in 0..kills {
        std::thread::sleep(Duration::from_micros(next(40_000)));
        let at = next(mesh.seats.len() as u64) as usize;
        mesh.replace(at);
        if kill == kills / 3 {
            files = mesh.seats[0].report().files;
        }
    }
    mesh.expect_progress();
    let now = mesh.seats[0].report().files;
    assert!(now < files + 16, "{files} descriptors after a third of the deaths, {now} after all");
    let reports = mesh.end();
    assert!(reports.iter().all(|Report { done, .. }| *done > 0));
}
