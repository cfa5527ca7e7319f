//! HTTP with JSON, bounded in time and size.

use std::time::Duration;

use serde_json::Value;

/// Maximum time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time of a request: a registry drops a Node that is silent for 12 seconds.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum length of an answer, in bytes.
const MAX_ANSWER: u64 = 8 << 20;
/// The versions of a registry's APIs, the best one first. All get the same resources, and give them.
pub const VERSIONS: [&str; 4] = ["v1.3", "v1.2", "v1.1", "v1.0"];
/// Maximum characters of an answer's reason in an error.
const MAX_REASON: usize = 200;

/// Why there is no answer that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nobody has answered, or not in time, or the server has failed (5xx): another one may help.
    #[error("{url}: {why}")]
    Unavailable {
        /// The request.
        url: String,
        /// What has happened.
        why: String,
    },
    /// The server has refused the request (4xx): the same one is refused again.
    #[error("{url}: refused with {status}: {why}")]
    Refused {
        /// The request.
        url: String,
        /// The status of the answer.
        status: u16,
        /// The reason in the answer.
        why: String,
    },
    /// The answer is no JSON, or not of the wanted shape.
    #[error("{url}: {why}")]
    Invalid {
        /// The request.
        url: String,
        /// What was wanted.
        why: String,
    },
    /// DNS-SD has found no registry that can be used.
    #[error("DNS-SD has found no registry")]
    NotFound,
    /// Registries cannot be looked for.
    #[error("auto: this program was built without feature dns-sd of mxl-nmos")]
    NoDiscovery,
    /// An address that is not `http://HOST[:PORT]`.
    #[error("{0}: write http://HOST:PORT; TLS is not supported")]
    Address(String),
}

/// An answer with a status from 200 to 299.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The body; null without one.
    pub body: Value,
    /// The field `Link`, if there is one.
    pub link: Option<String>,
    /// Length of the body in bytes.
    pub len: usize,
}

/// An HTTP client.
#[derive(Clone, Debug)]
pub struct Client(ureq::Agent);

impl Default for Client {
    fn default() -> Self {
        Self::with_timeout(REQUEST_TIMEOUT)
    }
}

impl Client {
    /// A client whose requests take at most this time.
    pub fn with_timeout(limit: Duration) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(limit))
            // A proxy of the environment is one for the web, which the registry and the Nodes are not.
            .proxy(None)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .max_redirects(0)
            .http_status_as_error(false);
        Self(config.build().into())
    }
}

/// Checks an address of a registry: `http://HOST[:PORT]`, whose trailing slashes are dropped.
///
/// # Errors
/// [`Error::Address`].
pub fn base(url: &str) -> Result<String, Error> {
    let wrong = || Error::Address(url.chars().take(MAX_REASON).collect());
    let trimmed = url.trim_end_matches('/');
    let authority = trimmed.strip_prefix("http://").ok_or_else(wrong)?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    if authority.is_empty() || !authority.bytes().all(is_plain) {
        return Err(wrong());
    }
    Ok(trimmed.into())
}

impl Client {
    /// The address of an API of the registry at `base`, such as `query`, with the newest version that it has.
    ///
    /// # Errors
    /// Those of a request; [`Error::Invalid`] if it has none of the versions 1.0 to 1.3.
    pub fn api(&self, base: &str, name: &str) -> Result<String, Error> {
        let root = format!("{base}/x-nmos/{name}");
        let reply = self.get(&format!("{root}/"))?;
        let names: Vec<&str> =
            reply.body.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let has = |version: &&&str| names.iter().any(|name| name.trim_matches('/') == **version);
        match VERSIONS.iter().find(has) {
            Some(version) => Ok(format!("{root}/{version}")),
            None => {
                let why = format!("a version from 1.0 to 1.3 was wanted, and {names:?} found");
                Err(Error::Invalid { url: root, why })
            }
        }
    }

    /// Reads a resource.
    ///
    /// # Errors
    /// All but [`Error::Address`].
    pub fn get(&self, url: &str) -> Result<Reply, Error> {
        read(url, self.0.get(url).header("Accept", "application/json").call())
    }

    /// Posts JSON; null is an empty body.
    ///
    /// # Errors
    /// All but [`Error::Address`].
    pub fn post(&self, url: &str, body: &Value) -> Result<Reply, Error> {
        let request = self.0.post(url).header("Content-Type", "application/json");
        let text = if body.is_null() { String::new() } else { body.to_string() };
        read(url, request.send(text))
    }

    /// Deletes a resource.
    ///
    /// # Errors
    /// All but [`Error::Address`].
    pub fn delete(&self, url: &str) -> Result<Reply, Error> {
        read(url, self.0.delete(url).call())
    }
}

fn read(url: &str, response: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<Reply, Error> {
    let unavailable = |why: String| Error::Unavailable { url: url.into(), why };
    let mut response = response.map_err(|error| unavailable(error.to_string()))?;
    let status = response.status().as_u16();
    let link = response.headers().get("link").and_then(|link| link.to_str().ok()).map(str::to_owned);
    let bytes = response.body_mut().with_config().limit(MAX_ANSWER).read_to_vec();
    let bytes = bytes.map_err(|error| unavailable(error.to_string()))?;
    let body = if bytes.is_empty() { Ok(Value::Null) } else { serde_json::from_slice(&bytes) };
    match status {
        200..=299 => match body {
            Ok(body) => Ok(Reply { status, body, link, len: bytes.len() }),
            Err(error) => Err(Error::Invalid { url: url.into(), why: format!("JSON was wanted: {error}") }),
        },
        400..=499 => {
            let said = body.ok().and_then(|body: Value| Some(body.get("error")?.as_str()?.to_owned()));
            let why = said.unwrap_or_default().chars().take(MAX_REASON).collect();
            Err(Error::Refused { url: url.into(), status, why })
        }
        _ => Err(unavailable(format!("status {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_of_plain_http() {
        assert_eq!(base("http://[::1]:8010//"), Ok("http://[::1]:8010".into()));
        assert_eq!(base("http://registry"), Ok("http://registry".into()));
        for wrong in ["https://a", "registry:80", "http://", "http://a/b", "http://u@a", "http://a b"] {
            assert!(matches!(base(wrong), Err(Error::Address(_))), "{wrong}");
        }
    }
}
