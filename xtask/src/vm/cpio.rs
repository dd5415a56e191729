//! The archive format of an initial RAM disk ("newc"), so that no tool for it need be installed.

/// An archive that is being written.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// Adds a directory. Parents come before their contents.
    pub fn directory(&mut self, path: &str) {
        self.entry(path, 0o040_755, b"");
    }

    /// Adds an executable file.
    pub fn file(&mut self, path: &str, contents: &[u8]) {
        self.entry(path, 0o100_755, contents);
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) {
        self.entry(path, 0o120_777, target.as_bytes());
    }

    /// The complete archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, b"");
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, contents: &[u8]) {
        self.entries += 1;
        let links = 1;
        let fields = [self.entries, mode, 0, 0, links, 0, contents.len() as u32, 0, 0, 0, 0, path.len() as u32 + 1, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(contents);
        self.pad();
    }

    /// Headers and contents start at multiples of 4.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_the_documented_form() {
        let mut archive = Archive::default();
        archive.file("init", b"hello");
        let bytes = archive.finish();
        // The header, the name and their padding end at a multiple of 4; so do the contents.
        let header = "07070100000001000081ED0000000000000000000000010000000000000005000000000000000000000000000000000000000500000000";
        assert_eq!(&bytes[..110], header.as_bytes());
        assert_eq!(&bytes[110..116], b"init\0\0");
        assert_eq!(&bytes[116..124], b"hello\0\0\0");
        assert_eq!(&bytes[124..130], b"070701");
        assert!(bytes.len().is_multiple_of(4));
        assert_eq!(&bytes[124 + 110..124 + 121], b"TRAILER!!!\0");
    }
}
