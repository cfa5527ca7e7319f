//! A Node in a registry that others wrote: Streampunk's ledger, which has IS-04 v1.0 and so no MXL transport.
//! `cargo xtask nmos` installs it, and names its program and that of Node.js.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mxl::{FlowDefinition, Rational};
use mxl_nmos::{Node, NodeOptions, Query, Registration, Registries};

/// Longer than anything takes on a loaded machine.
const LONG: Duration = Duration::from_secs(40);
/// Longer than the registry keeps a Node without a heartbeat: twelve seconds, and its interval of looks.
const FORGOTTEN: Duration = Duration::from_secs(20);

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ports that were free a moment ago.
fn ports() -> [u16; 2] {
    let listeners = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < LONG, "timeout: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_registry_of_others_keeps_a_node_while_it_lives() {
    let Some(ledger) = std::env::var_os("OFI_NMOS_LEDGER") else {
        println!("NOT RUN: a_registry_of_others_keeps_a_node_while_it_lives: cargo xtask nmos runs it");
        return;
    };
    let [registration, query] = ports();
    let mut program = Command::new(std::env::var_os("OFI_NMOS_NODE").unwrap_or_else(|| "node".into()));
    program.arg(ledger).args([format!("registrationPort={registration}"), format!("queryPort={query}")]);
    let _ledger = Running(program.arg("iface=127.0.0.1").stdout(Stdio::null()).spawn().unwrap());
    let query = until("the registry", || Query::open(&format!("http://127.0.0.1:{query}")).ok());
    let options = NodeOptions {
        seed: "ledger".into(),
        label: "studio".into(),
        hostname: "host".into(),
        host: ("127.0.0.1".into(), 1),
        domain: None,
        receivers: 0,
        gateway: None,
    };
    let node = Arc::new(Node::new(options, Box::new(())));
    let registries = Registries::new([&*format!("http://127.0.0.1:{registration}")]).unwrap();
    let said = Arc::<Mutex<Vec<String>>>::default();
    let start = || {
        let said = Arc::clone(&said);
        let log = Box::new(move |line: &str| said.lock().unwrap().push(line.into()));
        Registration::start(Arc::clone(&node), registries.clone(), log).unwrap()
    };
    let count = |kind: &str| query.list(kind).unwrap().len();
    let kept = start();
    until("the device", || (count("devices") == 1).then_some(()));
    // Heartbeats keep it.
    std::thread::sleep(FORGOTTEN);
    assert_eq!(["nodes", "devices"].map(count), [1, 1]);
    drop(kept);
    assert_eq!(["nodes", "devices"].map(count), [0, 0]);
    // The transport of a sender is unknown to it; the rest is registered, and nothing is tried again. After a refusal
    // this registry fails at everything but reading.
    node.set_flows([FlowDefinition::video("camera", 1920, 1080, Rational::new(50, 1)).unwrap()]);
    let _kept = start();
    until("the refusal", || {
        said.lock().unwrap().iter().any(|line| line.contains("refused with 400")).then_some(())
    });
    assert_eq!(["nodes", "devices", "sources", "flows", "senders"].map(count), [1, 1, 1, 1, 0]);
    assert_eq!(query.list("flows").unwrap()[0]["label"], "camera");
    let lines = said.lock().unwrap().clone();
    let refused = lines.iter().filter(|line| line.contains("sender") && line.contains("refused with 400"));
    assert_eq!(refused.count(), 1, "{lines:?}");
}
