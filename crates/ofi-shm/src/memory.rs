//! Memory that the library allocates. Each allocation is a memfd, so passing its descriptor gives a peer access.
//!
//! There are no read-only descriptors: a process can reopen one for writing (`/proc/self/fd`). The kernel does enforce
//! seals, but only for all descriptors of a memory at once. So each allocation is either shown or shared; the first
//! descriptor that leaves the process decides this for good:
//!
//! - *shown*: sealed against new writers; this process's mapping existed before. Peers map it for reading only.
//! - *shared*: peers with a key for reading and writing map it for both. Nobody else gets the descriptor: other
//!   accesses are executed here, and messages from it are sent as from application memory.
//!
//! An allocation that is registered for both reading and writing is reserved for sharing. One in reserved huge pages is
//! never shared, because a peer with write access may punch holes, and a freed huge page may not come back (`SIGBUS`).

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use ofi_api::{LibraryMemory, Placement, Result};
use rustc_hash::FxHashMap;

use crate::sys::{self, Mapping, Writers};

/// The mode in which descriptors of an allocation have left this process (shown and shared, as above).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Open,
    Shown,
    SharedEndpoint,
}

/// One allocation.
pub struct Allocated {
    mapping: Mapping,
    len: usize,
    /// Names it in messages whose payload lies in it.
    pub key: u64,
    fd: OwnedFd,
    fate: Mutex<Fate>,
    /// Registrations that peers may want to map for writing.
    sharers: AtomicUsize,
    is_huge: bool,
}

impl Allocated {
    /// Address of its first byte.
    pub fn base(&self) -> usize {
        self.mapping.base().as_ptr() as usize
    }

    /// Bytes that are mapped: whole pages.
    pub fn mapped(&self) -> usize {
        self.mapping.len()
    }

    /// Bytes that were asked for.
    pub fn asked(&self) -> usize {
        self.len
    }

    /// A descriptor for a peer that reads, or reads and writes; `None` if the allocation's mode excludes that.
    pub fn descriptor(&self, writers: Writers) -> Option<OwnedFd> {
        let wanted = match writers {
            Writers::Present => Fate::Shown,
            Writers::Any => Fate::SharedEndpoint,
        };
        let mut fate = self.fate.lock().unwrap_or_else(PoisonError::into_inner);
        if *fate == Fate::Open && self.may_be(wanted) {
            sys::seal(&self.fd, writers).ok()?;
            *fate = wanted;
        }
        if *fate == wanted { self.fd.try_clone().ok() } else { None }
    }

    fn may_be(&self, fate: Fate) -> bool {
        match fate {
            Fate::SharedEndpoint => !self.is_huge,
            _ => self.sharers.load(Ordering::Relaxed) == 0,
        }
    }

    /// Whether the receiver of a message may map the memory.
    pub fn is_for_messages(&self) -> bool {
        match *self.fate.lock().unwrap_or_else(PoisonError::into_inner) {
            Fate::Open => self.may_be(Fate::Shown),
            fate => fate == Fate::Shown,
        }
    }

