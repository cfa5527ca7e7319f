//! Two sessions without sockets.

use std::net::SocketAddr;

use proptest::prelude::*;
use rustls::unbuffered::ConnectionState;

use super::session::Side;
use super::*;
use crate::mismatch::Mismatch;

const PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7471);

fn security(key: &[u8]) -> Box<Security> {
    let provider = provider().expect("a processor with AES");
    Security::new(&provider, Security::by_key(&AuthKey::new(key), &provider)).unwrap()
}

/// A session that connects, and one that accepts, with what each knows of the occasion.
fn ends(connecting: &Security, accepting: &Security, occasions: [&[u8]; 2]) -> [Box<Session>; 2] {
    let config = Arc::clone(&connecting.connecting);
    let connects = Session::connecting(config, ServerName::from(PEER.ip()), occasions[0].to_vec());
    let accepts = Session::accepting(accepting.accepting(PEER.ip()).unwrap(), occasions[1].to_vec());
    [connects.unwrap(), accepts.unwrap()]
}

/// Gives a session bytes as the driver does, in pieces of these lengths. Returns what they say.
fn give(session: &mut Session, bytes: &[u8], mut cut: impl FnMut() -> usize) -> Result<Vec<u8>, Errno> {
    let mut said = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(cut().clamp(1, rest.len()));
        let mut all = std::mem::take(session.part());
        all.extend_from_slice(piece);
        session.take(&mut all, |plain| {
            said.extend_from_slice(plain);
            Ok(())
        })?;
        rest = after;
    }
    Ok(said)
}

/// Carries bytes between two sessions until neither has any. Returns what each has heard, and its error.
fn carry(ends: &mut [Box<Session>; 2], mut cut: impl FnMut() -> usize) -> [(Vec<u8>, Option<Errno>); 2] {
    let mut heard = [(Vec::new(), None), (Vec::new(), None)];
    loop {
        let mut went = 0;
        for (from, to) in [(0, 1), (1, 0)] {
            let bytes = ends[from].sealed();
            went += bytes.len();
            if heard[to].1.is_none() {
                match give(&mut ends[to], &bytes, &mut cut) {
                    Ok(said) => heard[to].0.extend(said),
                    Err(errno) => heard[to].1 = Some(errno),
                }
            }
        }
        if went == 0 {
            return heard;
        }
    }
}

fn all() -> usize {
    usize::MAX
}

/// Two sessions after their handshake.
fn joined() -> [Box<Session>; 2] {
    let security = security(b"job 7");
    let mut ends = ends(&security, &security, [b"here", b"here"]);
    let heard = carry(&mut ends, all);
    assert_eq!(heard, [(Vec::new(), None), (Vec::new(), None)]);
    ends
}

fn seal(session: &mut Session, plain: &[u8]) -> Vec<u8> {
    let mut sealed = vec![0; plain.len() + plain.len() / 1000 + 4096];
    let len = session.seal(plain, &mut sealed).expect("an established session");
    sealed.truncate(len);
    sealed
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The handshake, and what is said before and after it, arrive whatever the pieces in which the stream comes.
    #[test]
    fn bytes_come_through_whatever_the_pieces(
        early in prop::collection::vec(any::<u8>(), 0..300),
        messages in prop::collection::vec((any::<bool>(), prop_oneof![0usize..100, 0usize..70_000]), 0..6),
        cuts in prop::collection::vec(prop_oneof![Just(1usize), 1usize..50, 1usize..20_000], 1..20),
    ) {
        let mut cuts = cuts.into_iter().cycle();
        let mut cut = || cuts.next().unwrap();
        let security = security(b"job 7");
        let mut ends = ends(&security, &security, [b"here", b"here"]);
        ends[0].queue(&early);
        let [(none, a), (heard, b)] = carry(&mut ends, &mut cut);
        prop_assert_eq!((none, a, b), (Vec::new(), None, None));
        prop_assert_eq!(heard, early);
        for (index, (by_first, len)) in messages.into_iter().enumerate() {
            let plain: Vec<u8> = (0..len).map(|at| (at * 31 + index) as u8).collect();
            let (from, to) = if by_first { (0, 1) } else { (1, 0) };
            let sealed = seal(&mut ends[from], &plain);
            prop_assert!(len < 16 || !sealed.windows(16).any(|part| part == &plain[..16]), "in the clear");
            let said = give(&mut ends[to], &sealed, &mut cut);
            prop_assert_eq!(said, Ok(plain));
            prop_assert!(ends[to].part().is_empty());
        }
    }

    /// Whatever is changed, nothing that was not said is heard.
    #[test]
    fn a_changed_record_is_refused(len in 1usize..40_000, at: prop::sample::Index, bit in 0u8..8) {
        let mut ends = joined();
        let plain: Vec<u8> = (0..len).map(|at| at as u8).collect();
        let mut sealed = seal(&mut ends[0], &plain);
        let at = at.index(sealed.len());
        sealed[at] ^= 1 << bit;
        let mut heard = Vec::new();
        let result = ends[1].take(&mut sealed, |part| { heard.extend_from_slice(part); Ok(()) });
        prop_assert!(heard.len() < plain.len() && plain.starts_with(&heard));
        // A greater length lets it wait for the rest, which fails.
        let is_length = [3, 4].contains(&(at % (16384 + 22)));
        prop_assert!(result == Err(Errno::ECONNRESET) || is_length, "{result:?} at {at}");
    }

    #[test]
    fn no_bytes_make_it_panic(
        first in prop::sample::select(vec![20u8, 21, 22, 23, 3]),
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        cut in 1usize..700,
        early: bool,
    ) {
        let garbage: Vec<u8> = [&[first, 3, 3][..], &bytes].concat();
        let mut both = if early {
            let security = security(b"job 7");
            ends(&security, &security, [b"here", b"here"])
        } else {
            joined()
        };
        for session in &mut both {
            prop_assert_eq!(give(session, &garbage, || cut).unwrap_or_default(), Vec::<u8>::new());
        }
    }
}

