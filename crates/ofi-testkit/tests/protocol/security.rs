//! Keys and suites of `ofi-rdm` under the simulated network: which ends get a session, and the fate of an attacker who
//! changes, repeats or forges packets on the path.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ofi_rdm::congestion::Congestion;
use ofi_rdm::wire::header::{self, flag};
use ofi_rdm::wire::{Header, Kind};
use ofi_rdm::{EndpointStats, Lost, Stream, suites};
use ofi_testkit::net::{Net, NetworkLink};

type Wish = (u8, &'static [u8]);

const PLAIN: Wish = (suites::CLEAR, b"");
const ANY: Wish = (suites::ALL, b"");
const REQUIRED: Wish = (suites::ENCRYPTED, b"");
const JOB: Wish = (suites::ENCRYPTED, b"job 7");
const JOB_CLEAR: Wish = (suites::CLEAR, b"job 7");
const OTHER: Wish = (suites::ENCRYPTED, b"job 8");
const AES: Wish = (suites::AES_256_GCM, b"job 7");
const CHACHA: Wish = (suites::CHACHA20_POLY1305, b"job 7");

fn net(wishes: [Wish; 2], link: NetworkLink) -> Net {
    let mut net = Net::new(40, 2, link, Congestion::Reno);
    net.security = wishes.to_vec();
    (0..2).for_each(|host| net.start(host));
    net
}

fn stats(net: &Net, host: usize) -> EndpointStats {
    net.hosts[host].endpoint.as_ref().unwrap().statistics()
}

fn arrived(net: &Net, from: usize, to: usize) -> usize {
    net.model(to, from).map_or(0, |model| model.received[0].len())
}

/// Sealed and unsealed data packets on the wire. The counts belong to the process: nextest runs each test in its own,
/// and only one test uses them.
static SEALED: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

fn count(bytes: &mut [u8]) {
    if let Ok((head, _)) = Header::parse(bytes)
        && head.kind == Kind::Data
    {
        SEALED[usize::from(head.flags & flag::SEALED == 0)].fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn ends_of_one_key_and_a_common_suite_talk_and_others_hear_why_not() {
    for (one, other, expected) in [
        (PLAIN, PLAIN, Ok(false)),
        (PLAIN, ANY, Ok(false)),
        (ANY, ANY, Ok(false)),
        (ANY, REQUIRED, Ok(true)),
        (REQUIRED, REQUIRED, Ok(true)),
        (REQUIRED, PLAIN, Err(Lost::Suites)),
        (JOB, JOB, Ok(true)),
        (JOB, AES, Ok(true)),
        (JOB, CHACHA, Ok(true)),
        (JOB_CLEAR, JOB_CLEAR, Ok(false)),
        (JOB_CLEAR, JOB, Err(Lost::Suites)),
        (AES, CHACHA, Err(Lost::Suites)),
        (JOB, OTHER, Err(Lost::Key)),
        (JOB, REQUIRED, Err(Lost::Key)),
        (JOB, ANY, Err(Lost::Key)),
        (JOB_CLEAR, PLAIN, Err(Lost::Key)),
    ] {
        for wishes in [[one, other], [other, one]] {
            let before = SEALED.each_ref().map(|count| count.load(Ordering::Relaxed));
            let mut net = net(wishes, NetworkLink { damage: Some(count), ..NetworkLink::default() });
            net.record(0, 1, Stream::Commands, 100);
            net.payload(0, 1, Stream::Bulk, 300_000);
            net.run(Duration::from_secs(1));
            let model = net.model(0, 1).unwrap();
            match expected {
                Ok(sealed) => {
                    assert_eq!(arrived(&net, 0, 1), 1, "{wishes:?}");
                    assert!(model.is_acked() && model.lost == 0, "{wishes:?}");
                    let after = SEALED.each_ref().map(|count| count.load(Ordering::Relaxed));
                    assert_eq!(
                        after[usize::from(sealed)],
                        before[usize::from(sealed)],
                        "{wishes:?}: sealed?"
                    );
                    assert!(after[usize::from(!sealed)] > before[usize::from(!sealed)] + 4);
                }
                Err(reason) => {
                    assert_eq!((model.reason, arrived(&net, 0, 1)), (Some(reason), 0), "{wishes:?}");
                    assert!(stats(&net, 1).rejected > 0);
                    assert_eq!(
                        net.hosts[1].endpoint.as_ref().unwrap().peers(),
                        0,
                        "state is kept for a rejected peer"
                    );
                }
            }
        }
    }
}

#[test]
fn both_may_ask_at_once_and_both_hear_of_the_other_s_key() {
    let mut net = net([JOB, OTHER], NetworkLink::default());
    for _ in 0..10 {
        net.record(0, 1, Stream::Commands, 10);
        net.record(1, 0, Stream::Commands, 10);
        net.run(Duration::from_secs(1));
        let reasons = [net.model(0, 1), net.model(1, 0)].map(|model| model.unwrap().reason);
        assert_eq!(reasons, [Some(Lost::Key); 2]);
    }
}

/// Flips one bit of every data packet, at a moving place.
fn turn_a_bit(bytes: &mut [u8]) {
    static PLACE: AtomicU64 = AtomicU64::new(0);
    if bytes[1] == Kind::Data as u8 {
        let place = PLACE.fetch_add(7, Ordering::Relaxed) as usize % (bytes.len() * 8);
        bytes[place / 8] ^= 1 << (place % 8);
    }
}

#[test]
fn no_changed_bit_of_a_packet_gets_through() {
    for wish in [AES, CHACHA] {
        let mut net = net([wish, wish], NetworkLink::default());
        net.record(0, 1, Stream::Commands, 10);
        net.run(Duration::from_secs(1));
        net.link.damage = Some(turn_a_bit);
        net.record(0, 1, Stream::Commands, 1000);
        net.payload(0, 1, Stream::Bulk, 20_000);
        net.run(Duration::from_secs(100));
        assert_eq!(arrived(&net, 0, 1), 1, "only the first record");
        assert_eq!(net.model(0, 1).unwrap().lost, 0, "the session must last while the peer's process lives");
        assert!(stats(&net, 1).forged > 50, "{:?}", stats(&net, 1));
        net.link.damage = None;
        net.run(Duration::from_secs(10));
        assert!(net.model(0, 1).unwrap().is_acked());
        assert_eq!(arrived(&net, 0, 1), 2);
    }
}

/// Changes the offered suites of a question, with a valid checksum.
fn offer(bytes: &mut [u8], suites: u8) {
    if let Ok((head, _)) = Header::parse(bytes)
        && head.kind == Kind::Init
    {
        bytes[header::LEN + 56] = suites;
        head.write(bytes);
    }
}

#[test]
fn nobody_on_the_way_gets_two_ends_to_take_less_than_they_would() {
    // Without a key: the server's version of the question differs from the client's.
    for (wishes, damage) in [
        ([REQUIRED, REQUIRED], (|bytes| offer(bytes, suites::CHACHA20_POLY1305)) as fn(&mut [u8])),
        ([REQUIRED, ANY], |bytes| offer(bytes, suites::CLEAR)),
        ([REQUIRED, ANY], |bytes| offer(bytes, suites::ALL)),
    ] {
        let mut net = net(wishes, NetworkLink { damage: Some(damage), ..NetworkLink::default() });
        net.record(0, 1, Stream::Commands, 10);
        net.run(Duration::from_secs(2));
        assert_eq!(arrived(&net, 0, 1), 0, "{wishes:?}");
        assert!(stats(&net, 0).forged > 0, "{wishes:?}");
        net.run(Duration::from_secs(20));
        assert_eq!(net.model(0, 1).unwrap().reason, Some(Lost::Silent));
    }
    // With a key, the server itself notices.
    let damage: fn(&mut [u8]) = |bytes| offer(bytes, suites::CHACHA20_POLY1305);
    let mut net = net([JOB, JOB], NetworkLink { damage: Some(damage), ..NetworkLink::default() });
    net.record(0, 1, Stream::Commands, 10);
    net.run(Duration::from_secs(2));
    assert_eq!(arrived(&net, 0, 1), 0);
    assert!(stats(&net, 1).rejected > 0 && stats(&net, 1).sessions == 0);
}

/// Replaces the public key of a question by one that results in a publicly known secret.
fn weaken(bytes: &mut [u8]) {
    if let Ok((head, _)) = Header::parse(bytes)
        && head.kind == Kind::Init
    {
        // Not in a question without a key.
        if bytes[header::LEN + 88..header::LEN + 120] != [0; 32] {
            bytes[header::LEN + 88..header::LEN + 120].fill(0);
            bytes[header::LEN + 119] = 128; // equivalent to 0, but not all zeros
            head.write(bytes);
        }
    }
}

#[test]
fn a_public_key_that_is_none_gets_no_session() {
    let mut net = net([REQUIRED, REQUIRED], NetworkLink { damage: Some(weaken), ..NetworkLink::default() });
    net.record(0, 1, Stream::Commands, 10);
    net.run(Duration::from_secs(1));
    assert_eq!(stats(&net, 1).sessions, 0);
    assert!(!net.hosts[1].endpoint.as_ref().unwrap().is_open(0));
    assert_eq!(net.model(0, 1).unwrap().reason, Some(Lost::Key));
}

#[test]
fn packets_that_are_sent_again_or_made_up_change_nothing() {
    for wish in [AES, CHACHA] {
        let mut net = net([wish, wish], NetworkLink { duplicate: 1000, ..NetworkLink::default() });
        for _ in 0..50 {
            net.record(0, 1, Stream::Commands, 100);
            net.run(Duration::from_millis(1));
        }
        net.run(Duration::from_secs(1));
        assert_eq!(arrived(&net, 0, 1), 50);
        // An attacker who has seen the names forges a close and data.
        let name = net.hosts[1].endpoint.as_ref().unwrap().session_name(0).unwrap();
        for (frames, flags) in [(&[5, 0, 0][..], 0), (&[1; 40], flag::SEALED), (&[5, 0, 0], flag::CHECKED)] {
            let mut packet = vec![0u8; header::LEN];
            packet.extend_from_slice(frames);
            Header { flags, ..Header::new(Kind::Data, name, 1 << 20) }.write(&mut packet);
            let (to, before) = (net.address(1), stats(&net, 1).forged);
            net.put(0, to, packet);
            net.run(Duration::from_millis(1));
            assert!(stats(&net, 1).forged > before, "{frames:?} {flags}");
        }
        net.record(0, 1, Stream::Commands, 100);
        net.run(Duration::from_secs(1));
        assert_eq!((arrived(&net, 0, 1), net.model(1, 0).unwrap().lost), (51, 0));
    }
}

#[test]
fn a_restarted_peer_is_met_under_new_keys() {
    for wish in [AES, CHACHA, JOB_CLEAR] {
        let mut net = net([wish, wish], NetworkLink::default());
        for round in 1..5 {
            net.record(0, 1, Stream::Commands, 10);
            net.run(Duration::from_secs(1));
            assert_eq!(arrived(&net, 0, 1), 1, "{round}");
            net.kill(1);
            net.start(1);
            net.record(0, 1, Stream::Commands, 10);
            net.run(Duration::from_secs(1));
            assert_eq!(net.model(0, 1).unwrap().reason, Some(Lost::Reset));
        }
    }
}

/// The path's packets contain the tag within their length.
#[test]
fn sealed_packets_are_no_longer_than_the_path_carries() {
    for (longest, found) in [(1472, 1452), (9000, 8952), (usize::MAX, 65_000)] {
        let mut net = net([JOB, JOB], NetworkLink { longest, ..NetworkLink::default() });
        net.record(0, 1, Stream::Commands, 10);
        net.run(Duration::from_secs(30));
        net.payload(0, 1, Stream::Commands, 500_000);
        net.run(Duration::from_secs(1));
        assert!(net.model(0, 1).unwrap().is_acked());
        let stats = net.hosts[0].endpoint.as_ref().unwrap().peer_statistics(0).unwrap();
        assert_eq!(
            (stats.packet_size, stats.lost),
            (found, if longest == usize::MAX { 0 } else { stats.lost })
        );
    }
}
