//! Agents: rails, memory and peers of one process, driven by the calling thread.
//!
//! An agent has one lock. The thread that holds it may drive everything ([`Agent::progress`]). [`Transfer::wait`]
//! and the progress thread, if there is one, do so. Nothing calls back into the program.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use ofi::{BufferMut, Errno, Error, Result};

use crate::driver::{Driver, Shared};
use crate::engine::{Counts, Event, Latencies, Notification, PathState, PeerId};
#[cfg(feature = "cuda")]
use crate::memory::cuda::DeviceMemory;
use crate::rail::RailCounts;
use crate::region::{Inner as RegionInner, Library, Region};
use crate::thread::Thread;
use crate::wire::{Metadata, RegionInfo};

/// Minimum number of known regions at which those that are gone are forgotten.
const SWEEP: usize = 64;
/// Time for which a dropped agent tries to tell its peers.
const FAREWELL: Duration = Duration::from_millis(200);

/// Rails, memory and peers of one process. Clones are the same agent; threads may share it.
///
/// Dropping the last clone, together with the last plan and transfer, tells the peers and closes the rails.
///
/// ```
/// use std::time::Duration;
///
/// use multirail::{Agent, Remote, Way};
/// use ofi::Hints;
///
/// let limit = Duration::from_secs(10);
/// let open = |name| Agent::builder(name).rail(Hints::new().provider("shm")).progress_thread(true).open();
/// let (decode, prefill) = (open("decode-0")?, open("prefill-0")?);
/// let cache = decode.register(vec![0; 1 << 20])?;
/// let layer = prefill.register(vec![7; 1 << 20])?;
///
/// let peer = prefill.load(&decode.metadata()?)?; // metadata may travel over any channel
/// let remote = Remote { region: cache.id(), offset: 0, len: 1 << 20 };
/// let plan = prefill.prepare(&peer, Way::Write, &[layer.slice(..)?], &[remote])?;
/// let transfer = plan.post_notify(b"layer 7", limit)?;
///
/// let notification = decode.wait_notification(limit)?.expect("the notification arrives after the bytes");
/// assert_eq!(notification.bytes[..], *b"layer 7");
/// transfer.wait()?; // the other program has the notification
/// let mut last = [0];
/// cache.read_into((1 << 20) - 1, &mut last)?;
/// assert_eq!(last, [7]);
/// # Ok::<(), ofi::Error>(())
/// ```
#[derive(Clone)]
pub struct Agent {
    pub(crate) shared: Arc<Shared>,
    pub(crate) thread: Arc<Thread>,
}

