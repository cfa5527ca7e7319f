//! Device memory through the raw interface (`FI_HMEM`), over every provider that copies it. The processor cannot touch
//! the emulator's memory, so a forgotten copy ends a test with `SIGSEGV`.

mod support;

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, LazyLock, Once};

use ofi_core::hmem::cuda::Cuda;
use ofi_testkit::prelude::*;
use ofi_testkit::{rc, srd};
use support::{is_inside, without_driver};

/// Lengths around the limits at which transports switch protocols.
const LENGTHS: [usize; 8] = [1, 64, 4096, 4097, 16_385, 70_000, 300_007, (3 << 20) + 5];
const RIGHTS: MrAccess = MrAccess::all();
const CAPS: Caps = Caps::MSG.union(Caps::TAGGED).union(Caps::RMA).union(Caps::HMEM);
const MODES: MrMode = MrMode::VIRT_ADDR.union(MrMode::PROV_KEY).union(MrMode::ALLOCATED).union(MrMode::HMEM);

/// Loads the emulator as this process's `libcuda.so.1`, whatever driver the host has.
fn load() -> Cuda {
    static LOADED: Once = Once::new();
    LOADED.call_once(|| {
        let path = std::ffi::CString::new(support::emulator().as_os_str().as_bytes()).unwrap();
        // SAFETY: a path that ends with a zero; the library has no initialiser that demands anything.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        assert!(!library.is_null(), "the emulator is a library");
    });
    Cuda::open(0).unwrap()
}

/// A way of moving bytes.
#[derive(Clone, Copy, Debug)]
struct Way {
    provider: &'static str,
    ep_type: EpType,
    shared_memory: bool,
}

/// Every way that copies memory of devices.
const WAYS: [Way; 10] = [
    Way { provider: "shm", ep_type: EpType::Rdm, shared_memory: true },
    Way { provider: "shm", ep_type: EpType::Msg, shared_memory: true },
    Way { provider: "udp", ep_type: EpType::Rdm, shared_memory: true },
    Way { provider: "udp", ep_type: EpType::Rdm, shared_memory: false },
    Way { provider: "udp", ep_type: EpType::Msg, shared_memory: false },
    Way { provider: "tcp", ep_type: EpType::Rdm, shared_memory: false },
    Way { provider: "tcp", ep_type: EpType::Msg, shared_memory: false },
    Way { provider: "efa", ep_type: EpType::Rdm, shared_memory: true },
    EFA,
    Way { provider: "verbs", ep_type: EpType::Rdm, shared_memory: false },
];
/// Every byte goes over the simulated device.
const EFA: Way = Way { provider: "efa", ep_type: EpType::Rdm, shared_memory: false };
/// The simulated EFA device.
static NIC: LazyLock<Arc<srd::SimulatedDevice>> = LazyLock::new(|| {
    let device = srd::SimulatedDevice::new("hmem0", srd::Plan::default());
    ofi_efa::srd::add(Arc::new(srd::Handle(Arc::clone(&device))));
    let _ = ofi::register_provider(Arc::new(ofi_efa::EfaProvider)); // refused if it is there
    device
});

/// The simulated RDMA device.
fn rdma_device() -> &'static str {
    static ADDED: Once = Once::new();
    ADDED.call_once(|| {
        let device = rc::SimulatedDevice::new("hmem1", rc::Plan::default());
        ofi_verbs::rc::add(Arc::new(rc::Handle(device)));
        let _ = ofi::register_provider(Arc::new(ofi_verbs::VerbsProvider)); // as above
    });
    "hmem1"
}

impl Way {
    fn hints(self) -> Hints {
        let hints = Hints::new().provider(self.provider).ep_type(self.ep_type).caps(CAPS).mr_mode(MODES);
        match self.provider {
            "shm" => hints,
            "efa" => {
                LazyLock::force(&NIC);
                hints.domain("hmem0-rdm")
            }
            "verbs" => hints.addr_format(AddrFormat::SockaddrIn).domain(rdma_device()),
            _ => hints.src_addr(Address::from(std::net::SocketAddr::from(([127, 0, 0, 1], 0)))),
        }
    }

    fn opening(self) -> Opening {
        let opening = Opening::new(self.hints());
        if self.shared_memory { opening } else { opening.without_shared_memory() }
    }

    fn pair(self) -> Pair {
        self.pair_with(|opening| opening)
    }

    fn pair_with(self, change: impl Fn(Opening) -> Opening) -> Pair {
        Pair::of(change(self.opening()).open(), change(self.opening()).open())
    }
}

/// Memory of one kind, registered with a side.
fn memory(side: &TestEndpoint, cuda: Option<&Cuda>, len: usize) -> (Memory, Arc<dyn MemoryRegion>) {
    let memory = cuda.map_or_else(|| Memory::new(len), |cuda| Memory::device(cuda, len));
    let region = side.register(&memory, RIGHTS).unwrap();
    (memory, region)
}

/// Every pair of kinds with a device in it.
fn kinds(cuda: &Cuda) -> [(Option<&Cuda>, Option<&Cuda>); 3] {
    [(Some(cuda), None), (None, Some(cuda)), (Some(cuda), Some(cuda))]
}

