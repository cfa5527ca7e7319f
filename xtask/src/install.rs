//! `cargo xtask install`: libfabric.so.1 and its plug-ins, the media layer, NIXL's backend and the programs, under a
//! prefix. Parts that cannot be built or written are refused before anything is built.

use std::fs;
use std::path::{Path, PathBuf};

use crate::StepResult;
use crate::capi::{self, INTERFACE, NO_COMPILER, SONAME, copy, has_compiler, symlink};
use crate::step::{Outcome, command, run};
use crate::{mxl, nixl_plugin, plugins};

/// Programs of `ofi-tools`. All installed programs are one file, `ofi-programs`, with a link for each name.
pub const TOOLS: [&str; 7] =
    ["ofi", "fi_info", "fi_pingpong", "fi_dump", "fi_write_demo", "mr-topo", "mr-bench"];
/// The folder of NIXL's backend, below that of libraries.
pub const NIXL: &str = "nixl";

/// Where to install, and what. Without a switch that names a part: everything.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Destination: libraries go to `lib`, programs to `bin`, headers to `include`, man pages to `share`.
    #[arg(long)]
    prefix: PathBuf,
    /// libfabric.so.1, its pkg-config file, and its providers as plug-ins for a stock libfabric.
    #[arg(long)]
    libfabric: bool,
    /// The programs ofi, fi_* and mr-*, with man pages and completions.
    #[arg(long)]
    programs: bool,
    /// The media layer: libmxl.so.1, libmxl-fabrics.so.1, their headers, pkg-config files and systemd units, and the
    /// programs mxl-*, with man pages and completions.
    #[arg(long)]
    mxl: bool,
    /// libplugin_OFI.so, our backend for NVIDIA's NIXL, in `lib/nixl`.
    #[arg(long)]
    nixl: bool,
}

impl Options {
    /// The parts that were asked for.
    fn parts(&self) -> Vec<Part> {
        let named = [self.libfabric, self.programs, self.mxl, self.nixl];
        let all = !named.contains(&true);
        Part::ALL.into_iter().zip(named).filter(|(_, named)| all || *named).map(|(part, _)| part).collect()
    }
}

/// A part of an installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The C library and the plug-ins.
    Libfabric,
    /// The programs of `ofi-tools`.
    Programs,
    /// The media layer's libraries and programs.
    Mxl,
    /// NIXL's backend.
    Nixl,
}

impl Part {
    /// Everything, in the order of the switches.
    pub const ALL: [Self; 4] = [Self::Libfabric, Self::Programs, Self::Mxl, Self::Nixl];

    /// The switch that selects it.
    fn switch(self) -> &'static str {
        match self {
            Self::Libfabric => "--libfabric",
            Self::Programs => "--programs",
            Self::Mxl => "--mxl",
            Self::Nixl => "--nixl",
        }
    }

    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Libfabric => SONAME,
            Self::Programs => "the programs",
            Self::Mxl => "the media layer",
            Self::Nixl => nixl_plugin::NAME,
        }
    }

    fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Libfabric => &["ofi-capi"],
            Self::Programs => &["ofi-programs"],
            Self::Mxl => &["ofi-programs", "mxl-capi", "mxl-fabrics-capi"],
            Self::Nixl => &["nixl-plugin"],
        }
    }

    /// The missing requirements of this host for building it.
    pub fn lacks(self) -> Option<String> {
        match self {
            Self::Libfabric => (!has_compiler()).then(|| NO_COMPILER.into()),
            Self::Programs | Self::Mxl => None,
            Self::Nixl => (!nixl_plugin::has_compiler()).then(|| nixl_plugin::NO_COMPILER.into()),
        }
    }
}

/// The build.
#[derive(Debug)]
pub struct Built {
    /// The folder of cargo's output.
    folder: PathBuf,
    parts: Vec<Part>,
}

