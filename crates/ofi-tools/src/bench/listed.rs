//! The list of waiting targets in etcd, where initiators find them.

use std::net::SocketAddr;
use std::time::Duration;

use multirail::{Etcd, Members, Published};

use super::meeting::PEER_TIMEOUT;
use crate::failure::{Failure, Result};

/// Time for which a killed target stays listed.
const LEASE: Duration = Duration::from_secs(10);

/// The list of one group's targets in etcd.
pub(super) struct List {
    etcd: Etcd,
    group: String,
}

impl List {
    /// Opens the list on these members of etcd.
    pub(super) fn at(members: &Members, group: &str) -> Result<Self> {
        let etcd = Etcd::open(members, &format!("/mr-bench/{group}/")).map_err(Failure::stack("etcd"))?;
        Ok(Self { etcd, group: group.to_string() })
    }

    /// Lists a target that waits at this address, until the returned value is dropped.
    pub(super) fn enter(&self, address: SocketAddr) -> Result<Published> {
        if address.ip().is_unspecified() {
            let wanted = "with --etcd, --listen needs an address that initiators can reach";
            return Err(Failure::Usage(format!("{wanted}; initiators cannot reach {address}")));
        }
        self.etcd.announce(&address.to_string(), &[], LEASE).map_err(Failure::stack("listing in etcd"))
    }

    /// The addresses of `count` targets. Waits until they are listed.
    pub(super) fn targets(&self, count: usize) -> Result<Vec<String>> {
        let looking = Failure::stack("finding targets in etcd");
        let mut names = self.etcd.wait_for_names(count, PEER_TIMEOUT).map_err(looking)?;
        if names.len() < count {
            let Self { group, .. } = self;
            let found = format!("{} of {count} targets are listed in etcd, of group {group:?}", names.len());
            return Err(Failure::Peer(format!("{found}; start them with --listen, --etcd and --group")));
        }
        names.truncate(count);
        Ok(names)
    }
}
