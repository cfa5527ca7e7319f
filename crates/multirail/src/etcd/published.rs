//! An agent's entry in etcd, and the thread that keeps its lease.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ofi::{Errno, Error, Result};
use serde_json::{Value, json};

use super::Etcd;
use super::gateway::encoded;
use crate::agent::Agent;

/// An agent's entry. Dropping it takes the entry away at once.
#[derive(Debug)]
pub struct Published {
    entry: Arc<Entry>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Entry {
    etcd: Etcd,
    key: String,
    ttl: Duration,
    state: Mutex<State>,
    over: Condvar,
}

#[derive(Debug)]
struct State {
    lease: String,
    value: String,
    /// The entry was lost to another agent: its lease had run out.
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
        let state = Mutex::new(State { lease, value, is_lost: false, is_over: false });
        let entry = Arc::new(Entry { etcd: etcd.clone(), key, ttl, state, over: Condvar::new() });
        let keeper = Arc::clone(&entry);
        let thread =
            std::thread::Builder::new().name("multirail-etcd".into()).spawn(move || keeper.keep())?;
        Ok(Self { entry, thread: Some(thread) })
    }

    /// Publishes the agent's metadata as it is now: with regions that were added since.
    ///
    /// # Errors
    /// As of [`Agent::publish`]; `FI_EADDRINUSE` if the entry was lost to another agent.
    pub fn update(&self, agent: &Agent) -> Result<()> {
        let value = BASE64_STANDARD.encode(agent.metadata()?);
        let mut state = self.entry.lock();
        if state.is_lost {
            return Err(Error::with(Errno::EADDRINUSE, "an entry in etcd that another agent has now"));
        }
        let put = json!({ "key": encoded(&self.entry.key), "value": value, "lease": state.lease });
        self.entry.etcd.ask("kv/put", &put)?;
        state.value = value;
        Ok(())
    }

    /// Whether the entry is still this agent's: it may be lost where etcd was not reached for longer than the lease.
    pub fn is_there(&self) -> bool {
        !self.entry.lock().is_lost
    }
}

impl Entry {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the lease alive until the entry is over.
    fn keep(&self) {
        let mut state = self.lock();
        while !state.is_over && !state.is_lost {
            let waited = self.over.wait_timeout_while(state, self.ttl / 4, |state| !state.is_over);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if state.is_over {
                return;
            }
            if let Err(error) = self.renew(&mut state) {
                tracing::warn!(target: "multirail", %error, "the lease of an agent's metadata was not renewed");
            }
        }
    }

    /// Renews the lease, or makes the entry anew where it has run out.
    fn renew(&self, state: &mut State) -> Result<()> {
        let answer = self.etcd.ask("lease/keepalive", &json!({ "ID": state.lease }))?;
        let left = answer.pointer("/result/TTL").and_then(Value::as_str);
        if left.is_some_and(|left| left != "0") {
            return Ok(());
        }
        let lease = self.etcd.lease(self.ttl)?;
        state.is_lost = !self.etcd.claim(&self.key, &state.value, &lease)?;
        state.lease = lease;
        Ok(())
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        let lease = {
            let mut state = self.entry.lock();
            state.is_over = true;
            state.lease.clone()
        };
        self.entry.over.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
        if let Err(error) = self.entry.etcd.ask("lease/revoke", &json!({ "ID": lease })) {
            tracing::debug!(target: "multirail", %error, "an entry in etcd stays until its lease is over");
        }
    }
}
