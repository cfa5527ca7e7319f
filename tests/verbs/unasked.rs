//! Immediate data, which no endpoint of reliable datagrams sends. It consumes a receive of the endpoint without writing
//! to it, so the slot still holds another peer's record.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use ofi_testkit::prelude::*;
use ofi_testkit::rc::{Handle, Plan, SimulatedDevice};
use ofi_verbs::rc::msg::{Channel, Completions, Connects, Identifier, PairAttr, Receives};
use ofi_verbs::rc::{Access, CmEventKind, ConnParam, Device, Post, Region, Remote, Segment, Work};

use super::{device, hints};

/// Number of receives of an endpoint: after this number of messages each slot has been used.
const SLOTS: usize = 64;
/// Bytes of a record's header, and of the secret.
const HEAD: usize = 8;
const LEN: usize = 64;

static DEVICE: LazyLock<Arc<SimulatedDevice>> =
    LazyLock::new(|| device("unasked0", Plan { receives: SLOTS, ..Plan::default() }));

struct OverIt;

impl Kit for OverIt {
    fn hints(&self) -> ofi::raw::Hints {
        LazyLock::force(&DEVICE);
        hints("unasked0")
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

/// A peer that connects as an endpoint does, and whose requests may carry immediate data. Fields drop in order.
struct Stranger {
    id: Box<dyn Identifier>,
    region: Box<dyn Region>,
    ends: Arc<dyn Completions>,
    channel: Arc<dyn Channel>,
    memory: Memory,
}

impl Stranger {
    fn to(side: &TestEndpoint, attempt: u8) -> Self {
        let device = Handle(Arc::clone(&DEVICE));
        let memory = Memory::new(2 * (HEAD + LEN));
        // SAFETY: the region goes before the memory.
        let region =
            unsafe { device.register(memory.as_ptr(), memory.len(), Access::RemoteReadWrite) }.unwrap();
        let (channel, ends) = (device.channel().unwrap(), device.completions(64).unwrap());
        let own = SocketAddr::new(device.addresses()[0], 0);
        let mut id = Arc::clone(&channel).bind(own).unwrap();
        let limit = Duration::from_secs(1);
        let happens = |kind| {
            let event = wait::drive(&[side], "an event", || Arc::clone(&channel).next().unwrap());
            assert_eq!(event.kind, kind);
        };
        id.resolve_address(side.name().to_socket_addr().unwrap(), limit).unwrap();
        happens(CmEventKind::AddressResolved);
        id.resolve_route(limit).unwrap();
        happens(CmEventKind::RouteResolved);
        let attr = PairAttr {
            completions: Arc::clone(&ends),
            receives: Receives::Own(16),
            size: 16,
            pieces: 1,
            receive_pieces: 1,
            inline: 0,
        };
        device.create_pair(&mut *id, &attr).unwrap();
        let greeting = greeting(id.local_address().unwrap(), attempt);
        id.connect(ConnParam { private_data: &greeting, reads: 1, retries: 7, rnr_retries: 7 }).unwrap();
        happens(CmEventKind::Established);
        Self { id, region, ends, channel, memory }
    }

    /// Posts a request of `len` bytes, and waits for its completion.
    fn post(&self, side: &TestEndpoint, work: Work, len: usize) {
        let from = Segment { addr: self.memory.as_ptr(), len: len as u32, lkey: self.region.lkey() };
        // SAFETY: registered, and used by nothing else.
        unsafe { self.id.pair().unwrap().work(1, &[from], work, Post::default()) }.unwrap();
        wait::drive(&[side], "its end", || {
            let mut ended = false;
            self.ends.poll(&mut |_| ended = true).unwrap();
            ended.then_some(())
        });
    }

    /// Its own memory, in place of memory that the endpoint allows it to write.
    fn place(&self) -> Remote {
        let addr = self.memory.as_ptr().wrapping_add(HEAD + LEN).expose_provenance() as u64;
        Remote { addr, rkey: self.region.rkey() }
    }

    fn is_disconnected(&self) -> bool {
        let event = Arc::clone(&self.channel).next().unwrap();
        event.is_some_and(|event| event.kind == CmEventKind::Disconnected)
    }
}

/// A greeting (`crates/ofi-verbs/src/endpoint/meeting.rs`).
fn greeting(own: SocketAddr, attempt: u8) -> Vec<u8> {
    let SocketAddr::V4(v4) = own else { panic!("{own}") };
    let mut bytes = b"ofv1".to_vec();
    bytes.extend(v4.ip().to_ipv6_mapped().octets());
    bytes.extend(v4.port().to_be_bytes());
    bytes.extend([0, 0, 0, 0, 0, 64]); // scope, credits
    bytes.extend([0; 11]); // incarnation and attempts
    bytes.push(attempt);
    bytes
}

#[test]
fn immediate_data_ends_the_connection_and_shows_nobody_s_record() {
    let kit: &dyn Kit = &OverIt;
    let pair = kit.pair();
    pair.warm_up();
    let connections = pair.a.statistic("verbs_connections");
    let (secret, into) = (Memory::patterned(LEN, 9), Memory::new(LEN));
    let exchange = || {
        pair.b.receive(&into).context(1).post().unwrap();
        pair.post(|| pair.a.out(pair.to_b, &secret).context(2).send());
        pair.drive("a message", || pair.b.next_of(1)).done();
        pair.drive("its end", || pair.a.next_of(2)).done();
    };
    (0..2 * SLOTS).for_each(|_| exchange());
    let got = Memory::new(LEN);
    pair.b.receive(&got).context(3).post().unwrap();
    let works: [fn(Remote) -> (Work, usize); 3] = [
        |at| (Work::Write(at, Some(5)), HEAD + LEN),
        |at| (Work::Write(at, Some(5)), 0),
        |_| (Work::Send(Some(5)), HEAD),
    ];
    for (attempt, work) in works.into_iter().enumerate() {
        let before = pair.b.statistic("verbs_malformed");
        let stranger = Stranger::to(&pair.b, attempt as u8 + 1);
        stranger.memory.slice(..HEAD).put(&[1, 0, 0, 0, 0, 0, 0, 0]); // a message of no bytes
        let (work, len) = work(stranger.place());
        stranger.post(&pair.b, work, len);
        wait::drive(&[&pair.b], "the end of the connection", || stranger.is_disconnected().then_some(()));
        assert_eq!(pair.b.statistic("verbs_malformed"), before + 1, "{work:?}");
        assert!(pair.b.next_of(3).is_none(), "{work:?} brought a message");
    }
    pair.b.cancel(3).unwrap();
    pair.drive("the cancelled receive", || pair.b.next_of(3)).failed();
    // No slot is lost, and the friend's connection still exists.
    (0..2 * SLOTS).for_each(|_| exchange());
    into.check(LEN, 9);
    assert_eq!(pair.a.statistic("verbs_connections"), connections);
}
