//! Writes text to descriptors, and lines to descriptor 1.

use core::fmt;

/// A descriptor to which text is written.
pub struct Output(pub usize);

impl fmt::Write for Output {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        match crate::write(self.0, text.as_bytes()) {
            Ok(_) => Ok(()),
            Err(_) => Err(fmt::Error),
        }
    }
}

/// Buffer that collects a line before it is written. It does not use the heap, because the text may
/// report a lack of memory.
struct Line {
    bytes: [u8; 256],
    len: usize,
}

impl Line {
    fn flush(&mut self) {
        let _ = crate::write(1, &self.bytes[..self.len]);
        self.len = 0;
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            if self.len == self.bytes.len() {
                self.flush();
            }
            self.bytes[self.len] = byte;
            self.len += 1;
        }
        Ok(())
    }
}

/// Writes a line to descriptor 1, if it is open; in one piece if the line is short.
pub fn print(line: fmt::Arguments<'_>) {
    use fmt::Write;
    let mut text = Line {
        bytes: [0; 256],
        len: 0,
    };
    let _ = writeln!(text, "{line}");
    text.flush();
}

/// Prints a line.
#[macro_export]
macro_rules! println {
    ($($arg:tt)*) => { $crate::print(format_args!($($arg)*)) };
}
