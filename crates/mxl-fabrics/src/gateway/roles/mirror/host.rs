//! The flows of one serving host: connects to it, again and again, and keeps the local flows as it says.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mxl::{FlowDefinition, Uuid};

use super::local::{Local, Mirrored};
use super::wanted::Share;
use crate::Provider;
use crate::gateway::roles::log::say;
use crate::gateway::roles::remote::{Control, Remote};
use crate::gateway::roles::web::{Board, Counts, FlowState, FlowStatus};
use crate::gateway::wire::{ControlReply, ControlRequest};

/// The first and the longest pause before a host, or a flow, is tried again. Each is twice as long as the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(8));
/// A connection that lasted this long was good: the next pause is the first again.
const GOOD: Duration = Duration::from_secs(5);
/// Interval of signs of life.
const PING_EVERY: Duration = Duration::from_secs(3);
/// Maximum silence of the other side.
const SILENCE: Duration = Duration::from_secs(10);
/// Interval of lists, for mirrors of all flows, and of looks at the local flows.
const LIST_EVERY: Duration = Duration::from_secs(2);
/// Interval of reports to the web page.
const REPORT_EVERY: Duration = Duration::from_millis(500);
/// Maximum flows of one host. Each takes a ring of the domain's memory, and descriptors.
const MAX_FLOWS: usize = 1024;

/// A host, and what is mirrored of it.
pub struct Host {
    remote: Remote,
    local: Arc<Local>,
    /// Time for which a flow is kept that has ended there.
    keep: Duration,
    /// It ends when one of these is set.
    stops: Vec<Arc<AtomicBool>>,
    /// Where to report the flows, if somebody may want to see them; and the last report.
    board: Option<Arc<Board>>,
    reported: Instant,
    /// With NMOS receivers: the flows that these are connected to, in place of all.
    wanted: Option<Arc<dyn Share>>,
    flows: BTreeMap<Uuid, Flow>,
    /// The last failure, which is told once.
    said: String,
}

/// A flow, mirrored or wanted.
#[derive(Default)]
struct Flow {
    mirrored: Option<Mirrored>,
    /// When it was first absent at the other side.
    absent: Option<Instant>,
    /// When to ask for it again, after a failure.
    again: Option<Instant>,
    pause: Option<Duration>,
    /// The last failure, which is told once.
    said: String,
    connections: u64,
    counts: Counts,
}

impl Flow {
    /// Tells a failure, unless it was the last one too.
    fn fail(&mut self, what: String) {
        if self.said != what {
            say(&what);
            self.said = what;
        }
    }

    /// Its report, as flow `id` of a host.
    fn status(&self, id: Uuid, host: &Remote) -> FlowStatus {
        let is_connected = self.mirrored.as_ref().is_some_and(Mirrored::is_connected);
        FlowStatus {
            id,
            state: if is_connected { FlowState::Connected } else { FlowState::Waiting },
            why: if is_connected { String::new() } else { self.said.clone() },
            peers: vec![host.to_string()],
            counts: Counts { reconnections: self.connections.saturating_sub(1), ..self.counts },
            counted: mxl::time::now(),
        }
    }

    /// Asks for it again, after a pause.
    fn retry(&mut self) {
        let pause = self.pause.map_or(PAUSES.0, |last| (last * 2).min(PAUSES.1));
        (self.pause, self.again) = (Some(pause), Some(Instant::now() + pause));
    }
}

impl Host {
    /// A host that was not connected yet.
    pub fn new(
        remote: Remote,
        local: Arc<Local>,
        keep: Duration,
        stops: Vec<Arc<AtomicBool>>,
        board: Option<Arc<Board>>,
        wanted: Option<Arc<dyn Share>>,
    ) -> Self {
        let flows = remote.ids.iter().map(|id| (*id, Flow::default())).collect();
        let reported = Instant::now();
        Self { remote, local, keep, stops, board, reported, wanted, flows, said: String::new() }
    }

    /// Mirrors its flows until it is stopped. The web page does not show them then.
    pub fn run(mut self) {
        self.mirror();
        if let Some(board) = &self.board {
            board.set(&self.remote.to_string(), Vec::new());
        }
    }

