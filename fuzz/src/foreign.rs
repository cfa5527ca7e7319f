//! An initiator of the C++ SDK's media protocol that breaks its rules: connected endpoints of provider `tcp`, which
//! write what the input says into a target's memory.

use std::sync::{Arc, OnceLock};

use mxl_fabrics::TargetInfo;
use mxl_fabrics::sdk::wire::{EntryHeader, Header, Mark};
use ofi::raw::{
    BindFlags, Call, Caps, CompletionQueue, Context, CqAttr, CqBuffer, CqFormat, CqTaggedEntry, Domain,
    Endpoint, EpType, EqAttr, EventKind, EventQueue, Fabric, GetinfoFlags, Lent, MrMode, OpFlags, Piece,
    RemotePiece, RmaOp, Version,
};
use ofi::{AddrFormat, Address, FiAddr, Hints};

use super::Input;

/// Length of the memory that is written from.
const LEN: usize = 64 << 10;
/// Writes under way.
const UNDER_WAY: usize = 32;

/// Memory that is never freed, so that a late write does no harm.
fn memory() -> Piece {
    static MEMORY: OnceLock<usize> = OnceLock::new();
    let leaked = || Box::leak(vec![0_u8; LEN].into_boxed_slice()).as_mut_ptr().expose_provenance();
    Piece::new(std::ptr::with_exposed_provenance_mut(*MEMORY.get_or_init(leaked)), LEN)
}

/// A write: the region, the offset there, the length, and the CQ data.
#[derive(Clone, Copy, Default)]
struct Write {
    region: usize,
    to: u64,
    len: usize,
    data: Option<u64>,
    key: u64,
}

pub(super) struct Foreign {
    // The endpoint goes first, and the fabric last.
    ep: Arc<dyn Endpoint>,
    eq: Arc<dyn EventQueue>,
    cq: Arc<dyn CompletionQueue>,
    _domain: Arc<dyn Domain>,
    _fabric: Arc<dyn Fabric>,
    regions: Vec<(u64, u64, u64)>,
    pub(super) is_connected: bool,
    pending: usize,
    last: Write,
}

impl Foreign {
    /// Starts to connect to a target.
    pub(super) fn call(info: &TargetInfo) -> Option<Self> {
        let mut hints = Hints::default();
        hints.info.fabric_attr.prov_name = "tcp".into();
        hints.info.ep_attr.ep_type = EpType::Msg;
        hints.info.domain_attr.mr_mode =
            MrMode::VIRT_ADDR | MrMode::LOCAL | MrMode::ALLOCATED | MrMode::PROV_KEY;
        hints.info.caps = Caps::RMA | Caps::WRITE;
        let infos =
            ofi::getinfo(Version::API, Some("127.0.0.1"), None, GetinfoFlags::SOURCE, Some(&hints)).ok()?;
        let own = infos.into_iter().next()?;
        let fabric = ofi::open_fabric(&own).ok()?;
        let domain = fabric.open_domain(&own).ok()?;
        let (eq, ep) = (fabric.open_eq(&EqAttr::default()).ok()?, domain.open_endpoint(&own).ok()?);
        let cq = domain.open_cq(&CqAttr { format: CqFormat::Tagged, ..CqAttr::default() }).ok()?;
        ep.bind_eq(&eq).ok()?;
        ep.bind_cq(&cq, BindFlags::TRANSMIT).ok()?;
        ep.connect(&Address::new(AddrFormat::from_c(info.format)?, &info.address), &[]).ok()?;
        let regions = info.regions.iter().map(|region| (region.addr, region.len, region.rkey)).collect();
        let (is_connected, pending, last) = (false, 0, Write::default());
        Some(Self { ep, eq, cq, _domain: domain, _fabric: fabric, regions, is_connected, pending, last })
    }

    pub(super) fn poll(&mut self) {
        match self.eq.read() {
            Ok(event) => self.is_connected |= event.kind == EventKind::Connected,
            Err(error) if error.is_again() => {}
            Err(_) => drop(self.eq.read_error()),
        }
        let mut entries = [CqTaggedEntry::EMPTY; 16];
        match self.cq.read(&mut CqBuffer::new(&mut entries)) {
            Ok(count) => self.pending = self.pending.saturating_sub(count),
            Err(error) if error.is_again() => {}
            Err(_) => {
                while self.cq.read_error().is_ok() {
                    self.pending = self.pending.saturating_sub(1);
                }
            }
        }
    }

    /// Writes a grain or samples, with a header that may lie, and a mark.
    pub(super) fn write(&mut self, input: &mut Input<'_>, (payload, slices): (u32, u16)) {
        let (how, region, index) = (input.byte(), input.byte(), input.byte());
        let count = self.regions.len().max(1);
        let index = match index {
            0..200 => 100 + u64::from(index),
            200..220 => u64::MAX - u64::from(index - 200),
            220..240 => u64::from(index - 220),
            _ => input.word(),
        };
        // The right slot more often than not.
        let slot = if how & 3 == 0 { usize::from(region) } else { (index % count as u64) as usize };
        let (end, valid) = (u16::from(input.byte()), u16::from(input.byte()));
        let bytes = if slices > 0 {
            let size = if how & 4 == 0 { payload } else { input.word() as u32 };
            let total = if how & 8 == 0 { slices } else { valid };
            Header { index, flags: u32::from(how >> 7), size, total, valid }.encode()
        } else {
            EntryHeader { index, count: if how & 4 == 0 { valid.into() } else { input.word() } }
                .encode()
                .to_vec()
        };
        let at = memory();
        for (nth, byte) in bytes.iter().enumerate() {
            // SAFETY: inside the memory, which only this thread and the provider's reads touch.
            unsafe { at.addr.wrapping_add(nth).write_volatile(*byte) };
        }
        let data = match how >> 4 & 3 {
            0 => Some(input.word()),
            1 if slices == 0 => Some(slot as u64),
            1 | 2 => Some(Mark { slot: slot as u16, end }.encode().into()),
            _ => None,
        };
        let whole = bytes.len() + payload as usize;
        let len = if how & 64 == 0 { whole } else { input.short() % whole.max(1) };
        let to = if how & 64 == 0 { 0 } else { u64::from(input.byte()) };
        let key = u64::from(how == 255);
        self.last = Write { region: slot, to, len: len.min(LEN), data, key };
        self.again();
    }

    /// The last write once more.
    pub(super) fn again(&mut self) {
        let Write { region, to, len, data, key } = self.last;
        let Some(&(addr, most, rkey)) = self.regions.get(region % self.regions.len().max(1)) else { return };
        if !self.is_connected || self.pending >= UNDER_WAY || len == 0 {
            return;
        }
        let pieces = [Piece::new(memory().addr, len.min(most as usize + 1))];
        let remote = [RemotePiece { addr: addr.wrapping_add(to), len: pieces[0].len, key: rkey ^ key }];
        // SAFETY: the memory is never freed, and there are no references to it.
        let buf = unsafe { Lent::new(&pieces, &[]) };
        let mut flags = OpFlags::COMPLETION | OpFlags::DELIVERY_COMPLETE;
        if data.is_some() {
            flags |= OpFlags::REMOTE_CQ_DATA;
        }
        let op = RmaOp {
            buf,
            remote: &remote,
            peer: FiAddr(0),
            context: Context(1),
            data: data.unwrap_or(0),
            flags,
            call: Call::Msg,
        };
        self.pending += usize::from(self.ep.write(&op).is_ok());
    }
}
