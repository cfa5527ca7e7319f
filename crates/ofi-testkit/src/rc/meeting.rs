//! Connections, simulating rdma_cm.

use std::collections::VecDeque;
use std::net::SocketAddr;

use ofi_verbs::rc::{CmEventKind, ConnParam, Timers, refusal};

use super::fabric::{Fabric, Pair, Receives};

/// The first of the ports that endpoints get if they request none.
const FIRST_PORT: u16 = 20_001;

/// The stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It has an address.
    Bound,
    /// Resolving the device and the route.
    Resolving,
    /// The request was sent to the other end.
    Asking,
    /// A request from the other end has arrived.
    Asked,
    /// The other end was answered.
    Accepted,
    /// Established.
    Open,
    /// Ended or refused.
    Over,
}

/// One end of a connection.
pub struct Id {
    pub endpoint: u64,
    pub stage: Stage,
    pub own: SocketAddr,
    pub peer: SocketAddr,
    pub other: Option<usize>,
    pub qp: Option<u32>,
    /// Its time limits for the other end.
    pub timers: Timers,
    /// Whether its address belongs to it alone.
    pub bound: bool,
    /// The earliest time of its next event: events of one end keep their order.
    due: u64,
}

/// An event for an endpoint.
pub struct Told {
    pub kind: CmEventKind,
    /// The connection end of the event; for a request, the new one.
    pub id: usize,
    /// The reason of a rejection.
    pub status: i32,
    pub data: Vec<u8>,
}

/// Messages in flight between ends.
pub enum CmMessage {
    /// An event for an end itself.
    Tell(usize, CmEventKind),
    /// A request to a listener.
    Ask(usize, Vec<u8>),
    /// The second end refuses the first end, for this reason.
    Reject(usize, i32, Vec<u8>),
    /// The second end grants the request of the first.
    Grant(usize, usize, Vec<u8>),
    /// The other end knows of the grant, and confirms it to this one.
    Confirm(usize),
    /// Reports to one end that the other one is gone.
    Part(usize),
}

impl CmMessage {
    pub const fn to(&self) -> usize {
        match self {
            Self::Tell(id, _) | Self::Ask(id, _) | Self::Reject(id, ..) => *id,
            Self::Grant(id, ..) | Self::Confirm(id) | Self::Part(id) => *id,
        }
    }
}

impl Fabric {
    /// Creates an end.
    pub fn new_id(&mut self, endpoint: u64, stage: Stage, own: SocketAddr, peer: SocketAddr) -> usize {
        self.last.id += 1;
        let bound = stage == Stage::Bound;
        let timers = Timers::default();
        let id = Id { endpoint, stage, own, peer, other: None, qp: None, timers, bound, due: 0 };
        self.ids.insert(self.last.id, id);
        self.last.id
    }

    /// A free port. After the last one the search begins anew.
    ///
    /// # Panics
    /// If all are in use.
    pub fn new_port(&mut self) -> u16 {
        for _ in FIRST_PORT..=u16::MAX {
            let next = self.last.port.checked_add(1).filter(|&port| port >= FIRST_PORT);
            self.last.port = next.unwrap_or(FIRST_PORT);
            if !self.is_in_use(self.last.port) {
                return self.last.port;
            }
        }
        panic!("all ports from {FIRST_PORT} on are in use");
    }

    fn is_in_use(&self, port: u16) -> bool {
        let mut ends = self.ids.values().map(|id| id.own);
        self.listening.keys().any(|at| at.port() == port) || ends.any(|own| own.port() == port)
    }

    /// Gives an end a new queue pair.
    pub fn new_pair(&mut self, id: usize) -> Option<u32> {
        let endpoint = self.ids.get(&id)?.endpoint;
        let requests = self.endpoints.get(&endpoint)?.sizes.requests;
        self.add_pair(id, Pair::new(endpoint, Receives::Of(endpoint), requests))
    }

    /// Gives an end an existing queue pair.
    pub fn add_pair(&mut self, id: usize, pair: Pair) -> Option<u32> {
        let end = self.ids.get_mut(&id)?;
        self.last.pair += 1;
        let free = (1..).find(|qp| !self.pairs.contains_key(qp));
        let qp = free.filter(|_| self.plan.reuses).unwrap_or(self.last.pair);
        end.qp = Some(qp);
        self.pairs.insert(qp, pair);
        Some(qp)
    }

