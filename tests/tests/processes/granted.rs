//! Everything that getinfo grants works: for random requests, with every field that a program may set, each returned
//! info opens its fabric, domain and endpoint, and each of its capabilities moves a byte or counts.
//!
//! `OFI_GRANTED` sets the number of requests to each provider.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Once, OnceLock};

use ofi_testkit::prelude::*;
use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, TestRunner};

mod choices;
mod ends;
mod hubs;
mod moves;
mod opens;
mod rare;

use choices::{Case, case};

/// The node, service and flags of one request to getinfo.
pub struct Ends {
    node: Option<String>,
    service: Option<String>,
    flags: GetinfoFlags,
}

fn named(node: Option<&str>, service: Option<&str>, flags: GetinfoFlags) -> Ends {
    Ends { node: node.map(str::to_string), service: service.map(str::to_string), flags }
}

/// A provider, and the names that a request may use.
pub struct Under {
    provider: &'static str,
    /// An address that an endpoint may be opened with.
    source: fn() -> Option<Address>,
    /// Nodes and services. The first entry has none.
    ends: Vec<Ends>,
    known: OnceLock<Vec<(String, String, Protocol)>>,
}

impl Under {
    fn new(provider: &'static str, source: fn() -> Option<Address>, more: Vec<Ends>) -> Self {
        let mut ends = vec![named(None, None, GetinfoFlags::empty())];
        ends.extend(more);
        Self { provider, source, ends, known: OnceLock::new() }
    }

    /// Fabric, domain and protocol of the infos that it gives to null hints.
    fn known(&self) -> &[(String, String, Protocol)] {
        self.known.get_or_init(|| {
            let infos = ofi::getinfo(Version::API, None, None, GetinfoFlags::empty(), None).expect("infos");
            let own = infos.into_iter().filter(|info| info.fabric_attr.prov_name == self.provider);
            own.map(|info| (info.fabric_attr.name, info.domain_attr.name, info.ep_attr.protocol)).collect()
        })
    }
}

/// The source address that a provider itself names first.
fn first_source(provider: &str) -> Option<Address> {
    let hints = Hints::new().provider(provider).mode(Mode::all()).mr_mode(opens::easy_registration());
    let infos = ofi::getinfo(Version::API, None, None, GetinfoFlags::empty(), Some(&hints)).ok()?;
    infos.into_iter().find_map(|info| info.src_addr)
}

/// Requests that failed in earlier runs. Every run starts with them.
const REGRESSIONS: &str = "tests/proptest-regressions/granted.txt";
/// The default number of requests to a provider.
const CASES: u32 = 16;

/// Runs the property for one provider.
fn granted(under: &Under) {
    let cases =
        std::env::var("OFI_GRANTED").map_or(CASES, |count| count.parse().expect("a number of requests"));
    let config = ProptestConfig {
        cases,
        max_shrink_iters: 300,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(REGRESSIONS))),
        ..ProptestConfig::default()
    };
    let start = Instant::now();
    let outcome = TestRunner::new(config).run(&case(), |case: Case| {
        opens::all(under, &case);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{}: {error}", under.provider);
    }
    let (opened, moved) = (opens::OPENED.load(Relaxed) as u32, moves::MOVED.load(Relaxed) as u32);
    let seconds = start.elapsed().as_secs_f32();
    println!("{}: {cases} requests, {opened} infos opened, {moved} moves, {seconds:.1} s", under.provider);
    let least = if cases < 200 { 1 } else { cases / 5 };
    assert!(opened >= least && moved > opened, "most requests are refused: nothing is tested");
}

#[test]
fn shm() {
    let name = |what: &str| format!("fi_shm://granted-{what}-{}", std::process::id());
    let source = || Some(Address::from_text(&format!("fi_shm://granted-source-{}", std::process::id())));
    let port = (20_000 + std::process::id() % 20_000).to_string();
    let from = GetinfoFlags::SOURCE;
    granted(&Under::new(
        "shm",
        source,
        vec![
            named(Some(&name("node")), None, from),
            named(Some(&name("other")), None, GetinfoFlags::empty()),
            named(Some("127.0.0.1"), Some(&port), from),
            named(None, Some(&port), from),
            named(Some("localhost"), Some(&port), GetinfoFlags::empty()),
            named(None, Some("granted"), from),
            named(Some("nobody.invalid"), None, GetinfoFlags::empty()),
        ],
    ));
}

#[test]
fn udp() {
    let from = GetinfoFlags::SOURCE;
    granted(&Under::new(
        "udp",
        || Some(Address::from(SocketAddr::from(([127, 0, 0, 1], 0)))),
        vec![
            named(Some("127.0.0.1"), None, from),
            named(Some("127.0.0.1"), Some("0"), from | GetinfoFlags::NUMERICHOST),
            named(None, Some("0"), from),
            named(Some("::1"), Some("0"), from),
            named(Some("localhost"), Some("7713"), GetinfoFlags::empty()),
            named(Some("::1"), Some("7713"), GetinfoFlags::empty()),
            named(Some("nobody.invalid"), None, GetinfoFlags::NUMERICHOST),
        ],
    ));
}

#[test]
fn tcp() {
    let from = GetinfoFlags::SOURCE;
    granted(&Under::new(
        "tcp",
        || Some(Address::from(SocketAddr::from(([127, 0, 0, 1], 0)))),
        vec![
            named(Some("127.0.0.1"), None, from),
            named(Some("127.0.0.1"), Some("0"), from | GetinfoFlags::NUMERICHOST),
            named(None, Some("0"), from),
            named(Some("::1"), Some("0"), from),
            named(Some("localhost"), Some("7714"), GetinfoFlags::empty()),
            named(Some("::1"), Some("7714"), GetinfoFlags::empty()),
            named(Some("nobody.invalid"), None, GetinfoFlags::NUMERICHOST),
        ],
    ));
}

#[test]
fn verbs() {
    static ADDED: Once = Once::new();
    ADDED.call_once(|| {
        use ofi_testkit::rc::{Handle, Plan, SimulatedDevice};
        let device = SimulatedDevice::new("simulated0", Plan::default());
        ofi_verbs::rc::add(Arc::new(Handle(device)));
        // Refused if the provider is already registered.
        let _ = ofi::register_provider(Arc::new(ofi_verbs::VerbsProvider));
    });
    granted(&Under::new("verbs", || first_source("verbs"), of_device("verbs")));
}

#[test]
fn efa() {
    static ADDED: Once = Once::new();
    ADDED.call_once(|| {
        use ofi_testkit::srd::{Handle, Plan, SimulatedDevice};
        let device = SimulatedDevice::new("simulated0", Plan::default());
        ofi_efa::srd::add(Arc::new(Handle(device)));
        // Refused if the provider is already registered.
        let _ = ofi::register_provider(Arc::new(ofi_efa::EfaProvider));
    });
    granted(&Under::new("efa", || first_source("efa"), of_device("efa")));
}

/// The text of a provider's first source address, as the local end and as the peer; and a node that does not exist.
fn of_device(provider: &str) -> Vec<Ends> {
    let text = first_source(provider).map(|address| address.to_string());
    let mut all = vec![named(Some("nobody.invalid"), Some("1"), GetinfoFlags::NUMERICHOST)];
    for flags in [GetinfoFlags::SOURCE, GetinfoFlags::empty()] {
        all.extend(text.as_deref().map(|text| named(Some(text), None, flags)));
    }
    all
}
