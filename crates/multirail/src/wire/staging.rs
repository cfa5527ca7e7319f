//! Messages between agents about memory that its owner copies: see `staging`.

use super::{MAX_RAILS, Malformed, Reader, RegionInfo};

/// A range of a region, and the place in the peer's window through which its bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Through {
    /// The sender's number for the order.
    pub(crate) op: u64,
    pub(crate) region: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// First byte in the window.
    pub(crate) place: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// No request: the order only opens a session.
    Ping,
    /// Requests a window, which replaces an earlier one.
    Ask(u64),
    /// The window, or the reason for its refusal.
    Grant(u64, Result<RegionInfo, u32>),
    /// Copy from the window to the region.
    Land(Through),
    /// Copy from the region to the window.
    Fetch(Through),
    /// The copy has ended: 0, or an error's number.
    Done(u64, u32),
    /// Asks for the peer's host. Older agents drop it.
    Where,
    /// The host: the kernel's boot id.
    Here([u8; 16]),
}

mod kind {
    pub(super) const PING: u8 = 0;
    pub(super) const ASK: u8 = 1;
    pub(super) const GRANT: u8 = 2;
    pub(super) const LAND: u8 = 3;
    pub(super) const FETCH: u8 = 4;
    pub(super) const DONE: u8 = 5;
    pub(super) const REFUSED: u8 = 6;
    pub(super) const WHERE: u8 = 7;
    pub(super) const HERE: u8 = 8;
}

impl Order {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(48);
        match self {
            Self::Ping => out.push(kind::PING),
            Self::Ask(op) => put(&mut out, kind::ASK, &[*op]),
            Self::Grant(op, Ok(window)) => {
                put(&mut out, kind::GRANT, &[*op]);
                window.put(&mut out);
            }
            Self::Grant(op, Err(errno)) => put(&mut out, kind::REFUSED, &[*op, u64::from(*errno)]),
            Self::Land(it) => put(&mut out, kind::LAND, &[it.op, it.region, it.offset, it.len, it.place]),
            Self::Fetch(it) => put(&mut out, kind::FETCH, &[it.op, it.region, it.offset, it.len, it.place]),
            Self::Done(op, errno) => put(&mut out, kind::DONE, &[*op, u64::from(*errno)]),
            Self::Where => out.push(kind::WHERE),
            Self::Here(host) => {
                out.push(kind::HERE);
                out.extend_from_slice(host);
            }
        }
        out
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let order = match reader.u8()? {
            kind::PING => Self::Ping,
            kind::ASK => Self::Ask(reader.u64()?),
            kind::GRANT => Self::Grant(reader.u64()?, Ok(RegionInfo::parse(&mut reader, MAX_RAILS)?)),
            kind::REFUSED => Self::Grant(reader.u64()?, Err(errno(reader.u64()?, 1)?)),
            kind::LAND => Self::Land(through(&mut reader)?),
            kind::FETCH => Self::Fetch(through(&mut reader)?),
            kind::DONE => Self::Done(reader.u64()?, errno(reader.u64()?, 0)?),
            kind::WHERE => Self::Where,
            kind::HERE => Self::Here(host(&mut reader)?),
            other => return Err(Malformed::Kind(other)),
        };
        reader.end()?;
        Ok(order)
    }
}

fn put(out: &mut Vec<u8>, kind: u8, numbers: &[u64]) {
    out.push(kind);
    numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
}

fn errno(number: u64, least: u64) -> Result<u32, Malformed> {
    let errno = u32::try_from(number).ok().filter(|_| number >= least);
    errno.ok_or(Malformed::Field("error number"))
}

fn host(reader: &mut Reader<'_>) -> Result<[u8; 16], Malformed> {
    let (first, second) = (reader.u64()?, reader.u64()?);
    Ok((u128::from(first) | u128::from(second) << 64).to_le_bytes())
}

fn through(reader: &mut Reader<'_>) -> Result<Through, Malformed> {
    let op = reader.u64()?;
    let (region, offset, len, place) = (reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?);
    if len == 0 || offset.checked_add(len).is_none() || place.checked_add(len).is_none() {
        return Err(Malformed::Field("range"));
    }
    Ok(Through { op, region, offset, len, place })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn orders() -> impl Strategy<Value = Order> {
        let through = (any::<u64>(), any::<u64>(), 0..1_u64 << 60, 1..1_u64 << 60, 0..1_u64 << 60);
        let through =
            through.prop_map(|(op, region, offset, len, place)| Through { op, region, offset, len, place });
        let window = RegionInfo { id: 3, len: 1 << 20, keys: Vec::new(), is_staged: false, export: None };
        prop_oneof![
            Just(Order::Ping),
            any::<u64>().prop_map(Order::Ask),
            any::<u64>().prop_map(move |op| Order::Grant(op, Ok(window.clone()))),
            (any::<u64>(), 1..=u32::MAX).prop_map(|(op, errno)| Order::Grant(op, Err(errno))),
            through.clone().prop_map(Order::Land),
            through.prop_map(Order::Fetch),
            (any::<u64>(), any::<u32>()).prop_map(|(op, errno)| Order::Done(op, errno)),
            Just(Order::Where),
            any::<[u8; 16]>().prop_map(Order::Here),
        ]
    }

    proptest! {
        #[test]
        fn parse_inverts_encode_and_every_prefix_is_refused(order in orders(), cut in any::<u16>()) {
            let bytes = order.encode();
            prop_assert_eq!(Order::parse(&bytes), Ok(order));
            prop_assert!(Order::parse(&bytes[..usize::from(cut) % bytes.len()]).is_err());
            prop_assert!(Order::parse(&[&bytes[..], &[0]].concat()).is_err());
        }

        #[test]
        fn what_parses_is_what_is_encoded(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(order) = Order::parse(&bytes) {
                prop_assert_eq!(order.encode(), bytes);
            }
        }
    }
}
