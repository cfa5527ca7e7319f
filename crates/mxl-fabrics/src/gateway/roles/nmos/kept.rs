//! A Node in a registry, and the thread that tells it which flows the domain has.

use std::fs::File;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mxl::Uuid;
use mxl_nmos::{AUTO, Activate, Node, NodeOptions, Registration, Registries, Route, id_of};
use rustix::fs::{Mode, OFlags};
use serde_json::Value;

use super::{Described, Hooks};
use crate::gateway::http::{HttpRequest, HttpResponse};
use crate::gateway::roles::log::say;
use crate::gateway::roles::web::Api;
use crate::{Error, Result};

/// Interval of looks at the domain's flows.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Maximum length of a `domain_def.json` that is read, in bytes.
const MAX_DEFINITION: u64 = 1 << 20;
/// The address of multicast DNS.
const MULTICAST: ([u8; 4], u16) = ([224, 0, 0, 251], 5353);

/// A Node that is kept in a registry. It ends with this value.
pub struct Kept {
    is_over: Arc<AtomicBool>,
    node: Arc<Node>,
    thread: Option<JoinHandle<()>>,
    /// Ends last, when no flow is added any more.
    _registration: Registration,
}

/// The role's hooks, as the Node calls them.
struct Connections {
    receive: Box<dyn FnMut(Uuid, Option<Uuid>) -> std::result::Result<(), String> + Send>,
    send: Box<dyn FnMut(Uuid, bool) -> std::result::Result<(), String> + Send>,
}

impl Activate for Connections {
    fn receive(&mut self, receiver: Uuid, route: &Route) -> std::result::Result<(), String> {
        (self.receive)(receiver, route.flow.filter(|_| route.is_enabled))
    }

    fn send(&mut self, flow: Uuid, is_enabled: bool) -> std::result::Result<(), String> {
        (self.send)(flow, is_enabled)
    }

    fn failed(&mut self, id: Uuid, why: &str) {
        say(format_args!("NMOS: the activation of {id} at its time has failed: {why}"));
    }
}

