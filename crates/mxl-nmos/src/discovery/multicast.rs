//! Multicast DNS, by crate `mdns-sd`: it has a thread and a socket, which last as long as one search.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use mdns_sd::{DaemonEvent, ResolvedService, ServiceDaemon, ServiceEvent};

use super::{Announcement, MAX_INSTANCES};

/// Maximum time for a search, and for further answers once there is one.
const TIMEOUT: Duration = Duration::from_secs(3);
const SETTLE: Duration = Duration::from_millis(500);
/// Interval of looks at the answers.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The instances of these services in domain `local`.
///
/// # Errors
/// What keeps this host from asking.
pub fn browse(port: u16, types: &[&str], is_over: &dyn Fn() -> bool) -> Result<Vec<Announcement>, String> {
    let daemon = ServiceDaemon::new_with_port(port).map_err(|error| error.to_string())?;
    let found = search(&daemon, types, is_over);
    if let Ok(ended) = daemon.shutdown() {
        // Its thread ends by itself, and another one can be started before.
        let _ = ended.recv_timeout(SETTLE);
    }
    found.map_err(|error| error.to_string())
}

fn search(
    daemon: &ServiceDaemon,
    types: &[&str],
    is_over: &dyn Fn() -> bool,
) -> Result<Vec<Announcement>, mdns_sd::Error> {
    let monitor = daemon.monitor()?;
    let browse = |of: &&str| daemon.browse(&format!("{of}.local."));
    let answers = types.iter().map(browse).collect::<Result<Vec<_>, _>>()?;
    let mut until = Instant::now() + TIMEOUT;
    let (mut found, mut failure) = (BTreeMap::new(), None);
    while Instant::now() < until && !is_over() {
        std::thread::sleep(LOOK_EVERY);
        for event in answers.iter().flat_map(|answers| answers.try_iter()) {
            match event {
                ServiceEvent::ServiceResolved(service) => {
                    until = until.min(Instant::now() + SETTLE);
                    let announcement = announcement(&service);
                    if found.len() < MAX_INSTANCES || found.contains_key(&announcement.name) {
                        found.insert(announcement.name.clone(), announcement);
                    }
                }
                ServiceEvent::ServiceRemoved(_, name) => drop(found.remove(&name)),
                _ => {}
            }
        }
        for event in monitor.try_iter() {
            if let DaemonEvent::Error(error) = event {
                failure = Some(error);
            }
        }
    }
    match failure {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found.into_values().collect()),
    }
}

fn announcement(service: &ResolvedService) -> Announcement {
    let mut addresses: Vec<IpAddr> = service.addresses.iter().map(mdns_sd::ScopedIp::to_ip_addr).collect();
    // URLs have no scope.
    addresses.retain(|ip| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()));
    addresses.sort_unstable_by_key(|ip| (ip.is_loopback(), *ip));
    let txt = service.txt_properties.iter();
    Announcement {
        name: service.fullname.clone(),
        hosts: addresses.iter().map(IpAddr::to_string).collect(),
        port: service.port,
        txt: txt.map(|txt| (txt.key().to_ascii_lowercase(), txt.val_str().to_owned())).collect(),
    }
}
