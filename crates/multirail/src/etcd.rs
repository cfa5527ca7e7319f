//! Metadata through etcd: agents publish theirs under a lease, and find that of others by name.
//!
//! The key of an agent is the prefix and its name; the value is its metadata. The lease is kept alive by a thread, so the entry of an
//! agent that dies goes when the lease runs out. A name belongs to the agent that has its key: a second one is refused, and a restarted
//! agent gets it when its predecessor's lease is over.
//!
//! The HTTP/JSON gateway of etcd 3.4 and newer is used, in the clear: for networks that are trusted (`docs/threat-model.md`).

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ofi::{Errno, Error, Result};
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::wire::blob::LONGEST;

/// Longest time of one request.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a name is asked for that is not there yet, or is taken.
const LOOK: Duration = Duration::from_millis(50);
/// Shortest and longest lease.
const LEASE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(24 * 3600));
/// Longest answer that is read: the longest metadata in base64, and some names.
const ANSWER: u64 = LONGEST as u64 / 3 * 4 + (1 << 20);

/// A connection to etcd.
#[derive(Clone, Debug)]
pub struct Etcd {
    http: ureq::Agent,
    endpoint: String,
    prefix: String,
}

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

impl Etcd {
    /// Talks to the etcd at `endpoint`, such as `http://10.0.0.1:2379`. Keys begin with `prefix`: agents that share it find each other.
    ///
    /// # Errors
    /// `FI_EINVAL` for an endpoint that is not `http://HOST:PORT`; what connecting answers.
    pub fn connect(endpoint: &str, prefix: &str) -> Result<Self> {
        if !endpoint.starts_with("http://") {
            return Err(Error::wanted(
                Errno::EINVAL,
                "the endpoint of etcd",
                "http://HOST:PORT",
                format!("{endpoint:?}"),
                "give the client URL of a member; TLS is not spoken here",
            ));
        }
        let config = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).http_status_as_error(false);
        let etcd = Self {
            http: config.build().into(),
            endpoint: endpoint.trim_end_matches('/').to_string(),
            prefix: prefix.to_string(),
        };
        etcd.ask("maintenance/status", &json!({}))?;
        Ok(etcd)
    }

    /// Names of the agents that are there, sorted.
    ///
    /// # Errors
    /// What etcd answers, or talking to it.
    pub fn names(&self) -> Result<Vec<String>> {
        let end = format!("{}\u{10FFFF}", self.prefix);
        let range = json!({ "key": encoded(&self.prefix), "range_end": encoded(&end), "keys_only": true });
        let answer = self.ask("kv/range", &range)?;
        let keys = entries(&answer).map(|entry| field(entry, "key"));
        let names = keys.map(|key| {
            let key = String::from_utf8(key?).map_err(|_| strange("a key that is no UTF-8"))?;
            Ok(key.strip_prefix(&self.prefix).unwrap_or(&key).to_string())
        });
        let mut names = names.collect::<Result<Vec<String>>>()?;
        names.sort_unstable();
        Ok(names)
    }

    /// Publishes a value of the caller's under a name, as [`Agent::publish`] does an agent's metadata: such as where to meet.
    ///
    /// # Errors
    /// As of [`Agent::publish`].
    pub fn announce(&self, name: &str, value: &[u8], ttl: Duration) -> Result<Published> {
        if !(LEASE.0..=LEASE.1).contains(&ttl) {
            return Err(Error::wanted(
                Errno::EINVAL,
                "the time of a lease",
                format!("{:?} to {:?}", LEASE.0, LEASE.1),
                format!("{ttl:?}"),
                "choose how long a dead agent may stay listed",
            ));
        }
        let (key, value) = (self.key(name), BASE64_STANDARD.encode(value));
        let lease = self.lease(ttl)?;
        let deadline = Instant::now() + ttl + PATIENCE;
        while !self.claim(&key, &value, &lease)? {
            if Instant::now() >= deadline {
                // It runs out by itself if that fails.
                let _ = self.ask("lease/revoke", &json!({ "ID": lease }));
                return Err(Error::wanted(
                    Errno::EADDRINUSE,
                    format!("the name {name:?} in etcd"),
                    "one that no living agent has",
                    format!("another agent under {key:?}, for {ttl:?} and longer"),
                    "choose another name or prefix",
                ));
            }
            self.ask("lease/keepalive", &json!({ "ID": lease }))?;
            std::thread::sleep(LOOK);
        }
        let state = Mutex::new(State { lease, value, is_lost: false, is_over: false });
        let entry = Arc::new(Entry { etcd: self.clone(), key, ttl, state, over: Condvar::new() });
        let keeper = Arc::clone(&entry);
        let thread =
            std::thread::Builder::new().name("multirail-etcd".into()).spawn(move || keeper.keep())?;
        Ok(Published { entry, thread: Some(thread) })
    }

    /// The metadata that is published under a name.
    fn metadata(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let answer = self.ask("kv/range", &json!({ "key": encoded(&self.key(name)) }))?;
        entries(&answer).next().map(|entry| field(entry, "value")).transpose()
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn lease(&self, ttl: Duration) -> Result<String> {
        let answer = self.ask("lease/grant", &json!({ "TTL": ttl.as_secs().to_string() }))?;
        text(&answer, "ID").map(str::to_string)
    }

    /// Puts a value where there is none. Whether there was none.
    fn claim(&self, key: &str, value: &str, lease: &str) -> Result<bool> {
        let key = encoded(key);
        let answer = self.ask(
            "kv/txn",
            &json!({
                "compare": [{ "key": key, "target": "CREATE", "create_revision": "0" }],
                "success": [{ "requestPut": { "key": key, "value": value, "lease": lease } }],
            }),
        )?;
        Ok(answer["succeeded"] == true)
    }

    fn ask(&self, method: &str, body: &Value) -> Result<Value> {
        let url = format!("{}/v3/{method}", self.endpoint);
        let failed = |error: ureq::Error| {
            let errno = match &error {
                ureq::Error::Timeout(_) => Errno::ETIMEDOUT,
                ureq::Error::BodyExceedsLimit(_) => Errno::EMSGSIZE,
                ureq::Error::Io(error) => error.raw_os_error().map_or(Errno::EIO, Errno::from_raw),
                ureq::Error::ConnectionFailed => Errno::ECONNREFUSED,
                ureq::Error::HostNotFound => Errno::EHOSTUNREACH,
                _ => Errno::EIO,
            };
            Error::with(errno, format!("asking etcd at {url}: {error}"))
        };
        let mut response = self.http.post(&url).send(body.to_string()).map_err(failed)?;
        let bytes = response.body_mut().with_config().limit(ANSWER).read_to_vec().map_err(failed)?;
        let answer: Value = serde_json::from_slice(&bytes)
            .map_err(|error| strange(&format!("{} that is no JSON: {error}", response.status())))?;
        match answer.get("error").or_else(|| answer.pointer("/error/message")) {
            Some(error) => Err(Error::with(Errno::EREMOTEIO, format!("etcd answers {method} with {error}"))),
            None => Ok(answer),
        }
    }
}

