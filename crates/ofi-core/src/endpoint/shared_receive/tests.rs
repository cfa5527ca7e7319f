//! Tests of the time between the two locks: a message is matched under the context's, and reported under its
//! endpoint's.

use ofi_api::{
    Address, CompletionQueue, Context, CqBuffer, CqTaggedEntry, Endpoint, Errno, Lent, Piece, TagMatch,
};

use super::search::Step;
use super::*;
use crate::endpoint::Ep;
use crate::endpoint::search::Search;
use crate::endpoint::srx::Srx;
use crate::endpoint::still::{self, Still};
use crate::matching::Want;
use crate::transport::{Announced, PeerId, Upcalls};

const PEER: PeerId = 0;
const TOKEN: u64 = 77;

/// An endpoint with a shared context, a peer, and a message of that peer's, which waits for a receive.
struct Scene {
    ep: Arc<Ep<Still>>,
    cq: Arc<dyn CompletionQueue>,
    srx: Arc<Srx<Still>>,
}

impl Scene {
    fn open() -> Self {
        let info = still::sharing();
        let domain = still::domain(&info);
        let srx = domain.open_shared_receive(&info.rx_attr).unwrap();
        let (ep, cq) = still::endpoint(&domain, &info, |ep| ep.bind_shared_receive(&srx).unwrap());
        let any: Arc<dyn std::any::Any + Send + Sync> = srx;
        let srx = any.downcast().unwrap_or_else(|_| panic!("a context of this transport"));
        let scene = Self { ep, cq, srx };
        let mut guard = scene.ep.core().state.lock();
        let (transport, host) = guard.split().unwrap();
        assert_eq!(transport.peer(host, &still::address(1)).unwrap(), PEER);
        drop(guard);
        scene.announce();
        scene
    }

    /// The peer announces a message, for which no receive waits.
    fn announce(&self) {
        let arrived = receive::arrived(
            &matching::Envelope {
                space: matching::Space::Tagged,
                peer: matching::SourceId(0),
                tag: 5,
                len: 4,
                data: None,
            },
            PEER,
        );
        let kept = self.ep.core().state.lock().ends.announce(&arrived, TOKEN);
        assert!(matches!(kept, Announced::Kept));
    }

    fn lose(&self) {
        self.ep.core().state.lock().ends.fail_peer(PEER, Errno::ECONNRESET);
    }

    fn moved(&self) -> (usize, usize) {
        let guard = self.ep.core().state.lock();
        guard
            .transport
            .as_ref()
            .map_or((0, 0), |transport| (transport.pulled.len(), transport.discarded.len()))
    }

    fn failure(&self) -> Errno {
        let mut entries = [CqTaggedEntry::EMPTY];
        let full = self.cq.read(&mut CqBuffer::new(&mut entries)).unwrap_err();
        assert_eq!(full.errno(), Errno::EAVAIL);
        self.cq.read_error().unwrap().err
    }
}

fn lent(memory: &mut [u8; 4]) -> [Piece; 1] {
    [Piece::new(memory.as_mut_ptr(), memory.len())]
}

#[test]
fn a_matched_message_whose_sender_is_lost_before_it_is_told_of_ends_with_an_error() {
    for multi in [false, true] {
        let scene = Scene::open();
        let mut memory = [0; 4];
        let pieces = lent(&mut memory);
        // SAFETY: the memory outlives the endpoint's use of it: the scene is dropped before it.
        let buf = unsafe { Lent::new(&pieces, &[]) };
        let want = Want::tagged(SourceFilter::Any, 5, 0);
        let mut settled = match multi {
            false => scene.srx.shared.state.lock().post(Context(9), &buf, want, true),
            true => scene.srx.shared.state.lock().post_multi(Context(9), &buf, want, true),
        };
        scene.lose();
        assert!(settled.pop().unwrap().settle().is_none());
        assert_eq!(scene.moved(), (0, 0), "the peer that announced it is lost");
        assert_eq!(scene.failure(), Errno::ECONNRESET);
        assert!(scene.srx.shared.state.lock().matched.is_empty());
    }
}

#[test]
fn a_matched_message_whose_endpoint_closes_before_it_is_told_of_is_nobodys() {
    let Scene { ep, cq, srx } = Scene::open();
    let mut memory = [0; 4];
    let pieces = lent(&mut memory);
    // SAFETY: as above.
    let buf = unsafe { Lent::new(&pieces, &[]) };
    let mut settled =
        srx.shared.state.lock().post(Context(9), &buf, Want::tagged(SourceFilter::Any, 5, 0), true);
    drop(ep);
    assert!(settled.pop().unwrap().settle().is_some(), "the receive looks for another one");
    assert!(srx.shared.state.lock().matched.is_empty());
    drop(cq);
}

#[test]
fn a_message_thrown_away_after_its_sender_was_lost_is_not_answered() {
    let scene = Scene::open();
    let tag = TagMatch { tag: 5, ignore: 0 };
    let want = Want::tagged(SourceFilter::Any, tag.tag, tag.ignore);
    let op = ReceiveOp::new(Lent::EMPTY, Context(9));
    let step = scene.srx.shared.state.lock().search(Search::Discard, &op, &want, true);
    let Some(Step::Discard(core, arrived, content)) = step else { panic!("there is a message") };
    scene.lose();
    assert!(core.discard(&op, &want, arrived, content));
    assert_eq!(scene.moved(), (0, 0));
    let mut entries = [CqTaggedEntry::EMPTY];
    assert_eq!(scene.cq.read(&mut CqBuffer::new(&mut entries)).unwrap(), 1);
    assert_eq!(entries[0].tag, 5);
}

#[test]
fn a_context_forgets_peers_that_come_and_go() {
    let scene = Scene::open();
    let mut memory = [0; 4];
    let pieces = lent(&mut memory);
    for number in 0..1000_u32 {
        scene.lose();
        // SAFETY: as above.
        let buf = unsafe { Lent::new(&pieces, &[]) };
        scene.srx.receive_tagged(&ReceiveOp::new(buf, Context(9)), TagMatch { tag: 5, ignore: 0 }).unwrap();
        assert_eq!(scene.failure(), Errno::ECONNRESET);
        let mut guard = scene.ep.core().state.lock();
        assert!(guard.ends.retire(PEER), "nothing is of it any more");
        guard.ends.introduce(PEER, &Address::from_text(&format!("peer {number}")));
        drop(guard);
        scene.announce();
        let known = scene.srx.shared.state.lock().senders.len();
        assert!(known <= 8, "{known} after {number}");
    }
}
