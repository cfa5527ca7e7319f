//! Unicast DNS: the questions of DNS-SD to the name servers of this host, over UDP, and over TCP for long answers.

use std::cell::Cell;
use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use mxl::Uuid;
use simple_dns::rdata::{RData, SRV, TXT};
use simple_dns::{CLASS, Name, Packet, PacketFlag, Question, RCODE, ResourceRecord, TYPE};

use super::{Announcement, MAX_INSTANCES};

/// Maximum time for a search.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum time for the answer of a name server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum name servers and domains that are asked.
const MAX_SERVERS: usize = 3;
const MAX_DOMAINS: usize = 6;

/// A search: the name servers, and when it ends.
struct Search<'a> {
    servers: &'a [SocketAddr],
    /// Those that have not answered a question: they are not asked any more.
    silent: [Cell<bool>; MAX_SERVERS],
    until: Instant,
    is_over: &'a dyn Fn() -> bool,
}

/// The instances of these services in the first domain that has any.
pub fn browse(
    servers: &[SocketAddr],
    domains: &[String],
    types: &[&str],
    is_over: &dyn Fn() -> bool,
) -> Vec<Announcement> {
    let search = Search { servers, silent: Default::default(), until: Instant::now() + TIMEOUT, is_over };
    for domain in domains.iter().take(MAX_DOMAINS) {
        let mut found = Vec::new();
        for of in types {
            found.extend(search.instances(&format!("{of}.{}", domain.trim_end_matches('.'))));
        }
        if !found.is_empty() {
            return found;
        }
    }
    Vec::new()
}

impl Search<'_> {
    fn instances(&self, of: &str) -> Vec<Announcement> {
        let Ok(of) = Name::new(of) else { return Vec::new() };
        let Some(bytes) = self.ask(&of, TYPE::PTR) else { return Vec::new() };
        let Ok(answer) = Packet::parse(&bytes) else { return Vec::new() };
        named(&answer).iter().map(|name| self.instance(name, &answer)).collect()
    }

    /// An instance. The answer that has named it may describe it too.
    fn instance(&self, name: &Name<'_>, named: &Packet<'_>) -> Announcement {
        let mut announcement = Announcement { name: name.to_string(), ..Announcement::default() };
        let asked = |of| self.ask(name, of).unwrap_or_default();
        let srv = service(named, name).or_else(|| service(&Packet::parse(&asked(TYPE::SRV)).ok()?, name));
        if let Some((host, port)) = srv {
            (announcement.hosts, announcement.port) = (vec![host], port);
        }
        let txt = text(named, name).or_else(|| text(&Packet::parse(&asked(TYPE::TXT)).ok()?, name));
        announcement.txt = txt.unwrap_or_default();
        announcement
    }

    /// The first answer of a name server that says whether there are such records.
    fn ask(&self, name: &Name<'_>, of: TYPE) -> Option<Vec<u8>> {
        for (server, silent) in self.servers.iter().zip(&self.silent).filter(|(_, silent)| !silent.get()) {
            let left = self.until.saturating_duration_since(Instant::now()).min(ANSWER_TIMEOUT);
            if left.is_zero() || (self.is_over)() {
                return None;
            }
            match exchange(*server, name, of, Instant::now() + left) {
                Ok(answer) if is_final(&answer) => return Some(answer),
                // It refuses this question, or cannot answer it. It may answer others.
                Ok(_) => {}
                Err(_) => silent.set(true),
            }
        }
        None
    }
}

/// Asks a name server.
fn exchange(server: SocketAddr, name: &Name<'_>, of: TYPE, until: Instant) -> io::Result<Vec<u8>> {
    // An address that nobody foresees, for strangers who answer in the server's name.
    let id = Uuid::new_v4().as_u128() as u16;
    let mut query = Packet::new_query(id);
    query.set_flags(PacketFlag::RECURSION_DESIRED);
    query.questions.push(Question::new(name.clone(), of.into(), CLASS::IN.into(), false));
    let query = query.build_bytes_vec().map_err(io::Error::other)?;
    let any = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(server)?;
    socket.send(&query)?;
    let mut bytes = vec![0; usize::from(u16::MAX)];
    loop {
        socket.set_read_timeout(Some(left(until)?))?;
        let len = socket.recv(&mut bytes)?;
        let answer = bytes.get(..len).unwrap_or_default();
        match Packet::parse(answer) {
            // A truncated one need not be whole.
            _ if is_truncated(answer, id) => return long(server, &query, id, until),
            Ok(packet) if is_answer(&packet, id) => return Ok(answer.to_vec()),
            _ => {}
        }
    }
}

