//! One endpoint for each NIC, and the text form of their addresses.

use multirail::RailList;
use ofi::raw::{GetinfoFlags, Version};
use ofi::{AddrFormat, Address, Caps, Errno, Hints, Info, MrAccess, Node, OpFlags};

use super::options::{MOST_NICS, Options};
use super::steps::Steps;
use crate::failure::{Failure, Result};

/// The capabilities that the demo needs.
const CAPS: Caps = Caps::MSG.union(Caps::RMA);
/// The rights of the reader's regions.
pub const RIGHTS: MrAccess = MrAccess::REMOTE_WRITE;

/// The number of NICs to use: as given on the command line, or by the writer's address, or all. For socket providers it
/// is one, because endpoints bound to interfaces of different networks cannot reach each other.
///
/// # Errors
/// The provider offers no endpoint that the demo can use.
pub fn count(options: &Options) -> Result<u64> {
    let of_writer = options.address.as_ref().map(|address| address.split(',').count());
    match (options.asked_nics, of_writer) {
        (Some(asked), _) => Ok(asked),
        (None, Some(count)) if count as u64 > MOST_NICS => {
            Err(Failure::Usage(format!("the writer has {count} NICs; the most is {MOST_NICS}")))
        }
        (None, Some(count)) => Ok(count as u64),
        (None, None) if is_sockets(&options.provider) => Ok(1),
        (None, None) => Ok((devices(&options.provider)?.len() as u64).min(MOST_NICS)),
    }
}

fn is_sockets(provider: &str) -> bool {
    matches!(provider, "udp" | "tcp")
}

/// Opens `count` endpoints, on the provider's NICs in turn. One alone of sockets has all addresses of a family, if that
/// is the family of the first NIC.
///
/// # Errors
/// The error of the provider.
pub fn open(provider: &str, count: u64, steps: Steps) -> Result<Vec<Node>> {
    let infos = match count {
        1 if is_sockets(provider) => widest(domains(provider)?, devices(provider)?),
        _ => devices(provider)?,
    };
    let open = |nth: usize| {
        let info = &infos[nth % infos.len()];
        let hints = hints(provider).domain(&*info.domain_attr.name).tx_op_flags(info.tx_attr.op_flags);
        // Source numbers distinguish clients. A provider without them serves one client.
        let sourced = hints.clone().caps(CAPS | Caps::SOURCE);
        let node = Node::open(&sourced).or_else(|_| Node::open(&hints));
        let node = node.map_err(Failure::stack("opening an endpoint"))?;
        steps.step(format_args!("NIC {nth}"), || opened(&node, info));
        Ok(node)
    };
    (0..count as usize).map(open).collect()
}

/// The `domains`, the first of which covers all addresses of a family, if that is the family of the NICs; otherwise
/// `nics`.
fn widest(domains: Vec<Info>, nics: Vec<Info>) -> Vec<Info> {
    let format = |infos: &[Info]| infos.first().map(|info| info.addr_format);
    if format(&domains) == format(&nics) { domains } else { nics }
}

/// A description of the opened endpoints.
fn opened(node: &Node, info: &Info) -> String {
    let address = node.name().map_or_else(|error| format!("no address: {error}"), |name| text(&name));
    let placed = if info.tx_attr.op_flags.contains(OpFlags::DELIVERY_COMPLETE) {
        "a write is complete once its bytes are in place (FI_DELIVERY_COMPLETE)"
    } else {
        "the device's completions follow the bytes"
    };
    format!(
        "opened domain {} of fabric {} at {address}; {placed}",
        info.domain_attr.name, info.fabric_attr.name
    )
}

/// The names of a provider's domains: its devices.
///
/// # Errors
/// The provider offers no endpoint that the demo can use.
pub fn names(provider: &str) -> Result<Vec<String>> {
    Ok(domains(provider)?.iter().map(|info| info.domain_attr.name.to_string()).collect())
}

/// The provider's domains that are NICs, one for each NIC; all domains if none is a NIC.
fn devices(provider: &str) -> Result<Vec<Info>> {
    let mut infos = domains(provider)?;
    let list: RailList = format!("{provider}/*").parse().map_err(Failure::stack("looking for NICs"))?;
    let found = list.infos().unwrap_or_default();
    let place = |info: &Info| found.iter().position(|nic| nic.domain_attr.name == info.domain_attr.name);
    if infos.iter().any(|info| place(info).is_some()) {
        infos.retain(|info| place(info).is_some());
        infos.sort_by_key(place);
        infos.dedup_by(|next, one| next.domain_attr.name == one.domain_attr.name);
    }
    Ok(infos)
}

fn hints(provider: &str) -> Hints {
    Hints::new().provider(provider).caps(CAPS).ep_type(ofi::EpType::Rdm)
}

