//! TLS on one connection. The driver passes in what the peer has sent, and sends what the session has sealed.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ofi_api::Errno;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, InsufficientSizeError, UnbufferedStatus,
};
use rustls::{AlertDescription, ClientConfig, ServerConfig};

use super::established::{Established, KEY_UPDATE_RECORD, Problem};
use super::record::DATA;
use crate::mismatch::{self, Mismatch};
use crate::sys;

/// Bytes that are read at once before the connection is established.
const FEW: usize = 4 << 10;
/// The capacity that a buffer of a connection may keep.
const KEPT: usize = 4 << 10;

enum Side {
    Connecting(Box<UnbufferedClientConnection>),
    Accepting(Box<UnbufferedServerConnection>),
    Established(Box<Established>),
    /// What was agreed on could not be used.
    Failed,
}

/// One connection's TLS.
pub struct Session {
    side: Side,
    /// The beginning of a record of the peer, or what the handshake needs again.
    part: Vec<u8>,
    /// What is to be sent as soon as the handshake permits it.
    queued: Vec<u8>,
    /// Records for the peer, from byte `left` on.
    sealed: Vec<u8>,
    left: usize,
    /// Bytes that the kernel has taken.
    sent: u64,
    /// The peer has sent something, and something that was sealed.
    has_begun: bool,
    has_sent_data: bool,
    mismatch: Option<Mismatch>,
}

/// What rustls wants next.
enum Next {
    /// To be asked again.
    Again,
    /// Bytes of the peer.
    Bytes,
    /// Nothing: the handshake has ended.
    Nothing,
}

impl Session {
    pub(super) fn connecting(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
        occasion: Vec<u8>,
    ) -> Result<Box<Self>, Errno> {
        let side = UnbufferedClientConnection::new_with_alpn(config, name, vec![occasion]);
        let mut session = Self::new(Side::Connecting(Box::new(side.map_err(|_| Errno::EIO)?)));
        session.take(&mut [], |_| Ok(()))?; // the first message
        Ok(session)
    }

    pub(super) fn accepting(mut config: ServerConfig, occasion: Vec<u8>) -> Result<Box<Self>, Errno> {
        config.alpn_protocols = vec![occasion];
        let side = UnbufferedServerConnection::new(Arc::new(config));
        Ok(Self::new(Side::Accepting(Box::new(side.map_err(|_| Errno::EIO)?))))
    }

    fn new(side: Side) -> Box<Self> {
        Box::new(Self {
            side,
            part: Vec::new(),
            queued: Vec::new(),
            sealed: Vec::new(),
            left: 0,
            sent: 0,
            has_begun: false,
            has_sent_data: false,
            mismatch: None,
        })
    }

    /// Why the peer is refused, or refuses this end.
    pub fn mismatch(&self) -> Option<&Mismatch> {
        self.mismatch.as_ref()
    }

    /// Whether the peer has sent nothing.
    pub fn is_unanswered(&self) -> bool {
        !self.has_begun
    }

    /// The number of bytes that the kernel has taken.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether records wait to be sent.
    pub fn has_sealed(&self) -> bool {
        self.left < self.sealed.len() || self.owes_change()
    }

    /// Whether the peer has asked for a change of this end's key. It gets one for all that it has asked for meanwhile.
    fn owes_change(&self) -> bool {
        let owes = matches!(&self.side, Side::Established(established) if established.owes_change());
        owes && self.mismatch.is_none()
    }

    /// The beginning of a record, which precedes the peer's next bytes. A driver that [opens](Session::open) them takes
    /// it out.
    pub fn part(&mut self) -> &mut Vec<u8> {
        &mut self.part
    }

    /// Keeps the beginning of a record for the next call.
    pub fn keep(&mut self, part: &[u8]) {
        self.part.clear();
        self.part.extend_from_slice(part);
        if part.is_empty() {
            self.part.shrink_to(KEPT);
        }
    }