#[test]
fn messages_leave_and_reach_devices() {
    let cuda = load();
    for way in WAYS {
        let pair = way.pair();
        for (from, into) in kinds(&cuda) {
            for (nth, len) in LENGTHS.into_iter().enumerate() {
                let (source, _sent) = memory(&pair.a, from, len);
                let (target, _received) = memory(&pair.b, into, len + 8);
                source.fill(nth as u8);
                for (tag, early) in [(None, true), (Some(7), true), (None, false), (Some(8), false)] {
                    target.slice(..).put(&vec![0; len + 8]);
                    let receive = || {
                        let receive = pair.b.receive(target.slice(4..)).context(1);
                        pair.post(|| tag.map_or(receive.clone(), |tag| receive.clone().tag(tag)).post());
                    };
                    let send = || {
                        let out = pair.a.out(pair.to_b, &source).context(2);
                        tag.map_or(out.clone(), |tag| out.clone().tag(tag)).send()
                    };
                    if early {
                        receive();
                        pair.post(send);
                    } else {
                        pair.keep(send);
                        receive();
                    }
                    let done = pair.done(&pair.b);
                    assert_eq!((done.op_context, done.len), (Context(1), len), "{way:?}");
                    assert_eq!(pair.done(&pair.a).op_context, Context(2), "{way:?}");
                    target.slice(4..4 + len).check(nth as u8);
                    let bytes = target.bytes();
                    assert!(bytes[..4].iter().chain(&bytes[4 + len..]).all(|&byte| byte == 0), "{way:?}");
                }
            }
        }
    }
}

#[test]
fn accesses_move_between_devices() {
    let cuda = load();
    for way in WAYS {
        let pair = way.pair();
        for (ours, theirs) in kinds(&cuda) {
            for (nth, len) in LENGTHS.into_iter().enumerate() {
                let (local, _local) = memory(&pair.a, ours, len);
                let (target, region) = memory(&pair.b, theirs, len + 32);
                let there = [remote_at(&region, 16, len)];
                local.fill(nth as u8);
                for flags in [OpFlags::COMPLETION, OpFlags::COMPLETION | OpFlags::DELIVERY_COMPLETE] {
                    target.slice(..).put(&vec![0; len + 32]);
                    pair.post(|| pair.a.out(pair.to_b, &local).context(3).msg(flags).write(&there));
                    assert_eq!(pair.done(&pair.a).op_context, Context(3), "{way:?}");
                    target.slice(16..16 + len).check(nth as u8);
                    let bytes = target.bytes();
                    assert!(bytes[..16].iter().chain(&bytes[16 + len..]).all(|&byte| byte == 0), "{way:?}");
                }
                pair.post(|| pair.a.out(pair.to_b, &local).context(4).data(99).write(&there));
                assert_eq!(pair.done(&pair.a).op_context, Context(4), "{way:?}");
                let told = pair.done(&pair.b);
                assert_eq!(told.data, 99);
                assert!(told.flags.contains(CompletionFlags::REMOTE_CQ_DATA), "{way:?}");
                local.slice(..).put(&vec![0; len]);
                pair.post(|| pair.a.out(pair.to_b, &local).context(5).read(&there));
                assert_eq!(pair.done(&pair.a).op_context, Context(5), "{way:?}");
                local.check(len, nth as u8);
                region.close().unwrap();
            }
        }
    }
}

#[test]
fn many_accesses_under_way_keep_apart() {
    const EACH: usize = 9_001;
    const COUNT: usize = 48;
    let cuda = load();
    for way in WAYS {
        let pair = way.pair();
        let (local, _local) = memory(&pair.a, Some(&cuda), EACH * COUNT);
        let (target, region) = memory(&pair.b, Some(&cuda), EACH * COUNT);
        local.fill(3);
        let place = |nth: usize| EACH * nth..EACH * (nth + 1);
        for nth in 0..COUNT {
            let there = [remote_at(&region, EACH * nth, EACH)];
            pair.post(|| pair.a.out(pair.to_b, local.slice(place(nth))).context(6).write(&there));
        }
        pair.all_done(&pair.a, 6, COUNT);
        target.check(EACH * COUNT, 3);
        local.slice(..).put(&vec![0; EACH * COUNT]);
        for nth in 0..COUNT {
            let there = [remote_at(&region, EACH * nth, EACH)];
            pair.post(|| pair.a.out(pair.to_b, local.slice(place(nth))).context(7).read(&there));
        }
        pair.all_done(&pair.a, 7, COUNT);
        local.check(EACH * COUNT, 3);
    }
}

#[test]
fn pieces_of_host_and_device_are_one_message() {
    const LEN: usize = 40_000;
    let cuda = load();
    for way in WAYS {
        let pair = way.pair();
        let (device, _sent) = memory(&pair.a, Some(&cuda), LEN);
        let (host, _) = memory(&pair.a, None, 100);
        let (target, _received) = memory(&pair.b, Some(&cuda), LEN);
        let (head, _) = memory(&pair.b, None, 60);
        host.fill(1);
        device.fill(2);
        pair.post(|| pair.b.receive(vec![head.slice(..), target.slice(..)]).context(1).post());
        let pieces = vec![host.slice(..), device.slice(..LEN - 40)];
        pair.post(|| pair.a.out(pair.to_b, pieces.clone()).context(2).send());
        assert_eq!(pair.done(&pair.b).len, LEN + 60);
        pair.done(&pair.a);
        head.check(60, 1);
        target.slice(..40).check_from(1, 60);
        target.slice(40..).check(2);
    }
}

/// The buffer of an injected message or write may be overwritten at once.
#[test]
fn injected_messages_leave_devices() {
    let cuda = load();
    for way in WAYS {
        let pair = way.pair();
        let (source, region) = memory(&pair.a, Some(&cuda), 512);
        let (target, there) = memory(&pair.b, Some(&cuda), 512);
        source.fill(5);
        pair.post(|| pair.b.receive(&target).context(1).post());
        pair.post(|| pair.a.out(pair.to_b, &source).inject().send());
        source.slice(..).put(&[0; 512]);
        assert_eq!(pair.done(&pair.b).len, 512, "{way:?}");
        target.check(512, 5);
        source.fill(6);
        pair.post(|| pair.a.out(pair.to_b, &source).inject().data(1).write(&[remote(&there)]));
        source.slice(..).put(&[0; 512]);
        assert_eq!(pair.done(&pair.b).data, 1, "{way:?}");
        target.check(512, 6);
        region.close().unwrap();
    }
}

