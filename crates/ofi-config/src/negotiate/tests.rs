//! One test for each rule, named after it.

use super::*;
use ofi_api::{
    AV_AUTH_KEY, AddrFormat, AvType, Caps, EpType, Errno, Error, FabricAttr, Handle, MsgOrder, OpFlags,
    Progress, Protocol, ResourceMgmt, SHARED_CONTEXT, TAG_CCL, TAG_MPI, Threading, TrafficClass,
};
use std::sync::Arc;

const API: Version = Version::API;
const OLD: Version = Version::new(1, 4);

/// A provider that can do much and needs nothing.
pub(super) fn able() -> Info {
    let mut offer =
        Info { caps: Caps::all() - Caps::XPU, addr_format: AddrFormat::SockaddrIn, ..Info::default() };
    offer.tx_attr.op_flags = OpFlags::all();
    offer.tx_attr.msg_order = MsgOrder::STRICT;
    offer.tx_attr.inject_size = 4096;
    offer.tx_attr.size = 1024;
    offer.tx_attr.iov_limit = 4;
    offer.tx_attr.rma_iov_limit = 2;
    offer.rx_attr.op_flags = OpFlags::COMPLETION | OpFlags::MULTI_RECV;
    offer.rx_attr.msg_order = MsgOrder::STRICT;
    offer.rx_attr.size = 512;
    offer.rx_attr.iov_limit = 3;
    offer.ep_attr.ep_type = EpType::Rdm;
    offer.ep_attr.protocol = Protocol::SHM;
    offer.ep_attr.protocol_version = 2;
    offer.ep_attr.max_msg_size = 1 << 30;
    offer.ep_attr.max_order_raw_size = usize::MAX;
    offer.ep_attr.mem_tag_format = 0xaaaa_aaaa_aaaa_aaaa;
    offer.ep_attr.tx_ctx_cnt = 1;
    offer.ep_attr.rx_ctx_cnt = 1;
    offer.ep_attr.auth_key_size = 16;
    let domain = &mut offer.domain_attr;
    domain.name = "shm0".into();
    domain.threading = Threading::Safe;
    domain.progress = Progress::Auto;
    domain.resource_mgmt = ResourceMgmt::Enabled;
    domain.mr_mode = MrMode::BASIC | MrMode::SCALABLE;
    domain.mr_key_size = 8;
    domain.cq_data_size = 8;
    domain.cq_cnt = 64;
    domain.max_ep_tx_ctx = 4;
    domain.max_ep_rx_ctx = 4;
    domain.cntr_cnt = 64;
    domain.auth_key_size = 16;
    domain.max_ep_auth_key = 2;
    offer.fabric_attr = FabricAttr {
        name: "host".into(),
        prov_name: "shm".into(),
        prov_version: Version::new(0, 1),
        ..FabricAttr::default()
    };
    offer
}

/// The same provider, as hardware: it needs registration in every respect.
fn needy() -> Info {
    let mut offer = able();
    offer.domain_attr.mr_mode =
        MrMode::BASIC | MrMode::LOCAL | MrMode::BASIC_BITS | MrMode::HMEM | MrMode::RMA_EVENT;
    offer
}

fn grant(offer: &Info, hints: Hints) -> Info {
    negotiate(offer, Some(&hints), API).unwrap()
}

fn refused(offer: &Info, hints: Hints, api: Version) -> Vec<&'static str> {
    negotiate(offer, Some(&hints), api).unwrap_err().iter().map(|refusal| refusal.field).collect()
}

// Capabilities

#[test]
fn hints_without_capabilities_get_the_variant_that_keeps_them_all() {
    let mut needs_keys = able();
    needs_keys.domain_attr.mr_mode = MrMode::VIRT_ADDR | MrMode::PROV_KEY;
    let variants = [needs_keys.clone(), able()];
    let unasked = |variants: &[Info], mr_mode| {
        negotiate_any(variants, Some(&Hints::new().mr_mode(mr_mode)), API).unwrap()
    };
    let info = unasked(&variants, MrMode::empty());
    assert_eq!((info.caps, info.domain_attr.mr_mode), (able().caps, MrMode::empty()));
    // The first that keeps them all is the default.
    let info = unasked(&variants, MrMode::VIRT_ADDR | MrMode::PROV_KEY);
    assert_eq!(info.domain_attr.mr_mode, MrMode::VIRT_ADDR | MrMode::PROV_KEY);
    // Without such a variant, being a target goes.
    let info = unasked(&variants[..1], MrMode::empty());
    assert!(info.caps.contains(Caps::WRITE) && !info.caps.contains(Caps::REMOTE_WRITE));
}