    /// Redirects the events of an end to another endpoint, including the pending ones.
    pub fn move_to(&mut self, id: usize, endpoint: u64) {
        let Some(end) = self.ids.get_mut(&id) else { return };
        let from = std::mem::replace(&mut end.endpoint, endpoint);
        let Some(it) = self.endpoints.get_mut(&from) else { return };
        let (waiting, others): (VecDeque<Told>, _) =
            std::mem::take(&mut it.told).into_iter().partition(|told| told.id == id);
        it.told = others;
        if let Some(it) = self.endpoints.get_mut(&endpoint) {
            waiting.into_iter().for_each(|told| it.tell(told));
        }
    }

    /// Sends a message with a random delay.
    pub fn say(&mut self, message: CmMessage) {
        let slow = self.chance(self.plan.slow);
        let mut due = self.steps + if slow { self.draw() % 400 } else { self.draw() % 3 };
        if let Some(end) = self.ids.get_mut(&message.to()) {
            due = due.max(end.due);
            end.due = due;
        }
        self.messages.push((due, message));
    }

    /// Delivers the due messages.
    pub fn deliver_messages(&mut self) {
        let steps = self.steps;
        let messages = std::mem::take(&mut self.messages);
        let (held, messages): (Vec<_>, _) = messages.into_iter().partition(|(_, it)| self.is_held(it));
        self.messages = messages;
        let mut due: Vec<_> = self.messages.extract_if(.., |(due, _)| *due <= steps).collect();
        self.messages.extend(held);
        due.sort_by_key(|(due, _)| *due); // stable: messages of one end keep their order
        for (_, message) in due {
            self.deliver(message);
        }
    }

    fn deliver(&mut self, message: CmMessage) {
        let is_own = matches!(message, CmMessage::Tell(..) | CmMessage::Ask(..));
        if !is_own && !self.speaks(message.to()) && self.ids.contains_key(&message.to()) {
            return; // it is disconnected
        }
        match message {
            CmMessage::Tell(id, kind) => self.tell(id, kind, Vec::new()),
            CmMessage::Ask(id, data) => self.ask(id, data),
            CmMessage::Reject(id, reason, data) => {
                if self.at(id) == Some(Stage::Asking) {
                    self.set(id, Stage::Over);
                    self.tell_of(id, CmEventKind::Rejected, reason, data);
                }
            }
            CmMessage::Grant(id, by, data) => {
                let own = self.ids.get(&id).and_then(|end| end.qp);
                let other = self.ids.get(&by).and_then(|end| end.qp);
                match own.zip(other) {
                    Some((own, other)) if self.at(id) == Some(Stage::Asking) => {
                        self.ready(own, other);
                        self.set(id, Stage::Open);
                        self.tell(id, CmEventKind::Established, data);
                    }
                    // The end that granted it closed before the grant arrived: the kernel rejects in its place.
                    None if other.is_none() && self.at(id) == Some(Stage::Asking) => {
                        self.set(id, Stage::Over);
                        self.tell_of(id, CmEventKind::Rejected, refusal::BY_PROGRAM, Vec::new());
                    }
                    // The requester no longer wants the connection and says so, or is gone.
                    _ if self.chance(50) => self.say(CmMessage::Part(by)),
                    _ => self.say(CmMessage::Tell(by, CmEventKind::Failed)),
                }
            }
            CmMessage::Confirm(id) => {
                if self.at(id) == Some(Stage::Accepted) {
                    self.set(id, Stage::Open);
                    self.tell(id, CmEventKind::Established, Vec::new());
                }
            }
            CmMessage::Part(id) => {
                if matches!(self.at(id), Some(Stage::Open | Stage::Accepted)) {
                    if let Some(qp) = self.ids.get(&id).and_then(|end| end.qp)
                        && !self.chance(self.plan.overtaken)
                    {
                        self.report_all(qp);
                    }
                    self.set(id, Stage::Over);
                    self.tell(id, CmEventKind::Disconnected, Vec::new());
                }
            }
        }
    }

