//! Keeps a Node in a registry: registration, heartbeats, another registry when one fails, and removal at the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mxl::Uuid;
use serde_json::{Value, json};

use crate::client::{Client, Error};
use crate::node::Node;
use crate::registries::Registries;
use crate::resources::ResourceKind;

/// Interval of heartbeats: IS-04's default. A registry drops a Node after 12 seconds.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(5);
/// The first and the longest pause when no registry answers. Each is twice as long as the last.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Maximum time for the removal of the resources at the end, and for each request of it.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(2);
const REMOVAL_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// A line for the program's log.
pub type Log = Box<dyn Fn(&str) + Send>;

/// A Node that is kept in a registry by a thread. Dropping it removes the Node from the registry.
pub struct Registration {
    node: Arc<Node>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Registration {
    /// Registers a Node at the first of these registries that answers. If it fails, the next one is used, and after the
    /// last one the first again; those of DNS-SD are looked for anew then. `log` gets what a person should know.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the system cannot start a thread.
    pub fn start(node: Arc<Node>, registries: Registries, log: Log) -> Result<Self, Error> {
        Self::start_with(node, registries, HEARTBEAT_EVERY, log)
    }

    /// Does the same with another interval of heartbeats.
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    pub fn start_with(
        node: Arc<Node>,
        registries: Registries,
        heartbeat: Duration,
        log: Log,
    ) -> Result<Self, Error> {
        let is_over = Arc::new(AtomicBool::new(false));
        let session = Session {
            node: Arc::clone(&node),
            client: Client::default(),
            registries,
            place: 0,
            urls: Vec::new(),
            heartbeat,
            beaten: None,
            is_over: Arc::clone(&is_over),
            at: 0,
            api: None,
            registered: BTreeMap::new(),
            log,
            said: String::new(),
        };
        let thread = std::thread::Builder::new().name("mxl-nmos".into()).spawn(move || session.run());
        let thread =
            thread.map_err(|error| Error::Unavailable { url: "a thread".into(), why: error.to_string() })?;
        Ok(Self { node, is_over, thread: Some(thread) })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.node.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

struct Session {
    node: Arc<Node>,
    client: Client,
    registries: Registries,
    /// The place of the registries that is used.
    place: usize,
    /// The addresses there; none before they were looked for.
    urls: Vec<String>,
    heartbeat: Duration,
    /// When the last heartbeat began; `None` if one is due at once.
    beaten: Option<Instant>,
    is_over: Arc<AtomicBool>,
    /// The address that is used.
    at: usize,
    /// Its API, once it is known.
    api: Option<String>,
    /// The versions of the resources that it was told of, and whether it has taken them.
    registered: BTreeMap<(ResourceKind, Uuid), (String, bool)>,
    log: Log,
    /// The last failure, which is told once.
    said: String,
}

impl Session {
    fn run(mut self) {
        let (mut changes, mut pause) = (0, PAUSES.0);
        // Of the addresses of a place, and of places.
        let (mut failures, mut failed_places) = (0, 0);
        while !self.is_over() {
            let step = match self.look() {
                Ok(()) if self.until_beat().is_zero() => self.beat(),
                Ok(()) => self.update(),
                Err(error) => Err(error),
            };
            match step {
                Ok(()) => {
                    (pause, failures, failed_places) = (PAUSES.0, 0, 0);
                    if !std::mem::take(&mut self.said).is_empty() {
                        (self.log)(&format!("NMOS registry: {} answers again", self.urls[self.at]));
                    }
                    changes = self.node.wait(changes, self.until_beat());
                }
                Err(error) => {
                    self.fail(&error);
                    failures += 1;
                    if failures < self.urls.len() {
                        continue;
                    }
                    // None has answered there. It is looked at again after the other places.
                    (failures, failed_places) = (0, failed_places + 1);
                    self.urls.clear();
                    self.place = (self.place + 1) % self.registries.places();
                    if failed_places >= self.registries.places() {
                        // The end does not wait for this.
                        failed_places = 0;
                        let until = Instant::now() + pause;
                        while Instant::now() < until && !self.is_over() {
                            changes =
                                self.node.wait(changes, until.saturating_duration_since(Instant::now()));
                        }
                        pause = (pause * 2).min(PAUSES.1);
                    }
                }
            }
        }
        self.remove();
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Looks for the registries, if that is to be done.
    fn look(&mut self) -> Result<(), Error> {
        if !self.urls.is_empty() {
            return Ok(());
        }
        let is_over = || self.is_over();
        let (urls, notes) = self.registries.look(self.place, self.node.id(), &is_over);
        for note in notes {
            (self.log)(&format!("NMOS registry: {note}"));
        }
        (self.urls, self.at) = (urls, 0);
        if self.urls.is_empty() { Err(Error::NotFound) } else { Ok(()) }
    }

    /// Time until a heartbeat is due.
    fn until_beat(&self) -> Duration {
        self.beaten.map_or(Duration::ZERO, |beaten| self.heartbeat.saturating_sub(beaten.elapsed()))
    }

    /// Tells of a failure, and turns to the next registry.
    fn fail(&mut self, error: &Error) {
        let what = format!("NMOS registry: {error}");
        if self.said != what {
            (self.log)(&what);
            self.said = what;
        }
        self.at = (self.at + 1) % self.urls.len().max(1);
        (self.api, self.beaten) = (None, None);
    }

    /// The address of the registration API, with the newest version that the registry has.
    fn api(&mut self) -> Result<String, Error> {
        if let Some(api) = &self.api {
            return Ok(api.clone());
        }
        let api = self.client.api(&self.urls[self.at], "registration")?;
        Ok(self.api.insert(api).clone())
    }

    /// Sends a heartbeat. Returns whether the registry knows the Node; if it does not, nothing is registered.
    fn pulse(&mut self, api: &str) -> Result<bool, Error> {
        let begin = Instant::now();
        let is_known = match self.client.post(&format!("{api}/health/nodes/{}", self.node.id()), &Value::Null)
        {
            Ok(_) => true,
            Err(Error::Refused { status: 404, .. }) => {
                self.registered.clear();
                false
            }
            Err(error) => return Err(error),
        };
        self.beaten = Some(begin);
        Ok(is_known)
    }

    /// A heartbeat. The registry may know the Node from before; if it does not, everything is registered.
    fn beat(&mut self) -> Result<(), Error> {
        let api = self.api()?;
        match self.pulse(&api)? {
            true if !self.registered.is_empty() => self.update(),
            // It knows the Node of a former process, whose resources may be others.
            true => {
                self.client
                    .delete(&self.url(&api, ResourceKind::Node, self.node.id()))
                    .map(drop)
                    .or_else(ignore)?;
                self.register()
            }
            false => self.register(),
        }
    }

    /// Whether an update may send its next request. A heartbeat that is due comes first: an update of many flows, or
    /// with a slow registry, takes longer than a Node may be silent.
    fn goes_on(&mut self, api: &str) -> Result<bool, Error> {
        if self.is_over() {
            return Ok(false);
        }
        let is_registered = self.registered.contains_key(&(ResourceKind::Node, self.node.id()));
        if !is_registered || !self.until_beat().is_zero() || self.pulse(api)? {
            return Ok(true);
        }
        // The next step registers all of it again.
        self.beaten = None;
        Ok(false)
    }

    fn register(&mut self) -> Result<(), Error> {
        self.update()?;
        if self.registered.is_empty() {
            return Ok(());
        }
        (self.log)(&format!("NMOS: node {} is registered at {}", self.node.id(), self.urls[self.at]));
        self.said.clear();
        Ok(())
    }

    fn url(&self, api: &str, kind: ResourceKind, id: Uuid) -> String {
        format!("{api}/resource/{}/{id}", kind.collection())
    }

    /// Registers what is new or has changed, and removes what is gone. One that is refused is not tried again before
    /// it has changed.
    fn update(&mut self) -> Result<(), Error> {
        let api = self.api()?;
        let resources = self.node.resources();
        let gone: Vec<_> =
            self.registered.keys().rev().filter(|key| !resources.contains_key(*key)).copied().collect();
        for (kind, id) in gone {
            if !self.goes_on(&api)? {
                return Ok(());
            }
            if self.registered.get(&(kind, id)).is_some_and(|(_, is_there)| *is_there) {
                self.client.delete(&self.url(&api, kind, id)).map(drop).or_else(ignore)?;
            }
            self.registered.remove(&(kind, id));
        }
        for ((kind, id), resource) in resources {
            let former = self.registered.get(&(kind, id));
            if former.is_some_and(|(version, _)| *version == resource.version) {
                continue;
            }
            let was_there = former.is_some_and(|(_, is_there)| *is_there);
            if !self.goes_on(&api)? {
                return Ok(());
            }
            let body = json!({ "type": kind.name(), "data": resource.value });
            let is_there = match self.client.post(&format!("{api}/resource"), &body) {
                Ok(_) => true,
                Err(error @ Error::Refused { .. }) if kind != ResourceKind::Node => {
                    (self.log)(&format!("NMOS: {} {id} is not registered: {error}", kind.name()));
                    was_there
                }
                Err(error) => return Err(error),
            };
            self.registered.insert((kind, id), (resource.version, is_there));
        }
        Ok(())
    }

    /// Removes all resources, those that refer to others first. Nothing is waited for if no registry has answered.
    fn remove(&mut self) {
        let Some(api) = self.api.clone() else { return };
        let client = Client::with_timeout(REMOVAL_REQUEST_TIMEOUT);
        let begin = Instant::now();
        let there = self.registered.iter().rev().filter(|(_, (_, is_there))| *is_there);
        for ((kind, id), _) in there {
            // The registry drops what is left after 12 seconds; and all of a Node with it.
            let is_late = begin.elapsed() > REMOVAL_TIMEOUT && *kind != ResourceKind::Node;
            if !is_late && let Err(Error::Unavailable { .. }) = client.delete(&self.url(&api, *kind, *id)) {
                return;
            }
        }
    }
}

/// What is refused when it is removed is not there any more.
fn ignore(error: Error) -> Result<(), Error> {
    match error {
        Error::Refused { .. } => Ok(()),
        other => Err(other),
    }
}
