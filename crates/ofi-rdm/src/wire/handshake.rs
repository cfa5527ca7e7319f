//! The packets that begin a session: `Init`, `Retry` with a cookie, `Init` with the cookie, `Accept`.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::{Malformed, Reader, Writer, suites};

/// The minimum length of an `Init`. It proves that the path carries packets of this size, and keeps answers shorter
/// than questions.
pub const INIT_LEN: usize = 1200;
/// Bytes of the first Noise message at the end of a question.
pub const FIRST_LEN: usize = 48;

/// The parameters that an end announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Bytes of each stream that may be sent ahead of the bytes taken.
    pub window: u64,
    /// Bytes that may be in flight, as they count in the end's socket buffer: a packet counts
    /// [`crate::wire::handshake::PACKET_COST`] more than its length.
    pub in_flight: u64,
    /// The maximum length of a datagram that the end accepts, in bytes.
    pub max_packet: u32,
    /// The UDP port at which the end's process answers liveness questions; 0 for none.
    pub liveness_port: u16,
    /// [`param`].
    pub flags: u16,
}

/// The approximate bytes that the kernel charges a socket buffer for a packet beyond its length (Linux: 768 bytes for a
/// packet of 64, 2,304 for one of 1,400).
pub const PACKET_COST: u64 = 1000;

/// The smallest window: half of it holds the longest record.
pub const LEAST_WINDOW: u64 = 65_536;

/// Flags of [`Params`].
pub mod param {
    /// All packets of the session carry a checksum.
    pub const CHECKED: u16 = 1;
}

impl Params {
    const LEN: usize = 24;

    fn write(&self, to: &mut Writer<'_>) {
        to.u64(self.window).u64(self.in_flight).u32(self.max_packet).u16(self.liveness_port).u16(self.flags);
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let params = Self {
            window: from.u64()?,
            in_flight: from.u64()?,
            max_packet: from.u32()?,
            liveness_port: from.u16()?,
            flags: from.u16()?,
        };
        if (params.max_packet as usize) < INIT_LEN {
            return Err(Malformed::Field("max_packet"));
        }
        if params.window < LEAST_WINDOW || params.window > 1 << 40 {
            return Err(Malformed::Field("window"));
        }
        if params.flags & !param::CHECKED != 0 {
            return Err(Malformed::Field("params.flags"));
        }
        Ok(params)
    }
}

/// Bytes of an address: IPv6 or IPv4-mapped address, port, zeros.
const ADDRESS_LEN: usize = 24;

impl Reader<'_> {
    /// A set of suites, followed by zeros reserved for later versions.
    fn suites(&mut self) -> Result<u8, Malformed> {
        let suites = self.u8()?;
        self.bytes(7).map(|_| suites)
    }

    fn address(&mut self) -> Result<SocketAddr, Malformed> {
        let (ip, port) = (Ipv6Addr::from_octets(self.array()?), self.u16()?);
        self.bytes(6).map(|_| SocketAddr::new(ip.to_canonical(), port))
    }
}

impl Writer<'_> {
    fn address(&mut self, address: &SocketAddr) -> &mut Self {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        self.put(&ip.octets()).u16(address.port()).put(&[0; 6])
    }
}

/// The body of `Init`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Init {
    /// The client's name for the session.
    pub session: u64,
    /// The client's incarnation.
    pub epoch: u64,
    /// Counts the client's sessions with this server, so that a lower number is an echo.
    pub attempt: u64,
    /// The cookie from `Retry`; 0 at first.
    pub cookie: u64,
    /// The client's parameters.
    pub params: Params,
    /// The [`suites`] that the client accepts.
    pub suites: u8,
    /// The address to which the client sent this.
    pub server: SocketAddr,
    /// The first message of the handshake; zeros if there is none.
    pub message: [u8; FIRST_LEN],
}

impl Init {
    /// Bytes of the body, without padding.
    pub const LEN: usize = Self::PROLOGUE_LEN + FIRST_LEN;
    /// Bytes of the body before the handshake's message. They are the handshake's prologue.
    const PROLOGUE_LEN: usize = 32 + Params::LEN + 8 + ADDRESS_LEN;

    /// The `Init` of a client without keys that has no cookie yet.
    pub fn plain(session: u64, epoch: u64, attempt: u64, params: Params, server: SocketAddr) -> Self {
        let (cookie, suites, message) = (0, suites::CLEAR, [0; FIRST_LEN]);
        Self { session, epoch, attempt, cookie, params, suites, server, message }
    }

    /// Writes the body to the front of `to`.
    pub fn write(&self, to: &mut [u8]) {
        let mut writer = Writer::new(to);
        writer.u64(self.session).u64(self.epoch).u64(self.attempt).u64(self.cookie);
        self.params.write(&mut writer);
        writer.u8(self.suites).put(&[0; 7]).address(&self.server).put(&self.message);
    }

    /// The handshake's prologue: the part of `body` before the message.
    pub fn prologue(body: &[u8]) -> [u8; PROLOGUE_LEN] {
        let mut prologue = [0; PROLOGUE_LEN];
        let (label, text) = prologue.split_at_mut(LABEL.len());
        label.copy_from_slice(LABEL);
        if let Some(body) = body.get(..Self::PROLOGUE_LEN) {
            text.copy_from_slice(body);
        }
        prologue
    }