/// Asks a name server over TCP.
fn long(server: SocketAddr, query: &[u8], id: u16, until: Instant) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&server, left(until)?)?;
    stream.set_write_timeout(Some(left(until)?))?;
    let len = u16::try_from(query.len()).map_err(io::Error::other)?;
    stream.write_all(&[&len.to_be_bytes(), query].concat())?;
    let mut len = [0; 2];
    stream.set_read_timeout(Some(left(until)?))?;
    stream.read_exact(&mut len)?;
    let mut bytes = vec![0; usize::from(u16::from_be_bytes(len))];
    let mut at = 0;
    while let Some(rest) = bytes.get_mut(at..).filter(|rest| !rest.is_empty()) {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(rest)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len => at += len,
        }
    }
    let is_fine = Packet::parse(&bytes).is_ok_and(|packet| is_answer(&packet, id));
    if is_fine { Ok(bytes) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// The time that is left.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn is_truncated(bytes: &[u8], id: u16) -> bool {
    use simple_dns::header_buffer::{has_flags, id as id_of};
    let flags = PacketFlag::RESPONSE | PacketFlag::TRUNCATION;
    id_of(bytes) == Ok(id) && has_flags(bytes, flags).unwrap_or_default()
}

fn is_answer(packet: &Packet<'_>, id: u16) -> bool {
    packet.id() == id && packet.has_flags(PacketFlag::RESPONSE)
}

/// Whether an answer says that there are such records, or that there are none.
fn is_final(answer: &[u8]) -> bool {
    Packet::parse(answer).is_ok_and(|packet| matches!(packet.rcode(), RCODE::NoError | RCODE::NameError))
}

/// The instances that an answer names.
fn named(answer: &Packet<'_>) -> Vec<Name<'static>> {
    let name = |record: &ResourceRecord<'_>| match &record.rdata {
        RData::PTR(name) => Some(name.0.clone().into_owned()),
        _ => None,
    };
    answer.answers.iter().filter_map(name).take(MAX_INSTANCES).collect()
}

/// The records of a name in an answer.
fn of_name<'a>(packet: &'a Packet<'_>, name: &Name<'_>) -> impl Iterator<Item = &'a RData<'a>> {
    let name = name.to_string().to_ascii_lowercase();
    let records = packet.answers.iter().chain(&packet.additional_records);
    let is_it = move |record: &&ResourceRecord<'_>| record.name.to_string().to_ascii_lowercase() == name;
    records.filter(is_it).map(|record| &record.rdata)
}

/// The host and the port of an instance.
fn service(packet: &Packet<'_>, name: &Name<'_>) -> Option<(String, u16)> {
    of_name(packet, name).find_map(|data| match data {
        RData::SRV(SRV { port, target, .. }) => {
            Some((target.to_string().trim_end_matches('.').to_owned(), *port))
        }
        _ => None,
    })
}

/// The keys of an instance. The first of each counts.
fn text(packet: &Packet<'_>, name: &Name<'_>) -> Option<HashMap<String, String>> {
    let strings = |txt: &TXT<'_>| {
        let mut found = HashMap::new();
        for (key, value) in txt.iter_raw() {
            let string = |bytes| String::from_utf8_lossy(bytes).into_owned();
            found
                .entry(string(key).to_ascii_lowercase())
                .or_insert_with(|| string(value.unwrap_or_default()));
        }
        found
    };
    of_name(packet, name).find_map(|data| match data {
        RData::TXT(txt) => Some(strings(txt)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use simple_dns::rdata::PTR;

    use super::*;

    /// An answer that names an instance and describes it.
    fn answer() -> Vec<u8> {
        let name = |text| Name::new(text).unwrap();
        let (of, instance) = (name("_nmos-query._tcp.a.test"), name("b._nmos-query._tcp.a.test"));
        let record = |name: &Name<'static>, data| ResourceRecord::new(name.clone(), CLASS::IN, 60, data);
        let mut packet = Packet::new_reply(7);
        packet.answers.push(record(&of, RData::PTR(PTR(instance.clone()))));
        let srv = SRV { priority: 0, weight: 0, port: 80, target: name("c.a.test") };
        packet.additional_records.push(record(&instance, RData::SRV(srv)));
        let txt = TXT::new().with_string("Pri=1").unwrap().with_string("pri=2").unwrap();
        packet.additional_records.push(record(&instance, RData::TXT(txt)));
        packet.build_bytes_vec_compressed().unwrap()
    }

    fn read(bytes: &[u8]) -> Option<Announcement> {
        let packet = Packet::parse(bytes).ok().filter(|packet| is_answer(packet, 7))?;
        let name = named(&packet).pop()?;
        let (host, port) = service(&packet, &name)?;
        let txt = text(&packet, &name)?;
        Some(Announcement { name: name.to_string(), hosts: vec![host], port, txt })
    }

    #[test]
    fn an_answer_describes_an_instance() {
        let announcement = read(&answer()).unwrap();
        assert_eq!((&*announcement.name, announcement.port), ("b._nmos-query._tcp.a.test", 80));
        assert_eq!((announcement.hosts, &*announcement.txt["pri"]), (vec!["c.a.test".to_string()], "1"));
    }

    #[test]
    fn damaged_answers_do_no_harm() {
        let whole = answer();
        for at in 0..whole.len() {
            assert!(read(&whole[..at]).is_none(), "{at}");
            for byte in 0..=u8::MAX {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                let _ = is_truncated(&damaged, 7);
                if let Some(announcement) = read(&damaged) {
                    let _ = announcement.places();
                }
            }
        }
    }
}
