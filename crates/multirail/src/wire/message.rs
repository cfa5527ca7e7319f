//! The messages of a session. Each begins with a header of 16 bytes: `MR`, the version, the kind, four zeroes, and the
//! receiver's tag of the session. A greeting, which opens a session, has the intended incarnation instead of a tag.

use super::blob::{put_keys, take_keys};
use super::{
    MAX_RAILS, Malformed, RailInfo, Reader, RegionKey, VERSION, put_name, put_rails, take_name, take_rails,
};

/// Maximum length of a message, in bytes: the length of the receives that agents post.
pub const MESSAGE: usize = 8192;
/// Bytes of a notification in one message. All fragments but the last are this long.
pub const FRAGMENT: usize = 8000;
/// Maximum notifications in one acknowledgement.
pub const ACKED: usize = 512;
/// Maximum leased keys in one request to fence.
pub const FENCED_KEYS: usize = 256;
/// Maximum notifications in one request to fence, and in its answer.
pub const FENCED_NOTICES: usize = 256;

const MAGIC: [u8; 2] = *b"MR";

mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const WELCOME: u8 = 2;
    pub(super) const CONFIRM: u8 = 3;
    pub(super) const REJECT: u8 = 4;
    pub(super) const NOTIFY: u8 = 5;
    pub(super) const ACK: u8 = 6;
    pub(super) const GOODBYE: u8 = 7;
    pub(super) const VOID: u8 = 8;
    pub(super) const READY: u8 = 9;
    // Agents that do not know these kinds drop them, and never send `ABLE`. Such an agent receives only `LEASE`, as
    // long as its `ABLE` may be in flight.
    pub(super) const ABLE: u8 = 10;
    pub(super) const LEASE: u8 = 11;
    pub(super) const LEASED: u8 = 12;
    pub(super) const FENCE: u8 = 13;
    pub(super) const FENCED: u8 = 14;
    pub(super) const RELEASE: u8 = 15;
    pub(super) const WIDEN: u8 = 16;
    pub(super) const WIDENED: u8 = 17;
    // An agent that does not know it ends its transfers by `ACK` alone.
    pub(super) const ARRIVED: u8 = 18;
    // An agent that does not know `RAILS` drops it, and never answers with `TAKEN`: it gets none of the others.
    pub(super) const RAILS: u8 = 19;
    pub(super) const TAKEN: u8 = 20;
    pub(super) const RENEW: u8 = 21;
    pub(super) const RENEWED: u8 = 22;
}

/// The reason why an agent rejects a greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// The agent's incarnation is not the intended one: the metadata is that of an earlier process.
    Stale = 1,
    /// The agent has as many peers as its limit permits.
    Full = 2,
    /// The greeter has the agent's name.
    Taken = 4,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Opens a session. `to` is the intended incarnation.
    Hello {
        /// The greeter's name.
        name: String,
        /// The greeter's incarnation.
        incarnation: u64,
        /// The greeter's tag for the session.
        tag: u64,
        /// The greeter's rails.
        rails: Vec<RailInfo>,
    },
    /// Answers a greeting.
    Welcome {
        /// The sender's incarnation.
        incarnation: u64,
        /// The sender's tag for the session.
        tag: u64,
    },
    /// Answers a welcome that is not outdated.
    Confirm,
    /// Answers a confirmation: the session is open at both ends.
    Ready,
    /// Rejects a greeting.
    Reject(Reason),
    /// A fragment of a notification.
    Notify(Fragment),
    /// Acknowledges notifications: the program has them, or they were cancelled. The sender may send others in their
    /// place.
    Ack(Vec<u64>),
    /// Notifications have arrived, and are kept for the program even if the session ends: their transfers are done.
    /// They still count as unacknowledged. Not every agent says so ([`Config::acknowledge_taken`](crate::Config)).
    Arrived(Vec<u64>),
    /// The session has ended.
    Goodbye,
    /// Cancels a notification.
    Void(u64),
    /// The sender can lease keys and fence them.
    Able,
    /// Asks for keys of this region that are valid in this session only.
    Lease(u64),
    /// Answers with the leased keys, in ascending order of their rails. There are none for rails that do not lease.
    Leased {
        /// The region's number.
        region: u64,
        /// The keys.
        keys: Vec<RegionKey>,
    },
    /// Asks the receiver to close leased keys and to hold notifications.
    Fence {
        /// The number of the request in the session, counted from 1.
        serial: u64,
        /// The keys: at most [`FENCED_KEYS`].
        keys: Vec<LeasedKey>,
        /// Numbers of the notifications to hold until [`Body::Release`]: at most [`FENCED_NOTICES`].
        notices: Vec<u64>,
    },
    /// The keys of this request are closed: no access under them touches memory any more.
    Fenced {
        /// The number of the request.
        serial: u64,
        /// Notifications of the request that were delivered before. The others are held.
        out: Vec<u64>,
    },
    /// All data of a held notification is in place.
    Release(u64),
    /// Asks for keys of this region on all rails, because the sender has no path to those that it has keys for.
    Widen(u64),
    /// Answers with the region's own keys, in ascending order of their rails.
    Widened {
        /// The region's number.
        region: u64,
        /// The keys.
        keys: Vec<RegionKey>,
    },
    /// The sender's rails from this number on: it has opened some since its start.
    Rails {
        /// The number of the first of them, at least 1.
        first: u8,
        /// Their descriptions: with those before them, at most [`MAX_RAILS`].
        rails: Vec<RailInfo>,
    },
    /// Answers with the number of the receiver's rails that the sender knows. The receiver then uses the new ones.
    Taken(u8),
    /// Asks for keys of this region on the rails near it, with those that were opened since its metadata was made.
    Renew(u64),
    /// Answers with the region's own keys, in ascending order of their rails.
    Renewed {
        /// The region's number.
        region: u64,
        /// The keys.
        keys: Vec<RegionKey>,
    },
}

