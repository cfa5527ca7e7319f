//! A request that ends with each status of a device, on the emulated device: `cargo xtask efa --test`.

use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};

use super::efa_death::{insert, name_of, open};

const COUNT: usize = 10;
const LEN: usize = 4000;

/// Sends messages to the parent, and tells it how each one ended.
pub fn flaky(line: &mut Line, _arguments: &[String]) {
    let side = open(true);
    line.say(name_of(&side));
    let to = insert(&side, &line.hear());
    for nth in 0..COUNT {
        let from = Memory::patterned(LEN, nth as u8);
        wait::drive(&[&side], "room", || side.out(to, &from).context(5).data(nth as u64).send().ok());
        let end = wait::drive(&[&side], "the end of a message", || side.next_of(5));
        line.say(matches!(end, Event::Done(..)));
    }
    line.expect("bye");
}

#[test]
#[ignore = "needs an EFA device: cargo xtask efa --test"]
fn of_ten_messages_at_most_one_fails_whatever_the_device_reports_of_a_request() {
    for status in [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 18] {
        // Among the first requests are the greetings.
        for request in [1, 2, 3, 6, 8] {
            let fail = format!("{status}@{request}");
            let side = open(true);
            let mut sender = Child::start_with("flaky", &[], &[("EFA_EMULATOR_FAIL", &fail)]);
            let name = sender.line.hear();
            insert(&side, &name);
            sender.line.say(name_of(&side));
            let into: Vec<Memory> = (0..COUNT).map(|_| Memory::new(LEN)).collect();
            into.iter().for_each(|into| side.receive(into).context(1).post().unwrap());
            let mut ends = Vec::new();
            while ends.len() < COUNT {
                let line = &mut sender.line;
                wait::drive(&[&side], &fail, || line.has_news().then_some(()));
                ends.push(line.hear() == "true");
            }
            let sent: Vec<usize> = (0..COUNT).filter(|&nth| ends[nth]).collect();
            assert!(sent.len() + 1 >= COUNT, "{fail}: {ends:?}");
            for (&nth, into) in sent.iter().zip(&into) {
                let entry = wait::drive(&[&side], &fail, || side.next_of(1)).done();
                assert_eq!((entry.data, entry.len), (nth as u64, LEN), "{fail}");
                into.check(LEN, nth as u8);
            }
            sender.line.say("bye");
        }
    }
}