/// The first end finds out, and tells the other.
#[test]
fn another_key_is_refused_at_both_ends() {
    let mut ends = ends(&security(b"job 7"), &security(b"job 8"), [b"here", b"here"]);
    let heard = carry(&mut ends, all);
    for ((said, errno), end) in heard.iter().zip(&ends) {
        assert_eq!((said.len(), *errno), (0, Some(Errno::EKEYREJECTED)));
        assert!(matches!(end.mismatch(), Some(Mismatch::Key(_))), "{:?}", end.mismatch());
    }
}

/// An attacker who leads a connection to another holder of the key.
#[test]
fn a_connection_that_was_led_elsewhere_is_refused_at_both_ends() {
    let security = security(b"job 7");
    let mut ends = ends(&security, &security, [b"to 10.0.0.1", b"to 10.0.0.2"]);
    let heard = carry(&mut ends, all);
    assert_eq!(heard.map(|(_, errno)| errno), [Some(Errno::EADDRNOTAVAIL); 2]);
    assert!(ends.iter().all(|end| end.mismatch() == Some(&Mismatch::Address)));
}

#[test]
fn a_peer_in_the_clear_is_known_by_its_first_byte() {
    let security = security(b"job 7");
    for mut end in ends(&security, &security, [b"here", b"here"]) {
        let mut request = crate::wire::cm::CmMessage::new(crate::wire::cm::CmKind::Request, &[1; 8]).encode();
        assert_eq!(end.take(&mut request, |_| Ok(())), Err(Errno::EKEYREJECTED));
        assert_eq!(end.mismatch(), Some(&Mismatch::Clear));
    }
}

/// Each pair is of one key and one role: a message that is sent back to its sender, or between two ends that both
/// connect, proves nothing.
#[test]
fn pairs_are_of_one_key_and_one_role() {
    let provider = provider().unwrap();
    let public =
        |key: &[u8], role| keys::derive(&AuthKey::new(key), role, &provider).unwrap().cert[0].to_vec();
    let mut all = vec![
        public(b"job 7", ROLES[0]),
        public(b"job 7", ROLES[1]),
        public(b"job 8", ROLES[0]),
        public(b"job 8", ROLES[1]),
    ];
    assert_eq!(public(b"job 7", ROLES[0]), all[0], "both ends derive the same");
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 4);
    // An end that connects with the pair of one that accepts.
    let mut wrong = security(b"job 7");
    let own = keys::derive(&AuthKey::new(b"job 7"), ROLES[1], &provider).unwrap();
    let mut config = ClientConfig::clone(&wrong.connecting);
    config.client_auth_cert_resolver = Arc::new(AlwaysResolvesClientRawPublicKeys::new(own));
    wrong.connecting = Arc::new(config);
    let mut ends = ends(&wrong, &security(b"job 7"), [b"here", b"here"]);
    let heard = carry(&mut ends, || usize::MAX);
    assert_eq!(heard.map(|(_, errno)| errno), [Some(Errno::EKEYREJECTED); 2]);
}

/// The derivation is part of the wire protocol: another version of this library must derive the same.
#[test]
fn derived_keys_are_what_they_were() {
    let provider = provider().unwrap();
    let ends = ROLES.map(|role| {
        let pair = keys::derive(&AuthKey::new(b"job 7"), role, &provider).unwrap();
        let spki = pair.cert[0].to_vec();
        spki[spki.len() - 4..].iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    });
    assert_eq!(ends, ["1853ae57", "f51d8cb0"]);
}

/// Asks for a new key again and again: the peer answers once for all that it has not answered, and refuses to go on.
#[test]
fn a_flood_of_new_keys_ends_the_connection() {
    let mut ends = joined();
    let mut result = Ok(Vec::new());
    let mut asked = 0;
    while result.is_ok() && asked < 1000 {
        match ends[0].side() {
            Side::Connecting(side) => match side.process_tls_records(&mut []).state {
                Ok(ConnectionState::WriteTraffic(traffic)) => traffic.refresh_traffic_keys().unwrap(),
                other => panic!("{other:?}"),
            },
            Side::Accepting(_) => unreachable!("the first end connects"),
        }
        ends[0].take(&mut [], |_| Ok(())).unwrap();
        let flood = ends[0].sealed();
        assert!(!flood.is_empty());
        result = give(&mut ends[1], &flood, all);
        asked += 1;
    }
    assert_eq!(result, Err(Errno::ECONNRESET));
    let answers = ends[1].sealed().len();
    assert!((10..100).contains(&asked) && answers < 200, "{asked} keys, {answers} bytes of answers");
}

/// What is said after a change of keys is heard.
#[test]
fn new_keys_serve_as_the_old_ones() {
    let mut ends = joined();
    for _ in 0..5 {
        match ends[0].side() {
            Side::Connecting(side) => match side.process_tls_records(&mut []).state {
                Ok(ConnectionState::WriteTraffic(traffic)) => traffic.refresh_traffic_keys().unwrap(),
                other => panic!("{other:?}"),
            },
            Side::Accepting(_) => unreachable!("the first end connects"),
        }
        let sealed = seal(&mut ends[0], b"question");
        assert_eq!(give(&mut ends[1], &sealed, || 3), Ok(b"question".to_vec()));
        let sealed = [ends[1].sealed(), seal(&mut ends[1], b"answer")].concat();
        assert_eq!(give(&mut ends[0], &sealed, || 5), Ok(b"answer".to_vec()));
    }
}
