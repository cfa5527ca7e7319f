//! Registries that announce themselves, and a Node that finds them.

#[path = "common/registry.rs"]
mod stand_in;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mdns_sd::{IfKind, ServiceDaemon, ServiceInfo};
use mxl::Uuid;
use mxl_nmos::{Discovery, Error, Node, NodeOptions, Query, Registration, Registries, Service};
use simple_dns::rdata::{PTR, RData, SRV, TXT};
use simple_dns::{CLASS, Name, Packet, PacketFlag, RCODE, ResourceRecord};
use stand_in::{Registry, until};

const BEAT: Duration = Duration::from_millis(100);
const GOOD: [(&str, &str); 4] =
    [("api_proto", "http"), ("api_ver", "v1.2,v1.3"), ("api_auth", "false"), ("pri", "10")];

/// Good records, but for one.
fn with(key: &str, value: &'static str) -> [(&'static str, &'static str); 4] {
    GOOD.map(|(name, good)| (name, if name == key { value } else { good }))
}

fn port(registry: &Registry) -> u16 {
    registry.url().rsplit_once(':').unwrap().1.parse().unwrap()
}

/// A name server on loopback. Those that truncate give whole answers over TCP alone.
fn name_server(records: Vec<ResourceRecord<'static>>, truncates: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let socket = UdpSocket::bind(at).unwrap();
    let records = Arc::new(records);
    let long = Arc::clone(&records);
    std::thread::spawn(move || {
        let mut bytes = [0; 512];
        while let Ok((len, from)) = socket.recv_from(&mut bytes) {
            let _ = socket.send_to(&answer(&records, &bytes[..len], truncates), from);
        }
    });
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut len = [0; 2];
            stream.read_exact(&mut len).unwrap();
            let mut query = vec![0; usize::from(u16::from_be_bytes(len))];
            stream.read_exact(&mut query).unwrap();
            let answer = answer(&long, &query, false);
            let len = u16::try_from(answer.len()).unwrap().to_be_bytes();
            stream.write_all(&[&len, &answer[..]].concat()).unwrap();
        }
    });
    at
}

