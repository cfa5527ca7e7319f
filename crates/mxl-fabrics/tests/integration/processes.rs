//! Two processes, either of which is killed and restarted.

use std::path::Path;
use std::time::{Duration, Instant};

use mxl::{BatchHints, FlowDefinition, GrainReader, GrainWriter, Wait};
use mxl_fabrics::{Provider, Received, Target};

use super::common::{ANY, Folder, LONG, Running, byte_of, camera, demo, demo_until};

/// Writes a grain, and waits for a moment.
fn write_one(writer: &GrainWriter, index: u64) {
    let mut grain = writer.open(index).unwrap();
    let bytes = vec![byte_of(index); grain.len()];
    grain.write(0, &bytes).unwrap();
    grain.commit().unwrap();
    std::thread::sleep(Duration::from_millis(5));
}

/// Writes grains until the far reader has `count` correct ones. Returns the next index.
fn until_arrived(
    writer: &GrainWriter,
    mut index: u64,
    reader: impl Fn() -> Option<GrainReader>,
    count: u32,
) -> u64 {
    let begin = Instant::now();
    let mut open = None;
    let (mut right, mut last) = (0, 0);
    while right < count {
        assert!(begin.elapsed() < LONG, "{right} of {count} arrived");
        write_one(writer, index);
        index += 1;
        let there: &Option<GrainReader> = &open;
        if there.as_ref().is_none_or(|there| !there.is_current()) {
            open = reader();
        }
        let Some(there) = &open else { continue };
        let head = there.head();
        if head == last {
            continue;
        }
        let Ok(grain) = there.read(head, Wait::Not) else { continue };
        // On a busy machine the source may be overwritten while it is sent: then the far end flags the grain.
        if let Ok(bytes) = grain.to_vec()
            && !grain.info().is_invalid()
        {
            assert!(bytes.iter().all(|&byte| byte == byte_of(head)), "grain {head} is torn");
            (right, last) = (right + 1, head);
        }
    }
    index
}

/// Writes grains until a process is dead. Returns the next index.
fn until_dead(writer: &GrainWriter, mut index: u64, process: &mut Running) -> u64 {
    let begin = Instant::now();
    while !process.is_dead() {
        assert!(begin.elapsed() < LONG, "the process is alive");
        write_one(writer, index);
        index += 1;
    }
    index
}

fn definition_in(folder: &Folder, definition: &FlowDefinition) -> String {
    let path = folder.path().join("flow.json");
    std::fs::write(&path, definition.to_json()).unwrap();
    path.to_str().unwrap().to_owned()
}

