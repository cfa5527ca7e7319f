//! The media exchange layer's part of an installation: its C interface.

use std::fs;
use std::path::Path;

use crate::capi::{copy, symlink};
use crate::install::{Places, make};
use crate::step::root;

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
/// The programs.
pub const TOOLS: [&str; 7] = [
    "mxl-info",
    "mxl-generate",
    "mxl-view",
    "mxl-fabrics-info",
    "mxl-fabrics-demo",
    "mxl-gateway",
    "mxl-bench",
];
/// The units of systemd, for a gateway that serves a domain's flows, and one that mirrors those of other hosts.
pub const UNITS: [&str; 2] = ["mxl-gateway-serve@.service", "mxl-gateway-mirror@.service"];

/// Installs the libraries from cargo's output, headers of our own and pkg-config files, and replaces existing files.
///
/// # Errors
/// A file cannot be written.
pub fn libraries(built: &Path, to: &Places) -> Result<(), String> {
    let (lib, pkgconfig, include) = (&to.lib, to.lib.join("pkgconfig"), to.include.join("mxl"));
    for folder in [&pkgconfig, &include] {
        make(folder)?;
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
            "libdir={}\nincludedir={}\n\nName: lib{name}\n\
             Description: {description}\nURL: https://github.com/ofi-rs/ofi\nVersion: {INTERFACE}\n{requires}\
             Libs: -L${{libdir}} -l{name}\nCflags: -I${{includedir}}\n",
            to.told(lib),
            to.told(&to.include)
        );
        fs::write(pkgconfig.join(format!("lib{name}.pc")), text).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Installs the units of systemd, which start the programs where they are installed.
///
/// # Errors
/// A file cannot be written.
pub fn units(to: &Places) -> Result<(), String> {
    make(&to.units)?;
    for name in UNITS {
        let from = root().join("crates/mxl-fabrics/systemd").join(name);
        let text = fs::read_to_string(&from).map_err(|error| format!("{}: {error}", from.display()))?;
        let text = text.replace("/usr/bin/mxl-gateway", &to.told(&to.bin.join("mxl-gateway")));
        let unit = to.units.join(name);
        fs::write(&unit, text).map_err(|error| format!("{}: {error}", unit.display()))?;
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
    use crate::step::{answers, command};

    #[test]
    fn units_start_the_installed_program_and_are_sound() {
        let folder = std::env::temp_dir().join(format!("xtask-units-{}", std::process::id()));
        let places = Places::below(&folder);
        units(&places).unwrap();
        // systemd-analyze looks for what a unit starts.
        make(&places.bin).unwrap();
        symlink("/bin/true", &places.bin.join("mxl-gateway")).unwrap();
        let started = format!("ExecStart={}/bin/mxl-gateway ", folder.display());
        for name in UNITS {
            let unit = folder.join("lib/systemd/system").join(name);
            assert!(fs::read_to_string(&unit).unwrap().contains(&started), "{name}");
            if !answers("systemd-analyze", &["--version"]) {
                println!("NOT RUN: systemd-analyze verify {name}: no systemd-analyze");
                continue;
            }
            let instance = folder.join("lib/systemd/system").join(name.replace('@', "@studio"));
            fs::rename(&unit, &instance).unwrap();
            let checked = command("systemd-analyze").arg("verify").arg(&instance).output().unwrap();
            let said = String::from_utf8_lossy(&checked.stderr).into_owned();
            let ours: Vec<&str> = said.lines().filter(|line| line.contains("mxl-gateway")).collect();
            assert!(checked.status.success() && ours.is_empty(), "{said}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn libraries_are_installed_whole_and_over_older_ones() {
        let folder = std::env::temp_dir().join(format!("xtask-mxl-{}", std::process::id()));
        let prefix = folder.join("prefix");
        fs::create_dir_all(&folder).unwrap();
        for library in LIBRARIES {
            fs::write(folder.join(file(library.package)), library.name).unwrap();
        }
        for _ in 0..2 {
            libraries(&folder, &Places::below(&prefix)).unwrap();
        }
        for header in [
            "dataformat",
            "fabrics",
            "flow",
            "flowinfo",
            "mxl",
            "ofi_merge",
            "ofi_protocol",
            "platform",
            "rational",
            "time",
            "version",
        ] {
            assert!(prefix.join(format!("include/mxl/{header}.h")).exists(), "{header}");
        }
        for Library { name, requires, .. } in LIBRARIES {
            assert_eq!(fs::read_to_string(prefix.join(format!("lib/lib{name}.so"))).unwrap(), name);
            let text = fs::read_to_string(prefix.join(format!("lib/pkgconfig/lib{name}.pc"))).unwrap();
            assert!(text.contains(&format!("-l{name}\n")) && text.contains(requires), "{text}");
            assert!(text.contains(&prefix.display().to_string()), "{text}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
