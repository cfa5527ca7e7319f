//! Complete tables of unsupported operations, for objects and for closed handles.

use crate::abi::{
    fi_ops, fi_ops_atomic, fi_ops_av, fi_ops_av_set, fi_ops_cm, fi_ops_cntr, fi_ops_collective, fi_ops_cq,
    fi_ops_domain, fi_ops_ep, fi_ops_eq, fi_ops_fabric, fi_ops_mr, fi_ops_msg, fi_ops_poll, fi_ops_rma,
    fi_ops_tagged, fi_ops_wait, fi_profile_ops,
};

macro_rules! tables {
    ($($name:ident: $table:ident,)+) => { $(pub(crate) static $name: $table = $table::NOSYS;)+ };
}

tables! {
    FID: fi_ops,
    FABRIC: fi_ops_fabric,
    DOMAIN: fi_ops_domain,
    REGISTER: fi_ops_mr,
    EP: fi_ops_ep,
    CM: fi_ops_cm,
    MSG: fi_ops_msg,
    TAGGED: fi_ops_tagged,
    RMA: fi_ops_rma,
    ATOMIC: fi_ops_atomic,
    COLLECTIVE: fi_ops_collective,
    CQ: fi_ops_cq,
    CNTR: fi_ops_cntr,
    EQ: fi_ops_eq,
    POLL: fi_ops_poll,
    WAIT: fi_ops_wait,
    AV: fi_ops_av,
    AV_SET: fi_ops_av_set,
    PROFILE: fi_profile_ops,
}
