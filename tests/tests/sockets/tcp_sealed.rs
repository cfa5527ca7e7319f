//! Encryption of provider `tcp`: ends of which one alone encrypts, peers that stop in the handshake or break TLS,
//! certificates, processes that are killed. The suite over encrypted endpoints: `tcp.rs`.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use ofi_tcp::fuzz::Insider;
use ofi_tcp::wire::Identity;
use ofi_tcp::wire::cm::{CmKind, CmMessage};
use ofi_testkit::prelude::*;
use ofi_tests::certificates::{Authority, Files, Subject};
use ofi_tests::mesh::{Mesh, NAMING, Report};
use ofi_tests::{Naming, open, opening};

/// The times of the provider for a request and for an attempt to connect (5 s), with grace for a busy machine.
const TRY_TIMEOUT: Duration = Duration::from_secs(7);
/// What an end that does not agree on encryption says: a fatal alert, `access_denied`.
const DENIED: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];
/// The beginning of a first message of TLS, whose rest never comes.
const HALF_A_HELLO: [u8; 9] = [22, 3, 1, 2, 0, 1, 0, 1, 252];

fn address_of(side: &TestEndpoint) -> SocketAddr {
    side.name().to_socket_addr().expect("an address of IP")
}

/// A plain socket that has said `bytes` to an endpoint.
fn dial(side: &TestEndpoint, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address_of(side)).expect("a connection");
    stream.write_all(bytes).expect("room");
    stream.set_nonblocking(true).expect("a socket that does not block");
    stream
}

/// What an endpoint says until it ends the connection.
fn hear_all(side: &TestEndpoint, stream: &mut TcpStream) -> Vec<u8> {
    let mut heard = Vec::new();
    wait::drive_for(TRY_TIMEOUT, &[side], "the end of the connection", || {
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes) {
            Ok(0) => Some(()),
            Ok(got) => {
                heard.extend_from_slice(&bytes[..got]);
                None
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => panic!("no end, but {error}"),
        }
    });
    heard
}

/// A message from one endpoint to another, and the error of the send if there is one.
#[track_caller]
fn send(from: &TestEndpoint, at: &TestEndpoint) -> Result<(), Errno> {
    let to = from.insert(at);
    let (sent, got) = (Memory::patterned(100_000, 3), Memory::new(100_000));
    at.receive(&got).context(7).post().expect("a receive");
    wait::drive(&[from, at], "room", || from.out(to, &sent).context(8).send().ok());
    match wait::drive_for(TRY_TIMEOUT, &[from, at], "the send", || from.next_of(8)) {
        Event::Failed(error) => {
            at.cancel(7).expect("a receive to cancel");
            wait::drive(&[at], "the receive", || at.next_of(7)).failed();
            Err(error.err)
        }
        _ => {
            wait::drive(&[from, at], "the message", || at.next_of(7)).done();
            got.check(100_000, 3);
            Ok(())
        }
    }
}

/// An end of C libfabric, or one of this library without a key, and the other way round.
#[test]
fn ends_of_which_one_alone_encrypts_tell_each_other_and_serve_others() {
    let request = CmMessage::new(CmKind::Request, &Identity::new(9, 9).encode()).encode();
    for (naming, first) in [(Naming::TcpSealed, &request[..]), (Naming::Tcp, &HALF_A_HELLO)] {
        let (side, other) = (open(naming), open(naming));
        let before = side.statistic("other_key");
        let mut stream = dial(&side, first);
        assert_eq!(hear_all(&side, &mut stream), DENIED, "{naming:?}");
        assert_eq!(side.statistic("other_key"), before + 1);
        assert_eq!(send(&other, &side), Ok(()));
        assert_eq!(side.statistic("encrypted"), u64::from(naming == Naming::TcpSealed));
    }
}

