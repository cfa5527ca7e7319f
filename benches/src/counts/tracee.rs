//! A child of this program under `ptrace(2)`: it runs freely up to a function, and is single-stepped from there to the
//! function's end.
//!
//! Only the child's first thread is traced; the others never call the function.

use std::collections::HashMap;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::decode::{self, Kind};
use super::symbols::{self, Mapping};
use crate::{Error, Result};

/// Maximum instructions of one call of the function. A window of 64 takes some 20,000.
const MAX_STEPS_PER_CALL: u64 = 2_000_000;
/// Instructions after which no further call is single-stepped: a step takes some 30 us, and in long paths all calls are
/// alike.
const ENOUGH: u64 = 100_000;
/// `int3`.
const BREAK: i64 = 0xCC;

/// Counts over a number of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Calls of the function.
    pub calls: u64,
    /// Locked instructions and full fences.
    pub locked: u64,
    /// System calls.
    pub system_calls: u64,
    /// Calls of the allocator that allocate.
    pub allocations: u64,
    /// Calls of the clock.
    pub clock_reads: u64,
    /// All instructions.
    pub instructions: u64,
}

/// The child, and its addresses.
pub struct Tracee {
    child: Child,
    pid: Pid,
    /// First instructions of the function, and the code there.
    entries: HashMap<u64, i64>,
    allocators: Vec<u64>,
    clock: Option<Mapping>,
    kinds: HashMap<u64, Kind>,
}

impl Drop for Tracee {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = waitpid(self.pid, None);
    }
}

fn traced<T>(what: &str, result: nix::Result<T>) -> Result<T> {
    result.map_err(|errno| Error::io(format!("tracing a child: {what}"))(errno.into()))
}

impl Tracee {
    /// Starts `program` with `arguments`, and stops it at each call of a function that matches `function`.
    ///
    /// # Errors
    /// It cannot be started or traced, or has no such function.
    pub fn start(program: &Path, arguments: &[&str], function: &str) -> Result<Self> {
        let functions = symbols::functions(program, function)?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
        // SAFETY: between fork and exec one system call is made, which needs nothing of the parent.
        unsafe { command.pre_exec(|| ptrace::traceme().map_err(Into::into)) };
        let child = command.spawn().map_err(Error::io("starting a child to trace"))?;
        let pid = Pid::from_raw(child.id().cast_signed());
        let (entries, kinds) = (HashMap::new(), HashMap::new());
        let mut tracee = Self { child, pid, entries, allocators: Vec::new(), clock: None, kinds };
        tracee.wait_stopped()?; // the stop at its exec
        let name = program.display().to_string();
        let mappings = symbols::mappings(tracee.child.id())?;
        let unmapped = || Error::Stack(format!("{name} is not mapped in its own process"));
        let base = symbols::base(&mappings, &name).ok_or_else(unmapped)?;
        for function in functions {
            let at = base + function;
            let word = traced("reading its code", ptrace::read(tracee.pid, pointer(at)))?;
            tracee.entries.insert(at, word);
        }
        tracee.arm(true)?;
        Ok(tracee)
    }

    /// Lets `calls` calls run.
    ///
    /// # Errors
    /// The child ends before.
    pub fn skip(&mut self, calls: u64) -> Result<()> {
        for _ in 0..calls {
            self.run_to_entry()?;
            // Step over the entry without the breakpoint.
            self.arm(false)?;
            self.step()?;
            self.arm(true)?;
        }
        Ok(())
    }

    /// Single-steps `calls` calls; fewer, once they have taken [`ENOUGH`] instructions.
    ///
    /// # Errors
    /// The child ends before, or a call does not end.
    pub fn follow(&mut self, calls: u64) -> Result<Seen> {
        let mut seen = Seen::default();
        while seen.calls < calls && seen.instructions < ENOUGH {
            self.run_to_entry()?;
            self.locate()?;
            self.arm(false)?;
            self.follow_one(&mut seen)?;
            self.arm(true)?;
            seen.calls += 1;
        }
        Ok(seen)
    }

