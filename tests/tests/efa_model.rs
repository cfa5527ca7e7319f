//! Whole endpoints of provider `efa` on a simulated fabric, against a model (`tests/efa/model`): seed by seed, in the time of the fabric.
//!
//! `OFI_EFA_SEEDS` says how many seeds, `OFI_EFA_FIRST` with which one to begin: one that fails is found again by
//! `OFI_EFA_FIRST=SEED OFI_EFA_SEEDS=1`.

use std::sync::Arc;

use ofi::raw::{Caps, EpType, Hints};
use ofi_testkit::srd::{Handle, Plan, SimulatedDevice};
use ofi_testkit::{Kit, Side};

#[path = "../efa/model/mod.rs"]
mod model;

/// Reliable datagram endpoints on that device.
struct Driven;

const DEVICE: &str = "driven0";

impl Kit for Driven {
    fn hints(&self) -> Hints {
        Hints::new().provider("efa").ep_type(EpType::Rdm).domain("driven0-rdm")
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

fn open() -> Side {
    let kit: &dyn Kit = &Driven;
    kit.opening()
        .hints(|hints| {
            let caps = kit.usual_caps() | Caps::ATOMIC;
            hints.caps(caps)
        })
        .open()
}

/// Short messages of every kind: what is long by default is long here too.
fn settings() {
    let values = [
        ("RX_SIZE", "64"),
        ("TX_SIZE", "32"),
        ("INTER_MAX_MEDIUM_MESSAGE_SIZE", "6000"),
        ("INTER_MIN_READ_MESSAGE_SIZE", "24000"),
        ("TX_MIN_CREDITS", "4"),
    ];
    for (name, value) in values {
        // SAFETY: the one test of this binary, before it starts anything.
        unsafe { std::env::set_var(format!("FI_EFA_{name}"), value) };
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number of seeds"))
}

#[test]
fn endpoints_keep_to_the_model_whatever_their_devices_do() {
    settings();
    let device = SimulatedDevice::driven(DEVICE, Plan::default());
    ofi_efa::srd::add(Arc::new(Handle(Arc::clone(&device))));
    // Where the library has it already, this is refused.
    let _ = ofi::register_provider(Arc::new(ofi_efa::EfaProvider));
    let (first, seeds) = (number("OFI_EFA_FIRST").unwrap_or(1), number("OFI_EFA_SEEDS").unwrap_or(200));
    let mut bad = Vec::new();
    for seed in first..first + seeds {
        let ran = std::panic::catch_unwind(|| model::Model::run(&device, open, seed));
        if ran.is_err() {
            bad.push(seed);
            eprintln!("seed {seed} failed; again: OFI_EFA_FIRST={seed} OFI_EFA_SEEDS=1");
            if bad.len() == 3 {
                break;
            }
        }
    }
    assert!(bad.is_empty(), "of seeds {first} to {}: {bad:?}", first + seeds - 1);
}
