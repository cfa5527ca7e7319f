//! A NIXL engine: one agent.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use multirail::wire::{Metadata, RegionInfo};
use multirail::{Agent, Transfer};
use ofi::{Errno, Error, Result};
use ofi_core::fork::Born;

use crate::border::{Bytes, Sink, call, put, status};
use crate::log::{self, awaited, say};
use crate::options::{ALL, Options};

/// An agent as a NIXL backend.
pub struct Engine {
    /// Its process. In a forked child releasing its objects leaves them to the parent.
    pub(crate) born: Born,
    /// Calls drive the agent even if it has a progress thread: a program that polls in a loop holds the lock most of
    /// the time, and would starve the thread.
    pub(crate) agent: Agent,
    /// Time limit of a transfer.
    pub(crate) timeout: Duration,
    /// Whether the agent has a progress thread.
    has_thread: bool,
    /// Notifications in flight that belong to no transfer: dropping them would cancel them.
    notes: Mutex<Vec<Transfer>>,
    /// Targets by peer and region. A region is forgotten with its last target.
    targets: Mutex<HashMap<(Arc<str>, u64), usize>>,
}

/// Maximum time for which a new notification drives the agent to open the session.
const GREETING: Duration = Duration::from_millis(10);

impl Engine {
    /// Loads metadata that must belong to the peer of this name.
    pub(crate) fn load(&self, peer: &str, bytes: &[u8]) -> Result<()> {
        Self::parse(peer, bytes)?;
        self.agent.load(bytes).map(drop)
    }

    /// Parses a peer's metadata, and checks that it is the peer's.
    fn parse(peer: &str, bytes: &[u8]) -> Result<Metadata> {
        let metadata = Metadata::parse(bytes).map_err(|malformed| {
            Error::with(Errno::EINVAL, format!("the metadata of {peer} is invalid: {malformed}"))
        })?;
        if metadata.name != peer {
            let (wanted, found) = (format!("that of {peer:?}"), format!("that of {:?}", metadata.name));
            return Err(Error::wanted(
                Errno::EINVAL,
                "metadata",
                wanted,
                found,
                "pass that agent's metadata",
            ));
        }
        Ok(metadata)
    }

    /// Loads a peer's metadata that describes one region. Returns the region; others are refused before they are
    /// loaded.
    pub(crate) fn load_one(&self, peer: &str, bytes: &[u8]) -> Result<RegionInfo> {
        let metadata = Self::parse(peer, bytes)?;
        let [region] = &metadata.regions[..] else {
            return Err(Error::with(
                Errno::EINVAL,
                format!("public data must describe one region, not {}", metadata.regions.len()),
            ));
        };
        self.agent.load(bytes)?;
        Ok(region.clone())
    }

    /// Loads a region by `load`, which returns its peer and number, as one target more.
    pub(crate) fn target(&self, load: impl FnOnce() -> Result<(Arc<str>, u64)>) -> Result<(Arc<str>, u64)> {
        let mut targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        let target = load()?;
        *targets.entry(target.clone()).or_default() += 1;
        Ok(target)
    }

    /// A target is released.
    pub(crate) fn unload(&self, target: (Arc<str>, u64)) {
        let mut targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(count) = targets.get_mut(&target) else { return };
        *count -= 1;
        if *count == 0 {
            // The peer may have been forgotten, or have restarted.
            let _ = self.agent.forget_region(&target.0, target.1);
            targets.remove(&target);
        }
    }

    /// Drives the agent so that a new notification leaves. Without a progress thread this also opens the session,
    /// because no later call may drive the agent: NIXL's tests notify a few times, and then poll the receiver only. The
    /// same thread may also drive the peer, so the time is short.
    fn push(&self, peer: &str) -> Result<()> {
        let began = Instant::now();
        while {
            self.agent.progress()?;
            !self.has_thread && !self.agent.is_connected(peer)? && began.elapsed() < GREETING
        } {
            std::thread::yield_now();
        }
        // Notifications that waited for the session leave now.
        self.agent.progress().map(drop)
    }

    /// Forgets the notifications that have ended.
    fn reap(&self) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        notes.retain(|note| match note.progress().outcome {
            None => true,
            Some(multirail::Outcome::Done) => false,
            Some(other) => {
                say("a notification", &format!("it did not arrive: {other:?}{}", awaited(note)));
                false
            }
        });
    }
}

/// The options, each with its default.
///
/// # Safety
/// `sink` takes the name and the default.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_options(sink: Sink, to: *mut c_void) -> c_int {
    call("listing options", || {
        for (name, default, _) in ALL {
            // SAFETY: the caller's promise.
            unsafe { sink(to, Bytes::of(name.as_bytes()), Bytes::of(default.as_bytes())) };
        }
        Ok(status::SUCCESS)
    })
}

