//! When our provider answers under the name of one of C libfabric's providers ([`crate::alias`]), it takes on some of
//! that provider's properties: the protocol of each endpoint type, and the default capabilities. Programs select by
//! both. Capabilities that a program requests explicitly are granted even if C's provider lacks them.

use ofi_api::{Caps, EpType, Hints, Info, Protocol, Refusal};

/// An endpoint type of a C provider.
struct ProfileKind {
    ep_type: EpType,
    protocol: Protocol,
    version: u32,
    /// Capabilities besides those for reaching peers.
    caps: Caps,
}

/// A C provider.
struct Profile {
    name: &'static str,
    kinds: &'static [ProfileKind],
}

/// Messages and remote memory, which all of these support.
const PLAIN: Caps =
    Caps::MSG.union(Caps::RMA).union(Caps::MSG_DIRECTIONS).union(Caps::RMA_DIRECTIONS).union(Caps::RMA_EVENT);
/// The same with tags.
const TAGGED: Caps =
    PLAIN.union(Caps::TAGGED).union(Caps::DIRECTED_RECV).union(Caps::SOURCE).union(Caps::MULTI_RECV);

/// The providers that programs select by protocol (`prov/tcp/src/xnet_attr.c`), and the layers ([`crate::layers`]),
/// which have only reliable datagrams (`prov/rxm/src/rxm_attr.c`, `prov/rxd/src/rxd_attr.c`).
const PROFILES: &[Profile] = &[
    Profile {
        name: "tcp",
        kinds: &[
            ProfileKind { ep_type: EpType::Msg, protocol: Protocol::SOCK_TCP, version: 0, caps: PLAIN },
            ProfileKind { ep_type: EpType::Rdm, protocol: Protocol::XNET, version: 1, caps: TAGGED },
        ],
    },
    Profile {
        name: "ofi_rxm",
        kinds: &[ProfileKind {
            ep_type: EpType::Rdm,
            protocol: Protocol::RXM,
            version: 1,
            caps: Caps::all(),
        }],
    },
    Profile {
        name: "ofi_rxd",
        kinds: &[ProfileKind {
            ep_type: EpType::Rdm,
            protocol: Protocol::RXD,
            version: 1,
            caps: Caps::all(),
        }],
    },
];

/// The profile of a provider, or of the topmost layer in a name that has a profile.
fn profile(name: &str) -> Option<&'static Profile> {
    let of = |part: &str| PROFILES.iter().find(|profile| profile.name.eq_ignore_ascii_case(part.trim()));
    name.rsplit(';').find_map(of)
}

/// Translates the hints of a program that requests `alias` into hints for `provider` itself.
pub(crate) fn translated(hints: &Hints, alias: &str, provider: &str) -> Hints {
    let mut own = hints.clone();
    own.info.fabric_attr.prov_name = provider.to_owned();
    if profile(alias).is_some() {
        (own.info.ep_attr.protocol, own.info.ep_attr.protocol_version) = (Protocol::UNSPEC, 0);
    }
    own
}

