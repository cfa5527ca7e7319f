//! Calls of etcd's HTTP/JSON gateway: the choice of the member, the user's token, the classification of answers.
//!
//! Members are asked in turn, beginning with the one that answered last. An error from etcd itself is an answer, unless
//! it says that the member has no leader. A token that has expired, or that a restarted etcd does not know, is replaced
//! once.

use std::fmt;
use std::io::{BufRead as _, BufReader, Read as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ofi::{Errno, Error, Result};
use serde_json::{Value, json};
use ureq::http::StatusCode;

use crate::wire::blob::MAX_METADATA_LEN;

/// Time limit of one request to one member.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of connecting to a member.
const CONNECT: Duration = Duration::from_secs(2);
/// Maximum bytes of an answer: the longest metadata in base64, and some names.
const ANSWER: u64 = MAX_METADATA_LEN as u64 / 3 * 4 + (1 << 20);
/// gRPC's codes for a member that cannot answer now, and for an invalid token.
const UNAVAILABLE: i64 = 14;
const UNAUTHENTICATED: i64 = 16;
/// Etcd's messages for a token issued before users or roles changed, and for a missing token. Their code is ambiguous.
const OLD_TOKEN: [&str; 2] = ["revision of auth store is old", "user name is empty"];
/// The request that obtains the token, and so carries none.
const AUTHENTICATE: &str = "auth/authenticate";

/// The members of an etcd, and optionally a user.
#[derive(Clone, Default)]
pub struct Members {
    urls: Vec<String>,
    user: Option<(String, String)>,
}

impl Members {
    /// The client URLs of members, separated by commas, such as `http://10.0.0.1:2379,http://10.0.0.2:2379`.
    pub fn at(urls: &str) -> Self {
        let urls = urls.split(',').map(|url| url.trim().trim_end_matches('/').to_string());
        Self { urls: urls.filter(|url| !url.is_empty()).collect(), user: None }
    }

    /// Authenticates as this user, who may read and write below the prefix. The password crosses the network in the
    /// clear.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.user = Some((name.to_string(), password.to_string()));
        self
    }
}

/// Omits the password.
impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_ref().map(|(name, _)| name);
        f.debug_struct("Members").field("urls", &self.urls).field("user", &user).finish_non_exhaustive()
    }
}

/// One member's answer to one request.
#[derive(Debug)]
enum GatewayAnswer {
    Answer(Value),
    /// An error from etcd itself.
    Refused(Error),
    /// The token is invalid.
    Stranger(Error),
    /// Another member may answer.
    Silent(Error),
}

/// The connection to etcd.
pub(super) struct Gateway {
    http: ureq::Agent,
    members: Members,
    /// The member that answered last.
    last: AtomicUsize,
    token: Mutex<Option<String>>,
}

/// Omits the token.
impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("members", &self.members).finish_non_exhaustive()
    }
}

