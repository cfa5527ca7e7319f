//! The media exchange layer: installs its C interface and its programs.

use std::fs;
use std::path::Path;

use crate::StepResult;
use crate::capi::{built, copy, symlink};
use crate::step::{Outcome, cargo, root, run};

/// A library: its package name, its name for programs, and its description for pkg-config.
struct Library {
    package: &'static str,
    name: &'static str,
    description: &'static str,
    requires: &'static str,
}

const LIBRARIES: [Library; 2] = [
    Library { package: "mxl-capi", name: "mxl", description: "Media eXchange Layer, in Rust", requires: "" },
    Library {
        package: "mxl-fabrics-capi",
        name: "mxl-fabrics",
        description: "Media eXchange Layer between hosts, in Rust",
        requires: "Requires: libmxl\n",
    },
];
/// The interface version that `mxlGetVersion` returns.
const INTERFACE: &str = "1.2.0";
const TOOLS: [&str; 6] =
    ["mxl-info", "mxl-generate", "mxl-view", "mxl-fabrics-info", "mxl-fabrics-demo", "mxl-bench"];

/// `cargo xtask install --mxl`: installs the libraries, headers of our own, pkg-config files and the programs under a
/// prefix.
pub fn install(prefix: &Path) -> StepResult {
    let packages = LIBRARIES.map(|library| library.package).into_iter().chain(["mxl-tools", "mxl-fabrics"]);
    let mut build = cargo(&["build", "--quiet", "--release"]);
    build.args(packages.flat_map(|package| ["--package", package]));
    run(&mut build)?;
    let prefix = std::path::absolute(prefix).map_err(|error| error.to_string())?;
    install_from(&built(true), &prefix)?;
    println!("installed into {}", prefix.display());
    Ok(Outcome::Passed)
}

/// Installs cargo's output, and replaces existing files.
fn install_from(built: &Path, prefix: &Path) -> Result<(), String> {
    let (lib, bin) = (prefix.join("lib"), prefix.join("bin"));
    let (pkgconfig, include) = (lib.join("pkgconfig"), prefix.join("include/mxl"));
    for folder in [&pkgconfig, &include, &bin] {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    for tool in TOOLS {
        copy(&built.join(tool), &bin.join(tool))?;
    }
    for Library { package, name, description, requires } in LIBRARIES {
        let soname = format!("lib{name}.so.1");
        copy(&built.join(file(package)), &lib.join(&soname))?;
        symlink(&soname, &lib.join(format!("lib{name}.so")))?;
        let headers = root().join("crates").join(package).join("include/mxl");
        let entries = fs::read_dir(&headers).map_err(|error| format!("{}: {error}", headers.display()))?;
        for entry in entries.flatten() {
            copy(&entry.path(), &include.join(entry.file_name()))?;
        }
        let text = format!(
            "prefix={}\nlibdir=${{prefix}}/lib\nincludedir=${{prefix}}/include\n\nName: lib{name}\n\
             Description: {description}\nURL: https://github.com/ofi-rs/ofi\nVersion: {INTERFACE}\n{requires}\
             Libs: -L${{libdir}} -l{name}\nCflags: -I${{includedir}}\n",
            prefix.display()
        );
        fs::write(pkgconfig.join(format!("lib{name}.pc")), text).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Cargo's file name for a package's library.
fn file(package: &str) -> String {
    format!("lib{}.so", package.replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_installed_is_complete_and_can_be_installed_over() {
        let folder = std::env::temp_dir().join(format!("xtask-mxl-{}", std::process::id()));
        let prefix = folder.join("prefix");
        fs::create_dir_all(&folder).unwrap();
        for tool in TOOLS {
            fs::write(folder.join(tool), "a program").unwrap();
        }
        for library in LIBRARIES {
            fs::write(folder.join(file(library.package)), library.name).unwrap();
        }
        install_from(&folder, &prefix).unwrap();
        install_from(&folder, &prefix).unwrap();
        for header in [
            "dataformat",
            "fabrics",
            "flow",
            "flowinfo",
            "mxl",
            "ofi_merge",
            "platform",
            "rational",
            "time",
            "version",
        ] {
            assert!(prefix.join(format!("include/mxl/{header}.h")).exists(), "{header}");
        }
        assert!(TOOLS.iter().all(|tool| prefix.join("bin").join(tool).exists()));
        for Library { name, requires, .. } in LIBRARIES {
            assert_eq!(fs::read_to_string(prefix.join(format!("lib/lib{name}.so"))).unwrap(), name);
            let text = fs::read_to_string(prefix.join(format!("lib/pkgconfig/lib{name}.pc"))).unwrap();
            assert!(text.contains(&format!("-l{name}\n")) && text.contains(requires), "{text}");
            assert!(text.contains(&prefix.display().to_string()), "{text}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
