//! The test's end of a mesh.

use std::time::{Duration, Instant};

use super::load::STRIPES;
use ofi_testkit::leftovers::{Snapshot, sockets_named};
use ofi_testkit::process::Child;

/// Timeout of a member's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The test's view of a member.
pub struct Seat {
    /// Its number, unique in the mesh.
    pub index: usize,
    stripe: usize,
    /// Its process.
    pub child: Child,
    card: String,
}

/// A member's report.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Successful operations and messages.
    pub done: u64,
    /// Resident memory, in KiB.
    pub resident: u64,
    /// Open files.
    pub files: u64,
    /// Operations that failed with living members.
    pub unexplained: u64,
}

impl Seat {
    /// Starts a member with additional environment variables. The calling thread must outlive it.
    fn start(index: usize, stripe: usize, environment: &[(&str, &str)]) -> Self {
        let arguments = [index.to_string(), stripe.to_string()];
        let mut child = Child::start_with("member", &arguments.each_ref().map(String::as_str), environment);
        // It may die before its first line, if that is its purpose.
        let card = child.line.try_hear().unwrap_or_default();
        Self { index, stripe, child, card }
    }

    /// Introduces another member to it. It may be dead.
    pub fn meet(&mut self, other: &Self) {
        self.child.line.try_say(format!("join {} {}", other.index, other.card));
    }

    /// Requests its report.
    ///
    /// # Panics
    /// If it is dead.
    pub fn report(&mut self) -> Report {
        self.child.line.say("report");
        let text = self.child.line.hear();
        let mut numbers = text.split(' ').skip(1).map(|word| word.parse().expect("a number"));
        let mut next = || numbers.next().expect("four numbers");
        Report { done: next(), resident: next(), files: next(), unexplained: next() }
    }

    /// Its address.
    ///
    /// # Panics
    /// If it died before it had one.
    pub fn address(&self) -> ofi::raw::Address {
        crate::parse(self.card.split('|').next().expect("a card"))
    }

    /// Makes it execute a rare operation more often: see [`Load::favour`](super::load::Load::favour). It may be dead.
    pub fn favour(&mut self, what: &str) {
        self.child.line.try_say(format!("favour {what}"));
    }

    /// Closes everything, in order.
    pub fn end(&mut self) {
        self.child.line.try_say("end");
    }
}

/// Members that all know each other.
pub struct Mesh {
    /// The living members.
    pub seats: Vec<Seat>,
    next: usize,
    stripe: usize,
    before: Snapshot,
    environment: Vec<(&'static str, &'static str)>,
}

impl Mesh {
    /// Starts `count` members with additional environment variables.
    pub fn start(count: usize, environment: &[(&'static str, &'static str)]) -> Self {
        let before = Snapshot::take();
        let mut mesh =
            Self { seats: Vec::new(), next: 0, stripe: 0, before, environment: environment.to_vec() };
        for _ in 0..count {
            let seat = mesh.newcomer(&[]);
            mesh.admit(seat);
        }
        mesh
    }

    /// Starts a member that no other knows yet.
    pub fn newcomer(&mut self, environment: &[(&str, &str)]) -> Seat {
        self.next += 1;
        let all: Vec<(&str, &str)> = self.environment.iter().chain(environment).copied().collect();
        // Skips stripes in use, and those whose last owner some member may still serve.
        let used = |stripe: usize| self.seats.iter().any(|seat| seat.stripe == stripe);
        while used(self.stripe) {
            self.stripe = (self.stripe + 1) % STRIPES;
        }
        let stripe = self.stripe;
        self.stripe = (stripe + 1) % STRIPES;
        Seat::start(self.next, stripe, &all)
    }

    /// Introduces it and all others to each other. The first half of the others greet it, the rest are greeted.
    pub fn introduce(&mut self, newcomer: &mut Seat) {
        let half = self.seats.len() / 2;
        for seat in &mut self.seats[..half] {
            // It has greeted before the newcomer can: a member greeted last has nothing to answer.
            seat.child.line.say(format!("greet {} {}", newcomer.index, newcomer.card));
            seat.child.line.expect("greeted");
        }
        for seat in &self.seats[half..] {
            newcomer.child.line.try_say(format!("greet {} {}", seat.index, seat.card));
            // No answer arrives if this is the step at which it dies.
            assert!(newcomer.child.line.try_hear().is_none_or(|text| text == "greeted"));
        }
        for seat in &self.seats[..half] {
            newcomer.meet(seat);
        }
        for seat in &mut self.seats[half..] {
            seat.meet(newcomer);
        }
    }

    /// As [`Mesh::introduce`], for a member that stays.
    pub fn admit(&mut self, mut newcomer: Seat) {
        self.introduce(&mut newcomer);
        self.seats.push(newcomer);
    }

    /// Notifies all members that one is dead. Its process has been waited for.
    pub fn tell_of_death(&mut self, index: usize) {
        for seat in &mut self.seats {
            seat.child.line.say(format!("bury {index}"));
        }
    }

    /// Waits until no member has anything left with the dead one, and checks what that left behind.
    ///
    /// # Panics
    /// If a member takes too long, or has died as well; if something is left.
    pub fn bury(&mut self, dead: &Seat) {
        for seat in &mut self.seats {
            let text = seat.child.line.hear();
            assert!(text.starts_with(&format!("buried {} ", dead.index)), "{text}");
        }
        let id = dead.child.id();
        assert_eq!(self.before.new_since(&[id.to_string()]), Vec::<std::path::PathBuf>::new());
        assert_eq!(sockets_named(&format!("/{id}:")), Vec::<String>::new());
    }

    /// Kills the member in a seat, and replaces it by another.
    ///
    /// # Panics
    /// As [`Mesh::bury`].
    pub fn replace(&mut self, seat: usize) {
        let mut victim = self.seats.swap_remove(seat);
        victim.child.kill();
        self.tell_of_death(victim.index);
        let newcomer = self.newcomer(&[]);
        self.bury(&victim);
        self.admit(newcomer);
    }

    /// Waits until every member has made progress since this call.
    ///
    /// # Panics
    /// If one makes no progress.
    pub fn expect_progress(&mut self) {
        for seat in &mut self.seats {
            let (start, before) = (Instant::now(), seat.report().done);
            while seat.report().done <= before {
                assert!(start.elapsed() < ANSWER_TIMEOUT, "member {} stands still", seat.index);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Lets all members finish and close in order. Returns their last reports.
    ///
    /// # Panics
    /// If an operation with a living member failed, or a process failed.
    pub fn end(mut self) -> Vec<Report> {
        self.seats.iter_mut().for_each(|seat| seat.child.line.say("calm"));
        self.seats.iter_mut().for_each(|seat| seat.child.line.expect("calm"));
        let reports: Vec<Report> = self.seats.iter_mut().map(Seat::report).collect();
        assert!(reports.iter().all(|report| report.unexplained == 0), "{reports:?}");
        for seat in &mut self.seats {
            seat.end();
            seat.child.line.expect("closed");
            // The others are notified, and have no operations with it.
        }
        self.seats.into_iter().for_each(|seat| seat.child.finish());
        reports
    }
}
