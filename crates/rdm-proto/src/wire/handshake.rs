//! How a session begins: `Init`, `Retry` with a cookie, `Init` with the cookie, `Accept`.

use super::{Malformed, Reader, Writer};

/// Every `Init` is at least this long: the path carries packets of this size, and answers are shorter than questions.
pub const INIT_LEN: usize = 1200;

/// What an end says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Bytes of each stream that may be sent ahead of what was taken.
    pub window: u64,
    /// Bytes that may be under way, as its socket holds them: a packet counts [`crate::wire::handshake::PACKET_COST`] more than its length.
    pub in_flight: u64,
    /// Longest datagram that it takes.
    pub max_packet: u32,
    /// UDP port on which its process answers for it; 0 for none.
    pub liveness_port: u16,
    /// [`param`].
    pub flags: u16,
}

/// What the kernel's socket buffer is charged for a packet beyond its bytes, about (Linux: 768 bytes for one of 64, 2,304 for one of 1,400).
pub const PACKET_COST: u64 = 1000;

/// The smallest window: the longest record fits into half of it.
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

/// Bytes of a handshake about its protection: suites, zeros, public key, proof.
const SECURITY_LEN: usize = 8 + 32 + 16;

impl Reader<'_> {
    /// A set of suites, and zeros that later versions may use.
    fn suites(&mut self) -> Result<u8, Malformed> {
        let suites = self.u8()?;
        self.bytes(7).map(|_| suites)
    }
}

/// The body of `Init`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Init {
    /// The client's name for the session.
    pub session: u64,
    /// The client's incarnation.
    pub epoch: u64,
    /// Counts the client's sessions with this server; a lower one is an echo of the past.
    pub attempt: u64,
    /// What `Retry` said; 0 at first.
    pub cookie: u64,
    /// What the client is.
    pub params: Params,
    /// [`crate::suites`] that it takes.
    pub suites: u8,
    /// Its public key (X25519), if it takes more than packets in the clear.
    pub public: [u8; 32],
    /// Shows that it has an authorization key; zeros if it has none.
    pub proof: [u8; 16],
}

impl Init {
    /// Bytes of the body, without padding.
    pub const LEN: usize = 32 + Params::LEN + SECURITY_LEN;

    /// Of a client that knows no keys, and has no cookie yet.
    pub fn plain(session: u64, epoch: u64, attempt: u64, params: Params) -> Self {
        let (suites, public, proof) = (crate::suites::CLEAR, [0; 32], [0; 16]);
        Self { session, epoch, attempt, cookie: 0, params, suites, public, proof }
    }

    /// Writes the body to the front of `to`.
    pub fn write(&self, to: &mut [u8]) {
        let mut writer = Writer::new(to);
        writer.u64(self.session).u64(self.epoch).u64(self.attempt).u64(self.cookie);
        self.params.write(&mut writer);
        writer.u8(self.suites).put(&[0; 7]).put(&self.public).put(&self.proof);
    }

    /// Reads a body; what follows it is padding.
    ///
    /// # Errors
    /// What is wrong with it.
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
            public: reader.array()?,
            proof: reader.array()?,
        })
    }
}

/// The body of `Accept`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accept {
    /// The server's name for the session.
    pub session: u64,
    /// The server's incarnation.
    pub epoch: u64,
    /// The highest attempt that the server has made towards the client: those up to it are void.
    pub attempt: u64,
    /// What the server is.
    pub params: Params,
    /// The suite of the session.
    pub suite: u8,
    /// The server's public key, as in [`Init::public`].
    pub public: [u8; 32],
    /// Shows that both have heard the same and have the same keys; zeros for packets in the clear without a key.
    pub proof: [u8; 16],
}

impl Accept {
    /// Bytes of the body.
    pub const LEN: usize = 24 + Params::LEN + SECURITY_LEN;

    /// Writes the body to the front of `to`.
    pub fn write(&self, to: &mut [u8]) {
        let mut writer = Writer::new(to);
        writer.u64(self.session).u64(self.epoch).u64(self.attempt);
        self.params.write(&mut writer);
        writer.u8(self.suite).put(&[0; 7]).put(&self.public).put(&self.proof);
    }

    /// Reads a body.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(body);
        let (session, epoch, attempt) = (reader.u64()?, reader.u64()?, reader.u64()?);
        Ok(Self {
            session,
            epoch,
            attempt,
            params: Params::parse(&mut reader)?,
            suite: reader.suites()?,
            public: reader.array()?,
            proof: reader.array()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMS: Params =
        Params { window: 1 << 20, in_flight: 1 << 18, max_packet: 65_000, liveness_port: 7, flags: 1 };

    #[test]
    fn bodies_come_back_and_short_ones_are_refused() {
        let mut init = Init { cookie: 4, ..Init::plain(1, u64::MAX, 3, PARAMS) };
        (init.public, init.proof) = (core::array::from_fn(|at| at as u8), [9; 16]);
        let mut bytes = [0u8; INIT_LEN - super::super::header::LEN];
        init.write(&mut bytes);
        assert_eq!(Init::parse(&bytes), Ok(init));
        assert_eq!(Init::parse(&bytes[1..]), Err(Malformed::Truncated));
        let (public, proof) = ([7; 32], [8; 16]);
        let accept = Accept { session: 1, epoch: 2, attempt: 3, params: PARAMS, suite: 4, public, proof };
        let mut bytes = [0u8; Accept::LEN];
        accept.write(&mut bytes);
        assert_eq!(Accept::parse(&bytes), Ok(accept));
        assert!((0..Accept::LEN).all(|len| Accept::parse(&bytes[..len]) == Err(Malformed::Truncated)));
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
            let (public, proof) = ([0; 32], [0; 16]);
            Accept { session: 1, epoch: 2, attempt: 3, params, suite: 1, public, proof }.write(&mut bytes);
            assert_eq!(Accept::parse(&bytes), Err(Malformed::Field(field)));
        }
    }
}
