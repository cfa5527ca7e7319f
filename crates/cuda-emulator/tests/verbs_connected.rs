//! Device memory over connected endpoints of `verbs` (`FI_MR_DMABUF`), on a simulated device. The processor
//! cannot touch the emulator's memory, so a forgotten copy ends a test with `SIGSEGV`.

#[allow(dead_code, reason = "only other tests run without a driver")]
mod support;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Once};

use ofi_core::hmem::cuda::Cuda;
use ofi_testkit::prelude::*;
use ofi_testkit::rc;
use support::is_inside;

const INTERFACES: [HmemIface; 5] =
    [HmemIface::Cuda, HmemIface::Rocr, HmemIface::Ze, HmemIface::Neuron, HmemIface::Synapseai];

fn hints() -> Hints {
    static ADDED: Once = Once::new();
    ADDED.call_once(|| {
        let device = rc::SimulatedDevice::new("hmem2", rc::Plan::default());
        ofi_verbs::rc::add(Arc::new(rc::Handle(device)));
        let _ = ofi::register_provider(Arc::new(ofi_verbs::VerbsProvider)); // refused if it is there
    });
    let (caps, modes) = (Caps::MSG | Caps::RMA, MrMode::VIRT_ADDR | MrMode::PROV_KEY | MrMode::ALLOCATED);
    let hints = Hints::new().provider("verbs").domain("hmem2").ep_type(EpType::Msg).caps(caps);
    hints.addr_format(AddrFormat::SockaddrIn).mode(Mode::RX_CQ_DATA).mr_mode(modes)
}

fn pair() -> Pair {
    let open = || Opening::new(hints()).open();
    Pair::of(open(), open())
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
    let pair = pair();
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