/// The processor would have to copy the payload when the operation is submitted. Others are copied when they start.
#[test]
fn triggered_injects_of_devices_are_refused() {
    let cuda = load();
    for way in WAYS {
        let pair = way.pair_with(|opening| opening.hints(|hints| hints.caps(CAPS | Caps::TRIGGER)));
        let attr = CntrAttr { wait_obj: WaitObj::Unspec, ..CntrAttr::default() };
        let counter = pair.a.domain.open_counter(&attr).unwrap();
        let (source, _sent) = memory(&pair.a, Some(&cuda), 64);
        let (target, region) = memory(&pair.b, Some(&cuda), 64);
        source.fill(5);
        let (piece, there) = ([source.slice(..).piece()], [remote(&region)]);
        // SAFETY: the memory lives until the operations have ended.
        let buf = unsafe { Lent::new(&piece, &[]) };
        let trigger = |op: &DeferredOp<'_>| pair.a.ep.trigger(&Threshold { counter: &counter, value: 1 }, op);
        let send = SendOp::new(buf, pair.to_b, Context(1));
        let (peer, context, flags) = (pair.to_b, Context(2), OpFlags::empty());
        let write = RmaOp { buf, remote: &there, peer, context, data: 0, flags, call: Call::Plain };
        let injected = [
            DeferredOp::Send(SendOp { call: Call::Inject, ..send }),
            DeferredOp::SendTagged(SendOp { flags: OpFlags::INJECT, call: Call::Msg, ..send }, 3),
            DeferredOp::Write(RmaOp { call: Call::Inject, ..write }),
        ];
        for op in &injected {
            assert_eq!(trigger(op).unwrap_err().errno(), Errno::EOPNOTSUPP, "{way:?}");
        }
        trigger(&DeferredOp::Write(write)).unwrap();
        source.fill(6);
        counter.add(1).unwrap();
        assert_eq!(pair.done(&pair.a).op_context, Context(2), "{way:?}");
        target.check(64, 6);
        region.close().unwrap();
    }
}

#[test]
fn a_message_longer_than_its_receive_is_cut_in_the_device() {
    let cuda = load();
    for way in WAYS {
        let pair = way.pair();
        for len in [100, 100_000] {
            let (source, _sent) = memory(&pair.a, Some(&cuda), len);
            let (target, _received) = memory(&pair.b, Some(&cuda), len);
            source.fill(9);
            pair.post(|| pair.b.receive(target.slice(..len - 30)).context(1).post());
            pair.post(|| pair.a.out(pair.to_b, &source).context(2).send());
            let error = pair.failed(&pair.b);
            assert_eq!((error.err, error.len, error.olen), (Errno::ETRUNC, len - 30, 30), "{way:?}");
            pair.done(&pair.a);
            target.slice(..len - 30).check(9);
            assert!(target.bytes()[len - 30..].iter().all(|&byte| byte == 0), "{way:?}");
        }
    }
}

/// After a receive and a read that fail midway, later operations use the device as before.
#[test]
fn what_a_closed_peer_leaves_unfinished_disturbs_nothing() {
    const LEN: usize = 24 << 20;
    let cuda = load();
    for way in WAYS.into_iter().filter(|way| way.ep_type == EpType::Rdm) {
        for (polls, reads) in [(3, false), (30, false), (3, true), (30, true)] {
            let Pair { a, b, to_a, to_b } = way.pair();
            let (source, region) = memory(&a, Some(&cuda), LEN);
            let (target, _received) = memory(&b, Some(&cuda), LEN);
            source.fill(1);
            wait::drive(&[&a, &b], "room", || match reads {
                true => b.out(to_a, &target).context(1).read(&[remote(&region)]).ok(),
                false => {
                    let posted = a.out(to_b, &source).context(9).send().ok();
                    posted.map(|()| b.receive(&target).context(1).post().unwrap())
                }
            });
            for _ in 0..polls {
                a.poll();
                b.poll();
            }
            drop(region);
            drop(a);
            let _ = b.cancel(1); // a receive that has no message yet
            if let Event::Done(entry, _) = wait::drive(&[&b], "its end", || b.next_of(1)) {
                assert_eq!(entry.op_context, Context(1));
                target.check(LEN, 1);
            }
            let pair = Pair::of(way.opening().open(), b);
            let (again, _sent) = memory(&pair.a, Some(&cuda), LEN);
            again.fill(2);
            pair.post(|| pair.b.receive(&target).context(2).tag(5).post());
            pair.post(|| pair.a.out(pair.to_b, &again).context(3).tag(5).send());
            assert_eq!(pair.drive("a message", || pair.b.next_of(2)).done().len, LEN, "{way:?}");
            target.check(LEN, 2);
        }
    }
}

#[test]
fn waiting_receives_are_cancelled() {
    let cuda = load();
    for way in WAYS {
        let pair = way.pair();
        let (target, region) = memory(&pair.b, Some(&cuda), 100);
        pair.post(|| pair.b.receive(&target).context(1).post());
        pair.b.cancel(1).unwrap();
        assert_eq!(pair.failed(&pair.b).err, Errno::ECANCELED, "{way:?}");
        region.close().unwrap();
        drop(pair); // with nothing outstanding
    }
}