impl Gateway {
    /// # Errors
    /// `FI_EINVAL` without members, or for one that is not `http://HOST:PORT`; the error of connecting.
    pub(super) fn open(members: &Members) -> Result<Self> {
        if members.urls.iter().any(|url| url.contains('@')) {
            return Err(not_a_url("one with a user, whose password logs would show: use Members::user"));
        }
        if let Some(wrong) = members.urls.iter().find(|url| !url.starts_with("http://")) {
            return Err(not_a_url(&format!("{wrong:?}")));
        }
        if members.urls.is_empty() {
            return Err(not_a_url("none"));
        }
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(REQUEST_TIMEOUT))
            .timeout_connect(Some(CONNECT))
            .http_status_as_error(false);
        let gateway = Self {
            http: config.build().into(),
            members: members.clone(),
            last: AtomicUsize::new(0),
            token: Mutex::new(None),
        };
        gateway.ask("maintenance/status", &json!({}), REQUEST_TIMEOUT)?;
        gateway.log_in(REQUEST_TIMEOUT)?;
        Ok(gateway)
    }

    fn token(&self) -> MutexGuard<'_, Option<String>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log_in(&self, patience: Duration) -> Result<()> {
        let Some((name, password)) = &self.members.user else { return Ok(()) };
        let answer = self.round(AUTHENTICATE, &json!({ "name": name, "password": password }), patience)??;
        *self.token() = Some(text(&answer, "token")?.to_string());
        Ok(())
    }

    /// Sends a request and returns the answer. The request may be sent more than once, even if the first one was
    /// executed; each member has `patience` to answer.
    ///
    /// # Errors
    /// `FI_EREMOTEIO` for an error from etcd itself; the last member's error if none answers, `FI_EAGAIN` if it has no
    /// leader.
    pub(super) fn ask(&self, method: &str, body: &Value, patience: Duration) -> Result<Value> {
        match self.round(method, body, patience)? {
            Ok(answer) => Ok(answer),
            Err(stranger) if self.members.user.is_none() => Err(stranger),
            Err(_) => {
                self.log_in(patience)?;
                self.round(method, body, patience)?
            }
        }
    }

    /// Asks the members in turn, the first one twice, since a kept connection may lead to a member that has restarted.
    /// The inner error means an invalid token.
    fn round(&self, method: &str, body: &Value, patience: Duration) -> Result<Result<Value, Error>> {
        let (count, first) = (self.members.urls.len(), self.last.load(Ordering::Relaxed));
        let mut silent = None;
        for nth in 0..=count {
            let at = (first + nth) % count;
            match self.ask_member(&self.members.urls[at], method, body, patience) {
                GatewayAnswer::Silent(error) => silent = Some(error),
                answered => {
                    self.last.store(at, Ordering::Relaxed);
                    return match answered {
                        GatewayAnswer::Answer(answer) => Ok(Ok(answer)),
                        GatewayAnswer::Stranger(error) => Ok(Err(error)),
                        GatewayAnswer::Refused(error) | GatewayAnswer::Silent(error) => Err(error),
                    };
                }
            }
        }
        Err(silent.unwrap_or_else(|| Error::new(Errno::EIO)))
    }

    fn post(
        &self,
        url: &str,
        body: &Value,
        patience: Duration,
    ) -> Result<ureq::http::Response<ureq::Body>, ureq::Error> {
        let mut request = self.http.post(url);
        let token = self.token().clone();
        if let Some(token) = token.filter(|_| !url.ends_with(AUTHENTICATE)) {
            request = request.header("Authorization", token);
        }
        request.config().timeout_global(Some(patience)).build().send(body.to_string())
    }

    fn ask_member(&self, member: &str, method: &str, body: &Value, patience: Duration) -> GatewayAnswer {
        let url = format!("{member}/v3/{method}");
        let mut response = match self.post(&url, body, patience) {
            Ok(response) => response,
            Err(error) => return GatewayAnswer::Silent(failed(&url, &error)),
        };
        let bytes = match response.body_mut().with_config().limit(ANSWER).read_to_vec() {
            Ok(bytes) => bytes,
            Err(error) => return GatewayAnswer::Silent(failed(&url, &error)),
        };
        sort(method, response.status(), &bytes)
    }

    /// Waits until `key`, or a key from it up to `end`, changes at `revision` or later, or the time is up. Returns
    /// whether one has changed. On `false` the caller must read the key: etcd may be gone, or the revision too old.
    pub(super) fn watch(&self, key: &str, end: Option<&str>, revision: i64, patience: Duration) -> bool {
        let member = &self.members.urls[self.last.load(Ordering::Relaxed)];
        let mut request = json!({ "key": encoded(key), "start_revision": revision.to_string() });
        if let Some(end) = end {
            request["range_end"] = encoded(end).into();
        }
        let create = json!({ "create_request": request });
        let Ok(response) = self.post(&format!("{member}/v3/watch"), &create, patience) else { return false };
        // One line for each message. The first confirms the watch.
        let mut lines = BufReader::new(response.into_body().into_reader().take(ANSWER));
        let mut line = String::new();
        while let Ok(1..) = lines.read_line(&mut line) {
            let Ok(message) = serde_json::from_str::<Value>(&line) else { return false };
            let has_events = message.pointer("/result/events").and_then(Value::as_array);
            if has_events.is_some_and(|events| !events.is_empty()) {
                return true;
            }
            let is_over = message.pointer("/result/canceled").is_some_and(|canceled| canceled == true);
            if is_over || message.pointer("/result/created").is_none() {
                return false;
            }
            line.clear();
        }
        false
    }
}

/// Classifies an answer. The place of an error's message and code depends on the version of etcd's gateway: side by
/// side (3.4 and 3.5: `error`; from 3.6 on `message`), or inside `error` for errors of a stream.
fn sort(method: &str, status: StatusCode, bytes: &[u8]) -> GatewayAnswer {
    let answer: Value = match serde_json::from_slice(bytes) {
        Ok(answer) => answer,
        // Sent by a proxy whose etcd is down.
        Err(_) if status.is_server_error() => {
            return GatewayAnswer::Silent(Error::with(
                Errno::EAGAIN,
                format!("asking etcd for {method}: {status}"),
            ));
        }
        Err(error) => return GatewayAnswer::Silent(strange(&format!("{status} that is not JSON: {error}"))),
    };
    if status.is_success() && answer.get("error").is_none() {
        return GatewayAnswer::Answer(answer);
    }
    let said = ["/error/message", "/error", "/message"].iter().find_map(|at| answer.pointer(at)?.as_str());
    let said = said.map_or_else(|| status.to_string(), ToString::to_string);
    let code =
        ["/code", "/error/grpc_code", "/error/code"].iter().find_map(|at| answer.pointer(at)?.as_i64());
    let error = |errno| Error::with(errno, format!("etcd answers {method} with {said:?}"));
    match code {
        Some(UNAVAILABLE) => GatewayAnswer::Silent(error(Errno::EAGAIN)),
        Some(UNAUTHENTICATED) => GatewayAnswer::Stranger(error(Errno::EREMOTEIO)),
        _ if OLD_TOKEN.iter().any(|token| said.contains(token)) => {
            GatewayAnswer::Stranger(error(Errno::EREMOTEIO))
        }
        _ => GatewayAnswer::Refused(error(Errno::EREMOTEIO)),
    }
}

