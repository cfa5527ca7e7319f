//! Opens an agent.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use ofi::raw::Domain;
use ofi::{Errno, Error, Hints, Info, Result};
use ofi_core::export::Counted;

use crate::agent::Agent;
use crate::driver::{Driver, Shared};
use crate::engine::{Config, Core, RailSpec};
use crate::leases::Leases;
use crate::rail::Rail;
use crate::region::Shares;
use crate::staging::Staging;
use crate::thread::Thread;
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
}

#[derive(Debug)]
enum Wanted {
    Hints(Box<Hints>),
    Info(Box<Info>),
}

/// The hints for a rail given as `PROVIDER` or `PROVIDER/DOMAIN`.
///
/// # Errors
/// `FI_EINVAL` if one of the two is empty.
pub fn rail_hints(text: &str) -> Result<Hints> {
    let (provider, domain) = text.split_once('/').map_or((text, None), |(name, at)| (name, Some(at)));
    if provider.trim().is_empty() || domain.is_some_and(|domain| domain.trim().is_empty()) {
        return Err(Error::wanted(
            Errno::EINVAL,
            "a rail",
            "PROVIDER or PROVIDER/DOMAIN, as in udp or udp/eth0",
            format!("{text:?}"),
            "see what fi_info lists",
        ));
    }
    let hints = Hints::new().provider(provider.trim());
    Ok(domain.map_or(hints.clone(), |domain| hints.domain(domain.trim())))
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
    /// peers. On by default. A handle exposes the whole allocation and cannot be revoked.
    pub fn map_devices(self, wanted: bool) -> Self {
        Self { map_devices: wanted, ..self }
    }

    /// Opens the agent.
    ///
    /// # Errors
    /// `FI_EINVAL` for an invalid name, and without rails; the errors of [`ofi::getinfo`] and of opening the rails.
    pub fn open(self) -> Result<Agent> {
        check_name(&self.name)?;
        if self.rails.is_empty() || self.rails.len() > MAX_RAILS {
            return Err(Error::wanted(
                Errno::EINVAL,
                "the rails of an agent",
                format!("1 to {MAX_RAILS}"),
                self.rails.len().to_string(),
                "add rails with Builder::rail",
            ));
        }
        let open = |wanted: &Wanted| {
            let (info, opened) = match wanted {
                Wanted::Hints(hints) => (&hints.info, Rail::open(hints, self.shared_memory)),
                Wanted::Info(info) => (&**info, Rail::of_info(info, self.shared_memory)),
            };
            opened.inspect_err(|error| {
                let (provider, domain) = (&info.fabric_attr.prov_name, &info.domain_attr.name);
                tracing::info!(target: "multirail", provider, domain, %error, "a rail is refused");
            })
        };
        let rails = self.rails.iter().map(open).collect::<Result<Vec<Rail>>>()?;
        let specs: Vec<RailSpec> = rails.iter().map(|rail| rail.spec.clone()).collect();
        let domains: Arc<[Arc<dyn Domain>]> = rails.iter().map(|rail| Arc::clone(&rail.domain)).collect();
        let most_leased = self.config.most_leased;
        let mut core = Core::new(&self.name, specs, self.config, Box::new(random));
        let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        core.born_at(since.as_secs() as u32);
        let regions = Arc::default();
        let windows = Arc::default();
        let shares = Shares { exports: self.map_devices, memory: self.shared_memory };
        let staging = Staging::new(Arc::clone(&domains), Arc::clone(&regions), Arc::clone(&windows), shares);
        let leases = Leases::new(Arc::clone(&regions), windows, most_leased);
        let shared = Arc::new(Shared {
            name: self.name.into(),
            began: Instant::now(),
            domains,
            news: Condvar::new(),
            queues: rails.iter().map(Rail::queue).collect(),
            has_thread: self.progress_thread,
            state: Mutex::new(Driver { core, rails, staging, waiters: Waiters::default(), leases }),
            regions,
            shares,
            next_region: AtomicU64::new(1),
            sweep_at: AtomicUsize::new(0),
            over: AtomicBool::new(false),
        });
        let counted: Arc<dyn Counted> = Arc::<Shared>::clone(&shared);
        ofi_core::export::opened(&counted);
        let thread = if self.progress_thread { Thread::spawn(&shared)? } else { Thread::none() };
        Ok(Agent { shared, thread: Arc::new(thread) })
    }
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