/// The processor would have to calculate with memory that it cannot touch.
#[test]
fn atomics_on_devices_are_refused_at_both_ends() {
    let cuda = load();
    let _ = ofi::config::list();
    for way in WAYS.into_iter().filter(|way| way.ep_type == EpType::Rdm && way.provider != "tcp") {
        let pair = way.pair_with(|opening| opening.hints(|hints| hints.caps(CAPS | Caps::ATOMIC)));
        let (local, _local) = memory(&pair.a, Some(&cuda), 8);
        let (plain, _plain) = memory(&pair.a, None, 8);
        let (target, region) = memory(&pair.b, Some(&cuda), 8);
        let add = |from: &Memory| {
            pair.a.out(pair.to_b, from).context(1).atomic(FiOp::Sum, Datatype::Uint64, &[remote(&region)])
        };
        assert_eq!(add(&local).unwrap_err().errno(), Errno::EOPNOTSUPP, "{way:?}");
        pair.post(|| add(&plain));
        assert_eq!(pair.failed(&pair.a).err, Errno::EOPNOTSUPP, "{way:?}");
        assert_eq!(target.bytes(), [0; 8]);
        // The two still understand each other.
        pair.post(|| pair.a.out(pair.to_b, &local).context(2).write(&[remote(&region)]));
        pair.done(&pair.a);
    }
}

#[test]
fn bounds_and_rights_hold_for_devices() {
    let cuda = load();
    for way in WAYS.into_iter().filter(|way| way.provider != "tcp") {
        let pair = way.pair();
        let (local, _local) = memory(&pair.a, Some(&cuda), 1000);
        let target = Memory::device(&cuda, 1000);
        let region = pair.b.register(&target, MrAccess::REMOTE_READ).unwrap();
        local.fill(1);
        for len in [100, 1000] {
            let there = [remote_at(&region, 0, len)];
            pair.post(|| pair.a.out(pair.to_b, local.slice(..len)).context(1).write(&there));
            assert_eq!(pair.failed(&pair.a).err, Errno::EACCES, "{way:?}");
        }
        let beyond = [remote_at(&region, 500, 501)];
        pair.post(|| pair.a.out(pair.to_b, local.slice(..501)).context(1).read(&beyond));
        assert_eq!(pair.failed(&pair.a).err, Errno::EACCES, "{way:?}");
        assert!(target.bytes().iter().all(|&byte| byte == 0));
        let there = [remote(&region)];
        region.close().unwrap();
        pair.post(|| pair.a.out(pair.to_b, &local).context(1).read(&there));
        assert_eq!(pair.failed(&pair.a).err, Errno::EKEYREJECTED, "{way:?}");
    }
}

#[test]
fn what_cannot_be_registered_is_refused() {
    let cuda = load();
    for way in WAYS {
        let side = way.opening().open();
        let device = Memory::device(&cuda, 4096);
        let host = Memory::new(4096);
        let register = |memory: &Memory, len: usize, iface: HmemIface, device: u64| {
            let pieces = [Piece::new(memory.as_ptr(), len)];
            // SAFETY: the memory outlives the registration, which has no remote rights.
            let mut attr = unsafe { MrAttr::new(&pieces, MrAccess::SEND) };
            (attr.iface, attr.device) = (iface, device);
            side.domain.register(&attr).map(drop).map_err(|error| error.errno())
        };
        assert_eq!(register(&device, 4096, HmemIface::Cuda, 0), Ok(()));
        assert_eq!(register(&device, 4097, HmemIface::Cuda, 0), Err(Errno::EINVAL), "beyond its end");
        assert_eq!(register(&host, 4096, HmemIface::Cuda, 0), Err(Errno::EINVAL), "of the host");
        assert_eq!(register(&host, 4096, HmemIface::System, 9), Ok(()), "no device is looked at");
        assert_eq!(register(&device, 4096, HmemIface::Cuda, 7), Err(Errno::ENODEV), "no such device");
        for other in [HmemIface::Rocr, HmemIface::Ze, HmemIface::Neuron, HmemIface::Synapseai] {
            assert_eq!(register(&device, 4096, other, 0), Err(Errno::ENOSYS), "{other}");
        }
        let multi = side.receive(&device).msg(OpFlags::MULTI_RECV).post();
        assert!(multi.is_ok(), "memory that is not registered is taken for the host's");
        let _region = side.register(&device, RIGHTS).unwrap();
        let multi = side.receive(&device).msg(OpFlags::MULTI_RECV).post();
        assert_eq!(multi.unwrap_err().errno(), Errno::EOPNOTSUPP);
    }
}

#[test]
fn options_say_that_copies_are_made() {
    load();
    for way in WAYS {
        let side = way.opening().open();
        assert_eq!(side.ep.option(EpOption::HmemP2p).unwrap(), 0);
        for (value, wanted) in
            [(0, None), (1, Some(Errno::EOPNOTSUPP)), (2, None), (3, None), (4, Some(Errno::EINVAL))]
        {
            let set = side.ep.set_option(EpOption::HmemP2p, value);
            assert_eq!(set.err().map(|error| error.errno()), wanted, "{way:?}, {value}");
        }
        assert_eq!(side.ep.option(EpOption::HmemP2p).unwrap(), 3);
        side.ep.set_option(EpOption::CudaApiPermitted, 1).unwrap();
        assert_eq!(side.ep.option(EpOption::CudaApiPermitted).unwrap(), 1);
        let forbidden = side.ep.set_option(EpOption::CudaApiPermitted, 0);
        assert_eq!(forbidden.unwrap_err().errno(), Errno::EOPNOTSUPP);
    }
}

