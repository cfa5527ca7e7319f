//! An engine of NIXL: one agent.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use multirail::wire::Metadata;
use multirail::{Agent, Transfer};
use ofi::{Errno, Error, Result};

use crate::border::{Bytes, Sink, call, put, say, status};
use crate::options::{ALL, Options};

/// An agent as a backend of NIXL.
pub struct Engine {
    /// Calls drive it even where a progress thread does: a program that asks again and again would only keep the thread
    /// from its lock.
    pub(crate) agent: Agent,
    /// Time that a transfer has.
    pub(crate) timeout: Duration,
    /// Whether the agent has a progress thread.
    has_thread: bool,
    /// Notifications of no transfer that are under way: dropping them would cancel them.
    notes: Mutex<Vec<Transfer>>,
}

/// How long sending a notification drives the agent to open the session.
const GREETING: Duration = Duration::from_millis(10);

impl Engine {
    /// Takes metadata that a peer of this name has given.
    pub(crate) fn load(&self, peer: &str, bytes: &[u8]) -> Result<Metadata> {
        let metadata = Metadata::parse(bytes).map_err(|malformed| {
            Error::with(Errno::EINVAL, format!("the metadata of {peer} is invalid: {malformed}"))
        })?;
        if metadata.name != peer {
            let (wanted, found) = (format!("that of {peer:?}"), format!("that of {:?}", metadata.name));
            return Err(Error::wanted(Errno::EINVAL, "metadata", wanted, found, "do not mix agents up"));
        }
        self.agent.load(bytes)?;
        Ok(metadata)
    }

    /// Brings a notification on its way. Without a progress thread nobody else may drive the agent any more: NIXL's
    /// tests notify a few times, and then poll the receiver only. What the peer has to do may be done by this thread
    /// too, so the time is short.
    fn push(&self, peer: &str) -> Result<()> {
        let began = Instant::now();
        while {
            self.agent.progress()?;
            !self.has_thread && !self.agent.is_connected(peer)? && began.elapsed() < GREETING
        } {
            std::thread::yield_now();
        }
        // What waited for the session leaves now.
        self.agent.progress().map(drop)
    }

    /// Forgets the notifications that have ended.
    fn reap(&self) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        notes.retain(|note| match note.progress().outcome {
            None => true,
            Some(multirail::Outcome::Done) => false,
            Some(other) => {
                say("a notification", &format!("it did not arrive: {other:?}"));
                false
            }
        });
    }
}

/// The options, each with its default.
///
/// # Safety
/// `sink` takes name and default.
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

/// Opens an engine for the agent `name`, with options as pairs: a name, a value. With `progress` a thread drives it.
///
/// # Safety
/// `name` and the `2 * count` pieces at `options` are lent; `out` is valid for a write.
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
        let options = Options::parse(&given, |name| std::env::var(name).ok())?;
        // SAFETY: the caller's promise.
        let name = unsafe { name.text("the agent's name")? };
        let builder = Agent::builder(name).config(options.config).progress_thread(progress);
        let builder = builder.shared_memory(options.shared_memory);
        let agent = options.rails.into_iter().fold(builder, multirail::Builder::rail).open()?;
        let engine =
            Engine { agent, timeout: options.timeout, has_thread: progress, notes: Mutex::default() };
        // SAFETY: the caller's promise.
        unsafe { put(out, engine) };
        Ok(status::SUCCESS)
    })
}

/// Closes an engine, after telling the peers. Requests and regions of it may be given back later.
///
/// # Safety
/// `engine` is of `ofi_nixl_open`, not used by other calls, and closed once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_close(engine: *mut Engine) {
    call("closing the backend", || {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(engine) });
        Ok(status::SUCCESS)
    });
}

/// How peers reach the agent, for `ofi_nixl_load_peer` there.
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

/// Takes what a peer's `ofi_nixl_conn_info` gave.
///
/// # Safety
/// `engine` is open; `peer` and `info` are lent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_load_peer(engine: *const Engine, peer: Bytes, info: Bytes) -> c_int {
    call("loading a peer", || {
        // SAFETY: the caller's promise.
        let (engine, peer, info) = unsafe { (&*engine, peer.text("a peer's name")?, info.get()) };
        engine.load(peer, info)?;
        Ok(status::SUCCESS)
    })
}

/// Begins to connect to a peer, or makes the agent its own peer. It does not wait: both ends may be driven by one
/// thread.
///
/// # Safety
/// `engine` is open; `peer` is lent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_connect(engine: *const Engine, peer: Bytes) -> c_int {
    call("connecting", || {
        // SAFETY: the caller's promise.
        let (engine, peer) = unsafe { (&*engine, peer.text("a peer's name")?) };
        if peer == engine.agent.name() {
            engine.agent.load(&engine.agent.address())?;
            return Ok(status::SUCCESS);
        }
        engine.agent.connect(peer)?;
        Ok(status::SUCCESS)
    })
}

/// Ends what there is with a peer, tells it, and forgets its addresses and regions.
///
/// # Safety
/// `engine` is open; `peer` is lent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_disconnect(engine: *const Engine, peer: Bytes) -> c_int {
    call("disconnecting", || {
        // SAFETY: the caller's promise.
        let (engine, peer) = unsafe { (&*engine, peer.text("a peer's name")?) };
        engine.agent.forget(peer)?;
        Ok(status::SUCCESS)
    })
}

/// Takes the notifications that have come.
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
            // The acknowledgements: this may be the last call, and the senders wait for them.
            engine.agent.progress()?;
        }
        Ok(status::SUCCESS)
    })
}

/// Sends a notification that is of no transfer. It is repeated until the peer has it or the engine's time is up.
///
/// # Safety
/// `engine` is open; `peer` and `message` are lent.
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