impl Agent {
    /// Publishes this agent's metadata, as it is now, until the answer is dropped, or `ttl` after this process has died. A name that another
    /// agent has is waited for, as long as its lease may last.
    ///
    /// # Errors
    /// `FI_EINVAL` for a `ttl` that is not between 2 s and a day; `FI_EADDRINUSE` for a name that another agent keeps; what etcd answers, and
    /// those of [`Agent::metadata`].
    pub fn publish(&self, etcd: &Etcd, ttl: Duration) -> Result<Published> {
        etcd.announce(self.name(), &self.metadata()?, ttl)
    }

    /// Loads the metadata of the agent `name`, waiting until it is there, and answers its name.
    ///
    /// # Errors
    /// `FI_ENOENT` if it is not there after `timeout`; what etcd answers, and those of [`Agent::load`].
    pub fn find(&self, etcd: &Etcd, name: &str, timeout: Duration) -> Result<Arc<str>> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(metadata) = etcd.metadata(name)? {
                return self.load(&metadata);
            }
            if Instant::now() >= deadline {
                return Err(Error::wanted(
                    Errno::ENOENT,
                    format!("the agent {name:?} in etcd"),
                    format!("its metadata under {:?}", etcd.key(name)),
                    format!("nothing after {timeout:?}"),
                    "see that it runs, and publishes with the same prefix",
                ));
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Published {
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

fn encoded(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

fn entries(answer: &Value) -> impl Iterator<Item = &Value> {
    answer["kvs"].as_array().into_iter().flatten()
}

fn text<'a>(answer: &'a Value, name: &str) -> Result<&'a str> {
    answer[name].as_str().ok_or_else(|| strange(&format!("no {name}")))
}

fn field(entry: &Value, name: &str) -> Result<Vec<u8>> {
    BASE64_STANDARD
        .decode(text(entry, name)?)
        .map_err(|error| strange(&format!("a {name} that is no base64: {error}")))
}

fn strange(found: &str) -> Error {
    Error::wanted(
        Errno::EINVAL,
        "an answer of etcd",
        "the JSON of its gateway, version 3",
        found,
        "check the endpoint: something else may listen there",
    )
}
