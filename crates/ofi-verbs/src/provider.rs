//! The provider's offers: the devices of this host, by their addresses.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ibv::GRH;
use ofi_api::{
    AddrFormat, Address, BusAttr, Caps, DeviceAttr, EpType, Fabric, GetinfoFlags, Hints, Info, LinkAttr,
    LinkState, Mode, MrMode, MsgOrder, Nic, Offers, OpFlags, Protocol, Provider, Refusal, Request, Result,
    RxAttr, TxAttr, Version,
};
use ofi_core::composite::Composite;
use ofi_core::config::Problem;
use ofi_core::fabric::FabricCore;
use ofi_core::offer::{self, Base, Narrow};
use ofi_core::transport::record::RMA_IOV_LIMIT;

use crate::address::Name;
use crate::connected;
use crate::datagram::naming;
use crate::devices::{Own, Port};
use crate::near::VerbsOrShm;
use crate::rc::msg::Abilities;
use crate::timers::Timers;
use crate::{address, devices, settings};

/// Name in `FI_PROVIDER`.
const NAME: &str = "verbs";
/// The protocol of `wire.rs`: records over reliable connections. C libfabric has no name for it.
const PROTOCOL: Protocol = Protocol::specific(0x7262_7672);

/// The provider. It has no state: all state belongs to the objects that it opens.
#[derive(Clone, Copy, Debug, Default)]
pub struct VerbsProvider;

/// Narrows the core's offer: no authorization keys, because this provider does not check them.
fn plain(mut info: Info) -> Info {
    (info.ep_attr.auth_key_size, info.domain_attr.auth_key_size) = (0, 0);
    info.domain_attr.max_ep_auth_key = 0;
    info
}

const TYPES: [(EpType, Narrow); 1] = [(EpType::Rdm, plain)];

/// Connected endpoints, for messages and accesses in the protocol of C libfabric's verbs provider. A write with remote
/// CQ data consumes a receive, for which the application must be prepared.
fn accesses(info: Info) -> Info {
    let mut info = over_connections(info, Caps::RMA | Caps::ATOMIC | Caps::RMA_DIRECTIONS);
    info.rx_attr.mode = Mode::RX_CQ_DATA;
    info
}

/// As [`accesses`], for an application that is not prepared for that and requests no CQ data. C's provider has the same
/// offer.
fn plain_accesses(info: Info) -> Info {
    let mut info = over_connections(info, Caps::RMA | Caps::ATOMIC | Caps::RMA_DIRECTIONS);
    info.domain_attr.cq_data_size = 0;
    info
}

/// As [`accesses`], for messages alone, with no requirements on the application.
fn messages(info: Info) -> Info {
    over_connections(info, Caps::empty())
}

fn over_connections(info: Info, beside: Caps) -> Info {
    let mut info = plain(info);
    let domain = &mut info.domain_attr;
    (domain.mr_key_size, domain.cq_data_size, domain.mr_iov_limit) = (4, 4, 1);
    (domain.max_ep_tx_ctx, domain.max_ep_rx_ctx) = (1, 1);
    let ep = &mut info.ep_attr;
    (ep.ep_type, ep.protocol, ep.protocol_version) = (EpType::Msg, Protocol::RDMA_CM_IB_RC, 1);
    (ep.mem_tag_format, ep.max_order_war_size) = (0, 0);
    (ep.max_order_raw_size, ep.max_order_waw_size) = (ep.max_msg_size, ep.max_msg_size);
    info.caps &= Caps::MSG
        | Caps::MSG_DIRECTIONS
        | Caps::FENCE
        | Caps::LOCAL_COMM
        | Caps::REMOTE_COMM
        | Caps::HMEM
        | beside;
    // The order that a queue pair guarantees: only a request after a read may overtake the read's answer.
    let order = MsgOrder::SAS | MsgOrder::SAW | MsgOrder::WAS | MsgOrder::RAS | MsgOrder::RAR | MsgOrder::RAW;
    let order = order | MsgOrder::WAW | MsgOrder::RMA_RAR | MsgOrder::RMA_RAW | MsgOrder::RMA_WAW;
    let order = order | MsgOrder::ATOMIC_RAR | MsgOrder::ATOMIC_RAW | MsgOrder::ATOMIC_WAW;
    let (tx, rx) = (&mut info.tx_attr, &mut info.rx_attr);
    (tx.msg_order, rx.msg_order) = (order, order);
    (tx.inject_size, tx.rma_iov_limit) = (connected::INJECT, 1);
    tx.op_flags -= OpFlags::DELIVERY_COMPLETE | OpFlags::MATCH_COMPLETE;
    rx.op_flags = OpFlags::COMPLETION;
    info
}