#[test]
fn a_traffic_class_that_does_not_exist_is_refused() {
    let mut served = able();
    served.tx_attr.tclass = TrafficClass::BEST_EFFORT;
    for wrong in [0x999, 0x2ff, 5, 0x141, 0x301, 0x1_0201] {
        let mut hints = Hints::new().tclass(TrafficClass::from_c(wrong));
        for offer in [&able(), &served] {
            assert_eq!(refused(offer, hints.clone(), API), ["tx_attr.tclass"], "{wrong:#x}");
        }
        hints.info.tx_attr.tclass = TrafficClass::UNSPEC;
        hints.info.domain_attr.tclass = TrafficClass::from_c(wrong);
        assert_eq!(refused(&able(), hints, API), ["domain_attr.tclass"], "{wrong:#x}");
    }
    for right in (0x100..0x140).chain(0x200..0x206).map(TrafficClass::from_c) {
        assert_eq!(grant(&served, Hints::new().tclass(right)).tx_attr.tclass, right);
    }
}

#[test]
fn no_hints_get_everything_and_no_operation_flags() {
    let info = negotiate(&needy(), None, API).unwrap();
    assert_eq!(info.caps, needy().caps);
    assert_eq!(info.domain_attr.mr_mode, needy().domain_attr.mr_mode - MrMode::BASIC);
    assert_eq!(info.tx_attr.inject_size, 4096);
    assert_eq!(info.tx_attr.op_flags, OpFlags::empty());
    assert_eq!(info.fabric_attr.api_version, API);
}

#[test]
fn a_primary_capability_is_granted_only_if_asked_for() {
    let info = grant(&able(), Hints::new().caps(Caps::TAGGED));
    assert_eq!(info.caps & Caps::PRIMARY, Caps::TAGGED);
}

#[test]
fn a_free_secondary_capability_is_granted_unasked_and_a_costly_one_is_not() {
    let info = grant(&able(), Hints::new().caps(Caps::MSG));
    assert!(info.caps.contains(Caps::MULTI_RECV | Caps::FENCE | Caps::LOCAL_COMM));
    assert!(!info.caps.intersects(Caps::SOURCE | Caps::SOURCE_ERR | Caps::RMA_EVENT));
    let info = grant(&able(), Hints::new().caps(Caps::MSG | Caps::SOURCE));
    assert!(info.caps.contains(Caps::SOURCE));
}

#[test]
fn unknown_sources_are_reported_only_together_with_known_ones() {
    let info = grant(&able(), Hints::new().caps(Caps::MSG | Caps::SOURCE_ERR));
    assert!(info.caps.contains(Caps::SOURCE | Caps::SOURCE_ERR));
}

#[test]
fn all_modifiers_are_implied_where_none_is_given() {
    let info = grant(&able(), Hints::new().caps(Caps::MSG | Caps::RMA));
    assert_eq!(info.caps & Caps::MODIFIERS, Caps::MODIFIERS);
}

#[test]
fn only_the_given_modifiers_are_granted_in_their_group() {
    let info = grant(&able(), Hints::new().caps(Caps::MSG | Caps::RMA | Caps::SEND));
    assert_eq!(info.caps & Caps::MODIFIERS, Caps::SEND | Caps::RMA_DIRECTIONS);
    let info = grant(&able(), Hints::new().caps(Caps::ATOMIC | Caps::REMOTE_WRITE));
    assert_eq!(info.caps & Caps::MODIFIERS, Caps::REMOTE_WRITE);
}

#[test]
fn a_missing_capability_is_refused_by_name() {
    let mut offer = able();
    offer.caps -= Caps::ATOMIC;
    let hints = Hints::new().caps(Caps::MSG | Caps::ATOMIC | Caps::from_bits_retain(1 << 62));
    let refusals = negotiate(&offer, Some(&hints), API).unwrap_err();
    assert_eq!(refusals[0].field, "caps");
    assert_eq!(refusals[0].provider, "shm");
    assert_eq!(refusals[0].wanted, "FI_ATOMIC, 0x4000000000000000");
}

#[test]
fn the_sides_have_their_part_of_the_capabilities() {
    let info = grant(&able(), Hints::new().caps(Caps::TAGGED | Caps::SOURCE));
    assert_eq!(info.tx_attr.caps & (Caps::PRIMARY | Caps::MODIFIERS), Caps::TAGGED | Caps::SEND);
    assert_eq!(info.rx_attr.caps & (Caps::PRIMARY | Caps::MODIFIERS), Caps::TAGGED | Caps::RECV);
    assert!(info.rx_attr.caps.contains(Caps::SOURCE) && !info.tx_attr.caps.contains(Caps::SOURCE));
    assert!(info.domain_attr.caps.contains(Caps::LOCAL_COMM | Caps::REMOTE_COMM));
}