fn wait_for(path: &Path) {
    let begin = Instant::now();
    while std::fs::read(path).map_or(0, |text| text.len()) == 0 {
        assert!(begin.elapsed() < LONG, "no target info");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The address of a target, and whether it is the same after a restart of its process.
struct Place<'a> {
    provider: &'a str,
    node: Option<&'a str>,
    service: Option<&'a str>,
    lasts: bool,
}

fn either_end_comes_back(Place { provider, node, service, lasts }: Place<'_>) {
    let (near, far) = (Folder::new(), Folder::new());
    let definition = camera();
    let id = definition.id.to_string();
    let file = definition_in(&far, &definition);
    let info = far.path().join("info.json");
    let at = format!("@{}", info.to_str().unwrap());
    let mut target = vec!["-p", provider, "-f", &file, "-t", info.to_str().unwrap(), "--target-id", "4711"];
    target.extend(node.map(|node| ["-n", node]).into_iter().flatten());
    target.extend(service.map(|service| ["-s", service]).into_iter().flatten());
    let initiator = ["-i", "-p", provider, "-f", &id, "-t", &at];

    let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
    let reader = || far.domain().read_grains(definition.id).ok();
    let receiving = demo(&target, &far);
    wait_for(&info);
    let sending = demo(&initiator, &near);
    let index = until_arrived(&writer, 1000, reader, 20);

    sending.kill();
    let mut sending = demo(&initiator, &near);
    let index = until_arrived(&writer, index + 50, reader, 20);

    receiving.kill();
    // The killed target's flow stays, and the next target continues it.
    std::fs::remove_file(&info).unwrap();
    let receiving = demo(&target, &far);
    if !lasts {
        wait_for(&info);
        sending.kill();
        sending = demo(&initiator, &near);
    }
    let index = until_arrived(&writer, index, reader, 20);

    receiving.kill();
    sending.kill();
    // Both export their counters, as whole files.
    let (received, sent) = (far.path().join("received.prom"), near.path().join("sent.prom"));
    target.extend(["--metrics", received.to_str().unwrap()]);
    std::fs::remove_file(&info).unwrap();
    let _receiving = demo(&target, &far);
    wait_for(&info);
    let initiator = [&initiator[..], &["--metrics", sent.to_str().unwrap()]].concat();
    let _sending = demo(&initiator, &near);
    until_arrived(&writer, index, reader, 20);
    for (file, metric) in
        [(received, "mxl_target_published_total"), (sent, "mxl_initiator_transfer_seconds_sum")]
    {
        wait_for(&file);
        assert!(std::fs::read_to_string(file).unwrap().contains(metric), "{metric}");
    }
}

/// Steps at which an initiator, or a target, dies: at the third occurrence, or at the first if there is only one.
const INITIATOR: [&str; 3] = ["initiator.asked:1", "initiator.part:3", "initiator.verdict:3"];
const TARGET: [&str; 5] =
    ["target.welcome:1", "target.granted:3", "target.arrived:3", "target.begun:3", "target.published:3"];

/// After the death of either end at each step the restarted one continues, and no grain is torn.
fn either_end_dies_at_each_step(provider: &str, node: &str, service: Option<&str>) {
    let (near, far) = (Folder::new(), Folder::new());
    let definition = camera();
    let id = definition.id.to_string();
    let file = definition_in(&far, &definition);
    let info = far.path().join("info.json");
    let at = format!("@{}", info.to_str().unwrap());
    let mut target =
        vec!["-p", provider, "-f", &file, "-t", info.to_str().unwrap(), "--target-id", "4711", "-n", node];
    target.extend(service.map(|service| ["-s", service]).into_iter().flatten());
    let initiator = ["-i", "-p", provider, "-f", &id, "-t", &at];

    let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
    let reader = || far.domain().read_grains(definition.id).ok();
    let receiving = demo(&target, &far);
    wait_for(&info);
    let mut index = 1000;
    for step in INITIATOR {
        let mut sending = demo_until(step, &initiator, &near);
        index = until_dead(&writer, index, &mut sending);
        let _sending = demo(&initiator, &near);
        index = until_arrived(&writer, index, reader, 3);
    }
    receiving.kill();
    let _sending = demo(&initiator, &near);
    for step in TARGET {
        let mut receiving = demo_until(step, &target, &far);
        index = until_dead(&writer, index, &mut receiving);
        let _receiving = demo(&target, &far);
        index = until_arrived(&writer, index, reader, 3);
    }
}

#[test]
fn either_end_dies_at_each_step_over_shared_memory() {
    let node = format!("fi_shm://mxl-step-{}", std::process::id());
    either_end_dies_at_each_step("shm", &node, None);
}

#[test]
fn either_end_dies_at_each_step_over_udp() {
    let service = (30_000 + std::process::id() % 10_000).to_string();
    either_end_dies_at_each_step("udp", "127.0.0.1", Some(&service));
}

/// An initiator dies that had nothing to send: no access and no message of its target was under way.
fn an_idle_initiator_dies(provider: Provider) {
    let (near, far) = (Folder::new(), Folder::new());
    let definition = camera();
    let _writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap();
    let place = if provider == Provider::Tcp { (Some("127.0.0.1"), None) } else { ANY };
    let mut target = Target::open(&far.domain(), &definition, provider, place, None).unwrap();
    let info = far.path().join("info.json");
    std::fs::write(&info, target.info().to_json()).unwrap();
    let mut until = |what: &str, is_it: fn(&Received) -> bool| {
        let begin = Instant::now();
        while !target.read(Duration::from_millis(100)).unwrap().is_some_and(|received| is_it(&received)) {
            assert!(begin.elapsed() < LONG, "{provider}: not {what}");
        }
    };
    let at = format!("@{}", info.to_str().unwrap());
    let id = definition.id.to_string();
    let sending = demo(&["-i", "-p", &provider.to_string(), "-f", &id, "-t", &at], &near);
    until("connected", |received| matches!(received, Received::Connected));
    // What was sent for the connection has ended.
    std::thread::sleep(Duration::from_millis(200));
    sending.kill();
    until("disconnected", |received| matches!(received, Received::Disconnected));
}

#[test]
fn a_target_notices_that_an_idle_initiator_died_over_shared_memory() {
    an_idle_initiator_dies(Provider::Shm);
}

#[test]
fn a_target_notices_that_an_idle_initiator_died_over_udp() {
    an_idle_initiator_dies(Provider::Udp);
}

#[test]
fn a_target_notices_that_an_idle_initiator_died_over_tcp() {
    an_idle_initiator_dies(Provider::Tcp);
}

#[test]
fn either_end_comes_back_over_shared_memory() {
    let node = format!("fi_shm://mxl-killed-{}", std::process::id());
    either_end_comes_back(Place { provider: "shm", node: Some(&node), service: None, lasts: true });
}

#[test]
fn either_end_comes_back_over_udp() {
    let service = (20_000 + std::process::id() % 10_000).to_string();
    let service = Some(service.as_str());
    either_end_comes_back(Place { provider: "udp", node: Some("127.0.0.1"), service, lasts: true });
}

#[cfg(feature = "verbs")]
#[test]
#[ignore = "needs an RDMA device of 10.77.0.1: cargo xtask rdma"]
fn either_end_comes_back_over_verbs() {
    let service = Some("7477");
    either_end_comes_back(Place { provider: "verbs", node: Some("10.77.0.1"), service, lasts: true });
}

/// An address of EFA belongs to a queue pair, and ends with its process.
#[cfg(feature = "efa")]
#[test]
#[ignore = "needs an EFA device: cargo xtask efa --test"]
fn either_end_comes_back_over_efa() {
    either_end_comes_back(Place { provider: "efa", node: None, service: None, lasts: false });
}
