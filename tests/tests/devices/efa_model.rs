//! Whole endpoints of provider `efa` on a simulated fabric, against a model (`tests/model`): seed by seed, in
//! simulated time.
//!
//! `OFI_EFA_SEEDS` sets the number of seeds, `OFI_EFA_FIRST` the first one. To repeat a seed that failed:
//! `OFI_EFA_FIRST=SEED OFI_EFA_SEEDS=1`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ofi::raw::{Address, Caps, EpType, Hints};
use ofi_efa::wire::RawAddress;
use ofi_testkit::net::Random;
use ofi_testkit::srd::{Handle, Plan, SimulatedDevice};
use ofi_testkit::{Kit, TestEndpoint};

use super::model;

/// Reliable datagram endpoints on a device.
struct Driven {
    device: Arc<SimulatedDevice>,
    /// Set once the first bytes of any message were sent ahead.
    had_runts: AtomicBool,
}

const DEVICE: &str = "driven0";
/// The default number of seeds.
const SEEDS: u64 = 200;

impl Kit for Driven {
    fn hints(&self) -> Hints {
        Hints::new().provider("efa").ep_type(EpType::Rdm).domain("driven0-rdm")
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

fn qpn(name: &Address) -> u16 {
    RawAddress::from_bytes(name.bytes()).expect("an address").qpn
}

impl model::Fabric for Driven {
    fn begin(&self, random: &mut Random, seed: u64) {
        let of = |random: &mut Random, choice: &[u64]| choice[random.below(choice.len() as u64) as usize];
        self.device.begin(Plan {
            seed,
            mtu: of(random, &[1024, 4096, 8760]) as usize,
            not_ready: of(random, &[0, 0, 5, 40]),
            late: of(random, &[0, 10, 90]),
            receives: of(random, &[16, 64, 4096]) as usize,
            rdma: random.chance(600),
            unsolicited: random.chance(500),
        });
    }

    /// A successor gets the queue pair number of the endpoint before it.
    fn open(&self, after: Option<&Address>) -> TestEndpoint {
        if let Some(name) = after {
            self.device.reuse(qpn(name));
        }
        let kit: &dyn Kit = self;
        let caps = kit.usual_caps() | Caps::ATOMIC;
        let side = kit.opening().hints(|hints| hints.caps(caps)).open();
        assert!(after.is_none_or(|name| qpn(name) == qpn(&side.name())));
        side
    }

    /// Makes the endpoint's queue pair fail.
    fn stop(&self, _random: &mut Random, name: &Address) {
        self.device.stop(qpn(name));
    }

    /// Reports a message as failed to its sender, whether or not it arrives; or some of all messages from now on.
    fn cut(&self, random: &mut Random, from: &Address, to: &Address) {
        match random.chance(500) {
            true => self.device.cut(qpn(from), qpn(to), random.chance(500)),
            false => self.device.lose(if random.chance(500) { 10 } else { 100 }),
        }
    }

    fn repeats(&self) -> bool {
        true
    }

    fn left(&self, side: &TestEndpoint, is_good: bool) -> Option<String> {
        self.had_runts.fetch_or(side.statistic("efa_runts") > 0, Ordering::Relaxed);
        let held = if is_good { side.statistic("efa_held_now") } else { 0 };
        let now = ["efa_packets_now", "efa_numbers_now", "efa_open_now"].map(|name| side.statistic(name));
        ((now, held) != ([0; 3], 0)).then(|| format!("{now:?}, {held} bytes held"))
    }

    fn is_still(&self) -> bool {
        self.device.flying() == 0
    }
}

/// Lower limits, so that short messages use every protocol.
fn settings() {
    let values = [
        ("RX_SIZE", "64"),
        ("TX_SIZE", "32"),
        ("INTER_MAX_MEDIUM_MESSAGE_SIZE", "6000"),
        ("INTER_MIN_READ_MESSAGE_SIZE", "24000"),
        ("RUNT_SIZE", "9000"),
        ("TX_MIN_CREDITS", "4"),
    ];
    for (name, value) in values {
        // SAFETY: called by the only test of this binary, before it starts threads.
        unsafe { std::env::set_var(format!("FI_EFA_{name}"), value) };
    }
}

#[test]
fn endpoints_keep_to_the_model_whatever_their_devices_do() {
    settings();
    let device = SimulatedDevice::driven(DEVICE, Plan::default());
    ofi_efa::srd::add(Arc::new(Handle(Arc::clone(&device))));
    // Refused if the provider is already registered.
    let _ = ofi::register_provider(Arc::new(ofi_efa::EfaProvider));
    let driven = Driven { device, had_runts: AtomicBool::new(false) };
    model::run(&driven, "OFI_EFA", SEEDS);
    // A few seeds alone may never send bytes ahead.
    if std::env::var_os("OFI_EFA_SEEDS").is_none() {
        assert!(driven.had_runts.into_inner(), "no message was sent ahead in part");
    }
}
