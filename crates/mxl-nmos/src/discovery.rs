//! Registries that announce themselves by DNS-SD, as IS-04 wants: unicast DNS first, and multicast DNS if that knows
//! none.

mod multicast;
mod unicast;

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mxl::Uuid;

use crate::client::{VERSIONS, base};
use crate::resources::id_of;

/// Maximum instances of a service that one search takes, and maximum addresses of each.
const MAX_INSTANCES: usize = 32;
const MAX_ADDRESSES: usize = 4;
/// Maximum notes of all searches.
const MAX_NOTES: usize = 64;
/// Where the system says which name servers and search domains it has.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The port of multicast DNS.
const MULTICAST_PORT: u16 = 5353;

/// The APIs of a registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Its Registration API.
    Registration,
    /// Its Query API.
    Query,
}

impl Service {
    /// The service types. Registries of IS-04 v1.2 and older announce the second one.
    const fn types(self) -> &'static [&'static str] {
        match self {
            Self::Registration => &["_nmos-register._tcp", "_nmos-registration._tcp"],
            Self::Query => &["_nmos-query._tcp"],
        }
    }
}

/// How registries are looked for.
#[derive(Clone, Debug)]
pub struct Discovery {
    names: Names,
    multicast_port: u16,
    ignored: Arc<AtomicU64>,
    /// What was noted, each once.
    noted: Arc<Mutex<BTreeSet<String>>>,
}

/// The name servers that are asked, and the domains.
#[derive(Clone, Debug)]
enum Names {
    Given(Vec<SocketAddr>, Vec<String>),
    /// Those in this file, which each search reads: a network may come up late, or change.
    Configured(PathBuf),
}

impl Names {
    fn read(&self) -> (Vec<SocketAddr>, Vec<String>) {
        let path = match self {
            Self::Given(nameservers, domains) => return (nameservers.clone(), domains.clone()),
            Self::Configured(path) => path,
        };
        let text = std::fs::read(path).unwrap_or_default();
        let (config, _) = resolv_conf::Config::parse_with_errors(&text);
        let domains = config.get_last_search_or_domain().filter(|domain| *domain != ".").cloned().collect();
        let nameservers = config.nameservers.into_iter().map(|ip| SocketAddr::new(ip.into(), 53)).collect();
        (nameservers, domains)
    }
}

/// What a search has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The addresses, in the order in which they should be tried.
    pub urls: Vec<String>,
    /// What a person should know: announcements that were ignored, and failures. A [`Discovery`] and its clones note
    /// each once, and 64 things at most.
    pub notes: Vec<String>,
}

/// An instance of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Announcement {
    name: String,
    hosts: Vec<String>,
    port: u16,
    /// The keys are in lower case.
    txt: HashMap<String, String>,
}

impl Default for Discovery {
    /// By the name servers and search domains that this host has at each search, and by multicast DNS.
    fn default() -> Self {
        let names = Names::Configured(RESOLV_CONF.into());
        Self::by(names, MULTICAST_PORT)
    }
}

impl Discovery {
    /// By these name servers, which are asked for services in these domains, and by multicast DNS at a port.
    pub fn new(nameservers: Vec<SocketAddr>, domains: Vec<String>, multicast_port: u16) -> Self {
        Self::by(Names::Given(nameservers, domains), multicast_port)
    }

    fn by(names: Names, multicast_port: u16) -> Self {
        Self { names, multicast_port, ignored: Arc::default(), noted: Arc::default() }
    }

    /// Looks for an API, for at most seven seconds. `asker` spreads those who ask over registries of one priority.
    pub fn find(&self, service: Service, asker: Uuid, is_over: &dyn Fn() -> bool) -> Found {
        let mut found = Found::default();
        let (nameservers, domains) = self.names.read();
        let mut there = unicast::browse(&nameservers, &domains, service.types(), is_over);
        // A registry that unicast DNS names is the plant's, also while it does not answer.
        if there.is_empty() && !is_over() {
            match multicast::browse(self.multicast_port, service.types(), is_over) {
                Ok(announcements) => there = announcements,
                Err(why) => found.notes.push(format!("multicast DNS: {why}")),
            }
        }
        let mut places = Vec::new();
        for announcement in there {
            match announcement.places() {
                Ok((priority, urls)) => places.extend(urls.into_iter().map(|url| (priority, url))),
                Err(why) => {
                    self.ignored.fetch_add(1, Ordering::Relaxed);
                    found.notes.push(format!("{} is ignored: {why}", announcement.name));
                }
            }
        }
        places.sort_by_cached_key(|(priority, url)| (*priority, id_of(&asker.to_string(), url)));
        places.dedup();
        found.urls = places.into_iter().map(|(_, url)| url).collect();
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        found.notes.retain(|note| noted.len() < MAX_NOTES && noted.insert(note.clone()));
        found
    }

