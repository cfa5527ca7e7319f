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
use super::wanted::Wanted;
use crate::gateway::roles::log::say;
use crate::gateway::roles::remote::Remote;
use crate::{Error, Result};

/// Interval of looks at what receivers are connected to.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Interval of questions to the registry: flows may move to another host.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// Starts the thread of a host: until one of the flags is set, it mirrors what is wanted.
pub type Start =
    Box<dyn Fn(Remote, Vec<Arc<AtomicBool>>, Option<Arc<Wanted>>) -> Result<JoinHandle<()>> + Send>;

/// The hosts that a registry has named.
pub struct Finder {
    registry: String,
    query: Option<Query>,
    wanted: Arc<Wanted>,
    is_over: Arc<AtomicBool>,
    start: Start,
    hosts: BTreeMap<String, Found>,
    /// The host of each flow.
    places: BTreeMap<Uuid, String>,
    /// What was said last of a flow, or of the registry.
    said: BTreeMap<Option<Uuid>, String>,
}

/// A host, and the flows that are mirrored of it.
struct Found {
    wanted: Arc<Wanted>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Finder {
    /// A finder by the Query API at this address.
    ///
    /// # Errors
    /// [`Error::Argument`] for an address that is wrong.
    pub fn new(
        registry: String,
        wanted: Arc<Wanted>,
        is_over: Arc<AtomicBool>,
        start: Start,
    ) -> Result<Self> {
        Registries::new([&*registry]).map_err(|error| Error::Argument(format!("--nmos-query: {error}")))?;
        let (hosts, places, said) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Ok(Self { registry, query: None, wanted, is_over, start, hosts, places, said })
    }

    /// Finds hosts until the program ends, and then waits for their threads.
    pub fn run(mut self) {
        let (mut asked, mut before) = (None::<Instant>, BTreeSet::new());
        while !self.is_over.load(Ordering::Relaxed) {
            let wanted = self.wanted.flows();
            let is_new = wanted.difference(&before).next().is_some();
            let is_due = self.leave(&wanted) || asked.is_none_or(|asked| asked.elapsed() > ASK_EVERY);
            if is_new || (is_due && !wanted.is_empty()) {
                match self.ask(&wanted) {
                    Ok(gateways) => {
                        self.said.remove(&None);
                        self.place(&wanted, &gateways);
                    }
                    Err(error) => {
                        self.query = None;
                        self.tell(None, format!("NMOS query: {error}"));
                    }
                }
                asked = Some(Instant::now());
            }
            before = wanted;
            std::thread::sleep(LOOK_EVERY);
        }
        // They end when the program does, too.
        for host in std::mem::take(&mut self.hosts).into_values() {
            // A panic of the thread was reported when it happened.
            let _ = host.thread.join();
        }
    }

    fn ask(&mut self, wanted: &BTreeSet<Uuid>) -> std::result::Result<Vec<(Uuid, String)>, mxl_nmos::Error> {
        let query = match self.query.take() {
            Some(query) => query,
            None if self.registry == AUTO => Query::find(&Discovery::default(), &mut |note| say(note))?,
            None => Query::open(&self.registry)?,
        };
        self.query.insert(query).gateways(wanted)
    }

    /// Takes each flow from a host that has it: the same one as before, if that is named still.
    fn place(&mut self, wanted: &BTreeSet<Uuid>, gateways: &[(Uuid, String)]) {
        for flow in wanted {
            let mut named = gateways.iter().filter(|(of, _)| of == flow).map(|(_, gateway)| gateway);
            let former = self.places.get(flow);
            if named.clone().any(|gateway| Some(gateway) == former) {
                continue;
            }
            // A registry that forgets a flow does not end it.
            let Some(gateway) = named.next().cloned() else {
                if former.is_none() {
                    let what = format!("flow {flow}: no gateway in the registry sends it; waits for one");
                    self.tell(Some(*flow), what);
                }
                continue;
            };
            self.release(*flow);
            match self.host(&gateway) {
                Ok(host) => {
                    host.wanted.set(*flow, Some(*flow));
                    say(format_args!("flow {flow}: the registry names {gateway}"));
                    self.places.insert(*flow, gateway);
                    self.said.remove(&Some(*flow));
                }
                Err(error) => self.tell(Some(*flow), format!("flow {flow}: {error}")),
            }
        }
    }

    /// The host at an address, which may be new.
    fn host(&mut self, gateway: &str) -> Result<&Found> {
        if !self.hosts.contains_key(gateway) {
            if self.hosts.len() >= MAX_HOSTS {
                return Err(Error::Argument(format!("one program mirrors at most {MAX_HOSTS} hosts")));
            }
            let uri: Uri = gateway.parse()?;
            let (wanted, stop) = (Arc::<Wanted>::default(), Arc::<AtomicBool>::default());
            let stops = vec![Arc::clone(&self.is_over), Arc::clone(&stop)];
            let thread = (self.start)(Remote::of(&uri)?, stops, Some(Arc::clone(&wanted)))?;
            self.hosts.insert(gateway.into(), Found { wanted, stop, thread });
        }
        self.hosts.get(gateway).ok_or_else(|| Error::Argument(format!("{gateway}: no such host")))
    }

    /// Leaves flows that no receiver is connected to any more, and hosts without flows. Returns whether a host has
    /// ended that has got a flow meanwhile.
    fn leave(&mut self, wanted: &BTreeSet<Uuid>) -> bool {
        let left: Vec<Uuid> = self.places.keys().filter(|flow| !wanted.contains(flow)).copied().collect();
        for flow in left {
            self.release(flow);
        }
        self.said.retain(|of, _| of.is_none_or(|flow| wanted.contains(&flow)));
        for host in self.hosts.values().filter(|host| host.wanted.flows().is_empty()) {
            host.stop.store(true, Ordering::Relaxed);
        }
        self.hosts.retain(|_, host| !host.thread.is_finished());
        let before = self.places.len();
        self.places.retain(|_, gateway| self.hosts.contains_key(gateway));
        self.places.len() < before
    }

    fn release(&mut self, flow: Uuid) {
        if let Some(host) = self.places.remove(&flow).and_then(|gateway| self.hosts.get(&gateway)) {
            host.wanted.set(flow, None);
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
