//! Datagram endpoints that are found by node and service, through name servers. Each case has its own port, in the
//! environment of its processes.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;

use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};
use ofi_testkit::rc::Handle;
use ofi_verbs::rc::Device;

use super::{DEVICE, Quick};

const PORT: &str = "FI_VERBS_DGRAM_NAME_SERVER_PORT";
/// More names than a name server stores.
const SILENT: usize = 100;

fn port() -> u16 {
    std::env::var(PORT).expect("the port of this case").parse().expect("a port number")
}

/// An unused port.
fn free_port() -> String {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    listener.local_addr().unwrap().port().to_string()
}

/// The first info for node and service of the device in this process.
fn info(service: Option<&str>, flags: GetinfoFlags) -> Result<Info> {
    let kit: &dyn Kit = &Quick;
    let all = Handle(Arc::clone(&DEVICE)).addresses();
    let node = all.iter().find(|ip| ip.is_ipv4()).expect("an IPv4 address").to_string();
    let mut hints = kit.usual();
    hints.info.addr_format = AddrFormat::Unspec;
    Ok(ofi::getinfo(Version::API, Some(&node), service, flags, Some(&hints))?.remove(0))
}

fn open(service: &str) -> TestEndpoint {
    let kit: &dyn Kit = &Quick;
    kit.opening().info(info(Some(service), GetinfoFlags::SOURCE).unwrap()).open()
}

fn found(service: Option<&str>) -> Result<Address> {
    Ok(info(service, GetinfoFlags::empty())?.dest_addr.expect("the peer's address"))
}

/// Finds an endpoint of its own process and sends to it.
pub fn finds(line: &mut Line, _: &[String]) {
    let kit: &dyn Kit = &Quick;
    let named = open("7471");
    let name = named.name();
    assert_eq!([found(Some("7471")).unwrap(), found(None).unwrap()], [name.clone(), name.clone()]);
    let unknown = found(Some("7472")).unwrap_err();
    assert_eq!(unknown.errno(), Errno::ENODATA);
    assert!(unknown.refusals().iter().any(|refusal| refusal.field == "node and service"), "{unknown:?}");

    let from = kit.opening().info(info(Some("7471"), GetinfoFlags::empty()).unwrap()).open();
    let to = from.insert_address(&from.info.dest_addr.clone().unwrap());
    let (sent, into) = (Memory::patterned(64, 1), Memory::new(64));
    named.receive(&into).context(1).post().unwrap();
    from.out(to, &sent).context(2).send().unwrap();
    wait::drive(&[&named, &from], "the datagram", || named.next_of(1)).done();
    into.check(64, 1);

    // The latest endpoint has the service, and a closing endpoint removes only its own name.
    let later = open("7471");
    assert_eq!(found(Some("7471")).unwrap(), later.name());
    drop(named);
    assert_eq!(found(Some("7471")).unwrap(), later.name());
    drop(later);
    assert_eq!(found(Some("7471")).unwrap_err().errno(), Errno::ENODATA);
    line.say("found");
}

/// Keeps an endpoint with a service open until a line arrives.
pub fn holds(line: &mut Line, arguments: &[String]) {
    let side = open(&arguments[0]);
    line.say(side.name());
    line.hear();
    drop(side);
    line.say("closed");
}

/// Prints the endpoint that it finds.
pub fn asks(line: &mut Line, arguments: &[String]) {
    line.say(
        found(Some(&arguments[0])).map_or_else(|error| error.errno().to_string(), |name| name.to_string()),
    );
}

/// Serves a name while other callers send nothing, or nonsense.
pub fn serves(line: &mut Line, _: &[String]) {
    let named = open("7471");
    let call = || TcpStream::connect((Ipv4Addr::LOCALHOST, port())).unwrap();
    let silent: Vec<TcpStream> = (0..SILENT).map(|_| call()).collect();
    for strange in [&b"GET / HTTP/1.0\r\n\r\n"[..], &[0, 9], &[1, 0, 0, 0, 0, 0, 0, 0]] {
        let mut stream = call();
        stream.write_all(strange).unwrap();
        assert_eq!(stream.read(&mut [0; 64]).unwrap_or(0), 0, "{strange:?}");
    }
    let mut half = call();
    half.write_all(&[0, 2, 0, 0]).unwrap();
    assert_eq!(found(Some("7471")).unwrap(), named.name());
    drop((silent, half));
    line.say("served");
}

#[track_caller]
fn says(role: &str, expected: &str) {
    let port = free_port();
    let mut child = Child::start_with(role, &[], &[(PORT, &port)]);
    child.line.expect(expected);
    child.finish();
}

#[test]
fn an_endpoint_with_a_service_is_found_by_it_until_it_closes() {
    says("finds", "found");
}

#[test]
fn silent_and_strange_callers_of_a_name_server_hold_up_nobody() {
    says("serves", "served");
}

#[test]
fn the_processes_of_a_host_have_one_name_server() {
    let port = free_port();
    let start = |role, service| Child::start_with(role, &[service], &[(PORT, &port)]);
    let ask = |service| {
        let mut child = start("asks", service);
        let answer = child.line.hear();
        child.finish();
        answer
    };
    let mut first = start("holds", "7471");
    let first_name = first.line.hear();
    let mut second = start("holds", "7472");
    let second_name = second.line.hear();
    assert_eq!([ask("7471"), ask("7472")], [first_name.clone(), second_name]);
    second.line.say("close");
    second.line.expect("closed");
    second.finish();
    assert_eq!([ask("7471"), ask("7472")], [first_name, Errno::ENODATA.to_string()]);
    first.line.say("close");
    first.line.expect("closed");
    first.finish();
}
