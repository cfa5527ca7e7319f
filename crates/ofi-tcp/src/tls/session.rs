//! TLS on one connection. The driver passes in what the peer has sent, and sends what the session has sealed.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ofi_api::Errno;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, InsufficientSizeError, UnbufferedStatus,
    WriteTraffic,
};
use rustls::{AlertDescription, ClientConfig, ServerConfig};

use crate::mismatch::{self, Mismatch};
use crate::sys;

/// Bytes that are read at once before the connection is established.
const FEW: usize = 4 << 10;
/// The capacity that a buffer of a connection may keep.
const KEPT: usize = 4 << 10;

pub(super) enum Side {
    Connecting(UnbufferedClientConnection),
    Accepting(UnbufferedServerConnection),
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
    /// Nothing: the peer has ended the connection.
    Nothing,
}

/// Why bytes are not taken.
enum Problem {
    Tls(rustls::Error),
    /// The error of their taker.
    Taker(Errno),
}

impl Session {
    pub(super) fn connecting(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
        occasion: Vec<u8>,
    ) -> Result<Box<Self>, Errno> {
        let side = UnbufferedClientConnection::new_with_alpn(config, name, vec![occasion]);
        let mut session = Self::new(Side::Connecting(side.map_err(|_| Errno::EIO)?));
        session.take(&mut [], |_| Ok(()))?; // the first message
        Ok(session)
    }

    pub(super) fn accepting(mut config: ServerConfig, occasion: Vec<u8>) -> Result<Box<Self>, Errno> {
        config.alpn_protocols = vec![occasion];
        let side = UnbufferedServerConnection::new(Arc::new(config));
        Ok(Self::new(Side::Accepting(side.map_err(|_| Errno::EIO)?)))
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
        self.left < self.sealed.len()
    }

    /// What precedes the peer's next bytes when they are [taken](Session::take). The driver puts it there, and clears
    /// it.
    pub fn part(&mut self) -> &mut Vec<u8> {
        &mut self.part
    }