impl Built {
    /// The folder of cargo's output, with the linked libraries.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// The destination folders.
pub struct Places {
    /// Programs.
    pub bin: PathBuf,
    /// Libraries, `pkgconfig`, the plug-ins, and NIXL's backend.
    pub lib: PathBuf,
    /// The folder of `mxl`, which has the headers.
    pub include: PathBuf,
    /// `man` and the shells' completions.
    pub share: PathBuf,
    /// Units of systemd.
    pub units: PathBuf,
    /// The prefix of these paths before those in pkg-config files: the folder where a package is assembled.
    pub root: PathBuf,
}

impl Places {
    /// The folders below a prefix.
    pub fn below(prefix: &Path) -> Self {
        let [bin, lib, include, share] = ["bin", "lib", "include", "share"].map(|name| prefix.join(name));
        let units = lib.join("systemd/system");
        Self { bin, lib, include, share, units, root: PathBuf::from("/") }
    }

    /// A path as a pkg-config file states it.
    pub fn told(&self, path: &Path) -> String {
        let path = path.strip_prefix(&self.root).unwrap_or(path);
        Path::new("/").join(path).display().to_string()
    }
}

/// The command.
///
/// # Errors
/// A part cannot be built or written.
pub fn run_install(options: &Options) -> StepResult {
    let parts = options.parts();
    possible(&parts, Part::lacks)?;
    let prefix = writable(&options.prefix)?;
    let built = build(&parts, true)?;
    into(&built, &Places::below(&prefix))?;
    let names: Vec<_> = parts.iter().map(|part| part.name()).collect();
    println!("installed into {}: {}", prefix.display(), names.join(", "));
    if parts.contains(&Part::Libfabric) {
        println!("C programs use it with LD_LIBRARY_PATH={}", prefix.join("lib").display());
    }
    if parts.contains(&Part::Nixl) {
        println!("NIXL finds its backend with NIXL_PLUGIN_DIR={}", prefix.join("lib").join(NIXL).display());
    }
    Ok(Outcome::Passed)
}

/// Refuses parts that this host cannot build, and names the switches that omit them.
fn possible(parts: &[Part], lacks: impl Fn(Part) -> Option<String>) -> Result<(), String> {
    let lacking: Vec<(Part, String)> = parts.iter().filter_map(|&part| Some((part, lacks(part)?))).collect();
    if lacking.is_empty() {
        return Ok(());
    }
    let why: Vec<String> =
        lacking.iter().map(|(part, why)| format!("{} cannot be built: {why}", part.name())).collect();
    let others = parts.iter().filter(|&part| lacking.iter().all(|(lacking, _)| lacking != part));
    let others: Vec<&str> = others.map(|part| part.switch()).collect();
    let advice = match &others[..] {
        [] => String::new(),
        others => format!("; for the rest alone: {}", others.join(" ")),
    };
    Err(format!("nothing was installed: {}{advice}", why.join("; ")))
}

/// The prefix as an absolute path, once it is known that files can be written there.
fn writable(prefix: &Path) -> Result<PathBuf, String> {
    let refused = |path: &Path, error: &dyn std::fmt::Display| {
        format!(
            "nothing was installed: --prefix wants a folder that may be written: {}: {error}",
            path.display()
        )
    };
    let prefix = std::path::absolute(prefix).map_err(|error| refused(prefix, &error))?;
    for folder in [prefix.join("bin"), prefix.join("lib")] {
        fs::create_dir_all(&folder).map_err(|error| refused(&folder, &error))?;
        let probe = folder.join(format!(".ofi-{}", std::process::id()));
        fs::write(&probe, "")
            .and_then(|()| fs::remove_file(&probe))
            .map_err(|error| refused(&folder, &error))?;
    }
    Ok(prefix)
}

/// The parts that this host can build.
pub fn buildable() -> Vec<Part> {
    Part::ALL.into_iter().filter(|part| part.lacks().is_none()).collect()
}

/// The packages of parts.
pub fn packages(parts: &[Part]) -> Vec<&'static str> {
    let mut packages: Vec<&str> = parts.iter().flat_map(|part| part.packages()).copied().collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

/// Builds the parts, every crate once.
///
/// # Errors
/// The error of a compiler.
pub fn build(parts: &[Part], release: bool) -> Result<Built, String> {
    let folder = capi::compile(&packages(parts), release)?;
    if parts.contains(&Part::Libfabric) {
        plugins::link(&capi::linked(&folder)?)?;
    }
    if parts.contains(&Part::Nixl) {
        nixl_plugin::linked(&folder)?;
    }
    Ok(Built { folder, parts: parts.to_vec() })
}

/// Installs the build, and replaces existing files.
///
/// # Errors
/// A file cannot be written.
pub fn into(built: &Built, to: &Places) -> Result<(), String> {
    let pkgconfig = to.lib.join("pkgconfig");
    for folder in [&pkgconfig, &to.bin] {
        make(folder)?;
    }
    let has = |part| built.parts.contains(&part);
    let mut programs = Vec::new();
    if has(Part::Libfabric) {
        let (from, plugins) = (capi::folder(&built.folder), to.lib.join("ofi-plugins"));
        make(&plugins)?;
        copy(&from.join(SONAME), &to.lib.join(SONAME))?;
        symlink(SONAME, &to.lib.join("libfabric.so"))?;
        for (_, name) in plugins::OURS {
            let file = format!("lib{name}-fi.so");
            copy(&plugins::linked(&from).join(&file), &plugins.join(&file))?;
        }
        let text = format!(
            "libdir={}\n\nName: libfabric\nDescription: libfabric's C interface, in Rust\n\
             URL: https://github.com/ofi-rs/ofi\nVersion: {INTERFACE}\nLibs: -L${{libdir}} -lfabric\nCflags:\n",
            to.told(&to.lib)
        );
        fs::write(pkgconfig.join("libfabric.pc"), text).map_err(|error| error.to_string())?;
    }
    if has(Part::Programs) {
        programs.extend(TOOLS);
    }
    if has(Part::Mxl) {
        mxl::libraries(&built.folder, to)?;
        mxl::units(to)?;
        programs.extend(mxl::TOOLS);
    }
    links(&built.folder.join("ofi-programs"), &to.bin, &programs)?;
    if !programs.is_empty() {
        pages(&built.folder, &to.share, &programs)?;
    }
    if has(Part::Nixl) {
        let folder = to.lib.join(NIXL);
        make(&folder)?;
        copy(&nixl_plugin::folder(&built.folder).join(nixl_plugin::NAME), &folder.join(nixl_plugin::NAME))?;
    }
    Ok(())
}

/// Copies the programs' file once, and links it to their names.
fn links(file: &Path, bin: &Path, names: &[&str]) -> Result<(), String> {
    let Some((first, others)) = names.split_first() else { return Ok(()) };
    let first = bin.join(first);
    copy(file, &first)?;
    for name in others {
        let (name, beside) = (bin.join(name), bin.join(format!("{name}.new")));
        let _ = fs::remove_file(&beside);
        // Not every file system has hard links.
        if fs::hard_link(&first, &beside).is_err() {
            copy(file, &name)?;
            continue;
        }
        fs::rename(&beside, &name).map_err(|error| format!("{}: {error}", name.display()))?;
    }
    Ok(())
}

/// Installs man pages and completions of programs where each shell looks for them.
fn pages(built: &Path, share: &Path, programs: &[&str]) -> Result<(), String> {
    let work = built.join("pages");
    let _ = fs::remove_dir_all(&work);
    run(command(built.join("ofi-programs")).arg("pages").arg(&work))?;
    let places = [
        ("man/man1", "man/man1"),
        ("bash", "bash-completion/completions"),
        ("zsh", "zsh/vendor-completions"),
        ("fish", "fish/vendor_completions.d"),
    ];
    for (from, to) in places {
        let to = share.join(to);
        make(&to)?;
        let entries = fs::read_dir(work.join(from)).map_err(|error| format!("{from}: {error}"))?;
        for entry in entries.flatten() {
            // bash looks for a file with the program's name.
            let name = entry.file_name().to_string_lossy().trim_end_matches(".bash").to_string();
            if programs.iter().any(|program| is_of(&name, program)) {
                copy(&entry.path(), &to.join(name))?;
            }
        }
    }
    Ok(())
}

/// Whether a man page or a completion belongs to a program: `ofi.1`, `ofi-cp-get.1`, `_ofi` and `ofi.fish` to `ofi`.
fn is_of(name: &str, program: &str) -> bool {
    let rest = name.trim_start_matches('_').strip_prefix(program);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-']))
}

/// Creates a folder of an installation.
///
/// # Errors
/// It cannot be created.
pub fn make(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn parts(switches: &[&str]) -> Vec<Part> {
        let words = ["install", "--prefix", "/p"].iter().chain(switches);
        Line::try_parse_from(words).unwrap().options.parts()
    }

    #[test]
    fn switches_combine_and_none_is_everything() {
        assert_eq!(parts(&[]), Part::ALL);
        assert_eq!(parts(&["--nixl"]), [Part::Nixl]);
        assert_eq!(parts(&["--nixl", "--mxl"]), [Part::Mxl, Part::Nixl]);
        assert_eq!(parts(&["--libfabric", "--programs", "--mxl", "--nixl"]), Part::ALL);
        let error = Line::try_parse_from(["install", "--prefix", "/p", "--efa"]).unwrap_err();
        assert!(error.to_string().contains("unexpected argument '--efa'"), "{error}");
    }

    #[test]
    fn what_cannot_be_built_is_refused_with_what_can() {
        let without_cc = |part| (part == Part::Libfabric).then(|| "no C compiler".to_string());
        assert_eq!(possible(&[Part::Programs, Part::Mxl], without_cc), Ok(()));
        let error = possible(&Part::ALL, without_cc).unwrap_err();
        assert_eq!(
            error,
            "nothing was installed: libfabric.so.1 cannot be built: no C compiler; for the rest alone: \
             --programs --mxl --nixl"
        );
        let error = possible(&[Part::Libfabric], without_cc).unwrap_err();
        assert_eq!(error, "nothing was installed: libfabric.so.1 cannot be built: no C compiler");
    }

    #[test]
    fn a_prefix_that_cannot_be_written_is_refused() {
        let folder = std::env::temp_dir().join(format!("xtask-prefix-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("file"), "").unwrap();
        for prefix in [folder.join("file"), PathBuf::new(), PathBuf::from("/proc/nothing")] {
            let error = writable(&prefix).unwrap_err();
            assert!(error.contains("--prefix wants a folder that may be written"), "{error}");
        }
        assert_eq!(writable(&folder.join("new/prefix")).unwrap(), folder.join("new/prefix"));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn every_part_is_installed_whole_and_over_an_older_one() {
        let work = std::env::temp_dir().join(format!("xtask-install-{}", std::process::id()));
        let (folder, prefix) = (work.join("built"), work.join("prefix"));
        let (capi, nixl) = (capi::folder(&folder), nixl_plugin::folder(&folder));
        for folder in [&plugins::linked(&capi), &nixl] {
            make(folder).unwrap();
        }
        let files = [SONAME].iter().map(|name| capi.join(name));
        let files = files
            .chain(plugins::OURS.map(|(_, name)| plugins::linked(&capi).join(format!("lib{name}-fi.so"))));
        for file in files.chain([nixl.join(nixl_plugin::NAME), folder.join("ofi-programs")]) {
            fs::write(file, "built").unwrap();
        }
        let parts = vec![Part::Libfabric, Part::Nixl];
        for _ in 0..2 {
            into(&Built { folder: folder.clone(), parts: parts.clone() }, &Places::below(&prefix)).unwrap();
            links(&folder.join("ofi-programs"), &prefix.join("bin"), &TOOLS).unwrap();
        }
        for file in ["libfabric.so", "libfabric.so.1", "nixl/libplugin_OFI.so", "ofi-plugins/librefa-fi.so"] {
            assert_eq!(fs::read_to_string(prefix.join("lib").join(file)).unwrap(), "built", "{file}");
        }
        let text = fs::read_to_string(prefix.join("lib/pkgconfig/libfabric.pc")).unwrap();
        assert!(text.starts_with(&format!("libdir={}/lib\n", prefix.display())), "{text}");
        let entries = fs::read_dir(prefix.join("bin")).unwrap();
        assert_eq!(entries.count(), TOOLS.len(), "nothing is left over");
        fs::remove_dir_all(&work).unwrap();
    }
}