impl Kept {
    /// Starts a Node and its registration. Returns what answers requests to its APIs too.
    ///
    /// # Errors
    /// [`Error::Argument`] for an address of a registry that is wrong, and if the system cannot start threads.
    pub fn start(
        registries: &[String],
        label: Option<&str>,
        of: Described,
        hooks: Hooks,
    ) -> Result<(Self, Api)> {
        let Described { role, domain, at, gateway, receivers } = of;
        let failed = |error: &dyn std::fmt::Display| Error::Argument(format!("--nmos: {error}"));
        let from = Registries::new(registries.iter().map(String::as_str)).map_err(|error| failed(&error))?;
        let hostname = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
        let (path, elsewhere) = (path_of(&domain), addresses(registries));
        let host = reachable(at, &elsewhere, &hostname);
        if is_out_of_reach(&host, &elsewhere) {
            say(format_args!(
                "--nmos: controllers of other hosts do not reach {host}: give --http another address"
            ));
        }
        // Mirrors of other hosts do not reach a loopback address.
        let gateway = gateway
            .map(|at| (reachable(at, &elsewhere, &hostname), at.port()))
            .filter(|(host, _)| !is_out_of_reach(host, &elsewhere))
            .map(|(host, port)| match host.contains(':') {
                true => format!("mxl://[{host}]:{port}/"),
                false => format!("mxl://{host}:{port}/"),
            });
        let options = NodeOptions {
            gateway,
            // Gateways of one domain differ by their addresses; the domain is the same to all of them.
            seed: format!("mxl-gateway {role} {hostname} {at} {}", path.display()),
            domain: Some(defined_id(&domain).unwrap_or_else(|| id_of(&hostname, &path.to_string_lossy()))),
            label: label.map_or_else(|| format!("mxl-gateway {role} {hostname}"), str::to_owned),
            hostname,
            host: (host, at.port()),
            receivers,
        };
        let Hooks { flows, receive, send } = hooks;
        let node = Arc::new(Node::new(options, Box::new(Connections { receive, send })));
        let is_over = Arc::new(AtomicBool::new(false));
        let (told, over) = (Arc::clone(&node), Arc::clone(&is_over));
        let run = move || {
            let mut changes = 0;
            while !over.load(Ordering::Relaxed) {
                // A domain that cannot be read now is not one without flows. A definition may be that of another flow.
                if let Some(ids) = flows() {
                    let of = |id| domain.definition(id).ok().filter(|definition| definition.id == id);
                    told.set_flows(ids.into_iter().filter_map(of));
                }
                let until = Instant::now() + LOOK_EVERY;
                // Activations that are due are made here, too.
                while !over.load(Ordering::Relaxed) && Instant::now() < until {
                    changes = told.wait(changes, until.saturating_duration_since(Instant::now()));
                }
            }
        };
        let log = Box::new(|line: &str| say(line));
        let registration =
            Registration::start(Arc::clone(&node), from, log).map_err(|error| failed(&error))?;
        let thread = std::thread::Builder::new().name("mxl-nmos-flows".into()).spawn(run);
        let thread = thread.map_err(|error| failed(&error))?;
        let answering = Arc::clone(&node);
        let api = Box::new(move |request: &HttpRequest| answer(&answering, request));
        Ok((Self { is_over, node, thread: Some(thread), _registration: registration }, api))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            self.node.wake();
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

fn answer(node: &Node, request: &HttpRequest) -> Option<HttpResponse> {
    let answer = node.answer(&request.method, &request.path, &request.body)?;
    let body = if answer.body == Value::Null { String::new() } else { answer.body.to_string() };
    let mut response = HttpResponse::new(answer.status, "application/json", body);
    for (name, value) in answer.cors() {
        response = response.with(name, value);
    }
    Some(response.with("Allow", answer.allow))
}

/// Where the registries are, as far as their names can be resolved. Those that are not known yet stand for all hosts
/// that multicast reaches.
fn addresses(registries: &[String]) -> Vec<SocketAddr> {
    let of_one = |url: &String| {
        if url == AUTO {
            return Some(vec![SocketAddr::from(MULTICAST)].into_iter());
        }
        let host = url.strip_prefix("http://")?.trim_end_matches('/');
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let name = host.trim_start_matches('[').trim_end_matches(']');
        let found = if has_port { host.to_socket_addrs() } else { (name, 80).to_socket_addrs() };
        found.ok()
    };
    registries.iter().filter_map(of_one).flatten().collect()
}

/// The address of this host that controllers reach: where the server listens or, if that is everywhere, the one from
/// which packets to a registry leave, of the listener's family if there is one; without any, the host's name.
fn reachable(at: SocketAddr, registries: &[SocketAddr], hostname: &str) -> String {
    if !at.ip().is_unspecified() {
        return at.ip().to_string();
    }
    let leaves = |to: &SocketAddr| {
        let any =
            if to.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        // Nothing is sent: the system only chooses a route.
        socket.connect(to).ok()?;
        Some(socket.local_addr().ok()?.ip().to_string())
    };
    let (same, other): (Vec<_>, Vec<_>) = registries.iter().partition(|to| to.is_ipv4() == at.is_ipv4());
    same.into_iter().chain(other).find_map(leaves).unwrap_or_else(|| hostname.to_owned())
}

/// Whether an address of this host alone is announced to registries of other hosts.
fn is_out_of_reach(host: &str, registries: &[SocketAddr]) -> bool {
    let is_loopback = host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    is_loopback && registries.iter().any(|registry| !registry.ip().to_canonical().is_loopback())
}

/// The path of a domain's directory, as all processes of the host know it.
fn path_of(domain: &mxl::Domain) -> PathBuf {
    domain.path().canonicalize().unwrap_or_else(|_| domain.path().to_owned())
}

/// The id of a domain in its `domain_def.json`, if it has one.
fn defined_id(domain: &mxl::Domain) -> Option<Uuid> {
    // Neither a link nor anything that could block, nor more than is sensible.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::RDONLY;
    let file = rustix::fs::open(domain.path().join("domain_def.json"), flags, Mode::empty()).ok()?;
    let file = File::from(file);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = Vec::new();
    file.take(MAX_DEFINITION).read_to_end(&mut text).ok()?;
    let definition: Value = serde_json::from_slice(&text).ok()?;
    Uuid::try_parse(definition.get("id")?.as_str()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_an_address_that_others_reach() {
        let v4 = addresses(&["http://127.0.0.1:1".into()]);
        assert_eq!(v4, ["127.0.0.1:1".parse().unwrap()]);
        assert_eq!(reachable("192.0.2.1:80".parse().unwrap(), &v4, "host"), "192.0.2.1");
        for at in ["0.0.0.0:80", "[::]:80"] {
            let at = at.parse().unwrap();
            assert_eq!(reachable(at, &v4, "host"), "127.0.0.1");
            assert_eq!(reachable(at, &[], "host"), "host");
        }
        let elsewhere = ["192.0.2.9:80".parse().unwrap()];
        assert!(is_out_of_reach("127.0.0.1", &elsewhere) && is_out_of_reach("::1", &elsewhere));
        assert!(!is_out_of_reach("192.0.2.1", &elsewhere) && !is_out_of_reach("127.0.0.1", &v4));
    }

    #[test]
    fn a_domain_has_the_id_of_its_regular_file() {
        let folder = std::env::temp_dir().join(format!("mxl-kept-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (domain, file) = (mxl::Domain::open(&folder).unwrap(), folder.join("domain_def.json"));
        assert_eq!(defined_id(&domain), None);
        let id = Uuid::from_u128(7);
        let elsewhere = folder.join("elsewhere.json");
        std::fs::write(&elsewhere, format!("{{\"id\": \"{id}\"}}")).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &file).unwrap();
        assert_eq!(defined_id(&domain), None);
        std::fs::rename(&elsewhere, &file).unwrap();
        assert_eq!(defined_id(&domain), Some(id));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
