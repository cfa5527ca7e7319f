//! What a server reports of its flows to the web page.

use std::collections::BTreeMap;
use std::sync::Arc;

use mxl::Uuid;

use super::{PeerState, Server, Tally};
use crate::gateway::roles::web::{FlowState, FlowStatus};

/// The name of the server's report, which is the only one.
const PART: &str = "serve";
/// Maximum flows of a report, and flows whose counts are kept while nobody mirrors them.
const MAX_TALLIES: usize = 4096;

impl Server {
    /// Reports the flows that are mirrored or were, if somebody may want to see them.
    pub(super) fn report(&mut self) {
        if self.tallies.len() > MAX_TALLIES {
            let sources = &self.sources;
            self.tallies.retain(|id, _| sources.keys().any(|(sent, _)| sent == id));
        }
        let Some(board) = &self.board else { return };
        let now = mxl::time::now();
        let told = |(id, tally): (&Uuid, &Arc<Tally>)| {
            (*id, FlowStatus { counts: tally.counts(), counted: now, ..FlowStatus::offered(*id) })
        };
        let mut flows: BTreeMap<Uuid, FlowStatus> = self.tallies.iter().map(told).collect();
        for client in &self.clients {
            for (id, follow) in &client.follows {
                // Mirrors may ask for flows that are not offered, and for any number of ids that nobody has.
                let is_full = flows.len() >= MAX_TALLIES && !flows.contains_key(id);
                if is_full || !self.offers.is_offered(*id) {
                    continue;
                }
                let flow = flows.entry(*id).or_insert_with(|| FlowStatus::offered(*id));
                flow.state = FlowState::Waiting;
                flow.peers.push(client.from.to_string());
                if let Some(Err(why)) = &follow.told {
                    flow.why.clone_from(why);
                }
            }
        }
        for ((id, _), source) in &self.sources {
            let is_connected = source
                .initiator
                .inspect(|initiator| initiator.targets().any(|(_, state, _)| state == PeerState::Connected));
            if is_connected {
                flows.entry(*id).or_insert_with(|| FlowStatus::offered(*id)).state = FlowState::Connected;
            }
        }
        board.set(PART, flows.into_values().collect());
    }
}
