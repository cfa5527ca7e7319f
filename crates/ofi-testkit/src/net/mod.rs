//! A simulated network with a virtual clock: endpoints of `ofi-rdm`, links that lose, duplicate, reorder, damage and
//! delay datagrams, hosts that sleep, die and return. An hour of silence costs nothing, and a seed reproduces a run.

mod application;
mod clock;
mod icmp;
mod link;
mod rival;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

pub use self::application::{Application, Model, Sent, all_acked, all_arrived};
use self::application::{PART, RECORD, fill, way};
use self::clock::Clock;
use self::icmp::Reports;
pub use self::link::{NetworkLink, Random};
use self::rival::{Rival, SEGMENT};
use ofi_rdm::congestion::Congestion;
use ofi_rdm::wire::Params;
use ofi_rdm::wire::handshake::param;
use ofi_rdm::{Arrivals, Config, Driver, Endpoint, Instant, Limits, Security, Stream, suites};

/// A host.
#[derive(Debug)]
pub struct Host {
    /// Its protocol endpoint, unless the host is dead.
    pub endpoint: Option<Endpoint>,
    /// Its application.
    pub application: Application,
    address: SocketAddr,
    incarnation: u32,
    /// Until then it neither reads nor sends, but its process lives.
    asleep: Instant,
    inbox: Vec<(SocketAddr, Vec<u8>, bool)>,
    link_free: Instant,
    wakes_at: Option<Instant>,
    clock: Clock,
    reports: Reports,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Datagram {
        from: SocketAddr,
        to: SocketAddr,
        bytes: Vec<u8>,
        marked: bool,
    },
    /// A report to a host: the port at this address is closed.
    Refusal {
        host: usize,
        address: SocketAddr,
    },
    Wake(usize),
    /// For the cross traffic: a packet's acknowledgement, whether it was marked, and a timer.
    Acked(u64, bool),
    Tick,
}

/// A simulated network with a virtual clock.
#[derive(Debug)]
pub struct Net {
    /// The current time.
    pub now: Instant,
    /// The behaviour of the network.
    pub link: NetworkLink,
    /// The hosts.
    pub hosts: Vec<Host>,
    /// A host near which the addresses of two others are swapped, so that each gets the other's datagrams.
    pub swapped: Option<(usize, usize, usize)>,
    /// Pairs of hosts that cannot reach each other.
    pub cut: Vec<(usize, usize)>,
    /// Ordered pairs of hosts: the first cannot reach the second.
    pub mute: Vec<(usize, usize)>,
    config: Config,
    random: Random,
    queue: BinaryHeap<Reverse<(Instant, u64, What)>>,
    sequence: u64,
    burst: u32,
    /// The suites and the key of each host when it starts.
    pub security: Vec<(u8, &'static [u8])>,
    /// The limits on keys when hosts start.
    pub limits: Limits,
    buffer: Vec<u8>,
    /// Datagrams sent.
    pub datagrams: u64,
    /// Length of the longest datagram; callers reset it.
    pub longest: usize,
    rival: Option<(usize, Rival)>,
    /// Recorded datagrams of an eavesdropper.
    heard: Vec<(SocketAddr, SocketAddr, Vec<u8>)>,
}

/// The maximum number of datagrams that the eavesdropper keeps.
const HEARD: usize = 4096;

/// The security settings of all hosts of a network; networks take them in turn.
const WISHES: [(u8, &[u8]); 4] = [
    (suites::CLEAR, b""),
    (suites::ALL, b""),
    (suites::AES_256_GCM, b"job 7"),
    (suites::CHACHA20_POLY1305, b""),
];

/// The liveness port of all processes.
const LIVENESS: u16 = 9;

impl Net {
    /// Creates a network of `hosts` equal hosts.
    pub fn new(seed: u64, hosts: usize, link: NetworkLink, congestion: Congestion) -> Self {
        let flags = if link.corrupt > 0 { param::CHECKED } else { 0 };
        let params = Params {
            window: 1 << 18,
            in_flight: 1 << 18,
            max_packet: 65_000,
            liveness_port: LIVENESS,
            flags,
        };
        let config = Config {
            params,
            congestion,
            patience: Duration::from_secs(5),
            ack_delay: Duration::from_micros(50),
            max_peers: 1000,
            max_of_host: 1 << 20,
            idle: Duration::from_secs(600),
            // In every second network, idle sessions are compacted at once.
            warm_peers: if seed.is_multiple_of(2) { 0 } else { 64 },
        };
        let mut net = Self {
            now: Instant::from_nanos(1_000_000),
            link,
            hosts: Vec::new(),
            swapped: None,
            cut: Vec::new(),
            mute: Vec::new(),
            config,
            random: Random(seed),
            queue: BinaryHeap::new(),
            sequence: 0,
            burst: 0,
            security: vec![WISHES[(seed / 2 % 4) as usize]; hosts],
            limits: Limits::RFC_9001,
            buffer: Vec::new(),
            datagrams: 0,
            longest: 0,
            rival: None,
            heard: Vec::new(),
        };
        let mut clocks = Random(!seed);
        for number in 0..hosts {
            let last = number as u8 + 1;
            // Every third network uses IPv6.
            let ip: IpAddr = match seed % 3 {
                0 => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into()).into(),
                _ => Ipv4Addr::new(10, 0, 0, last).into(),
            };
            let address = SocketAddr::new(ip, 7471);
            let application = Application::new(address, 0, net.random.clone(), 0);
            net.hosts.push(Host {
                endpoint: None,
                application,
                address,
                incarnation: 0,
                asleep: Instant::default(),
                inbox: Vec::new(),
                link_free: Instant::default(),
                wakes_at: None,
                clock: Clock::new(&mut clocks),
                reports: Reports::default(),
            });
            net.start(number);
        }
        net
    }