/// Opens an engine for the agent `name`, with options as pairs of a name and a value. With `progress` a thread drives
/// it.
///
/// # Safety
/// `name` and the `2 * count` byte strings at `options` are valid for the call; `out` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_open(
    name: Bytes,
    options: *const Bytes,
    count: usize,
    progress: bool,
    out: *mut *mut Engine,
) -> c_int {
    call("opening the backend", || {
        let mut given = HashMap::new();
        for nth in 0..count {
            // SAFETY: the caller's promise.
            let (name, value) = unsafe { (*options.add(2 * nth), *options.add(2 * nth + 1)) };
            // SAFETY: the caller's promise.
            let (name, value) = unsafe { (name.text("an option")?, value.text("the value of an option")?) };
            given.insert(name.to_string(), value.to_string());
        }
        // SAFETY: the caller's promise.
        let name = unsafe { name.text("the agent's name")? };
        log::start();
        let options = Options::parse(&given, |name| std::env::var(name).ok())?;
        let builder = Agent::builder(name).config(options.config).progress_thread(progress);
        let named = options.rails.to_string();
        let agent = builder.shared_memory(options.shared_memory).rails(options.rails).open();
        let agent = agent.map_err(|error| {
            let named = format!("the rails {named:?} (option rails, or NIXL_OFI_RAILS)");
            Error::with(error.errno(), format!("{named} cannot be opened: {error}"))
        })?;
        tracing::info!(
            target: "ofi::nixl::core",
            agent = name,
            rails = named,
            shared_memory = options.shared_memory,
            by = if progress { "its thread" } else { "polls" },
            "a backend is open"
        );
        let engine = Engine {
            born: Born::here(),
            agent,
            timeout: options.timeout,
            has_thread: progress,
            notes: Mutex::default(),
            targets: Mutex::default(),
        };
        // SAFETY: the caller's promise.
        unsafe { put(out, engine) };
        Ok(status::SUCCESS)
    })
}

/// Closes an engine, after telling the peers. Its requests and regions may be released later.
///
/// # Safety
/// `engine` comes from `ofi_nixl_open`, is not used by other calls, and is closed once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_close(engine: *mut Engine) {
    call("closing the backend", || {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(engine) });
        Ok(status::SUCCESS)
    });
}

/// The agent's connection info, for the peer's `ofi_nixl_load_peer`.
///
/// # Safety
/// `engine` is open; `sink` takes the bytes as its second argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_conn_info(engine: *const Engine, sink: Sink, to: *mut c_void) -> c_int {
    call("describing the agent to peers", || {
        // SAFETY: the caller's promise.
        let bytes = unsafe { &*engine }.agent.address();
        // SAFETY: the caller's promise.
        unsafe { sink(to, Bytes::of(&[]), Bytes::of(&bytes)) };
        Ok(status::SUCCESS)
    })
}

/// Loads the connection info from a peer's `ofi_nixl_conn_info`.
///
/// # Safety
/// `engine` is open; `peer` and `info` are valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_load_peer(engine: *const Engine, peer: Bytes, info: Bytes) -> c_int {
    call("loading a peer", || {
        // SAFETY: the caller's promise.
        let (engine, peer, info) = unsafe { (&*engine, peer.text("a peer's name")?, info.get()) };
        engine.load(peer, info)?;
        tracing::debug!(target: "ofi::nixl::core", peer, "the addresses of a peer are known");
        Ok(status::SUCCESS)
    })
}

/// Starts to connect to a peer, or makes the agent its own peer. The call does not wait: one thread may drive both
/// ends.
///
/// # Safety
/// `engine` is open; `peer` is valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_connect(engine: *const Engine, peer: Bytes) -> c_int {
    call("connecting", || {
        // SAFETY: the caller's promise.
        let (engine, peer) = unsafe { (&*engine, peer.text("a peer's name")?) };
        if peer == engine.agent.name() {
            engine.agent.load(&engine.agent.address())?;
            tracing::debug!(target: "ofi::nixl::core", peer, "the agent is its own peer");
            return Ok(status::SUCCESS);
        }
        engine.agent.connect(peer)?;
        tracing::debug!(target: "ofi::nixl::core", peer, "a session is being opened");
        Ok(status::SUCCESS)
    })
}

/// Ends the session with a peer, tells the peer, and forgets its addresses and regions.
///
/// # Safety
/// `engine` is open; `peer` is valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_disconnect(engine: *const Engine, peer: Bytes) -> c_int {
    call("disconnecting", || {
        // SAFETY: the caller's promise.
        let (engine, peer) = unsafe { (&*engine, peer.text("a peer's name")?) };
        engine.agent.forget(peer)?;
        tracing::debug!(target: "ofi::nixl::core", peer, "a session has ended, and the peer is forgotten");
        Ok(status::SUCCESS)
    })
}

/// Takes the received notifications.
///
/// # Safety
/// `engine` is open; `sink` takes the peer's name and the message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_notifications(engine: *const Engine, sink: Sink, to: *mut c_void) -> c_int {
    call("taking notifications", || {
        // SAFETY: the caller's promise.
        let engine = unsafe { &*engine };
        engine.agent.progress()?;
        engine.reap();
        let mut any = false;
        while let Some(notification) = engine.agent.take_notification() {
            any = true;
            let (peer, message) = (notification.peer.as_bytes(), &notification.bytes[..]);
            // SAFETY: the caller's promise.
            unsafe { sink(to, Bytes::of(peer), Bytes::of(message)) };
        }
        if any {
            // Sends the acknowledgements: this may be the last call, and the senders wait for them.
            engine.agent.progress()?;
        }
        Ok(status::SUCCESS)
    })
}

/// Sends a notification that belongs to no transfer. It is repeated until the peer has it or the engine's time limit
/// has passed, and waits while the peer's program leaves too many untaken.
///
/// # Safety
/// `engine` is open; `peer` and `message` are valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_notify(engine: *const Engine, peer: Bytes, message: Bytes) -> c_int {
    call("sending a notification", || {
        // SAFETY: the caller's promise.
        let (engine, peer, message) = unsafe { (&*engine, peer.text("a peer's name")?, message.get()) };
        engine.reap();
        let note = engine.agent.notify(peer, message, engine.timeout)?;
        engine.notes.lock().unwrap_or_else(PoisonError::into_inner).push(note);
        engine.push(peer)?;
        Ok(status::SUCCESS)
    })
}
