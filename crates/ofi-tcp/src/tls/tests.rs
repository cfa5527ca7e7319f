//! Two sessions without sockets.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;

use proptest::prelude::*;

use super::record::{ALERT, DATA, HANDSHAKE, MAX_PLAIN, OVERHEAD};
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
        let (used, result) = session.open(&mut all, |plain| {
            said.extend_from_slice(plain);
            Ok(())
        });
        session.keep(&all[used..]);
        result?;
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

/// Records of this kind.
fn records(session: &mut Session, kind: u8, plain: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::new();
    session.established().expect("an established session").append(kind, plain, &mut sealed);
    sealed
}

fn seal(session: &mut Session, plain: &[u8]) -> Vec<u8> {
    records(session, DATA, plain)
}

/// Changes the key, and asks the peer for the same.
fn change(session: &mut Session) -> Vec<u8> {
    let mut record = vec![0; established::KEY_UPDATE_RECORD];
    let changed = session.established().expect("an established session").change_key(&mut record, true);
    assert_eq!(changed, Ok(record.len()));
    record
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
        let (_, result) = ends[1].open(&mut sealed, |part| { heard.extend_from_slice(part); Ok(()) });
        prop_assert!(heard.len() < plain.len() && plain.starts_with(&heard));
        // A greater length lets it wait for the rest, which fails.
        let is_length = [3, 4].contains(&(at % (MAX_PLAIN + OVERHEAD)));
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
        assert_eq!(end.open(&mut request, |_| Ok(())), (0, Err(Errno::EKEYREJECTED)));
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
        let flood = change(&mut ends[0]);
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
        let sealed = [change(&mut ends[0]), seal(&mut ends[0], b"question")].concat();
        assert_eq!(give(&mut ends[1], &sealed, || 3), Ok(b"question".to_vec()));
        let sealed = [ends[1].sealed(), seal(&mut ends[1], b"answer")].concat();
        assert_eq!(give(&mut ends[0], &sealed, || 5), Ok(b"answer".to_vec()));
    }
}

/// A key that has sealed its share is changed within a long message, whatever its pieces.
#[test]
fn a_worn_key_is_changed_before_the_next_record() {
    let (mut security, mut ends) = (security(b"job 7"), joined());
    let (socket, mut other) = std::os::unix::net::UnixStream::pair().unwrap();
    let plain: Vec<u8> = (0..100_000u32).map(|at| (at * 7 + (at >> 8)) as u8).collect();
    let vector = |part: &[u8]| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() };
    for cut in [1, 40_000, MAX_PLAIN, 99_999] {
        ends.iter_mut().for_each(|end| end.established().unwrap().wear());
        let (first, second) = plain.split_at(cut);
        let pieces = [vector(first), vector(&[]), vector(second)];
        // SAFETY: the pieces are parts of `plain`.
        let taken = unsafe { security.send_pieces(&mut ends[0], socket.as_fd(), &pieces) };
        assert_eq!(taken, Ok(plain.len()));
        let mut sealed = vec![0; plain.len() + 7 * OVERHEAD + established::KEY_UPDATE_RECORD];
        other.read_exact(&mut sealed).unwrap();
        assert_eq!(give(&mut ends[1], &sealed, || 5000).as_ref(), Ok(&plain));
    }
}

