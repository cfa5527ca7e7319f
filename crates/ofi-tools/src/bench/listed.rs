//! Targets that wait are listed in etcd, and initiators find them there.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use multirail::{Etcd, Members, Published};

use super::meeting::PATIENCE;
use crate::failure::{Failure, Result};

/// How long a target stays listed that was killed.
const LEASE: Duration = Duration::from_secs(10);
/// How often an initiator looks.
const LOOK: Duration = Duration::from_millis(100);

/// A place in etcd where the targets of one group are listed.
pub(super) struct List {
    etcd: Etcd,
    group: String,
}

impl List {
    /// At these members of etcd.
    pub(super) fn at(members: &Members, group: &str) -> Result<Self> {
        let etcd = Etcd::open(members, &format!("/mr-bench/{group}/")).map_err(Failure::stack("etcd"))?;
        Ok(Self { etcd, group: group.to_string() })
    }

    /// Lists a target that waits at this address, until the answer is dropped.
    pub(super) fn enter(&self, address: SocketAddr) -> Result<Published> {
        if address.ip().is_unspecified() {
            let wanted = "with --etcd, --listen wants an address that initiators reach";
            return Err(Failure::Usage(format!("{wanted}: {address} is none")));
        }
        self.etcd.announce(&address.to_string(), &[], LEASE).map_err(Failure::stack("listing in etcd"))
    }

    /// The addresses of so many targets. Waits until they are there.
    pub(super) fn targets(&self, count: usize) -> Result<Vec<String>> {
        let end = Instant::now() + PATIENCE;
        loop {
            let mut names = self.etcd.names().map_err(Failure::stack("looking in etcd"))?;
            if names.len() >= count {
                names.truncate(count);
                return Ok(names);
            }
            if Instant::now() > end {
                let Self { group, .. } = self;
                let found =
                    format!("{} of {count} targets are listed in etcd, of group {group:?}", names.len());
                return Err(Failure::Peer(format!("{found}; start them with --listen, --etcd and --group")));
            }
            std::thread::sleep(LOOK);
        }
    }
}
