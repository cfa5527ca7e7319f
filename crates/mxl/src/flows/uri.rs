//! The URI of a domain and its flows: `mxl://[host[:port]]/domain/path[?id=...&id=...]`.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;
use std::str::FromStr;

use uuid::Uuid;

use super::Error;

/// A domain, and some of its flows.
///
/// ```
/// let uri: mxl::Uri = "mxl:///dev/shm/studio?id=5fbec3b1-1b0f-417d-9059-8b94a47197ed".parse()?;
/// assert_eq!(uri.domain, std::path::Path::new("/dev/shm/studio"));
/// assert_eq!(uri.flows.len(), 1);
/// # Ok::<(), mxl::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    /// The host and its port, as written. `None` is this host.
    pub authority: Option<String>,
    /// The domain's directory, in the file system of the program that uses it.
    pub domain: PathBuf,
    /// The flows' ids. Empty means the whole domain.
    pub flows: Vec<Uuid>,
}

impl Uri {
    /// A domain of this host, and some of its flows.
    pub fn new(domain: impl Into<PathBuf>, flows: impl IntoIterator<Item = Uuid>) -> Self {
        Self { authority: None, domain: domain.into(), flows: flows.into_iter().collect() }
    }

    /// The host and the port that the authority names. `None` is this host. An IPv6 address is in brackets in the URI,
    /// and without them here.
    ///
    /// ```
    /// let uri: mxl::Uri = "mxl://[2001:db8::1]:7480/".parse()?;
    /// assert_eq!(uri.host()?, Some(("2001:db8::1", Some(7480))));
    /// # Ok::<(), mxl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for an authority that is not `HOST`, `HOST:PORT` or `[ADDRESS]:PORT`, with a port from 1 to
    /// 65535.
    pub fn host(&self) -> Result<Option<(&str, Option<u16>)>, Error> {
        let Some(authority) = self.authority.as_deref() else { return Ok(None) };
        let wrong = || Error::argument(format!("{authority}: write HOST, HOST:PORT or [ADDRESS]:PORT"));
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']').ok_or_else(wrong)?;
                address.parse::<std::net::Ipv6Addr>().map_err(|_| wrong())?;
                (address, port)
            }
            None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
        };
        let port = match port.strip_prefix(':') {
            Some(port) => Some(port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?),
            None if port.is_empty() => None,
            None => return Err(wrong()),
        };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
        if host.is_empty() || !host.bytes().all(is_plain) {
            return Err(wrong());
        }
        Ok(Some((host, port)))
    }
}

impl FromStr for Uri {
    type Err = Error;

    /// As in the C++ SDK, a fragment and parameters other than `id` are ignored. The path may have escapes (`%20`).
    ///
    /// # Errors
    /// [`Error::Argument`] for another scheme, a missing path, an invalid escape, and an invalid id.
    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |what: &str| Error::argument(format!("{text}: {what}"));
        let rest = match text.split_at_checked(6) {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("mxl://") => rest,
            _ => return Err(wrong("a URI of a domain begins with mxl://, and mxl:///PATH is on this host")),
        };
        let rest = rest.split_once('#').map_or(rest, |(before, _)| before);
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let Some(slash) = place.find('/') else {
            return Err(wrong("no path of a domain: mxl:///dev/shm/mxl, for example"));
        };
        let (authority, path) = place.split_at(slash);
        let decoded = |part: &str| {
            unescape(part).ok_or_else(|| wrong("% is followed by two hexadecimal digits other than 00"))
        };
        let mut flows = Vec::new();
        for (name, value) in query.split('&').filter_map(|parameter| parameter.split_once('=')) {
            if name != "id" {
                continue;
            }
            let id = decoded(value)?;
            let id = Some(&id).filter(|id| id.len() == 36).and_then(|id| Uuid::try_parse_ascii(id).ok());
            flows.push(
                id.ok_or_else(|| wrong(&format!("id {value} is no UUID of 8-4-4-4-12 hexadecimal digits")))?,
            );
        }
        let authority = Some(authority.to_owned()).filter(|authority| !authority.is_empty());
        Ok(Self { authority, domain: OsString::from_vec(decoded(path)?).into(), flows })
    }
}

/// The decoded bytes of a part of a URI. `None` for an invalid escape, or one of a zero byte.
fn unescape(part: &str) -> Option<Vec<u8>> {
    let mut bytes = part.bytes();
    let mut plain = Vec::with_capacity(part.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            plain.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        plain.push((digit()? * 16 + digit()?) as u8);
    }
    (!plain.contains(&0)).then_some(plain)
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mxl://{}", self.authority.as_deref().unwrap_or_default())?;
        for &byte in self.domain.as_os_str().as_bytes() {
            if byte.is_ascii_alphanumeric() || b"/-._~:@+,=".contains(&byte) {
                write!(f, "{}", char::from(byte))?;
            } else {
                write!(f, "%{byte:02X}")?;
            }
        }
        for (at, id) in self.flows.iter().enumerate() {
            write!(f, "{}id={id}", if at == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}
