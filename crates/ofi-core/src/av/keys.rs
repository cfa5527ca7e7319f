//! The authorization keys of an address vector, in a domain that was opened with `FI_AV_AUTH_KEY` (fi_av(3)). There is
//! at most one (`max_ep_auth_key`): all addresses of the vector, and all endpoints that it is bound to, use that key.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ofi_api::{Errno, Error, FiAddr, Result};

use crate::auth::AuthKey;

/// The number of a vector's first key, which no address has. Each later key gets a new number, so that old numbers are
/// invalid.
const FIRST: u64 = 1 << 32;

/// The keys of one vector.
#[derive(Default)]
pub struct Keys(Mutex<KeysState>);

#[derive(Default)]
struct KeysState {
    key: AuthKey,
    /// The number of earlier keys.
    generation: u64,
    /// Cloned for each endpoint that uses the key.
    users: Arc<()>,
}

/// Keeps a key in its vector.
pub struct InUse {
    _users: Arc<()>,
}

fn none_there(found: FiAddr) -> Error {
    Error::wanted(
        Errno::EINVAL,
        "the number of an authorization key",
        "one that fi_av_insert_auth_key gave",
        format!("{found:?}"),
        "insert the key first, and drop numbers whose key was removed",
    )
}

impl KeysState {
    fn number(&self) -> FiAddr {
        FiAddr(FIRST + self.generation)
    }

    fn check(&self, number: FiAddr) -> Result<()> {
        if self.key.is_none() || number != self.number() { Err(none_there(number)) } else { Ok(()) }
    }
}

impl Keys {
    fn state(&self) -> MutexGuard<'_, KeysState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Inserts a key, whose length was checked. Inserting the same key again returns the same number.
    ///
    /// # Errors
    /// `FI_ENOSPC` for a second one.
    pub fn insert(&self, key: &[u8]) -> Result<FiAddr> {
        let mut state = self.state();
        let key = AuthKey::new(key);
        if state.key.is_none() {
            state.key = key;
        } else if state.key != key {
            return Err(Error::wanted(
                Errno::ENOSPC,
                "fi_av_insert_auth_key",
                "at most max_ep_auth_key keys, which is 1",
                "a second one",
                "open an address vector and endpoints for each key",
            ));
        }
        Ok(state.number())
    }

    /// The key of a number.
    ///
    /// # Errors
    /// `FI_EINVAL` if there is none.
    pub fn key(&self, number: FiAddr) -> Result<AuthKey> {
        let state = self.state();
        state.check(number)?;
        Ok(state.key.clone())
    }

    /// The key of all addresses and endpoints, with a reference that keeps it from being removed.
    ///
    /// # Errors
    /// `FI_ENOKEY` if there is none.
    pub fn claim(&self) -> Result<(AuthKey, InUse)> {
        let state = self.state();
        if state.key.is_none() {
            return Err(Error::wanted(
                Errno::ENOKEY,
                "fi_enable in a domain opened with FI_AV_AUTH_KEY",
                "an authorization key in the endpoint's address vector",
                "none",
                "insert one with fi_av_insert_auth_key before",
            ));
        }
        Ok((state.key.clone(), InUse { _users: Arc::clone(&state.users) }))
    }

    /// Removes a key from a vector with `addresses` addresses.
    ///
    /// # Errors
    /// `FI_EINVAL` if there is none of this number; `FI_EBUSY` while endpoints or addresses use it.
    pub fn remove(&self, number: FiAddr, addresses: usize) -> Result<()> {
        let mut state = self.state();
        state.check(number)?;
        if Arc::strong_count(&state.users) > 1 || addresses > 0 {
            return Err(Error::wanted(
                Errno::EBUSY,
                "fi_av_remove of an authorization key",
                "a key without endpoints and addresses",
                "some that use it",
                "close the endpoints and remove the addresses first",
            ));
        }
        (state.key, state.generation) = (AuthKey::NONE, state.generation + 1);
        Ok(())
    }
}