#[test]
fn the_capability_is_granted_only_as_it_works() {
    load();
    for way in WAYS {
        let ask_as = |version: Version, hints: &Hints| {
            let request = Request {
                version,
                node: None,
                service: None,
                flags: GetinfoFlags::empty(),
                hints: Some(hints),
            };
            ofi::explain(&request).unwrap()
        };
        let ask = |hints: &Hints| ask_as(Version::API, hints);
        let granted = ask(&way.hints()).infos;
        assert!(granted.iter().all(|info| info.caps.contains(Caps::HMEM)), "{way:?}");
        assert!(granted.iter().all(|info| info.domain_attr.mr_mode.contains(MrMode::HMEM)), "{way:?}");
        assert!(!granted.is_empty(), "{way:?}");
        let unregistered = ask(&way.hints().mr_mode(MODES - MrMode::HMEM));
        assert!(unregistered.infos.is_empty(), "{way:?}: local buffers have to be registered");
        assert!(unregistered.refusals.iter().any(|refusal| refusal.offered.contains("FI_MR_HMEM")));
        let early = ask_as(Version::new(1, 9), &way.hints());
        assert!(early.infos.is_empty(), "{way:?}: fi_mr_attr had no iface yet");
        assert!(early.refusals.iter().any(|refusal| refusal.offered.contains("1.10")), "{early:?}");
        assert!(!ask_as(Version::new(1, 10), &way.hints()).infos.is_empty(), "{way:?}");
        // Unasked, it is not granted: it would cost every operation a look-up.
        let unasked = ask(&way.hints().caps(CAPS - Caps::HMEM)).infos;
        assert!(!unasked.is_empty());
        assert!(unasked.iter().all(|info| !info.caps.contains(Caps::HMEM)));
        assert!(unasked.iter().all(|info| !info.domain_attr.mr_mode.contains(MrMode::HMEM)));
    }
}

#[test]
fn a_domain_without_the_capability_takes_no_device() {
    let cuda = load();
    for way in WAYS {
        let side = way.opening().hints(|hints| hints.caps(CAPS - Caps::HMEM)).open();
        let refused = side.register(&Memory::device(&cuda, 64), RIGHTS).map(drop);
        assert_eq!(refused.unwrap_err().errno(), Errno::ENOSYS, "{way:?}");
        assert_eq!(side.ep.option(EpOption::HmemP2p).unwrap(), 3);
    }
}

#[test]
fn without_a_driver_the_refusal_says_so() {
    if std::env::var_os(support::INSIDE).is_none() {
        return without_driver("without_a_driver_the_refusal_says_so");
    }
    for way in WAYS {
        let hints = way.hints();
        let request = Request {
            version: Version::API,
            node: None,
            service: None,
            flags: GetinfoFlags::empty(),
            hints: Some(&hints),
        };
        let offers = ofi::explain(&request).unwrap();
        assert!(offers.infos.is_empty());
        let of_it = |refusal: &&Refusal| refusal.provider == way.provider && refusal.wanted == "FI_HMEM";
        let reason = offers.refusals.iter().find(of_it).unwrap_or_else(|| panic!("{:?}", offers.refusals));
        assert!(reason.offered.contains("libcuda.so.1"), "{reason:?}");
    }
}

#[test]
fn pinned_memory_is_used_again() {
    let stager = Arc::new(ofi_core::hmem::Stager::new(load()));
    let one = stager.buffer(300_000);
    let at = one.as_ptr();
    drop(one);
    let (again, other) = (stager.buffer(5), stager.buffer(5));
    assert_eq!(again.as_ptr(), at, "longer than needed, but there");
    assert_ne!(other.as_ptr(), at);
    drop((again, other));
    let (short, long) = (stager.buffer(5), stager.buffer(300_000));
    assert_eq!(long.as_ptr(), at, "the shortest one that is long enough is lent");
    assert_ne!(short.as_ptr(), at);
    // Beyond the limit of pinned memory, buffers are ordinary memory.
    let many: Vec<_> = (0..6).map(|_| stager.buffer((16 << 20) - 3)).collect();
    assert!(many.iter().all(|buffer| buffer.len() == (16 << 20) - 3 && !buffer.as_ptr().is_null()));
}