#[test]
fn a_peer_that_stops_in_the_handshake_is_dropped_in_time() {
    let (side, other) = (open(Naming::TcpSealed), open(Naming::TcpSealed));
    let refused = side.statistic("connections_refused");
    let [mut silent, mut half] = [&[][..], &HALF_A_HELLO].map(|bytes| dial(&side, bytes));
    assert_eq!(send(&other, &side), Ok(()));
    // One that was called, whose kernel connects.
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a listener");
    let peer = side.insert_address(&Address::from(listener.local_addr().expect("an address")));
    side.out(peer, &Memory::new(64)).context(1).send().expect("a send");
    for stream in [&mut silent, &mut half] {
        assert_eq!(hear_all(&side, stream), b"");
    }
    assert_eq!(side.statistic("connections_refused"), refused + 2);
    let error = wait::drive_for(TRY_TIMEOUT, &[&side], "the end of the send", || side.next_of(1)).failed();
    assert_eq!(error.err, Errno::ETIMEDOUT);
    assert_eq!(send(&side, &other), Ok(()));
}

/// A peer of C libfabric ends the connection at the first byte that it does not know.
#[test]
fn a_peer_that_closes_at_the_first_message_is_given_up_in_time() {
    let side = open(Naming::TcpSealed);
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a listener");
    let name = Address::from(listener.local_addr().expect("an address"));
    let closes = std::thread::spawn(move || {
        let mut dialled = 0;
        for stream in listener.incoming() {
            let mut first = [0; 1];
            let got = stream.expect("a connection").read(&mut first).expect("bytes");
            if got == 0 {
                break; // the test's
            }
            assert_eq!(first, [22], "in the clear");
            dialled += 1;
        }
        dialled
    });
    let peer = side.insert_address(&name);
    side.out(peer, &Memory::new(64)).context(1).send().expect("a send");
    let error = wait::drive_for(TRY_TIMEOUT, &[&side], "the end of the send", || side.next_of(1)).failed();
    assert_eq!(error.err, Errno::ECONNREFUSED);
    drop(TcpStream::connect(name.to_socket_addr().expect("an address")));
    assert!(closes.join().expect("the peer") > 1, "it may start to listen as a peer with the key");
}

#[test]
fn garbage_in_records_ends_its_connection_alone() {
    let (side, other) = (open(Naming::TcpSealed), open(Naming::TcpSealed));
    for garbage in [&[22, 3, 1, 0, 4, 1, 2, 3, 4][..], &[22, 3, 3, 255, 255, 0], &[21, 3, 3, 0, 2, 2, 40]] {
        let counted = side.statistic("broken") + side.statistic("other_key");
        let mut stream = dial(&side, garbage);
        let heard = hear_all(&side, &mut stream);
        assert!(heard.is_empty() || heard[0] == 21, "an alert, not {heard:?}");
        assert_eq!(side.statistic("broken") + side.statistic("other_key"), counted + 1, "{garbage:?}");
    }
    assert_eq!(send(&other, &side), Ok(()));
    assert_eq!(send(&side, &other), Ok(()));
}

#[test]
fn a_caller_that_closes_in_the_handshake_is_counted() {
    let (side, other) = (open(Naming::TcpSealed), open(Naming::TcpSealed));
    for (closed, said) in [&[][..], &HALF_A_HELLO[..1], &HALF_A_HELLO].into_iter().enumerate() {
        let refused = side.statistic("connections_refused");
        drop(dial(&side, said));
        let is_counted = || (side.statistic("connections_refused") > refused).then_some(());
        wait::drive(&[&side], "the count", is_counted);
        assert_eq!(side.statistic("connections_refused"), closed as u64 + 1);
    }
    assert_eq!(send(&other, &side), Ok(()));
}

/// A caller that has the key, and has ended the handshake.
fn enter(side: &TestEndpoint) -> (TcpStream, Insider) {
    let mut stream = dial(side, &[]);
    let (mut insider, hello) = Insider::new(&stream, b"the tests' key").expect("a session");
    stream.write_all(&hello).expect("room");
    wait::drive(&[side], "the handshake", || insider.advance(&stream).then_some(()));
    (stream, insider)
}

/// The types of what a record holds (RFC 8446, appendix B.1).
const CHANGE: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;

