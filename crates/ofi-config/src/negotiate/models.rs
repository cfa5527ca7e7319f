//! Choices between named values: endpoint type, protocol, address format, threading, progress, resource
//! management, kind of address vector, class of traffic.

use super::Negotiation;
use ofi_api::{
    AddrFormat, AvType, EpType, Progress, Protocol, ResourceMgmt, Threading, TrafficClass, Version,
};

/// The type must be the one offered.
pub(super) fn ep_type(talk: &mut Negotiation<'_>) -> EpType {
    let (offered, wanted) = (talk.offer.ep_attr.ep_type, talk.hints.ep_attr.ep_type);
    match (offered, wanted) {
        (offered, EpType::Unspec) => offered,
        (EpType::Unspec, wanted) => wanted,
        (offered, wanted) => {
            if offered != wanted {
                talk.refuse("ep_attr.type", wanted, offered);
            }
            offered
        }
    }
}

/// The protocol must be the one offered.
pub(super) fn protocol(talk: &mut Negotiation<'_>) -> Protocol {
    let (offered, wanted) = (talk.offer.ep_attr.protocol, talk.hints.ep_attr.protocol);
    if wanted != Protocol::UNSPEC && wanted != offered {
        talk.refuse("ep_attr.protocol", wanted, offered);
    }
    offered
}

/// The more particular of the two formats, if one includes the other: `FI_SOCKADDR` includes all socket
/// addresses and `FI_SOCKADDR_IP` those of IP.
pub(super) fn addr_format(talk: &mut Negotiation<'_>) -> AddrFormat {
    let (offered, wanted) = (talk.offer.addr_format, talk.hints.addr_format);
    if includes(wanted, offered) {
        offered
    } else if includes(offered, wanted) {
        wanted
    } else {
        talk.refuse("addr_format", wanted, offered);
        offered
    }
}

/// True if every address in the format `part` is one in the format `whole`.
fn includes(whole: AddrFormat, part: AddrFormat) -> bool {
    use AddrFormat::{Sockaddr, SockaddrIb, SockaddrIn, SockaddrIn6, SockaddrIp, Unspec};
    match (whole, part) {
        (Unspec, _) => true,
        (Sockaddr, part) => matches!(part, Sockaddr | SockaddrIp | SockaddrIn | SockaddrIn6 | SockaddrIb),
        (SockaddrIp, part) => matches!(part, SockaddrIp | SockaddrIn | SockaddrIn6),
        (whole, part) => whole == part,
    }
}

/// The first interface without `FI_THREAD_FID` and `FI_THREAD_ENDPOINT`.
const WITHOUT_OLD_THREADING: Version = Version::new(2, 0);

/// Threading models, by the calls that the application must serialise: none, then calls on one endpoint and its queues,
/// then all calls of a domain. A provider that requires less than the application promises meets the hint. The
/// application's model is granted, so that locks can be left out.
///
/// The two models that API 2.0 removed require less of the application than `FI_THREAD_COMPLETION`, so older programs
/// that name them get `FI_THREAD_SAFE`. A provider that offers them counts as offering `FI_THREAD_COMPLETION`.
pub(super) fn threading(talk: &mut Negotiation<'_>) -> Threading {
    let offered = match talk.offer.domain_attr.threading {
        Threading::Fid | Threading::Endpoint => Threading::Completion,
        offered => offered,
    };
    let wanted = match talk.hints.domain_attr.threading {
        Threading::Fid | Threading::Endpoint if talk.api < WITHOUT_OLD_THREADING => Threading::Safe,
        wanted => wanted,
    };
    let burden = |threading| match threading {
        Threading::Fid | Threading::Endpoint => 0,
        Threading::Safe => 1,
        Threading::Completion => 2,
        Threading::Domain => 3,
        Threading::Unspec => 4,
    };
    if burden(offered) > burden(wanted) {
        talk.refuse("domain_attr.threading", wanted, offered);
    }
    if wanted == Threading::Unspec { offered } else { wanted }
}

/// Progress models, by the application's duties: none, then reading queues, then also serialising control calls. The
/// application's model is granted. The old `control_progress` is ignored in hints, as in C.
pub(super) fn progress(talk: &mut Negotiation<'_>) -> Progress {
    let (offered, wanted) = (talk.offer.domain_attr.progress, talk.hints.domain_attr.progress);
    let burden = |progress| match progress {
        Progress::Auto => 1,
        Progress::Manual => 2,
        Progress::ControlUnified => 3,
        Progress::Unspec => 4,
    };
    if burden(offered) > burden(wanted) {
        talk.refuse("domain_attr.progress", wanted, offered);
    }
    if wanted == Progress::Unspec { offered } else { wanted }
}

/// Resource management: a provider that protects its queues serves both, and says so.
pub(super) fn resource_mgmt(talk: &mut Negotiation<'_>) -> ResourceMgmt {
    let (offered, wanted) = (talk.offer.domain_attr.resource_mgmt, talk.hints.domain_attr.resource_mgmt);
    let burden = |resource_mgmt| match resource_mgmt {
        ResourceMgmt::Enabled => 1,
        ResourceMgmt::Disabled => 2,
        ResourceMgmt::Unspec => 3,
    };
    if burden(offered) > burden(wanted) {
        talk.refuse("domain_attr.resource_mgmt", wanted, offered);
    }
    offered
}

/// The kind of address vector; `FI_AV_UNSPEC` says that any may be opened. `FI_AV_MAP` is deprecated and served by
/// tables; it is granted by its name, which the application will give when it opens the vector.
pub(super) fn av_type(talk: &mut Negotiation<'_>) -> AvType {
    match (talk.offer.domain_attr.av_type, talk.hints.domain_attr.av_type) {
        (offered, AvType::Unspec) => offered,
        (AvType::Map, AvType::Table) => {
            talk.refuse("domain_attr.av_type", AvType::Table, AvType::Map);
            AvType::Map
        }
        (_, wanted) => wanted,
    }
}

/// The traffic class is only a preference, which C's providers drop. An offer without a class cannot provide any, and
/// says so by granting none; an offer with one can provide any. A number that is not a class is refused.
pub(super) fn tclass(
    talk: &mut Negotiation<'_>,
    field: &'static str,
    wanted: TrafficClass,
    offered: TrafficClass,
) -> TrafficClass {
    if !wanted.is_known() {
        talk.refuse(field, wanted, "a label of fi_endpoint(3), or fi_tc_dscp_set of 0 to 63");
    }
    match (wanted, offered) {
        (_, TrafficClass::UNSPEC) | (TrafficClass::UNSPEC, _) => offered,
        (wanted, _) => wanted,
    }
}