/// A copy that the driver refuses fails its operation, and nothing else.
#[test]
fn a_failed_copy_ends_its_operation() {
    let settings = [("CUDA_EMULATOR_FAIL", "cuMemAllocHost_v2:2")];
    if !is_inside("a_failed_copy_ends_its_operation", &settings) {
        return;
    }
    // First: without pinned memory all copies go through ordinary memory.
    let cuda = Cuda::open(0).unwrap();
    for way in WAYS {
        let pair = way.pair();
        let (local, _local) = memory(&pair.a, Some(&cuda), 100_000);
        let (target, region) = memory(&pair.b, Some(&cuda), 100_000);
        local.fill(4);
        pair.post(|| pair.a.out(pair.to_b, &local).context(1).write(&[remote(&region)]));
        pair.done(&pair.a);
        target.check(100_000, 4);
        let fail = |how: Option<&str>| match how {
            // SAFETY: only this thread reads or changes the environment while the emulator is asked.
            Some(how) => unsafe { std::env::set_var("CUDA_EMULATOR_FAIL", how) },
            // SAFETY: as above.
            None => unsafe { std::env::remove_var("CUDA_EMULATOR_FAIL") },
        };
        let (plain, _plain) = memory(&pair.a, None, 100_000);
        plain.fill(6);
        fail(Some("cuMemcpyAsync:700"));
        let posted = pair.a.out(pair.to_b, &local).context(2).write(&[remote(&region)]);
        assert_eq!(posted.unwrap_err().errno(), Errno::EIO, "{way:?}: out of the device, at the post");
        if way.provider != "tcp" {
            pair.post(|| pair.a.out(pair.to_b, &plain).context(3).write(&[remote(&region)]));
            assert_eq!(pair.failed(&pair.a).err, Errno::EIO, "{way:?}: into the device, at the owner");
            // What was not written is not reported: the owner's next event is that of the receive below.
            for len in [100, 100_000] {
                let out = || pair.a.out(pair.to_b, plain.slice(..len)).context(3).data(9);
                pair.post(|| out().write(&[remote_at(&region, 0, len)]));
                assert_eq!(pair.failed(&pair.a).err, Errno::EIO, "{way:?}: a write with data");
            }
        }
        pair.post(|| pair.b.receive(&target).context(4).post());
        pair.post(|| pair.a.out(pair.to_b, &plain).context(5).send());
        assert_eq!(pair.failed(&pair.b).err, Errno::EIO, "{way:?}: into the device, of a message");
        pair.drive("the send's end", || pair.a.next_of(5)).done();
        fail(None);
        let (host, there) = memory(&pair.b, None, 100_000);
        host.fill(7);
        // The device again has copies, so the pair works on.
        pair.post(|| pair.a.out(pair.to_b, &local).context(6).read(&[remote(&there)]));
        assert_eq!(pair.done(&pair.a).op_context, Context(6), "{way:?}");
        local.check(100_000, 7);
        fail(Some("cuMemcpyAsync:700"));
        pair.post(|| pair.a.out(pair.to_b, &local).context(7).read(&[remote(&there)]));
        assert_eq!(pair.failed(&pair.a).err, Errno::EIO, "{way:?}: into the device, of a read");
        fail(Some("cuMemAllocHost_v2:2"));
    }
}

/// Where the driver exports device memory, the peer's NIC writes and reads it directly.
#[test]
fn nics_access_memory_of_devices_by_its_dma_buf() {
    const LEN: usize = 1 << 20;
    let name = "nics_access_memory_of_devices_by_its_dma_buf";
    if !is_inside(name, &[("CUDA_EMULATOR_DMABUF", "1")]) {
        return;
    }
    let cuda = Cuda::open(0).unwrap();
    for ours in [None, Some(&cuda)] {
        let pair = EFA.pair();
        let (local, _local) = memory(&pair.a, ours, LEN);
        let (target, region) = memory(&pair.b, Some(&cuda), LEN + 100);
        assert!(u32::try_from(region.key()).is_ok(), "the device's key");
        let there = [remote_at(&region, 100, LEN)];
        // The first access may go before the peer has said that its device has RDMA.
        for seed in 0..3 {
            local.fill(seed);
            NIC.take_accesses();
            pair.post(|| pair.a.out(pair.to_b, &local).context(1).write(&there));
            pair.done(&pair.a);
            target.slice(100..).check(seed);
            local.slice(..).put(&vec![0; LEN]);
            pair.post(|| pair.a.out(pair.to_b, &local).context(2).read(&there));
            pair.done(&pair.a);
            local.check(LEN, seed);
        }
        assert_eq!(NIC.take_accesses().iter().sum::<usize>(), 2, "by the NIC alone");
        // Messages still go through the host.
        let (message, _sent) = memory(&pair.a, Some(&cuda), 5_000);
        message.fill(7);
        pair.post(|| pair.b.receive(target.slice(..5_000)).context(4).post());
        pair.post(|| pair.a.out(pair.to_b, &message).context(5).send());
        pair.done(&pair.b);
        pair.done(&pair.a);
        target.slice(..5_000).check(7);
        let after = target.bytes();
        // Closing withdraws the device's right, too.
        region.close().unwrap();
        local.fill(9);
        pair.post(|| pair.a.out(pair.to_b, &local).context(3).write(&there));
        pair.failed(&pair.a);
        assert!(target.bytes() == after);
    }
}

/// A host on which NICs do not reach devices says so.
#[test]
fn nics_keep_away_if_the_user_says_so() {
    const LEN: usize = 1 << 20;
    let name = "nics_keep_away_if_the_user_says_so";
    if !is_inside(name, &[("CUDA_EMULATOR_DMABUF", "1"), ("FI_HMEM_DISABLE_P2P", "1")]) {
        return;
    }
    let cuda = Cuda::open(0).unwrap();
    let pair = EFA.pair();
    let (local, _local) = memory(&pair.a, None, LEN);
    let (target, region) = memory(&pair.b, Some(&cuda), LEN);
    for seed in 0..3 {
        local.fill(seed);
        NIC.take_accesses();
        pair.post(|| pair.a.out(pair.to_b, &local).context(1).write(&[remote(&region)]));
        pair.done(&pair.a);
        target.check(LEN, seed);
    }
    assert!(NIC.take_accesses().is_empty());
}

/// Hints for fabric `efa-direct`.
fn direct_hints() -> Hints {
    let modes = MODES | MrMode::LOCAL;
    EFA.hints().caps(Caps::MSG | Caps::RMA | Caps::HMEM).mode(Mode::CONTEXT2).mr_mode(modes)
}

/// The fabrics that are granted for these hints.
fn granted_fabrics(hints: &Hints) -> Vec<String> {
    let flags = GetinfoFlags::empty();
    let request = Request { version: Version::API, node: None, service: None, flags, hints: Some(hints) };
    ofi::explain(&request).unwrap().infos.into_iter().map(|info| info.fabric_attr.name).collect()
}