/// What a peer says that has the key and does not keep to TLS: authentic records, and bytes that are none.
#[test]
fn a_peer_with_the_key_that_breaks_tls_ends_its_connection_alone() {
    let (side, other) = (open(Naming::TcpSealed), open(Naming::TcpSealed));
    let request = CmMessage::new(CmKind::Request, &Identity::new(9, 9).encode()).encode();
    let authentic: [(u8, &[u8]); 6] = [
        (HANDSHAKE, &[0, 0, 0, 0]), // a new handshake, as in TLS 1.2
        (HANDSHAKE, &[1, 0, 0, 2, 3, 3]),
        (HANDSHAKE, &[24, 0, 0, 1]),
        (CHANGE, &[1]),
        (ALERT, &[2]),
        (DATA, &[0; 16_385]),
    ];
    let others = [&HALF_A_HELLO[..], &[DATA, 3, 3, 255, 255], &[DATA, 3, 3, 0, 17, 1], &[DATA, 3, 3, 0, 5]];
    for is_established in [false, true] {
        let begin = || {
            let (mut stream, mut insider) = enter(&side);
            if is_established {
                let before = side.statistic("encrypted");
                stream.write_all(&insider.record(DATA, &request)).expect("room");
                let is_counted = || (side.statistic("encrypted") > before).then_some(());
                wait::drive(&[&side], "the connection", is_counted);
            }
            (stream, insider)
        };
        for (kind, bytes) in authentic {
            let broken = side.statistic("broken");
            let (mut stream, mut insider) = begin();
            stream.write_all(&insider.record(kind, bytes)).expect("room");
            hear_all(&side, &mut stream);
            assert_eq!(side.statistic("broken"), broken + 1, "{kind}, {bytes:?}, {is_established}");
        }
        for bytes in others {
            let broken = side.statistic("broken");
            let (mut stream, _insider) = begin();
            stream.write_all(&[bytes, &[0; 17]].concat()).expect("room");
            hear_all(&side, &mut stream);
            assert_eq!(side.statistic("broken"), broken + 1, "{bytes:?}, {is_established}");
        }
        // It goes in the middle of a record.
        let count = if is_established { "connections_lost" } else { "connections_refused" };
        let (mut stream, mut insider) = begin();
        let record = insider.record(DATA, &request);
        stream.write_all(&record[..record.len() / 2]).expect("room");
        let before = side.statistic(count);
        drop(stream);
        wait::drive(&[&side], "the count", || (side.statistic(count) > before).then_some(()));
    }
    assert_eq!(send(&other, &side), Ok(()));
    assert_eq!(send(&side, &other), Ok(()));
}

/// As `processes_are_killed_at_random_under_load`, with a key.
#[test]
fn encrypting_processes_are_killed_at_random_under_load() {
    let mut mesh = Mesh::start(3, &[(NAMING, Naming::TcpSealed.as_str())]);
    for kill in 0..3u64 {
        std::thread::sleep(Duration::from_millis(100 + 37 * kill % 200));
        mesh.replace(kill as usize % 3);
    }
    mesh.expect_progress();
    assert!(mesh.end().iter().all(|Report { done, .. }| *done > 0));
}

const FOREVER: &str = "20400101000000Z";
const LOOPBACK: Subject<'_> = Subject::Ip(IpAddr::V4(Ipv4Addr::LOCALHOST));

fn set(variables: &[(&str, &str)]) {
    for (name, value) in variables {
        // SAFETY: this test is a process of its own under nextest, whose threads read the environment through std
        // alone, which has a lock for it.
        unsafe { std::env::set_var(name, value) };
    }
}

/// An endpoint that opens with these files, and with this name in certificates.
fn certified(files: &Files, name: &str) -> TestEndpoint {
    let text = |path: &std::path::Path| path.to_str().expect("text").to_owned();
    set(&[
        ("FI_TCP_TLS_CERT", &text(&files.cert)),
        ("FI_TCP_TLS_KEY", &text(&files.key)),
        ("FI_TCP_TLS_CA", &text(&files.ca)),
        ("FI_TCP_TLS_NAME", name),
    ]);
    open(Naming::Tcp)
}

fn folder(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("tcp_sealed").join(name)
}

