//! The archive that a kernel unpacks as its first file system: "newc", as in the kernel's `buffer-format.rst`.

/// An archive that grows.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

impl Archive {
    /// Appends a folder; its parent must exist.
    pub fn folder(&mut self, name: &str) {
        self.entry(name, FOLDER, &[]);
    }

    /// Appends an executable file.
    pub fn file(&mut self, name: &str, content: &[u8]) {
        self.entry(name, PROGRAM, content);
    }

    /// The completed archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let (len, name_len) = (content.len() as u32, name.len() as u32 + 1);
        // Inode, mode, owner, group, links, time, size, device (2), device of a device (2), name's length, checksum.
        let fields = [self.entries, mode, 0, 0, 1, 0, len, 0, 0, 0, 0, name_len, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_begin_at_multiples_of_four_and_say_how_long_they_are() {
        let mut archive = Archive::default();
        archive.folder("bin");
        archive.file("bin/a", b"hello");
        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes);
        let starts: Vec<usize> = text.match_indices("070701").map(|(at, _)| at).collect();
        assert_eq!(starts.len(), 3);
        assert!(starts.iter().all(|at| at % 4 == 0), "{starts:?}");
        let field = |entry: usize, index: usize| {
            let at = starts[entry] + 6 + 8 * index;
            u32::from_str_radix(&text[at..at + 8], 16).unwrap()
        };
        assert_eq!((field(0, 1), field(1, 1)), (FOLDER, PROGRAM));
        assert_eq!((field(0, 6), field(1, 6), field(1, 11)), (0, 5, 6));
    }
}
