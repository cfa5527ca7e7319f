//! One endpoint with its memory, from opening to closing.

use std::collections::BTreeMap;
use std::sync::Arc;

use ofi::raw::{Address, FiAddr, MemoryRegion, MrAccess, RemotePiece};
use ofi_testkit::side::remote_at;
use ofi_testkit::{Memory, TestEndpoint};

use super::TAGS;
use super::op::pattern;

/// Maximum length of an operation in bytes.
pub const MAX_OP_LEN: usize = 40_000;
/// Total bytes of all writes to one endpoint.
const TARGET: usize = 400_000;
/// Distinguishes data for reads from sent data.
const SOURCE: usize = 1 << 20;

/// The rights of peers.
const RIGHTS: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);

/// One life of an endpoint, with its memory. Fields drop in order.
pub struct Life {
    regions: [Arc<dyn MemoryRegion>; 3],
    pub side: Option<TestEndpoint>,
    pub name: Address,
    number: usize,
    /// The memory that others write to, read from, and add to.
    memory: [Memory; 3],
    /// Bytes of the first memory that are assigned.
    used: usize,
    pub peers: BTreeMap<usize, FiAddr>,
    /// Its queue pair failed, or it was closed.
    pub stopped: bool,
    /// Its receives: tag, memory, and the received message.
    pub receives: Vec<(u64, Memory, Option<usize>)>,
    /// Receives posted by tag, and messages sent to it.
    pub posted: [usize; TAGS as usize + 1],
    pub sent: [usize; TAGS as usize + 1],
}

impl Life {
    /// The state of a newly opened endpoint.
    pub fn new(side: TestEndpoint, number: usize) -> Self {
        let memory = [TARGET, MAX_OP_LEN, 8].map(Memory::new);
        memory[1].slice(..).put(&pattern(SOURCE + number, MAX_OP_LEN));
        let regions = [0, 1, 2].map(|at: usize| side.register(&memory[at], RIGHTS).expect("a registration"));
        let name = side.name();
        Self {
            regions,
            side: Some(side),
            name,
            number,
            memory,
            used: 0,
            peers: BTreeMap::new(),
            stopped: false,
            receives: Vec::new(),
            posted: [0; TAGS as usize + 1],
            sent: [0; TAGS as usize + 1],
        }
    }

    /// Its endpoint.
    pub fn side(&self) -> &TestEndpoint {
        self.side.as_ref().expect("an endpoint that is open")
    }

    /// Closes its endpoint.
    pub fn end(&mut self) {
        (self.side, self.stopped) = (None, true);
        self.regions.iter().for_each(|region| region.close().expect("closing a registration"));
    }

    /// Closes the registration that others read, and registers the memory again.
    pub fn withdraw(&mut self) {
        self.regions[1].close().expect("closing a registration");
        self.regions[1] = self.side().register(&self.memory[1], RIGHTS).expect("a registration");
    }

    /// Reserves room for one write, or one number.
    pub fn room(&mut self, len: usize) -> Option<usize> {
        let at = self.used.next_multiple_of(8);
        (at + len <= TARGET).then(|| {
            self.used = at + len;
            at
        })
    }

    pub fn target_at(&self, at: usize, len: usize) -> RemotePiece {
        remote_at(&self.regions[0], at, len)
    }

    pub fn source_at(&self, at: usize, len: usize) -> RemotePiece {
        remote_at(&self.regions[1], at, len)
    }

    pub fn counter(&self) -> RemotePiece {
        remote_at(&self.regions[2], 0, 8)
    }

    /// A range of this length after the counter, which peers may not access.
    pub fn beside(&self, len: usize) -> RemotePiece {
        remote_at(&self.regions[2], 8, len)
    }

    /// The number at an offset of the memory that others write to.
    pub fn number_at(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.memory[0].slice(at..at + 8).bytes().try_into().expect("8 bytes"))
    }

    pub fn sum(&self) -> u64 {
        u64::from_ne_bytes(self.memory[2].bytes().try_into().expect("8 bytes"))
    }

    pub fn source_bytes(&self, at: usize, len: usize) -> Vec<u8> {
        pattern(SOURCE + self.number, MAX_OP_LEN)[at..at + len].to_vec()
    }

    /// Checks that a write has arrived at its address.
    #[track_caller]
    pub fn check_target(&self, at: usize, id: usize, len: usize) {
        assert!(self.memory[0].slice(at..at + len).bytes() == pattern(id, len), "the bytes of write {id}");
    }
}