#[test]
fn certificates_count_by_their_authority_their_name_and_their_time() {
    let (ours, theirs) = (Authority::new("ours", 1), Authority::new("theirs", 2));
    let files = ours.issue(&folder("good"), 3, LOOPBACK, FOREVER);
    let side = certified(&files, "");
    let other = certified(&files, "");
    assert_eq!(send(&side, &other), Ok(()));
    assert_eq!((side.statistic("encrypted"), other.statistic("encrypted")), (1, 1));
    let elsewhere = Subject::Ip(IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3)));
    for (name, files) in [
        ("another authority", theirs.issue(&folder("theirs"), 4, LOOPBACK, FOREVER)),
        ("another address", ours.issue(&folder("elsewhere"), 5, elsewhere, FOREVER)),
        ("no address", ours.issue(&folder("name"), 6, Subject::Dns("node.example"), FOREVER)),
        ("long ago", ours.issue(&folder("expired"), 7, LOOPBACK, "20210101000000Z")),
    ] {
        let stranger = certified(&files, "");
        let counted = [&side, &stranger].map(|side| side.statistic("other_key"));
        assert_eq!(send(&side, &stranger), Err(Errno::EKEYREJECTED), "{name}, called");
        assert_eq!(send(&stranger, &side), Err(Errno::EKEYREJECTED), "{name}, calling");
        for (side, counted) in [&side, &stranger].into_iter().zip(counted) {
            wait::drive(&[side], "the count", || (side.statistic("other_key") >= counted + 2).then_some(()));
        }
    }
    // A key excludes those with certificates, and the other way round.
    let keyed = open(Naming::TcpSealed);
    assert_eq!(send(&side, &keyed), Err(Errno::EKEYREJECTED));
    assert_eq!(send(&keyed, &side), Err(Errno::EKEYREJECTED));
    assert_eq!(send(&side, &other), Ok(()), "others are served");
}

#[test]
fn a_name_stands_for_all_addresses() {
    let ours = Authority::new("ours", 1);
    let files = ours.issue(&folder("named"), 3, Subject::Dns("job.example"), FOREVER);
    let (side, other) = (certified(&files, "job.example"), certified(&files, "job.example"));
    assert_eq!(send(&side, &other), Ok(()));
    let stranger = certified(&files, "another.example");
    assert_eq!(send(&stranger, &side), Err(Errno::EKEYREJECTED));
    assert_eq!(send(&side, &stranger), Err(Errno::EKEYREJECTED), "by its own check of the caller");
}

/// Ends that must see the same addresses, and ends that need not.
#[test]
fn ends_agree_on_their_addresses_or_on_their_translation() {
    let strict = open(Naming::TcpSealed);
    set(&[("FI_TCP_ADDRESS_TRANSLATION", "1")]);
    let (side, other) = (open(Naming::TcpSealed), open(Naming::TcpSealed));
    assert_eq!(send(&side, &other), Ok(()));
    assert_eq!(send(&side, &strict), Err(Errno::EADDRNOTAVAIL));
    assert_eq!(send(&strict, &side), Err(Errno::EADDRNOTAVAIL));
}

/// A misspelled protection opens nothing.
#[test]
fn certificates_that_cannot_be_used_open_nothing() {
    let files = Authority::new("ours", 1).issue(&folder("broken"), 3, LOOPBACK, FOREVER);
    let text = |path: &std::path::Path| path.to_str().expect("text").to_owned();
    let (cert, key, ca) = (text(&files.cert), text(&files.key), text(&files.ca));
    let other = Authority::new("ours", 1).issue(&folder("other"), 4, LOOPBACK, FOREVER);
    let info = opening(Naming::Tcp).first_info().expect("an info before");
    for (variables, named) in [
        ([&cert, "", ""], "all three or none"),
        ([&cert, &key, ""], "all three or none"),
        ([&cert, &key, "/nowhere.pem"], "FI_TCP_TLS_CA"),
        ([&key, &key, &ca], "FI_TCP_TLS_CERT"),
        ([&cert, &cert, &ca], "FI_TCP_TLS_KEY"),
        ([&cert, &text(&other.key), &ca], "FI_TCP_TLS_KEY"),
    ] {
        let [c, k, a] = variables;
        set(&[("FI_TCP_TLS_CERT", c), ("FI_TCP_TLS_KEY", k), ("FI_TCP_TLS_CA", a)]);
        let refusal = opening(Naming::Tcp).first_info().expect_err(named).to_string();
        assert!(refusal.contains(named), "{variables:?}: {refusal}");
        // One that has its info from before.
        let opened = Opening::new(ofi_tests::hints(Naming::Tcp)).info(info.clone()).open_disabled();
        let enabled = opened.and_then(|side| side.ep.enable());
        assert_eq!(enabled.expect_err(named).errno(), Errno::EINVAL, "{variables:?}");
    }
}
