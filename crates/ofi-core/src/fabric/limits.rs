//! Checks of the info of an endpoint or a shared context. Infos come from getinfo, but programs change them: values
//! that no offer has are refused here, so that later code never sees an invalid size or an unknown bit.

use ofi_api::{Caps, Errno, Error, Info, OpFlags, Result, RxAttr, SHARED_CONTEXT, TxAttr};

use crate::offer::{CONTEXTS, INJECT, IOV_LIMIT, MAX_SIZE};

/// Checks the info of an endpoint.
///
/// # Errors
/// `FI_EINVAL` for a number that no offer has or an unknown capability, `FI_EBADFLAGS` for unknown flags.
pub(super) fn check(info: &Info) -> Result<()> {
    let unknown = info.caps.difference(Caps::all());
    if !unknown.is_empty() {
        return Err(refused(Errno::EINVAL, "caps", "capabilities of libfabric", unknown.to_string()));
    }
    at_most("ep_attr.max_msg_size", info.ep_attr.max_msg_size, isize::MAX as usize)?;
    for (field, count) in
        [("ep_attr.tx_ctx_cnt", info.ep_attr.tx_ctx_cnt), ("ep_attr.rx_ctx_cnt", info.ep_attr.rx_ctx_cnt)]
    {
        if count != SHARED_CONTEXT {
            at_most(field, count, CONTEXTS)?;
        }
    }
    check_tx(&info.tx_attr)?;
    check_rx(&info.rx_attr)
}

/// Checks the attributes of a transmit side.
///
/// # Errors
/// As [`check`].
pub(super) fn check_tx(attr: &TxAttr) -> Result<()> {
    at_most("tx_attr.size", attr.size, MAX_SIZE)?;
    at_most("tx_attr.inject_size", attr.inject_size, INJECT)?;
    at_most("tx_attr.iov_limit", attr.iov_limit, IOV_LIMIT)?;
    at_most("tx_attr.rma_iov_limit", attr.rma_iov_limit, IOV_LIMIT)?;
    known("tx_attr.op_flags", attr.op_flags)
}

/// Checks the attributes of a receive side.
///
/// # Errors
/// As [`check`].
pub(super) fn check_rx(attr: &RxAttr) -> Result<()> {
    at_most("rx_attr.size", attr.size, MAX_SIZE)?;
    at_most("rx_attr.iov_limit", attr.iov_limit, IOV_LIMIT)?;
    known("rx_attr.op_flags", attr.op_flags)
}

fn at_most(field: &str, value: usize, limit: usize) -> Result<()> {
    if value <= limit {
        return Ok(());
    }
    Err(refused(Errno::EINVAL, field, &format!("at most {limit}"), value.to_string()))
}

fn known(field: &str, flags: OpFlags) -> Result<()> {
    let unknown = flags.difference(OpFlags::all());
    if unknown.is_empty() {
        return Ok(());
    }
    Err(refused(Errno::EBADFLAGS, field, "flags of operations", unknown.to_string()))
}

fn refused(errno: Errno, field: &str, wanted: &str, found: String) -> Error {
    Error::wanted(errno, field, wanted, found, "use the value that getinfo returned")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_offer_has_is_refused_with_its_field() {
        let mut info = Info::default();
        (info.tx_attr.size, info.ep_attr.rx_ctx_cnt) = (MAX_SIZE, SHARED_CONTEXT);
        check(&info).unwrap();
        type Absurd = (fn(&mut Info), Errno, &'static str);
        let absurd: [Absurd; 6] = [
            (|info| info.tx_attr.iov_limit = 9, Errno::EINVAL, "tx_attr.iov_limit"),
            (|info| info.rx_attr.size = usize::MAX, Errno::EINVAL, "rx_attr.size"),
            (|info| info.tx_attr.inject_size = INJECT + 1, Errno::EINVAL, "tx_attr.inject_size"),
            (|info| info.ep_attr.tx_ctx_cnt = usize::MAX - 1, Errno::EINVAL, "ep_attr.tx_ctx_cnt"),
            (|info| info.caps |= Caps::from_bits_retain(1 << 63), Errno::EINVAL, "caps"),
            (
                |info| info.rx_attr.op_flags = OpFlags::from_bits_retain(1 << 63),
                Errno::EBADFLAGS,
                "rx_attr.op_flags",
            ),
        ];
        for (change, errno, field) in absurd {
            let mut info = info.clone();
            change(&mut info);
            let error = check(&info).unwrap_err();
            assert_eq!(error.errno(), errno);
            assert!(error.to_string().contains(field), "{error}");
        }
    }
}
