//! Metadata through etcd: agents publish their own under a lease, and find each other's by name.
//!
//! The key of an agent is the prefix and its name; the value is its metadata. A thread keeps the lease alive, so the
//! entry of a dead agent disappears when the lease expires. A name belongs to the agent that has its key: a second
//! agent is refused, and a restarted agent gets the name when its predecessor's lease has expired. An agent that waits
//! for a name watches its key, and reads it again at intervals.
//!
//! The module uses the HTTP/JSON gateway of etcd 3.4 and newer, in the clear: for trusted networks
//! (`docs/threat-model.md`).

mod gateway;
mod published;

use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ofi::{Errno, Error, Result};
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::deadline::end_of;
pub use gateway::Members;
use gateway::{Gateway, REQUEST_TIMEOUT, encoded, field, strange, text};
pub use published::Published;

/// Pause after etcd has ended a watch: it may be starting.
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum time of a watch. The next request detects a silent member.
const WATCH: Duration = Duration::from_secs(5);
/// Minimum time for a member to answer, however little of the timeout is left.
const SHORTEST: Duration = Duration::from_millis(200);
/// Minimum and maximum lease.
const LEASE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(24 * 3600));

/// A connection to etcd.
#[derive(Clone, Debug)]
pub struct Etcd {
    gateway: Arc<Gateway>,
    prefix: String,
}

impl Etcd {
    /// Connects to the etcd whose members have these client URLs, separated by commas, such as `http://10.0.0.1:2379`.
    /// Keys begin with `prefix`: agents that share it find each other.
    ///
    /// # Errors
    /// Those of [`Etcd::open`].
    pub fn connect(urls: &str, prefix: &str) -> Result<Self> {
        Self::open(&Members::at(urls), prefix)
    }

    /// Connects to etcd. If a member does not answer, the next one is used.
    ///
    /// # Errors
    /// `FI_EINVAL` for a URL that is not `http://HOST:PORT`; the error of connecting; `FI_EREMOTEIO` for a wrong user
    /// or password.
    pub fn open(members: &Members, prefix: &str) -> Result<Self> {
        Ok(Self { gateway: Arc::new(Gateway::open(members)?), prefix: prefix.to_string() })
    }

    /// Names of the published agents, sorted.
    ///
    /// # Errors
    /// The error of etcd, or of reaching it.
    pub fn names(&self) -> Result<Vec<String>> {
        Ok(self.names_as_of()?.0)
    }

    /// Waits until at least `count` names are published, or the time is over. Returns the names at that time, sorted.
    ///
    /// # Errors
    /// The errors of [`Etcd::names`].
    pub fn wait_for_names(&self, count: usize, timeout: Duration) -> Result<Vec<String>> {
        let deadline = end_of(timeout);
        loop {
            let (names, revision) = self.names_as_of()?;
            if names.len() >= count || Instant::now() >= deadline {
                return Ok(names);
            }
            self.wait_for_change(&self.prefix, Some(&self.end()), revision.saturating_add(1), deadline);
        }
    }

    /// The end of the range of keys with the prefix.
    fn end(&self) -> String {
        format!("{}\u{10FFFF}", self.prefix)
    }

    /// The names, and the revision at which they were read.
    fn names_as_of(&self) -> Result<(Vec<String>, i64)> {
        let range =
            json!({ "key": encoded(&self.prefix), "range_end": encoded(&self.end()), "keys_only": true });
        let answer = self.ask("kv/range", &range)?;
        let keys = entries(&answer).map(|entry| field(entry, "key"));
        let names = keys.map(|key| {
            let key = String::from_utf8(key?).map_err(|_| strange("a key that is not UTF-8"))?;
            Ok(key.strip_prefix(&self.prefix).unwrap_or(&key).to_string())
        });
        let mut names = names.collect::<Result<Vec<String>>>()?;
        names.sort_unstable();
        Ok((names, revision(&answer)?))
    }