#[test]
fn a_side_may_have_less_than_the_endpoint_but_not_more() {
    let mut hints = Hints::new().caps(Caps::MSG | Caps::TAGGED);
    hints.info.tx_attr.caps = Caps::TAGGED | Caps::RECV;
    let info = grant(&able(), hints.clone());
    assert_eq!(info.tx_attr.caps & (Caps::PRIMARY | Caps::MODIFIERS), Caps::TAGGED | Caps::SEND);
    hints.info.tx_attr.caps = Caps::RMA;
    assert_eq!(refused(&able(), hints, API), ["tx_attr.caps"]);
}

#[test]
fn a_later_receive_capability_is_on_the_side_only_if_asked_for() {
    let info = negotiate(&able(), None, API).unwrap();
    assert!(info.caps.contains(Caps::TAGGED_MULTI_RECV));
    assert!(!info.rx_attr.caps.contains(Caps::TAGGED_MULTI_RECV));
    let info = grant(&able(), Hints::new().caps(Caps::TAGGED | Caps::TAGGED_MULTI_RECV));
    assert!(info.rx_attr.caps.contains(Caps::TAGGED_MULTI_RECV));
}

#[test]
fn a_capability_of_the_domain_must_be_offered() {
    let mut offer = able();
    offer.domain_attr.caps = Caps::LOCAL_COMM;
    assert_eq!(refused(&offer, Hints::new().domain_caps(Caps::REMOTE_COMM), API), ["domain_attr.caps"]);
    assert!(negotiate(&offer, Some(&Hints::new().domain_caps(Caps::REMOTE_COMM)), OLD).is_ok());
}

// Modes

#[test]
fn a_mode_that_the_provider_needs_must_be_in_the_hints() {
    let mut offer = able();
    offer.mode = Mode::CONTEXT;
    offer.tx_attr.mode = Mode::CONTEXT;
    assert_eq!(refused(&offer, Hints::new(), API), ["mode", "tx_attr.mode"]);
    let refusals = negotiate(&offer, Some(&Hints::new()), API).unwrap_err();
    let text = "shm: mode: wanted no mode, offers a provider that needs FI_CONTEXT";
    assert_eq!(refusals[0].to_string(), text);
}

#[test]
fn a_mode_that_the_provider_does_not_need_is_cleared() {
    let mut offer = able();
    offer.mode = Mode::CONTEXT;
    let info = grant(&offer, Hints::new().mode(Mode::from_bits_retain(u64::MAX)));
    assert_eq!(info.mode, Mode::CONTEXT);
}

#[test]
fn a_side_without_a_mode_takes_that_of_the_info() {
    let mut offer = able();
    (offer.mode, offer.rx_attr.mode) = (Mode::RX_CQ_DATA, Mode::RX_CQ_DATA);
    let mut hints = Hints::new().mode(Mode::RX_CQ_DATA);
    assert_eq!(grant(&offer, hints.clone()).rx_attr.mode, Mode::RX_CQ_DATA);
    hints.info.rx_attr.mode = Mode::CONTEXT;
    assert_eq!(refused(&offer, hints, API), ["rx_attr.mode"]);
}

// Registration

#[test]
fn only_the_needed_bits_of_mr_mode_are_granted() {
    let every = MrMode::from_bits_retain(u32::MAX) - MrMode::DEPRECATED;
    assert_eq!(grant(&able(), Hints::new().mr_mode(every)).domain_attr.mr_mode, MrMode::empty());
    let info = grant(&needy(), Hints::new().caps(Caps::RMA).mr_mode(every));
    assert_eq!(info.domain_attr.mr_mode, MrMode::BASIC_BITS | MrMode::LOCAL);
}

#[test]
fn an_empty_mr_mode_is_scalable_and_refuses_a_provider_that_needs_more() {
    assert_eq!(refused(&needy(), Hints::new().caps(Caps::RMA), API), ["domain_attr.mr_mode"]);
    assert!(negotiate(&able(), Some(&Hints::new().caps(Caps::RMA)), API).is_ok());
}

