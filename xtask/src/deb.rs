//! `cargo xtask deb`: a Debian package of the C library and the tools.
//!
//! The library lies in a folder of its own, so that the package can coexist with Debian's libfabric1: a program uses it
//! by `LD_LIBRARY_PATH`. The tools replace those of libfabric-bin, two of which have the same names.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::capi::{NO_COMPILER, has_compiler};
use crate::install::{Built, Part, Places, TOOLS, build, buildable, into};
use crate::step::{answers, command, not_run, output, root, run, target_dir};
use crate::{StepResult, mxl};

const PACKAGE: &str = "ofi-rs";
/// The crates' version, and the package revision.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-1");
const MAINTAINER: &str = "ofi-rs <ofi-rs@users.noreply.github.com>";

/// The command: builds the package and prints its path.
///
/// # Errors
/// A part cannot be built.
pub fn run_deb(release: bool) -> StepResult {
    if let Some(why) = lacking() {
        return not_run("the Debian package", why);
    }
    let made = make(&build(&buildable(), release)?, &target_dir("deb"), release)?;
    check(&made)?;
    println!("{}", made.display());
    let mut outcome = lintian(&made)?;
    for (part, why) in Part::ALL.into_iter().filter_map(|part| Some((part, part.lacks()?))) {
        outcome = outcome.and_not_run(format!("{} in the Debian package: {why}", part.name()));
    }
    Ok(outcome)
}

/// Packs the build, checks the package's content and runs its programs.
///
/// # Errors
/// A problem of the package.
pub fn test(built: &Built) -> StepResult {
    if let Some(why) = lacking() {
        return not_run("the Debian package", why);
    }
    let made = make(built, &target_dir("deb"), false)?;
    check(&made)?;
    lintian(&made)
}

fn lacking() -> Option<&'static str> {
    if !has_compiler() {
        return Some(NO_COMPILER);
    }
    if !answers("dpkg-deb", &["--version"]) {
        return Some("no dpkg-deb (apt-get install dpkg)");
    }
    (!answers("strip", &["--version"])).then_some("no strip (apt-get install binutils)")
}