    /// Parses a body; the rest of `body` is padding.
    ///
    /// # Errors
    /// The body is malformed.
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        if body.len() < INIT_LEN - super::header::LEN {
            return Err(Malformed::Truncated);
        }
        let mut reader = Reader(body);
        Ok(Self {
            session: reader.u64()?,
            epoch: reader.u64()?,
            attempt: reader.u64()?,
            cookie: reader.u64()?,
            params: Params::parse(&mut reader)?,
            suites: reader.suites()?,
            server: reader.address()?,
            message: reader.array()?,
        })
    }
}

/// The beginning of a prologue.
const LABEL: &[u8; 9] = b"ofi-udp 2";
/// Bytes of a prologue.
pub const PROLOGUE_LEN: usize = LABEL.len() + Init::PROLOGUE_LEN;

/// The body of `Retry`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The cookie for the next `Init`. Not 0.
    pub cookie: u64,
    /// Whether the server refuses sessions without a Noise handshake.
    pub insists: bool,
}

impl Retry {
    /// Bytes of the body.
    pub const LEN: usize = 16;

    /// The body.
    pub fn bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        Writer::new(&mut bytes).u64(self.cookie).u8(u8::from(self.insists));
        bytes
    }

    /// Parses a body.
    ///
    /// # Errors
    /// The body is malformed.
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(body);
        let (cookie, insists) = (reader.u64()?, reader.u8()?);
        reader.bytes(7)?;
        match (cookie, insists) {
            (0, _) => Err(Malformed::Field("cookie")),
            (cookie, 0 | 1) => Ok(Self { cookie, insists: insists == 1 }),
            _ => Err(Malformed::Field("insists")),
        }
    }
}

/// The body of `Accept`. In a handshake, it is the payload of the second message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accept {
    /// The server's name for the session; 0 if the server begins none.
    pub session: u64,
    /// The server's incarnation.
    pub epoch: u64,
    /// The highest attempt that the server has made towards the client. Attempts up to it are void.
    pub attempt: u64,
    /// The client's name for the session that is already open with the server; 0 without one.
    pub current: u64,
    /// The server's parameters.
    pub params: Params,
    /// The suite of the session.
    pub suite: u8,
    /// The address from which the question came.
    pub client: SocketAddr,
}

/// Bytes of an `Accept` that is a handshake message.
pub const SEALED_ACCEPT_LEN: usize = 32 + Accept::LEN + 16;

impl Accept {
    /// Bytes of the body.
    pub const LEN: usize = 32 + Params::LEN + 8 + ADDRESS_LEN;

    /// Writes the body to the front of `to`.
    pub fn write(&self, to: &mut [u8]) {
        let mut writer = Writer::new(to);
        writer.u64(self.session).u64(self.epoch).u64(self.attempt).u64(self.current);
        self.params.write(&mut writer);
        writer.u8(self.suite).put(&[0; 7]).address(&self.client);
    }

    /// Parses a body.
    ///
    /// # Errors
    /// The body is malformed.
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(body);
        Ok(Self {
            session: reader.u64()?,
            epoch: reader.u64()?,
            attempt: reader.u64()?,
            current: reader.u64()?,
            params: Params::parse(&mut reader)?,
            suite: reader.suites()?,
            client: reader.address()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMS: Params =
        Params { window: 1 << 20, in_flight: 1 << 18, max_packet: 65_000, liveness_port: 7, flags: 1 };
    const ACCEPT: Accept = Accept {
        session: 1,
        epoch: 2,
        attempt: 3,
        current: 4,
        params: PARAMS,
        suite: 4,
        client: SocketAddr::new(IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 1)), 7471),
    };

    #[test]
    fn bodies_come_back_and_short_ones_are_refused() {
        let init = Init {
            session: 1,
            epoch: u64::MAX,
            attempt: 3,
            cookie: 4,
            params: PARAMS,
            suites: 7,
            server: SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 9),
            message: core::array::from_fn(|at| at as u8),
        };
        let mut bytes = [0u8; INIT_LEN - super::super::header::LEN];
        init.write(&mut bytes);
        assert_eq!(Init::parse(&bytes), Ok(init));
        assert_eq!(Init::parse(&bytes[1..]), Err(Malformed::Truncated));
        let prologue = Init::prologue(&bytes);
        assert_eq!((&prologue[..9], &prologue[9..]), (&b"ofi-udp 2"[..], &bytes[..Init::LEN - FIRST_LEN]));
        let mut bytes = [0u8; Accept::LEN];
        ACCEPT.write(&mut bytes);
        assert_eq!(Accept::parse(&bytes), Ok(ACCEPT));
        assert!((0..Accept::LEN).all(|len| Accept::parse(&bytes[..len]) == Err(Malformed::Truncated)));
        for retry in [Retry { cookie: 7, insists: true }, Retry { cookie: 7, insists: false }] {
            assert_eq!(Retry::parse(&retry.bytes()), Ok(retry));
        }
        assert_eq!(Retry::parse(&[0; 16]), Err(Malformed::Field("cookie")));
        assert_eq!(Retry::parse(&[7; 16]), Err(Malformed::Field("insists")));
        assert_eq!(Retry::parse(&[7; 15]), Err(Malformed::Truncated));
    }

    #[test]
    fn impossible_parameters_are_refused() {
        for (params, field) in [
            (Params { max_packet: 1199, ..PARAMS }, "max_packet"),
            (Params { window: 0, ..PARAMS }, "window"),
            (Params { window: u64::MAX, ..PARAMS }, "window"),
            (Params { flags: 2, ..PARAMS }, "params.flags"),
        ] {
            let mut bytes = [0u8; Accept::LEN];
            Accept { params, ..ACCEPT }.write(&mut bytes);
            assert_eq!(Accept::parse(&bytes), Err(Malformed::Field(field)));
        }
    }
}