/// Plain datagrams, in the format of C libfabric's verbs provider.
fn datagrams(info: Info) -> Info {
    let mut info = plain(info);
    info.ep_attr.ep_type = EpType::Dgram;
    (info.ep_attr.protocol, info.ep_attr.protocol_version) = (Protocol::IB_UD, 0);
    let messages = Caps::MSG | Caps::MSG_DIRECTIONS | Caps::MULTI_RECV;
    let sources = Caps::SOURCE | Caps::SOURCE_ERR | Caps::DIRECTED_RECV;
    info.caps &= messages | sources | Caps::MULTICAST | Caps::LOCAL_COMM | Caps::REMOTE_COMM;
    let mtu = info.nic.as_ref().map_or(0, |nic| nic.link_attr.mtu);
    info.ep_attr.max_msg_size = mtu;
    info.tx_attr.inject_size = mtu;
    info.domain_attr.cq_data_size = 4;
    info.tx_attr.op_flags -=
        OpFlags::DELIVERY_COMPLETE | OpFlags::MATCH_COMPLETE | OpFlags::TRANSMIT_COMPLETE;
    (info.tx_attr.msg_order, info.rx_attr.msg_order) = (MsgOrder::empty(), MsgOrder::empty());
    info
}

/// As [`datagrams`], for an application that leaves room for the route header before each message (`FI_MSG_PREFIX`).
fn prefixed_datagrams(info: Info) -> Info {
    let mut info = datagrams(info);
    (info.mode, info.tx_attr.mode, info.rx_attr.mode) =
        (Mode::MSG_PREFIX, Mode::MSG_PREFIX, Mode::MSG_PREFIX);
    info.ep_attr.msg_prefix_size = GRH;
    info
}

/// Whether the hints offer that room in both directions. A direction without a mode has the mode of the whole info.
fn spares_a_prefix(request: &Request<'_>) -> bool {
    request.hints.is_some_and(|Hints { info, .. }| {
        let sides = [info.tx_attr.mode, info.rx_attr.mode];
        let spared = info.ep_attr.msg_prefix_size;
        info.mode.contains(Mode::MSG_PREFIX)
            && sides.iter().all(|mode| mode.is_empty() || mode.contains(Mode::MSG_PREFIX))
            && (spared == 0 || spared >= GRH)
    })
}

fn refusal(field: &'static str, wanted: impl Into<String>, offered: impl Into<String>) -> Refusal {
    offer::refusal(NAME, field, wanted, offered)
}

