//! Names of providers: the C++ SDK's, and ours.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// The provider that carries flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Provider {
    /// TCP, as the C++ SDK's; by TLS between ends of this library that share a key.
    Tcp,
    /// RDMA devices.
    Verbs,
    /// AWS's adapters.
    Efa,
    /// Processes of one host.
    Shm,
    /// Reliable transfers over UDP. The C++ SDK does not know it.
    Udp,
}

impl Provider {
    /// All providers.
    pub const ALL: [Self; 5] = [Self::Tcp, Self::Verbs, Self::Efa, Self::Shm, Self::Udp];

    /// The name in a target info.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Verbs => "verbs",
            Self::Efa => "efa",
            Self::Shm => "shm",
            Self::Udp => "udp",
        }
    }

    /// The provider of `ofi` that implements it.
    pub(crate) const fn of_stack(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Verbs => "verbs",
            Self::Efa => "efa",
            Self::Shm => "shm",
        }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Provider {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|provider| provider.name() == name).ok_or_else(|| {
            Error::Argument(format!("unknown provider \"{name}\": use tcp, udp, shm, verbs or efa"))
        })
    }
}
