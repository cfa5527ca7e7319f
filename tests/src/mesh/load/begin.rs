//! Starts random operations.

use ofi_testkit::prelude::*;

use super::{ACCESS, CELLS, Favour, Kind, LENGTHS, Load, MAX_MESSAGE_LEN, Op, STRIPE, TRASH};

impl Load {
    /// Memory for an operation: library memory if wanted and available. Also returns whether it is library memory.
    pub(super) fn buffer(&mut self, library: bool) -> (Memory, bool) {
        let library = library && !self.spare[1].is_empty();
        let spare = self.spare[usize::from(library)].pop();
        (spare.unwrap_or_else(|| Memory::new(MAX_MESSAGE_LEN)), library)
    }

    /// Posts an operation with the peer at `at`, unless there is no room.
    pub(super) fn post(
        &mut self,
        at: usize,
        kind: Kind,
        (memory, library): (Memory, bool),
        post: impl FnOnce(&dyn Endpoint, FiAddr, Context, &Memory) -> Result<()>,
    ) -> bool {
        let (to, index) = (self.peers[at].to, self.peers[at].index);
        let context = self.next;
        match post(&*self.side.ep, to, Context(context), &memory) {
            Ok(()) => {
                self.next += 1;
                self.peers[at].outstanding += 1;
                self.ops.insert(context, Op { peer: index, kind, since: Instant::now(), memory, library });
                true
            }
            Err(error) => {
                assert!(error.is_again(), "posting {kind:?}: {error}");
                self.spare[usize::from(library)].push(memory);
                false
            }
        }
    }

    /// Starts any operation with any peer.
    pub(super) fn begin(&mut self) {
        let at = self.random(self.peers.len());
        let peer = &self.peers[at];
        if peer.dead.is_some() || peer.failure.is_some() {
            return;
        }
        let favour = self.favour.filter(|_| self.random(2) == 0);
        match favour {
            Some(Favour::Leases) => return self.lend(at),
            Some(Favour::CqArm) => return self.access(at, 1, true),
            None => {}
        }
        match self.random(16) {
            0..8 => self.send(at),
            8..12 => {
                let (region, data) = (self.random(2), self.random(4) == 0);
                self.access(at, region, data);
            }
            12..15 => self.add(at),
            _ => self.lend(at),
        }
    }

    pub(super) fn send(&mut self, at: usize) {
        let library = self.random(3) == 0;
        let len = LENGTHS[self.random(LENGTHS.len())];
        let seed = self.random(256) as u8;
        let tag = match self.random(4) {
            0 => None,
            1 if self.random(4) == 0 => Some(TRASH | u64::from(seed)),
            _ => Some((self.index as u64) << 8 | u64::from(seed)),
        };
        let data = self.random(3) == 0;
        let seed = if tag.is_some() || data { seed } else { len as u8 ^ 0x5A };
        let confirm = self.random(4) == 0;
        let (memory, library) = self.buffer(library);
        memory.slice(..len).fill(seed);
        self.post(at, Kind::Send, (memory, library), |ep, dest, context, memory| {
            let pieces = [memory.slice(..len).piece()];
            // SAFETY: the memory is kept with the operation, and is not read before the operation has ended.
            let lent = unsafe { Lent::new(&pieces, &[]) };
            let mut op = SendOp::new(lent, dest, context);
            if data {
                op.data = u64::from(seed);
                op.flags |= OpFlags::REMOTE_CQ_DATA;
            }
            if confirm {
                op.flags |= OpFlags::DELIVERY_COMPLETE;
            }
            op.call = Call::Msg;
            match tag {
                Some(tag) => ep.send_tagged(&op, tag),
                None => ep.send(&op),
            }
        });
    }

    /// Writes to this member's stripe of a region, optionally with remote CQ data, or reads back what it wrote.
    fn access(&mut self, at: usize, region: usize, data: bool) {
        let (seed, len) = (self.random(256) as u8, 1 + self.random(ACCESS));
        let len = if self.random(2) == 0 { 1 + len % 200 } else { len };
        let stripe = self.peers[at].stripes[region];
        if stripe.busy {
            return;
        }
        let target = self.place(at, region, CELLS, stripe.written.map_or(len, |(_, len)| len));
        let library = self.random(4) == 0;
        let (memory, library) = self.buffer(library);
        let posted = match stripe.written {
            Some((seed, len)) => {
                // SAFETY: as long as said, and no operation uses it.
                unsafe { memory.as_ptr().write_bytes(0, len) };
                let posted = self.post(
                    at,
                    Kind::Read { region, seed, len },
                    (memory, library),
                    |ep, peer, context, memory| {
                        let pieces = [memory.slice(..len).piece()];
                        // SAFETY: as in `send`.
                        let buf = unsafe { Lent::new(&pieces, &[]) };
                        ep.read(&rma(buf, &[target], peer, context))
                    },
                );
                if posted && self.random(2) == 0 {
                    self.peers[at].stripes[region].written = None; // the next access is a write
                }
                posted
            }
            None => {
                memory.slice(..len).fill(seed);
                self.post(
                    at,
                    Kind::Write { region, seed, len },
                    (memory, library),
                    |ep, peer, context, memory| {
                        let pieces = [memory.slice(..len).piece()];
                        // SAFETY: as in `send`.
                        let buf = unsafe { Lent::new(&pieces, &[]) };
                        let remote = [target];
                        let mut op = rma(buf, &remote, peer, context);
                        if data {
                            (op.data, op.flags) = (0xDA_7A00 | u64::from(seed), OpFlags::REMOTE_CQ_DATA);
                        }
                        op.call = Call::Msg;
                        ep.write(&op)
                    },
                )
            }
        };
        self.peers[at].stripes[region].busy = posted;
    }

    fn place(&self, at: usize, region: usize, offset: usize, len: usize) -> RemotePiece {
        let target = self.peers[at].target[region];
        let addr = target.addr + (self.stripe * STRIPE + offset) as u64;
        RemotePiece { addr, len, key: target.key }
    }

    /// Adds one to a cell of this member's own, and usually checks the old value.
    fn add(&mut self, at: usize) {
        let (region, wide, fetches) = (self.random(2), self.random(3) == 0, self.random(3) > 0);
        if self.peers[at].stripes[region].adding[usize::from(wide)] {
            return;
        }
        let (offset, len, datatype) =
            if wide { (16, 16, Datatype::Uint128) } else { (0, 8, Datatype::Uint64) };
        let target = self.place(at, region, offset, len);
        let (memory, _) = self.buffer(false);
        memory.slice(..16).put(&1_u128.to_ne_bytes());
        let posted = self.post(
            at,
            Kind::Add { region, wide, fetches },
            (memory, false),
            |ep, peer, context, memory| {
                let (one, old) = ([memory.slice(..len).piece()], [memory.slice(64..64 + len).piece()]);
                // SAFETY: as in `send`.
                let operand = unsafe { Lent::new(&one, &[]) };
                // SAFETY: as above.
                let result = unsafe { Lent::new(&old, &[]) };
                let remote = [target];
                let op = AtomicOp::new(FiOp::Sum, datatype, operand, &remote, peer, context);
                ep.atomic(&if fetches { op.fetch(result) } else { op })
            },
        );
        self.peers[at].stripes[region].adding[usize::from(wide)] = posted;
    }
}

pub(super) const fn rma<'a>(
    buf: Lent<'a>,
    remote: &'a [RemotePiece],
    peer: FiAddr,
    context: Context,
) -> RmaOp<'a> {
    RmaOp { buf, remote, peer, context, data: 0, flags: OpFlags::empty(), call: Call::Plain }
}