fn failed(url: &str, error: &ureq::Error) -> Error {
    let errno = match error {
        ureq::Error::Timeout(_) => Errno::ETIMEDOUT,
        ureq::Error::BodyExceedsLimit(_) => Errno::EMSGSIZE,
        ureq::Error::Io(error) => error.raw_os_error().map_or(Errno::EIO, Errno::from_raw),
        ureq::Error::ConnectionFailed => Errno::ECONNREFUSED,
        ureq::Error::HostNotFound => Errno::EHOSTUNREACH,
        _ => Errno::EIO,
    };
    Error::with(errno, format!("asking etcd at {url}: {error}"))
}

fn not_a_url(found: &str) -> Error {
    Error::wanted(
        Errno::EINVAL,
        "the members of etcd",
        "http://HOST:PORT, several separated by commas",
        found,
        "give client URLs; TLS is not supported",
    )
}

pub(super) fn encoded(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

pub(super) fn text<'a>(answer: &'a Value, name: &str) -> Result<&'a str> {
    answer[name].as_str().ok_or_else(|| strange(&format!("no {name}")))
}

pub(super) fn field(entry: &Value, name: &str) -> Result<Vec<u8>> {
    BASE64_STANDARD
        .decode(text(entry, name)?)
        .map_err(|error| strange(&format!("a {name} that is not base64: {error}")))
}

pub(super) fn strange(found: &str) -> Error {
    Error::wanted(
        Errno::EINVAL,
        "an answer of etcd",
        "the JSON of its gateway, version 3",
        found,
        "check the endpoint: something else may listen there",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(status: u16, body: &str) -> GatewayAnswer {
        sort("kv/range", StatusCode::from_u16(status).unwrap(), body.as_bytes())
    }

    #[test]
    fn errors_of_every_version_are_told_from_answers() {
        assert!(matches!(sorted(200, r#"{"header":{}}"#), GatewayAnswer::Answer(_)));
        let strangers = [
            (
                401,
                r#"{"error":"etcdserver: invalid auth token","code":16,"message":"etcdserver: invalid auth token"}"#,
            ),
            (401, r#"{"code":16,"message":"etcdserver: invalid auth token","details":[]}"#),
            (400, r#"{"code":3,"message":"etcdserver: revision of auth store is old"}"#),
            (400, r#"{"error":"etcdserver: user name is empty","code":3}"#),
        ];
        for (status, body) in strangers {
            assert!(matches!(sorted(status, body), GatewayAnswer::Stranger(_)), "{body}");
        }
        let silent = [
            (503, r#"{"error":"etcdserver: no leader","code":14}"#),
            (503, r#"{"code":14,"message":"etcdserver: no leader"}"#),
            (200, r#"{"error":{"grpc_code":14,"message":"etcdserver: no leader"}}"#),
            (200, r#"{"error":{"code":14,"message":"etcdserver: no leader"}}"#),
            (502, "<html>Bad Gateway</html>"),
        ];
        for (status, body) in silent {
            match sorted(status, body) {
                GatewayAnswer::Silent(error) => assert_eq!(error.errno(), Errno::EAGAIN, "{body}"),
                other => panic!("{body}: {other:?}"),
            }
        }
        match sorted(400, r#"{"code":9,"message":"etcdserver: lease not found"}"#) {
            GatewayAnswer::Refused(error) => {
                assert!(error.to_string().contains("lease not found"), "{error}")
            }
            other => panic!("{other:?}"),
        }
        assert!(
            matches!(sorted(200, "<html>"), GatewayAnswer::Silent(error) if error.errno() == Errno::EINVAL)
        );
    }

    #[test]
    fn neither_password_nor_token_is_shown() {
        let members = Members::at("http://10.0.0.1:2379").user("root", "hush");
        let gateway = Gateway {
            http: ureq::Agent::new_with_defaults(),
            members: members.clone(),
            last: AtomicUsize::new(0),
            token: Mutex::new(Some("token-of-a-user".into())),
        };
        let shown = format!("{members:?} {gateway:?}");
        assert!(!shown.contains("hush") && !shown.contains("token-of"), "{shown}");
        let refused = Gateway::open(&Members::at("http://root:hush@10.0.0.1:2379")).unwrap_err();
        assert!(refused.errno() == Errno::EINVAL && !refused.to_string().contains("hush"), "{refused}");
    }
}