    /// Counts a registration that peers may want to map for writing, until [`Allocated::unshare`].
    pub fn share(&self) {
        if !self.is_huge {
            self.sharers.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// See [`Allocated::share`].
    pub fn unshare(&self) {
        if !self.is_huge {
            self.sharers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The live allocations of a domain.
#[derive(Default)]
pub struct Allocations {
    by_base: RwLock<BTreeMap<usize, Arc<Allocated>>>,
    by_key: RwLock<FxHashMap<u64, Arc<Allocated>>>,
}

impl Allocations {
    /// The allocation that holds `len` bytes at `addr`.
    pub fn find(&self, addr: usize, len: usize) -> Option<Arc<Allocated>> {
        let by_base = self.by_base.read().unwrap_or_else(PoisonError::into_inner);
        let (_, found) = by_base.range(..=addr).next_back()?;
        (addr - found.base() <= found.mapped() && len <= found.mapped() - (addr - found.base()))
            .then(|| Arc::clone(found))
    }

    /// The allocation that peers name by `key`.
    pub fn keyed(&self, key: u64) -> Option<Arc<Allocated>> {
        self.by_key.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
    }

    fn remove(&self, allocated: &Allocated) {
        self.by_base.write().unwrap_or_else(PoisonError::into_inner).remove(&allocated.base());
        self.by_key.write().unwrap_or_else(PoisonError::into_inner).remove(&allocated.key);
    }
}

/// The application's handle to an allocation.
struct MemoryHandle {
    allocated: Arc<Allocated>,
    domain: Arc<crate::ShmDomain>,
}

/// Memory in reserved huge pages, if requested and enough are free. The kernel takes them from the node that first
/// touches them, which is done here, so they do not serve requests for a NUMA node.
fn huge_pages(size: usize, placement: Placement) -> Option<(OwnedFd, Mapping)> {
    if !placement.huge || placement.node.is_some() {
        return None;
    }
    let fd = sys::huge_memfd(c"ofi-shm memory", size).ok()?;
    let mapping = Mapping::new(fd.as_fd(), size, true).ok()?;
    Some((fd, mapping))
}

/// Memory in ordinary pages.
fn pages_of(size: usize, placement: Placement) -> Result<(OwnedFd, Mapping)> {
    let fd = sys::empty_memfd(c"ofi-shm memory", size)?;
    let mapping = Mapping::new(fd.as_fd(), size, true)?;
    if let Some(node) = placement.node {
        mapping.prefer_node(node)?;
    }
    if placement.huge {
        mapping.advise_huge();
    }
    sys::allocate(&fd, size)?;
    Ok((fd, mapping))
}

/// Allocates `len` bytes.
///
/// # Errors
/// `FI_ENOMEM`, `FI_EMFILE`.
pub fn alloc(
    domain: &Arc<crate::ShmDomain>,
    len: usize,
    placement: Placement,
) -> Result<Arc<dyn LibraryMemory>> {
    let pages = len.checked_next_multiple_of(if placement.huge { sys::HUGE_PAGE } else { 4096 });
    let size = pages.ok_or_else(|| ofi_api::Error::new(ofi_api::Errno::ENOMEM))?;
    let reserved = huge_pages(size, placement);
    let is_huge = reserved.is_some();
    let (fd, mapping) = match reserved {
        Some(memory) => memory,
        None => pages_of(size, placement)?,
    };
    sys::seal_size(&fd)?;
    let allocated = Arc::new(Allocated {
        mapping,
        len,
        key: sys::random().max(1),
        fd,
        fate: Mutex::new(Fate::Open),
        sharers: AtomicUsize::new(0),
        is_huge,
    });
    let live = &domain.allocations;
    live.by_base
        .write()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(allocated.base(), Arc::clone(&allocated));
    live.by_key.write().unwrap_or_else(PoisonError::into_inner).insert(allocated.key, Arc::clone(&allocated));
    Ok(Arc::new(MemoryHandle { allocated, domain: Arc::clone(domain) }))
}

impl LibraryMemory for MemoryHandle {
    fn as_ptr(&self) -> *mut u8 {
        self.allocated.mapping.base().as_ptr()
    }

    fn len(&self) -> usize {
        self.allocated.len
    }
}

impl Drop for MemoryHandle {
    fn drop(&mut self) {
        self.domain.allocations.remove(&self.allocated);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    fn allocated(domain: &Arc<crate::ShmDomain>) -> Arc<Allocated> {
        let memory = alloc(domain, 8192, Placement::default()).unwrap();
        domain.allocations.find(memory.as_ptr() as usize, 8192).unwrap()
    }

    /// As a receiver of the descriptor would reopen it.
    fn open_again(fd: &OwnedFd) -> OwnedFd {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap().into()
    }

    fn punch(fd: &OwnedFd) -> bool {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: takes no pointers.
        unsafe { libc::fallocate(fd.as_raw_fd(), mode, 0, 4096) == 0 }
    }

    #[test]
    fn what_is_shown_cannot_be_mapped_for_writing() {
        let domain = Arc::default();
        let own = allocated(&domain);
        let shown = own.descriptor(Writers::Present).unwrap();
        for fd in [&shown, &open_again(&shown)] {
            assert!(Mapping::new(fd.as_fd(), 8192, true).is_err(), "mapped for writing");
            assert!(!punch(fd), "punched a hole");
            let file = std::fs::File::from(fd.try_clone().unwrap());
            assert!(std::os::unix::fs::FileExt::write_at(&file, b"x", 0).is_err(), "written");
            assert!(sys::map_foreign(fd.as_fd(), 8192, false).is_ok());
        }
        // SAFETY: the allocation's own mapping, of which nothing else knows.
        unsafe { own.mapping.base().write(7) };
        let seen = sys::map_foreign(shown.as_fd(), 8192, false).unwrap();
        // SAFETY: just mapped.
        assert_eq!(unsafe { seen.base().read() }, 7, "the owner goes on writing");
        assert!(own.descriptor(Writers::Any).is_none(), "shown memory is not shared");
        assert!(own.is_for_messages());
    }

    #[test]
    fn what_is_shared_is_shown_to_nobody_else() {
        let domain = Arc::default();
        let own = allocated(&domain);
        own.share();
        assert!(!own.is_for_messages() && own.descriptor(Writers::Present).is_none(), "kept for sharing");
        let shared = own.descriptor(Writers::Any).unwrap();
        assert!(sys::map_foreign(shared.as_fd(), 8192, true).is_ok());
        own.unshare();
        assert!(
            !own.is_for_messages() && own.descriptor(Writers::Present).is_none(),
            "a writer is there for good"
        );
    }

    #[test]
    fn a_registration_that_nobody_asked_for_leaves_the_memory_to_messages() {
        let domain = Arc::default();
        let own = allocated(&domain);
        own.share();
        own.unshare();
        assert!(own.is_for_messages() && own.descriptor(Writers::Present).is_some());
    }

    #[test]
    fn memory_that_its_owner_may_punch_is_not_mapped_for_reading() {
        let fd = sys::memfd(c"test", 8192).unwrap();
        assert!(sys::map_foreign(fd.as_fd(), 8192, false).is_err(), "not sealed");
        sys::seal(&fd, Writers::Any).unwrap();
        assert!(sys::map_foreign(fd.as_fd(), 8192, false).is_err(), "holes could be punched");
        assert!(sys::map_foreign(fd.as_fd(), 8192, true).is_ok(), "ordinary pages read as zeroes then");
        assert!(sys::map_foreign(fd.as_fd(), 8193, true).is_err(), "longer than it is");
    }

    #[test]
    fn only_an_eventfd_is_taken_for_one() {
        use std::os::fd::FromRawFd;
        let event = ofi_core::sys::eventfd().unwrap();
        assert!(sys::check_eventfd(event.as_fd()).is_ok());
        let (_reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
        writer.set_nonblocking(true).unwrap();
        assert!(sys::check_eventfd(writer.as_fd()).is_err(), "a socket");
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK | libc::O_CLOEXEC) }, 0);
        // SAFETY: the call made them for us.
        let ends = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        assert!(sys::check_eventfd(ends[1].as_fd()).is_err(), "a pipe raises SIGPIPE");
        // SAFETY: takes no pointers.
        let blocking = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        // SAFETY: the call made it for us.
        let blocking = unsafe { OwnedFd::from_raw_fd(blocking) };
        assert!(sys::check_eventfd(blocking.as_fd()).is_err(), "one that blocks");
    }
}