    /// Single-steps from the function's entry to its return.
    fn follow_one(&mut self, seen: &mut Seen) -> Result<()> {
        let mut before = traced("reading its registers", ptrace::getregs(self.pid))?;
        let outside = before.rsp;
        for _ in 0..MAX_STEPS_PER_CALL {
            let at = before.rip;
            let in_clock = self.is_in_clock(at);
            match self.kind(at)? {
                // The clock's implementation depends on the machine: some have to ask the kernel.
                _ if in_clock => {}
                Kind::Plain => {}
                Kind::Locked => seen.locked += 1,
                Kind::SystemCall => seen.system_calls += 1,
            }
            self.step()?;
            seen.instructions += 1;
            let after = traced("reading its registers", ptrace::getregs(self.pid))?;
            seen.allocations += u64::from(self.allocators.contains(&after.rip));
            seen.clock_reads += u64::from(!in_clock && self.is_in_clock(after.rip));
            if after.rsp > outside {
                return Ok(());
            }
            before = after;
        }
        Err(Error::Stack(format!("a call took more than {MAX_STEPS_PER_CALL} instructions")))
    }

    /// Whether `at` is in the kernel's code that reads the clock in user space (vDSO).
    fn is_in_clock(&self, at: u64) -> bool {
        self.clock.as_ref().is_some_and(|clock| (clock.start..clock.end).contains(&at))
    }

    /// Finds the allocator and the clock after the C library is mapped.
    fn locate(&mut self) -> Result<()> {
        if !self.allocators.is_empty() {
            return Ok(());
        }
        let (ours, theirs) = (symbols::mappings(std::process::id())?, symbols::mappings(self.child.id())?);
        for name in [c"malloc", c"calloc", c"realloc", c"posix_memalign", c"aligned_alloc", c"mmap"] {
            // SAFETY: the name is a C string, and the handle is the documented one for a look at all that is loaded.
            let here = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) } as u64;
            let library = ours.iter().find(|mapping| (mapping.start..mapping.end).contains(&here));
            let place = library.and_then(|library| {
                let from = symbols::base(&ours, &library.name)?;
                Some(here - from + symbols::base(&theirs, &library.name)?)
            });
            let missing = || Error::Stack(format!("{name:?} is not in the mapping of the C library"));
            self.allocators.push(place.ok_or_else(missing)?);
        }
        self.clock = theirs.into_iter().find(|mapping| mapping.name == "[vdso]");
        Ok(())
    }

    fn kind(&mut self, at: u64) -> Result<Kind> {
        if let Some(&kind) = self.kinds.get(&at) {
            return Ok(kind);
        }
        let mut bytes = [0; 2 * size_of::<i64>()];
        for (nth, place) in bytes.chunks_exact_mut(size_of::<i64>()).enumerate() {
            // The second word may lie beyond the last page of code; then the instruction ends before it.
            let word = ptrace::read(self.pid, pointer(at + 8 * nth as u64));
            let word = if nth == 0 { traced("reading its code", word)? } else { word.unwrap_or(0) };
            place.copy_from_slice(&word.to_le_bytes());
        }
        let kind = decode::kind(&bytes[..decode::MAX_INSTRUCTION_LEN]);
        self.kinds.insert(at, kind);
        Ok(kind)
    }

    /// Sets or clears the breakpoints.
    fn arm(&mut self, armed: bool) -> Result<()> {
        for (&at, &word) in &self.entries {
            let word = if armed { (word & !0xFF) | BREAK } else { word };
            traced("writing a breakpoint", ptrace::write(self.pid, pointer(at), word))?;
        }
        Ok(())
    }

    /// Runs to the next call of the function, and stops at its first instruction.
    fn run_to_entry(&mut self) -> Result<()> {
        let mut signal = None;
        loop {
            traced("going on", ptrace::cont(self.pid, signal))?;
            match self.wait_stopped()? {
                Signal::SIGTRAP => {}
                other => {
                    signal = Some(other);
                    continue;
                }
            }
            let mut registers = traced("reading its registers", ptrace::getregs(self.pid))?;
            let entry = registers.rip - 1;
            if self.entries.contains_key(&entry) {
                registers.rip = entry;
                return traced("setting its registers", ptrace::setregs(self.pid, registers));
            }
            signal = None;
        }
    }

    fn step(&mut self) -> Result<()> {
        traced("a step", ptrace::step(self.pid, None))?;
        self.wait_stopped().map(drop)
    }

    fn wait_stopped(&mut self) -> Result<Signal> {
        match traced("waiting for it", waitpid(self.pid, None))? {
            WaitStatus::Stopped(_, signal) => Ok(signal),
            other => Err(Error::Stack(format!("a traced child ended early: {other:?}"))),
        }
    }
}

fn pointer(at: u64) -> ptrace::AddressType {
    at as ptrace::AddressType
}