fn told(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// Builds the package in `work`. `small`: spends time on good compression.
fn make(built: &Built, work: &Path, small: bool) -> Result<PathBuf, String> {
    let tree = work.join("tree");
    let _ = fs::remove_dir_all(&tree);
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    let lib = PathBuf::from(format!("usr/lib/{triplet}/ofi"));
    let places = Places {
        bin: tree.join("usr/bin"),
        lib: tree.join(&lib),
        include: tree.join("usr/include"),
        share: tree.join("usr/share"),
        units: tree.join("usr/lib/systemd/system"),
        root: tree.clone(),
    };
    into(built, &places)?;
    for file in files(&tree)? {
        // The linker's output is stripped; links point to it.
        let bytes = fs::read(&file).map_err(|error| told(&file, &error))?;
        if bytes.starts_with(b"\x7fELF") && !file.is_symlink() {
            let mut strip = command("strip");
            strip.args(["--strip-unneeded", "--remove-section=.comment", "--remove-section=.note"]);
            run(strip.arg(&file))?;
        }
    }
    let doc = tree.join("usr/share/doc").join(PACKAGE);
    write(&doc.join("copyright"), &copyright()?)?;
    write(&doc.join("changelog"), &fs::read_to_string(root().join("CHANGELOG.md")).unwrap_or_default())?;
    let date = output(command("date").args(["-R", "-u", "-r", "CHANGELOG.md"]))?;
    let entry = format!(
        "{PACKAGE} ({VERSION}) unstable; urgency=low\n\n  * See changelog.gz.\n\n -- {MAINTAINER}  {date}"
    );
    write(&doc.join("changelog.Debian"), &entry)?;
    let changes = [doc.join("changelog"), doc.join("changelog.Debian")];
    for file in files(&tree.join("usr/share/man"))?.iter().chain(&changes) {
        run(command("gzip").args(["-9nf"]).arg(file))?;
    }
    // The programs are links to one file.
    let sizes: BTreeMap<u64, u64> = files(&tree)?
        .iter()
        .filter_map(|file| file.symlink_metadata().ok())
        .map(|found| (found.ino(), found.len()))
        .collect();
    let installed: u64 = sizes.values().sum();
    write(&tree.join("DEBIAN/control"), &control(installed)?)?;
    write(&tree.join("DEBIAN/md5sums"), &sums(&tree)?)?;
    modes(&tree)?;
    let package = work.join(format!("{PACKAGE}_{VERSION}_{}.deb", architecture()?));
    let mut deb = command("dpkg-deb");
    deb.arg("--root-owner-group").args(if small { &["-Zxz"][..] } else { &["-Zgzip", "-z1"] });
    deb.arg("--build").arg(&tree).arg(&package);
    output(&mut deb)?;
    Ok(package)
}

/// All files below `folder`, links included, sorted.
fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(|error| told(&folder, &error))?.flatten() {
            let path = entry.path();
            if path.is_dir() && !path.is_symlink() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    Ok(found)
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(|error| told(folder, &error))?;
    fs::write(path, text).map_err(|error| told(path, &error))
}

/// Sets modes independent of the builder's umask: programs are executable, everything is readable.
fn modes(tree: &Path) -> Result<(), String> {
    let mut folders = vec![tree.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let set = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(|error| told(path, &error))
        };
        set(&folder, 0o755)?;
        for entry in fs::read_dir(&folder).map_err(|error| told(&folder, &error))?.flatten() {
            let path = entry.path();
            match path.symlink_metadata() {
                Ok(found) if found.is_dir() => folders.push(path),
                Ok(found) if found.is_file() => {
                    set(&path, if folder.ends_with("usr/bin") { 0o755 } else { 0o644 })?
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn sums(tree: &Path) -> Result<String, String> {
    let mut text = String::new();
    for file in files(&tree.join("usr"))?.iter().filter(|file| !file.is_symlink()) {
        let relative = file.strip_prefix(tree).unwrap_or(file);
        text.push_str(&output(command("md5sum").arg(relative).current_dir(tree))?);
    }
    Ok(text)
}

fn architecture() -> Result<String, String> {
    Ok(output(command("dpkg").arg("--print-architecture"))?.trim().to_string())
}

fn control(installed: u64) -> Result<String, String> {
    // The version of the C library at build time; an older one may lack a function.
    let libc = output(command("dpkg-query").args(["-W", "-f", "${Version}", "libc6"]))?;
    let libc = libc.split(['-', '+']).next().unwrap_or_default();
    let size = installed.div_ceil(1024);
    Ok(format!(
        "Package: {PACKAGE}\nVersion: {VERSION}\nArchitecture: {}\nMaintainer: {MAINTAINER}\n\
         Installed-Size: {size}\nDepends: libc6 (>= {libc}), libgcc-s1\n\
         Recommends: ibverbs-providers, librdmacm1\nConflicts: libfabric-bin\nReplaces: libfabric-bin\n\
         Section: net\nPriority: optional\nHomepage: https://github.com/ofi-rs/ofi\n\
         Description: libfabric's C interface and its tools, in Rust\n \
         Messages, tagged messages, remote memory access, atomic operations and\n \
         collectives between processes and hosts, over shared memory, UDP, RDMA\n \
         devices and AWS EFA; media flows in the files of the EBU's MXL.\n .\n \
         The libraries are in /usr/lib/{}-linux-gnu/ofi, beside libfabric1: programs\n \
         that are linked against libfabric or libmxl use them with LD_LIBRARY_PATH.\n",
        architecture()?,
        std::env::consts::ARCH
    ))
}

fn copyright() -> Result<String, String> {
    let mit =
        fs::read_to_string(root().join("LICENSE-MIT")).map_err(|error| format!("LICENSE-MIT: {error}"))?;
    let mit: String = mit.lines().skip(1).skip_while(|line| line.is_empty()).map(paragraph).collect();
    Ok(format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: ofi\n\
         Source: https://github.com/ofi-rs/ofi\n\nFiles: *\nCopyright: the contributors of ofi\nLicense: Expat or Apache-2.0\n\n\
         License: Expat\n{mit}\nLicense: Apache-2.0\n On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.\n"
    ))
}

/// A line of a licence in that format.
fn paragraph(line: &str) -> String {
    if line.is_empty() { " .\n".into() } else { format!(" {line}\n") }
}

/// Checks the required contents, and runs the programs from the unpacked package.
fn check(package: &Path) -> Result<(), String> {
    let listed = output(command("dpkg-deb").arg("--contents").arg(package))?;
    let programs = TOOLS.iter().chain(&mxl::TOOLS);
    let mut wanted: Vec<String> = programs.map(|tool| format!("./usr/bin/{tool}")).collect();
    wanted.extend(TOOLS.iter().map(|tool| format!("./usr/share/man/man1/{tool}.1.gz")));
    let lib = format!("./usr/lib/{}-linux-gnu/ofi", std::env::consts::ARCH);
    wanted.extend(
        [
            "libfabric.so.1",
            "libmxl.so.1",
            "libmxl-fabrics.so.1",
            "ofi-plugins/librshm-fi.so",
            "ofi-plugins/librefa-fi.so",
            "pkgconfig/libfabric.pc",
            "pkgconfig/libmxl-fabrics.pc",
        ]
        .map(|file| format!("{lib}/{file}")),
    );
    wanted.push("./usr/include/mxl/mxl.h".into());
    wanted.extend(mxl::UNITS.map(|unit| format!("./usr/lib/systemd/system/{unit}")));
    wanted.extend(
        ["bash-completion/completions/ofi", "doc/ofi-rs/copyright"].map(|file| format!("./usr/share/{file}")),
    );
    for file in wanted {
        // Behind a path, links name what they link to.
        let line = listed.lines().find(|line| line.split_whitespace().nth(5) == Some(&*file));
        let line = line.ok_or_else(|| format!("{} has no {file}:\n{listed}", package.display()))?;
        if !line.contains(" root/root ") || (file.contains("/bin/") && !line[1..].starts_with("rwxr-xr-x")) {
            return Err(format!("owner or mode: {line}"));
        }
    }
    let unpacked = package.with_extension("unpacked");
    let _ = fs::remove_dir_all(&unpacked);
    run(command("dpkg-deb").arg("-x").arg(package).arg(&unpacked))?;
    for tool in ["ofi", "fi_info", "mr-topo", "mxl-info"] {
        output(command(unpacked.join("usr/bin").join(tool)).arg("--version"))?;
    }
    run(command("md5sum")
        .args(["--check", "--quiet"])
        .arg(package.with_file_name("tree/DEBIAN/md5sums"))
        .current_dir(&unpacked))?;
    fs::remove_dir_all(&unpacked).map_err(|error| told(&unpacked, &error))
}

/// Runs Debian's own checker.
fn lintian(package: &Path) -> StepResult {
    if !answers("lintian", &["--version"]) {
        return not_run("the Debian package by lintian", "no lintian (apt-get install lintian)");
    }
    // Not for a package outside of Debian, which has no bug number.
    let tags = "initial-upload-closes-no-bugs";
    run(command("lintian").args(["--fail-on", "error", "--suppress-tags", tags]).arg(package))
}