#[test]
fn who_is_no_target_need_not_register_as_one() {
    let mut offer = needy();
    offer.domain_attr.mr_mode -= MrMode::LOCAL;
    let info = grant(&offer, Hints::new().caps(Caps::RMA | Caps::WRITE));
    assert_eq!(info.domain_attr.mr_mode, MrMode::empty());
    let hints =
        Hints::new().caps(Caps::RMA | Caps::WRITE | Caps::HMEM).mr_mode(MrMode::HMEM | MrMode::ALLOCATED);
    assert_eq!(grant(&offer, hints).domain_attr.mr_mode, MrMode::HMEM | MrMode::ALLOCATED);
}

#[test]
fn hints_without_capabilities_get_those_that_their_mr_mode_allows() {
    let hints = Hints::new().mr_mode(MrMode::LOCAL | MrMode::ALLOCATED);
    let info = grant(&needy(), hints);
    assert!(info.caps.contains(Caps::RMA | Caps::WRITE));
    assert!(!info.caps.intersects(Caps::REMOTE_WRITE | Caps::REMOTE_READ | Caps::HMEM | Caps::RMA_EVENT));
}

#[test]
fn basic_and_scalable_are_granted_whole_to_who_asks_for_them() {
    let info = grant(&able(), Hints::new().caps(Caps::RMA).mr_mode(MrMode::BASIC));
    assert_eq!(info.domain_attr.mr_mode, MrMode::BASIC);
    let info = grant(&able(), Hints::new().caps(Caps::RMA).mr_mode(MrMode::SCALABLE));
    assert_eq!(info.domain_attr.mr_mode, MrMode::SCALABLE);
    let mixed = Hints::new().mr_mode(MrMode::BASIC | MrMode::LOCAL);
    assert_eq!(refused(&able(), mixed, API), ["domain_attr.mr_mode"]);
    let scalable = Hints::new().mode(Mode::LOCAL_MR).mr_mode(MrMode::SCALABLE);
    assert_eq!(refused(&needy(), scalable, API), ["domain_attr.mr_mode"]);
}

#[test]
fn before_1_5_zero_is_whichever_whole_mode_the_provider_has() {
    let grant = |offer: &Info, mr_mode| {
        let hints = Hints::new().mode(Mode::LOCAL_MR).mr_mode(mr_mode);
        negotiate(offer, Some(&hints), OLD).map(|info| info.domain_attr.mr_mode)
    };
    assert_eq!(grant(&able(), MrMode::empty()), Ok(MrMode::SCALABLE));
    assert_eq!(grant(&needy(), MrMode::empty()), Ok(MrMode::BASIC));
    assert_eq!(negotiate(&needy(), None, OLD).map(|info| info.domain_attr.mr_mode), Ok(MrMode::BASIC));
    assert!(grant(&able(), MrMode::VIRT_ADDR).is_err());
    let mut partly = able();
    partly.domain_attr.mr_mode |= MrMode::PROV_KEY;
    assert_eq!(grant(&partly, MrMode::empty()), Ok(MrMode::BASIC));
    partly.domain_attr.mr_mode -= MrMode::BASIC;
    assert_eq!(grant(&partly, MrMode::empty()), Ok(MrMode::SCALABLE));
}

#[test]
fn registered_local_buffers_have_their_old_name_with_the_whole_modes() {
    let hints = Hints::new().caps(Caps::MSG).mr_mode(MrMode::BASIC);
    assert_eq!(refused(&needy(), hints.clone(), API), ["mode"]);
    let info = grant(&needy(), hints.mode(Mode::LOCAL_MR));
    assert_eq!((info.mode, info.domain_attr.mr_mode), (Mode::LOCAL_MR, MrMode::BASIC));
}

// Sizes and counts

#[test]
fn a_size_over_the_offer_is_refused_and_one_within_it_is_granted() {
    let hints = Hints::new().inject_size(4097).tx_size(1025).rx_size(513).max_msg_size((1 << 30) + 1);
    let fields = ["tx_attr.inject_size", "tx_attr.size", "rx_attr.size", "ep_attr.max_msg_size"];
    assert_eq!(refused(&able(), hints, API), fields);
    let info = grant(&able(), Hints::new().inject_size(64).rx_iov_limit(3).max_msg_size(1));
    assert_eq!((info.tx_attr.inject_size, info.rx_attr.iov_limit), (64, 3));
    assert_eq!((info.tx_attr.size, info.tx_attr.rma_iov_limit), (1024, 2));
    assert_eq!(info.ep_attr.max_msg_size, 1 << 30, "what a program has at least");
}

