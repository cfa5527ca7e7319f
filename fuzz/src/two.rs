//! Operations between two endpoints while a third party follows the input: all of them end with the right bytes.

use std::sync::{Arc, OnceLock};

use ofi::raw::{Caps, FiAddr, Info, MrAccess};
use ofi_testkit::side::remote_at;
use ofi_testkit::{Kit, Memory, TestEndpoint};

/// Maximum length of an operation in bytes.
pub const MAX_OP_LEN: usize = 200_000;
/// Maximum steps of an input.
pub const STEPS: usize = 200;
/// Polls that complete everything.
pub const POLLS: usize = 50_000;
/// Maximum number of operations in flight.
const OPEN: usize = 16;

/// An endpoint of the kit's device. `info` keeps the answer to the first getinfo.
pub fn open(kit: &dyn Kit, info: &OnceLock<Info>) -> TestEndpoint {
    let opening = kit.opening().hints(|hints| hints.caps(kit.usual_caps() | Caps::DIRECTED_RECV));
    // Asking all providers would take longer than the rest of the run.
    let info = info.get_or_init(|| opening.first_info().expect("an endpoint of the device"));
    opening.info(info.clone()).open()
}

/// An operation and its memory.
pub enum Op {
    /// The message, and the receive.
    Message(Memory, Memory),
    /// The payload, and the offset in the peer's memory.
    Write(Memory, usize),
    /// The destination, and the offset in the peer's memory.
    Read(Memory, usize),
}

/// The two endpoints.
pub struct Two {
    pub a: TestEndpoint,
    pub b: TestEndpoint,
    to_b: FiAddr,
    to_a: FiAddr,
    /// Operations in flight: number, outstanding completions, and memory.
    pub open: Vec<(usize, usize, Op)>,
    pub begun: usize,
    /// Targets of `a`'s writes, and of its reads.
    memory: [Memory; 2],
    pub regions: [Arc<dyn ofi::raw::MemoryRegion>; 2],
}

/// Every byte of operation `number`.
fn byte_of(number: usize) -> u8 {
    (number * 37 + 11) as u8
}

impl Two {
    /// Opens the two endpoints and exchanges their addresses and keys.
    pub fn new(a: TestEndpoint, b: TestEndpoint) -> Self {
        let (to_b, to_a) = (a.insert(&b), b.insert(&a));
        let memory = [Memory::new(MAX_OP_LEN), Memory::patterned(MAX_OP_LEN, 3)];
        let rights = [MrAccess::REMOTE_WRITE, MrAccess::REMOTE_READ];
        let regions = [0, 1].map(|at: usize| b.register(&memory[at], rights[at]).expect("a registration"));
        Self { a, b, to_b, to_a, open: Vec::new(), begun: 0, memory, regions }
    }

    /// Advances both, and reads completions.
    ///
    /// # Panics
    /// An operation failed, or has the wrong bytes.
    pub fn poll(&mut self) {
        self.a.poll();
        self.b.poll();
        for side in [&self.a, &self.b] {
            while let Some(event) = side.next() {
                let context = event.context();
                event.done(); // nothing of theirs fails
                let at = self.open.iter().position(|(number, ..)| *number == context).expect("an open one");
                self.open[at].1 -= 1;
                if self.open[at].1 == 0 {
                    let (number, _, op) = self.open.swap_remove(at);
                    match op {
                        Op::Message(from, into) => into.check(from.len(), byte_of(number)),
                        Op::Write(from, offset) => {
                            let there = self.memory[0].slice(offset..offset + from.len()).bytes();
                            assert_eq!(there, from.bytes(), "write {number}");
                        }
                        Op::Read(into, offset) => {
                            let there = self.memory[1].slice(offset..offset + into.len()).bytes();
                            assert_eq!(there, into.bytes(), "read {number}");
                        }
                    }
                }
            }
        }
    }

    /// Starts an operation of the given length.
    pub fn begin(&mut self, kind: u8, len: usize) {
        // One write at a time, so that no other write changes its bytes.
        let writes = self.open.iter().any(|(.., op)| matches!(op, Op::Write(..)));
        if self.open.len() == OPEN || kind == 1 && writes {
            return;
        }
        let number = self.begun;
        let memory = Memory::patterned(len, byte_of(number));
        let offset = (number * 977) % (MAX_OP_LEN - len + 1);
        let (op, ends) = match kind {
            1 => (Op::Write(memory, offset), 1),
            2 => (Op::Read(memory, offset), 1),
            _ => (Op::Message(memory, Memory::new(len)), 2),
        };
        let posted = match &op {
            Op::Message(from, into) => {
                let out = self.a.out(self.to_b, from).context(number).tag(number as u64).send();
                out.map(|()| {
                    let receive = self.b.receive(into).from(self.to_a).tag(number as u64).context(number);
                    receive.post().expect("a receive");
                })
            }
            Op::Write(from, offset) => {
                let to = remote_at(&self.regions[0], *offset, len);
                self.a.out(self.to_b, from).context(number).write(&[to])
            }
            Op::Read(into, offset) => {
                let of = remote_at(&self.regions[1], *offset, len);
                self.a.out(self.to_b, into).context(number).read(&[of])
            }
        };
        match posted {
            Ok(()) => {
                self.begun += 1;
                self.open.push((number, ends, op));
            }
            Err(error) => assert!(error.is_again(), "{error}"),
        }
    }
}