/// The address format that the request implies, and the address that its node and service name.
fn addresses(request: &Request<'_>) -> Result<(Option<AddrFormat>, Option<Address>), Refusal> {
    let hinted = request.hints.map_or(AddrFormat::Unspec, |hints| hints.info.addr_format);
    let given =
        request.hints.and_then(|hints| hints.info.src_addr.as_ref().or(hints.info.dest_addr.as_ref()));
    let format = match hinted {
        AddrFormat::Unspec | AddrFormat::Sockaddr | AddrFormat::SockaddrIp => given.map(Address::format),
        format => Some(format),
    };
    if let Some(other) =
        format.filter(|format| !matches!(format, AddrFormat::SockaddrIn | AddrFormat::SockaddrIn6))
    {
        let offered = "FI_SOCKADDR_IN, FI_SOCKADDR_IN6, FI_SOCKADDR, FI_SOCKADDR_IP";
        return Err(refusal("addr_format", other.to_string(), offered));
    }
    let named = request.node.is_some() || request.service.is_some();
    let named = named.then(|| address::resolve(request.node, request.service, format)).transpose();
    let named = named.map_err(|error| {
        refusal("node and service", request.node.unwrap_or("").to_string(), error.to_string())
    })?;
    Ok((format.or(named.as_ref().map(Address::format)), named))
}

/// The peer's address of a request.
fn dest(request: &Request<'_>, named: Option<&Address>) -> Option<SocketAddr> {
    let named = named.filter(|_| !request.flags.contains(GetinfoFlags::SOURCE));
    let hinted = || request.hints.and_then(|hints| hints.info.dest_addr.as_ref());
    address::socket(named.or_else(hinted)?).ok()
}

/// The addresses to offer: of the requested format, else those of IPv4 first. The one from which the kernel would send
/// to the peer precedes the others: of several VLANs, only one may lead there.
fn sources(all: &[Own], format: Option<AddrFormat>, to: Option<SocketAddr>) -> Vec<&Own> {
    let fits = |own: &&Own| address::fits(SocketAddr::new(own.ip, 0), format);
    let mut found: Vec<&Own> = all.iter().filter(fits).collect();
    let towards = to.and_then(ofi_core::ip::route);
    found.sort_by_key(|own| (towards != Some(own.ip), own.ip.is_ipv6()));
    found
}

/// The ends that a request for datagrams names.
#[derive(Default)]
struct Named {
    /// An address of the local device.
    device: Option<IpAddr>,
    /// The service of the local endpoint, and the peer's address.
    service: u16,
    peer: Option<Address>,
}

/// The ends that node and service of a request for datagrams name. For the local end, the node is an address of the
/// device, and peers find the endpoint by the service. For the peer, the node's name server resolves node and service.
fn datagram_ends(request: &Request<'_>) -> Result<Named, Refusal> {
    let mut named = Named::default();
    let node = request.node.filter(|node| !node.is_empty());
    let service = request.service.filter(|service| !service.is_empty());
    if node.is_none() && service.is_none() {
        return Ok(named);
    }
    let text = || format!("{}:{}", node.unwrap_or("*"), service.unwrap_or("*"));
    let refused = |why: String| refusal("node and service", text(), why);
    // The peer's own address needs no name server.
    if let Some(Ok(address)) = Address::of_node(node, service)
        && address.format() == AddrFormat::IbUd
        && !request.flags.contains(GetinfoFlags::SOURCE)
    {
        named.peer = Some(address);
        return Ok(named);
    }
    let number: u16 = service.map_or(Ok(0), str::parse).map_err(|_| refused("a port number".into()))?;
    let ip = node.map(|node| address::resolve(Some(node), None, None).and_then(|ip| address::socket(&ip)));
    let ip = ip.transpose().map_err(|error| refused(error.to_string()))?.map(|socket| socket.ip());
    if request.flags.contains(GetinfoFlags::SOURCE) {
        (named.device, named.service) = (ip.filter(|ip| !ip.is_unspecified()), number);
    } else if let Some(ip) = ip {
        let port = settings::DGRAM_NAME_SERVER_PORT.get();
        let found = naming::find(ip, number.into());
        named.peer = Some(found.map_err(|error| {
            refused(format!(
                "{error}, by the name server at port {port}; or the addresses that fi_getname returns"
            ))
        })?);
    } else {
        return Err(refused("a node, whose name server knows the service".into()));
    }
    Ok(named)
}

