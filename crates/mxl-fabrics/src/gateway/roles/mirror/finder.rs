//! Finds the hosts of the flows that NMOS receivers are connected to, in a registry. Each has a [`Host`] while a flow
//! of it is wanted.
//!
//! [`Host`]: super::host::Host

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mxl::{Uri, Uuid};
use mxl_nmos::{AUTO, Discovery, Query, Registries};

use super::MAX_HOSTS;
use super::placed::Placed;
use super::wanted::{Share, Wanted};
use crate::gateway::roles::log::say;
use crate::gateway::roles::remote::Remote;
use crate::{Error, Result};

/// Interval of looks at what receivers are connected to.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Interval of questions to the registry: flows may move to another host.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// Minimum and maximum time without a connection after which a flow is taken from another host that is named. It is
/// doubled each time, until the flow arrives.
const MOVE_AFTER: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(320));

/// Starts the thread of a host: until one of the flags is set, it mirrors what is wanted.
pub type Start =
    Box<dyn Fn(Remote, Vec<Arc<AtomicBool>>, Option<Arc<dyn Share>>) -> Result<JoinHandle<()>> + Send>;

/// Which gateways have which flows.
type FoundFlows = std::result::Result<Vec<(Uuid, String)>, mxl_nmos::Error>;

/// The hosts that a registry has named.
pub struct Finder {
    registry: String,
    discovery: Discovery,
    query: Option<Query>,
    /// Hosts that the command line names: they mirror all that receivers are connected to.
    given: BTreeSet<String>,
    wanted: Arc<Wanted>,
    is_over: Arc<AtomicBool>,
    start: Start,
    hosts: BTreeMap<String, Found>,
    /// The host of each flow.
    places: BTreeMap<Uuid, FlowSource>,
    asked: Option<Instant>,
    /// The flows that were wanted at the last look.
    before: BTreeSet<Uuid>,
    /// What was said last of a flow, or of the registry.
    said: BTreeMap<Option<Uuid>, String>,
}

/// A host, and the flows that are mirrored of it.
struct Found {
    remote: Remote,
    placed: Arc<Placed>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// Where a flow is taken from.
struct FlowSource {
    host: String,
    /// Time without a connection after which another host is tried.
    move_after: Duration,
}

impl Finder {
    /// A finder by the Query API at this address. The given hosts are left alone.
    ///
    /// # Errors
    /// [`Error::Argument`] for an address that is wrong.
    pub fn new(
        registry: String,
        given: BTreeSet<String>,
        wanted: Arc<Wanted>,
        is_over: Arc<AtomicBool>,
        start: Start,
    ) -> Result<Self> {
        Registries::new([&*registry]).map_err(|error| Error::Argument(format!("--nmos-query: {error}")))?;
        Ok(Self {
            registry,
            discovery: Discovery::default(),
            query: None,
            given,
            wanted,
            is_over,
            start,
            hosts: BTreeMap::new(),
            places: BTreeMap::new(),
            asked: None,
            before: BTreeSet::new(),
            said: BTreeMap::new(),
        })
    }

    /// Finds hosts until the program ends, and then waits for their threads.
    pub fn run(mut self) {
        while !self.is_over.load(Ordering::Relaxed) {
            self.turn(Self::ask);
            std::thread::sleep(LOOK_EVERY);
        }
        // They end when the program does, too.
        for host in std::mem::take(&mut self.hosts).into_values() {
            // A panic of the thread was reported when it happened.
            let _ = host.thread.join();
        }
    }

    /// One look at what is wanted. It asks the registry if that is due.
    fn turn(&mut self, ask: impl FnOnce(&mut Self, &BTreeSet<Uuid>) -> FoundFlows) {
        let wanted = self.wanted.flows();
        self.leave(&wanted);
        let is_new = wanted.difference(&self.before).next().is_some();
        let is_due = self.asked.is_none_or(|asked| asked.elapsed() > ASK_EVERY);
        if is_new || (is_due && !wanted.is_empty()) {
            match ask(self, &wanted) {
                Ok(gateways) => {
                    self.said.remove(&None);
                    for flow in &wanted {
                        let named = gateways.iter().filter(|(of, _)| of == flow).map(|(_, href)| &**href);
                        self.place(*flow, named);
                    }
                }
                Err(error) => {
                    self.query = None;
                    self.tell(None, format!("NMOS query: {error}"));
                }
            }
            self.asked = Some(Instant::now());
        }
        self.before = wanted;
        // After the question: a host whose receiver has changed to another flow of it goes on.
        self.end_hosts();
    }

    fn ask(&mut self, wanted: &BTreeSet<Uuid>) -> FoundFlows {
        let query = match self.query.take() {
            Some(query) => query,
            None if self.registry == AUTO => {
                let mut log = |note: &str| say(format_args!("NMOS query: {note}"));
                Query::find(&self.discovery, &|| self.is_over.load(Ordering::Relaxed), &mut log)?
            }
            None => Query::open(&self.registry)?,
        };
        self.query.insert(query).gateways(wanted)
    }

