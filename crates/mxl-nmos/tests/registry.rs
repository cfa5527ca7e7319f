//! A Node against a stand-in of a registry.

#[path = "common/registry.rs"]
mod stand_in;

use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mxl::{FlowDefinition, Rational, Uuid};
use mxl_nmos::{Activate, Node, NodeOptions, Query, Registration, Registries, Route};
use serde_json::{Value, json};
use stand_in::{Registry, until};

const BEAT: Duration = Duration::from_millis(100);

/// Remembers activations; those of receivers fail without a flow.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Activate for Told {
    fn receive(&mut self, _: Uuid, route: &Route) -> Result<(), String> {
        let flow = route.flow.ok_or("no flow")?;
        self.0.lock().unwrap().push(format!("receive {flow} {}", route.is_enabled));
        Ok(())
    }

    fn send(&mut self, flow: Uuid, is_enabled: bool) -> Result<(), String> {
        self.0.lock().unwrap().push(format!("send {flow} {is_enabled}"));
        Ok(())
    }

    fn failed(&mut self, id: Uuid, why: &str) {
        self.0.lock().unwrap().push(format!("failed {id} {why}"));
    }
}

fn node(host: (String, u16)) -> (Arc<Node>, Told) {
    let told = Told::default();
    let options = NodeOptions {
        seed: format!("{:?}", std::thread::current().id()),
        label: "gateway".into(),
        hostname: "host".into(),
        host,
        domain: None,
        receivers: 1,
        gateway: None,
    };
    (Arc::new(Node::new(options, Box::new(told.clone()))), told)
}

fn flows() -> [FlowDefinition; 3] {
    let rate = Rational::new(50, 1);
    [
        FlowDefinition::video("camera", 1920, 1080, rate).unwrap(),
        FlowDefinition::audio("tone", 2, Rational::new(48_000, 1)).unwrap(),
        FlowDefinition::data("captions", rate).unwrap(),
    ]
}

fn named(registries: &[String]) -> Registries {
    Registries::new(registries.iter().map(String::as_str)).unwrap()
}

fn start(node: &Arc<Node>, registries: &[String]) -> Registration {
    let log = Box::new(|line: &str| println!("{line}"));
    Registration::start_with(Arc::clone(node), named(registries), BEAT, log).unwrap()
}

#[test]
fn a_node_is_registered_kept_and_removed() {
    let registry = Registry::start();
    let (node, _) = node(("127.0.0.1".into(), 1));
    node.set_flows(flows());
    let registration = start(&node, &[registry.url()]);
    until("all resources", || (registry.count("receivers") == 3).then_some(()));
    let counts = ["nodes", "devices", "sources", "flows", "senders"].map(|kind| registry.count(kind));
    assert_eq!(counts, [1, 1, 3, 3, 3]);
    // Those that others refer to come first.
    let posts: Vec<String> =
        registry.requests().into_iter().filter(|line| line.ends_with("/resource")).collect();
    assert_eq!(posts.len(), 14);
    until("heartbeats", || (registry.state.lock().unwrap().beats > 2).then_some(()));
    // A flow that has ended is removed, and nothing else is registered again.
    let [camera, ..] = flows();
    let before = registry.requests().len();
    node.set_flows([camera]);
    let count = |what: &str| registry.requests()[before..].iter().filter(|line| line.contains(what)).count();
    // All three had new ids: they are other flows of the same labels. Heartbeats may come between any of these.
    until("the end of flows", || (count("DELETE") >= 9 && registry.count("senders") == 1).then_some(()));
    let beats = registry.state.lock().unwrap().beats;
    until("another heartbeat", || (registry.state.lock().unwrap().beats > beats + 1).then_some(()));
    assert_eq!(
        (count("DELETE"), count("POST /x-nmos/registration/v1.3/resource"), registry.count("sources")),
        (9, 3, 1),
        "{:?}",
        registry.requests()
    );
    drop(registration);
    assert_eq!(registry.state.lock().unwrap().resources.len(), 0);
}

#[test]
fn a_node_that_was_forgotten_registers_again() {
    let registry = Registry::start();
    let (node, _) = node(("127.0.0.1".into(), 1));
    let _registration = start(&node, &[registry.url()]);
    until("receivers", || (registry.count("receivers") == 3).then_some(()));
    registry.state.lock().unwrap().resources.clear();
    until("receivers again", || {
        (registry.count("receivers") == 3 && registry.count("nodes") == 1).then_some(())
    });
}

