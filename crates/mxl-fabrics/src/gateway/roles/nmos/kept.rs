//! A Node in a registry, and the thread that tells it which flows the domain has.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use mxl::Uuid;
use mxl_nmos::{Activate, Node, NodeOptions, Registration, Route};
use serde_json::Value;

use super::{Described, Hooks};
use crate::gateway::http::{HttpRequest, HttpResponse};
use crate::gateway::roles::log::say;
use crate::gateway::roles::web::Api;
use crate::{Error, Result};

/// Interval of looks at the domain's flows.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A Node that is kept in a registry. It ends with this value.
pub struct Kept {
    is_over: Arc<AtomicBool>,
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
        let Described { role, domain, at, receivers } = of;
        let hostname = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
        let options = NodeOptions {
            seed: format!("mxl-gateway {role} {hostname} {}", domain.path().display()),
            label: label.map_or_else(|| format!("mxl-gateway {role} {hostname}"), str::to_owned),
            hostname,
            host: (reachable(at, registries), at.port()),
            domain: id_of(&domain),
            receivers,
        };
        let Hooks { flows, receive, send } = hooks;
        let node = Arc::new(Node::new(options, Box::new(Connections { receive, send })));
        let failed = |error: &dyn std::fmt::Display| Error::Argument(format!("--nmos: {error}"));
        let is_over = Arc::new(AtomicBool::new(false));
        let (told, over) = (Arc::clone(&node), Arc::clone(&is_over));
        let run = move || {
            while !over.load(Ordering::Relaxed) {
                let definitions = flows().into_iter().filter_map(|id| domain.definition(id).ok());
                told.set_flows(definitions);
                std::thread::park_timeout(LOOK_EVERY);
            }
        };
        let log = Box::new(|line: &str| say(line));
        let registration =
            Registration::start(Arc::clone(&node), registries, log).map_err(|error| failed(&error))?;
        let thread = std::thread::Builder::new().name("mxl-nmos-flows".into()).spawn(run);
        let thread = thread.map_err(|error| failed(&error))?;
        let api = Box::new(move |request: &HttpRequest| answer(&node, request));
        Ok((Self { is_over, thread: Some(thread), _registration: registration }, api))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
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

/// The address of this host that controllers reach: where the server listens or, if that is everywhere, the one from
/// which packets to the first registry leave.
fn reachable(at: SocketAddr, registries: &[String]) -> String {
    if !at.ip().is_unspecified() {
        return at.ip().to_string();
    }
    let seen = registries.first().and_then(|url| {
        let host = url.strip_prefix("http://")?.trim_end_matches('/');
        let socket = UdpSocket::bind((at.ip(), 0)).ok()?;
        let to = if host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
            socket.connect(host)
        } else {
            socket.connect((host, 80))
        };
        // Nothing is sent: the system only chooses a route.
        to.ok()?;
        Some(socket.local_addr().ok()?.ip().to_string())
    });
    seen.unwrap_or_else(|| at.ip().to_string())
}

/// The id of a domain in its `domain_def.json`, if it has one.
fn id_of(domain: &mxl::Domain) -> Option<Uuid> {
    let path = domain.path().join("domain_def.json");
    // Anything but a regular file could block.
    let is_small = std::fs::metadata(&path).is_ok_and(|file| file.is_file() && file.len() < 1 << 20);
    let text = is_small.then(|| std::fs::read(&path).ok()).flatten()?;
    let definition: Value = serde_json::from_slice(&text).ok()?;
    Uuid::try_parse(definition.get("id")?.as_str()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_an_address_that_others_reach() {
        let registries = ["http://127.0.0.1:1".to_string()];
        assert_eq!(reachable("192.0.2.1:80".parse().unwrap(), &registries), "192.0.2.1");
        assert_eq!(reachable("0.0.0.0:80".parse().unwrap(), &registries), "127.0.0.1");
    }
}
