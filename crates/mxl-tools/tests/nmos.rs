//! `mxl-info --nmos`, with a stand-in of a registry.
#![cfg(feature = "nmos")]

#[path = "../../mxl-nmos/tests/common/registry.rs"]
mod registry;

use std::process::Command;

use mxl::{FlowDefinition, Rational};
use mxl_nmos::{Node, NodeOptions, Registration, Registries};
use registry::{Registry, until};

fn info(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_mxl-info")).args(arguments).output().unwrap();
    (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

#[test]
fn senders_of_a_registry_are_listed() {
    let registry = Registry::start();
    let options = NodeOptions {
        seed: "info".into(),
        label: "studio".into(),
        hostname: "host".into(),
        host: ("127.0.0.1".into(), 1),
        domain: None,
        receivers: 0,
        gateway: None,
    };
    let node = std::sync::Arc::new(Node::new(options, Box::new(())));
    node.set_flows([
        FlowDefinition::video("camera\u{1b}[2J", 1920, 1080, Rational::new(60_000, 1001)).unwrap()
    ]);
    let registries = Registries::new([&*registry.url()]).unwrap();
    let _registration = Registration::start(node, registries, Box::new(|_| {})).unwrap();
    until("a sender", || (registry.count("senders") == 1).then_some(()));
    let (is_fine, table) = info(&["--nmos", &registry.url()]);
    let wanted = ["video/v210", "60000/1001", "active", "studio", "camera\\u{1b}[2J"];
    assert!(is_fine && wanted.iter().all(|wanted| table.contains(wanted)), "{table}");
    let (is_fine, json) = info(&["--nmos", &registry.url(), "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(
        is_fine && json[0]["label"] == "camera\u{1b}[2J" && json[0]["rate"]["denominator"] == 1001,
        "{json}"
    );
    let (is_fine, why) = info(&["--nmos", "https://registry"]);
    assert!(!is_fine && why.contains("TLS is not supported"), "{why}");
    registry.set_failure(Some(500));
    let (is_fine, why) = info(&["--nmos", &registry.url()]);
    assert!(!is_fine && why.contains("500"), "{why}");
}
