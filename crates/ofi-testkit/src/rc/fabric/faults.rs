//! Failures of queue pairs, queues and the device.

use std::collections::VecDeque;
use std::net::SocketAddr;

use ofi_verbs::rc::{AsyncEvent, Status};

use super::execute::{flush, place, pop_receive};
use super::{Fabric, Got, Pair, Receives, Stage};

impl Fabric {
    /// Makes a queue pair fail: some executed requests are still reported as executed, and the others are flushed.
    pub fn fail(&mut self, qp: u32) {
        let Some(mut pair) = self.pairs.remove(&qp) else { return };
        if pair.stage != Stage::Failed {
            place(&mut pair);
            let was_ready = pair.stage == Stage::Ready;
            let well = self.draw() as usize % (pair.executed.len() + 1);
            for executed in pair.executed.iter_mut().skip(well) {
                (executed.status, executed.read) = (Status::FLUSHED, None);
            }
            flush(&mut pair);
            // A message in flight has taken a receive.
            let takes = self.chance(10);
            let is_own = matches!(pair.receives, Receives::Own(..));
            let late = self.plan.late_flush;
            if late > 0 && !is_own && was_ready {
                let taken = pop_receive(&mut self.endpoints, &mut pair);
                pair.flushing = taken.map(|(id, _)| (self.steps + late, id));
            }
            // All of its own are flushed.
            while (is_own || takes && late == 0)
                && let Some((id, _)) = pop_receive(&mut self.endpoints, &mut pair)
                && let Some(it) = self.endpoints.get_mut(&pair.endpoint)
            {
                it.push(qp, id, Status::FLUSHED, Ok(Got::NOTHING));
                if !is_own {
                    break;
                }
            }
        }
        if pair.flushing.is_none() {
            self.tell_last_receive(qp, &pair);
        }
        self.pairs.insert(qp, pair);
        self.wake(qp);
    }

    /// Returns the receive of a message that was in flight when its queue pair failed.
    pub(super) fn flush_late(&mut self, qp: u32, pair: &mut Pair) {
        let Some((_, id)) = pair.flushing.take_if(|(due, _)| *due <= self.steps) else { return };
        if let Some(it) = self.endpoints.get_mut(&pair.endpoint) {
            it.push(qp, id, Status::FLUSHED, Ok(Got::NOTHING));
        }
        self.tell_last_receive(qp, pair);
    }

    fn tell_last_receive(&mut self, qp: u32, pair: &Pair) {
        if !self.plan.untold && matches!(pair.receives, Receives::Of(_)) {
            self.raise(AsyncEvent::LastReceive(qp));
        }
    }

    pub fn fail_between(&mut self, of: SocketAddr, to: SocketAddr) {
        self.pairs_of(of, Some(to)).into_iter().for_each(|qp| self.fail(qp));
    }

    pub fn vanish(&mut self, of: SocketAddr) {
        let found = self.endpoint_at(of).and_then(|number| self.endpoints.get_mut(&number));
        if let Some(it) = found {
            it.vanished = true;
        }
        self.listening.remove(&of);
    }

    /// The queue pairs of the endpoint, or the connected endpoint, of this name; with `to`, only those that are
    /// connected to that one.
    fn pairs_of(&self, of: SocketAddr, to: Option<SocketAddr>) -> Vec<u32> {
        let endpoint = self.endpoint_at(of).or_else(|| self.connected_at(of));
        let other = to.and_then(|to| self.endpoint_at(to).or_else(|| self.connected_at(to)));
        let is_between = |pair: &Pair| {
            let peer = pair.other.and_then(|qp| self.pairs.get(&qp)).map(|peer| peer.endpoint);
            Some(pair.endpoint) == endpoint && (to.is_none() || (peer.is_some() && peer == other))
        };
        self.pairs.iter().filter(|(_, pair)| is_between(pair)).map(|(&qp, _)| qp).collect()
    }

    /// Makes queue pairs fail, which only an event reports.
    pub fn break_pairs(&mut self, of: SocketAddr, to: Option<SocketAddr>) {
        for qp in self.pairs_of(of, to) {
            if let Some(pair) = self.pairs.get_mut(&qp) {
                pair.stage = Stage::Stuck;
                (pair.posted, pair.executed, pair.unplaced) = (VecDeque::new(), VecDeque::new(), None);
            }
            self.raise(AsyncEvent::PairFatal(qp));
        }
    }

    /// Makes the completion queue of the endpoint, or the connected endpoint, of this name fail.
    pub fn break_queue(&mut self, of: SocketAddr) {
        let Some(number) = self.endpoint_at(of).or_else(|| self.connected_at(of)) else { return };
        if let Some(it) = self.endpoints.get_mut(&number) {
            it.deaf = true;
            it.done.clear();
        }
        self.raise(AsyncEvent::QueueError(number as usize));
    }

    pub fn die(&mut self) {
        (self.removed, self.dead) = (true, true);
        self.raise(AsyncEvent::DeviceFatal);
    }

    pub fn remove(&mut self) {
        self.removed = true;
        self.raise(AsyncEvent::DeviceFatal);
        let pairs: Vec<u32> = self.pairs.keys().copied().collect();
        pairs.into_iter().for_each(|qp| self.fail(qp));
        self.ud.refuse_joins();
        self.tell_removed();
    }
}
