//! The module files to load, and their order. Each module lists its dependencies in its section `.modinfo`; the
//! kernel's package has no list.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::told;

/// The modules of one kernel, by name.
pub struct Modules {
    files: HashMap<String, PathBuf>,
}

impl Modules {
    /// The modules under a folder.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn under(folder: &Path) -> Result<Self, String> {
        let (mut files, mut folders) = (HashMap::new(), vec![folder.to_path_buf()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).map_err(|error| told(&folder, &error))?.flatten() {
                let path = entry.path();
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    folders.push(path);
                } else if let Some(name) =
                    path.file_name().and_then(|name| name.to_str()?.strip_suffix(".ko"))
                {
                    files.insert(name.replace('-', "_"), path);
                }
            }
        }
        Ok(Self { files })
    }

    /// The files to load for `wanted`, each after its dependencies. A module built into this kernel has no file.
    ///
    /// # Errors
    /// A module cannot be read.
    pub fn order(&self, wanted: &[&str]) -> Result<Vec<PathBuf>, String> {
        let (mut order, mut seen) = (Vec::new(), HashSet::new());
        for name in wanted {
            self.visit(name, &mut seen, &mut order)?;
        }
        Ok(order)
    }

    fn visit(&self, name: &str, seen: &mut HashSet<String>, order: &mut Vec<PathBuf>) -> Result<(), String> {
        let Some(path) = self.files.get(name).filter(|_| seen.insert(name.into())) else { return Ok(()) };
        let content = fs::read(path).map_err(|error| told(path, &error))?;
        for needed in needs(&content) {
            self.visit(&needed, seen, order)?;
        }
        order.push(path.clone());
        Ok(())
    }
}

/// The names in `depends=` of a module.
fn needs(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let list = module[at + KEY.len()..].split(|&byte| byte == 0).next().unwrap_or_default();
    let list = String::from_utf8_lossy(list);
    list.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_comes_behind_what_it_needs_and_once() {
        let folder = std::env::temp_dir().join(format!("ofi-modules-{}", std::process::id()));
        fs::create_dir_all(folder.join("deep")).unwrap();
        fs::write(folder.join("a.ko"), b"ELF\0license=GPL\0depends=b-b,c\0name=a\0").unwrap();
        fs::write(folder.join("deep/b-b.ko"), b"ELF\0depends=c\0").unwrap();
        fs::write(folder.join("c.ko"), b"ELF\0depends=\0").unwrap();
        let modules = Modules::under(&folder).unwrap();
        let order = modules.order(&["built_in", "c", "a"]).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let names: Vec<_> = order.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["c.ko", "b-b.ko", "a.ko"]);
    }
}
