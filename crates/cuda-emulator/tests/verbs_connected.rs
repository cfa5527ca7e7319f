//! Device memory over connected endpoints of `verbs` (`FI_HMEM`, `FI_MR_DMABUF`), on a simulated device. The processor
//! cannot touch the emulator's memory, so a forgotten copy ends a test with `SIGSEGV`.

#[allow(dead_code, reason = "only other tests run without a driver")]
mod support;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Once};

use ofi_core::hmem::cuda::Cuda;
use ofi_testkit::prelude::*;
use ofi_testkit::rc;
use support::is_inside;

/// Lengths around those at which payloads are sent inline or from a slot.
const LENGTHS: [usize; 6] = [1, 64, 1024, 1025, 70_000, (1 << 20) + 5];
const REMOTE: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);
const LOCAL: MrAccess = MrAccess::all().difference(REMOTE);
const INTERFACES: [HmemIface; 5] =
    [HmemIface::Cuda, HmemIface::Rocr, HmemIface::Ze, HmemIface::Neuron, HmemIface::Synapseai];

fn hints(hmem: bool) -> Hints {
    static ADDED: Once = Once::new();
    ADDED.call_once(|| {
        let device = rc::SimulatedDevice::new("hmem2", rc::Plan::default());
        ofi_verbs::rc::add(Arc::new(rc::Handle(device)));
        let _ = ofi::register_provider(Arc::new(ofi_verbs::VerbsProvider)); // refused if it is there
    });
    let (mut caps, mut modes) =
        (Caps::MSG | Caps::RMA, MrMode::VIRT_ADDR | MrMode::PROV_KEY | MrMode::ALLOCATED);
    if hmem {
        (caps, modes) = (caps | Caps::HMEM, modes | MrMode::HMEM);
    }
    let hints = Hints::new().provider("verbs").domain("hmem2").ep_type(EpType::Msg).caps(caps);
    hints.addr_format(AddrFormat::SockaddrIn).mode(Mode::RX_CQ_DATA).mr_mode(modes)
}

fn pair(hmem: bool) -> Pair {
    let open = || Opening::new(hints(hmem)).open();
    Pair::of(open(), open())
}

/// Memory of one kind, registered with a side.
fn memory(
    side: &TestEndpoint,
    cuda: Option<&Cuda>,
    len: usize,
    access: MrAccess,
) -> (Memory, Arc<dyn MemoryRegion>) {
    let memory = cuda.map_or_else(|| Memory::new(len), |cuda| Memory::device(cuda, len));
    let region = side.register(&memory, access).unwrap();
    (memory, region)
}

/// Makes the driver refuse copies, while `act` runs.
fn without_copies<T>(act: impl FnOnce() -> T) -> T {
    // SAFETY: only this thread reads or changes the environment while the emulator is asked.
    unsafe { std::env::set_var("CUDA_EMULATOR_FAIL", "cuMemcpyAsync:700") };
    let done = act();
    // SAFETY: as above.
    unsafe { std::env::remove_var("CUDA_EMULATOR_FAIL") };
    done
}

/// A message each way between all kinds of memory, and accesses of `theirs` registered memory.
fn exchange(pair: &Pair, kinds: (Option<&Cuda>, Option<&Cuda>), access: [MrAccess; 2], copies: bool) {
    let run = |act: &dyn Fn()| if copies { act() } else { without_copies(act) };
    for (seed, len) in LENGTHS.into_iter().enumerate() {
        let (local, _local) = memory(&pair.a, kinds.0, len, access[0]);
        let (target, region) = memory(&pair.b, kinds.1, len + 100, access[1]);
        local.fill(seed as u8);
        run(&|| {
            pair.post(|| pair.b.receive(target.slice(4..)).context(1).post());
            pair.post(|| pair.a.out(pair.to_b, &local).context(2).data(9).send());
            let done = pair.done(&pair.b);
            assert_eq!((done.op_context, done.len, done.data), (Context(1), len, 9));
            assert_eq!(pair.done(&pair.a).op_context, Context(2));
        });
        target.slice(4..4 + len).check(seed as u8);
        assert!(target.bytes()[..4].iter().chain(&target.bytes()[4 + len..]).all(|&byte| byte == 0));
        if !access[1].contains(REMOTE) {
            continue;
        }
        let there = [remote_at(&region, 100, len)];
        run(&|| {
            pair.post(|| pair.a.out(pair.to_b, &local).context(3).write(&there));
            assert_eq!(pair.done(&pair.a).op_context, Context(3));
        });
        target.slice(100..).check(seed as u8);
        local.slice(..).put(&vec![0; len]);
        run(&|| {
            pair.post(|| pair.a.out(pair.to_b, &local).context(4).read(&there));
            assert_eq!(pair.done(&pair.a).op_context, Context(4));
        });
        local.check(len, seed as u8);
        region.close().unwrap();
    }
}