/// A key of a region that is valid in one session only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeasedKey {
    /// The region's number.
    pub region: u64,
    /// The owner's rail.
    pub rail: u8,
    /// The registration's key.
    pub key: u64,
}

/// A fragment of a notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The number of the notification in the session, counted from 0.
    pub id: u64,
    /// The number of writes that must arrive before the program may see the notification; 0 for none.
    pub expected: u32,
    /// The number of the transfer to which these writes belong.
    pub transfer: u16,
    /// Length of the whole notification.
    pub total: u32,
    /// Offset of the fragment: a multiple of [`FRAGMENT`].
    pub offset: u32,
    /// The bytes of the fragment.
    pub bytes: Vec<u8>,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The receiver's tag of the session.
    pub to: u64,
    /// The content.
    pub body: Body,
}

impl Message {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let kind = match &self.body {
            Body::Hello { .. } => kind::HELLO,
            Body::Welcome { .. } => kind::WELCOME,
            Body::Confirm => kind::CONFIRM,
            Body::Ready => kind::READY,
            Body::Reject(_) => kind::REJECT,
            Body::Notify(_) => kind::NOTIFY,
            Body::Ack(_) => kind::ACK,
            Body::Arrived(_) => kind::ARRIVED,
            Body::Goodbye => kind::GOODBYE,
            Body::Void(_) => kind::VOID,
            Body::Able => kind::ABLE,
            Body::Lease(_) => kind::LEASE,
            Body::Leased { .. } => kind::LEASED,
            Body::Fence { .. } => kind::FENCE,
            Body::Fenced { .. } => kind::FENCED,
            Body::Release(_) => kind::RELEASE,
            Body::Widen(_) => kind::WIDEN,
            Body::Widened { .. } => kind::WIDENED,
            Body::Rails { .. } => kind::RAILS,
            Body::Taken(_) => kind::TAKEN,
            Body::Renew(_) => kind::RENEW,
            Body::Renewed { .. } => kind::RENEWED,
        };
        let mut out = Vec::with_capacity(64);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, kind, 0, 0, 0, 0]);
        out.extend_from_slice(&self.to.to_le_bytes());
        match &self.body {
            Body::Hello { name, incarnation, tag, rails } => {
                out.extend_from_slice(&incarnation.to_le_bytes());
                out.extend_from_slice(&tag.to_le_bytes());
                put_name(&mut out, name);
                put_rails(&mut out, rails);
            }
            Body::Welcome { incarnation, tag } => {
                out.extend_from_slice(&incarnation.to_le_bytes());
                out.extend_from_slice(&tag.to_le_bytes());
            }
            Body::Confirm | Body::Ready | Body::Goodbye | Body::Able => {}
            Body::Reject(reason) => out.push(*reason as u8),
            Body::Rails { first, rails } => {
                out.push(*first);
                put_rails(&mut out, rails);
            }
            Body::Taken(count) => out.push(*count),
            Body::Void(id) | Body::Lease(id) | Body::Release(id) | Body::Widen(id) | Body::Renew(id) => {
                out.extend_from_slice(&id.to_le_bytes());
            }
            Body::Leased { region, keys }
            | Body::Widened { region, keys }
            | Body::Renewed { region, keys } => {
                out.extend_from_slice(&region.to_le_bytes());
                put_keys(&mut out, keys);
            }
            Body::Fence { serial, keys, notices } => {
                out.extend_from_slice(&serial.to_le_bytes());
                out.extend_from_slice(&(keys.len() as u16).to_le_bytes());
                for key in keys {
                    out.extend_from_slice(&key.region.to_le_bytes());
                    out.push(key.rail);
                    out.extend_from_slice(&key.key.to_le_bytes());
                }
                put_ids(&mut out, notices);
            }
            Body::Fenced { serial, out: ids } => {
                out.extend_from_slice(&serial.to_le_bytes());
                put_ids(&mut out, ids);
            }
            Body::Notify(fragment) => {
                out.extend_from_slice(&fragment.id.to_le_bytes());
                out.extend_from_slice(&fragment.expected.to_le_bytes());
                out.extend_from_slice(&fragment.transfer.to_le_bytes());
                out.extend_from_slice(&fragment.total.to_le_bytes());
                out.extend_from_slice(&fragment.offset.to_le_bytes());
                out.extend_from_slice(&fragment.bytes);
            }
            Body::Ack(ids) | Body::Arrived(ids) => put_ids(&mut out, ids),
        }
        out
    }

    /// Reads a message.
    ///
    /// # Errors
    /// The reason why the bytes are not a valid message.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() > MESSAGE {
            return Err(Malformed::TooLong(bytes.len()));
        }
        let mut reader = Reader::new(bytes);
        if reader.bytes(2)? != MAGIC {
            return Err(Malformed::Magic);
        }
        let version = reader.u8()?;
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        let kind = reader.u8()?;
        if reader.u32()? != 0 {
            return Err(Malformed::Field("reserved"));
        }
        let to = reader.u64()?;
        let body = match kind {
            kind::HELLO => {
                let (incarnation, tag) = (reader.u64()?, reader.u64()?);
                Body::Hello {
                    incarnation,
                    tag,
                    name: take_name(&mut reader)?,
                    rails: take_rails(&mut reader)?,
                }
            }
            kind::WELCOME => Body::Welcome { incarnation: reader.u64()?, tag: reader.u64()? },
            kind::CONFIRM => Body::Confirm,
            kind::READY => Body::Ready,
            kind::REJECT => Body::Reject(match reader.u8()? {
                1 => Reason::Stale,
                2 => Reason::Full,
                4 => Reason::Taken,
                _ => return Err(Malformed::Field("reason")),
            }),
            kind::NOTIFY => Body::Notify(Fragment::parse(&mut reader)?),
            kind::ACK => Body::Ack(take_ids(&mut reader, ACKED)?),
            kind::ARRIVED => Body::Arrived(take_ids(&mut reader, ACKED)?),
            kind::GOODBYE => Body::Goodbye,
            kind::VOID => Body::Void(reader.u64()?),
            kind::ABLE => Body::Able,
            kind::LEASE => Body::Lease(reader.u64()?),
            kind::LEASED => Body::Leased { region: reader.u64()?, keys: take_keys(&mut reader, MAX_RAILS)? },
            kind::FENCE => {
                let (serial, count) = (reader.u64()?, usize::from(reader.u16()?));
                if count > FENCED_KEYS {
                    return Err(Malformed::Field("count"));
                }
                let mut key =
                    || Ok(LeasedKey { region: reader.u64()?, rail: reader.u8()?, key: reader.u64()? });
                let keys = (0..count).map(|_| key()).collect::<Result<_, Malformed>>()?;
                Body::Fence { serial, keys, notices: take_ids(&mut reader, FENCED_NOTICES)? }
            }
            kind::FENCED => {
                Body::Fenced { serial: reader.u64()?, out: take_ids(&mut reader, FENCED_NOTICES)? }
            }
            kind::RELEASE => Body::Release(reader.u64()?),
            kind::WIDEN => Body::Widen(reader.u64()?),
            kind::WIDENED => {
                Body::Widened { region: reader.u64()?, keys: take_keys(&mut reader, MAX_RAILS)? }
            }
            kind::RAILS => {
                let first = reader.u8()?;
                let rails = take_rails(&mut reader)?;
                if first == 0 || usize::from(first) + rails.len() > MAX_RAILS {
                    return Err(Malformed::Field("number of a rail"));
                }
                Body::Rails { first, rails }
            }
            kind::TAKEN => match reader.u8()? {
                count if count == 0 || usize::from(count) > MAX_RAILS => {
                    return Err(Malformed::Field("number of rails"));
                }
                count => Body::Taken(count),
            },
            kind::RENEW => Body::Renew(reader.u64()?),
            kind::RENEWED => {
                Body::Renewed { region: reader.u64()?, keys: take_keys(&mut reader, MAX_RAILS)? }
            }
            other => return Err(Malformed::Kind(other)),
        };
        reader.end()?;
        Ok(Self { to, body })
    }
}