    /// Sends what is sealed, as much as the kernel takes.
    ///
    /// # Errors
    /// The error number of send(2), other than for want of room.
    pub fn push(&mut self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        while self.has_sealed() {
            if self.left == self.sealed.len() {
                (self.left, self.sealed) = (0, self.change_key()?);
            }
            match sys::send(socket, &self.sealed[self.left..]) {
                Ok(len) => (self.left, self.sent) = (self.left + len, self.sent + len as u64),
                Err(errno) if sys::is_full(errno) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
        self.left = 0;
        self.sealed.clear();
        self.sealed.shrink_to(KEPT);
        Ok(())
    }

    /// The record that changes this end's key.
    fn change_key(&mut self) -> Result<Vec<u8>, Errno> {
        let mut record = vec![0; KEY_UPDATE_RECORD];
        let len = self.renew(&mut record)?;
        record.truncate(len);
        Ok(record)
    }

    /// See [`Established::renew`].
    pub(super) fn renew(&mut self, to: &mut [u8]) -> Result<usize, Errno> {
        let renewed = self.established()?.renew(to);
        renewed.map_err(|error| self.refuse(Mismatch::Broken(error.to_string())))
    }

    /// What seals data.
    ///
    /// # Errors
    /// The error of a [`Session::mismatch`]; `EIO` before the handshake has ended.
    pub fn established(&mut self) -> Result<&mut Established, Errno> {
        match (&self.mismatch, &mut self.side) {
            (Some(mismatch), _) => Err(mismatch.errno()),
            (None, Side::Established(established)) => Ok(established),
            (None, _) => Err(Errno::EIO),
        }
    }

    /// Sends records. What the kernel does not take is kept. Returns whether it has taken everything.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>, records: &[u8]) -> Result<bool, Errno> {
        let mut at = 0;
        while at < records.len() {
            match sys::send(socket, &records[at..]) {
                Ok(len) => (at, self.sent) = (at + len, self.sent + len as u64),
                Err(errno) if sys::is_full(errno) => {
                    self.sealed.extend_from_slice(&records[at..]);
                    return Ok(false);
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(true)
    }

    /// Sends a message, at once or when the handshake permits it.
    ///
    /// # Errors
    /// The error number of send(2), and errors of the session.
    pub fn send_message(&mut self, socket: BorrowedFd<'_>, message: &[u8]) -> Result<(), Errno> {
        match &mut self.side {
            Side::Established(established) => established.append(DATA, message, &mut self.sealed),
            _ => self.queued.extend_from_slice(message),
        }
        self.push(socket)
    }

    /// Receives bytes, and appends what they say to `into`. Returns how much; 0: the peer sends no more.
    ///
    /// # Errors
    /// The error number of recv(2); `EAGAIN` if nothing was said; the error of a [`Session::mismatch`].
    pub fn receive_into(
        &mut self,
        socket: BorrowedFd<'_>,
        into: &mut impl for<'a> Extend<&'a u8>,
    ) -> Result<usize, Errno> {
        self.push(socket)?;
        let mut bytes = std::mem::take(&mut self.part);
        let (kept, mut received) = (bytes.len(), 0);
        bytes.resize(kept + FEW, 0);
        let got = sys::receive(socket, &mut bytes[kept..]);
        bytes.truncate(kept + got.unwrap_or(0));
        match got {
            Ok(1..) => {}
            ended => {
                self.part = bytes;
                return ended;
            }
        }
        let taken = self.take(&mut bytes, |plain| {
            into.extend(plain);
            received += plain.len();
            Ok(())
        });
        if self.mismatch == Some(Mismatch::Clear) {
            mismatch::deny(socket);
        }
        let pushed = self.push(socket);
        taken.and(pushed)?;
        match received {
            0 => Err(Errno::EAGAIN),
            _ => Ok(received),
        }
    }

    /// [Opens](Session::open) bytes of the peer, and keeps the rest.
    fn take(&mut self, bytes: &mut [u8], taker: impl FnMut(&[u8]) -> Result<(), Errno>) -> Result<(), Errno> {
        let (used, result) = self.open(bytes, taker);
        self.keep(&bytes[used..]);
        result
    }

    /// Opens bytes of the peer where they lie, behind the [part](Session::part) of a record that came before, and
    /// passes on what they say. Returns how many it has used; the rest is passed again, with more bytes behind it.
    /// Fails with the error of a [`Session::mismatch`], or that of `taker`.
    pub fn open(
        &mut self,
        bytes: &mut [u8],
        mut taker: impl FnMut(&[u8]) -> Result<(), Errno>,
    ) -> (usize, Result<(), Errno>) {
        if let Some(mismatch) = &self.mismatch {
            return (0, Err(mismatch.errno()));
        }
        if !bytes.is_empty() && !std::mem::replace(&mut self.has_begun, true) && !mismatch::begins_tls(bytes)
        {
            return (0, Err(self.refuse(Mismatch::Clear)));
        }
        let mut used = 0;
        let result = loop {
            let rest = &mut bytes[used..];
            let mut pass = |plain: &[u8]| {
                self.has_sent_data = true;
                taker(plain)
            };
            let (len, next) = match &mut self.side {
                Side::Established(established) => {
                    let (len, opened) = established.open(rest, &mut pass);
                    (len, opened.map(|()| Next::Bytes))
                }
                Side::Connecting(side) => {
                    advance(side.process_tls_records(rest), &mut self.sealed, &mut pass)
                }
                Side::Accepting(side) => advance(side.process_tls_records(rest), &mut self.sealed, &mut pass),
                Side::Failed => break Err(Errno::EIO),
            };
            used += len;
            let next = match next {
                Ok(Next::Nothing) => self.establish().map_err(Problem::Tls).map(|()| Next::Again),
                other => other,
            };
            match next {
                Ok(Next::Again | Next::Nothing) => {}
                Ok(Next::Bytes) => break Ok(()),
                Err(Problem::Closed) => break Err(Errno::ECONNRESET),
                Err(Problem::Taker(errno)) => break Err(errno),
                Err(Problem::Record(alert)) => {
                    if let Side::Established(established) = &mut self.side {
                        established.append_alert(alert, &mut self.sealed);
                    }
                    break Err(self.refuse(Mismatch::Broken(format!("{alert:?}"))));
                }
                Err(Problem::Tls(error)) => {
                    let mismatch = self.reason(error);
                    self.seal_alert(&mut bytes[used..]);
                    break Err(self.refuse(mismatch));
                }
            }
        };
        (used, result)
    }

    /// The handshake has ended: what was queued is sealed.
    fn establish(&mut self) -> Result<(), rustls::Error> {
        let mut established = match std::mem::replace(&mut self.side, Side::Failed) {
            Side::Connecting(side) => Box::new(Established::connecting(*side)?),
            Side::Accepting(side) => Box::new(Established::accepting(*side)?),
            Side::Established(established) => established,
            Side::Failed => return Err(rustls::Error::HandshakeNotComplete),
        };
        established.append(DATA, &std::mem::take(&mut self.queued), &mut self.sealed);
        self.side = Side::Established(established);
        Ok(())
    }

    /// What is to be sent, which is not kept.
    pub fn take_sealed(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.sealed)
    }

    #[cfg(test)]
    pub(super) fn sealed(&mut self) -> Vec<u8> {
        let mut sealed = self.take_sealed();
        if self.owes_change() {
            sealed.extend(self.change_key().unwrap());
        }
        sealed
    }

    #[cfg(test)]
    pub(super) fn queue(&mut self, message: &[u8]) {
        self.queued.extend_from_slice(message);
    }

    fn refuse(&mut self, mismatch: Mismatch) -> Errno {
        let errno = mismatch.errno();
        self.mismatch.get_or_insert(mismatch);
        errno
    }

    /// What an error of TLS says of the peer.
    fn reason(&self, error: rustls::Error) -> Mismatch {
        use rustls::Error::{
            AlertReceived, InvalidCertificate, NoApplicationProtocol, NoCertificatesPresented,
            PeerIncompatible,
        };
        match error {
            NoApplicationProtocol | AlertReceived(AlertDescription::NoApplicationProtocol) => {
                Mismatch::Address
            }
            InvalidCertificate(_) | NoCertificatesPresented | PeerIncompatible(_) => {
                Mismatch::Key(error.to_string())
            }
            // The peer that refuses this end does so before it says anything.
            AlertReceived(alert) if !self.has_sent_data && is_refusal(alert) => {
                Mismatch::Key(format!("it refuses this end's ({alert:?})"))
            }
            error => Mismatch::Broken(error.to_string()),
        }
    }

    /// Seals what rustls has for the peer after an error at the front of `bytes`: an alert is its end. When it has
    /// nothing to say it looks at the bytes again, and may say no second alert: if there are any, it is asked once.
    fn seal_alert(&mut self, bytes: &mut [u8]) {
        let sealed = &mut self.sealed;
        let mut pass = |_: &[u8]| Ok(());
        loop {
            let (_, next) = match &mut self.side {
                Side::Connecting(side) => advance(side.process_tls_records(bytes), sealed, &mut pass),
                Side::Accepting(side) => advance(side.process_tls_records(bytes), sealed, &mut pass),
                Side::Established(_) | Side::Failed => return,
            };
            if !bytes.is_empty() || !matches!(next, Ok(Next::Again)) {
                return;
            }
        }
    }
}

/// Whether a peer that sends this alert does not accept this end's key or certificate.
fn is_refusal(alert: AlertDescription) -> bool {
    use AlertDescription as Alert;
    matches!(
        alert,
        Alert::HandshakeFailure
            | Alert::NoCertificate
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::DecryptError
            | Alert::CertificateRequired
    )
}

/// Does what rustls wants. Returns how many bytes of the peer are used up.
fn advance<D>(
    status: UnbufferedStatus<'_, '_, D>,
    sealed: &mut Vec<u8>,
    pass: &mut impl FnMut(&[u8]) -> Result<(), Errno>,
) -> (usize, Result<Next, Problem>) {
    let mut used = status.discard;
    let next = match status.state {
        Ok(ConnectionState::ReadTraffic(mut records)) => loop {
            match records.next_record() {
                Some(Ok(record)) => {
                    used += record.discard;
                    if let Err(errno) = pass(record.payload) {
                        break Err(Problem::Taker(errno));
                    }
                }
                Some(Err(error)) => break Err(Problem::Tls(error)),
                None => break Ok(Next::Again),
            }
        },
        Ok(ConnectionState::EncodeTlsData(mut record)) => {
            let at = sealed.len();
            sealed.resize(at + longer(&mut record), 0);
            record.encode(&mut sealed[at..]).map(|_| Next::Again).map_err(|error| broken(&error))
        }
        Ok(ConnectionState::TransmitTlsData(sent)) => {
            sent.done(); // the driver sends it
            Ok(Next::Again)
        }
        Ok(ConnectionState::WriteTraffic(_)) => Ok(Next::Nothing),
        Ok(ConnectionState::BlockedHandshake) => Ok(Next::Bytes),
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Err(Problem::Closed),
        Ok(_) => Err(broken(&"a state of TLS that was not asked for")),
        Err(error) => Err(Problem::Tls(error)),
    };
    (used, next)
}

fn broken(error: &dyn std::fmt::Display) -> Problem {
    Problem::Tls(rustls::Error::General(error.to_string()))
}

/// The bytes of a record of the handshake.
fn longer<D>(record: &mut EncodeTlsData<'_, D>) -> usize {
    match record.encode(&mut []) {
        Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => required_size,
        _ => 0,
    }
}