#[test]
fn vectors_and_words_have_limits_too() {
    let hints = Hints::new().tx_iov_limit(5).rma_iov_limit(3).rx_iov_limit(4).cq_data_size(9).mr_key_size(9);
    let fields = [
        "tx_attr.iov_limit",
        "tx_attr.rma_iov_limit",
        "rx_attr.iov_limit",
        "domain_attr.mr_key_size",
        "domain_attr.cq_data_size",
    ];
    assert_eq!(refused(&able(), hints, API), fields);
}

#[test]
fn a_key_of_the_provider_has_the_provider_s_length() {
    let key = |mr_mode| grant(&able(), Hints::new().mr_key_size(4).mr_mode(mr_mode)).domain_attr.mr_key_size;
    assert_eq!(key(MrMode::empty()), 4);
    assert_eq!(key(MrMode::BASIC), 8);
}

#[test]
fn an_optimal_number_is_no_limit() {
    let mut hints = Hints::new();
    hints.info.domain_attr.cq_cnt = 1000;
    assert_eq!(grant(&able(), hints).domain_attr.cq_cnt, 64);
}

#[test]
fn a_limit_that_an_old_interface_does_not_know_is_not_looked_at() {
    let mut hints = Hints::new();
    hints.info.domain_attr.cntr_cnt = 1000;
    hints.info.domain_attr.max_group_id = 7;
    assert_eq!(refused(&able(), hints.clone(), API), ["domain_attr.cntr_cnt", "domain_attr.max_group_id"]);
    assert_eq!(refused(&able(), hints.clone(), Version::new(1, 22)), ["domain_attr.cntr_cnt"]);
    assert!(negotiate(&able(), Some(&hints), OLD).is_ok());
}

#[test]
fn a_counter_without_a_range_counts_to_the_end_of_64_bits() {
    let mut hints = Hints::new();
    hints.info.domain_attr.max_cntr_value = 100;
    assert_eq!(grant(&able(), hints.clone()).domain_attr.max_cntr_value, u64::MAX);
    let mut offer = able();
    (offer.domain_attr.max_cntr_value, offer.domain_attr.max_err_cntr_value) = (99, 9);
    hints.info.domain_attr.max_err_cntr_value = 10;
    let fields = ["domain_attr.max_cntr_value", "domain_attr.max_err_cntr_value"];
    assert_eq!(refused(&offer, hints.clone(), API), fields);
    assert!(negotiate(&offer, Some(&hints), Version::new(2, 4)).is_ok());
}

#[test]
fn order_sizes_count_only_for_remote_access() {
    let mut hints = Hints::new().caps(Caps::MSG);
    hints.info.ep_attr.max_order_war_size = 1;
    assert!(negotiate(&able(), Some(&hints), API).is_ok());
    assert_eq!(refused(&able(), hints.caps(Caps::RMA), API), ["ep_attr.max_order_war_size"]);
}

#[test]
fn contexts_are_limited_by_the_domain() {
    let counts = |offer: &Info, count| negotiate(offer, Some(&Hints::new().tx_ctx_cnt(count)), API);
    assert_eq!(counts(&able(), 0).unwrap().ep_attr.tx_ctx_cnt, 1);
    assert_eq!(counts(&able(), 4).unwrap().ep_attr.tx_ctx_cnt, 4);
    assert_eq!(counts(&able(), 5).unwrap_err()[0].field, "ep_attr.tx_ctx_cnt");
}

#[test]
fn a_shared_context_needs_a_domain_that_shares() {
    let hints = Hints::new().rx_ctx_cnt(SHARED_CONTEXT);
    assert_eq!(refused(&able(), hints.clone(), API), ["ep_attr.rx_ctx_cnt"]);
    let mut offer = able();
    offer.domain_attr.max_ep_srx_ctx = 8;
    assert_eq!(grant(&offer, hints).ep_attr.rx_ctx_cnt, SHARED_CONTEXT);
    offer.ep_attr.rx_ctx_cnt = SHARED_CONTEXT;
    assert_eq!(refused(&offer, Hints::new(), API), ["ep_attr.rx_ctx_cnt"]);
}

