//! Reads lines from the console, and echoes them while they are typed.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::{Context, Poll};

use os_user::asynchronous::AsyncCall;
use os_user::coroutine::current;
use os_user::{Error, read, sleep_micros, write};

/// Maximum length of a line, in bytes; further bytes are ignored.
const MAX_LINE: usize = 240;
/// Number of bytes that are read from the console at once.
const CHUNK: usize = 64;

/// Delay before the console is read again after a lack of memory.
const RETRY_MICROS: u64 = 10_000;

const INTERRUPT: u8 = 3;
const END: u8 = 4;
const BACKSPACE: u8 = 8;
const ESCAPE: u8 = 27;
const DELETE: u8 = 127;

/// An event of the keyboard.
pub(crate) enum Typed {
    /// A line, without its line end.
    Line(String),
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-D on an empty line, or the end of the input.
    End,
}

/// The line that is being typed.
#[derive(Default)]
pub(crate) struct Editor {
    line: Vec<u8>,
    /// Set within an escape sequence, such as an arrow key sends. Escape sequences are ignored.
    in_escape: bool,
}

impl Editor {
    /// Handles a typed byte, and echoes it.
    pub(crate) fn type_byte(&mut self, byte: u8) -> Option<Typed> {
        if self.in_escape {
            self.in_escape = byte == b'[' || !byte.is_ascii_graphic() || byte.is_ascii_digit();
            return None;
        }
        match byte {
            b'\r' | b'\n' => {
                echo(b"\n");
                let line = core::mem::take(&mut self.line);
                return Some(Typed::Line(String::from_utf8_lossy(&line).into_owned()));
            }
            INTERRUPT => {
                echo(b"^C\n");
                self.line.clear();
                return Some(Typed::Interrupt);
            }
            END if self.line.is_empty() => {
                echo(b"\n");
                return Some(Typed::End);
            }
            BACKSPACE | DELETE => self.erase(),
            ESCAPE => self.in_escape = true,
            _ if byte < b' ' || self.line.len() == MAX_LINE => {}
            _ => {
                self.line.push(byte);
                echo(&[byte]);
            }
        }
        None
    }

    fn erase(&mut self) {
        while let Some(byte) = self.line.pop() {
            // Continuation bytes belong to the same character.
            if !(0x80..0xc0).contains(&byte) {
                echo(b"\x08 \x08");
                return;
            }
        }
    }
}

fn echo(bytes: &[u8]) {
    // Without a console the echo is lost.
    let _ = write(1, bytes);
}

pub(crate) struct Console {
    /// Bytes that have been read from the console but not consumed.
    bytes: VecDeque<u8>,
    reading: Option<AsyncCall<usize, Vec<u8>>>,
    has_ended: bool,
}

impl Console {
    pub(crate) fn new() -> Console {
        Console {
            bytes: VecDeque::new(),
            reading: None,
            has_ended: false,
        }
    }

    /// Polls for the next byte; ready with `None` at the end of the input.
    pub(crate) fn poll_byte(&mut self, cx: &mut Context<'_>) -> Poll<Option<u8>> {
        loop {
            if let Some(byte) = self.bytes.pop_front() {
                return Poll::Ready(Some(byte));
            }
            if self.has_ended {
                return Poll::Ready(None);
            }
            let start = || read!(0, vec![0; CHUNK], current());
            let reading = self.reading.get_or_insert_with(start);
            let Poll::Ready((count, bytes)) = Pin::new(reading).poll(cx) else {
                return Poll::Pending;
            };
            self.reading = None;
            match count {
                Ok(count) => {
                    self.has_ended = count == 0;
                    self.bytes.extend(&bytes[..count]);
                }
                // Memory becomes free when a program ends.
                Err(Error::OutOfMemory | Error::TooMany) => sleep_micros(RETRY_MICROS),
                Err(_) => self.has_ended = true,
            }
        }
    }

    /// Puts unread bytes back, in front of the bytes that have not been consumed.
    pub(crate) fn give_back(&mut self, bytes: &[u8]) {
        for byte in bytes.iter().rev() {
            self.bytes.push_front(*byte);
        }
    }

    /// Prints the prompt, and waits until a line or another event has been typed.
    pub(crate) async fn line(&mut self, prompt: &str) -> Typed {
        echo(prompt.as_bytes());
        let mut editor = Editor::default();
        loop {
            let Some(byte) = poll_fn(|cx| self.poll_byte(cx)).await else {
                return Typed::End;
            };
            if let Some(typed) = editor.type_byte(byte) {
                return typed;
            }
        }
    }
}
