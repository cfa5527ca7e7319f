//! Incoming datagrams: assigns them to peers, and begins and ends sessions.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use super::pending::Pending;
use super::{Arrivals, Endpoint};
use crate::connection::{Arrival, Config, RxPrediction, open_packet};
use crate::crypto::{Examined, Refusal, is_own};
use crate::driver::{Began, Driver, Lost};
use crate::hash;
use crate::stream::Part;
use crate::time::Instant;
use crate::wire::header::{self, flag};
use crate::wire::{Accept, Header, Init, Kind, Malformed, Params, Retry, Stream, VERSION, suites};

/// The maximum number of answers to strangers that wait to be sent.
const MAX_ANSWERS: usize = 64;
/// Peers that are examined for each new stranger. More than one, so that the number of absent strangers falls.
const CHECKS_PER_NEW_PEER: usize = 2;
/// Minimum lifetime of a cookie; the maximum is twice that.
const COOKIE_TIME: Duration = Duration::from_secs(8);

/// Where an address that a peer attributes to this endpoint is located.
enum AddressScope {
    /// One of this endpoint's addresses.
    Here,
    /// Not an address of this endpoint according to the driver's last list, which may be old.
    Unknown,
    /// Not an address of this endpoint.
    Elsewhere,
}

/// Describes a session to the driver.
fn began(address: SocketAddr, by_peer: bool, suite: u8, params: &Params) -> Began {
    Began { address, by_peer, suite, longest_packet: params.max_packet, window: params.in_flight }
}

