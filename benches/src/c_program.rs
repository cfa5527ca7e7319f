//! Programs in C of our own (`benches/c`), for what the peers' programs cannot do. Each is compiled when it is first
//! needed, beside this program.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use crate::{Error, Result};

/// A program, and where it was compiled to.
pub struct CProgram {
    name: &'static str,
    source: &'static str,
    /// The compiler, and what a host without it should install.
    compiler: (&'static str, &'static str),
    compiled: OnceLock<std::result::Result<PathBuf, String>>,
}

impl CProgram {
    /// A program on libfabric's interface.
    pub const fn on_libfabric(name: &'static str, source: &'static str) -> Self {
        Self { name, source, compiler: ("cc", "gcc libfabric-dev"), compiled: OnceLock::new() }
    }

    /// A program on MPI's interface.
    pub const fn on_mpi(name: &'static str, source: &'static str) -> Self {
        Self { name, source, compiler: ("mpicc", "openmpi-bin libopenmpi-dev"), compiled: OnceLock::new() }
    }

    /// The compiled program. `prefix` has the headers and the library, if the system's are not wanted. Any libfabric
    /// serves to link it: its functions are found when it starts.
    ///
    /// # Errors
    /// There is no compiler, or there are no headers.
    pub fn path(&self, prefix: Option<&Path>) -> Result<&Path> {
        let compiled = self.compiled.get_or_init(|| self.compile(prefix));
        let missing = |reason: &String| Error::Missing {
            program: format!("{}.c", self.name),
            reason: format!("{reason}; apt-get install {}", self.compiler.1),
        };
        compiled.as_deref().map_err(missing)
    }

    fn compile(&self, prefix: Option<&Path>) -> std::result::Result<PathBuf, String> {
        let this = env::current_exe().map_err(|error| format!("this program's folder: {error}"))?;
        let told = |error: std::io::Error| format!("{}: {error}", this.display());
        let beside = |name: String| this.with_file_name(name);
        let (source, program) = (beside(format!("{}.c", self.name)), beside(self.name.into()));
        fs::write(&source, self.source).map_err(told)?;
        // Another run may use the program meanwhile.
        let new = beside(format!("{}.{}", self.name, std::process::id()));
        let compiler = self.compiler.0;
        let mut command = Command::new(compiler);
        command.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&new).arg(&source);
        if let Some(prefix) = prefix {
            command.arg("-isystem").arg(prefix.join("include")).arg("-L").arg(prefix.join("lib"));
        }
        let libraries: &[&str] = if compiler == "cc" { &["-lfabric"] } else { &[] };
        let output = command.args(libraries).output().map_err(|error| format!("{compiler}: {error}"))?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            let first = errors.lines().find(|line| line.contains("error")).unwrap_or_default();
            return Err(format!("{compiler} cannot compile it: {first}"));
        }
        fs::rename(&new, &program).map_err(told)?;
        Ok(program)
    }
}