impl Agent {
    /// The agent's name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    fn region_id(&self) -> u64 {
        self.shared.next_region.fetch_add(1, Ordering::Relaxed)
    }

    fn keep<B>(&self, region: Region<B>) -> Region<B> {
        let mut regions = self.shared.regions.lock().unwrap_or_else(PoisonError::into_inner);
        // Looked at when their number has doubled, so that registering many takes no longer for each.
        if regions.len() >= self.shared.sweep_at.load(Ordering::Relaxed) {
            regions.retain(|_, region| region.strong_count() > 0);
            self.shared.sweep_at.store((2 * regions.len()).max(SWEEP), Ordering::Relaxed);
        }
        regions.insert(region.id(), Arc::downgrade(region.inner()));
        region
    }

    /// Turns a buffer into a region: a source and target of transfers. Rails register it when they first need it.
    ///
    /// # Errors
    /// `FI_EINVAL` for an empty buffer.
    pub fn register<B: BufferMut>(&self, buffer: B) -> Result<Region<B>> {
        self.shared.born.check()?;
        Ok(self.keep(Region::new(self.region_id(), buffer, &self.shared.domains)?))
    }

    /// Turns memory of a CUDA device into a region. Rails whose NIC registers its dma-buf transfer it directly to and
    /// from other hosts. Otherwise each end copies between it and pinned host memory, which the rails transfer.
    /// Processes of one host map it where possible ([`Builder::map_devices`]).
    ///
    /// # Errors
    /// `FI_EINVAL` for a length of zero.
    #[cfg(feature = "cuda")]
    pub fn register_device(&self, memory: DeviceMemory) -> Result<Region<DeviceMemory>> {
        self.shared.born.check()?;
        Ok(self.keep(Region::of_device(self.region_id(), memory, &self.shared.domains)?))
    }

    /// Allocates a zeroed region of `len` bytes. Peers on the same host can map it, which is the fastest path there.
    ///
    /// # Errors
    /// `FI_ENOMEM`; `FI_EINVAL` for a length of zero.
    pub fn alloc(&self, len: usize) -> Result<Region<Library>> {
        let rails = self.shared.lock()?.rails.iter().position(|rail| rail.spec.info.provider == "shm");
        Ok(self.keep(Region::allocate(self.region_id(), len, rails.unwrap_or(0), &self.shared.domains)?))
    }

    /// Metadata of this agent with all its regions. Send it to a peer over any channel; the peer passes it to
    /// [`Agent::load`].
    ///
    /// # Errors
    /// The error of registering a region, if no rail can register it.
    pub fn metadata(&self) -> Result<Vec<u8>> {
        self.shared.born.check()?;
        let regions: Vec<Arc<RegionInner>> = {
            let regions = self.shared.regions.lock().unwrap_or_else(PoisonError::into_inner);
            regions.values().filter_map(Weak::upgrade).filter(|region| !region.is_revoked()).collect()
        };
        let infos = regions
            .iter()
            .map(|region| region.info(self.shared.shares))
            .collect::<Result<Vec<RegionInfo>>>()?;
        Ok(self.shared.lock()?.core.metadata(infos).encode())
    }

    /// Metadata without regions. A peer that loads it can send notifications to this agent. Metadata of regions may
    /// follow.
    pub fn address(&self) -> Vec<u8> {
        self.shared.lock().map_or_else(|_| Vec::new(), |driver| driver.core.metadata(Vec::new()).encode())
    }

    /// Metadata with this region only.
    ///
    /// # Errors
    /// Those of [`Agent::metadata`].
    pub fn metadata_of<B>(&self, region: &Region<B>) -> Result<Vec<u8>> {
        let info = region.inner().info(self.shared.shares)?;
        Ok(self.shared.lock()?.core.metadata(vec![info]).encode())
    }

    /// Withdraws a region even if ranges and plans refer to it. From now on no new transfer uses it, and plans that
    /// refer to it fail with `FI_EFAULT`. After a successful return no rail and no peer uses it.
    ///
    /// # Errors
    /// `FI_EBUSY` if transfers that use it are not quiet after `timeout`, or a peer's access has not ended: call again
    /// before freeing the memory.
    pub fn revoke<B>(&self, region: &Region<B>, timeout: Duration) -> Result<()> {
        let inner = region.inner();
        let driver = self.shared.lock()?;
        inner.revoke();
        self.shared.rouse(driver);
        let quiet = self.shared.wait_for(timeout, |driver| {
            let is_used = inner.is_in_use() || driver.staging.serves(inner);
            (!is_used).then_some(())
        })?;
        if quiet.is_none() {
            return Err(Error::wanted(
                Errno::EBUSY,
                "revoking a region",
                "no transfer that uses it",
                format!("some in flight after {timeout:?}"),
                "cancel them, wait until they are quiet, and call again",
            ));
        }
        inner.close()
    }

    /// Loads the metadata of a peer, and returns the peer's name. Metadata of the same incarnation adds regions;
    /// metadata of another incarnation replaces everything that was known about the peer.
    ///
    /// # Errors
    /// `FI_EINVAL` for bytes that are not metadata of this version, `FI_EADDRINUSE` for a peer with the name of this
    /// agent, `FI_EHOSTUNREACH` if none of the peer's rails reaches a rail of this agent, `FI_ENOSPC` for too many
    /// peers or regions, `FI_ECONNRESET` for metadata of an earlier life of a known peer.
    pub fn load(&self, metadata: &[u8]) -> Result<Arc<str>> {
        let parsed = Metadata::parse(metadata).map_err(|malformed| {
            Error::wanted(
                Errno::EINVAL,
                "the metadata of an agent",
                "the bytes that Agent::metadata returned",
                format!("{} bytes: {malformed}", metadata.len()),
                "check that they arrive unchanged, and that both programs have the same version",
            )
        })?;
        let mut driver = self.shared.lock()?;
        driver
            .core
            .load(&parsed)
            .map_err(|(errno, why)| Error::with(errno, format!("{}: {why}", parsed.name)))?;
        self.shared.rouse(driver); // a session may have ended together with the peer's previous incarnation
        Ok(parsed.name.into())
    }

    /// Loads metadata that must be of the agent `name`.
    #[cfg(feature = "etcd")]
    pub(crate) fn load_of(&self, name: &str, metadata: &[u8]) -> Result<Arc<str>> {
        match Metadata::parse(metadata) {
            Ok(parsed) if parsed.name != name => Err(Error::wanted(
                Errno::EINVAL,
                "the metadata of an agent",
                format!("that of {name:?}"),
                format!("that of {:?}", parsed.name),
                "check who publishes under that name",
            )),
            _ => self.load(metadata),
        }
    }

    /// Forgets a region of a peer, so that metadata that comes again and again takes no more memory. Plans that were
    /// prepared with it remain valid.
    ///
    /// # Errors
    /// `FI_ENOENT` for an unknown peer or region.
    pub fn forget_region(&self, peer: &str, region: u64) -> Result<()> {
        let mut driver = self.shared.lock()?;
        let id = self.peer(&driver, peer)?;
        match driver.core.forget_region(id, region) {
            true => Ok(()),
            false => Err(Error::with(Errno::ENOENT, format!("no region {region} of {peer:?} is known"))),
        }
    }

    pub(crate) fn peer(&self, driver: &Driver, name: &str) -> Result<PeerId> {
        driver.core.find(name).ok_or_else(|| {
            Error::wanted(
                Errno::ENOENT,
                "a peer",
                "one whose metadata was loaded",
                format!("{name:?}"),
                "pass its metadata to Agent::load",
            )
        })
    }

    /// The regions in a peer's metadata: their numbers and lengths.
    ///
    /// # Errors
    /// `FI_ENOENT` for an unknown peer.
    pub fn regions(&self, peer: &str) -> Result<Vec<(u64, u64)>> {
        let driver = self.shared.lock()?;
        let id = self.peer(&driver, peer)?;
        Ok(driver.core.regions(id).iter().map(|region| (region.id, region.len)).collect())
    }

    /// The next of the notifications that [`Agent::progress`] has received. Its sender is told that this program has
    /// it.
    pub fn take_notification(&self) -> Option<Notification> {
        self.shared.lock().ok()?.take_notification(self.shared.now())
    }

    /// Waits for the next notification of any peer; `None` if none arrives within `timeout`.
    ///
    /// # Errors
    /// The error of reading a rail's queue.
    pub fn wait_notification(&self, timeout: Duration) -> Result<Option<Notification>> {
        self.shared.wait_for(timeout, |driver| driver.take_notification(self.shared.now()))
    }

    /// Events of peers since the last call.
    pub fn events(&self) -> Vec<Event> {
        self.shared.lock().map_or_else(|_| Vec::new(), |mut driver| driver.core.take_events())
    }

    /// Starts to open a session with a peer, as its first transfer would. The session opens as the agent makes
    /// progress.
    ///
    /// # Errors
    /// `FI_ENOENT` for an unknown peer.
    pub fn connect(&self, peer: &str) -> Result<()> {
        let mut driver = self.shared.lock()?;
        let id = self.peer(&driver, peer)?;
        let now = self.shared.now();
        driver.core.connect(id, now);
        driver.pump(now);
        self.shared.rouse(driver);
        Ok(())
    }

    /// Whether a session with the peer is open. The first transfer opens one.
    ///
    /// # Errors
    /// `FI_ENOENT` for an unknown peer.
    pub fn is_connected(&self, peer: &str) -> Result<bool> {
        let driver = self.shared.lock()?;
        Ok(driver.core.is_up(self.peer(&driver, peer)?))
    }

    /// The current paths to a peer. A path is a pair of rails, one here and one at the peer.
    ///
    /// # Errors
    /// `FI_ENOENT` for an unknown peer.
    pub fn paths(&self, peer: &str) -> Result<Vec<PathState>> {
        let driver = self.shared.lock()?;
        Ok(driver.core.paths(self.peer(&driver, peer)?, self.shared.now()))
    }

    /// The name and the counters of each rail.
    pub fn rails(&self) -> Vec<(String, RailCounts)> {
        let Ok(driver) = self.shared.lock() else { return Vec::new() };
        driver.rails.iter().map(|rail| (rail.spec.info.provider.clone(), rail.counts)).collect()
    }

    /// Latencies of each rail's successful accesses, by class of length. An access is timed from its post until the
    /// agent notices its completion.
    pub fn latencies(&self) -> Vec<Latencies> {
        self.shared.lock().map_or_else(|_| Vec::new(), |driver| driver.core.latencies().to_vec())
    }

    /// Latencies of successful transfers, by class of their total length. A transfer is timed from its post until the
    /// agent notices its end, which includes the acknowledgement of its notification.
    pub fn transfer_latencies(&self) -> Latencies {
        self.shared.lock().map(|driver| driver.core.transfer_latencies().clone()).unwrap_or_default()
    }

    /// The number of operations that rails have not completed, and the number of transfers that the program still
    /// holds or that are not quiet.
    pub fn under_way(&self) -> (usize, usize) {
        let Ok(driver) = self.shared.lock() else { return (0, 0) };
        let (operations, transfers, _) = driver.core.kept();
        (operations, transfers + driver.staging.kept())
    }

    /// Counters of dropped messages and moved parts.
    pub fn counts(&self) -> Counts {
        self.shared.lock().map(|driver| driver.core.counts()).unwrap_or_default()
    }

    /// Ends the session with a peer and tells the peer. Transfers in flight fail with `FI_ECANCELED`. A later transfer
    /// opens a new session.
    ///
    /// # Errors
    /// `FI_ENOENT` for an unknown peer.
    pub fn disconnect(&self, peer: &str) -> Result<()> {
        let mut driver = self.shared.lock()?;
        let id = self.peer(&driver, peer)?;
        let now = self.shared.now();
        driver.core.disconnect(id, now);
        driver.pump(now);
        self.shared.rouse(driver);
        Ok(())
    }

    /// Disconnects a peer and forgets its metadata. Its notifications that the program has not taken are dropped, also
    /// those whose transfers were done as they arrived ([`Config::acknowledge_taken`](crate::Config) off).
    ///
    /// # Errors
    /// `FI_ENOENT` for an unknown peer.
    pub fn forget(&self, peer: &str) -> Result<()> {
        let mut driver = self.shared.lock()?;
        let id = self.peer(&driver, peer)?;
        let now = self.shared.now();
        driver.core.forget(id, now);
        driver.pump(now);
        self.shared.rouse(driver);
        Ok(())
    }

    /// Drives the agent once, without waiting. Returns whether there was anything to do.
    ///
    /// # Errors
    /// The error of reading a rail's queue.
    pub fn progress(&self) -> Result<bool> {
        self.shared.poll()
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Agent({})", self.shared.name)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if !self.shared.born.is_here() {
            // The parent goes on with it, and so does the parent's thread, which may have been changing any of it.
            return std::mem::forget(self.clone());
        }
        if Arc::strong_count(&self.thread) == 1 {
            self.shared.over.store(true, Ordering::Relaxed);
            let Ok(driver) = self.shared.lock() else { return };
            self.shared.rouse(driver);
            self.say_goodbye();
        }
    }
}

impl Agent {
    /// Tells the peers that this agent closes, for at most [`FAREWELL`].
    fn say_goodbye(&self) {
        let began = Instant::now();
        let Ok(mut driver) = self.shared.lock() else { return };
        let now = self.shared.now();
        for (_, peer) in driver.core.peers() {
            driver.core.forget(peer, now);
        }
        while driver.core.kept().2 > 0 && began.elapsed() < FAREWELL {
            if driver.progress(self.shared.now()).is_err() {
                return;
            }
        }
    }
}