#[test]
fn efa_direct_moves_memory_of_devices_that_nics_reach() {
    let name = "efa_direct_moves_memory_of_devices_that_nics_reach";
    if !is_inside(name, &[("CUDA_EMULATOR_DMABUF", "1")]) {
        return;
    }
    let cuda = Cuda::open(0).unwrap();
    assert_eq!(granted_fabrics(&direct_hints()), ["efa-direct", "efa"]);
    let side = || Opening::new(direct_hints()).without_shared_memory().open();
    let pair = Pair::of(side(), side());
    assert_eq!(pair.a.info.fabric_attr.name, "efa-direct");
    for (ours, theirs) in kinds(&cuda) {
        for (seed, len) in [1, 33, 4096, 8000].into_iter().enumerate() {
            let (from, _sent) = memory(&pair.a, ours, len);
            let (into, _received) = memory(&pair.b, theirs, len + 8);
            from.fill(seed as u8);
            pair.post(|| pair.b.receive(into.slice(4..)).context(1).post());
            pair.post(|| pair.a.out(pair.to_b, &from).context(2).send());
            assert_eq!(pair.done(&pair.b).len, len);
            pair.done(&pair.a);
            into.slice(4..4 + len).check(seed as u8);
            assert_eq!(into.bytes()[..4], [0; 4]);
        }
        for (seed, len) in [1, 4096, 70_000, 1 << 20].into_iter().enumerate() {
            let (local, _local) = memory(&pair.a, ours, len);
            let (target, region) = memory(&pair.b, theirs, len + 100);
            assert!(u32::try_from(region.key()).is_ok(), "the device's key");
            let there = [remote_at(&region, 100, len)];
            local.fill(seed as u8);
            NIC.take_accesses();
            pair.post(|| pair.a.out(pair.to_b, &local).context(3).write(&there));
            pair.done(&pair.a);
            target.slice(100..).check(seed as u8);
            local.slice(..).put(&vec![0; len]);
            pair.post(|| pair.a.out(pair.to_b, &local).context(4).read(&there));
            pair.done(&pair.a);
            local.check(len, seed as u8);
            assert_eq!(NIC.take_accesses().iter().sum::<usize>(), 2, "by the NIC alone");
            region.close().unwrap();
        }
    }
    // What the driver cannot export as one dma-buf has no owner that would copy.
    let device = Memory::device(&cuda, 8192);
    let halves = [Piece::new(device.as_ptr(), 4096), Piece::new(device.as_ptr().wrapping_add(4096), 4096)];
    let refused = |access: MrAccess| {
        // SAFETY: the memory outlives the registration, which ends at once.
        let mut attr = unsafe { MrAttr::new(&halves, access) };
        attr.iface = HmemIface::Cuda;
        pair.a.domain.register(&attr).map(drop).map_err(|error| error.errno())
    };
    assert!(refused(RIGHTS).is_err());
}

#[test]
fn efa_direct_takes_no_device_that_its_nic_does_not_reach() {
    load();
    assert_eq!(granted_fabrics(&direct_hints()), ["efa"]);
    let host_only = direct_hints().caps(Caps::MSG | Caps::RMA);
    assert_eq!(granted_fabrics(&host_only), ["efa-direct", "efa"]);
}

#[test]
fn efa_direct_takes_no_device_if_the_user_forbids_it() {
    let name = "efa_direct_takes_no_device_if_the_user_forbids_it";
    if is_inside(name, &[("CUDA_EMULATOR_DMABUF", "1"), ("FI_HMEM_DISABLE_P2P", "1")]) {
        assert_eq!(granted_fabrics(&direct_hints()), ["efa"]);
    }
}

const IFACES: [HmemIface; 5] =
    [HmemIface::Cuda, HmemIface::Rocr, HmemIface::Ze, HmemIface::Neuron, HmemIface::Synapseai];

/// Registers memory of a device by a dma-buf that the program brings, at an address that CUDA does not know, as those
/// of other interfaces.
fn of_dmabuf(
    side: &TestEndpoint,
    cuda: &Cuda,
    memory: &Memory,
    iface: HmemIface,
) -> Result<Arc<dyn MemoryRegion>> {
    let (fd, offset) = cuda.dmabuf(memory.as_ptr().addr() as u64).unwrap();
    let pieces = [Piece::new(memory.as_ptr().wrapping_add(1 << 44), memory.len())];
    let mut attr = MrAttr::of_dmabuf(Dmabuf { fd: fd.as_fd(), offset }, &pieces, RIGHTS);
    attr.iface = iface;
    side.domain.register(&attr)
}

