//! A Node: its resources and their versions, its senders and receivers. Any thread may use it.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mxl::{FlowDefinition, Uuid};
use serde_json::Value;

use crate::clock;
use crate::connection::{Activate, Patched, Refusal, Route, Side, Terminal};
use crate::resources::{FlowIds, Home, Medium, ResourceKind, id_of};

/// Maximum flows of a Node. Each takes three resources.
pub const MAX_FLOWS: usize = 1024;
/// Maximum receivers of each medium.
pub const MAX_RECEIVERS: u32 = 64;

/// How a Node describes itself.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// From this all ids follow: the same after a restart, and different from those of other Nodes.
    pub seed: String,
    /// Its name for people.
    pub label: String,
    /// The host's name.
    pub hostname: String,
    /// The address at which controllers reach its APIs: host and port.
    pub host: (String, u16),
    /// The id of the MXL domain; without one, it follows from the seed.
    pub domain: Option<Uuid>,
    /// Number of receivers of video, of audio and of data each: at most 64.
    pub receivers: u32,
    /// Where mirrors ask for the flows, `mxl://HOST:PORT/`, if they can.
    pub gateway: Option<String>,
}

/// A resource: its version, and the rest of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Resource {
    /// Seconds and nanoseconds of TAI.
    pub version: String,
    /// All of it, with the version.
    pub value: Value,
}

/// The resources of a Node, and what controllers have made of its senders and receivers.
pub struct Node {
    home: Home,
    domain: Uuid,
    state: Mutex<NodeState>,
    changed: Condvar,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("home", &self.home).finish_non_exhaustive()
    }
}

struct NodeState {
    resources: BTreeMap<(ResourceKind, Uuid), Resource>,
    flows: BTreeMap<Uuid, FlowDefinition>,
    /// Those of the flows, and those whose flow may come back: they are switched off, or an activation is scheduled.
    senders: BTreeMap<Uuid, (Uuid, Terminal)>,
    receivers: BTreeMap<Uuid, (Medium, u32, Terminal)>,
    activate: Box<dyn Activate>,
    /// Counts changes of the resources and of what is scheduled.
    changes: u64,
    /// The last version: each is later than all before.
    last: u64,
}

impl Node {
    /// A Node without flows. `activate` is called for each activation.
    pub fn new(options: NodeOptions, activate: Box<dyn Activate>) -> Self {
        let id = |name: &str| id_of(&options.seed, name);
        let home = Home {
            node: id("node"),
            device: id("device"),
            label: options.label,
            hostname: options.hostname,
            host: options.host,
            gateway: options.gateway,
            born: clock::text(clock::now()),
        };
        let domain = options.domain.unwrap_or_else(|| id("domain"));
        let mut receivers = BTreeMap::new();
        for medium in Medium::ALL {
            for number in 1..=options.receivers.min(MAX_RECEIVERS) {
                let id = id(&format!("receiver {} {number}", medium.name()));
                receivers.insert(id, (medium, number, Terminal::receiver(domain)));
            }
        }
        let state = NodeState {
            resources: BTreeMap::new(),
            flows: BTreeMap::new(),
            senders: BTreeMap::new(),
            receivers,
            activate,
            changes: 0,
            last: 0,
        };
        let node = Self { home, domain, state: Mutex::new(state), changed: Condvar::new() };
        node.refresh(&mut node.lock());
        node
    }

    fn lock(&self) -> MutexGuard<'_, NodeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its id.
    pub fn id(&self) -> Uuid {
        self.home.node
    }

    /// The id of the MXL domain.
    pub fn domain(&self) -> Uuid {
        self.domain
    }

    /// The flows of the domain, from now on: at most 1,024, the others are left out.
    pub fn set_flows(&self, flows: impl IntoIterator<Item = FlowDefinition>) {
        let flows: BTreeMap<_, _> = flows.into_iter().take(MAX_FLOWS).map(|flow| (flow.id, flow)).collect();
        let mut state = self.lock();
        if state.flows == flows {
            return;
        }
        let mut senders = std::mem::take(&mut state.senders);
        state.senders = flows
            .keys()
            .map(|flow| {
                let id = FlowIds::new(self.home.node, *flow).sender;
                (id, senders.remove(&id).unwrap_or_else(|| (*flow, Terminal::sender(self.domain, *flow))))
            })
            .collect();
        // One that is switched off is still off when its flow comes back. An activation is made, or fails and is told.
        let is_kept = |terminal: &Terminal| !terminal.route().is_enabled || terminal.due().is_some();
        let kept = senders.into_iter().filter(|(_, (_, terminal))| is_kept(terminal));
        state.senders.extend(kept.take(MAX_FLOWS));
        state.flows = flows;
        self.refresh(&mut state);
    }

