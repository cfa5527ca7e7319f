//! The media exchange layer: installing its C interface and its programs.

use std::fs;
use std::path::Path;

use crate::StepResult;
use crate::capi::{built, copy, symlink};
use crate::step::{Outcome, cargo, root, run};

/// The name that programs are linked against.
const SONAME: &str = "libmxl.so.1";
/// The interface that `mxlGetVersion` answers.
const INTERFACE: &str = "1.2.0";
const TOOLS: [&str; 3] = ["mxl-info", "mxl-generate", "mxl-view"];

/// `cargo xtask install --mxl`: the library, headers of our own, a pkg-config file and the programs, under a prefix.
pub fn install(prefix: &Path) -> StepResult {
    run(&mut cargo(&["build", "--quiet", "--release", "--package", "mxl-capi", "--package", "mxl-tools"]))?;
    let prefix = std::path::absolute(prefix).map_err(|error| error.to_string())?;
    install_from(&built(true), &prefix)?;
    println!("installed into {}", prefix.display());
    Ok(Outcome::Passed)
}

/// Puts what cargo built into place, also over what is there.
fn install_from(built: &Path, prefix: &Path) -> Result<(), String> {
    let (lib, bin) = (prefix.join("lib"), prefix.join("bin"));
    let (pkgconfig, include) = (lib.join("pkgconfig"), prefix.join("include/mxl"));
    for folder in [&pkgconfig, &include, &bin] {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    copy(&built.join("libmxl_capi.so"), &lib.join(SONAME))?;
    symlink(SONAME, &lib.join("libmxl.so"))?;
    for tool in TOOLS {
        copy(&built.join(tool), &bin.join(tool))?;
    }
    let headers = root().join("crates/mxl-capi/include/mxl");
    for entry in fs::read_dir(&headers).map_err(|error| format!("{}: {error}", headers.display()))?.flatten()
    {
        copy(&entry.path(), &include.join(entry.file_name()))?;
    }
    let text = format!(
        "prefix={}\nlibdir=${{prefix}}/lib\nincludedir=${{prefix}}/include\n\nName: libmxl\n\
         Description: Media eXchange Layer, in Rust\nURL: https://github.com/ofi-rs/ofi\nVersion: {INTERFACE}\n\
         Libs: -L${{libdir}} -lmxl\nCflags: -I${{includedir}}\n",
        prefix.display()
    );
    fs::write(pkgconfig.join("libmxl.pc"), text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_installed_is_complete_and_can_be_installed_over() {
        let folder = std::env::temp_dir().join(format!("xtask-mxl-{}", std::process::id()));
        let prefix = folder.join("prefix");
        fs::create_dir_all(&folder).unwrap();
        for file in TOOLS.into_iter().chain(["libmxl_capi.so"]) {
            fs::write(folder.join(file), "a library").unwrap();
        }
        install_from(&folder, &prefix).unwrap();
        install_from(&folder, &prefix).unwrap();
        assert_eq!(fs::read_to_string(prefix.join("lib/libmxl.so")).unwrap(), "a library");
        for header in ["dataformat", "flow", "flowinfo", "mxl", "platform", "rational", "time", "version"] {
            assert!(prefix.join(format!("include/mxl/{header}.h")).exists(), "{header}");
        }
        assert!(TOOLS.iter().all(|tool| prefix.join("bin").join(tool).exists()));
        let text = fs::read_to_string(prefix.join("lib/pkgconfig/libmxl.pc")).unwrap();
        assert!(text.contains("-lmxl") && text.contains(&prefix.display().to_string()), "{text}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
