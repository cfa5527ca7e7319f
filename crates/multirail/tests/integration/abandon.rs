//! `Endpoint::abandon`, on which recovery from a mute rail relies: an abandoned access no longer touches its memory,
//! and still ends once.

use ofi::raw::Hints;
use ofi_testkit::prelude::*;

/// Bytes that no transport sends at once.
const LEN: usize = 2 << 20;

struct Rail(&'static str, bool);

impl Kit for Rail {
    fn hints(&self) -> Hints {
        Hints::new().provider(self.0)
    }

    fn shared_memory(&self) -> bool {
        self.1
    }
}

/// A pair whose target makes no progress unless the test polls it, and is connected.
fn pair(kit: &dyn Kit) -> Pair {
    let pair = kit.pair_with(|opening| opening.hints(|hints| hints.progress(Progress::Manual)));
    pair.warm_up();
    pair
}

#[test]
fn an_abandoned_access_ends_once_and_touches_nothing() {
    for kit in [Rail("shm", true), Rail("udp", true), Rail("udp", false)] {
        for (len, is_polled) in [(LEN, false), (LEN, true), (64, false)] {
            for way in ["write", "read"] {
                println!("{} {} {len} {is_polled} {way}", kit.0, kit.1);
                let pair = pair(&kit);
                let (own, there) = (Memory::patterned(len, 1), Memory::patterned(len, 2));
                let region = pair.b.register(&there, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
                let to = [remote(&region)];
                match way {
                    "write" => pair.a.out(pair.to_b, &own).context(3).write(&to).unwrap(),
                    _ => pair.a.out(pair.to_b, &own).context(3).read(&to).unwrap(),
                }
                if is_polled {
                    pair.b.poll(); // the target has begun
                    pair.a.poll();
                }
                match pair.a.ep.abandon(Context(3)) {
                    Ok(()) => {}
                    Err(error) => {
                        assert!(is_polled && error == Errno::ENOENT, "{error}"); // its end has come in the polls
                        pair.next(&pair.a);
                        continue;
                    }
                }
                own.fill(77);
                let end = pair.next(&pair.a);
                assert_eq!(end.context(), 3);
                own.check(len, 77);
                if way == "write" && matches!(end, Event::Done(..)) {
                    there.check(len, 1); // the bytes of before
                }
                assert_eq!(pair.a.ep.abandon(Context(3)).unwrap_err().errno(), Errno::ENOENT);
                // The endpoint goes on.
                pair.post(|| pair.a.out(pair.to_b, &own).context(4).write(&to));
                assert_eq!(pair.done(&pair.a).op_context, Context(4));
                there.check(len, 77);
                assert_eq!((pair.a.pending(), pair.b.pending()), (0, 0), "nothing ends twice");
            }
        }
    }
}
