//! `mxl-gateway serve`: listens for mirrors, and sends them flows.
//!
//! One thread serves all control connections, one sends all flows as they are written ([`sender`]), and one drives all
//! initiators ([`Engine`]). A flow has one initiator for each address of this host that mirrors reach.

mod client;
mod offers;
mod report;
mod sender;
mod source;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs as _};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mxl::{Domain, Uuid};
use rustix::event::{PollFd, PollFlags, poll};

use super::log::say;
use super::nmos::{Described, Hooks, NmosOptions, Registered};
use super::remote::DEFAULT_PORT;
use super::stop::{Stop, timespec};
use super::web::{self, About, Board, WebOptions};
use crate::gateway::wire::{ControlReply, ControlRequest, Description};
use crate::{Engine, Error, PeerState, Provider, Result, TargetInfo, disk, program};
use client::{Client, Follow, MAX_FOLLOWED};
use offers::{Allow, Offers};
use sender::Sender;
use source::{Source, Tally, Way};

/// Maximum control connections. Others are refused.
const MAX_CLIENTS: usize = 64;
/// Interval of looks at the flows that mirrors follow.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Time that a target is kept after its control connection has ended. A mirror that comes back finds it connected.
const LINGER: Duration = Duration::from_secs(10);
/// Maximum targets without a control connection. The oldest ones are dropped first.
const MAX_LINGERING: usize = 1024;
/// Pause after a flow could not be opened for sending.
const RETRY_EVERY: Duration = Duration::from_secs(2);

/// The command line.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The domain's directory
    #[arg(short, long, value_name = "DIR")]
    domain: PathBuf,
    /// Listen for mirrors here. Nobody is asked for a name or a password: listen only where everybody may see the flows
    #[arg(long, value_name = "ADDR[:PORT]", default_value_t = format!("127.0.0.1:{DEFAULT_PORT}"))]
    listen: String,
    /// The address of this host that flows are sent from [default: the one that the mirror has reached]
    #[arg(short, long)]
    node: Option<String>,
    /// tcp, udp, shm, verbs or efa. Mirrors must name the same one
    #[arg(short, long, default_value = "tcp")]
    provider: Provider,
    /// Offer only this flow; repeatable [default: all]
    #[arg(long, value_name = "ID|all")]
    allow: Vec<Allow>,
    /// File with a secret of 16 to 64 bytes that mirrors share; over udp it encrypts the flows
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    #[command(flatten)]
    web: WebOptions,
    #[command(flatten)]
    nmos: NmosOptions,
}

/// The command. Ends by a signal.
///
/// # Errors
/// [`Error::Argument`] for wrong options, and a domain or an address that cannot be used.
pub fn run(options: &Options) -> Result<()> {
    let stop = Stop::block()?;
    let domain = Domain::open(&options.domain)?;
    disk::warn("mxl-gateway", &options.domain);
    let key = options.key.as_deref().map(program::key).transpose()?;
    let of_initiators = crate::Options { key, ..crate::Options::default() };
    let way = Way { provider: options.provider, options: of_initiators, engine: Engine::start()? };
    let listener = listen(&options.listen)?;
    let at =
        listener.local_addr().map_err(|error| Error::Argument(format!("{}: {error}", options.listen)))?;
    say(format_args!("serves {} at mxl://{at}/", domain.path().display()));
    let offers = Offers::new(domain, &options.allow);
    let board = Arc::new(Board::default());
    let about = About { role: "serve", provider: options.provider, domain: offers.domain().clone() };
    let _pages = show(options, at, about, &board, &offers)?;
    let mut server = Server {
        offers,
        board: options.web.is_on().then_some(board),
        tallies: HashMap::new(),
        way,
        node: options.node.clone(),
        sender: Sender::start()?,
        clients: Vec::new(),
        sources: HashMap::new(),
        lingering: Vec::new(),
        known: KnownDefinitions::new(),
        listed: None,
    };
    server.run(&listener, &stop);
    say("ends");
    Ok(())
}

/// What ends with the program: the NMOS Node before the server of its APIs.
type Shown = (Option<Registered>, web::Server);

