//! Meeting places.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use ofi_api::{Errno, Error};

/// The place where processes meet. As text: `10.0.0.1:7000`, `unix:PATH`, `folder:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// A TCP address of one of the hosts, reachable from all of them. A process on that host listens there. Successive
    /// meetings may use the same address.
    Tcp(SocketAddr),
    /// A socket in the file system, for processes of one host. The socket is removed afterwards; the file `PATH.lock`
    /// beside it remains.
    Unix(PathBuf),
    /// A folder that all hosts have mounted and that is initially empty: use a new one for each meeting. The processes'
    /// files remain there.
    Folder(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Folder(path) => write!(f, "folder:{}", path.display()),
        }
    }
}

impl FromStr for Place {
    type Err = Error;

    /// # Errors
    /// `FI_EINVAL` for other text, for port 0, and for an address that means a different host on each host.
    fn from_str(text: &str) -> Result<Self, Error> {
        let path = |path: &str| (!path.is_empty()).then(|| PathBuf::from(path));
        let place = if let Some(rest) = text.strip_prefix("unix:") {
            path(rest).map(Self::Unix)
        } else if let Some(rest) = text.strip_prefix("folder:") {
            path(rest).map(Self::Folder)
        } else {
            let address = text.parse::<SocketAddr>().ok();
            address.filter(|address| address.port() != 0 && !address.ip().is_unspecified()).map(Self::Tcp)
        };
        place.ok_or_else(|| {
            Error::wanted(
                Errno::EINVAL,
                "the place of a rendezvous",
                "ADDRESS:PORT of one of the hosts, unix:PATH, or folder:PATH",
                text,
                "give all processes the same one",
            )
        })
    }
}

impl From<SocketAddr> for Place {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_are_written() {
        for text in ["10.0.0.1:7000", "[fe80::1]:7000", "unix:/run/x", "folder:/home/me/job"] {
            assert_eq!(text.parse::<Place>().map(|place| place.to_string()), Ok(text.to_string()));
        }
        for bad in
            ["", "unix:", "folder:", "10.0.0.1", "10.0.0.1:0", "0.0.0.0:7000", "[::]:7000", "host:7000"]
        {
            assert!(bad.parse::<Place>().is_err(), "{bad:?}");
        }
    }
}