#[test]
fn memory_that_is_not_exported_is_copied_by_the_core() {
    if !is_inside("memory_that_is_not_exported_is_copied_by_the_core", &[]) {
        return;
    }
    let cuda = Cuda::open(0).unwrap();
    let pair = pair(true);
    assert!(pair.a.info.caps.contains(Caps::HMEM) && pair.a.info.domain_attr.mr_mode.contains(MrMode::HMEM));
    exchange(&pair, (Some(&cuda), Some(&cuda)), [LOCAL; 2], true);
    exchange(&pair, (Some(&cuda), None), [LOCAL, MrAccess::all()], true);
    exchange(&pair, (None, Some(&cuda)), [MrAccess::all(), LOCAL], true);
    // No owner copies for peers.
    let refused = pair.b.register(&Memory::device(&cuda, 4096), MrAccess::REMOTE_WRITE).map(drop);
    let error = refused.unwrap_err();
    assert_eq!(error.errno(), Errno::ENOSYS);
    assert!(error.to_string().contains("dma-buf"), "{error}");
    // Pieces of host and device are one message.
    let (device, _sent) = memory(&pair.a, Some(&cuda), 5000, LOCAL);
    let (host, _) = memory(&pair.a, None, 60, LOCAL);
    let (into, _received) = memory(&pair.b, Some(&cuda), 5060, LOCAL);
    device.fill(2);
    host.fill(1);
    pair.post(|| pair.b.receive(&into).context(1).post());
    pair.post(|| pair.a.out(pair.to_b, vec![host.slice(..), device.slice(..)]).context(2).send());
    assert_eq!(pair.done(&pair.b).len, 5060);
    pair.done(&pair.a);
    into.slice(..60).check(1);
    into.slice(60..).check(2);
    // The buffer of an injected message may be changed at once.
    pair.post(|| pair.b.receive(&into).context(1).post());
    pair.post(|| pair.a.out(pair.to_b, device.slice(..100)).inject().send());
    device.slice(..).put(&[0; 5000]);
    assert_eq!(pair.done(&pair.b).len, 100);
    into.slice(..100).check(2);
}

#[test]
fn exported_memory_is_the_device_s_alone() {
    if !is_inside("exported_memory_is_the_device_s_alone", &[("CUDA_EMULATOR_DMABUF", "1")]) {
        return;
    }
    let cuda = Cuda::open(0).unwrap();
    let pair = pair(true);
    for kinds in [(Some(&cuda), None), (None, Some(&cuda)), (Some(&cuda), Some(&cuda))] {
        exchange(&pair, kinds, [MrAccess::all(); 2], false);
    }
    // What the device does not send from there is copied.
    let (source, _sent) = memory(&pair.a, Some(&cuda), 300, LOCAL);
    let (into, _received) = memory(&pair.b, Some(&cuda), 300, LOCAL);
    source.fill(5);
    pair.post(|| pair.b.receive(&into).context(1).post());
    pair.post(|| pair.a.out(pair.to_b, &source).inject().send());
    source.slice(..).put(&[0; 300]);
    assert_eq!(pair.done(&pair.b).len, 300);
    into.check(300, 5);
}

