//! Compares C's structures in C's headers with the table of the newest interface: an older interface's structures are
//! prefixes of it. The compiler determines which structures and fields exist.

use std::fmt::Write as _;
use std::path::Path;

use crate::StepResult;
use crate::patience::patient;
use crate::step::{answers, command, not_run, root, run};
use crate::stock::{NO_HEADERS, Stock};

/// Headers that declare structures.
const HEADERS: [&str; 12] = [
    "fabric",
    "fi_atomic",
    "fi_cm",
    "fi_collective",
    "fi_domain",
    "fi_endpoint",
    "fi_eq",
    "fi_errno",
    "fi_ext",
    "fi_rma",
    "fi_tagged",
    "fi_trigger",
];

/// Structures that are not prefixes of their newer form, and the reasons why that is harmless here.
const OTHER: [&str; 3] = [
    "fi_mr_modify.attr",           // contains a structure that grew; only its beginning is read
    "fi_ops_srx_owner.free_entry", // between providers, which no program calls
    "fi_peer_rx_entry",            // the same
];

/// Minimum number of comparisons. With fewer the test no longer tests anything.
const ENOUGH: usize = 300;

/// Compares sizes and offsets.
pub fn check(folder: &Path, stock: &Stock) -> StepResult {
    if !answers("c++", &["--version"]) {
        return not_run("structures of C's headers", "no C++ compiler (apt-get install g++)");
    }
    if !stock.compiles("#include <rdma/fabric.h>\n#include <rdma/fi_ext.h>\n") {
        return not_run("structures of C's headers", NO_HEADERS);
    }
    let table = root().join("crates/ofi-capi/abi/libfabric-2.6.txt");
    let table = std::fs::read_to_string(&table).map_err(|error| format!("{}: {error}", table.display()))?;
    let source = folder.join("layouts.cc");
    let program = stock.output(folder, &source);
    std::fs::write(&source, program_of(&table)).map_err(|error| format!("{}: {error}", source.display()))?;
    let mut cc = stock.compiler("c++");
    run(cc.args(["-std=c++20", "-w", "-o"]).arg(&program).arg(&source))?;
    patient(&mut command(&program))
}

fn is_other(structure: &str, field: &str) -> bool {
    OTHER.contains(&structure) || OTHER.contains(&format!("{structure}.{field}").as_str())
}

fn is_identifier(text: &str) -> bool {
    text.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

/// A program that compares each field that both the table and the headers have. It ends with an error if an offset
/// differs.
fn program_of(table: &str) -> String {
    let mut text = String::new();
    for header in HEADERS {
        let _ = writeln!(text, "#include <rdma/{header}.h>");
    }
    text.push_str(
        "#include <cstddef>\n#include <cstdio>\nstatic int wrong, seen;\n\
         static void same(const char *what, size_t here, size_t there) {\n\
         \tseen++;\n\tif (here != there) { wrong++; fprintf(stderr, \"%s: %zu here, %zu there\\n\", what, there, here); }\n}\n\
         int main() {\n",
    );
    let mut structure = String::new();
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [field, offset, size, ..]
                if line.starts_with(' ') && is_identifier(field) && !is_other(&structure, field) =>
            {
                // A trailing array without a length has no size.
                let of_size = match size {
                    "0" => String::new(),
                    size => {
                        format!("same(\"size of {structure}.{field}\", sizeof(((T *)0)->{field}), {size});")
                    }
                };
                let _ = writeln!(
                    text,
                    "\t[]<class T>(T *) {{ if constexpr (requires (T t) {{ t.{field}; }}) {{ \
                     same(\"{structure}.{field}\", offsetof(T, {field}), {offset}); {of_size} }} }}((struct {structure} *)0);"
                );
            }
            _ if line.starts_with(' ') => {} // in a union without a name
            [name, size] => {
                structure = name.to_string();
                if OTHER.contains(&name) {
                    continue;
                }
                // An older structure may be shorter, but not longer.
                let _ = writeln!(
                    text,
                    "\t[]<class T>(T *) {{ if constexpr (requires {{ sizeof(T); }}) {{ seen++; \
                     if (sizeof(T) > {size}) {{ wrong++; fprintf(stderr, \"{name} is longer: %zu\\n\", sizeof(T)); }} }} }}((struct {name} *)0);"
                );
            }
            _ => {}
        }
    }
    let _ = writeln!(
        text,
        "\tif (seen < {ENOUGH}) {{ fprintf(stderr, \"only %d comparisons\\n\", seen); return 2; }}\n\treturn wrong != 0;\n}}"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::program_of;

    #[test]
    fn each_field_is_compared_where_the_headers_have_it() {
        let text = program_of("# words\nfi_alias 16\n  fid 0 8 ptr\n  (union).x 8 8 int\n  flags 8 8 int\n");
        assert!(text.contains("same(\"fi_alias.flags\", offsetof(T, flags), 8)"));
        assert!(text.contains("sizeof(T) > 16"));
        assert!(!text.contains("union"));
    }
}
