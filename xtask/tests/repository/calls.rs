//! Method calls between the files of a crate. A type whose methods stand in several files hides cycles from the check
//! of imports: `self.settle()` imports nothing.
//!
//! The type of a receiver is known for `self`, for parameters, and for their fields. A call on anything else is not
//! followed.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{
    Expr, ExprCall, ExprMethodCall, FnArg, ImplItemFn, ItemFn, ItemImpl, ItemMod, ItemStruct, Pat, Type,
};

use super::tracked;

/// The largest cycle that a crate may have, in files, where that is more than the rule. A number here only falls.
const LARGEST: [(&str, usize); 10] = [
    ("multirail", 18),
    ("ofi-efa", 13),
    ("ofi-shm", 12),
    ("ofi-core", 8),
    ("ofi-tcp", 10),
    ("ofi-testkit", 6),
    ("mxl-fabrics", 5),
    ("ofi-verbs", 5),
    ("ofi-rdm", 4),
    ("mxl", 3),
];
/// The rule, for all other crates.
const USUAL: usize = 2;

type Files = BTreeMap<String, BTreeSet<String>>;

/// What the files of a crate define.
#[derive(Default)]
struct Definitions {
    /// Files of a type's inherent methods.
    methods: BTreeMap<(String, String), BTreeSet<String>>,
    /// Types of fields. A struct whose name is defined twice has none.
    fields: BTreeMap<(String, String), String>,
    structs: BTreeMap<String, usize>,
}

/// Reads the definitions of a file, and then its calls.
struct FileReader<'a> {
    file: &'a str,
    definitions: &'a mut Definitions,
    calls: Option<&'a mut Files>,
    /// The type of the current `impl`.
    own: Option<String>,
    /// Types of the current function's parameters.
    parameters: BTreeMap<String, String>,
}

/// The name of a type, behind references and boxes.
fn name_of(of: &Type) -> Option<String> {
    match of {
        Type::Reference(reference) => name_of(&reference.elem),
        Type::Path(path) => {
            let last = path.path.segments.last()?;
            match &last.arguments {
                syn::PathArguments::AngleBracketed(list) if last.ident == "Box" => match list.args.first()? {
                    syn::GenericArgument::Type(inner) => name_of(inner),
                    _ => None,
                },
                _ => Some(last.ident.to_string()),
            }
        }
        _ => None,
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.meta.require_list().is_ok_and(|list| {
                list.path.is_ident("cfg")
                    && list
                        .tokens
                        .to_string()
                        .split(|c: char| !c.is_alphanumeric())
                        .any(|word| word == "test")
            })
    })
}

impl FileReader<'_> {
    /// The type of an expression.
    fn type_of(&self, expression: &Expr) -> Option<String> {
        match expression {
            Expr::Path(path) => {
                let name = path.path.get_ident()?.to_string();
                if name == "self" { self.own.clone() } else { self.parameters.get(&name).cloned() }
            }
            Expr::Field(field) => {
                let syn::Member::Named(name) = &field.member else { return None };
                let base = self.type_of(&field.base)?;
                self.definitions.fields.get(&(base, name.to_string())).cloned()
            }
            Expr::Reference(reference) => self.type_of(&reference.expr),
            Expr::Paren(paren) => self.type_of(&paren.expr),
            _ => None,
        }
    }

    fn note(&mut self, of: String, method: String) {
        let Some(files) = self.definitions.methods.get(&(of, method)) else { return };
        // A name with several definitions, under conditions or in several types of the name, says nothing.
        if files.len() == 1
            && !files.contains(self.file)
            && let Some(calls) = self.calls.as_deref_mut()
        {
            calls.entry(self.file.to_string()).or_default().extend(files.iter().cloned());
        }
    }

    fn with_parameters(&mut self, inputs: &syn::punctuated::Punctuated<FnArg, syn::Token![,]>) {
        self.parameters.clear();
        for input in inputs {
            if let FnArg::Typed(typed) = input
                && let Pat::Ident(name) = &*typed.pat
                && let Some(of) = name_of(&typed.ty)
            {
                self.parameters.insert(name.ident.to_string(), of);
            }
        }
    }
}

