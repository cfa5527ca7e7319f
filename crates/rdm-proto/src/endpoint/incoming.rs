//! Datagrams that come in: whose they are, and what begins or ends a session.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use super::{Driver, Endpoint};
use crate::connection::{Answer, Arrival, Config, Lost};
use crate::crypto::Refusal;
use crate::hash;
use crate::time::Instant;
use crate::wire::header::{self, flag};
use crate::wire::{Accept, Header, Init, Kind, Malformed, VERSION};

/// Answers to strangers that wait to be sent.
const ANSWERS: usize = 64;
/// Strangers that are looked at for each new one: more than one, so that those that went become fewer.
const LOOKS: usize = 2;
/// How long a cookie is good for, at least; at most twice that.
const COOKIE_TIME: Duration = Duration::from_secs(8);

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
        if self.answers.len() >= ANSWERS {
            self.stats.unanswered += 1;
            return;
        }
        self.answers.push_back((to, header, body.to_vec()));
    }

    /// Takes a row of datagrams, of `len` bytes each but for the last, which may be shorter: as [`Endpoint::handle`] would one after
    /// the other.
    pub fn handle_row<D: Driver>(
        &mut self,
        now: Instant,
        from: SocketAddr,
        row: &mut [u8],
        len: usize,
        driver: &mut D,
    ) {
        let len = len.clamp(1, row.len().max(1));
        let mut at = 0;
        loop {
            if row.len() - at > len {
                at += self.on_row(now, from, &row[at..], len, driver);
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

    /// Takes datagrams off the front of a row that are plain; answers how many bytes that were.
    fn on_row<D: Driver>(
        &mut self,
        now: Instant,
        from: SocketAddr,
        row: &[u8],
        len: usize,
        driver: &mut D,
    ) -> usize {
        // Others are for `handle` alone, at no more cost than this.
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
        let taken = match connection.on_row(now, &self.config, peer, (row, len), driver) {
            Ok(0) => return 0,
            Ok(taken) => taken,
            Err(reason) => {
                self.lose(peer, reason, driver);
                return 0; // which finds that there is no such session
            }
        };
        self.took(now, peer);
        taken
    }

    /// Takes note of what a peer's packets have left to do.
    fn took(&mut self, now: Instant, peer: u32) {
        let connection = &mut self.peers[peer as usize];
        if connection.owes() && !core::mem::replace(&mut connection.owed, true) {
            self.owed.push(peer);
        }
        if connection.is_stopped() && !self.stopped.contains(&peer) {
            self.stopped.push(peer);
        }
        self.activate(now, peer);
    }

    /// Takes a datagram. Its bytes are changed where they are encrypted.
    pub fn handle<D: Driver>(&mut self, now: Instant, from: SocketAddr, datagram: &mut [u8], driver: &mut D) {
        let (head, body) = match Header::parse(datagram) {
            Ok((head, _)) if head.kind == Kind::Data => {
                let Some((bytes, body)) = datagram.split_first_chunk_mut() else { return };
                return self.on_data(now, from, &head, bytes, body, driver);
            }
            Ok(parsed) => parsed,
            Err(Malformed::Version(_)) => {
                self.stats.versions += 1;
                // What an `Init` of any version has in common: its kind, its length, and where its session's name lies.
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
                Ok(init) => self.on_init(now, from, &init, body, driver),
                Err(_) => self.stats.malformed += 1,
            },
            Kind::Accept => match Accept::parse(body) {
                Ok(accept) => self.on_accept(now, from, head.session, &accept, body),
                Err(_) => self.stats.malformed += 1,
            },
            Kind::Retry => match body.first_chunk::<8>() {
                Some(cookie) => {
                    if let Some(peer) = self.asked(from, head.session) {
                        self.peers[peer as usize].retry(now, u64::from_be_bytes(*cookie));
                        self.activate(now, peer);
                    }
                }
                None => self.stats.malformed += 1,
            },
            // Who speaks this version would have understood: the question was damaged on the way, and is asked again.
            Kind::Versions if body.contains(&VERSION) => self.stats.stale += 1,
            Kind::Versions => {
                if let Some(peer) = self.asked(from, head.session) {
                    self.lose(peer, Lost::Version, driver);
                }
            }
            Kind::Refused => match (self.asked(from, head.session), head.number) {
                (Some(peer), number) if number == Refusal::Key as u64 => self.lose(peer, Lost::Key, driver),
                (Some(peer), number) if number == Refusal::Suites as u64 => {
                    self.lose(peer, Lost::Suites, driver)
                }
                _ => self.stats.stale += 1,
            },
            Kind::Wait => match self.asked(from, head.session) {
                Some(peer) => self.peers[peer as usize].on_wait(now),
                None => self.stats.stale += 1,
            },
            Kind::Reset => {
                let known = self.find(from);
                match known.filter(|&peer| self.peers[peer as usize].remote() == Some(head.session)) {
                    // What has come of it is still to be taken.
                    Some(peer) if self.peers[peer as usize].closed => {}
                    Some(peer) => self.lose(peer, Lost::Reset, driver),
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
                    Some(peer) => self.lose(peer, Lost::Closed, driver),
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
            self.stats.strangers += 1;
            if known.is_none() && !body.is_empty() {
                self.answer(from, Header::new(Kind::Reset, head.session, 0), &[]);
            }
            return;
        };
        let connection = &mut self.peers[peer as usize];
        if !connection.is_open() {
            return; // the answer that opens it is late: this comes again
        }
        let Some(body) = connection.open_packet(head, bytes, body) else {
            self.stats.forged += 1;
            return;
        };
        if connection.is_checked(&self.config) && head.flags & flag::CHECKED == 0 {
            self.stats.malformed += 1;
            return;
        }
        match connection.on_data(now, &self.config, peer, head, body, driver) {
            Ok(Arrival::Malformed) => self.stats.malformed += 1,
            Ok(Arrival::Crowded) => self.stats.crowded += 1,
            Ok(_) => {}
            // What the peer sent before it closed is still to be taken.
            Err(Lost::Closed) if connection.is_stopped() => connection.closed = true,
            Err(reason) => return self.lose(peer, reason, driver),
        }
        self.took(now, peer);
    }

    fn on_init<D: Driver>(
        &mut self,
        now: Instant,
        from: SocketAddr,
        init: &Init,
        question: &[u8],
        driver: &mut D,
    ) {
        if init.epoch == self.identity.epoch {
            // From this endpoint itself; or somebody at a peer's address sends back what was sent to the peer, which a key does not
            // prevent ("Selfie", RFC 9257 section 4.1).
            match self.asked(from, init.session).filter(|_| self.own.contains(&from)) {
                Some(peer) => {
                    let protection = self.identity.with_itself(init.session);
                    let connection = &mut self.peers[peer as usize];
                    connection.begin_self(now, &self.config, init.epoch, protection);
                    self.stats.sessions += 1;
                    self.activate(now, peer);
                }
                None => self.stats.stale += 1,
            }
            return;
        }
        if !self.admits && self.find(from).is_none() {
            self.stats.stale += 1;
            return;
        }
        let slot = now.as_nanos() / COOKIE_TIME.as_nanos() as u64;
        let good = [slot, slot.wrapping_sub(1)].map(|slot| self.cookie(from, init, slot));
        if !good.contains(&init.cookie) {
            self.stats.retries += 1;
            self.answer(from, Header::new(Kind::Retry, init.session, 0), &good[0].to_be_bytes());
            return;
        }
        let suite = match self.identity.choose(init, question) {
            Ok(suite) => suite,
            Err(refusal) => return self.refuse(from, init, refusal),
        };
        if self.find(from).is_none() && !self.has_room_for(from) {
            self.stats.turned_away += 1;
            return;
        }
        let (peer, new) = self.peer(from);
        if new {
            self.peers[peer as usize].stranger = true;
            driver.introduce(peer, from);
            self.ask_idle(now);
        }
        let accept = match self.peers[peer as usize].on_init(self.identity.epoch, init) {
            Answer::Nothing => {
                self.stats.stale += 1;
                return;
            }
            Answer::Again => self.peers[peer as usize].accept(&self.identity, self.config.params),
            Answer::Begin { .. } if !self.admits => {
                self.stats.stale += 1;
                return;
            }
            Answer::Begin { ended } => {
                if ended {
                    self.lose(peer, Lost::Reset, driver);
                }
                let name = self.fresh_name();
                self.rename(peer, name);
                let question = (init, question, suite);
                let connection = &mut self.peers[peer as usize];
                match connection.begin_server(now, &self.config, &self.identity, name, question) {
                    Ok(accept) => {
                        self.stats.sessions += 1;
                        self.activate(now, peer);
                        accept
                    }
                    Err(refusal) => {
                        self.lose(peer, Lost::Key, driver);
                        return self.refuse(from, init, refusal);
                    }
                }
            }
        };
        let mut body = [0u8; Accept::LEN];
        accept.write(&mut body);
        self.answer(from, Header::new(Kind::Accept, init.session, 0), &body);
    }

    /// Whether one more stranger may be remembered. It counts among those of its host from now on.
    fn has_room_for(&mut self, from: SocketAddr) -> bool {
        let Config { max_peers, max_of_host, .. } = self.config;
        self.peers.len() - self.free.len() < max_peers && self.hosts.enter(self.secret.0, from, max_of_host)
    }

    /// For each stranger that comes some others are looked at: those of which nothing has come for long are asked whether they are
    /// there, and forgotten if they are not.
    fn ask_idle(&mut self, now: Instant) {
        for _ in 0..LOOKS {
            self.hand = if self.hand as usize + 1 < self.peers.len() { self.hand + 1 } else { 0 };
            let (peer, idle) = (self.hand, self.config.idle);
            let connection = &mut self.peers[peer as usize];
            if connection.stranger && connection.ask_if_idle(now, idle) {
                self.activate(now, peer);
            }
        }
    }

    /// Tells who asked for a session that there is none to be had.
    fn refuse(&mut self, from: SocketAddr, init: &Init, refusal: Refusal) {
        self.stats.rejected += 1;
        self.answer(from, Header::new(Kind::Refused, init.session, refusal as u64), &[]);
    }

    /// The peer at `from` whom this end has asked for a session of this name.
    fn asked(&self, from: SocketAddr, name: u64) -> Option<u32> {
        let peer = self.book.named(&self.peers, name)?;
        let connection = &self.peers[peer as usize];
        (connection.is_connecting() && connection.address == from).then_some(peer)
    }

    fn on_accept(&mut self, now: Instant, from: SocketAddr, name: u64, accept: &Accept, answer: &[u8]) {
        let Some(peer) = self.asked(from, name) else {
            self.stats.stale += 1;
            return;
        };
        let connection = &mut self.peers[peer as usize];
        let mut question = [0u8; Init::LEN];
        connection.question(&self.identity, self.config.params, 0).write(&mut question);
        let Ok(protection) = self.identity.check(&question, accept, answer) else {
            self.stats.forged += 1; // the true one may come yet
            return;
        };
        connection.begin_client(now, &self.config, accept, protection);
        self.stats.sessions += 1;
        self.activate(now, peer);
    }
}
