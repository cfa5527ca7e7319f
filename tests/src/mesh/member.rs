//! The role of a member's process.

use ofi_testkit::leftovers::open_files;
use ofi_testkit::process::Line;

use super::load::Load;
use crate::{Naming, resident_kib};

/// Prints its card, obeys the lines that it receives, and does every kind of operation with every known member: `join
/// INDEX CARD` meets a member, and so does `greet INDEX CARD`, answered by `greeted`; `bury INDEX` says that one is
/// dead, answered by `buried INDEX DONE FAILED` when nothing with it is left; `report` is answered by `report DONE
/// RESIDENT_KIB FILES UNEXPLAINED`; `beware` announces hostile strangers; `favour WHAT` makes it execute a rare
/// operation more often; `calm` ends its own operations, answered by `calm`; `end` closes everything, answered by
/// `closed`.
///
/// # Panics
/// If a result is wrong: the process ends, and the other end of the line notices.
pub fn member(line: &mut Line, arguments: &[String]) {
    let [index, stripe] = [0, 1].map(|at| arguments[at].parse().expect("an index, and a stripe"));
    let naming = Naming::from_argument(&std::env::var(super::NAMING).unwrap_or_default());
    let mut load = Load::open(index, stripe, naming);
    line.say(load.card());
    let mut calming = false;
    loop {
        for (index, done, failed) in load.step() {
            line.say(format!("buried {index} {done} {failed}"));
        }
        if calming && load.is_idle() {
            calming = false;
            line.say("calm");
        }
        if !line.has_news() {
            continue;
        }
        let Some(text) = line.try_hear() else { return };
        let words: Vec<&str> = text.splitn(3, ' ').collect();
        match words[..] {
            ["join", index, card] => load.join(index.parse().expect("an index"), card),
            ["greet", index, card] => {
                load.join(index.parse().expect("an index"), card);
                line.say("greeted");
            }
            ["bury", index] => load.bury(index.parse().expect("an index")),
            ["report"] => {
                let (done, unexplained) = (load.done(), load.unexplained());
                line.say(format!("report {done} {} {} {unexplained}", resident_kib(), open_files()));
            }
            ["beware"] => load.beware(),
            ["favour", what] => load.favour(what),
            ["calm"] => {
                load.calm();
                calming = true;
            }
            ["end"] => {
                drop(load);
                line.say("closed");
                return;
            }
            _ => panic!("{text}"),
        }
    }
}
