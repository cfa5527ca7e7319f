//! `mxl-gateway --nmos`: a controller finds flows in a registry, and connects receivers.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use mdns_sd::{ServiceDaemon, ServiceInfo};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::common::{Folder, LONG, camera};
use super::gateway::{Gateway, Writing, arrive, command, grains, mirror, serve, until};
use super::registry::Registry;

/// The resource of a kind with this label.
fn labelled(registry: &Registry, kind: &str, part: &str) -> Option<Value> {
    let state = registry.state.lock().unwrap();
    let mut all = state.resources.iter().filter(|((of, _), _)| of == kind).map(|(_, value)| value);
    all.find(|value| value["label"].as_str().is_some_and(|label| label.contains(part))).cloned()
}

/// Patches what is staged for a sender or a receiver, at the Connection API that its device names.
fn patch(registry: &Registry, kind: &str, of: &Value, request: &Value) -> (u16, Value) {
    let device = registry.get("devices", of["device_id"].as_str().unwrap()).unwrap();
    let control = &device["controls"][0];
    assert_eq!(control["type"], "urn:x-nmos:control:sr-ctrl/v1.2");
    let href = control["href"].as_str().unwrap().strip_prefix("http://").unwrap();
    let (at, path) = href.split_once('/').unwrap();
    let (id, body) = (of["id"].as_str().unwrap(), request.to_string());
    let head =
        format!("PATCH /{path}single/{kind}/{id}/staged HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n");
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("Access-Control-Allow-Origin: *"), "{head}");
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap())
}

#[test]
fn a_controller_connects_a_receiver_to_a_flow_of_another_host() {
    let registry = Registry::start();
    let (near, far, picture) = (Folder::new(), Folder::new(), camera());
    let _writing = Writing::start(&near, &picture);
    let url = registry.url();
    let nmos = ["--http", "127.0.0.1:0", "--nmos", &url, "--nmos-label"];
    let serving = serve(&near, "127.0.0.1:0", &[&nmos[..], &["studio"]].concat());
    let uri = format!("mxl://{}/", serving.address());
    let mirroring = mirror(&far, &uri, &[&nmos[..], &["far", "--receivers", "1"]].concat());
    let sender = until("a sender", || labelled(&registry, "senders", "camera"));
    let receiver = until("a receiver", || labelled(&registry, "receivers", "far video"));
    assert_eq!(sender["transport"], "urn:x-nmos:transport:mxl");
    // Nothing is mirrored before a controller says so.
    mirroring.wait("NMOS: node");
    assert!(far.domain().flows().unwrap().is_empty());
    let connect = |is_enabled: bool, activation: Value| {
        json!({
            "sender_id": sender["id"],
            "master_enable": is_enabled,
            "activation": activation,
            "transport_params": [{ "mxl_flow_id": picture.id.to_string() }],
        })
    };
    let now = || json!({ "mode": "activate_immediate" });
    // In a second from now. Until then, nothing else is staged; and nothing is mirrored.
    let later = json!({ "mode": "activate_scheduled_relative", "requested_time": "1:0" });
    let (status, answer) = patch(&registry, "receivers", &receiver, &connect(true, later));
    let begin = Instant::now();
    assert_eq!((status, &answer["master_enable"]), (202, &json!(true)), "{answer}");
    assert!(answer["activation"]["activation_time"].is_string(), "{answer}");
    let (status, answer) = patch(&registry, "receivers", &receiver, &connect(false, now()));
    assert!(status == 423 && answer["error"].as_str().unwrap().contains("is scheduled"), "{answer}");
    let is_mirrored = || !far.domain().flows().unwrap().is_empty();
    until("the mirrored flow", || is_mirrored().then_some(()));
    // The answer may have come late, so the activation may seem early.
    assert!(begin.elapsed() > Duration::from_millis(500), "{:?}", begin.elapsed());
    arrive(&grains(&far, picture.id), 10);
    // The mirrored flow has a sender of its own there.
    until("the sender of the mirrored flow", || {
        let state = registry.state.lock().unwrap();
        (state.resources.keys().filter(|(kind, _)| kind == "senders").count() == 2).then_some(())
    });
    until("the subscription", || {
        let receiver = registry.get("receivers", receiver["id"].as_str()?)?;
        (receiver["subscription"]["sender_id"] == sender["id"]).then_some(())
    });
    // Whoever asks the registry finds the MXL flow.
    let senders = mxl_nmos::Query::open(&url).unwrap().senders().unwrap();
    let flows: Vec<_> = senders.iter().map(|sender| (&*sender.node, sender.flow)).collect();
    assert_eq!(flows, [("far", Some(picture.id)), ("studio", Some(picture.id))]);
    // One that is cancelled leaves the receiver as it is, and what was staged.
    let later = json!({ "mode": "activate_scheduled_relative", "requested_time": "3600:0" });
    assert_eq!(patch(&registry, "receivers", &receiver, &connect(false, later)).0, 202);
    let (status, answer) =
        patch(&registry, "receivers", &receiver, &json!({ "activation": { "mode": null } }));
    assert_eq!((status, &answer["master_enable"]), (200, &json!(false)), "{answer}");
    assert_eq!(answer["activation"]["activation_time"], Value::Null);
    arrive(&grains(&far, picture.id), 5);
    // The end: of the receiver's flow, and of the registrations.
    assert_eq!(patch(&registry, "receivers", &receiver, &connect(false, now())).0, 200);
    until("the end of the mirrored flow", || far.domain().flows().unwrap().is_empty().then_some(()));
    for gateway in [&mirroring, &serving] {
        kill_process(Pid::from_child(&gateway.running.0), Signal::TERM).unwrap();
    }
    until("an empty registry", || registry.state.lock().unwrap().resources.is_empty().then_some(()));
}