    /// Makes the resources anew. Those that have changed get a version.
    fn refresh(&self, state: &mut NodeState) {
        let mut now = BTreeMap::new();
        let mut add = |kind, id, value| now.insert((kind, id), value);
        add(ResourceKind::Node, self.home.node, self.home.node());
        add(ResourceKind::Device, self.home.device, self.home.device());
        for (flow, terminal) in state.senders.values() {
            if let Some(definition) = state.flows.get(flow) {
                for (kind, id, value) in self.home.of_flow(definition, terminal.route()) {
                    add(kind, id, value);
                }
            }
        }
        for (id, (medium, number, terminal)) in &state.receivers {
            add(ResourceKind::Receiver, *id, self.home.receiver(*id, *medium, *number, terminal.route()));
        }
        let mut former = std::mem::take(&mut state.resources);
        let count = former.len();
        let mut has_changed = count != now.len();
        for (key, mut value) in now {
            let resource = match former.remove(&key) {
                Some(mut there) => {
                    value["version"] = there.version.clone().into();
                    if there.value != value {
                        has_changed = true;
                        there.version = clock::text(state.next_version());
                        value["version"] = there.version.clone().into();
                        there.value = value;
                    }
                    there
                }
                None => {
                    has_changed = true;
                    let version = clock::text(state.next_version());
                    value["version"] = version.clone().into();
                    Resource { version, value }
                }
            };
            state.resources.insert(key, resource);
        }
        if has_changed {
            state.changes += 1;
            self.changed.notify_all();
        }
    }

