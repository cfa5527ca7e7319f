//! Names of C's stacks, such as `verbs;ofi_rxm`, in hints and in `FI_PROVIDER`.
#![cfg(all(feature = "udp", feature = "shm"))]

use std::process::Command;
use std::time::{Duration, Instant};

use ofi::raw::{EpType, Protocol};
use ofi::{Errno, Error, GetinfoFlags, Hints, Info, Node, Result, Version};

fn infos(flags: GetinfoFlags, hints: Option<&Hints>) -> Result<Vec<Info>> {
    ofi::getinfo(Version::API, None, None, flags, hints)
}

fn named(name: &str) -> Result<Vec<Info>> {
    infos(GetinfoFlags::empty(), Some(&Hints::new().provider(name)))
}

/// Runs the test `name` again, in its own process with `FI_PROVIDER` set.
#[track_caller]
fn with_setting(name: &str, value: &str) {
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", name, "--nocapture", "--test-threads=1"]).env("FI_PROVIDER", value);
    let output = again.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "FI_PROVIDER={value}: {text}");
}

#[test]
fn a_name_with_layers_is_the_provider_below_them_and_stays() {
    let stacks = [
        ("udp;ofi_rxd", Protocol::RXD),
        ("UDP;OFI_RXM", Protocol::RXM),
        ("shm;ofi_rxm", Protocol::RXM),
        ("ofi_rxd;shm", Protocol::RXD),
        ("tcp;ofi_rxm", Protocol::RXM),
    ];
    let served = |name: &str| cfg!(feature = "tcp") || name != "tcp;ofi_rxm";
    for (name, protocol) in stacks.into_iter().filter(|(name, _)| served(name)) {
        for info in named(name).unwrap() {
            assert_eq!(info.fabric_attr.prov_name, name);
            assert_eq!((info.ep_attr.ep_type, info.ep_attr.protocol), (EpType::Rdm, protocol), "{name}");
        }
        // The protocol may be in the hints, and the info's own name.
        let hints = Hints::new().provider(name).protocol(protocol);
        assert!(infos(GetinfoFlags::empty(), Some(&hints)).is_ok(), "{name}");
        let listed = infos(GetinfoFlags::PROV_ATTR_ONLY, Some(&Hints::new().provider(name))).unwrap();
        assert!(listed.iter().any(|info| info.fabric_attr.prov_name == name), "{name}");
        let (a, b) = (Node::open(&hints).unwrap(), Node::open(&hints).unwrap());
        let to_b = a.insert(&b.name().unwrap()).unwrap();
        b.recv(vec![0; 5]).unwrap();
        a.send(b"bytes".to_vec(), to_b).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        let got = loop {
            let _ = a.poll().unwrap();
            if let Some(got) = b.poll().unwrap() {
                break got;
            }
            assert!(Instant::now() < until, "nothing came over {name}");
        };
        assert_eq!(got.bytes(), b"bytes", "{name}");
    }
}

#[track_caller]
fn refused(error: &Error, why: &str) {
    let text = error.to_string();
    assert!(*error == Errno::ENODATA && text.contains(why), "{text}");
}

#[test]
fn unknown_layers_and_layers_alone_are_refused_in_words() {
    refused(&named("udp;ofi_mrail").unwrap_err(), "udp alone or with the layers ofi_rxm, ofi_rxd, off_coll");
    refused(&named("udp;ofi_mrail").unwrap_err(), "no layer ofi_mrail");
    refused(&named("ofi_rxm").unwrap_err(), "as in verbs;ofi_rxm, not alone");
    // Nobody serves the provider below.
    refused(&named("sockets;ofi_rxm").unwrap_err(), "sockets;ofi_rxm");
}

/// A build with `tcp` gives a program that does not name it the same provider as before.
#[test]
#[cfg(feature = "tcp")]
fn tcp_is_listed_after_the_others_and_is_for_those_who_name_it() {
    const NAME: &str = "layers::tcp_is_listed_after_the_others_and_is_for_those_who_name_it";
    let names = |hints: Option<&Hints>| -> Vec<String> {
        infos(GetinfoFlags::empty(), hints)
            .unwrap()
            .into_iter()
            .map(|info| info.fabric_attr.prov_name)
            .collect()
    };
    if std::env::var("FI_PROVIDER").as_deref() == Ok("tcp") {
        let all = names(None);
        assert!(!all.is_empty() && all.iter().all(|name| name == "tcp"), "{all:?}");
        return;
    }
    let connected = Hints::new().ep_type(EpType::Msg);
    for hints in [None, Some(&Hints::new()), Some(&connected)] {
        let all = names(hints);
        let first = all.iter().position(|name| name == "tcp").expect("tcp");
        let others = all.iter().rposition(|name| name == "udp" || name == "shm").expect("udp");
        assert!(first > others, "{all:?}");
    }
    // The provider itself speaks C's protocol, unlike an alias `tcp` of another provider.
    for info in named("tcp").unwrap() {
        let protocol = if info.ep_attr.ep_type == EpType::Msg { Protocol::SOCK_TCP } else { Protocol::XNET };
        assert_eq!((info.ep_attr.protocol, info.tx_attr.rma_iov_limit), (protocol, 4));
    }
    with_setting(NAME, "tcp");
}

#[test]
fn the_setting_may_name_layers() {
    const NAME: &str = "layers::the_setting_may_name_layers";
    const STACK: &str = "udp;ofi_rxd";
    match std::env::var("FI_PROVIDER").as_deref() {
        Ok(STACK) => {
            for hints in [None, Some(Hints::new()), Some(Hints::new().provider(STACK))] {
                let found = infos(GetinfoFlags::empty(), hints.as_ref()).unwrap();
                assert!(found.iter().all(|info| info.fabric_attr.prov_name == STACK), "{found:?}");
                Node::open(&hints.unwrap_or_default()).unwrap();
            }
        }
        Ok("udp") => assert!(named(STACK).is_ok() && named("shm;ofi_rxm").is_err()),
        Ok("udp;ofi_mrail") => {
            refused(&infos(GetinfoFlags::empty(), None).unwrap_err(), "no layer ofi_mrail");
        }
        Ok("^ofi_rxd") => assert!(named("udp").is_ok() && named("shm").is_ok()),
        _ => [STACK, "udp", "udp;ofi_mrail", "^ofi_rxd"]
            .into_iter()
            .for_each(|value| with_setting(NAME, value)),
    }
}
