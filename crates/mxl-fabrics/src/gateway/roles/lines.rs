//! Splits what a connection brings into lines of bounded length.

/// Maximum length of a line, in bytes. The longest one has a flow's definition.
pub const MAX_LINE: usize = 256 << 10;

/// Bytes that have arrived and are not read yet: at most one line, and what one read of the connection brings.
#[derive(Debug, Default)]
pub struct Inbox {
    bytes: Vec<u8>,
    /// Bytes without a line's end.
    searched: usize,
}

/// A line is longer than [`MAX_LINE`].
#[derive(Debug, PartialEq, Eq)]
pub struct TooLong;

impl Inbox {
    /// Appends what has arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The oldest whole line, without its end.
    ///
    /// # Errors
    /// [`TooLong`]: nothing after it makes sense.
    pub fn next_line(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        let Some(end) = self.bytes[self.searched..].iter().position(|&byte| byte == b'\n') else {
            self.searched = self.bytes.len();
            return if self.searched > MAX_LINE { Err(TooLong) } else { Ok(None) };
        };
        let end = self.searched + end;
        if end > MAX_LINE {
            return Err(TooLong);
        }
        let rest = self.bytes.split_off(end + 1);
        let mut line = std::mem::replace(&mut self.bytes, rest);
        line.pop();
        self.searched = 0;
        Ok(Some(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_split_however_they_arrive() {
        let mut inbox = Inbox::default();
        let mut lines = Vec::new();
        for byte in b"one\n\nthree\nfo" {
            inbox.push(&[*byte]);
            lines.extend(inbox.next_line().unwrap());
        }
        inbox.push(b"ur\nfive\n");
        while let Some(line) = inbox.next_line().unwrap() {
            lines.push(line);
        }
        assert_eq!(lines, [&b"one"[..], b"", b"three", b"four", b"five"]);
    }

    #[test]
    fn a_line_without_an_end_is_refused() {
        let mut inbox = Inbox::default();
        inbox.push(&vec![b'x'; MAX_LINE]);
        assert_eq!(inbox.next_line(), Ok(None));
        inbox.push(b"\n");
        assert_eq!(inbox.next_line().unwrap().map(|line| line.len()), Some(MAX_LINE));
        inbox.push(&vec![b'x'; MAX_LINE + 1]);
        assert_eq!(inbox.next_line(), Err(TooLong));
        inbox.push(b"\n");
        assert_eq!(inbox.next_line(), Err(TooLong));
    }
}