fn put_ids(out: &mut Vec<u8>, ids: &[u64]) {
    out.extend_from_slice(&(ids.len() as u16).to_le_bytes());
    out.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
}

/// Takes a list of at most `most` numbers, which is the rest of the message.
fn take_ids(reader: &mut Reader<'_>, most: usize) -> Result<Vec<u64>, Malformed> {
    let count = usize::from(reader.u16()?);
    if count > most || count * 8 != reader.left() {
        return Err(Malformed::Field("count"));
    }
    (0..count).map(|_| reader.u64()).collect()
}

impl Fragment {
    fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (id, expected, transfer) = (reader.u64()?, reader.u32()?, reader.u16()?);
        let (total, offset, bytes) = (reader.u32()?, reader.u32()?, reader.rest());
        // The only valid length of a fragment at this offset.
        let left = total.checked_sub(offset).ok_or(Malformed::Field("offset"))? as usize;
        let is_placed = (offset as usize).is_multiple_of(FRAGMENT) && (left > 0 || total == 0);
        if !is_placed {
            return Err(Malformed::Field("offset"));
        }
        if bytes.len() != left.min(FRAGMENT) {
            return Err(if bytes.len() < left.min(FRAGMENT) {
                Malformed::Truncated
            } else {
                Malformed::Trailing
            });
        }
        Ok(Self { id, expected, transfer, total, offset, bytes: bytes.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    pub(crate) fn bodies() -> impl Strategy<Value = Body> {
        let rail = ("[a-z]{1,8}", any::<u32>(), vec(any::<u8>(), 1..=super::super::MAX_ADDRESS_LEN))
            .prop_map(|(provider, format, address)| RailInfo { provider, format, address });
        let later = (1..=24_u8, vec(rail.clone(), 1..=8));
        let hello = ("[a-z0-9-]{1,40}", any::<u64>(), any::<u64>(), vec(rail, 1..=8))
            .prop_map(|(name, incarnation, tag, rails)| Body::Hello { name, incarnation, tag, rails });
        let fragment = (any::<u64>(), any::<u32>(), any::<u16>(), 0..30_000_u32, 0..4_u32).prop_map(
            |(id, expected, transfer, total, nth)| {
                let offset =
                    (nth * FRAGMENT as u32).min((total.max(1) - 1) / FRAGMENT as u32 * FRAGMENT as u32);
                let len = ((total - offset) as usize).min(FRAGMENT);
                Body::Notify(Fragment { id, expected, transfer, total, offset, bytes: vec![7; len] })
            },
        );
        prop_oneof![
            hello,
            (any::<u64>(), any::<u64>()).prop_map(|(incarnation, tag)| Body::Welcome { incarnation, tag }),
            Just(Body::Confirm),
            Just(Body::Ready),
            prop::sample::select(vec![Reason::Stale, Reason::Full, Reason::Taken]).prop_map(Body::Reject),
            fragment,
            vec(any::<u64>(), 0..=ACKED).prop_map(Body::Ack),
            vec(any::<u64>(), 0..=ACKED).prop_map(Body::Arrived),
            Just(Body::Goodbye),
            any::<u64>().prop_map(Body::Void),
            Just(Body::Able),
            any::<u64>().prop_map(Body::Lease),
            (any::<u64>(), vec((any::<u64>(), any::<u64>()), 0..=MAX_RAILS)).prop_map(|(region, keys)| {
                let keys = keys.into_iter().enumerate();
                let keys = keys.map(|(rail, (key, base))| RegionKey { rail: rail as u8, key, base });
                Body::Leased { region, keys: keys.collect() }
            }),
            any::<u64>().prop_map(Body::Widen),
            (any::<u64>(), any::<u64>(), 0..MAX_RAILS as u8).prop_map(|(region, key, rail)| {
                Body::Widened { region, keys: vec![RegionKey { rail, key, base: 0 }] }
            }),
            (
                any::<u64>(),
                vec((any::<u64>(), any::<u8>(), any::<u64>()), 0..=FENCED_KEYS),
                vec(any::<u64>(), 0..=FENCED_NOTICES)
            )
                .prop_map(|(serial, keys, notices)| {
                    let key = |(region, rail, key)| LeasedKey { region, rail, key };
                    Body::Fence { serial, keys: keys.into_iter().map(key).collect(), notices }
                }),
            (any::<u64>(), vec(any::<u64>(), 0..=FENCED_NOTICES))
                .prop_map(|(serial, out)| Body::Fenced { serial, out }),
            any::<u64>().prop_map(Body::Release),
            later.prop_map(|(first, rails)| Body::Rails { first, rails }),
            (1..=MAX_RAILS as u8).prop_map(Body::Taken),
            any::<u64>().prop_map(Body::Renew),
            (any::<u64>(), any::<u64>(), 0..MAX_RAILS as u8).prop_map(|(region, key, rail)| {
                Body::Renewed { region, keys: vec![RegionKey { rail, key, base: 0 }] }
            }),
        ]
    }

    proptest! {
        #[test]
        fn parse_inverts_encode_and_every_prefix_is_refused(to in any::<u64>(), body in bodies(), cut in any::<u16>()) {
            let message = Message { to, body };
            let bytes = message.encode();
            prop_assert!(bytes.len() <= MESSAGE);
            prop_assert_eq!(Message::parse(&bytes), Ok(message));
            let cut = usize::from(cut) % bytes.len();
            prop_assert!(Message::parse(&bytes[..cut]).is_err());
            let longer = [&bytes[..], &[0]].concat();
            prop_assert!(Message::parse(&longer).is_err());
        }

        #[test]
        fn what_parses_is_what_is_encoded(bytes in vec(any::<u8>(), 0..200)) {
            let whole = [&b"MR\x02"[..], &bytes].concat();
            if let Ok(message) = Message::parse(&whole) {
                prop_assert_eq!(message.encode(), whole);
            }
        }
    }

    #[test]
    fn a_greeting_with_all_that_it_may_have_fits() {
        let rail =
            RailInfo { provider: "p".repeat(40), format: 0, address: vec![0; super::super::MAX_ADDRESS_LEN] };
        let rails = vec![rail; super::super::MAX_RAILS];
        let body =
            Body::Hello { name: "n".repeat(super::super::MAX_NAME_LEN), incarnation: 1, tag: 2, rails };
        assert!(Message { to: 3, body }.encode().len() <= MESSAGE);
    }

    #[test]
    fn numbers_of_rails_beyond_the_most_are_refused() {
        let parse = |body| Message::parse(&Message { to: 3, body }.encode());
        let info = RailInfo { provider: "p".into(), format: 0, address: vec![1] };
        let of = |first, count| parse(Body::Rails { first, rails: vec![info.clone(); count] });
        assert!(of(1, MAX_RAILS - 1).is_ok() && of(MAX_RAILS as u8 - 1, 1).is_ok());
        for (first, count) in [(0, 1), (1, MAX_RAILS), (MAX_RAILS as u8, 1), (255, 1)] {
            assert_eq!(of(first, count), Err(Malformed::Field("number of a rail")), "{first} {count}");
        }
        assert_eq!(of(1, 0), Err(Malformed::Field("rails")));
        assert_eq!(of(1, MAX_RAILS + 1), Err(Malformed::Field("rails")));
        assert!(parse(Body::Taken(MAX_RAILS as u8)).is_ok());
        for count in [0, MAX_RAILS as u8 + 1] {
            assert_eq!(parse(Body::Taken(count)), Err(Malformed::Field("number of rails")), "{count}");
        }
    }

    #[test]
    fn the_longest_request_to_fence_fits() {
        let keys = vec![LeasedKey { region: 1, rail: 2, key: 3 }; FENCED_KEYS];
        let body = Body::Fence { serial: 1, keys, notices: vec![4; FENCED_NOTICES] };
        assert!(Message { to: 3, body }.encode().len() <= MESSAGE);
    }

    #[test]
    fn other_versions_and_strange_fields_have_errors_of_their_own() {
        let good = Message { to: 1, body: Body::Confirm }.encode();
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            Message::parse(&bytes).unwrap_err()
        };
        assert_eq!(with(0, 0), Malformed::Magic);
        assert_eq!(with(2, 9), Malformed::Version(9));
        assert_eq!(with(3, 99), Malformed::Kind(99));
        let long = vec![b'M'; MESSAGE + 1];
        assert_eq!(Message::parse(&long), Err(Malformed::TooLong(MESSAGE + 1)));
        assert_eq!(with(4, 1), Malformed::Field("reserved"));
    }
}
