//! A connection after its handshake. rustls copies what it seals and opens; here records are sealed and opened in
//! place, with the secrets that its handshake has agreed on, and it derives new ones when a key is changed.

use ofi_api::Errno;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::{AlertDescription, ConnectionTrafficSecrets, Error, ExtractedSecrets};

use super::record::{self, ALERT, DATA, Direction, HANDSHAKE, HEADER, MAX_PLAIN, OVERHEAD};

/// A change of keys (RFC 8446, section 4.6.3); the last byte asks the peer for one too.
const KEY_UPDATE: [u8; 4] = [24, 0, 0, 1];
/// The length of its record.
pub const KEY_UPDATE_RECORD: usize = KEY_UPDATE.len() + 1 + OVERHEAD;
/// Changes of keys that a peer may make without saying anything between them.
const MAX_IDLE_CHANGES: u8 = 32;
/// The level of an alert that ends the connection.
const FATAL: u8 = 2;

/// Why bytes of a peer are not taken.
pub enum Problem {
    Tls(Error),
    /// The peer's record breaks the protocol, which this alert tells it.
    Record(AlertDescription),
    /// The peer has ended the connection.
    Closed,
    /// The error of their taker.
    Taker(Errno),
}

/// What derives the secrets of the next keys.
enum Schedule {
    Connecting(KernelConnection<ClientConnectionData>),
    Accepting(KernelConnection<ServerConnectionData>),
}

/// Seals and opens records.
pub struct Established {
    schedule: Schedule,
    tx: Direction,
    rx: Direction,
    /// Changes of the peer's keys since it has said something.
    idle_changes: u8,
    /// The peer has asked for a change of this end's key.
    owes_change: bool,
}

impl Established {
    pub fn connecting(side: UnbufferedClientConnection) -> Result<Self, Error> {
        let (secrets, schedule) = side.dangerous_into_kernel_connection()?;
        Self::new(Schedule::Connecting(schedule), secrets)
    }

    pub fn accepting(side: UnbufferedServerConnection) -> Result<Self, Error> {
        let (secrets, schedule) = side.dangerous_into_kernel_connection()?;
        Self::new(Schedule::Accepting(schedule), secrets)
    }

    fn new(schedule: Schedule, secrets: ExtractedSecrets) -> Result<Self, Error> {
        let (tx, rx) = (direction(secrets.tx)?, direction(secrets.rx)?);
        Ok(Self { schedule, tx, rx, idle_changes: 0, owes_change: false })
    }

    /// Whether the peer waits for a change of this end's key.
    pub fn owes_change(&self) -> bool {
        self.owes_change
    }

    /// Seals a record of data whose `len` bytes are [`HEADER`] behind the beginning of `record`. Returns its length.
    pub fn seal(&mut self, record: &mut [u8], len: usize) -> usize {
        self.tx.seal(DATA, record, len)
    }

    /// Appends records.
    pub fn append(&mut self, kind: u8, plain: &[u8], to: &mut Vec<u8>) {
        for part in plain.chunks(MAX_PLAIN) {
            let at = to.len();
            to.resize(at + HEADER, 0);
            to.extend_from_slice(part);
            to.resize(at + part.len() + OVERHEAD, 0);
            self.tx.seal(kind, &mut to[at..], part.len());
        }
    }

    /// Appends the alert that ends the connection.
    pub fn append_alert(&mut self, alert: AlertDescription, to: &mut Vec<u8>) {
        self.append(ALERT, &[FATAL, alert.into()], to);
    }

    /// Changes the key at the front of `to`, if it is worn or if the peer waits for that. Returns the length of the
    /// record that says so. `to` has room for [`KEY_UPDATE_RECORD`] bytes.
    ///
    /// # Errors
    /// None that is known.
    pub fn renew(&mut self, to: &mut [u8]) -> Result<usize, Error> {
        if !self.tx.is_worn() && !self.owes_change {
            return Ok(0);
        }
        self.owes_change = false;
        self.change_key(to, false)
    }