#[test]
fn a_slow_registry_gets_heartbeats_between_resources_and_delays_no_end() {
    let registry = Registry::start();
    registry.state.lock().unwrap().delay = BEAT / 2;
    let (node, _) = node(("127.0.0.1".into(), 1));
    node.set_flows(flows());
    let registration = start(&node, &[registry.url()]);
    until("receivers", || (registry.count("receivers") == 3).then_some(()));
    let requests = registry.requests();
    let posts: Vec<usize> = (0..requests.len()).filter(|at| requests[*at].ends_with("/resource")).collect();
    let between = &requests[posts[0]..posts[posts.len() - 1]];
    assert!(between.iter().any(|line| line.contains("/health/")), "{requests:?}");
    // Thousands of others are not waited for.
    let rate = Rational::new(50, 1);
    node.set_flows((0..1000).map(|_| FlowDefinition::video("many", 1920, 1080, rate).unwrap()));
    until("some of them", || (registry.count("sources") > 3).then_some(()));
    drop(registration);
    let posts = registry.requests().iter().filter(|line| line.ends_with("/resource")).count();
    assert!(posts < 1000, "{posts}");
    assert_eq!(registry.count("nodes"), 0);
}

#[test]
fn a_registry_that_answers_again_is_told() {
    let registry = Registry::start();
    let (node, _) = node(("127.0.0.1".into(), 1));
    let said = Arc::<Mutex<Vec<String>>>::default();
    let to = Arc::clone(&said);
    let log = Box::new(move |line: &str| to.lock().unwrap().push(line.into()));
    let registries = named(&[registry.url()]);
    let _registration = Registration::start_with(Arc::clone(&node), registries, BEAT, log).unwrap();
    until("receivers", || (registry.count("receivers") == 3).then_some(()));
    let count = |what: &str| said.lock().unwrap().iter().filter(|line| line.contains(what)).count();
    for round in 1..=2 {
        registry.set_failure(Some(503));
        until("the failure", || (count("status 503") == round).then_some(()));
        registry.set_failure(None);
        until("the recovery", || (count("answers again") == round).then_some(()));
    }
}

#[test]
fn what_a_former_process_has_left_is_removed_first() {
    let registry = Registry::start();
    let (node, _) = node(("127.0.0.1".into(), 1));
    {
        let mut state = registry.state.lock().unwrap();
        state.resources.insert(("nodes".into(), node.id().to_string()), json!({}));
        state.resources.insert(("senders".into(), "old".into()), json!({}));
    }
    let _registration = start(&node, &[registry.url()]);
    until("receivers", || (registry.count("receivers") == 3).then_some(()));
    assert_eq!((registry.count("senders"), registry.count("nodes")), (0, 1));
}

#[test]
fn another_registry_takes_over() {
    let (first, second) = (Registry::start(), Registry::start());
    let (node, _) = node(("127.0.0.1".into(), 1));
    // Nobody listens at the first address.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let _registration = start(&node, &[format!("http://{nobody}"), first.url(), second.url()]);
    until("the first registry", || (first.count("receivers") == 3).then_some(()));
    first.set_failure(Some(503));
    until("the second registry", || (second.count("receivers") == 3).then_some(()));
    second.set_failure(Some(500));
    first.set_failure(None);
    let before = first.requests().len();
    until("the first one again", || (first.requests().len() > before + 2).then_some(()));
}

#[test]
fn a_controller_connects_a_receiver() {
    let registry = Registry::start();
    let (node, told) = node(("127.0.0.1".into(), 1));
    let _registration = start(&node, &[registry.url()]);
    until("receivers", || (registry.count("receivers") == 3).then_some(()));
    let get = |path: &str| node.answer("GET", path, b"").unwrap();
    let base = "/x-nmos/connection/v1.2/single/receivers";
    let ids = get(base).body;
    let id = ids[0].as_str().unwrap().trim_end_matches('/').to_owned();
    let (flow, sender) = (Uuid::new_v4(), Uuid::new_v4());
    let request = json!({
        "sender_id": sender.to_string(),
        "master_enable": true,
        "activation": { "mode": "activate_immediate" },
        "transport_params": [{ "mxl_domain_id": null, "mxl_flow_id": flow.to_string() }],
    });
    let staged = format!("{base}/{id}/staged");
    let answer = node.answer("PATCH", &staged, request.to_string().as_bytes()).unwrap();
    assert_eq!((answer.status, &answer.body["master_enable"]), (200, &json!(true)), "{answer:?}");
    assert_eq!(told.0.lock().unwrap()[..], [format!("receive {flow} true")]);
    assert_eq!(
        get(&format!("{base}/{id}/active/")).body["transport_params"][0]["mxl_flow_id"],
        flow.to_string()
    );
    // The registry learns of it.
    let shown = until("the subscription", || {
        let receiver = registry.get("receivers", &id)?;
        (receiver["subscription"]["active"] == true).then_some(receiver)
    });
    assert_eq!(shown["subscription"]["sender_id"], sender.to_string());
    // One that fails is told, and changes nothing.
    let nothing = json!({ "transport_params": [{ "mxl_flow_id": null }], "activation": { "mode": "activate_immediate" } });
    let answer = node.answer("PATCH", &staged, nothing.to_string().as_bytes()).unwrap();
    assert_eq!((answer.status, &answer.body["error"]), (500, &json!("no flow")));
    assert_eq!(get(&staged).body["transport_params"][0]["mxl_flow_id"], flow.to_string());
}

