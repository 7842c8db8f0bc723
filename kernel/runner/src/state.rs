//! Reads the last state of a hung machine: the registers of all harts, twice through QEMU's
//! monitor, so that progress is visible.
//!
//! The state is saved beside the images, with the complete console output. For each hart it names
//! the function in the kernel, if the kernel's symbols contain the function.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::build::Image;

/// Time between the two queries, and the longest silence within an answer.
const PAUSE: Duration = Duration::from_millis(300);

/// Returns the monitor's report on the machine, or the reason why there is none.
pub(crate) fn query(socket: &Path) -> String {
    let outcome = UnixStream::connect(socket).and_then(|mut monitor| {
        monitor.set_read_timeout(Some(PAUSE))?;
        let mut answers = read_answer(&mut monitor);
        for query in 1..=2 {
            answers += &format!("\nquery {query}\n");
            monitor.write_all(b"info registers -a\n")?;
            answers += &read_answer(&mut monitor);
        }
        Ok(answers)
    });
    outcome.unwrap_or_else(|error| format!("the monitor does not answer: {error}\n"))
}

/// Reads until the monitor falls silent.
fn read_answer(monitor: &mut UnixStream) -> String {
    let mut answers = Vec::new();
    let mut part = [0; 4096];
    while let Ok(count @ 1..) = monitor.read(&mut part) {
        answers.extend_from_slice(&part[..count]);
    }
    String::from_utf8_lossy(&answers).into_owned()
}

/// Writes state and output of a run to a file; returns its path, and a line for each hart.
pub(crate) fn save(name: &str, image: &Image, state: &str, output: &str) -> (PathBuf, String) {
    let file = name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let path = image.archive.with_file_name(format!("{file}.state"));
    let kernel = std::fs::read(&image.kernel).unwrap_or_default();
    let harts = harts(state, &symbols(&kernel));
    let written = std::fs::write(&path, format!("{harts}\n{state}\n{output}"));
    match written {
        Ok(()) => (path, harts),
        Err(error) => (
            path,
            format!("{harts}the state could not be saved: {error}\n"),
        ),
    }
}

/// Returns the position of each hart, with its callers.
fn harts(state: &str, symbols: &[(u64, String)]) -> String {
    let mut lines = String::new();
    let mut hart = "";
    for line in state.lines().map(str::trim) {
        if let Some(at) = line.find("CPU#") {
            hart = &line[at..];
        }
        let mut words = line.split_whitespace();
        while let Some(word) = words.next() {
            if word == "pc" || word == "x1/ra" {
                let value = words.next().unwrap_or("");
                let address = u64::from_str_radix(value, 16).unwrap_or(0);
                lines += &format!("{hart} {word} {value} {}\n", function_at(symbols, address));
            }
        }
    }
    lines
}

/// Returns the function that contains an address.
fn function_at(symbols: &[(u64, String)], address: u64) -> &str {
    let after = symbols.partition_point(|(start, _)| *start <= address);
    match after.checked_sub(1).map(|at| &symbols[at]) {
        // No function is that long, so the address is not one of the kernel.
        Some((start, name)) if address - start < 0x1_0000 => name,
        _ => "not in the kernel",
    }
}

/// Returns the functions of a 64-bit ELF file, by address. Empty for any other file.
pub(crate) fn symbols(elf: &[u8]) -> Vec<(u64, String)> {
    let read = || -> Option<Vec<(u64, String)>> {
        const SYMBOL_TABLE: usize = 2;
        let mut all = sections(elf);
        let table = all.find(|section| section.kind == SYMBOL_TABLE)?;
        let names = sections(elf).nth(table.link)?;
        let (start, names) = (table.start, names.start);
        let mut symbols = Vec::new();
        for at in (start..start.checked_add(table.len)?).step_by(24) {
            let is_function = number(elf, at + 4, 1)? & 0xf == 2;
            if is_function {
                let name = text(elf, names.checked_add(number(elf, at, 4)? as usize)?)?;
                symbols.push((number(elf, at + 8, 8)?, name));
            }
        }
        symbols.sort();
        Some(symbols)
    };
    read().unwrap_or_default()
}

/// Returns the bytes of a section of a 64-bit ELF file; empty if there is no such section.
pub(crate) fn section<'a>(elf: &'a [u8], name: &str) -> &'a [u8] {
    let read = || {
        let names = sections(elf).nth(number(elf, 62, 2)? as usize)?.start;
        let has_name = |section: &Section| {
            let offset = names.checked_add(section.name);
            offset.and_then(|offset| text(elf, offset)).as_deref() == Some(name)
        };
        let section = sections(elf).find(has_name)?;
        elf.get(section.start..section.start.checked_add(section.len)?)
    };
    read().unwrap_or_default()
}

struct Section {
    /// Offset of the name in the table of names.
    name: usize,
    kind: usize,
    start: usize,
    len: usize,
    /// Index of another section to which this section refers.
    link: usize,
}

fn sections(elf: &[u8]) -> impl Iterator<Item = Section> {
    let word = |at, bytes| number(elf, at, bytes).map_or(0, |word| word as usize);
    let (table, size, count) = (word(40, 8), word(58, 2), word(60, 2));
    (0..count).filter_map(move |index| {
        let at = table.checked_add(index * size)?;
        let part = |offset, bytes| {
            let field = at.checked_add(offset)?;
            number(elf, field, bytes).map(|word| word as usize)
        };
        Some(Section {
            name: part(0, 4)?,
            kind: part(4, 4)?,
            start: part(24, 8)?,
            len: part(32, 8)?,
            link: part(40, 4)?,
        })
    })
}

/// Reads a little-endian number of `bytes` bytes.
fn number(elf: &[u8], at: usize, bytes: usize) -> Option<u64> {
    let raw = elf.get(at..at.checked_add(bytes)?)?;
    let add = |all, byte: &u8| all << 8 | u64::from(*byte);
    Some(raw.iter().rev().fold(0, add))
}

/// Reads a text that ends with 0.
fn text(elf: &[u8], at: usize) -> Option<String> {
    let bytes = elf.get(at..)?;
    let end = bytes.iter().position(|byte| *byte == 0)?;
    Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harts_are_in_the_functions_of_the_table() {
        let symbols = [(0x1000, "first".to_owned()), (0x2000, "second".to_owned())];
        let state =
            "(qemu) CPU#1\n pc       0000000000001ffc\n x0/zero  0 x1/ra 0000000000002004\n";
        let lines = harts(state, &symbols);
        assert_eq!(
            lines,
            "CPU#1 pc 0000000000001ffc first\nCPU#1 x1/ra 0000000000002004 second\n"
        );
        assert_eq!(function_at(&symbols, 0xffff_ffff), "not in the kernel");
        assert_eq!(function_at(&symbols, 0), "not in the kernel");
    }

    #[test]
    fn other_files_have_no_symbols() {
        assert!(symbols(b"").is_empty());
        assert!(symbols(&[0xff; 100]).is_empty());
    }

    #[test]
    fn a_program_has_symbols() {
        let executable = std::env::current_exe().and_then(std::fs::read);
        let symbols = symbols(&executable.unwrap_or_default());
        assert!(symbols.iter().any(|(_, name)| name.contains("symbols")));
    }

    #[test]
    fn sections_are_found_by_name() {
        let executable = std::env::current_exe().and_then(std::fs::read);
        let executable = executable.unwrap_or_default();
        assert!(!section(&executable, ".text").is_empty());
        assert!(section(&executable, ".none").is_empty() && section(b"", ".text").is_empty());
    }
}
