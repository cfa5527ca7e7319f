//! A peer of reliable datagrams whose records the test writes. It connects under an address that no endpoint has.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use ofi_testkit::prelude::*;
use ofi_testkit::rc::{Handle, SimulatedDevice};
use ofi_verbs::rc::{
    Access, CmEventKind, ConnParam, Connection, Device, Opcode, Post, Queues, Region, Segment, Sizes,
    WorkCompletion,
};

use super::DEVICE;

/// The address at which [`Raw`] claims to listen.
pub const RAW: ([u8; 4], u16) = ([10, 9, 0, 1], 7);

/// The key of its memory, and the access rights that it may announce.
pub const KEY: u64 = 77;
pub const RIGHT_TO_READ: u64 = 1;
pub const RIGHT_TO_WRITE: u64 = 2;

/// Maximum length of a record in bytes, and the size of the memory that the peer exposes.
const MAX_RECORD_LEN: usize = 128;
/// Number of receives.
const RECEIVES: usize = 64;
/// The number of a request.
const REQUEST: u64 = 1 << 32;

/// A record of this kind without flags.
pub fn record(kind: u8, words: &[u64]) -> Vec<u8> {
    let mut bytes = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend(words.iter().flat_map(|word| word.to_be_bytes()));
    bytes
}

/// A peer whose records the test writes. Fields drop in order: the device accesses the memory until the connection,
/// the queues and the region are gone.
pub struct Raw {
    connection: Box<dyn Connection>,
    queues: Box<dyn Queues>,
    region: Box<dyn Region>,
    /// Memory for sends and for remote access, followed by one slot for each receive.
    memory: Memory,
    /// Completions of requests that no call has returned yet.
    ended: RefCell<usize>,
    /// Received records that no call has returned yet.
    came: RefCell<VecDeque<Vec<u8>>>,
}

impl Raw {
    /// Its connections to an endpoint are numbered: an earlier number is ignored.
    pub fn to(side: &TestEndpoint, attempt: u8) -> Self {
        Self::over(&DEVICE, side, attempt, Access::RemoteRead)
    }

    /// Opens it on another device, with these access rights of others to its memory.
    pub fn over(device: &Arc<SimulatedDevice>, side: &TestEndpoint, attempt: u8, access: Access) -> Self {
        Self::try_over(device, side, attempt, access).unwrap_or_else(|reason| panic!("refused: {reason}"))
    }

    /// The same, or the endpoint's reason of a refusal.
    pub fn try_over(
        device: &Arc<SimulatedDevice>,
        side: &TestEndpoint,
        attempt: u8,
        access: Access,
    ) -> std::result::Result<Self, String> {
        let device = Handle(Arc::clone(device));
        let requests = device.limits().unwrap().requests.min(64);
        let sizes = Sizes { requests, receives: RECEIVES, completions: 256, inline: MAX_RECORD_LEN };
        let queues = device.open(sizes).unwrap();
        let memory = Memory::new((1 + RECEIVES) * MAX_RECORD_LEN);
        // SAFETY: the region goes before the memory.
        let region = unsafe { device.register(memory.as_ptr(), memory.len(), access) }.unwrap();
        let (host, limit) = (RAW.0, Duration::from_secs(1));
        let mut greeting = b"ofv1".to_vec();
        greeting.extend(Ipv4Addr::from(host).to_ipv6_mapped().octets());
        greeting.extend(RAW.1.to_be_bytes());
        greeting.extend([0, 0, 0, 0, 0, 64]); // scope, credits
        greeting.extend([0; 11]); // incarnation and attempts
        greeting.push(attempt);
        let from = SocketAddr::from((host, 0));
        let to = side.name().to_socket_addr().unwrap();
        let mut connection = queues.call(from, to, limit).unwrap();
        let event = || wait::drive(&[side], "an event of a connection", || queues.event().unwrap());
        assert_eq!(event().kind, CmEventKind::AddressResolved);
        connection.resolve_route(limit).unwrap();
        assert_eq!(event().kind, CmEventKind::RouteResolved);
        connection.create_qp().unwrap();
        let param = ConnParam { private_data: &greeting, reads: 1, retries: 7, rnr_retries: 7 };
        connection.connect(param).unwrap();
        let answer = event();
        if answer.kind == CmEventKind::Rejected {
            let reason = String::from_utf8_lossy(&answer.private_data).into_owned();
            return Err(reason.trim_end_matches('\0').to_string()); // as long as there is room
        }
        assert_eq!(answer.kind, CmEventKind::Established);
        let (ended, came) = (RefCell::default(), RefCell::default());
        Ok(Self { connection, queues, region, memory, ended, came })
    }

    /// The memory that it offers for remote access.
    pub fn memory(&self) -> Vec<u8> {
        self.memory.slice(..MAX_RECORD_LEN).bytes()
    }

    fn segment(&self, at: usize, len: usize) -> Segment {
        Segment { addr: self.memory.as_ptr().wrapping_add(at), len: len as u32, lkey: self.region.lkey() }
    }

    /// Sends a record.
    pub fn send(&mut self, record: &[u8]) {
        self.memory.slice(..record.len()).put(record);
        let how = Post { inline: true, ..Post::default() };
        // SAFETY: registered, and carried by the request.
        unsafe { self.connection.send(REQUEST, self.segment(0, record.len()), how) }.unwrap();
    }

    /// Posts this number of receives for records of the endpoint. Without a receive, no record is delivered.
    pub fn make_room(&self, count: usize) {
        for id in 0..count {
            let into = self.segment((1 + id) * MAX_RECORD_LEN, MAX_RECORD_LEN);
            // SAFETY: registered, and used by nothing else.
            unsafe { self.queues.receive(id as u64, into) }.unwrap();
        }
    }

    /// Sends an endpoint the key [`KEY`] of its memory.
    pub fn give(&mut self, to: &TestEndpoint, rights: u64) {
        let (at, len) = (self.memory.as_ptr().expose_provenance() as u64, MAX_RECORD_LEN as u64);
        let rkey = self.region.rkey().into();
        let before = to.statistic("verbs_received");
        self.send(&record(20, &[KEY, 0, len, rights, at, rkey, at, rkey]));
        wait::drive(&[to], "the key", || (to.statistic("verbs_received") > before).then_some(()));
        self.arrived(1);
    }

    fn look(&self) {
        let mut entries = VecDeque::<WorkCompletion>::new();
        self.queues.poll(&mut entries).unwrap();
        for entry in entries {
            if entry.opcode == Opcode::Request {
                *self.ended.borrow_mut() += 1;
                continue;
            }
            let at = (1 + entry.id as usize) * MAX_RECORD_LEN;
            self.came.borrow_mut().push_back(self.memory.slice(at..at + entry.len).bytes());
        }
    }

    /// Waits until `count` more of its records have arrived, even if the endpoint does not poll.
    pub fn arrived(&self, count: usize) {
        wait::drive(&[], "the ends of all records", || {
            self.look();
            (*self.ended.borrow() >= count).then_some(())
        });
        *self.ended.borrow_mut() -= count;
    }

    /// The next received record of the endpoint.
    pub fn next(&self) -> Option<Vec<u8>> {
        self.look();
        self.came.borrow_mut().pop_front()
    }
}