    /// Sleeps until something has changed since a count of changes, at most for `limit`. Returns the count now. While
    /// it sleeps, it makes the activations that are due: [`Registration`](crate::Registration) calls it, but not while
    /// it waits for a registry. A program whose activations must be in time calls it in a loop of its own.
    pub fn wait(&self, since: u64, limit: Duration) -> u64 {
        let (mut state, begin) = (self.lock(), Instant::now());
        loop {
            self.activate_due(&mut state);
            let left = limit.saturating_sub(begin.elapsed());
            if state.changes != since || left.is_zero() {
                return state.changes;
            }
            let next = state.terminals().filter_map(|(_, terminal)| terminal.due()).min();
            let until = next.map(|at| Duration::from_nanos(at.saturating_sub(clock::now())));
            let nap = until.map_or(left, |until| until.min(left));
            let waited = self.changed.wait_timeout(state, nap);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Wakes whoever waits for a change.
    pub fn wake(&self) {
        self.lock().changes += 1;
        self.changed.notify_all();
    }

    /// Makes the activations whose time has come, the earliest first.
    fn activate_due(&self, state: &mut NodeState) {
        if state.terminals().all(|(_, terminal)| terminal.due().is_none()) {
            return;
        }
        let now = clock::now();
        let is_due = |(id, terminal): (Uuid, &Terminal)| Some((terminal.due().filter(|at| *at <= now)?, id));
        let mut due: Vec<_> = state.terminals().filter_map(is_due).collect();
        due.sort_unstable();
        for (_, id) in due {
            let NodeState { senders, receivers, activate, flows, .. } = &mut *state;
            let result = if let Some((flow, terminal)) = senders.get_mut(&id) {
                let definition = flows.get(flow);
                let done = terminal.activate(now, |route| match definition {
                    Some(_) => activate.send(*flow, route.is_enabled),
                    None => Err("its flow has ended".into()),
                });
                let value = || self.home.sender(definition?, terminal.route()).into();
                done.map(|()| (ResourceKind::Sender, value()))
            } else if let Some((medium, number, terminal)) = receivers.get_mut(&id) {
                let done = terminal.activate(now, |route| activate.receive(id, route));
                let value = || self.home.receiver(id, *medium, *number, terminal.route());
                done.map(|()| (ResourceKind::Receiver, Some(value())))
            } else {
                continue;
            };
            match result {
                Ok((kind, Some(value))) => self.renew(state, (kind, id), value),
                Ok((_, None)) => {}
                Err(why) => state.activate.failed(id, &why),
            }
        }
    }

    /// All resources, in the order in which they are registered.
    pub(crate) fn resources(&self) -> BTreeMap<(ResourceKind, Uuid), Resource> {
        self.lock().resources.clone()
    }

    /// The ids of the senders or receivers.
    pub(crate) fn terminals(&self, side: Side) -> Vec<Uuid> {
        let state = self.lock();
        match side {
            Side::Sender => {
                let is_there = |flow| state.flows.contains_key(flow);
                state.senders.iter().filter(|(_, (flow, _))| is_there(flow)).map(|(id, _)| *id).collect()
            }
            Side::Receiver => state.receivers.keys().copied().collect(),
        }
    }

    /// A sender or a receiver.
    pub(crate) fn terminal(&self, side: Side, id: Uuid) -> Option<Terminal> {
        let state = self.lock();
        match side {
            Side::Sender => {
                let (flow, terminal) = state.senders.get(&id)?;
                state.flows.contains_key(flow).then(|| terminal.clone())
            }
            Side::Receiver => state.receivers.get(&id).map(|(.., terminal)| terminal.clone()),
        }
    }

    /// The active routes of the receivers.
    pub fn receivers(&self) -> Vec<(Uuid, Route)> {
        self.lock().receivers.iter().map(|(id, (.., terminal))| (*id, terminal.route().clone())).collect()
    }

    /// Changes what is staged for a sender or a receiver, and activates it at once or later if the request says so.
    /// Returns the status and the body of the answer.
    ///
    /// # Errors
    /// Those of [`Terminal::patch`]; 404 for an id that it does not have.
    pub(crate) fn patch(&self, side: Side, id: Uuid, request: &Value) -> Result<(u16, Value), Refusal> {
        let mut state = self.lock();
        // The thread that does this may be late.
        self.activate_due(&mut state);
        // Not a version: these run ahead of a clock that was set back.
        let now = clock::now();
        let NodeState { senders, receivers, activate, flows, .. } = &mut *state;
        let (answer, patched, kind, value) = match side {
            Side::Sender => {
                let (flow, terminal) = senders.get_mut(&id).ok_or_else(unknown)?;
                let definition = flows.get(flow).ok_or_else(unknown)?;
                let (answer, patched) =
                    terminal.patch(request, now, |route| activate.send(*flow, route.is_enabled))?;
                (answer, patched, ResourceKind::Sender, self.home.sender(definition, terminal.route()))
            }
            Side::Receiver => {
                let (medium, number, terminal) = receivers.get_mut(&id).ok_or_else(unknown)?;
                let (answer, patched) = terminal.patch(request, now, |route| activate.receive(id, route))?;
                let value = self.home.receiver(id, *medium, *number, terminal.route());
                (answer, patched, ResourceKind::Receiver, value)
            }
        };
        match patched {
            Patched::Staged => Ok((200, answer)),
            Patched::Activated => {
                self.renew(&mut state, (kind, id), value);
                Ok((200, answer))
            }
            Patched::Scheduled => {
                state.changes += 1;
                self.changed.notify_all();
                Ok((202, answer))
            }
        }
    }

    /// Gives a resource a new version: IS-04 wants one for each activation, also for one that changes nothing.
    fn renew(&self, state: &mut NodeState, key: (ResourceKind, Uuid), mut value: Value) {
        let version = clock::text(state.next_version());
        value["version"] = version.clone().into();
        state.resources.insert(key, Resource { version, value });
        state.changes += 1;
        self.changed.notify_all();
    }
}

fn unknown() -> Refusal {
    (404, "no such sender or receiver".into())
}

impl NodeState {
    /// The time in nanoseconds of TAI, later than each that it has returned before.
    fn next_version(&mut self) -> u64 {
        self.last = clock::now().max(self.last + 1);
        self.last
    }

    fn terminals(&self) -> impl Iterator<Item = (Uuid, &Terminal)> {
        let senders = self.senders.iter().map(|(id, (_, terminal))| (*id, terminal));
        senders.chain(self.receivers.iter().map(|(id, (.., terminal))| (*id, terminal)))
    }
}

#[cfg(test)]
mod tests {
    use mxl::Rational;
    use serde_json::json;

    use super::*;

    fn node() -> (Node, FlowDefinition, Uuid) {
        let options = NodeOptions {
            seed: "seed".into(),
            label: "label".into(),
            hostname: "host".into(),
            host: ("127.0.0.1".into(), 1),
            domain: None,
            receivers: 1,
            gateway: None,
        };
        let node = Node::new(options, Box::new(()));
        let flow = FlowDefinition::video("camera", 1920, 1080, Rational::new(50, 1)).unwrap();
        node.set_flows([flow.clone()]);
        let sender = node.terminals(Side::Sender)[0];
        (node, flow, sender)
    }

    fn set(node: &Node, sender: Uuid, is_enabled: bool) -> Result<(u16, Value), Refusal> {
        let activation = json!({ "mode": "activate_immediate" });
        node.patch(Side::Sender, sender, &json!({ "master_enable": is_enabled, "activation": activation }))
    }

    #[test]
    fn a_sender_that_is_off_is_still_off_when_its_flow_comes_back() {
        let (node, flow, sender) = node();
        set(&node, sender, false).unwrap();
        node.set_flows([]);
        assert!(node.terminals(Side::Sender).is_empty() && node.terminal(Side::Sender, sender).is_none());
        assert_eq!(set(&node, sender, true).unwrap_err().0, 404);
        assert!(node.resources().keys().all(|(kind, _)| *kind != ResourceKind::Sender));
        node.set_flows([flow]);
        assert!(!node.terminal(Side::Sender, sender).unwrap().route().is_enabled);
        assert_eq!(node.resources()[&(ResourceKind::Sender, sender)].value["subscription"]["active"], false);
    }

    /// Schedules the end of a sender.
    fn schedule(node: &Node, sender: Uuid, after: &str) {
        let activation = json!({ "mode": "activate_scheduled_relative", "requested_time": after });
        let request = json!({ "master_enable": false, "activation": activation });
        assert_eq!(node.patch(Side::Sender, sender, &request).unwrap().0, 202);
    }

    #[test]
    fn an_activation_outlives_a_short_absence_of_its_flow() {
        let (node, flow, sender) = node();
        schedule(&node, sender, "0:50000000");
        node.set_flows([]);
        node.set_flows([flow]);
        let changes = node.lock().changes;
        node.wait(changes, Duration::from_secs(5));
        assert!(!node.terminal(Side::Sender, sender).unwrap().route().is_enabled);
    }

    #[test]
    fn an_activation_whose_flow_has_ended_is_told() {
        struct Told(std::sync::mpsc::Sender<String>);
        impl Activate for Told {
            fn receive(&mut self, _: Uuid, _: &Route) -> Result<(), String> {
                Ok(())
            }
            fn send(&mut self, _: Uuid, _: bool) -> Result<(), String> {
                Ok(())
            }
            fn failed(&mut self, _: Uuid, why: &str) {
                self.0.send(why.into()).unwrap();
            }
        }
        let (node, _, sender) = node();
        let (tell, told) = std::sync::mpsc::channel();
        node.lock().activate = Box::new(Told(tell));
        schedule(&node, sender, "0:0");
        node.set_flows([]);
        let changes = node.lock().changes;
        node.wait(changes, Duration::ZERO);
        assert_eq!(told.try_recv().as_deref(), Ok("its flow has ended"));
    }

    #[test]
    fn activations_follow_the_clock_after_it_was_set_back() {
        let (node, _, sender) = node();
        let now = clock::now();
        let hour = 3600 * 1_000_000_000;
        node.lock().last = now + hour;
        schedule(&node, sender, "1:0");
        assert!(node.terminal(Side::Sender, sender).unwrap().due().unwrap() < now + hour);
    }

    #[test]
    fn each_activation_gives_its_resource_alone_a_version() {
        let (node, _, sender) = node();
        let before = node.resources();
        set(&node, sender, true).unwrap();
        let after = node.resources();
        let changed: Vec<_> = after.iter().filter(|(key, resource)| before[*key] != **resource).collect();
        let [(key, resource)] = changed[..] else { panic!("{changed:?}") };
        assert_eq!(*key, (ResourceKind::Sender, sender));
        assert_eq!(resource.value["version"], resource.version);
        let without = |mut value: Value| {
            value["version"] = Value::Null;
            value
        };
        assert_eq!(without(resource.value.clone()), without(before[key].value.clone()));
    }
}