/// The description of a device.
fn nic(own: &Own) -> Nic {
    own.port().map_or_else(Nic::default, |port| port_nic(port, own.ip))
}

fn port_nic(Port { context, number, .. }: Port, ip: IpAddr) -> Nic {
    let path = context.path();
    let read = |name: &str| std::fs::read_to_string(format!("{path}/device/{name}")).unwrap_or_default();
    let mut nic = Nic { numa_node: read("numa_node").trim().parse().ok(), ..Nic::default() };
    let name = context.name();
    if let Ok(info) = context.query() {
        nic.device_attr = DeviceAttr {
            name,
            device_id: format!("{:#06x}", info.part),
            device_version: info.version.to_string(),
            vendor_id: format!("{:#06x}", info.vendor),
            driver: String::new(),
            firmware: info.firmware,
        };
    }
    let link = std::fs::read_link(format!("{path}/device")).unwrap_or_default();
    let last = link.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    nic.bus_attr = last.parse().map_or(BusAttr::Unknown, BusAttr::Pci);
    if let Ok(port) = context.port(number) {
        nic.link_attr = LinkAttr {
            address: ip.to_string(),
            mtu: port.mtu,
            speed: usize::try_from(port.speed).unwrap_or(usize::MAX),
            state: if port.active { LinkState::Up } else { LinkState::Down },
            network_type: if port.ethernet { "Ethernet" } else { "InfiniBand" }.into(),
        };
    }
    nic
}

// SAFETY: it opens only objects of `ofi-core`, which keeps the promises for every transport; an operation is reported
// when its memory is copied, or deregistered, or its queue pair is gone.
unsafe impl Provider for VerbsProvider {
    fn name(&self) -> &str {
        NAME
    }

    fn version(&self) -> Version {
        offer::version()
    }

    fn offers(&self, request: &Request<'_>) -> Offers {
        self.try_offers(request)
            .unwrap_or_else(|refusal| Offers { infos: Vec::new(), refusals: vec![refusal] })
    }

    fn open_fabric(&self, info: &Info) -> Result<Arc<dyn Fabric>> {
        Ok(FabricCore::<Composite<VerbsOrShm>>::open(info))
    }

    fn has_device_keys(&self) -> bool {
        true
    }
}

/// The refusal of an added device.
fn not_the_systems(request: &Request<'_>) -> Refusal {
    let wanted = request.hints.map_or_else(String::new, |hints| hints.info.ep_attr.ep_type.to_string());
    refusal("ep_attr.type", wanted, "FI_EP_RDM: the device is not one of the system's")
}

/// The refusal for an unusable setting.
fn unusable(Problem { env, found, reason }: Problem) -> Refusal {
    refusal("settings", format!("{env}={found}"), reason)
}

/// The sizes and pieces of a connected endpoint: those of the settings, or the device's limits if the hints ask for
/// more than the settings.
fn size_of_connected(info: &mut Info, device: &Abilities, usual: &connected::Config, request: &Request<'_>) {
    let none = (TxAttr::default(), RxAttr::default());
    let (asked_tx, asked_rx) =
        request.hints.map_or((&none.0, &none.1), |hints| (&hints.info.tx_attr, &hints.info.rx_attr));
    let offered = |asked, usual: usize, most| if asked > usual { most } else { usual.min(most) };
    let (tx, rx) = (&mut info.tx_attr, &mut info.rx_attr);
    tx.size = offered(asked_tx.size, usual.sizes[0], connected::most(device));
    rx.size = offered(asked_rx.size, usual.sizes[1], connected::most(device));
    tx.iov_limit = offered(asked_tx.iov_limit, usual.pieces[0], tx.iov_limit.min(device.pieces));
    rx.iov_limit = offered(asked_rx.iov_limit, usual.pieces[1], rx.iov_limit.min(device.pieces));
}