#[test]
fn a_tag_format_needs_bits_enough() {
    let mut offer = able();
    offer.ep_attr.mem_tag_format = 0xaa_aaaa_aaaa; // 40 bits
    let tagged = |format| Hints::new().caps(Caps::TAGGED).mem_tag_format(format);
    assert_eq!(grant(&offer, tagged(TAG_MPI)).ep_attr.mem_tag_format, TAG_MPI);
    assert_eq!(grant(&offer, tagged(TAG_CCL)).ep_attr.mem_tag_format, TAG_CCL);
    assert_eq!(grant(&offer, tagged(0xff_ffff)).ep_attr.mem_tag_format, 0xaa_aaaa_aaaa);
    assert_eq!(refused(&offer, tagged(1 << 40), API), ["ep_attr.mem_tag_format"]);
    assert!(negotiate(&offer, Some(&tagged(1 << 40).caps(Caps::MSG)), API).is_ok());
    offer.ep_attr.mem_tag_format = 0xaa; // 8 bits
    assert_eq!(grant(&offer, tagged(TAG_CCL)).ep_attr.mem_tag_format, TAG_CCL);
    assert_eq!(refused(&offer, tagged(TAG_MPI), API), ["ep_attr.mem_tag_format"]);
    offer.ep_attr.mem_tag_format = TAG_CCL;
    assert_eq!(refused(&offer, tagged(TAG_MPI), API), ["ep_attr.mem_tag_format"]);
}

#[test]
fn operation_flags_are_granted_word_for_word() {
    let flags = OpFlags::INJECT | OpFlags::DELIVERY_COMPLETE;
    assert_eq!(grant(&able(), Hints::new().tx_op_flags(flags)).tx_attr.op_flags, flags);
    assert_eq!(refused(&able(), Hints::new().rx_op_flags(OpFlags::INJECT), API), ["rx_attr.op_flags"]);
}

#[test]
fn an_order_is_kept_or_refused_and_more_may_be_kept() {
    assert_eq!(grant(&able(), Hints::new().msg_order(MsgOrder::SAS)).tx_attr.msg_order, MsgOrder::STRICT);
    let fields = ["tx_attr.msg_order", "rx_attr.msg_order"];
    assert_eq!(refused(&able(), Hints::new().msg_order(MsgOrder::RMA_WAW), API), fields);
}

#[test]
fn what_2_0_took_away_is_refused_from_2_0_on() {
    let mut offer = able();
    offer.tx_attr.comp_order = 1;
    offer.rx_attr.total_buffered_recv = 4096;
    let mut hints = Hints::new();
    hints.info.tx_attr.comp_order = 1;
    hints.info.rx_attr.total_buffered_recv = 1;
    hints.info.domain_attr.threading = Threading::Fid;
    let fields = ["tx_attr.comp_order", "rx_attr.total_buffered_recv", "domain_attr.threading"];
    assert_eq!(refused(&offer, hints.clone(), Version::new(2, 0)), fields);
    let info = negotiate(&offer, Some(&hints), Version::new(1, 22)).unwrap();
    assert_eq!((info.tx_attr.comp_order, info.rx_attr.total_buffered_recv), (1, 1));
    assert_eq!(info.domain_attr.threading, Threading::Safe);
}

// Authorization

#[test]
fn a_key_is_taken_over_if_it_is_not_too_long() {
    let info = grant(&able(), Hints::new().auth_key(*b"job 7"));
    assert_eq!((info.domain_attr.auth_key_size, &info.domain_attr.auth_key[..]), (5, &b"job 7"[..]));
    assert_eq!(refused(&able(), Hints::new().auth_key([0; 17]), API), ["domain_attr.auth_key_size"]);
    assert!(grant_old(Hints::new().auth_key([0; 17])).domain_attr.auth_key.is_empty());
}

fn grant_old(hints: Hints) -> Info {
    negotiate(&able(), Some(&hints), OLD).unwrap()
}

#[test]
fn a_key_must_be_as_long_as_the_hints_say() {
    let mut hints = Hints::new().auth_key([0; 4]);
    hints.info.domain_attr.auth_key_size = 5;
    assert_eq!(refused(&able(), hints, API), ["domain_attr.auth_key_size"]);
}

#[test]
fn keys_in_the_address_vector_are_nowhere_else() {
    let mut hints = Hints::new();
    hints.info.domain_attr.auth_key_size = AV_AUTH_KEY;
    assert_eq!(grant(&able(), hints.clone()).domain_attr.auth_key_size, AV_AUTH_KEY);
    hints.info.ep_attr.auth_key_size = 4;
    assert_eq!(refused(&able(), hints.clone(), API), ["ep_attr.auth_key_size"]);
    assert_eq!(refused(&able(), hints.clone(), Version::new(1, 20)), ["ep_attr.auth_key_size"]);
    assert_eq!(refused(&able(), hints.clone(), Version::new(1, 19)), ["domain_attr.auth_key_size"]);
    hints.info.ep_attr.auth_key_size = 0;
    hints.info.domain_attr.auth_key = vec![1];
    assert_eq!(refused(&able(), hints.clone(), API), ["domain_attr.auth_key_size"]);
    let mut keyless = able();
    keyless.domain_attr.auth_key_size = 0;
    hints.info.domain_attr.auth_key.clear();
    assert_eq!(refused(&keyless, hints, API), ["domain_attr.auth_key_size"]);
}