/// Translates an info of a provider into one of `alias`. `asked` are the program's hints.
///
/// # Errors
/// A refusal, if the hints request a protocol that differs from the alias's, or if C's provider lacks the endpoint type
/// and the hints do not request it.
pub(crate) fn dressed(mut info: Info, alias: &str, asked: Option<&Hints>) -> Result<Info, Refusal> {
    let name = alias.to_owned();
    info.fabric_attr.prov_name.clone_from(&name);
    let Some(profile) = profile(alias) else { return Ok(info) };
    let hints = asked.map(|hints| &hints.info);
    let refuse = |field, wanted: String, offered: String| Refusal { provider: name, field, wanted, offered };
    match profile.kinds.iter().find(|kind| kind.ep_type == info.ep_attr.ep_type) {
        Some(kind) => {
            let ep = &mut info.ep_attr;
            (ep.protocol, ep.protocol_version) = (kind.protocol, kind.version);
            if hints.is_none_or(|hints| hints.caps.is_empty()) {
                let kept = kind.caps | Caps::LOCAL_COMM | Caps::REMOTE_COMM;
                info.caps &= kept;
                info.tx_attr.caps &= kept;
                info.rx_attr.caps &= kept;
            }
        }
        None if hints.is_none_or(|hints| hints.ep_attr.ep_type != info.ep_attr.ep_type) => {
            let wanted = info.ep_attr.ep_type.to_string();
            return Err(refuse("ep_attr.type", wanted, "endpoint types of that provider".into()));
        }
        None => {}
    }
    let wanted = hints.map_or(Protocol::UNSPEC, |hints| hints.ep_attr.protocol);
    if wanted != Protocol::UNSPEC && wanted != info.ep_attr.protocol {
        return Err(refuse("ep_attr.protocol", wanted.to_string(), info.ep_attr.protocol.to_string()));
    }
    let wanted = hints.map_or(0, |hints| hints.ep_attr.protocol_version);
    if wanted > info.ep_attr.protocol_version {
        let offered = format!("at most {}", info.ep_attr.protocol_version);
        return Err(refuse("ep_attr.protocol_version", wanted.to_string(), offered));
    }
    Ok(info)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(ep_type: EpType) -> Info {
        let mut info =
            Info { caps: TAGGED | Caps::ATOMIC | Caps::COLLECTIVE | Caps::REMOTE_COMM, ..Info::default() };
        info.ep_attr.ep_type = ep_type;
        info.ep_attr.protocol = Protocol::specific(7);
        (info.tx_attr.caps, info.rx_attr.caps) = (info.caps, info.caps);
        info
    }

    #[test]
    fn an_alias_has_the_protocols_and_unasked_the_capabilities_of_its_name() {
        let msg = dressed(offered(EpType::Msg), "TCP", None).unwrap();
        assert_eq!((&*msg.fabric_attr.prov_name, msg.ep_attr.protocol), ("TCP", Protocol::SOCK_TCP));
        assert_eq!(msg.caps, PLAIN | Caps::REMOTE_COMM);
        let rdm = dressed(offered(EpType::Rdm), "tcp", None).unwrap();
        assert_eq!((rdm.ep_attr.protocol, rdm.ep_attr.protocol_version), (Protocol::XNET, 1));
        assert_eq!(rdm.caps, TAGGED | Caps::REMOTE_COMM);
        assert!(!rdm.tx_attr.caps.contains(Caps::ATOMIC));
        assert_eq!(dressed(offered(EpType::Dgram), "tcp", None).unwrap_err().field, "ep_attr.type");
    }

    #[test]
    fn what_is_asked_for_by_name_stays() {
        let hints = Hints::new().caps(Caps::MSG | Caps::TAGGED | Caps::ATOMIC).ep_type(EpType::Msg);
        let info = dressed(offered(EpType::Msg), "tcp", Some(&hints)).unwrap();
        assert_eq!(info.caps, offered(EpType::Msg).caps);
        let hints = Hints::new().ep_type(EpType::Dgram);
        assert!(dressed(offered(EpType::Dgram), "tcp", Some(&hints)).is_ok());
    }

    #[test]
    fn hints_of_the_name_s_protocol_are_met_and_others_refused() {
        let hints = Hints::new().protocol(Protocol::SOCK_TCP);
        assert_eq!(translated(&hints, "tcp", "udp").info.ep_attr.protocol, Protocol::UNSPEC);
        assert!(dressed(offered(EpType::Msg), "tcp", Some(&hints)).is_ok());
        assert_eq!(dressed(offered(EpType::Rdm), "tcp", Some(&hints)).unwrap_err().field, "ep_attr.protocol");
    }

    #[test]
    fn a_version_of_the_protocol_is_met_or_refused() {
        let of = |version| {
            let mut hints = Hints::new();
            hints.info.ep_attr.protocol_version = version;
            dressed(offered(EpType::Rdm), "tcp", Some(&hints))
        };
        assert!(of(0).is_ok() && of(1).is_ok());
        assert_eq!(of(99).unwrap_err().field, "ep_attr.protocol_version");
    }

    #[test]
    fn a_layer_has_reliable_datagrams_alone_and_its_own_protocol() {
        let rdm = dressed(offered(EpType::Rdm), "tcp;ofi_rxm", None).unwrap();
        assert_eq!((&*rdm.fabric_attr.prov_name, rdm.ep_attr.protocol), ("tcp;ofi_rxm", Protocol::RXM));
        assert_eq!(rdm.caps, offered(EpType::Rdm).caps);
        let hints = Hints::new().protocol(Protocol::RXD);
        assert_eq!(translated(&hints, "udp;ofi_rxd", "udp").info.ep_attr.protocol, Protocol::UNSPEC);
        assert!(dressed(offered(EpType::Rdm), "udp;ofi_rxd", Some(&hints)).is_ok());
        for other in [EpType::Msg, EpType::Dgram] {
            assert_eq!(dressed(offered(other), "verbs;ofi_rxm", None).unwrap_err().field, "ep_attr.type");
        }
    }

    #[test]
    fn a_name_without_a_profile_is_a_name_only() {
        let info = dressed(offered(EpType::Rdm), "mine", None).unwrap();
        assert_eq!((info.ep_attr.protocol, info.caps), (Protocol::specific(7), offered(EpType::Rdm).caps));
        let hints = Hints::new().protocol(Protocol::specific(7));
        assert_eq!(translated(&hints, "mine", "udp").info.ep_attr.protocol, Protocol::specific(7));
    }
}