/// rustls alone, which is the other end in earlier versions of this library, understands what is sealed here, and its
/// records are understood.
#[test]
fn records_are_those_of_rustls() {
    let security = security(b"job 7");
    let mut config = security.accepting(PEER.ip()).unwrap();
    config.alpn_protocols = vec![b"here".to_vec()];
    let mut theirs = rustls::ServerConnection::new(Arc::new(config)).unwrap();
    let [mut ours, _] = ends(&security, &security, [b"here", b"here"]);
    let exchange = |ours: &mut Session, theirs: &mut rustls::ServerConnection, sealed: &[u8]| {
        let mut rest = sealed;
        while !rest.is_empty() {
            theirs.read_tls(&mut rest).unwrap();
            theirs.process_new_packets().unwrap();
        }
        let mut answer = Vec::new();
        while theirs.wants_write() {
            theirs.write_tls(&mut answer).unwrap();
        }
        give(ours, &answer, || 1000)
    };
    while theirs.is_handshaking() {
        let sealed = ours.sealed();
        assert_eq!(exchange(&mut ours, &mut theirs, &sealed), Ok(Vec::new()));
    }
    let plain: Vec<u8> = (0..12_000u32).map(|at| (at * 7 + (at >> 8)) as u8).collect();
    for round in 0..4 {
        if round % 2 == 1 {
            theirs.refresh_traffic_keys().unwrap();
        }
        theirs.writer().write_all(&plain).unwrap();
        let mut sealed = ours.sealed();
        if round > 1 {
            sealed.extend(change(&mut ours));
        }
        sealed.extend(seal(&mut ours, &plain));
        assert_eq!(exchange(&mut ours, &mut theirs, &sealed).as_ref(), Ok(&plain), "round {round}");
        let mut heard = vec![0; plain.len()];
        theirs.reader().read_exact(&mut heard).unwrap();
        assert!(heard == plain, "round {round}");
    }
    theirs.send_close_notify();
    assert_eq!(exchange(&mut ours, &mut theirs, &[]), Err(Errno::ECONNRESET));
    assert_eq!(ours.mismatch(), None, "the end of a connection");
}

/// What a peer with the key may not say, in records that are authentic. It gets an alert.
#[test]
fn records_that_no_honest_peer_sends_end_the_connection() {
    let refused: [(u8, &[u8]); 14] = [
        (0, &[]),
        (0, &[0; 100]),
        (20, &[1]),
        (24, &[1, 0, 1, 0]),
        (HANDSHAKE, &[]),
        (HANDSHAKE, &[0, 0, 0, 0]), // asks for a new handshake, as TLS 1.2 can
        (HANDSHAKE, &[1, 0, 0, 2, 3, 3]),
        (HANDSHAKE, &[4, 0, 0, 1, 0]),
        (HANDSHAKE, &[24, 0, 0, 1, 2]),
        (HANDSHAKE, &[24, 0, 0]),
        (HANDSHAKE, &[24, 0, 0, 1, 0, 24, 0, 0, 1, 0]),
        (ALERT, &[2]),
        (ALERT, &[2, 40, 0]),
        (DATA, &[7; MAX_PLAIN + 1]),
    ];
    for (kind, plain) in refused {
        let mut ends = joined();
        let record = ends[0].established().unwrap().seal_as(kind, plain);
        assert_eq!(give(&mut ends[1], &record, all), Err(Errno::ECONNRESET), "{kind}, {plain:?}");
        assert!(matches!(ends[1].mismatch(), Some(Mismatch::Broken(_))));
        let alert = ends[1].sealed();
        assert_eq!(give(&mut ends[0], &alert, all), Err(Errno::ECONNRESET));
        assert!(matches!(ends[0].mismatch(), Some(Mismatch::Broken(why)) if why.contains("alert")));
    }
}

/// In the clear, or of a length that no record has.
#[test]
fn headers_that_no_honest_peer_sends_end_the_connection() {
    for header in [
        [20, 3, 3, 0, 1, 1],
        [ALERT, 3, 3, 0, 2, 2],
        [HANDSHAKE, 3, 3, 0, 4, 0],
        [DATA, 3, 3, 0, 0, 0],
        [DATA, 3, 3, 0, 16, 0],
        [DATA, 3, 3, 65, 1, 0],
        [DATA, 3, 3, 255, 255, 0],
    ] {
        let mut ends = joined();
        assert_eq!(give(&mut ends[1], &header, || 1), Err(Errno::ECONNRESET), "{header:?}");
        assert!(!ends[1].sealed().is_empty(), "no alert");
    }
}

/// Zeros behind the type, which hide a record's length.
#[test]
fn padding_is_taken_off() {
    let mut ends = joined();
    let padded = [&b"hidden"[..], &[DATA], &[0; 60]].concat();
    let record = ends[0].established().unwrap().seal_as(0, &padded);
    assert_eq!(give(&mut ends[1], &record, || 9), Ok(b"hidden".to_vec()));
}
