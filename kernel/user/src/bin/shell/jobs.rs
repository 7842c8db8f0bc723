//! Programs that the shell starts.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::{Context, Poll};

use os_user::asynchronous::AsyncCall;
use os_user::coroutine::{current, spawn_local};
use os_user::files::read_to_end;
use os_user::number::{FAULTED, KILLED};
use os_user::{Bounds, Error, Pipe, pipe, println, spawn_within, sys, wait, write};

use crate::LEVEL;
use crate::console::{Console, Editor, Typed};

/// Most urgent level that a program may have. The shell is more urgent.
pub(crate) const MOST_URGENT: u8 = LEVEL + 1;
/// Least urgent level of a program.
pub(crate) const LEAST_URGENT: u8 = 62;
const DEFAULT_LEVEL: u8 = 32;
/// Folder of the disk in which programs are found by their names alone.
const FOLDER: &str = "bin/";

/// A command line that starts a program.
pub(crate) struct Job<'a> {
    pub(crate) program: &'a str,
    pub(crate) argument: &'a str,
    /// Level of the program, and its ceiling, the most urgent level to which it may change. `None`
    /// selects the level [`DEFAULT_LEVEL`] and the ceiling [`MOST_URGENT`].
    pub(crate) level: Option<u8>,
    /// True if the shell does not wait for the job.
    pub(crate) in_background: bool,
}

impl Job<'_> {
    /// Starts the program, and waits for its end unless it is in the background.
    pub(crate) async fn run(&self, console: &mut Console) -> Result<(), Error> {
        let input = pipe()?;
        let child = match self.start(&input) {
            Ok(child) => child,
            Err(error) => {
                close([input.reader, input.writer]);
                return Err(error);
            }
        };
        if self.in_background {
            close([input.reader, input.writer]);
            println!("{child} runs in the background");
            let name = String::from(self.program);
            let wait_and_report = async move {
                let status = wait!(child, current()).await;
                report(child, &name, status, true);
            };
            return spawn_local(wait_and_report, Some(LEVEL)).map(drop);
        }
        let status = feed(console, child, &input).await;
        report(child, self.program, status, false);
        Ok(())
    }

    fn start(&self, input: &Pipe) -> Result<usize, Error> {
        let bounds = Bounds {
            level: self.level.unwrap_or(DEFAULT_LEVEL),
            ceiling: self.level.unwrap_or(MOST_URGENT),
            // The program gets half of the shell's share of the machine.
            halvings: 1,
        };
        let start = |program: &str| {
            let files = [input.reader, 1, 2];
            spawn_within(program, self.argument.as_bytes(), &files, bounds)
        };
        match start(self.program) {
            Err(Error::NoProgram) if !self.program.contains('/') => {
                start(&format!("{FOLDER}{}", self.program))
            }
            outcome => outcome,
        }
    }
}

fn close(files: impl IntoIterator<Item = usize>) {
    for file in files {
        // The descriptor is open, so closing it cannot fail.
        let _ = sys::close(file);
    }
}

/// Reports the end of a program, unless a foreground program has ended with status 0.
fn report(child: usize, program: &str, status: Result<isize, Error>, in_background: bool) {
    match status {
        Ok(0) if !in_background => {}
        Ok(0) => println!("{child} has ended: {program}"),
        Ok(KILLED) => println!("{child} was killed: {program}"),
        Ok(FAULTED) => println!("{child} was ended by a fault, see above: {program}"),
        Ok(status) => println!("{child} has ended with status {status}: {program}"),
        Err(error) => println!("{program}: {error}"),
    }
}

/// The input of a program in the foreground.
struct Input {
    /// Write end of the pipe; `None` after Ctrl-D.
    writer: Option<usize>,
    /// Typed lines that have not been written to the pipe.
    lines: Vec<u8>,
    writing: Option<AsyncCall<usize, Vec<u8>>>,
}

impl Input {
    /// Writes as many of the lines as the pipe has space for.
    fn poll(&mut self, cx: &mut Context<'_>) {
        while let Some(writer) = self.writer {
            if self.writing.is_none() && self.lines.is_empty() {
                return;
            }
            let lines = &mut self.lines;
            let start = || write!(writer, core::mem::take(lines), current());
            let writing = self.writing.get_or_insert_with(start);
            match Pin::new(writing).poll(cx) {
                Poll::Ready(_) => self.writing = None,
                Poll::Pending => return,
            }
        }
    }
}

/// Feeds typed lines to a program until it ends; Ctrl-C kills it, Ctrl-D ends its input.
async fn feed(console: &mut Console, child: usize, pipe: &Pipe) -> Result<isize, Error> {
    let mut input = Input {
        writer: Some(pipe.writer),
        lines: Vec::new(),
        writing: None,
    };
    let mut editor = Editor::default();
    let mut exit = wait!(child, current());
    let status = poll_fn(|cx| {
        if let Poll::Ready(status) = Pin::new(&mut exit).poll(cx) {
            return Poll::Ready(status);
        }
        while let Poll::Ready(byte) = console.poll_byte(cx) {
            let Some(byte) = byte else {
                close(input.writer.take());
                break;
            };
            match editor.type_byte(byte) {
                Some(Typed::Line(line)) => {
                    input.lines.extend_from_slice(line.as_bytes());
                    input.lines.push(b'\n');
                }
                Some(Typed::Interrupt) => {
                    // The child may have ended at this moment.
                    let _ = sys::kill(child);
                }
                Some(Typed::End) => close(input.writer.take()),
                None => {}
            }
        }
        input.poll(cx);
        Poll::Pending
    })
    .await;
    // The bytes of a write in flight are in the pipe, which is read below, or are lost with the
    // program.
    drop(input.writing.take());
    close(input.writer.take());
    let unread = read_to_end(pipe.reader).unwrap_or_default();
    close([pipe.reader]);
    console.give_back(&input.lines);
    console.give_back(&unread);
    status
}