    /// Changes the key.
    pub(super) fn change_key(&mut self, to: &mut [u8], asks: bool) -> Result<usize, Error> {
        let message = [&KEY_UPDATE[..], &[u8::from(asks)]].concat();
        to[HEADER..][..message.len()].copy_from_slice(&message);
        let len = self.tx.seal(HANDSHAKE, to, message.len());
        self.tx = direction(match &mut self.schedule {
            Schedule::Connecting(schedule) => schedule.update_tx_secret()?,
            Schedule::Accepting(schedule) => schedule.update_tx_secret()?,
        })?;
        Ok(len)
    }

    /// A record of any kind and length, as a hostile peer sends it.
    pub fn seal_as(&mut self, kind: u8, plain: &[u8]) -> Vec<u8> {
        let mut record = vec![0; plain.len() + OVERHEAD];
        record[HEADER..][..plain.len()].copy_from_slice(plain);
        self.tx.seal(kind, &mut record, plain.len());
        record
    }

    /// The next record is the last but one of its key, in both directions.
    #[cfg(test)]
    pub fn wear(&mut self) {
        self.tx.wear();
        self.rx.wear();
    }

    /// Opens the whole records at the front of `bytes`, and passes on their data. Returns how many bytes they are.
    pub fn open(
        &mut self,
        bytes: &mut [u8],
        pass: &mut impl FnMut(&[u8]) -> Result<(), Errno>,
    ) -> (usize, Result<(), Problem>) {
        let mut used = 0;
        loop {
            let len = match record::length(&bytes[used..]) {
                Ok(Some(len)) if len <= bytes.len() - used => len,
                Ok(_) => return (used, Ok(())),
                Err(alert) => return (used, Err(Problem::Record(alert))),
            };
            let record = &mut bytes[used..][..len];
            used += len;
            let done = match self.rx.open(record) {
                Ok((DATA, plain)) => {
                    self.idle_changes = if plain.is_empty() { self.idle_changes } else { 0 };
                    pass(plain).map_err(Problem::Taker)
                }
                Ok((HANDSHAKE, plain)) => self.handle_handshake(plain),
                Ok((ALERT, plain)) => Err(of_alert(plain)),
                Ok(_) => Err(Problem::Record(AlertDescription::UnexpectedMessage)),
                Err(alert) => Err(Problem::Record(alert)),
            };
            if done.is_err() {
                return (used, done);
            }
        }
    }

    /// The peer changes its key: the only message after a handshake without tickets.
    fn handle_handshake(&mut self, plain: &[u8]) -> Result<(), Problem> {
        let asks = match plain.strip_prefix(&KEY_UPDATE) {
            Some([asks @ (0 | 1)]) => *asks == 1,
            _ => return Err(Problem::Record(AlertDescription::UnexpectedMessage)),
        };
        if self.idle_changes == MAX_IDLE_CHANGES {
            return Err(Problem::Record(AlertDescription::UnexpectedMessage));
        }
        self.idle_changes += 1;
        self.owes_change |= asks;
        let secrets = match &mut self.schedule {
            Schedule::Connecting(schedule) => schedule.update_rx_secret(),
            Schedule::Accepting(schedule) => schedule.update_rx_secret(),
        };
        self.rx = secrets.and_then(direction).map_err(Problem::Tls)?;
        Ok(())
    }
}

fn direction(secrets: (u64, ConnectionTrafficSecrets)) -> Result<Direction, Error> {
    Direction::new(secrets).ok_or_else(|| Error::General("another cipher than AES-256-GCM".into()))
}

/// What an alert of the peer says.
fn of_alert(plain: &[u8]) -> Problem {
    match *plain {
        [_, 0] => Problem::Closed,
        [_, alert] => Problem::Tls(Error::AlertReceived(AlertDescription::from(alert))),
        _ => Problem::Record(AlertDescription::DecodeError),
    }
}