    fn mirror(&mut self) {
        let mut pause = PAUSES.0;
        while !self.is_over() {
            let begin = Instant::now();
            match self.session() {
                Ok(()) => return,
                Err(error) => {
                    let what = format!("{}: {error}", self.remote);
                    if self.said != what {
                        say(format_args!("{what}; tries again"));
                        self.said = what;
                    }
                }
            }
            if begin.elapsed() > GOOD {
                pause = PAUSES.0;
            }
            let until = Instant::now() + pause;
            while Instant::now() < until && !self.is_over() {
                std::thread::sleep(Duration::from_millis(50));
                self.look();
                // The next connection asks for all that it has then.
                self.follow_receivers();
            }
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Whether all flows of the host are mirrored.
    fn is_all(&self) -> bool {
        self.remote.ids.is_empty() && self.wanted.is_none()
    }

    /// Takes the flows that receivers are connected to, and drops those that none is connected to any more. Returns
    /// the new ones and the former ones.
    fn follow_receivers(&mut self) -> (Vec<Uuid>, Vec<Uuid>) {
        let Some(wanted) = &self.wanted else { return (Vec::new(), Vec::new()) };
        let wanted = wanted.flows();
        let is_named = |id: &Uuid| self.remote.ids.contains(id);
        let new: Vec<Uuid> = wanted.iter().filter(|id| !self.flows.contains_key(id)).copied().collect();
        let is_former = |id: &&Uuid| !wanted.contains(id) && !is_named(id);
        let former: Vec<Uuid> = self.flows.keys().filter(is_former).copied().collect();
        for id in &former {
            say(format_args!("{}: flow {id}: no receiver is connected to it any more", self.remote));
            self.flows.remove(id);
        }
        for id in &new {
            self.flows.insert(*id, Flow::default());
        }
        (new, former)
    }

    fn is_over(&self) -> bool {
        self.stops.iter().any(|stop| stop.load(Ordering::Relaxed))
    }

    /// One connection. Returns when the program ends.
    fn session(&mut self) -> io::Result<()> {
        let mut control = self.remote.connect()?;
        let node = self.node(&control)?;
        // What the last connection said of them is old: they may be back.
        for flow in self.flows.values_mut() {
            (flow.again, flow.pause, flow.absent) = (None, None, None);
        }
        let ids: Vec<Uuid> = self.flows.keys().copied().collect();
        for id in ids {
            control.ask(&ControlRequest::Follow { id })?;
        }
        let (mut pinged, mut listed) = (Instant::now(), None::<Instant>);
        // What the other side accepts is a connection; what it says after it tells who it is.
        control.ask(&ControlRequest::Ping)?;
        while !self.is_over() {
            if pinged.elapsed() > PING_EVERY {
                pinged = Instant::now();
                control.ask(&ControlRequest::Ping)?;
            }
            if listed.is_none_or(|listed| listed.elapsed() > LIST_EVERY) {
                listed = Some(Instant::now());
                if self.is_all() {
                    control.ask(&ControlRequest::List)?;
                }
                self.check();
            }
            self.look();
            self.forget(&mut control)?;
            let (new, former) = self.follow_receivers();
            for id in new {
                control.ask(&ControlRequest::Follow { id })?;
            }
            for id in former {
                control.ask(&ControlRequest::Leave { id })?;
            }
            let now = Instant::now();
            for (&id, flow) in
                self.flows.iter_mut().filter(|(_, flow)| flow.again.is_some_and(|at| at <= now))
            {
                flow.again = None;
                control.ask(&ControlRequest::Follow { id })?;
            }
            if let Some(reply) = control.reply()? {
                self.handle(&mut control, node.as_deref(), reply)?;
            } else if control.silence() > SILENCE {
                let what = format!("silent for {} seconds", SILENCE.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, what));
            }
        }
        Ok(())
    }

    /// The node of the targets: the given one, or the address that the serving host sees, for providers with addresses
    /// of IP.
    fn node(&self, control: &Control) -> io::Result<Option<String>> {
        if self.local.node.is_some() {
            return Ok(self.local.node.clone());
        }
        let is_ip = matches!(self.local.provider, Provider::Tcp | Provider::Udp | Provider::Verbs);
        Ok(if is_ip { Some(control.node()?.to_canonical().to_string()) } else { None })
    }

    fn handle(&mut self, control: &mut Control, node: Option<&str>, reply: ControlReply) -> io::Result<()> {
        match reply {
            ControlReply::Pong => {
                if !self.said.is_empty() {
                    say(format_args!("{}: connected", self.remote));
                    self.said.clear();
                }
            }
            ControlReply::Flow(flow) => {
                if self.is_all() && self.flows.len() < MAX_FLOWS && !self.flows.contains_key(&flow.id) {
                    self.flows.insert(flow.id, Flow::default());
                    control.ask(&ControlRequest::Follow { id: flow.id })?;
                }
            }
            ControlReply::Listed { more: true } => {
                let what =
                    format!("{} offers more flows than one list has: name those to mirror", self.remote);
                if self.said != what {
                    say(&what);
                    self.said = what;
                }
            }
            ControlReply::Listed { more: false } => {}
            ControlReply::Definition { id, text } => {
                if let Some(request) = self.on_definition(id, text, node) {
                    control.ask(&request)?;
                }
            }
            ControlReply::Absent { id, why } => {
                if let Some(flow) = self.flows.get_mut(&id) {
                    flow.absent.get_or_insert_with(Instant::now);
                    flow.fail(format!("{}: {why}; waits for it", self.remote));
                }
            }
            ControlReply::Sending { id } => {
                if let Some(flow) = self.flows.get_mut(&id) {
                    flow.pause = None;
                    flow.said.clear();
                }
            }
            ControlReply::Refused { id: Some(id), why } => {
                if let Some(flow) = self.flows.get_mut(&id) {
                    flow.fail(format!("{}: flow {id}: {why}", self.remote));
                    flow.retry();
                }
            }
            ControlReply::Refused { id: None, why } => return Err(io::Error::other(why)),
        }
        Ok(())
    }

    /// A flow is there, or has changed. Returns the request to send it.
    fn on_definition(&mut self, id: Uuid, text: String, node: Option<&str>) -> Option<ControlRequest> {
        let flow = self.flows.get_mut(&id)?;
        (flow.absent, flow.again) = (None, None);
        if let Some(mirrored) = flow.mirrored.as_ref().filter(|mirrored| mirrored.is_of(&text, node)) {
            return Some(ControlRequest::Target { id, info: mirrored.info.clone() });
        }
        let label = FlowDefinition::parse(&text).map(|definition| definition.label).unwrap_or_default();
        let was_there = flow.mirrored.is_some();
        match self.local.mirror(id, text, node.map(str::to_owned), flow.mirrored.take()) {
            Ok(mirrored) => {
                let what = if was_there { "has changed, and is mirrored anew" } else { "is mirrored" };
                say(format_args!("{}: flow {id} ({label}) {what}", self.remote));
                let info = mirrored.info.clone();
                flow.mirrored = Some(mirrored);
                Some(ControlRequest::Target { id, info })
            }
            Err(error) => {
                flow.fail(format!("{}: flow {id} ({label}): {error}", self.remote));
                flow.retry();
                None
            }
        }
    }

    /// Reads the events of the targets. One that has failed is opened again.
    fn look(&mut self) {
        for (id, flow) in &mut self.flows {
            let Some(mirrored) = &mut flow.mirrored else { continue };
            match mirrored.look() {
                Ok(report) => {
                    flow.connections += report.connections;
                    flow.counts = flow.counts.plus(report.counts);
                    if report.is_left {
                        say(format_args!("flow {id}: nobody sends it any more"));
                    } else if report.is_connected {
                        say(format_args!("flow {id}: arrives"));
                    }
                    if let Some(wanted) = self.wanted.as_ref().filter(|_| mirrored.is_connected()) {
                        wanted.arrives(*id);
                    }
                }
                Err(error) => {
                    flow.fail(format!("flow {id}: {error}"));
                    flow.mirrored = None;
                    flow.retry();
                }
            }
        }
        self.report();
    }

    /// Reports the flows, if that is due.
    fn report(&mut self) {
        let Some(board) = self.board.as_ref().filter(|_| self.reported.elapsed() > REPORT_EVERY) else {
            return;
        };
        let flows = self.flows.iter().map(|(id, flow)| flow.status(*id, &self.remote));
        board.set(&self.remote.to_string(), flows.collect());
        self.reported = Instant::now();
    }

    /// Opens flows again that somebody has removed from the domain.
    fn check(&mut self) {
        for (id, flow) in &mut self.flows {
            if flow.mirrored.is_some() && !self.local.has(*id) {
                flow.fail(format!("flow {id} was removed from the domain, and is made again"));
                flow.mirrored = None;
                flow.retry();
            }
        }
    }

    /// Removes flows that have been absent for long. Those that were not asked for by name are forgotten.
    fn forget(&mut self, control: &mut Control) -> io::Result<()> {
        let (keep, is_all) = (self.keep, self.is_all());
        let mut gone = Vec::new();
        for (&id, flow) in &mut self.flows {
            if flow.absent.is_none_or(|absent| absent.elapsed() < keep) {
                continue;
            }
            if flow.mirrored.take().is_some() {
                say(format_args!("{}: flow {id} has ended, and is removed", self.remote));
            }
            if is_all {
                gone.push(id);
            }
        }
        for id in gone {
            self.flows.remove(&id);
            control.ask(&ControlRequest::Leave { id })?;
        }
        Ok(())
    }
}