/// Starts the page and the NMOS Node, if they are wanted.
fn show(
    options: &Options,
    at: SocketAddr,
    about: About,
    board: &Arc<Board>,
    offers: &Offers,
) -> Result<Option<Shown>> {
    let Some(listener) = options.web.listen()? else { return Ok(None) };
    let (listed, flows, switch) = (offers.clone(), offers.clone(), offers.clone());
    let domain = offers.domain().clone();
    let described = Described { role: "serve", domain, at: listener.1, gateway: Some(at), receivers: 0 };
    let hooks = Hooks {
        flows: Box::new(move || flows.ids()),
        receive: Box::new(|_, _| Err("a server has no receivers".into())),
        send: Box::new(move |flow, is_enabled| {
            switch.switch(flow, is_enabled);
            Ok(())
        }),
    };
    let (node, api) = options.nmos.start(described, hooks)?.unzip();
    let server = web::start(listener, about, board, Box::new(move || listed.ids().unwrap_or_default()), api)?;
    Ok(Some((node, server)))
}

/// Listens at `ADDR:PORT`, or at `ADDR` and the usual port.
fn listen(at: &str) -> Result<TcpListener> {
    let failed = |error: &dyn std::fmt::Display| Error::Argument(format!("--listen {at}: {error}"));
    let addresses: Vec<SocketAddr> = match at.parse::<IpAddr>() {
        Ok(ip) => vec![(ip, DEFAULT_PORT).into()],
        Err(_) => at.to_socket_addrs().map_err(|error| failed(&error))?.collect(),
    };
    let listener = TcpListener::bind(&addresses[..]).map_err(|error| failed(&error))?;
    listener.set_nonblocking(true).map_err(|error| failed(&error))?;
    Ok(listener)
}

/// A flow, and the address of this host that it is sent from.
type SourceKey = (Uuid, Option<String>);

/// The definitions of the flows that mirrors follow, or why there is none.
type KnownDefinitions = BTreeMap<Uuid, Result<String, String>>;

/// The flows that are offered, and whether some were left out; or why the domain cannot be read.
type Listed = Result<(Vec<Description>, bool), String>;

/// A target without a control connection.
struct Lingering {
    key: SourceKey,
    target: u64,
    until: Instant,
}

struct Server {
    offers: Offers,
    /// Where to report the flows, if somebody may want to see them.
    board: Option<Arc<Board>>,
    /// What was sent of each flow.
    tallies: HashMap<Uuid, Arc<Tally>>,
    way: Way,
    node: Option<String>,
    sender: Sender,
    clients: Vec<Client>,
    sources: HashMap<SourceKey, Arc<Source>>,
    lingering: Vec<Lingering>,
    known: KnownDefinitions,
    /// The last list, and when it was made.
    listed: Option<(Instant, Listed)>,
}

impl Server {
    fn run(&mut self, listener: &TcpListener, stop: &Stop) {
        let mut looked = Instant::now();
        loop {
            let (is_called, is_stopped) = self.wait(listener, stop);
            if is_stopped {
                return;
            }
            if is_called {
                self.accept(listener);
            }
            let mut is_asked = false;
            for at in 0..self.clients.len() {
                for request in self.clients[at].receive() {
                    // Only this is answered by a look, which reads the domain.
                    is_asked |= matches!(request, ControlRequest::Follow { .. });
                    self.handle(at, request);
                }
            }
            if is_asked || looked.elapsed() > LOOK_EVERY {
                looked = Instant::now();
                self.look();
                self.report();
            }
            self.clients.iter_mut().for_each(Client::advance);
            self.part();
        }
    }