// Models

#[test]
fn the_endpoint_type_and_the_protocol_must_be_the_offered_ones() {
    let hints = Hints::new().ep_type(EpType::Msg).protocol(Protocol::EFA);
    assert_eq!(refused(&able(), hints, API), ["ep_attr.type", "ep_attr.protocol"]);
    let info = grant(&able(), Hints::new().ep_type(EpType::Rdm).protocol(Protocol::SHM));
    assert_eq!((info.ep_attr.ep_type, info.ep_attr.protocol_version), (EpType::Rdm, 2));
    let mut hints = Hints::new();
    hints.info.ep_attr.protocol_version = 3;
    assert_eq!(refused(&able(), hints, API), ["ep_attr.protocol_version"]);
}

#[test]
fn the_more_particular_address_format_is_granted() {
    use AddrFormat::{Sockaddr, SockaddrIb, SockaddrIn, SockaddrIn6, SockaddrIp, Str, Unspec};
    let format = |offered, wanted| {
        let offer = Info { addr_format: offered, ..able() };
        negotiate(&offer, Some(&Hints::new().addr_format(wanted)), API).ok().map(|info| info.addr_format)
    };
    assert_eq!(format(SockaddrIn, Sockaddr), Some(SockaddrIn));
    assert_eq!(format(SockaddrIn6, SockaddrIp), Some(SockaddrIn6));
    assert_eq!(format(SockaddrIp, Sockaddr), Some(SockaddrIp));
    assert_eq!(format(Sockaddr, SockaddrIn6), Some(SockaddrIn6));
    assert_eq!(format(SockaddrIb, SockaddrIp), None);
    assert_eq!(format(SockaddrIn, SockaddrIn6), None);
    assert_eq!(format(Str, Unspec), Some(Str));
    assert_eq!(format(Unspec, Str), Some(Str));
}

#[test]
fn a_provider_may_ask_less_of_threads_than_the_application_is_ready_for() {
    let threading = |offered, wanted| {
        let mut offer = able();
        offer.domain_attr.threading = offered;
        negotiate(&offer, Some(&Hints::new().threading(wanted)), API)
            .ok()
            .map(|info| info.domain_attr.threading)
    };
    assert_eq!(threading(Threading::Safe, Threading::Domain), Some(Threading::Domain));
    assert_eq!(threading(Threading::Completion, Threading::Unspec), Some(Threading::Completion));
    assert_eq!(threading(Threading::Domain, Threading::Completion), None);
    assert_eq!(threading(Threading::Completion, Threading::Safe), None);
    assert_eq!(threading(Threading::Safe, Threading::Endpoint), None);
}

#[test]
fn a_provider_may_progress_more_than_the_application_asks() {
    let mut offer = able();
    let info = grant(&offer, Hints::new().progress(Progress::Manual));
    assert_eq!(info.domain_attr.progress, Progress::Manual);
    assert_eq!(info.domain_attr.control_progress, Progress::Manual);
    offer.domain_attr.progress = Progress::Manual;
    assert_eq!(refused(&offer, Hints::new().progress(Progress::Auto), API), ["domain_attr.progress"]);
    assert_eq!(grant(&offer, Hints::new()).domain_attr.progress, Progress::Manual);
}

#[test]
fn a_provider_that_protects_its_queues_serves_all() {
    let mut offer = able();
    let info = grant(&offer, Hints::new().resource_mgmt(ResourceMgmt::Disabled));
    assert_eq!(info.domain_attr.resource_mgmt, ResourceMgmt::Enabled);
    offer.domain_attr.resource_mgmt = ResourceMgmt::Disabled;
    let hints = Hints::new().resource_mgmt(ResourceMgmt::Enabled);
    assert_eq!(refused(&offer, hints, API), ["domain_attr.resource_mgmt"]);
}

#[test]
fn a_map_is_served_by_a_table() {
    let mut offer = able();
    offer.domain_attr.av_type = AvType::Table;
    assert_eq!(grant(&offer, Hints::new().av_type(AvType::Map)).domain_attr.av_type, AvType::Map);
    assert_eq!(grant(&able(), Hints::new()).domain_attr.av_type, AvType::Unspec);
    offer.domain_attr.av_type = AvType::Map;
    assert_eq!(refused(&offer, Hints::new().av_type(AvType::Table), API), ["domain_attr.av_type"]);
}

