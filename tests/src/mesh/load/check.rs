//! Checks the results of operations.

use ofi_testkit::prelude::*;

use super::{
    BOUND, FIRST, GIVE_BACK, GRACE, Kind, LEASE, LEASE_SEED, Load, MAX_MESSAGE_LEN, OFFER, OP_TIMEOUT,
    RECEIVES, RETURN, SEARCH, TAGGED_RECEIVE, TRASH,
};

impl Load {
    /// Records a failure that only a death can explain.
    pub(super) fn doubt(&mut self, what: impl FnOnce() -> String) {
        if !self.mourning && self.omen.is_none() {
            self.omen = Some((Instant::now(), what()));
        }
    }

    pub(super) fn check_patience(&self) {
        if let Some((at, what)) = &self.omen {
            let explained = self.mourning || at.elapsed() < OP_TIMEOUT / 4;
            assert!(explained, "member {}, though no member died: {what}", self.index);
        }
        for op in self.ops.values() {
            let report = || format!("{:?} to {} stands still\n{}", op.kind, op.peer, self.side.report());
            assert!(op.since.elapsed() < OP_TIMEOUT, "member {}: {}", self.index, report());
        }
        for peer in &self.peers {
            let explained =
                peer.dead.is_some() || peer.failure.is_none_or(|at| at.elapsed() < OP_TIMEOUT / 2);
            assert!(explained, "member {}: operations with the living {} fail", self.index, peer.index);
        }
    }

    /// Processes all entries of the queue.
    pub(super) fn take_all(&mut self) {
        self.side.poll();
        while let Some(event) = self.side.next() {
            self.take(event);
        }
    }

    pub(super) fn take(&mut self, event: Event) {
        let context = event.context();
        match event {
            Event::Done(entry, _) if entry.flags.contains(CompletionFlags::REMOTE_WRITE) => {
                assert!(entry.data >> 8 == 0xDA7A || self.wary, "{entry:?}");
            }
            Event::Done(_, FiAddr::NOTAVAIL) if self.wary && context < SEARCH => self.again(context),
            event if context == SEARCH => {
                self.searching = false;
                if let Event::Failed(error) = event {
                    assert_eq!(error.err, Errno::ENOMSG, "{error:?}");
                }
            }
            // An injected message is reported only if it failed.
            event if context == GIVE_BACK => self.doubt(|| format!("{event:?}")),
            Event::Done(entry, _) if context < FIRST => {
                self.received(context, &entry);
                self.again(context);
            }
            Event::Failed(error) if context < FIRST => {
                if error.err != Errno::ECANCELED {
                    self.doubt(|| format!("a receive failed: {error:?}"));
                }
                assert_ne!(error.err, Errno::ETRUNC, "{error:?}");
                self.again(context);
            }
            event => self.ended(context, event),
        }
    }

    /// Posts a receive again, now or later: messages that arrive meanwhile are unexpected.
    fn again(&mut self, context: usize) {
        let number = if context < TAGGED_RECEIVE { context } else { context - TAGGED_RECEIVE + RECEIVES };
        if self.random(8) == 0 {
            let later = self.steps + self.random(60) as u64;
            self.lazy.push((number, later));
        } else {
            self.receive(number);
        }
    }

    pub(super) fn receive(&self, number: usize) {
        let memory = &self.receives[number];
        // Bytes of an earlier message must not count as this one's. SAFETY: `MAX_MESSAGE_LEN` bytes of ours, and no
        // receive is posted on them.
        unsafe { memory.as_ptr().write_bytes(0, MAX_MESSAGE_LEN) };
        let pieces = [memory.slice(..).piece()];
        // SAFETY: the memory is freed after the endpoint, and is only read when the receive has ended.
        let lent = unsafe { Lent::new(&pieces, &[]) };
        let posted = if number < RECEIVES {
            self.side.ep.receive(&ReceiveOp::new(lent, Context(number)))
        } else {
            let context = Context(TAGGED_RECEIVE + number - RECEIVES);
            let all = TagMatch { tag: 0, ignore: !TRASH };
            self.side.ep.receive_tagged(&ReceiveOp::new(lent, context), all)
        };
        posted.expect("a receive");
    }