fn answer(records: &[ResourceRecord<'static>], query: &[u8], truncates: bool) -> Vec<u8> {
    let query = Packet::parse(query).unwrap();
    let question = &query.questions[0];
    let is_it =
        |record: &&ResourceRecord<'_>| record.name == question.qname && record.match_qtype(question.qtype);
    let mut reply = Packet::new_reply(query.id());
    reply.questions.push(question.clone());
    if truncates {
        reply.set_flags(PacketFlag::TRUNCATION);
    } else {
        reply.answers = records.iter().filter(is_it).cloned().collect();
        if question.qname.to_string().ends_with("refused.test") {
            *reply.rcode_mut() = RCODE::Refused;
        } else if reply.answers.is_empty() {
            *reply.rcode_mut() = RCODE::NameError;
        }
    }
    reply.build_bytes_vec_compressed().unwrap()
}

/// The records of an instance of a service in domain `studio.test`.
fn records(of: &str, name: &str, port: u16, txt: &[(&str, &str)]) -> [ResourceRecord<'static>; 3] {
    let own = |text: String| Name::new(&text).unwrap().into_owned();
    let (service, instance) = (own(format!("{of}.studio.test")), own(format!("{name}.{of}.studio.test")));
    let mut strings = TXT::new();
    for (key, value) in txt {
        strings.add_attribute(key, Some(value.as_bytes())).unwrap();
    }
    let srv = SRV { priority: 0, weight: 0, port, target: own("localhost".into()) };
    let record = |name: &Name<'static>, data| ResourceRecord::new(name.clone(), CLASS::IN, 60, data);
    [
        record(&service, RData::PTR(PTR(instance.clone()))),
        record(&instance, RData::SRV(srv)),
        record(&instance, RData::TXT(strings)),
    ]
}

/// A port of UDP that was free a moment ago.
fn free_port() -> u16 {
    UdpSocket::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port()
}

fn node() -> Arc<Node> {
    let options = NodeOptions {
        seed: format!("{:?}", std::thread::current().id()),
        label: "gateway".into(),
        hostname: "host".into(),
        host: ("127.0.0.1".into(), 1),
        domain: None,
        receivers: 1,
        gateway: None,
    };
    Arc::new(Node::new(options, Box::new(())))
}

type Said = Arc<Mutex<Vec<String>>>;

/// A Node that is kept in the registries that are found, and what it says.
fn keep(discovery: &Discovery) -> (Registration, Said) {
    let said = Said::default();
    let to = Arc::clone(&said);
    let log = Box::new(move |line: &str| to.lock().unwrap().push(line.into()));
    let registries = Registries::found(discovery.clone());
    (Registration::start_with(node(), registries, BEAT, log).unwrap(), said)
}

fn is_registered(registry: &Registry) -> Option<()> {
    (registry.count("receivers") == 3).then_some(())
}

#[test]
fn unicast_dns_names_registries_and_the_next_one_takes_over() {
    let (first, second) = (Registry::start(), Registry::start());
    let of = "_nmos-register._tcp";
    for truncates in [false, true] {
        let mut all = Vec::new();
        all.extend(records(of, "second", port(&second), &with("pri", "100")));
        all.extend(records(of, "first", port(&first), &with("pri", "0")));
        all.extend(records(of, "secret", 1, &with("api_auth", "true")));
        all.extend(records("_nmos-registration._tcp", "old", 1, &with("api_ver", "v0.9")));
        // A server that is silent is passed over.
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        let servers = vec![silent.local_addr().unwrap(), name_server(all, truncates)];
        let discovery = Discovery::new(servers, vec!["studio.test".into()], free_port());
        let found = discovery.find(Service::Registration, Uuid::nil(), &|| false);
        let localhost = |registry| format!("http://localhost:{}", port(registry));
        assert_eq!(found.urls, [localhost(&first), localhost(&second)], "{found:?}");
        assert_eq!((found.notes.len(), discovery.ignored()), (2, 2), "{found:?}");
        assert!(found.notes[0].contains("secret._nmos-register._tcp.studio.test is ignored"), "{found:?}");
    }
}

#[test]
fn a_name_server_that_refuses_one_domain_is_asked_for_the_next() {
    let all = records("_nmos-register._tcp", "first", 80, &GOOD).to_vec();
    let domains = vec!["refused.test".into(), "studio.test".into()];
    let discovery = Discovery::new(vec![name_server(all, false)], domains, free_port());
    let found = discovery.find(Service::Registration, Uuid::nil(), &|| false);
    assert_eq!(found.urls, ["http://localhost:80"], "{found:?}");
}

#[test]
fn a_node_turns_to_another_registry_that_dns_names() {
    let (first, second) = (Registry::start(), Registry::start());
    let of = "_nmos-register._tcp";
    let mut all = Vec::new();
    all.extend(records(of, "first", port(&first), &with("pri", "3")));
    all.extend(records(of, "second", port(&second), &with("pri", "20")));
    let discovery = Discovery::new(vec![name_server(all, false)], vec!["studio.test".into()], free_port());
    let (registration, _) = keep(&discovery);
    until("the first registry", || is_registered(&first));
    assert_eq!(second.requests().len(), 0);
    first.set_failure(Some(503));
    until("the second registry", || is_registered(&second));
    // When all have failed, they are looked for again.
    second.set_failure(Some(503));
    first.set_failure(None);
    first.state.lock().unwrap().resources.clear();
    until("the first registry again", || is_registered(&first));
    drop(registration);
    assert_eq!(first.count("nodes"), 0);
}

#[test]
fn multicast_dns_names_registries() {
    let (first, second) = (Registry::start(), Registry::start());
    let at = free_port();
    let responder = ServiceDaemon::new_with_port(at).unwrap();
    responder.disable_interface(IfKind::All).unwrap();
    responder.enable_interface(IfKind::LoopbackV4).unwrap();
    responder.set_service_name_len_max(30).unwrap();
    let announce = |of: &str, name: &str, registry: &Registry, txt: &[(&str, &str)]| {
        let of = format!("{of}._tcp.local.");
        let port = port(registry);
        let host = format!("{name}.local.");
        let service = ServiceInfo::new(&of, name, &host, "127.0.0.1", port, txt).unwrap();
        let full = service.get_fullname().to_owned();
        responder.register(service).unwrap();
        full
    };
    let discovery = Discovery::new(Vec::new(), Vec::new(), at);
    // Nobody has announced anything: there is an end, and its reason is told once.
    let (registration, said) = keep(&discovery);
    until("the first search", || {
        said.lock().unwrap().iter().any(|line| line.contains("has found no registry")).then_some(())
    });
    let name = announce("_nmos-register", "first", &first, &with("pri", "5"));
    announce("_nmos-register", "third", &second, &with("pri", "none"));
    announce("_nmos-query", "query", &first, &GOOD);
    until("the first registry", || is_registered(&first));
    until("the note", || {
        said.lock()
            .unwrap()
            .iter()
            .any(|line| line.contains("third") && line.contains("is ignored"))
            .then_some(())
    });
    assert!(discovery.ignored() >= 1);
    // Only now: a search that finds the second one alone would lead there, and nothing would lead back.
    announce("_nmos-registration", "second", &second, &with("pri", "7"));
    assert_eq!(second.requests().len(), 0);
    first.set_failure(Some(500));
    until("the second registry", || is_registered(&second));
    first.set_failure(None);
    let query = Query::find(&discovery, &|| false, &mut |_| {}).unwrap();
    assert_eq!(query.list("nodes").unwrap().len(), 1);
    // One that says goodbye is not found any more.
    let gone = responder.unregister(&name).unwrap();
    gone.recv_timeout(Duration::from_secs(5)).unwrap();
    let found = discovery.find(Service::Registration, Uuid::nil(), &|| false);
    assert_eq!(found.urls, [second.url()], "{found:?}");
    drop(registration);
    responder.shutdown().unwrap();
}

#[test]
fn an_end_does_not_wait_for_a_search() {
    let discovery = Discovery::new(Vec::new(), Vec::new(), free_port());
    let begin = std::time::Instant::now();
    let (registration, _) = keep(&discovery);
    std::thread::sleep(Duration::from_millis(200));
    drop(registration);
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    assert!(matches!(Query::find(&discovery, &|| false, &mut |_| {}), Err(Error::NotFound)));
}
