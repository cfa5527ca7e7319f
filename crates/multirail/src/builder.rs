//! Opens an agent.

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use ofi::{Errno, Error, Hints, Info, Result};
use ofi_core::export::Counted;
use ofi_core::fork::Born;

use crate::agent::Agent;
use crate::discovery::{Found, RailList, Start};
use crate::driver::{Driver, Queues, Shared};
use crate::engine::{Config, Core, RailSpec};
use crate::leases::Leases;
use crate::near::Domains;
use crate::rail::Rail;
use crate::region::Shares;
use crate::reopen;
use crate::staging::Staging;
use crate::thread::Thread;
use crate::topology::{DramLimit, Topology};
use crate::waiters::Waiters;
use crate::wire::{MAX_RAILS, check_name};

/// Configuration of an [`Agent`] that is about to be opened.
///
/// ```
/// use multirail::Agent;
/// use ofi::Hints;
/// let agent = Agent::builder("decode-0").rail(Hints::new().provider("shm")).open()?;
/// assert_eq!(agent.name(), "decode-0");
/// # Ok::<(), ofi::Error>(())
/// ```
#[must_use]
#[derive(Debug)]
pub struct Builder {
    name: String,
    rails: Vec<Wanted>,
    config: Config,
    progress_thread: bool,
    shared_memory: bool,
    map_devices: bool,
    near: Near,
    dram_limit: DramLimit,
}

/// Where an agent learns which rails are near memory.
#[derive(Debug)]
enum Near {
    Host,
    Given(Topology),
    Nowhere,
}

#[derive(Debug)]
enum Wanted {
    Hints(Box<Hints>),
    Info(Box<Info>),
    List(RailList, Start),
}

impl Agent {
    /// Starts to configure an agent. Peers know it by this name.
    pub fn builder(name: &str) -> Builder {
        Builder {
            name: name.into(),
            rails: Vec::new(),
            config: Config::default(),
            progress_thread: false,
            shared_memory: true,
            map_devices: true,
            near: Near::Host,
            dram_limit: DramLimit::Measured,
        }
    }
}

impl Builder {
    /// Adds a rail: the first info that getinfo returns for these hints. The same hints twice make two rails.
    pub fn rail(mut self, hints: Hints) -> Self {
        self.rails.push(Wanted::Hints(Box::new(hints)));
        self
    }

    /// Adds a rail from an info of [`ofi::getinfo`].
    pub fn rail_of(mut self, info: &Info) -> Self {
        self.rails.push(Wanted::Info(Box::new(info.clone())));
        self
    }

    /// Adds the rails of a list of names and patterns. An agent without any rail added has those of `auto`.
    pub fn rails(mut self, list: RailList) -> Self {
        self.rails.push(Wanted::List(list, Start::default()));
        self
    }

    /// Replaces the default limits and timeouts.
    pub fn config(self, config: Config) -> Self {
        Self { config, ..self }
    }

    /// Whether a thread drives the agent, so that it answers peers while the program does something else. Off by
    /// default.
    pub fn progress_thread(self, wanted: bool) -> Self {
        Self { progress_thread: wanted, ..self }
    }

    /// Whether rails of network providers may use shared memory for peers on this host
    /// (`FI_OPT_SHARED_MEMORY_PERMITTED`). On by default.
    pub fn shared_memory(self, wanted: bool) -> Self {
        Self { shared_memory: wanted, ..self }
    }

    /// Whether processes of this host map device memory (CUDA IPC): this agent exports handles, and opens those of its
    /// peers. On by default. A handle opens the region and no more, and cannot be revoked.
    pub fn map_devices(self, wanted: bool) -> Self {
        Self { map_devices: wanted, ..self }
    }

    /// Whether peers get keys of a region on the rails near it alone, and transfers prefer those: a GPU's nearest NICs,
    /// or as many of a NUMA node's as suffice ([`Topology::near`]), at least two where there are two. Other rails are
    /// used when those fail. With `false`, all rails serve all memory. On by default; the place of host memory is that
    /// of most of its pages, which must exist when the region is first used.
    pub fn near_rails(self, wanted: bool) -> Self {
        Self { near: if wanted { Near::Host } else { Near::Nowhere }, ..self }
    }

    /// Replaces the topology of this host, which says what is near.
    pub fn topology(self, topology: Topology) -> Self {
        Self { near: Near::Given(topology), ..self }
    }

    /// How much bandwidth suffices for the memory of one NUMA node, and so how many rails its regions use.
    pub fn dram_limit(self, limit: DramLimit) -> Self {
        Self { dram_limit: limit, ..self }
    }

    /// Opens the agent. Without rails added, it has one on each NIC of the best provider ([`RailList`], `auto`). A
    /// device of `auto` or of a pattern that does not open now becomes a rail when it does
    /// ([`Config::rails_interval`]).
    ///
    /// # Errors
    /// `FI_EINVAL` for an invalid name, and for too many rails; `FI_ENODATA` for a list of rails that names no device
    /// here; the errors of [`ofi::getinfo`] and of opening the rails.
    pub fn open(mut self) -> Result<Agent> {
        check_name(&self.name)?;
        if self.rails.is_empty() {
            self.rails.push(Wanted::List(RailList::default(), Start::default()));
        }
        let rails = self.open_rails()?;
        self.assemble(rails)
    }

