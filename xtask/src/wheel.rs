//! `cargo xtask wheel`: the Python wheel `ofi-nixl`, which brings NIXL our backend and `libfabric.so.1`. It is built
//! and tested here, and published nowhere.

use std::fs;
use std::path::{Path, PathBuf};

use crate::capi::{NO_COMPILER, SONAME, copy, has_compiler};
use crate::install::{buildable, make, packages};
use crate::step::{Outcome, answers, command, not_run, output, root, run, target_dir};
use crate::{StepResult, capi, nixl_plugin};

/// The package.
pub const PACKAGE: &str = "ofi-nixl";
/// The backend within the package. NIXL's plug-in folders have stubs, which the loader follows to it.
const BACKEND: &str = "libofi_nixl.so";
/// The folders of stubs, and the way from there to the backend: those of NIXL's wheels 1.0 to 1.5, and one for
/// `NIXL_PLUGIN_DIR`.
const STUBS: [(&str, &str); 3] = [
    (".nixl_cu12.mesonpy.libs/plugins", "../../ofi_nixl/lib"),
    (".nixl_cu13.mesonpy.libs/plugins", "../../ofi_nixl/lib"),
    ("ofi_nixl/plugins", "../lib"),
];

/// The command: builds the wheel and prints its path.
///
/// # Errors
/// A step fails.
pub fn run_wheel() -> StepResult {
    if let Some(why) = lacking() {
        return not_run("the wheel", why);
    }
    println!("{}", build()?.display());
    Ok(Outcome::Passed)
}

/// What this host lacks to build it.
pub fn lacking() -> Option<&'static str> {
    let missing = [
        (!has_compiler(), NO_COMPILER),
        (!nixl_plugin::has_compiler(), nixl_plugin::NO_COMPILER),
        (!answers("python3", &["--version"]), "no python3 (apt-get install python3)"),
        (!answers("readelf", &["--version"]), "no readelf (apt-get install binutils)"),
    ];
    missing.into_iter().find(|(missing, _)| *missing).map(|(_, why)| why)
}

/// Builds the libraries and packs them. Returns the wheel.
///
/// # Errors
/// A step fails.
pub fn build() -> Result<PathBuf, String> {
    let built = capi::compile(&packages(&buildable()), true)?;
    capi::linked(&built)?;
    nixl_plugin::linked(&built)?;
    pack(&built)
}

/// Packs the libraries that are linked in cargo's output folder. Returns the wheel.
///
/// # Errors
/// A file cannot be copied, or a program fails.
pub fn pack(built: &Path) -> Result<PathBuf, String> {
    let (out, tree) = (target_dir("wheel"), target_dir("wheel").join("tree"));
    let _ = fs::remove_dir_all(&out);
    let (sources, package) = (root().join("crates/nixl-plugin/wheel"), tree.join("ofi_nixl"));
    let lib = package.join("lib");
    make(&lib)?;
    for name in ["__init__.py", "__main__.py"] {
        copy(&sources.join("ofi_nixl").join(name), &package.join(name))?;
    }
    for (from, name) in [
        (nixl_plugin::folder(built).join(nixl_plugin::NAME), BACKEND),
        (capi::folder(built).join(SONAME), SONAME),
    ] {
        let to = lib.join(name);
        copy(&from, &to)?;
        run(command("strip").args(["--strip-unneeded", "--remove-section=.comment"]).arg(&to))?;
    }
    for (folder, way) in STUBS {
        let folder = tree.join(folder);
        make(&folder)?;
        stub(&lib, way, &folder.join(nixl_plugin::NAME))?;
    }
    let mut pack = command("python3");
    pack.arg(sources.join("pack.py")).arg(&out).arg(env!("CARGO_PKG_VERSION")).arg(&tree);
    pack.args(["LICENSE-MIT", "LICENSE-APACHE"].map(|name| root().join(name)));
    Ok(PathBuf::from(output(&mut pack)?.trim()))
}

/// Links a library without code that needs the backend: `dlsym` finds the functions of what a library needs.
fn stub(lib: &Path, way: &str, to: &Path) -> Result<(), String> {
    let mut cc = command("cc");
    cc.args(["-shared", "-nostdlib", "-Wl,--no-as-needed", "-Wl,--enable-new-dtags", "-s", "-o"]).arg(to);
    cc.arg("-L").arg(lib).arg(format!("-l:{BACKEND}")).arg(format!("-Wl,-rpath,$ORIGIN/{way}"));
    run(&mut cc).map(drop)
}