    /// Number of announcements that were ignored, by this value and its clones.
    pub fn ignored(&self) -> u64 {
        self.ignored.load(Ordering::Relaxed)
    }
}

impl Announcement {
    /// Its priority, of which 0 is the highest, and its addresses.
    fn places(&self) -> Result<(u32, Vec<String>), String> {
        let txt = |key: &str| self.txt.get(key).map(String::as_str);
        match txt("api_proto") {
            Some("http") => {}
            Some("https") => return Err("api_proto is https, which is not supported".into()),
            _ => return Err("api_proto is neither http nor https".into()),
        }
        let versions = txt("api_ver").ok_or("it has no api_ver")?;
        if !versions.split(',').any(|version| VERSIONS.contains(&version.trim())) {
            return Err("api_ver has no version from v1.0 to v1.3".into());
        }
        match txt("api_auth") {
            // It is new in IS-04 v1.3.
            Some("false") | None => {}
            Some("true") => return Err("api_auth is true, and authorization is not supported".into()),
            Some(_) => return Err("api_auth is neither true nor false".into()),
        }
        let priority = txt("pri").and_then(|pri| pri.parse().ok()).ok_or("pri is no number")?;
        let url = |host: &String| {
            let url = match host.contains(':') {
                true => format!("http://[{host}]:{}", self.port),
                false => format!("http://{host}:{}", self.port),
            };
            base(&url).ok().filter(|_| self.port != 0 && !host.is_empty())
        };
        let urls: Vec<String> = self.hosts.iter().filter_map(url).take(MAX_ADDRESSES).collect();
        if urls.is_empty() {
            return Err("it has no address that can be used".into());
        }
        Ok((priority, urls))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announcement(txt: &[(&str, &str)]) -> Announcement {
        let txt = txt.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Announcement { name: "a".into(), hosts: vec!["::1".into(), "b".into()], port: 80, txt }
    }

    #[test]
    fn each_search_reads_the_name_servers_of_the_host() {
        let path = std::env::temp_dir().join(format!("mxl-nmos-resolv-{}", std::process::id()));
        let names = Names::Configured(path.clone());
        assert_eq!(names.read(), (Vec::new(), Vec::new()));
        for (server, domain) in [("192.0.2.1", "a.test"), ("192.0.2.2", "b.test")] {
            std::fs::write(&path, format!("nameserver {server}\nsearch {domain}\n")).unwrap();
            let at = SocketAddr::new(server.parse().unwrap(), 53);
            assert_eq!(names.read(), (vec![at], vec![domain.to_owned()]));
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn announcements_with_wrong_records_are_ignored() {
        let good = [("api_proto", "http"), ("api_ver", "v1.2,v1.3"), ("api_auth", "false"), ("pri", "10")];
        let urls = vec!["http://[::1]:80".to_string(), "http://b:80".to_string()];
        assert_eq!(announcement(&good).places(), Ok((10, urls)));
        for (key, value, why) in [
            ("api_proto", "https", "not supported"),
            ("api_proto", "ftp", "neither"),
            ("api_ver", "v2.0", "no version"),
            ("api_ver", "", "no version"),
            ("api_auth", "true", "authorization"),
            ("api_auth", "perhaps", "neither"),
            ("pri", "-1", "no number"),
            ("pri", "first", "no number"),
        ] {
            let txt = good.map(|(name, good)| (name, if name == key { value } else { good }));
            let refusal = announcement(&txt).places().unwrap_err();
            assert!(refusal.contains(why), "{key}={value}: {refusal}");
        }
        for missing in ["api_proto", "api_ver", "pri"] {
            let txt: Vec<_> = good.into_iter().filter(|(key, _)| *key != missing).collect();
            assert!(announcement(&txt).places().is_err(), "{missing}");
        }
        for (hosts, port) in
            [(vec![], 80), (vec!["a b".into()], 80), (vec!["".into()], 80), (vec!["a".into()], 0)]
        {
            let announcement = Announcement { hosts, port, ..announcement(&good) };
            assert!(announcement.places().unwrap_err().contains("no address"), "{announcement:?}");
        }
    }
}