    /// An endpoint takes an event. A requester that learns of the grant confirms it then: librdmacm, not the kernel.
    pub fn taken(&mut self, told: &Told) {
        let other = self.ids.get(&told.id).and_then(|end| end.other);
        if let Some(other) = other.filter(|_| told.kind == CmEventKind::Established)
            && self.at(other) == Some(Stage::Accepted)
        {
            self.say(CmMessage::Confirm(other));
        }
    }

    /// Delivers the request of an end to the listener at its destination.
    fn ask(&mut self, id: usize, data: Vec<u8>) {
        let Some((own, peer)) = self.ids.get(&id).map(|end| (end.own, end.peer)) else { return };
        if self.at(id) != Some(Stage::Asking) {
            return;
        }
        match self.listening.get(&peer).copied().filter(|_| self.speaks(id)) {
            Some(endpoint) => {
                let new = self.new_id(endpoint, Stage::Asked, peer, own);
                if let Some(end) = self.ids.get_mut(&new) {
                    end.other = Some(id);
                }
                if let Some(end) = self.ids.get_mut(&id) {
                    end.other = Some(new);
                }
                self.tell(new, CmEventKind::Request, data);
            }
            None => {
                let vanished = self.endpoints.values().any(|it| it.vanished && it.address == Some(peer));
                if !vanished && self.speaks(id) {
                    self.say(CmMessage::Reject(id, refusal::NO_LISTENER, Vec::new()));
                } else if self.chance(50) {
                    self.say(CmMessage::Tell(id, CmEventKind::Failed));
                }
                // Or no answer is ever sent.
            }
        }
    }

    /// Notes the numbers of retries that an end asks for ([`Fabric::agree`]).
    pub fn set_retries(&mut self, id: usize, param: &ConnParam<'_>) {
        if let Some(end) = self.ids.get_mut(&id) {
            (end.timers.retries, end.timers.rnr_retries) = (param.retries, param.rnr_retries);
        }
    }

    /// Both ends use the requester's number of retransmissions. Each end sets how often the other retries a send that
    /// finds no receive, because the receives are its own.
    fn agree(&mut self, asking: usize, granting: usize) {
        let timers = |id| self.ids.get(&id).map(|end| end.timers);
        let Some((asked, granted)) = timers(asking).zip(timers(granting)) else { return };
        for (id, rnr_retries) in [(asking, granted.rnr_retries), (granting, asked.rnr_retries)] {
            let Some(end) = self.ids.get_mut(&id) else { continue };
            (end.timers.retries, end.timers.rnr_retries) = (asked.retries, rnr_retries);
            if let Some(pair) = end.qp.and_then(|qp| self.pairs.get_mut(&qp)) {
                pair.tries = rnr_retries;
            }
        }
    }

    /// The times and numbers of retries of the established connections of the endpoint at `of`.
    pub fn timers(&self, of: SocketAddr) -> Vec<Timers> {
        let at = self.endpoint_at(of);
        let is_its = |end: &&Id| end.own == of || Some(end.endpoint) == at;
        let open = self.ids.values().filter(is_its).filter(|end| end.stage == Stage::Open);
        open.map(|end| end.timers).collect()
    }

    /// Grants the other end's request. The queue pair of this end can be used from now on.
    pub fn grant(&mut self, id: usize, data: Vec<u8>) {
        let Some((own, Some(other))) = self.ids.get(&id).map(|end| (end.qp, end.other)) else { return };
        self.agree(other, id);
        let asking = self.ids.get(&other).and_then(|end| end.qp);
        if let (Some(own), Some(asking)) = (own, asking) {
            self.ready(own, asking);
        }
        self.set(id, Stage::Accepted);
        if self.speaks(id) {
            self.say(CmMessage::Grant(other, id, data));
        }
    }

    /// Refuses the other end's request.
    pub fn refuse(&mut self, id: usize, data: Vec<u8>) {
        if let Some(other) = self.ids.get(&id).and_then(|end| end.other).filter(|_| self.speaks(id)) {
            self.say(CmMessage::Reject(other, refusal::BY_PROGRAM, data));
        }
        self.set(id, Stage::Over);
    }

    fn at(&self, id: usize) -> Option<Stage> {
        self.ids.get(&id).map(|end| end.stage)
    }

