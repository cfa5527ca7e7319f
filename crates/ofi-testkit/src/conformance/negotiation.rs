//! The grants of getinfo (fi_getinfo(3), fi_endpoint(3), fi_domain(3)).

use std::sync::Arc;

use ofi::raw::Handle;

use crate::prelude::*;

/// Fails unless getinfo refuses `hints` with `FI_ENODATA` and names `field`, the wanted and the offered value.
#[track_caller]
fn refused(kit: &dyn Kit, hints: Hints, field: &str) {
    let error = kit.getinfo(&hints).expect_err(field);
    assert_eq!(error.errno(), Errno::ENODATA, "{error}");
    let refusal = error.refusals().iter().find(|refusal| refusal.field == field);
    let refusal = refusal.unwrap_or_else(|| panic!("no refusal for {field}: {error}"));
    assert!(
        !refusal.wanted.is_empty() && !refusal.offered.is_empty() && !refusal.provider.is_empty(),
        "{error}"
    );
}

/// The name of a size field of an info, and access to it.
type Size = (&'static str, fn(&mut Info) -> &mut usize);

const SIZES: [Size; 9] = [
    ("tx_attr.inject_size", |info| &mut info.tx_attr.inject_size),
    ("tx_attr.size", |info| &mut info.tx_attr.size),
    ("tx_attr.iov_limit", |info| &mut info.tx_attr.iov_limit),
    ("tx_attr.rma_iov_limit", |info| &mut info.tx_attr.rma_iov_limit),
    ("rx_attr.size", |info| &mut info.rx_attr.size),
    ("rx_attr.iov_limit", |info| &mut info.rx_attr.iov_limit),
    ("ep_attr.max_msg_size", |info| &mut info.ep_attr.max_msg_size),
    ("domain_attr.cq_data_size", |info| &mut info.domain_attr.cq_data_size),
    ("domain_attr.mr_iov_limit", |info| &mut info.domain_attr.mr_iov_limit),
];

pub fn no_hints_offer_everything_with_defaults(kit: &dyn Kit) {
    let wanted = kit.info(&kit.usual());
    let all = ofi::getinfo(Version::API, None, None, GetinfoFlags::empty(), None).unwrap();
    let found = all.iter().find(|info| info.fabric_attr.prov_name == wanted.fabric_attr.prov_name).unwrap();
    assert!(found.caps.contains(Caps::MSG), "{:?}", found.caps);
    assert!(found.tx_attr.size > 0 && found.rx_attr.size > 0 && found.ep_attr.max_msg_size > 0);
    assert_ne!(found.domain_attr.threading, Threading::Unspec);
    assert_ne!(found.domain_attr.progress, Progress::Unspec);
    assert_ne!(found.domain_attr.resource_mgmt, ResourceMgmt::Unspec);
    assert_ne!(found.ep_attr.ep_type, EpType::Unspec);
}

pub fn a_primary_capability_is_granted_only_if_asked_for(kit: &dyn Kit) {
    for caps in
        [Caps::MSG, Caps::TAGGED, Caps::RMA, Caps::MSG | Caps::TAGGED, Caps::MSG | Caps::DIRECTED_RECV]
    {
        let info = kit.info(&kit.usual().caps(caps));
        assert_eq!(info.caps & Caps::PRIMARY, caps, "asked {caps:?}");
    }
}

pub fn costly_secondary_capabilities_are_granted_only_if_asked_for(kit: &dyn Kit) {
    let info = kit.info(&kit.usual().caps(Caps::MSG));
    assert!(!info.caps.intersects(Caps::SOURCE | Caps::SOURCE_ERR | Caps::RMA_EVENT), "{:?}", info.caps);
    let info = kit.info(&kit.usual().caps(Caps::MSG | Caps::SOURCE));
    assert!(info.caps.contains(Caps::SOURCE));
}

pub fn without_modifiers_all_directions_are_implied(kit: &dyn Kit) {
    let info = kit.info(&kit.usual().caps(Caps::MSG | Caps::RMA));
    assert!(info.caps.contains(Caps::MODIFIERS), "{:?}", info.caps);
}

pub fn with_modifiers_only_those_are_granted(kit: &dyn Kit) {
    let info = kit.info(&kit.usual().caps(Caps::MSG | Caps::SEND));
    assert_eq!(info.caps & Caps::MSG_DIRECTIONS, Caps::SEND);
    let info = kit.info(&kit.usual().caps(Caps::RMA | Caps::WRITE | Caps::REMOTE_READ));
    assert_eq!(info.caps & Caps::RMA_DIRECTIONS, Caps::WRITE | Caps::REMOTE_READ);
}

pub fn attribute_capabilities_agree_with_the_info(kit: &dyn Kit) {
    let info = kit.info(&kit.usual());
    assert!(info.caps.contains(info.tx_attr.caps & !Caps::SECONDARY), "{:?}", info.tx_attr.caps);
    assert!(info.caps.contains(info.rx_attr.caps & !Caps::SECONDARY), "{:?}", info.rx_attr.caps);
    let receives = Caps::RECV | Caps::REMOTE_READ | Caps::REMOTE_WRITE;
    assert!(!info.tx_attr.caps.intersects(receives), "{:?}", info.tx_attr.caps);
    let sends = Caps::SEND | Caps::READ | Caps::WRITE;
    assert!(!info.rx_attr.caps.intersects(sends), "{:?}", info.rx_attr.caps);
    assert!(info.domain_attr.caps.intersects(Caps::LOCAL_COMM | Caps::REMOTE_COMM));
}

pub fn an_unknown_capability_is_refused(kit: &dyn Kit) {
    refused(kit, kit.usual().caps(Caps::MSG | Caps::from_bits_retain(1 << 40)), "caps");
    refused(kit, kit.usual().caps(Caps::MSG | Caps::XPU), "caps");
}

pub fn hints_without_capabilities_keep_remote_access(kit: &dyn Kit) {
    let unasked = kit.hints().caps(Caps::empty());
    let info = kit.info(&unasked);
    if info.ep_attr.ep_type != EpType::Rdm || info.domain_attr.mr_mode != MrMode::empty() {
        return; // the device's own keys: an application without them is no target
    }
    assert!(info.caps.contains(Caps::RMA | Caps::RMA_DIRECTIONS), "{}", info.caps);
    let open = || kit.opening_for(unasked.clone()).open();
    let pair = Pair::of(open(), open());
    let (there, sent) = (Memory::new(1000), Memory::patterned(1000, 1));
    let region = pair.b.register(&there, MrAccess::REMOTE_WRITE).unwrap();
    pair.post(|| pair.a.out(pair.to_b, &sent).msg(OpFlags::DELIVERY_COMPLETE).write(&[remote(&region)]));
    pair.done(&pair.a);
    there.check(1000, 1);
}

pub fn modes_granted_are_a_part_of_those_accepted(kit: &dyn Kit) {
    for mode in [Mode::empty()].into_iter().chain(Mode::all().iter()) {
        if let Ok(infos) = kit.getinfo(&kit.usual().mode(mode)) {
            assert!(infos.iter().all(|info| mode.contains(info.mode)), "accepted {mode:?}");
        }
    }
    let all = kit.info(&kit.usual().mode(Mode::all()));
    let none = kit.getinfo(&kit.usual());
    assert_eq!(all.mode.is_empty(), none.is_ok(), "hints without modes serve only providers that need none");
}

pub fn registration_modes_granted_are_a_part_of_those_accepted(kit: &dyn Kit) {
    let bits = MrMode::all().difference(MrMode::DEPRECATED);
    for mode in [MrMode::empty(), bits].into_iter().chain(bits.iter()) {
        if let Ok(infos) = kit.getinfo(&kit.usual().mr_mode(mode)) {
            assert!(infos.iter().all(|info| mode.contains(info.domain_attr.mr_mode)), "accepted {mode:?}");
        }
    }
}

pub fn an_empty_registration_mode_means_scalable(kit: &dyn Kit) {
    match kit.getinfo(&kit.usual().mr_mode(MrMode::empty())) {
        Ok(infos) => assert!(infos.iter().all(|info| info.domain_attr.mr_mode.is_empty())),
        Err(error) => assert!(error.refusals().iter().any(|refusal| refusal.field == "domain_attr.mr_mode")),
    }
}

pub fn a_size_within_the_limit_is_granted_as_asked(kit: &dyn Kit) {
    let usual = kit.info(&kit.usual());
    for (field, size) in SIZES {
        let mut hints = kit.usual();
        *size(&mut hints.info) = 1;
        let mut info = kit.info(&hints);
        // A minimum request.
        let wanted = if field == "ep_attr.max_msg_size" { usual.ep_attr.max_msg_size } else { 1 };
        assert_eq!(*size(&mut info), wanted, "{field}");
    }
}

pub fn a_size_over_the_limit_is_refused_by_name(kit: &dyn Kit) {
    for (field, size) in SIZES {
        let mut hints = kit.usual();
        *size(&mut hints.info) = usize::MAX;
        refused(kit, hints, field);
    }
}

pub fn the_limit_itself_is_granted_and_one_more_refused(kit: &dyn Kit) {
    for (field, size) in SIZES.into_iter().filter(|(field, _)| !field.ends_with("_attr.size")) {
        let mut hints = kit.usual();
        let limit = *size(&mut kit.info(&hints));
        *size(&mut hints.info) = limit;
        assert_eq!(*size(&mut kit.info(&hints)), limit, "{field}");
        *size(&mut hints.info) = limit + 1;
        refused(kit, hints, field);
    }
}

pub fn operation_flags_are_granted_verbatim(kit: &dyn Kit) {
    let flags = OpFlags::COMPLETION | OpFlags::TRANSMIT_COMPLETE;
    let info = kit.info(&kit.usual().tx_op_flags(flags).rx_op_flags(OpFlags::COMPLETION));
    assert_eq!((info.tx_attr.op_flags, info.rx_attr.op_flags), (flags, OpFlags::COMPLETION));
    let info = kit.info(&kit.usual());
    assert_eq!((info.tx_attr.op_flags, info.rx_attr.op_flags), (OpFlags::empty(), OpFlags::empty()));
    refused(kit, kit.usual().tx_op_flags(OpFlags::COMMIT_COMPLETE), "tx_attr.op_flags");
}

pub fn completion_order_and_buffered_receive_are_refused(kit: &dyn Kit) {
    let mut hints = kit.usual();
    hints.info.tx_attr.comp_order = 1;
    refused(kit, hints, "tx_attr.comp_order");
    let mut hints = kit.usual();
    hints.info.rx_attr.comp_order = 2;
    refused(kit, hints, "rx_attr.comp_order");
    let mut hints = kit.usual();
    hints.info.rx_attr.total_buffered_recv = 1;
    refused(kit, hints, "rx_attr.total_buffered_recv");
}

pub fn removed_threading_levels_are_refused(kit: &dyn Kit) {
    refused(kit, kit.usual().threading(Threading::Fid), "domain_attr.threading");
    refused(kit, kit.usual().threading(Threading::Endpoint), "domain_attr.threading");
}

pub fn every_threading_level_is_served(kit: &dyn Kit) {
    for threading in [Threading::Safe, Threading::Completion, Threading::Domain] {
        let info = kit.info(&kit.usual().threading(threading));
        assert!(
            [threading, Threading::Safe].contains(&info.domain_attr.threading),
            "{threading} is served by itself or by more: {}",
            info.domain_attr.threading
        );
    }
}

pub fn progress_is_granted_as_asked_or_better(kit: &dyn Kit) {
    for progress in [Progress::Auto, Progress::Manual, Progress::ControlUnified] {
        let info = kit.info(&kit.usual().progress(progress));
        let granted = info.domain_attr.progress;
        let at_least = match progress {
            Progress::Auto => granted == Progress::Auto,
            Progress::Manual => [Progress::Manual, Progress::Auto].contains(&granted),
            _ => granted != Progress::Unspec,
        };
        assert!(at_least, "asked {progress}, granted {granted}");
        assert_eq!(info.domain_attr.control_progress, granted, "the old name is the same field");
    }
}

pub fn order_asked_for_is_granted_or_refused(kit: &dyn Kit) {
    let all = kit.info(&kit.usual()).tx_attr.msg_order;
    assert!(all.contains(MsgOrder::SAS), "a reliable endpoint that matches tags in order: {all:?}");
    for order in MsgOrder::all().iter() {
        let hints = kit.usual().msg_order(order);
        match kit.getinfo(&hints) {
            Ok(infos) => {
                let granted = infos[0].tx_attr.msg_order;
                assert!(granted.contains(order), "asked {order:?}, granted {granted:?}");
            }
            Err(_) => refused(kit, hints, "tx_attr.msg_order"),
        }
    }
    refused(kit, kit.usual().msg_order(MsgOrder::from_bits_retain(1 << 60)), "tx_attr.msg_order");
}

pub fn an_order_of_accesses_comes_with_a_size(kit: &dyn Kit) {
    let info = kit.info(&kit.usual());
    let (order, ep) = (info.tx_attr.msg_order, &info.ep_attr);
    for (bits, size) in [
        (MsgOrder::RAW | MsgOrder::RMA_RAW, ep.max_order_raw_size),
        (MsgOrder::WAR | MsgOrder::RMA_WAR, ep.max_order_war_size),
        (MsgOrder::WAW | MsgOrder::RMA_WAW, ep.max_order_waw_size),
    ] {
        assert!(!order.intersects(bits) || size > 0, "{bits:?} without a size");
        if size > 0 && size < usize::MAX {
            let mut hints = kit.usual();
            hints.info.ep_attr.max_order_raw_size = ep.max_order_raw_size + 1;
            refused(kit, hints, "ep_attr.max_order_raw_size");
        }
    }
}

pub fn neither_a_prefix_nor_a_receive_for_remote_data_is_needed(kit: &dyn Kit) {
    let modes = Mode::MSG_PREFIX | Mode::RX_CQ_DATA | Mode::CONTEXT | Mode::CONTEXT2;
    let mut hints = kit.usual().mode(modes);
    hints.info.ep_attr.msg_prefix_size = 64; // the program's spare bytes are not a requirement
    (hints.info.tx_attr.mode, hints.info.rx_attr.mode) = (modes, modes);
    let info = kit.info(&hints);
    assert_eq!(
        (info.mode, info.tx_attr.mode, info.rx_attr.mode),
        (Mode::empty(), Mode::empty(), Mode::empty())
    );
    assert_eq!(info.ep_attr.msg_prefix_size, 0, "without FI_MSG_PREFIX there is no prefix");
}

pub fn persistent_memory_and_its_completions_are_not_claimed(kit: &dyn Kit) {
    refused(kit, kit.usual().caps(kit.usual_caps() | Caps::RMA_PMEM), "caps");
    refused(kit, kit.usual().tx_op_flags(OpFlags::COMMIT_COMPLETE), "tx_attr.op_flags");
    assert!(!kit.info(&kit.usual()).caps.contains(Caps::RMA_PMEM), "secondary, but nobody has it");
    let pair = kit.pair();
    let posted = pair.a.out(pair.to_b, ()).msg(OpFlags::COMMIT_COMPLETE).send();
    assert!(matches!(posted.unwrap_err().errno(), Errno::EBADFLAGS | Errno::EOPNOTSUPP | Errno::ENOSYS));
}

pub fn a_traffic_class_is_granted_or_not_claimed(kit: &dyn Kit) {
    let plain = kit.info(&kit.usual());
    for class in [TrafficClass::LOW_LATENCY, TrafficClass::BULK_DATA, TrafficClass::from_dscp(26)] {
        let mut hints = kit.usual().tclass(class);
        hints.info.domain_attr.tclass = class;
        let info = kit.info(&hints);
        // A provider without a network has no traffic classes, and grants none.
        let granted = if plain.tx_attr.tclass == TrafficClass::UNSPEC { TrafficClass::UNSPEC } else { class };
        assert_eq!((info.tx_attr.tclass, info.domain_attr.tclass), (granted, granted));
        let side = Opening::new(hints).open();
        assert_eq!(side.info.tx_attr.tclass, granted);
    }
    for wrong in [0x999, 0x2ff, 5, 0x141] {
        refused(kit, kit.usual().tclass(TrafficClass::from_c(wrong)), "tx_attr.tclass");
    }
}

pub fn what_is_open_is_told_and_may_be_asked_for(kit: &dyn Kit) {
    let info = kit.info(&kit.usual());
    let fabric = ofi::open_fabric(&info).unwrap();
    let domain = fabric.open_domain(&info).unwrap();
    // It is the first open one of each name, which may be another test's.
    let again = kit.info(&kit.usual());
    let (told_fabric, told) = (again.fabric_attr.fabric.unwrap(), again.domain_attr.domain.unwrap());
    assert!(told_fabric.fabric().is_none_or(|open| open.name() == fabric.name()));
    assert!(told.domain().is_none_or(|open| open.name() == domain.name()));
    // A requested one is reported, and nothing else is accepted in its place.
    let mut hints = kit.usual();
    hints.info.domain_attr.domain = Some(Handle::of_domain(&domain));
    hints.info.fabric_attr.fabric = Some(Handle::of_fabric(&fabric));
    let asked = kit.info(&hints);
    assert_eq!(asked.domain_attr.domain, hints.info.domain_attr.domain);
    assert_eq!(asked.fabric_attr.fabric, hints.info.fabric_attr.fabric);
    // Another provider has none.
    let other = if info.fabric_attr.prov_name == "shm" { "udp" } else { "shm" };
    let mut of_other = Hints::new().provider(other);
    of_other.info.domain_attr.domain.clone_from(&hints.info.domain_attr.domain);
    let refused = kit.getinfo(&of_other).unwrap_err();
    assert_eq!(refused.errno(), Errno::ENODATA);
    assert!(refused.to_string().contains("domain_attr.domain"), "{refused}");
    // A closed one is no longer reported.
    let closed = hints.info.domain_attr.domain.clone().unwrap();
    drop(domain);
    assert!(closed.domain().is_none());
    assert_ne!(kit.info(&hints).domain_attr.domain, Some(closed));
}

pub fn a_handle_is_carried_along(kit: &dyn Kit) {
    let handle = Handle::new(Arc::new(7_u32));
    let info = kit.info(&kit.usual().handle(handle.clone()));
    assert_eq!(info.handle, Some(handle));
}

pub fn named_tag_formats_are_granted_by_name(kit: &dyn Kit) {
    for format in [TAG_MPI, TAG_CCL] {
        let info = kit.info(&kit.usual().mem_tag_format(format));
        assert_eq!(info.ep_attr.mem_tag_format, format);
    }
    let info = kit.info(&kit.usual().mem_tag_format(0x00FF_0000));
    assert!(info.ep_attr.mem_tag_format >= 0x00FF_0000, "{:#x}", info.ep_attr.mem_tag_format);
}

pub fn an_answer_asked_for_again_is_given_again(kit: &dyn Kit) {
    let mut info = kit.info(&kit.usual());
    let mut again = kit.info(&Hints::from(info.clone()));
    // The open domains change while other tests run.
    (info.domain_attr.domain, again.domain_attr.domain) = (None, None);
    assert_eq!(again.caps, info.caps);
    assert_eq!((again.tx_attr, again.rx_attr), (info.tx_attr, info.rx_attr));
    assert_eq!((again.ep_attr, again.domain_attr), (info.ep_attr, info.domain_attr));
}

pub fn an_unknown_provider_is_no_data_and_a_newer_version_no_system(kit: &dyn Kit) {
    let error = kit.getinfo(&kit.usual().provider("nobody")).unwrap_err();
    assert_eq!(error.errno(), Errno::ENODATA);
    let newer = Version::new(Version::API.major + 1, 0);
    let error = ofi::getinfo(newer, None, None, GetinfoFlags::empty(), Some(&kit.usual())).unwrap_err();
    assert_eq!(error.errno(), Errno::ENOSYS);
}

pub fn another_endpoint_type_is_refused_by_name(kit: &dyn Kit) {
    let ours = kit.info(&kit.usual()).ep_attr.ep_type;
    for other in [EpType::Msg, EpType::Dgram, EpType::Rdm] {
        let hints = kit.usual().caps(Caps::empty()).ep_type(other);
        match kit.getinfo(&hints) {
            Ok(infos) => assert!(infos.iter().all(|info| info.ep_attr.ep_type == other)),
            Err(_) if other != ours => refused(kit, hints, "ep_attr.type"),
            Err(error) => panic!("{other}: {error}"),
        }
    }
}

pub fn resource_management_is_enabled_and_named(kit: &dyn Kit) {
    for asked in [ResourceMgmt::Unspec, ResourceMgmt::Disabled, ResourceMgmt::Enabled] {
        let mut hints = kit.usual();
        hints.info.domain_attr.resource_mgmt = asked;
        assert_eq!(kit.info(&hints).domain_attr.resource_mgmt, ResourceMgmt::Enabled, "asked {asked}");
    }
}

pub fn address_vector_types_are_granted_as_asked(kit: &dyn Kit) {
    for av_type in [AvType::Table, AvType::Map] {
        assert_eq!(kit.info(&kit.usual().av_type(av_type)).domain_attr.av_type, av_type);
    }
    // Any type may be opened.
    assert_eq!(kit.info(&kit.usual()).domain_attr.av_type, AvType::Unspec);
}

pub fn only_provider_attributes_on_request(kit: &dyn Kit) {
    let flags = GetinfoFlags::PROV_ATTR_ONLY;
    let infos = ofi::getinfo(Version::API, None, None, flags, Some(&kit.hints())).unwrap();
    assert!(infos.iter().all(|info| !info.fabric_attr.prov_name.is_empty()));
}
