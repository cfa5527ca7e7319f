//! Both ends of connections in one process, on a real device, such as the one of `cargo xtask vm`.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ibv::{
    Access, AddressHandle, AsyncEvent, AsyncEvents, CmEvent, CmEventKind, CmId, CompletionChannel,
    CompletionQueue, ConnParam, Context, EventChannel, GRH, MemoryRegion, MemoryWindow, Opcode, Part,
    Payload, Post, ProtectionDomain, QueuePairAttr, Receives, Remote, Segment, SharedReceiveQueue, Status,
    Timers, UdAttr, UdPeer, UdQueuePair, Way, WindowKind, Work, WorkCompletion,
};

const LONG: Duration = Duration::from_secs(20);
const SLOT: usize = 4096;
/// The vendor of soft-RoCE (`RXE_VENDOR_ID`).
const SOFT_ROCE: u32 = 0xFF_FFFF;

/// A device and its address, if this host has one.
fn device() -> Option<(Context, SocketAddr)> {
    let found = ibv::contexts().map_err(|error| println!("skipped: no RDMA device: {error}")).ok()?;
    for &context in found {
        for gid in context.gids(1).unwrap_or_default() {
            if gid.ip().is_ipv4() {
                return Some((context, SocketAddr::new(gid.ip(), 0)));
            }
        }
    }
    println!("skipped: no RDMA device has an IPv4 address");
    None
}

/// A domain with queues, and registered memory of four slots.
struct Setup {
    attr: QueuePairAttr,
    srq: Arc<SharedReceiveQueue>,
    channel: Arc<EventChannel>,
    region: MemoryRegion,
    memory: *mut u8,
    address: SocketAddr,
    found: RefCell<VecDeque<WorkCompletion>>,
    /// Whether queue pairs have builders.
    built: bool,
}

impl Setup {
    fn new() -> Option<Self> {
        Self::with(Access::RemoteWrite)
    }

    /// A setup whose memory has these access rights for peers.
    fn with(access: Access) -> Option<Self> {
        let (context, address) = device()?;
        let pd = ProtectionDomain::new(context).unwrap();
        let cq = CompletionQueue::new(&CompletionChannel::new(context).unwrap(), 64).unwrap();
        let srq = SharedReceiveQueue::new(&pd, 16, 1).unwrap();
        // Never freed: the device may use it as long as the process lives.
        let memory = Box::leak(vec![0u8; 4 * SLOT].into_boxed_slice()).as_mut_ptr();
        // SAFETY: leaked memory, which is only accessed by raw pointers.
        let region = unsafe { MemoryRegion::new(&pd, memory, 4 * SLOT, access) }.unwrap();
        let attr = QueuePairAttr {
            pd,
            cq,
            receives: Receives::Shared(Arc::clone(&srq)),
            size: 8,
            pieces: 2,
            receive_pieces: 2,
            inline: 64,
        };
        Some(Self {
            attr,
            srq,
            channel: EventChannel::new().unwrap(),
            region,
            memory,
            address,
            found: RefCell::default(),
            built: false,
        })
    }

    /// A setup with an extended completion queue, and with queue pairs that have builders. `None` for a device without
    /// them; soft-RoCE has them.
    fn extended() -> Option<Self> {
        let mut setup = Self::with(Access::RemoteAtomic)?;
        let context = setup.attr.pd.context();
        match CompletionQueue::extended(&CompletionChannel::new(context).unwrap(), 64) {
            Ok(cq) => setup.attr.cq = cq,
            Err(error) => {
                assert_ne!(context.query().unwrap().vendor, SOFT_ROCE, "{error}");
                println!("skipped: {error}");
                return None;
            }
        }
        assert!(setup.attr.cq.is_extended());
        setup.built = true;
        Some(setup)
    }

    fn create(&self, id: &mut CmId) {
        let made = if self.built { id.create_built_qp(&self.attr) } else { id.create_qp(&self.attr) };
        made.unwrap();
    }

    fn slot(&self, index: usize, len: usize) -> Segment {
        Segment { addr: self.memory.wrapping_add(index * SLOT), len: len as u32, lkey: self.region.lkey() }
    }