#[test]
fn a_salvo_at_a_time_is_activated_at_that_time() {
    let registry = Registry::start();
    let (node, told) = node(("127.0.0.1".into(), 1));
    let _registration = start(&node, &[registry.url()]);
    until("receivers", || (registry.count("receivers") == 3).then_some(()));
    let base = "/x-nmos/connection/v1.2";
    let get = |path: &str| node.answer("GET", &format!("{base}/single/receivers/{path}"), b"").unwrap().body;
    let ids: Vec<String> = get("").as_array().unwrap().iter().map(|id| id.as_str().unwrap().into()).collect();
    let flow = Uuid::new_v4().to_string();
    let one = |id: &String, flow: Option<&str>| {
        let activation = json!({ "mode": "activate_scheduled_relative", "requested_time": "0:300000000" });
        let params = json!([{ "mxl_flow_id": flow }]);
        let params = json!({ "master_enable": true, "activation": activation, "transport_params": params });
        json!({ "id": id.trim_end_matches('/'), "params": params })
    };
    let begin = Instant::now();
    // The last one fails when its time comes: it names no flow.
    let salvo = json!([one(&ids[0], Some(&flow)), one(&ids[1], Some(&flow)), one(&ids[2], None)]);
    let answer =
        node.answer("POST", &format!("{base}/bulk/receivers"), salvo.to_string().as_bytes()).unwrap();
    let codes: Vec<&Value> = answer.body.as_array().unwrap().iter().map(|one| &one["code"]).collect();
    assert_eq!((answer.status, codes), (200, vec![&json!(202); 3]), "{answer:?}");
    let staged = get(&format!("{}staged", ids[0]));
    assert_eq!(staged["activation"]["requested_time"], "0:300000000");
    assert!(told.0.lock().unwrap().is_empty());
    until("both activations and the failure", || (told.0.lock().unwrap().len() == 3).then_some(()));
    assert!(begin.elapsed() >= Duration::from_millis(300));
    let lines = told.0.lock().unwrap().clone();
    assert_eq!(lines.iter().filter(|line| **line == format!("receive {flow} true")).count(), 2, "{lines:?}");
    let failure = format!("failed {} no flow", ids[2].trim_end_matches('/'));
    assert!(lines.contains(&failure), "{lines:?}");
    let none = json!({ "mode": null, "requested_time": null, "activation_time": null });
    for (id, is_active) in ids.iter().zip([true, true, false]) {
        assert_eq!(get(&format!("{id}staged"))["activation"], none);
        let active = get(&format!("{id}active"));
        assert_eq!(active["master_enable"], is_active);
        let mode = if is_active { json!("activate_scheduled_relative") } else { Value::Null };
        assert_eq!(active["activation"]["mode"], mode);
    }
    // The registry learns of it.
    until("the subscriptions", || {
        let is_active = |id: &&String| {
            let receiver = registry.get("receivers", id.trim_end_matches('/')).unwrap();
            receiver["subscription"]["active"] == true
        };
        (ids.iter().filter(is_active).count() == 2).then_some(())
    });
}

