//! Direct access to a peer's memory, at the accessing end: requesting grants, and copying through them. `region.rs`
//! defines grants.

use ofi_api::{Errno, RemotePiece};
use ofi_ring::{crash_point, lease};

use crate::common::Common;
use crate::control::{ControlMessage, Terms};
use crate::layout::pair;
use crate::peer::Peer;
use crate::peer::grants::{FEW, KeyState, MANY, MappedRegion, current, holds};
use crate::peer::link::Link;
use crate::sys::Mapping;

impl Peer {
    /// The state of the peer's `key`; asks the peer if it is unknown.
    pub fn grant(&mut self, common: &Common, key: u64, write: bool) -> &KeyState {
        self.grants.known.entry(key).or_insert_with(|| {
            let (incarnation, devices) = (common.shared.incarnation, common.shared.maps_devices());
            let message = ControlMessage::Request { incarnation, key, write, devices };
            common.helper.post(&common.shared, &self.socket, message, None);
            crash_point!("grant.ask");
            KeyState::Asked
        })
    }

    /// The local address of a remote piece, which is the driver's for a device's; `None` if there is no valid grant.
    ///
    /// # Errors
    /// The error that the owner would return. Only a valid grant can tell, because the key of a void one may belong to
    /// another region by now.
    pub fn resolve(&mut self, piece: &RemotePiece, write: bool) -> Result<Option<*mut u8>, Errno> {
        let resolved = match self.grants.known.get_mut(&piece.key) {
            Some(KeyState::Mapped(granted)) => granted.resolve(piece.addr, piece.len, write),
            Some(KeyState::Device(device)) => {
                self.grants.uses += 1;
                device.used = self.grants.uses;
                let target = device.resolve(piece.addr, piece.len, write);
                target.map(|target| std::ptr::without_provenance_mut(target as usize))
            }
            _ => return Ok(None),
        };
        match resolved {
            Ok(target) => Ok(Some(target)),
            Err(errno) => self.beyond_grant(piece.key, errno).map(|()| None),
        }
    }

    /// Forgets a void grant.
    ///
    /// # Errors
    /// `errno` if the grant holds.
    #[cold]
    fn beyond_grant(&mut self, key: u64, errno: Errno) -> Result<(), Errno> {
        let terms = match self.grants.known.get(&key) {
            Some(KeyState::Mapped(granted)) => granted.terms,
            Some(KeyState::Device(device)) => device.terms,
            _ => return Ok(()),
        };
        if self.up().is_some_and(|up| terms.hold(up)) {
            return Err(errno);
        }
        self.grants.known.remove(&key);
        Ok(())
    }

    /// Takes the peer's answer.
    pub fn granted(&mut self, key: u64, terms: Terms, memory: Option<Mapping>) {
        let grant = match memory {
            Some(memory) => KeyState::Mapped(MappedRegion { terms, memory }),
            None => KeyState::Refused,
        };
        self.insert_grant(key, grant);
    }

    /// Notes an answer.
    pub fn insert_grant(&mut self, key: u64, grant: KeyState) {
        self.grants.known.insert(key, grant);
        if self.grants.known.len() > self.grants.limit {
            self.forget_grants();
        }
    }

    /// Unmaps memory that the peer has withdrawn; otherwise memory under a key that is never used again would stay
    /// mapped. Answers whose validity cannot be checked (refusals, sources of messages) are forgotten only when there
    /// are very many, and are then requested again. This runs when the number of answers has doubled, so the cost per
    /// grant is constant.
    #[cold]
    fn forget_grants(&mut self) {
        let Some(Link { up: Some(up), .. }) = &self.link else { return };
        let parts = &up.parts;
        let unknown = |grant: &KeyState| match grant {
            KeyState::Refused => true,
            KeyState::Mapped(granted) => granted.terms.slot == u32::MAX,
            KeyState::Asked | KeyState::Device(_) => false,
        };
        let too_many = self.grants.known.values().filter(|grant| unknown(grant)).count() > MANY;
        self.grants.known.retain(|_, grant| match grant {
            grant if unknown(grant) => !too_many,
            KeyState::Mapped(granted) => holds(&parts.endpoint, &granted.terms),
            KeyState::Device(device) => holds(&parts.endpoint, &device.terms),
            _ => true,
        });
        self.grants.limit = (2 * self.grants.known.len()).max(FEW);
    }

    /// Runs `copy` if the grant still holds, and marks it so that the owner can wait for its end.
    pub fn while_granted(&self, terms: &Terms, copy: impl FnOnce()) -> bool {
        let Some(link) = &self.link else { return false };
        let Some(up) = &link.up else { return false };
        if terms.slot == u32::MAX {
            copy();
            return true;
        }
        let (slot, current) = (terms.slot, current(&up.parts.endpoint, terms));
        let word = link.own.word64(pair::COPYING);
        lease::copy(word, (slot, terms.generation), current, up.fences, || {
            crash_point!("copying.claimed");
            copy();
            crash_point!("copying.copied");
        })
    }
}
