//! Two processes in C, an initiator and a target, either of which is killed and restarted.

#[path = "../../mxl/tests/common/c.rs"]
mod c;
#[path = "../../mxl/tests/common/folder.rs"]
mod folder;
#[path = "common/program.rs"]
mod program;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use c::Compiled;
use folder::Folder;
use program::program;

/// Longer than any operation takes on a loaded machine.
const LONG: Duration = Duration::from_secs(40);

/// One end; killed when it is dropped.
struct End(Child);

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The route of a flow.
struct Route<'a> {
    program: &'a Compiled,
    kind: &'a str,
    provider: &'a str,
    node: String,
    service: String,
    info: &'a Path,
}

impl Route<'_> {
    fn start(&self, role: &str, node: &str, service: &str, domain: &Folder) -> End {
        let mut command = self.program.command();
        command.args([role, self.kind, self.provider, node, service]).arg(domain.path()).arg(self.info);
        // Both ends are on one host, and tcp is to be tested.
        command.env("FI_TCP_SHARED_MEMORY", "0");
        // Its error messages belong to the test's output.
        End(command.stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Starts a target. Returns it with the indices that arrive there.
    fn target(&self, domain: &Folder) -> (End, Receiver<u64>) {
        let _ = std::fs::remove_file(self.info);
        let mut end = self.start("target", &self.node, &self.service, domain);
        let lines = BufReader::new(end.0.stdout.take().unwrap()).lines();
        let (send, arrived) = channel();
        // The thread ends with the process.
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if send.send(line.parse().unwrap()).is_err() {
                    return;
                }
            }
        });
        let begin = Instant::now();
        while !self.info.exists() {
            assert!(end.0.try_wait().unwrap().is_none() && begin.elapsed() < LONG, "no target info");
            std::thread::sleep(Duration::from_millis(5));
        }
        (end, arrived)
    }

    fn initiator(&self, domain: &Folder) -> End {
        let own = format!("{}-initiator", self.node);
        let node = if self.provider == "shm" { &own } else { &self.node };
        self.start("initiator", node, "0", domain)
    }
}

/// A target info without the time of its setup, and without the keys of memory that it lends.
fn without_epoch(info: &str) -> String {
    let (before, rest) = info.split_once(r#""epoch":""#).expect("an epoch");
    let rest = rest.split_once('"').expect("the end of the epoch").1;
    let (between, regions) = rest.split_once(r#""regions":["#).expect("regions");
    format!("{before}{between}{}", regions.split_once(']').expect("the end of the regions").1)
}

/// Waits for twenty arrivals after `last`, each newer than the previous one. Returns the newest.
fn twenty(arrived: &Receiver<u64>, mut last: u64) -> u64 {
    for _ in 0..20 {
        // A target that found an error has ended.
        let index = arrived.recv_timeout(LONG).expect("no correct data arrives");
        assert!(index > last, "{index} after {last}");
        last = index;
    }
    last
}

fn either_end_is_killed_and_comes_back(provider: &str, case: u32) {
    let Some(program) = program("end.c").compile() else { return };
    for (number, kind) in ["grains", "samples"].into_iter().enumerate() {
        let (near, far, notes) = (Folder::new(), Folder::new(), Folder::new());
        let case = std::process::id() % 1_500 * 8 + case * 2 + number as u32;
        let shm = provider == "shm";
        let route = Route {
            program: &program,
            kind,
            provider,
            node: if shm { format!("mxl-end-{case}") } else { "127.0.0.1".to_owned() },
            // Below the ports that the system assigns.
            service: (20_000 + case).to_string(),
            info: &notes.path().join("info.json"),
        };
        let (target, arrived) = route.target(&far);
        let first = std::fs::read_to_string(route.info).unwrap();
        let initiator = route.initiator(&near);
        let last = twenty(&arrived, 0);

        // The next initiator's flow continues where the killed one's stopped.
        drop(initiator);
        let mut initiator = route.initiator(&near);
        let last = twenty(&arrived, last);

        // An initiator that does not notice the death cannot tell the next target from the killed one.
        drop(target);
        let (target, arrived) = route.target(&far);
        let again = std::fs::read_to_string(route.info).unwrap();
        assert_eq!(without_epoch(&again), without_epoch(&first), "{kind}: the target's address has changed");
        assert_ne!(again, first, "{kind}: the restarted target has the old epoch");
        let last = twenty(&arrived, last);
        assert!(initiator.0.try_wait().unwrap().is_none());

        // Both at once.
        drop((target, initiator));
        let (_target, arrived) = route.target(&far);
        let _initiator = route.initiator(&near);
        twenty(&arrived, last);
    }
}

#[test]
fn either_end_is_killed_and_comes_back_over_shared_memory() {
    either_end_is_killed_and_comes_back("shm", 0);
}

#[test]
fn either_end_is_killed_and_comes_back_over_tcp() {
    either_end_is_killed_and_comes_back("tcp", 1);
}

#[test]
fn either_end_is_killed_and_comes_back_over_udp() {
    either_end_is_killed_and_comes_back("udp", 2);
}