    /// Sends what is sealed, as much as the kernel takes.
    ///
    /// # Errors
    /// The error number of send(2), other than for want of room.
    pub fn push(&mut self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        while self.has_sealed() {
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
        self.queued.extend_from_slice(message);
        let mut part = std::mem::take(&mut self.part);
        let taken = self.take(&mut part, |_| Ok(()));
        self.push(socket)?;
        taken
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

    /// Takes bytes of the peer, behind the [part](Session::part) of a record that came before, and passes on what they
    /// say.
    ///
    /// # Errors
    /// The error of a [`Session::mismatch`], or that of `taker`.
    pub fn take(
        &mut self,
        bytes: &mut [u8],
        mut taker: impl FnMut(&[u8]) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        if let Some(mismatch) = &self.mismatch {
            return Err(mismatch.errno());
        }
        if !bytes.is_empty() && !std::mem::replace(&mut self.has_begun, true) && !mismatch::begins_tls(bytes)
        {
            return Err(self.refuse(Mismatch::Clear));
        }
        let mut used = 0;
        let result = loop {
            let rest = &mut bytes[used..];
            let mut pass = |plain: &[u8]| {
                self.has_sent_data = true;
                taker(plain)
            };
            let (sealed, queued) = (&mut self.sealed, &mut self.queued);
            let (len, next) = match &mut self.side {
                Side::Connecting(side) => advance(side.process_tls_records(rest), sealed, queued, &mut pass),
                Side::Accepting(side) => advance(side.process_tls_records(rest), sealed, queued, &mut pass),
            };
            used += len;
            match next {
                Ok(Next::Again) => {}
                Ok(Next::Bytes) => break Ok(()),
                Ok(Next::Nothing) => break Err(Errno::ECONNRESET),
                Err(Problem::Taker(errno)) => break Err(errno),
                Err(Problem::Tls(error)) => {
                    let mismatch = self.reason(error);
                    self.seal_alert(&mut bytes[used..]);
                    break Err(self.refuse(mismatch));
                }
            }
        };
        self.part.clear();
        self.part.extend_from_slice(&bytes[used..]);
        if self.part.is_empty() {
            self.part.shrink_to(KEPT);
        }
        result
    }

    #[cfg(test)]
    pub(super) fn sealed(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.sealed)
    }

    #[cfg(test)]
    pub(super) fn queue(&mut self, message: &[u8]) {
        self.queued.extend_from_slice(message);
    }

    #[cfg(test)]
    pub(super) fn side(&mut self) -> &mut Side {
        &mut self.side
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
        let (sealed, queued) = (&mut self.sealed, &mut Vec::new());
        let mut pass = |_: &[u8]| Ok(());
        loop {
            let (_, next) = match &mut self.side {
                Side::Connecting(side) => advance(side.process_tls_records(bytes), sealed, queued, &mut pass),
                Side::Accepting(side) => advance(side.process_tls_records(bytes), sealed, queued, &mut pass),
            };
            if !bytes.is_empty() || !matches!(next, Ok(Next::Again)) {
                return;
            }
        }
    }

    /// Seals `plain` into `to`. Returns how many bytes there are to send.
    pub(super) fn seal(&mut self, plain: &[u8], to: &mut [u8]) -> Result<usize, Errno> {
        if let Some(mismatch) = &self.mismatch {
            return Err(mismatch.errno());
        }
        let mut at = 0;
        loop {
            let (part, to) = (&mut self.part[..], &mut to[at..]);
            let step = match &mut self.side {
                Side::Connecting(side) => seal_next(side.process_tls_records(part), plain, to),
                Side::Accepting(side) => seal_next(side.process_tls_records(part), plain, to),
            };
            let (used, step) = step;
            self.part.drain(..used);
            let (len, is_done) = step.map_err(|error| self.refuse(Mismatch::Broken(error)))?;
            at += len;
            if is_done {
                return Ok(at);
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
    queued: &mut Vec<u8>,
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
        Ok(ConnectionState::WriteTraffic(mut traffic)) => {
            let plain = std::mem::take(queued);
            seal_behind(&mut traffic, &plain, sealed).map(|()| Next::Bytes)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(Next::Bytes),
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(Next::Nothing),
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

/// Appends `plain`, sealed.
fn seal_behind<D>(
    traffic: &mut WriteTraffic<'_, D>,
    plain: &[u8],
    sealed: &mut Vec<u8>,
) -> Result<(), Problem> {
    let at = sealed.len();
    let mut room = 0;
    loop {
        sealed.resize(at + room, 0);
        match traffic.encrypt(plain, &mut sealed[at..]) {
            Ok(len) => {
                sealed.truncate(at + len);
                return Ok(());
            }
            Err(EncryptError::InsufficientSize(InsufficientSizeError { required_size }))
                if required_size > room =>
            {
                room = required_size;
            }
            Err(error) => return Err(broken(&error)),
        }
    }
}

/// Seals `plain` as soon as rustls has nothing before it. Returns how many bytes of the peer are used up, the length of
/// what there is to send, and whether `plain` is in it.
fn seal_next<D>(
    status: UnbufferedStatus<'_, '_, D>,
    plain: &[u8],
    to: &mut [u8],
) -> (usize, Result<(usize, bool), String>) {
    let step = match status.state {
        Ok(ConnectionState::EncodeTlsData(mut record)) => {
            record.encode(to).map(|len| (len, false)).map_err(|error| error.to_string())
        }
        Ok(ConnectionState::TransmitTlsData(sent)) => {
            sent.done();
            Ok((0, false))
        }
        Ok(ConnectionState::WriteTraffic(mut traffic)) => {
            traffic.encrypt(plain, to).map(|len| (len, true)).map_err(|error| error.to_string())
        }
        Ok(other) => Err(format!("nothing can be sent: {other:?}")),
        Err(error) => Err(error.to_string()),
    };
    (status.discard, step)
}