    /// The agent with these rails.
    fn assemble(self, rails: Vec<Rail>) -> Result<Agent> {
        let specs: Vec<RailSpec> = rails.iter().map(|rail| rail.spec.clone()).collect();
        let (topology, sites) =
            (self.near.topology(rails.len()), rails.iter().map(|rail| (&rail.info, &rail.domain)));
        let domains = Arc::new(Domains::new(sites, topology, self.dram_limit));
        let (most_leased, interval) = (self.config.most_leased, self.config.rails_interval);
        let mut core = Core::new(&self.name, specs, self.config, Box::new(random));
        let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        core.born_at(since.as_secs() as u32);
        let regions = Arc::default();
        let windows = Arc::default();
        let shares = Shares { exports: self.map_devices, memory: self.shared_memory };
        let staging = Staging::new(Arc::clone(&domains), Arc::clone(&regions), Arc::clone(&windows), shares);
        let leases = Leases::new(Arc::clone(&regions), windows, most_leased);
        let queues = Arc::<Queues>::default();
        let mut driver =
            Driver { core, rails, staging, waiters: Waiters::default(), leases, queues: Arc::clone(&queues) };
        driver.list_queues(Duration::ZERO);
        let lists = self.rails.into_iter().filter_map(|wanted| match wanted {
            Wanted::List(list, start) if list.may_grow() => Some((list, start)),
            Wanted::List(..) | Wanted::Hints(_) | Wanted::Info(_) => None,
        });
        let lists: Vec<_> = lists.collect();
        let shared = Arc::new(Shared {
            name: self.name.into(),
            born: Born::here(),
            began: Instant::now(),
            domains,
            news: Condvar::new(),
            queues: Arc::clone(&queues),
            has_thread: self.progress_thread,
            state: Mutex::new(driver),
            regions,
            shares,
            next_region: AtomicU64::new(1),
            sweep_at: AtomicUsize::new(0),
            over: AtomicBool::new(false),
        });
        let counted: Arc<dyn Counted> = Arc::<Shared>::clone(&shared);
        ofi_core::export::opened(&counted);
        let finder = reopen::Finder::spawn(&shared, lists, interval, self.shared_memory)?;
        let thread =
            if self.progress_thread { Thread::spawn(&shared, finder)? } else { Thread::none(finder) };
        Ok(Agent { shared, thread: Arc::new(thread) })
    }
}

impl Builder {
    fn open_rails(&mut self) -> Result<Vec<Rail>> {
        let (mut rails, mut starts) = (Vec::new(), Vec::new());
        for (nth, wanted) in self.rails.iter().enumerate() {
            match wanted {
                Wanted::Hints(hints) => rails.push(self.named(hints)?),
                Wanted::Info(info) => rails.push(self.of_info(info)?),
                Wanted::List(list, _) => {
                    let (rails_found, start) = list.find()?;
                    starts.push((nth, start));
                    for found in rails_found {
                        match found {
                            Found::Named(hints) => rails.push(self.named(&hints)?),
                            Found::Devices(infos) => rails.extend(self.those_that_open(&[infos])?),
                            Found::BestOf(choices) => rails.extend(self.those_that_open(&choices)?),
                        }
                    }
                }
            }
            if rails.len() > MAX_RAILS {
                return Err(Error::wanted(
                    Errno::EINVAL,
                    "the rails of an agent",
                    format!("at most {MAX_RAILS}"),
                    rails.len().to_string(),
                    "leave some out",
                ));
            }
        }
        for (nth, found) in starts {
            if let Wanted::List(_, start) = &mut self.rails[nth] {
                *start = found;
            }
        }
        Ok(rails)
    }

    fn named(&self, hints: &Hints) -> Result<Rail> {
        told(&hints.info, Rail::open(hints, self.shared_memory))
    }

    fn of_info(&self, info: &Info) -> Result<Rail> {
        told(info, Rail::of_info(info, self.shared_memory))
    }

    /// The rails of the first list of which one opens.
    ///
    /// # Errors
    /// The first error, if none opens.
    fn those_that_open(&self, choices: &[Vec<Info>]) -> Result<Vec<Rail>> {
        let mut first = None;
        for infos in choices {
            let mut rails = Vec::new();
            for info in infos.iter().take(MAX_RAILS) {
                match Rail::of_info(info, self.shared_memory) {
                    Ok(rail) => rails.push(rail),
                    Err(error) => {
                        let (provider, domain) = (&info.fabric_attr.prov_name, &info.domain_attr.name);
                        tracing::warn!(target: "multirail", provider, domain, %error, "a rail is left out");
                        first.get_or_insert(error);
                    }
                }
            }
            if let Some(left) = infos.len().checked_sub(MAX_RAILS).filter(|&left| left > 0) {
                tracing::warn!(target: "multirail", left, most = MAX_RAILS, "NICs beyond the most rails are left out");
            }
            if !rails.is_empty() {
                return Ok(rails);
            }
        }
        Err(first.unwrap_or_else(|| Error::new(Errno::ENODATA)))
    }
}

impl Near {
    /// The topology, if it matters with this many rails.
    fn topology(self, rails: usize) -> Option<Topology> {
        match self {
            Self::Given(topology) => Some(topology),
            Self::Host if rails > 2 => Topology::of_host()
                .inspect_err(|error| {
                    tracing::info!(target: "multirail", %error, "the host has no topology: all rails serve all memory");
                })
                .ok(),
            Self::Host | Self::Nowhere => None,
        }
    }
}

/// Logs that a rail is refused.
fn told(info: &Info, opened: Result<Rail>) -> Result<Rail> {
    opened.inspect_err(|error| {
        let (provider, domain) = (&info.fabric_attr.prov_name, &info.domain_attr.name);
        tracing::info!(target: "multirail", provider, domain, %error, "a rail is refused");
    })
}

/// 64 random bits from the system.
fn random() -> u64 {
    getrandom::u64().unwrap_or_else(|_| {
        // Without a source of randomness, two clocks and an address distinguish agents.
        let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        let here = &raw const since as usize as u64;
        (since.as_nanos() as u64).rotate_left(17) ^ here ^ u64::from(std::process::id()) << 40
    })
}
