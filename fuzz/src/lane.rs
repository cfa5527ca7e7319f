//! An endpoint whose peer breaks the protocol in any way that shared memory allows.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use ofi::raw::{
    Address, AddressVector, AvAttr, BindFlags, Call, Caps, CompletionQueue, Context, CqAttr, CqBuffer,
    CqTaggedEntry, Endpoint, FiAddr, GetinfoFlags, Hints, Lent, MemoryRegion, MrAccess, MrAttr, MrMode,
    OpFlags, Piece, ReceiveOp, RemotePiece, RmaOp, SendOp, TagMatch, Version,
};
use ofi_shm::fuzz::{Hostile, HostileTarget, KINDS, Ring};

use super::Input;

/// Length of each buffer.
const BUFFER: usize = 16 << 10;
/// Key of the registered buffer, so that a hostile peer knows it.
const KEY: u64 = 1;

struct Victim {
    endpoint: Arc<dyn Endpoint>,
    queue: Arc<dyn CompletionQueue>,
    _addresses: Arc<dyn AddressVector>,
    _region: Arc<dyn MemoryRegion>,
    hostile: Hostile,
    peer: FiAddr,
}

thread_local! {
    static VICTIM: RefCell<Option<Victim>> = const { RefCell::new(None) };
}

/// Memory that is never freed, so that a late write does no harm. The sanitizer finds writes outside of it.
/// The first part is registered; the second is the buffer of all operations.
fn memory() -> &'static [Piece; 2] {
    static MEMORY: OnceLock<[Piece; 2]> = OnceLock::new();
    let leaked = |_| Piece::new(Box::leak(vec![0u8; BUFFER].into_boxed_slice()).as_mut_ptr(), BUFFER);
    MEMORY.get_or_init(|| std::array::from_fn(leaked))
}

impl Victim {
    fn open() -> ofi::raw::Result<Self> {
        let caps = Caps::MSG | Caps::TAGGED | Caps::RMA | Caps::ATOMIC;
        let hints = Hints::new().caps(caps).provider("shm").mr_mode(MrMode::empty());
        let infos = ofi::getinfo(Version::API, None, None, GetinfoFlags::empty(), Some(&hints))?;
        let domain = ofi::open_fabric(&infos[0])?.open_domain(&infos[0])?;
        let endpoint = domain.open_endpoint(&infos[0])?;
        let queue = domain.open_cq(&CqAttr::default())?;
        let addresses = domain.open_av(&AvAttr::default())?;
        endpoint.bind_cq(&queue, BindFlags::TRANSMIT | BindFlags::RECV)?;
        endpoint.bind_av(&addresses)?;
        endpoint.enable()?;
        // SAFETY: the memory is never freed, and nothing refers to it.
        let mut attr = unsafe { MrAttr::new(&memory()[..1], MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE) };
        attr.requested_key = KEY;
        let region = domain.register(&attr)?;
        let hostile = Hostile::new(&endpoint.name()?)?;
        let peer = inserted(&*addresses, &hostile.address())?;
        Ok(Self { endpoint, queue, _addresses: addresses, _region: region, hostile, peer })
    }

    /// Polls, and reads all completions.
    fn poll(&self) {
        let mut entries = [CqTaggedEntry::EMPTY; 16];
        for _ in 0..4 {
            if self.queue.read(&mut CqBuffer::new(&mut entries)).is_err() {
                while self.queue.read_error().is_ok() {}
            }
        }
    }

    /// Posts one of each operation, so that replies can refer to an operation in flight.
    fn post(&self) {
        // SAFETY: the memory is never freed, and nothing refers to it.
        let lent = unsafe { Lent::new(&memory()[1..], &[]) };
        let remote = [RemotePiece { addr: 0, len: BUFFER, key: 7 }];
        // FI_EAGAIN is fine.
        let _ = self.endpoint.receive(&ReceiveOp::new(lent, Context(1)));
        let _ = self.endpoint.receive_tagged(&ReceiveOp::new(lent, Context(2)), TagMatch::default());
        let _ = self.endpoint.send(&SendOp::new(lent, self.peer, Context(3)));
        let rma = |context| RmaOp {
            buf: lent,
            remote: &remote,
            peer: self.peer,
            context: Context(context),
            data: 0,
            flags: OpFlags::empty(),
            call: Call::Plain,
        };
        let _ = self.endpoint.write(&rma(4));
        let _ = self.endpoint.read(&rma(5));
    }
}

fn inserted(addresses: &dyn AddressVector, address: &Address) -> ofi::raw::Result<FiAddr> {
    addresses.insert(std::slice::from_ref(address)).remove(0)
}

/// A peer that greets, and then writes records and arbitrary bytes.
pub fn lane(input: &[u8]) {
    VICTIM.with_borrow_mut(|victim| {
        if victim.is_none() {
            *victim = Some(Victim::open().expect("an endpoint"));
        }
        let victim = victim.as_mut().expect("just opened");
        if victim.hostile.greet().is_err() {
            return; // the helper thread did not get a core for a second
        }
        victim.poll();
        victim.post();
        attack(victim, Input(input));
        victim.poll();
        victim.hostile.drain();
    });
}

fn attack(victim: &mut Victim, mut input: Input<'_>) {
    for _ in 0..64 {
        if input.0.is_empty() {
            return;
        }
        let what = input.byte();
        let ring = [Ring::Commands, Ring::Replies, Ring::Bulk][usize::from(what) % 3];
        match what / 3 % 8 {
            0 => victim.poll(),
            1 => {
                let (offset, len) = (input.short(), input.byte());
                victim.hostile.scribble(ring, offset, input.bytes(len.into()));
            }
            // Anywhere that it may write, including the victim's doorbell.
            2 => {
                let place = HostileTarget::ALL[usize::from(input.byte()) % HostileTarget::ALL.len()];
                let (offset, len) = (input.short(), input.byte());
                victim.hostile.deface(place, offset, input.bytes(len.into()));
            }
            _ => {
                let kind = KINDS[usize::from(input.byte()) % KINDS.len()];
                let high = kind | (input.short() as u32) << 8;
                let len = input.byte();
                victim.hostile.record(ring, high, input.bytes(len.into()));
            }
        }
    }
}