    /// The address of a host.
    pub fn address(&self, host: usize) -> SocketAddr {
        self.hosts[host].address
    }

    /// The reading of a host's clock.
    pub fn now_at(&self, host: usize) -> Instant {
        self.hosts[host].clock.at(self.now)
    }

    /// Starts a dead host, which keeps only its address.
    pub fn start(&mut self, host: usize) {
        let secret = [self.random.bits(), self.random.bits()];
        let stops = self.hosts[host].application.stops;
        let mut endpoint = Endpoint::new(self.config, secret);
        let (suites, key) = self.security[host];
        let mut seed = [0u8; 32];
        seed.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = self.random.bits().to_le_bytes());
        let (translated, limits) = (false, self.limits);
        let security = Security { suites, key: key.to_vec(), seed, translated, limits };
        endpoint.secure(&security).expect("this crate has the feature `encryption`");
        let here = &mut self.hosts[host];
        endpoint.set_addresses([here.address]);
        here.incarnation += 1;
        here.endpoint = Some(endpoint);
        here.inbox.clear();
        here.application =
            Application::new(here.address, here.incarnation, Random(self.random.bits()), stops);
    }

    /// Sets the granted window and restarts: all hosts are new.
    pub fn grant(&mut self, bytes: u64) {
        (self.config.params.window, self.config.params.in_flight) = (bytes, bytes);
        (0..self.hosts.len()).for_each(|host| self.start(host));
    }

    /// Swaps the numbers of two peers of a host.
    pub fn swap(&mut self, host: usize, one: u32, other: u32) {
        let here = &mut self.hosts[host];
        if let Some(endpoint) = &mut here.endpoint {
            endpoint.swap(one, other);
            here.application.peers.swap(one as usize, other as usize);
        }
    }

    /// Kills a host without notice to its peers.
    pub fn kill(&mut self, host: usize) {
        self.hosts[host].endpoint = None;
    }

    /// Closes a host's endpoint in order, like a driver that first sends its queued packets. The process lives on.
    pub fn close(&mut self, host: usize) {
        if let Some(endpoint) = &mut self.hosts[host].endpoint {
            endpoint.take_leave(&|_| false);
        }
        self.turn(host);
        let mut buf = vec![0u8; 2000];
        let Some(mut endpoint) = self.hosts[host].endpoint.take() else { return };
        for peer in 0..endpoint.peers() as u32 {
            if let Some(transmit) = endpoint.close(peer, &mut buf) {
                let bytes = buf[..transmit.len].to_vec();
                self.put(host, transmit.to, bytes);
            }
        }
    }

    /// Sets how often applications refuse a command for now, per 1,000.
    pub fn stops(&mut self, per_mille: u32) {
        self.hosts.iter_mut().for_each(|host| host.application.stops = per_mille);
    }

    /// Puts a host to sleep: its endpoint is not called, but its process lives.
    pub fn sleep(&mut self, host: usize, time: Duration) {
        let end = self.now + time;
        (self.hosts[host].asleep, self.hosts[host].wakes_at) = (end, Some(end));
        self.schedule(end, What::Wake(host));
    }

    /// The state of host `at` about host `of`.
    pub fn model(&self, at: usize, of: usize) -> Option<&Model> {
        let address = self.hosts[of].address;
        self.hosts[at].application.peers.iter().find(|(peer, _)| *peer == address).map(|(_, model)| model)
    }

    /// Discards the history of completed records, so that a long run does not keep all of it.
    pub fn forget_history(&mut self) {
        for (_, model) in self.hosts.iter_mut().flat_map(|host| &mut host.application.peers) {
            for received in &mut model.received {
                received.drain(..received.len().saturating_sub(1)); // the next one must follow the last
            }
            if model.is_acked() {
                (model.marked, model.acked) = Default::default();
            }
            model.payloads.clear();
        }
    }

    fn peer(&mut self, host: usize, to: usize) -> Option<u32> {
        let address = self.hosts[to].address;
        let here = &mut self.hosts[host];
        let (peer, new) = here.endpoint.as_mut()?.peer(address);
        if new {
            here.application.introduce(peer, address);
        }
        Some(peer)
    }

    /// Sends a record with `len` bytes after its name.
    pub fn record(&mut self, host: usize, to: usize, stream: Stream, len: usize) {
        let Some(peer) = self.peer(host, to) else { return };
        let here = &mut self.hosts[host];
        let now = here.clock.at(self.now);
        let incarnation = here.application.incarnation;
        let model = &mut here.application.peers[peer as usize].1;
        let number = u64::from(model.sent[stream as usize]);
        model.sent[stream as usize] += 1;
        let way = way(here.address, here.application.peers[peer as usize].0);
        let model = &mut here.application.peers[peer as usize].1;
        let who = u64::from(incarnation) << 32 | u64::from(model.lost);
        let mark = number | (stream as u64) << 63;
        model.marked[stream as usize].push(mark);
        let number = number | u64::from(way) << 32;
        let mut fields = [0u8; 16];
        fields[..8].copy_from_slice(&who.to_be_bytes());
        fields[8..].copy_from_slice(&number.to_be_bytes());
        let Some(sender) = here.endpoint.as_mut().and_then(|endpoint| endpoint.sender(now, peer)) else {
            return;
        };
        let stream = match stream {
            Stream::Commands => &mut sender.commands,
            Stream::Bulk => &mut sender.bulk,
        };
        let body = stream.record(RECORD, 0, &fields, len, Some(mark));
        fill(who ^ number, 0, body);
        self.turn(host);
    }

    /// Sends a payload of `len` bytes. Returns its name.
    pub fn payload(&mut self, host: usize, to: usize, stream: Stream, len: u64) -> u64 {
        let Some(peer) = self.peer(host, to) else { return 0 };
        let token = (self.random.bits() >> 1) | (stream as u64) << 63;
        let here = &mut self.hosts[host];
        let now = here.clock.at(self.now);
        here.application.peers[peer as usize].1.marked[stream as usize].push(token);
        if let Some(sender) = here.endpoint.as_mut().and_then(|endpoint| endpoint.sender(now, peer)) {
            let stream = match stream {
                Stream::Commands => &mut sender.commands,
                Stream::Bulk => &mut sender.bulk,
            };
            stream.payload(PART, 0, token, token, len);
        }
        self.turn(host);
        token
    }

    /// Sends a packet with arbitrary frames in a host's session with another. Returns whether there is a session.
    pub fn forge(&mut self, host: usize, to: usize, frames: &[u8]) -> bool {
        let Some(peer) = self.peer(host, to) else { return false };
        let mut buf = vec![0u8; 65_536];
        let endpoint = self.hosts[host].endpoint.as_mut();
        let Some(packet) = endpoint.and_then(|endpoint| endpoint.forge(peer, frames, &mut buf)) else {
            return false;
        };
        self.put(host, packet.to, buf[..packet.len].to_vec());
        true
    }

    fn schedule(&mut self, at: Instant, what: What) {
        self.sequence += 1;
        self.queue.push(Reverse((at.max(self.now), self.sequence, what)));
    }

    fn index(&self, address: SocketAddr) -> Option<usize> {
        self.hosts.iter().position(|host| host.address.ip() == address.ip())
    }

    /// Sends a forged datagram.
    pub fn inject(&mut self, from: SocketAddr, to: SocketAddr, bytes: Vec<u8>) {
        self.schedule(self.now, What::Datagram { from, to, bytes, marked: false });
    }

    /// Sends a datagram.
    pub fn put(&mut self, from: usize, to: SocketAddr, bytes: Vec<u8>) {
        let address = self.hosts[from].address;
        self.put_as(address, to, bytes);
    }

    fn put_as(&mut self, from: SocketAddr, to: SocketAddr, mut bytes: Vec<u8>) {
        self.datagrams += 1;
        self.longest = self.longest.max(bytes.len());
        let (from, to) = self.swap_addresses(from, to);
        let (Some(source), Some(target)) = (self.index(from), self.index(to)) else { return };
        let is_cut = self.cut.contains(&(source, target))
            || self.cut.contains(&(target, source))
            || self.mute.contains(&(source, target));
        if self.burst > 0 {
            self.burst -= 1;
        } else if self.random.chance(self.link.loss) {
            self.burst = self.link.burst;
        }
        if is_cut || self.burst > 0 || bytes.len() > self.link.longest {
            return;
        }
        self.interfere(from, to, &bytes);
        let copies = 1 + u32::from(self.random.chance(self.link.duplicate));
        for copy in 0..copies {
            let mut delay = self.link.delay;
            let jitter = self.link.jitter.as_nanos() as u64;
            if jitter > 0 {
                delay += Duration::from_nanos(self.random.below(jitter));
            }
            if self.random.chance(self.link.reorder) {
                delay += self.link.delay * self.random.below(10) as u32;
            }
            let mut at = self.now + delay;
            let Some(passed) = self.pass(target, at, bytes.len()) else { continue };
            let marked;
            (at, marked) = passed;
            let mut copied = if copy + 1 == copies { std::mem::take(&mut bytes) } else { bytes.clone() };
            if self.random.chance(self.link.corrupt) && !copied.is_empty() {
                let bit = self.random.below(copied.len() as u64 * 8) as usize;
                copied[bit / 8] ^= 1 << (bit % 8);
            }
            if let Some(damage) = self.link.damage {
                damage(&mut copied);
            }
            self.schedule(at, What::Datagram { from, to, bytes: copied, marked });
        }
    }

    /// The source and destination of a datagram as its receiver sees them.
    fn swap_addresses(&self, from: SocketAddr, to: SocketAddr) -> (SocketAddr, SocketAddr) {
        let Some((victim, one, other)) = self.swapped else { return (from, to) };
        let ip = |host: usize| self.hosts[host].address.ip();
        let swap = |address: SocketAddr| match address.ip() {
            it if it == ip(one) => SocketAddr::new(ip(other), address.port()),
            it if it == ip(other) => SocketAddr::new(ip(one), address.port()),
            _ => address,
        };
        match ip(victim) {
            it if it == from.ip() => (from, swap(to)),
            it if it == to.ip() => (swap(from), to),
            _ => (from, to),
        }
    }

    /// An attacker who sees all datagrams and can send others: reflects, redirects and replays them.
    fn interfere(&mut self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        let soon = self.now + self.link.delay + self.link.delay;
        if self.random.chance(self.link.reflect) {
            self.schedule(soon, What::Datagram { from: to, to: from, bytes: bytes.to_vec(), marked: false });
        }
        if self.random.chance(self.link.redirect) {
            let other = SocketAddr::new(
                self.hosts[self.random.below(self.hosts.len() as u64) as usize].address.ip(),
                to.port(),
            );
            self.schedule(soon, What::Datagram { from, to: other, bytes: bytes.to_vec(), marked: false });
        }
        if self.link.replay == 0 {
            return;
        }
        let datagram = (from, to, bytes.to_vec());
        if self.heard.len() < HEARD {
            self.heard.push(datagram);
        } else {
            let place = self.random.below(HEARD as u64) as usize;
            self.heard[place] = datagram;
        }
        if self.random.chance(self.link.replay) {
            let (from, to, bytes) = self.heard[self.random.below(self.heard.len() as u64) as usize].clone();
            self.schedule(soon, What::Datagram { from, to, bytes, marked: false });
        }
    }

    /// The time when a packet at the link to `target` has passed the link, and whether it is marked; `None` if the
    /// queue is full.
    fn pass(&mut self, target: usize, at: Instant, len: usize) -> Option<(Instant, bool)> {
        let occupied = len as u64 * self.link.byte_time;
        if occupied == 0 {
            return Some((at, false));
        }
        let free = self.hosts[target].link_free.max(at);
        let waiting = free.since(at).as_nanos() as u64;
        let fills = |bytes: u64| waiting > bytes.saturating_mul(self.link.byte_time);
        let marked = fills(self.link.marking);
        if fills(self.link.queue) {
            return None;
        }
        let passed = free + Duration::from_nanos(occupied);
        self.hosts[target].link_free = passed;
        Some((passed, marked))
    }

    /// Starts endless cross traffic from outside to a host: it takes the share of the link that TCP would take.
    pub fn rival(&mut self, target: usize) {
        self.rival = Some((target, Rival::new(self.now, self.link.delay * 2)));
        self.schedule(self.now, What::Tick);
    }

    /// Bytes of the cross traffic that have arrived.
    pub fn rival_bytes(&self) -> u64 {
        self.rival.as_ref().map_or(0, |(_, rival)| rival.arrived * SEGMENT as u64)
    }

    fn move_rival(&mut self) {
        let Some((target, mut rival)) = self.rival.take() else { return };
        while let Some(number) = rival.send(self.now) {
            if let Some((passed, marked)) = self.pass(target, self.now + self.link.delay, SEGMENT + 40) {
                self.schedule(passed + self.link.delay, What::Acked(number, marked));
            }
        }
        self.rival = Some((target, rival));
    }

    /// Lets a host do its pending work.
    pub fn turn(&mut self, host: usize) {
        let here = &mut self.hosts[host];
        if here.asleep > self.now {
            return;
        }
        let now = here.clock.at(self.now);
        let inbox = std::mem::take(&mut here.inbox);
        let Some(endpoint) = &mut here.endpoint else { return };
        let mut inbox = inbox.into_iter().peekable();
        while let Some((from, mut row, marked)) = inbox.next() {
            // Datagrams of one length arrive together, as a system coalesces them. Any number of datagrams may join the
            // first.
            let (len, most) = (row.len(), self.random.below(6) * self.random.below(6));
            for _ in 0..most {
                // Marked and unmarked ones are not combined.
                let joins = |(other, bytes, mark): &(SocketAddr, Vec<u8>, bool)| {
                    *other == from && bytes.len() <= len && *mark == marked
                };
                let Some((_, next, _)) = inbox.next_if(joins) else {
                    break;
                };
                row.extend_from_slice(&next);
                if next.len() < len {
                    break;
                }
            }
            endpoint.handle_row(now, from, Arrivals { bytes: &mut row, len, marked }, &mut here.application);
        }
        if endpoint.wants_addresses() {
            endpoint.set_addresses([here.address]);
        }
        endpoint.resume(now, &mut here.application);
        endpoint.handle_time(now, &mut here.application);
        let mut buf = std::mem::take(&mut self.buffer);
        buf.resize(65_536, 0);
        let mut out = Vec::new();
        loop {
            // Alone, or in rows of any length.
            let most = 1 + self.random.below(8) as usize * self.random.below(8) as usize;
            let polled = endpoint.poll_train(now, most, &mut buf, &mut here.application);
            let Some(transmit) = polled else { break };
            assert!(transmit.count >= 1 && transmit.count <= most);
            if transmit.len > self.link.refused
                && let Some(peer) = transmit.peer
            {
                endpoint.too_long(peer, transmit.len);
                continue;
            }
            let row = buf[..transmit.len * transmit.count].chunks_exact(transmit.len.max(1));
            out.extend(row.map(|packet| (transmit.to, packet.to_vec())));
            assert!(out.len() < 100_000, "an endpoint that never stops sending");
        }
        self.buffer = buf;
        let mut wake = endpoint.poll_timeout();
        if endpoint.is_stopped() {
            // Applications make room in time.
            let soon = now + Duration::from_micros(100);
            wake = Some(wake.map_or(soon, |wake| wake.min(soon)));
        }
        if let Some(wake) = wake
            && let wake = here.clock.when(wake).max(self.now + Duration::from_nanos(1))
            && here.wakes_at.is_none_or(|other| wake < other)
        {
            here.wakes_at = Some(wake);
            self.schedule(wake, What::Wake(host));
        }
        for (to, bytes) in out {
            self.put(host, to, bytes);
        }
    }

    fn answer_liveness(&mut self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        let Some(host) = self.index(to) else { return };
        let epoch = self.hosts[host].endpoint.as_ref().map(Endpoint::epoch);
        // A killed process answers nothing. One with a closed endpoint does, but the tests here need only `kill`.
        let Some(epoch) = epoch else { return };
        if let Some(answer) = ofi_rdm::answer_liveness(bytes, |asked| asked == epoch) {
            self.put_as(to, from, answer.to_vec());
        }
    }

    /// Runs for `time`, or until no event is left.
    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        let mut steps = 0u64;
        while let Some(Reverse((at, _, _))) = self.queue.peek()
            && *at <= end
        {
            let Some(Reverse((at, _, what))) = self.queue.pop() else { break };
            self.now = self.now.max(at);
            steps += 1;
            assert!(steps < 20_000_000, "a network that never comes to rest");
            match what {
                What::Datagram { from, to, .. } if self.is_refused(to) => self.report(from, to),
                What::Refusal { host, address } => self.refuse(host, address),
                What::Datagram { from, to, bytes, .. } if to.port() == LIVENESS => {
                    self.answer_liveness(from, to, &bytes);
                }
                What::Datagram { from, to, bytes, marked } => {
                    let Some(host) = self.index(to) else { continue };
                    let here = &self.hosts[host];
                    if here.asleep > self.now
                        && here.endpoint.is_some()
                        && let Some(answer) = ofi_rdm::answer_question(&bytes)
                    {
                        self.put_as(to, from, answer.to_vec()); // its process handles it
                    }
                    let inbox = &mut self.hosts[host].inbox;
                    if inbox.len() < 400 {
                        inbox.push((from, bytes, marked)); // the socket's buffer
                    }
                    self.turn(host);
                }
                What::Acked(number, marked) => {
                    if let Some((_, rival)) = &mut self.rival {
                        if marked {
                            rival.on_mark(number);
                        }
                        rival.on_ack(at, number);
                    }
                    self.move_rival();
                }
                What::Tick => {
                    if let Some((_, rival)) = &mut self.rival {
                        rival.on_time(at);
                    }
                    self.move_rival();
                    self.schedule(at + Duration::from_millis(1), What::Tick);
                }
                // An earlier timer has replaced this one. A turn for it would leave another timer behind.
                What::Wake(host) if self.hosts[host].wakes_at != Some(at) => {}
                What::Wake(host) => {
                    self.hosts[host].wakes_at = None;
                    self.turn(host);
                }
            }
        }
        self.now = self.now.max(end);
    }
}
