//! A macro that declares C's structures and records their layout, so that a test can compare it with the headers.

/// A structure's layout: name, size, and offset and size of each field.
#[cfg(test)]
pub(crate) struct Layout {
    pub name: &'static str,
    pub size: usize,
    pub fields: Vec<(&'static str, usize, usize)>,
}

/// Declares structures of C, and in tests `layouts()`, which lists them.
macro_rules! c_structs {
    ($($(#[$meta:meta])* struct $name:ident { $($field:ident: $type:ty,)* })+) => {
        $($(#[$meta])*
        #[derive(Clone, Copy)]
        #[repr(C)]
        pub(crate) struct $name { $(pub $field: $type,)* })+

        #[cfg(test)]
        pub(super) fn layouts() -> Vec<$crate::abi::layout::Layout> {
            vec![$($crate::abi::layout::Layout {
                name: stringify!($name),
                size: size_of::<$name>(),
                fields: vec![$((
                    stringify!($field),
                    std::mem::offset_of!($name, $field),
                    size_of::<$type>(),
                ),)*],
            },)+]
        }
    };
}
pub(crate) use c_structs;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    /// Fields at the end of structures that this library has but interface 2.6 lacks.
    const NEWER: &[(&str, &str)] = &[
        ("fi_ep_attr", "xpu_ctx"),
        ("fi_domain_attr", "max_xpu_ctx_cnt"),
        ("fi_ops_ep", "export_xpu"),
        ("fi_ops_cq", "export_xpu"),
        ("fi_ops_cntr", "export_xpu"),
        ("fi_ops_domain", "xpu_ctx"),
        ("fi_ops_av", "lookup2"),
    ];

    type Fields = HashMap<String, (usize, usize)>;

    /// The layouts in the headers: size and fields of each structure.
    fn table() -> HashMap<String, (usize, Fields)> {
        let mut all: HashMap<String, (usize, Fields)> = HashMap::new();
        let mut current = String::new();
        for line in include_str!("../../abi/libfabric-2.6.txt").lines().filter(|line| !line.starts_with('#'))
        {
            let words: Vec<&str> = line.split_whitespace().collect();
            if line.starts_with(' ') {
                let name = words[0].strip_prefix("(union).").unwrap_or(words[0]).to_string();
                let place = (words[1].parse().unwrap(), words[2].parse().unwrap());
                all.get_mut(&current).unwrap().1.insert(name, place);
            } else if let [name, size] = words[..] {
                current = name.to_string();
                all.insert(current.clone(), (size.parse().unwrap(), Fields::new()));
            }
        }
        all
    }

    #[test]
    fn sizes_and_offsets_are_those_of_the_headers() {
        let table = table();
        let mine: Vec<_> =
            crate::abi::types::layouts().into_iter().chain(crate::abi::ops::layouts()).collect();
        assert!(mine.len() > 45, "only {} structures", mine.len());
        for layout in mine {
            let (size, fields) = &table[layout.name];
            let newer: usize = layout
                .fields
                .iter()
                .filter(|(field, ..)| NEWER.contains(&(layout.name, field)))
                .map(|(.., size)| size)
                .sum();
            assert_eq!(layout.size - newer, *size, "size of {}", layout.name);
            for (field, offset, len) in &layout.fields {
                let name = field.trim_start_matches("r#");
                if NEWER.contains(&(layout.name, name)) {
                    assert!(offset >= size, "{}.{name} is new, and so behind the old ones", layout.name);
                    continue;
                }
                let place = fields.get(name).unwrap_or_else(|| panic!("{}.{name} is not C's", layout.name));
                assert_eq!((*offset, *len), *place, "{}.{name}", layout.name);
            }
            for field in fields.keys().filter(|field| *field != "data_progress" && *field != "dmabuf") {
                let has = layout.fields.iter().any(|(name, ..)| name.trim_start_matches("r#") == field);
                assert!(has, "{}.{field} is missing", layout.name);
            }
        }
    }
}