#[test]
fn a_mirror_finds_the_host_of_a_flow_in_the_registry() {
    let registry = Registry::start();
    let (near, far, picture) = (Folder::new(), Folder::new(), camera());
    let _writing = Writing::start(&near, &picture);
    let url = registry.url();
    let nmos = ["--http", "127.0.0.1:0", "--nmos", &url];
    let serving = serve(&near, "127.0.0.1:0", &nmos);
    // It is given no host.
    let mut program = command("mirror", &far);
    program.args(nmos).args(["--nmos-label", "far", "--receivers", "1", "--nmos-query", &url]);
    let mirroring = Gateway::start(program);
    until("a sender", || labelled(&registry, "senders", "camera"));
    let receiver = until("a receiver", || labelled(&registry, "receivers", "far video"));
    let connect = |is_enabled: bool| {
        let request = json!({
            "master_enable": is_enabled,
            "activation": { "mode": "activate_immediate" },
            "transport_params": [{ "mxl_flow_id": picture.id.to_string() }],
        });
        assert_eq!(patch(&registry, "receivers", &receiver, &request).0, 200);
    };
    for _ in 0..2 {
        connect(true);
        arrive(&grains(&far, picture.id), 10);
        // A registry that fails ends no flow.
        registry.set_failure(Some(503));
        mirroring.wait("status 503");
        arrive(&grains(&far, picture.id), 10);
        registry.set_failure(None);
        connect(false);
        until("the end of the mirrored flow", || far.domain().flows().unwrap().is_empty().then_some(()));
    }
    mirroring.wait(&format!("flow {}: the registry names mxl://{}/", picture.id, serving.address()));
}

#[test]
fn a_controller_switches_a_sender_off_and_on() {
    let registry = Registry::start();
    let (near, far, picture) = (Folder::new(), Folder::new(), camera());
    let _writing = Writing::start(&near, &picture);
    let serving = serve(&near, "127.0.0.1:0", &["--http", "127.0.0.1:0", "--nmos", &registry.url()]);
    let mirroring =
        mirror(&far, &format!("mxl://{}/?id={}", serving.address(), picture.id), &["--keep", "0"]);
    arrive(&grains(&far, picture.id), 5);
    let sender = until("a sender", || labelled(&registry, "senders", "camera"));
    let set = |is_enabled: bool| {
        let request = json!({ "master_enable": is_enabled, "activation": { "mode": "activate_immediate" } });
        assert_eq!(patch(&registry, "senders", &sender, &request).0, 200);
    };
    set(false);
    mirroring.wait("has ended, and is removed");
    until("a sender that is off", || {
        let sender = registry.get("senders", sender["id"].as_str()?)?;
        (sender["subscription"]["active"] == false).then_some(())
    });
    set(true);
    arrive(&grains(&far, picture.id), 5);
}

/// Runs a test in a network namespace of its own: its threads and programs are there, too. `None` if that is not
/// permitted.
fn alone<T: Send>(test: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let run = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).ok()?;
            let lo_is_up = Command::new("ip").args(["link", "set", "lo", "up"]).status().ok()?;
            lo_is_up.success().then(test)
        };
        scope.spawn(run).join().unwrap()
    })
}

#[test]
fn a_gateway_finds_the_registries_that_multicast_dns_announces() {
    let ran = alone(|| {
        let (first, second, near) = (Registry::start(), Registry::start(), Folder::new());
        let responder = ServiceDaemon::new().unwrap();
        for (name, registry, txt) in [
            ("second", &second, [("api_proto", "http"), ("api_ver", "v1.3"), ("pri", "20")]),
            ("first", &first, [("api_proto", "http"), ("api_ver", "v1.3"), ("pri", "3")]),
            ("secret", &first, [("api_proto", "https"), ("api_ver", "v1.3"), ("pri", "1")]),
        ] {
            let port = registry.url().rsplit_once(':').unwrap().1.parse().unwrap();
            let (of, host) = ("_nmos-register._tcp.local.", "registry.local.");
            let service = ServiceInfo::new(of, name, host, "127.0.0.1", port, &txt[..]).unwrap();
            responder.register(service).unwrap();
        }
        let serving = serve(&near, "127.0.0.1:0", &["--http", "127.0.0.1:0", "--nmos", "auto"]);
        serving.wait("secret._nmos-register._tcp.local. is ignored: api_proto is https");
        until("the registration", || labelled(&first, "nodes", "mxl-gateway serve"));
        first.set_failure(Some(503));
        until("the registration elsewhere", || labelled(&second, "nodes", "mxl-gateway serve"));
        responder.shutdown().unwrap();
    });
    if ran.is_none() {
        println!(
            "NOT RUN: a_gateway_finds_the_registries_that_multicast_dns_announces: no network namespaces"
        );
    }
}

#[test]
fn a_registry_has_an_address_of_plain_http() {
    let near = Folder::new();
    for (arguments, why) in [
        (&["--http", "127.0.0.1:0", "--nmos", "https://a"][..], "TLS is not supported"),
        (&["--nmos", "http://127.0.0.1:1"], "--http"),
    ] {
        let serving = serve(&near, "127.0.0.1:0", arguments);
        serving.wait(why);
    }
    let mut program = command("mirror", &near);
    let url = "http://127.0.0.1:1";
    program.args(["--http", "127.0.0.1:0", "--nmos", url, "--nmos-query", url, "--receivers", "0"]);
    Gateway::start(program).wait("--nmos-query: without --receivers");
}
