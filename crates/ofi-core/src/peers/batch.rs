//! Insertion and removal of many addresses at once, with the results that C expects.

use ofi_api::{Address, FiAddr, Result};

use super::table::{AddressTable, PeerEntry, Removed};

/// Where the results of an insertion go. All fields are optional, because without removals the indices are known in
/// advance.
#[derive(Debug, Default)]
pub struct Answers<'a> {
    /// The index of each address, or [`FiAddr::NOTAVAIL`] for one that failed.
    pub addrs: Option<&'a mut [FiAddr]>,
    /// 0 or the positive error number of each address (`FI_SYNC_ERR`).
    pub errors: Option<&'a mut [i32]>,
    /// Whether `addrs` holds a user id for each address on entry (`FI_AV_USER_ID` with the insertion).
    pub with_user_ids: bool,
}

impl AddressTable {
    /// Inserts addresses in order; one that fails takes no index and does not stop the others. An item may already be
    /// an error, such as a name that did not resolve. `admit` is called for each address that was not there before, as
    /// in [`AddressTable::insert_address`]. Returns the number of insertions, as `fi_av_insert` does. Results beyond
    /// the end of a slice are dropped.
    pub fn insert_each(
        &mut self,
        addresses: impl IntoIterator<Item = Result<Address>>,
        answers: &mut Answers<'_>,
        mut admit: impl FnMut(PeerEntry, &[u8]) -> Result<()>,
    ) -> usize {
        let mut inserted = 0;
        for (at, address) in addresses.into_iter().enumerate() {
            let user_id = match &answers.addrs {
                Some(ids) if answers.with_user_ids => ids.get(at).copied(),
                _ => None,
            };
            let result = address.and_then(|address| self.insert_address(&address, &mut admit));
            if let (Ok(addr), Some(id)) = (&result, user_id)
                && let Ok(peer) = self.peer(*addr)
            {
                self.put_id(peer, id);
            }
            if let Err(error) = &result {
                tracing::warn!(target: "ofi::core::av", position = at, %error, "address not inserted");
            }
            inserted += usize::from(result.is_ok());
            answers.put(at, &result);
        }
        inserted
    }

    /// Reverts one insertion of each address, in order; one that is not there does not stop the others. `gone` is
    /// called for each peer that this removes.
    ///
    /// # Errors
    /// `FI_EINVAL` if an address was not there.
    pub fn remove_each(&mut self, addresses: &[FiAddr], mut gone: impl FnMut(PeerEntry)) -> Result<()> {
        let mut first_error = Ok(());
        for &address in addresses {
            match self.remove(address) {
                Ok(Removed::Kept) => {}
                Ok(Removed::Gone(peer)) => gone(peer),
                Err(error) => first_error = first_error.and(Err(error)),
            }
        }
        first_error
    }
}

impl Answers<'_> {
    fn put(&mut self, at: usize, result: &Result<FiAddr>) {
        if let Some(addr) = self.addrs.as_deref_mut().and_then(|addrs| addrs.get_mut(at)) {
            *addr = result.as_ref().map_or(FiAddr::NOTAVAIL, |addr| *addr);
        }
        if let Some(error) = self.errors.as_deref_mut().and_then(|errors| errors.get_mut(at)) {
            *error = result.as_ref().err().map_or(0, |error| error.fi_errno());
        }
    }
}