    /// Sleeps until a connection has something to say. Returns whether there is a new one, and whether a signal came.
    fn wait(&self, listener: &TcpListener, stop: &Stop) -> (bool, bool) {
        let listener = listener.as_fd();
        let mut fds = vec![
            PollFd::from_borrowed_fd(listener, PollFlags::IN),
            PollFd::from_borrowed_fd(stop.fd(), PollFlags::IN),
        ];
        fds.extend(self.clients.iter().map(|client| {
            let (fd, is_writing) = client.interest();
            let flags = if is_writing { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            PollFd::from_borrowed_fd(fd, flags)
        }));
        let is_busy = self.clients.iter().any(Client::has_more);
        let limit = if is_busy { Duration::ZERO } else { LOOK_EVERY };
        if poll(&mut fds, Some(&timespec(limit))).is_err() {
            // Interrupted, or out of memory: the next turn asks again.
            std::thread::sleep(Duration::from_millis(1));
            return (false, false);
        }
        (!fds[0].revents().is_empty(), !fds[1].revents().is_empty())
    }

    fn accept(&mut self, listener: &TcpListener) {
        while let Ok((stream, from)) = listener.accept() {
            let Ok(mut client) = Client::new(stream, from) else { continue };
            if self.clients.len() >= MAX_CLIENTS * 2 {
                // Not even room for refusals.
                continue;
            }
            if self.clients.len() >= MAX_CLIENTS {
                client.close(format!("{MAX_CLIENTS} mirrors are connected: no more are served"));
            }
            self.clients.push(client);
        }
    }

    fn handle(&mut self, at: usize, request: ControlRequest) {
        let client = &mut self.clients[at];
        match request {
            ControlRequest::Ping => client.say(&ControlReply::Pong),
            ControlRequest::List => self.list(at),
            ControlRequest::Follow { id } => {
                if client.follows.len() >= MAX_FOLLOWED && !client.follows.contains_key(&id) {
                    let why = format!("one mirror follows at most {MAX_FOLLOWED} flows");
                    return client.say(&ControlReply::Refused { id: Some(id), why });
                }
                // Once more: it is told again.
                client.follows.entry(id).or_default().told = None;
            }
            ControlRequest::Leave { id } => {
                if let Some(Follow { target: Some(target), .. }) = client.follows.remove(&id) {
                    let key = (id, node(self.node.as_deref(), self.way.provider, client.node));
                    self.drop_target(&key, target.id);
                }
            }
            ControlRequest::Target { id, info } => self.on_target(at, id, *info),
        }
    }

    /// Tells the flows that are offered. The list is made once for all that ask at a time: it reads every flow.
    fn list(&mut self, at: usize) {
        let former = self.listed.take().filter(|(when, _)| when.elapsed() < LOOK_EVERY);
        let (_, list) = self.listed.insert(former.unwrap_or_else(|| (Instant::now(), self.offers.list())));
        let client = &mut self.clients[at];
        match list {
            Ok((flows, more)) => {
                flows.iter().for_each(|flow| client.say(&ControlReply::Flow(flow.clone())));
                client.say(&ControlReply::Listed { more: *more });
            }
            Err(why) => client.say(&ControlReply::Refused { id: None, why: why.clone() }),
        }
    }

    /// A mirror has told where to send a flow.
    fn on_target(&mut self, at: usize, id: Uuid, info: TargetInfo) {
        let client = &mut self.clients[at];
        let refused = |why: String| ControlReply::Refused { id: Some(id), why };
        let Some(Follow { told: Some(Ok(_)), .. }) = client.follows.get(&id) else {
            return client.say(&refused(format!("flow {id} is not followed, or not there")));
        };
        let key = (id, node(self.node.as_deref(), self.way.provider, client.node));
        let former = client.follows.get_mut(&id).and_then(|follow| follow.target.replace(info.clone()));
        if let Some(former) = former.filter(|former| former.id != info.id) {
            self.drop_target(&key, former.id);
        }
        let from = self.clients[at].from;
        match self.add_target(&key, &info) {
            Ok(by) => {
                say(format_args!("sends flow {id} to {from}"));
                let client = &mut self.clients[at];
                if let Some(follow) = client.follows.get_mut(&id) {
                    follow.by = by;
                }
                client.say(&ControlReply::Sending { id });
            }
            Err(error) => {
                say(format_args!("does not send flow {id} to {from}: {error}"));
                let client = &mut self.clients[at];
                if let Some(follow) = client.follows.get_mut(&id) {
                    follow.target = None;
                }
                client.say(&refused(error.to_string()));
            }
        }
    }

    /// Adds a target to its flow's initiator, which is opened if there is none. Returns the initiator's flow.
    fn add_target(&mut self, key: &SourceKey, info: &TargetInfo) -> Result<Weak<Source>> {
        // Refused here, by what it needs; the initiator would only find it unreachable.
        if info.provider != self.way.provider {
            let (here, there) = (self.way.provider, info.provider);
            return Err(Error::Argument(format!("flows are sent over {here} here, not over {there}")));
        }
        let source = match self.sources.get(key) {
            Some(source) if source.is_current() => Arc::clone(source),
            _ => {
                let tally = Arc::clone(self.tallies.entry(key.0).or_default());
                let source = Source::open(self.offers.domain(), key.0, key.1.as_deref(), &self.way, tally)?;
                let source = Arc::new(source);
                self.sources.insert(key.clone(), Arc::clone(&source));
                self.announce();
                source
            }
        };
        self.lingering.retain(|lingering| lingering.target != info.id || lingering.key != *key);
        match source.initiator.with(|initiator| initiator.add(info)) {
            // Exists: the mirror has come back to its target.
            Ok(()) | Err(Error::Exists(_)) => Ok(Arc::downgrade(&source)),
            Err(error) => {
                // Neither an initiator without targets stays, nor a target that nobody removes.
                self.drop_target(key, info.id);
                Err(error)
            }
        }
    }

    /// Tells the sending thread which flows there are.
    fn announce(&self) {
        self.sender.set(self.sources.values().cloned().collect());
    }

    fn drop_target(&mut self, key: &SourceKey, target: u64) {
        let Some(source) = self.sources.get(key) else { return };
        let is_last = source.initiator.with(|initiator| {
            // One that is not there is as good as removed.
            let _ = initiator.remove(target);
            initiator.targets().next().is_none()
        });
        if is_last {
            self.sources.remove(key);
            self.announce();
        }
    }

    /// Looks at the flows that mirrors follow: tells what has changed, and sends again what was created again.
    fn look(&mut self) {
        let ids: BTreeSet<Uuid> =
            self.clients.iter().flat_map(|client| client.follows.keys().copied()).collect();
        // A definition is as old as its flow: it is read again only for flows that are not being sent.
        let current: BTreeSet<Uuid> =
            self.sources.iter().filter(|(_, source)| source.is_current()).map(|(key, _)| key.0).collect();
        let mut known = std::mem::take(&mut self.known);
        let mut state =
            |id| match known.remove(&id).filter(|_| current.contains(&id) && self.offers.is_allowed(id)) {
                Some(known) => known,
                None => self.offers.definition(id),
            };
        let now: KnownDefinitions = ids.into_iter().map(|id| (id, state(id))).collect();
        self.drop_ended(&now);
        for at in 0..self.clients.len() {
            let client = &mut self.clients[at];
            let node = node(self.node.as_deref(), self.way.provider, client.node);
            let (mut news, mut again) = (Vec::new(), Vec::new());
            for (&id, follow) in &mut client.follows {
                let Some(state) = now.get(&id) else { continue };
                if follow.told.as_ref() != Some(state) {
                    follow.told = Some(state.clone());
                    let former = follow.target.take();
                    news.push((id, state.clone(), former));
                } else if let (Ok(_), Some(target)) = (state, &follow.target)
                    && follow.refused.is_none_or(|when| when.elapsed() >= RETRY_EVERY)
                    && !self.sources.get(&(id, node.clone())).is_some_and(|source| follow.is_by(source))
                {
                    again.push((id, target.clone()));
                }
            }
            for (id, state, former) in news {
                if let Some(former) = former {
                    self.drop_target(&(id, node.clone()), former.id);
                }
                self.clients[at].say(&match state {
                    Ok(text) => ControlReply::Definition { id, text },
                    Err(why) => ControlReply::Absent { id, why },
                });
            }
            for (id, target) in again {
                let by = self.send_again(&(id, node.clone()), &target);
                let Some(follow) = self.clients[at].follows.get_mut(&id) else { continue };
                follow.refused = by.is_none().then(Instant::now);
                follow.by = by.unwrap_or_default();
            }
        }
        self.known = now;
    }

    /// Sends a flow that was created again, with the same definition. Returns the initiator's flow.
    fn send_again(&mut self, key: &SourceKey, target: &TargetInfo) -> Option<Weak<Source>> {
        match self.add_target(key, target) {
            Ok(by) => {
                say(format_args!("sends flow {} again, which was created again", key.0));
                Some(by)
            }
            Err(error) => {
                say(format_args!("does not send flow {}: {error}", key.0));
                None
            }
        }
    }

    /// Drops initiators whose flow has ended or changed, or that have failed.
    fn drop_ended(&mut self, now: &KnownDefinitions) {
        let before = self.sources.len();
        self.sources.retain(|(id, _), source| {
            let is_there = now.get(id).is_none_or(Result::is_ok) && source.is_current();
            is_there && drained(*id, source)
        });
        if self.sources.len() != before {
            self.announce();
        }
    }

    /// Ends connections that are over, and targets whose connection has been over for long.
    fn part(&mut self) {
        let provider = self.way.provider;
        let (given, lingering) = (self.node.as_deref(), &mut self.lingering);
        self.clients.retain(|client| {
            let Some(why) = client.over() else { return true };
            let node = node(given, provider, client.node);
            let mut count = 0;
            for (id, follow) in &client.follows {
                let Some(target) = &follow.target else { continue };
                let until = Instant::now() + LINGER;
                lingering.push(Lingering { key: (*id, node.clone()), target: target.id, until });
                count += 1;
            }
            if count > 0 {
                say(format_args!("lost the mirror at {} of {count} flows: {why}", client.from));
            } else {
                tracing::debug!(target: "mxl::fabrics", from = %client.from, why, "a control connection ended");
            }
            false
        });
        let excess = lingering.len().saturating_sub(MAX_LINGERING);
        lingering.iter_mut().take(excess).for_each(|lingering| lingering.until = Instant::now());
        let (over, left) =
            std::mem::take(lingering).into_iter().partition(|lingering| lingering.until <= Instant::now());
        self.lingering = left;
        let over: Vec<Lingering> = over;
        for Lingering { key, target, .. } in over {
            // The end of the former connection may be noticed long after the mirror has come back.
            let of = |client: &Client| client.follows.get(&key.0)?.target.as_ref().map(|target| target.id);
            if self.clients.iter().any(|client| of(client) == Some(target)) {
                continue;
            }
            say(format_args!("sends flow {} no longer to target {target}, whose mirror is gone", key.0));
            self.drop_target(&key, target);
        }
    }
}

/// Reads the events of an initiator. Returns whether it works.
fn drained(id: Uuid, source: &Source) -> bool {
    loop {
        match source.initiator.wait(Duration::ZERO) {
            Ok(Some(crate::Transfer::Connected { target })) => {
                let stats = source.initiator.with(|initiator| initiator.target(target));
                let again =
                    stats.is_some_and(|(state, stats)| state == PeerState::Connected && stats.connected > 1);
                if again {
                    source.tally.reconnected();
                    say(format_args!("flow {id} is connected to target {target} again"));
                }
            }
            Ok(Some(crate::Transfer::Disconnected { target })) => {
                say(format_args!("flow {id} has lost target {target}"));
            }
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(error) => {
                say(format_args!("flow {id} cannot be sent: {error}"));
                return false;
            }
        }
    }
}

/// The node from which flows are sent: the given one, or the address that the mirror has reached, if the provider's
/// addresses are those of IP.
fn node(given: Option<&str>, provider: Provider, reached: IpAddr) -> Option<String> {
    let reached =
        matches!(provider, Provider::Tcp | Provider::Udp | Provider::Verbs).then(|| reached.to_canonical());
    given.map(str::to_owned).or_else(|| reached.map(|ip| ip.to_string()))
}