    fn fill(&self, index: usize, byte: u8) {
        // SAFETY: a slot of the memory, which no request uses now.
        unsafe { self.memory.wrapping_add(index * SLOT).write_bytes(byte, SLOT) };
    }

    fn byte(&self, index: usize, at: usize) -> u8 {
        // SAFETY: as above.
        unsafe { self.memory.wrapping_add(index * SLOT + at).read() }
    }

    fn event(&self, kind: CmEventKind) -> CmEvent {
        let end = Instant::now() + LONG;
        while Instant::now() < end {
            if let Some(event) = self.channel.next().unwrap() {
                assert_eq!(event.kind, kind, "status {}", event.status);
                return event;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("no {kind:?}");
    }

    fn completion(&self) -> WorkCompletion {
        let end = Instant::now() + LONG;
        let mut found = self.found.borrow_mut();
        while Instant::now() < end && found.is_empty() {
            self.attr.cq.poll(|entry| found.push_back(entry)).unwrap();
        }
        found.pop_front().expect("a completion")
    }

    /// A listening identifier, and a connection through it: the connecting and the accepting end.
    fn connect(&self) -> (CmId, CmId, CmId) {
        let listener = CmId::new(&self.channel).unwrap();
        listener.bind(self.address).unwrap();
        listener.listen(4).unwrap();
        let to = listener.local_address().unwrap();
        let mut client = CmId::new(&self.channel).unwrap();
        client.resolve_address(None, to, LONG).unwrap();
        assert_eq!(self.event(CmEventKind::AddressResolved).id, client.number());
        client.resolve_route(LONG).unwrap();
        self.event(CmEventKind::RouteResolved);
        self.create(&mut client);
        let param = ConnParam { private_data: b"may I", reads: 4, retries: 7, rnr_retries: 7 };
        client.connect(param).unwrap();
        let request = self.event(CmEventKind::Request);
        assert_eq!((request.id, &request.private_data[..5]), (listener.number(), &b"may I"[..]));
        let mut server = request.request.unwrap();
        self.create(&mut server);
        server.accept(ConnParam { private_data: b"yes", ..param }).unwrap();
        for _ in 0..2 {
            let event = self.event(CmEventKind::Established);
            if event.id == client.number() {
                assert_eq!(&event.private_data[..3], b"yes");
            }
        }
        (listener, client, server)
    }
}

#[test]
fn messages_and_remote_memory_go_over_a_connection() {
    let Some(setup) = Setup::new() else { return };
    let (_listener, client, server) = setup.connect();
    // SAFETY: nothing else uses slot 1 until the receive has ended.
    unsafe { setup.srq.post(7, &[setup.slot(1, SLOT)]) }.unwrap();
    setup.fill(0, 0xA5);
    // SAFETY: slot 0 does not change until the send has ended.
    unsafe { client.qp().unwrap().send(8, &[setup.slot(0, 1000)], Post::default()) }.unwrap();
    let mut both = [setup.completion(), setup.completion()];
    both.sort_by_key(|entry| entry.id);
    assert_eq!(both.map(|entry| (entry.id, entry.status)), [(7, Status::SUCCESS), (8, Status::SUCCESS)]);
    assert_eq!(
        (both[0].opcode, both[0].len, both[0].qp),
        (Opcode::Receive, 1000, server.qp().unwrap().number())
    );
    assert_eq!((setup.byte(1, 0), setup.byte(1, 999), setup.byte(1, 1000)), (0xA5, 0xA5, 0));
    let from = Remote { addr: setup.memory as u64, rkey: setup.region.rkey() };
    // SAFETY: nothing else uses slots 2 and 3 until the write has ended.
    unsafe {
        server.qp().unwrap().write(
            9,
            &[setup.slot(1, 500)],
            Remote { addr: from.addr + 2 * SLOT as u64, ..from },
            Post { fence: true, ..Post::default() },
        )
    }
    .unwrap();
    assert_eq!(
        (setup.completion().status, setup.byte(2, 499), setup.byte(2, 500)),
        (Status::SUCCESS, 0xA5, 0)
    );
    client.disconnect().unwrap();
    setup.event(CmEventKind::Disconnected);
}

/// Inline data does not need registration, and may change at once. An unsignaled request has no completion,
/// but has ended when a later one completes.
#[test]
fn requests_carry_short_messages_and_may_be_quiet() {
    let Some(setup) = Setup::new() else { return };
    let (_listener, client, _server) = setup.connect();
    let qp = client.qp().unwrap();
    assert_eq!(qp.inline_size(), 64);
    for slot in [1, 2] {
        // SAFETY: nothing else uses the slot until the receive has ended.
        unsafe { setup.srq.post(slot as u64, &[setup.slot(slot, SLOT)]) }.unwrap();
    }
    for (id, quiet) in [(8, true), (9, false)] {
        let mut bytes = [id as u8; 64];
        let segment = Segment { addr: bytes.as_mut_ptr(), len: 64, lkey: 0 };
        // SAFETY: inline data is read during the call.
        unsafe { qp.send(id, &[segment], Post { inline: true, quiet, fence: false }) }.unwrap();
        bytes.fill(0);
    }
    let mut all = [setup.completion(), setup.completion(), setup.completion()];
    all.sort_by_key(|entry| entry.id);
    assert_eq!(all.map(|entry| (entry.id, entry.status)), [1, 2, 9].map(|id| (id, Status::SUCCESS)));
    assert_eq!((setup.byte(1, 0), setup.byte(1, 63), setup.byte(2, 0), setup.byte(2, 63)), (8, 8, 9, 9));
}

#[test]
fn a_device_changes_numbers_in_remote_memory_and_answers_what_they_were() {
    let Some(setup) = Setup::with(Access::RemoteAtomic) else { return };
    let (_listener, client, _server) = setup.connect();
    let at = Remote { addr: setup.memory as u64, rkey: setup.region.rkey() };
    // SAFETY: nothing uses slots 0 and 1 now, and they are aligned to 8.
    let number = |slot| unsafe { setup.memory.wrapping_add(slot * SLOT).cast::<u64>().read() };
    for (id, work, was, is) in [
        (1, Work::FetchAdd(at, 7), 0, 7),
        (2, Work::FetchAdd(at, u64::MAX), 7, 6),
        (3, Work::CompareSwap { at, expected: 7, new: 9 }, 6, 6),
        (4, Work::CompareSwap { at, expected: 6, new: 1 << 63 }, 6, 1 << 63),
    ] {
        // SAFETY: nothing else uses slot 1 until the request has ended.
        unsafe { client.qp().unwrap().work(id, &[setup.slot(1, 8)], work, Post::default()) }.unwrap();
        let entry = setup.completion();
        assert_eq!((entry.id, entry.status, number(1), number(0)), (id, Status::SUCCESS, was, is));
    }
}

/// Both ends resend as often as the connecting end requests. The number of RNR retries of an end is the one that the
/// other end requests.
#[test]
fn times_and_retries_of_a_connection_are_those_that_were_set() {
    let Some(setup) = Setup::new() else { return };
    let listener = CmId::new(&setup.channel).unwrap();
    listener.bind(setup.address).unwrap();
    listener.listen(1).unwrap();
    let mut client = CmId::new(&setup.channel).unwrap();
    client.resolve_address(None, listener.local_address().unwrap(), LONG).unwrap();
    setup.event(CmEventKind::AddressResolved);
    client.resolve_route(LONG).unwrap();
    setup.event(CmEventKind::RouteResolved);
    client.create_qp(&setup.attr).unwrap();
    client.set_ack_timeout(10).unwrap();
    let param = ConnParam { private_data: b"", reads: 1, retries: 3, rnr_retries: 5 };
    client.connect(param).unwrap();
    let request = setup.event(CmEventKind::Request);
    assert_eq!(request.retries, [3, 5]);
    let mut server = request.request.unwrap();
    server.create_qp(&setup.attr).unwrap();
    server.set_ack_timeout(11).unwrap();
    server.accept(ConnParam { retries: 1, rnr_retries: 2, ..param }).unwrap();
    for _ in 0..2 {
        setup.event(CmEventKind::Established);
    }
    for (id, rnr_timer) in [(&client, 8), (&server, 9)] {
        id.qp().unwrap().set_rnr_timer(rnr_timer).unwrap();
    }
    let timers = [&client, &server].map(|id| id.qp().unwrap().timers().unwrap());
    let wanted = [
        Timers { ack_timeout: 10, retries: 3, rnr_retries: 2, rnr_timer: 8 },
        Timers { ack_timeout: 11, retries: 3, rnr_retries: 5, rnr_timer: 9 },
    ];
    assert_eq!(timers, wanted);
}

/// Soft-RoCE refuses reads of a region without the right to remote reads, and the initiator gets the error.
#[test]
fn a_read_that_is_not_allowed_fails_with_the_reason() {
    let Some(setup) = Setup::new() else { return };
    let (_listener, client, _server) = setup.connect();
    let from = Remote { addr: setup.memory as u64, rkey: setup.region.rkey() };
    // SAFETY: nothing else uses slot 3 until the read has ended.
    unsafe { client.qp().unwrap().read(1, &[setup.slot(3, 64)], from) }.unwrap();
    assert_eq!(setup.completion().status, Status::REMOTE_ACCESS);
}

/// One batch of every operation, whose completions are read from an extended queue.
#[test]
fn a_batch_of_built_requests_is_executed_and_reported() {
    let Some(setup) = Setup::extended() else { return };
    let (_listener, client, server) = setup.connect();
    let qp = client.qp().unwrap();
    for slot in [1, 2] {
        // SAFETY: nothing else uses the slot until the receive has ended.
        unsafe { setup.srq.post(10 + slot as u64, &[setup.slot(slot, SLOT)]) }.unwrap();
    }
    setup.fill(0, 0xA5);
    let at = |slot: usize| Remote {
        addr: (setup.memory as usize + slot * SLOT) as u64,
        rkey: setup.region.rkey(),
    };
    // The lengths are equal: soft-RoCE's driver of Debian 12 (rdma-core 44) sends the first length twice, for example
    // 20 bytes for 10 and 20; that of rdma-core 65 adds them up.
    let (whole, halves) = ([setup.slot(0, 100)], [setup.slot(0, 15), setup.slot(0, 15)]);
    // Slot 3 holds the numbers, followed by the destination of reads.
    let into = |at: usize, len| {
        let slot = setup.slot(3, len);
        [Segment { addr: slot.addr.wrapping_add(at), ..slot }]
    };
    let (old, read) = (into(512, 8), into(1024, 30));
    let quiet = Post { quiet: true, ..Post::default() };
    let mut batch = qp.requests().unwrap();
    let requests: [(u64, Payload<'_>, Work, Post); 6] = [
        (1, Payload::Inline(b"carried"), Work::Send(Some(0x0102_0304)), Post::default()),
        (2, Payload::Segments(&halves), Work::Send(None), quiet),
        (3, Payload::Segments(&whole), Work::Write(Remote { addr: at(3).addr + 2048, ..at(3) }, None), quiet),
        (4, Payload::Segments(&old), Work::FetchAdd(at(3), 7), Post::default()),
        (5, Payload::Segments(&old), Work::CompareSwap { at: at(3), expected: 7, new: 9 }, Post::default()),
        (6, Payload::Segments(&read), Work::Read(at(0)), Post { fence: true, ..Post::default() }),
    ];
    for (id, what, work, how) in requests {
        // SAFETY: nothing else uses these parts of the memory until the requests have ended.
        unsafe { batch.work(id, what, work, how) }.unwrap();
    }
    assert_eq!(setup.byte(3, 2048), 0, "nothing is posted before the batch is submitted");
    batch.submit().unwrap();
    let mut all: Vec<_> = (0..6).map(|_| setup.completion()).collect();
    all.sort_by_key(|entry| entry.id);
    let seen: Vec<_> = all.iter().map(|entry| (entry.id, entry.status, entry.opcode)).collect();
    let ended = |id, opcode| (id, Status::SUCCESS, opcode);
    let sent = [1, 4, 5, 6].map(|id| ended(id, Opcode::Request));
    assert_eq!(seen, [&sent[..], &[11, 12].map(|id| ended(id, Opcode::Receive))].concat());
    let number = server.qp().unwrap().number();
    let got = |entry: &WorkCompletion| (entry.len, entry.data, entry.qp);
    assert_eq!([&all[4], &all[5]].map(got), [(7, Some(0x0102_0304), number), (30, None, number)]);
    assert_eq!((setup.byte(1, 0), setup.byte(1, 6), setup.byte(1, 7)), (b'c', b'd', 0));
    assert_eq!((setup.byte(2, 29), setup.byte(2, 30)), (0xA5, 0));
    assert_eq!((setup.byte(3, 2048), setup.byte(3, 2147), setup.byte(3, 2148)), (0xA5, 0xA5, 0));
    assert_eq!(
        (setup.byte(3, 0), setup.byte(3, 512), setup.byte(3, 1024), setup.byte(3, 1053)),
        (9, 7, 0xA5, 0xA5)
    );
}

#[test]
fn a_batch_that_is_dropped_or_refused_posts_nothing() {
    let Some(setup) = Setup::extended() else { return };
    let (_listener, client, _server) = setup.connect();
    let qp = client.qp().unwrap();
    // SAFETY: nothing else uses slot 1 until the receive has ended.
    unsafe { setup.srq.post(7, &[setup.slot(1, SLOT)]) }.unwrap();
    let mut batch = qp.requests().unwrap();
    // SAFETY: inline data is read during the call.
    unsafe { batch.work(1, Payload::Inline(b"never"), Work::Send(None), Post::default()) }.unwrap();
    drop(batch);
    let mut batch = qp.requests().unwrap();
    // SAFETY: as above.
    unsafe { batch.work(2, Payload::Inline(&[1; 4096]), Work::Send(None), Post::default()) }.unwrap();
    assert_eq!(batch.submit().unwrap_err().call, "ibv_wr_complete", "more than the queue pair takes inline");
    let mut batch = qp.requests().unwrap();
    let many = [setup.slot(0, 1); 9];
    // SAFETY: nothing is posted.
    let error = unsafe { batch.work(3, Payload::Segments(&many), Work::Send(None), Post::default()) };
    assert_eq!(error.unwrap_err().errno, libc::EINVAL);
    // SAFETY: as above.
    unsafe { batch.work(4, Payload::Inline(b"first"), Work::Send(None), Post::default()) }.unwrap();
    batch.submit().unwrap();
    let mut both = [setup.completion(), setup.completion()];
    both.sort_by_key(|entry| entry.id);
    assert_eq!(both.map(|entry| (entry.id, entry.status)), [4, 7].map(|id| (id, Status::SUCCESS)));
    assert_eq!((setup.byte(1, 0), setup.byte(1, 4), setup.byte(1, 5)), (b'f', b't', 0));
    // A queue pair without builders reports that.
    let Some(plain) = Setup::new() else { return };
    let (_listener, client, _server) = plain.connect();
    assert_eq!(client.qp().unwrap().requests().err().expect("none").errno, libc::EOPNOTSUPP);
}

#[test]
fn a_failed_request_is_reported_by_an_extended_queue() {
    let Some(setup) = Setup::extended() else { return };
    let (_listener, client, _server) = setup.connect();
    let to = Remote { addr: setup.memory as u64 + 5 * SLOT as u64, rkey: setup.region.rkey() };
    let mut batch = client.qp().unwrap().requests().unwrap();
    let from = [setup.slot(0, 8)];
    // SAFETY: slot 0 does not change until the write has ended.
    unsafe { batch.work(1, Payload::Segments(&from), Work::Write(to, None), Post::default()) }.unwrap();
    batch.submit().unwrap();
    let entry = setup.completion();
    assert_eq!((entry.id, entry.status), (1, Status::REMOTE_ACCESS), "beyond the region");
}

/// Datagrams of a queue pair to itself: the route header precedes the payload.
#[test]
fn built_datagrams_arrive_with_their_headers() {
    let Some(setup) = Setup::extended() else { return };
    let context = setup.attr.pd.context();
    let gids = context.gids(1).unwrap();
    let gid = *gids.iter().find(|gid| gid.ip() == setup.address.ip()).expect("the address's GID");
    let gid_index = context.gid_index(1, gid).unwrap();
    let qkey = 0x1234;
    let (pd, cq) = (Arc::clone(&setup.attr.pd), Arc::clone(&setup.attr.cq));
    let qp = UdQueuePair::built(UdAttr { pd, cq, sends: 8, receives: 8, port: 1, qkey }, 64).unwrap();
    let way = Way { gid: Some(gid), gid_index, hops: 64, lid: 0, port: 1 };
    let handle = AddressHandle::along(&setup.attr.pd, way).unwrap();
    for slot in [1, 2] {
        // SAFETY: nothing else uses the slot until the receive has ended.
        unsafe { qp.receive(10 + slot as u64, setup.slot(slot, SLOT)) }.unwrap();
    }
    setup.fill(0, 0x5A);
    let to = UdPeer { handle: &handle, qp: qp.number(), qkey };
    let mut batch = qp.requests().unwrap();
    let whole = [setup.slot(0, 500)];
    // SAFETY: inline data is read during the call, and slot 0 does not change until the sends have ended.
    unsafe { batch.send(1, Payload::Inline(b"hello"), to, Some(77)) }.unwrap();
    // SAFETY: as above.
    unsafe { batch.send(2, Payload::Segments(&whole), to, None) }.unwrap();
    batch.submit().unwrap();
    let mut all: Vec<_> = (0..4).map(|_| setup.completion()).collect();
    all.sort_by_key(|entry| entry.id);
    assert!(all.iter().all(|entry| entry.status == Status::SUCCESS), "{all:?}");
    assert_eq!(all.iter().map(|entry| entry.id).collect::<Vec<_>>(), [1, 2, 11, 12]);
    let got =
        |entry: &WorkCompletion| (entry.opcode, entry.len, entry.data, entry.source_qp, entry.has_route);
    assert_eq!(got(&all[2]), (Opcode::Receive, GRH + 5, Some(77), qp.number(), true));
    assert_eq!(got(&all[3]), (Opcode::Receive, GRH + 500, None, qp.number(), true));
    assert_eq!((setup.byte(1, GRH), setup.byte(1, GRH + 4), setup.byte(2, GRH + 499)), (b'h', b'o', 0x5A));
}

/// The same through an extended queue.
#[test]
fn an_armed_extended_queue_makes_its_channel_readable() {
    let Some(setup) = Setup::extended() else { return };
    armed(&setup);
}

#[test]
fn an_armed_queue_makes_its_channel_readable() {
    let Some(setup) = Setup::new() else { return };
    armed(&setup);
}

fn armed(setup: &Setup) {
    let (_listener, client, _server) = setup.connect();
    // SAFETY: nothing else uses slot 1 until the receive has ended.
    unsafe { setup.srq.post(7, &[setup.slot(1, SLOT)]) }.unwrap();
    let channel = CompletionChannel::new(setup.attr.pd.context()).unwrap();
    let cq = CompletionQueue::new(&channel, 8).unwrap();
    cq.arm().unwrap();
    cq.quiet(); // no event is queued, and this does not wait
    setup.attr.cq.arm().unwrap();
    // SAFETY: slot 0 does not change until the send has ended.
    unsafe { client.qp().unwrap().send(8, &[setup.slot(0, 8)], Post::default()) }.unwrap();
    let both = [setup.completion(), setup.completion()];
    assert!(both.iter().all(|entry| entry.status == Status::SUCCESS));
    setup.attr.cq.quiet();
}

/// A window gives a peer access to part of a region, with the window's rights, until it is invalidated or
/// closed.
#[test]
fn a_window_gives_access_to_its_part_until_it_is_withdrawn() {
    for kind in [WindowKind::Call, WindowKind::Request] {
        let Some(setup) = Setup::new() else { return };
        let (_listener, client, server) = setup.connect();
        let (owner, peer) = (server.qp().unwrap(), client.qp().unwrap());
        // SAFETY: leaked memory, which is only accessed by raw pointers.
        let region = unsafe { MemoryRegion::for_windows(&setup.attr.pd, setup.memory, 4 * SLOT) };
        let region = Arc::new(region.unwrap());
        let mut window = MemoryWindow::new(&setup.attr.pd, kind).unwrap();
        let addr = setup.memory.wrapping_add(2 * SLOT);
        let part = Part { region: &region, addr, len: 64, access: Access::RemoteReadWrite };
        let rkey = window.bind(owner, 1, part, Post::default()).unwrap();
        assert_eq!((setup.completion().status, rkey), (Status::SUCCESS, window.rkey()));
        setup.fill(0, 7);
        let at = |offset: u64, rkey| Remote { addr: addr as u64 + offset, rkey };
        // SAFETY: slot 0 does not change until the write has ended.
        unsafe { peer.write(2, &[setup.slot(0, 32)], at(32, rkey), Post::default()) }.unwrap();
        assert_eq!(setup.completion().status, Status::SUCCESS, "{kind:?}");
        assert_eq!((setup.byte(2, 31), setup.byte(2, 32), setup.byte(2, 63)), (0, 7, 7));
        // The window keeps the region alive after its last other reference is dropped.
        drop(region);
        // SAFETY: nothing else uses slot 1 until the read has ended.
        unsafe { peer.read(3, &[setup.slot(1, 64)], at(0, rkey)) }.unwrap();
        assert_eq!((setup.completion().status, setup.byte(1, 63)), (Status::SUCCESS, 7));
        match kind {
            WindowKind::Request => {
                owner.invalidate(4, rkey, Post::default()).unwrap();
                assert_eq!(setup.completion().status, Status::SUCCESS);
            }
            WindowKind::Call => drop(window),
        }
        // SAFETY: nothing else uses slot 1 until the read has ended.
        unsafe { peer.read(5, &[setup.slot(1, 64)], at(0, rkey)) }.unwrap();
        assert_eq!(setup.completion().status, Status::REMOTE_ACCESS, "{kind:?}: the key is withdrawn");
    }
}

/// Soft-RoCE of Linux 6.1 compares an access with the window's rights, and with the bounds of the whole region instead
/// of those of the window.
#[test]
fn a_window_gives_no_other_rights_and_does_not_bind_what_it_may_not() {
    let Some(setup) = Setup::new() else { return };
    let (_listener, client, server) = setup.connect();
    // SAFETY: leaked memory, which is only accessed by raw pointers.
    let region = unsafe { MemoryRegion::for_windows(&setup.attr.pd, setup.memory, 4 * SLOT) };
    let region = Arc::new(region.unwrap());
    let mut window = MemoryWindow::new(&setup.attr.pd, WindowKind::Request).unwrap();
    let part = Part { region: &region, addr: setup.memory, len: 64, access: Access::RemoteRead };
    let rkey = window.bind(server.qp().unwrap(), 1, part, Post::default()).unwrap();
    assert_eq!(setup.completion().status, Status::SUCCESS);
    let to = Remote { addr: setup.memory as u64, rkey };
    // SAFETY: nothing else uses slot 1 until the write has ended.
    unsafe { client.qp().unwrap().write(2, &[setup.slot(1, 8)], to, Post::default()) }.unwrap();
    assert_eq!(setup.completion().status, Status::REMOTE_ACCESS, "a write through a window for reads");
    drop((window, client, server));

    let (_listener, _client, server) = setup.connect();
    let mut window = MemoryWindow::new(&setup.attr.pd, WindowKind::Request).unwrap();
    let outside = Part { len: 5 * SLOT, ..part };
    window.bind(server.qp().unwrap(), 3, outside, Post::default()).unwrap();
    assert_eq!(setup.completion().status, Status::BIND, "a part larger than the region");
    let other = ProtectionDomain::new(setup.attr.pd.context()).unwrap();
    let mut stranger = MemoryWindow::new(&other, WindowKind::Request).unwrap();
    let error = stranger.bind(server.qp().unwrap(), 4, part, Post::default()).unwrap_err();
    assert_eq!((error.call, error.errno), ("ibv_bind_mw", libc::EXDEV));
    drop((window, stranger));
}

/// Soft-RoCE does not support dma-bufs: the error says so, with advice. On devices that do, the call fails
/// because this descriptor is not a dma-buf.
#[test]
fn a_device_without_dma_buf_says_what_to_do() {
    let Some(setup) = Setup::new() else { return };
    let file = std::fs::File::open("/dev/null").unwrap();
    let made = MemoryRegion::of_dmabuf(&setup.attr.pd, (file.as_fd(), 0), 4096, 0, Access::RemoteReadWrite);
    let error = made.err().expect("no dma-buf");
    let text = error.to_string();
    match error.errno {
        libc::EOPNOTSUPP => assert!(text.contains("register host memory"), "{text}"),
        libc::ENOSYS => assert!(text.contains("rdma-core 34"), "{text}"),
        _ => assert!(text.contains("must be of a dma-buf"), "{text}"),
    }
}

/// The next event of one of these queues.
fn next_of(events: &AsyncEvents, queues: &[usize]) -> AsyncEvent {
    let end = Instant::now() + LONG;
    while Instant::now() < end {
        match events.next().unwrap() {
            Some(event @ (AsyncEvent::SharedLimit(queue) | AsyncEvent::QueueError(queue)))
                if queues.contains(&queue) =>
            {
                return event;
            }
            Some(_) => {}
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    panic!("no event");
}

#[test]
fn everyone_who_watches_a_device_hears_of_its_queues() {
    let Some(mut setup) = Setup::new() else { return };
    let context = setup.attr.pd.context();
    let small = CompletionQueue::new(&CompletionChannel::new(context).unwrap(), 1).unwrap();
    setup.attr.cq = Arc::clone(&small);
    let (_listener, client, _server) = setup.connect();
    let watchers = [(); 2].map(|()| AsyncEvents::new(context).unwrap());
    for slot in [1, 2] {
        // SAFETY: nothing else uses the slot until the receive has ended.
        unsafe { setup.srq.post(slot as u64, &[setup.slot(slot, SLOT)]) }.unwrap();
    }
    setup.srq.alert_below(2).unwrap();
    // Two sends and their receives, but the queue holds only one completion.
    for id in [8, 9] {
        // SAFETY: slot 0 does not change until the sends have ended.
        unsafe { client.qp().unwrap().send(id, &[setup.slot(0, 8)], Post::default()) }.unwrap();
    }
    let queues = [setup.srq.number(), small.number()];
    for events in &watchers {
        let mut both = [next_of(events, &queues), next_of(events, &queues)];
        both.sort_by_key(|event| matches!(event, AsyncEvent::QueueError(_)));
        assert_eq!(both, [AsyncEvent::SharedLimit(queues[0]), AsyncEvent::QueueError(queues[1])]);
        assert_eq!(events.lost(), 0);
    }
    assert!(setup.srq.alert_below(1 << 20).is_err(), "more than the queue holds");
}

#[test]
fn an_address_without_a_device_is_an_error_with_advice() {
    let Some(setup) = Setup::new() else { return };
    let id = CmId::new(&setup.channel).unwrap();
    let error = id.bind("192.0.2.1:0".parse().unwrap()).unwrap_err();
    assert!(error.to_string().starts_with("rdma_bind_addr: "), "{error}");
    let nobody = CmId::new(&setup.channel).unwrap();
    let mut to = setup.address;
    to.set_port(1);
    nobody.resolve_address(None, to, LONG).unwrap();
    setup.event(CmEventKind::AddressResolved);
}

#[test]
fn a_device_says_what_it_is() {
    let Some((context, address)) = device() else { return };
    let (info, port) = (context.query().unwrap(), context.port(1).unwrap());
    assert!(info.ports >= 1 && info.max_queue > 0 && info.max_shared > 0 && info.max_pieces > 0, "{info:?}");
    assert!(port.active && port.max_message > 0 && port.mtu >= 256, "{port:?}");
    assert!(context.gids(1).unwrap().iter().any(|gid| gid.ip() == address.ip()));
    assert!(context.port(200).is_err());
    println!("{}: {info:?}, {port:?}", context.name());
}

/// Mapped files, such as a model's weights, are often read-only.
#[test]
fn memory_that_cannot_be_written_is_registered_for_reading() {
    let Some((context, _)) = device() else { return };
    let pd = ProtectionDomain::new(context).unwrap();
    let (access, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), SLOT, access, flags, -1, 0) };
    assert_ne!(page, libc::MAP_FAILED);
    // SAFETY: the page stays mapped, and nothing writes to it.
    let region = unsafe { MemoryRegion::new(&pd, page.cast(), SLOT, Access::Local) };
    assert!(region.is_ok(), "{:?}", region.err());
    // SAFETY: as above.
    let written = unsafe { MemoryRegion::new(&pd, page.cast(), SLOT, Access::RemoteWrite) };
    assert_eq!(written.err().map(|error| error.errno), Some(libc::EFAULT));
}