/// A dma-buf of another interface is the NIC's alone: what the processor would have to copy is refused.
#[test]
fn dma_bufs_of_all_interfaces_are_registered_with_nics() {
    const LEN: usize = 70_000;
    let name = "dma_bufs_of_all_interfaces_are_registered_with_nics";
    if !is_inside(name, &[("CUDA_EMULATOR_DMABUF", "1")]) {
        return;
    }
    let cuda = Cuda::open(0).unwrap();
    let register = |side: &TestEndpoint, memory: &Memory, iface| of_dmabuf(side, &cuda, memory, iface);
    for (seed, iface) in IFACES.into_iter().enumerate() {
        let pair = EFA.pair();
        let (ours, theirs) = (Memory::device(&cuda, LEN), Memory::device(&cuda, LEN));
        let local = register(&pair.a, &ours, iface).unwrap();
        let region = register(&pair.b, &theirs, iface).unwrap();
        let (warm, _warm) = memory(&pair.a, None, LEN);
        let there = [remote(&region)];
        // The first access may go before the peer has said that its device has RDMA; its owner then refuses.
        pair.drive("RDMA", || {
            pair.post(|| pair.a.out(pair.to_b, &warm).context(1).write(&there));
            matches!(pair.next(&pair.a), Event::Done(..)).then_some(())
        });
        ours.fill(seed as u8);
        let pieces = [Piece::new(local.base() as *mut u8, LEN)];
        // SAFETY: the device alone uses the memory, which lives longer than the operations.
        let buf = unsafe { Lent::new(&pieces, &[]) };
        let (peer, context, flags) = (pair.to_b, Context(2), OpFlags::empty());
        let op = RmaOp { buf, remote: &there, peer, context, data: 0, flags, call: Call::Plain };
        pair.post(|| pair.a.ep.write(&op));
        assert_eq!(pair.done(&pair.a).op_context, context, "{iface}");
        theirs.check(LEN, seed as u8);
        ours.slice(..).put(&vec![0; LEN]);
        pair.post(|| pair.a.ep.read(&op));
        pair.done(&pair.a);
        ours.check(LEN, seed as u8);
        let refused = pair.a.ep.send(&SendOp::new(buf, peer, context)).unwrap_err();
        assert_eq!(refused.errno(), Errno::EOPNOTSUPP, "{iface}: {refused}");
        let receive = ReceiveOp::new(buf, context);
        assert_eq!(pair.a.ep.receive(&receive).unwrap_err().errno(), Errno::EOPNOTSUPP, "{iface}");
    }
    for way in WAYS.into_iter().filter(|way| way.provider != "efa") {
        let side = way.opening().open();
        for iface in IFACES {
            let refused = register(&side, &Memory::device(&cuda, 4096), iface).map(drop).unwrap_err();
            assert_eq!(refused.errno(), Errno::ENOSYS, "{way:?}, {iface}");
            assert!(refused.to_string().contains("FI_EP_MSG"), "{way:?}: {refused}");
        }
    }
}

/// Over fabric `efa-direct` the device also reads messages of one piece from a dma-buf, if they do not go inline.
#[test]
fn efa_direct_sends_from_dma_bufs_of_all_interfaces() {
    const LEN: usize = 4096;
    let name = "efa_direct_sends_from_dma_bufs_of_all_interfaces";
    if !is_inside(name, &[("CUDA_EMULATOR_DMABUF", "1")]) {
        return;
    }
    let cuda = Cuda::open(0).unwrap();
    let side = || Opening::new(direct_hints()).without_shared_memory().open();
    let pair = Pair::of(side(), side());
    assert_eq!(pair.a.info.fabric_attr.name, "efa-direct");
    for (seed, iface) in IFACES.into_iter().enumerate() {
        let ours = Memory::device(&cuda, LEN);
        let local = of_dmabuf(&pair.a, &cuda, &ours, iface).unwrap();
        let (into, _received) = memory(&pair.b, None, LEN);
        ours.fill(seed as u8);
        let at = |offset: usize, len| Piece::new((local.base() as usize + offset) as *mut u8, len);
        let send = |pieces: &[Piece], call| {
            // SAFETY: the device alone uses the memory, which lives longer than the operations.
            let buf = unsafe { Lent::new(pieces, &[]) };
            pair.a.ep.send(&SendOp { call, ..SendOp::new(buf, pair.to_b, Context(2)) })
        };
        for len in [1024, LEN] {
            pair.post(|| pair.b.receive(&into).context(1).post());
            pair.post(|| send(&[at(0, len)], Call::Plain));
            assert_eq!(pair.done(&pair.b).len, len, "{iface}");
            pair.done(&pair.a);
            into.slice(..len).check(seed as u8);
        }
        let refused = |pieces: &[Piece], call| send(pieces, call).unwrap_err().errno();
        assert_eq!(refused(&[at(0, 8)], Call::Plain), Errno::EOPNOTSUPP, "{iface}: inline");
        assert_eq!(refused(&[at(0, 16)], Call::Inject), Errno::EOPNOTSUPP, "{iface}: injected");
        let halves = [at(0, 512), at(512, 512)];
        assert_eq!(refused(&halves, Call::Plain), Errno::EOPNOTSUPP, "{iface}: two pieces");
        local.close().unwrap();
    }
}

/// The owner executes a peer's first access to a registration, and its device the later ones, without copies.
#[test]
fn devices_of_verbs_access_exported_memory() {
    const LEN: usize = 1 << 20;
    if !is_inside("devices_of_verbs_access_exported_memory", &[("CUDA_EMULATOR_DMABUF", "1")]) {
        return;
    }
    let cuda = Cuda::open(0).unwrap();
    let pair = WAYS.into_iter().find(|way| way.provider == "verbs").unwrap().pair();
    for ours in [None, Some(&cuda)] {
        let (local, _local) = memory(&pair.a, ours, LEN);
        let (target, region) = memory(&pair.b, Some(&cuda), LEN + 100);
        let there = [remote_at(&region, 100, LEN)];
        let natives = || pair.a.statistic("verbs_native_writes");
        for seed in 0..3 {
            let before = natives();
            local.fill(seed);
            pair.post(|| pair.a.out(pair.to_b, &local).context(1).write(&there));
            pair.done(&pair.a);
            target.slice(100..).check(seed);
            local.slice(..).put(&vec![0; LEN]);
            pair.post(|| pair.a.out(pair.to_b, &local).context(2).read(&there));
            pair.done(&pair.a);
            local.check(LEN, seed);
            assert_eq!(natives() > before, seed > 0, "{seed}: the first one by the owner");
        }
        let after = target.bytes();
        region.close().unwrap();
        local.fill(9);
        pair.post(|| pair.a.out(pair.to_b, &local).context(3).write(&there));
        pair.failed(&pair.a);
        assert!(target.bytes() == after);
    }
}