    /// Takes a flow from a host that has it: the same one as before, if that is named still, and the flow arrives.
    fn place<'a>(&mut self, flow: Uuid, named: impl Iterator<Item = &'a str>) {
        let (mut hosts, mut refusal) = (Vec::<(String, Remote)>::new(), None);
        for href in named {
            match remote(href) {
                Ok(remote) if hosts.iter().any(|(host, _)| *host == remote.to_string()) => {}
                Ok(remote) => hosts.push((remote.to_string(), remote)),
                Err(error) => refusal = Some(error),
            }
        }
        if hosts.iter().any(|(host, _)| self.given.contains(host)) {
            self.release(flow);
            return;
        }
        let (mut move_after, mut had_place) = (MOVE_AFTER.0, false);
        if let Some(FlowSource { host: former, move_after: after }) = self.places.get_mut(&flow) {
            had_place = true;
            if let Some(at) = hosts.iter().position(|(host, _)| host == former) {
                let (was_connected, silence) =
                    self.hosts.get(former).map(|host| host.placed.seen(flow)).unwrap_or_default();
                if was_connected {
                    *after = MOVE_AFTER.0;
                }
                if silence < *after {
                    return;
                }
                move_after = (*after * 2).min(MOVE_AFTER.1);
                // Those after it come first.
                hosts.rotate_left(at + 1);
                hosts.pop();
            }
        }
        for (host, remote) in hosts {
            match self.host(&host, remote) {
                Ok(placed) => {
                    self.release(flow);
                    placed.add(flow);
                    say(format_args!("flow {flow}: the registry names mxl://{host}/"));
                    self.places.insert(flow, FlowSource { host, move_after });
                    self.said.remove(&Some(flow));
                    return;
                }
                Err(error) => refusal = Some(error),
            }
        }
        // A registry that forgets a flow does not end it.
        if let Some(error) = refusal {
            self.tell(Some(flow), format!("flow {flow}: {error}"));
        } else if !had_place {
            self.tell(Some(flow), format!("flow {flow}: no gateway in the registry sends it; waits for one"));
        }
    }

    /// What is placed at a host, which may be new.
    fn host(&mut self, host: &str, remote: Remote) -> Result<Arc<Placed>> {
        if let Some(found) = self.hosts.get(host) {
            return Ok(Arc::clone(&found.placed));
        }
        if self.given.len() + self.hosts.len() >= MAX_HOSTS {
            return Err(Error::Argument(format!("one program mirrors at most {MAX_HOSTS} hosts")));
        }
        let placed = Arc::new(Placed::new(Arc::clone(&self.wanted)));
        let found = self.started(remote, Arc::clone(&placed))?;
        self.hosts.insert(host.into(), found);
        Ok(placed)
    }

    fn started(&self, remote: Remote, placed: Arc<Placed>) -> Result<Found> {
        let stop = Arc::<AtomicBool>::default();
        let stops = vec![Arc::clone(&self.is_over), Arc::clone(&stop)];
        let thread = (self.start)(remote.clone(), stops, Some(Arc::clone(&placed) as Arc<dyn Share>))?;
        Ok(Found { remote, placed, stop, thread })
    }

    /// Leaves flows that no receiver is connected to any more.
    fn leave(&mut self, wanted: &BTreeSet<Uuid>) {
        let left: Vec<Uuid> = self.places.keys().filter(|flow| !wanted.contains(flow)).copied().collect();
        for flow in left {
            self.release(flow);
        }
        self.said.retain(|of, _| of.is_none_or(|flow| wanted.contains(&flow)));
    }

    /// Ends hosts without flows. One that has got a flow while it ended begins again.
    fn end_hosts(&mut self) {
        for host in self.hosts.values().filter(|host| host.placed.is_empty()) {
            host.stop.store(true, Ordering::Relaxed);
        }
        let is_ended = |(name, host): (&String, &Found)| host.thread.is_finished().then(|| name.clone());
        for name in self.hosts.iter().filter_map(is_ended).collect::<Vec<_>>() {
            let Some(Found { remote, placed, thread, .. }) = self.hosts.remove(&name) else { continue };
            // After a panic, the registry is asked first, at the usual interval.
            let has_ended_well = thread.join().is_ok();
            if !placed.is_empty()
                && has_ended_well
                && let Ok(found) = self.started(remote, placed)
            {
                self.hosts.insert(name, found);
            } else {
                self.places.retain(|_, place| place.host != name);
            }
        }
    }

    fn release(&mut self, flow: Uuid) {
        if let Some(host) = self.places.remove(&flow).and_then(|place| self.hosts.get(&place.host)) {
            host.placed.remove(flow);
        }
    }

    /// Tells something of a flow, or of the registry, unless it was the last that was told of it.
    fn tell(&mut self, of: Option<Uuid>, what: String) {
        if self.said.get(&of) != Some(&what) {
            say(&what);
            self.said.insert(of, what);
        }
    }
}

/// The host that a registry names. Which of its flows are mirrored is for receivers to say.
fn remote(href: &str) -> Result<Remote> {
    let remote = Remote::of(&href.parse::<Uri>()?)?;
    if !remote.ids.is_empty() {
        return Err(Error::Argument(format!("{href}: a gateway's address names no flows")));
    }
    Ok(remote)
}

#[cfg(test)]
mod tests;
