//! `libplugin_OFI.so`: our backend for NIXL. Its shim declares NIXL's interface itself, so a C++ compiler is enough.

use std::path::{Path, PathBuf};

use crate::step::{answers, command, root, run};
use crate::{capi, install};

/// The plug-in's file.
pub const NAME: &str = "libplugin_OFI.so";
/// The options that the plug-in lists.
pub const OPTIONS: [&str; 5] =
    ["rails", "shared_memory", "striping_threshold", "timeout_s", "connect_timeout_s"];
/// The requirement for building the plug-in.
pub const NO_COMPILER: &str = "no C++ compiler (apt-get install g++)";

/// Whether there is a C++ compiler.
pub fn has_compiler() -> bool {
    answers("c++", &["--version"])
}

/// Builds the plug-in. Returns its path.
///
/// # Errors
/// A step fails.
pub fn link() -> Result<PathBuf, String> {
    linked(&capi::compile(&install::packages(&install::buildable()), true)?)
}

/// The plug-in's folder, below that of cargo's output.
pub fn folder(built: &Path) -> PathBuf {
    built.join("nixl-plugin")
}

/// Links the plug-in from cargo's output. Returns its path.
///
/// # Errors
/// The compiler or the linker fails.
pub fn linked(built: &Path) -> Result<PathBuf, String> {
    let folder = folder(built);
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let (shim, plugin) = (root().join("crates/nixl-plugin/shim"), folder.join(NAME));
    let mut cxx = compiler();
    cxx.args(["-shared", "-fPIC", "-o"]).arg(&plugin);
    cxx.arg(format!("-DOFI_VERSION=\"{}\"", env!("CARGO_PKG_VERSION")));
    cxx.arg(shim.join("plugin.cpp")).arg(built.join("libnixl_plugin.a"));
    cxx.arg(format!("-Wl,--version-script={}", shim.join("plugin.map").display()));
    // NIXL's own libraries are not used, and our threads may run when NIXL closes the plug-in.
    cxx.args(["-Wl,-z,defs", "-Wl,-z,nodelete", "-Wl,-z,now", "-Wl,--gc-sections"]);
    run(cxx.args(["-lgcc_s", "-lpthread", "-ldl", "-lm"]))?;
    Ok(plugin)
}

/// The C++ compiler, with the shim's headers.
pub fn compiler() -> std::process::Command {
    let mut cxx = command("c++");
    cxx.args(["-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", "-I"]);
    cxx.arg(root().join("crates/nixl-plugin/shim/include"));
    cxx
}