#[test]
fn a_class_of_traffic_is_granted_only_by_a_provider_with_classes() {
    let hints = Hints::new().tclass(TrafficClass::BULK_DATA);
    assert_eq!(grant(&able(), hints.clone()).tx_attr.tclass, TrafficClass::UNSPEC);
    let mut offer = able();
    offer.tx_attr.tclass = TrafficClass::BEST_EFFORT;
    assert_eq!(grant(&offer, hints).tx_attr.tclass, TrafficClass::BULK_DATA);
}

// Names

#[test]
fn a_fabric_and_a_domain_have_the_name_that_was_asked_for() {
    let info = grant(&able(), Hints::new().fabric("HOST").domain("Shm0"));
    assert_eq!((&*info.fabric_attr.name, &*info.domain_attr.name), ("host", "shm0"));
    let hints = Hints::new().fabric("hos").domain("invalid_domain");
    assert_eq!(refused(&able(), hints, API), ["domain_attr.name", "fabric_attr.name"]);
}

#[test]
fn every_named_layer_is_in_the_stack_and_no_excluded_one() {
    let matches = |wanted, stack| names::provider_matches(wanted, stack);
    assert!(matches("", "udp") && matches("UDP", "udp") && matches("udp", "udp;ofi_rxd"));
    assert!(matches("ofi_rxd;udp", "udp;ofi_rxd") && matches("udp;ofi_rxd", "udp;ofi_rxd"));
    assert!(!matches("udp;ofi_rxd", "udp") && !matches("ud", "udp"));
    assert!(matches("^shm", "udp") && !matches("^UDP", "udp") && !matches("udp;^ofi_rxd", "udp;ofi_rxd"));
    assert_eq!(refused(&able(), Hints::new().provider("udp"), API), ["fabric_attr.prov_name"]);
}

#[test]
fn a_provider_must_be_new_enough_for_the_hints_and_not_too_new_for_the_program() {
    let mut hints = Hints::new();
    hints.info.fabric_attr.prov_version = Version::new(0, 2);
    assert_eq!(refused(&able(), hints, API), ["fabric_attr.prov_version"]);
    let mut offer = able();
    offer.fabric_attr.api_version = Version::new(2, 0);
    assert_eq!(refused(&offer, Hints::new(), Version::new(1, 22)), ["fabric_attr.api_version"]);
}

#[test]
fn open_objects_in_the_hints_are_handed_on() {
    let handles = [1_u8, 2, 3].map(|object| Some(Handle::new(Arc::new(object))));
    let mut hints = Hints::new();
    [hints.info.handle, hints.info.domain_attr.domain, hints.info.fabric_attr.fabric] = handles.clone();
    let info = grant(&able(), hints);
    assert_eq!([info.handle, info.domain_attr.domain, info.fabric_attr.fabric], handles);
}

// The whole

#[test]
fn every_refusal_is_reported_and_reads_as_a_sentence() {
    let hints = Hints::new().ep_type(EpType::Msg).inject_size(8192).progress(Progress::Auto).provider("tcp");
    let refusals = negotiate(&able(), Some(&hints), API).unwrap_err();
    assert_eq!(refusals.len(), 3);
    let error = Error::refused(refusals);
    assert_eq!(error, Errno::ENODATA);
    let text = format!("{error:#}");
    assert!(text.ends_with("\n  shm: fabric_attr.prov_name: wanted tcp, offers shm"), "{error}");
    let line = "\n  shm: tx_attr.inject_size: wanted 8192, offers at most 4096\n";
    assert!(text.contains(line), "{error}");
}

#[test]
fn of_several_variants_the_first_that_can_is_granted_and_the_closest_explains() {
    let mut manual = able();
    manual.domain_attr.progress = Progress::Manual;
    let variants = [manual, able()];
    let progress =
        |hints: Hints| negotiate_any(&variants, Some(&hints), API).map(|info| info.domain_attr.progress);
    assert_eq!(progress(Hints::new()), Ok(Progress::Manual));
    assert_eq!(progress(Hints::new().progress(Progress::Auto)), Ok(Progress::Auto));
    let refusals = progress(Hints::new().progress(Progress::Auto).inject_size(8192)).unwrap_err();
    assert_eq!(refusals.len(), 1);
    assert_eq!(negotiate_any(&[], None, API), Err(Vec::new()));
}
