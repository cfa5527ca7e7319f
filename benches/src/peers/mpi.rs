//! Open MPI's all-reduce over shared memory, by a program of ours.

use std::{
    path::Path,
    process::{Command, Output},
    sync::OnceLock,
};

use serde::Serialize;

use super::unreadable;
use crate::{Error, Figures, Result, c_program::CProgram, error::tail};

static PROGRAM: CProgram = CProgram::on_mpi("all_reduce", include_str!("../../c/all_reduce.c"));

/// The components that carry Open MPI's collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Over {
    /// Its own messages: `ob1` over `vader`.
    Ob1,
    /// Its collectives in shared memory: `coll/sm`.
    Sm,
    /// UCX's messages.
    Ucx,
}

/// All-reduces of eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AllReduce {
    /// Processes, which share the two cores.
    pub ranks: usize,
    /// Their number.
    pub count: u64,
    /// How they travel.
    pub over: Over,
}

impl AllReduce {
    /// The name in the table.
    pub fn name(&self) -> String {
        let version = version();
        match self.over {
            Over::Ob1 => format!("Open MPI {version} ob1"),
            Over::Sm => format!("Open MPI {version} coll/sm"),
            Over::Ucx => format!("Open MPI {version} UCX"),
        }
    }

    /// Runs it once on `cores`. Ranks that share a core yield it.
    ///
    /// # Errors
    /// There is no Open MPI, or the program fails.
    pub fn run(&self, cores: [usize; 2]) -> Result<Figures> {
        let output = self.start(PROGRAM.path(None)?, cores)?;
        let nanoseconds: f64 = output
            .lines()
            .find_map(|line| line.trim().parse().ok())
            .ok_or_else(|| unreadable("mpirun", "nanoseconds", &output))?;
        Ok(Figures::from_latency(8, nanoseconds / 1e3))
    }

    fn start(&self, program: &Path, cores: [usize; 2]) -> Result<String> {
        let mut mpirun = Command::new("mpirun");
        mpirun.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--timeout", "60"]);
        let crowded = self.ranks > cores.len();
        mpirun.args(["--mca", "mpi_yield_when_idle", if crowded { "1" } else { "0" }]);
        mpirun.args(match self.over {
            Over::Ob1 | Over::Sm => ["--mca", "pml", "ob1", "--mca", "btl", "vader,self"],
            Over::Ucx => ["--mca", "pml", "ucx", "--mca", "pml_ucx_devices", "any"],
        });
        if self.over == Over::Ucx {
            mpirun.args(["--mca", "pml_ucx_tls", "any"]);
        }
        if self.over == Over::Sm {
            mpirun.args(["--mca", "coll_sm_priority", "90"]);
        }
        mpirun.args(["-n", &self.ranks.to_string()]).arg(program).arg(self.count.to_string());
        mpirun.args(cores.map(|core| core.to_string()));
        text(mpirun, "mpirun")
    }
}

fn version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| {
        let mut mpirun = Command::new("mpirun");
        mpirun.arg("--version");
        let line = text(mpirun, "mpirun").unwrap_or_default();
        line.lines().next().and_then(|line| line.split(' ').next_back()).unwrap_or_default().to_owned()
    })
}

/// Runs a program to its end; its standard output.
fn text(mut command: Command, name: &str) -> Result<String> {
    let Output { status, stdout, stderr } = command.output().map_err(|error| Error::Missing {
        program: name.into(),
        reason: format!("{error}; apt-get install openmpi-bin libopenmpi-dev"),
    })?;
    if !status.success() {
        return Err(Error::Stack(format!("{name}: {status}: {}", tail(&String::from_utf8_lossy(&stderr)))));
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}
