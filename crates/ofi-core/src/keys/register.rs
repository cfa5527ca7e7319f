//! The parameters of a registration, and their checks.

use ofi_api::{Address, Context, Desc, Errno, Error, MrAttr, Piece, Result};

use super::Addressing;
use crate::auth::AuthKey;
use crate::hmem::RegisteredDevice;

/// The source of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyChoice {
    /// `FI_MR_PROV_KEY` of a software transport: 64 random bits.
    Random,
    /// The application's: [`MrAttr::requested_key`].
    Requested,
    /// A device's, which chooses its own keys.
    Device(u64),
}

/// What to register.
#[derive(Debug)]
pub struct Registration<'a, T> {
    /// Memory and rights.
    pub attr: &'a MrAttr<'a>,
    /// The source of the key.
    pub key: KeyChoice,
    /// Flags of the registration (fi_mr(3), "FLAGS"), with the C values. Kept, not interpreted.
    pub flags: u64,
    /// The application's context.
    pub context: Context,
    /// Whether it can be used at once. With `FI_MR_ENDPOINT` or `FI_MR_RMA_EVENT` it cannot, until
    /// [`super::RegionTable::enable`].
    pub is_enabled: bool,
    /// The region to derive this one from ([`Desc::NONE`]: none), which cannot be closed first. It determines interface
    /// and device.
    pub base: Desc,
    /// The transport's data.
    pub data: T,
    /// The authorization key of the endpoints whose peers may access it; none for all.
    pub auth: AuthKey,
    /// The only peer that may access it, by the address that the application knows it by; `None` for all.
    pub only: Option<Address>,
    /// The device that owns the memory, if the processor must not access it.
    pub hmem: Option<RegisteredDevice>,
}

impl<'a, T> Registration<'a, T> {
    /// A registration that can be used at once, with the defaults for all else.
    pub const fn new(attr: &'a MrAttr<'a>, key: KeyChoice, data: T) -> Self {
        Self {
            attr,
            key,
            flags: 0,
            context: Context::NULL,
            is_enabled: true,
            base: Desc::NONE,
            data,
            auth: AuthKey::NONE,
            only: None,
            hmem: None,
        }
    }
}

/// The total length of the pieces, if they can form a region of a table with this addressing and limit.
pub(super) fn check_memory(attr: &MrAttr<'_>, addressing: Addressing, iov_limit: usize) -> Result<usize> {
    let wrong = |wanted: String, found: String, advice: &str| {
        Err(Error::wanted(Errno::EINVAL, "memory to register", wanted, found, advice))
    };
    let count = attr.pieces().len();
    if count == 0 || count > iov_limit {
        let advice = "see mr_iov_limit in the domain attributes";
        return wrong(format!("1 to {iov_limit} pieces"), format!("{count}"), advice);
    }
    if let Some(piece) = attr.pieces().iter().find(|piece| end_of(piece).is_none()) {
        let found = format!("{} bytes at {:p}", piece.len, piece.addr);
        return wrong("memory inside the address space".into(), found, "check address and length");
    }
    if addressing == Addressing::Virtual && attr.offset != 0 {
        let found = attr.offset.to_string();
        return wrong("offset 0 with virtual addresses".into(), found, "leave the offset out");
    }
    let len = attr.pieces().iter().try_fold(0_usize, |sum, piece| sum.checked_add(piece.len));
    match len.filter(|&len| attr.offset.checked_add(len as u64).is_some()) {
        Some(len) => Ok(len),
        None => wrong("offset and length within 64 bits".into(), "more".into(), "register in parts"),
    }
}

/// The address after the last byte.
pub(super) fn end_of(piece: &Piece) -> Option<usize> {
    piece.addr.addr().checked_add(piece.len)
}