/// Connected endpoints of a device. Remote writes carry CQ data if the application is prepared for the receives that
/// they consume.
fn connected_offers(own: &Own, variants: &[Info], request: &Request<'_>) -> Offers {
    let refused = |refusal| Offers { refusals: vec![refusal], ..Offers::default() };
    let Some(abilities) = own.abilities() else { return refused(not_the_systems(request)) };
    let usual = match connected::Config::read() {
        Ok(usual) => usual,
        Err(problem) => return refused(unusable(problem)),
    };
    let whole = MrMode::VIRT_ADDR | MrMode::PROV_KEY;
    let mut variants: Vec<Info> =
        variants.iter().filter(|info| info.domain_attr.mr_mode.contains(whole)).cloned().collect();
    for info in &mut variants {
        info.caps.set(Caps::ATOMIC, abilities.atomics);
        info.ep_attr.max_msg_size = abilities.longest.min(connected::MAX_MESSAGE_LEN);
        size_of_connected(info, &abilities, &usual, request);
    }
    let prepared = request.hints.is_none_or(|hints| {
        let modes = hints.info.mode | hints.info.rx_attr.mode;
        modes.contains(Mode::RX_CQ_DATA) || hints.info.caps.intersects(Caps::RMA | Caps::ATOMIC)
    });
    let mut types: [(EpType, Narrow); 3] =
        [(EpType::Msg, accesses), (EpType::Msg, plain_accesses), (EpType::Msg, messages)];
    if !prepared {
        types.reverse();
    }
    offer::answer_with_devices(&types, variants, request)
}

impl VerbsProvider {
    fn try_offers(self, request: &Request<'_>) -> Result<Offers, Refusal> {
        let all = devices::addresses()
            .map_err(|error| refusal("device", "an RDMA device with an IP address", error.to_string()))?;
        let hinted = request.hints.map(|hints| (hints.info.ep_attr.ep_type, hints.info.addr_format));
        if hinted.is_some_and(|(ep, format)| ep == EpType::Dgram || format == AddrFormat::IbUd) {
            return Self::datagram_offers(&all, request);
        }
        Timers::read().map_err(unusable)?; // of both types with connections
        let (format, named) = addresses(request)?;
        let family = format.unwrap_or(AddrFormat::SockaddrIn);
        offer::check_formats(NAME, request, family)?;
        let mut offers = Offers::default();
        for own in sources(&all, format, dest(request, named.as_ref())) {
            let family = if own.ip.is_ipv6() { AddrFormat::SockaddrIn6 } else { AddrFormat::SockaddrIn };
            let reach = Caps::LOCAL_COMM | Caps::REMOTE_COMM;
            let base =
                Base { name: NAME, protocol: PROTOCOL, reach, format: family, rma_iov_limit: RMA_IOV_LIMIT };
            let mut variants = base.variants();
            let mut wanted = true;
            for info in &mut variants {
                offer::name_ends(info, request, named.as_ref());
                let source = info.src_addr.as_ref().and_then(|address| address::socket(address).ok());
                match source.filter(|source| !source.ip().is_unspecified()) {
                    Some(source) => wanted = source.ip() == own.ip,
                    None => {
                        let port = source.map_or(0, |source| source.port());
                        info.src_addr = Some(Address::from(SocketAddr::new(own.ip, port)));
                    }
                }
                info.domain_attr.name = own.name();
                info.nic = Some(nic(own));
            }
            if !wanted {
                continue;
            }
            let connected = connected_offers(own, &variants, request);
            if hinted.is_some_and(|(ep, _)| ep == EpType::Msg) {
                offers.infos.extend(connected.infos);
                offers.refusals.extend(connected.refusals);
                continue;
            }
            let answer = if own.has_shared_receives() {
                offer::answer_with_devices(&TYPES, variants, request)
            } else {
                let offered = format!("FI_EP_MSG: {} has no shared receive queues", own.name());
                let refusals = vec![refusal("ep_attr.type", EpType::Rdm.to_string(), offered)];
                Offers { refusals, ..Offers::default() }
            };
            offers.infos.extend(answer.infos.into_iter().chain(connected.infos));
            offers.refusals.extend(answer.refusals);
        }
        if offers.infos.is_empty() && offers.refusals.is_empty() {
            let has: Vec<String> = all.iter().map(|own| own.ip.to_string()).collect();
            return Err(refusal("src_addr", "the requested address", has.join(", ")));
        }
        if !offers.infos.is_empty() {
            offers.refusals.clear();
            let any = hinted.is_none_or(|hinted| hinted == (EpType::Unspec, AddrFormat::Unspec));
            if any && named.is_none() && all.iter().any(|own| own.datagrams().is_some()) {
                offers.infos.extend(Self::datagram_offers(&all, request)?.infos);
            }
        }
        Ok(offers)
    }

