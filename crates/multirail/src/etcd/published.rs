//! An agent's entry in etcd, and the thread that keeps its lease.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ofi::{Errno, Error, Result};
use ofi_core::fork::Born;
use serde_json::json;

use super::gateway::encoded;
use super::{Etcd, patience};
use crate::agent::Agent;

/// An agent's entry. Dropping it removes the entry at once, unless a forked child drops its copy.
#[derive(Debug)]
pub struct Published {
    entry: Arc<PublishedEntry>,
    thread: Option<JoinHandle<()>>,
    /// The process of the thread.
    born: Born,
}

#[derive(Debug)]
struct PublishedEntry {
    etcd: Etcd,
    key: String,
    ttl: Duration,
    state: Mutex<PublishedState>,
    over: Condvar,
}

#[derive(Debug)]
struct PublishedState {
    lease: String,
    /// The key is known to be under this lease.
    is_claimed: bool,
    value: String,
    /// Another agent took the entry after its lease had expired.
    is_lost: bool,
    is_over: bool,
}

impl Published {
    /// Keeps a lease, and the key that was put under it.
    pub(super) fn keep(
        etcd: &Etcd,
        key: String,
        value: String,
        lease: String,
        ttl: Duration,
    ) -> Result<Self> {
        let state =
            Mutex::new(PublishedState { lease, is_claimed: true, value, is_lost: false, is_over: false });
        let entry = Arc::new(PublishedEntry { etcd: etcd.clone(), key, ttl, state, over: Condvar::new() });
        let keeper = Arc::clone(&entry);
        let thread =
            std::thread::Builder::new().name("multirail-etcd".into()).spawn(move || keeper.keep())?;
        Ok(Self { entry, thread: Some(thread), born: Born::here() })
    }

    /// Publishes the agent's metadata as it is now, including regions that were added since.
    ///
    /// # Errors
    /// The errors of [`Agent::publish`]; `FI_EADDRINUSE` if the entry was lost to another agent. After other errors the
    /// metadata may still be published with the next lease.
    pub fn update(&self, agent: &Agent) -> Result<()> {
        self.born.check()?;
        let value = BASE64_STANDARD.encode(agent.metadata()?);
        self.entry.lock().value.clone_from(&value);
        loop {
            let lease = {
                let state = self.entry.lock();
                if state.is_lost {
                    return Err(Error::with(
                        Errno::EADDRINUSE,
                        "another agent has taken this entry in etcd; publish under another name or prefix",
                    ));
                }
                state.lease.clone()
            };
            match self.entry.put(&value, &lease) {
                // The entry was created again in the meantime.
                Err(_) if self.entry.lock().lease != lease => {}
                put => return put,
            }
        }
    }

    /// Whether the entry still belongs to this agent. It may lose the entry when etcd is unreachable for longer than
    /// the lease.
    pub fn is_there(&self) -> bool {
        !self.entry.lock().is_lost
    }
}

impl PublishedEntry {
    fn lock(&self) -> MutexGuard<'_, PublishedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the lease alive until the entry is removed.
    fn keep(&self) {
        let mut state = self.lock();
        while !state.is_over && !state.is_lost {
            let waited = self.over.wait_timeout_while(state, self.ttl / 4, |state| !state.is_over);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if state.is_over {
                return;
            }
            drop(state); // so that a reader of the entry does not wait for etcd's answers
            if let Err(error) = self.renew() {
                tracing::warn!(target: "multirail", %error, "the lease of an agent's metadata was not renewed");
            }
            state = self.lock();
        }
    }

    /// Renews the lease, or creates the entry again if the lease has expired.
    fn renew(&self) -> Result<()> {
        let patience = patience(self.ttl);
        let (mut lease, is_claimed) = {
            let state = self.lock();
            (state.lease.clone(), state.is_claimed)
        };
        let is_there = self.etcd.keep_alive(&lease, patience)?;
        if is_there && is_claimed {
            return Ok(());
        }
        if !is_there {
            lease = self.etcd.lease(self.ttl)?;
            let mut state = self.lock();
            // A claim whose answer is lost may have succeeded: it is repeated under the same lease.
            (state.lease, state.is_claimed) = (lease.clone(), false);
        }
        let value = self.lock().value.clone();
        let claim = self.etcd.claim(&self.key, &value, &lease, patience)?;
        let now = {
            let mut state = self.lock();
            (state.is_claimed, state.is_lost) = (claim.is_ours, !claim.is_ours);
            state.value.clone()
        };
        if claim.is_ours && now != value { self.put(&now, &lease) } else { Ok(()) }
    }

    fn put(&self, value: &str, lease: &str) -> Result<()> {
        let put = json!({ "key": encoded(&self.key), "value": value, "lease": lease });
        self.etcd.gateway.ask("kv/put", &put, patience(self.ttl)).map(drop)
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        if !self.born.is_here() {
            return std::mem::forget(self.thread.take());
        }
        self.entry.lock().is_over = true;
        self.entry.over.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
        let revoke = json!({ "ID": self.entry.lock().lease });
        if let Err(error) = self.entry.etcd.gateway.ask("lease/revoke", &revoke, patience(self.entry.ttl)) {
            tracing::debug!(target: "multirail", %error, "an entry in etcd stays until its lease expires");
        }
    }
}
