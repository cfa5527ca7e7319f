//! The imports between a crate's top-level modules have no cycles, in the crates listed here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, File, ItemMod, ItemUse, UseTree};

/// The top-level modules that each top-level module imports.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// Walks a crate's modules from its root, except tests, and records paths that start with `crate::`, or with `super::`
/// where that is the root.
struct Reader {
    imports: Imports,
    /// The module of each name that the root re-exports. Importing the name from the root counts as importing the
    /// module.
    exported: BTreeMap<String, String>,
    /// The current top-level module; empty in the root.
    module: String,
    /// The depth of the current module below the root.
    depth: usize,
    /// The folder of the current module's submodules.
    folder: PathBuf,
}

impl Reader {
    /// Reads a crate whose sources are in `source`.
    fn new(source: &Path) -> Self {
        let (imports, exported) = (Imports::new(), BTreeMap::new());
        Self { imports, exported, module: String::new(), depth: 0, folder: source.to_path_buf() }
    }

    /// Reads the imports of the crate in `source`.
    fn of(source: &Path) -> Imports {
        Self::new(source).imports(&parsed(&source.join("lib.rs")))
    }

    /// Reads the imports of the crate with this root.
    fn imports(mut self, root: &File) -> Imports {
        self.visit_file(root);
        let Self { mut imports, exported, .. } = self;
        let modules: BTreeSet<String> = imports.keys().cloned().collect();
        let exported = |name: &String| exported.get(name).filter(|_| !modules.contains(name));
        for (module, imported) in &mut imports {
            let origin = |name: &String| exported(name).unwrap_or(name).clone();
            *imported = imported.iter().map(origin).filter(|origin| origin != module).collect();
        }
        imports
    }

    fn note(&mut self, imported: &str) {
        if !self.module.is_empty() && self.module != imported {
            self.imports.entry(self.module.clone()).or_default().insert(imported.to_string());
        }
    }

    /// Whether a path that begins with `first`, or with `supers` times `super`, starts at the root.
    fn is_root(&self, first: &str, supers: usize) -> bool {
        first == "crate" || (supers > 0 && supers == self.depth)
    }

    /// Records a tree's imports from the root.
    fn imported(&mut self, tree: &UseTree, supers: usize) {
        match tree {
            UseTree::Path(path) if path.ident == "super" => {
                if self.is_root("super", supers + 1) {
                    self.roots(&path.tree);
                } else {
                    self.imported(&path.tree, supers + 1);
                }
            }
            UseTree::Path(path) if supers == 0 && path.ident == "crate" => self.roots(&path.tree),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.imported(tree, supers)),
            _ => {}
        }
    }

    /// Records the names that the root re-exports from `module`.
    fn exports(&mut self, tree: &UseTree, module: &str) {
        let name = match tree {
            UseTree::Path(path) => return self.exports(&path.tree, module),
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.exports(tree, module));
            }
            UseTree::Name(name) => &name.ident,
            UseTree::Rename(rename) => &rename.rename,
            UseTree::Glob(_) => return,
        };
        self.exported.insert(name.to_string(), module.to_string());
    }

    /// Records the names directly below the root in a tree.
    fn roots(&mut self, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => self.note(&path.ident.to_string()),
            UseTree::Name(name) => self.note(&name.ident.to_string()),
            UseTree::Rename(rename) => self.note(&rename.ident.to_string()),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.roots(tree)),
            UseTree::Glob(_) => {}
        }
    }
}

fn parsed(file: &Path) -> File {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Whether an item is compiled only for tests or documentation.
fn is_apart(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let of = |list: &syn::MetaList| list.path.is_ident("cfg").then(|| list.tokens.to_string());
        let condition = attribute.meta.require_list().ok().and_then(of);
        condition.is_some_and(|condition| condition.contains("test") || condition == "doc")
    })
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if is_apart(&module.attrs) {
            return;
        }
        let name = module.ident.to_string();
        let (outer, folder) = (self.module.clone(), self.folder.clone());
        if outer.is_empty() {
            self.module.clone_from(&name);
            self.imports.entry(name.clone()).or_default();
        }
        self.folder = folder.join(&name);
        self.depth += 1;
        if module.content.is_some() {
            visit::visit_item_mod(self, module);
        } else {
            let beside = folder.join(format!("{name}.rs"));
            let file = if beside.exists() { beside } else { folder.join(&name).join("mod.rs") };
            self.visit_file(&parsed(&file));
        }
        self.depth -= 1;
        (self.module, self.folder) = (outer, folder);
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if is_apart(&item.attrs) {
            return;
        }
        match &item.tree {
            UseTree::Path(path) if self.depth == 0 => match &*path.tree {
                UseTree::Path(below) if path.ident == "self" || path.ident == "crate" => {
                    self.exports(&below.tree, &below.ident.to_string());
                }
                tree => self.exports(tree, &path.ident.to_string()),
            },
            tree => self.imported(tree, 0),
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let supers = names.iter().take_while(|name| *name == "super").count();
        if self.is_root(&names[0], supers)
            && let Some(imported) = names.get(supers.max(1))
        {
            self.note(imported);
        }
        visit::visit_path(self, path);
    }
}

