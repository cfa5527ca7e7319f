//! Tests of receives that transports take before their messages arrive ([`Upcalls::claim`]).

use std::sync::Arc;

use ofi_api::{
    CompletionFlags, Context, CqBuffer, CqTaggedEntry, Endpoint as _, Errno, FiAddr, Lent, OpFlags, Piece,
    ReceiveOp,
};

use super::Ep;
use super::still::{self, Still};
use crate::slots::SlotId;
use crate::transport::{Arrived, RxName, TransportEndpoint, Upcalls};

/// An endpoint whose transport claims receives, and its queue.
struct Scene {
    ep: Arc<Ep<Still>>,
    cq: Arc<dyn ofi_api::CompletionQueue>,
}

impl Scene {
    fn open() -> Self {
        let mut info = still::sharing();
        info.ep_attr.rx_ctx_cnt = 1;
        let domain = still::domain(&info);
        let (ep, cq) = still::endpoint(&domain, &info, |_| {});
        let scene = Self { ep, cq };
        let mut guard = scene.ep.core().state.lock();
        let (transport, host) = guard.split().unwrap();
        transport.peer(host, &still::address(1)).unwrap();
        drop(guard);
        scene
    }

    fn post(&self, context: usize, pieces: &[Piece]) {
        // SAFETY: nobody writes there.
        let buf = unsafe { Lent::new(pieces, &[]) };
        let op = ReceiveOp {
            buf,
            source: FiAddr::UNSPEC,
            context: Context(context),
            flags: OpFlags::empty(),
            call: ofi_api::Call::Plain,
        };
        self.ep.receive(&op).unwrap();
    }

    fn claim(&self) -> Option<SlotId> {
        self.ep.core().state.lock().ends.claim(0)
    }

    fn read(&self) -> Option<CqTaggedEntry> {
        let mut entries = [CqTaggedEntry::EMPTY];
        let read = self.cq.read(&mut CqBuffer::new(&mut entries));
        read.ok().map(|_| entries[0])
    }
}

fn message(len: usize) -> Arrived {
    Arrived { peer: 0, rx: RxName::ANY, tagged: false, has_data: true, tag: 0, data: 9, len }
}

#[test]
fn receives_are_claimed_in_the_order_of_posting_and_each_ends_once() {
    let scene = Scene::open();
    let mut memory = [0u8; 16];
    let pieces = [Piece::new(memory.as_mut_ptr(), memory.len())];
    assert!(scene.claim().is_none(), "none is posted");
    (1..=3).for_each(|context| scene.post(context, &pieces));
    let claimed: Vec<SlotId> = std::iter::from_fn(|| scene.claim()).collect();
    assert_eq!(claimed.len(), 3);
    assert!(scene.ep.cancel(Context(1)).is_err(), "it is the device's");
    let lend = |id| scene.ep.core().state.lock().ends.receiving(id).map(|it| it.pieces[0].len);
    assert_eq!(lend(claimed[0]), Some(16), "the whole buffer, as nothing is known of the message");
    scene.ep.core().state.lock().ends.landed(claimed[0], &message(5));
    let entry = scene.read().unwrap();
    let flags = CompletionFlags::RECV | CompletionFlags::MSG | CompletionFlags::REMOTE_CQ_DATA;
    assert_eq!((entry.op_context, entry.len, entry.data, entry.flags), (Context(1), 5, 9, flags));
    scene.ep.core().state.lock().ends.spent(claimed[1], 7, 1000);
    let entry = scene.read().unwrap();
    let flags = CompletionFlags::RMA | CompletionFlags::REMOTE_WRITE | CompletionFlags::REMOTE_CQ_DATA;
    assert_eq!((entry.op_context, entry.len, entry.data, entry.flags), (Context(2), 1000, 7, flags));
    // An ended receive has no owner any more.
    for id in &claimed[..2] {
        assert_eq!(lend(*id), None);
        scene.ep.core().state.lock().ends.landed(*id, &message(1));
        scene.ep.core().state.lock().ends.spent(*id, 1, 1);
    }
    scene.ep.core().state.lock().ends.fail_peer(0, Errno::ECANCELED);
    assert!(scene.read().is_none());
    let error = scene.cq.read_error().unwrap();
    assert_eq!((error.op_context, error.err, error.olen), (Context(3), Errno::ECANCELED, 0));
    assert!(scene.cq.read_error().is_err(), "no more than one end for each");
}

/// A device fills one receive with one message.
#[test]
fn a_receive_of_several_messages_is_refused() {
    let scene = Scene::open();
    let mut memory = [0u8; 16];
    let pieces = [Piece::new(memory.as_mut_ptr(), memory.len())];
    // SAFETY: nobody writes there.
    let buf = unsafe { Lent::new(&pieces, &[]) };
    let (context, call) = (Context(1), ofi_api::Call::Msg);
    let op = ReceiveOp { buf, source: FiAddr::UNSPEC, context, flags: OpFlags::MULTI_RECV, call };
    scene.ep.core().state.lock().ends.rx.claimed = true; // as with a transport that claims receives
    let error = scene.ep.receive(&op).unwrap_err();
    assert_eq!(error.errno(), Errno::EBADFLAGS, "{error}");
    assert!(scene.claim().is_none());
}