    /// Checks a message.
    fn received(&mut self, context: usize, entry: &CqTaggedEntry) {
        let tagged = context >= TAGGED_RECEIVE;
        let number = if tagged { context - TAGGED_RECEIVE + RECEIVES } else { context };
        let memory = self.receives[number].clone();
        if tagged && entry.tag & OFFER != 0 {
            return self.borrow(entry.tag, &memory);
        }
        if tagged && entry.tag & RETURN != 0 {
            let id = entry.tag & !RETURN;
            return self.leases.retain(|lease| lease.id != id);
        }
        let seed = if tagged {
            entry.tag as u8
        } else if entry.flags.contains(CompletionFlags::REMOTE_CQ_DATA) {
            entry.data as u8
        } else {
            entry.len as u8 ^ 0x5A
        };
        memory.check(entry.len, seed);
        self.done += 1;
    }

    fn ended(&mut self, context: usize, event: Event) {
        let op =
            self.ops.remove(&context).unwrap_or_else(|| panic!("ended twice, or never begun: {event:?}"));
        let peer = self.peers.iter_mut().find(|peer| peer.index == op.peer).expect("a peer of the operation");
        peer.outstanding -= 1;
        let failure = match event {
            Event::Done(..) => None,
            Event::Failed(error) => Some(error),
        };
        if let Some(error) = &failure {
            // A lease may have been withdrawn; everything else fails only with dead members.
            if !matches!(op.kind, Kind::Borrow { .. }) {
                peer.failure.get_or_insert_with(Instant::now);
                peer.failed += 1;
            }
            assert_ne!(error.err, Errno::ETRUNC, "{error:?}");
            if let Some((_, refused)) = &mut peer.dead {
                *refused = true;
            }
        } else {
            peer.done += 1;
            self.done += 1;
        }
        let good = failure.is_none();
        let to = peer.to;
        match op.kind {
            Kind::Send => {}
            Kind::Write { region, seed, len } => {
                let stripe = &mut peer.stripes[region];
                (stripe.busy, stripe.written) = (false, good.then_some((seed, len)));
            }
            Kind::Read { region, seed, len } => {
                peer.stripes[region].busy = false;
                if good {
                    op.memory.check(len, seed);
                }
            }
            Kind::Add { region, wide, fetches } => {
                let stripe = &mut peer.stripes[region];
                stripe.adding[usize::from(wide)] = false;
                if good && !fetches {
                    let cell = &mut stripe.cells[usize::from(wide)];
                    *cell = cell.map(|known| known.wrapping_add(1));
                } else if good {
                    let bytes = op.memory.slice(64..72).bytes();
                    let old = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
                    let cell = &mut stripe.cells[usize::from(wide)];
                    if let Some(known) = *cell {
                        assert_eq!(old, known, "a sum at member {} (wide: {wide})", op.peer);
                    }
                    *cell = Some(old.wrapping_add(1));
                }
            }
            Kind::Borrow { id } => {
                if good {
                    op.memory.check(LEASE, LEASE_SEED);
                }
                self.give_back(to, id);
            }
        }
        self.spare[usize::from(op.library)].push(op.memory);
    }

    /// Sends to dead members until a send fails, and removes members without open operations. Operations may take as
    /// long as the bound allows.
    pub(super) fn settle(&mut self) -> Vec<(usize, u64, u64)> {
        let mut settled = Vec::new();
        for at in (0..self.peers.len()).rev() {
            let peer = &self.peers[at];
            let Some((since, refused)) = peer.dead else { continue };
            let left: Vec<Kind> =
                self.ops.values().filter(|op| op.peer == peer.index).map(|op| op.kind).collect();
            assert!(
                since.elapsed() < BOUND + GRACE,
                "member {}: {left:?} with the dead {} after {:?} (refused: {refused})\n{}",
                self.index,
                peer.index,
                since.elapsed(),
                self.side.report()
            );
            if !left.is_empty() {
                continue;
            }
            if refused {
                let gone = self.peers.swap_remove(at);
                self.side.av.remove(&[gone.to]).expect("removal of an address");
                settled.push((gone.index, gone.done, gone.failed));
            } else {
                self.send(at);
            }
        }
        settled
    }
}
