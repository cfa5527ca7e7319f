//! What a serving gateway offers: flows of its domain, all or those that are allowed.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use mxl::{Domain, FlowDefinition, Uuid};

use crate::gateway::roles::lines::MAX_LINE;
use crate::gateway::wire::{ControlReply, Description, MAX_LISTED};

/// A value of `--allow`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allow {
    /// Every flow of the domain.
    All,
    /// One flow.
    Flow(Uuid),
}

impl FromStr for Allow {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        text.parse()
            .map(Self::Flow)
            .map_err(|error| format!("\"{text}\" is neither all nor a flow's id: {error}"))
    }
}

/// The flows that may be sent.
#[derive(Clone, Debug)]
pub struct Offers {
    domain: Domain,
    /// `None`: all of them.
    allowed: Option<Vec<Uuid>>,
    /// Those that are switched off now.
    off: Arc<Mutex<BTreeSet<Uuid>>>,
}

impl Offers {
    /// The flows of a domain that are allowed; without any value, all.
    pub fn new(domain: Domain, allow: &[Allow]) -> Self {
        let flow = |allow: &Allow| match allow {
            Allow::All => None,
            Allow::Flow(id) => Some(*id),
        };
        let allowed = allow.iter().map(flow).collect::<Option<Vec<_>>>().filter(|ids| !ids.is_empty());
        Self { domain, allowed, off: Arc::default() }
    }

    /// The domain.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Whether a flow may be sent now.
    pub fn is_allowed(&self, id: Uuid) -> bool {
        let is_off = self.off.lock().unwrap_or_else(PoisonError::into_inner).contains(&id);
        !is_off && self.is_offered(id)
    }

    /// Whether a flow may be sent when it is not switched off.
    pub fn is_offered(&self, id: Uuid) -> bool {
        self.allowed.as_ref().is_none_or(|allowed| allowed.contains(&id))
    }

    /// Switches a flow off, or on again: here and in all copies of this value.
    pub fn switch(&self, id: Uuid, is_on: bool) {
        let mut off = self.off.lock().unwrap_or_else(PoisonError::into_inner);
        if is_on {
            off.remove(&id);
        } else {
            off.insert(id);
        }
    }

    /// The text of a flow's definition.
    ///
    /// # Errors
    /// Why it cannot be sent. A flow that is not allowed looks like one that does not exist.
    pub fn definition(&self, id: Uuid) -> Result<String, String> {
        let text = match self.domain.definition_text(id) {
            _ if !self.is_allowed(id) => return Err(format!("no flow {id} is offered")),
            Ok(text) => text,
            Err(mxl::Error::NotFound(_)) => return Err(format!("no flow {id} is offered")),
            Err(error) => return Err(format!("flow {id}: {error}")),
        };
        let text = String::from_utf8(text).map_err(|_| format!("flow {id}: its definition is not UTF-8"))?;
        let definition = FlowDefinition::parse(&text).map_err(|error| format!("flow {id}: {error}"))?;
        if definition.id != id {
            return Err(format!("flow {id}: its definition is that of {}", definition.id));
        }
        let line = ControlReply::Definition { id, text: text.clone() }.to_line();
        if line.len() > MAX_LINE {
            return Err(format!("flow {id}: its definition takes {} bytes of {MAX_LINE}", line.len()));
        }
        Ok(text)
    }

    /// The ids of all flows that may be sent, or could be if they were not switched off; `None` if the domain cannot be
    /// read.
    pub fn ids(&self) -> Option<Vec<Uuid>> {
        let mut flows = self.domain.flows().ok()?;
        flows.retain(|id| self.is_offered(*id));
        flows.truncate(MAX_LISTED);
        Some(flows)
    }

    /// The flows with valid definitions, and whether some were left out.
    ///
    /// # Errors
    /// Why the domain cannot be read.
    pub fn list(&self) -> Result<(Vec<Description>, bool), String> {
        let mut flows = self.domain.flows().map_err(|error| error.to_string())?;
        flows.retain(|id| self.is_allowed(*id));
        let more = flows.len() > MAX_LISTED;
        flows.truncate(MAX_LISTED);
        let described = |id: Uuid| {
            let definition = self.domain.definition(id).ok().filter(|definition| definition.id == id)?;
            Some(Description::new(&definition, self.domain.is_active(id).ok()?))
        };
        Ok((flows.into_iter().filter_map(described).collect(), more))
    }
}