    /// Publishes a value of the caller's under a name, as [`Agent::publish`] publishes an agent's metadata: for example
    /// a rendezvous address.
    ///
    /// # Errors
    /// The errors of [`Agent::publish`].
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
        match self.wait_for_name(&key, &value, &lease, ttl) {
            Ok(true) => return Published::keep(self, key, value, lease, ttl),
            claimed => {
                // If that fails, the lease expires by itself.
                let _ = self.ask("lease/revoke", &json!({ "ID": lease }));
                claimed?;
            }
        }
        Err(Error::wanted(
            Errno::EADDRINUSE,
            format!("the name {name:?} in etcd"),
            "one that no other running agent has",
            format!("another agent under {key:?}, still after {ttl:?}"),
            "choose another name or prefix",
        ))
    }

    /// Waits until another agent's lease must have expired. Returns whether the key is ours then.
    fn wait_for_name(&self, key: &str, value: &str, lease: &str, ttl: Duration) -> Result<bool> {
        let deadline = Instant::now() + ttl + REQUEST_TIMEOUT;
        loop {
            let claim = self.claim(key, value, lease, patience(ttl))?;
            if claim.is_ours || Instant::now() >= deadline {
                return Ok(claim.is_ours);
            }
            self.keep_alive(lease, patience(ttl))?;
            let until = deadline.min(Instant::now() + ttl / 4);
            self.wait_for_change(key, None, claim.revision.saturating_add(1), until);
        }
    }

    fn ask(&self, method: &str, body: &Value) -> Result<Value> {
        self.gateway.ask(method, body, REQUEST_TIMEOUT)
    }

    /// Renews a lease. Returns whether it still existed.
    fn keep_alive(&self, lease: &str, patience: Duration) -> Result<bool> {
        let answer = self.gateway.ask("lease/keepalive", &json!({ "ID": lease }), patience)?;
        let left = answer.pointer("/result/TTL").and_then(Value::as_str);
        Ok(left.is_some_and(|left| left != "0"))
    }

    /// The metadata published under a name, and the revision at which it was read.
    fn metadata(&self, name: &str, patience: Duration) -> Result<(Option<Vec<u8>>, i64)> {
        let range = json!({ "key": encoded(&self.key(name)) });
        let answer = self.gateway.ask("kv/range", &range, patience)?;
        let found = entries(&answer).next().map(|entry| field(entry, "value")).transpose()?;
        Ok((found, revision(&answer)?))
    }

    /// Waits, at most until `deadline`, until a key, or one in the range from it to `end`, has changed since `revision`
    /// or must be read again for another reason.
    fn wait_for_change(&self, key: &str, end: Option<&str>, revision: i64, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now()).min(WATCH);
        if !left.is_zero() && !self.gateway.watch(key, end, revision, left) {
            std::thread::sleep(PAUSE.min(deadline.saturating_duration_since(Instant::now())));
        }
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn lease(&self, ttl: Duration) -> Result<String> {
        let answer = self.ask("lease/grant", &json!({ "TTL": ttl.as_secs().to_string() }))?;
        text(&answer, "ID").map(str::to_string)
    }

    /// Puts a value, unless the key has one. Returns whether it was put.
    fn claim(&self, key: &str, value: &str, lease: &str, patience: Duration) -> Result<Claim> {
        let key = encoded(key);
        let put = json!({
            "compare": [{ "key": key, "target": "CREATE", "create_revision": "0" }],
            "success": [{ "requestPut": { "key": key, "value": value, "lease": lease } }],
            "failure": [{ "requestRange": { "key": key } }],
        });
        let answer = self.gateway.ask("kv/txn", &put, patience)?;
        // A request whose answer was lost may have put the key.
        let found = answer.pointer("/responses/0/response_range/kvs/0/lease").and_then(Value::as_str);
        let is_ours = answer["succeeded"] == true || found == Some(lease);
        Ok(Claim { is_ours, revision: revision(&answer)? })
    }
}

/// The result of a claim, and its revision of the store.
struct Claim {
    is_ours: bool,
    revision: i64,
}

/// Time limit for a member to answer about a lease. It permits asking several members before the lease expires.
fn patience(ttl: Duration) -> Duration {
    REQUEST_TIMEOUT.min(ttl / 8)
}

impl Agent {
    /// Publishes this agent's metadata, as it is now, until the returned value is dropped, or `ttl` after this process
    /// has died. If another agent has the name, the call waits until that agent's lease must have expired.
    ///
    /// # Errors
    /// `FI_EINVAL` for a `ttl` that is not between 2 s and a day; `FI_EADDRINUSE` for a name that another agent keeps;
    /// errors from etcd, and those of [`Agent::metadata`].
    pub fn publish(&self, etcd: &Etcd, ttl: Duration) -> Result<Published> {
        etcd.announce(self.name(), &self.metadata()?, ttl)
    }

    /// Waits until the metadata of the agent `name` is published, loads it, and returns the agent's name. If etcd is
    /// unreachable meanwhile, the call waits for it.
    ///
    /// # Errors
    /// `FI_ENOENT` if the metadata is not published within `timeout`; `FI_EINVAL` if another agent's is there; errors
    /// from etcd, or the last error of reaching it, and those of [`Agent::load`].
    pub fn find(&self, etcd: &Etcd, name: &str, timeout: Duration) -> Result<Arc<str>> {
        let (deadline, key) = (end_of(timeout), etcd.key(name));
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let missing = match etcd.metadata(name, REQUEST_TIMEOUT.min(left.max(SHORTEST))) {
                Ok((Some(metadata), revision)) => match self.load_of(name, &metadata) {
                    // A dead predecessor's, whose lease has not expired: the peer itself is known already.
                    Err(error) if error == Errno::ECONNRESET => {
                        etcd.wait_for_change(&key, None, revision.saturating_add(1), deadline);
                        Some(error)
                    }
                    loaded => return loaded,
                },
                Ok((None, revision)) => {
                    etcd.wait_for_change(&key, None, revision.saturating_add(1), deadline);
                    None
                }
                Err(error) if error == Errno::EREMOTEIO || error == Errno::EINVAL => return Err(error),
                Err(error) => {
                    std::thread::sleep(PAUSE);
                    Some(error)
                }
            };
            if Instant::now() >= deadline {
                return Err(missing.unwrap_or_else(|| {
                    Error::wanted(
                        Errno::ENOENT,
                        format!("the agent {name:?} in etcd"),
                        format!("its metadata under {key:?}"),
                        format!("nothing after {timeout:?}"),
                        "check that it runs, and publishes with the same prefix",
                    )
                }));
            }
        }
    }
}

/// The revision of the store at which a request was answered.
fn revision(answer: &Value) -> Result<i64> {
    // In a stream's answers the header is one level lower.
    let header = answer.get("result").unwrap_or(answer).get("header").unwrap_or(&Value::Null);
    text(header, "revision")?.parse().map_err(|_| strange("a revision that is not a number"))
}

fn entries(answer: &Value) -> impl Iterator<Item = &Value> {
    answer["kvs"].as_array().into_iter().flatten()
}
