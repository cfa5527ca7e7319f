//! Settings of `udp` that protect packets, and whose defaults protect less: with an invalid value nothing
//! opens.
#![cfg(feature = "udp")]

use std::process::Command;

use ofi::raw::{AvAttr, BindFlags, Caps, CqAttr, EpType};
use ofi::{Errno, Error, GetinfoFlags, Hints, Info, Node, Version};

const MISSPELLED: [(&str, &str); 2] = [("FI_UDP_ENCRYPTION", "requierd"), ("FI_UDP_CHECKSUM", "ture")];

/// Set in a process that runs one test alone.
const ALONE: &str = "OFI_TEST_ALONE";

fn hints() -> Hints {
    Hints::new().provider("udp")
}

/// Runs the test `name` again, in its own process with a variable set.
#[track_caller]
fn in_a_process(name: &str, variable: &str, value: &str) {
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(variable, value);
    let output = again.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{variable}={value}: {text}");
}

#[test]
fn a_misspelled_protection_is_refused() {
    let set = |(variable, _): &(&str, &str)| std::env::var_os(variable).is_some();
    let Some((variable, value)) = MISSPELLED.into_iter().find(set) else {
        return MISSPELLED.into_iter().for_each(|(variable, value)| {
            in_a_process("protections::a_misspelled_protection_is_refused", variable, value);
        });
    };
    // A program that names no provider does not get one that sends in the clear either.
    let unnamed = Hints::new().caps(Caps::MSG | Caps::REMOTE_COMM);
    let found =
        ofi::getinfo(Version::API, None, None, GetinfoFlags::empty(), Some(&unnamed)).unwrap_or_default();
    assert!(found.iter().all(|info| info.fabric_attr.prov_name != "tcp"), "{variable}={value}: {found:?}");
    let error = Node::open(&hints()).map(drop).unwrap_err();
    assert_eq!(error, Errno::ENODATA);
    let text = error.to_string();
    let parts = [&format!("{variable}={value}") as &str, "it must be one of", "correct the variable"];
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
}

#[track_caller]
fn assert_names(error: &Error, (variable, value): (&str, &str)) {
    let text = error.to_string();
    assert_eq!(*error, Errno::EINVAL, "{text}");
    assert!([variable, value, "it must be one of"].iter().all(|part| text.contains(part)), "{text}");
}

fn info(ep_type: EpType) -> Info {
    let hints = hints().ep_type(ep_type);
    ofi::getinfo(Version::API, None, None, GetinfoFlags::empty(), Some(&hints)).unwrap().remove(0)
}

/// The info may be older than the setting, or not come from getinfo at all.
#[test]
fn with_a_misspelled_protection_no_endpoint_opens() {
    if std::env::var_os(ALONE).is_none() {
        return in_a_process("protections::with_a_misspelled_protection_no_endpoint_opens", ALONE, "1");
    }
    let (info, connected) = (info(EpType::Rdm), info(EpType::Msg));
    for (variable, value) in MISSPELLED {
        // SAFETY: this process has no other thread that reads its environment: it runs this test alone.
        unsafe { std::env::set_var(variable, value) };
        let fabric = ofi::open_fabric(&info).unwrap();
        let domain = fabric.open_domain(&info).unwrap();
        let endpoint = domain.open_endpoint(&info).unwrap();
        endpoint.bind_av(&domain.open_av(&AvAttr::default()).unwrap()).unwrap();
        let queue = domain.open_cq(&CqAttr::default()).unwrap();
        endpoint.bind_cq(&queue, BindFlags::TRANSMIT | BindFlags::RECV).unwrap();
        assert_names(&endpoint.enable().unwrap_err(), (variable, value));
        let fabric = ofi::open_fabric(&connected).unwrap();
        let passive = fabric.open_passive(&connected).unwrap();
        passive.bind_eq(&fabric.open_eq(&ofi::raw::EqAttr::default()).unwrap()).unwrap();
        assert_names(&passive.listen().unwrap_err(), (variable, value));
        // SAFETY: as above.
        unsafe { std::env::remove_var(variable) };
    }
}

/// An endpoint that should be reachable on one interface must not be reachable on all.
#[test]
fn an_interface_that_is_not_there_is_not_all_of_them() {
    const VARIABLE: &str = "FI_UDP_IFACE";
    if std::env::var_os(VARIABLE).is_none() {
        return in_a_process(
            "protections::an_interface_that_is_not_there_is_not_all_of_them",
            VARIABLE,
            "no-such-interface",
        );
    }
    for ep_type in [EpType::Rdm, EpType::Dgram] {
        let error = Node::open(&hints().ep_type(ep_type)).map(drop).unwrap_err();
        let text = error.to_string();
        assert_eq!(error, Errno::EADDRNOTAVAIL, "{text}");
        assert!([VARIABLE, "no-such-interface"].iter().all(|part| text.contains(part)), "{text}");
    }
    let infos = ofi::getinfo(Version::API, None, None, GetinfoFlags::empty(), Some(&hints())).unwrap();
    assert!(infos.iter().all(|info| info.domain_attr.name != "lo"), "another interface is offered by itself");
}
