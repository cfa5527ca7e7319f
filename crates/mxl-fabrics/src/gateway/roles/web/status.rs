//! What the roles report of their flows. They replace their reports as a whole, and the server's thread reads them: no
//! thread waits for another for longer than it takes to copy a list.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use mxl::Uuid;

/// What the gateway does with a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlowState {
    /// It is offered, and nobody mirrors it.
    #[default]
    Offered,
    /// It is to be mirrored, but no connection carries it now.
    Waiting,
    /// A connection carries it.
    Connected,
}

impl FlowState {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Offered, Self::Waiting, Self::Connected];

    /// Its name, for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Offered => "offered",
            Self::Waiting => "waiting",
            Self::Connected => "connected",
        }
    }
}

/// What has happened to a flow since the gateway first knew it. None of them decreases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Whole grains, or samples, that were passed on.
    pub forwarded: u64,
    /// Those of them that were late: see [`TargetStats::late`](crate::TargetStats::late).
    pub late: u64,
    /// Grains or samples that could not be passed on.
    pub lost: u64,
    /// Bytes of payload that were passed on.
    pub bytes: u64,
    /// Connections after the first one.
    pub reconnections: u64,
}

impl Counts {
    /// Whether these may be later counts of the same counters.
    fn continues(self, former: Self) -> bool {
        let fields = |counts: Self| {
            let Self { forwarded, late, lost, bytes, reconnections } = counts;
            [forwarded, late, lost, bytes, reconnections]
        };
        fields(self).iter().zip(fields(former)).all(|(now, former)| *now >= former)
    }

    /// The sum of both.
    pub fn plus(self, other: Self) -> Self {
        Self {
            forwarded: self.forwarded.saturating_add(other.forwarded),
            late: self.late.saturating_add(other.late),
            lost: self.lost.saturating_add(other.lost),
            bytes: self.bytes.saturating_add(other.bytes),
            reconnections: self.reconnections.saturating_add(other.reconnections),
        }
    }
}

/// A flow, as the role that carries it reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowStatus {
    /// The flow.
    pub id: Uuid,
    /// What happens to it.
    pub state: FlowState,
    /// Why it waits, if something is wrong; or empty.
    pub why: String,
    /// The other ends.
    pub peers: Vec<String>,
    /// Since the gateway first knew it.
    pub counts: Counts,
    /// When the counts were read, in nanoseconds of TAI; 0 if nothing was counted.
    pub counted: u64,
}

impl FlowStatus {
    /// A flow of which nothing has happened yet.
    pub fn offered(id: Uuid) -> Self {
        Self {
            id,
            state: FlowState::Offered,
            why: String::new(),
            peers: Vec::new(),
            counts: Counts::default(),
            counted: 0,
        }
    }
}

/// The reports of all parts of a role: one for each host of a mirror, one of a server.
#[derive(Debug, Default)]
pub struct Board(Mutex<Reports>);

#[derive(Debug, Default)]
struct Reports {
    parts: BTreeMap<String, Vec<FlowStatus>>,
    /// What parts counted of flows that they have no longer, or count anew. Counters never decrease by it.
    retired: BTreeMap<Uuid, Counts>,
}

/// Maximum flows whose former counts are kept. Beyond it, those of flows that no part reports are dropped.
const MAX_RETIRED: usize = 4096;

impl Reports {
    fn set(&mut self, part: &str, flows: Vec<FlowStatus>) {
        let now: BTreeMap<Uuid, Counts> = flows.iter().map(|flow| (flow.id, flow.counts)).collect();
        // Parts come and go with the hosts that a registry names.
        let former =
            if flows.is_empty() { self.parts.remove(part) } else { self.parts.insert(part.into(), flows) };
        let former = former.unwrap_or_default();
        for FlowStatus { id, counts, .. } in former {
            if counts != Counts::default() && !now.get(&id).is_some_and(|now| now.continues(counts)) {
                let retired = self.retired.entry(id).or_default();
                *retired = retired.plus(counts);
            }
        }
        if self.retired.len() > MAX_RETIRED {
            let reported: BTreeSet<Uuid> = self.parts.values().flatten().map(|flow| flow.id).collect();
            self.retired.retain(|id, _| reported.contains(id));
        }
    }
}

impl Board {
    /// Replaces the report of a part.
    pub fn set(&self, part: &str, flows: Vec<FlowStatus>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).set(part, flows);
    }

    /// All flows. One that two parts know is in a list once, with the sum of its counts and all of its peers.
    pub fn flows(&self) -> BTreeMap<Uuid, FlowStatus> {
        let reports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut flows = BTreeMap::<Uuid, FlowStatus>::new();
        for flow in reports.parts.values().flatten() {
            let there = flows.entry(flow.id).or_insert_with(|| FlowStatus {
                counts: reports.retired.get(&flow.id).copied().unwrap_or_default(),
                ..FlowStatus::offered(flow.id)
            });
            there.counts = there.counts.plus(flow.counts);
            there.counted = there.counted.max(flow.counted);
            there.peers.extend_from_slice(&flow.peers);
            if flow.state as u8 >= there.state as u8 {
                (there.state, there.why) = (flow.state, flow.why.clone());
            }
        }
        flows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_of_two_parts_is_listed_once() {
        let (board, id) = (Board::default(), Uuid::nil());
        let counts = |forwarded| Counts { forwarded, reconnections: 1, ..Counts::default() };
        let flow = |state, why: &str, peer: &str, forwarded| FlowStatus {
            id,
            state,
            why: why.into(),
            peers: vec![peer.into()],
            counts: counts(forwarded),
            counted: forwarded,
        };
        board.set("a", vec![flow(FlowState::Connected, "", "a:1", 5)]);
        board.set("b", vec![flow(FlowState::Waiting, "no route", "b:1", 7)]);
        let wanted = FlowStatus {
            peers: vec!["a:1".into(), "b:1".into()],
            counts: Counts { reconnections: 2, ..counts(12) },
            counted: 7,
            ..flow(FlowState::Connected, "", "", 0)
        };
        assert_eq!(board.flows()[&id], wanted);
        board.set("a", Vec::new());
        assert_eq!(board.flows()[&id].why, "no route");
        assert_eq!(board.0.lock().unwrap().parts.keys().collect::<Vec<_>>(), ["b"]);
        // It has moved from one part to the other, and then begins anew: nothing that was counted is forgotten.
        assert_eq!(board.flows()[&id].counts, Counts { reconnections: 2, ..counts(12) });
        board.set("b", vec![flow(FlowState::Connected, "", "b:1", 9)]);
        assert_eq!(board.flows()[&id].counts.forwarded, 14);
        board.set("b", vec![flow(FlowState::Connected, "", "b:1", 1)]);
        assert_eq!(board.flows()[&id].counts.forwarded, 15);
    }
}
