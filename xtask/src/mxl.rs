//! The media exchange layer's C interface: installing it.

use std::fs;
use std::path::Path;

use crate::StepResult;
use crate::capi::{built, copy, symlink};
use crate::step::{Outcome, cargo, root, run};

/// The name that programs are linked against.
const SONAME: &str = "libmxl.so.1";
/// The interface that `mxlGetVersion` answers.
const INTERFACE: &str = "1.2.0";

/// `cargo xtask install --mxl`: the library, headers of our own and a pkg-config file, under a prefix.
pub fn install(prefix: &Path) -> StepResult {
    run(&mut cargo(&["build", "--quiet", "--release", "--package", "mxl-capi"]))?;
    let prefix = std::path::absolute(prefix).map_err(|error| error.to_string())?;
    install_from(&built(true), &prefix)?;
    println!("installed into {}", prefix.display());
    Ok(Outcome::Passed)
}

/// Puts what cargo built into place, also over what is there.
fn install_from(built: &Path, prefix: &Path) -> Result<(), String> {
    let lib = prefix.join("lib");
    let (pkgconfig, include) = (lib.join("pkgconfig"), prefix.join("include/mxl"));
    for folder in [&pkgconfig, &include] {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    copy(&built.join("libmxl_capi.so"), &lib.join(SONAME))?;
    symlink(SONAME, &lib.join("libmxl.so"))?;
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
        fs::write(folder.join("libmxl_capi.so"), "a library").unwrap();
        install_from(&folder, &prefix).unwrap();
        install_from(&folder, &prefix).unwrap();
        assert_eq!(fs::read_to_string(prefix.join("lib/libmxl.so")).unwrap(), "a library");
        for header in ["dataformat", "flow", "flowinfo", "mxl", "platform", "rational", "time", "version"] {
            assert!(prefix.join(format!("include/mxl/{header}.h")).exists(), "{header}");
        }
        let text = fs::read_to_string(prefix.join("lib/pkgconfig/libmxl.pc")).unwrap();
        assert!(text.contains("-lmxl") && text.contains(&prefix.display().to_string()), "{text}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
