//! Modules import in one direction: where a crate promises it, no chain of imports between its top-level modules leads
//! back to where it began.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, ItemMod, ItemUse, UseTree};

/// What each top-level module imports from the others.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// Follows a crate's modules from its root, tests left out, and takes note of `crate::…`.
struct Reader {
    imports: Imports,
    /// The top-level module that is being read; empty in the root.
    module: String,
    /// Where the files of the current module's own modules are.
    folder: PathBuf,
}

impl Reader {
    fn read(&mut self, file: &Path) {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.visit_file(&file);
    }

    fn note(&mut self, imported: &str) {
        if !self.module.is_empty() && self.module != imported {
            self.imports.entry(self.module.clone()).or_default().insert(imported.to_string());
        }
    }

    /// The names right below `crate` in a tree.
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

/// Whether something is compiled for tests or documents alone.
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
        if module.content.is_some() {
            visit::visit_item_mod(self, module);
        } else {
            let beside = folder.join(format!("{name}.rs"));
            let file = if beside.exists() { beside } else { folder.join(&name).join("mod.rs") };
            self.read(&file);
        }
        (self.module, self.folder) = (outer, folder);
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if let UseTree::Path(path) = &item.tree
            && path.ident == "crate"
            && !is_apart(&item.attrs)
        {
            self.roots(&path.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let mut segments = path.segments.iter().map(|segment| segment.ident.to_string());
        if segments.next().as_deref() == Some("crate")
            && let Some(imported) = segments.next()
        {
            self.note(&imported);
        }
        visit::visit_path(self, path);
    }
}

/// A chain of imports that leads back to its beginning.
fn circle(imports: &Imports) -> Option<Vec<String>> {
    // Whatever imports nothing that is left is no part of any circle.
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

#[test]
fn no_imports_of_the_core_go_in_a_circle() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/ofi-core/src");
    let mut reader = Reader { imports: Imports::new(), module: String::new(), folder: source.clone() };
    reader.read(&source.join("lib.rs"));
    assert!(reader.imports["endpoint"].contains("matching"), "imports are found: {:?}", reader.imports);
    assert_eq!(circle(&reader.imports).map(|chain| chain.join(" -> ")), None);
}

#[test]
fn a_circle_is_found_behind_what_leads_to_it() {
    let imports = |pairs: &[(&str, &[&str])]| {
        let set = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        pairs.iter().map(|(name, imported)| (name.to_string(), set(imported))).collect::<Imports>()
    };
    let line = imports(&[("a", &["b", "c"]), ("b", &["c", "elsewhere"]), ("c", &[])]);
    assert_eq!(circle(&line), None);
    let round = imports(&[("a", &["b"]), ("b", &["c", "leaf"]), ("c", &["b"]), ("leaf", &[])]);
    assert_eq!(circle(&round).unwrap(), ["b", "c", "b"]);
}
