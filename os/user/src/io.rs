//! Output, to descriptor 1.

use core::fmt;

/// A descriptor to write text to.
pub struct Output(pub usize);

impl fmt::Write for Output {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        crate::write(self.0, text.as_bytes()).map_err(|_| fmt::Error)
    }
}

/// Writes a line to descriptor 1, if there is one: in one piece if it is short.
pub fn print(line: fmt::Arguments<'_>) {
    use fmt::Write;
    let mut text = alloc::string::String::new();
    let _ = writeln!(text, "{line}");
    let _ = crate::write(1, text.as_bytes());
}

/// Prints a line.
#[macro_export]
macro_rules! println {
    ($($arg:tt)*) => { $crate::print(format_args!($($arg)*)) };
}
