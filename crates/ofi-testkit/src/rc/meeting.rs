//! Connections: what rdma_cm does.

use std::collections::VecDeque;
use std::net::SocketAddr;

use ofi_verbs::rc::CmEventKind;

use super::fabric::{Fabric, Pair, Receives};

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It has an address.
    Bound,
    /// The device and the way are looked for.
    Resolving,
    /// The other end has been asked.
    Asking,
    /// The other end asks.
    Asked,
    /// The other end was answered.
    Accepted,
    /// It is there.
    Open,
    /// It is over, or refused.
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
    /// Whether its address is its own alone.
    pub bound: bool,
    /// What happens to it next does not happen before: events of one end keep their order.
    due: u64,
}

/// What an endpoint is told.
pub struct Told {
    pub kind: CmEventKind,
    /// To which of its ends; of a request, the new one.
    pub id: usize,
    pub data: Vec<u8>,
}

/// What is under way between ends.
pub enum Message {
    /// An end learns something of its own.
    Tell(usize, CmEventKind),
    /// An end asks whoever listens.
    Ask(usize, Vec<u8>),
    /// The first end is refused, by the second.
    Reject(usize, Vec<u8>),
    /// The first end is granted what it asked for, by the second.
    Grant(usize, usize, Vec<u8>),
    /// The first end knows that it is granted, and so does the second.
    Confirm(usize),
    /// An end is told that the other one is no more.
    Part(usize),
}

impl Message {
    const fn to(&self) -> usize {
        match self {
            Self::Tell(id, _) | Self::Ask(id, _) | Self::Reject(id, _) => *id,
            Self::Grant(id, ..) | Self::Confirm(id) | Self::Part(id) => *id,
        }
    }
}

impl Fabric {
    /// A new end.
    pub fn new_id(&mut self, endpoint: u64, stage: Stage, own: SocketAddr, peer: SocketAddr) -> usize {
        self.last.id += 1;
        let bound = stage == Stage::Bound;
        let id = Id { endpoint, stage, own, peer, other: None, qp: None, bound, due: 0 };
        self.ids.insert(self.last.id, id);
        self.last.id
    }

    /// A port that nobody uses.
    pub fn new_port(&mut self) -> u16 {
        self.last.port = self.last.port.max(20_000) + 1;
        self.last.port
    }

    /// Gives an end a queue pair.
    pub fn new_pair(&mut self, id: usize) -> Option<u32> {
        let endpoint = self.ids.get(&id)?.endpoint;
        let requests = self.endpoints.get(&endpoint)?.sizes.requests;
        self.add_pair(id, Pair::new(endpoint, Receives::Of(endpoint), requests))
    }

    /// The same, which is as it is.
    pub fn add_pair(&mut self, id: usize, pair: Pair) -> Option<u32> {
        let end = self.ids.get_mut(&id)?;
        self.last.pair += 1;
        end.qp = Some(self.last.pair);
        self.pairs.insert(self.last.pair, pair);
        Some(self.last.pair)
    }

    /// Has what an end is told come to another endpoint, what waits too.
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

    /// Sends a message, which takes as long as is drawn.
    pub fn say(&mut self, message: Message) {
        let slow = self.chance(self.plan.slow);
        let mut due = self.steps + if slow { self.draw() % 400 } else { self.draw() % 3 };
        if let Some(end) = self.ids.get_mut(&message.to()) {
            due = due.max(end.due);
            end.due = due;
        }
        self.messages.push((due, message));
    }

    /// Delivers the messages for which it is time.
    pub fn deliver_messages(&mut self) {
        let steps = self.steps;
        let mut due: Vec<_> = self.messages.extract_if(.., |(due, _)| *due <= steps).collect();
        due.sort_by_key(|(due, _)| *due); // stable: those of one end keep their order
        for (_, message) in due {
            self.deliver(message);
        }
    }