impl Endpoint {
    fn cookie(&self, from: SocketAddr, init: &Init, slot: u64) -> u64 {
        let mut bytes = [0u8; 50];
        match from.ip() {
            IpAddr::V4(ip) => bytes[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes[..16].copy_from_slice(&ip.octets()),
        }
        bytes[16..18].copy_from_slice(&from.port().to_be_bytes());
        for (to, from) in
            bytes[18..].as_chunks_mut::<8>().0.iter_mut().zip([init.session, init.epoch, init.attempt, slot])
        {
            *to = from.to_be_bytes();
        }
        hash::sip(self.secret.0, &bytes).max(1)
    }

    fn answer(&mut self, to: SocketAddr, header: Header, body: &[u8]) {
        if self.answers.len() >= MAX_ANSWERS {
            self.stats.unanswered += 1;
            return;
        }
        self.answers.push_back((to, header, body.to_vec()));
    }

    /// Processes a row of datagrams. The effect is the same as of [`Endpoint::handle`] for each in turn.
    pub fn handle_row<D: Driver>(
        &mut self,
        now: Instant,
        from: SocketAddr,
        arrivals: Arrivals<'_>,
        driver: &mut D,
    ) {
        self.marked = arrivals.marked;
        self.take_row(now, from, (arrivals.bytes, arrivals.len), driver);
        self.marked = false;
    }

    /// Predicts the peer's next packets, assuming that they carry these parts. Each row is given by its first part,
    /// which continues a payload, and a number of parts. `None` if they cannot be predicted, or if packets must be read
    /// before they are accepted because they are sealed or have a checksum.
    pub fn foresee(&self, peer: u32, stream: Stream, rows: &[(Part, usize)]) -> Option<RxPrediction> {
        self.peers.get(peer as usize)?.foresee(&self.config, stream, rows)
    }

    /// Processes datagrams at the front of a row that were all [predicted](RxPrediction::meets). Their payloads are not
    /// in `arrivals`, but where the driver had them placed. Returns the number of bytes processed. The rest is passed
    /// to [`Endpoint::handle_row`], together with its payloads. The driver gets records whose payloads must not be
    /// read.
    pub fn handle_placed<D: Driver>(
        &mut self,
        now: Instant,
        from: SocketAddr,
        arrivals: &Arrivals<'_>,
        driver: &mut D,
    ) -> usize {
        self.marked = arrivals.marked;
        let taken = self.on_row(now, from, (arrivals.bytes, arrivals.len.max(1), true), driver);
        self.marked = false;
        taken
    }

    fn take_row<D: Driver>(
        &mut self,
        now: Instant,
        from: SocketAddr,
        (row, len): (&mut [u8], usize),
        driver: &mut D,
    ) {
        let len = len.clamp(1, row.len().max(1));
        let mut at = 0;
        loop {
            if row.len() - at > len {
                at += self.on_row(now, from, (&row[at..], len, false), driver);
                if at == row.len() {
                    return;
                }
            }
            let end = row.len().min(at + len);
            self.handle(now, from, &mut row[at..end], driver);
            at = end;
            if at == row.len() {
                return;
            }
        }
    }

    /// Processes plain datagrams at the front of a row. Returns the number of bytes processed.
    fn on_row<D: Driver>(
        &mut self,
        now: Instant,
        from: SocketAddr,
        (row, len, placed): (&[u8], usize, bool),
        driver: &mut D,
    ) -> usize {
        // Others are left to `handle`; this check is their only extra cost.
        if !matches!(row, [VERSION, 0, 0, flags, ..] if u16::from(*flags) & !flag::URGENT == 0) {
            return 0;
        }
        let Some(name) = row.get(8..).and_then(|row| row.first_chunk::<8>()) else { return 0 };
        let Some(peer) = self.book.named(&self.peers, u64::from_be_bytes(*name)) else { return 0 };
        let connection = &mut self.peers[peer as usize];
        if connection.address != from || !connection.is_open() {
            return 0;
        }
        let row = &row[..row.len() / len * len];
        let taken = match connection.on_row(now, &self.config, peer, (row, len, placed), driver) {
            Ok(0) if placed && row.len() == len => connection
                .on_placed(now, &self.config, peer, row, driver)
                .map(|taken| if taken { len } else { 0 }),
            taken => taken,
        };
        let taken = match taken {
            Ok(0) => return 0,
            Ok(taken) => {
                if self.marked {
                    connection.on_marked((taken / len) as u64);
                }
                taken
            }
            Err(reason) => {
                self.lose(peer, reason, driver);
                return 0; // `handle` finds that there is no such session
            }
        };
        self.took(now, peer);
        taken
    }

    /// Updates the queues and timers of a peer whose packets were processed.
    fn took(&mut self, now: Instant, peer: u32) {
        let connection = &mut self.peers[peer as usize];
        if connection.owes() && !core::mem::replace(&mut connection.owed, true) {
            self.owed.push(peer);
        }
        if connection.is_stopped() && !core::mem::replace(&mut connection.stopped, true) {
            self.stopped.push(peer);
        }
        self.activate(now, peer);
    }

    /// Processes a datagram. An encrypted one is decrypted in place.
    pub fn handle<D: Driver>(&mut self, now: Instant, from: SocketAddr, datagram: &mut [u8], driver: &mut D) {
        let (head, body) = match Header::parse(datagram) {
            Ok((head, _)) if head.kind == Kind::Data => {
                let Some((bytes, body)) = datagram.split_first_chunk_mut() else { return };
                return self.on_data(now, from, &head, bytes, body, driver);
            }
            Ok(parsed) => parsed,
            Err(Malformed::Version(_)) => {
                self.stats.versions += 1;
                // The fields that an `Init` has in every version: its kind, its length, and the position of the
                // session's name.
                if datagram.len() >= crate::wire::handshake::INIT_LEN
                    && datagram.get(1) == Some(&(Kind::Init as u8))
                    && let Some(name) = datagram.get(header::LEN..).and_then(|body| body.first_chunk::<8>())
                {
                    let header = Header::new(Kind::Versions, u64::from_be_bytes(*name), 0);
                    self.answer(from, header, &[VERSION]);
                }
                return;
            }
            Err(_) => {
                self.stats.malformed += 1;
                return;
            }
        };
        if head.flags & flag::CHECKED == 0 {
            self.stats.malformed += 1;
            return;
        }
        match head.kind {
            Kind::Data => {} // see above
            Kind::Init => match Init::parse(body) {
                Ok(init) => self.on_init(now, from, &init, body),
                Err(_) => self.stats.malformed += 1,
            },
            Kind::Accept => self.on_accept(now, from, &head, body, driver),
            Kind::Retry => match Retry::parse(body) {
                Ok(retry) => {
                    if let Some(peer) = self.asked(from, head.session) {
                        let connection = &mut self.peers[peer as usize];
                        connection.retry(now, retry, &mut self.identity, self.config.params);
                        self.activate(now, peer);
                    }
                }
                Err(_) => self.stats.malformed += 1,
            },
            // The server speaks this version, so the question was damaged on the path, and is repeated.
            Kind::Versions if body.contains(&VERSION) => self.stats.stale += 1,
            Kind::Versions => self.on_refusal(now, from, head.session, Some(Lost::Version)),
            Kind::Refused => {
                let reason = match head.number {
                    number if number == Refusal::Key as u64 => Some(Lost::Key),
                    number if number == Refusal::Suites as u64 => Some(Lost::Suites),
                    number if number == Refusal::Address as u64 => Some(Lost::Address),
                    _ => None,
                };
                self.on_refusal(now, from, head.session, reason);
            }
            Kind::Wait => match self.asked(from, head.session) {
                Some(peer) => self.peers[peer as usize].on_wait(now),
                None => self.stats.stale += 1,
            },
            Kind::Reset => {
                let known = self.find(from);
                match known.filter(|&peer| self.peers[peer as usize].remote() == Some(head.session)) {
                    // The driver has yet to take the records of the closed session.
                    Some(peer) if self.peers[peer as usize].closed => {}
                    Some(peer) => self.doubt(now, peer, Lost::Reset, driver),
                    None => self.stats.strangers += 1,
                }
            }
            Kind::Ask => {
                let flags = if head.session == self.identity.epoch { flag::ALIVE } else { 0 };
                let header = Header { flags, ..Header::new(Kind::Answer, head.session, head.number) };
                self.answer(from, header, &[]);
            }
            Kind::Answer => {
                let asked = self.book.named(&self.peers, head.number).filter(|&peer| {
                    let connection = &self.peers[peer as usize];
                    connection.liveness() == Some((from, head.session))
                });
                match asked {
                    Some(peer) if head.flags & flag::ALIVE != 0 => self.peers[peer as usize].on_alive(now),
                    Some(peer) if self.peers[peer as usize].closed => {}
                    Some(peer) => self.doubt(now, peer, Lost::Closed, driver),
                    None => self.stats.strangers += 1,
                }
            }
        }
    }

    fn on_data<D: Driver>(
        &mut self,
        now: Instant,
        from: SocketAddr,
        head: &Header,
        bytes: &[u8; header::LEN],
        body: &mut [u8],
        driver: &mut D,
    ) {
        let known = self.book.named(&self.peers, head.session);
        let Some(peer) = known.filter(|&peer| self.peers[peer as usize].address == from) else {
            if known.is_none() && self.pending.named(head.session).is_some() {
                return self.on_first(now, from, head, bytes, body, driver);
            }
            self.stats.strangers += 1;
            if known.is_none() && !body.is_empty() {
                self.answer(from, Header::new(Kind::Reset, head.session, 0), &[]);
            }
            return;
        };
        let connection = &mut self.peers[peer as usize];
        if !connection.is_open() {
            return; // the answer that opens the session is late: this packet will be repeated
        }
        let Some(body) = connection.open_packet(now, head, bytes, body) else {
            self.stats.forged += 1;
            if self.peers[peer as usize].is_spent() {
                self.lose(peer, Lost::Forged, driver);
            }
            return;
        };
        self.on_frames(now, peer, head, body, driver);
    }

    /// Processes the frames of a decrypted packet.
    fn on_frames<D: Driver>(&mut self, now: Instant, peer: u32, head: &Header, body: &[u8], driver: &mut D) {
        let connection = &mut self.peers[peer as usize];
        if connection.is_checked(&self.config) && head.flags & flag::CHECKED == 0 {
            self.stats.malformed += 1;
            return;
        }
        match connection.on_data(now, &self.config, peer, head, body, driver) {
            Ok(Arrival::Malformed) => self.stats.malformed += 1,
            Ok(Arrival::Crowded) => self.stats.crowded += 1,
            Ok(Arrival::Fresh) if self.marked => connection.on_marked(1),
            Ok(_) => {}
            // The driver has yet to take records that the peer sent before it closed.
            Err(Lost::Closed) if connection.is_stopped() => connection.closed = true,
            Err(reason) => return self.lose(peer, reason, driver),
        }
        self.took(now, peer);
    }

    /// Processes a packet of a granted session and begins the session: the packet proves that the client has the grant.
    fn on_first<D: Driver>(
        &mut self,
        now: Instant,
        from: SocketAddr,
        head: &Header,
        bytes: &[u8; header::LEN],
        body: &mut [u8],
        driver: &mut D,
    ) {
        let Some(pending) = self.pending.named(head.session).filter(|pending| pending.address == from) else {
            self.stats.strangers += 1;
            return;
        };
        let Some(body) = open_packet(pending.protection.as_deref_mut(), now, head, bytes, body) else {
            self.stats.forged += 1;
            return;
        };
        let Some(pending) = self.pending.take(head.session) else { return };
        let known = self.find(from);
        if known.is_some() || !self.admits {
            self.uncount(&pending);
        }
        if !self.admits {
            self.stats.stale += 1;
            return;
        }
        let (peer, new) = self.peer(from);
        if new {
            // The grant was counted, unless the peer was known then.
            self.peers[peer as usize].stranger = pending.counted;
            driver.introduce(peer, from);
            self.ask_idle(now);
        }
        if self.peers[peer as usize].is_echo(&pending.init) {
            self.stats.stale += 1;
            return;
        }
        if self.peers[peer as usize].is_open() {
            self.lose(peer, Lost::Reset, driver);
        }
        self.rename(peer, head.session);
        driver.began(peer, began(from, true, pending.suite, &pending.init.params));
        let connection = &mut self.peers[peer as usize];
        connection.begin_server(now, &self.config, head.session, &pending.init, pending.protection);
        self.stats.sessions += 1;
        self.activate(now, peer);
        self.on_frames(now, peer, head, body, driver);
    }

    fn on_init(&mut self, now: Instant, from: SocketAddr, init: &Init, question: &[u8]) {
        if init.epoch == self.identity.epoch {
            return self.on_own_init(now, from, init);
        }
        let known = self.find(from);
        if !self.admits && known.is_none() {
            self.stats.stale += 1;
            return;
        }
        let slot = now.as_nanos() / COOKIE_TIME.as_nanos() as u64;
        let good = [slot, slot.wrapping_sub(1)].map(|slot| self.cookie(from, init, slot));
        if !good.contains(&init.cookie) {
            return self.say_cookie(from, init, good[0]);
        }
        if let Some(pending) = self.pending.granted(from, init.session) {
            let (flags, body) = pending.accept.clone();
            let header = Header { flags, ..Header::new(Kind::Accept, init.session, 0) };
            return self.answer(from, header, &body);
        }
        if known.is_some_and(|peer| !self.peers[peer as usize].hears(now, self.identity.epoch, init)) {
            self.stats.stale += 1;
            return;
        }
        let (suite, responder) = match self.identity.examine(init, &Init::prologue(question)) {
            Examined::Granted(suite, responder) => (suite, responder),
            Examined::Bare => return self.say_cookie(from, init, good[0]),
            Examined::Refused(refusal) => return self.refuse(from, init, refusal),
        };
        match self.place_of(init.server) {
            AddressScope::Here => {}
            AddressScope::Unknown => return,
            AddressScope::Elsewhere => return self.refuse(from, init, Refusal::Address),
        }
        while let Some(expired) = self.pending.expire(now) {
            self.uncount(&expired);
        }
        let counted = known.is_none() && self.admits;
        if counted && !self.has_room_for(from) {
            self.stats.turned_away += 1;
            return;
        }
        let (attempt, current) = known.map_or((self.pasts.attempts(), 0), |peer| {
            let connection = &self.peers[peer as usize];
            (connection.attempts(), connection.current(init.epoch))
        });
        let session = if self.admits { self.fresh_name() } else { 0 };
        let (epoch, params) = (self.identity.epoch, self.config.params);
        let accept = Accept { session, epoch, attempt, current, params, suite, client: from };
        let (accept, protection) = match responder {
            None => {
                let mut body = alloc::vec![0; Accept::LEN];
                accept.write(&mut body);
                ((0, body), None)
            }
            Some(responder) => match self.identity.respond(*responder, &accept) {
                Ok((body, protection)) => ((flag::SEALED, body.to_vec()), protection),
                Err(refusal) => {
                    if counted {
                        self.hosts.leave(self.secret.0, from);
                    }
                    return self.refuse(from, init, refusal);
                }
            },
        };
        let header = Header { flags: accept.0, ..Header::new(Kind::Accept, init.session, 0) };
        self.answer(from, header, &accept.1);
        if session != 0 {
            let time = self.config.patience * 2;
            self.pending.grant(
                now,
                time,
                session,
                Pending { address: from, counted, init: *init, suite, protection, accept },
            );
            if let Some(peer) = known {
                self.peers[peer as usize].give_way(now);
                self.activate(now, peer);
            }
        }
    }

    /// Handles an `Init` with this endpoint's own epoch.
    fn on_own_init(&mut self, now: Instant, from: SocketAddr, init: &Init) {
        // It comes either from this endpoint itself, or from a host at a peer's address that reflects what was sent to
        // the peer. A key does not prevent that ("Selfie", RFC 9257 section 4.1).
        let asked = self.asked(from, init.session).filter(|&peer| !self.peers[peer as usize].is_open());
        match asked.filter(|_| matches!(self.locate(from), AddressScope::Here)) {
            Some(peer) => {
                let protection = self.identity.with_itself();
                self.peers[peer as usize].begin_self(now, &self.config, init.epoch, protection);
                self.stats.sessions += 1;
                self.activate(now, peer);
            }
            None => self.stats.stale += 1,
        }
    }

    /// The location of `address`, which a peer attributes to this endpoint.
    fn place_of(&mut self, address: SocketAddr) -> AddressScope {
        if !self.identity.knows_addresses() || self.own.is_empty() {
            AddressScope::Here
        } else {
            self.locate(address)
        }
    }

    fn locate(&mut self, address: SocketAddr) -> AddressScope {
        if is_own(&self.own, &address) {
            return AddressScope::Here;
        }
        if self.foreign.take() == Some(address) {
            return AddressScope::Elsewhere;
        }
        self.unknown = Some(address);
        AddressScope::Unknown
    }

    /// Asks a client to prove that it receives at its address.
    fn say_cookie(&mut self, from: SocketAddr, init: &Init, cookie: u64) {
        self.stats.retries += 1;
        let retry = Retry { cookie, insists: self.identity.insists() };
        self.answer(from, Header::new(Kind::Retry, init.session, 0), &retry.bytes());
    }

    /// Removes a granted session from the count of strangers, because it has expired or its peer is known by now.
    fn uncount(&mut self, pending: &Pending) {
        if pending.counted {
            self.hosts.leave(self.secret.0, pending.address);
        }
    }

    /// Whether there is room for another stranger. If so, counts it for its host.
    fn has_room_for(&mut self, from: SocketAddr) -> bool {
        let Config { max_peers, max_of_host, .. } = self.config;
        self.peers.len() - self.free.len() < max_peers && self.hosts.enter(self.secret.0, from, max_of_host)
    }

    /// Examines a few strangers for each new one. Those that were silent for long are probed, and forgotten if they are
    /// gone.
    fn ask_idle(&mut self, now: Instant) {
        for _ in 0..CHECKS_PER_NEW_PEER {
            self.hand = if self.hand as usize + 1 < self.peers.len() { self.hand + 1 } else { 0 };
            let (peer, idle) = (self.hand, self.config.idle);
            let connection = &mut self.peers[peer as usize];
            if connection.stranger && connection.ask_if_idle(now, idle) {
                self.activate(now, peer);
            }
        }
    }

    /// Refuses a session to its requester.
    fn refuse(&mut self, from: SocketAddr, init: &Init, refusal: Refusal) {
        self.stats.rejected += 1;
        self.answer(from, Header::new(Kind::Refused, init.session, refusal as u64), &[]);
    }

    /// Handles a packet from a peer's address that says that there will be no session.
    fn on_refusal(&mut self, now: Instant, from: SocketAddr, name: u64, reason: Option<Lost>) {
        match (self.asked(from, name), reason) {
            (Some(peer), Some(reason)) => {
                self.peers[peer as usize].refuse(now, reason);
                self.activate(now, peer);
            }
            _ => self.stats.stale += 1,
        }
    }

    /// Handles a packet from a peer's address that says that the session is over. If packets are sent in the clear, it
    /// is as credible as any other packet of the peer. Otherwise the peer is asked.
    fn doubt<D: Driver>(&mut self, now: Instant, peer: u32, reason: Lost, driver: &mut D) {
        if !self.peers[peer as usize].is_sealed() {
            return self.lose(peer, reason, driver);
        }
        if self.peers[peer as usize].doubt(now) {
            let name = self.fresh_name();
            self.peers[peer as usize].check(now, name);
        }
        self.activate(now, peer);
    }

    /// The peer at `from`, if this end requested a session of this name from it.
    fn asked(&self, from: SocketAddr, name: u64) -> Option<u32> {
        let peer = self.find(from)?;
        let question = self.peers[peer as usize].question.as_ref()?;
        (question.name == name).then_some(peer)
    }

    fn on_accept<D: Driver>(
        &mut self,
        now: Instant,
        from: SocketAddr,
        head: &Header,
        body: &[u8],
        driver: &mut D,
    ) {
        let Some(peer) = self.asked(from, head.session) else {
            self.stats.stale += 1;
            return;
        };
        let connection = &mut self.peers[peer as usize];
        let Some(question) = connection.question.as_deref() else { return };
        let taken = if head.flags & flag::SEALED != 0 {
            question.initiator().and_then(|initiator| self.identity.finish(initiator, body).ok())
        } else {
            let plain = |accept: &Accept| accept.suite == suites::CLEAR && !self.identity.insists();
            Accept::parse(body).ok().filter(plain).map(|accept| (accept, None))
        };
        let Some((accept, protection)) = taken else {
            self.stats.forged += 1; // the authentic answer may still arrive
            return;
        };
        if question.is_check {
            connection.question = None;
            if accept.current != connection.local || !connection.is_with(accept.epoch, connection.local) {
                self.lose(peer, Lost::Reset, driver);
            }
            return;
        }
        if accept.session == 0 {
            self.stats.stale += 1;
            return;
        }
        match self.place_of(accept.client) {
            AddressScope::Here => {}
            AddressScope::Unknown => return, // the peer repeats its question, which is answered then
            AddressScope::Elsewhere => return self.lose(peer, Lost::Address, driver),
        }
        driver.began(peer, began(from, false, accept.suite, &accept.params));
        let connection = &mut self.peers[peer as usize];
        connection.begin_client(now, &self.config, &accept, protection);
        self.stats.sessions += 1;
        self.activate(now, peer);
    }
}