#[test]
fn exported_memory_is_copied_if_the_user_says_so() {
    let settings = [("CUDA_EMULATOR_DMABUF", "1"), ("FI_HMEM_DISABLE_P2P", "1")];
    if !is_inside("exported_memory_is_copied_if_the_user_says_so", &settings) {
        return;
    }
    let cuda = Cuda::open(0).unwrap();
    let pair = pair(true);
    exchange(&pair, (Some(&cuda), Some(&cuda)), [LOCAL; 2], true);
    let refused = pair.b.register(&Memory::device(&cuda, 4096), MrAccess::all()).map(drop);
    assert_eq!(refused.unwrap_err().errno(), Errno::ENOSYS);
}

/// Memory of a device, registered by a dma-buf that the program brings.
fn dmabuf(
    side: &TestEndpoint,
    cuda: &Cuda,
    iface: HmemIface,
    len: usize,
) -> (Memory, OwnedFd, Result<Arc<dyn MemoryRegion>>) {
    let memory = Memory::device(cuda, len);
    let (fd, offset) = cuda.dmabuf(memory.as_ptr().addr() as u64).unwrap();
    // An address that CUDA does not know, as other interfaces' are.
    let addr = memory.as_ptr().wrapping_add(1 << 44);
    let pieces = [Piece::new(addr, len)];
    let mut attr = MrAttr::of_dmabuf(Dmabuf { fd: fd.as_fd(), offset }, &pieces, MrAccess::all());
    attr.iface = iface;
    let region = side.domain.register(&attr);
    (memory, fd, region)
}

/// The device knows no interfaces: it accesses every dma-buf that it can register.
#[test]
fn dma_bufs_of_all_interfaces_are_the_device_s() {
    const LEN: usize = 9000;
    let name = "dma_bufs_of_all_interfaces_are_the_device_s";
    if !is_inside(name, &[("CUDA_EMULATOR_DMABUF", "1")]) {
        return;
    }
    let cuda = Cuda::open(0).unwrap();
    for hmem in [false, true] {
        let pair = pair(hmem);
        for (seed, iface) in INTERFACES.into_iter().enumerate() {
            let (ours, _fd, local) = dmabuf(&pair.a, &cuda, iface, LEN);
            let (theirs, _fd, region) = dmabuf(&pair.b, &cuda, iface, LEN);
            let (local, region) = (local.unwrap(), region.unwrap());
            let at = |region: &Arc<dyn MemoryRegion>, len| [Piece::new(region.base() as *mut u8, len)];
            for len in [8, 1000, LEN] {
                ours.fill(seed as u8);
                let (from, into) = (at(&local, len), at(&region, len));
                // SAFETY: the device alone uses the memory, which lives longer than the operations.
                let from = unsafe { Lent::new(&from, &[]) };
                // SAFETY: as above.
                let into = unsafe { Lent::new(&into, &[]) };
                let receive = ReceiveOp::new(into, Context(1));
                pair.post(|| pair.b.ep.receive(&receive));
                pair.post(|| pair.a.ep.send(&SendOp::new(from, pair.to_b, Context(2))));
                assert_eq!(pair.done(&pair.b).len, len, "{iface}");
                pair.done(&pair.a);
                theirs.slice(..len).check(seed as u8);
                theirs.slice(..).put(&[0; LEN]);
                let there = [remote_at(&region, 0, len)];
                let op = RmaOp {
                    buf: from,
                    remote: &there,
                    peer: pair.to_b,
                    context: Context(3),
                    data: 0,
                    flags: OpFlags::empty(),
                    call: Call::Plain,
                };
                pair.post(|| pair.a.ep.write(&op));
                pair.done(&pair.a);
                theirs.slice(..len).check(seed as u8);
                ours.slice(..).put(&[0; LEN]);
                pair.post(|| pair.a.ep.read(&op));
                pair.done(&pair.a);
                ours.slice(..len).check(seed as u8);
                // Nobody could copy these bytes out of the device during the call.
                let injected = SendOp { call: Call::Inject, ..SendOp::new(from, pair.to_b, Context(4)) };
                if len <= 1000 {
                    let refused = pair.a.ep.send(&injected).unwrap_err();
                    assert_eq!(refused.errno(), Errno::EOPNOTSUPP, "{iface}: {refused}");
                }
            }
            region.close().unwrap();
            local.close().unwrap();
        }
    }
}
