//! `libplugin_OFI.so`: our backend for NIXL. Its shim needs NIXL's headers, which come from a checkout or an
//! installation named by `NIXL_INCLUDE`; NIXL's wheel has none.

use std::path::{Path, PathBuf};

use crate::StepResult;
use crate::step::{Outcome, answers, cargo, command, not_run, root, run};

const NAME: &str = "libplugin_OFI.so";
/// The options that the plug-in lists.
pub const OPTIONS: [&str; 5] =
    ["rails", "shared_memory", "striping_threshold", "timeout_s", "connect_timeout_s"];
/// The header folders of a checkout.
const CHECKOUT: [&str; 5] =
    ["src/api/cpp", "src/api/cpp/telemetry", "src/core/telemetry", "src/utils", "src"];
/// The header folders of an installation.
const INSTALLED: [&str; 5] = ["", "backend", "telemetry", "utils", "utils/common"];

/// The folders of NIXL's headers.
///
/// # Errors
/// The reason why they are not available.
pub fn headers() -> Result<Vec<PathBuf>, String> {
    if !answers("c++", &["--version"]) {
        return Err("no C++ compiler (apt-get install g++)".into());
    }
    let Some(at) = std::env::var_os("NIXL_INCLUDE").map(PathBuf::from) else {
        let why = "NIXL's headers are needed, and its wheel has none: set NIXL_INCLUDE to a checkout of ai-dynamo/nixl";
        return Err(why.into());
    };
    let folders = |names: [&str; 5]| names.map(|name| at.join(name)).to_vec();
    [folders(CHECKOUT), folders(INSTALLED)]
        .into_iter()
        .find(|folders| folders.iter().any(|folder| folder.join("backend/backend_plugin.h").is_file()))
        .ok_or_else(|| format!("NIXL_INCLUDE={} has no backend/backend_plugin.h", at.display()))
}

/// Builds the plug-in. Returns its path.
///
/// # Errors
/// A step fails.
pub fn link(headers: &[PathBuf]) -> Result<PathBuf, String> {
    run(&mut cargo(&["build", "--quiet", "--release", "--package", "nixl-plugin"]))?;
    let base = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let built = base.join("release");
    let folder = built.join("nixl-plugin");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let (shim, plugin) = (root().join("crates/nixl-plugin/shim"), folder.join(NAME));
    let mut cxx = command("c++");
    cxx.args(["-std=c++20", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&plugin);
    cxx.arg(format!("-DOFI_VERSION=\"{}\"", env!("CARGO_PKG_VERSION")));
    // Our headers come first: they replace one of NIXL's.
    cxx.arg("-I").arg(shim.join("include"));
    for folder in headers {
        cxx.arg("-isystem").arg(folder);
    }
    cxx.arg(shim.join("plugin.cpp")).arg(built.join("libnixl_plugin.a"));
    cxx.arg(format!("-Wl,--version-script={}", shim.join("plugin.map").display()));
    // NIXL's own libraries are not used, and our threads may run when NIXL closes the plug-in.
    cxx.args(["-Wl,-z,defs", "-Wl,-z,nodelete", "-Wl,-z,now", "-Wl,--gc-sections"]);
    run(cxx.args(["-lgcc_s", "-lpthread", "-ldl", "-lm"]))?;
    Ok(plugin)
}

/// Installs the plug-in under a prefix: NIXL finds it by `NIXL_PLUGIN_DIR`.
pub fn install(prefix: &Path) -> StepResult {
    let headers = match headers() {
        Ok(headers) => headers,
        Err(why) => return not_run(NAME, &why),
    };
    let plugin = link(&headers)?;
    let folder = prefix.join("lib/nixl");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    crate::capi::copy(&plugin, &folder.join(NAME))?;
    println!("{NAME} installed: export NIXL_PLUGIN_DIR={}", folder.display());
    Ok(Outcome::Passed)
}