/// A cycle of imports, if there is one.
fn cycle(imports: &Imports) -> Option<Vec<String>> {
    // A module that imports none of the remaining ones is not part of a cycle.
    let mut left = imports.clone();
    loop {
        let names: BTreeSet<String> = left.keys().cloned().collect();
        let is_leaf = |imported: &BTreeSet<String>| imported.is_disjoint(&names);
        let leaves: Vec<String> =
            left.iter().filter(|(_, imported)| is_leaf(imported)).map(|(name, _)| name.clone()).collect();
        if leaves.is_empty() {
            break;
        }
        leaves.iter().for_each(|leaf| drop(left.remove(leaf)));
    }
    let mut chain = vec![left.keys().next()?.clone()];
    loop {
        let next = left[chain.last()?].iter().find(|name| left.contains_key(*name))?.clone();
        if let Some(at) = chain.iter().position(|name| *name == next) {
            chain.push(next);
            return Some(chain.split_off(at));
        }
        chain.push(next);
    }
}

/// Every crate with modules that import each other.
const CRATES: [&str; 25] = [
    "ibv",
    "ofi-api",
    "ofi-ring",
    "ofi-config",
    "ofi-os",
    "ofi-core",
    "ofi-rdm",
    "ofi-shm",
    "ofi-udp",
    "ofi-verbs",
    "ofi-efa",
    "ofi-tcp",
    "ofi",
    "ofi-capi",
    "ofi-testkit",
    "ofi-tools",
    "mxl",
    "mxl-fabrics",
    "mxl-capi",
    "mxl-fabrics-capi",
    "mxl-tools",
    "multirail",
    "nixl-plugin",
    "cuda-emulator",
    "efa-emulator",
];

#[test]
fn imports_have_no_cycles() {
    for name in CRATES {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates").join(name).join("src");
        let imports = Reader::of(&source);
        assert!(imports.values().any(|imported| !imported.is_empty()), "{name}: no imports were found");
        assert_eq!(cycle(&imports).map(|chain| chain.join(" -> ")), None, "{name}");
    }
}

/// Importing a re-exported name counts as importing its module, and so does a path of `super::` through the root.
#[test]
fn imports_are_found_in_every_notation() {
    let written = [
        "mod a { use crate::b::B; } mod b { pub struct B; }",
        "mod a { use crate::B; } mod b { pub struct B; } pub use b::B;",
        "mod a { use crate::B; } mod b { pub struct B; } pub use self::b::B;",
        "mod a { use crate::{C as _, c::{D}}; } mod b { pub struct B; } pub use b::B as C;",
        "mod a { use super::b::B; } mod b { pub struct B; }",
        "mod a { mod inner { use super::super::b::B; } } mod b { pub struct B; }",
        "mod a { mod inner { fn f() { super::super::b::g() } } } mod b { pub fn g() {} }",
        "mod a { fn f() { crate::b::g() } } mod b { pub fn g() {} }",
    ];
    for text in written {
        let imports = Reader::new(Path::new("")).imports(&syn::parse_file(text).unwrap());
        assert!(imports["a"].contains("b"), "{text}: {imports:?}");
    }
    let inner = "mod a { mod b { pub struct B; } mod inner { use super::b::B; } } mod b {}";
    let imports = Reader::new(Path::new("")).imports(&syn::parse_file(inner).unwrap());
    assert!(imports["a"].is_empty(), "{imports:?}");
}

#[test]
fn a_cycle_is_found_behind_modules_outside_of_it() {
    let imports = |pairs: &[(&str, &[&str])]| {
        let set = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        pairs.iter().map(|(name, imported)| (name.to_string(), set(imported))).collect::<Imports>()
    };
    let line = imports(&[("a", &["b", "c"]), ("b", &["c", "elsewhere"]), ("c", &[])]);
    assert_eq!(cycle(&line), None);
    let round = imports(&[("a", &["b"]), ("b", &["c", "leaf"]), ("c", &["b"]), ("leaf", &[])]);
    assert_eq!(cycle(&round).unwrap(), ["b", "c", "b"]);
}
