//! Truncated files: accessing a mapped page that the file no longer has raises `SIGBUS`, which ends the process.
//!
//! A process that may write a domain can truncate its files at any time, and no check before an access could prevent
//! the signal. So the first mapping of a flow's file installs a signal handler. It looks the address up among the
//! mappings of this crate, notes that the flow is broken, and replaces the whole mapping by memory of zeros;
//! the access then continues. Readers and writers check the note after they have used the memory, and return
//! [`Error::Truncated`](super::Error::Truncated). While no mapping is broken, this check is one load of a
//! word that never changes.
//!
//! Any other `SIGBUS` goes to the handler that was installed before, or has the system's default effect.
//!
//! The handler is on by default, for Rust programs as well as for those that use `libmxl.so.1`: otherwise any process
//! with write access to a domain could end all its readers, and no safe code could prevent that. Like the handler that
//! Rust's runtime has for this signal, it changes nothing for other memory. Programs that do not want it call
//! [`leave_alone`] or set `MXL_SIGBUS` to `off`. Programs whose own handler replaces this one can call [`repair`] in
//! theirs.
//!
//! # What it does not cover
//!
//! * The rest of the last page after a truncation, which reads as zeros without a signal. A process with write access
//!   could write such zeros too.
//! * A handler that is installed later and does not pass signals on; a thread that blocks `SIGBUS`, in which case the
//!   kernel ends the process; a library with this crate that is unloaded while its handler is installed.
//!
//! # Invariants
//!
//! I1. The table only grows, and its entries are reused: the handler takes no lock, and no memory that it reads is
//!     freed.
//! I2. An entry names a range only while the range is mapped: it is filled after `mmap` and emptied before `munmap`. A
//!     thread that faults inside a range is using the range, so the entry of that address does not change. Other
//!     entries may change while the handler reads them: it reads an entry completely or not at all (a sequence lock).
//! I3. The note is written before the zeros appear: a thread that reads such a zero sees the note afterwards.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering, compiler_fence, fence};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};

/// Whether any mapping was ever repaired. Not written until then.
static ANY: AtomicBool = AtomicBool::new(false);
/// Whether a handler may be installed.
static WANTED: AtomicBool = AtomicBool::new(true);
static FIRST: AtomicPtr<Chunk> = AtomicPtr::new(ptr::null_mut());
static FREE: Mutex<Vec<&'static MappedFile>> = Mutex::new(Vec::new());
/// The handler that was installed before ours.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Entries of a chunk: two flows of video at the default settings fit.
const CHUNK: usize = 32;
/// The smallest page size of any processor.
const PAGE: usize = 4096;

/// The state of a flow's files: 0, or the number of the first mapping whose file was truncated.
#[derive(Debug, Default)]
pub struct Note(AtomicU32);

impl Note {
    /// The number of the mapping whose file was truncated, if any. Call it after the accesses in question.
    #[inline]
    pub fn broken(&self) -> Option<u32> {
        // A store before this may have raised the signal in this thread, so the compiler must not move the check before
        // it. A load may have seen another thread's zeros (I3).
        compiler_fence(Ordering::SeqCst);
        fence(Ordering::Acquire);
        if !ANY.load(Ordering::Relaxed) {
            return None;
        }
        Some(self.0.load(Ordering::Relaxed)).filter(|number| *number != 0)
    }
}

#[derive(Debug)]
struct MappedFile {
    /// Odd while the entry is unused or being filled.
    version: AtomicU32,
    base: AtomicUsize,
    end: AtomicUsize,
    /// The note and this mapping's number in it. The mapping keeps the note.
    note: AtomicPtr<Note>,
    number: AtomicU32,
    write: AtomicBool,
}

/// The content of an entry.
struct Mapping {
    base: usize,
    end: usize,
    note: *mut Note,
    number: u32,
    write: bool,
}

impl MappedFile {
    /// The mapping in this entry, if it contains the address.
    fn of(&self, address: usize) -> Option<Mapping> {
        let version = self.version.load(Ordering::Acquire);
        let mapping = Mapping {
            base: self.base.load(Ordering::Relaxed),
            end: self.end.load(Ordering::Relaxed),
            note: self.note.load(Ordering::Relaxed),
            number: self.number.load(Ordering::Relaxed),
            write: self.write.load(Ordering::Relaxed),
        };
        fence(Ordering::Acquire); // with the fence of `Listed::new`
        let is_whole = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        (is_whole && (mapping.base..mapping.end).contains(&address)).then_some(mapping)
    }

    /// Switches the entry from unused to used, or back.
    fn turn(&self) {
        let version = self.version.load(Ordering::Relaxed); // its owner alone changes it
        self.version.store(version.wrapping_add(1), Ordering::Release);
    }
}

struct Chunk {
    entries: [MappedFile; CHUNK],
    next: *mut Chunk,
}

/// A mapping's place in the table. Drop it before the memory is unmapped.
#[derive(Debug)]
pub struct Listed {
    entry: &'static MappedFile,
    _note: Arc<Note>,
}

impl Listed {
    /// Lists `len` mapped bytes at `base`. If their file is truncated, the handler stores `number`, which is not 0, in
    /// the note.
    pub fn new(base: usize, len: usize, write: bool, note: Arc<Note>, number: u32) -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(install);
        let entry = take();
        fence(Ordering::Release); // a thread that sees one of these stores sees the odd version
        entry.note.store(Arc::as_ptr(&note).cast_mut(), Ordering::Relaxed);
        entry.number.store(number, Ordering::Relaxed);
        entry.write.store(write, Ordering::Relaxed);
        // The rest of the last page is mapped as well.
        entry.end.store(base.saturating_add(len).next_multiple_of(PAGE), Ordering::Relaxed);
        entry.base.store(base, Ordering::Relaxed);
        entry.turn(); // I2
        Self { entry, _note: note }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.entry.turn();
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.entry);
    }
}