    pub fn set(&mut self, id: usize, stage: Stage) {
        if let Some(end) = self.ids.get_mut(&id) {
            end.stage = stage;
        }
    }

    fn tell(&mut self, id: usize, kind: CmEventKind, data: Vec<u8>) {
        self.tell_of(id, kind, 0, data);
    }

    fn tell_of(&mut self, id: usize, kind: CmEventKind, status: i32, data: Vec<u8>) {
        let Some(end) = self.ids.get(&id) else { return };
        if let Some(it) = self.endpoints.get_mut(&end.endpoint) {
            it.tell(Told { kind, id, status, data });
        }
    }

    /// Reports an event to the established ends of this address.
    pub fn tell_at(&mut self, own: SocketAddr, kind: CmEventKind) {
        let is_there = |end: &Id| end.own == own && end.stage == Stage::Open;
        let found: Vec<usize> = self.ids.iter().filter(|(_, end)| is_there(end)).map(|(&id, _)| id).collect();
        found.into_iter().for_each(|id| self.tell(id, kind, Vec::new()));
    }

    /// Reports to every end that the device is gone.
    pub fn tell_removed(&mut self) {
        let all: Vec<usize> = self.ids.keys().copied().collect();
        for id in all {
            self.set(id, Stage::Over);
            self.tell(id, CmEventKind::DeviceRemoved, Vec::new());
        }
    }

    /// Whether an end is connected to the fabric.
    fn speaks(&self, id: usize) -> bool {
        let endpoint = self.ids.get(&id).and_then(|end| self.endpoints.get(&end.endpoint));
        endpoint.is_some_and(|it| !it.vanished) && !self.removed
    }

    /// Removes an end and notifies the other one.
    pub fn leave(&mut self, id: usize) {
        let other = self.ids.get(&id).and_then(|end| end.other);
        if let (Some(stage), Some(other)) = (self.at(id), other)
            && self.speaks(id)
        {
            match stage {
                Stage::Asked => self.say(CmMessage::Reject(other, refusal::BY_PROGRAM, Vec::new())),
                Stage::Open | Stage::Accepted => self.say(CmMessage::Part(other)),
                Stage::Bound | Stage::Resolving | Stage::Asking | Stage::Over => {}
            }
        }
        self.set(id, Stage::Over);
    }

    /// Disconnects an end.
    pub fn disconnect(&mut self, id: usize) {
        self.leave(id);
        if let Some(qp) = self.ids.get(&id).and_then(|end| end.qp) {
            self.fail(qp);
        }
        self.say(CmMessage::Tell(id, CmEventKind::Disconnected));
    }

    /// Forgets an end and its queue pair.
    pub fn forget(&mut self, id: usize) {
        self.leave(id);
        if let Some(qp) = self.ids.remove(&id).and_then(|end| end.qp) {
            self.destroy(qp);
        }
        for it in self.endpoints.values_mut() {
            it.untell(id);
        }
    }

    /// Closes an endpoint and drops its undelivered events.
    pub fn close(&mut self, endpoint: u64) {
        let own = |end: &Id| end.endpoint == endpoint;
        let left: Vec<usize> = self.ids.iter().filter(|(_, end)| own(end)).map(|(&id, _)| id).collect();
        left.into_iter().for_each(|id| self.forget(id));
        self.listening.retain(|_, listens| *listens != endpoint);
        self.endpoints.remove(&endpoint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rc::{Plan, SimulatedDevice};

    #[test]
    fn after_the_last_port_the_first_free_one_is_next() {
        let device = SimulatedDevice::new("ports", Plan::default());
        let mut fabric = device.lock();
        let ports = usize::from(u16::MAX - FIRST_PORT) + 1;
        let first = fabric.new_port();
        assert_eq!(first, FIRST_PORT);
        fabric.listening.insert(SocketAddr::from(([127, 0, 0, 1], first)), 1);
        let all: std::collections::BTreeSet<u16> = (1..ports).map(|_| fabric.new_port()).collect();
        assert_eq!((all.len(), all.last()), (ports - 1, Some(&u16::MAX)));
        assert_eq!(fabric.new_port(), first + 1);
    }
}