/// The provider's domains, with the completion level that guarantees that a write's bytes are in place.
fn domains(provider: &str) -> Result<Vec<Info>> {
    let ask = |hints: &Hints| ofi::getinfo(Version::API, None, None, GetinfoFlags::empty(), Some(hints));
    // In a provider without that level (efa-direct) the device executes writes, and completions follow the bytes.
    let infos = ask(&hints(provider).tx_op_flags(OpFlags::DELIVERY_COMPLETE))
        .map(|infos| (infos, OpFlags::DELIVERY_COMPLETE))
        .or_else(|_| ask(&hints(provider)).map(|infos| (infos, OpFlags::empty())))
        .map_err(Failure::stack("looking for the provider"))?;
    let (mut infos, level) = infos;
    infos.dedup_by(|next, one| next.domain_attr.name == one.domain_attr.name);
    infos.iter_mut().for_each(|info| info.tx_attr.op_flags = level);
    if infos.is_empty() {
        return Err(Failure::Usage(format!("provider {provider} lists nothing")));
    }
    Ok(infos)
}

/// The addresses of all endpoints, for the reader.
///
/// # Errors
/// The error of the provider.
pub fn addresses(nodes: &[Node]) -> Result<String> {
    let name =
        |node: &Node| node.name().map(|name| text(&name)).map_err(Failure::stack("asking for an address"));
    Ok(nodes.iter().map(name).collect::<Result<Vec<_>>>()?.join(","))
}

/// An EFA address is 64 hexadecimal digits, as in the C++ demo; others have libfabric's form.
fn text(address: &Address) -> String {
    match address.format() {
        AddrFormat::Efa => address.bytes().iter().map(|byte| format!("{byte:02x}")).collect(),
        _ => address.to_string(),
    }
}

/// Parses the output of [`addresses`].
///
/// # Errors
/// The text is not an address.
pub fn parse(text: &str) -> Result<Vec<Address>> {
    let one = |text: &str| match hexadecimal(text) {
        Some(bytes) => Ok(Address::new(AddrFormat::Efa, &bytes)),
        None => text.parse().map_err(Failure::stack("reading the writer's address")),
    };
    text.split(',').map(one).collect()
}

fn hexadecimal(text: &str) -> Option<Vec<u8>> {
    let digits = text.len() == 64 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).ok();
    digits.then(|| (0..64).step_by(2).map(byte).collect())?
}

/// The address of a peer of `node` that announced these bytes.
///
/// # Errors
/// The bytes cannot be an address of the node's format.
pub fn introduced(node: &Node, bytes: &[u8]) -> Result<Address> {
    let format = node.name().map_err(Failure::stack("asking for an address"))?.format();
    let len = match format {
        AddrFormat::SockaddrIn => 16,
        AddrFormat::SockaddrIn6 => 28,
        AddrFormat::Str => bytes.iter().position(|&byte| byte == 0).map_or(bytes.len(), |end| end + 1),
        _ => bytes.len(),
    };
    let bytes = bytes
        .get(..len)
        .ok_or_else(|| Failure::Peer(format!("an address of {} bytes; {format} has {len}", bytes.len())))?;
    Ok(Address::new(format, bytes))
}

/// Whether an error only asks the caller to poll and retry.
pub fn is_again(error: &ofi::Error) -> bool {
    *error == Errno::EAGAIN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_nics_are_used_as_are_asked_for_or_as_the_writer_has_or_as_there_are() {
        use clap::Parser;
        let counted = |arguments: &[&str]| {
            let mut options = Options::try_parse_from([&["fi_write_demo"], arguments].concat()).unwrap();
            options.provider = options.asked.clone().unwrap_or_default();
            count(&options)
        };
        assert_eq!(counted(&["-p", "udp", "--nics=3"]).unwrap(), 3);
        assert_eq!(counted(&["-p", "udp", "a,b"]).unwrap(), 2);
        assert_eq!(counted(&["-p", "udp", "--nics=5", "a,b"]).unwrap(), 5);
        assert_eq!(counted(&["-p", "shm"]).unwrap(), 1);
        assert_eq!(counted(&["-p", "udp"]).unwrap(), 1, "whatever the number of interfaces");
        assert_eq!(domains("udp").unwrap()[0].domain_attr.name, "udp", "it has all addresses");
        assert!(counted(&[&*"a,".repeat(64)]).is_err());
        assert!(counted(&["-p", "nothing"]).is_err());
    }

    /// Regression test: on a host with only IPv6, the endpoint was named 127.0.0.1, which other hosts cannot reach.
    #[test]
    fn one_endpoint_is_of_the_family_of_the_first_nic() {
        let of = |addr_format| vec![Info { addr_format, ..Info::default() }];
        let formats = [AddrFormat::SockaddrIn, AddrFormat::SockaddrIn6];
        for nic in formats {
            assert_eq!(widest(of(AddrFormat::SockaddrIn), of(nic))[0].addr_format, nic);
        }
        let (mut all, one) = (of(AddrFormat::SockaddrIn), of(AddrFormat::SockaddrIn));
        all[0].domain_attr.name = "udp".into();
        assert_eq!(widest(all, one)[0].domain_attr.name, "udp");
    }

    #[test]
    fn addresses_are_read_as_they_are_printed() {
        let efa = Address::new(AddrFormat::Efa, &(0..32).collect::<Vec<u8>>());
        let ip: Address = "fi_sockaddr_in://10.31.6.12:7471".parse().unwrap();
        let both = format!("{},{}", text(&efa), text(&ip));
        assert!(both.starts_with("000102"));
        assert_eq!(parse(&both).unwrap(), [efa, ip]);
        assert!(parse("nonsense").is_err());
        assert!(parse(&"0g".repeat(32)).is_err());
    }
}