    fn deliver(&mut self, message: Message) {
        let is_own = matches!(message, Message::Tell(..) | Message::Ask(..));
        if !is_own && !self.speaks(message.to()) && self.ids.contains_key(&message.to()) {
            return; // it is cut off
        }
        match message {
            Message::Tell(id, kind) => self.tell(id, kind, Vec::new()),
            Message::Ask(id, data) => self.ask(id, data),
            Message::Reject(id, data) => {
                if self.at(id) == Some(Stage::Asking) {
                    self.set(id, Stage::Over);
                    self.tell(id, CmEventKind::Rejected, data);
                }
            }
            Message::Grant(id, by, data) => {
                let pairs =
                    self.ids.get(&id).and_then(|end| end.qp).zip(self.ids.get(&by).and_then(|end| end.qp));
                match pairs {
                    Some((own, other)) if self.at(id) == Some(Stage::Asking) => {
                        self.ready(own, other);
                        self.set(id, Stage::Open);
                        self.tell(id, CmEventKind::Established, data);
                        self.say(Message::Confirm(by));
                    }
                    // Who asked does not want it any more, and says so, or is not there.
                    _ if self.chance(50) => self.say(Message::Part(by)),
                    _ => self.say(Message::Tell(by, CmEventKind::Failed)),
                }
            }
            Message::Confirm(id) => {
                if self.at(id) == Some(Stage::Accepted) {
                    self.set(id, Stage::Open);
                    self.tell(id, CmEventKind::Established, Vec::new());
                }
            }
            Message::Part(id) => {
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

    /// The request of an end comes to whoever listens there.
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
                    self.say(Message::Reject(id, Vec::new()));
                } else if self.chance(50) {
                    self.say(Message::Tell(id, CmEventKind::Failed));
                }
                // Or nobody says anything, ever.
            }
        }
    }

    /// How often a send of an end is tried that finds no receive.
    pub fn set_tries(&mut self, id: usize, tries: u8) {
        let qp = self.ids.get(&id).and_then(|end| end.qp);
        if let Some(pair) = qp.and_then(|qp| self.pairs.get_mut(&qp)) {
            pair.tries = tries;
        }
    }

    /// An end grants what the other one asks for. Its queue pair can be used from now on.
    pub fn grant(&mut self, id: usize, data: Vec<u8>) {
        let Some((own, Some(other))) = self.ids.get(&id).map(|end| (end.qp, end.other)) else { return };
        let asking = self.ids.get(&other).and_then(|end| end.qp);
        if let (Some(own), Some(asking)) = (own, asking) {
            self.ready(own, asking);
        }
        self.set(id, Stage::Accepted);
        if self.speaks(id) {
            self.say(Message::Grant(other, id, data));
        }
    }

    /// An end refuses what the other one asks for.
    pub fn refuse(&mut self, id: usize, data: Vec<u8>) {
        if let Some(other) = self.ids.get(&id).and_then(|end| end.other).filter(|_| self.speaks(id)) {
            self.say(Message::Reject(other, data));
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
        let Some(end) = self.ids.get(&id) else { return };
        if let Some(it) = self.endpoints.get_mut(&end.endpoint) {
            it.tell(Told { kind, id, data });
        }
    }

    /// Every end learns that the device is gone.
    pub fn tell_removed(&mut self) {
        let all: Vec<usize> = self.ids.keys().copied().collect();
        for id in all {
            self.set(id, Stage::Over);
            self.tell(id, CmEventKind::DeviceRemoved, Vec::new());
        }
    }

    /// Whether an end is not cut off.
    fn speaks(&self, id: usize) -> bool {
        let endpoint = self.ids.get(&id).and_then(|end| self.endpoints.get(&end.endpoint));
        endpoint.is_some_and(|it| !it.vanished) && !self.removed
    }

    /// An end is no more: the other one is told.
    pub fn leave(&mut self, id: usize) {
        let other = self.ids.get(&id).and_then(|end| end.other);
        if let (Some(stage), Some(other)) = (self.at(id), other)
            && self.speaks(id)
        {
            match stage {
                Stage::Asked => self.say(Message::Reject(other, Vec::new())),
                Stage::Open | Stage::Accepted => self.say(Message::Part(other)),
                Stage::Bound | Stage::Resolving | Stage::Asking | Stage::Over => {}
            }
        }
        self.set(id, Stage::Over);
    }

    /// An end says that the connection is over.
    pub fn disconnect(&mut self, id: usize) {
        self.leave(id);
        if let Some(qp) = self.ids.get(&id).and_then(|end| end.qp) {
            self.fail(qp);
        }
        self.say(Message::Tell(id, CmEventKind::Disconnected));
    }

    /// An end goes, with its queue pair.
    pub fn forget(&mut self, id: usize) {
        self.leave(id);
        if let Some(qp) = self.ids.remove(&id).and_then(|end| end.qp) {
            self.destroy(qp);
        }
        for it in self.endpoints.values_mut() {
            it.untell(id);
        }
    }

    /// An endpoint goes, with what nobody has taken.
    pub fn close(&mut self, endpoint: u64) {
        let own = |end: &Id| end.endpoint == endpoint;
        let left: Vec<usize> = self.ids.iter().filter(|(_, end)| own(end)).map(|(&id, _)| id).collect();
        left.into_iter().for_each(|id| self.forget(id));
        self.listening.retain(|_, listens| *listens != endpoint);
        self.endpoints.remove(&endpoint);
    }
}