    /// Datagram endpoints: one offer for each device, by its first address or the requested one.
    fn datagram_offers(all: &[Own], request: &Request<'_>) -> Result<Offers, Refusal> {
        let Named { device, service, peer } = datagram_ends(request)?;
        let place = settings::gid_index().map_err(unusable)?;
        offer::check_formats(NAME, request, AddrFormat::IbUd)?;
        let mut offers = Offers::default();
        let mut seen = Vec::new();
        if all.iter().all(|own| own.datagrams().is_none()) {
            return Err(not_the_systems(request));
        }
        let ports = || all.iter().filter_map(|own| Some((own, own.datagrams()?)));
        for (own, port) in ports().filter(|(own, _)| place.is_none_or(|index| own.is_at(index))) {
            let reach = Caps::LOCAL_COMM | Caps::REMOTE_COMM;
            let base = Base {
                name: NAME,
                protocol: Protocol::IB_UD,
                reach,
                format: AddrFormat::IbUd,
                rma_iov_limit: RMA_IOV_LIMIT,
            };
            let device_name = own.name();
            let mut nic = nic(own);
            nic.link_attr.mtu = port.mtu;
            let mut variants = base.variants();
            let mut wanted = match device {
                Some(wanted) => wanted == own.ip,
                None => !seen.contains(&device_name),
            };
            for info in &mut variants {
                info.caps.set(Caps::MULTICAST, port.groups > 0);
                offer::name_ends(info, request, None);
                if peer.is_some() {
                    info.dest_addr.clone_from(&peer);
                }
                match &info.src_addr {
                    Some(source) => {
                        let name = Name::parse(source);
                        let name =
                            name.map_err(|error| refusal("src_addr", source.to_string(), error.to_string()))?;
                        wanted = name.gid == port.gid;
                    }
                    None => info.src_addr = Some(Name { gid: port.gid, qp: 0, lid: 0 }.with_service(service)),
                }
                info.domain_attr.name.clone_from(&device_name);
                info.nic = Some(nic.clone());
            }
            if !wanted {
                continue;
            }
            seen.push(device_name);
            let narrow: Narrow = if spares_a_prefix(request) { prefixed_datagrams } else { datagrams };
            let answer = offer::answer(&[(EpType::Dgram, narrow)], &variants, request);
            offers.infos.extend(answer.infos);
            offers.refusals.extend(answer.refusals);
        }
        if !offers.infos.is_empty() {
            offers.refusals.clear();
        } else if let (Some(index), true, true) = (place, seen.is_empty(), device.is_none()) {
            let has = all.iter().filter_map(|own| Some(own.port()?.gid_index?.to_string()));
            return Err(refusal("FI_VERBS_GID_IDX", index.to_string(), has.collect::<Vec<_>>().join(", ")));
        } else if let (Some(ip), true) = (device, offers.refusals.is_empty()) {
            let has: Vec<String> = ports().map(|(own, _)| own.ip.to_string()).collect();
            return Err(refusal("node (FI_SOURCE)", ip.to_string(), has.join(", ")));
        }
        Ok(offers)
    }
}
