//! Sets of an address vector's numbers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ofi_api::{AddressVector, AvSet, AvSetAttr, Errno, Error, FiAddr, Fid, Result};

use crate::av::Av;

/// The upper bits of numbers that name sets and groups. No address vector is large enough to reach them.
const SETS: u64 = 0b11 << 62;
const GROUPS: u64 = 0b10 << 62;

/// A number for a set or a group, unique in this process.
pub fn new_address(is_set: bool) -> FiAddr {
    FiAddr(if is_set { SETS } else { GROUPS } | Fid::next().0)
}

/// The core's set.
pub struct Set {
    av: Arc<Av>,
    members: Mutex<Vec<FiAddr>>,
    addr: FiAddr,
}

impl Set {
    /// Makes a set of numbers of `av`.
    ///
    /// # Errors
    /// `FI_EINVAL` for an invalid range or stride.
    pub fn open(av: &Arc<Av>, attr: &AvSetAttr) -> Result<Arc<Self>> {
        let (first, last) = attr.range;
        let given = [first, last].map(|number| number != FiAddr::NOTAVAIL);
        if given[0] != given[1] || given[0] != (attr.stride != 0) || (given[0] && first > last) {
            return Err(Error::wanted(
                Errno::EINVAL,
                "fi_av_set_attr",
                "first and last number with a stride above zero, or none of the three",
                format!("{first:?} to {last:?}, stride {}", attr.stride),
                "leave the range FI_ADDR_NOTAVAIL and the stride 0 for an empty set",
            ));
        }
        let members = if attr.universe {
            av.numbers()
        } else if given[0] {
            let wanted = |number: &FiAddr| {
                (first..=last).contains(number) && (number.0 - first.0).is_multiple_of(attr.stride)
            };
            av.numbers().into_iter().filter(wanted).collect()
        } else {
            Vec::new()
        };
        Ok(Arc::new(Self { av: Arc::clone(av), members: Mutex::new(members), addr: new_address(true) }))
    }

    /// The vector that the numbers are of.
    pub fn av(&self) -> &Arc<Av> {
        &self.av
    }

    fn lock(&self) -> MutexGuard<'_, Vec<FiAddr>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, address: FiAddr) -> Result<()> {
        self.av.lookup(address).map(drop)
    }
}

impl AvSet for Set {
    fn insert(&self, address: FiAddr) -> Result<()> {
        self.check(address)?;
        let mut members = self.lock();
        if !members.contains(&address) {
            members.push(address);
        }
        Ok(())
    }

    fn remove(&self, address: FiAddr) -> Result<()> {
        let mut members = self.lock();
        let Some(at) = members.iter().position(|&member| member == address) else {
            return Err(Error::wanted(
                Errno::EINVAL,
                "fi_av_set_remove",
                "a member of the set",
                format!("{address:?}"),
                "remove addresses that were inserted",
            ));
        };
        members.remove(at);
        Ok(())
    }

    fn members(&self) -> Vec<FiAddr> {
        self.lock().clone()
    }

    fn replace(&self, members: &[FiAddr]) -> Result<()> {
        for (at, &member) in members.iter().enumerate() {
            self.check(member)?;
            if members[..at].contains(&member) {
                return Err(Error::wanted(
                    Errno::EINVAL,
                    "the members of a set",
                    "each once",
                    format!("{member:?} twice"),
                    "leave the second out",
                ));
            }
        }
        *self.lock() = members.to_vec();
        Ok(())
    }

    fn addr(&self) -> FiAddr {
        self.addr
    }
}