/// An unused entry, from a new chunk if necessary.
fn take() -> &'static MappedFile {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(entry) = free.pop() {
        return entry;
    }
    let entries = std::array::from_fn(|_| MappedFile {
        version: AtomicU32::new(1),
        base: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        note: AtomicPtr::new(ptr::null_mut()),
        number: AtomicU32::new(0),
        write: AtomicBool::new(false),
    });
    // Under the lock, so no other thread adds one meanwhile.
    let chunk = Box::leak(Box::new(Chunk { entries, next: FIRST.load(Ordering::Relaxed) }));
    FIRST.store(chunk, Ordering::Release);
    let (first, rest) = chunk.entries.split_first().expect("a chunk has entries");
    free.extend(rest);
    first
}

fn entries() -> impl Iterator<Item = &'static MappedFile> {
    // SAFETY: null, or a chunk that is never freed (I1) and in which only atomics change.
    let mut at = unsafe { FIRST.load(Ordering::Acquire).as_ref() };
    std::iter::from_fn(move || {
        let chunk: &'static Chunk = at?;
        // SAFETY: as above.
        at = unsafe { chunk.next.as_ref() };
        Some(&chunk.entries)
    })
    .flatten()
}

/// Keeps this crate from installing its handler for `SIGBUS`. Call it before opening the first flow. An access to a
/// truncated file then ends the process, unless the program's own handler calls [`repair`].
pub fn leave_alone() {
    WANTED.store(false, Ordering::Relaxed);
}

/// Repairs the mapping at a faulting address (`si_addr`), for a program's own handler that replaces this crate's.
/// Returns false for an address that belongs to no flow. Async-signal-safe.
pub fn repair(address: usize) -> bool {
    let Some(mapping) = entries().find_map(|entry| entry.of(address)) else { return false };
    let Mapping { base, end, note, number, write } = mapping;
    // SAFETY: by I2 the mapping and its note remain while the faulting thread uses the mapping.
    let Some(note) = (unsafe { note.as_ref() }) else { return false };
    note.0.store(number, Ordering::Relaxed);
    ANY.store(true, Ordering::Relaxed);
    fence(Ordering::SeqCst); // I3; the kernel orders the change of a mapping for all threads
    let write = if write { libc::PROT_WRITE } else { 0 };
    let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: it replaces exactly this mapping, which is only accessed as memory that may change at any time.
    let there = unsafe { libc::mmap(base as *mut _, end - base, libc::PROT_READ | write, flags, -1, 0) };
    there != libc::MAP_FAILED
}

fn install() {
    if !WANTED.load(Ordering::Relaxed) || std::env::var_os("MXL_SIGBUS").is_some_and(|value| value == "off") {
        return;
    }
    // SAFETY: all zeros are a valid value of this C structure.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the call only queries, and `before` is valid for a write.
    if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut before) } != 0 {
        return;
    }
    let mut ours = before;
    // Keeps the previous handler's mask, so that it finds the same signals blocked. `SA_ONSTACK`: programs
    // with small stacks provide another stack for signals.
    ours.sa_flags =
        libc::SA_SIGINFO | libc::SA_ONSTACK | (before.sa_flags & (libc::SA_RESTART | libc::SA_NODEFER));
    ours.sa_sigaction = handle as *const () as usize;
    // Before the handler can run.
    let _ = BEFORE.set(before);
    // SAFETY: the handler is async-signal-safe, and stays as long as this library is loaded.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, ptr::null_mut()) } != 0 {
        let error = std::io::Error::last_os_error();
        tracing::warn!(%error, "no handler for SIGBUS: a truncated file of a flow would end the process");
    }
}

extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the C library's function returns the place of this thread's error number.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above. Restored because the interrupted code may be about to read it.
    let kept = unsafe { errno.read() };
    // SAFETY: the kernel's information about this signal, which lives as long as this call.
    let cause = unsafe { &*info };
    // `si_addr` is valid only if the processor raised the signal. A hardware memory error has another code.
    // SAFETY: by its code, the signal has an address.
    let is_ours = cause.si_code == libc::BUS_ADRERR && repair(unsafe { cause.si_addr() } as usize);
    if !is_ours {
        pass_on(signal, info, context, cause.si_code > 0);
    }
    // SAFETY: as above.
    unsafe { errno.write(kept) };
}

/// Passes a signal on to the previous handler.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void, is_fault: bool) {
    let Some(before) = BEFORE.get() else { return };
    match before.sa_sigaction {
        // Without a handler, the kernel ends the process even if it ignores this signal: at the faulting access,
        // which is repeated when this handler returns.
        libc::SIG_DFL | libc::SIG_IGN if is_fault => set_default(signal),
        libc::SIG_IGN => {}
        libc::SIG_DFL => {
            set_default(signal);
            // A process sent the signal. It must be raised again, and arrives when this handler returns.
            // SAFETY: it has no requirements.
            unsafe { libc::raise(signal) };
        }
        handler => {
            if before.sa_flags & libc::SA_RESETHAND != 0 {
                set_default(signal);
            }
            if before.sa_flags & libc::SA_SIGINFO != 0 {
                type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
                // SAFETY: by its flag, the handler has this signature.
                let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
                handler(signal, info, context);
            } else {
                // SAFETY: without the flag, the handler has this signature.
                let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(handler) };
                handler(signal);
            }
        }
    }
}

fn set_default(signal: libc::c_int) {
    // SAFETY: zeros are the default action, with no flags and an empty mask.
    let default: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is valid for a read.
    unsafe { libc::sigaction(signal, &raw const default, ptr::null_mut()) };
}
