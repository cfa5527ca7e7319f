//! Whole endpoints of provider `verbs` on a simulated fabric, against a model (`tests/model`): seed by seed,
//! in simulated time.
//!
//! `OFI_VERBS_SEEDS` sets the number of seeds, `OFI_VERBS_FIRST` the first one. To repeat a seed that failed:
//! `OFI_VERBS_FIRST=SEED OFI_VERBS_SEEDS=1`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ofi::raw::{AddrFormat, Address, Caps, EpType, Hints};
use ofi_testkit::net::Random;
use ofi_testkit::rc::{Handle, Plan, SimulatedDevice};
use ofi_testkit::{Kit, TestEndpoint};

use super::model;

/// Reliable datagram endpoints on a device.
struct Driven(Arc<SimulatedDevice>);

/// The most idle connections that one endpoint has closed.
static RETIRED: AtomicU64 = AtomicU64::new(0);

const DEVICE: &str = "driven0";
/// The receives of an endpoint at its device.
const RECEIVES: usize = 64;

impl Kit for Driven {
    fn hints(&self) -> Hints {
        let hints = Hints::new().provider("verbs").ep_type(EpType::Rdm);
        hints.addr_format(AddrFormat::SockaddrIn).domain(DEVICE)
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

fn at(name: &Address) -> SocketAddr {
    name.to_socket_addr().expect("an address")
}

impl model::Fabric for Driven {
    fn begin(&self, random: &mut Random, seed: u64) {
        let of = |random: &mut Random, choice: &[u64]| choice[random.below(choice.len() as u64) as usize];
        // An endpoint with fewer connections than peers closes idle ones; with 0 it closes each as soon as it
        // is idle.
        set("MAX_CONNECTIONS", &of(random, &[0, 1, 1024]).to_string());
        self.0.begin(Plan {
            seed,
            not_ready: of(random, &[0, 0, 5, 40]),
            late: of(random, &[0, 10, 90]),
            unplaced: of(random, &[0, 50]),
            slow: of(random, &[0, 10, 60]),
            inline: of(random, &[0, 64, 256]) as usize,
            cleans: random.chance(300),
            requests: of(random, &[1024, 1024, 8]) as usize,
            ..Plan::default()
        });
    }

    fn open(&self, _after: Option<&Address>) -> TestEndpoint {
        let kit: &dyn Kit = self;
        let caps = kit.usual_caps() | Caps::ATOMIC;
        kit.opening().hints(|hints| hints.caps(caps)).open()
    }

    /// The endpoint stops answering, and its peers get no event.
    fn stop(&self, _random: &mut Random, name: &Address) {
        self.0.vanish(at(name));
    }

    /// The connection fails at one end.
    fn cut(&self, _random: &mut Random, from: &Address, to: &Address) {
        self.0.fail(at(from), at(to));
    }

    fn places_late(&self) -> bool {
        true
    }

    fn withdraws(&self) -> bool {
        true
    }

    fn left(&self, side: &TestEndpoint, _is_good: bool) -> Option<String> {
        let now =
            ["verbs_requests_now", "verbs_waiting_now", "verbs_slots_now"].map(|name| side.statistic(name));
        let receives = self.0.receives(at(&side.name()));
        RETIRED.fetch_max(side.statistic("verbs_retired"), Ordering::Relaxed);
        ((now, receives) != ([0; 3], RECEIVES)).then(|| format!("{now:?}, {receives} receives"))
    }

    fn is_still(&self) -> bool {
        self.0.is_still()
    }
}

fn settings() {
    let receives = RECEIVES.to_string();
    let values = [
        ("RX_SLOTS", &receives[..]),
        ("PEER_CREDITS", "8"),
        ("CONNECT_TIMEOUT_MS", "100"),
        ("KEEPALIVE_MS", "10"),
        ("LINGER_MS", "20"),
    ];
    values.into_iter().for_each(|(name, value)| set(name, value));
}

/// Sets one of the provider's settings, which an endpoint reads when it opens.
fn set(name: &str, value: &str) {
    // SAFETY: this binary has one test, which starts no threads that read the environment.
    unsafe { std::env::set_var(format!("FI_VERBS_{name}"), value) };
}

#[test]
fn endpoints_keep_to_the_model_whatever_their_devices_do() {
    settings();
    let device = SimulatedDevice::driven(DEVICE, Plan::default());
    ofi_verbs::rc::add(Arc::new(Handle(Arc::clone(&device))));
    // Refused if the provider is already registered.
    let _ = ofi::register_provider(Arc::new(ofi_verbs::VerbsProvider));
    model::run(&Driven(device), "OFI_VERBS", 200);
    assert!(RETIRED.load(Ordering::Relaxed) > 0, "no connection was closed for being idle in any seed");
}