impl<'ast> Visit<'ast> for FileReader<'_> {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_test(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        if self.calls.is_none() {
            *self.definitions.structs.entry(item.ident.to_string()).or_default() += 1;
            for field in &item.fields {
                if let (Some(name), Some(of)) = (&field.ident, name_of(&field.ty)) {
                    self.definitions.fields.insert((item.ident.to_string(), name.to_string()), of);
                }
            }
        }
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        if is_test(&item.attrs) {
            return;
        }
        let outer = std::mem::replace(&mut self.own, name_of(&item.self_ty));
        if self.calls.is_none()
            && item.trait_.is_none()
            && let Some(own) = &self.own
        {
            for member in &item.items {
                if let syn::ImplItem::Fn(function) = member {
                    let key = (own.clone(), function.sig.ident.to_string());
                    self.definitions.methods.entry(key).or_default().insert(self.file.to_string());
                }
            }
        }
        visit::visit_item_impl(self, item);
        self.own = outer;
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        if !is_test(&function.attrs) {
            self.with_parameters(&function.sig.inputs);
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        if !is_test(&function.attrs) {
            self.with_parameters(&function.sig.inputs);
            visit::visit_item_fn(self, function);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        if self.calls.is_some()
            && let Some(of) = self.type_of(&call.receiver)
        {
            self.note(of, call.method.to_string());
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        if self.calls.is_some()
            && let Expr::Path(path) = &*call.func
            && let [.., of, method] = &path.path.segments.iter().collect::<Vec<_>>()[..]
        {
            let of = if of.ident == "Self" { self.own.clone() } else { Some(of.ident.to_string()) };
            if let Some(of) = of {
                self.note(of, method.ident.to_string());
            }
        }
        visit::visit_expr_call(self, call);
    }
}

/// The calls between files, given their names and texts.
fn calls(files: &[(String, String)]) -> Files {
    let (mut definitions, mut found) = (Definitions::default(), Files::new());
    let parsed: Vec<_> = files
        .iter()
        .map(|(name, text)| (name, syn::parse_file(text).unwrap_or_else(|error| panic!("{name}: {error}"))))
        .collect();
    for (name, text) in &parsed {
        let mut reader = FileReader {
            file: name,
            definitions: &mut definitions,
            calls: None,
            own: None,
            parameters: BTreeMap::new(),
        };
        reader.visit_file(text);
    }
    let structs = std::mem::take(&mut definitions.structs);
    definitions.fields.retain(|(name, _), _| structs.get(name) == Some(&1));
    for (name, text) in &parsed {
        let mut reader = FileReader {
            file: name,
            definitions: &mut definitions,
            calls: Some(&mut found),
            own: None,
            parameters: BTreeMap::new(),
        };
        reader.visit_file(text);
    }
    found
}

/// The largest group of files that all reach each other.
fn largest_cycle(calls: &Files) -> BTreeSet<String> {
    let reached = |from: &String| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(file) = open.pop() {
            for next in calls.get(&file).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    open.push(next.clone());
                }
            }
        }
        seen
    };
    let all: BTreeMap<&String, BTreeSet<String>> = calls.keys().map(|file| (file, reached(file))).collect();
    let group = |file: &String| -> BTreeSet<String> {
        let others =
            all.iter().filter(|(other, reached)| reached.contains(file) && all[file].contains(**other));
        others.map(|(other, _)| (*other).clone()).collect()
    };
    all.keys().map(|file| group(file)).max_by_key(BTreeSet::len).unwrap_or_default()
}

/// The production files of each crate.
fn crates() -> BTreeMap<String, Vec<(String, String)>> {
    let mut all: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for (file, text) in tracked(&["*.rs"]) {
        let Some((name, path)) = file.strip_prefix("crates/").and_then(|rest| rest.split_once("/src/"))
        else {
            continue;
        };
        if path
            .split('/')
            .any(|part| part == "tests" || part.ends_with("tests.rs") || part.starts_with("model"))
        {
            continue;
        }
        all.entry(name.to_string()).or_default().push((path.to_string(), text));
    }
    all
}

#[test]
fn methods_of_few_files_call_each_other_in_a_circle() {
    let mut wrong = Vec::new();
    for (name, files) in crates() {
        let allowed = LARGEST.iter().find(|(known, _)| *known == name).map_or(USUAL, |(_, size)| *size);
        let cycle = largest_cycle(&calls(&files));
        if cycle.len() > allowed {
            let files: Vec<&str> = cycle.iter().map(String::as_str).collect();
            wrong.push(format!("{name}: {} files, {allowed} are allowed: {}", files.len(), files.join(", ")));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn calls_are_followed_through_self_parameters_and_fields() {
    let file = |name: &str, text: &str| (name.to_string(), text.to_string());
    let a = file(
        "a.rs",
        "struct A { b: Box<B>, n: u8 } impl A { fn one(&mut self) { self.b.two(); self.n.max(1); } }",
    );
    let b =
        file("b.rs", "struct B; impl B { fn two(&self) { Self::three() } fn four(a: &mut A) { a.one() } }");
    let tests = "#[cfg(test)] mod tests { fn t(a: A) { a.one() } }";
    let c = file("c.rs", &format!("impl B {{ fn three() {{}} }} fn free(x: Unknown) {{ x.one() }} {tests}"));
    let found = calls(&[a, b, c]);
    assert_eq!(found["a.rs"], BTreeSet::from(["b.rs".to_string()]));
    assert_eq!(found["b.rs"], ["a.rs", "c.rs"].map(String::from).into());
    assert_eq!(found.get("c.rs"), None);
    assert_eq!(largest_cycle(&found), ["a.rs", "b.rs"].map(String::from).into());
}