#[test]
fn the_apis_have_the_resources_that_they_list() {
    let (node, _) = node(("127.0.0.1".into(), 1));
    node.set_flows(flows());
    // Every list of names leads to resources.
    let mut paths = vec!["/x-nmos/".to_string()];
    let mut seen = 0;
    while let Some(path) = paths.pop() {
        let answer = node.answer("GET", &path, b"").unwrap();
        let is_expected = answer.status == 200
            || (answer.status == 404 && path.ends_with("/transportfile/"))
            || (answer.status == 405 && path.contains("/bulk/"));
        assert!(is_expected, "{path}: {answer:?}");
        seen += 1;
        let names = answer.body.as_array().into_iter().flatten().filter_map(Value::as_str);
        paths.extend(names.filter(|name| name.ends_with('/')).map(|name| format!("{path}{name}")));
        // The Node API lists whole resources.
        if path.contains("/node/") {
            let ids = answer.body.as_array().into_iter().flatten().filter_map(|value| value["id"].as_str());
            paths.extend(ids.map(|id| format!("{path}{id}/")));
        }
    }
    assert!(seen > 60, "{seen}");
    for (method, path, body, status) in [
        ("POST", "/x-nmos/node/v1.3/self", "", 405),
        (
            "PATCH",
            "/x-nmos/connection/v1.2/single/senders/00000000-0000-0000-0000-000000000000/staged",
            "{}",
            404,
        ),
        ("GET", "/x-nmos/connection/v1.1/single", "", 404),
        ("POST", "/x-nmos/connection/v1.2/bulk/senders", "{}", 400),
        ("POST", "/x-nmos/connection/v1.2/bulk/senders", "[{\"id\": \"x\"}]", 200),
        ("OPTIONS", "/x-nmos/connection/v1.2/bulk/receivers", "", 200),
    ] {
        let answer = node.answer(method, path, body.as_bytes()).unwrap();
        assert_eq!(answer.status, status, "{method} {path}: {answer:?}");
    }
    assert_eq!(node.answer("GET", "/flows", b""), None);
}

#[test]
fn a_query_finds_the_gateways_of_flows() {
    let registry = Registry::start();
    let options = |seed: &str, gateway: Option<&str>| NodeOptions {
        seed: seed.into(),
        label: seed.into(),
        hostname: "host".into(),
        host: ("127.0.0.1".into(), 1),
        domain: None,
        receivers: 0,
        gateway: gateway.map(str::to_owned),
    };
    let [camera, tone, captions] = flows();
    let mut kept = Vec::new();
    for (options, flows) in [
        (options("a", Some("mxl://192.0.2.1:7480/")), vec![camera.clone(), tone.clone()]),
        (options("b", Some("mxl://192.0.2.2:7480/")), vec![camera.clone(), captions.clone()]),
        // A mirror.
        (options("c", None), vec![camera.clone(), captions.clone()]),
    ] {
        let node = Arc::new(Node::new(options, Box::new(())));
        node.set_flows(flows);
        kept.push((start(&node, &[registry.url()]), node));
    }
    until("all senders", || (registry.count("senders") == 6).then_some(()));
    let query = Query::open(&registry.url()).unwrap();
    let find = |flows: &[&FlowDefinition]| {
        let mut found = query.gateways(&flows.iter().map(|flow| flow.id).collect()).unwrap();
        found.sort();
        found
    };
    let at = |flow: &FlowDefinition, host: u8| (flow.id, format!("mxl://192.0.2.{host}:7480/"));
    assert_eq!(find(&[&camera]), [at(&camera, 1), at(&camera, 2)]);
    let mut wanted = [at(&tone, 1), at(&captions, 2)];
    wanted.sort();
    assert_eq!(find(&[&tone, &captions]), wanted);
    assert_eq!(find(&[]), []);
    // One that is disabled is not offered.
    let senders = kept[0].1.answer("GET", "/x-nmos/node/v1.3/senders", b"").unwrap().body;
    let tones = senders.as_array().unwrap().iter().find(|sender| sender["label"] == "tone").unwrap();
    let path = format!("/x-nmos/connection/v1.2/single/senders/{}/staged", tones["id"].as_str().unwrap());
    let off = json!({ "master_enable": false, "activation": { "mode": "activate_immediate" } });
    assert_eq!(kept[0].1.answer("PATCH", &path, off.to_string().as_bytes()).unwrap().status, 200);
    until("no gateway of the tone", || find(&[&tone]).is_empty().then_some(()));
}

#[test]
fn a_query_lists_senders_over_several_pages() {
    let registry = Registry::start();
    let (node, _) = node(("127.0.0.1".into(), 1));
    node.set_flows(flows());
    let _registration = start(&node, &[registry.url()]);
    until("receivers", || (registry.count("receivers") == 3).then_some(()));
    let senders = Query::open(&registry.url()).unwrap().senders().unwrap();
    let found: Vec<_> =
        senders.iter().map(|sender| (&*sender.label, &*sender.media_type, &*sender.node)).collect();
    assert_eq!(
        found,
        [
            ("camera", "video/v210", "gateway"),
            ("captions", "video/smpte291", "gateway"),
            ("tone", "audio/float32", "gateway")
        ]
    );
    assert_eq!(senders[2].rate, Some((48_000, 1)));
    // Its Connection API cannot be reached: nobody listens there.
    assert!(senders.iter().all(|sender| sender.is_active && sender.flow.is_none()));
}
